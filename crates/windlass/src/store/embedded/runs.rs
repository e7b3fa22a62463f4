//! Runs: their rows, their counters, their seals and the inbox cursors that seals wait for.
//!
//! Runs that have not ended are in memory, the others are fetched when something still happens to one of their
//! jobs. Counters are written once a turn. This file must not decide when a run ends: `RunCounts` does.

use super::super::{Cursor, NewRun, RunInfo, Seal, StoreError, Taken};
use super::keys;
use super::schema::{StateRow, corrupt, failed};
use super::sums::{check, sum};
use super::wire::{Reader, Writer};
use crate::sabotage::{self, Sabotage};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeSet, HashMap};
use windlass_core::job::{Origin, RunId, RunNo};
use windlass_core::run::RunCounts;
use windlass_core::run::terms::{RunTerms, Stopped};
use windlass_core::time::Time;

const COLUMNS: &str = "no, origin, generation, name, spec, created, sealed, seal_after, lines, hash, progress.ended, \
                       counts, run.sum, terms FROM run JOIN progress ON progress.run = run.no";

/// The runs in memory, and how far each inbox file was read.
#[derive(Debug, Default)]
pub(super) struct Runs {
    known: HashMap<u32, RunInfo>,
    numbers: HashMap<RunId, u32>,
    dirty: BTreeSet<u32>,
    /// Touched since ends were last looked for.
    touched: BTreeSet<u32>,
    cursors: HashMap<Origin, u64>,
    /// Made since the changes were last asked for.
    made: Vec<u32>,
    /// Fetched because something happened to them; those that have ended go with the turn.
    fetched: Vec<u32>,
}

