//! Schedules in the turn: when their times come, their work is pushed in the transaction that remembers it.
//!
//! So a nominal time fires at most once, whatever is killed and whatever the clock does. Each firing is a run of its
//! own, sealed from the start: whoever asks whether last night's work is done asks for that run. Core decides what
//! fires (`windlass_core::schedule`); this file keeps what is remembered, as a note under the schedule's name.

use super::effects::Effects;
use super::event::{Answer, ScheduleInfo};
use super::obey::Wrote;
use super::turn::Progress;
use super::{Engine, Stopping, unique};
use crate::audit::{Audited, What};
use crate::error::{Failure, Kind};
use crate::schedule::Schedule;
use crate::store::chunk::ChunkBuilder;
use crate::store::{Durability, Lot, NewJobs, NewRun, Seal, Store, StoreError};
use crate::when;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::job::{Origin, RunId};
use windlass_core::overrides::{Key, Target};
use windlass_core::schedule::{LOOK_MAX, Memory, Step, look};
use windlass_core::time::Time;

/// Notes of schedules: this and the name.
const NOTES: &str = crate::store::SHARED;
/// More schedules than a config has.
const NOTES_MAX: usize = 1 << 20;

/// The schedules of the config, each with what is remembered of it.
#[derive(Debug, Default)]
pub(super) struct Schedules {
    all: Vec<Kept>,
    /// Notes of schedules that the config has no more: they are struck with the next look.
    gone: Vec<String>,
    /// Those whose work the database refuses, by name.
    failing: BTreeMap<String, Failing>,
    /// The one that pushes just now, and those that the open turn has fired.
    firing: Option<String>,
    fired: Vec<String>,
}

/// A schedule whose work is refused: its times wait, and are tried again.
#[derive(Debug)]
struct Failing {
    why: String,
    again_at: Time,
    pause: Duration,
}

/// How long it waits for another try at first, and at most.
const REFUSED_FIRST: Duration = Duration::from_secs(5);
const REFUSED_MOST: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Kept {
    schedule: Schedule,
    /// None until the first look: a schedule begins when it is first seen, not in 1970.
    memory: Option<Memory>,
    /// When its next time comes.
    next: Option<Time>,
    /// What is remembered is not in the notes yet.
    unsaved: bool,
    /// It was said that its mark lies far ahead of the clock.
    told_silent: bool,
}

impl Kept {
    /// What a note says of a schedule. One whose times are others now begins anew, from now on: it never had the times
    /// that passed.
    fn new(schedule: &Schedule, note: Option<&[u8]>, now: Time) -> Kept {
        let mut memory = note.and_then(decode);
        let times = note.and_then(times_in);
        let edited = times.is_some_and(|times| times != times_of(schedule));
        if let Some(memory) = memory.as_mut().filter(|_| edited) {
            memory.mark = memory.mark.max(now);
        }
        let next = memory.as_ref().and_then(|memory| schedule.cron.next(memory.mark));
        let unsaved = edited || memory.is_none();
        Kept { schedule: schedule.clone(), memory, next, unsaved, told_silent: false }
    }
}

impl Schedules {
    /// Takes over a set of schedules; what is remembered of them is in the notes.
    pub(super) fn load(&mut self, all: &[Schedule], store: &mut impl Store, now: Time) -> Result<(), StoreError> {
        let mut notes: BTreeMap<String, Vec<u8>> = store.notes(NOTES, NOTES_MAX)?.into_iter().collect();
        let kept = |schedule: &Schedule| Kept::new(schedule, notes.remove(&key_of(&schedule.name)).as_deref(), now);
        self.all = all.iter().map(kept).collect();
        self.gone = notes.into_keys().collect();
        self.failing.retain(|name, _| self.all.iter().any(|kept| kept.schedule.name == *name));
        Ok(())
    }

    /// Until when one waits that is refused; one whose clock was set back meanwhile does not.
    fn held_until(&self, name: &str, now: Time) -> Option<Time> {
        let at = self.failing.get(name)?.again_at;
        (at > now && at <= now.after(REFUSED_MOST)).then_some(at)
    }

    /// The turn is on disk: what it fired is refused no more.
    pub(super) fn keep_turn(&mut self, effects: &mut Effects) {
        for name in std::mem::take(&mut self.fired) {
            if self.failing.remove(&name).is_some() {
                effects.notes.push(format!("schedule `{name}` fires again"));
            }
        }
    }

    /// The turn never was. Tells which schedules it had fired, and whether one of them was about to push.
    pub(super) fn drop_turn(&mut self) -> (Vec<String>, bool) {
        let (fired, firing) = (std::mem::take(&mut self.fired), self.firing.take());
        match firing {
            Some(firing) => (vec![firing], true),
            None => (fired, false),
        }
    }

