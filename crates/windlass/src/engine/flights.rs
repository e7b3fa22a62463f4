//! What is in flight: every start that was stored and has not been settled.
//!
//! It owns the flight numbers and which slot each flight occupies. One claim may come as several stretches; they
//! share one slot, which is free when the last of them has ended. Jobs that are alone in their queues go many to a
//! flight, and their slots are free when the last of them has ended.

use crate::archiver::Ran;
use crate::lot::Departing;
use crate::numbered::ByNumber;
use crate::runner::{Fellow, Flight, Stop};
use crate::store::Held;
use std::ops::Range;
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
    /// Jobs that are alone in their queues and go with it, at the positions behind that of its own. Each was planned a
    /// slot of its own.
    pub fellows: Arc<[Fellow]>,
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
    /// Its fellows are nothing but lane and data: no end of one is more than an end.
    plain: bool,
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

    /// How many jobs it is of.
    pub fn count(&self) -> u16 {
        self.held.count + self.fellows.len() as u16
    }

    /// What it holds: stretches of one queue each, and the position at which each begins.
    pub fn stretches(&self) -> impl Iterator<Item = (u16, &Held)> {
        let fellows = (self.held.count..).zip(self.fellows.iter());
        std::iter::once((0, &self.held)).chain(fellows.map(|(position, fellow)| (position, &fellow.held)))
    }

    /// The same, to be kept.
    pub fn all(&self) -> Vec<Held> {
        self.stretches().map(|(_, held)| held.clone()).collect()
    }

    /// The stretches of one queue each that some of its jobs are in, and the position at which each begins.
    pub fn parts(&self, first: u16, count: u16) -> impl Iterator<Item = (u16, Held)> {
        let (own, end) = (self.held.count, first + count);
        let of_held = (first < own).then(|| (first, self.held.part(first, count.min(own - first))));
        let fellows = &self.fellows[usize::from(first.max(own) - own)..usize::from(end.max(own) - own)];
        of_held.into_iter().chain((first.max(own)..).zip(fellows.iter().map(|fellow| fellow.held.clone())))
    }

    /// Which of its fellows are among these jobs; none where an end of theirs may lead to something.
    pub fn plain_among(&self, first: u16, count: u16) -> Range<usize> {
        let (own, end) = (self.held.count, first + count);
        let among = usize::from(first.max(own) - own)..usize::from(end.max(own) - own);
        if self.plain { among } else { 0..0 }
    }

    /// The job at this position has no report yet.
    fn is_open(&self, position: u16) -> bool {
        let reported = bits(position, 1).any(|(word, bit)| self.reported.get(word).is_some_and(|bits| bits & bit != 0));
        self.left > 0 && !reported
    }

    /// How much data so many of its jobs have.
    fn bytes(&self, first: u16, count: u16) -> u64 {
        let (own, end) = (self.held.count, first + count);
        let of_held = if first < own { self.held.bytes(first, count.min(own - first)) } else { 0 };
        let fellows = &self.fellows[usize::from(first.max(own) - own)..usize::from(end.max(own) - own)];
        of_held + fellows.iter().map(|fellow| fellow.held.bytes(0, 1)).sum::<u64>()
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

    /// Puts jobs in flight that are alone in their queues, as one flight of as many slots.
    pub fn depart_together(
        &mut self,
        crew: CrewNo,
        policy: &Policy,
        held: Held,
        fellows: Arc<[Fellow]>,
        now: Time,
    ) -> (u64, Flight) {
        self.last += 1;
        let booking = self.last;
        self.bookings.insert(booking, 1);
        (booking, self.fly(booking, crew, policy, (held, fellows), now))
    }

    fn take_off(&mut self, crew: CrewNo, policy: &Policy, held: Vec<Held>, now: Time) -> (u64, Vec<(Flight, Held)>) {
        let booking = self.last;
        let fly = |held: Held| (self.fly(booking, crew, policy, (held.clone(), Arc::default()), now), held);
        (booking, held.into_iter().map(fly).collect())
    }

    fn fly(
        &mut self,
        booking: u64,
        crew: CrewNo,
        policy: &Policy,
        (held, fellows): (Held, Arc<[Fellow]>),
        now: Time,
    ) -> Flight {
        let plain = fellows.iter().all(|fellow| fellow.held.jobs.is_plain());
        let mut flight = InFlight {
            held,
            plain,
            fellows,
            terms: Terms::from(policy),
            started: now,
            stopped: None,
            crew,
            ran: if policy.service.jobs_a_slot() > 1 { Ran::Together } else { Ran::Alone },
            booking,
            reported: Vec::new(),
            left: 0,
            left_bytes: 0,
            released: false,
            leased: policy.service.is_remote(),
            spoken: 0,
            lot: None,
        };
        (flight.left, flight.left_bytes) = (flight.count(), flight.bytes(0, flight.count()));
        let load = self.loads.entry(crew).or_default();
        load.jobs += u64::from(flight.left);
        load.bytes += flight.left_bytes;
        self.last += 1;
        self.by_number.insert(self.last, flight);
        Flight(self.last)
    }

    /// Takes a report of `count` jobs from `first` on; false where any of them has been reported before, or the
    /// flight is not known.
    pub fn take_report(&mut self, flight: Flight, first: u16, count: u16) -> bool {
        let Some(flight) = self.by_number.get_mut(&flight.0) else { return false };
        let end = u32::from(first) + u32::from(count);
        if end > u32::from(flight.count()) || count > flight.left || count == 0 {
            return false;
        }
        if count < flight.count() {
            flight.reported.resize(usize::from(flight.count()).div_ceil(64), 0);
            if bits(first, count).any(|(word, bit)| flight.reported[word] & bit != 0) {
                return false;
            }
            bits(first, count).for_each(|(word, bit)| flight.reported[word] |= bit);
        }
        let bytes = if count == flight.left { flight.left_bytes } else { flight.bytes(first, count) };
        flight.left -= count;
        flight.left_bytes -= bytes;
        reduce(&mut self.loads, flight.crew, count, bytes);
        true
    }

    /// The turn that took a report was dropped: it will come again.
    pub fn give_report_back(&mut self, flight: Flight, first: u16, count: u16) {
        let Some(flight) = self.by_number.get_mut(&flight.0) else { return };
        let bytes = flight.bytes(first, count);
        flight.left += count;
        flight.left_bytes += bytes;
        let load = self.loads.entry(flight.crew).or_default();
        load.jobs += u64::from(count);
        load.bytes += bytes;
        if count < flight.count() {
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
            ended.stretches().for_each(|(_, held)| scheduler.finished(ended.crew, held.lane));
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

    /// Stops the flight of a job that has it for itself.
    pub fn stop_job(&mut self, job: JobId, why: Stop) -> Vec<(Flight, Stop)> {
        self.stop(|flight| flight.count() == 1 && flight.held.find(job).is_some(), why)
    }

    /// Where a job is that shares a flight with others; of one that has ended in one and is in another, that other.
    pub fn find_shared(&self, job: JobId) -> Option<(Flight, u16)> {
        let shared = self.iter().filter(|(_, flight)| flight.count() > 1);
        let places = shared.flat_map(|(number, flight)| {
            flight.stretches().filter_map(move |(at, held)| Some((number, flight, at + held.find(job)?)))
        });
        let mut open = places.filter(|(_, flight, position)| flight.is_open(*position));
        open.next().map(|(number, _, position)| (number, position))
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
