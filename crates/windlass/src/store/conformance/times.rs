//! Cases about times by which jobs must have begun or ended, and about jobs that wait for others.

use super::rig::{Rig, fail, ok, queue_name, retry, succeed};
use super::{Bench, Case};
use crate::store::chunk::ChunkBuilder;
use crate::store::{Amendment, EXPIRED, Evidence, FollowUp, JobInfo, NewJobs, Store};
use std::sync::Arc;
use windlass_core::job::{JobId, LaneKind, Origin, RunId};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("a job that has not begun by its time fails as expired, one that has begun goes on", start_by),
        ("a claim that never began is no beginning in time", start_by_of_the_unbegun),
        ("a job that ran past its time and comes back is not started again", finish_by_of_what_comes_back),
        ("what is to be said of a job that is too late is taken in with its end", told),
        (
            "a job that has not ended by its time fails as expired wherever it waits, and is told while it runs",
            finish_by,
        ),
        ("when the clock is set, what waits for another start waits as long as before, and named times stay", shifted),
        ("a job waits until all it waits for have succeeded, across a restart", after),
        ("a job whose forerunner fails, is cancelled or is deleted is cancelled, and so are those behind it", in_vain),
        ("a job that a person let go outlives the failure of one that it waited for, wherever it waits then", let_go),
    ]
}

impl<B: Bench> Rig<'_, B> {
    fn push_with(&mut self, queue: &str, particulars: Particulars) -> JobId {
        self.push_in(queue, particulars, None)
    }

    fn push_in(&mut self, queue: &str, particulars: Particulars, run: Option<RunId>) -> JobId {
        let new = self.new_jobs(queue, 1);
        let jobs = Arc::new(new.jobs.rebuilt(Some(Arc::new(particulars)), |_| true));
        self.admit(vec![NewJobs { jobs, run, ..new }])[0]
    }

    fn push_after(&mut self, queue: &str, after: &[JobId]) -> JobId {
        self.push_with(queue, Particulars { after: after.to_vec(), ..Particulars::default() })
    }
}

fn by(start_by: Option<Time>, finish_by: Option<Time>) -> Particulars {
    Particulars { start_by, finish_by, ..Particulars::default() }
}

fn start_by<B: Bench>(rig: &mut Rig<'_, B>) {
    let at = rig.in_seconds(10);
    let late = rig.push_with("late", by(Some(at), None));
    let begun = rig.push_with("begun", by(Some(at), None));
    let held = rig.claim("begun", 1);
    rig.settle(&held[0], retry(rig.in_seconds(60)));
    assert_eq!(ok(rig.store().next_due()), Some(at));
    rig.later(9);
    rig.release(10);
    assert_eq!(rig.state(late), Some(State::Ready), "its time has not come");
    rig.crash(&|_, _| true, true);
    rig.later(1);
    rig.release(10);
    let job = rig.job(late);
    assert_eq!((job.state, job.reason), (State::Failed, Some(Reason::Expired)));
    assert_eq!(job.errors.len(), 1);
    assert_eq!(rig.state(begun), Some(State::Retrying));
    let outcomes = ok(rig.store().unarchived()).into_iter().flat_map(|turn| turn.settlements);
    assert_eq!(outcomes.filter(|last| last.outcome == EXPIRED).count(), 1);
    assert!(rig.claim("late", 1).is_empty());
}

fn start_by_of_the_unbegun<B: Bench>(rig: &mut Rig<'_, B>) {
    let at = rig.in_seconds(10);
    let unbegun = rig.push_with("unbegun", by(Some(at), None));
    let begun = rig.push_with("begun", by(Some(at), None));
    rig.claim("unbegun", 1);
    rig.claim("begun", 1);
    rig.later(11);
    rig.release(10);
    assert_eq!(rig.state(unbegun), Some(State::Running), "who has it may have begun");
    rig.crash(&|id, _| id == begun, true);
    rig.release(10);
    let job = rig.job(unbegun);
    assert_eq!((job.state, job.reason), (State::Failed, Some(Reason::Expired)), "nobody had");
    assert_ne!(rig.state(begun), Some(State::Failed));
    assert!(rig.claim("unbegun", 1).is_empty());
}

