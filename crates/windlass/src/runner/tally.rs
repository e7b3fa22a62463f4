//! Who of a start has ended: outcomes come in any order, each job is told exactly once.
//!
//! Runners that serve many jobs with one process keep one tally per start. It must not decide an outcome.

use super::{Emitted, Finished, Output, Start};
use std::ops::Range;
use windlass_core::job::QueueName;
use windlass_core::outcome::Outcome;
use windlass_core::time::Time;

#[derive(Debug)]
enum Job {
    Open,
    Known(Outcome),
    Told,
}

/// The jobs of one start.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) start: Start,
    jobs: Vec<Job>,
    /// How many are not known yet.
    open: usize,
    /// How many are known and not told.
    known: usize,
    emitted: Vec<Emitted>,
    /// Where those that are known and not told lie; a large start is told of in many pieces.
    known_in: Range<usize>,
    /// When the first of those that are not told was begun.
    since: Option<Time>,
}

impl Tally {
    pub(super) fn new(start: Start) -> Tally {
        let count = usize::from(start.held.count);
        let jobs = std::iter::repeat_with(|| Job::Open).take(count).collect();
        Tally { start, jobs, open: count, known: 0, emitted: Vec::new(), known_in: 0..0, since: None }
    }

    /// A job was begun.
    pub(super) fn begun(&mut self, at: Time) {
        self.since.get_or_insert(at);
    }

    pub(super) fn is_open(&self, position: u16) -> bool {
        matches!(self.jobs[usize::from(position)], Job::Open)
    }

    /// Notes how a job ended; the first word counts.
    pub(super) fn end(&mut self, position: u16, outcome: Outcome, emitted: Vec<(QueueName, Vec<u8>)>) {
        let at = usize::from(position);
        let job = &mut self.jobs[at];
        if matches!(job, Job::Open) {
            *job = Job::Known(outcome);
            self.open -= 1;
            self.known_in = match self.known {
                0 => at..at + 1,
                _ => self.known_in.start.min(at)..self.known_in.end.max(at + 1),
            };
            self.known += 1;
            let emitted = emitted.into_iter().map(|(queue, data)| Emitted { by: position, queue, data });
            self.emitted.extend(emitted);
        }
    }

    /// True once every job has ended.
    pub(super) fn is_over(&self) -> bool {
        self.open == 0
    }

    /// What is known and was not told yet, a report for each stretch; the first of them has the output.
    pub(super) fn tell(&mut self, now: Time, output: Output) -> Vec<Finished> {
        let mut reports: Vec<Finished> = Vec::new();
        if self.known == 0 {
            return reports;
        }
        let (started, mut output) = (self.since.take().unwrap_or(now), Some(output));
        let mut follows = false;
        let known_in = std::mem::take(&mut self.known_in);
        for (position, job) in (known_in.start as u16..).zip(&mut self.jobs[known_in]) {
            if !matches!(job, Job::Known(_)) {
                follows = false;
                continue;
            }
            let Job::Known(outcome) = std::mem::replace(job, Job::Told) else { continue };
            match reports.last_mut().filter(|_| follows) {
                Some(report) => match report.outcomes.last_mut() {
                    Some((count, last)) if *last == outcome => *count += 1,
                    _ => report.outcomes.push((1, outcome)),
                },
                None => reports.push(Finished {
                    flight: self.start.flight,
                    first: position,
                    outcomes: vec![(1, outcome)],
                    emitted: Vec::new(),
                    started,
                    finished: now,
                    output: output.take().unwrap_or_default(),
                }),
            }
            follows = true;
        }
        self.known = 0;
        for emitted in self.emitted.drain(..) {
            let of = |report: &&mut Finished| (report.first..report.first + report.count()).contains(&emitted.by);
            if let Some(report) = reports.iter_mut().find(of) {
                report.emitted.push(emitted);
            }
        }
        reports
    }
}
