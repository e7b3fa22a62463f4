//! A store of this program's own: tables in memory, and a journal on disk from which they come back.
//!
//! The verbs change rows (`tables`). A commit appends the changed rows to the journal as one record, and only then
//! shows them to others: what was committed is what a crash leaves, and a turn is there whole or not at all. Each file
//! is one concern: `verbs` what is asked, `change` how a job goes on, `waits` what holds it back, `tables` the rows,
//! `stored` their bytes, `journal` the file, `view` what others see.

mod change;
mod journal;
mod stored;
mod tables;
#[cfg(test)]
mod tests;
mod verbs;
mod view;
mod waits;

use journal::Journal;
use std::collections::BTreeSet;
use std::path::Path;
use stored::{Reader, Stored};
use tables::{Numbers, Place, Row, Tables};
use windlass::store::{Changes, Durability, StoreError, StoreView};
use windlass_core::job::{JobId, RunNo};

/// The store.
#[derive(Debug)]
pub(crate) struct JournalStore {
    /// As the open turn has it.
    now: Tables,
    /// As the last commit left it.
    committed: Tables,
    /// What the two differ in.
    touched: BTreeSet<Place>,
    changes: Changes,
    /// Runs that this verb changed, and jobs that it ended and whether they succeeded.
    changed_runs: BTreeSet<RunNo>,
    ends: Vec<(JobId, bool)>,
    journal: Journal,
}

impl JournalStore {
    /// Opens the store of a directory, or makes it. Whatever the last process had not committed is gone.
    pub(crate) fn open(dir: &Path) -> Result<JournalStore, StoreError> {
        let (journal, records) = Journal::open(dir)?;
        let (mut tables, mut words) = (Tables::default(), BTreeSet::new());
        for record in records {
            let mut rest = &record[..];
            while !rest.is_empty() {
                let mut reader = Reader { bytes: rest, chunks: &tables.maps.chunks, words: &mut words };
                let row = Row::read(&mut reader);
                rest = &rest[rest.len() - reader.bytes.len()..];
                tables.put(row.ok_or_else(|| StoreError::Corrupt("a row of the journal makes no sense".into()))?);
            }
        }
        let mut store = JournalStore {
            committed: tables.clone(),
            now: tables,
            touched: BTreeSet::new(),
            changes: Changes::default(),
            changed_runs: BTreeSet::new(),
            ends: Vec::new(),
            journal,
        };
        store.draw(|numbers| numbers.epoch += 1);
        store.end_turn(Durability::Full)?;
        Ok(store)
    }

    /// The committed state.
    pub(crate) fn view(&self) -> &dyn StoreView {
        &self.committed
    }

    /// Writes a row in the open turn.
    fn put(&mut self, row: Row) {
        self.touched.insert(row.place());
        self.now.put(row);
    }

    fn draw(&mut self, change: impl FnOnce(&mut Numbers)) -> Numbers {
        let mut numbers = self.now.numbers();
        change(&mut numbers);
        self.put(Row::Numbers((), Some(numbers)));
        numbers
    }

    /// One record for the turn; on an error nothing of it happened, but for a failed sync.
    fn end_turn(&mut self, durability: Durability) -> Result<u64, StoreError> {
        let turn = self.draw(|numbers| numbers.turn += 1).turn;
        let mut record = Vec::new();
        // Chunks stand before the jobs that refer to them: places are sorted so.
        self.touched.iter().for_each(|place| self.now.maps.row(place).write(&mut record));
        if let Err(error) = self.journal.append(&record) {
            self.drop_turn();
            return Err(error);
        }
        for place in std::mem::take(&mut self.touched) {
            self.committed.put(self.now.maps.row(&place));
        }
        if durability == Durability::Full {
            self.journal.sync()?;
        }
        if self.journal.is_large() {
            self.compact()?;
        }
        Ok(turn)
    }

    fn drop_turn(&mut self) {
        for place in std::mem::take(&mut self.touched) {
            self.now.put(self.committed.maps.row(&place));
        }
        self.changes = Changes::default();
        self.changed_runs.clear();
        self.ends.clear();
    }

    /// A new journal of the rows that there are, without the chunks that nothing refers to any more.
    fn compact(&mut self) -> Result<(), StoreError> {
        let maps = &self.now.maps;
        let of_outcomes = maps.outcomes.values().flatten().map(|settlement| change::start_of(&settlement.held));
        let used: BTreeSet<_> = maps.jobs.values().map(|job| job.laid.start).chain(of_outcomes).collect();
        let unused: Vec<_> = maps.chunks.keys().copied().filter(|start| !used.contains(start)).collect();
        for start in unused {
            self.now.put(Row::Chunk(start, None));
            self.committed.put(Row::Chunk(start, None));
        }
        let mut record = Vec::new();
        self.committed.maps.rows().for_each(|row| row.write(&mut record));
        self.journal.rewrite(&record)
    }
}
