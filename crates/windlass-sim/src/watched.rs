//! The model store with an eye on it: every verb goes through unchanged, and what a commit held is noted.
//!
//! It owns the notes of the open turn and of the turns that were committed since somebody looked. It must not
//! change what a verb does: the engine must not be able to tell it from the store itself.

use crate::ledger::Came;
use crate::{random, workload};
use std::cell::RefCell;
use std::sync::Arc;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::memory::Memory;
use windlass::store::{
    Amended, Amendment, Arriving, Changes, Deleted, Durability, Evidence, FollowUp, Held, JobInfo, Lot, NewJobs,
    NewRun, Order, Recovered, RunInfo, SHARED, Settlement, Steer, Store, StoreError, Told, Unarchived, Unheld,
};
use windlass_core::job::{Arrival, JobId, RunId, RunNo};
use windlass_core::overrides::Override;
use windlass_core::particulars::Particulars;
use windlass_core::run::terms::{RunTerms, Stopped};
use windlass_core::time::Time;

/// One job that another emitted.
#[derive(Clone, Debug)]
pub(crate) struct Emission {
    pub(crate) id: JobId,
    /// It must be alone in its run with its data.
    pub(crate) unique: bool,
    pub(crate) run: Option<RunId>,
    pub(crate) data: u64,
    pub(crate) queue: Arc<str>,
    pub(crate) parent: Option<JobId>,
}

/// One verb as it was called, with what came of it.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Admitted(Lot),
    /// A run with its name and what was agreed on.
    Opened(RunId, String, RunTerms),
    Stopped(RunId, Stopped),
    /// What is remembered of a schedule, by its name.
    Remembered(String),
    /// One order: all of it holds one slot.
    Claimed(Vec<Held>),
    Settled(Vec<Settlement>),
    /// What settled jobs emitted.
    Emitted(Vec<Emission>),
    Released,
    /// Jobs that had not begun by their time.
    Expired(Vec<JobId>),
    Amended(Vec<(JobId, Amendment, Amended)>),
    /// Jobs of a run that has to go, which the engine itself cancels.
    Swept(Vec<JobId>),
    Deleted(Vec<(JobId, Came)>),
    Steered(Steer),
    /// What had ended before this time and was kept till now.
    Forgot(Time),
    Recovered,
}

impl Verb {
    pub(crate) fn admitted(&self) -> Option<&Lot> {
        if let Verb::Admitted(lot) = self { Some(lot) } else { None }
    }

    pub(crate) fn forgot_before(&self) -> Option<Time> {
        if let Verb::Forgot(before) = self { Some(*before) } else { None }
    }
}

/// A turn that was committed.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) durability: Durability,
    pub(crate) verbs: Vec<Verb>,
    pub(crate) ended: Vec<RunInfo>,
}

/// A fault planted in the store, to see that somebody notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// The last job of some lots is not there.
    LosesAJob,
    /// Some data is another.
    AltersData,
    /// What was committed `full` is only in the kernel's hands.
    SyncsNothing,
    /// Some claims are handed out twice.
    HoldsTwice,
    /// Some runs are said to have ended while they live.
    EndsEarly,
    /// Some ends are never told.
    MissesAnEnd,
    /// Jobs are released before they are due.
    ReleasesEarly,
    /// Outcomes that the archive lacks are forgotten.
    ForgetsOutcomes,
    /// A settlement is acknowledged and not written.
    SettlesNothing,
    /// A cursor goes with its turn, some jobs of it do not.
    SkipsWithTheCursor,
    /// What a person changed is said to be kept and is not.
    ForgetsOverrides,
    /// Some jobs are deleted and said to be unknown.
    HidesDeletions,
    /// A wish is met twice by some jobs.
    ActsTwice,
    /// Some of what a job emitted does not come in with its end.
    LosesEmitted,
    /// Some keys are not looked at.
    ForgetsKeys,
    /// That a schedule has fired is not always remembered.
    ForgetsFirings,
    /// Some jobs do not wait for those that they were to wait for.
    ForgetsChains,
    /// Some jobs may end when they like.
    ForgetsFinishBy,
    /// Some runs have no terms.
    ForgetsTerms,
    /// No end of a run is announced by a job; few have one.
    AnnouncesNothing,
    /// What became of one job is written for another.
    MixesOutcomes,
}

