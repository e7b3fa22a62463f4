//! Workers elsewhere: they ask, are given jobs under a lease, and go on while the server dies and comes back.
//!
//! It stands for `runner/remote` and for the workers themselves. A lease outlives its server: the next engine must know
//! it again, and whoever has it tells the next one how it went. One that is silent is taken for dead when its lease has
//! run out, which begins anew with a new server. Nobody here dies with the power.

use crate::world::{Due, Outcome, World};
use std::collections::BTreeMap;
use windlass::engine::Event;
use windlass::engine::ask::Ask;
use windlass::runner::{Finished, Flight, Start, Stop};
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;
use windlass_core::outcome;
use windlass_core::time::Time;

/// The lease, in microseconds.
const LEASE: u64 = 20_000_000;
/// Asks that wait at one time.
const ASKS: usize = 2;

#[derive(Debug)]
struct Lease {
    id: JobId,
    start: u32,
    queue: String,
    /// As the engine that lives knows it; none while no engine does.
    flight: Option<u64>,
    started: Time,
    /// How it will go; nothing where the worker is silent.
    outcome: Option<outcome::Outcome>,
    /// When a silent one is taken for dead.
    until: u64,
    /// A server before this one gave it out.
    resumed: bool,
    cancelled: bool,
    /// Its claim was on disk when its server died.
    stored: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Remotes {
    leases: BTreeMap<u64, Lease>,
    last_token: u64,
    last_ask: u64,
    asks: Vec<u64>,
}

fn token(number: u64) -> String {
    format!("token-{number}")
}

impl Remotes {
    pub(crate) fn has(&self, flight: Flight) -> bool {
        self.leases.values().any(|lease| lease.flight == Some(flight.0))
    }
}

impl World {
    /// Who has nothing to do asks for something.
    pub(crate) fn remotes_ask(&mut self) {
        while self.crews && self.engine.is_some() && self.remotes.asks.len() < ASKS {
            let most = self.random.between(1, 4);
            let remotes = &mut self.remotes;
            remotes.last_ask += 1;
            let number = remotes.last_ask;
            let tokens = (0..most).map(|_| {
                remotes.last_token += 1;
                token(remotes.last_token)
            });
            let ask = Ask { number, queues: vec!["*".into()], tokens: tokens.collect() };
            self.remotes.asks.push(number);
            self.send(Event::Ask(ask));
        }
    }

    /// A worker has it now.
    pub(crate) fn remote_take(&mut self, start: Start) -> Outcome<()> {
        let Some(lent) = start.lent.as_deref() else { return Err("a remote start without a lease".into()) };
        self.remotes.asks.retain(|ask| Some(*ask) != lent.ask);
        let number: u64 = lent.token.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let index = start.held.range().start;
        let id = start.held.jobs.id(index);
        // One that kills its server cannot do so from elsewhere; it is not given the chance.
        self.job_begins_elsewhere(&start)?;
        let script = self.script_of(&start, id);
        let lost = script.outcome == outcome::Outcome::Lost;
        let silent = (lost || script.length.is_none()) && start.held.record.suspicions < 2 && !self.calm;
        let outcome = match script.outcome {
            outcome::Outcome::Lost => outcome::Outcome::Interrupted,
            other => other,
        };
        let lease = Lease {
            id,
            start: start.held.start(),
            queue: start.queue.as_str().to_owned(),
            flight: Some(start.flight.0),
            started: self.now(),
            outcome: (!silent).then_some(outcome),
            until: self.mono + LEASE,
            resumed: false,
            cancelled: false,
            stored: false,
        };
        self.remotes.leases.insert(number, lease);
        let after = if silent { LEASE } else { script.length.unwrap_or(1000).max(1) };
        self.at(after, Due::Remote(number));
        Ok(())
    }

