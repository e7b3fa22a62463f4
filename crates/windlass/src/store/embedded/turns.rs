//! What a turn settled, kept until the archive has it: references to jobs, never their data.
//!
//! The data stays where it is: a chunk of which everything is gone, and a row that succeeded, are deleted only when
//! the archive holds every turn that refers to them. This file owns the encoding of outcomes and that deletion.

use super::super::{DELETED, EXPIRED, End, Held, MOVED, Place, Settlement, StoreError, Unarchived};
use super::Turn;
use super::bodies::Bodies;
use super::schema::{corrupt, failed};
use super::wire::{Reader, Writer};
use super::{chunks, rows, tally};
use crate::sabotage::{self, Sabotage};
use rusqlite::{Connection, params};
use std::collections::VecDeque;
use std::sync::Arc;
use windlass_core::job::{Arrival, Lane, Priority, QueueNo, Record, RunNo};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::suspicion::Ruling;
use windlass_core::time::Time;

use super::super::chunk::Chunk;

/// A plain success has about so many bytes.
const OUTCOME_BYTES: usize = 64;

/// The words that outcomes have today.
const WORDS: [&str; 14] = [
    DELETED,
    EXPIRED,
    MOVED,
    "not_moved",
    "succeeded",
    "snoozed",
    "retry_later",
    "failed_for_good",
    "failed",
    "crashed",
    "timed_out",
    "interrupted",
    "cancelled",
    "lost",
];

impl Turn<'_> {
    pub(super) fn note_outcome(&mut self, end: End<'_>) {
        self.begin_outcomes(1);
        encode(&mut self.m.outcomes, end);
    }

    /// Makes room for so many outcomes.
    pub(super) fn begin_outcomes(&mut self, count: usize) {
        if self.m.outcomes.0.is_empty() {
            self.m.outcomes = Writer::begin();
            self.m.outcomes.reserve(count * OUTCOME_BYTES);
        }
    }

    pub(super) fn save_outcomes(&mut self, number: u64) -> Result<(), StoreError> {
        if self.m.outcomes.0.is_empty() {
            return Ok(());
        }
        let outcomes = std::mem::take(&mut self.m.outcomes).finish();
        let mut statement =
            self.db.prepare_cached("INSERT INTO turn (no, outcomes) VALUES (?1, ?2)").map_err(failed)?;
        statement.execute(params![number, outcomes]).map_err(failed)?;
        self.m.turns.push_back(number);
        Ok(())
    }

    pub(super) fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        while self.m.turns.front().is_some_and(|oldest| *oldest <= turn) {
            self.m.turns.pop_front();
        }
        let mut statement = self.db.prepare_cached("DELETE FROM turn WHERE no <= ?1").map_err(failed)?;
        statement.execute([turn]).map_err(failed)?;
        self.sweep()
    }

    /// The oldest turn that the archive lacks, the current one included if it has outcomes.
    pub(super) fn oldest_unarchived(&self) -> u64 {
        let current = if self.m.outcomes.0.is_empty() { u64::MAX } else { self.number() };
        self.m.turns.front().copied().unwrap_or(current)
    }

    /// Deletes what is over and what no unarchived turn refers to.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        let oldest = if sabotage::on(Sabotage::DataGoneEarly) { u64::MAX } else { self.oldest_unarchived() };
        let (mut deleted, mut over) = (Vec::new(), Vec::new());
        while let Some((_, place)) = self.m.finished.pop_front_if(|(turn, _)| *turn < oldest) {
            match place {
                Place::Chunk(first) => {
                    let part = self.m.parts.remove(&first.0);
                    self.m.state.parts -= u64::from(part.as_ref().is_some_and(|part| part.stored));
                    deleted.push((first.0, first.0 + part.map_or(1, |part| u64::from(part.head.count))));
                }
                Place::Row(arrival) => over.push(arrival.0),
            }
        }
        rows::delete_all(self.db, &over)?;
        deleted.sort_unstable();
        // Arrivals have no gaps, so between neighbours there is no chunk: one statement deletes all of them.
        for neighbours in deleted.chunk_by(|(_, end), (next, _)| end == next) {
            let (first, end) = (neighbours[0].0, neighbours[neighbours.len() - 1].1);
            for (file, length) in chunks::delete(self.db, first, end - 1)? {
                self.m.files.remove(file, length)?;
            }
        }
        if !deleted.is_empty() {
            // A span that is gone must not be lengthened.
            self.m.span = None;
        }
        let firsts: Vec<u64> = deleted.into_iter().map(|(first, _)| first).collect();
        chunks::prune_spans(self.db, &firsts)
    }
}