#[cfg(test)]
impl Lie {
    pub(crate) const ALL: [Lie; 21] = [
        Lie::LosesAJob,
        Lie::AltersData,
        Lie::SyncsNothing,
        Lie::HoldsTwice,
        Lie::EndsEarly,
        Lie::MissesAnEnd,
        Lie::ReleasesEarly,
        Lie::ForgetsOutcomes,
        Lie::SettlesNothing,
        Lie::SkipsWithTheCursor,
        Lie::ForgetsOverrides,
        Lie::HidesDeletions,
        Lie::ActsTwice,
        Lie::LosesEmitted,
        Lie::ForgetsKeys,
        Lie::ForgetsFirings,
        Lie::ForgetsChains,
        Lie::ForgetsFinishBy,
        Lie::ForgetsTerms,
        Lie::AnnouncesNothing,
        Lie::MixesOutcomes,
    ];
}

#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) memory: Memory,
    pub(crate) lie: Option<Lie>,
    /// Counts the chances to lie; it lies now and then.
    chances: u32,
    verbs: Vec<Verb>,
    ended: Vec<RunInfo>,
    /// What was found of a run: only who sweeps it asks for that, to cancel just these.
    of_run: Vec<JobId>,
    /// What recovery has to say to the engine's first turn.
    kept: Changes,
    pub(crate) committed: Vec<Committed>,
    /// A commit found no space since somebody last looked.
    pub(crate) was_full: bool,
}

impl Watched {
    pub(crate) fn new(memory: Memory) -> Watched {
        Watched {
            memory,
            lie: None,
            chances: 0,
            verbs: Vec::new(),
            ended: Vec::new(),
            of_run: Vec::new(),
            kept: Changes::default(),
            committed: Vec::new(),
            was_full: false,
        }
    }

    /// Whether this is a moment to tell this lie.
    fn lies(&mut self, lie: Lie) -> bool {
        if self.lie != Some(lie) {
            return false;
        }
        self.chances += 1;
        self.chances.is_multiple_of(5)
    }

    /// What becomes of a lot on its way into the store.
    fn falsified(&mut self, lot: &Lot) -> Lot {
        let mut lot = lot.clone();
        if self.lies(Lie::LosesAJob) || !lot.cursors.is_empty() && self.lies(Lie::SkipsWithTheCursor) {
            lot.jobs.pop();
        }
        if self.lies(Lie::AltersData)
            && let Some(new) = lot.jobs.last_mut()
        {
            let mut builder = ChunkBuilder::new(new.jobs.origin());
            (0..new.jobs.len()).for_each(|index| builder.push(new.jobs.id(index).offset, b"another"));
            new.jobs = Arc::new(builder.finish());
        }
        for new in &mut lot.jobs {
            let Some(of) = new.jobs.particulars().map(|of| Particulars::clone(of)) else { continue };
            let without = match of {
                of if !of.after.is_empty() && self.lies(Lie::ForgetsChains) => Particulars { after: Vec::new(), ..of },
                of if of.finish_by.is_some() && self.lies(Lie::ForgetsFinishBy) => {
                    Particulars { finish_by: None, ..of }
                }
                _ => continue,
            };
            new.jobs = Arc::new(new.jobs.rebuilt(Some(Arc::new(without)), |_| true));
        }
        lot
    }

    /// What becomes of ends on their way into the store.
    fn falsified_ends(&mut self, settlements: &[Settlement]) -> Vec<Settlement> {
        let mut ends = settlements.to_vec();
        if let Some(at) = ends.windows(2).position(|two| two[0].outcome != two[1].outcome)
            && self.lies(Lie::MixesOutcomes)
            && let Some([one, other]) = ends.get_mut(at..at + 2)
        {
            std::mem::swap(&mut one.verdict, &mut other.verdict);
            std::mem::swap(&mut one.outcome, &mut other.outcome);
        }
        ends
    }

    /// What becomes of emitted jobs on their way into the store.
    fn falsified_follow_ups(&mut self, follow_ups: &[FollowUp]) -> Vec<FollowUp> {
        let mut kept = follow_ups.to_vec();
        if !kept.is_empty() && self.lies(Lie::LosesEmitted) {
            kept.pop();
        }
        if !kept.is_empty() && self.lies(Lie::ForgetsKeys) {
            kept.iter_mut().for_each(|new| new.jobs = Arc::new(new.jobs.rebuilt(None, |_| true)));
        }
        kept
    }

