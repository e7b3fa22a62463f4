//! What a witness outside knows: every job and run as the committed turns left them, and how to go back.
//!
//! It is told of each committed turn and reads the jobs it touched from the store's view. Runs are counted here
//! again from the jobs alone, never from the store's counters. It must not judge: that is the checkers'.

use crate::watched::{Committed, Emission, Verb};
use crate::{agenda, flow, random};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use windlass::engine::event::Wish;
use windlass::store::memory::Memory;
use windlass::store::{Amended, Amendment, Durability, Held, Settlement, Steer, StoreView};
use windlass_core::job::{JobId, LaneKind, Origin, Priority, Record, RunId};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::run::terms::{RunTerms, Stopped};
use windlass_core::time::Time;

/// A job as the last commit left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) state: State,
    pub(crate) queue: Arc<str>,
    pub(crate) priority: Priority,
    pub(crate) kind: LaneKind,
    pub(crate) run: Option<RunId>,
    pub(crate) record: Record,
    pub(crate) reason: Option<Reason>,
    pub(crate) data: u64,
    pub(crate) ended: Option<Time>,
    /// Its retention is over, or a person deleted it: the store does not have it any more.
    pub(crate) forgotten: bool,
    pub(crate) deleted: bool,
}

/// A run, counted from its jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunModel {
    pub(crate) live: u64,
    pub(crate) sealed: bool,
    pub(crate) after: Vec<(Origin, u64)>,
    pub(crate) ended: bool,
    /// It went beyond its terms and takes no more jobs.
    pub(crate) stopped: bool,
}

/// Jobs that share one slot.
#[derive(Clone, Debug)]
pub(crate) struct Booking {
    pub(crate) queue: Arc<str>,
    pub(crate) kind: LaneKind,
    pub(crate) priority: Priority,
    pub(crate) left: BTreeSet<JobId>,
}

/// What one committed turn did.
#[derive(Debug, Default)]
pub(crate) struct Turned {
    /// Every job that changed: as it was, as it is.
    pub(crate) moved: Vec<(JobId, Option<Known>, Known)>,
    pub(crate) claimed: Vec<Booking>,
    pub(crate) settled: Vec<Settlement>,
    /// Runs that ended, and whether they are said to have come to what was wanted.
    pub(crate) ended: Vec<(RunId, bool)>,
    /// Emitted jobs that were taken in, and their data.
    pub(crate) emitted: Vec<(JobId, u64)>,
    /// Whose end brought a job to which queue.
    pub(crate) follow_ups: Vec<(JobId, Arc<str>)>,
    /// Runs that were opened with a name or with terms, and those that were stopped.
    pub(crate) opened: Vec<(RunId, String, RunTerms)>,
    pub(crate) stopped: Vec<(RunId, Stopped)>,
    /// Runs of schedules, each with the name of its run.
    pub(crate) fired: Vec<(RunId, String)>,
    /// How often something was remembered of a schedule, by its name: once for each look, once for each firing by hand.
    pub(crate) remembered: BTreeMap<String, usize>,
    /// Schedules that somebody switched on, by name.
    pub(crate) enabled: BTreeSet<String>,
    pub(crate) recovered: bool,
    /// Jobs that a person gave another try.
    pub(crate) revived: Vec<JobId>,
    /// Jobs that a person changed in any way, or that went with their run.
    pub(crate) amended: Vec<JobId>,
    pub(crate) now: Time,
    /// On the clock that nobody sets, in microseconds.
    pub(crate) at: u64,
}

/// The part of the ledger that a power cut takes back.
#[derive(Clone, Debug, Default)]
struct Undo {
    jobs: Vec<(JobId, Option<Known>)>,
    runs: Option<BTreeMap<RunId, RunModel>>,
    cursors: Option<BTreeMap<Origin, u64>>,
    overrides: Option<Vec<Override>>,
    keys: Option<BTreeSet<(RunId, u64)>>,
    terms: Option<BTreeMap<RunId, RunTerms>>,
    settled: usize,
    acts: usize,
}

/// One job as a person's wish met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Act {
    pub(crate) id: JobId,
    pub(crate) wish: Wish,
    pub(crate) came: Came,
}

