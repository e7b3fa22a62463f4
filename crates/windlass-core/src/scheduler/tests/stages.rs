//! Stages that hold the ones before them.

use super::*;
use crate::pipeline::{Flow, Pass};

/// A stage `p.NAME` of one slot.
fn stage(name: &str, limit: u32, held_by: &[&str]) -> Policy {
    let queue = |name: &&str| QueueName::new(format!("p.{name}").as_bytes()).unwrap();
    let held_by: Vec<QueueName> = held_by.iter().map(queue).collect();
    let flow = Flow {
        pipeline: "p".into(),
        stage: name.into(),
        limit,
        limit_bytes: 0,
        tries: 2,
        pass: Pass::Emitted,
        to: held_by.clone(),
        held_by,
    };
    Policy { flow: Some(flow), ..command(&format!("p.{name}"), 1, 1) }
}

fn lane(queue: u32) -> Lane {
    Lane { queue: QueueNo(queue), priority: Priority::NORMAL, kind: LaneKind::Fresh }
}

fn scheduler(policies: Vec<Policy>) -> Scheduler {
    let names: Vec<String> = policies.iter().map(|policy| policy.pattern.clone()).collect();
    let mut s = Scheduler::new(policies, 10);
    for (number, name) in (0..).zip(&names) {
        s.queue_appeared(QueueNo(number), &QueueName::new(name.as_bytes()).unwrap());
    }
    s
}

#[test]
fn a_stage_is_held_while_the_next_has_as_much_waiting_as_it_may() {
    let mut s = scheduler(vec![stage("make", 0, &["output"]), stage("output", 3, &[])]);
    s.ready(lane(0), 5);
    s.ready(lane(1), 4);
    let planned = s.plan();
    assert_eq!(planned.iter().map(|planned| planned.lane.queue.0).collect::<Vec<_>>(), [1], "three wait still");
    let why = s.why(QueueNo(0));
    assert_eq!(why.to_string(), "held: stage output has 3 waiting, its limit");
    s.ready(lane(1), 1);
    assert_eq!(s.why(QueueNo(0)).to_string(), "held: stage output has 4 waiting, and its limit is 3");
    s.ready(lane(1), -2);
    assert_eq!(s.plan().len(), 1, "two wait, so it goes on");
    // What waits for its time waits, too.
    s.finished(CrewNo(1), lane(0));
    s.put_off(QueueNo(1), 1);
    assert_eq!(s.plan().len(), 0);
    s.put_off(QueueNo(1), -1);
    assert_eq!(s.plan().len(), 1);
}

#[test]
fn other_rules_let_a_held_stage_go() {
    let mut s = scheduler(vec![stage("make", 0, &["output"]), stage("output", 1, &[])]);
    s.ready(lane(1), 3);
    assert_eq!(s.plan().len(), 1);
    s.ready(lane(0), 1);
    assert!(s.plan().is_empty());
    s.reload(vec![stage("make", 0, &["output"]), stage("output", 9, &[])], 10);
    assert_eq!(s.plan().iter().map(|planned| planned.lane.queue.0).collect::<Vec<_>>(), [0]);
    s.reload(vec![stage("make", 0, &["output"]), stage("output", 1, &[])], 10);
    s.finished(CrewNo(1), lane(0));
    s.ready(lane(0), 1);
    assert!(s.plan().is_empty(), "and holds it again");
}
