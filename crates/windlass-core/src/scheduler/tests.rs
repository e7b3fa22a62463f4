//! The rules of service one by one: priority, weight, lanes, slots, reload and the sentences.

mod memory;
mod model;
mod rates;
mod stages;

use super::*;
use crate::hours::{Hours, Zone};
use crate::overrides::{Key, Overrides, Target};
use crate::policy::{Command, HandlerFile, Service, Worker};

/// An override for ever.
pub(super) fn made(target: &str, key: Key, value: u32) -> Override {
    let (target, by) = (Target::from_text(target), "ada".to_owned());
    Override { target, key, value, by, since: Time(7_000_000), until: None, reason: String::new() }
}

pub(super) fn hours(text: &str) -> Hours {
    Hours::parse(text, |_| Ok(Zone::UTC)).unwrap()
}

fn steered(all: &[Override]) -> Overrides {
    Overrides::new(all.to_vec())
}

pub(super) fn command(pattern: &str, slots: u32, weight: u32) -> Policy {
    Policy { slots, weight, ..Policy::new(pattern, Service::Command(Command::default())) }
}

fn handler(pattern: &str, slots: u32, batch: u32) -> Policy {
    Policy { slots, ..Policy::new(pattern, Service::Handler { name: "h".into(), batch }) }
}

pub(super) fn lane(queue: u32, priority: i64, kind: LaneKind) -> Lane {
    Lane { queue: QueueNo(queue), priority: Priority::new(priority).unwrap(), kind }
}

fn fresh(queue: u32) -> Lane {
    lane(queue, 0, LaneKind::Fresh)
}

fn with_queues(policies: Vec<Policy>, slots: u32, names: &[&str]) -> Scheduler {
    let mut scheduler = Scheduler::new(policies, slots);
    for (number, name) in names.iter().enumerate() {
        scheduler.queue_appeared(QueueNo(number as u32), &QueueName::new(name.as_bytes()).unwrap());
    }
    scheduler
}

/// Starts and ends one job at a time and gives the lanes in order.
fn one_by_one(scheduler: &mut Scheduler, count: usize) -> Vec<Lane> {
    let mut lanes = Vec::new();
    for _ in 0..count {
        let planned = scheduler.plan();
        assert!(planned.len() <= 1);
        for p in planned {
            lanes.push(p.lane);
            scheduler.claimed(&p, p.most);
            scheduler.finished(p.crew, p.lane);
        }
    }
    lanes
}

#[test]
fn priority_is_strict_across_queues_and_crews() {
    let mut s = with_queues(vec![command("a", 9, 1), command("b", 9, 1000)], 1, &["a", "b"]);
    s.ready(lane(1, 0, LaneKind::Fresh), 2);
    s.ready(lane(0, -10, LaneKind::Fresh), 2);
    s.ready(lane(0, 10, LaneKind::Retry), 2);
    s.ready(lane(1, 10, LaneKind::Suspect), 1);
    let order: Vec<_> = one_by_one(&mut s, 9).iter().map(|l| (l.priority.value(), l.queue.0)).collect();
    assert_eq!(order, [(10, 1), (10, 0), (10, 0), (0, 1), (0, 1), (-10, 0), (-10, 0)]);
}

#[test]
fn weights_share_the_starts_and_a_newcomer_does_not_take_everything() {
    let mut s = with_queues(vec![command("heavy", 9, 3), command("*", 9, 1)], 1, &["heavy", "light", "late"]);
    s.ready(fresh(0), 1000);
    s.ready(fresh(1), 1000);
    let starts = one_by_one(&mut s, 400);
    assert_eq!(starts.iter().filter(|l| l.queue.0 == 0).count(), 300);
    s.ready(fresh(2), 1000);
    let starts = one_by_one(&mut s, 50);
    assert_eq!([0, 1, 2].map(|q| starts.iter().filter(|l| l.queue.0 == q).count()), [30, 10, 10]);
}