fn finish_by<B: Bench>(rig: &mut Rig<'_, B>) {
    let at = rig.in_seconds(10);
    let ids: Vec<JobId> = ["ready", "retrying", "running"].map(|q| rig.push_with(q, by(None, Some(at)))).into();
    let held = rig.claim("retrying", 1);
    rig.settle(&held[0], retry(rig.in_seconds(60)));
    let held = rig.claim("running", 1);
    rig.later(10);
    let now = rig.now;
    ok(rig.store().release(now, 10, Evidence::UNTOLD));
    ok(rig.store().commit(crate::store::Durability::Full));
    let changes = rig.store().changes();
    rig.learn(&changes);
    assert_eq!((changes.overdue, changes.expired.len()), (vec![ids[2]], 2));
    assert_eq!([0, 1, 2].map(|n| rig.state(ids[n])), [Some(State::Failed), Some(State::Failed), Some(State::Running)]);
    assert!(ok(rig.store().next_due()).is_some_and(|next| next > now), "it is asked for again, not at once");
    rig.settle(&held[0], fail());
    rig.later(60);
    rig.release(10);
    assert_eq!(rig.job(ids[0]).reason, Some(Reason::Expired));
}

fn finish_by_of_what_comes_back<B: Bench>(rig: &mut Rig<'_, B>) {
    let at = rig.in_seconds(10);
    let [unbegun, begun] = ["unbegun", "begun"].map(|queue| rig.push_with(queue, by(None, Some(at))));
    rig.claim("unbegun", 1);
    rig.claim("begun", 1);
    rig.later(11);
    rig.release(10);
    assert_eq!([unbegun, begun].map(|id| rig.state(id)), [Some(State::Running); 2], "they were told to end");
    rig.crash(&|id, _| id == begun, true);
    rig.release(10);
    for (id, queue) in [(unbegun, "unbegun"), (begun, "begun")] {
        let job = rig.job(id);
        assert_eq!((job.state, job.reason), (State::Failed, Some(Reason::Expired)), "{queue}");
        assert!(rig.claim(queue, 1).is_empty(), "nobody starts it again");
    }
}

fn shifted<B: Bench>(rig: &mut Rig<'_, B>) {
    let named = rig.in_seconds(60);
    let new = NewJobs { not_before: Some(named), ..rig.new_jobs("named", 1) };
    let named_job = rig.admit(vec![new])[0];
    let tried = rig.push("tried", 1)[0];
    let held = rig.claim("tried", 1);
    rig.settle(&held[0], retry(named));
    let set_back = -40_000_000;
    let sooner = ok(rig.store().shift_waits(set_back));
    ok(rig.store().commit(crate::store::Durability::Full));
    rig.crash(&|_, _| true, true);
    let shifted = if sooner { set_back } else { 0 };
    assert_eq!(rig.job(tried).not_before, Some(Time(named.0 + shifted)), "where clocks are many it stays");
    assert_eq!(rig.job(named_job).not_before, Some(named));
    rig.later(20);
    rig.release(10);
    assert_eq!(rig.state(tried) == Some(State::Ready), sooner);
    assert_eq!(rig.state(named_job), Some(State::Scheduled));
}

