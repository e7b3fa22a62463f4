//! Jobs that must have begun or ended by a time, and jobs that wait for others.
//!
//! Both are listed in tables of their own, by what ends the wait: a time, or a job. Whoever has neither is in none of
//! them. A chunk that waits for jobs is among the due with a time that never comes. It must not decide what is legal.

use super::super::chunk::Chunk;
use super::super::{Amendment, EXPIRED, End, Settlement, StoreError, Told};
use super::amend::Found;
use super::part::Head;
use super::rows::{self, Row};
use super::schema::failed;
use super::{Turn, chunks};
use crate::sabotage::{self, Sabotage};
use rusqlite::{Connection, params};
use std::collections::HashSet;
use windlass_core::job::{JobId, Origin};
use windlass_core::judge::{Reason, Verdict, late_sentence};
use windlass_core::life_cycle::{Change, State};
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

/// The time of what waits for jobs.
pub(super) const NEVER: Time = Time(i64::MAX);
/// A job that runs past its time is asked for again after so long, in case that nobody heard of it.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(10);

/// Jobs that one entry of the table is about.
struct Entry {
    at: Time,
    first: u64,
    count: u64,
    /// They must have begun; else they must have ended.
    begin: bool,
}

impl Turn<'_> {
    /// The jobs that a new chunk has to wait for, as far as they have not succeeded; and one that never will.
    pub(super) fn unmet(&mut self, jobs: &Chunk) -> Result<(Vec<JobId>, Option<JobId>), StoreError> {
        let (mut unmet, mut failed) = (Vec::new(), None);
        for id in jobs.particulars().map(|particulars| &particulars.after[..]).unwrap_or_default() {
            match self.find(*id, &mut None)?.map(|found| found.row.state) {
                None | Some(State::Succeeded) => {}
                Some(State::Failed | State::Cancelled) => failed = Some(*id),
                Some(State::Scheduled | State::Ready | State::Running | State::Retrying | State::Suspended) => {
                    unmet.push(*id);
                }
            }
        }
        Ok((unmet, failed))
    }

    /// Lists a new chunk by the times and the jobs that it waits for.
    pub(super) fn list_waits(&mut self, head: &Head, jobs: &Chunk, unmet: &[JobId]) -> Result<(), StoreError> {
        let Some(particulars) = jobs.particulars() else { return Ok(()) };
        self.list_times(head.first, u64::from(head.count), particulars)?;
        for id in unmet {
            let sql = "INSERT OR IGNORE INTO waits_for (origin, offset, first) VALUES (?1, ?2, ?3)";
            let mut statement = self.db.prepare_cached(sql).map_err(failed)?;
            statement.execute(params![id.origin.bits(), id.offset, head.first]).map_err(failed)?;
            self.m.awaited.insert(*id);
        }
        Ok(())
    }

    /// Lists jobs by the times that they have; those that come back too, which may have missed them meanwhile: where
    /// they ran past one, that was put off.
    pub(super) fn list_times(&mut self, first: u64, count: u64, of: &Particulars) -> Result<(), StoreError> {
        for (at, begin) in [(of.start_by, true), (of.finish_by, false)] {
            if let Some(at) = at {
                self.m.expires = true;
                list(self.db, &Entry { at, first, count, begin })?;
            }
        }
        Ok(())
    }

    /// Fails what has not begun or ended in time; tells what runs past its time.
    pub(super) fn expire(&mut self, now: Time, limit: u32, told: Told<'_>) -> Result<(), StoreError> {
        let mut late = Vec::new();
        for entry in entries(self.db, now, limit)? {
            let mut statement = self
                .db
                .prepare_cached("DELETE FROM expiry WHERE at = ?1 AND first = ?2 AND to_begin = ?3")
                .map_err(failed)?;
            statement.execute(params![entry.at.as_micros(), entry.first, entry.begin]).map_err(failed)?;
            let mut runs = false;
            for found in self.found_in(entry.first, entry.count)? {
                match found.row.state {
                    State::Running if !entry.begin => {
                        runs = true;
                        self.m.changes.overdue.push(found.row.id);
                    }
                    State::Running | State::Succeeded | State::Failed | State::Cancelled => {}
                    State::Scheduled | State::Ready | State::Retrying | State::Suspended => {
                        if !entry.begin || found.row.record.starts == 0 {
                            late.push(self.fail_late(found, entry.begin, now)?);
                        }
                    }
                }
            }
            if runs {
                list(self.db, &Entry { at: now.after(AGAIN), ..entry })?;
            }
        }
        self.tell_of(late, told, now)
    }

    /// The jobs that came in with these arrivals and are still there.
    fn found_in(&mut self, first: u64, count: u64) -> Result<Vec<Found>, StoreError> {
        let mut ids: Vec<JobId> = Vec::new();
        if let Some((_, jobs)) = chunks::load(self.db, self.bodies, first)? {
            ids.extend((0..jobs.len()).map(|index| jobs.id(index)));
        } else {
            for arrival in first..first + count {
                ids.extend(rows::by_arrival(self.db, arrival)?.map(|row| row.id));
            }
        }
        let mut last = None;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.extend(self.find(id, &mut last)?);
        }
        Ok(found)
    }

    fn fail_late(&mut self, found: Found, begin: bool, now: Time) -> Result<Row, StoreError> {
        let Found { mut row, inside } = found;
        let (from, lane, before) = (row.state, row.lane(), row.record);
        let error = late_sentence(begin).to_owned();
        row.state = State::Failed;
        row.reason = Some(Reason::Expired);
        (row.due, row.ended, row.turn) = (None, Some(now), self.number());
        row.add_error(now, error.clone());
        self.free_keys_of(&row)?;
        self.change(lane, row.run, from, Change::Expire, 1, inside.is_none())?;
        let verdict = Verdict::Fail { reason: Reason::Expired, error };
        let (held, started) = (row.held(before), now);
        let last = Settlement { held, verdict, outcome: EXPIRED, started, finished: now };
        self.note_outcome(End::of(&last));
        self.m.changes.expired.push(last);
        self.store(&row, inside)?;
        Ok(row)
    }

    /// Notes that a job has ended, if somebody waits for it.
    pub(super) fn note_end(&mut self, id: JobId, succeeded: bool) {
        if self.m.awaited.contains(&id) {
            self.m.ends.push((id, succeeded));
        }
    }

    /// Lets those go that waited for jobs which have ended: on, or into the ground.
    pub(super) fn end_waits(&mut self, now: Time) -> Result<(), StoreError> {
        while let Some((id, succeeded)) = self.m.ends.pop() {
            self.m.awaited.remove(&id);
            let sql = "DELETE FROM waits_for WHERE origin = ?1 AND offset = ?2 RETURNING first";
            let mut statement = self.db.prepare_cached(sql).map_err(failed)?;
            let found =
                statement.query_map(params![id.origin.bits(), id.offset], |r| r.get::<_, u64>(0)).map_err(failed)?;
            let waiting: Vec<u64> = found.collect::<Result<_, _>>().map_err(failed)?;
            for first in waiting {
                let left = "SELECT EXISTS (SELECT 1 FROM waits_for WHERE first = ?1)";
                let mut statement = self.db.prepare_cached(left).map_err(failed)?;
                let left: bool = statement.query_row([first], |r| r.get(0)).map_err(failed)?;
                match succeeded {
                    true if left && !sabotage::on(Sabotage::AfterReleasedEarly) => {}
                    true => self.let_go(first)?,
                    false => self.give_up(first, id, now)?,
                }
            }
        }
        Ok(())
    }

    /// Nothing is left that a chunk waits for.
    fn let_go(&mut self, first: u64) -> Result<(), StoreError> {
        let Some((head, _)) = chunks::load(self.db, self.bodies, first)? else { return Ok(()) };
        let count = u64::from(head.count);
        let waiting = self.m.parts.get(&first).map_or(head.count, |part| part.waiting);
        if head.due == Some(NEVER) && waiting > 0 {
            self.release_chunk(head)?;
        }
        for arrival in first..first + count {
            let row = rows::by_arrival(self.db, arrival)?;
            let Some(mut row) = row.filter(|row: &Row| row.state == State::Scheduled && row.due == Some(NEVER)) else {
                continue;
            };
            row.due = None;
            row.make_ready(row.admitted);
            self.change(row.lane(), row.run, State::Scheduled, Change::Release, 1, true)?;
            row.update(self.db)?;
        }
        Ok(())
    }

    /// What a chunk waits for will not be: its jobs are cancelled, and say why.
    pub(super) fn give_up(&mut self, first: u64, because: JobId, now: Time) -> Result<(), StoreError> {
        let mut statement = self.db.prepare_cached("DELETE FROM waits_for WHERE first = ?1").map_err(failed)?;
        statement.execute([first]).map_err(failed)?;
        let Some((head, _)) = chunks::load(self.db, self.bodies, first)? else { return Ok(()) };
        for mut found in self.found_in(first, u64::from(head.count))? {
            // Whom a person let go waits for nobody, also where it asked for a later start.
            if found.row.state == State::Scheduled && found.row.due == Some(NEVER) {
                found.row.add_error(now, format!("cancelled: {because}, which it waited for, did not succeed"));
                self.amend_one(found, Amendment::Cancel, now)?;
            }
        }
        Ok(())
    }
}

