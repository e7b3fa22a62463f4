//! Answers that take their time: waiting, following, and how they end.

use super::rig::{Rig, job_id, run_id, run_info};
use crate::api::{self, FollowLine, base64};
use crate::engine::event::{Drained, Followed, FollowedJob};
use crate::error::Kind;
use crate::runner::{Output, Stream};
use std::sync::mpsc::channel;
use windlass_core::life_cycle::State;

fn wait_path() -> String {
    format!("/api/v1/runs/{}/wait", run_id())
}

fn follow_path() -> String {
    format!("/api/v1/runs/{}/follow", run_id())
}

fn finished(offset: u64, output: Output) -> Followed {
    Followed::Job(FollowedJob {
        id: job_id(offset),
        state: State::Failed,
        error: "exit 3".into(),
        output,
        data: b"\xfe".to_vec(),
    })
}

/// Waits in a thread of its own; what it got comes out of the channel.
fn waiter(rig: &Rig) -> std::sync::mpsc::Receiver<Result<api::Run, crate::error::Failure>> {
    let mut connection = rig.connect();
    connection.set_patience(None);
    let (give, got) = channel();
    std::thread::spawn(move || {
        // A test that failed meanwhile takes no answer.
        let _ = give.send(connection.get_json::<api::Run>(&wait_path()));
    });
    got
}

#[test]
fn waiting_clients_share_one_question_and_all_are_told() {
    let rig = Rig::new();
    let first = waiter(&rig);
    rig.seen("await_run");
    // Clients that give up meanwhile leave nothing with the engine.
    for _ in 0..3 {
        let mut impatient = rig.connect();
        impatient.set_patience(Some(std::time::Duration::from_millis(1)));
        assert_eq!(impatient.get(&wait_path()).unwrap_err().kind, Kind::TimeOut);
    }
    let second = waiter(&rig);
    assert_eq!(rig.get("/livez").0, 200);
    let answer = {
        let mut kept = rig.kept.lock().unwrap();
        assert_eq!(kept.run_waiters.len(), 1, "the engine is asked once");
        // A second waiter that is slow to arrive asks anew, and is answered at once.
        kept.run_ended = true;
        kept.run_waiters.pop().unwrap()
    };
    answer.give(Ok(run_info(true)));
    assert!(first.recv().unwrap().unwrap().ended);
    assert!(second.recv().unwrap().unwrap().ended);
}

#[test]
fn waiting_ends_when_the_engine_does() {
    let rig = Rig::new();
    let got = waiter(&rig);
    rig.seen("await_run");
    drop(rig.kept.lock().unwrap().run_waiters.pop());
    assert_eq!(got.recv().unwrap().unwrap_err().kind, Kind::TryLater);
}

#[test]
fn drained_is_answered_when_it_is() {
    let rig = Rig::new();
    let mut connection = rig.connect();
    let asking = std::thread::spawn(move || connection.get_json::<api::Drained>("/api/v1/drained"));
    rig.seen("await_drained");
    rig.kept.lock().unwrap().drained_waiters.pop().unwrap().give(Ok(Drained { failed: 3, cancelled: 2 }));
    assert_eq!(asking.join().unwrap().unwrap(), api::Drained { failed: 3, cancelled: 2 });
}

