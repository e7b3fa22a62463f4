//! Batches without processes and calls without sockets: the shipped rules for what comes back, for the simulator.
//!
//! Whoever plays a process or a server gets what it would have been given, and says what came of it. It must not hold a
//! rule of its own.

use super::batch::Batch;
use super::launcher::{Cut, End, Kept, Report};
use super::url::{Answer, read_answer};
use super::{Finished, Flight, Start, Stop};
use crate::clock;
use std::io::{self, Read};
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::outcome::{Exit, Outcome};
use windlass_core::policy::Url;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
    /// By its time limit, whatever it said then.
    TimedOut,
    Cancelled,
    Interrupted,
}

/// The processes of one start of a batch, one after the other.
#[derive(Debug)]
pub struct Processes(Batch);

impl Processes {
    pub fn new(start: Start) -> Processes {
        Processes(Batch::new(vec![start]))
    }

    /// What the next of them reads; none where nothing is left to run.
    pub fn next_input(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(mut lines) = self.0.next_piece()? else { return Ok(None) };
        let mut read = Vec::new();
        lines.read_to_end(&mut read)?;
        Ok(Some(read))
    }

    /// What it came to; afterwards there may be another.
    pub fn ended(&mut self, how: Ended, stdout: Vec<u8>) -> Vec<Finished> {
        let (end, cut) = match how {
            Ended::Code(code) => (Exit::Code(code), None),
            Ended::Signal(signal) => (Exit::Signal(signal), None),
            Ended::TimedOut => (Exit::Signal(15), Some(Cut::TimeLimit)),
            Ended::Cancelled => (Exit::Signal(15), Some(Cut::Cancel)),
            Ended::Interrupted => (Exit::Signal(15), Some(Cut::Interrupt)),
        };
        let now = clock::now();
        let total = stdout.len() as u64;
        self.0.heard(&Report {
            flight: self.0.leader().flight,
            end: End::Exit(end),
            cut,
            started: now,
            finished: now,
            stdout: Kept { total, filed: false, bytes: stdout },
            stderr: Kept::default(),
            control: Vec::new(),
            emitted: Vec::new(),
        })
    }

    /// What has not begun does not begin any more.
    pub fn stop(&mut self) {
        self.0.stop();
    }

    /// A person cancels jobs: what is known by that, and whether the process is to end.
    pub fn cancel(&mut self, flight: Flight, position: Option<u16>) -> (Vec<Finished>, bool) {
        let ends = self.0.cancel(flight, position);
        let told = self.0.tell(super::Output::default());
        (told, ends || self.0.is_over())
    }

    /// All that has no outcome yet ends, as it waited.
    pub fn end_all(&mut self, why: Stop) -> Vec<Finished> {
        self.0.end_all(&match why {
            Stop::Cancel => Outcome::Cancelled,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => Outcome::Interrupted,
        });
        self.0.tell(super::Output::default())
    }

    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

/// What came of a call.
#[derive(Clone, Debug)]
pub enum Called {
    Answered { status: u16, retry_after: Option<Duration>, body: Vec<u8>, cut: bool },
    Unreached,
    Broken,
    TimedOut,
}

/// How each job of a call ended, by its place in it; none where all are called again, in halves.
pub fn read_call(url: &Url, jobs: &[JobId], called: Called) -> Option<Vec<(usize, Outcome)>> {
    let answer = match called {
        Called::Answered { status, retry_after, body, cut } => {
            Answer::Whole { status, retry_after, checkpoint: None, body, json: true, cut }
        }
        Called::Unreached => Answer::Unreached("nobody is there".into()),
        Called::Broken => Answer::Broken("it broke off".into()),
        Called::TimedOut => Answer::TimedOut,
    };
    read_answer(url, jobs, answer)
}