/// What came of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// It was in this state before.
    Changed(State),
    Running,
    Unknown,
    /// It was so before, or its state does not allow it.
    Unchanged,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) jobs: BTreeMap<JobId, Known>,
    pub(crate) runs: BTreeMap<RunId, RunModel>,
    pub(crate) bookings: Vec<Booking>,
    pub(crate) cursors: BTreeMap<Origin, u64>,
    pub(crate) overrides: Vec<Override>,
    /// Data that a run has seen in the queue whose jobs are unique.
    keys: BTreeSet<(RunId, u64)>,
    /// The data of those that came in as unique: who lives again takes its key again, in the run where that is.
    unique: BTreeMap<JobId, u64>,
    /// Everybody who ever made an override that was committed.
    pub(crate) steered: BTreeSet<String>,
    /// Every wish of a person for a job, as it was met.
    pub(crate) acts: Vec<Act>,
    /// Every settled start that no power cut took back.
    pub(crate) settled: Vec<(JobId, u32)>,
    /// Inbox files that were read to their end and removed.
    closed: BTreeSet<Origin>,
    /// The queues of runs with a command of their own, and the slots of each.
    pub(crate) services: BTreeMap<String, u32>,
    /// Jobs that wait or waited for others.
    pub(crate) chains: BTreeMap<JobId, Vec<JobId>>,
    /// What was agreed on for runs, as far as it was anything.
    pub(crate) terms: BTreeMap<RunId, RunTerms>,
    /// Rises whenever something changed.
    pub(crate) version: u64,
    names: BTreeMap<String, Arc<str>>,
    at_risk: Vec<Undo>,
}

/// How a job left the store.
#[derive(Clone, Copy, Debug)]
enum Left {
    Succeeded,
    /// From this state.
    Deleted(State),
}

/// The job that announces the end of a run.
pub(crate) fn end_job_of(run: RunId) -> JobId {
    JobId { origin: run.origin, offset: (1 << 62) + u64::from(run.generation) }
}

fn came(amended: Amended) -> Came {
    match amended {
        Amended::Done { from, .. } => Came::Changed(from),
        Amended::Running => Came::Running,
        Amended::Unknown => Came::Unknown,
        Amended::Same(_) | Amended::Refused(_) | Amended::Taken(_) => Came::Unchanged,
    }
}