    /// The database refuses what these push: their times wait, and all else goes on.
    pub(super) fn refused(&mut self, names: Vec<String>, why: &str, now: Time, effects: &mut Effects) {
        for name in names {
            let before = self.failing.remove(&name);
            let pause = before.as_ref().map_or(REFUSED_FIRST, |before| (before.pause * 2).min(REFUSED_MOST));
            if before.is_none_or(|before| before.why != why) {
                effects.notes.push(format!(
                    "schedule `{name}`: the database refuses what it pushes, which is tried again: {why}"
                ));
            }
            self.failing.insert(name, Failing { why: why.to_owned(), again_at: now.after(pause), pause });
        }
    }

    /// Whether the end of this run lets a schedule go on that waits for it.
    pub(super) fn waits_for(&self, run: RunId) -> bool {
        let waiting = |memory: &Memory| memory.runs.contains(&run) && !memory.waiting.is_empty();
        self.all.iter().filter_map(|kept| kept.memory.as_ref()).any(waiting)
    }
}

impl<S: Store> Engine<S> {
    /// A person may have switched a schedule on or off.
    fn is_enabled(&self, schedule: &Schedule) -> bool {
        let target = Target::Schedule(schedule.name.clone());
        let over = self.scheduler.overrides().get(&target, Key::Enabled);
        over.map_or(schedule.enabled, |made| made.value != 0)
    }

    /// When the next time comes.
    pub(super) fn next_schedule(&self) -> Option<Time> {
        if !self.fires_schedules() {
            return None;
        }
        let held = |kept: &Kept| self.schedules.held_until(&kept.schedule.name, self.now);
        let unsaved = self.schedules.all.iter().any(|kept| kept.unsaved && held(kept).is_none());
        let new = (unsaved || !self.schedules.gone.is_empty()).then_some(Time::ZERO);
        let enabled = self.schedules.all.iter().filter(|kept| self.is_enabled(&kept.schedule));
        let times = enabled.filter_map(|kept| Some(kept.next?.max(held(kept).unwrap_or(Time::ZERO))));
        new.into_iter().chain(times).min()
    }

    /// What comes while a schedule is switched off has passed before anything in this turn can switch it on: whether
    /// the engine had a reason to turn meanwhile makes no difference.
    pub(super) fn pass_over_times(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if !self.fires_schedules() {
            return Ok(());
        }
        for at in 0..self.schedules.all.len() {
            let kept = &self.schedules.all[at];
            let target = Target::Schedule(kept.schedule.name.clone());
            let until = self.scheduler.overrides().get(&target, Key::Enabled).and_then(|made| made.until);
            let off_until = until.map_or(now, |until| until.min(now));
            if !self.is_enabled(&kept.schedule) && kept.next.is_some_and(|next| next <= off_until) {
                self.look_at_schedule(at, off_until, progress, effects)?;
            }
        }
        Ok(())
    }

    /// An engine that was told to stop, has no space or does not control fires nothing.
    fn fires_schedules(&self) -> bool {
        self.stopping == Stopping::No && self.full_until.is_none() && self.controls
    }

    /// Pushes the work of every time that has come.
    pub(super) fn look_at_schedules(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if !self.fires_schedules() {
            return Ok(());
        }
        for gone in std::mem::take(&mut self.schedules.gone) {
            self.store.note(&gone, None)?;
            progress.needs(Durability::Full);
        }
        for at in 0..self.schedules.all.len() {
            let kept = &self.schedules.all[at];
            let off = !self.is_enabled(&kept.schedule);
            let waits = kept.memory.as_ref().is_none_or(|memory| {
                let ended = !memory.runs.iter().any(|run| self.runs.by_id(*run).is_some());
                kept.next.is_some_and(|next| next <= now) || !memory.waiting.is_empty() && (ended || off)
            });
            if !waits && !kept.unsaved || self.schedules.held_until(&kept.schedule.name, now).is_some() {
                continue;
            }
            // One that was refused is tried alone, so that no other is blamed for it.
            let failed = self.schedules.failing.contains_key(&kept.schedule.name);
            if failed && !self.schedules.fired.is_empty() {
                self.turn_again = true;
                break;
            }
            self.look_at_schedule(at, now, progress, effects)?;
            if failed && !self.schedules.fired.is_empty() {
                self.turn_again = true;
                break;
            }
        }
        self.tell_of_silence(now, effects);
        Ok(())
    }

