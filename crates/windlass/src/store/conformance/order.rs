//! Cases about order and ranges: who is claimed next, claims across chunks, settlements in pieces, due times.

use super::rig::{Rig, fail, ids, ok, retry, succeed};
use super::{Bench, Case};
use crate::store::{Amended, Amendment, Filter, Held, NewJobs, Order, Store};
use std::collections::BTreeSet;
use windlass_core::job::{JobId, LaneKind, Priority};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("fresh jobs are claimed by arrival, across chunks and whatever the cut", by_arrival),
        ("a claim gives the jobs' own data, ids and times", claims_are_whole),
        ("a range is settled in pieces, out of order, with any verdicts", in_pieces),
        ("thousand-job chunks are claimed and settled whole", large_chunks),
        ("retries are claimed by due time, in a lane of their own", retries_by_due),
        ("priorities are lanes of their own, and a new priority changes lanes", priorities),
        ("due jobs are released in order of time, the limit and the rest of one lot at a time", release_order),
        ("several orders in one claim do not disturb each other", many_orders),
        ("a job that comes back stands at its old place", back_in_line),
    ]
}

fn by_arrival<B: Bench>(rig: &mut Rig<'_, B>) {
    let mut expected = Vec::new();
    for count in [1, 3, 1, 40, 2, 7] {
        expected.extend(rig.push("q", count));
        rig.push("other", 2);
    }
    let mut claimed = Vec::new();
    for most in [2, 1, 5, 30, 100] {
        let held = rig.claim("q", most);
        assert!(ids(&held).len() <= most as usize, "not more than {most}");
        claimed.extend(ids(&held));
    }
    assert_eq!(claimed, expected, "the order of arrival");
    assert!(rig.claim("q", 10).is_empty(), "nothing is claimed twice");
}

fn claims_are_whole<B: Bench>(rig: &mut Rig<'_, B>) {
    let admitted = rig.now;
    let made = rig.push("q", 5);
    rig.later(3);
    let held = rig.claim("q", 5);
    let mut number = 0;
    for held in &held {
        assert_eq!((held.admitted, held.run, held.start()), (admitted, None, 1), "what a claim says of its jobs");
        assert_eq!(held.lane, rig.lane("q", 0, LaneKind::Fresh), "the lane of a claim");
        for index in held.range() {
            assert_eq!(held.jobs.data(index), format!("q/{number}").as_bytes(), "the data of job {number}");
            assert_eq!(held.jobs.id(index), made[number], "the id of job {number}");
            number += 1;
        }
    }
    assert_eq!(number, 5, "all were claimed");
}

fn in_pieces<B: Bench>(rig: &mut Rig<'_, B>) {
    let made = rig.push("q", 12);
    let first = rig.claim("q", 5);
    let second = rig.claim("q", 7);
    assert_eq!((first.len(), second.len()), (1, 1), "neighbours are claimed as one range");
    let at = rig.in_seconds(1);
    rig.settle(&second[0].part(6, 1), succeed());
    rig.settle(&second[0].part(0, 2), retry(at));
    rig.settle_all(&[
        rig.settlement(&first[0].part(3, 2), fail()),
        rig.settlement(&first[0].part(0, 1), succeed()),
        rig.settlement(&second[0].part(3, 1), Verdict::Return),
    ]);
    rig.settle(&first[0].part(1, 2), Verdict::Cancel);
    rig.settle(&second[0].part(4, 2), succeed());
    use State::{Cancelled, Failed, Ready, Retrying, Running};
    let expected = [
        (0, None),
        (1, Some(Cancelled)),
        (2, Some(Cancelled)),
        (3, Some(Failed)),
        (4, Some(Failed)),
        (5, Some(Retrying)),
        (6, Some(Retrying)),
        (7, Some(Running)),
        (8, Some(Ready)),
        (9, None),
        (10, None),
        (11, None),
    ];
    for (index, state) in expected {
        assert_eq!(rig.state(made[index]), state, "job {index}");
        if state.is_some() {
            assert_eq!(rig.job(made[index]).data, format!("q/{index}").as_bytes(), "the data of job {index}");
        }
    }
    rig.settle(&second[0].part(2, 1), succeed());
    assert_eq!(rig.state(made[7]), None, "the last piece");
}

fn large_chunks<B: Bench>(rig: &mut Rig<'_, B>) {
    let chunks: Vec<NewJobs> = (0..3).map(|_| rig.new_jobs("q", 1000)).collect();
    let made = rig.admit(chunks);
    let held = rig.claim("q", 2500);
    assert_eq!(ids(&held), made[..2500], "two chunks and a half");
    let settlements: Vec<_> = held.iter().rev().map(|held| rig.settlement(held, succeed())).collect();
    rig.settle_all(&settlements);
    let left: Vec<_> = rig.list(&Filter::default(), 333).iter().map(|job| job.id).collect();
    assert_eq!(left, made[2500..], "the other half waits");
    let whole = rig.claim("q", 500);
    let settlements: Vec<_> = whole.iter().map(|held| rig.settlement(held, retry(rig.in_seconds(1)))).collect();
    rig.settle_all(&settlements);
    rig.later(1);
    rig.release(1000);
    let lane = rig.lane("q", 0, LaneKind::Retry);
    let again = rig.claim_lane(lane, 1000);
    rig.step();
    assert_eq!(ids(&again), made[2500..], "many that fail together come back together");
}