#[test]
fn a_follower_gets_every_job_with_its_whole_output_and_the_end() {
    let rig = Rig::new();
    let long: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(rig.dir.output().join("big"), &long).unwrap();
    let mut lines = rig.connect().lines(&follow_path()).unwrap();
    let mut follower = rig.kept.lock().unwrap().followers.pop().unwrap();
    let small = Stream { head: b"hi\n".to_vec(), file: None, total: 3 };
    let big = Stream { head: Vec::new(), file: Some("big".into()), total: long.len() as u64 };
    let lost = Stream { head: b"kept".to_vec(), file: Some("gone".into()), total: 99 };
    assert!((follower.0)(finished(1, Output { stdout: small, stderr: big })));
    assert!((follower.0)(finished(2, Output { stdout: lost, stderr: Stream::default() })));
    let mut next = || serde_json::from_slice::<FollowLine>(&lines.next_line().unwrap().unwrap()).unwrap();
    let FollowLine::Job(first) = next() else { panic!("a job comes first") };
    assert_eq!((first.job, first.state.as_str(), first.error.as_str()), (job_id(1).to_string(), "failed", "exit 3"));
    assert_eq!(
        (first.data.bytes().unwrap(), base64::decode(&first.stdout_base64).unwrap()),
        (b"\xfe".to_vec(), b"hi\n".to_vec())
    );
    assert!(base64::decode(&first.stderr_base64).unwrap() == long, "the file comes whole");
    let FollowLine::Job(second) = next() else { panic!("another job") };
    assert_eq!((second.stdout_total, base64::decode(&second.stdout_base64).unwrap()), (99, b"kept".to_vec()));
    assert!((follower.0)(Followed::Ended(run_info(true))));
    let FollowLine::Ended { ended } = next() else { panic!("the end comes last") };
    assert_eq!(*ended, api::Run::from(&run_info(true)));
    assert_eq!(lines.next_line().unwrap(), None);
}

#[test]
fn a_follower_that_does_not_read_is_cut_off_and_told() {
    let rig = Rig::new();
    let mut lines = rig.connect().lines(&follow_path()).unwrap();
    let mut follower = rig.kept.lock().unwrap().followers.pop().unwrap();
    let output =
        || Output { stdout: Stream { head: vec![b'x'; 64 << 10], file: None, total: 64 << 10 }, ..Output::default() };
    let mut told = 0;
    while (follower.0)(finished(told, output())) {
        told += 1;
        assert!(told < 3000, "memory must be bounded");
    }
    drop(follower);
    for _ in 0..told {
        assert!(lines.next_line().unwrap().unwrap().starts_with(b"{\"job\""));
    }
    let last: FollowLine = serde_json::from_slice(&lines.next_line().unwrap().unwrap()).unwrap();
    let FollowLine::Broken { error } = last else { panic!("{last:?}") };
    assert_eq!(error.code, "try_later");
    assert_eq!(lines.next_line().unwrap(), None);
}

#[test]
fn a_follower_that_goes_away_is_forgotten() {
    let rig = Rig::new();
    let lines = rig.connect().lines(&follow_path()).unwrap();
    let mut follower = rig.kept.lock().unwrap().followers.pop().unwrap();
    drop(lines);
    // The connection's end takes its way through the kernel; each letter asks again, and no more than the mailbox fit.
    let mut told = 0u64;
    while (follower.0)(finished(told, Output::default())) {
        told += 1;
        rig.get("/livez");
        assert!(told < 10_000, "the end of a connection was not noticed");
    }
}

#[test]
fn stopping_ends_open_streams() {
    let mut rig = Rig::new();
    let mut lines = rig.connect().lines(&follow_path()).unwrap();
    let got = waiter(&rig);
    rig.seen("await_run");
    let idle = rig.connect();
    rig.server.take().unwrap().stop();
    assert_eq!(got.recv().unwrap().unwrap_err().kind, Kind::TryLater);
    let last: FollowLine = serde_json::from_slice(&lines.next_line().unwrap().unwrap()).unwrap();
    assert!(matches!(last, FollowLine::Broken { .. }), "{last:?}");
    assert_eq!(lines.next_line().unwrap(), None);
    drop(idle);
    assert!(crate::client::Connection::open(&rig.dir).unwrap().is_none(), "the socket is gone");
}

#[test]
fn stopping_does_not_wait_for_a_follower_that_does_not_read() {
    let mut rig = Rig::new();
    let lines = rig.connect().lines(&follow_path()).unwrap();
    let mut follower = rig.kept.lock().unwrap().followers.pop().unwrap();
    let output =
        || Output { stdout: Stream { head: vec![b'x'; 64 << 10], file: None, total: 64 << 10 }, ..Output::default() };
    for n in 0..100 {
        assert!((follower.0)(finished(n, output())));
    }
    rig.server.take().unwrap().stop();
    drop(lines);
}