    fn look_at_schedule(
        &mut self,
        at: usize,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        let kept = &self.schedules.all[at];
        let schedule = kept.schedule.clone();
        let mut memory = kept.memory.clone().unwrap_or_else(|| Memory { mark: now, ..Memory::default() });
        memory.runs.retain(|run| self.runs.by_id(*run).is_some());
        let policies = (schedule.overlap, schedule.catch_up);
        let next = |after: Time| schedule.cron.next(after);
        let steps = if self.is_enabled(&schedule) {
            let jitter = &mut self.jitter;
            let run_of = |_| RunId::first(Origin::from_random(jitter.next()));
            look(&mut memory, policies, now, next, run_of)
        } else {
            // What passes while it is switched off is not made up for.
            memory.mark = now.max(memory.mark);
            memory.waiting.clear();
            Vec::new()
        };
        self.turn_again |= steps.len() >= LOOK_MAX;
        for step in steps {
            match step {
                Step::Fire { nominal, run, replace } => {
                    self.schedules.firing = Some(schedule.name.clone());
                    for old in replace {
                        self.sweep(old, &format!("schedule {}", schedule.name))?;
                    }
                    self.fire(&schedule, nominal, run, now)?;
                    self.schedules.fired.extend(self.schedules.firing.take());
                }
                Step::Skip { nominal, count } => {
                    effects.notes.push(skipped(&schedule, nominal, count, memory.runs.last()))
                }
            }
        }
        progress.needs(Durability::Full);
        self.remember(at, memory)
    }

    /// One run with one job, sealed: a job that lists the others emits them within it.
    fn fire(&mut self, schedule: &Schedule, nominal: Time, run: RunId, now: Time) -> Result<(), StoreError> {
        let name = format!("{}@{}", schedule.name, when::rfc3339(nominal));
        self.store.open_run(run, &NewRun { name, terms: schedule.terms.clone(), ..NewRun::default() }, now)?;
        let (origin, offset) = self.options.ids.take(1);
        let mut builder = ChunkBuilder::new(origin);
        builder.push(offset, &schedule.data(nominal));
        let jobs = Arc::new(builder.finish());
        let (queue, priority) = (schedule.first_queue.clone(), schedule.push.priority);
        let new = NewJobs { queue, priority, run: Some(run), not_before: None, jobs };
        let seals = vec![Seal { run, after: Vec::new() }];
        let mut lot = Lot { jobs: vec![new], seals, ..Lot::default() };
        unique::stamp(&mut lot, &self.scheduler);
        self.store.admit(&lot, now)
    }

    /// A person wants it now, whatever its times and its policies say.
    pub(super) fn fire_now(
        &mut self,
        name: &str,
        by: String,
        now: Time,
        answer: Answer<RunId>,
        effects: &mut Effects,
    ) -> Result<Wrote, StoreError> {
        if let Err(failure) = self.check_schedule(name) {
            effects.answers.add(answer, Err(failure));
            return Ok(false);
        }
        let Some(at) = self.schedules.all.iter().position(|kept| kept.schedule.name == name) else { return Ok(false) };
        let schedule = self.schedules.all[at].schedule.clone();
        let run = RunId::first(Origin::from_random(self.jitter.next()));
        match self.fire(&schedule, now, run, now) {
            Err(StoreError::Refused(what)) => {
                // What is said is the refusal of the turn.
                effects.answers.add(answer, Ok(run));
                return Err(StoreError::Refused(what));
            }
            fired => fired?,
        }
        self.remember_run(at, run, now)?;
        // It is under way from now on: a time that waits must not find it unknown, which is what an ended run is.
        let changes = self.store.changes();
        self.learn(changes, effects);
        let what = What::Fired { schedule: schedule.name, run };
        effects.audit.push(Audited { at: now, by, what });
        effects.answers.add(answer, Ok(run));
        Ok(true)
    }

    /// What a person began overlaps with its times as what they began themselves. Only who controls may write it down.
    fn remember_run(&mut self, at: usize, run: RunId, now: Time) -> Result<(), StoreError> {
        if !self.controls {
            return Ok(());
        }
        let known = self.schedules.all[at].memory.clone();
        let mut memory = known.unwrap_or_else(|| Memory { mark: now, ..Memory::default() });
        memory.runs.retain(|run| self.runs.by_id(*run).is_some());
        memory.began(run);
        self.remember(at, memory)
    }

    fn remember(&mut self, at: usize, memory: Memory) -> Result<(), StoreError> {
        let kept = &mut self.schedules.all[at];
        self.store.note(&key_of(&kept.schedule.name), Some(&encode(&memory, &kept.schedule)))?;
        kept.next = kept.schedule.cron.next(memory.mark);
        (kept.memory, kept.unsaved) = (Some(memory), false);
        Ok(())
    }

