//! Memory as a resource: what fits starts, what does not is told why and is not passed over for ever.

use super::*;
use crate::policy::{Limits, Worker};
use crate::time::Steady;
use std::time::Duration;

const G: u64 = 1 << 30;

fn needs(gigabytes: u64, policy: Policy) -> Policy {
    Policy { limits: Limits { memory: gigabytes * G, ..Limits::default() }, ..policy }
}

fn kept(pattern: &str, slots: u32) -> Policy {
    Policy { slots, ..Policy::new(pattern, Service::Worker(Worker::new(Command::default()))) }
}

fn seconds(seconds: u64) -> Steady {
    Steady::default().after(Duration::from_secs(seconds))
}

/// What is planned, by queue, and claimed in full.
fn started(s: &mut Scheduler) -> Vec<(u32, Planned)> {
    let planned = s.plan();
    planned.iter().for_each(|planned| s.claimed(planned, planned.most));
    planned.into_iter().map(|planned| (planned.lane.queue.0, planned)).collect()
}

fn queues(started: &[(u32, Planned)]) -> Vec<u32> {
    started.iter().map(|(queue, _)| *queue).collect()
}

fn told(s: &Scheduler, queue: u32) -> String {
    s.why(QueueNo(queue)).to_string()
}

#[test]
fn starts_fit_into_memory_and_why_says_who_holds_it() {
    let policies = vec![needs(2, command("video", 10, 1)), needs(1, command("thumb", 10, 1)), command("mail", 10, 1)];
    let mut s = with_queues(policies, 100, &["video", "thumb", "mail"]);
    s.set_memory(Some(9 * G + G / 2));
    s.ready(fresh(0), 10);
    let first = started(&mut s);
    assert_eq!(first.len(), 4, "four times two of nine and a half");
    assert_eq!(
        told(&s, 0),
        "it needs 2 GiB of memory, and 1.5 GiB of 9.5 GiB is free; held by video 8 GiB (4 × 2 GiB)"
    );
    assert_eq!(s.why(QueueNo(0)).code(), "memory_short");
    s.ready(fresh(1), 3);
    s.ready(fresh(2), 5);
    let second = started(&mut s);
    assert_eq!(queues(&second).iter().filter(|queue| **queue == 1).count(), 1, "one small one fits beside them");
    assert_eq!(queues(&second).iter().filter(|queue| **queue == 2).count(), 5, "who needs none goes on");
    let told = told(&s, 1);
    assert!(told.ends_with("held by video 8 GiB (4 × 2 GiB), thumb 1 GiB"), "{told}");
    s.finished(first[0].1.crew, first[0].1.lane);
    let third = started(&mut s).len();
    assert!(third > 0, "what became free is taken");
    s.set_memory(Some(100 * G));
    assert_eq!(started(&mut s).len(), 6 + 2 - third, "more of it at once");
    s.set_memory(Some(G));
    assert_eq!(started(&mut s).len(), 0);
    s.set_memory(None);
    s.ready(fresh(0), 1);
    assert_eq!(started(&mut s).len(), 1, "nobody counts");
}

#[test]
fn a_large_one_gets_its_turn_while_small_ones_stream_by() {
    let policies = vec![needs(6, command("large", 1, 1)), needs(1, command("small", 100, 1))];
    let mut s = with_queues(policies, 100, &["large", "small"]);
    s.set_memory(Some(9 * G));
    s.ready(fresh(1), 9);
    let mut running = started(&mut s);
    assert_eq!(running.len(), 9);
    s.ready(fresh(0), 1);
    s.tell_steady(seconds(1));
    assert_eq!(started(&mut s).len(), 0);
    assert_eq!(s.next_look(), Some(seconds(11)), "ten seconds are enough");
    let mut small_ones = 0;
    for second in 2..=11 {
        let (_, ended) = running.remove(0);
        s.finished(ended.crew, ended.lane);
        s.ready(fresh(1), 1);
        s.tell_steady(seconds(second));
        let begun = started(&mut s);
        small_ones += begun.len();
        running.extend(begun);
    }
    assert_eq!(small_ones, 9, "until then the small ones went by, and from then on none");
    assert_eq!(s.next_look(), None);
    assert!(told(&s, 1).ends_with("; what becomes free is set aside for large"), "{}", told(&s, 1));
    for _ in 0..4 {
        let (_, ended) = running.remove(0);
        s.finished(ended.crew, ended.lane);
        assert_eq!(started(&mut s).len(), 0, "not yet");
    }
    let (_, ended) = running.remove(0);
    s.finished(ended.crew, ended.lane);
    assert_eq!(queues(&started(&mut s)), [0], "three are left, and six fit beside them");
    assert_eq!(started(&mut s).len(), 0);
    let (_, ended) = running.remove(0);
    s.finished(ended.crew, ended.lane);
    assert_eq!(queues(&started(&mut s)), [1], "the small ones go on");
}

