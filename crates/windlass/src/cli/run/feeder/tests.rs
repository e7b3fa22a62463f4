//! The feeder against a run that answers late, refuses, forgets and moves on: each line goes in once.

use super::super::input::hashed;
use super::*;
use std::io::{Seek, Write};
use std::sync::mpsc::{Receiver, sync_channel};

/// A run in memory, with a script of what happens at each call.
#[derive(Clone, Debug, Default)]
struct FakeRun(Arc<Mutex<FakeState>>);

#[derive(Debug, Default)]
struct FakeState {
    taken: Taken,
    sealed: bool,
    lines: Vec<u8>,
    faults: Vec<Fault>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Fails before anything happened.
    Before,
    /// The lines are taken, but the answer is lost.
    After,
    /// Somebody else adds this line first.
    Rival(&'static [u8]),
    None,
}

impl FakeState {
    fn add(&mut self, lines: &[u8]) {
        self.lines.extend_from_slice(lines);
        self.taken.lines += lines.iter().filter(|b| **b == b'\n').count() as u64;
        self.taken.hash = hashed(self.taken.hash, lines);
    }
}

impl Door for FakeRun {
    fn add(&mut self, at: Taken, then: Taken, lines: &[u8]) -> Result<(), Failure> {
        let mut run = self.0.lock().unwrap();
        let fault = if run.faults.is_empty() { Fault::None } else { run.faults.remove(0) };
        let gone = Failure::new(Kind::NoServer, "gone");
        if let Fault::Rival(line) = fault {
            run.add(line);
        }
        match fault {
            Fault::Before => return Err(gone),
            _ if at != run.taken => return Err(Failure::new(Kind::Conflict, "elsewhere")),
            _ => {}
        }
        run.add(lines);
        assert_eq!(run.taken, then);
        if matches!(fault, Fault::After) { Err(gone) } else { Ok(()) }
    }

    fn seal(&mut self) -> Result<(), Failure> {
        self.0.lock().unwrap().sealed = true;
        Ok(())
    }

    fn taken(&mut self) -> Result<(Taken, bool), Failure> {
        let run = self.0.lock().unwrap();
        Ok((run.taken, run.sealed))
    }
}

struct Rig {
    wiring: Arc<Wiring>,
    events: Receiver<Event>,
    thread: std::thread::JoinHandle<()>,
}

fn start(bytes: &[u8]) -> Rig {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    let input = Input::new(file, tempfile::tempfile().unwrap(), None);
    let wiring = Arc::new(Wiring::default());
    let (send, events) = sync_channel(8);
    let thread = std::thread::spawn({
        let wiring = wiring.clone();
        move || feed(input, &wiring, &send)
    });
    Rig { wiring, events, thread }
}

impl Rig {
    fn wire(&self, leg: u64, run: &FakeRun) {
        let (taken, sealed) = run.clone().taken().unwrap();
        self.wiring.put(Wire { leg, door: Box::new(run.clone()), taken, sealed, probe: false });
    }
}

#[test]
fn lost_answers_neither_lose_nor_double_lines() {
    let rig = start(b"a\nb\nc");
    let run = FakeRun::default();
    run.0.lock().unwrap().faults = vec![Fault::Before, Fault::After];
    for leg in 1..=2 {
        rig.wire(leg, &run);
        assert!(matches!(rig.events.recv().unwrap(), Event::Lost { leg: l, .. } if l == leg));
    }
    rig.wire(3, &run);
    assert!(matches!(rig.events.recv().unwrap(), Event::InputEnded));
    rig.thread.join().unwrap();
    let state = run.0.lock().unwrap();
    assert_eq!((state.lines.as_slice(), state.sealed), (&b"a\nb\nc\n"[..], true));
    assert!(rig.wiring.ended() && rig.wiring.lines() == 3);
}

#[test]
fn a_run_is_continued_where_it_stopped() {
    let rig = start(b"a\nb\nc\n");
    let run = FakeRun::default();
    run.0.lock().unwrap().add(b"a\nb\n");
    rig.wire(1, &run);
    assert!(matches!(rig.events.recv().unwrap(), Event::InputEnded));
    assert_eq!(run.0.lock().unwrap().lines, b"a\nb\nc\n");
}

#[test]
fn a_run_of_other_lines_is_left_alone() {
    let rig = start(b"a\nb\nc\n");
    let (other, fresh) = (FakeRun::default(), FakeRun::default());
    other.0.lock().unwrap().add(b"a\nX\n");
    rig.wire(1, &other);
    assert!(matches!(rig.events.recv().unwrap(), Event::Different { leg: 1 }));
    rig.wire(2, &fresh);
    assert!(matches!(rig.events.recv().unwrap(), Event::InputEnded));
    assert_eq!(other.0.lock().unwrap().lines, b"a\nX\n");
    assert_eq!(fresh.0.lock().unwrap().lines, b"a\nb\nc\n");
}

#[test]
fn two_processes_with_the_same_input_share_a_run() {
    let rig = start(b"a\nb\nc\n");
    let run = FakeRun::default();
    run.0.lock().unwrap().faults = vec![Fault::Rival(b"a\nb\n")];
    rig.wire(1, &run);
    assert!(matches!(rig.events.recv().unwrap(), Event::InputEnded));
    assert_eq!(run.0.lock().unwrap().lines, b"a\nb\nc\n");
}

#[test]
fn a_rival_with_other_lines_is_refused() {
    let rig = start(b"a\nb\nc\n");
    let run = FakeRun::default();
    run.0.lock().unwrap().faults = vec![Fault::Rival(b"X\n")];
    rig.wire(1, &run);
    let Event::FeedFailed(failure) = rig.events.recv().unwrap() else { panic!("it was taken") };
    assert_eq!(failure.kind, Kind::Conflict);
}
