//! The queues and their counters: per state, and ready jobs per lane.
//!
//! Counters live in memory and are written once a turn, packed 64 queues to a row, so that opening a store costs
//! one row per 64 queues however much waits. This file owns the packing. It must not decide what changes.

use super::super::{Changes, Move, QueueInfo, QueueStats, StoreError};
use super::schema::{corrupt, failed};
use super::sums::{check, sum};
use super::wire::{Reader, Writer};
use rusqlite::{Connection, params};
use std::collections::HashMap;
use windlass_core::job::{Lane, LaneKind, Priority, QueueName, QueueNo};
use windlass_core::life_cycle::State;

/// Queues per row of counters, and about how many bytes each has there.
const BLOCK: usize = 64;
const TALLY_BYTES: usize = 24;
/// States that a job leaves when its time has come.
pub(super) const TIMED: [State; 2] = [State::Scheduled, State::Retrying];

/// The ready jobs of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneCount {
    pub(super) priority: Priority,
    pub(super) kind: LaneKind,
    pub(super) ready: u64,
    /// How many of them are rows of their own; where there are none, no row is looked for.
    pub(super) rows: u64,
}

/// A queue's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) stats: QueueStats,
    pub(super) lanes: Vec<LaneCount>,
}

/// All queues. Numbers are given out in order and never reused.
#[derive(Debug, Default)]
pub(super) struct Queues {
    names: Vec<QueueName>,
    numbers: HashMap<QueueName, u32>,
    tallies: Vec<Tally>,
    /// The jobs of all queues that wait for their time.
    timed: u64,
    /// Blocks that are to be written, once or more.
    dirty: Vec<u32>,
}

impl Queues {
    pub(super) fn load(db: &Connection) -> Result<Queues, StoreError> {
        let mut queues = Queues::default();
        for info in read_all(db)? {
            queues.numbers.insert(info.0.clone(), queues.names.len() as u32);
            queues.names.push(info.0);
            queues.timed += TIMED.iter().map(|state| info.1.stats.by_state[state.index()]).sum::<u64>();
            queues.tallies.push(info.1);
        }
        Ok(queues)
    }

