//! The state machine of workers at work: what is shown of them, deadlines that are missed, and deaths that cost.

use crate::rig::{Rig, kept, shell};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use windlass::runner::{Flight, Runner, Stop};
use windlass_core::outcome::Outcome;
use windlass_core::policy::Policy;
use windlass_core::supervisor::WorkerState;

#[test]
fn a_process_is_a_worker_for_as_long_as_its_job_and_a_kept_one_for_longer() {
    let mut rig = Rig::new(1);
    let board = rig.board();
    let (begun, gate) = (rig.fifo("begun"), rig.fifo("gate"));
    let id = rig.start(shell(&format!("echo > {}; read line < {}", begun.display(), gate.display())));
    std::fs::read(&begun).unwrap();
    let shown = board.workers().at(id).unwrap();
    assert_eq!((shown.state, shown.about.kind.word()), (WorkerState::Working, "process"));
    std::fs::write(&gate, "go\n").unwrap();
    assert_eq!(rig.hear().outcomes[0].1.word(), "succeeded");
    assert!(board.workers().at(id).is_none());
    rig.all(&kept("while read line; do echo ok; done", 1, |_| {}), &[b"a", b"b"]);
    let kept: Vec<_> = board.workers().shown().into_iter().filter(|w| w.about.kind.word() == "kept").collect();
    assert_eq!((kept.len(), kept[0].state), (1, WorkerState::Waiting));
    assert!(kept[0].about.pid.is_some());
    let counts = board.workers().counts();
    assert_eq!((counts.forbidden, counts.overdue), (0, [0, 0]));
}

#[test]
fn a_launcher_that_somebody_stopped_is_noticed_when_a_stop_is_not_obeyed_and_goes_on() {
    let mut rig = Rig::new(1);
    let (board, begun) = (rig.board(), rig.fifo("begun"));
    let script = format!("echo > {}; sleep 1000", begun.display());
    rig.start(shell(&script).grace(Duration::ZERO));
    std::fs::read(&begun).unwrap();
    // The process of one job, and one that is kept.
    let kept = Policy { grace: Duration::ZERO, ..kept(&format!("read line; {script}"), 1, |_| {}) };
    rig.start_many(&kept, &[b"x"], 1);
    std::fs::read(&begun).unwrap();
    let launcher = Pid::from_raw(rig.launchers()[0]).unwrap();
    for (flight, overdue) in [(1, 1), (2, 2)] {
        kill_process(launcher, Signal::STOP).unwrap();
        rig.runner.stop(Flight(flight), Stop::Cancel);
        assert_eq!(rig.hear().outcomes[0].1, Outcome::Cancelled);
        assert_eq!(board.workers().counts().overdue, [0, overdue]);
    }
}

#[test]
fn the_last_job_of_a_worker_that_is_to_be_recycled_has_its_time_limit() {
    let mut rig = Rig::new(1);
    let mut policy = kept("while read line; do sleep 1000; done", 1, |worker| worker.jobs = 1);
    policy.time_limit = Some(Duration::from_millis(50));
    policy.grace = Duration::from_millis(10);
    rig.start_many(&policy, &[b"hangs"], 1);
    assert_eq!(rig.hear_jobs(1)[0].1.word(), "timed_out");
}

#[test]
fn workers_that_work_and_die_again_and_again_spend_their_budget_and_the_queue_says_so() {
    let mut rig = Rig::new(1);
    let board = rig.board();
    // Each answers one job, and dies under the next.
    let dies = Policy { pattern: "dies".into(), ..kept("read a; echo ok; read b; kill -9 $$", 1, |_| {}) };
    let jobs = vec![&b"x"[..]; 400];
    rig.start_many(&dies, &jobs, 400);
    let trouble = loop {
        match board.troubles().pop() {
            Some((_, trouble)) => break trouble,
            None => std::thread::yield_now(),
        }
    };
    assert!(trouble.starts_with("its worker was killed by signal 9 (101 deaths within 60s"), "{trouble}");
    let died = board.workers().counts().transitions;
    let died: u64 = windlass_core::supervisor::TRANSITIONS
        .iter()
        .zip(died)
        .filter(|((.., to), _)| *to == WorkerState::Died)
        .map(|(_, count)| count)
        .sum();
    assert!((101..110).contains(&died), "{died} died");
}
