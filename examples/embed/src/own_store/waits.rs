//! What holds jobs back or ends them: keys that others have, times, and jobs that come first.

use super::JournalStore;
use super::tables::{Job, NEVER, Row};
use std::sync::Arc;
use std::time::Duration;
use windlass::store::chunk::Chunk;
use windlass::store::keys::{Duplicate, Key, Step, freed, key_of, replaces};
use windlass::store::{Amendment, EXPIRED, NewJobs, Settlement, Told};
use windlass_core::job::{Arrival, JobId, QueueNo, RunNo};
use windlass_core::judge::{Reason, Verdict, late_sentence};
use windlass_core::life_cycle::{Change, State};
use windlass_core::particulars::{OnConflict, Scope};
use windlass_core::time::Time;

/// A job that runs past its time is asked for again after so long.
const AGAIN: Duration = Duration::from_secs(10);

impl JournalStore {
    /// The jobs that may come in, with their keys taken; the others are told.
    pub(super) fn take_keys(&mut self, jobs: &Chunk, queue: QueueNo, run: Option<RunNo>, now: Time) -> Arc<Chunk> {
        let unique = jobs.particulars().and_then(|particulars| particulars.unique.clone());
        let limited = run.and_then(|no| self.now.maps.runs.get(&no)).and_then(|run| run.terms.room(&run.counts));
        let (mut room, mut kept, mut beyond) = (limited.unwrap_or(u64::MAX), Vec::new(), 0);
        for index in 0..jobs.len() {
            let id = jobs.id(index);
            let key = unique.as_ref().and_then(|unique| key_of(unique, queue, run, jobs.data(index)));
            let holder = key.and_then(|key| self.now.maps.unique.get(&key).copied());
            let on_conflict = unique.as_ref().map_or(OnConflict::Ignore, |unique| unique.on_conflict);
            let fits = room > 0;
            beyond += u64::from(!fits);
            let free = fits && holder.is_none_or(|of| self.gives_way(of, jobs, on_conflict, now));
            match (key, holder) {
                (Some(key), _) if free => self.put(Row::Unique(key, Some(id))),
                (_, Some(of)) if fits => self.changes.duplicates.push(Duplicate { id, of }),
                _ => {}
            }
            room -= u64::from(free);
            kept.push(free);
        }
        let dropped = kept.iter().filter(|kept| !**kept).count() as u64;
        if let Some(no) = run.filter(|_| dropped > 0) {
            self.change_run(no, |run| run.counts.dropped += dropped);
            self.changes.beyond_limit.extend((beyond > 0).then_some((no, beyond)));
        }
        // A copy of what others share has all its bytes by this.
        Arc::new(jobs.rebuilt(jobs.particulars().cloned(), |index| kept[index]))
    }

    /// Whether the job that has a key makes room for another: one that waits is cancelled.
    fn gives_way(&mut self, of: JobId, beside: &Chunk, on_conflict: OnConflict, now: Time) -> bool {
        let holder = self.find(of);
        let runs = beside.find(of).is_some() || holder.as_ref().is_some_and(|(_, job)| job.state == State::Running);
        let replaces = replaces(on_conflict, runs);
        if let Some((arrival, job)) = holder.filter(|_| replaces) {
            self.amend_one(arrival, job, Amendment::Cancel, now);
        }
        replaces
    }

    pub(super) fn key_holders(&mut self, new: &NewJobs) -> Vec<Option<JobId>> {
        let unique = new.jobs.particulars().and_then(|particulars| particulars.unique.clone());
        let Some(unique) = unique else { return vec![None; new.jobs.len()] };
        // Nobody has a key of a queue that is not there; those of a run are the same in every queue.
        let queue = self.now.queue_names.get(&new.queue).copied().unwrap_or(QueueNo(u32::MAX));
        let run = new.run.and_then(|id| self.now.run_ids.get(&id).copied());
        let holder = |index| self.now.maps.unique.get(&key_of(&unique, queue, run, new.jobs.data(index))?).copied();
        (0..new.jobs.len()).map(holder).collect()
    }

    /// A key that another job has by now stays with that one.
    pub(super) fn free_keys(&mut self, job: &Job, step: Step) {
        let index = usize::from(job.index);
        for (key, id) in freed(&job.laid.jobs, index..index + 1, job.queue, step) {
            if self.now.maps.unique.get(&key) == Some(&id) {
                self.put(Row::Unique(key, None));
            }
        }
    }

    /// Which other job has the key that one which has ended would take again.
    pub(super) fn key_held_beside(&self, job: &Job) -> Option<JobId> {
        let run = match job.run.and_then(|no| self.now.maps.runs.get(&no)) {
            // It would be of the next generation, where there is one that takes it.
            Some(run) if run.counts.ended => self.joins(run.id).and_then(Result::ok).map(|run| run.no),
            Some(_) | None => job.run,
        };
        let id = job.laid.jobs.id(usize::from(job.index));
        let holder = self.now.maps.unique.get(&key_in(job, run).filter(|_| job.state.is_end())?);
        holder.copied().filter(|of| *of != id)
    }

