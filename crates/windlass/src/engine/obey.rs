//! What people and other parts ask of the engine: each command in the turn that absorbed it.

use super::effects::Effects;
use super::event::{Answer, Event, FlightInfo, Follower, OpenRun, RunService, Wish};
use super::turn::Progress;
use super::waiters::{DrainedWaiter, Then};
use super::{Engine, Stopping, TOGETHER, spec};
use crate::audit::Audited;
use crate::error::{Failure, Kind};
use crate::runner::{Flight, Stop};
use crate::store::{Amended, Amendment, Durability, Lot, NewRun, Occasion, RunInfo, Seal, Store, StoreError};
use std::collections::{BTreeMap, HashMap, HashSet};
use windlass_core::job::{JobId, Origin, QueueName, RunId};
use windlass_core::policy::Service;
use windlass_core::scheduler::CrewNo;
use windlass_core::time::Time;

/// What a command did to the turn: nothing, or something that must be on disk before it is answered.
pub(super) type Wrote = bool;

impl<S: Store> Engine<S> {
    /// Does one command; events that are not commands are absorbed elsewhere.
    pub(super) fn command(&mut self, event: Event, now: Time, effects: &mut Effects) -> Result<Wrote, StoreError> {
        match event {
            Event::OpenRun { request, answer } => return self.open_run(request, answer, now, effects),
            Event::Amend { ids, amendment, by, answer } => {
                let (amended, wrote) = self.amend(&ids, amendment, &by, now, effects)?;
                effects.answers.add(answer, Ok(amended));
                return Ok(wrote);
            }
            Event::Operate { .. }
            | Event::OpenOperation { .. }
            | Event::StageOperation { .. }
            | Event::AcceptOperation { .. }
            | Event::AbandonOperation { .. }
            | Event::Operations { .. } => return self.operate(event, now, effects),
            Event::Watch { follower, answer } => {
                self.waiters.watchers.push(follower);
                effects.answers.add(answer, Ok(()));
            }
            Event::InboxRead { waiter } => return self.inbox_was_read(waiter, now, effects),
            Event::Archived { turn } => self.archived_up_to(turn, now, effects),
            Event::Forget { before } => return self.forget(before, now),
            Event::SealRun { run, answer } => self.after_inbox(Then::Seal(run, answer), effects),
            Event::AwaitRun { run, answer } => {
                if let Err(answer) = self.runs.await_end(run, answer) {
                    self.after_inbox(Then::AwaitRun(run, answer), effects);
                }
            }
            Event::AwaitDrained { due_only, here_only, answer } => {
                let before = self.waiters.missed;
                self.waiters.drained.push(DrainedWaiter { answer, before, due_only, here_only });
            }
            Event::CatchUp { answer } => self.after_inbox(Then::CatchUp(answer), effects),
            Event::Follow { run, follower, answer } => self.follow(run, follower, answer, effects),
            Event::Reload { new, answer } => self.reload(new, answer, now, effects)?,
            Event::Workers { table, alive } => self.scheduler.set_workers(&table, alive),
            Event::Speak { flight, channel, lines, answer } => {
                return self.keep_spoken(flight, channel, &lines, answer, effects);
            }
            Event::HandlerFiles(files) => self.take_files(files, effects),
            Event::Steer { steering, answer } => return self.steer(steering, answer, now, effects),
            Event::DrainServer { name, answer } => return self.drain_other(&name, answer, effects),
            Event::FireSchedule { name, by, answer } => return self.fire_now(&name, by, now, answer, effects),
            Event::Schedules { answer } => effects.answers.add(answer, Ok(self.schedule_infos())),
            Event::Explain { queue, lane, data, answer } => {
                let explained = self.explain(&queue, lane, &data);
                effects.answers.add(answer, Ok(explained));
            }
            Event::Aside { answer } => effects.answers.add(answer, Ok(self.aside.infos())),
            Event::Closed { answer } => effects.answers.add(answer, Ok(self.closed_queues())),
            Event::Flights { answer } => effects.answers.add(answer, Ok(self.flight_infos())),
            Event::Contention { answer } => effects.answers.add(answer, Ok(self.held_for())),
            Event::Dump { answer } => effects.answers.add(answer, Ok(self.dump())),
            Event::KnownLot { number, answer } => self.tell_of_lot(number, answer, effects)?,
            Event::Parcel { parcel, answer } => return self.take_parcel(parcel, answer, now, effects),
            Event::Ask(ask) => self.ask(ask, now),
            Event::Unask { number } => self.unask(number),
            Event::Nudge => {
                (self.hushed, self.look_because, effects.nudge) = (false, Occasion::Asked, true);
                self.aside.try_again();
            }
            Event::Look => self.look_because = self.look_because.max(Occasion::Word),
            // Every turn looks at the clocks: that there is one is all that was asked for.
            Event::ClockSet => {}
            Event::Quiet => self.hushed = true,
            Event::Drain => self.drain(now, effects),
            Event::Halt => self.halt(effects),
            Event::Finished(_) | Event::Ingested(_) | Event::Pushed { .. } => unreachable!("absorbed before"),
            Event::Depart { .. } | Event::LotSettled { .. } => unreachable!("obeyed before"),
        }
        Ok(false)
    }