fn list(db: &Connection, entry: &Entry) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO expiry (at, first, count, to_begin) VALUES (?1, ?2, ?3, ?4)";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let row = params![entry.at.as_micros(), entry.first, entry.count, entry.begin];
    statement.execute(row).map_err(failed).map(|_| ())
}

fn entries(db: &Connection, now: Time, limit: u32) -> Result<Vec<Entry>, StoreError> {
    let sql = "SELECT at, first, count, to_begin FROM expiry WHERE at <= ?1 ORDER BY at LIMIT ?2";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let read =
        |r: &rusqlite::Row<'_>| Ok(Entry { at: Time(r.get(0)?), first: r.get(1)?, count: r.get(2)?, begin: r.get(3)? });
    let found = statement.query_map(params![now.as_micros(), limit], read).map_err(failed)?;
    found.collect::<Result<_, _>>().map_err(failed)
}

/// The next time by which something must have begun or ended.
pub(super) fn next_expiry(db: &Connection) -> Result<Option<Time>, StoreError> {
    let mut statement = db.prepare_cached("SELECT min(at) FROM expiry").map_err(failed)?;
    let at: Option<i64> = statement.query_row([], |r| r.get(0)).map_err(failed)?;
    Ok(at.map(Time))
}

/// Whether there is anything of the kind.
pub(super) fn any_expiry(db: &Connection) -> Result<bool, StoreError> {
    let mut statement = db.prepare_cached("SELECT EXISTS (SELECT 1 FROM expiry)").map_err(failed)?;
    statement.query_row([], |r| r.get(0)).map_err(failed)
}

/// The jobs that others wait for.
pub(super) fn load_awaited(db: &Connection) -> Result<HashSet<JobId>, StoreError> {
    let mut statement = db.prepare_cached("SELECT DISTINCT origin, offset FROM waits_for").map_err(failed)?;
    let read = |r: &rusqlite::Row<'_>| Ok(JobId { origin: Origin::from_random(r.get(0)?), offset: r.get(1)? });
    let found = statement.query_map([], read).map_err(failed)?;
    found.collect::<Result<_, _>>().map_err(failed)
}
