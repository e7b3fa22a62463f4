//! Cases about single jobs: every transition from every state, what is refused, and what a job remembers.

use super::rig::{Rig, assert_stale, fail, ids, ok, queue_name, retry, succeed};
use super::{Bench, Case};
use crate::store::{Amended, Amendment, DELETED, Deleted, Fellow, Filter, Held, Store, Together, Unarchived};
use std::collections::BTreeSet;
use std::sync::Arc;
use windlass_core::job::{JobId, LaneKind, Origin, Priority, Record, RunId};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::time::Time;

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("a person's wish has the result that the life cycle names, from every state", amendments),
        ("every verdict leads where the life cycle says", verdicts),
        ("only running jobs can be settled, and only once", settled_once),
        ("a settlement with one stale job changes nothing", all_or_nothing),
        ("jobs of several queues that end together end as each of them would", settled_together),
        ("only scheduled and retrying jobs are released, at their time", released_states),
        ("another try clears failures and suspicions, and keeps starts and errors", revived),
        ("the last ten errors are kept, with their starts", errors_kept),
        ("a returned job has one more start and no failure", returned),
        ("old ended jobs are forgotten, young ones and live ones are not", forgotten),
        ("an unknown job is said to be unknown", unknown),
        ("a deleted job is gone, counted as it ended, and leaves its last line for the archive", deleted),
        ("notes are kept by the turn that writes them", notes),
        ("a listing heeds queue, state and run, and pages do not matter", listings),
        ("statistics sum what settled starts took", statistics),
    ]
}

const AMENDMENTS: [(Amendment, Change); 4] = [
    (Amendment::Cancel, Change::Cancel),
    (Amendment::Retry, Change::Revive),
    (Amendment::Suspend, Change::Suspend),
    (Amendment::Resume, Change::Resume),
];

fn amendments<B: Bench>(rig: &mut Rig<'_, B>) {
    for (number, (amendment, change)) in AMENDMENTS.into_iter().enumerate() {
        for from in State::ALL {
            let (id, _) = rig.job_in(&format!("{}-{number}", from.word()), from);
            let expected = match (from, life_cycle::next(from, change)) {
                (State::Succeeded, _) => Amended::Unknown,
                (State::Running, _) if amendment == Amendment::Cancel => Amended::Running,
                (_, Some(to)) => Amended::Done { from, to },
                (_, None) => Amended::Refused(from),
            };
            assert_eq!(rig.amend(id, amendment), expected, "{amendment:?} of a {from} job");
            let state = match expected {
                Amended::Done { to, .. } => Some(to),
                Amended::Running | Amended::Refused(_) | Amended::Same(_) | Amended::Taken(_) => Some(from),
                Amended::Unknown => None,
            };
            assert_eq!(rig.state(id), state, "after {amendment:?} of a {from} job");
        }
    }
}

fn verdicts<B: Bench>(rig: &mut Rig<'_, B>) {
    let at = rig.in_seconds(5);
    for (verdict, expected, record) in [
        (succeed(), None, Record::default()),
        (retry(at), Some(State::Retrying), Record { starts: 1, failures: 1, suspicions: 0 }),
        (fail(), Some(State::Failed), Record { starts: 1, failures: 1, suspicions: 0 }),
        (Verdict::Snooze { at }, Some(State::Scheduled), Record { starts: 1, failures: 0, suspicions: 0 }),
        (Verdict::Return, Some(State::Ready), Record { starts: 1, failures: 0, suspicions: 0 }),
        (Verdict::Cancel, Some(State::Cancelled), Record { starts: 1, failures: 0, suspicions: 0 }),
    ] {
        let (id, held) = rig.job_in("verdicts", State::Running);
        let data = rig.job(id).data;
        held.iter().for_each(|held| rig.settle(held, verdict.clone()));
        assert_eq!(rig.state(id), expected, "after {verdict:?}");
        if expected.is_some() {
            let job = rig.job(id);
            assert_eq!(job.record, record, "after {verdict:?}");
            assert_eq!(job.data, data, "the data is kept after {verdict:?}");
            assert_eq!(job.reason, (expected == Some(State::Failed)).then_some(Reason::Refused), "{verdict:?}");
            rig.amend(id, Amendment::Cancel);
        }
    }
}

