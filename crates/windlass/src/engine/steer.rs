//! What people change while running, and what the clock ends: overrides, reloads, hours, and the question why.
//!
//! A change holds for the plan of the turn that takes it, so that nothing starts after its answer. It is in the same
//! transaction; a turn that is dropped takes it back. It must not decide what may start: the scheduler does.

use super::effects::Effects;
use super::event::{Answer, NewRules, QueueExplained, Steered, Steering};
use super::obey::Wrote;
use super::turn::Progress;
use super::{Engine, Stopping};
use crate::audit::{Action, Audited, What};
use crate::error::{Failure, Kind};
use crate::runner::Stop;
use crate::store::{Durability, Steer, Store, StoreError};
use std::collections::BTreeMap;
use windlass_core::failure::Handlers;
use windlass_core::job::{Lane, LaneKind, Priority, QueueName, QueueNo};
use windlass_core::life_cycle::State;
use windlass_core::overrides::{Key, Override, Overrides, REASON_MAX, Target};
use windlass_core::policy::{HandlerFiles, Policy, pattern_matches};
use windlass_core::scheduler::{Closed, Reason, Stall};
use windlass_core::time::Time;

/// More than anybody makes by hand; a script that goes wrong must not slow every change down.
const OVERRIDES_MAX: usize = 1000;