/// The turns that wait for the archive, and the rows that are over with them.
pub(super) fn load(
    db: &Connection,
    turns: &mut VecDeque<u64>,
    finished: &mut Vec<(u64, Place)>,
) -> Result<(), StoreError> {
    each(db, |turn, mut reader| {
        turns.push_back(turn);
        while !reader.is_done() {
            let reference = decode(&mut reader)?;
            let over = matches!(reference.verdict, Verdict::Succeed { .. }) || reference.outcome == DELETED;
            if over && matches!(reference.place, Place::Row(_)) {
                finished.push((turn, reference.place));
            }
        }
        Ok(())
    })
}

/// The settlements of every turn that waits for the archive, with their data.
pub(super) fn unarchived(db: &Connection, bodies: &Bodies) -> Result<Vec<Unarchived>, StoreError> {
    let mut all = Vec::new();
    let mut last: Option<(Arrival, Arc<Chunk>)> = None;
    each(db, |turn, mut reader| {
        let mut settlements = Vec::new();
        while !reader.is_done() {
            let reference = decode(&mut reader)?;
            settlements.push(reference.fetch(db, bodies, &mut last)?);
        }
        all.push(Unarchived { turn, settlements });
        Ok(())
    })?;
    Ok(all)
}

fn each(db: &Connection, mut act: impl FnMut(u64, Reader<'_>) -> Result<(), StoreError>) -> Result<(), StoreError> {
    let mut statement = db.prepare_cached("SELECT no, outcomes FROM turn ORDER BY no").map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let turn = row.get(0).map_err(failed)?;
        let blob: Vec<u8> = row.get(1).map_err(failed)?;
        act(turn, Reader::open(&blob, "a turn's outcomes")?)?;
    }
    Ok(())
}

/// A settlement without its data.
pub(in crate::store) struct Reference {
    place: Place,
    lane: Lane,
    run: Option<RunNo>,
    record: Record,
    admitted: Time,
    first: u16,
    count: u16,
    started: Time,
    finished: Time,
    outcome: &'static str,
    verdict: Verdict,
}

impl Reference {
    fn fetch(
        self,
        db: &Connection,
        bodies: &Bodies,
        last: &mut Option<(Arrival, Arc<Chunk>)>,
    ) -> Result<Settlement, StoreError> {
        let jobs = match self.place {
            Place::Chunk(first) => match last.as_ref().filter(|(known, _)| *known == first) {
                Some((_, jobs)) => jobs.clone(),
                None => {
                    let loaded = chunks::load(db, bodies, first.0)?;
                    let (_, jobs) = loaded.ok_or_else(|| corrupt(format!("settled chunk {} is missing", first.0)))?;
                    *last = Some((first, jobs.clone()));
                    jobs
                }
            },
            Place::Row(arrival) => {
                let row = rows::by_arrival(db, arrival.0)?;
                let row = row.ok_or_else(|| corrupt(format!("settled job {} is missing", arrival.0)))?;
                row.held(self.record).jobs
            }
        };
        Ok(self.with(jobs))
    }

    /// The settlement, with the jobs that it is about.
    pub(in crate::store) fn with(self, jobs: Arc<Chunk>) -> Settlement {
        let Reference { place, lane, run, record, admitted, first, count, .. } = self;
        let held = Held { place, lane, run, record, admitted, jobs, first, count };
        let Reference { verdict, outcome, started, finished, .. } = self;
        Settlement { held, verdict, outcome, started, finished }
    }
}