    fn emissions(&mut self, follow_ups: &[FollowUp]) -> Result<Vec<Emission>, StoreError> {
        let mut emitted = Vec::new();
        for new in follow_ups {
            let run = match new.run {
                Some(no) => self.memory.run_numbered(no)?.map(|run| run.id),
                None => None,
            };
            let unique = new.queue.as_str() == workload::WEB;
            emitted.extend((0..new.jobs.len()).map(|index| Emission {
                id: new.jobs.id(index),
                unique,
                run,
                data: random::hash(new.jobs.data(index)),
                queue: new.queue.as_str().into(),
                parent: new.jobs.particulars_of(index).and_then(|particulars| particulars.parent),
            }));
        }
        Ok(emitted)
    }

    fn note(&mut self, durability: Durability) {
        let (verbs, ended) = (std::mem::take(&mut self.verbs), std::mem::take(&mut self.ended));
        self.committed.push(Committed { durability, verbs, ended });
    }
}

impl Store for Watched {
    fn backlog(&mut self) -> Result<Changes, StoreError> {
        self.memory.backlog()
    }

    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError> {
        self.memory.open_runs()
    }

    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        let told = RefCell::new(Vec::new());
        let convicted = |info: &JobInfo, run| {
            let follow_up = (evidence.convicted)(info, run);
            told.borrow_mut().extend(follow_up.clone());
            follow_up
        };
        let recovered = self.memory.recover(Evidence { convicted: &convicted, ..evidence }, now)?;
        let told = told.into_inner();
        let changes = self.memory.changes();
        self.ended = changes.ended.clone();
        self.kept = Changes { runs: changes.runs, ended: changes.ended, ..Changes::default() };
        self.verbs.push(Verb::Recovered);
        let emitted = self.emissions(&told)?;
        self.verbs.extend((!emitted.is_empty()).then_some(Verb::Emitted(emitted)));
        self.note(Durability::Full);
        Ok(recovered)
    }

    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        let told = self.falsified(lot);
        self.memory.admit(&told, now)?;
        self.verbs.push(Verb::Admitted(lot.clone()));
        Ok(())
    }

    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError> {
        let mut told = run.clone();
        if !run.terms.is_empty() && self.lies(Lie::ForgetsTerms) {
            told.terms = RunTerms::default();
        }
        if self.lie == Some(Lie::AnnouncesNothing) {
            told.terms.end_job = None;
        }
        let no = self.memory.open_run(id, &told, now)?;
        self.verbs.push(Verb::Opened(id, run.name.clone(), run.terms.clone()));
        Ok(no)
    }

    fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        self.memory.holders(new)
    }

    fn stop_run(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError> {
        self.memory.stop_run(no, why, now)?;
        if let Some(run) = self.memory.run_numbered(no)? {
            self.verbs.push(Verb::Stopped(run.id, why));
        }
        Ok(())
    }

    fn claim(&mut self, orders: &[Order], now: Time) -> Result<Vec<Held>, StoreError> {
        let mut held = self.memory.claim(orders, now)?;
        if !held.is_empty() && self.lies(Lie::HoldsTwice) {
            held.extend(held.clone());
        }
        if !held.is_empty() {
            self.verbs.push(Verb::Claimed(held.clone()));
        }
        Ok(held)
    }

    fn held(&mut self, id: JobId) -> Result<Option<Held>, StoreError> {
        self.memory.held(id)
    }

    fn hold(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Result<Held, Unheld>>, StoreError> {
        self.memory.hold(ids, now)
    }

    fn takes_pasts(&self) -> bool {
        self.memory.takes_pasts()
    }

    fn arrive(&mut self, jobs: &[Arriving], now: Time) -> Result<(), StoreError> {
        self.memory.arrive(jobs, now)
    }

    fn ends_together(&self) -> bool {
        true
    }

    fn settle(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        let kept = self.falsified_follow_ups(follow_ups);
        let ends = self.falsified_ends(settlements);
        if !self.lies(Lie::SettlesNothing) {
            self.memory.settle(&ends, &kept, now)?;
        }
        self.verbs.push(Verb::Settled(ends));
        if !follow_ups.is_empty() {
            let emitted = self.emissions(follow_ups)?;
            self.verbs.push(Verb::Emitted(emitted));
        }
        Ok(())
    }

    fn release(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError> {
        let now = if self.lies(Lie::ReleasesEarly) { now.after(std::time::Duration::from_secs(3600)) } else { now };
        let (told, expired) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let late = |info: &JobInfo, run| {
            let follow_ups = late(info, run);
            expired.borrow_mut().push(info.id);
            told.borrow_mut().extend(follow_ups.clone());
            follow_ups
        };
        self.memory.release(now, limit, &late)?;
        self.verbs.push(Verb::Released);
        self.verbs.push(Verb::Expired(expired.into_inner()));
        let emitted = self.emissions(&told.into_inner())?;
        self.verbs.extend((!emitted.is_empty()).then_some(Verb::Emitted(emitted)));
        Ok(())
    }

    fn next_due(&mut self) -> Result<Option<Time>, StoreError> {
        self.memory.next_due()
    }

    fn shift_waits(&mut self, by: i64) -> Result<bool, StoreError> {
        self.memory.shift_waits(by)
    }

    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        let amended = self.memory.amend(ids, amendment, now)?;
        if std::mem::take(&mut self.of_run) == ids && !ids.is_empty() {
            self.verbs.push(Verb::Swept(ids.to_vec()));
            return Ok(amended);
        }
        let all: Vec<_> = ids.iter().zip(&amended).map(|(id, what)| (*id, amendment, *what)).collect();
        if self.lies(Lie::ActsTwice) {
            self.verbs.push(Verb::Amended(all.clone()));
        }
        self.verbs.push(Verb::Amended(all));
        Ok(amended)
    }

    fn steer(&mut self, step: &Steer) -> Result<(), StoreError> {
        if !self.lies(Lie::ForgetsOverrides) {
            self.memory.steer(step)?;
        }
        self.verbs.push(Verb::Steered(step.clone()));
        Ok(())
    }

    fn overrides(&mut self) -> Result<Vec<Override>, StoreError> {
        self.memory.overrides()
    }

    fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError> {
        self.memory.jobs(ids)
    }

    fn of_run(&mut self, run: RunId, from: Arrival, limit: usize) -> Result<(Vec<JobId>, Option<Arrival>), StoreError> {
        let (ids, next) = self.memory.of_run(run, from, limit)?;
        self.of_run.clone_from(&ids);
        Ok((ids, next))
    }

    fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        let mut deleted = self.memory.delete(ids, now)?;
        if self.lies(Lie::HidesDeletions) {
            deleted.fill_with(|| Deleted::Unknown);
        }
        let came = |deleted: &Deleted| match deleted {
            Deleted::Done { from, .. } => Came::Changed(*from),
            // Only what does not run can be deleted.
            Deleted::Running => Came::Unchanged,
            Deleted::Unknown => Came::Unknown,
        };
        self.verbs.push(Verb::Deleted(ids.iter().copied().zip(deleted.iter().map(came)).collect()));
        Ok(deleted)
    }

    fn joined(&mut self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.memory.joined(run)
    }

    fn run_numbered(&mut self, no: RunNo) -> Result<Option<RunInfo>, StoreError> {
        self.memory.run_numbered(no)
    }

    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        if let Some(name) = key.strip_prefix(SHARED) {
            self.verbs.push(Verb::Remembered(name.to_owned()));
            if self.lies(Lie::ForgetsFirings) {
                return Ok(());
            }
        }
        self.memory.note(key, value)
    }

    fn notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.memory.notes(prefix, limit)
    }

    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        let gone = self.memory.forget(before, limit)?;
        self.verbs.push(Verb::Forgot(before));
        Ok(gone)
    }

    fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        self.memory.archived(turn)
    }

    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        if self.lie == Some(Lie::ForgetsOutcomes) {
            return Ok(Vec::new());
        }
        self.memory.unarchived()
    }

    fn changes(&mut self) -> Changes {
        let mut changes = self.memory.changes();
        if !changes.ended.is_empty() && self.lies(Lie::MissesAnEnd) {
            changes.ended.clear();
        }
        if self.lies(Lie::EndsEarly) {
            let open = self.memory.open_runs().unwrap_or_default();
            changes.ended.extend(open.into_iter().filter(|run| run.counts.live() > 0).take(1));
        }
        self.ended.extend(changes.ended.iter().cloned());
        changes.runs.append(&mut self.kept.runs);
        changes.ended.append(&mut self.kept.ended);
        changes
    }

    fn commit(&mut self, durability: Durability) -> Result<u64, StoreError> {
        let kept = if self.lie == Some(Lie::SyncsNothing) { Durability::Os } else { durability };
        match self.memory.commit(kept) {
            Ok(turn) => {
                self.note(durability);
                Ok(turn)
            }
            Err(error) => {
                self.was_full |= matches!(error, StoreError::Full(_));
                self.verbs.clear();
                self.ended.clear();
                Err(error)
            }
        }
    }

    fn rollback(&mut self) -> Result<(), StoreError> {
        self.verbs.clear();
        self.ended.clear();
        self.memory.rollback()
    }

    fn epoch(&self) -> u64 {
        self.memory.epoch()
    }
}
