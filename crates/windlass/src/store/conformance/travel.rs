//! Cases about jobs on their way between servers: taken out of their queues in any state, and taken in as they were.

use super::rig::{Rig, ok, queue_name};
use super::{Bench, Case};
use crate::store::chunk::ChunkBuilder;
use crate::store::{Arriving, AttemptError, Filter, Held, MOVED, NewJobs, Past, Settlement, Store, StoreError, Unheld};
use std::sync::Arc;
use windlass_core::job::{JobId, LaneKind, Origin, Priority, Record, RunId};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("what waits in any state is held and runs, and what does not wait is left", held_in_any_state),
        ("what is held goes back as any job that ran, and keeps its past", goes_back),
        ("what is held outlives a crash where it is elsewhere, and goes back where it is not", outlives),
        ("what waits for a job that was moved does not go on as if that had succeeded", waits_in_vain),
        ("what comes in with a past has it, and is released, claimed and settled as any other", arrives),
        ("what is here already does not come in again", arrives_once),
        ("what went elsewhere comes back, or is refused as long as the archive lacks its end", comes_back),
    ]
}

const WAITING: [State; 4] = [State::Scheduled, State::Ready, State::Retrying, State::Suspended];

fn hold<B: Bench>(rig: &mut Rig<'_, B>, ids: &[JobId]) -> Vec<Result<Held, Unheld>> {
    let now = rig.now;
    let held = ok(rig.store().hold(ids, now));
    rig.step();
    held
}

/// A store that cannot hold jobs by their names moves ready ones only.
fn can_hold<B: Bench>(rig: &mut Rig<'_, B>) -> bool {
    let unknown = JobId { origin: Origin::from_random(1), offset: 1 };
    hold(rig, &[unknown]).remove(0).err() != Some(Unheld::Unable)
}

fn held_in_any_state<B: Bench>(rig: &mut Rig<'_, B>) {
    if !can_hold(rig) {
        return;
    }
    for state in State::ALL {
        let (id, _) = rig.job_in(&format!("q-{state}"), state);
        let before = rig.state(id).map(|_| rig.job(id).record);
        let got = hold(rig, &[id]).remove(0);
        match state {
            State::Scheduled | State::Ready | State::Retrying | State::Suspended => {
                let held = got.unwrap_or_else(|why| panic!("a {state} job is not held: {why:?}"));
                assert_eq!((held.count, held.ids().next()), (1, Some(id)));
                assert_eq!(Some(held.record), before, "its record is as it was before");
                assert_eq!(rig.state(id), Some(State::Running));
                assert_eq!(rig.job(id).record.starts, held.start());
                let moved = Settlement {
                    outcome: MOVED,
                    ..rig.settlement(&held, Verdict::Succeed { message: "there".into() })
                };
                rig.settle_all(&[moved]);
                assert_eq!(rig.state(id), None);
            }
            State::Running => assert_eq!(got.err(), Some(Unheld::Running)),
            State::Failed | State::Cancelled => assert_eq!(got.err(), Some(Unheld::Ended(state))),
            State::Succeeded => assert_eq!(got.err(), Some(Unheld::Unknown)),
        }
    }
    let run = RunId::first(Origin::from_random(5));
    let of_run = rig.push_to_run("q", 1, run)[0];
    assert_eq!(hold(rig, &[of_run]).remove(0).err(), Some(Unheld::OfRun(run)));
}

fn goes_back<B: Bench>(rig: &mut Rig<'_, B>) {
    if !can_hold(rig) {
        return;
    }
    for state in WAITING {
        let (id, _) = rig.job_in(&format!("q-{state}"), state);
        let failures = rig.job(id).record.failures;
        let errors = rig.job(id).errors;
        let held = hold(rig, &[id]).remove(0).unwrap_or_else(|why| panic!("{why:?}"));
        let at = rig.in_seconds(60);
        let verdict = if state == State::Ready { Verdict::Return } else { Verdict::Snooze { at } };
        rig.settle(&held, verdict);
        let back = if state == State::Ready { State::Ready } else { State::Scheduled };
        assert_eq!((rig.state(id), rig.job(id).record.failures, rig.job(id).errors), (Some(back), failures, errors));
    }
}

fn outlives<B: Bench>(rig: &mut Rig<'_, B>) {
    if !can_hold(rig) {
        return;
    }
    let ids: Vec<JobId> = WAITING.iter().map(|state| rig.job_in(&format!("q-{state}"), *state).0).collect();
    let held = hold(rig, &ids);
    let theirs: Vec<(JobId, u32)> = ids
        .iter()
        .zip(&held)
        .map(|(id, held)| {
            let start = held.as_ref().map_or(0, Held::start);
            (*id, start)
        })
        .collect();
    rig.crash_only();
    rig.recover_but(&theirs[..2], &|_, _| false, true);
    for (at, id) in ids.iter().enumerate() {
        let state = if at < 2 { State::Running } else { State::Ready };
        assert_eq!(rig.state(*id), Some(state), "{at}");
        let claim = ok(rig.store().held(*id));
        assert_eq!(claim.map(|held| held.start()), (at < 2).then_some(theirs[at].1));
    }
    let claim = ok(rig.store().held(ids[0])).unwrap_or_else(|| panic!("it is held"));
    rig.settle(&claim, Verdict::Return);
    assert_eq!(rig.state(ids[0]), Some(State::Ready));
    // What is still elsewhere must not be found running by the checks of the next opening.
    let claim = ok(rig.store().held(ids[1])).unwrap_or_else(|| panic!("it is held"));
    rig.settle(&claim, Verdict::Return);
}

