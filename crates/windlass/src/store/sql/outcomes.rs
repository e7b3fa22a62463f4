//! What this server settled, kept until its archive has it: with the jobs' data, because a row may go with its end.

use super::{SqlStore, StoreError};
use crate::store::chunk::Chunk;
use crate::store::embedded::turns;
use crate::store::embedded::wire::{Reader, Writer};
use crate::store::{End, Held, Settlement, Unarchived};
use std::sync::Arc;

/// One settlement behind the jobs that it is about, and nobody else's.
pub(super) fn encode(writer: &mut Writer, settlement: &Settlement) {
    let held = &settlement.held;
    if held.range() == (0..held.jobs.len()) {
        writer.bytes(held.jobs.as_bytes());
        turns::encode(writer, End::of(settlement));
        return;
    }
    let range = held.range();
    let jobs = held.jobs.rebuilt(held.jobs.particulars().cloned(), |index| range.contains(&index));
    writer.bytes(jobs.as_bytes());
    let held = Held { jobs: Arc::new(jobs), first: 0, ..held.clone() };
    turns::encode(writer, End { held: &held, ..End::of(settlement) });
}

pub(super) fn decode(blob: &[u8]) -> Result<Vec<Settlement>, StoreError> {
    let mut reader = Reader::open(blob, "a turn's outcomes")?;
    let mut settlements = Vec::new();
    while !reader.is_done() {
        let jobs = Chunk::from_bytes(reader.bytes()?.to_vec());
        let jobs = jobs.map_err(|e| StoreError::Corrupt(format!("the jobs of an outcome: {e:?}")))?;
        settlements.push(turns::decode(&mut reader)?.with(Arc::new(jobs)));
    }
    Ok(settlements)
}

/// A part of a turn's outcomes is closed when it is so large: MariaDB takes no statement of more than 16 MiB by itself.
const PART_BYTES: usize = 2 << 20;

impl SqlStore {
    pub(super) fn note_outcome(&mut self, settlement: &Settlement) {
        let parts = &mut self.work.outcomes;
        match parts.last_mut().filter(|part| part.len() < PART_BYTES) {
            Some(part) => encode(part, settlement),
            None => {
                let mut part = Writer::begin();
                encode(&mut part, settlement);
                parts.push(part);
            }
        }
    }

    /// Saves what this turn settled; tells the number of the turn. Where that is more than one part, the turn has a
    /// number for each: the archive is told the last one, and holds them all with it.
    pub(super) fn save_outcomes(&mut self) -> Result<u64, StoreError> {
        let mut turn = self.turn;
        let sql = self.names.sql("INSERT INTO :outcomes (server, turn, settlements) VALUES ($1, $2, $3)");
        for part in std::mem::take(&mut self.work.outcomes) {
            turn += 1;
            let params = vec![self.options.server.as_str().into(), (turn as i64).into(), part.finish().into()];
            self.db.execute_ahead(sql.clone(), params)?;
        }
        Ok(turn.max(self.turn + 1))
    }

    pub(super) fn forget_outcomes(&mut self, turn: u64) -> Result<(), StoreError> {
        self.begin()?;
        self.written = true;
        let sql = self.names.sql("DELETE FROM :outcomes WHERE server = $1 AND turn <= $2");
        self.db.execute_ahead(sql, vec![self.options.server.as_str().into(), (turn as i64).into()])
    }

    pub(super) fn stored_outcomes(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        let sql = self.names.sql("SELECT turn, settlements FROM :outcomes WHERE server = $1 ORDER BY turn");
        let rows = self.db.query(&sql, &[self.options.server.as_str().into()])?;
        let read = rows.into_iter().map(|mut row| {
            let turn = row.int()? as u64;
            Ok(Unarchived { turn, settlements: decode(&row.maybe_bytes()?.unwrap_or_default())? })
        });
        read.collect()
    }
}