    /// The number of a queue; a new one is stored at once. True where it is new.
    pub(super) fn number(&mut self, db: &Connection, name: &QueueName) -> Result<(QueueNo, bool), StoreError> {
        if let Some(no) = self.numbers.get(name) {
            return Ok((QueueNo(*no), false));
        }
        let no = u32::try_from(self.names.len()).map_err(|_| StoreError::Full("no more queue numbers".into()))?;
        let sql = "INSERT INTO queue (no, name, sum) VALUES (?1, ?2, ?3)";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        statement.execute(params![no, name.as_str(), name_sum(no, name.as_str().as_bytes())]).map_err(failed)?;
        self.numbers.insert(name.clone(), no);
        self.names.push(name.clone());
        self.tallies.push(Tally::default());
        self.dirty.push(no / BLOCK as u32);
        Ok((QueueNo(no), true))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (QueueNo, &QueueName, &Tally)> {
        self.names.iter().zip(&self.tallies).enumerate().map(|(no, (name, tally))| (QueueNo(no as u32), name, tally))
    }

    /// The counters of a queue, to be changed.
    pub(super) fn tally(&mut self, queue: QueueNo) -> &mut Tally {
        let block = queue.0 / BLOCK as u32;
        if self.dirty.last() != Some(&block) {
            self.dirty.push(block);
        }
        &mut self.tallies[queue.0 as usize]
    }

    /// Moves jobs of a lane between states, as `Tally::shift` does.
    pub(super) fn shift(
        &mut self,
        lane: Lane,
        from: Option<State>,
        to: Option<State>,
        count: u64,
        rows: bool,
    ) -> Result<(), StoreError> {
        self.tally(lane.queue).shift(lane, from, to, count, rows)?;
        let timed = |state: Option<State>| if state.is_some_and(|state| TIMED.contains(&state)) { count } else { 0 };
        self.timed += timed(to);
        less(&mut self.timed, timed(from))
    }

    /// Ready jobs by lane, other live jobs by queue: their lane is where they go when they become ready.
    pub(super) fn backlog(&self) -> Changes {
        let mut changes = Changes::default();
        for (no, name, tally) in self.iter() {
            changes.queues.push((no, name.clone()));
            for lane in &tally.lanes {
                let lane_of = Lane { queue: no, priority: lane.priority, kind: lane.kind };
                changes.moves.push(new_jobs(lane_of, State::Ready, lane.ready));
            }
            let lane = Lane { queue: no, priority: Priority::NORMAL, kind: LaneKind::Fresh };
            for state in State::ALL {
                let count = tally.stats.by_state[state.index()];
                if !state.is_end() && state != State::Ready && count > 0 {
                    changes.moves.push(new_jobs(lane, state, count));
                }
            }
        }
        changes
    }

    pub(super) fn timed(&self) -> u64 {
        self.timed
    }

    /// How many ready jobs of a lane are rows.
    pub(super) fn lane(&self, lane: Lane) -> Option<LaneCount> {
        let tally = self.tallies.get(lane.queue.0 as usize)?;
        tally.lanes.iter().find(|l| l.priority == lane.priority && l.kind == lane.kind).copied()
    }

    /// No ready job of a queue lies in a chunk.
    pub(super) fn has_no_chunks(&self, queue: QueueNo) -> bool {
        let tally = self.tallies.get(queue.0 as usize);
        tally.is_some_and(|tally| tally.lanes.iter().all(|lane| lane.ready == lane.rows))
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    pub(super) fn save(&mut self, db: &Connection) -> Result<(), StoreError> {
        if self.dirty.is_empty() {
            return Ok(());
        }
        let mut statement =
            db.prepare_cached("INSERT OR REPLACE INTO tally (block, counts) VALUES (?1, ?2)").map_err(failed)?;
        self.dirty.sort_unstable();
        self.dirty.dedup();
        for block in self.dirty.drain(..) {
            let from = block as usize * BLOCK;
            let to = self.tallies.len().min(from + BLOCK);
            let mut writer = Writer::begin();
            writer.reserve(BLOCK * TALLY_BYTES);
            self.tallies[from..to].iter().for_each(|tally| tally.encode(&mut writer));
            statement.execute(params![block, writer.finish()]).map_err(failed)?;
        }
        Ok(())
    }
}

impl Tally {
    /// Moves jobs of a lane between states; `None` is outside. `rows` says that they are rows of their own.
    fn shift(
        &mut self,
        lane: Lane,
        from: Option<State>,
        to: Option<State>,
        count: u64,
        rows: bool,
    ) -> Result<(), StoreError> {
        if let Some(from) = from {
            // What ended counts for ever: forgetting a failed job does not make the failure undone.
            if to.is_some() || !from.is_end() {
                less(&mut self.stats.by_state[from.index()], count)?;
            }
            if from == State::Ready {
                self.leave(lane, count, rows)?;
            }
        }
        if let Some(to) = to {
            self.stats.by_state[to.index()] += count;
            if to == State::Ready {
                self.enter(lane, count, rows);
            }
        }
        Ok(())
    }

    fn enter(&mut self, lane: Lane, count: u64, rows: bool) {
        let row_count = if rows { count } else { 0 };
        match self.lanes.iter_mut().find(|l| l.priority == lane.priority && l.kind == lane.kind) {
            Some(found) => {
                found.ready += count;
                found.rows += row_count;
            }
            None => {
                self.lanes.push(LaneCount { priority: lane.priority, kind: lane.kind, ready: count, rows: row_count });
            }
        }
    }

    fn leave(&mut self, lane: Lane, count: u64, rows: bool) -> Result<(), StoreError> {
        let at = self.lanes.iter().position(|l| l.priority == lane.priority && l.kind == lane.kind);
        let at = at.ok_or_else(|| corrupt(format!("queue {} counts no ready jobs in a lane", lane.queue.0)))?;
        less(&mut self.lanes[at].ready, count)?;
        if rows {
            less(&mut self.lanes[at].rows, count)?;
        }
        if self.lanes[at].ready == 0 {
            self.lanes.swap_remove(at);
        }
        Ok(())
    }

    fn encode(&self, writer: &mut Writer) {
        let QueueStats { by_state, started, waited, ran } = self.stats;
        by_state.iter().chain([&started, &waited, &ran]).for_each(|value| writer.number(*value));
        writer.number(self.lanes.len() as u64);
        for lane in &self.lanes {
            writer.signed(i64::from(lane.priority.value()));
            writer.number(lane.kind as u64);
            writer.number(lane.ready);
            writer.number(lane.rows);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Tally, StoreError> {
        let mut stats = QueueStats::default();
        for value in &mut stats.by_state {
            *value = reader.number()?;
        }
        (stats.started, stats.waited, stats.ran) = (reader.number()?, reader.number()?, reader.number()?);
        let count = reader.small::<u16>()?;
        let mut lanes = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let priority = Priority::new(reader.signed()?).ok_or_else(|| corrupt("a lane has no such priority"))?;
            let kind = kind_from(reader.number()? as i64)?;
            lanes.push(LaneCount { priority, kind, ready: reader.number()?, rows: reader.number()? });
        }
        Ok(Tally { stats, lanes })
    }
}

/// The stored number of a lane's kind, read back.
pub(super) fn kind_from(number: i64) -> Result<LaneKind, StoreError> {
    match number {
        0 => Ok(LaneKind::Fresh),
        1 => Ok(LaneKind::Retry),
        2 => Ok(LaneKind::Suspect),
        _ => Err(corrupt(format!("a lane has kind {number}, expected 0 to 2"))),
    }
}

fn less(value: &mut u64, by: u64) -> Result<(), StoreError> {
    *value = value.checked_sub(by).ok_or_else(|| corrupt(format!("a counter of {value} should fall by {by}")))?;
    Ok(())
}

/// Every queue with its counters, as they are committed.
pub(super) fn infos(db: &Connection) -> Result<Vec<QueueInfo>, StoreError> {
    let all = read_all(db)?;
    let info = |(no, (name, tally)): (usize, (QueueName, Tally))| QueueInfo {
        no: QueueNo(no as u32),
        name,
        stats: tally.stats,
    };
    Ok(all.into_iter().enumerate().map(info).collect())
}

/// The columns of a queue's name.
const NAMED: &str = "no, name, sum";

fn read_name(r: &rusqlite::Row<'_>) -> Result<(u32, QueueName), StoreError> {
    let (no, stored): (u32, Option<u32>) = (r.get(0).map_err(failed)?, r.get(2).map_err(failed)?);
    let text = r.get_ref(1).and_then(|v| Ok(v.as_bytes()?)).map_err(failed)?;
    // Names of older formats have no sum.
    if let Some(stored) = stored {
        check(stored, name_sum(no, text), || format!("the name of queue {no}"))?;
    }
    let name = QueueName::new(text).map_err(|bad| corrupt(format!("the name of queue {no}: {bad}")))?;
    Ok((no, name))
}

fn name_sum(no: u32, name: &[u8]) -> u32 {
    sum([i64::from(no)], name)
}

/// The name of a queue by its number.
pub(super) fn name_of(db: &Connection, queue: QueueNo) -> Result<QueueName, StoreError> {
    let sql = format!("SELECT {NAMED} FROM queue WHERE no = ?1");
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query([queue.0]).map_err(failed)?;
    match rows.next().map_err(failed)? {
        Some(row) => read_name(row).map(|(_, name)| name),
        None => Err(corrupt(format!("queue {} is missing", queue.0))),
    }
}

fn read_all(db: &Connection) -> Result<Vec<(QueueName, Tally)>, StoreError> {
    let mut queues = Vec::new();
    let sql = format!("SELECT {NAMED} FROM queue ORDER BY no");
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let (no, name) = read_name(row)?;
        if no as usize != queues.len() {
            return Err(corrupt(format!("queue {no} stands where queue {} is expected", queues.len())));
        }
        queues.push((name, Tally::default()));
    }
    let mut statement = db.prepare_cached("SELECT block, counts FROM tally ORDER BY block").map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    let mut blocks = 0;
    while let Some(row) = rows.next().map_err(failed)? {
        let block: usize = row.get(0).map_err(failed)?;
        blocks += usize::from(block == blocks);
        let blob: Vec<u8> = row.get(1).map_err(failed)?;
        let mut reader = Reader::open(&blob, "a block of counters")?;
        for (_, tally) in queues.iter_mut().skip(block * BLOCK).take(BLOCK) {
            if reader.is_done() {
                break;
            }
            *tally = Tally::decode(&mut reader)?;
        }
    }
    // A table whose first page was lost looks like an empty one: then its jobs would be lost in silence.
    if blocks != queues.len().div_ceil(BLOCK) {
        return Err(corrupt(format!("{} queues have {blocks} blocks of counters", queues.len())));
    }
    Ok(queues)
}

fn new_jobs(lane: Lane, state: State, count: u64) -> Move {
    Move { lane, run: None, from: None, to: Some(state), count }
}