impl Ledger {
    /// Takes in a committed turn; an error is a contradiction within the store itself.
    pub(crate) fn learn(&mut self, committed: &Committed, store: &Memory, now: Time) -> Result<Turned, String> {
        self.version += 1;
        let mut undo = Undo { settled: self.settled.len(), acts: self.acts.len(), ..Undo::default() };
        let (runs, cursors, overrides) = (self.runs.clone(), self.cursors.clone(), self.overrides.clone());
        let (keys, terms) = (self.keys.clone(), self.terms.clone());
        let mut turned = Turned { now, ..Turned::default() };
        let mut touched = BTreeSet::new();
        let mut left = BTreeMap::new();
        let forgot = committed.verbs.iter().filter_map(Verb::forgot_before).max();
        if forgot.is_some() {
            self.forget_runs(now, store, &mut undo)?;
        }
        for verb in &committed.verbs {
            self.take(verb, &mut turned, &mut touched, &mut left);
        }
        self.drop_late_names(committed, store)?;
        if let Some(before) = forgot {
            self.forget(before, &left, store, &mut undo)?;
        }
        // What waited for a job that ended changes with it.
        let waits = |id: &&JobId| self.jobs.get(id).is_some_and(|job| job.state == State::Scheduled);
        touched.extend(self.chains.keys().filter(waits));
        touched.extend(committed.ended.iter().filter(|run| run.terms.end_job.is_some()).map(|run| end_job_of(run.id)));
        for id in touched {
            let before = self.jobs.get(&id).cloned();
            let after = self.read(id, before.as_ref(), left.get(&id), store)?;
            let handed_on = || flow::passed_on(id, &turned.settled, &committed.verbs).filter(|_| before.is_none());
            let Some(after) = after.or_else(handed_on) else { continue };
            if before.as_ref() != Some(&after) {
                undo.jobs.push((id, before.clone()));
                self.recount(before.as_ref(), &after);
                self.jobs.insert(id, after.clone());
                turned.moved.push((id, before, after));
            }
        }
        self.retake_keys(&turned);
        for verb in &committed.verbs {
            self.check_emitted(verb, &mut turned)?;
        }
        let announced = committed.ended.iter().map(|run| end_job_of(run.id));
        let announced = announced.filter_map(|id| Some((id, self.jobs.get(&id)?.data)));
        turned.emitted.extend(announced);
        for new in committed.verbs.iter().filter_map(Verb::admitted).flat_map(|lot| &lot.jobs) {
            // What a schedule begins is offered by nobody.
            if turned.fired.iter().any(|(run, _)| new.run == Some(*run)) {
                let jobs = 0..new.jobs.len();
                turned.emitted.extend(jobs.map(|at| (new.jobs.id(at), random::hash(new.jobs.data(at)))));
            }
        }
        for booking in &mut turned.claimed {
            let job = booking.left.first().and_then(|id| self.jobs.get(id));
            booking.queue = job.map_or_else(|| "".into(), |job| job.queue.clone());
        }
        turned.ended = committed.ended.iter().map(|run| (run.id, run.terms.succeeded(&run.counts))).collect();
        if turned.recovered {
            self.bookings.clear();
        }
        self.bookings.extend(turned.claimed.iter().cloned());
        if committed.durability == Durability::Full {
            self.at_risk.clear();
        } else {
            undo.runs = Some(runs);
            undo.cursors = Some(cursors);
            undo.overrides = Some(overrides);
            undo.keys = Some(keys);
            undo.terms = Some(terms);
            self.at_risk.push(undo);
        }
        Ok(turned)
    }

    /// Notes the ends that a checker found right.
    pub(crate) fn note_ended(&mut self, ended: &[(RunId, bool)]) {
        for (id, _) in ended {
            self.runs.entry(*id).or_default().ended = true;
        }
    }

    fn take(
        &mut self,
        verb: &Verb,
        turned: &mut Turned,
        touched: &mut BTreeSet<JobId>,
        left: &mut BTreeMap<JobId, Left>,
    ) {
        match verb {
            Verb::Admitted(lot) => {
                for new in &lot.jobs {
                    touched.extend((0..new.jobs.len()).map(|index| new.jobs.id(index)));
                    if let Some(of) = new.jobs.particulars().filter(|of| !of.after.is_empty()) {
                        let chained = (0..new.jobs.len()).map(|index| (new.jobs.id(index), of.after.clone()));
                        self.chains.extend(chained);
                    }
                    if let Some(run) = new.run {
                        self.runs.entry(run).or_default();
                    }
                }
                self.take_seals(lot);
            }
            Verb::Opened(..) | Verb::Stopped(..) | Verb::Remembered(_) => self.take_run(verb, turned),
            Verb::Claimed(held) => {
                touched.extend(held.iter().flat_map(Held::ids));
                let (kind, priority) = (held[0].lane.kind, held[0].lane.priority);
                let left = held.iter().flat_map(Held::ids).collect();
                turned.claimed.push(Booking { queue: "".into(), kind, priority, left });
            }
            Verb::Settled(settlements) => {
                for settlement in settlements {
                    let start = settlement.held.start();
                    for id in settlement.held.ids() {
                        touched.insert(id);
                        self.settled.push((id, start));
                        self.bookings.iter_mut().chain(&mut turned.claimed).for_each(|booking| {
                            booking.left.remove(&id);
                        });
                        if matches!(settlement.verdict, Verdict::Succeed { .. }) {
                            left.insert(id, Left::Succeeded);
                        }
                    }
                }
                self.bookings.retain(|booking| !booking.left.is_empty());
                turned.claimed.retain(|booking| !booking.left.is_empty());
                turned.settled.extend(settlements.iter().cloned());
            }
            Verb::Emitted(emitted) => touched.extend(emitted.iter().map(|one| one.id)),
            Verb::Expired(late) => touched.extend(late.iter().copied()),
            Verb::Released => {
                let timed = |job: &Known| matches!(job.state, State::Scheduled | State::Retrying);
                touched.extend(self.jobs.iter().filter(|(_, job)| timed(job)).map(|(id, _)| *id));
            }
            Verb::Swept(ids) => {
                touched.extend(ids);
                turned.amended.extend(ids);
            }
            Verb::Amended(_) | Verb::Deleted(_) => self.take_wishes(verb, turned, touched, left),
            Verb::Steered(step) => self.steer(step, turned),
            Verb::Forgot(_) => {}
            Verb::Recovered => {
                turned.recovered = true;
                let running = self.jobs.iter().filter(|(_, job)| job.state == State::Running);
                touched.extend(running.map(|(id, _)| *id));
            }
        }
    }