    /// A worker has something to say, or has been silent for so long.
    pub(crate) fn remote_due(&mut self, number: u64) -> Outcome<()> {
        let Some(lease) = self.remotes.leases.get(&number) else { return Ok(()) };
        if self.engine.is_none() {
            // Nobody answers: it tries again.
            let after = self.random.between(200_000, 2_000_000);
            self.at(after, Due::Remote(number));
            return Ok(());
        }
        if lease.outcome.is_none() && !lease.cancelled && lease.flight.is_some() && self.mono < lease.until {
            let after = lease.until - self.mono;
            self.at(after, Due::Remote(number));
            return Ok(());
        }
        let Some(lease) = self.remotes.leases.remove(&number) else { return Ok(()) };
        // A token that nobody knows any more is refused.
        let Some(flight) = lease.flight else { return Ok(()) };
        let outcome = match lease.outcome {
            _ if lease.cancelled => outcome::Outcome::Cancelled,
            Some(outcome) => outcome,
            None if lease.resumed => outcome::Outcome::Interrupted,
            None => outcome::Outcome::Lost,
        };
        self.tell(|| format!("end elsewhere {flight} {} {}", lease.id, outcome.word()));
        self.totals.leases += 1;
        self.report(lease.id, lease.start, &outcome)?;
        self.send(Event::Finished(Finished::all(Flight(flight), 1, outcome, lease.started, self.now())));
        Ok(())
    }

    /// A worker is told of a cancelled job with its next sign of life; nothing else reaches it.
    pub(crate) fn remote_stop(&mut self, flight: Flight, why: Stop) {
        if why != Stop::Cancel {
            return;
        }
        let number = self.remotes.leases.iter_mut().find(|(_, lease)| lease.flight == Some(flight.0));
        if let Some((number, lease)) = number {
            lease.cancelled = true;
            let number = *number;
            let after = self.random.between(1000, 3_000_000);
            self.at(after, Due::Remote(number));
        }
    }

    /// The server is gone, the workers are not.
    pub(crate) fn remotes_lose_their_server(&mut self) {
        self.remotes.asks.clear();
        for lease in self.remotes.leases.values_mut() {
            let job = self.ledger.jobs.get(&lease.id);
            lease.stored = lease.flight.take().is_some() && job.is_some_and(|job| job.state == State::Running);
        }
    }

    /// A new engine: every lease whose claim is on disk must be known to it again, under the same token.
    pub(crate) fn remotes_find_their_server(&mut self, resumed: Vec<Start>) -> Outcome<()> {
        for start in resumed {
            let token = start.lent.as_deref().map(|lent| lent.token.clone()).unwrap_or_default();
            let number: u64 = token.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            let id = start.held.jobs.id(start.held.range().start);
            match self.remotes.leases.get_mut(&number) {
                Some(lease) if (lease.id, lease.start) == (id, start.held.start()) => {
                    lease.flight = Some(start.flight.0);
                    (lease.resumed, lease.until) = (true, self.mono + LEASE);
                }
                // It was told of its end by a server that died before it could write that down: nobody has it any
                // more, and its lease runs out.
                Some(_) | None => {
                    let lease = Lease {
                        id,
                        start: start.held.start(),
                        queue: start.queue.as_str().to_owned(),
                        flight: Some(start.flight.0),
                        started: self.now(),
                        outcome: None,
                        until: self.mono + LEASE,
                        resumed: true,
                        cancelled: false,
                        stored: false,
                    };
                    self.remotes.leases.insert(number, lease);
                    self.at(LEASE, Due::Remote(number));
                }
            }
            self.show(&crate::checkers::Seen::Resumed { id, start: start.held.start() })?;
        }
        for lease in self.remotes.leases.values().filter(|lease| lease.flight.is_none()) {
            if lease.stored && self.rules.is_remote(&lease.queue) {
                return Err(format!(
                    "leases outlive a server: that of {} start {} is forgotten",
                    lease.id, lease.start
                ));
            }
        }
        self.remotes_ask();
        Ok(())
    }
}