#[test]
fn weights_1_and_9_give_a_tenth_and_nine_tenths_over_a_long_backlog_and_bound_the_wait() {
    let mut s = with_queues(vec![command("light", 9, 1), command("heavy", 9, 9)], 1, &["light", "heavy"]);
    s.ready(fresh(0), 1_000_000);
    s.ready(fresh(1), 1_000_000);
    let starts = one_by_one(&mut s, 100_000);
    let light = starts.iter().filter(|l| l.queue.0 == 0).count();
    assert!((9_900..=10_100).contains(&light), "{light} of 100,000 starts, expected a tenth within 1 %");
    // Every window of so many starts has one of each queue: the sum of the weights over its own.
    assert!(starts.windows(10).all(|window| window.iter().any(|l| l.queue.0 == 0)), "nobody waits longer");
    s.ready(lane(0, 10, LaneKind::Fresh), 50);
    assert!(one_by_one(&mut s, 50).iter().all(|l| l.priority.value() == 10), "priority goes before weight");
}

#[test]
fn starts_at_one_priority_are_not_charged_at_another() {
    let mut s = with_queues(vec![command("*", 9, 1)], 1, &["a", "b"]);
    s.ready(lane(0, 10, LaneKind::Fresh), 500);
    s.ready(fresh(1), 500);
    one_by_one(&mut s, 500);
    s.ready(fresh(0), 500);
    let starts = one_by_one(&mut s, 20);
    assert_eq!(starts.iter().filter(|l| l.queue.0 == 0).count(), 10);
}

#[test]
fn a_crew_that_was_full_for_long_does_not_make_up_for_it() {
    let names = ["a0", "a1", "a2", "a3", "a4", "a5", "b"];
    let mut s = with_queues(vec![command("a*", 1, 1), command("b", 1, 10)], 2, &names);
    s.ready(fresh(0), 1000);
    s.ready(fresh(6), 1000);
    let first = s.plan();
    let [other, stuck] = first[..] else { panic!("{first:?}") };
    assert_eq!((stuck.lane, other.lane), (fresh(0), fresh(6)));
    s.finished(other.crew, fresh(0));
    assert_eq!(one_by_one(&mut s, 250), vec![fresh(6); 250]);
    (1..6).for_each(|queue| s.ready(fresh(queue), 1000));
    assert_eq!(one_by_one(&mut s, 250), vec![fresh(6); 250]);
    s.slots = 1;
    s.finished(stuck.crew, fresh(0));
    let starts = one_by_one(&mut s, 32);
    assert!(starts[..9].iter().all(|lane| *lane == fresh(6)), "six queues came back, none of them first: {starts:?}");
    assert_eq!(starts.iter().filter(|lane| **lane == fresh(6)).count(), 20, "ten to one for each of six: {starts:?}");
}

#[test]
fn one_start_in_five_is_a_retry_while_fresh_jobs_wait() {
    let mut s = with_queues(vec![command("*", 9, 1)], 1, &["a"]);
    s.ready(fresh(0), 20);
    s.ready(lane(0, 0, LaneKind::Retry), 8);
    let starts = one_by_one(&mut s, 28);
    let retries: Vec<_> = (0..28).filter(|i| starts[*i].kind == LaneKind::Retry).collect();
    assert_eq!(retries, [4, 9, 14, 19, 24, 25, 26, 27], "one in five, then the rest when no fresh job waits");
}

#[test]
fn a_retry_that_comes_late_is_next_and_suspects_share_its_turns() {
    let mut s = with_queues(vec![command("*", 9, 1)], 1, &["a"]);
    s.ready(fresh(0), 100);
    one_by_one(&mut s, 7);
    s.ready(lane(0, 0, LaneKind::Retry), 9);
    s.ready(lane(0, 0, LaneKind::Suspect), 9);
    let kinds: Vec<_> = one_by_one(&mut s, 16).iter().map(|l| l.kind).filter(|k| *k != LaneKind::Fresh).collect();
    assert_eq!(kinds, [LaneKind::Retry, LaneKind::Suspect, LaneKind::Retry, LaneKind::Suspect]);
}

#[test]
fn one_suspect_at_a_time_in_the_whole_server_and_others_go_on() {
    let mut s = with_queues(vec![command("*", 99, 1)], 99, &["a", "b", "c"]);
    s.ready(lane(0, 50, LaneKind::Suspect), 2);
    s.ready(lane(1, 50, LaneKind::Suspect), 2);
    s.ready(lane(1, -5, LaneKind::Fresh), 1);
    let planned = s.plan();
    let lanes: Vec<_> = planned.iter().map(|p| p.lane).collect();
    assert_eq!(lanes, [lane(0, 50, LaneKind::Suspect), lane(1, -5, LaneKind::Fresh)]);
    assert_eq!(s.why(QueueNo(0)), Reason::SuspectRunning);
    assert_eq!(s.why(QueueNo(1)), Reason::SuspectRunning);
    for _ in 0..3 {
        s.finished(planned[0].crew, planned[0].lane);
        let next = s.plan();
        assert_eq!(next.len(), 1);
        assert_eq!((next[0].lane.kind, next[0].most), (LaneKind::Suspect, 1));
    }
    s.finished(planned[0].crew, planned[0].lane);
    assert!(s.plan().is_empty());
}

