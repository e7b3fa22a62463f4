//! Cases about the terms of runs: how many jobs they take, what stopping means, and who announces the end.

use super::rig::{Rig, fail, ok, queue_name, succeed};
use super::{Bench, Case};
use crate::store::{Amendment, Lot, NewJobs, NewRun, Seal, Store};
use windlass_core::job::{JobId, LaneKind, Origin, Priority, QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::notify::{Ending, Notify};
use windlass_core::run::terms::{EndJob, RunTerms, Stopped};

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("a run takes in as many jobs as its limit says, and drops the others", limited),
        (
            "a stopped run is sealed, ends with the last of its jobs, and what comes late is of its next generation",
            stopped,
        ),
        ("the end of a run is announced by one job, in the turn in which it ends", announced),
        ("the channels of a run hear of the end that they asked for, once, in the turn in which it ends", channels),
        ("a lot opens a run on its terms, once, and they survive", opened),
    ]
}

fn id(number: u64) -> RunId {
    RunId::first(Origin::from_random(number))
}

fn end_job(data: &[u8]) -> Option<EndJob> {
    let queue = QueueName::new(b"done").unwrap_or_else(|e| panic!("{e}"));
    Some(EndJob { queue, priority: Priority::new(5)?, data: data.to_vec() })
}

impl<B: Bench> Rig<'_, B> {
    fn open_on(&mut self, run: RunId, terms: RunTerms) {
        let now = self.now;
        let new = NewRun { terms, ..NewRun::default() };
        ok(self.store().open_run(run, &new, now));
        self.step();
    }

    pub(super) fn seal(&mut self, run: RunId) {
        self.admit_lot(&Lot { seals: vec![Seal { run, after: Vec::new() }], ..Lot::default() });
    }
}

fn limited<B: Bench>(rig: &mut Rig<'_, B>) {
    rig.open_on(id(1), RunTerms { job_limit: Some(5), ..RunTerms::default() });
    rig.push_to_run("q", 3, id(1));
    let late = rig.push_to_run("q", 3, id(1));
    let counts = rig.run(id(1)).counts;
    assert_eq!((counts.total(), counts.dropped), (5, 1));
    assert_eq!((rig.state(late[1]), rig.state(late[2])), (Some(State::Ready), None));
    rig.push_to_run("q", 2, id(1));
    rig.crash(&|_, _| true, true);
    let counts = rig.run(id(1)).counts;
    assert_eq!((counts.total(), counts.dropped, counts.live()), (5, 3, 5));
    rig.seal(id(1));
    let held = rig.claim("q", 9);
    held.iter().for_each(|held| rig.settle(held, succeed()));
    assert!(rig.run(id(1)).counts.ended, "what was dropped holds nothing back");
}

fn stopped<B: Bench>(rig: &mut Rig<'_, B>) {
    rig.open_on(id(1), RunTerms::default());
    let jobs = rig.push_to_run("q", 2, id(1));
    let held = rig.claim("q", 1);
    let (no, now) = (rig.run(id(1)).no, rig.now);
    ok(rig.store().stop_run(no, Stopped::TimeLimit, now));
    rig.step();
    rig.crash_only();
    rig.recover_but(&[(jobs[0], 1)], &|_, _| true, true);
    let counts = rig.run(id(1)).counts;
    assert_eq!((counts.stopped, counts.sealed, counts.ended), (Some(Stopped::TimeLimit), true, false));
    let next = id(1).next_generation();
    let joins = ok(rig.store().joined(id(1))).map(|run| (run.id, run.counts.total(), run.terms));
    assert_eq!(joins, Some((next, 0, rig.run(id(1)).terms)), "it is said beforehand where they go");
    let late = rig.push_to_run("q", 2, id(1));
    assert_eq!((rig.job(late[0]).run, rig.run(id(1)).counts.dropped), (Some(next), 0), "what was accepted is not lost");
    rig.amend(jobs[1], Amendment::Cancel);
    assert!(!rig.run(id(1)).counts.ended);
    rig.settle(&held[0], windlass_core::judge::Verdict::Cancel);
    assert!(rig.run(id(1)).counts.ended && !rig.run(next).counts.ended);
    assert_eq!(ok(rig.store().joined(id(1))), Some(rig.run(next)));
    let late = rig.push_to_run("q", 1, id(1));
    assert_eq!(rig.job(late[0]).run, Some(next), "nor once it has ended");
    let (no, now) = (rig.run(next).no, rig.now);
    ok(rig.store().stop_run(no, Stopped::TimeLimit, now));
    let late = rig.push_to_run("q", 1, id(1));
    assert_eq!(rig.job(late[0]).run, Some(next.next_generation()));
    // One with nothing in it ends at once.
    rig.open_on(id(2), RunTerms::default());
    let (no, now) = (rig.run(id(2)).no, rig.now);
    ok(rig.store().stop_run(no, Stopped::Failures, now));
    rig.step();
    assert!(rig.run(id(2)).counts.ended);
}

