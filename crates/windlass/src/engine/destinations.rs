//! Tables that tell destinations apart by a key of the data: each claimed job is asked about before it starts.
//!
//! What waits lies on disk, so a key is read when its job is claimed. A job that may not start yet is sent away in the
//! same transaction: it is snoozed, at no charge, until the time that core says, and the jobs behind it get their turn.
//! What ends is told to core after the commit, so that a turn that is dropped has said nothing.

use super::Engine;
use super::effects::Effects;
use super::turn::entry;
use crate::runner::{Output, field, given};
use crate::store::{Held, Settlement, Store, StoreError};
use windlass_core::circuit::Sign;
use windlass_core::destination::{Hold, Limits, Told};
use windlass_core::judge::Verdict;
use windlass_core::policy::Policy;
use windlass_core::scheduler::{CrewNo, Reason};
use windlass_core::template::{self, Values};
use windlass_core::time::Time;

/// What jobs of a crew that ended say of where they went.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) crew: CrewNo,
    pub(super) jobs: u32,
    pub(super) sign: Sign,
    /// The jobs, where the crew tells its destinations apart.
    pub(super) keyed: Option<Held>,
}

impl Heard {
    /// The ends of held jobs; `keyed` says that the crew tells its destinations apart.
    pub(super) fn of(crew: CrewNo, held: &Held, sign: Sign, keyed: bool) -> Heard {
        Heard { crew, jobs: u32::from(held.count), sign, keyed: keyed.then(|| held.clone()) }
    }

    /// Whether others say the same of the same destination.
    pub(super) fn joins(&self, next: &Heard) -> bool {
        (self.crew, self.sign) == (next.crew, next.sign) && self.keyed.is_none() && next.keyed.is_none()
    }
}

impl<S: Store> Engine<S> {
    /// Keeps what may start of what was claimed, and sends the rest away.
    pub(super) fn ask_destinations(
        &mut self,
        crew: CrewNo,
        policy: &Policy,
        held: Vec<Held>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Vec<Held>, StoreError> {
        let Some(template) = &policy.rate_key else { return Ok(held) };
        let (mut going, mut away) = (Vec::with_capacity(held.len()), Vec::new());
        for held in held {
            // Neighbours that are told the same stay together.
            let mut begin = 0;
            let mut last: Option<Told> = None;
            for position in 0..held.count {
                let told = self.ask_for(crew, policy, template, &held, position);
                if let Some(before) = last.filter(|before| *before != told) {
                    part(&held, begin..position, before, &mut going, &mut away);
                    begin = position;
                }
                last = Some(told);
            }
            if let Some(told) = last {
                part(&held, begin..held.count, told, &mut going, &mut away);
            }
        }
        if away.is_empty() {
            return Ok(going);
        }
        let steady = self.steady;
        let settlement = |(held, told): (Held, Told)| {
            let at = match told {
                Told::Go => now,
                Told::Later(at) => now.after(at.since(steady)),
            };
            Settlement { held, verdict: Verdict::Snooze { at }, outcome: "snoozed", started: now, finished: now }
        };
        let settlements: Vec<Settlement> = away.into_iter().map(settlement).collect();
        if let Err(error) = self.store.settle(&settlements, &[], now) {
            going.iter().for_each(|held| self.end_keys(crew, policy, held, Sign::None));
            return Err(error);
        }
        let entries = settlements.iter().map(|one| entry(&self.queues, &self.runs, one, Output::default()));
        effects.archive.extend(entries);
        Ok(going)
    }

    fn ask_for(&mut self, crew: CrewNo, policy: &Policy, template: &str, held: &Held, position: u16) -> Told {
        let index = usize::from(held.first + position);
        let key = key(template, policy, self.queue_name(held.lane.queue).as_str(), held.jobs.data(index));
        let returns = held.record.starts > 0;
        self.destinations.ask(crew, &key, Limits::from(policy), returns, self.steady)
    }

    /// What the ends of jobs say of where they went; those of jobs that never began, too. The turn is on disk.
    pub(super) fn hear_of_destinations(&mut self, crew: CrewNo, held: &Held, sign: Sign) {
        self.hear_of_ends(&Heard::of(crew, held, sign, true));
    }

    pub(super) fn hear_of_ends(&mut self, heard: &Heard) {
        let may_start = self.scheduler.heard(heard.crew, heard.jobs, heard.sign);
        self.turn_again |= may_start;
        let Some(held) = &heard.keyed else { return };
        let Some(policy) = self.scheduler.policy(heard.crew) else { return };
        self.end_keys(heard.crew, &policy, held, heard.sign);
    }

    fn end_keys(&mut self, crew: CrewNo, policy: &Policy, held: &Held, sign: Sign) {
        let Some(template) = &policy.rate_key else { return };
        for index in held.range() {
            let key = key(template, policy, self.queue_name(held.lane.queue).as_str(), held.jobs.data(index));
            self.destinations.ended(crew, &key, sign, Limits::from(policy), self.steady);
        }
    }

    /// What holds back the destination of a job with this data, and its name.
    pub(super) fn held_destination(&self, queue: &str, crew: CrewNo, data: &[u8]) -> Option<(String, Reason)> {
        let policy = self.scheduler.policy(crew)?;
        let key = key(policy.rate_key.as_ref()?, &policy, queue, data);
        let reason = match self.destinations.hold(crew, &key, Limits::from(&*policy), self.steady)? {
            Hold::Rate(rate, next) => Reason::RateReached { rate, next: self.now.after(next.since(self.steady)) },
            Hold::Dead { failures } => Reason::DestinationDead { failures, probe: None },
        };
        Some((String::from_utf8_lossy(&key).into_owned(), reason))
    }
}

/// A job without the field that the key asks for shares one destination with all such jobs.
fn key(template: &str, policy: &Policy, queue: &str, data: &[u8]) -> Vec<u8> {
    // Data that can never be given goes nowhere; its start will say so.
    let data = &*given(policy, data).unwrap_or_default();
    let field = |path: &str| field(data, path);
    let values = Values { data, queue, id: "", number: 0, attempt: 0, field: &field };
    template::fill(template.as_bytes(), values).unwrap_or_default()
}

fn part(held: &Held, positions: std::ops::Range<u16>, told: Told, going: &mut Vec<Held>, away: &mut Vec<(Held, Told)>) {
    let part = held.part(positions.start, positions.end - positions.start);
    match told {
        Told::Go => going.push(part),
        Told::Later(_) => away.push((part, told)),
    }
}