    /// A schedule that is switched on fires from now on, though a clock that was once far ahead has dealt with times
    /// that are yet to come.
    pub(super) fn end_silence(&mut self, name: &str, now: Time) -> Result<(), StoreError> {
        let Some(at) = self.schedules.all.iter().position(|kept| kept.schedule.name == name) else { return Ok(()) };
        let memory = self.schedules.all[at].memory.clone();
        match memory.filter(|memory| self.controls && memory.silent_until(now).is_some()) {
            Some(memory) => self.remember(at, Memory { mark: now, ..memory }),
            None => Ok(()),
        }
    }

    fn tell_of_silence(&mut self, now: Time, effects: &mut Effects) {
        for kept in &mut self.schedules.all {
            let silent = kept.memory.as_ref().and_then(|memory| memory.silent_until(now));
            if let Some(until) = silent.filter(|_| !kept.told_silent) {
                let (name, until) = (&kept.schedule.name, when::rfc3339(until));
                effects.notes.push(format!(
                    "schedule `{name}` is silent until {until}: the clock was there once, and a time fires at most \
                     once; windlass schedule enable {name} ends that"
                ));
            }
            kept.told_silent = silent.is_some();
        }
    }

    /// Refuses a name that the config does not have.
    pub(super) fn check_schedule(&self, name: &str) -> Result<(), Failure> {
        let known: Vec<&str> = self.schedules.all.iter().map(|kept| kept.schedule.name.as_str()).collect();
        let failure = Failure::new(Kind::NotFound, format!("no schedule `{name}`"));
        match known.len() {
            _ if known.contains(&name) => Ok(()),
            0 => Err(failure.hint("the config names none")),
            _ => Err(failure.hint(format!("there are: {}", known.join(", ")))),
        }
    }

    pub(super) fn schedule_infos(&self) -> Vec<ScheduleInfo> {
        let info = |kept: &Kept| {
            let memory = kept.memory.clone().unwrap_or_default();
            let enabled = self.is_enabled(&kept.schedule);
            let next = kept.next.filter(|_| enabled);
            let silent_until = memory.silent_until(self.now);
            let runs = memory.runs.iter().copied().filter(|run| self.runs.by_id(*run).is_some()).collect();
            let memory = Memory { runs, ..memory };
            let error = self.schedules.failing.get(&kept.schedule.name).map(|failing| failing.why.clone());
            ScheduleInfo { schedule: kept.schedule.clone(), memory, enabled, next, silent_until, error }
        };
        self.schedules.all.iter().map(info).collect()
    }
}

fn skipped(schedule: &Schedule, nominal: Time, count: u64, under_way: Option<&RunId>) -> String {
    let (name, time) = (&schedule.name, when::rfc3339(nominal));
    match (count, under_way) {
        (1, Some(run)) => format!("schedule `{name}`: {time} is left out, run {run} has not ended"),
        (1, None) => format!("schedule `{name}`: {time} is left out, it was missed"),
        (count, _) => format!("schedule `{name}`: {count} times up to {time} are left out"),
    }
}

fn key_of(name: &str) -> String {
    format!("{NOTES}{name}")
}

/// The times of a schedule, as its note has them: where they are others later, what it knows of times is not theirs.
fn times_of(schedule: &Schedule) -> String {
    format!("{} {}", schedule.cron, schedule.cron.zone_name())
}

/// Notes that were made before they had the times have none, and are taken for those of the schedule as it is.
fn times_in(note: &[u8]) -> Option<String> {
    let note: Value = serde_json::from_slice(note).ok()?;
    note["times"].as_str().map(str::to_owned)
}

fn encode(memory: &Memory, schedule: &Schedule) -> Vec<u8> {
    let micros = |time: &Time| time.0;
    let note = json!({
        "times": times_of(schedule),
        "mark": memory.mark.0,
        "waiting": memory.waiting.iter().map(micros).collect::<Vec<_>>(),
        "runs": memory.runs.iter().map(RunId::to_string).collect::<Vec<_>>(),
        "fired": memory.fired.as_ref().map(micros),
        "fired_count": memory.fired_count,
        "skipped_count": memory.skipped_count,
    });
    note.to_string().into_bytes()
}

fn decode(note: &[u8]) -> Option<Memory> {
    let note: Value = serde_json::from_slice(note).ok()?;
    let waiting = note["waiting"].as_array()?.iter().map(|time| time.as_i64().map(Time));
    // Before there could be several runs, there was one.
    let runs = note["runs"].as_array().map_or(std::slice::from_ref(&note["run"]), Vec::as_slice);
    Some(Memory {
        mark: Time(note["mark"].as_i64()?),
        waiting: waiting.collect::<Option<_>>()?,
        runs: runs.iter().filter_map(|run| run.as_str()?.parse().ok()).collect(),
        fired: note["fired"].as_i64().map(Time),
        fired_count: note["fired_count"].as_u64()?,
        skipped_count: note["skipped_count"].as_u64()?,
    })
}
