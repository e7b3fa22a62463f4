//! What is in flight: every start that was stored and has not been settled.
//!
//! It owns the flight numbers and which slot each flight occupies. One claim may come as several stretches; they
//! share one slot, which is free when the last of them has ended.

use crate::archiver::Ran;
use crate::lot::Departing;
use crate::numbered::ByNumber;
use crate::runner::{Flight, Stop};
use crate::store::Held;
use std::sync::Arc;
use windlass_core::job::JobId;
use windlass_core::judge::Terms;
use windlass_core::policy::Policy;
use windlass_core::scheduler::{CrewNo, Scheduler};
use windlass_core::time::Time;

/// One start under way.
#[derive(Debug)]
pub struct InFlight {
    pub held: Held,
    pub terms: Terms,
    pub started: Time,
    /// Why it was told to end, if it was.
    pub stopped: Option<Stop>,
    pub crew: CrewNo,
    pub ran: Ran,
    /// The claim it belongs to: the flights of one claim share a slot.
    pub booking: u64,
    /// By position: its end was reported and is written, or is being written by this turn. Nothing for one job.
    reported: Vec<u64>,
    /// How many jobs have no report yet, and how much data those have.
    left: u16,
    left_bytes: u64,
    /// It has given its share of the slot back.
    released: bool,
    /// A worker elsewhere has it, and the store says so.
    pub leased: bool,
    /// So many words of its job are stored with its lease.
    pub spoken: u32,
    /// The lot with which it goes to another server.
    pub lot: Option<Arc<Departing>>,
}

impl InFlight {
    /// The store says who else has it, or may have it: it goes on without this server.
    pub fn stays(&self) -> bool {
        self.leased || self.lot.is_some()
    }
}

/// The crew of what no crew's slot is taken for.
const NO_CREW: CrewNo = CrewNo(u32::MAX);

/// What one crew has in flight, claimed ahead or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs that have no report yet.
    pub jobs: u64,
    /// Their data.
    pub bytes: u64,
}

/// All flights by number.
#[derive(Debug, Default)]
pub struct Flights {
    by_number: ByNumber<u64, InFlight>,
    /// How many flights of a claim still hold its slot.
    bookings: ByNumber<u64, u32>,
    /// What each crew has in flight.
    loads: ByNumber<CrewNo, Load>,
    last: u64,
}

impl Flights {
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Puts the stretches of one claim in flight under one slot.
    pub fn depart(&mut self, crew: CrewNo, policy: &Policy, held: Vec<Held>, now: Time) -> (u64, Vec<(Flight, Held)>) {
        self.last += 1;
        self.bookings.insert(self.last, held.len() as u32);
        self.take_off(crew, policy, held, now)
    }

    /// The same for jobs that no slot was planned for.
    pub fn depart_unbooked(&mut self, policy: &Policy, held: Vec<Held>, now: Time) -> (u64, Vec<(Flight, Held)>) {
        self.last += 1;
        self.take_off(NO_CREW, policy, held, now)
    }

    /// It goes with this lot.
    pub fn belongs_to(&mut self, flight: Flight, lot: &Arc<Departing>) {
        if let Some(flight) = self.by_number.get_mut(&flight.0) {
            flight.lot = Some(Arc::clone(lot));
        }
    }

    fn take_off(&mut self, crew: CrewNo, policy: &Policy, held: Vec<Held>, now: Time) -> (u64, Vec<(Flight, Held)>) {
        let booking = self.last;
        let terms = Terms::from(policy);
        let ran = if policy.service.jobs_a_slot() > 1 { Ran::Together } else { Ran::Alone };
        let mut departed = Vec::with_capacity(held.len());
        for held in held {
            self.last += 1;
            let load = self.loads.entry(crew).or_default();
            load.jobs += u64::from(held.count);
            load.bytes += held.bytes(0, held.count);
            let flight = InFlight {
                held: held.clone(),
                terms,
                started: now,
                stopped: None,
                crew,
                ran,
                booking,
                reported: Vec::new(),
                left: held.count,
                left_bytes: held.bytes(0, held.count),
                released: false,
                leased: policy.service.is_remote(),
                spoken: 0,
                lot: None,
            };
            self.by_number.insert(self.last, flight);
            departed.push((Flight(self.last), held));
        }
        (booking, departed)
    }