    /// What became of runs and schedules as such.
    fn take_run(&mut self, verb: &Verb, turned: &mut Turned) {
        match verb {
            Verb::Opened(run, name, terms) => {
                self.runs.entry(*run).or_default();
                if !terms.is_empty() {
                    self.terms.insert(*run, terms.clone());
                }
                if agenda::nominal(name).is_some() {
                    turned.fired.push((*run, name.clone()));
                }
                turned.opened.push((*run, name.clone(), terms.clone()));
            }
            Verb::Stopped(run, why) => {
                let model = self.runs.entry(*run).or_default();
                (model.stopped, model.sealed) = (true, true);
                model.after.clear();
                turned.stopped.push((*run, *why));
            }
            Verb::Remembered(name) => {
                *turned.remembered.entry(name.clone()).or_default() += 1;
            }
            _ => {}
        }
    }

    /// Whether a job waits for another that has not ended.
    pub(crate) fn waits(&self, id: JobId) -> bool {
        let lives = |id: &JobId| self.jobs.get(id).is_some_and(|job| !job.state.is_end());
        // One that has begun was let go, and asked for a later start.
        self.jobs.get(&id).is_some_and(|job| job.state == State::Scheduled && job.record.starts == 0)
            && self.chains.get(&id).is_some_and(|after| after.iter().any(lives))
    }

    /// Whether a run takes no more jobs.
    fn is_shut(&self, run: RunId) -> bool {
        // A later generation has the terms of the first.
        let most = self.terms.get(&RunId::first(run.origin)).and_then(|terms| terms.job_limit);
        let full = |most: u64| self.jobs.values().filter(|job| job.run == Some(run)).count() as u64 >= most;
        self.runs.get(&run).is_some_and(|run| run.stopped) || most.is_some_and(full)
    }

    /// Who lives again has its key again, in the run where that is.
    fn retake_keys(&mut self, turned: &Turned) {
        let key = |id| Some((self.jobs.get(id)?.run?, *self.unique.get(id)?));
        self.keys.extend(turned.revived.iter().filter_map(key));
    }

    /// What was emitted came in with the end of its parent, but for what its run has seen before or takes no more.
    fn check_emitted(&mut self, verb: &Verb, turned: &mut Turned) -> Result<(), String> {
        let Verb::Emitted(emitted) = verb else { return Ok(()) };
        for Emission { id, unique, run, data, queue, parent } in emitted {
            turned.follow_ups.extend(parent.map(|parent| (parent, Arc::clone(queue))));
            let key = run.filter(|_| *unique).map(|run| (run, *data));
            let is_new = key.is_none_or(|key| self.keys.insert(key));
            match (is_new, self.jobs.contains_key(id)) {
                (true, true) => {
                    turned.emitted.push((*id, *data));
                    self.unique.extend(key.map(|(_, data)| (*id, data)));
                }
                (true, false) if run.is_some_and(|run| self.is_shut(run)) => {}
                (true, false) => return Err(format!("{id} was emitted and is not there")),
                (false, true) => return Err(format!("{id} is a duplicate and was taken in")),
                (false, false) => {}
            }
        }
        Ok(())
    }

