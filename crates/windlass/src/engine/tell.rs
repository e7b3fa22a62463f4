//! What those who watch hear of a committed turn: each job of it, as it began or ended.

use super::Engine;
use super::effects::Effects;
use super::event::{Change, Followed, FollowedJob};
use crate::archiver::Entry;
use crate::runner::Start;
use crate::store::{Settlement, Store};
use std::sync::Arc;
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

impl<S: Store> Engine<S> {
    pub(super) fn tell_followers(&mut self, effects: &Effects, now: Time) {
        if !self.waiters.watchers.is_empty() {
            effects.each_entry(|entry| {
                changes_of(entry).for_each(|change| self.waiters.tell(&Followed::Change(change)));
            });
            for (id, state) in &effects.amended {
                self.waiters.tell(&Followed::Amended { id: *id, state: *state });
            }
            let begun = effects.starts.iter().flat_map(|start| begun_of(start, now));
            begun.for_each(|change| self.waiters.tell(&Followed::Begun(change)));
        }
        let mut followed = effects.ends().filter_map(|end| end.held.run).filter(|no| self.runs.is_followed(*no));
        if followed.next().is_some() {
            effects.each_entry(|entry| self.tell_run(entry));
        }
    }

    /// Those who follow the run of an entry hear of each of its jobs that has ended.
    fn tell_run(&mut self, entry: &Entry) {
        let held = &entry.settlement.held;
        let Some(run) = held.run.filter(|no| entry.state.is_end() && self.runs.is_followed(*no)) else { return };
        for index in held.range() {
            let told = Followed::Job(FollowedJob {
                id: held.jobs.id(index),
                state: entry.state,
                error: error_text(&entry.settlement.verdict),
                output: entry.output.clone(),
                data: held.jobs.data(index).to_vec(),
            });
            self.runs.tell(run, &told);
        }
    }
}

/// What a watcher is told of an entry: each of its jobs.
fn changes_of(entry: &Entry) -> impl Iterator<Item = Change> + '_ {
    let Settlement { held, verdict, outcome, started, finished } = &entry.settlement;
    held.range().map(move |index| Change {
        id: held.jobs.id(index),
        queue: Arc::clone(&entry.queue),
        run: entry.run,
        priority: held.lane.priority,
        state: entry.state,
        outcome,
        start: held.start(),
        failures: held.record.failures + u32::from(matches!(verdict, Verdict::Retry { .. } | Verdict::Fail { .. })),
        admitted: held.admitted,
        started: *started,
        finished: *finished,
        error: error_text(verdict),
        data: held.jobs.data(index).to_vec(),
        particulars: held.jobs.particulars().cloned(),
    })
}

fn begun_of(start: &Start, now: Time) -> impl Iterator<Item = Change> + '_ {
    (0..start.count()).map(|position| start.job(position)).map(move |(queue, held, index)| Change {
        id: held.jobs.id(index),
        queue: Arc::clone(queue),
        run: start.run.parse().ok(),
        priority: held.lane.priority,
        state: State::Running,
        outcome: State::Running.word(),
        start: held.start(),
        failures: held.record.failures,
        admitted: held.admitted,
        started: now,
        finished: now,
        error: String::new(),
        data: held.jobs.data(index).to_vec(),
        particulars: held.jobs.particulars().cloned(),
    })
}

fn error_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Fail { error, .. } | Verdict::Retry { error, .. } => error.clone(),
        Verdict::Succeed { .. } | Verdict::Snooze { .. } | Verdict::Return => String::new(),
        Verdict::Suspect(_) => "its worker died while it ran".into(),
        Verdict::Cancel => "cancelled".into(),
    }
}
