//! What people and other parts ask of the engine: each command in the turn that absorbed it.

use super::effects::Effects;
use super::event::{Answer, Event, FlightInfo, Follower, OpenRun, RunService};
use super::waiters::{DrainedWaiter, Then};
use super::{Engine, Stopping, spec};
use crate::error::{Failure, Kind};
use crate::runner::Stop;
use crate::store::{Amended, Amendment, Durability, Lot, NewRun, RunInfo, Seal, Store, StoreError};
use windlass_core::job::{JobId, Origin, QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::policy::Policy;
use windlass_core::time::Time;

/// What a command did to the turn: nothing, or something that must be on disk before it is answered.
pub(super) type Wrote = bool;

impl<S: Store> Engine<S> {
    /// Does one command; events that are not commands are absorbed elsewhere.
    pub(super) fn command(&mut self, event: Event, now: Time, effects: &mut Effects) -> Result<Wrote, StoreError> {
        match event {
            Event::OpenRun { request, answer } => return self.open_run(request, answer, now, effects),
            Event::Amend { ids, amendment, answer } => return self.amend(&ids, amendment, answer, now, effects),
            Event::InboxRead { waiter } => return self.inbox_was_read(waiter, now, effects),
            Event::Archived { turn } => {
                self.store.archived(turn)?;
                self.archived = turn;
                let caught_up = self.waiters.archive.extract_if(.., |(until, _)| *until <= turn);
                caught_up.for_each(|(_, answer)| effects.answers.add(answer, Ok(())));
                return Ok(true);
            }
            Event::Forget { before } => return Ok(self.store.forget(before, super::RELEASE_MOST)? > 0),
            Event::SealRun { run, answer } => self.after_inbox(Then::Seal(run, answer), effects),
            Event::AwaitRun { run, answer } => {
                if let Err(answer) = self.runs.await_end(run, answer) {
                    self.after_inbox(Then::AwaitRun(run, answer), effects);
                }
            }
            Event::AwaitDrained { answer } => {
                let failed_before = self.waiters.failed;
                self.waiters.drained.push(DrainedWaiter { answer, failed_before });
            }
            Event::CatchUp { answer } => self.after_inbox(Then::CatchUp(answer), effects),
            Event::Follow { run, follower, answer } => self.follow(run, follower, answer, effects),
            Event::Reload { policies, slots, answer } => self.reload(policies, slots, answer, effects),
            Event::Flights { answer } => effects.answers.add(answer, Ok(self.flight_infos())),
            Event::Nudge => effects.nudge = true,
            Event::Drain => self.drain(now, effects),
            Event::Halt => self.halt(effects),
            Event::Finished(_) | Event::Ingested(_) | Event::Pushed { .. } => {
                unreachable!("absorbed before the commands")
            }
        }
        Ok(false)
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
                self.store.open_run(id, &NewRun { name: request.name.clone(), spec }, now)?
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
        if self.options.policies.iter().any(|policy| policy.matches(name.as_str())) {
            return Err(other("is served by the config"));
        }
        let Some(queue) = self.queues.iter().map(|(_, queue)| queue).find(|queue| *queue.name == name) else {
            return Ok(());
        };
        let live: u64 = State::ALL.iter().filter(|s| !s.is_end()).map(|s| queue.by_state[s.index()]).sum();
        if live > self.runs.live_in(service) {
            return Err(other("holds jobs that are not this run's"));
        }
        Ok(())
    }

    fn amend(
        &mut self,
        ids: &[JobId],
        amendment: Amendment,
        answer: Answer<Vec<Amended>>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Wrote, StoreError> {
        let amended = self.store.amend(ids, amendment, now)?;
        for (id, result) in ids.iter().zip(&amended) {
            if *result == Amended::Running && amendment == Amendment::Cancel {
                effects.stops.extend(self.flights.stop_job(*id, Stop::Cancel));
            }
        }
        effects.answers.add(answer, Ok(amended));
        Ok(true)
    }

    fn follow(&mut self, run: RunId, follower: Follower, answer: Answer<RunInfo>, effects: &mut Effects) {
        let followed = self.runs.follow(run, follower, &mut self.scheduler).ok_or_else(|| no_run(run));
        effects.answers.add(answer, followed);
    }

    fn reload(&mut self, policies: Vec<Policy>, slots: u32, answer: Answer<()>, effects: &mut Effects) {
        self.changed.extend(self.lingering.queues());
        self.scheduler.reload(policies.clone(), slots);
        self.options.policies = policies;
        self.options.slots = slots;
        effects.answers.add(answer, Ok(()));
    }

    fn flight_infos(&self) -> Vec<FlightInfo> {
        let mut infos: Vec<FlightInfo> = self
            .flights
            .iter()
            .filter_map(|(number, flight)| Some((self.workers.of(number)?, flight)))
            .map(|((worker, state), flight)| FlightInfo {
                worker: worker.0,
                state,
                job: flight.held.jobs.id(usize::from(flight.held.first)),
                count: flight.held.count,
                queue: self.queue_name(flight.held.lane.queue).to_string(),
                start: flight.held.start(),
                started: flight.started,
            })
            .collect();
        infos.sort_by_key(|info| (info.started, info.job));
        infos
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
        effects.stops.extend(self.flights.stop(|_| true, Stop::Kill));
    }

    /// Does a command and notes how strongly the turn must be committed for it.
    pub(super) fn obey(
        &mut self,
        event: Event,
        now: Time,
        progress: &mut super::turn::Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if self.command(event, now, effects)? {
            progress.needs(Durability::Full);
        }
        Ok(())
    }
}

fn no_run(run: RunId) -> Failure {
    Failure::new(Kind::NotFound, format!("no unfinished run {run}"))
}
