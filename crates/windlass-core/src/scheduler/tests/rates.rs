//! Rates and dead destinations on virtual time.

use super::*;
use crate::circuit::Sign;
use crate::rate::Rate;
use std::time::Duration;

fn at(millis: u64) -> Steady {
    Steady::default().after(Duration::from_millis(millis))
}

fn rated(pattern: &str, slots: u32, count: u32) -> Policy {
    Policy { rate: Rate::new(count, Duration::from_secs(1)), ..command(pattern, slots, 1) }
}

/// Plays so many milliseconds, waking only when the scheduler says; everything ends at once. Starts by queue.
fn play(s: &mut Scheduler, queues: usize, until: u64) -> (Vec<u64>, usize) {
    let (mut starts, mut turns) = (vec![0; queues], 0);
    while let Some(next) = s.next_look().filter(|next| *next <= at(until)) {
        s.tell_steady(next);
        turns += 1;
        for planned in s.plan() {
            starts[planned.lane.queue.0 as usize] += u64::from(planned.most);
            s.claimed(&planned, planned.most);
            s.heard(planned.crew, planned.most, Sign::Alive);
            s.finished(planned.crew, planned.lane);
        }
    }
    (starts, turns)
}

#[test]
fn a_thousand_queues_keep_their_rates_each_for_itself() {
    let names: Vec<String> = (0..1000).map(|n| format!("q{}.{n}", n % 4)).collect();
    let policies = [3, 10, 100, 250].iter().enumerate().map(|(n, count)| rated(&format!("q{n}.*"), 5000, *count));
    let mut s = with_queues(policies.collect(), 5000, &names.iter().map(String::as_str).collect::<Vec<_>>());
    s.tell_steady(at(0));
    (0..1000).for_each(|n| s.ready(fresh(n), 1_000_000));
    let first: u32 = s
        .plan()
        .iter()
        .map(|planned| {
            s.claimed(planned, planned.most);
            s.finished(planned.crew, planned.lane);
            planned.most
        })
        .sum();
    assert_eq!(first, 1000, "one of each to begin with, no burst");
    let (starts, turns) = play(&mut s, 1000, 20_000);
    for (n, count) in starts.iter().enumerate() {
        let exact = 20.0 * [3.0, 10.0, 100.0, 250.0][n % 4];
        let off = ((count + 1) as f64 - exact).abs() / exact;
        assert!(off <= 0.02, "queue {n} started {count} in 20 s, expected {exact}");
    }
    assert!(turns <= 2001, "{turns} turns in 20 s: they are made together");
    assert_eq!(s.next_look().map(|next| next > at(20_000)), Some(true), "it says when the next may start");
}

#[test]
fn a_queue_without_jobs_wakes_nobody_and_saves_nothing_up() {
    let mut s = with_queues(vec![rated("a", 9, 10)], 9, &["a"]);
    s.tell_steady(at(0));
    s.ready(fresh(0), 1);
    assert_eq!(s.plan().len(), 1);
    assert_eq!(s.next_look(), None, "nothing waits");
    s.tell_steady(at(60_000));
    s.ready(fresh(0), 50);
    assert_eq!(s.plan().len(), 1, "a minute of rest is no credit");
    assert_eq!(s.next_look(), Some(at(60_100)));
    let next = Time(0).after(Duration::from_millis(100));
    assert_eq!(s.why(QueueNo(0)), Reason::RateReached { rate: Rate::new(10, Duration::from_secs(1)).unwrap(), next });
    assert!(s.why(QueueNo(0)).to_string().contains("its rate (10/s) lets no further job start yet"));
}

#[test]
fn a_rate_that_is_taken_away_holds_nothing_any_more() {
    let mut s = with_queues(vec![rated("a", 9, 1)], 9, &["a"]);
    s.ready(fresh(0), 9);
    assert_eq!(s.plan().len(), 1);
    s.reload(vec![command("a", 9, 1)], 9);
    assert_eq!((s.plan().len(), s.next_look()), (8, None));
}