    /// What people wished for single jobs, and what came of it.
    fn take_wishes(
        &mut self,
        verb: &Verb,
        turned: &mut Turned,
        touched: &mut BTreeSet<JobId>,
        left: &mut BTreeMap<JobId, Left>,
    ) {
        if let Verb::Amended(amended) = verb {
            for (id, amendment, what) in amended {
                touched.insert(*id);
                turned.amended.push(*id);
                self.acts.push(Act { id: *id, wish: Wish::Amend(*amendment), came: came(*what) });
                if *amendment == Amendment::Retry && matches!(what, Amended::Done { .. }) {
                    turned.revived.push(*id);
                }
            }
        }
        if let Verb::Deleted(deleted) = verb {
            for (id, came) in deleted {
                touched.insert(*id);
                self.acts.push(Act { id: *id, wish: Wish::Delete, came: *came });
                if let Came::Changed(from) = came {
                    left.insert(*id, Left::Deleted(*from));
                }
            }
        }
    }

    fn steer(&mut self, step: &Steer, turned: &mut Turned) {
        let (target, key) = match step {
            Steer::Set(made) => (&made.target, made.key),
            Steer::Unset(target, key) => (target, *key),
        };
        self.overrides.retain(|made| made.target != *target || made.key != key);
        if let Steer::Set(made) = step {
            if let (Target::Schedule(name), Key::Enabled, 1..) = (&made.target, made.key, made.value) {
                turned.enabled.insert(name.clone());
            }
            self.steered.insert(made.by.clone());
            self.overrides.push(made.clone());
        }
    }

    fn take_seals(&mut self, lot: &windlass::store::Lot) {
        for cursor in &lot.cursors {
            self.cursors.insert(cursor.origin, cursor.offset);
        }
        for seal in &lot.seals {
            let run = self.runs.entry(seal.run).or_default();
            if !run.sealed {
                run.sealed = seal.after.is_empty();
                run.after.extend_from_slice(&seal.after);
            }
        }
        for origin in &lot.closed {
            self.cursors.remove(origin);
            self.closed.insert(*origin);
        }
        for run in self.runs.values_mut().filter(|run| !run.after.is_empty()) {
            let read = |origin: &Origin| self.cursors.get(origin).copied().unwrap_or(0);
            run.after.retain(|(origin, offset)| read(origin) < *offset && !self.closed.contains(origin));
            run.sealed |= run.after.is_empty();
        }
    }

    /// Takes out what the store forgot, which must have ended before that time.
    fn forget(
        &mut self,
        before: Time,
        left: &BTreeMap<JobId, Left>,
        store: &Memory,
        undo: &mut Undo,
    ) -> Result<(), String> {
        let wrong = |error: windlass::store::StoreError| error.to_string();
        for (id, known) in &mut self.jobs {
            let kept = matches!(known.state, State::Failed | State::Cancelled) && !known.forgotten;
            let kept = kept && !left.contains_key(id);
            if !kept || store.job(*id).map_err(wrong)?.is_some() {
                continue;
            }
            if known.ended.is_none_or(|ended| ended >= before) {
                return Err(format!("{id} is gone and its retention is not over"));
            }
            undo.jobs.push((*id, Some(known.clone())));
            known.forgotten = true;
        }
        Ok(())
    }

    /// Takes out the runs that the store forgot before it took anything in: with them go their keys, and with the last
    /// of an origin its terms. Who comes to that origin afterwards, even in the same turn, begins a run like any other.
    fn forget_runs(&mut self, now: Time, store: &Memory, undo: &mut Undo) -> Result<(), String> {
        let mut gone = BTreeSet::new();
        for id in self.runs.iter().filter(|(_, run)| run.ended).map(|(id, _)| *id) {
            let found = store.run(id).map_err(|error| error.to_string())?;
            if found.is_none_or(|run| run.created == now) {
                gone.insert(id);
            }
        }
        self.runs.retain(|id, _| !gone.contains(id));
        self.keys.retain(|(run, _)| !gone.contains(run));
        for origin in gone.iter().map(|id| id.origin) {
            if !self.runs.keys().any(|run| run.origin == origin) {
                self.terms.remove(&RunId::first(origin));
            }
        }
        for (id, job) in self.jobs.iter_mut().filter(|(_, job)| job.run.is_some_and(|run| gone.contains(&run))) {
            undo.jobs.push((*id, Some(job.clone())));
            job.run = None;
        }
        Ok(())
    }