#[test]
fn a_handler_gets_batches_and_each_takes_one_slot() {
    let mut s = with_queues(vec![handler("h", 3, 100), command("*", 2, 1)], 10, &["h", "c"]);
    s.ready(fresh(0), 250);
    s.ready(fresh(1), 250);
    let sizes = |planned: &[Planned], queue| -> Vec<u32> {
        planned.iter().filter(|p| p.lane.queue == QueueNo(queue)).map(|p| p.most).collect()
    };
    let planned = s.plan();
    assert_eq!((sizes(&planned, 0), sizes(&planned, 1)), (vec![100, 100, 50], vec![1, 1]));
    assert_eq!(s.why(QueueNo(1)), Reason::CrewSlotsTaken { slots: 2 });
    assert_eq!(s.why(QueueNo(0)), Reason::NothingWaits);
}

#[test]
fn a_claim_that_gives_less_is_put_right_and_none_does_not_spin() {
    let mut s = with_queues(vec![handler("h", 2, 100)], 10, &["h"]);
    s.ready(fresh(0), 100);
    let planned = s.plan();
    s.claimed(&planned[0], 60);
    assert_eq!(s.waiting(QueueNo(0)), 40);
    let more = s.plan();
    assert_eq!(more[0].most, 40);
    s.claimed(&more[0], 0);
    assert_eq!((s.in_flight(), s.waiting(QueueNo(0))), (1, 40));
    assert!(s.plan().is_empty());
    assert_eq!(s.why(QueueNo(0)), Reason::Barren);
    s.ready(lane(0, 0, LaneKind::Retry), 1);
    assert_eq!(s.plan()[0].lane.kind, LaneKind::Retry, "another lane of the queue goes on");
    s.finished(planned[0].crew, fresh(0));
    s.ready(fresh(0), 1);
    assert_eq!(s.plan()[0].most, 41);
}

#[test]
fn rules_may_change_while_jobs_run() {
    let mut s = with_queues(vec![command("img.*", 2, 1), command("pdf", 2, 1)], 4, &["img.a", "pdf", "stray"]);
    for queue in 0..3 {
        s.ready(fresh(queue), 10);
    }
    let planned = s.plan();
    assert_eq!(planned.len(), 4);
    assert_eq!(s.why(QueueNo(2)), Reason::NoRunner);
    s.reload(vec![command("stray", 4, 1), command("img.*", 3, 1)], 6);
    assert_eq!(s.why(QueueNo(1)), Reason::NoRunner);
    let more = s.plan();
    assert_eq!(more.iter().filter(|p| p.lane.queue.0 == 0).count(), 1, "the same pattern keeps its two in flight");
    assert_eq!(more.len(), 2, "what a vanished entry runs still counts for the server");
    for p in planned.iter().chain(&more) {
        s.finished(p.crew, p.lane);
    }
    assert_eq!(s.in_flight(), 0);
    assert_eq!(s.plan().len(), 6);
}

#[test]
fn a_crew_added_for_a_run_goes_before_the_config_and_leaves_cleanly() {
    let mut s = with_queues(vec![command("*", 1, 1)], 9, &["x", "y"]);
    s.ready(fresh(0), 9);
    let crew = s.add_crew(command("x", 3, 1));
    let planned = s.plan();
    assert!(planned.len() == 3 && planned.iter().all(|p| p.crew == crew));
    s.remove_crew(crew);
    assert_eq!(s.plan().len(), 1, "the config serves it again");
    assert_eq!(s.in_flight(), 4);
    planned.iter().for_each(|p| s.finished(p.crew, p.lane));
    assert_eq!(s.policy(crew), None);
    assert_eq!(s.in_flight(), 1);
}