fn settled_once<B: Bench>(rig: &mut Rig<'_, B>) {
    for verdict in [succeed(), retry(rig.in_seconds(5)), fail(), Verdict::Return, Verdict::Cancel] {
        let (id, held) = rig.job_in("once", State::Running);
        let held = held.unwrap_or_else(|| panic!("a running job is held"));
        rig.settle(&held, verdict.clone());
        let before = ok(rig.view().job(id));
        assert_stale(rig.try_settle(&held, succeed()), "a second settlement of the same start");
        ok(rig.store().rollback());
        assert_eq!(ok(rig.view().job(id)), before, "a stale settlement after {verdict:?} changed the job");
        rig.amend(id, Amendment::Cancel);
    }
    let (id, held) = rig.job_in("again", State::Running);
    let held = held.unwrap_or_else(|| panic!("a running job is held"));
    rig.settle(&held, Verdict::Return);
    let again = rig.claim("again", 1);
    assert_eq!(ids(&again), [id], "a returned job can be claimed again");
    assert_eq!(again[0].start(), held.start() + 1, "starts only rise");
    assert_stale(rig.try_settle(&held, succeed()), "the settlement of an earlier start");
    ok(rig.store().rollback());
    assert_eq!(rig.state(id), Some(State::Running), "the later start is still held");
}

fn all_or_nothing<B: Bench>(rig: &mut Rig<'_, B>) {
    rig.push("q", 10);
    let held = rig.claim("q", 10);
    let whole = &held[0];
    assert_eq!(whole.count, 10, "ten neighbours are one claim");
    rig.settle(&whole.part(4, 1), succeed());
    let now = rig.now;
    let mixed = [rig.settlement(&whole.part(0, 2), succeed()), rig.settlement(&whole.part(3, 3), fail())];
    assert_stale(rig.store().settle(&mixed, &[], now), "a range with one job that is settled already");
    let twice = [rig.settlement(&whole.part(0, 2), succeed()), rig.settlement(&whole.part(1, 1), succeed())];
    assert_stale(rig.store().settle(&twice, &[], now), "the same job twice in one call");
    rig.step();
    let running = Filter { states: vec![State::Running], ..Filter::default() };
    assert_eq!(rig.list(&running, 100).len(), 9, "refused settlements left all others as they were");
    assert_eq!(rig.list(&Filter::default(), 100).len(), 9, "nothing failed or went");
}

fn settled_together<B: Bench>(rig: &mut Rig<'_, B>) {
    let queues = ["a", "b", "c", "d"];
    let made: Vec<JobId> = queues.iter().flat_map(|queue| rig.push(queue, 1)).collect();
    let held: Vec<Held> = queues.iter().flat_map(|queue| rig.claim(queue, 1)).collect();
    let fellow = |held: &Held| Fellow { queue: Arc::new(queue_name("any")), held: held.clone() };
    let fellows: Arc<[Fellow]> = held.iter().map(fellow).collect();
    let (now, started) = (rig.now, Time(rig.now.0 - 2_000_000));
    let together = |which| {
        let fellows = Arc::clone(&fellows);
        Together { fellows, which, verdict: succeed(), outcome: "succeeded", started, finished: now }
    };
    rig.settle(&held[3], succeed());
    assert_stale(
        rig.store().settle_together(&[together(0..2), together(2..4)], now),
        "with one that is settled already",
    );
    ok(rig.store().rollback());
    assert_stale(rig.store().settle_together(&[together(0..2), together(1..3)], now), "the same job twice in one call");
    ok(rig.store().rollback());
    assert_eq!([0, 1, 2].map(|at| rig.state(made[at])), [Some(State::Running); 3], "refused ends change nothing");
    ok(rig.store().settle_together(&[together(0..2), together(2..3)], now));
    rig.step();
    assert_eq!(made.iter().map(|id| rig.state(*id)).collect::<Vec<_>>(), [None; 4], "all of them have succeeded");
    for queue in ok(rig.view().queues()) {
        let (stats, done) = (queue.stats, queue.stats.by_state[State::Succeeded.index()]);
        assert_eq!((done, stats.started, stats.ran), (1, 1, 2_000_000), "{}", queue.name.as_str());
    }
    let left: Vec<Unarchived> = ok(rig.store().unarchived());
    let ends = left.iter().flat_map(|turn| &turn.settlements).flat_map(|end| end.held.ids().collect::<Vec<_>>());
    let ends: BTreeSet<JobId> = ends.collect();
    assert_eq!(ends, made.into_iter().collect(), "the archive is to have each of them");
}