fn waits_in_vain<B: Bench>(rig: &mut Rig<'_, B>) {
    let first = rig.push("q", 1)[0];
    let mut builder = ChunkBuilder::new(Origin::from_random(6));
    builder.set_particulars(Some(Arc::new(Particulars { after: vec![first], ..Particulars::default() })));
    builder.push(1, b"second");
    let jobs = Arc::new(builder.finish());
    let (queue, priority) = (queue_name("then"), Priority::NORMAL);
    let second = rig.admit(vec![NewJobs { queue, priority, run: None, not_before: None, jobs }])[0];
    assert_eq!(rig.state(second), Some(State::Scheduled));
    if can_hold(rig) {
        assert_eq!(hold(rig, &[second]).remove(0).err(), Some(Unheld::Waits));
    }
    let held = rig.claim("q", 1).remove(0);
    let moved = Settlement { outcome: MOVED, ..rig.settlement(&held, Verdict::Succeed { message: "there".into() }) };
    rig.settle_all(&[moved]);
    assert_eq!(rig.state(second), Some(State::Cancelled), "its end is not told here");
}

fn arriving(offset: u64, state: State, due: Option<Time>) -> Arriving {
    let mut builder = ChunkBuilder::new(Origin::from_random(8));
    builder.push(offset, b"from elsewhere");
    let errors = vec![AttemptError { start: 2, at: Time(7), text: "exit 1".into() }];
    let record = Record { starts: 2, failures: 1, suspicions: 0 };
    let past = Past { state, due, record, errors };
    Arriving { queue: queue_name("q"), priority: Priority::NORMAL, past, jobs: Arc::new(builder.finish()) }
}

fn arrive<B: Bench>(rig: &mut Rig<'_, B>, jobs: &[Arriving]) -> Vec<JobId> {
    let now = rig.now;
    ok(rig.store().arrive(jobs, now));
    rig.step();
    jobs.iter().map(|job| job.jobs.id(0)).collect()
}

fn arrives<B: Bench>(rig: &mut Rig<'_, B>) {
    if !rig.store().takes_pasts() {
        return;
    }
    let due = rig.in_seconds(60);
    let jobs: Vec<Arriving> = WAITING
        .iter()
        .enumerate()
        .map(|(at, state)| {
            let due = matches!(state, State::Scheduled | State::Retrying).then_some(due);
            arriving(at as u64, *state, due)
        })
        .collect();
    let ids = arrive(rig, &jobs);
    for (id, state) in ids.iter().zip(WAITING) {
        let job = rig.job(*id);
        assert_eq!((job.state, job.record.starts, job.record.failures, job.errors.len()), (state, 2, 1, 1));
        assert_eq!(&job.data[..], b"from elsewhere");
    }
    rig.later(61);
    rig.release(10);
    let lane = rig.lane("q", 0, LaneKind::Retry);
    let held = rig.claim_lane(lane, 10);
    rig.step();
    assert_eq!(held.iter().map(|held| u32::from(held.count)).sum::<u32>(), 3, "all but the suspended one");
    assert!(held.iter().all(|held| held.start() == 3));
    for held in held {
        rig.settle(&held, Verdict::Succeed { message: String::new() });
    }
    rig.archive_all();
    assert_eq!(ids.iter().filter(|id| rig.state(**id).is_some()).count(), 1);
}

fn arrives_once<B: Bench>(rig: &mut Rig<'_, B>) {
    if !rig.store().takes_pasts() {
        return;
    }
    let id = arrive(rig, &[arriving(1, State::Suspended, None)])[0];
    arrive(rig, &[arriving(1, State::Ready, None), arriving(2, State::Ready, None)]);
    assert_eq!(rig.state(id), Some(State::Suspended), "it is left as it is");
    assert_eq!(rig.list(&Filter::default(), 10).len(), 2);
}

fn comes_back<B: Bench>(rig: &mut Rig<'_, B>) {
    if !rig.store().takes_pasts() || !can_hold(rig) {
        return;
    }
    let id = arrive(rig, &[arriving(1, State::Suspended, None)])[0];
    let held = hold(rig, &[id]).remove(0).unwrap_or_else(|why| panic!("it waits: {why:?}"));
    let moved = Settlement { outcome: MOVED, ..rig.settlement(&held, Verdict::Succeed { message: "there".into() }) };
    rig.settle_all(&[moved]);
    assert_eq!(rig.state(id), None, "it is elsewhere");
    let (back, now) = (arriving(1, State::Suspended, None), rig.now);
    match rig.store().arrive(std::slice::from_ref(&back), now) {
        Ok(()) => drop(rig.step()),
        Err(StoreError::Busy(_)) => {
            ok(rig.store().rollback());
            rig.archive_all();
            arrive(rig, &[back]);
        }
        Err(other) => panic!("expected that it comes, or is refused for now: {other}"),
    }
    assert_eq!(rig.state(id), Some(State::Suspended), "it is not lost");
    rig.archive_all();
    rig.crash_only();
    rig.recover_but(&[], &|_, _| false, true);
    assert_eq!(rig.state(id), Some(State::Suspended), "nor forgotten with what it was");
}