fn retries_by_due<B: Bench>(rig: &mut Rig<'_, B>) {
    let made = rig.push("q", 4);
    let held = rig.claim("q", 4);
    for (position, wait) in [(0, 30), (1, 10), (2, 20), (3, 10)] {
        let verdict = retry(rig.in_seconds(wait));
        rig.settle(&held[0].part(position, 1), verdict);
    }
    let fresh = rig.push("q", 1);
    rig.later(60);
    rig.release(10);
    let lane = rig.lane("q", 0, LaneKind::Retry);
    let again = rig.claim_lane(lane, 10);
    rig.step();
    let expected: Vec<JobId> = [1, 3, 2, 0].map(|index| made[index]).into();
    assert_eq!(ids(&again), expected, "by due time, then by arrival");
    assert!(again.iter().all(|held| held.record.failures == 1 && held.start() == 2), "their second start");
    assert_eq!(ids(&rig.claim("q", 10)), fresh, "fresh jobs are in another lane");
}

fn priorities<B: Bench>(rig: &mut Rig<'_, B>) {
    let high = Priority::new(10).unwrap_or_default();
    let urgent = NewJobs { priority: high, ..rig.new_jobs("q", 2) };
    let normal = rig.new_jobs("q", 3);
    let made = rig.admit(vec![normal, urgent]);
    assert_eq!(rig.amend(made[1], Amendment::Priority(high)), Amended::Done { from: State::Ready, to: State::Ready });
    assert_eq!(rig.job(made[1]).priority, high, "the priority is shown");
    let lane = rig.lane("q", 10, LaneKind::Fresh);
    let held = rig.claim_lane(lane, 10);
    rig.step();
    assert_eq!(ids(&held), [made[1], made[3], made[4]], "the older job stands first in its new lane");
    assert_eq!(ids(&rig.claim("q", 10)), [made[0], made[2]], "the others stay");
    for state in [State::Scheduled, State::Retrying, State::Suspended] {
        let (id, _) = rig.job_in("states", state);
        let answer = rig.amend(id, Amendment::Priority(high));
        assert_eq!(answer, Amended::Done { from: state, to: state }, "a new priority while {state}");
        assert_eq!((rig.job(id).priority, rig.job(id).state), (high, state), "a new priority while {state}");
    }
    let (id, _) = rig.job_in("running", State::Running);
    let answer = rig.amend(id, Amendment::Priority(high));
    assert_eq!(answer, Amended::Refused(State::Running), "a running job has no place in a lane to change");
}

fn release_order<B: Bench>(rig: &mut Rig<'_, B>) {
    let mut waiting = Vec::new();
    for seconds in [50, 10, 40, 20, 30] {
        let jobs = NewJobs { not_before: Some(rig.in_seconds(seconds)), ..rig.new_jobs("q", 3) };
        waiting.push((seconds, rig.admit(vec![jobs])));
    }
    waiting.sort();
    assert_eq!(ok(rig.store().next_due()), Some(rig.in_seconds(10)), "the first time");
    rig.later(45);
    let mut released = Vec::new();
    for round in 1..=6 {
        let before = released.len();
        rig.release(2);
        let ready = Filter { states: vec![State::Ready], ..Filter::default() };
        released = rig.list(&ready, 100).iter().map(|job| job.id).collect::<Vec<_>>();
        let count = released.len() - before;
        assert!(count <= 4, "two at a time, and the rest of those admitted with them: {count} in round {round}");
        assert!(count >= 2 || released.len() == 12, "two at a time while there are as many: {count} in round {round}");
        let first: BTreeSet<_> = waiting.iter().flat_map(|(_, ids)| ids.clone()).take(released.len()).collect();
        assert_eq!(released.iter().copied().collect::<BTreeSet<_>>(), first, "the earliest, in round {round}");
    }
    rig.release(2);
    assert_eq!(released.len(), 12, "the last three are not due");
    assert_eq!(ok(rig.store().next_due()), Some(rig.in_seconds(5)), "the time of the last three");
    assert_eq!(ids(&rig.claim("q", 100)), released, "released jobs that never ran are fresh, by arrival");
    let past = NewJobs { not_before: Some(rig.now), ..rig.new_jobs("past", 1) };
    let id = rig.admit(vec![past])[0];
    assert_eq!(rig.state(id), Some(State::Ready), "a time that has come is no time");
}

fn many_orders<B: Bench>(rig: &mut Rig<'_, B>) {
    let queues: Vec<String> = (0..20).map(|number| format!("q{number}")).collect();
    let made: Vec<_> = queues.iter().map(|queue| rig.push(queue, 3)).collect();
    let lanes = queues.iter().map(|queue| rig.lane(queue, 0, LaneKind::Fresh));
    let orders: Vec<_> = lanes.map(|lane| Order { lane, most: 2 }).collect();
    let now = rig.now;
    let held = ok(rig.store().claim(&orders, now));
    rig.step();
    for (queue, made) in queues.iter().zip(made) {
        let lane = rig.lane(queue, 0, LaneKind::Fresh);
        let own: Vec<Held> = held.iter().filter(|held| held.lane == lane).cloned().collect();
        let own = ids(&own);
        assert!(own.len() <= 2 && made.starts_with(&own), "{queue} gives its own oldest jobs");
        assert!(!own.is_empty(), "{queue} has jobs and gave none");
    }
}

fn back_in_line<B: Bench>(rig: &mut Rig<'_, B>) {
    let made = rig.push("q", 6);
    let held = rig.claim("q", 3);
    rig.settle(&held[0].part(1, 1), Verdict::Return);
    rig.amend(made[4], Amendment::Suspend);
    assert_eq!(ids(&rig.claim("q", 2)), [made[1], made[3]], "the returned one is the oldest");
    rig.amend(made[4], Amendment::Resume);
    rig.push("q", 1);
    assert_eq!(ids(&rig.claim("q", 2)), [made[4], made[5]], "the resumed one is older than what came since");
}
