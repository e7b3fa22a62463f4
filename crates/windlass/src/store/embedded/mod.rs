//! The embedded store: SQLite, with work waiting in chunks of up to a thousand jobs.
//!
//! One connection writes, on the engine's thread; what a turn changes in counters, marks and runs is kept in memory
//! and written once, at its commit. Memory grows with what runs and with the number of queues, never with what
//! waits. Read `schema` for the tables, `part` for marks, then the verbs: `admit`, `lanes`, `settle`, `turns`,
//! `amend`, `recover`. This file owns the turn's transaction and what memory holds.

use super::{
    Amended, Amendment, Arriving, Changes, Deleted, Durability, End, Evidence, FollowUp, Held, JobInfo, Lot, Move,
    NewJobs, NewRun, Order, Place, Recovered, RunInfo, Settlement, Steer, Store, StoreError, Together, Told,
    Unarchived, Unheld,
};
use crate::data_dir::DataDir;
use crate::numbered::ByNumber;
use crate::sabotage::{self, Sabotage};
use rusqlite::Connection;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use windlass_core::job::{Arrival, JobId, Lane, RunId, RunNo};
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::overrides::Override;
use windlass_core::run::terms::Stopped;
use windlass_core::time::Time;

mod admit;
mod amend;
pub mod bodies;
mod chunks;
mod keys;
mod lanes;
mod notes;
mod part;
mod recover;
mod reserve;
pub(in crate::store) mod rows;
pub(in crate::store) mod runs;
pub(in crate::store) mod schema;
mod settle;
pub mod snapshot;
mod steer;
mod strips;
mod sums;
mod tally;
mod times;
mod travel;
pub(in crate::store) mod turns;
mod view;
mod wal;
pub(in crate::store) mod wire;

#[cfg(test)]
mod tests;

pub use bodies::BodyWriter;
pub use schema::Opened;
pub use view::View;

use bodies::{Bodies, Files};
use lanes::Windows;
use notes::Notes;
use part::{Head, Mark, Part};
use reserve::Reserve;
use rows::Row;
use runs::Runs;
use schema::{StateRow, corrupt, failed};
use strips::Strips;
use tally::Queues;
use wal::Housekeeper;
use wire::Writer;

/// The default store.
#[derive(Debug)]
pub struct Embedded {
    db: Connection,
    epoch: u64,
    memory: Memory,
    housekeeper: Housekeeper,
    bodies: Bodies,
    body_thread: bodies::Thread,
    /// Body files that a turn has forgotten which is not on disk yet.
    removable: Vec<u32>,
    reserve: Reserve,
    /// A verb or a commit found no space: the reserve is given up with the rollback.
    full: bool,
    /// SQLite's count of changed rows when the turn began: a turn that changed none is not written.
    changes_before: u64,
    /// A verb or a commit failed: nothing but `rollback` makes sense.
    broken: bool,
    /// What was committed `Os` and is not on disk yet.
    unsynced: bool,
    /// A sync failed: what the disk holds is not known any more, and this process must not find out by trying again.
    lost: Option<StoreError>,
}

/// Everything that a rollback throws away and reads again.
#[derive(Debug)]
struct Memory {
    state: StateRow,
    queues: Queues,
    runs: Runs,
    windows: Windows,
    files: Files,
    /// Opened chunks by first arrival, until the archive has all of their outcomes.
    parts: ByNumber<u64, Part>,
    strips: Strips,
    /// Chunks of which nothing waits any more, and that their lanes still list.
    unlisted: Vec<Head>,
    /// Claimed rows by arrival, without their data: what a settlement is checked against.
    running: ByNumber<u64, Row>,
    /// Rows that this turn has released and not written as such: a claim may take them before.
    released: HashMap<Lane, Vec<u64>>,
    /// What is over but kept for the archive, with the turn in which it ended, oldest first.
    finished: VecDeque<(u64, Place)>,
    /// Turns that the archive does not hold yet.
    turns: VecDeque<u64>,
    /// The outcomes of this turn, encoded.
    outcomes: Writer,
    span: Option<chunks::Span>,
    /// Jobs that others wait for, and those of them that this verb has ended.
    awaited: HashSet<JobId>,
    /// Some job must begin or end by a time; where none did since the opening, nobody looks.
    expires: bool,
    ends: Vec<(JobId, bool)>,
    notes: Notes,
    changes: Changes,
}