fn told<B: Bench>(rig: &mut Rig<'_, B>) {
    let run = RunId::first(Origin::from_random(0x1a7e));
    let at = rig.in_seconds(10);
    let late = rig.push_in("q", by(Some(at), None), Some(run));
    rig.seal(run);
    rig.later(10);
    let origin = Origin::from_random(0x5a1d);
    let said = |job: &JobInfo, no| {
        assert_eq!((job.id, job.state, job.reason), (late, State::Failed, Some(Reason::Expired)), "whom it is said of");
        assert_eq!((job.errors.len(), job.run), (1, Some(run)));
        let mut builder = ChunkBuilder::new(origin);
        builder.push(1, b"it was late");
        vec![FollowUp {
            queue: queue_name("errors"),
            priority: job.priority,
            run: no,
            jobs: Arc::new(builder.finish()),
        }]
    };
    rig.release_telling(10, &said);
    let told = rig.job(JobId { origin, offset: 1 });
    assert_eq!((told.state, told.run), (State::Ready, Some(run)), "what is said of it is taken in, in its run");
    assert!(!rig.run(run).counts.ended, "before the run is looked at");
    let held = rig.claim("errors", 1);
    rig.settle(&held[0], succeed());
    assert!(rig.run(run).counts.ended);
}

fn after<B: Bench>(rig: &mut Rig<'_, B>) {
    let first = rig.push("first", 2);
    let last = rig.push_after("last", &first);
    let job = rig.job(last);
    assert_eq!((job.state, job.not_before), (State::Scheduled, None));
    let held = rig.claim("first", 1);
    rig.settle(&held[0], succeed());
    rig.later(100_000);
    rig.release(10);
    assert_eq!(rig.state(last), Some(State::Scheduled), "one is left");
    rig.crash(&|_, _| true, true);
    let held = rig.claim("first", 1);
    rig.settle(&held[0], retry(rig.now));
    assert_eq!(rig.state(last), Some(State::Scheduled), "it is tried again");
    rig.release(10);
    let lane = rig.lane("first", 0, LaneKind::Retry);
    let held = rig.claim_lane(lane, 1);
    rig.step();
    rig.settle(&held[0], succeed());
    assert_eq!(rig.state(last), Some(State::Ready));
    assert_eq!(rig.claim("last", 1).len(), 1);
    let late = rig.push_after("late", &first);
    assert_eq!(rig.state(late), Some(State::Ready), "they have succeeded long ago");
}

fn in_vain<B: Bench>(rig: &mut Rig<'_, B>) {
    for (number, end) in ["fails", "cancelled", "deleted"].into_iter().enumerate() {
        let first = rig.push(end, 1)[0];
        let second = rig.push_after(&format!("second-{number}"), &[first]);
        let third = rig.push_after(&format!("third-{number}"), &[second]);
        let now = rig.now;
        match end {
            "fails" => {
                let held = rig.claim(end, 1);
                rig.settle(&held[0], fail());
            }
            "cancelled" => drop(rig.amend(first, Amendment::Cancel)),
            _ => {
                ok(rig.store().delete(&[first], now));
                rig.step();
            }
        }
        assert_eq!((rig.state(second), rig.state(third)), (Some(State::Cancelled), Some(State::Cancelled)), "{end}");
        let why = rig.job(second).errors.pop().map(|error| error.text).unwrap_or_default();
        assert!(why.contains(&first.to_string()), "{why}");
        let late = rig.push_after(&format!("late-{number}"), &[second]);
        assert_eq!(rig.state(late), Some(State::Cancelled), "it was too late from the start");
    }
}

fn let_go<B: Bench>(rig: &mut Rig<'_, B>) {
    let first = rig.push("first", 1)[0];
    let [freed, left] = ["freed", "left"].map(|queue| rig.push_after(queue, &[first]));
    rig.amend(freed, Amendment::Suspend);
    rig.amend(freed, Amendment::Resume);
    let held = rig.claim("freed", 1);
    let later = rig.in_seconds(60);
    rig.settle(&held[0], Verdict::Snooze { at: later });
    let held = rig.claim("first", 1);
    rig.settle(&held[0], fail());
    assert_eq!((rig.state(freed), rig.state(left)), (Some(State::Scheduled), Some(State::Cancelled)));
    assert_eq!(rig.job(freed).errors, [], "nothing is wrong with it");
    rig.crash(&|_, _| true, true);
    rig.later(60);
    rig.release(10);
    assert_eq!(rig.state(freed), Some(State::Ready));
}