pub(in crate::store) fn encode(writer: &mut Writer, end: End<'_>) {
    let End { held, verdict, outcome, started, finished } = end;
    let (tag, arrival) = match held.place {
        Place::Chunk(first) => (0, first.0),
        Place::Row(arrival) => (1, arrival.0),
    };
    writer.number(tag);
    writer.number(arrival);
    writer.number(u64::from(held.lane.queue.0));
    writer.signed(i64::from(held.lane.priority.value()));
    writer.number(held.lane.kind as u64);
    writer.number(held.run.map_or(0, |run| u64::from(run.0) + 1));
    for number in [held.record.starts, held.record.failures, held.record.suspicions] {
        writer.number(u64::from(number));
    }
    writer.signed(held.admitted.as_micros());
    writer.number(u64::from(held.first));
    writer.number(u64::from(held.count));
    writer.signed(started.as_micros());
    writer.signed(finished.as_micros());
    writer.text(outcome);
    match verdict {
        Verdict::Succeed { message } => {
            writer.number(0);
            writer.text(message);
        }
        Verdict::Retry { at, error } => {
            writer.number(1);
            writer.signed(at.as_micros());
            writer.text(error);
        }
        Verdict::Fail { reason, error } => {
            writer.number(2);
            writer.number(rows::reason_number(*reason) as u64);
            writer.text(error);
        }
        Verdict::Return => writer.number(3),
        Verdict::Cancel => writer.number(4),
        Verdict::Suspect(Ruling::Ready(kind)) => {
            writer.number(5);
            writer.number(*kind as u64);
        }
        Verdict::Suspect(Ruling::Wait(until)) => {
            writer.number(6);
            writer.signed(until.as_micros());
        }
        Verdict::Suspect(Ruling::Convicted) => writer.number(7),
        Verdict::Snooze { at } => {
            writer.number(8);
            writer.signed(at.as_micros());
        }
    }
}

pub(in crate::store) fn decode(reader: &mut Reader<'_>) -> Result<Reference, StoreError> {
    let tag = reader.number()?;
    let arrival = Arrival(reader.number()?);
    let place = if tag == 0 { Place::Chunk(arrival) } else { Place::Row(arrival) };
    let queue = QueueNo(reader.small()?);
    let priority = Priority::new(reader.signed()?).ok_or_else(|| corrupt("an outcome has no such priority"))?;
    let kind = tally::kind_from(reader.number()? as i64)?;
    let run = reader.small::<u32>()?.checked_sub(1).map(RunNo);
    let record = Record { starts: reader.small()?, failures: reader.small()?, suspicions: reader.small()? };
    let admitted = Time(reader.signed()?);
    let (first, count) = (reader.small()?, reader.small()?);
    let (started, finished) = (Time(reader.signed()?), Time(reader.signed()?));
    let outcome = word(reader.text()?);
    let verdict = match reader.number()? {
        0 => Verdict::Succeed { message: reader.text()? },
        1 => Verdict::Retry { at: Time(reader.signed()?), error: reader.text()? },
        2 => {
            let reason = Reason::ALL.get(reader.small::<usize>()?).copied();
            let reason = reason.ok_or_else(|| corrupt("an outcome has an unknown reason"))?;
            Verdict::Fail { reason, error: reader.text()? }
        }
        3 => Verdict::Return,
        4 => Verdict::Cancel,
        5 => Verdict::Suspect(Ruling::Ready(tally::kind_from(reader.number()? as i64)?)),
        6 => Verdict::Suspect(Ruling::Wait(Time(reader.signed()?))),
        7 => Verdict::Suspect(Ruling::Convicted),
        8 => Verdict::Snooze { at: Time(reader.signed()?) },
        other => return Err(corrupt(format!("an outcome has verdict {other}, expected 0 to 8"))),
    };
    let lane = Lane { queue, priority, kind };
    Ok(Reference { place, lane, run, record, admitted, first, count, started, finished, outcome, verdict })
}

/// The word as the program has it. One that it does not have is kept for the rest of the process: there are as many
/// of those as a newer program of the same format knew more words.
fn word(text: String) -> &'static str {
    match WORDS.iter().find(|known| **known == text) {
        Some(known) => known,
        None => text.leak(),
    }
}