impl Runs {
    pub(super) fn load(db: &Connection) -> Result<Runs, StoreError> {
        let mut runs = Runs::default();
        for info in query(db, "WHERE progress.ended IS NULL ORDER BY no", [])? {
            runs.keep(info);
        }
        let mut statement = db.prepare_cached("SELECT origin, offset FROM inbox").map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let (origin, offset) = (row.get(0).map_err(failed)?, row.get::<_, i64>(1).map_err(failed)?);
            runs.cursors.insert(Origin::from_random(origin), offset as u64);
        }
        Ok(runs)
    }

    pub(super) fn open(&self) -> Vec<RunInfo> {
        let mut open: Vec<RunInfo> = self.known.values().filter(|run| run.ended_at.is_none()).cloned().collect();
        open.sort_by_key(|run| run.no);
        open
    }

    fn keep(&mut self, info: RunInfo) {
        self.numbers.insert(info.id, info.no.0);
        self.known.insert(info.no.0, info);
    }

    fn fetch(&mut self, info: RunInfo) {
        self.fetched.push(info.no.0);
        self.keep(info);
    }

    fn drop_run(&mut self, no: u32) {
        if let Some(run) = self.known.remove(&no) {
            self.numbers.remove(&run.id);
        }
    }

    /// A run by number, to be changed; nothing where it was forgotten.
    pub(super) fn run(&mut self, db: &Connection, no: RunNo) -> Result<Option<&mut RunInfo>, StoreError> {
        if !self.known.contains_key(&no.0) {
            match query(db, "WHERE no = ?1", [no.0])?.pop() {
                Some(info) => self.fetch(info),
                None => return Ok(None),
            }
        }
        self.dirty.insert(no.0);
        self.touched.insert(no.0);
        Ok(self.known.get_mut(&no.0))
    }

    fn find(&mut self, db: &Connection, id: RunId) -> Result<Option<&mut RunInfo>, StoreError> {
        if !self.numbers.contains_key(&id) {
            let key = params![id.origin.bits(), id.generation];
            match query(db, "WHERE origin = ?1 AND generation = ?2", key)?.pop() {
                Some(info) => self.fetch(info),
                None => return Ok(None),
            }
        }
        let no = self.numbers.get(&id).copied();
        Ok(no.and_then(|no| self.known.get_mut(&no)))
    }

    pub(super) fn make(
        &mut self,
        db: &Connection,
        state: &mut StateRow,
        id: RunId,
        run: &NewRun,
        now: Time,
    ) -> Result<RunNo, StoreError> {
        if self.find(db, id)?.is_some() {
            return Err(StoreError::Stale(format!("{id} is there already")));
        }
        let no = state.next_run;
        state.next_run = no.checked_add(1).ok_or_else(|| StoreError::Full("no more run numbers".into()))?;
        let info = RunInfo {
            no: RunNo(no),
            id,
            name: run.name.clone(),
            spec: run.spec.clone(),
            terms: run.terms.clone(),
            counts: RunCounts::default(),
            taken: Taken::default(),
            seal_after: Vec::new(),
            created: now,
            ended_at: None,
        };
        let sql = "INSERT INTO run (no, origin, generation, name, spec, created, sum, terms) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let (sum, terms) = (run_sum(&info), (!run.terms.is_empty()).then(|| run.terms.encode()));
        let key = params![no, id.origin.bits(), id.generation, run.name, run.spec, now.as_micros(), sum, terms];
        statement.execute(key).map_err(failed)?;
        self.keep(info);
        self.dirty.insert(no);
        self.touched.insert(no);
        self.made.push(no);
        Ok(RunNo(no))
    }

    /// Runs made since this was last asked, as they were before their first job.
    pub(super) fn take_made(&mut self) -> Vec<RunInfo> {
        let made = std::mem::take(&mut self.made);
        let mut infos: Vec<RunInfo> = made.iter().filter_map(|no| self.known.get(no).cloned()).collect();
        infos.iter_mut().for_each(|info| info.counts.by_state = Default::default());
        infos
    }

    /// The run that takes jobs addressed to `id`: itself while it is open, else its youngest generation. One that is
    /// sealed gets the next; that one is sealed from the start and takes what comes late until it ends or is stopped.
    pub(super) fn for_jobs(
        &mut self,
        db: &Connection,
        state: &mut StateRow,
        id: RunId,
        now: Time,
    ) -> Result<RunNo, StoreError> {
        let takes = |run: &&mut RunInfo| !run.counts.sealed;
        if let Some(run) = self.find(db, id)?.filter(takes) {
            return Ok(run.no);
        }
        let Some(newest) = self.newest_generation(db, id)? else {
            return self.make(db, state, id, &NewRun::default(), now);
        };
        if newest.takes_late_jobs() {
            return Ok(newest.no);
        }
        let RunInfo { id, name, spec, terms, .. } = newest.clone().next_generation();
        let no = self.make(db, state, id, &NewRun { name, spec, terms }, now)?;
        if let Some(run) = self.known.get_mut(&no.0) {
            run.counts.sealed = true;
        }
        Ok(no)
    }

    /// The run that they would join, or the next generation as it would begin.
    pub(super) fn joined(&mut self, db: &Connection, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        if let Some(run) = self.find(db, id)?.filter(|run| !run.counts.sealed) {
            return Ok(Some(run.clone()));
        }
        let late = |newest: RunInfo| if newest.takes_late_jobs() { newest } else { newest.next_generation() };
        Ok(self.newest_generation(db, id)?.cloned().map(late))
    }

    fn newest_generation(&mut self, db: &Connection, id: RunId) -> Result<Option<&mut RunInfo>, StoreError> {
        let newest = "SELECT max(generation) FROM run WHERE origin = ?1";
        let mut statement = db.prepare_cached(newest).map_err(failed)?;
        let newest: Option<u32> = statement.query_row([id.origin.bits()], |r| r.get(0)).map_err(failed)?;
        newest.map_or(Ok(None), |generation| self.find(db, RunId { generation, ..id }))
    }

    pub(super) fn seal(
        &mut self,
        db: &Connection,
        state: &mut StateRow,
        seal: &Seal,
        now: Time,
    ) -> Result<(), StoreError> {
        let no = match self.find(db, seal.run)? {
            Some(run) => run.no,
            None => self.make(db, state, seal.run, &NewRun::default(), now)?,
        };
        let Some(run) = self.run(db, no)? else { return Ok(()) };
        if !run.counts.sealed {
            run.seal_after.extend_from_slice(&seal.after);
            run.counts.sealed = seal.after.is_empty() || sabotage::on(Sabotage::SealOvertakes);
            if run.counts.sealed {
                run.seal_after.clear();
            }
        }
        self.apply_seals();
        Ok(())
    }

    /// Opens a run that was agreed on elsewhere; one that is known stays as it is.
    pub(super) fn open_on(
        &mut self,
        db: &Connection,
        state: &mut StateRow,
        (id, terms): (RunId, RunTerms),
        now: Time,
    ) -> Result<(), StoreError> {
        if self.find(db, id)?.is_none() {
            self.make(db, state, id, &NewRun { terms, ..NewRun::default() }, now)?;
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, db: &Connection, no: RunNo, why: Stopped) -> Result<(), StoreError> {
        if let Some(run) = self.run(db, no)?.filter(|run| !run.counts.ended) {
            run.counts.stopped = Some(why);
            run.counts.sealed = true;
            run.seal_after.clear();
        }
        Ok(())
    }

    /// Seals the runs whose inbox positions have all been read.
    pub(super) fn apply_seals(&mut self) {
        for run in self.known.values_mut().filter(|run| !run.seal_after.is_empty()) {
            let before = run.seal_after.len();
            run.seal_after.retain(|(origin, offset)| self.cursors.get(origin).is_none_or(|at| at < offset));
            run.counts.sealed |= run.seal_after.is_empty();
            if run.seal_after.len() != before {
                self.dirty.insert(run.no.0);
                self.touched.insert(run.no.0);
            }
        }
    }

    /// Moves a run's place in its input; it must be where the caller thinks.
    pub(super) fn take(&mut self, db: &Connection, id: RunId, from: Taken, to: Taken) -> Result<(), StoreError> {
        let no = self.find(db, id)?.map(|run| run.no).ok_or_else(|| StoreError::Stale(format!("{id} is not known")))?;
        let Some(run) = self.run(db, no)? else { return Ok(()) };
        if run.taken != from {
            let at = run.taken.lines;
            return Err(StoreError::Stale(format!("{id} has taken {at} lines, not {}", from.lines)));
        }
        run.taken = to;
        Ok(())
    }

    pub(super) fn read_to(&mut self, db: &Connection, cursor: &Cursor) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO inbox (origin, offset, tail) VALUES (?1, ?2, ?3)";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        statement.execute(params![cursor.origin.bits(), cursor.offset, cursor.tail]).map_err(failed)?;
        self.cursors.insert(cursor.origin, cursor.offset);
        Ok(())
    }

    /// Notes that a file is gone. Its origin is remembered as read to the end, for seals that name it late.
    pub(super) fn close(&mut self, db: &Connection, origin: Origin, now: Time) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO inbox (origin, offset, tail, closed) VALUES (?1, ?2, 0, ?3)";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        statement.execute(params![origin.bits(), i64::MAX, now.as_micros()]).map_err(failed)?;
        self.cursors.insert(origin, i64::MAX as u64);
        Ok(())
    }

    /// Runs that ended by what was touched since the last look.
    pub(super) fn take_ended(&mut self, now: Time) -> Vec<RunInfo> {
        let mut ended = Vec::new();
        for no in std::mem::take(&mut self.touched) {
            if let Some(run) = self
                .known
                .get_mut(&no)
                .filter(|run| run.counts.sealed && (!run.counts.ended || sabotage::on(Sabotage::EndTwice)))
                && run.counts.take_end()
            {
                run.ended_at = Some(now);
                self.dirty.insert(no);
                ended.push(run.clone());
            }
        }
        ended
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Writes the touched runs and drops the ended ones from memory.
    pub(super) fn save(&mut self, db: &Connection) -> Result<(), StoreError> {
        if self.dirty.is_empty() && self.fetched.is_empty() {
            return Ok(());
        }
        let sql = "INSERT OR REPLACE INTO progress VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        for no in std::mem::take(&mut self.dirty) {
            let Some(run) = self.known.get(&no) else { continue };
            let ended = run.ended_at.map(Time::as_micros);
            let key = params![
                no,
                run.counts.sealed,
                encode_seal(&run.seal_after),
                run.taken.lines,
                run.taken.hash as i64,
                ended,
                encode_counts(&run.counts),
            ];
            statement.execute(key).map_err(failed)?;
            if ended.is_some() {
                self.drop_run(no);
            }
        }
        for no in std::mem::take(&mut self.fetched) {
            if self.known.get(&no).is_some_and(|run| run.counts.ended) {
                self.drop_run(no);
            }
        }
        Ok(())
    }

    /// Forgets runs that ended before a time and of which no job is kept, the oldest generation first, so that no
    /// generation's number is given twice; and inbox files that were gone by then.
    pub(super) fn forget(&mut self, db: &Connection, before: Time, limit: u64) -> Result<u64, StoreError> {
        let rest = "WHERE progress.ended < ?1 \
                    AND NOT EXISTS (SELECT 1 FROM job WHERE job.run = run.no AND job.ended IS NOT NULL) \
                    AND NOT EXISTS (SELECT 1 FROM run o WHERE o.origin = run.origin AND o.generation < run.generation) \
                    ORDER BY progress.ended LIMIT ?2";
        let over = query(db, rest, params![before.as_micros(), limit])?;
        let mut forgotten = 0;
        for run in &over {
            // A run goes when the last of its keys has gone: there may be millions.
            forgotten += keys::forget_run(db, run.no, limit - forgotten)?;
            if forgotten == limit {
                break;
            }
            forgotten += 1;
            for sql in ["DELETE FROM progress WHERE run = ?1", "DELETE FROM run WHERE no = ?1"] {
                db.prepare_cached(sql).and_then(|mut statement| statement.execute([run.no.0])).map_err(failed)?;
            }
            self.dirty.remove(&run.no.0);
            self.drop_run(run.no.0);
        }
        let sql = "DELETE FROM inbox WHERE closed < ?1 RETURNING origin";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let gone = statement.query_map([before.as_micros()], |r| r.get(0)).map_err(failed)?;
        for origin in gone {
            self.cursors.remove(&Origin::from_random(origin.map_err(failed)?));
        }
        Ok(forgotten)
    }

    /// The number of a run, if there is one.
    pub(super) fn known_number(&mut self, db: &Connection, id: RunId) -> Result<Option<RunNo>, StoreError> {
        Ok(self.find(db, id)?.map(|run| run.no))
    }
}

