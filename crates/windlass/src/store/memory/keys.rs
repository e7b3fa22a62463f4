//! Unique keys of the model store: a table from keys to the jobs that have them.

use super::{Job, Memory};
use crate::store::chunk::Chunk;
use crate::store::keys::{self, Duplicate, Step, key_of, replaces};
use crate::store::{Amendment, NewJobs, RunInfo};
use std::sync::Arc;
use windlass_core::job::{JobId, QueueNo, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::particulars::{OnConflict, Scope};
use windlass_core::time::Time;

impl Memory {
    /// The jobs that may come in, with their keys taken; the others are told.
    pub(super) fn take_keys(&mut self, jobs: &Arc<Chunk>, queue: QueueNo, run: Option<RunNo>, now: Time) -> Arc<Chunk> {
        let unique = jobs.particulars().and_then(|particulars| particulars.unique.clone());
        let limited = run.and_then(|no| self.runs.get(&no)).and_then(|run| run.terms.room(&run.counts));
        let mut room = limited.unwrap_or(u64::MAX);
        let mut kept = vec![true; jobs.len()];
        let mut beyond = 0;
        for (index, kept) in kept.iter_mut().enumerate() {
            let (id, unique) = (jobs.id(index), unique.as_ref());
            let key =
                unique.and_then(|unique| Some((key_of(unique, queue, run, jobs.data(index))?, unique.on_conflict)));
            let holder = key.and_then(|(key, _)| self.keys.get(&key).copied());
            match (key, holder) {
                _ if room == 0 => {
                    *kept = false;
                    beyond += 1;
                }
                (Some((_, on_conflict)), Some(of)) if !self.gives_way(of, jobs, on_conflict, now) => {
                    *kept = false;
                    self.changes.duplicates.push(Duplicate { id, of });
                }
                (Some((key, _)), _) => {
                    self.keys.put(key, Some(id));
                    room -= 1;
                }
                (None, _) => room -= 1,
            }
        }
        let dropped = kept.iter().filter(|kept| !**kept).count() as u64;
        if let Some(no) = run.filter(|_| dropped > 0) {
            self.change_run(no, |run| run.counts.dropped += dropped);
            self.changes.beyond_limit.extend((beyond > 0).then_some((no, beyond)));
        }
        match dropped {
            0 => jobs.clone(),
            _ => Arc::new(jobs.rebuilt(jobs.particulars().cloned(), |index| kept[index])),
        }
    }

    /// Whether the job that has a key makes room for another: one that waits is cancelled.
    fn gives_way(&mut self, of: JobId, beside: &Chunk, on_conflict: OnConflict, now: Time) -> bool {
        let job = self.ids.get(&of).and_then(|arrival| Some((*arrival, self.jobs.get(arrival)?.clone())));
        let runs = beside.find(of).is_some() || job.as_ref().is_some_and(|(_, job)| job.state == State::Running);
        let replaces = replaces(on_conflict, runs);
        if let Some((arrival, job)) = job.filter(|_| replaces) {
            self.amend_one(arrival, job, Amendment::Cancel, now);
        }
        replaces
    }

    /// The job that has the key of one that has ended and is to live again, in the run where that will be.
    pub(super) fn key_held_beside(&self, job: &Job) -> Option<JobId> {
        let unique = job.chunk.particulars()?.unique.as_ref().filter(|_| job.state.is_end())?;
        let run = match job.run.and_then(|no| self.runs.get(&no)) {
            Some(run) if run.counts.ended => {
                self.newest_generation(run.id).filter(RunInfo::takes_late_jobs).map(|run| run.no)
            }
            Some(_) | None => job.run,
        };
        let key = key_of(unique, job.queue, run, job.chunk.data(usize::from(job.index)))?;
        let id = job.chunk.id(usize::from(job.index));
        self.keys.get(&key).copied().filter(|of| *of != id)
    }

    /// Nobody has its key: it was looked for in this turn.
    pub(super) fn retake_key(&mut self, job: &Job) {
        let index = usize::from(job.index);
        let unique = job.chunk.particulars().and_then(|particulars| particulars.unique.as_ref());
        if let Some(key) = unique.and_then(|unique| key_of(unique, job.queue, job.run, job.chunk.data(index))) {
            self.keys.put(key, Some(job.chunk.id(index)));
        }
    }

    pub(super) fn key_holders(&mut self, new: &NewJobs) -> Vec<Option<JobId>> {
        let unique = new.jobs.particulars().and_then(|particulars| particulars.unique.clone());
        let Some(unique) = unique else { return vec![None; new.jobs.len()] };
        let queue = self.queue_no(&new.queue);
        let run = new.run.and_then(|id| self.run_ids.get(&id).copied());
        let holder = |index| self.keys.get(&key_of(&unique, queue, run, new.jobs.data(index))?).copied();
        (0..new.jobs.len()).map(holder).collect()
    }

    /// A key that another job has by now stays with that one.
    pub(super) fn free_keys(&mut self, job: &Job, step: Step) {
        let index = usize::from(job.index);
        for (key, id) in keys::freed(&job.chunk, index..index + 1, job.queue, step) {
            if self.keys.get(&key) == Some(&id) {
                self.keys.put(key, None);
            }
        }
    }

    /// The run is gone, and its keys with it.
    pub(super) fn forget_keys(&mut self, run: RunNo) {
        let keys = self.keys.rows().keys().filter(|key| key.scope == Scope::Run && key.of == run.0);
        for key in keys.copied().collect::<Vec<_>>() {
            self.keys.put(key, None);
        }
    }
}