fn released_states<B: Bench>(rig: &mut Rig<'_, B>) {
    let made: Vec<_> = State::ALL.into_iter().map(|state| (state, rig.job_in(state.word(), state).0)).collect();
    assert_eq!(ok(rig.store().next_due()), Some(rig.in_seconds(60)), "the next time is that of the earliest job");
    rig.release(100);
    for (state, id) in &made {
        assert_eq!(rig.state(*id), (*state != State::Succeeded).then_some(*state), "nothing is due yet");
    }
    rig.later(60);
    rig.release(100);
    for (state, id) in made {
        let expected = match state {
            State::Scheduled | State::Retrying | State::Ready => Some(State::Ready),
            State::Succeeded => None,
            State::Running | State::Suspended | State::Failed | State::Cancelled => Some(state),
        };
        assert_eq!(rig.state(id), expected, "a {state} job after the release");
    }
    assert_eq!(ok(rig.store().next_due()), None, "nothing waits for a time any more");
}

fn revived<B: Bench>(rig: &mut Rig<'_, B>) {
    let (id, _) = rig.job_in("q", State::Failed);
    let before = rig.job(id);
    rig.amend(id, Amendment::Retry);
    let job = rig.job(id);
    assert_eq!(job.record, Record { starts: 1, failures: 0, suspicions: 0 }, "the record after another try");
    assert_eq!(job.kind, LaneKind::Fresh, "it waits with the fresh jobs");
    assert_eq!((job.ended, job.reason), (None, None), "it has not ended any more");
    assert_eq!(job.errors, before.errors, "its errors are kept");
    let held = rig.claim("q", 1);
    assert_eq!((ids(&held), held[0].start()), (vec![id], 2), "it starts for the second time");
    assert_eq!(held[0].jobs.data(held[0].range().start), &before.data[..], "with its data");
}

fn errors_kept<B: Bench>(rig: &mut Rig<'_, B>) {
    let id = rig.push("q", 1)[0];
    let mut kind = LaneKind::Fresh;
    for start in 1..=13 {
        let lane = rig.lane("q", 0, kind);
        let held = rig.claim_lane(lane, 1);
        assert_eq!(ids(&held), [id], "start {start}");
        let verdict = Verdict::Retry { at: rig.in_seconds(1), error: format!("error {start}") };
        rig.settle(&held[0], verdict);
        rig.later(1);
        rig.release(10);
        kind = LaneKind::Retry;
    }
    let job = rig.job(id);
    let errors: Vec<_> = job.errors.iter().map(|error| (error.start, error.text.clone())).collect();
    let expected: Vec<_> = (4..=13).map(|start| (start, format!("error {start}"))).collect();
    assert_eq!(errors, expected, "the errors of the last ten failures, oldest first");
    assert_eq!(job.record, Record { starts: 13, failures: 13, suspicions: 0 }, "after thirteen failures");
}