impl<S: Store> Engine<S> {
    /// Makes and drops overrides: all of them, or none with the reason.
    pub(super) fn steer(
        &mut self,
        steering: Steering,
        answer: Answer<Steered>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Wrote, StoreError> {
        let Steering { set, unset, by } = steering;
        if let Err(failure) = set.iter().try_for_each(|new| self.check_override(new, now)) {
            effects.answers.add(answer, Err(failure));
            return Ok(false);
        }
        let mut overrides = self.scheduler.overrides().clone();
        let named = |made: &Override| unset.iter().any(|(target, key)| is_named(made, target, *key));
        let removed: Vec<Override> = overrides.iter().filter(|made| named(made)).cloned().collect();
        for old in &removed {
            self.store.steer(&Steer::Unset(old.target.clone(), old.key))?;
            overrides.unset(&old.target, old.key);
            let what = What::Override(Action::Unset, old.clone());
            effects.audit.push(Audited { at: now, by: by.clone(), what });
        }
        let changed = !removed.is_empty() || !set.is_empty();
        for new in set {
            let new = Override { by: by.clone(), since: now, ..new };
            self.store.steer(&Steer::Set(new.clone()))?;
            if let (Target::Schedule(name), Key::Enabled, 1..) = (&new.target, new.key, new.value) {
                self.end_silence(name, now)?;
            }
            overrides.set(new.clone());
            effects.audit.push(Audited { at: now, by: by.clone(), what: What::Override(Action::Set, new) });
        }
        let in_force = overrides.iter().cloned().collect();
        if changed {
            self.scheduler.steer(overrides);
            self.rules_changed(effects);
        }
        effects.answers.add(answer, Ok(Steered { removed, in_force }));
        Ok(changed)
    }

    fn check_override(&self, new: &Override, now: Time) -> Result<(), Failure> {
        let refuse = |text: String| Failure::new(Kind::BadData, text);
        new.key.check(&new.target, new.value).map_err(refuse)?;
        if new.until.is_some_and(|until| until <= now) {
            return Err(refuse("the time at which it ends has passed".into()));
        }
        if new.reason.len() > REASON_MAX || new.reason.chars().any(char::is_control) {
            return Err(refuse(format!("a reason has at most {REASON_MAX} bytes and no control characters")));
        }
        if self.scheduler.overrides().iter().count() >= OVERRIDES_MAX {
            let text = format!("there are {OVERRIDES_MAX} overrides already, no more are taken");
            return Err(Failure::new(Kind::Conflict, text).hint("windlass config unset removes some"));
        }
        let pattern = match &new.target {
            Target::Server => return Ok(()),
            Target::Schedule(name) => return self.check_schedule(name),
            Target::Queues(pattern) => pattern,
        };
        QueueName::new(pattern.as_bytes()).map_err(|bad| refuse(bad.to_string()))?;
        // A process that only answers does not know the config; what does not fit then has no effect.
        if new.key == Key::Paused || self.only_answers() {
            return Ok(());
        }
        self.check_table(pattern, new.key, new.value)
    }

    /// Slots may be given to one queue; everything else belongs to a table of the config.
    fn check_table(&self, pattern: &str, key: Key, value: u32) -> Result<(), Failure> {
        let tables = self.policies();
        let of_runs = self.runs.iter().filter_map(|run| run.service.as_ref());
        let of_run = of_runs.into_iter().any(|service| service.queue == pattern);
        if let Some(table) = tables.iter().find(|policy| policy.pattern == pattern) {
            let nothing = table.service.command().is_some_and(|command| command.argv.is_empty());
            if key == Key::Enabled && value != 0 && nothing {
                let text = format!("the table of queue `{pattern}` has no `run`, so it cannot be enabled");
                return Err(Failure::new(Kind::Conflict, text).hint("add it to the config and reload"));
            }
            return Ok(());
        }
        if of_run || key == Key::Slots && !pattern.contains('*') {
            return Ok(());
        }
        let text = format!("the config has no table for exactly `{pattern}`, and `{}` belongs to a table", key.word());
        let serving =
            tables.iter().find(|policy| policy.serves(pattern, self.scheduler.files())).map(|policy| &policy.pattern);
        Err(match serving {
            Some(table) => Failure::new(Kind::NotFound, text).hint(format!("the table that serves it is `{table}`")),
            None => Failure::new(Kind::NotFound, text),
        })
    }

    /// Overrides whose time has come end by themselves.
    pub(super) fn end_overrides(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        let ended: Vec<Override> = match self.full_until {
            None => self.scheduler.overrides().ended(now).cloned().collect(),
            // It could not be stored.
            Some(_) => Vec::new(),
        };
        if ended.is_empty() {
            return Ok(());
        }
        let mut overrides = self.scheduler.overrides().clone();
        for old in ended {
            self.store.steer(&Steer::Unset(old.target.clone(), old.key))?;
            overrides.unset(&old.target, old.key);
            effects.notes.push(format!("`{}` of {} by {} has ended", old.key.word(), old.target, old.by));
            effects.audit.push(Audited { at: now, by: "windlass".into(), what: What::Override(Action::End, old) });
        }
        self.scheduler.steer(overrides);
        self.rules_changed(effects);
        progress.needs(Durability::Full);
        Ok(())
    }

    /// Hours may have begun or ended.
    pub(super) fn look_at_the_hours(&mut self, now: Time, effects: &mut Effects) {
        if self.scheduler.tell_time(now) {
            self.rules_changed(effects);
        }
    }

    /// Queues may have come to other rules: those that wait for a full batch are looked at again, and what may not
    /// start any more is taken back.
    fn rules_changed(&mut self, effects: &mut Effects) {
        self.changed.extend(self.lingering.queues());
        self.withdraw(effects);
    }

    /// What was claimed ahead for queues that are closed now goes back, if it has not begun.
    fn withdraw(&mut self, effects: &mut Effects) {
        let scheduler = &self.scheduler;
        let closed = |queue: QueueNo| scheduler.is_closed(queue);
        effects.stops.extend(
            self.flights.stop(|flight| flight.stretches().any(|(_, held)| closed(held.lane.queue)), Stop::Withdraw),
        );
    }

    /// Handler files came or went: their queues are served by others from this turn's plan on.
    pub(super) fn take_files(&mut self, files: HandlerFiles, effects: &mut Effects) {
        self.changed.extend(self.scheduler.set_files(files));
        self.rules_changed(effects);
    }

    /// New rules hold from this turn's plan on; the old ones are kept until it is committed.
    pub(super) fn reload(
        &mut self,
        new: NewRules,
        answer: Answer<()>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        self.scheduler.reload(new.policies.clone(), new.slots);
        self.scheduler.subscribe(new.router.clone());
        self.handlers = Handlers::of(&new.policies, &new.router);
        self.scheduler.set_memory(new.memory);
        self.changed.extend(self.queues.iter().map(|(no, _)| no));
        self.schedules.load(&new.schedules, &mut self.store, now)?;
        self.rules_changed(effects);
        let (changed, restart) = (new.changed.clone(), new.restart.clone());
        effects.audit.push(Audited { at: now, by: new.by.clone(), what: What::Reload { changed, restart } });
        effects.answers.add(answer, Ok(()));
        self.new_rules = Some(new);
        Ok(())
    }

    /// The turn is on disk, and its rules are those to go back to from now on.
    pub(super) fn keep_rules(&mut self) {
        if let Some(NewRules { policies, slots, memory, schedules, router, .. }) = self.new_rules.take() {
            self.options.policies = policies;
            self.options.slots = slots;
            self.options.memory = memory;
            self.options.schedules = schedules;
            self.options.router = router;
            self.destinations.keep_crews(|crew| self.scheduler.policy(crew).is_some());
        }
    }

    /// The turn was dropped, and its rules with it.
    pub(super) fn drop_rules(&mut self) {
        if self.new_rules.take().is_some() {
            self.scheduler.reload(self.options.policies.clone(), self.options.slots);
            self.scheduler.subscribe(self.options.router.clone());
            self.handlers = Handlers::of(&self.options.policies, &self.options.router);
            self.scheduler.set_memory(self.options.memory);
            self.changed.extend(self.queues.iter().map(|(no, _)| no));
        }
    }

    /// The overrides as the store has them: at start, with each look at what others did, and after a turn that had to
    /// be dropped.
    pub(super) fn fill_overrides(&mut self) -> Result<(), StoreError> {
        let stored = Overrides::new(self.store.overrides()?);
        if stored != *self.scheduler.overrides() {
            self.scheduler.steer(stored);
        }
        Ok(())
    }

    /// The config's tables as this turn has them.
    pub(super) fn policies(&self) -> &[Policy] {
        self.new_rules.as_ref().map_or(&self.options.policies, |new| &new.policies)
    }

    /// True for a process that is only there to answer; one with handlers of its own serves their queues.
    fn only_answers(&self) -> bool {
        !self.options.serves_runs && self.policies().is_empty()
    }

    /// Why the server as a whole starts nothing, apart from what a person ordered.
    pub(super) fn stall(&self) -> Option<Stall> {
        if self.only_answers() {
            Some(Stall::NotServing)
        } else if self.away {
            Some(Stall::StoreAway)
        } else if self.full_until.is_some() {
            Some(Stall::NoSpace)
        } else if self.hushed {
            Some(Stall::Quiet)
        } else if !self.archive_keeps_up {
            Some(Stall::ArchiveBehind)
        } else {
            None
        }
    }

    /// What holds a queue back, or the jobs of one of its lanes.
    pub(super) fn explain(&mut self, name: &str, lane: Option<(Priority, LaneKind)>, data: &[u8]) -> QueueExplained {
        self.scheduler.set_stall(self.stall());
        let found = self.queues.iter().find(|(_, queue)| queue.name.as_str() == name);
        let Some((no, queue)) = found else {
            let table = self
                .policies()
                .iter()
                .find(|policy| policy.serves(name, self.scheduler.files()))
                .map(|p| p.pattern.clone());
            let reason = match &table {
                _ if self.only_answers() => Reason::Stalled(Stall::NotServing),
                Some(_) => Reason::NothingWaits,
                None => Reason::NoRunner,
            };
            let by_state = Default::default();
            return QueueExplained {
                reason,
                table,
                ahead: 0,
                by_state,
                destination: None,
                known: false,
                stalemate: None,
            };
        };
        let (priority, kind) = lane.unwrap_or((Priority::NORMAL, LaneKind::Fresh));
        let explained = self.scheduler.explain(Lane { queue: no, priority, kind });
        let ahead = if lane.is_some() { explained.ahead } else { 0 };
        let (reason, table) = (explained.reason, explained.table);
        let crew = self.scheduler.policy_of(no).map(|(crew, _)| crew).filter(|_| lane.is_some());
        let destination = crew.and_then(|crew| self.held_destination(name, crew, data));
        let (by_state, stalemate) = (queue.by_state, self.stalemates.suspects(no));
        QueueExplained { reason, table, ahead, by_state, destination, known: true, stalemate }
    }

    /// Queues that a person or the hours closed.
    pub(super) fn closed_queues(&self) -> BTreeMap<String, Closed> {
        let closed = self.queues.iter().filter_map(|(no, queue)| Some((queue, self.scheduler.closed(no)?)));
        closed.map(|(queue, closed)| (queue.name.to_string(), closed)).collect()
    }

    /// When hours or an override end next; an engine that was told to stop has no use for it.
    pub(super) fn next_steering(&self) -> Option<Time> {
        if self.stopping != Stopping::No {
            return None;
        }
        let ends = self.scheduler.overrides().next_end().filter(|_| self.full_until.is_none());
        [ends, self.scheduler.next_hours()].into_iter().flatten().min()
    }

    /// The number of a queue's jobs that have not ended.
    pub(super) fn live(by_state: &[u64; State::ALL.len()]) -> u64 {
        State::ALL.iter().filter(|state| !state.is_end()).map(|state| by_state[state.index()]).sum()
    }
}

/// A pattern names the overrides of everything that it covers; no key names all of them.
fn is_named(made: &Override, target: &Target, key: Option<Key>) -> bool {
    let covered = match (target, &made.target) {
        (Target::Queues(pattern), Target::Queues(of)) => pattern_matches(pattern.as_bytes(), of.as_bytes()),
        (target, of) => target == of,
    };
    covered && key.is_none_or(|key| key == made.key)
}
