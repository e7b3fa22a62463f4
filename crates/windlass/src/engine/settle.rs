//! Settling: judges what has ended and writes the verdicts, with all that they lead to.
//!
//! What a job emitted, what it passes on to the next stages of its pipeline and what its error handler and its
//! channels are told are stored with its end, before any run is looked at. Whether a job failed is core's to say.

use super::destinations::Heard;
use super::effects::Effects;
use super::failure::Earlier;
use super::flights::InFlight;
use super::stock::Spells;
use super::turn::{Progress, entry};
use super::{Engine, emit};
use crate::archiver::Entry;
use crate::runner::Finished;
use crate::sabotage::{self, Sabotage};
use crate::store::{FollowUp, Settlement, Store, StoreError, Together};
use windlass_core::judge::{Verdict, in_time, judge};
use windlass_core::outcome::Outcome;
use windlass_core::time::Time;

impl<S: Store> Engine<S> {
    /// Judges what has ended and writes the verdicts.
    pub(super) fn settle(
        &mut self,
        finished: &[Finished],
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        let ends = finished.iter().map(|end| end.outcomes.len()).sum();
        let mut settlements = Vec::with_capacity(ends);
        effects.archive.reserve(ends);
        let (mut follow_ups, mut leased, mut spells) = (Vec::new(), Vec::new(), Spells::default());
        for end in finished {
            let (begin, count) = (end.first, end.count());
            // A flight stays known until its turn is committed, so two reports may also meet in one turn.
            let again = self.flights.get(end.flight).is_some() && sabotage::on(Sabotage::ReportTwice);
            if !self.flights.take_report(end.flight, begin, count) && !again {
                effects.notes.push(format!("a report for start {} came twice and was ignored", end.flight.0));
                continue;
            }
            progress.reports.push((end.flight, begin, count));
            self.note_pace(end, &mut spells);
            let Some(flight) = self.flights.get(end.flight) else { continue };
            let policy = self.scheduler.rules(flight.crew);
            let keyed = policy.is_some_and(|policy| policy.rate_key.is_some());
            let stage = policy.filter(|policy| policy.flow.is_some());
            let (mut first, mut output) = (begin, Some(&end.output));
            for (count, outcome) in outcomes_of(end, flight) {
                let several = self.several(end, flight, (first, *count), outcome, now);
                let alone = *count - several.as_ref().map_or(0, |several| several.ends.which.len() as u16);
                for (position, held) in flight.parts(first, alone) {
                    progress.hears(Heard::of(flight.crew, &held, outcome.sign(), keyed));
                    leased.extend(flight.leased.then(|| (held.clone(), flight.spoken)));
                    let verdict = judge(outcome.clone(), held.record, flight.terms, now, self.jitter.next());
                    let finish_by = held.jobs.particulars().and_then(|particulars| particulars.finish_by);
                    let verdict = in_time(verdict, finish_by, now);
                    let verdict = match (&flight.lot, outcome) {
                        (Some(lot), Outcome::NotMoved { .. }) => progress.lots.back(lot, &held, verdict),
                        _ => verdict,
                    };
                    if matches!(verdict, Verdict::Succeed { .. }) {
                        let (ids, scheduler) = (&self.options.ids, &self.scheduler);
                        follow_ups.extend(emit::emitted(end, (position, &held), ids, scheduler));
                        follow_ups.extend(emit::passed_on(stage, &verdict, &held, ids, scheduler));
                    }
                    let (word, started, finished) = (outcome.word(), end.started, end.finished);
                    let settlement = Settlement { held, verdict, outcome: word, started, finished };
                    let output = output.take().cloned().unwrap_or_default();
                    let entry = entry(&self.queues, &self.runs, &settlement, output);
                    effects.archive.push(Entry { ran: flight.ran, ..entry });
                    settlements.push(settlement);
                }
                several.iter().for_each(|several| progress.hears(Heard::of_several(flight, several, outcome)));
                effects.together.extend(several);
                first += count;
                flight.lot.iter().for_each(|lot| progress.lots.ended(lot, *count, outcome));
            }
            if self.flights.is_over(end.flight) {
                self.flights.release(end.flight, &mut self.scheduler);
                progress.landed.push(end.flight);
            }
        }
        self.note_spells(spells);
        if !settlements.is_empty() {
            let settlements = self.write_ends(settlements, follow_ups, now, effects)?;
            self.keep_checkpoints(finished, &settlements)?;
            leased.into_iter().try_for_each(|(held, spoken)| self.end_lease(&held, spoken))?;
            self.close_lots(now, progress)?;
        }
        self.write_several(effects, now)
    }

    /// Stores what ended together. It comes behind the others: their runs have not ended while these run.
    fn write_several(&mut self, effects: &Effects, now: Time) -> Result<(), StoreError> {
        let ends: Vec<Together> = effects.together.iter().map(|several| several.ends.clone()).collect();
        if ends.is_empty() { Ok(()) } else { self.store.settle_together(&ends, now) }
    }

    /// Stores ends together with the jobs that follow from them.
    fn write_ends(
        &mut self,
        ends: Vec<Settlement>,
        follow_ups: Vec<FollowUp>,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Vec<Settlement>, StoreError> {
        let handled = match self.tell_of_ends(&ends, Earlier::Stored, now) {
            Err(why @ (StoreError::Away(_) | StoreError::Busy(_))) => {
                let handled = self.tell_of_ends(&ends, Earlier::Unknown, now)?;
                self.store.set_aside(&ends, &[follow_ups, handled].concat())?;
                return Err(why);
            }
            handled => handled?,
        };
        if sabotage::on(Sabotage::HandlerAfterwards) {
            self.store.settle(&ends, &follow_ups, now)?;
            self.store.settle(&[], &handled, now)?;
            return Ok(ends);
        }
        let all: Vec<FollowUp> = follow_ups.into_iter().chain(handled).collect();
        match self.store.settle(&ends, &all, now) {
            Ok(()) => Ok(ends),
            Err(StoreError::Stale(why)) => self.write_what_is_held(ends, &all, why, now, effects),
            Err(why @ (StoreError::Away(_) | StoreError::Busy(_))) => {
                self.store.set_aside(&ends, &all)?;
                Err(why)
            }
            Err(other) => Err(other),
        }
    }
}

/// What became of so many jobs each.
fn outcomes_of<'a>(end: &'a Finished, flight: &InFlight) -> impl Iterator<Item = (&'a u16, &'a Outcome)> {
    let alike = sabotage::on(Sabotage::FellowsAlike) && !flight.fellows.is_empty();
    end.outcomes.iter().map(move |(count, outcome)| (count, if alike { &end.outcomes[0].1 } else { outcome }))
}
