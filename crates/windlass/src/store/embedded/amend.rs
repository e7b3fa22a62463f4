//! What a person wants of single jobs, and forgetting what ended long ago.
//!
//! A job that is still in its chunk leaves it: its mark becomes gone and it goes on as a row. Nothing here decides
//! whether a change is legal: `life_cycle::next` does.

use super::super::chunk::Chunk;
use super::super::keys::Step;
use super::super::{Amended, Amendment, DELETED, Deleted, End, Held, JobInfo, Place, Settlement, StoreError};
use super::part::{Head, Mark, Part};
use super::rows::{self, Row};
use super::schema::failed;
use super::view::Names;
use super::{Turn, chunks};
use rusqlite::{Connection, params};
use std::sync::Arc;
use windlass_core::job::{Arrival, JobId, Lane, Priority, Record, RunNo};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::{self, Change, State};
use windlass_core::time::Time;

/// A job that was found, and where it is in its chunk, if it is still in one.
pub(super) struct Found {
    pub(super) row: Row,
    pub(super) inside: Option<Inside>,
}

/// A place in a chunk.
#[derive(Clone)]
pub(super) struct Inside {
    head: Head,
    jobs: Arc<Chunk>,
    index: usize,
}

/// The chunk that was looked into last: neighbours are mostly asked for together.
pub(super) type LookedInto = Option<(Head, Arc<Chunk>)>;