    /// One that lives again has its key again; nobody else has it.
    pub(super) fn retake_key(&mut self, job: &Job) {
        if let Some(key) = key_in(job, job.run) {
            self.put(Row::Unique(key, Some(job.laid.jobs.id(usize::from(job.index)))));
        }
    }

    /// The run is gone, and its keys with it.
    pub(super) fn forget_keys(&mut self, run: RunNo) {
        let keys = self.now.maps.unique.keys().filter(|key| key.scope == Scope::Run && key.of == run.0);
        keys.copied().collect::<Vec<_>>().into_iter().for_each(|key| self.put(Row::Unique(key, None)));
    }

    /// What new jobs have to wait for, and one of these that never will succeed.
    pub(super) fn unmet(&self, jobs: &Chunk) -> (Vec<JobId>, Option<JobId>) {
        let after = jobs.particulars().map(|particulars| particulars.after.clone()).unwrap_or_default();
        // One that is not here has succeeded.
        let here = after.iter().filter_map(|id| Some((*id, self.find(*id)?.1.state.is_end())));
        let (ended, unmet): (Vec<_>, Vec<_>) = here.partition(|(_, ended)| *ended);
        (unmet.into_iter().map(|(id, _)| id).collect(), ended.first().map(|(id, _)| *id))
    }

    /// Lets those go that waited for jobs which have ended: on, or into the ground.
    pub(super) fn end_waits(&mut self, now: Time) {
        while let Some((id, succeeded)) = self.ends.pop() {
            let waiting = self.now.awaited.range((id, Arrival(0))..).take_while(|(of, _)| *of == id);
            for arrival in waiting.map(|(_, arrival)| *arrival).collect::<Vec<_>>() {
                let Some(mut job) = self.job(arrival).filter(|_| succeeded) else {
                    self.give_up(arrival, id, now);
                    continue;
                };
                job.awaits.retain(|of| *of != id);
                if job.awaits.is_empty() && job.is_held_back() {
                    job.due = job.admitted;
                    self.transit(arrival, job, Change::Release);
                } else {
                    self.put(Row::Job(arrival, Some(job)));
                }
            }
        }
    }

    /// What a job waits for will not be: it is cancelled, and says why. Whom a person let go waits for nobody.
    pub(super) fn give_up(&mut self, arrival: Arrival, because: JobId, now: Time) {
        let Some(mut job) = self.job(arrival) else { return };
        job.awaits.clear();
        if job.is_held_back() {
            job.note_error(now, &format!("cancelled: {because}, which it waited for, did not succeed"));
            self.amend_one(arrival, job, Amendment::Cancel, now);
        } else {
            self.put(Row::Job(arrival, Some(job)));
        }
    }

    /// Fails what has not begun or ended in time, and asks for what runs past its time.
    pub(super) fn expire(&mut self, now: Time, limit: u32, told: Told<'_>) {
        let mut follow_ups = Vec::new();
        let late = self.now.expiry.iter().take_while(|(at, ..)| *at <= now).take(limit as usize);
        for (_, arrival, begin) in late.copied().collect::<Vec<_>>() {
            let Some(job) = self.job(arrival).filter(|job| !job.state.is_end()) else { continue };
            if job.state == State::Running {
                self.changes.overdue.push(job.id());
                self.put(Row::Job(arrival, Some(Job { overdue: Some(now.after(AGAIN)), ..job })));
            } else {
                self.fail_late(arrival, job, begin, now);
                follow_ups.extend(self.said_of(arrival, told));
            }
        }
        self.admit_follow_ups(&follow_ups, now);
    }

    fn fail_late(&mut self, arrival: Arrival, mut job: Job, begin: bool, now: Time) {
        let (held, error) = (job.held(), late_sentence(begin).to_owned());
        (job.reason, job.ended) = (Some(Reason::Expired), Some(now));
        job.note_error(now, &error);
        self.transit(arrival, job, Change::Expire);
        let verdict = Verdict::Fail { reason: Reason::Expired, error };
        let last = Settlement { held, verdict, outcome: EXPIRED, started: now, finished: now };
        self.note_outcome(last.clone());
        self.changes.expired.push(last);
    }

    /// When `expire` or `release` have work.
    pub(super) fn next_time(&self) -> Option<Time> {
        let due = self.now.due.first().map(|(time, _)| *time).filter(|due| *due != NEVER);
        due.into_iter().chain(self.now.expiry.first().map(|(time, ..)| *time)).min()
    }
}

/// The key of a job, were it of this run.
fn key_in(job: &Job, run: Option<RunNo>) -> Option<Key> {
    let unique = job.laid.jobs.particulars()?.unique.as_ref()?;
    key_of(unique, job.queue, run, job.laid.jobs.data(usize::from(job.index)))
}