pub(super) fn by_id(db: &Connection, id: RunId) -> Result<Option<RunInfo>, StoreError> {
    let key = params![id.origin.bits(), id.generation];
    Ok(query(db, "WHERE origin = ?1 AND generation = ?2", key)?.pop())
}

/// The newest runs first.
pub(super) fn newest(db: &Connection, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
    query(db, "ORDER BY no DESC LIMIT ?1", [i64::try_from(limit).unwrap_or(i64::MAX)])
}

/// A run's public name, by its number.
pub(super) fn id_of(db: &Connection, no: RunNo) -> Result<Option<RunId>, StoreError> {
    let mut statement = db.prepare_cached("SELECT origin, generation FROM run WHERE no = ?1").map_err(failed)?;
    let read = |r: &rusqlite::Row<'_>| Ok(RunId { origin: Origin::from_random(r.get(0)?), generation: r.get(1)? });
    statement.query_row([no.0], read).optional().map_err(failed)
}

fn query(db: &Connection, rest: &str, key: impl rusqlite::Params) -> Result<Vec<RunInfo>, StoreError> {
    let mut statement = db.prepare_cached(&format!("SELECT {COLUMNS} {rest}")).map_err(failed)?;
    let mut rows = statement.query(key).map_err(failed)?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let run = read(row).map_err(failed)??;
        // Runs of older formats have no sum.
        if let Some(stored) = row.get::<_, Option<u32>>(12).map_err(failed)? {
            check(stored, run_sum(&run), || format!("what {} is", run.id))?;
        }
        runs.push(run);
    }
    Ok(runs)
}