fn returned<B: Bench>(rig: &mut Rig<'_, B>) {
    let made = rig.push("q", 3);
    for start in 1..=3 {
        let held = rig.claim("q", 3);
        assert_eq!(ids(&held), made, "returned jobs keep their order");
        assert!(held.iter().all(|held| held.start() == start), "start {start}");
        held.iter().for_each(|held| rig.settle(held, Verdict::Return));
    }
    let record = Record { starts: 3, failures: 0, suspicions: 0 };
    assert!(made.iter().all(|id| rig.job(*id).record == record), "three starts, no failure");
}

fn forgotten<B: Bench>(rig: &mut Rig<'_, B>) {
    let old: Vec<_> = [State::Failed, State::Cancelled].map(|state| rig.job_in("old", state).0).into();
    let live: Vec<_> = [State::Ready, State::Suspended].map(|state| rig.job_in("live", state).0).into();
    let border = rig.later(10);
    rig.later(10);
    let young = rig.job_in("young", State::Failed).0;
    rig.archive_all();
    let mut rounds = 0;
    while ok(rig.store().forget(border, 1)) > 0 {
        rig.step();
        rounds += 1;
        assert!(rounds < 10, "forgetting comes to an end");
    }
    rig.step();
    assert!(rounds >= 2, "a limit of one forgets one at a time");
    assert!(old.iter().all(|id| rig.state(*id).is_none()), "old ended jobs are gone");
    assert!(live.iter().all(|id| rig.state(*id).is_some()), "live jobs stay however old they are");
    assert_eq!(rig.state(young), Some(State::Failed), "a job that ended later stays");
    assert_eq!(rig.amend(old[0], Amendment::Retry), Amended::Unknown, "what is forgotten cannot be tried again");
}

fn deleted<B: Bench>(rig: &mut Rig<'_, B>) {
    for from in State::ALL {
        let run = RunId::first(Origin::from_random(100 + from.index() as u64));
        let queue = format!("d.{from}");
        let (id, held) = rig.job_in_run(&queue, from, run);
        let now = rig.now;
        let answer = ok(rig.store().delete(&[id, id], now));
        rig.step();
        match (&answer[0], from) {
            (Deleted::Unknown, State::Succeeded) => continue,
            (Deleted::Running, State::Running) => {
                assert_eq!(rig.state(id), Some(State::Running), "a running job stays");
                held.into_iter().for_each(|held| rig.settle(&held, succeed()));
                continue;
            }
            (Deleted::Done { from: told, last }, _) => {
                assert_eq!((*told, last.outcome), (from, DELETED));
                assert_eq!(last.held.ids().collect::<Vec<_>>(), [id]);
                let data = last.held.jobs.data(usize::from(last.held.first));
                assert_eq!(data, format!("{queue}/0").as_bytes(), "with its data");
            }
            (other, _) => panic!("deleting a {from} job: {other:?}"),
        }
        assert!(matches!(answer[1], Deleted::Unknown), "deleted once");
        assert_eq!(rig.state(id), None, "a deleted {from} job is gone");
        let ended = if from.is_end() { from } else { State::Cancelled };
        let counts = rig.run(run).counts;
        assert_eq!((counts.by_state[ended.index()], counts.total()), (1, 1), "{from}: its run counts it as {ended}");
        let lines = ok(rig.store().unarchived());
        let told = lines.iter().flat_map(|turn| &turn.settlements).filter(|line| line.outcome == DELETED);
        assert!(
            told.flat_map(|line| line.held.ids().collect::<Vec<_>>()).any(|told| told == id),
            "{from}: a line waits"
        );
        assert_eq!(rig.amend(id, Amendment::Retry), Amended::Unknown, "what was deleted cannot be tried again");
    }
    rig.crash(&|_, _| false, true);
    rig.archive_all();
    assert!(ok(rig.store().unarchived()).is_empty(), "the archive has all of it");
}

