//! The terms of runs while they go on: who has taken too long, or has failed too often, is stopped.
//!
//! A stopped run takes no more jobs; what of it has not ended is swept, and then it ends as any other does. How long a
//! run has taken is counted on a clock that nobody sets, from where the wall's clock stood when the server began. It
//! must not decide what the terms mean: `RunTerms` does.

use super::Engine;
use super::effects::Effects;
use super::turn::Progress;
use crate::error::{Failure, Kind};
use crate::sabotage::{self, Sabotage};
use crate::store::{Durability, Lot, Store, StoreError};
use std::collections::BTreeMap;
use windlass_core::job::{Origin, RunId, RunNo};
use windlass_core::run::terms::Stopped;
use windlass_core::time::Time;

impl<S: Store> Engine<S> {
    /// Stops the runs that have gone beyond their terms.
    pub(super) fn look_at_run_terms(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        self.runs.give_time(now, self.steady);
        if self.full_until.is_some() || sabotage::on(Sabotage::RunLimitForgotten) {
            return Ok(());
        }
        let beyond: Vec<(RunNo, RunId, Stopped)> = self.runs.beyond_terms(self.steady);
        for (no, id, why) in &beyond {
            self.store.stop_run(*no, *why, now)?;
            self.sweep(*id, why.sentence())?;
            if let Some(run) = self.runs.get_mut(*no) {
                run.info.counts.stopped = Some(*why);
                run.info.counts.sealed = true;
            }
            effects.notes.push(format!("run {id} is stopped: {}", why.sentence()));
            progress.needs(Durability::Os);
        }
        if !beyond.is_empty() {
            let changes = self.store.changes();
            self.learn(changes, effects);
        }
        Ok(())
    }

    /// When the next run will have taken too long.
    pub(super) fn next_run_limit(&self) -> Option<Time> {
        let next = self.runs.next_limit().filter(|_| self.full_until.is_none())?;
        Some(self.now.after(next.since(self.steady)))
    }

    /// What is more than a run takes, and came where nobody waits for an answer, is said in the log.
    pub(super) fn tell_of_dropped(&self, beyond_limit: &[(RunNo, u64)], effects: &mut Effects) {
        let mut by_run: BTreeMap<RunNo, u64> = BTreeMap::new();
        beyond_limit.iter().for_each(|(no, count)| *by_run.entry(*no).or_default() += count);
        for (no, count) in by_run {
            let Some(info) = self.runs.get(no).map(|run| &run.info) else { continue };
            let why = match info.counts.stopped {
                Some(why) => why.sentence().to_owned(),
                None => format!("it takes {}", limit(info)),
            };
            let jobs = if count == 1 { "1 job was".to_owned() } else { format!("{count} jobs were") };
            effects.notes.push(format!("run {}: {jobs} not taken in: {why}", info.id));
        }
    }

    /// What is more than a run takes is refused while there is somebody to tell. `taken` is what the pushes before it
    /// in this turn were told to be in; what else the turn has brought so far the store knows, and which generation
    /// of a run they would join.
    pub(super) fn refuse_over_limit(
        &mut self,
        lot: &Lot,
        taken: &mut BTreeMap<Origin, u64>,
    ) -> Result<Result<(), Failure>, StoreError> {
        let mut wanted: BTreeMap<RunId, u64> = BTreeMap::new();
        for new in &lot.jobs {
            if let Some(run) = new.run {
                *wanted.entry(run).or_default() += new.jobs.len() as u64;
            }
        }
        let refused = |why| Ok(Err(Failure::new(Kind::Conflict, format!("rejected, nothing was stored: {why}"))));
        for (id, count) in &wanted {
            let known = self.runs.by_id(*id).map(|run| &run.info);
            if let Some(why) = known.and_then(|info| info.counts.stopped) {
                return refused(why.sentence().to_owned());
            }
            // All its generations have the same terms.
            if known.is_some_and(|info| info.terms.job_limit.is_none()) {
                continue;
            }
            let Some(info) = self.store.joined(*id)? else { continue };
            let before = taken.get(&id.origin).copied().unwrap_or(0);
            if info.terms.room(&info.counts).is_some_and(|room| room < before + count) {
                let has = info.counts.total() + before;
                return refused(format!("run {} takes {} and has {has}", info.id, limit(&info)));
            }
        }
        wanted.into_iter().for_each(|(id, count)| *taken.entry(id.origin).or_default() += count);
        Ok(Ok(()))
    }
}

fn limit(info: &crate::store::RunInfo) -> String {
    match info.terms.job_limit.unwrap_or(u64::MAX) {
        1 => "1 job".to_owned(),
        most => format!("{most} jobs"),
    }
}