/// The store inside a turn: every verb is a method of it, in the file named after the verb.
#[derive(Debug)]
struct Turn<'a> {
    db: &'a Connection,
    bodies: &'a Bodies,
    m: &'a mut Memory,
}

impl Embedded {
    /// Opens or makes the store of a data directory, whose lock the caller holds.
    pub fn open(dir: &DataDir, boot: &str) -> Result<(Embedded, Opened), StoreError> {
        let mut reserve = Reserve::open(dir.reserve());
        // SQLite has no word for it where it makes its index, so the disk is asked.
        let open = || match schema::open_writer(dir, boot) {
            Err(StoreError::Io(why)) if reserve::is_full(&dir.state_db()) => Err(StoreError::Full(why)),
            other => other,
        };
        let (mut db, epoch, opened) = match open() {
            // To open is to write a new epoch, and that must be possible on a full disk.
            Err(StoreError::Full(_)) => {
                reserve.release(&wal::log_path(&dir.state_db()), reserve::START);
                open()?
            }
            other => other?,
        };
        let housekeeper = Housekeeper::start(&mut db, &dir.state_db())?;
        let memory = Memory::load(&db)?;
        let body_thread = bodies::Thread::start(&dir.state_db(), &memory.files)?;
        let store = Embedded {
            db,
            epoch,
            memory,
            housekeeper,
            bodies: Bodies::beside(&dir.state_db()).with_spare(),
            body_thread,
            removable: Vec::new(),
            reserve,
            full: false,
            changes_before: 0,
            broken: false,
            unsynced: false,
            lost: None,
        };
        Ok((store, opened))
    }

    /// Who brings the bodies of large lots to disk before they are admitted.
    pub fn body_writer(&self) -> BodyWriter {
        self.body_thread.writer()
    }

    /// Opens the turn's transaction where it is not open yet.
    fn turn(&mut self) -> Result<Turn<'_>, StoreError> {
        self.refuse_broken()?;
        if self.db.is_autocommit() {
            self.db.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([])).map_err(failed)?;
            self.changes_before = self.db.total_changes();
        }
        Ok(Turn { db: &self.db, bodies: &self.bodies, m: &mut self.memory })
    }

    fn refuse_broken(&self) -> Result<(), StoreError> {
        match &self.lost {
            Some(error) => Err(error.clone()),
            None if self.broken => Err(StoreError::Stale("an earlier call of this turn failed".into())),
            None => Ok(()),
        }
    }

    /// Writes the turn to the log; without changes there is nothing to write.
    fn write_turn(&mut self) -> Result<(), StoreError> {
        if self.db.is_autocommit() {
            return Ok(());
        }
        if self.db.total_changes() == self.changes_before && self.memory.is_clean() {
            return self.db.execute_batch("ROLLBACK").map_err(failed);
        }
        self.broken = true;
        let mut turn = Turn { db: &self.db, bodies: &self.bodies, m: &mut self.memory };
        if self.reserve.is_held() {
            turn.gather_bodies()?;
        }
        turn.flush()?;
        self.db.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])).map_err(failed)?;
        if sabotage::on(Sabotage::CountOutsideTransaction) {
            self.memory.runs.save(&self.db)?;
        }
        self.broken = false;
        self.unsynced = true;
        self.removable.append(&mut self.memory.files.take_gone());
        Ok(())
    }

    /// Runs one verb; after a failure that may have left half of it in memory only `rollback` helps.
    fn verb<T>(&mut self, act: impl FnOnce(&mut Turn<'_>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut turn = self.turn()?;
        let done = turn.write_released().and_then(|()| turn.write_unlisted()).and_then(|()| act(&mut turn));
        self.after(done)
    }

    fn after<T>(&mut self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        self.broken |= done.as_ref().is_err_and(|error| !matches!(error, StoreError::Stale(_)));
        self.full |= matches!(done, Err(StoreError::Full(_)));
        done
    }
}