impl Turn<'_> {
    pub(super) fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError> {
        let mut answers = Vec::with_capacity(ids.len());
        let mut last = None;
        for id in ids {
            answers.push(match self.find(*id, &mut last)? {
                Some(found) => self.amend_one(found, amendment, now)?,
                None => Amended::Unknown,
            });
        }
        self.end_runs(now)?;
        Ok(answers)
    }

    pub(super) fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError> {
        let mut answers = Vec::with_capacity(ids.len());
        let mut last = None;
        for id in ids {
            answers.push(match self.find(*id, &mut last)? {
                Some(found) => self.delete_one(found, now)?,
                None => Deleted::Unknown,
            });
        }
        self.end_runs(now)?;
        Ok(answers)
    }

    pub(super) fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError> {
        let (mut names, mut last) = (Names::default(), None);
        let mut infos = Vec::with_capacity(ids.len());
        for id in ids {
            let found = self.find(*id, &mut last)?.map(|mut found| {
                // A claimed mark is the job's first start.
                found.row.record.starts += u32::from(found.inside.is_some() && found.row.state == State::Running);
                found.row
            });
            infos.push(found.map(|row| names.info(self.db, row)).transpose()?);
        }
        Ok(infos)
    }

    /// The claim of a job that runs.
    pub(super) fn held(&self, id: JobId) -> Result<Option<Held>, StoreError> {
        let found = self.find(id, &mut None)?.filter(|found| found.row.state == State::Running);
        Ok(found.map(|Found { row, inside }| match inside {
            Some(Inside { head, jobs, index }) => Held {
                place: Place::Chunk(Arrival(head.first)),
                lane: head.lane,
                run: head.run,
                record: Record::default(),
                admitted: head.admitted,
                jobs,
                first: index as u16,
                count: 1,
            },
            // The start of a row is counted with its claim.
            None => row.held(Record { starts: row.record.starts - 1, ..row.record }),
        }))
    }

    pub(super) fn find(&self, id: JobId, last: &mut LookedInto) -> Result<Option<Found>, StoreError> {
        if let Some(row) = rows::by_id(self.db, id)? {
            return Ok((row.state != State::Succeeded).then_some(Found { row, inside: None }));
        }
        let known = last.as_ref().and_then(|(head, jobs)| Some((*head, jobs.clone(), jobs.find(id)?)));
        let found = match known {
            Some(found) => Some(found),
            None => chunks::find(self.db, self.bodies, id)?,
        };
        let Some((head, jobs, index)) = found else { return Ok(None) };
        *last = Some((head, jobs.clone()));
        let mark = self.m.parts.get(&head.first).map_or(Mark::Waiting, |part| part.mark(index));
        let state = match mark {
            Mark::Gone => return Ok(None),
            Mark::Claimed => State::Running,
            Mark::Waiting if head.due.is_some() => State::Scheduled,
            Mark::Waiting => State::Ready,
        };
        let row = Row::from_chunk(&head, &jobs, index, state);
        Ok(Some(Found { row, inside: Some(Inside { head, jobs, index }) }))
    }

    /// Takes it out of its chunk or marks its row as over; the archive still needs its data.
    fn delete_one(&mut self, found: Found, now: Time) -> Result<Deleted, StoreError> {
        let Found { row, inside } = found;
        let (from, lane) = (row.state, row.lane());
        if from == State::Running {
            return Ok(Deleted::Running);
        }
        if !from.is_end() {
            self.change(lane, row.run, from, Change::Cancel, 1, inside.is_none())?;
        }
        let ended = if from.is_end() { from } else { State::Cancelled };
        self.shift(lane, None, Some(ended), None, 1, true)?;
        let held = match &inside {
            None => row.held(row.record),
            Some(Inside { head, jobs, index }) => Held {
                place: Place::Chunk(Arrival(head.first)),
                lane,
                run: row.run,
                record: row.record,
                admitted: row.admitted,
                jobs: jobs.clone(),
                first: *index as u16,
                count: 1,
            },
        };
        self.free_keys(&held.jobs, held.range(), lane.queue, Step::Ended)?;
        self.note_end(row.id, false);
        let last = Settlement { held, verdict: Verdict::Cancel, outcome: DELETED, started: now, finished: now };
        self.note_outcome(End::of(&last));
        match inside {
            Some(inside) => self.leave(&inside)?,
            None => {
                let turn = self.number();
                row.update_over(self.db, turn)?;
                self.m.finished.push_back((turn, last.held.place));
            }
        }
        Ok(Deleted::Done { from, last })
    }

    /// Its place in the chunk is empty from now on.
    fn leave(&mut self, Inside { head, index, .. }: &Inside) -> Result<(), StoreError> {
        self.m.parts.entry(head.first).or_insert_with(|| Part::fresh(*head));
        self.mark(head.first, *index..*index + 1, Mark::Waiting, Mark::Gone)
    }

    pub(super) fn amend_one(&mut self, found: Found, amendment: Amendment, now: Time) -> Result<Amended, StoreError> {
        let from = found.row.state;
        let change = match amendment {
            Amendment::Priority(priority) => return self.reprioritise(found, priority),
            Amendment::Cancel if from == State::Running => return Ok(Amended::Running),
            Amendment::Cancel => Change::Cancel,
            Amendment::Retry => Change::Revive,
            Amendment::Suspend => Change::Suspend,
            Amendment::Resume => Change::Resume,
        };
        let Some(to) = life_cycle::next(from, change) else { return Ok(Amended::Refused(from)) };
        let Found { mut row, inside } = found;
        let left = row.lane();
        let mut joined = None;
        if change == Change::Revive {
            if let Some(of) = self.key_held_beside(&row)? {
                return Ok(Amended::Taken(of));
            }
            row.record = Record { starts: row.record.starts, ..Record::default() };
            row.due = None;
            joined = self.next_generation(row.run, now)?;
        }
        match to {
            State::Ready => row.make_ready(now),
            State::Cancelled => {
                row.due = None;
                row.ended = Some(now);
            }
            State::Suspended => row.due = None,
            State::Scheduled | State::Running | State::Retrying | State::Succeeded | State::Failed => {}
        }
        row.state = to;
        self.free_keys_of(&row)?;
        if from.is_end() {
            self.retake_key(&row, joined.or(row.run))?;
        }
        let lane = if from == State::Ready { left } else { row.lane() };
        // A ready job in a chunk is not counted as a row; one that becomes ready is one from then on.
        let as_row = inside.is_none() || to == State::Ready;
        match joined {
            Some(run) => {
                row.run = joined;
                self.join(run, lane, from, to, as_row)?;
            }
            None => drop(self.change(lane, row.run, from, change, 1, as_row)?),
        }
        self.store(&row, inside)?;
        Ok(Amended::Done { from, to })
    }

    /// Where a job of an ended run goes when it lives again; nothing where its run has not ended.
    fn next_generation(&mut self, run: Option<RunNo>, now: Time) -> Result<Option<RunNo>, StoreError> {
        let Some(no) = run else { return Ok(None) };
        let over = self.m.runs.run(self.db, no)?.filter(|run| run.counts.ended).map(|run| run.id);
        over.map(|id| self.m.runs.for_jobs(self.db, &mut self.m.state, id, now)).transpose()
    }

    /// Counts a job that lives again in another run; the ended one keeps the counts of its end.
    fn join(&mut self, run: RunNo, lane: Lane, from: State, to: State, as_row: bool) -> Result<(), StoreError> {
        self.m.queues.shift(lane, Some(from), Some(to), 1, as_row)?;
        if let Some(info) = self.m.runs.run(self.db, run)? {
            info.counts.admit(to, 1);
        }
        self.report(super::Move { lane, run: Some(run), from: Some(from), to: Some(to), count: 1 });
        Ok(())
    }

    fn reprioritise(&mut self, found: Found, priority: Priority) -> Result<Amended, StoreError> {
        let Found { mut row, inside } = found;
        let state = row.state;
        match state {
            State::Scheduled | State::Ready | State::Retrying | State::Suspended => {}
            State::Running | State::Succeeded | State::Failed | State::Cancelled => {
                return Ok(Amended::Refused(state));
            }
        }
        if row.priority == priority {
            return Ok(Amended::Same(state));
        }
        let left = row.lane();
        row.priority = priority;
        if state == State::Ready {
            // Out of one lane and into another: nothing happened to the job's state, nor to its run.
            let (run, entered) = (row.run, row.lane());
            self.m.queues.shift(left, Some(State::Ready), None, 1, inside.is_none())?;
            self.m.queues.shift(entered, None, Some(State::Ready), 1, true)?;
            let moved = |lane, from, to| super::Move { lane, run, from, to, count: 1 };
            self.report(moved(left, Some(State::Ready), None));
            self.report(moved(entered, None, Some(State::Ready)));
        }
        self.store(&row, inside)?;
        Ok(Amended::Done { from: state, to: state })
    }

    pub(super) fn store(&mut self, row: &Row, inside: Option<Inside>) -> Result<(), StoreError> {
        match inside {
            Some(inside) => {
                self.leave(&inside)?;
                row.insert(self.db)
            }
            None => row.update(self.db),
        }
    }

    pub(super) fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError> {
        let rest = "WHERE ended < ?1 AND turn < ?2 ORDER BY ended LIMIT ?3";
        let oldest = self.oldest_unarchived().min(i64::MAX as u64);
        let old = rows::many(self.db, rest, params![before.as_micros(), oldest, limit])?;
        rows::delete_all(self.db, &old.iter().map(|row| row.arrival).collect::<Vec<_>>())?;
        for row in &old {
            self.shift(row.lane(), None, Some(row.state), None, 1, true)?;
        }
        let mut forgotten = old.len() as u64;
        let left = u64::from(limit) - forgotten;
        if left > 0 {
            forgotten += self.m.runs.forget(self.db, before, left)?;
        }
        Ok(forgotten)
    }
}

/// Looked at outside a turn, so that a look costs no commit.
pub(super) fn anything_to_forget(db: &Connection, before: Time) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM job WHERE ended < ?1) OR EXISTS (SELECT 1 FROM progress WHERE ended < ?1) \
               OR EXISTS (SELECT 1 FROM inbox WHERE closed < ?1)";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    statement.query_row([before.as_micros()], |r| r.get(0)).map_err(failed)
}