/// The checksum of what a run is, its command among it; its counters are blobs of their own.
fn run_sum(run: &RunInfo) -> u32 {
    let name = sum([], run.name.as_bytes());
    let RunId { origin, generation } = run.id;
    let numbers =
        [i64::from(run.no.0), origin.bits() as i64, i64::from(generation), run.created.as_micros(), i64::from(name)];
    if run.terms.is_empty() {
        sum(numbers, &run.spec)
    } else {
        sum(numbers, &[&run.spec[..], &run.terms.encode()].concat())
    }
}

fn read(r: &rusqlite::Row<'_>) -> rusqlite::Result<Result<RunInfo, StoreError>> {
    let (seal, counts): (Option<Vec<u8>>, Vec<u8>) = (r.get(7)?, r.get(11)?);
    let ended_at = r.get::<_, Option<i64>>(10)?.map(Time);
    let sealed = r.get(6)?;
    let decoded = decode_seal(seal.as_deref()).and_then(|seal| Ok((seal, decode_counts(&counts)?)));
    let (seal_after, counts) = match decoded {
        Ok(decoded) => decoded,
        Err(error) => return Ok(Err(error)),
    };
    let terms = match r.get_ref(13)?.as_blob_or_null()?.map(RunTerms::decode) {
        Some(Some(terms)) => terms,
        None => RunTerms::default(),
        Some(None) => return Ok(Err(corrupt("the terms of a run cannot be read"))),
    };
    Ok(Ok(RunInfo {
        no: RunNo(r.get(0)?),
        id: RunId { origin: Origin::from_random(r.get(1)?), generation: r.get(2)? },
        name: r.get(3)?,
        spec: r.get(4)?,
        terms,
        counts: RunCounts { sealed, ended: ended_at.is_some(), ..counts },
        taken: Taken { lines: r.get(8)?, hash: r.get::<_, i64>(9)? as u64 },
        seal_after,
        created: Time(r.get(5)?),
        ended_at,
    }))
}

