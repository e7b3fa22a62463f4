//! One turn: absorb, judge, settle, obey, admit, release, route, plan, claim, commit. Then, and only then, effects.
//!
//! The steps and their order are the whole of this file. Settling comes before planning, so that freed slots count
//! in the same turn; claiming comes last, so that a crash anywhere earlier costs nothing but a turn. A turn that
//! finds no space is dropped as a whole and memory is filled from the store again.

use super::destinations::Heard;
use super::dropped::Dropped;
use super::effects::Effects;
use super::event::{Answer, Event, Followed};
use super::look::Fence;
use super::lots::LotNews;
use super::stalemate::LOOK_AFTER;
use super::waiters::Then;
use super::{Engine, FULL_RETRY, OS_SYNC, Queues, RELEASE_MOST, failure, merge, unique};
use crate::archiver::{Entry, Ran};
use crate::error::{Failure, Kind};
use crate::runner::{Finished, Flight, Output, Stop};
use crate::sabotage::{self, Sabotage};
use crate::store::keys::Duplicate;
use crate::store::{Changes, Durability, JobInfo, Lot, Occasion, Settlement, Store, StoreError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use windlass_core::life_cycle::State;
use windlass_core::suspicion;
use windlass_core::time::Time;

/// The most bytes of pushed jobs that one turn takes in.
const PUSHED_MOST: usize = 8 << 20;
/// The same for the inbox: a full lot, and two more where they are few chunks. The bodies of those are on disk already,
/// so it is the sync of the turn that counts, and lots that came while the one before was under way share it.
const INGESTED_LEAST: usize = 4 << 20;
const INGESTED_MOST: usize = 12 << 20;

/// A turn that takes in lots of so many chunks, which are rows of the store, is long already: it starts nothing and
/// forgets nothing. The next one does, and takes nothing in from the inbox.
const WIDE: usize = 512;

/// What a turn has taken in from the inbox. Lots stay in order: where one has to wait, those behind it do.
#[derive(Debug)]
struct InboxRoom {
    bytes: usize,
    chunks: usize,
    shut: bool,
}

impl InboxRoom {
    /// Whether there is room for one more lot; then it is counted.
    fn takes(&mut self, lot: &Lot) -> bool {
        self.chunks += lot.jobs.len();
        self.shut |= self.bytes >= if self.chunks < WIDE { INGESTED_MOST } else { INGESTED_LEAST };
        self.bytes += footprint(lot);
        !self.shut
    }
}

/// What a turn took from the pending events; given back if the turn is dropped.
#[derive(Debug, Default)]
pub(super) struct Absorbed {
    pub(super) finished: Vec<Finished>,
    pub(super) ingested: Vec<Lot>,
    /// What was taken in from the inbox is enough for this turn.
    wide: bool,
    /// What has ended is settled; and the turn has begun to take in what came through the doors.
    pub(super) settled: bool,
    pub(super) admitted: bool,
    /// What is left in a lot here may turn out to be duplicates.
    pub(super) pushed: Vec<(Lot, Durability, Answer<Vec<Duplicate>>)>,
    /// What nobody has obeyed yet.
    pub(super) commands: VecDeque<Event>,
}

/// How strongly the turn must be committed, and what to undo if it cannot be.
#[derive(Debug, Default)]
pub(super) struct Progress {
    durability: Option<Durability>,
    pub(super) departed: Vec<Flight>,
    /// Reports that this turn writes, by flight, position and count.
    pub(super) reports: Vec<(Flight, u16, u16)>,
    /// Starts whose last report this turn writes.
    pub(super) landed: Vec<Flight>,
    pub(super) heard: Vec<Heard>,
    pub(super) lots: LotNews,
    /// What waits was told that the clock was set.
    shifted: bool,
    /// The store forgets what the archive holds.
    pub(super) forgets: bool,
}

impl Progress {
    pub(super) fn needs(&mut self, durability: Durability) {
        self.durability = self.durability.max(Some(durability));
    }

    /// Notes an end; those of one crew that say the same of one destination are heard of together.
    pub(super) fn hears(&mut self, heard: Heard) {
        match self.heard.last_mut() {
            Some(last) if last.joins(&heard) => last.jobs += heard.jobs,
            _ => self.heard.push(heard),
        }
    }
}

impl<S: Store> Engine<S> {
    /// Turns once. An error other than "no space" is final: the process ends and starts over from what is durable.
    pub fn turn(&mut self, now: Time, events: impl IntoIterator<Item = Event>) -> Result<Effects, StoreError> {
        self.measure_contention();
        self.turn_again = false;
        self.operations_wait = false;
        if self.suspects_at.is_some_and(|at| at <= now) {
            self.suspects_at = None;
            self.scheduler.allow_suspects();
        }
        self.pending.extend(events);
        let happened = !self.pending.is_empty();
        self.cure_stalemate()?;
        self.look_at_the_steady_clock(now);
        let mut effects = Effects::default();
        if self.stop_before_others_start(now, &mut effects) {
            // Whoever does not answer may take long to be asked, and what is said here is said with the turn's end.
            self.turn_again = true;
            return Ok(effects);
        }
        // What a turn that could not settle left unsaid is done by the next one, before that is tried again: who does
        // not answer may take longer than the time between two tries.
        let settles = !std::mem::take(&mut self.obeys_first) && self.look_at_the_clock(now, &mut effects)?;
        let said = effects.notes.len();
        self.queue_behind_the_refused();
        self.try_what_is_aside(now)?;
        let mut absorbed = self.absorb(settles);
        let mut progress = Progress::default();
        let worked = self.work(&mut absorbed, now, &mut progress, &mut effects);
        let remarks = self.store.remarks();
        match worked {
            Ok(()) => {
                effects.notes.extend(remarks);
                self.watch_for_stalemate(happened, now, &mut effects);
                self.after_commit(absorbed, progress, now, &mut effects);
                Ok(effects)
            }
            Err(error) => {
                let why = Dropped::of(error)?;
                // What a dropped turn said of itself did not happen; whoever does it will say it.
                effects.notes.truncate(said);
                effects.notes.extend(remarks);
                let mut effects = self.give_back(absorbed, &progress, why, now, effects)?;
                self.stop_what_overstays(now, &mut effects);
                Ok(effects)
            }
        }
    }

    /// Ends what is over. A clock that was set back must not stretch a wait of a second to hours, so a deadline that
    /// is further away than it was made is due as well. Tells whether what has ended may be settled in this turn:
    /// without space that is done once a second, because every turn costs some of the reserve.
    fn look_at_the_clock(&mut self, now: Time, effects: &mut Effects) -> Result<bool, StoreError> {
        let was_full = self.full_until;
        let set_back = |by: Time, most| by > now.after(most) && !sabotage::on(Sabotage::WallClockTrusted);
        let retries = !matches!(self.fence, Some(Fence::Told { .. }));
        let due = was_full.is_none_or(|until| retries && (until <= now || set_back(until, FULL_RETRY)));
        if was_full.is_some() && due {
            let was_away = self.away;
            let room = self.store.has_room() && self.read_what_was_missed()?;
            self.full_until = if room { None } else { Some(now.after(FULL_RETRY)) };
            if room {
                self.forget_at = Some(now);
                let back = if was_away { "the database answers again" } else { "there is space again" };
                effects.notes.push(format!("{back}: jobs are accepted and started"));
            }
        }
        let (sync, suspects, drain) = (&mut self.sync_by, &mut self.suspects_at, &mut self.drain_until);
        let (look, drains) = (&mut self.stalemates.look_at, self.options.drain);
        let most = [(sync, OS_SYNC), (suspects, suspicion::WAIT), (drain, drains), (look, LOOK_AFTER)];
        for (deadline, most) in most {
            *deadline = deadline.map(|by| if set_back(by, most) { now } else { by });
        }
        Ok(due)
    }

    /// Everything up to and including the commit.
    fn work(
        &mut self,
        absorbed: &mut Absorbed,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        // First of all: the times that this turn writes are on the new clock already.
        self.go_along_with_the_clock(progress, effects)?;
        self.leave_what_is_locked(&mut absorbed.finished, now)?;
        self.settle(&absorbed.finished, now, progress, effects)?;
        absorbed.settled = true;
        self.look_at_the_hours(now, effects);
        self.pass_over_times(now, progress, effects)?;
        self.end_overrides(now, progress, effects)?;
        while let Some(command) = absorbed.commands.pop_front() {
            self.obey(command, now, progress, effects)?;
        }
        self.go_on_with_operations(now, progress, effects)?;
        self.go_on_sweeping(now, progress, effects)?;
        self.look(now, progress)?;
        self.admit(absorbed, now, progress, effects)?;
        self.look_at_schedules(now, progress, effects)?;
        if !sabotage::on(Sabotage::DueForgotten) {
            self.release(now, progress)?;
        }
        let changes = self.store.changes();
        self.drop_checkpoints_of(&changes.expired)?;
        self.learn(changes, effects);
        self.look_at_run_terms(now, progress, effects)?;
        self.scheduler.set_stall(self.stall());
        if absorbed.wide {
            self.turn_again = true;
        } else {
            self.route(now, effects)?;
            self.claim(now, progress, effects)?;
            self.forget_what_is_archived(now, progress)?;
        }
        self.stop_what_overstays(now, effects);
        if self.sync_by.is_some_and(|by| by <= now) {
            progress.needs(Durability::Full);
        }
        if effects.has_ends() {
            // The archive may hold this turn's outcomes before a power cut: its number must not be given out again.
            let weak = sabotage::on(Sabotage::SettledWithoutSync);
            progress.needs(if weak { Durability::Os } else { Durability::Full });
        }
        if sabotage::on(Sabotage::AnswerBeforeCommit) {
            absorbed.pushed.drain(..).for_each(|(_, _, answer)| answer.give(Ok(Vec::new())));
        }
        if let Some(durability) = progress.durability {
            effects.turn = self.store.commit(durability)?;
            self.sync_by = match durability {
                Durability::Full => None,
                Durability::Os => self.sync_by.or(Some(now.after(OS_SYNC))),
            };
        } else {
            self.store.rest()?;
        }
        Ok(())
    }

    /// Takes all finished attempts and commands, and pushes up to the turn's budget.
    fn absorb(&mut self, settles: bool) -> Absorbed {
        let mut absorbed = Absorbed::default();
        let rests = std::mem::take(&mut self.was_wide);
        let (mut budget, mut inbox) = (PUSHED_MOST, InboxRoom { bytes: 0, chunks: 0, shut: rests });
        let (accepts, mut most) = (self.full_until.is_none(), self.one_by_one.take_turn());
        for event in std::mem::take(&mut self.pending) {
            match event {
                Event::Finished(finished) if settles && most.takes_end() => absorbed.finished.push(finished),
                Event::Ingested(lot) if accepts && inbox.takes(&lot) && most.takes_lot() => absorbed.ingested.push(lot),
                Event::Pushed { lot, durability, answer } if accepts && budget > 0 && most.takes_lot() => {
                    budget = budget.saturating_sub(footprint(&lot));
                    absorbed.pushed.push((lot, durability, answer));
                }
                Event::Pushed { answer, .. } if !accepts => {
                    let why = self.dropped_before();
                    answer.give(Err(why.failure()))
                }
                Event::Finished(_) | Event::Ingested(_) | Event::Pushed { .. } => self.pending.push_back(event),
                Event::OpenRun { .. }
                | Event::SealRun { .. }
                | Event::Archived { .. }
                | Event::Amend { .. }
                | Event::Operate { .. }
                | Event::OpenOperation { .. }
                | Event::StageOperation { .. }
                | Event::AcceptOperation { .. }
                | Event::AbandonOperation { .. }
                | Event::Operations { .. }
                | Event::Watch { .. }
                | Event::AwaitRun { .. }
                | Event::AwaitDrained { .. }
                | Event::CatchUp { .. }
                | Event::InboxRead { .. }
                | Event::Follow { .. }
                | Event::Forget { .. }
                | Event::Reload { .. }
                | Event::Workers { .. }
                | Event::Speak { .. }
                | Event::HandlerFiles(_)
                | Event::Steer { .. }
                | Event::FireSchedule { .. }
                | Event::DrainServer { .. }
                | Event::Schedules { .. }
                | Event::Explain { .. }
                | Event::Closed { .. }
                | Event::Aside { .. }
                | Event::Flights { .. }
                | Event::Contention { .. }
                | Event::Dump { .. }
                | Event::Depart { .. }
                | Event::KnownLot { .. }
                | Event::Parcel { .. }
                | Event::LotSettled { .. }
                | Event::Ask(_)
                | Event::Unask { .. }
                | Event::Nudge
                | Event::Look
                | Event::ClockSet
                | Event::Quiet
                | Event::Drain
                | Event::Halt => absorbed.commands.push_back(event),
            }
        }
        absorbed.wide = absorbed.ingested.iter().map(|lot| lot.jobs.len()).sum::<usize>() >= WIDE;
        self.was_wide = absorbed.wide;
        absorbed
    }

    /// Takes in what came through the doors: the inbox first, so that an append that returned first is first.
    fn admit(
        &mut self,
        absorbed: &mut Absorbed,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        absorbed.admitted = true;
        for lot in &mut absorbed.ingested {
            unique::stamp(lot, &self.scheduler);
            // An inbox file may be removed once its lot is committed, so that commit must be on disk.
            let weak = sabotage::on(Sabotage::IngestedWithoutSync);
            progress.needs(if weak { Durability::Os } else { Durability::Full });
            self.store.admit(lot, now)?;
            let aside = std::mem::take(&mut lot.aside);
            let kept = self.set_aside(&aside, now, effects);
            self.waiters.missed_now.failed += aside.iter().map(|refused| refused.jobs.jobs.len() as u64).sum::<u64>();
            // Where the turn is dropped, it comes again.
            lot.aside = aside;
            kept?;
            effects.ingested += 1;
        }
        self.admit_what_was_aside(now, progress, effects)?;
        let mut together = Lot::default();
        let mut refused = Vec::new();
        let mut taken = BTreeMap::new();
        for (index, (lot, durability, _)) in absorbed.pushed.iter_mut().enumerate() {
            unique::stamp(lot, &self.scheduler);
            let free = self.refuse_taken_keys(lot)?;
            let fits = match free {
                Ok(()) => self.refuse_over_limit(lot, &mut taken)?,
                refused => refused,
            };
            if let Err(failure) = fits.and_then(|()| self.check_taken(lot)) {
                refused.push((index, failure));
                continue;
            }
            progress.needs(*durability);
            // Where the turn is refused, what it is made of comes again.
            together.jobs.extend(lot.jobs.iter().cloned());
            if lot.taken.is_some() || !lot.seals.is_empty() {
                let rest = Lot { taken: lot.taken, seals: lot.seals.clone(), ..Lot::default() };
                self.store.admit(&rest, now)?;
            }
        }
        if !together.jobs.is_empty() {
            together.jobs = merge::merge(together.jobs);
            self.store.admit(&together, now)?;
        }
        for (index, failure) in refused.into_iter().rev() {
            let (_, _, answer) = absorbed.pushed.remove(index);
            effects.answers.add(answer, Err(failure));
        }
        Ok(())
    }

    /// A run's input goes on only from where it stands; memory is the first to know.
    fn check_taken(&mut self, lot: &Lot) -> Result<(), Failure> {
        let Some((id, from, to)) = lot.taken else { return Ok(()) };
        let Some(run) = self.runs.by_id_mut(id) else {
            return Err(Failure::new(Kind::NotFound, format!("no unfinished run {id}")));
        };
        if run.info.taken != from || run.info.counts.sealed {
            let text = format!("run {id} has taken {} lines, expected {}", run.info.taken.lines, from.lines);
            return Err(Failure::new(Kind::Conflict, text).hint("another `windlass run` of that name feeds it"));
        }
        run.info.taken = to;
        Ok(())
    }

    fn release(&mut self, now: Time, progress: &mut Progress) -> Result<(), StoreError> {
        if self.full_until.is_none() && self.store.next_due()?.is_some_and(|due| due <= now) {
            let (options, handlers) = (&self.options, &self.handlers);
            let late = |info: &JobInfo, run| failure::of_failed(info, run, options, handlers);
            self.store.release(now, RELEASE_MOST, &late)?;
            progress.needs(self.options.durability);
        }
        Ok(())
    }

    /// A wall clock that was set changes no wait but those for a time that somebody named.
    fn go_along_with_the_clock(&mut self, progress: &mut Progress, effects: &mut Effects) -> Result<(), StoreError> {
        if self.jumped == 0 || self.full_until.is_some() {
            return Ok(());
        }
        progress.shifted = true;
        if !self.store.shift_waits(self.jumped)? {
            return Ok(());
        }
        progress.needs(self.options.durability);
        let (seconds, way) = (self.jumped.unsigned_abs() / 1_000_000, if self.jumped > 0 { "forward" } else { "back" });
        effects.notes.push(format!("the clock was set {way} by {seconds} s: who waits for another try waits as long"));
        Ok(())
    }

    /// A drain has an end: what still runs then goes back without a charge.
    fn stop_what_overstays(&mut self, now: Time, effects: &mut Effects) {
        if self.drain_until.is_some_and(|until| until <= now) {
            self.drain_until = None;
            effects.stops.extend(self.flights.stop(|flight| !flight.stays(), Stop::Interrupt));
        }
    }

    /// Takes over what the store says has changed: counters, lanes, runs.
    pub(super) fn learn(&mut self, changes: Changes, effects: &mut Effects) {
        for (no, name) in &changes.queues {
            self.scheduler.queue_appeared(*no, name);
            self.queues.add(*no, name.clone());
        }
        for info in &changes.runs {
            self.runs.learn(info.clone(), self.options.serve_open_runs, &mut self.scheduler);
        }
        for step in &changes.moves {
            let count = step.count as i64;
            if step.from == Some(State::Ready) {
                self.scheduler.ready(step.lane, -count);
            }
            if step.to == Some(State::Ready) {
                self.scheduler.ready(step.lane, count);
                self.changed.insert(step.lane.queue);
            }
        }
        self.count(&changes);
        effects.ended.extend(changes.ended);
        effects.duplicates.extend(changes.duplicates);
        self.tell_of_dropped(&changes.beyond_limit, effects);
        effects.cancelled.extend(changes.overdue);
        let expired = changes.expired.iter();
        effects.archive.extend(expired.map(|last| entry(&self.queues, &self.runs, last, Output::default())));
    }

    /// Keeps the counters of queues and runs in step with the store's.
    pub(super) fn count(&mut self, changes: &Changes) {
        for step in &changes.moves {
            for (state, sign) in [(step.from, -1), (step.to, 1)] {
                if matches!(state, Some(State::Scheduled | State::Retrying)) {
                    self.scheduler.put_off(step.lane.queue, sign * step.count as i64);
                }
            }
            let ready = |state: Option<State>| if state == Some(State::Ready) { step.count } else { 0 };
            self.ready = (self.ready + ready(step.to)).saturating_sub(ready(step.from));
            let counts = &mut self.queues[step.lane.queue].by_state;
            if let Some(from) = step.from {
                counts[from.index()] = counts[from.index()].saturating_sub(step.count);
            }
            if let Some(to) = step.to {
                counts[to.index()] += step.count;
                let missed = &mut self.waiters.missed_now;
                match to {
                    State::Failed if step.from.is_some() => missed.failed += step.count,
                    State::Cancelled if step.from.is_some() => missed.cancelled += step.count,
                    State::Failed | State::Cancelled | State::Succeeded | State::Scheduled => {}
                    State::Ready | State::Running | State::Retrying | State::Suspended => {}
                }
            }
            let Some(run) = step.run.and_then(|no| self.runs.get_mut(no)) else { continue };
            let by_state = &mut run.info.counts.by_state;
            if let Some(from) = step.from {
                by_state[from.index()] = by_state[from.index()].saturating_sub(step.count);
            }
            if let Some(to) = step.to {
                by_state[to.index()] += step.count;
            }
        }
    }

    /// The turn is on disk: now others may hear of it.
    fn after_commit(&mut self, absorbed: Absorbed, progress: Progress, now: Time, effects: &mut Effects) {
        self.look_because = Occasion::Time;
        self.jumped = if progress.shifted { 0 } else { self.jumped };
        self.forget_at = self.forget_at.filter(|_| !progress.forgets);
        self.turn_again |= self.store.has_news();
        self.keep_rules();
        self.lots.keep(progress.lots, now, effects);
        self.aside.keep_turn(now);
        self.schedules.keep_turn(effects);
        self.tell_of_operations(effects);
        progress.heard.iter().for_each(|heard| self.hear_of_ends(heard));
        self.asks.keep();
        self.waiters.missed = self.waiters.missed_now;
        for flight in &progress.landed {
            self.flights.forget(*flight);
        }
        for job in std::mem::take(&mut effects.cancelled) {
            effects.stops.extend(self.flights.stop_job(job, Stop::Cancel));
            effects.cancels.extend(self.flights.find_shared(job));
        }
        let duplicates =
            std::mem::take(&mut effects.duplicates).into_iter().map(|found| (found.id, found.of)).collect();
        for (lot, _, answer) in absorbed.pushed {
            effects.answers.add(answer, Ok(unique::duplicates_in(&lot, &duplicates)));
        }
        if effects.has_ends() {
            self.settled = effects.turn;
        }
        self.tell_followers(effects, now);
        for info in std::mem::take(&mut effects.ended) {
            self.waiters.tell(&Followed::Ended(info.clone()));
            for answer in self.runs.end(&info, &mut self.scheduler) {
                effects.answers.add(answer, Ok(info.clone()));
            }
            self.turn_again |= self.schedules.waits_for(info.id);
            self.paces.retain(|crew, _| self.scheduler.policy(*crew).is_some());
        }
        self.look_if_drained(effects);
    }

    /// Once the store is quiet the inbox is read to its end; if it is quiet still, everything is done.
    fn look_if_drained(&mut self, effects: &mut Effects) {
        // What waits in the inbox for a database that refuses it is not done.
        let waits = self.waiters.reading_for_drained || !self.one_by_one.waiting.is_empty();
        if waits || !self.waiters.drained.iter().any(|waiter| self.satisfies(waiter)) {
            return;
        }
        self.waiters.reading_for_drained = true;
        effects.read_inbox.push(self.waiters.read_inbox(Then::Drained));
    }
}

fn footprint(lot: &Lot) -> usize {
    lot.jobs.iter().map(|new| new.jobs.footprint()).sum()
}

/// The archive's entry of something that ended without being run.
pub(super) fn entry(queues: &Queues, runs: &super::runs::Runs, settlement: &Settlement, output: Output) -> Entry {
    let state = settlement.verdict.state();
    let queue = Arc::clone(&queues[settlement.held.lane.queue].name);
    let run = settlement.held.run.and_then(|no| runs.get(no)).map(|run| run.info.id);
    Entry { settlement: settlement.clone(), queue, run, output, state, ran: Ran::Not }
}