fn announced<B: Bench>(rig: &mut Rig<'_, B>) {
    let announces = |data: &[u8]| RunTerms { end_job: end_job(data), ..RunTerms::default() };
    rig.open_on(id(1), announces(b""));
    rig.open_on(id(2), announces(b"own words"));
    let jobs = rig.push_to_run("q", 1, id(1));
    rig.seal(id(1));
    let held = rig.claim("q", 1);
    let (end, now) = (rig.settlement(&held[0], succeed()), rig.now);
    ok(rig.store().settle(std::slice::from_ref(&end), &[], now));
    rig.crash_only();
    rig.recover_but(&[(jobs[0], 1)], &|_, _| true, true);
    assert!(!rig.run(id(1)).counts.ended, "that turn never was");
    rig.settle_all(&[end]);
    assert!(rig.run(id(1)).counts.ended);
    rig.seal(id(2));
    rig.crash(&|_, _| true, true);
    let lane = rig.lane("done", 5, LaneKind::Fresh);
    let told = rig.claim_lane(lane, 9);
    rig.step();
    let told: Vec<(JobId, String)> = told
        .iter()
        .flat_map(|held| held.range().map(|n| (held.jobs.id(n), String::from_utf8_lossy(held.jobs.data(n)).into())))
        .collect();
    assert_eq!(told.len(), 2, "one for each: {told:?}");
    assert_ne!(told[0].0, told[1].0);
    assert!(told[0].1.contains("\"total\":1") && told[0].1.contains("\"succeeded\":1"), "{}", told[0].1);
    assert_eq!(told[1].1, "own words");
    assert_eq!(rig.job(told[0].0).run, None, "it is not of the run");
}

fn channels<B: Bench>(rig: &mut Rig<'_, B>) {
    let on = |endings: &[Ending]| RunTerms {
        end_job: end_job(b"the end"),
        notify: Notify {
            channels: ["notify.a", "notify.b"].map(queue_name).into(),
            on: endings.iter().copied().collect(),
        },
        ..RunTerms::default()
    };
    rig.open_on(id(1), on(&[Ending::Failed]));
    rig.open_on(id(2), on(&[Ending::Failed, Ending::Late]));
    rig.open_on(id(3), on(&[Ending::Succeeded]));
    rig.open_on(id(4), on(&[Ending::Late]));
    let jobs = [1, 2, 3].map(|n| rig.push_to_run("q", 1, id(n))[0]);
    let verdicts = [succeed(), fail(), succeed()];
    for (n, verdict) in (1..).zip(verdicts) {
        rig.seal(id(n));
        let held = rig.claim("q", 1);
        assert_eq!(held[0].ids().next(), Some(jobs[n as usize - 1]));
        rig.settle(&held[0], verdict);
    }
    let (no, now) = (rig.run(id(4)).no, rig.now);
    ok(rig.store().stop_run(no, Stopped::TimeLimit, now));
    rig.step();
    rig.crash(&|_, _| true, true);
    for queue in ["notify.a", "notify.b"] {
        let held = rig.claim(queue, 9);
        let told = held.iter().flat_map(|held| held.range().map(|n| held.jobs.data(n).to_vec()));
        let told: Vec<String> = told.map(|told| String::from_utf8_lossy(&told).into_owned()).collect();
        let expected = [(2, "failed"), (3, "succeeded"), (4, "late")];
        assert_eq!(told.len(), expected.len(), "{queue}: {told:?}");
        for (told, (run, event)) in told.iter().zip(expected) {
            let begin = format!("{{\"event\":\"{event}\",\"name\":\"\",\"run\":{{\"run\":\"{}\"", id(run));
            assert!(told.starts_with(&begin), "{queue}: {told}");
        }
    }
    let lane = rig.lane("done", 5, LaneKind::Fresh);
    assert_eq!(rig.claim_lane(lane, 9).iter().map(|held| held.count).sum::<u16>(), 4, "whoever else is told");
    rig.step();
}

fn opened<B: Bench>(rig: &mut Rig<'_, B>) {
    let terms = RunTerms { job_limit: Some(1), ..RunTerms::default() };
    let jobs = vec![NewJobs { run: Some(id(1)), ..rig.new_jobs("q", 2) }];
    rig.admit_lot(&Lot { opens: vec![(id(1), terms.clone())], jobs, ..Lot::default() });
    let again = RunTerms { job_limit: Some(9), ..RunTerms::default() };
    rig.admit_lot(&Lot { opens: vec![(id(1), again)], ..Lot::default() });
    rig.crash(&|_, _| true, true);
    let run = rig.run(id(1));
    assert_eq!((run.terms, run.counts.total(), run.counts.dropped), (terms, 1, 1));
}