    /// Who comes too late for the run that it names, and finds that one forgotten, is in a later generation.
    fn drop_late_names(&mut self, committed: &Committed, store: &Memory) -> Result<(), String> {
        let named = committed.verbs.iter().filter_map(Verb::admitted).flat_map(|lot| &lot.jobs);
        for run in named.filter_map(|new| new.run).collect::<BTreeSet<_>>() {
            if store.run(run).map_err(|error| error.to_string())?.is_none() {
                self.runs.remove(&run);
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        id: JobId,
        before: Option<&Known>,
        left: Option<&Left>,
        store: &Memory,
    ) -> Result<Option<Known>, String> {
        let info = store.job(id).map_err(|error| error.to_string())?;
        match (info, before) {
            (Some(info), _) => {
                let name = info.queue.to_string();
                let queue = self.names.entry(name.clone()).or_insert_with(|| name.as_str().into()).clone();
                let (priority, kind, run, record) = (info.priority, info.kind, info.run, info.record);
                let (state, reason, data) = (info.state, info.reason, random::hash(&info.data));
                let ended = info.ended;
                let (forgotten, deleted) = (false, false);
                Ok(Some(Known { state, queue, priority, kind, run, record, reason, data, ended, forgotten, deleted }))
            }
            (None, Some(before)) if before.forgotten => Ok(None),
            (None, Some(before)) => match left {
                Some(Left::Succeeded) => Ok(Some(Known { state: State::Succeeded, ..before.clone() })),
                Some(Left::Deleted(from)) => {
                    let state = if from.is_end() { *from } else { State::Cancelled };
                    Ok(Some(Known { state, forgotten: true, deleted: true, ..before.clone() }))
                }
                None if before.state == State::Succeeded => Ok(None),
                None => Err(format!("{id} was {} and is gone", before.state)),
            },
            (None, None) => Ok(None),
        }
    }

    fn recount(&mut self, before: Option<&Known>, after: &Known) {
        let lives = |job: &Known| job.run.filter(|_| !job.state.is_end());
        if let Some(run) = before.and_then(lives) {
            self.runs.entry(run).or_default().live -= 1;
        }
        if let Some(id) = after.run {
            let model = self.runs.entry(id).or_default();
            // A later generation takes what comes until it ends: it is sealed from the start.
            model.sealed |= id.generation > 1;
            model.live += u64::from(!after.state.is_end());
        }
    }

    /// How many commits a power cut could take.
    pub(crate) fn at_risk(&self) -> usize {
        self.at_risk.len()
    }

    /// Goes back to the first `kept` commits since the last one that was on disk; names the jobs that changed.
    pub(crate) fn power_cut(&mut self, kept: usize) -> BTreeSet<JobId> {
        self.version += 1;
        let mut changed = BTreeSet::new();
        for undo in self.at_risk.drain(kept..).rev() {
            for (id, before) in undo.jobs.into_iter().rev() {
                changed.insert(id);
                match before {
                    Some(before) => self.jobs.insert(id, before),
                    None => self.jobs.remove(&id),
                };
            }
            self.settled.truncate(undo.settled);
            self.acts.truncate(undo.acts);
            self.runs = undo.runs.unwrap_or_default();
            self.cursors = undo.cursors.unwrap_or_default();
            self.overrides = undo.overrides.unwrap_or_default();
            self.keys = undo.keys.unwrap_or_default();
            self.terms = undo.terms.unwrap_or_default();
        }
        self.at_risk.clear();
        changed
    }

    /// Compares everything with the store.
    pub(crate) fn audit(&self, store: &Memory) -> Result<(), String> {
        for (id, known) in &self.jobs {
            let found = store.job(*id).map_err(|error| error.to_string())?.map(|job| job.state);
            let expected = Some(known.state).filter(|state| *state != State::Succeeded && !known.forgotten);
            if found != expected {
                return Err(format!("{id} is {found:?} in the store, expected {expected:?}"));
            }
        }
        Ok(())
    }
}
