//! Who of a start has ended: outcomes come in any order, each job is told exactly once.
//!
//! Runners that serve many jobs with one process keep one tally per start. It must not decide an outcome.

use super::launcher::EMIT_MAX;
use super::reply::{self, Emits};
use super::{Emitted, Finished, Output, Start};
use std::collections::BTreeMap;
use std::ops::Range;
use windlass_core::outcome::Outcome;
use windlass_core::time::Time;

/// The jobs of one start.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) start: Start,
    /// By position: its end is not known yet.
    is_open: Vec<bool>,
    /// How many are not known yet.
    open: usize,
    /// What is known and not told, as it came; neighbours that ended alike one after the other are one entry.
    known: Vec<(Range<u16>, Outcome)>,
    emitted: Vec<Emitted>,
    checkpoints: BTreeMap<u16, String>,
    /// What jobs emitted before they ended, and how many bytes that was.
    ahead: BTreeMap<u16, (u64, Emits)>,
    /// When the first of those that are not told was begun.
    since: Option<Time>,
}

impl Tally {
    pub(super) fn new(start: Start) -> Tally {
        let count = usize::from(start.count());
        let (known, emitted, checkpoints, ahead) = (Vec::new(), Vec::new(), BTreeMap::new(), BTreeMap::new());
        Tally { start, is_open: vec![true; count], open: count, known, emitted, checkpoints, ahead, since: None }
    }

    /// Its jobs are of several queues.
    pub(super) fn is_shared(&self) -> bool {
        !self.start.fellows.is_empty()
    }

    /// A job was begun.
    pub(super) fn begun(&mut self, at: Time) {
        self.since.get_or_insert(at);
    }

    pub(super) fn is_open(&self, position: u16) -> bool {
        self.is_open[usize::from(position)]
    }

    /// A job said how far it has come for good; its last word counts.
    pub(super) fn checkpoint(&mut self, position: u16, text: String) {
        self.checkpoints.insert(position, text);
    }

    /// A job emitted so many bytes before its end; false where it may not emit so much.
    pub(super) fn emit(&mut self, position: u16, bytes: u64, emitted: Emits) -> bool {
        let (all, ahead) = self.ahead.entry(position).or_default();
        let fits = *all + bytes <= EMIT_MAX;
        if fits {
            *all += bytes;
            ahead.extend(emitted);
        }
        fits
    }

    /// Notes how a job ended; the first word counts.
    pub(super) fn end(&mut self, position: u16, outcome: Outcome, mut emitted: Emits) {
        if self.is_open(position) {
            if let Some((_, ahead)) = self.ahead.remove(&position) {
                emitted = ahead.into_iter().chain(emitted).collect();
            }
            let (outcome, emitted) = match reply::place(emitted, &self.start.policy) {
                Err(error) if matches!(outcome, Outcome::Succeeded { .. }) => (Outcome::Failed { error }, Vec::new()),
                placed => (outcome, placed.unwrap_or_default()),
            };
            self.is_open[usize::from(position)] = false;
            self.note(position..position + 1, outcome);
            let emitted = emitted.into_iter().map(|(queue, data)| Emitted { by: position, queue, data });
            self.emitted.extend(emitted);
        }
    }

    /// Notes that so many neighbours ended alike and emitted nothing.
    pub(super) fn end_alike(&mut self, positions: Range<u16>, outcome: &Outcome) {
        let jobs = &mut self.is_open[usize::from(positions.start)..usize::from(positions.end)];
        if jobs.iter().all(|open| *open) && self.ahead.range(positions.clone()).next().is_none() {
            jobs.fill(false);
            self.note(positions, outcome.clone());
        } else {
            positions.for_each(|position| self.end(position, outcome.clone(), Vec::new()));
        }
    }

    /// Neighbours that were open have ended.
    fn note(&mut self, positions: Range<u16>, outcome: Outcome) {
        self.open -= positions.len();
        match self.known.last_mut() {
            Some((before, same)) if before.end == positions.start && same.is_same(&outcome) => {
                before.end = positions.end;
            }
            _ if positions.is_empty() => {}
            _ => self.known.push((positions, outcome)),
        }
    }

    /// True once every job has ended.
    pub(super) fn is_over(&self) -> bool {
        self.open == 0
    }

    /// What is known and was not told yet, a report for each stretch; the first of them has the output.
    pub(super) fn tell(&mut self, now: Time, output: Output) -> Vec<Finished> {
        let mut reports: Vec<Finished> = Vec::new();
        if self.known.is_empty() {
            return reports;
        }
        let (started, mut output) = (self.since.take().unwrap_or(now), Some(output));
        let mut known = std::mem::take(&mut self.known);
        known.sort_unstable_by_key(|(positions, _)| positions.start);
        let mut end = None;
        for (positions, outcome) in known {
            let count = positions.len() as u16;
            match reports.last_mut().filter(|_| end == Some(positions.start)) {
                Some(report) => match report.outcomes.last_mut() {
                    Some((counted, last)) if last.is_same(&outcome) => *counted += count,
                    _ => report.outcomes.push((count, outcome)),
                },
                None => reports.push(Finished {
                    flight: self.start.flight,
                    first: positions.start,
                    outcomes: vec![(count, outcome)],
                    emitted: Vec::new(),
                    checkpoints: Vec::new(),
                    started,
                    finished: now,
                    output: output.take().unwrap_or_default(),
                }),
            }
            end = Some(positions.end);
        }
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
