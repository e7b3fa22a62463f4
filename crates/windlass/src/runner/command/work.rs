//! What a process of a launcher is for, and what it is to everybody else: a worker that is at its job from the start.
//!
//! It must not start or report anything.

use super::super::batch::Batch;
use super::super::launcher::{End, Report};
use super::super::{Finished, Flight, Output, Start};
use crate::clock;
use crate::supervisor::{About, Kind, Roster, Worker};
use std::sync::Arc;
use windlass_core::outcome::{Exit, Outcome};
use windlass_core::policy::Service;

/// What a process is for.
#[derive(Debug)]
pub(super) enum Work {
    Job(Start),
    Batch(Box<Batch>),
    /// A kept worker; `worker` knows more of it.
    Worker,
}

impl Work {
    /// The start whose crew it belongs to; a kept worker is counted by who keeps it.
    pub(super) fn leader(&self) -> Option<&Start> {
        match self {
            Work::Job(start) => Some(start),
            Work::Batch(batch) => Some(batch.leader()),
            Work::Worker => None,
        }
    }

    /// Ends what is under way or waits in it.
    pub(super) fn end(self, outcome: Outcome) -> Vec<Finished> {
        match self {
            Work::Job(start) => vec![unstarted(start.flight, outcome)],
            Work::Batch(mut batch) => {
                batch.end_all(&outcome);
                batch.tell(Output::default())
            }
            Work::Worker => Vec::new(),
        }
    }

    /// What it is to everybody else: a worker that is at its job from the start.
    pub(super) fn worker(&self, roster: &Arc<Roster>) -> Option<Worker> {
        let leader = self.leader()?;
        let (kind, job, jobs) = match self {
            Work::Job(start) => (Kind::Process, start.held.jobs.id(start.held.range().start), 1),
            Work::Batch(batch) => (Kind::Batch, batch.span().0, batch.piece_len()),
            Work::Worker => return None,
        };
        let about = About::new(kind, Some(&leader.policy), leader.flight);
        Some(roster.make_for(About { job: Some(job), jobs, ..about }))
    }
}

/// How a process ended, for the account of all workers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gone {
    Done { emitted: bool },
    Died,
}

impl Gone {
    /// One that a signal ended which we did not send has died.
    pub(super) fn of(report: &Report) -> Gone {
        match (report.end, report.cut) {
            (End::Exit(Exit::Signal(_)), None) => Gone::Died,
            _ => Gone::Done { emitted: !report.emitted.is_empty() },
        }
    }
}

/// Starts of batches that came with one claim go to one process.
pub(super) fn works(starts: Vec<Start>) -> Vec<Work> {
    let mut works: Vec<Work> = Vec::new();
    let mut claims: Vec<(u64, Vec<Start>)> = Vec::new();
    for start in starts {
        match start.policy.service {
            Service::Batch(_) => match claims.last_mut() {
                Some((claim, together)) if *claim == start.claim => together.push(start),
                _ => claims.push((start.claim, vec![start])),
            },
            Service::Command(_)
            | Service::Worker(_)
            | Service::Url(_)
            | Service::Remote(_)
            | Service::Forward(_)
            | Service::Handler { .. } => {
                works.push(Work::Job(start));
            }
        }
    }
    works.extend(claims.into_iter().map(|(_, starts)| Work::Batch(Box::new(Batch::new(starts)))));
    works
}

/// The end of a start of which nothing more is known.
fn unstarted(flight: Flight, outcome: Outcome) -> Finished {
    let now = clock::now();
    Finished::all(flight, 1, outcome, now, now)
}
