//! Who of a start has ended: outcomes come in any order, each job is told exactly once.
//!
//! Runners that serve many jobs with one process keep one tally per start. It must not decide an outcome.

use super::reply::{self, Emits};
use super::{Emitted, Finished, Output, Start};
use std::collections::BTreeMap;
use std::ops::Range;
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
    checkpoints: BTreeMap<u16, String>,
    /// When the first of those that are not told was begun.
    since: Option<Time>,
}

impl Tally {
    pub(super) fn new(start: Start) -> Tally {
        let count = usize::from(start.held.count);
        let jobs = std::iter::repeat_with(|| Job::Open).take(count).collect();
        let (emitted, checkpoints) = (Vec::new(), BTreeMap::new());
        Tally { start, jobs, open: count, known: 0, emitted, checkpoints, known_in: 0..0, since: None }
    }

    /// A job was begun.
    pub(super) fn begun(&mut self, at: Time) {
        self.since.get_or_insert(at);
    }

    pub(super) fn is_open(&self, position: u16) -> bool {
        matches!(self.jobs[usize::from(position)], Job::Open)
    }

    /// A job said how far it has come for good; its last word counts.
    pub(super) fn checkpoint(&mut self, position: u16, text: String) {
        self.checkpoints.insert(position, text);
    }

    /// Notes how a job ended; the first word counts.
    pub(super) fn end(&mut self, position: u16, outcome: Outcome, emitted: Emits) {
        let at = usize::from(position);
        let (outcome, emitted) = match reply::place(emitted, &self.start.policy) {
            Err(error) if matches!(outcome, Outcome::Succeeded { .. }) => (Outcome::Failed { error }, Vec::new()),
            placed => (outcome, placed.unwrap_or_default()),
        };
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

    /// Notes that so many neighbours ended alike and emitted nothing.
    pub(super) fn end_alike(&mut self, positions: std::ops::Range<u16>, outcome: &Outcome) {
        positions.for_each(|position| self.end(position, outcome.clone(), Vec::new()));
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
                    checkpoints: Vec::new(),
                    started,
                    finished: now,
                    output: output.take().unwrap_or_default(),
                }),
            }
            follows = true;
        }
        self.known = 0;
        for emitted in self.emitted.drain(..) {
            if let Some(report) = report_of(&mut reports, emitted.by) {
                report.emitted.push(emitted);
            }
        }
        // What was said of a job that goes on is told with its end.
        self.checkpoints.retain(|position, text| match report_of(&mut reports, *position) {
            Some(report) => {
                report.checkpoints.push((*position, std::mem::take(text)));
                false
            }
            None => true,
        });
        reports
    }
}

/// The report that speaks of a job.
fn report_of(reports: &mut [Finished], position: u16) -> Option<&mut Finished> {
    reports.iter_mut().find(|report| (report.first..report.first + report.count()).contains(&position))
}