#[test]
fn a_batch_waits_for_its_share_and_a_claim_that_found_less_gives_it_back() {
    let batch = Policy { rate: Rate::new(100, Duration::from_secs(1)), ..handler("a", 9, 10) };
    let mut s = with_queues(vec![batch], 9, &["a"]);
    s.tell_steady(at(0));
    s.ready(fresh(0), 1000);
    assert_eq!(s.plan(), [], "ten go together");
    assert_eq!(s.next_look(), Some(at(90)));
    s.tell_steady(at(90));
    let planned = s.plan();
    assert_eq!(planned.iter().map(|p| p.most).collect::<Vec<_>>(), [10]);
    s.claimed(&planned[0], 4);
    assert_eq!(s.next_look(), Some(at(130)), "six were not used");
}

fn probed(after: u32) -> Scheduler {
    let policy = Policy { dead_after: after, ..command("a.*", 3, 1) };
    let mut s = with_queues(vec![policy, command("b", 6, 1)], 9, &["a.0", "a.1", "b"]);
    s.tell_steady(at(0));
    (0..3).for_each(|queue| s.ready(fresh(queue), 50));
    s
}

fn end(s: &mut Scheduler, planned: &Planned, sign: Sign) -> bool {
    s.claimed(planned, planned.most);
    s.finished(planned.crew, planned.lane);
    s.heard(planned.crew, planned.most, sign)
}

#[test]
fn a_dead_destination_is_probed_by_one_of_all_its_queues_and_others_go_on() {
    let mut s = probed(3);
    let planned = s.plan();
    let (dead, fine): (Vec<_>, Vec<_>) = planned.into_iter().partition(|planned| planned.lane.queue.0 < 2);
    assert_eq!((dead.len(), fine.len()), (3, 6));
    dead.iter().for_each(|planned| {
        end(&mut s, planned, Sign::Dead);
    });
    assert!(s.plan().iter().all(|planned| planned.lane.queue.0 == 2), "three failures in a row");
    let second = Time(0).after(Duration::from_secs(1));
    assert_eq!(s.why(QueueNo(1)), Reason::DestinationDead { failures: 3, probe: Some(second) });
    for planned in &fine {
        end(&mut s, planned, Sign::Alive);
    }
    assert!(s.plan().iter().all(|planned| planned.lane.queue.0 == 2), "another crew is not touched");
    assert_eq!(s.next_look(), Some(at(1000)));
    s.tell_steady(at(1000));
    let probe = s.plan();
    assert_eq!((probe.len(), probe[0].most), (1, 1));
    assert_eq!(s.why(QueueNo(0)), Reason::DestinationDead { failures: 3, probe: None });
    assert!(!end(&mut s, &probe[0], Sign::Dead));
    assert_eq!(s.next_look(), Some(at(3000)), "the wait doubles");
    s.tell_steady(at(3000));
    let probe = s.plan();
    assert_eq!(probe.len(), 1);
    assert!(end(&mut s, &probe[0], Sign::Alive), "there is something to plan");
    assert_eq!((s.plan().len(), s.next_look()), (3, None));
}

#[test]
fn a_probe_that_found_no_job_or_was_stopped_is_made_again() {
    let mut s = probed(1);
    for planned in s.plan() {
        end(&mut s, &planned, if planned.lane.queue.0 < 2 { Sign::Dead } else { Sign::Alive });
    }
    s.tell_steady(at(1000));
    let probe = s.plan().into_iter().find(|planned| planned.lane.queue.0 < 2).unwrap();
    assert!(end(&mut s, &probe, Sign::None));
    let probe = s.plan().into_iter().find(|planned| planned.lane.queue.0 < 2).unwrap();
    s.claimed(&probe, 0);
    assert!(s.plan().iter().any(|planned| planned.lane.queue.0 < 2), "the other queue's job is the probe");
}