    /// The archive holds everything up to this turn; the store may forget it.
    fn archived_up_to(&mut self, turn: u64, now: Time, effects: &mut Effects) {
        self.archived = turn;
        self.forget_at.get_or_insert(now.after(TOGETHER));
        let caught_up = self.waiters.archive.extract_if(.., |(until, _)| *until <= turn);
        caught_up.for_each(|(_, answer)| effects.answers.add(answer, Ok(())));
    }

    /// What the archive holds goes, that of several turns together: to forget is a good part of what a job costs that
    /// was alone in its queue, and while there is work others wait for it.
    pub(super) fn forget_what_is_archived(&mut self, now: Time, progress: &mut Progress) -> Result<(), StoreError> {
        let ends = self.stopping != Stopping::No;
        if self.forget_at.is_some_and(|at| at <= now || at > now.after(TOGETHER) || ends) {
            self.store.archived(self.archived)?;
            progress.forgets = true;
            progress.needs(self.options.durability);
        }
        Ok(())
    }

    /// What ended long ago goes, and what was taken from other servers long ago.
    fn forget(&mut self, before: Time, now: Time) -> Result<Wrote, StoreError> {
        let lots = self.forget_old_lots(now)?;
        // Of several servers one does that, by its clock.
        if !self.store.controls() {
            return Ok(lots);
        }
        Ok(self.store.forget(before, super::RELEASE_MOST)? > 0 || lots)
    }

    fn after_inbox(&mut self, then: Then, effects: &mut Effects) {
        effects.read_inbox.push(self.waiters.read_inbox(then));
    }

    fn inbox_was_read(&mut self, waiter: u64, now: Time, effects: &mut Effects) -> Result<Wrote, StoreError> {
        match self.waiters.inbox_read(waiter) {
            Some(Then::Drained) => self.answer_drained(effects),
            Some(Then::CatchUp(answer)) if self.archived >= self.settled => effects.answers.add(answer, Ok(())),
            Some(Then::CatchUp(answer)) => self.waiters.archive.push((self.settled, answer)),
            Some(Then::AwaitRun(run, answer)) => {
                if let Err(answer) = self.runs.await_end(run, answer) {
                    effects.answers.add(answer, Err(no_run(run)));
                }
            }
            Some(Then::Seal(run, answer)) => {
                if self.runs.by_id(run).is_none() {
                    effects.answers.add(answer, Err(no_run(run)));
                    return Ok(false);
                }
                let seals = vec![Seal { run, after: Vec::new() }];
                self.store.admit(&Lot { seals, ..Lot::default() }, now)?;
                if let Some(run) = self.runs.by_id_mut(run) {
                    run.info.counts.sealed = true;
                }
                effects.answers.add(answer, Ok(()));
                return Ok(true);
            }
            None => {}
        }
        Ok(false)
    }