fn notes<B: Bench>(rig: &mut Rig<'_, B>) {
    let all = |rig: &mut Rig<'_, B>| -> Vec<String> {
        ok(rig.store().notes("a/", usize::MAX))
            .into_iter()
            .map(|(key, value)| format!("{key}={}", value.len()))
            .collect()
    };
    for (key, value) in [("a/2", &b"xx"[..]), ("a/1", b""), ("b/1", b"x"), ("a", b"x")] {
        ok(rig.store().note(key, Some(value)));
    }
    assert_eq!(all(rig), ["a/1=0", "a/2=2"], "seen in the turn that writes them, in order");
    rig.step();
    ok(rig.store().note("a/1", None));
    ok(rig.store().note("a/2", Some(b"yyy")));
    ok(rig.store().rollback());
    assert_eq!(all(rig), ["a/1=0", "a/2=2"], "a dropped turn wrote nothing");
    assert_eq!(ok(rig.store().notes("", 2)).len(), 2, "no more than asked for");
    ok(rig.store().note("a/1", None));
    rig.step();
    rig.crash(&|_, _| false, true);
    assert_eq!(all(rig), ["a/2=2"]);
}

fn unknown<B: Bench>(rig: &mut Rig<'_, B>) {
    let id = rig.push("q", 3)[1];
    for stranger in [
        JobId { offset: id.offset + 1, ..id },
        JobId { offset: 0, ..id },
        JobId { offset: u64::MAX >> 1, ..id },
        JobId { origin: Origin::from_random(5), ..id },
    ] {
        assert_eq!(rig.state(stranger), None, "{stranger} was never made");
        for (amendment, _) in AMENDMENTS {
            assert_eq!(rig.amend(stranger, amendment), Amended::Unknown, "{amendment:?} of {stranger}");
        }
        let rank = Amendment::Priority(Priority::NORMAL);
        assert_eq!(rig.amend(stranger, rank), Amended::Unknown, "{rank:?} of {stranger}");
    }
}

fn listings<B: Bench>(rig: &mut Rig<'_, B>) {
    let states = State::ALL.into_iter().filter(|state| *state != State::Succeeded);
    let made: Vec<_> = states.map(|state| (state, rig.job_in(state.word(), state).0)).collect();
    let bulk = rig.push("bulk", 25);
    let all: Vec<_> = made.iter().map(|(_, id)| *id).chain(bulk.iter().copied()).collect();
    for page in [1, 2, 7, 100] {
        let listed: Vec<_> = rig.list(&Filter::default(), page).iter().map(|job| job.id).collect();
        assert_eq!(listed, all, "all jobs by arrival in pages of {page}");
        let one = Filter { queues: vec!["bulk".into()], ..Filter::default() };
        let listed: Vec<_> = rig.list(&one, page).iter().map(|job| job.id).collect();
        assert_eq!(listed, bulk, "the jobs of one queue in pages of {page}");
        for (state, id) in made.iter().filter(|(state, _)| *state != State::Ready) {
            let filter = Filter { states: vec![*state], ..Filter::default() };
            let listed: Vec<_> = rig.list(&filter, page).iter().map(|job| job.id).collect();
            assert_eq!(listed, [*id], "the {state} jobs in pages of {page}");
        }
    }
    for job in rig.list(&Filter::default(), 100) {
        assert_eq!(rig.job(job.id), job, "a job alone is the job in the listing");
    }
}

fn statistics<B: Bench>(rig: &mut Rig<'_, B>) {
    rig.push("q", 4);
    rig.later(10);
    let held = rig.claim("q", 4);
    rig.settle(&held[0].part(1, 3), succeed());
    let queue = ok(rig.view().queues()).remove(0);
    assert_eq!(queue.stats.started, 4, "four starts were stored");
    assert_eq!(queue.stats.ran, 3 * 2_000_000, "three starts of two seconds");
    assert_eq!(queue.stats.waited, 3 * 8_000_000, "three waits of eight seconds");
    assert_eq!(rig.now, Time(1_010_000_000), "the rig keeps the time");
}