#[test]
fn a_better_priority_is_not_overtaken_by_what_fits() {
    let policies = vec![needs(6, command("large", 1, 1)), needs(1, command("small", 100, 1))];
    let mut s = with_queues(policies, 100, &["large", "small"]);
    s.set_memory(Some(9 * G));
    s.ready(lane(1, -10, LaneKind::Fresh), 9);
    let running = started(&mut s);
    s.ready(fresh(0), 1);
    s.ready(lane(1, -10, LaneKind::Fresh), 9);
    assert_eq!(started(&mut s).len(), 0);
    for (_, ended) in running.iter().take(5) {
        s.finished(ended.crew, ended.lane);
        assert_eq!(started(&mut s).len(), 0, "it waits for the better one at once");
    }
    s.finished(running[5].1.crew, running[5].1.lane);
    assert_eq!(queues(&started(&mut s)), [0]);
}

#[test]
fn a_reservation_ends_with_its_reason() {
    let policies = vec![needs(6, command("large", 1, 1)), needs(1, command("small", 100, 1))];
    let mut s = with_queues(policies, 100, &["large", "small"]);
    s.set_memory(Some(9 * G));
    s.ready(lane(1, -10, LaneKind::Fresh), 10);
    let running = started(&mut s);
    s.ready(fresh(0), 1);
    assert_eq!(started(&mut s).len(), 0);
    s.finished(running[0].1.crew, running[0].1.lane);
    assert_eq!(started(&mut s).len(), 0, "set aside");
    // A person takes the large job away, and nothing else happens.
    s.ready(fresh(0), -1);
    assert_eq!(queues(&started(&mut s)), [1]);
}

#[test]
fn kept_workers_hold_their_memory_while_they_live_and_idle_ones_make_room() {
    let policies = vec![needs(3, kept("kept", 4)), needs(5, command("large", 1, 1))];
    let mut s = with_queues(policies, 100, &["kept", "large"]);
    s.set_memory(Some(9 * G));
    s.ready(fresh(0), 4);
    let begun = started(&mut s);
    assert_eq!(begun.len(), 3);
    let crew = begun[0].1.crew;
    assert_eq!(s.terms(crew).map(|policy| policy.slots), Some(3), "there are no more slots than memory");
    s.set_workers("kept", 3);
    assert_eq!(s.memory_wanted(), 0, "nobody is idle");
    begun.iter().for_each(|(_, planned)| s.finished(planned.crew, planned.lane));
    assert_eq!(queues(&started(&mut s)), [0], "a worker that lives takes the last job");
    s.ready(fresh(1), 1);
    assert_eq!(started(&mut s).len(), 0, "idle workers still hold theirs");
    assert_eq!(told(&s, 1), "it needs 5 GiB of memory, and 0 B of 9 GiB is free; held by kept 9 GiB (3 × 3 GiB)");
    assert_eq!(s.memory_wanted(), 5 * G);
    s.set_workers("kept", 2);
    assert_eq!((started(&mut s).len(), s.memory_wanted()), (0, 2 * G));
    s.set_workers("kept", 1);
    assert_eq!(queues(&started(&mut s)), [1]);
    assert_eq!(s.memory_wanted(), 0);
    assert_eq!(s.terms(crew).map(|policy| policy.slots), Some(1));
}

#[test]
fn a_reload_weighs_what_runs_by_the_new_rules() {
    let mut s = with_queues(vec![needs(2, command("a", 10, 1))], 100, &["a"]);
    s.set_memory(Some(10 * G));
    s.ready(fresh(0), 20);
    let running = started(&mut s);
    assert_eq!(running.len(), 5);
    s.reload(vec![needs(1, command("a", 20, 1))], 100);
    assert_eq!(started(&mut s).len(), 5, "what runs weighs half");
    s.reload(vec![command("b", 1, 1)], 100);
    for (_, planned) in running {
        s.finished(planned.crew, planned.lane);
    }
    assert_eq!(told(&s, 0), Reason::NoRunner.to_string());
}

/// Whatever comes and goes, no more is held than there is, and in the end everything has run.
#[test]
fn at_random_memory_is_never_overdrawn_and_nobody_starves() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |most: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % most
    };
    for _ in 0..60 {
        let sizes: Vec<u64> = (0..5).map(|_| random(10)).collect();
        let policies = sizes.iter().enumerate().map(|(at, size)| needs(*size, command(&format!("q{at}"), 3, 1)));
        let mut s = with_queues(policies.collect(), 8, &["q0", "q1", "q2", "q3", "q4"]);
        s.set_memory(Some(9 * G));
        let (mut running, mut left): (Vec<Planned>, i64) = (Vec::new(), 0);
        let mut now = 0;
        while now < 200 || left > 0 || !running.is_empty() {
            now += 1;
            assert!(now < 10_000, "{left} of {sizes:?} never ran");
            s.tell_steady(seconds(now));
            if now < 200 {
                let (queue, priority) = (random(5) as u32, random(3) as i64 - 1);
                s.ready(lane(queue, priority, LaneKind::Fresh), 1);
                left += 1;
            }
            for (_, planned) in started(&mut s) {
                left -= i64::from(planned.most);
                running.push(planned);
            }
            let held: u64 = running.iter().map(|planned| sizes[planned.lane.queue.0 as usize]).sum();
            assert!(held <= 9, "{held} of 9 are held");
            if !running.is_empty() && random(2) == 0 {
                let ended = running.swap_remove(random(running.len() as u64) as usize);
                s.finished(ended.crew, ended.lane);
            }
        }
    }
}