#[test]
fn a_queue_that_is_added_again_has_one_crew_that_knows_of_every_start() {
    let mut s = with_queues(Vec::new(), 9, &["x"]);
    s.ready(fresh(0), 9);
    let crew = s.add_crew(command("x", 2, 1));
    let first = s.plan();
    assert_eq!(s.add_crew(command("x", 2, 1)), crew, "wanted twice");
    assert!(first.len() == 2 && s.plan().is_empty(), "its slots are taken, whoever wants it");
    s.remove_crew(crew);
    s.finished(crew, first[0].lane);
    assert_eq!(s.plan().len(), 1, "wanted by one still");
    s.remove_crew(crew);
    assert!(s.plan().is_empty() && !s.can_run(QueueNo(0)), "wanted by nobody");
    assert_eq!(s.add_crew(command("x", 3, 1)), crew, "two of its starts are in flight");
    assert_eq!(s.plan().len(), 1, "with the new terms");
    assert_eq!(s.in_flight(), 3);
}

#[test]
fn pauses_and_draining_hold_and_let_go() {
    let off = Policy { enabled: false, ..command("b", 1, 1) };
    let mut s = with_queues(vec![command("a", 1, 1), off], 1, &["a", "b"]);
    s.ready(fresh(0), 2);
    s.ready(fresh(1), 2);
    s.steer(steered(&[made("a", Key::Paused, 1)]));
    assert!(s.plan().is_empty() && !s.can_run(QueueNo(0)) && !s.can_run(QueueNo(1)));
    assert_eq!((s.why(QueueNo(0)).code(), s.why(QueueNo(1)).code()), ("paused", "disabled"));
    s.steer(Overrides::default());
    s.set_draining(true);
    assert!(s.plan().is_empty() && s.can_run(QueueNo(0)));
    assert_eq!(s.why(QueueNo(0)), Reason::Draining);
    s.set_draining(false);
    assert_eq!(s.why(QueueNo(0)), Reason::Runnable);
    assert_eq!(s.plan().len(), 1);
    assert_eq!(s.why(QueueNo(0)).to_string(), "all slots of its config entry are taken (slots = 1)");
}