pub(in crate::store) fn encode_seal(after: &[(Origin, u64)]) -> Option<Vec<u8>> {
    let mut writer = Writer::begin();
    for (origin, offset) in after {
        writer.number(origin.bits());
        writer.number(*offset);
    }
    (!after.is_empty()).then(|| writer.finish())
}

pub(in crate::store) fn decode_seal(bytes: Option<&[u8]>) -> Result<Vec<(Origin, u64)>, StoreError> {
    let mut after = Vec::new();
    let Some(bytes) = bytes else { return Ok(after) };
    let mut reader = Reader::open(bytes, "a run's seal")?;
    while !reader.is_done() {
        after.push((Origin::from_random(reader.number()?), reader.number()?));
    }
    Ok(after)
}

fn encode_counts(counts: &RunCounts) -> Vec<u8> {
    let mut writer = Writer::begin();
    let stopped = Stopped::ALL.iter().position(|why| Some(*why) == counts.stopped).map_or(0, |at| at as u64 + 1);
    counts.by_state.iter().chain([&counts.dropped, &stopped]).for_each(|count| writer.number(*count));
    writer.finish()
}

/// Those of older formats end after the states.
fn decode_counts(bytes: &[u8]) -> Result<RunCounts, StoreError> {
    let mut reader = Reader::open(bytes, "a run's counters")?;
    let mut counts = RunCounts::default();
    for count in &mut counts.by_state {
        *count = reader.number()?;
    }
    if !reader.is_done() {
        counts.dropped = reader.number()?;
        let stopped = reader.small::<usize>()?.checked_sub(1);
        counts.stopped = stopped.and_then(|at| Stopped::ALL.get(at).copied());
    }
    if reader.is_done() { Ok(counts) } else { Err(corrupt("a run's counters are too long")) }
}
