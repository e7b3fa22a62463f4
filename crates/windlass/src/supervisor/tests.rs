//! The roster shows what the machine says, and whoever misses a deadline is told on once.

use super::watch::{Overdue, Watch};
use super::*;
use std::sync::mpsc;
use windlass_core::policy::{Command, Service};
use windlass_core::supervisor::Due;

fn about(flight: u64, grace: Duration) -> About {
    let mut policy = Policy::new("mail", Service::Command(Command::default()));
    policy.grace = grace;
    About::new(Kind::Process, Some(&Arc::new(policy)), Flight(flight))
}

#[test]
fn a_worker_for_one_job_goes_round_and_every_step_is_counted() {
    let roster = Arc::<Roster>::default();
    for (stops, ends) in [(false, false), (true, false), (false, true)] {
        let mut worker = roster.make_for(about(1, Duration::ZERO));
        assert_eq!((worker.number, worker.state()), (WorkerNo(1), WorkerState::Working));
        let job = JobId { origin: windlass_core::job::Origin::from_random(1), offset: 5 };
        worker.is_at(Some(job), 1);
        worker.is_in("downloading");
        let shown = roster.at(job).unwrap();
        assert_eq!((shown.state, shown.phase.as_str()), (WorkerState::Working, "downloading"));
        if stops {
            worker.stop();
            worker.stop();
        }
        let end = if ends { worker.died() } else { worker.is_done(false) };
        assert_eq!(end, if ends { WorkerState::Died } else { WorkerState::Stopped });
        drop(worker);
        assert!(roster.shown().is_empty());
    }
    let counts = roster.counts();
    assert_eq!((counts.forbidden, counts.now), (0, [0; 7]));
    assert_eq!(counts.transitions.iter().sum::<u64>(), 5 + 5 + 4);
    let (steps, _) = roster.steps();
    assert_eq!(steps.len(), 14 + 3, "with the phases");
    assert_eq!((steps[3].phase.as_str(), steps[3].event), ("downloading", None));
}

#[test]
fn numbers_of_the_gone_are_given_again_and_what_is_remembered_is_bounded() {
    let roster = Arc::<Roster>::default();
    let first = roster.make(about(1, Duration::ZERO));
    for _ in 0..STEPS_KEPT {
        let mut second = roster.make_for(about(2, Duration::ZERO));
        assert_eq!(second.number, WorkerNo(2));
        second.is_done(true);
    }
    assert_eq!((first.state(), roster.steps().0.len()), (WorkerState::Starting, STEPS_KEPT));
}

#[test]
fn who_does_not_end_in_time_is_told_on_once_and_said() {
    let roster = Arc::<Roster>::default();
    let (said, hears) = mpsc::channel();
    roster.heard_by(move |what| said.send(what).unwrap());
    let (told, listens) = mpsc::channel();
    let watch = Watch::start(&roster, move |overdue| told.send(overdue).unwrap()).unwrap();
    let mut patient = roster.make_for(about(7, Duration::from_secs(3600)));
    patient.stop();
    let mut books = roster.books();
    // As if its grace were over already.
    let (number, kind) = (WorkerNo(9), Kind::Kept);
    let terms = Terms { start: Duration::ZERO, stop: Duration::ZERO };
    books.machine.enrol(number, terms, clock::steady());
    books.about.insert(number, About { kind, ..about(9, Duration::ZERO) });
    drop(books);
    let mut late = Worker { roster: Arc::clone(&roster), number, state: WorkerState::Stopped };
    late.happens(&[WorkerEvent::Make, WorkerEvent::Up, WorkerEvent::Stop]);
    assert_eq!(listens.recv().unwrap(), Overdue { flight: Flight(9), kind, due: Due::StopOverdue });
    assert_eq!(hears.recv().unwrap(), "worker 9 (kept of `mail`) was told to end and did not in time");
    drop(watch);
    assert!(listens.try_recv().is_err());
    assert_eq!(roster.counts().overdue, [0, 1]);
}

#[test]
fn a_forbidden_event_is_counted_and_said_and_changes_nothing() {
    let roster = Arc::<Roster>::default();
    let (said, hears) = mpsc::channel();
    roster.heard_by(move |what| said.send(what).unwrap());
    let mut worker = roster.make(about(1, Duration::ZERO));
    // A build for tests stops at it, one that is shipped goes on.
    let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.happens(&[WorkerEvent::Finish])));
    assert_eq!(happened.is_err(), cfg!(debug_assertions));
    assert_eq!(worker.state(), WorkerState::Starting);
    assert!(hears.recv().unwrap().contains("`finish` is not allowed"));
    assert_eq!(roster.counts().forbidden, 1);
}
