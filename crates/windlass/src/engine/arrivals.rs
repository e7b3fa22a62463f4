//! Lots that come in from other servers: taken once, however often they are sent.
//!
//! The number of a lot is stored in the transaction that takes its jobs in, with the answer that was given, so that
//! whoever asks again gets the same answer. It is forgotten when the other server says that it has settled the lot, or
//! after a long time. This file owns that memory. It must not look for jobs by id: the door has done that.

use super::effects::Effects;
use super::event::{Answer, Parcel};
use super::obey::Wrote;
use super::{Engine, checkpoint, unique};
use crate::lot::{self, LotNo};
use crate::sabotage::{self, Sabotage};
use crate::store::{Arriving, LOTS, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::time::Time;

/// A lot that nobody has said to be settled is remembered for so long: no server is away for longer and then sends one
/// again.
const REMEMBERED: Duration = Duration::from_secs(90 * 24 * 3600);

/// What is stored of a lot that was taken.
#[derive(Debug, Serialize, Deserialize)]
struct Taken {
    at: i64,
    answer: lot::Answer,
}

impl<S: Store> Engine<S> {
    /// What was answered to a lot, if it is known.
    pub(super) fn known_lot(&mut self, number: LotNo) -> Result<Option<lot::Answer>, StoreError> {
        let found = self.store.notes(&key(number), 1)?.pop();
        let bad = |_| StoreError::Corrupt(format!("the note of lot {number} cannot be read"));
        found
            .map(|(_, value)| serde_json::from_slice::<Taken>(&value).map_err(bad))
            .transpose()
            .map(|taken| taken.map(|taken| taken.answer))
    }

    pub(super) fn tell_of_lot(
        &mut self,
        number: LotNo,
        answer: Answer<Option<lot::Answer>>,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        let known = self.known_lot(number)?;
        effects.answers.add(answer, Ok(known));
        Ok(())
    }

    /// Takes a lot in, with its number, all of it or nothing; one that is known is only answered.
    pub(super) fn take_parcel(
        &mut self,
        mut parcel: Parcel,
        answer: Answer<lot::Answer>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Wrote, StoreError> {
        if let Some(known) = self.known_lot(parcel.number)? {
            effects.answers.add(answer, Ok(known));
            return Ok(false);
        }
        if self.full_until.is_some() {
            effects.answers.add(answer, Err(self.dropped_before().failure()));
            return Ok(false);
        }
        if !parcel.pasts.is_empty() && !self.store.takes_pasts() {
            let why = "jobs that were begun, put off or held back elsewhere cannot be kept in this store".into();
            effects.answers.add(answer, Ok(lot::Answer { why, ..lot::Answer::default() }));
            return Ok(false);
        }
        match self.take_jobs(&mut parcel, now, effects) {
            Ok(taken) => effects.answers.add(answer, Ok(taken)),
            // That is certain, whatever becomes of the turn: it is dropped.
            Err(StoreError::Refused(what)) => {
                let why = format!("the database there refuses it: {what}");
                answer.give(Ok(lot::Answer { why, ..lot::Answer::default() }));
                effects.refusal_told = true;
                return Err(StoreError::Refused(what));
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn take_jobs(&mut self, parcel: &mut Parcel, now: Time, effects: &mut Effects) -> Result<lot::Answer, StoreError> {
        unique::stamp(&mut parcel.lot, &self.scheduler);
        let before = self.store.changes();
        self.learn(before, effects);
        // A job that was given away and comes back finds its place taken until the store forgets that it was here.
        if self.forget_at.is_some() {
            self.store.archived(self.archived)?;
        }
        self.store.admit(&parcel.lot, now)?;
        let arriving: Vec<Arriving> = parcel.pasts.iter().map(|(arriving, _)| arriving.clone()).collect();
        if !arriving.is_empty() {
            self.store.arrive(&arriving, now)?;
        }
        for (arriving, text) in parcel.pasts.iter().filter(|(_, text)| !text.is_empty()) {
            self.store.note(&checkpoint::key(arriving.jobs.id(0)), Some(text.as_bytes()))?;
        }
        let changes = self.store.changes();
        let told = &changes.duplicates;
        let ids: HashSet<JobId> = if told.is_empty() { HashSet::new() } else { parcel.ids().collect() };
        let refused = told.iter().filter(|duplicate| ids.contains(&duplicate.id));
        let duplicates = refused.map(|duplicate| (duplicate.id.to_string(), duplicate.of.to_string())).collect();
        self.learn(changes, effects);
        let taken = lot::Answer { taken: true, why: String::new(), known: parcel.known, duplicates };
        if !sabotage::on(Sabotage::LotForgotten) {
            let kept = Taken { at: now.as_micros(), answer: taken.clone() };
            // Text and numbers only: there is nothing in it that JSON lacks.
            self.store.note(&key(parcel.number), Some(&serde_json::to_vec(&kept).unwrap_or_default()))?;
        }
        Ok(taken)
    }

    /// The server that gave a lot has settled it, and will not ask again.
    pub(super) fn forget_lot(&mut self, number: LotNo) -> Result<Wrote, StoreError> {
        let known = self.known_lot(number)?.is_some();
        if known {
            self.store.note(&key(number), None)?;
        }
        Ok(known)
    }

    /// Forgets lots that nobody asked about for a long time.
    pub(super) fn forget_old_lots(&mut self, now: Time) -> Result<Wrote, StoreError> {
        let mut wrote = false;
        for (key, value) in self.store.notes(LOTS, usize::MAX)? {
            let taken: Option<Taken> = serde_json::from_slice(&value).ok();
            if taken.is_none_or(|taken| now.since(Time(taken.at)) > REMEMBERED) {
                self.store.note(&key, None)?;
                wrote = true;
            }
        }
        Ok(wrote)
    }
}

fn key(number: LotNo) -> String {
    format!("{LOTS}{number}")
}