#[test]
fn a_handler_file_serves_its_queue_from_when_it_is_there_until_it_goes() {
    let by_file = Policy { by_file: Some(HandlerFile::Program), ..command("handlers", 4, 1) };
    let mut s = with_queues(vec![by_file, command("b", 4, 1)], 9, &["a", "b", "c"]);
    (0..3).for_each(|queue| s.ready(fresh(queue), 2));
    assert_eq!(s.plan().iter().map(|planned| planned.lane.queue.0).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(s.why(QueueNo(0)), Reason::NoRunner);
    let files = |names: &[&str]| names.iter().map(|name| ((*name).into(), HandlerFile::Program)).collect();
    s.set_files(files(&["a", "b"]));
    assert_eq!(s.plan().iter().map(|planned| planned.lane.queue.0).collect::<Vec<_>>(), [0, 0]);
    s.ready(fresh(0), 1);
    s.ready(fresh(1), 1);
    assert_eq!(s.policy_of(QueueNo(1)).unwrap().1.pattern, "handlers", "it stands first, so it goes first");
    s.set_files(files(&[]));
    assert_eq!((s.why(QueueNo(0)), s.in_flight()), (Reason::NoRunner, 4), "what runs goes on");
    assert_eq!(s.plan().iter().map(|planned| planned.lane.queue.0).collect::<Vec<_>>(), [1]);
    s.set_files([("a".into(), HandlerFile::Lua)].into());
    assert_eq!(s.why(QueueNo(0)), Reason::NoRunner, "no crew serves files of that kind");
}

#[test]
fn a_stock_waits_for_the_crews_own_slots() {
    let mut s = with_queues(vec![command("a", 2, 1)], 9, &["a"]);
    s.ready(fresh(0), 10);
    let crew = s.policy_of(QueueNo(0)).unwrap().0;
    assert_eq!(s.plan_stock(crew, 3, u64::MAX), [], "while slots are free nothing is put in stock");
    assert_eq!(s.plan().len(), 2);
    assert_eq!(s.plan_stock(crew, 3, u64::MAX).len(), 3);
    assert_eq!(s.plan_stock(crew, 3, u64::MAX), []);
    assert_eq!((s.in_flight(), s.waiting(QueueNo(0))), (2, 5), "what is in stock has no slot");
    s.finished(crew, fresh(0));
    assert_eq!(s.plan(), [], "the slot went to the stock");
    assert_eq!((s.in_flight(), s.plan_stock(crew, 3, u64::MAX).len()), (2, 1));
    (0..3).for_each(|_| s.finished(crew, fresh(0)));
    assert_eq!(s.in_flight(), 2);
    (0..2).for_each(|_| s.finished(crew, fresh(0)));
    assert_eq!((s.in_flight(), s.waiting(QueueNo(0))), (0, 4));
}

#[test]
fn a_stock_may_be_counted_in_jobs_wherever_they_lie() {
    let names: Vec<String> = (0..9).map(|n| format!("a{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut s = with_queues(vec![command("a*", 1, 1)], 9, &names);
    (0..9).for_each(|queue| s.ready(fresh(queue), 1));
    let crew = s.policy_of(QueueNo(0)).unwrap().0;
    assert_eq!(s.plan().len(), 1);
    assert_eq!(s.plan_stock(crew, 100, 0), []);
    assert_eq!(s.plan_stock(crew, 100, 5).len(), 5);
    assert_eq!(s.plan_stock(crew, 100, 5).len(), 3, "no more are ready");
}

#[test]
fn nothing_is_put_in_stock_while_another_crew_waits_for_a_slot() {
    let mut s = with_queues(vec![command("a", 2, 1), command("b", 2, 1)], 2, &["a", "b"]);
    s.ready(fresh(0), 10);
    let crew = s.policy_of(QueueNo(0)).unwrap().0;
    assert_eq!(s.plan().len(), 2);
    assert_eq!(s.plan_stock(crew, 2, u64::MAX).len(), 2, "nobody else is there");
    s.ready(fresh(1), 1);
    assert_eq!(s.plan_stock(crew, 4, u64::MAX), []);
    (0..2).for_each(|_| s.finished(crew, fresh(0)));
    assert_eq!(s.plan(), [], "it waits behind the stock");
    s.finished(crew, fresh(0));
    assert_eq!(s.plan()[0].lane.queue, QueueNo(1), "and behind no more than that");
}

#[test]
fn a_stock_begins_where_a_reload_gives_more_slots_and_shrinks_with_fewer() {
    let mut s = with_queues(vec![command("a", 2, 1)], 9, &["a"]);
    s.ready(fresh(0), 20);
    let crew = s.policy_of(QueueNo(0)).unwrap().0;
    assert_eq!(s.plan().len() + s.plan_stock(crew, 4, u64::MAX).len(), 6);
    s.reload(vec![command("a", 5, 1)], 9);
    assert_eq!((s.in_flight(), s.plan().len()), (5, 0));
    s.reload(vec![command("a", 1, 1)], 9);
    (0..4).for_each(|_| s.finished(crew, fresh(0)));
    assert_eq!(s.in_flight(), 1, "slots that are gone are not filled again");
    s.finished(crew, fresh(0));
    assert_eq!(s.in_flight(), 1, "the last of the stock has the one slot");
    s.finished(crew, fresh(0));
    assert_eq!(s.in_flight(), 0);
}

#[test]
fn a_suspect_does_not_wait_in_a_stock_and_a_drain_fills_none() {
    let mut s = with_queues(vec![command("a", 1, 1)], 9, &["a"]);
    s.ready(fresh(0), 5);
    let crew = s.policy_of(QueueNo(0)).unwrap().0;
    assert_eq!(s.plan().len(), 1);
    s.ready(lane(0, 10, LaneKind::Suspect), 1);
    assert_eq!(s.plan_stock(crew, 4, u64::MAX), []);
    s.finished(crew, fresh(0));
    assert_eq!(s.plan()[0].lane.kind, LaneKind::Suspect);
    assert_eq!(s.plan_stock(crew, 1, u64::MAX).len(), 1, "others may wait beside it");
    s.set_draining(true);
    assert_eq!(s.plan_stock(crew, 4, u64::MAX), []);
}

#[test]
fn each_queue_of_a_table_has_no_more_than_its_part_of_the_slots() {
    let each = |slots| Policy { slots_each: slots, ..command("a.*", 5, 1) };
    let mut s = with_queues(vec![each(Some(2)), command("b", 5, 1)], 9, &["a.x", "a.y", "b"]);
    (0..3).for_each(|queue| s.ready(fresh(queue), 9));
    let planned = s.plan();
    let of = |planned: &[Planned], queue: u32| planned.iter().filter(|p| p.lane.queue == QueueNo(queue)).count();
    assert_eq!([0, 1, 2].map(|queue| of(&planned, queue)), [2, 2, 5]);
    assert_eq!(s.why(QueueNo(0)), Reason::QueueSlotsTaken { slots: 2 });
    let crew = s.policy_of(QueueNo(0)).unwrap().0;
    s.finished(crew, fresh(0));
    assert_eq!(of(&s.plan(), 0), 1, "what ends makes room for the same queue");
    // A person's word about one queue holds over the table's about each; without either all slots are anybody's.
    s.steer(steered(&[made("a.x", Key::Slots, 3)]));
    assert_eq!(of(&s.plan(), 0), 0, "the server has nine slots, and they are taken");
    s.reload(vec![each(None), command("b", 5, 1)], 99);
    assert_eq!(s.plan().len(), 1);
    assert_eq!(s.why(QueueNo(1)), Reason::CrewSlotsTaken { slots: 5 });
}

#[test]
fn a_capped_queue_claims_no_more_than_one_slot_does_at_once() {
    let kept = Policy { slots: 4, ..Policy::new("w", Service::Worker(Worker::new(Command::default()))) };
    for (slots_each, most) in [(Some(1), 1), (None, 64)] {
        let mut s = with_queues(vec![Policy { slots_each, ..kept.clone() }], 9, &["w"]);
        let crew = s.policy_of(QueueNo(0)).unwrap().0;
        s.set_at_once(crew, 64);
        s.ready(fresh(0), 100);
        assert_eq!(s.plan()[0].most, most);
    }
}

#[test]
fn jobs_that_are_alone_in_their_queues_share_a_flight_as_far_as_they_lead_the_plan() {
    let kept = Policy { slots: 9, ..Policy::new("*", Service::Worker(Worker::new(Command::default()))) };
    let mut s = with_queues(vec![kept], 9, &["a", "b", "c", "d", "e"]);
    let crew = s.policy_of(QueueNo(0)).unwrap().0;
    s.set_at_once(crew, 64);
    (0..5).for_each(|queue| s.ready(fresh(queue), if queue == 3 { 2 } else { 1 }));
    let planned = s.plan();
    assert_eq!(planned.iter().map(|p| p.most).collect::<Vec<_>>(), [1, 1, 1, 2, 1]);
    let together = |s: &Scheduler| [0, 1, 3, 4, 5].map(|from| s.together(&planned[from..]));
    assert_eq!(together(&s), [3, 2, 0, 1, 0], "one of two is not alone");
    s.ready(fresh(1), 1);
    assert_eq!(together(&s), [1, 0, 0, 1, 0], "another has come");
    s.set_at_once(crew, 2);
    s.ready(fresh(1), -1);
    assert_eq!(together(&s), [2, 2, 0, 1, 0], "no more than would go together in one queue");
}

#[test]
fn overrides_are_laid_over_the_rules_and_leave_them_when_they_end() {
    let mut s = with_queues(vec![command("a.*", 2, 1), command("b", 2, 1)], 9, &["a.x", "a.y", "b"]);
    (0..3).for_each(|queue| s.ready(fresh(queue), 9));
    s.steer(steered(&[made("a.x", Key::Slots, 1), made("a.*", Key::Slots, 4), made("b", Key::Enabled, 0)]));
    let planned = s.plan();
    let of = |queue: u32| planned.iter().filter(|p| p.lane.queue == QueueNo(queue)).count();
    assert_eq!((of(0), of(1), of(2)), (1, 3, 0));
    assert_eq!(s.why(QueueNo(0)), Reason::QueueSlotsTaken { slots: 1 });
    assert_eq!(s.why(QueueNo(1)), Reason::CrewSlotsTaken { slots: 4 });
    assert_eq!(s.why(QueueNo(2)), Reason::Disabled);
    assert!(s.is_closed(QueueNo(2)) && !s.is_closed(QueueNo(0)));
    s.steer(steered(&[made("", Key::Slots, 5), made("b", Key::Attempts, 0)]));
    assert_eq!(s.plan().len(), 1, "the server has five slots, four are taken");
    assert_eq!(s.why(QueueNo(2)), Reason::ServerSlotsTaken { slots: 5 });
    assert_eq!(s.policy_of(QueueNo(2)).unwrap().1.attempts, 0);
    s.reload(vec![command("*", 9, 1)], 9);
    assert_eq!(s.plan().len(), 0, "overrides outlive a reload");
    s.steer(steered(&[made("", Key::Paused, 1)]));
    assert_eq!((s.why(QueueNo(2)).code(), s.can_run(QueueNo(0))), ("server_paused", false));
    s.steer(Overrides::default());
    assert_eq!(s.plan().len(), 4);
}

#[test]
fn a_queue_that_appears_later_is_held_by_a_pattern_too() {
    let mut s = with_queues(vec![command("*", 9, 1)], 9, &["x"]);
    s.steer(steered(&[made("img.*", Key::Paused, 1), made("img.b", Key::Slots, 1)]));
    for (number, name) in [(1, "img.a"), (2, "img.b")] {
        s.queue_appeared(QueueNo(number), &QueueName::new(name.as_bytes()).unwrap());
        s.ready(fresh(number), 3);
    }
    assert_eq!(s.plan(), []);
    s.steer(steered(&[made("img.b", Key::Slots, 1)]));
    assert_eq!(s.plan().len(), 4);
    s.queue_vanished(QueueNo(2));
    s.finished(s.crew_for("img.b").unwrap(), fresh(2));
}

#[test]
fn hours_open_and_close_at_their_time_and_nobody_polls() {
    let hour = |hour: i64| Time(hour * 3_600_000_000);
    let night = Policy { hours: Some(hours("22:00-06:00")), ..command("a", 9, 1) };
    let mut s = with_queues(vec![night, command("b", 9, 1)], 9, &["a", "b"]);
    s.ready(fresh(0), 9);
    assert!(s.tell_time(hour(12)));
    assert_eq!((s.plan().len(), s.next_hours()), (0, Some(hour(22))));
    let why = s.why(QueueNo(0)).sentence(|time| format!("{} h", time.0 / 3_600_000_000));
    assert_eq!(why, "it is outside the queue's hours (22:00-06:00); they begin on 22 h");
    assert!(s.can_run(QueueNo(0)) && s.is_closed(QueueNo(0)), "it goes on by itself");
    assert!(!s.tell_time(Time(hour(22).0 - 1)));
    assert!(s.tell_time(hour(22)));
    assert_eq!((s.plan().len(), s.next_hours()), (9, Some(hour(30))));
    assert!(s.tell_time(hour(21)), "a clock that was set back");
    assert_eq!(s.next_hours(), Some(hour(22)));
    s.reload(vec![command("a", 9, 1)], 10);
    assert_eq!((s.plan().len(), s.next_hours()), (0, None), "its nine slots are taken");
}

#[test]
fn the_sentences_of_jobs() {
    let mut s = with_queues(vec![command("a", 1, 1), command("b", 1, 1)], 1, &["a", "b"]);
    s.ready(lane(0, 5, LaneKind::Fresh), 4);
    s.ready(lane(1, 5, LaneKind::Fresh), 2);
    s.ready(lane(0, 0, LaneKind::Fresh), 1);
    s.ready(lane(1, 0, LaneKind::Suspect), 1);
    assert_eq!(s.plan().len(), 1);
    let job = s.explain(lane(0, 0, LaneKind::Fresh));
    assert_eq!((job.reason.code(), job.ahead, job.table.as_deref()), ("crew_slots_taken", 3, Some("a")));
    let job = s.explain(lane(1, 0, LaneKind::Fresh));
    assert_eq!((job.reason.code(), job.ahead), ("server_slots_taken", 5));
    s.hold_suspects();
    s.set_stall(Some(Stall::NoSpace));
    assert_eq!(s.why(QueueNo(0)).code(), "no_space");
    s.set_stall(None);
    let pause = Override { until: Some(Time(9_000_000)), reason: "disk".into(), ..made("a", Key::Paused, 1) };
    s.steer(steered(&[pause]));
    let why = s.why(QueueNo(0)).sentence(|time| format!("{} s", time.0 / 1_000_000));
    assert_eq!(why, "queue `a` was paused by ada on 7 s until 9 s: disk");
}