    /// Takes a report of `count` jobs from `first` on; false where any of them has been reported before, or the
    /// flight is not known.
    pub fn take_report(&mut self, flight: Flight, first: u16, count: u16) -> bool {
        let Some(flight) = self.by_number.get_mut(&flight.0) else { return false };
        let end = u32::from(first) + u32::from(count);
        if end > u32::from(flight.held.count) || count > flight.left || count == 0 {
            return false;
        }
        if count < flight.held.count {
            flight.reported.resize(usize::from(flight.held.count).div_ceil(64), 0);
            if bits(first, count).any(|(word, bit)| flight.reported[word] & bit != 0) {
                return false;
            }
            bits(first, count).for_each(|(word, bit)| flight.reported[word] |= bit);
        }
        let bytes = flight.held.bytes(first, count);
        flight.left -= count;
        flight.left_bytes -= bytes;
        reduce(&mut self.loads, flight.crew, count, bytes);
        true
    }

    /// The turn that took a report was dropped: it will come again.
    pub fn give_report_back(&mut self, flight: Flight, first: u16, count: u16) {
        let Some(flight) = self.by_number.get_mut(&flight.0) else { return };
        let bytes = flight.held.bytes(first, count);
        flight.left += count;
        flight.left_bytes += bytes;
        let load = self.loads.entry(flight.crew).or_default();
        load.jobs += u64::from(count);
        load.bytes += bytes;
        if count < flight.held.count {
            bits(first, count).for_each(|(word, bit)| flight.reported[word] &= !bit);
        }
    }

    /// True once every job of a flight has been reported.
    pub fn is_over(&self, flight: Flight) -> bool {
        self.by_number.get(&flight.0).is_some_and(|flight| flight.left == 0)
    }

    pub fn get(&self, flight: Flight) -> Option<&InFlight> {
        self.by_number.get(&flight.0)
    }

    pub fn get_mut(&mut self, flight: Flight) -> Option<&mut InFlight> {
        self.by_number.get_mut(&flight.0)
    }

    /// How many end with this server; what workers elsewhere have goes on without it.
    pub fn end_here(&self) -> usize {
        self.by_number.values().filter(|flight| !flight.stays()).count()
    }

    /// Frees the slot of a flight that has ended, if it was the last of its claim; it stays known until its turn
    /// is committed, and a second time does nothing.
    pub fn release(&mut self, flight: Flight, scheduler: &mut Scheduler) {
        let Some(ended) = self.by_number.get_mut(&flight.0).filter(|flight| !flight.released) else { return };
        ended.released = true;
        let Some(left) = self.bookings.get_mut(&ended.booking) else { return };
        *left -= 1;
        if *left == 0 {
            self.bookings.remove(&ended.booking);
            scheduler.finished(ended.crew, ended.held.lane);
        }
    }

    /// Forgets a flight: its end is committed, or its claim was dropped with its turn.
    pub fn forget(&mut self, flight: Flight) -> Option<InFlight> {
        let forgotten = self.by_number.remove(&flight.0)?;
        reduce(&mut self.loads, forgotten.crew, forgotten.left, forgotten.left_bytes);
        Some(forgotten)
    }

    pub fn load_of(&self, crew: CrewNo) -> Load {
        self.loads.get(&crew).copied().unwrap_or_default()
    }

    /// Marks the wanted flights as told to end, and names those that were not told so before.
    pub fn stop(&mut self, wanted: impl Fn(&InFlight) -> bool, why: Stop) -> Vec<(Flight, Stop)> {
        let mut told = Vec::new();
        for (number, flight) in &mut self.by_number {
            if wanted(flight) && flight.stopped != Some(why) {
                flight.stopped = Some(why);
                told.push((Flight(*number), why));
            }
        }
        told
    }

    /// A job that has a process of its own can be stopped; one in a batch ends with its batch.
    pub fn stop_job(&mut self, job: JobId, why: Stop) -> Vec<(Flight, Stop)> {
        self.stop(|flight| flight.held.count == 1 && flight.held.ids().any(|id| id == job), why)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Flight, &InFlight)> {
        self.by_number.iter().map(|(number, flight)| (Flight(*number), flight))
    }
}

/// Takes off a crew's load; a crew without any is not kept.
fn reduce(loads: &mut ByNumber<CrewNo, Load>, crew: CrewNo, jobs: u16, bytes: u64) {
    if let Some(load) = loads.get_mut(&crew) {
        load.jobs = load.jobs.saturating_sub(u64::from(jobs));
        load.bytes = load.bytes.saturating_sub(bytes);
        if *load == Load::default() {
            loads.remove(&crew);
        }
    }
}

/// Where the marks of `count` jobs from `first` on lie.
fn bits(first: u16, count: u16) -> impl Iterator<Item = (usize, u64)> {
    (first..first + count).map(|position| (usize::from(position / 64), 1 << (position % 64)))
}