    fn open_run(
        &mut self,
        request: OpenRun,
        answer: Answer<RunInfo>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Wrote, StoreError> {
        if request.service.is_some() && !self.options.serves_runs {
            let text = "the process that has the data directory only answers a question";
            effects.answers.add(answer, Err(Failure::new(Kind::TryLater, text).hint("it ends in a moment: try again")));
            return Ok(false);
        }
        let found = self.runs.named(&request).and_then(|found| match (&request.service, found) {
            (Some(service), _) => self.check_queue(service).map(|()| found),
            (None, found) => Ok(found),
        });
        let no = match found {
            Err(failure) => {
                effects.answers.add(answer, Err(failure));
                return Ok(false);
            }
            Ok(Some(no)) => no,
            Ok(None) => {
                let id = RunId::first(Origin::from_random(self.jitter.next()));
                let spec = request.service.as_ref().map(spec::encode).unwrap_or_default();
                let run = NewRun { name: request.name.clone(), spec, terms: request.terms.clone() };
                self.store.open_run(id, &run, now)?
            }
        };
        let changes = self.store.changes();
        self.learn(changes, effects);
        if let Some(service) = &request.service {
            self.runs.set_slots(no, service.slots, &mut self.scheduler);
        }
        let info = self.runs.get(no).map(|run| run.info.clone());
        let missing = || Failure::new(Kind::Internal, "a run that was just opened is not known");
        effects.answers.add(answer, info.ok_or_else(missing));
        Ok(true)
    }

    /// A `windlass run` gets a queue of its own: nobody else's jobs may be given to its command.
    fn check_queue(&self, service: &RunService) -> Result<(), Failure> {
        let name = QueueName::new(service.queue.as_bytes()).map_err(|e| Failure::new(Kind::Usage, e.to_string()))?;
        let other = |what: &str| {
            Failure::new(Kind::Conflict, format!("queue `{name}` {what}")).hint("choose another queue with -Q")
        };
        if self.policies().iter().any(|policy| policy.serves(name.as_str(), self.scheduler.files())) {
            return Err(other("is served by the config"));
        }
        let Some(queue) = self.queues.iter().map(|(_, queue)| queue).find(|queue| *queue.name == name) else {
            return Ok(());
        };
        if Self::live(&queue.by_state) > self.runs.live_in(service) {
            return Err(other("holds jobs that are not this run's"));
        }
        Ok(())
    }

    pub(super) fn amend(
        &mut self,
        ids: &[JobId],
        amendment: Amendment,
        by: &str,
        now: Time,
        effects: &mut Effects,
    ) -> Result<(Vec<Amended>, Wrote), StoreError> {
        let amended = self.store.amend(ids, amendment, now)?;
        for (id, result) in ids.iter().zip(&amended) {
            if *result == Amended::Running && amendment == Amendment::Cancel {
                effects.cancelled.push(*id);
            }
            if let Amended::Done { to, .. } = result {
                effects.amended.push((*id, *to));
                if to.is_end() {
                    self.drop_checkpoint(*id)?;
                }
            }
            let what = Wish::Amend(amendment).audited(*id, *result);
            effects.audit.extend(what.map(|what| Audited { at: now, by: by.to_owned(), what }));
        }
        Ok((amended, true))
    }

    fn follow(&mut self, run: RunId, follower: Follower, answer: Answer<RunInfo>, effects: &mut Effects) {
        let followed = self.runs.follow(run, follower, &mut self.scheduler).ok_or_else(|| no_run(run));
        effects.answers.add(answer, followed);
    }

    pub(super) fn flight_infos(&self) -> Vec<FlightInfo> {
        let stocked = self.stocked();
        let mut infos: Vec<FlightInfo> = self
            .flights
            .iter()
            .flat_map(|(number, flight)| flight.stretches().map(move |(_, held)| (number, flight, held)))
            .map(|(number, flight, held)| FlightInfo {
                stocked: stocked.contains(&number),
                job: held.jobs.id(usize::from(held.first)),
                count: held.count,
                queue: self.queue_name(held.lane.queue).to_string(),
                start: held.start(),
                started: flight.started,
            })
            .collect();
        infos.sort_by_key(|info| (info.started, info.job));
        infos
    }

    /// The flights that a crew holds beyond its slots: the youngest ones, which wait for a slot to become free.
    fn stocked(&self) -> HashSet<Flight> {
        let mut by_crew: HashMap<CrewNo, BTreeMap<u64, Vec<Flight>>> = HashMap::new();
        for (number, flight) in self.flights.iter() {
            by_crew.entry(flight.crew).or_default().entry(flight.booking).or_default().push(number);
        }
        let mut stocked = HashSet::new();
        for (crew, claims) in by_crew {
            let slots = match self.scheduler.policy(crew) {
                // Nobody elsewhere gets more than was asked for, however many slots this server has.
                Some(policy) if policy.service.is_remote() => continue,
                Some(policy) if !matches!(policy.service, Service::Handler { .. }) => policy.slots,
                // Nothing waits behind a thread.
                Some(_) | None => u32::MAX,
            };
            stocked.extend(claims.into_values().skip(slots.min(self.options.slots) as usize).flatten());
        }
        stocked
    }

    /// A server is asked through the store, also where it is this one.
    fn drain_other(&mut self, name: &str, answer: Answer<bool>, effects: &mut Effects) -> Result<Wrote, StoreError> {
        let known = self.store.drain_server(name)?;
        effects.answers.add(answer, Ok(known));
        Ok(known)
    }

    fn drain(&mut self, now: Time, effects: &mut Effects) {
        if self.stopping == Stopping::No {
            self.stopping = Stopping::Draining;
            self.scheduler.set_draining(true);
            self.drain_until = Some(now.after(self.options.drain));
            effects.stops.extend(self.flights.stop(|_| true, Stop::Withdraw));
        }
    }

    fn halt(&mut self, effects: &mut Effects) {
        self.stopping = Stopping::Halting;
        self.scheduler.set_draining(true);
        effects.stops.extend(self.flights.stop(|flight| !flight.stays(), Stop::Kill));
    }

    /// Does a command and notes how strongly the turn must be committed for it.
    pub(super) fn obey(
        &mut self,
        event: Event,
        now: Time,
        progress: &mut super::turn::Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        match event {
            Event::Depart { departure, answer } => self.depart(departure, answer, now, progress, effects),
            Event::LotSettled { number, answer } => {
                effects.answers.add(answer, Ok(()));
                if self.forget_lot(number)? {
                    // One that is remembered after all costs a little room and nothing else.
                    progress.needs(Durability::Os);
                }
                Ok(())
            }
            event => {
                if self.command(event, now, effects)? {
                    progress.needs(Durability::Full);
                }
                Ok(())
            }
        }
    }
}

fn no_run(run: RunId) -> Failure {
    Failure::new(Kind::NotFound, format!("no unfinished run {run}"))
}
