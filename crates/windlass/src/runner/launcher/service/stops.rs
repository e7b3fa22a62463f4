//! Ends before their time: somebody asks for one, a time limit or a lease ends, or the server goes.
//!
//! A job under a lease is killed when that ends, whatever has become of who asked for the job: he may be frozen, and
//! somebody else has it by then. It must not judge what an end means.

use super::super::message::{Cut, End};
use super::super::process;
use super::{EXIT, Service, token};
use crate::clock;
use crate::runner::{Flight, Stop};
use rustix::event::epoll;
use rustix::process::Signal;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::{Duration, Instant};

/// Of one that is traced only the tracer is told when it dies, so what was killed and is not known to be dead is looked
/// at this often. Mostly the kernel's word comes long before.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Until when starts may live that are not to outlive somebody's word. Those that have ended meanwhile cost nothing.
#[derive(Debug, Default)]
pub(super) struct Leases {
    until: HashMap<Flight, Instant>,
    due: BTreeSet<(Instant, Flight)>,
}

impl Leases {
    /// So long from now, whatever was said before.
    pub(super) fn lend(&mut self, flight: Flight, left: Duration) {
        self.end(flight);
        if let Some(by) = Instant::now().checked_add(left) {
            self.until.insert(flight, by);
            self.due.insert((by, flight));
        }
    }

    fn end(&mut self, flight: Flight) {
        if let Some(by) = self.until.remove(&flight) {
            self.due.remove(&(by, flight));
        }
    }

    pub(super) fn first(&self) -> Option<Instant> {
        self.due.first().map(|(by, _)| *by)
    }

    /// The next of those whose time is over.
    fn take_over(&mut self, now: Instant) -> Option<Flight> {
        let (_, flight) = self.due.first().copied().filter(|(by, _)| *by <= now)?;
        self.end(flight);
        Some(flight)
    }
}

impl Service {
    /// Kills what outlives its lease.
    pub(super) fn enforce_leases(&mut self) -> io::Result<()> {
        let now = Instant::now();
        while let Some(flight) = self.leases.take_over(now) {
            self.stop(flight, Stop::Kill)?;
        }
        Ok(())
    }

    /// Time limits, the ends of graces, and looks at what was killed.
    pub(super) fn enforce_deadlines(&mut self) {
        let now = Instant::now();
        while let Some(&(by, index, generation)) = self.deadlines.first().filter(|(by, ..)| *by <= now) {
            self.deadlines.remove(&(by, index, generation));
            let Some(job) = &mut self.jobs[index] else { continue };
            job.deadline = None;
            let asked = job.task.control.map_or(Duration::ZERO, |number| self.control.extensions(number));
            if job.cut.is_some() || self.orphaned {
                match process::has_died(job.pid.as_raw_nonzero().get()) {
                    true => self.attend(token(index, generation, EXIT)),
                    false => self.kill(index),
                }
            } else if asked > job.extended {
                let more = by.checked_add(asked - job.extended);
                job.extended = asked;
                self.set_deadline(index, more);
            } else {
                job.cut = Some(Cut::TimeLimit);
                self.ask_to_end(index);
            }
        }
    }

    /// In place of the one that it had.
    fn set_deadline(&mut self, index: usize, by: Option<Instant>) {
        let Some(job) = &mut self.jobs[index] else { return };
        let generation = job.generation;
        if let Some(old) = std::mem::replace(&mut job.deadline, by) {
            self.deadlines.remove(&(old, index, generation));
        }
        self.deadlines.extend(by.map(|by| (by, index, generation)));
    }

    /// Kills it, and looks soon whether it is dead.
    pub(super) fn kill(&mut self, index: usize) {
        let Some(job) = self.jobs[index].as_ref().filter(|job| !job.ended) else { return };
        job.kill();
        self.set_deadline(index, Instant::now().checked_add(LOOK_AGAIN));
    }

    pub(super) fn lose_server(&mut self) {
        self.orphaned = true;
        self.waiting.clear();
        // The socket stays readable for ever now; there is nothing more to hear.
        let _removed = epoll::delete(&self.epoll, &self.socket);
        (0..self.jobs.len()).for_each(|index| self.kill(index));
    }

    pub(super) fn stop(&mut self, flight: Flight, why: Stop) -> io::Result<()> {
        let cut = match why {
            Stop::Cancel => Cut::Cancel,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => Cut::Interrupt,
        };
        if let Some(at) = self.waiting.iter().position(|task| task.flight == flight) {
            let now = clock::now();
            self.waiting.remove(at);
            return self.report_unstarted(flight, End::NotBegun, Some(cut), now);
        }
        // One that has just ended is on its way to the server with the outcome it earned.
        let Some(&index) = self.by_flight.get(&flight) else { return Ok(()) };
        let Some(job) = &mut self.jobs[index].as_mut().filter(|_| why != Stop::Withdraw) else { return Ok(()) };
        // A person's word goes over every other reason, also over a time limit that is being enforced.
        if !job.ended && (job.cut.is_none() || cut == Cut::Cancel) {
            job.cut = Some(cut);
        }
        match why {
            Stop::Cancel | Stop::Interrupt => self.ask_to_end(index),
            Stop::Kill => self.kill(index),
            Stop::Withdraw => {}
        }
        Ok(())
    }

    /// TERM now, KILL after the grace.
    pub(super) fn ask_to_end(&mut self, index: usize) {
        let Some(job) = &mut self.jobs[index] else { return };
        if job.ended {
            return;
        }
        job.signal(Signal::TERM);
        // A stopped process would sleep through its grace.
        job.signal(Signal::CONT);
        let by = Instant::now().checked_add(job.task.grace);
        self.set_deadline(index, by);
    }
}