impl Store for Embedded {
    fn backlog(&mut self) -> Result<Changes, StoreError> {
        if self.broken {
            self.rollback()?;
        }
        // What was reported so far is part of the answer, so it is not reported again.
        self.memory.changes.moves.clear();
        self.memory.changes.queues.clear();
        Ok(self.memory.queues.backlog())
    }

    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError> {
        Ok(self.memory.runs.open())
    }

    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError> {
        let recovered = self.verb(|turn| turn.recover(evidence, now))?;
        self.commit(Durability::Full)?;
        Ok(recovered)
    }

    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        self.verb(|turn| turn.admit(lot, now))
    }

    fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError> {
        self.verb(|turn| turn.holders(new))
    }

    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError> {
        self.verb(|turn| turn.m.runs.make(turn.db, &mut turn.m.state, id, run, now))
    }

    fn stop_run(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError> {
        self.verb(|turn| {
            turn.m.runs.stop(turn.db, no, why)?;
            turn.end_runs(now)
        })
    }

    fn claim(&mut self, orders: &[Order], _now: Time) -> Result<Vec<Held>, StoreError> {
        if orders.is_empty() {
            return Ok(Vec::new());
        }
        // Alone among the verbs it knows what is released and not written.
        let claimed = self.turn()?.claim(orders);
        self.after(claimed)
    }

    fn held(&mut self, id: JobId) -> Result<Option<Held>, StoreError> {
        self.verb(|turn| turn.held(id))
    }

    fn hold(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Result<Held, Unheld>>, StoreError> {
        self.verb(|turn| turn.hold(ids, now))
    }

    fn takes_pasts(&self) -> bool {
        true
    }

    fn arrive(&mut self, jobs: &[Arriving], now: Time) -> Result<(), StoreError> {
        self.verb(|turn| turn.arrive(jobs, now))
    }

    fn settle(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        if settlements.is_empty() && follow_ups.is_empty() {
            return Ok(());
        }
        self.verb(|turn| turn.settle(settlements.iter().map(End::of), follow_ups, now))
    }

    fn ends_together(&self) -> bool {
        true
    }

    fn settle_together(&mut self, ends: &[Together], now: Time) -> Result<(), StoreError> {
        self.verb(|turn| turn.settle(ends.iter().flat_map(Together::ends), &[], now))
    }

    fn release(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError> {
        if self.next_due()?.is_none_or(|due| due > now) {
            return Ok(());
        }
        self.verb(|turn| {
            turn.expire(now, limit, late)?;
            turn.release(now, limit)?;
            turn.end_runs(now)
        })
    }

    fn next_due(&mut self) -> Result<Option<Time>, StoreError> {
        if !self.memory.released.is_empty() {
            self.verb(|turn| turn.write_released())?;
        }
        let (due, timed) = (lanes::next_due(&self.db)?, self.memory.queues.timed());
        if due.is_none() && timed > 0 {
            return Err(corrupt(format!("{timed} jobs wait for their time, and no index has one of them")));
        }
        let next = if self.memory.expires { times::next_expiry(&self.db)? } else { None };
        Ok(due.filter(|due| *due != times::NEVER).into_iter().chain(next).min())
    }

    fn shift_waits(&mut self, by: i64) -> Result<bool, StoreError> {
        self.verb(|turn| rows::shift_waits(turn.db, by).map(|()| true))
    }

    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        self.verb(|turn| turn.amend(ids, amendment, now))
    }

    fn steer(&mut self, step: &Steer) -> Result<(), StoreError> {
        self.verb(|turn| turn.steer(step))
    }

    fn overrides(&mut self) -> Result<Vec<Override>, StoreError> {
        steer::overrides(&self.db)
    }

    fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError> {
        self.verb(|turn| turn.jobs(ids))
    }

    fn of_run(&mut self, run: RunId, from: Arrival, limit: usize) -> Result<(Vec<JobId>, Option<Arrival>), StoreError> {
        self.verb(|turn| view::live_of((turn.db, turn.bodies), run, from, limit))
    }

    fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        self.verb(|turn| turn.delete(ids, now))
    }

    fn joined(&mut self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.refuse_broken()?;
        self.memory.runs.joined(&self.db, run)
    }

    fn run_numbered(&mut self, no: RunNo) -> Result<Option<RunInfo>, StoreError> {
        self.refuse_broken()?;
        Ok(self.memory.runs.run(&self.db, no)?.cloned())
    }

    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        let nothing = value.is_none() && !self.memory.notes.may_have(key);
        if nothing { self.refuse_broken() } else { self.verb(|turn| turn.m.notes.put(turn.db, key, value)) }
    }

    fn notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.refuse_broken()?;
        self.memory.notes.first(&self.db, prefix, limit)
    }

    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        if !amend::anything_to_forget(&self.db, before)? {
            return Ok(0);
        }
        self.verb(|turn| turn.forget(before, limit))
    }

    fn archived(&mut self, turn: u64) -> Result<(), StoreError> {
        if self.memory.turns.front().is_none_or(|oldest| *oldest > turn) {
            return Ok(());
        }
        self.verb(|inside| inside.archived(turn))
    }

    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError> {
        turns::unarchived(&self.db, &self.bodies)
    }

    fn changes(&mut self) -> Changes {
        let runs = self.memory.runs.take_made();
        Changes { runs, ..std::mem::take(&mut self.memory.changes) }
    }

    fn commit(&mut self, durability: Durability) -> Result<u64, StoreError> {
        self.refuse_broken()?;
        self.write_turn().inspect_err(|error| self.full |= matches!(error, StoreError::Full(_)))?;
        if durability == Durability::Full && self.unsynced {
            let lose = |error: &StoreError| Some(error.clone()).filter(|_| !sabotage::on(Sabotage::SyncTriedAgain));
            self.housekeeper.sync_log().inspect_err(|error| self.lost = lose(error))?;
            self.unsynced = false;
        }
        if !self.removable.is_empty() && (!self.unsynced || sabotage::on(Sabotage::BodyGoneEarly)) {
            self.bodies.close(&self.removable);
            self.body_thread.remove(std::mem::take(&mut self.removable));
        }
        self.housekeeper.look(&self.db).inspect_err(|error| self.lost = Some(error.clone()))?;
        self.memory.windows.trim();
        Ok(self.memory.state.turn)
    }

    fn rollback(&mut self) -> Result<(), StoreError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        if !self.db.is_autocommit() {
            self.db.execute_batch("ROLLBACK").map_err(failed)?;
        }
        self.memory = Memory::load(&self.db)?;
        self.broken = false;
        if std::mem::take(&mut self.full) {
            self.reserve.release(self.housekeeper.log(), 0);
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        self.reserve.has_room()
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Memory {
    fn load(db: &Connection) -> Result<Memory, StoreError> {
        let mut memory = Memory {
            state: StateRow::load(db)?,
            queues: Queues::load(db)?,
            runs: Runs::load(db)?,
            windows: Windows::default(),
            files: Files::load(db)?,
            parts: ByNumber::default(),
            strips: Strips::default(),
            unlisted: Vec::new(),
            running: ByNumber::default(),
            released: HashMap::new(),
            finished: VecDeque::new(),
            turns: VecDeque::new(),
            outcomes: Writer::default(),
            span: None,
            awaited: times::load_awaited(db)?,
            expires: times::any_expiry(db)?,
            ends: Vec::new(),
            notes: Notes::load(db)?,
            changes: Changes::default(),
        };
        let mut finished = strips::load(db, &mut memory.parts, &mut memory.strips)?;
        let (found, expected) = (memory.parts.len() as u64, memory.state.parts);
        // Without its marks a chunk would look as if nobody had touched it, and its jobs run once more.
        if found != expected {
            return Err(corrupt(format!("{found} chunks have marks, expected {expected}")));
        }
        turns::load(db, &mut memory.turns, &mut finished)?;
        let running = rows::light(db, "WHERE state = 2", [])?;
        let running = rows::expect(running, "running", |row| row.state == State::Running)?;
        memory.running = running.into_iter().map(|row| (row.arrival, row)).collect();
        finished.sort();
        memory.finished = finished.into();
        Ok(memory)
    }

    /// True where nothing waits to be written with the turn.
    fn is_clean(&self) -> bool {
        self.strips.is_clean()
            && self.unlisted.is_empty()
            && self.outcomes.0.is_empty()
            && self.queues.is_clean()
            && self.runs.is_clean()
            && self.files.is_clean()
    }
}

impl Turn<'_> {
    /// The number this turn will have.
    fn number(&self) -> u64 {
        self.m.state.turn + 1
    }

    /// One legal change of some jobs of a lane: counters, run and report. `rows` says that they are rows where
    /// they are ready; `lane` is the one they leave or enter as ready jobs.
    fn change(
        &mut self,
        lane: Lane,
        run: Option<RunNo>,
        from: State,
        change: Change,
        count: u64,
        rows: bool,
    ) -> Result<State, StoreError> {
        let to = life_cycle::next(from, change);
        debug_assert!(to.is_some(), "{change:?} is not legal from {from}");
        let to = to.ok_or_else(|| StoreError::Stale(format!("{change:?} is not legal from {from}")))?;
        self.shift(lane, run, Some(from), Some(to), count, rows)?;
        Ok(to)
    }

    fn shift(
        &mut self,
        lane: Lane,
        run: Option<RunNo>,
        from: Option<State>,
        to: Option<State>,
        count: u64,
        rows: bool,
    ) -> Result<(), StoreError> {
        self.m.queues.shift(lane, from, to, count, rows)?;
        if let (Some(no), Some(to)) = (run, to)
            && let Some(info) = self.m.runs.run(self.db, no)?
        {
            match from {
                None => info.counts.admit(to, count),
                Some(from) => {
                    let shifted = info.counts.shift(from, to, count);
                    shifted.map_err(|bad| corrupt(format!("{} counts too few {} jobs", info.id, bad.state)))?;
                }
            }
        }
        self.report(Move { lane, run, from, to, count });
        Ok(())
    }

    fn report(&mut self, new: Move) {
        match self.m.changes.moves.last_mut() {
            Some(last) if Move { count: new.count, ..*last } == new => last.count += new.count,
            _ => self.m.changes.moves.push(new),
        }
    }

    /// Changes the marks of neighbours in a chunk, and keeps its lane and its end in step.
    fn mark(&mut self, first: u64, jobs: Range<usize>, old: Mark, new: Mark) -> Result<(), StoreError> {
        let part = self.m.parts.get_mut(&first).ok_or_else(|| corrupt(format!("chunk {first} is not open")))?;
        let (waited, touched) = (part.waiting > 0, part.dirty);
        part.set(jobs, old, new);
        let (head, waits, gone) = (part.head, part.waiting > 0, part.is_gone());
        if !touched {
            self.m.strips.touch(first, &mut self.m.parts)?;
        }
        if waited && !waits {
            match head.due {
                Some(_) => chunks::unlist(self.db, &head)?,
                None => self.m.unlisted.push(head),
            }
            self.m.windows.remove(&head);
        } else if !waited && waits {
            let listed = self.m.unlisted.iter().position(|unlisted| unlisted.first == first);
            match listed.filter(|_| head.due.is_none()) {
                Some(at) => drop(self.m.unlisted.swap_remove(at)),
                None => chunks::list(self.db, &head)?,
            }
        }
        if gone {
            self.m.finished.push_back((self.m.state.turn + 1, Place::Chunk(Arrival(first))));
        }
        Ok(())
    }

    /// Writes what memory held back: marks, one row per touched run and block of counters, and the outcomes.
    fn flush(&mut self) -> Result<(), StoreError> {
        self.write_released()?;
        self.write_unlisted()?;
        self.sweep()?;
        let number = self.number();
        self.write_marks()?;
        self.m.queues.save(self.db)?;
        if !sabotage::on(Sabotage::CountOutsideTransaction) {
            self.m.runs.save(self.db)?;
        }
        self.m.files.save(self.db)?;
        self.save_outcomes(number)?;
        self.m.state.turn = number;
        self.m.state.save(self.db)
    }
}
