//! Chunks in their table: writing, reading, their place in a lane or among the due, and finding a job by its id.
//!
//! A chunk is written once and its jobs never change; its bytes are in its row or in a body file, and what copies share
//! is in a row of `shared`. It is listed in
//! `lane` while it has ready jobs, in `due` while its time has not come, in neither once all of its jobs are claimed
//! or gone. `span` leads from ids to arrivals.

use super::super::chunk::Chunk;
use super::super::{Extent, StoreError};
use super::bodies::Bodies;
use super::part::Head;
use super::rows::rank;
use super::schema::{corrupt, failed};
use super::sums::{NONE, check, sum};
use crate::sabotage::{self, Sabotage};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::Arc;
use windlass_core::job::{JobId, Lane, LaneKind, Origin, Priority, QueueNo, RunNo};
use windlass_core::time::Time;

/// A span grows while lonely jobs of one origin follow each other, so that they do not cost a row each.
const SPAN_ARRIVALS: u64 = 1000;
/// Spans of one origin hardly ever overlap; so many are looked into at most.
const SPANS_TRIED: u32 = 4;

pub(super) const HEAD: &str = "c.first, c.count, c.queue, c.rank, c.run, c.admitted, c.due, c.base, c.last, c.sum, \
    (SELECT d.due FROM due d WHERE d.due = c.due AND d.first = c.first)";
/// The columns of `HEAD`; a chunk's bytes are selected behind them.
pub(super) const HEAD_COLUMNS: usize = 11;

/// Which arrivals the ids of one origin got in one lot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) origin: Origin,
    pub(super) offsets: (u64, u64),
}

impl Span {
    pub(super) fn of(first: u64, jobs: &Chunk) -> Span {
        Span { first, last: first + jobs.len() as u64 - 1, origin: jobs.origin(), offsets: jobs.offset_range() }
    }

    pub(super) fn join(&mut self, other: &Span) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.offsets = (self.offsets.0.min(other.offsets.0), self.offsets.1.max(other.offsets.1));
    }

    /// True where `next` goes on right behind this span and both are small.
    pub(super) fn leads_to(&self, next: &Span) -> bool {
        self.origin == next.origin
            && self.last + 1 == next.first
            && self.offsets.1 < next.offsets.0
            && next.last - self.first < SPAN_ARRIVALS
    }

    pub(super) fn save(&self, db: &Connection) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO span (first, last, origin, first_offset, last_offset) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        let key = params![self.first, self.last, self.origin.bits(), self.offsets.0, self.offsets.1];
        statement.execute(key).map_err(failed)?;
        Ok(())
    }
}

/// The checksum of a chunk's row but for its bytes, which have one of their own.
fn head_sum(head: &Head, due: Option<Time>, offsets: (u64, u64)) -> u32 {
    let numbers = [
        head.first as i64,
        i64::from(head.count),
        i64::from(head.lane.queue.0),
        rank(head.lane.priority),
        head.run.map_or(NONE, |run| i64::from(run.0)),
        head.admitted.as_micros(),
        due.map_or(NONE, Time::as_micros),
        offsets.0 as i64,
        offsets.1 as i64,
    ];
    sum(numbers, &[])
}

/// Where the data of a chunk's jobs lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// In its row.
    Row,
    File(Extent),
    /// In the row of `shared` with this number, for all copies.
    Shared(u64),
}

impl Body {
    /// The columns `segment`, `offset` and `length`.
    fn columns(self) -> (Option<u32>, Option<u64>, Option<u32>) {
        match self {
            Body::Row => (None, None, None),
            Body::File(extent) => (Some(extent.file), Some(extent.offset), Some(extent.length)),
            Body::Shared(no) => (None, Some(no), None),
        }
    }
}

/// Stores a new chunk and lists it. Bytes that lie in a body file are not stored again.
pub(super) fn insert(db: &Connection, head: &Head, jobs: &Chunk, body: Body) -> Result<(), StoreError> {
    let sql = "INSERT INTO chunk (first, queue, rank, count, run, due, admitted, base, last, sum, segment, offset, \
               length, bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let (base, last) = jobs.offset_range();
    let (segment, offset, length) = body.columns();
    let done = statement.execute(params![
        head.first,
        head.lane.queue.0,
        rank(head.lane.priority),
        head.count,
        head.run.map(|run| run.0),
        head.due.map(Time::as_micros),
        head.admitted.as_micros(),
        base,
        last,
        head_sum(head, head.due, (base, last)),
        segment,
        offset,
        length,
        segment.is_none().then_some(jobs.as_bytes()),
    ]);
    done.map_err(failed)?;
    list(db, head)
}

/// Lists a chunk where it is looked for: in its lane, or among the due.
pub(super) fn list(db: &Connection, head: &Head) -> Result<(), StoreError> {
    let done =
        match head.due {
            Some(due) => db
                .prepare_cached("INSERT INTO due (due, first) VALUES (?1, ?2)")
                .and_then(|mut statement| statement.execute(params![due.as_micros(), head.first])),
            None => db.prepare_cached("INSERT INTO lane (queue, rank, first) VALUES (?1, ?2, ?3)").and_then(
                |mut statement| statement.execute(params![head.lane.queue.0, rank(head.lane.priority), head.first]),
            ),
        };
    done.map_err(failed).map(|_| ())
}

pub(super) fn unlist(db: &Connection, head: &Head) -> Result<(), StoreError> {
    let done = match head.due {
        Some(due) => db
            .prepare_cached("DELETE FROM due WHERE due = ?1 AND first = ?2")
            .and_then(|mut statement| statement.execute(params![due.as_micros(), head.first])),
        None => db.prepare_cached("DELETE FROM lane WHERE queue = ?1 AND rank = ?2 AND first = ?3").and_then(
            |mut statement| statement.execute(params![head.lane.queue.0, rank(head.lane.priority), head.first]),
        ),
    };
    done.map_err(failed).map(|_| ())
}

/// Takes all chunks of these queues out of their lanes; tells how many were listed.
pub(super) fn unlist_queues(db: &Connection, first: QueueNo, last: QueueNo) -> Result<usize, StoreError> {
    let mut statement = db.prepare_cached("DELETE FROM lane WHERE queue BETWEEN ?1 AND ?2").map_err(failed)?;
    statement.execute([first.0, last.0]).map_err(failed)
}

/// Deletes neighbouring chunks whose outcomes the archive holds; tells how much of which body files they leave. What
/// copies shared goes with the last of them.
pub(super) fn delete(db: &Connection, first: u64, last: u64) -> Result<Vec<(u32, u64)>, StoreError> {
    let mut shared = Vec::new();
    let left = match left_in_one_file(db, first, last)? {
        Some(left) => left,
        None => left_behind(db, first, last, &mut shared)?,
    };
    for sql in ["DELETE FROM part WHERE first BETWEEN ?1 AND ?2", "DELETE FROM chunk WHERE first BETWEEN ?1 AND ?2"] {
        let mut statement = db.prepare_cached(sql).map_err(failed)?;
        statement.execute([first, last]).map_err(failed)?;
    }
    let early = sabotage::on(Sabotage::SharedGoneEarly);
    shared.into_iter().try_for_each(|no| if early { delete_shared(db, no) } else { delete_unused(db, no) })?;
    Ok(left)
}

/// What chunks leave behind where their bodies lie in one file at most: hundreds that came together do, and one row
/// tells of all. None where they lie elsewhere, too.
fn left_in_one_file(db: &Connection, first: u64, last: u64) -> Result<Option<Vec<(u32, u64)>>, StoreError> {
    let sql = "SELECT min(segment), max(segment), coalesce(sum(length), 0), count(segment) = count(offset) FROM chunk \
               WHERE first BETWEEN ?1 AND ?2 AND offset IS NOT NULL";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let row = |r: &rusqlite::Row<'_>| {
        let files: (Option<u32>, Option<u32>) = (r.get(0)?, r.get(1)?);
        Ok((files, r.get::<_, u64>(2)?, r.get::<_, bool>(3)?))
    };
    let ((least, most), length, in_files) = statement.query_row([first, last], row).map_err(failed)?;
    let one = in_files && least == most;
    Ok(one.then(|| least.map(|file| (file, length)).into_iter().collect()))
}

/// The same for chunks anywhere, and what those that are copies share.
fn left_behind(db: &Connection, first: u64, last: u64, shared: &mut Vec<u64>) -> Result<Vec<(u32, u64)>, StoreError> {
    let mut left: Vec<(u32, u64)> = Vec::new();
    let sql = "SELECT segment, length, offset FROM chunk WHERE first BETWEEN ?1 AND ?2 AND offset IS NOT NULL";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let mut rows = statement.query([first, last]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let Some(file) = row.get(0).map_err(failed)? else {
            let no = row.get(2).map_err(failed)?;
            if shared.last() != Some(&no) {
                shared.push(no);
            }
            continue;
        };
        let length = row.get(1).map_err(failed)?;
        match left.last_mut() {
            Some((same, sum)) if *same == file => *sum += length,
            _ => left.push((file, length)),
        }
    }
    Ok(left)
}

/// Stores what copies share: the chunks from arrival `no` to `last` are theirs, and may be others' as well.
pub(super) fn insert_shared(db: &Connection, no: u64, last: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let sql = "INSERT INTO shared (no, last, bytes) VALUES (?1, ?2, ?3)";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    statement.execute(params![no, last, bytes]).map_err(failed).map(|_| ())
}

/// Drops what copies shared if none of them is left.
pub(super) fn delete_unused(db: &Connection, no: u64) -> Result<(), StoreError> {
    let used = "SELECT EXISTS (SELECT 1 FROM shared s JOIN chunk c ON c.first BETWEEN s.no AND s.last \
                WHERE s.no = ?1 AND c.segment IS NULL AND c.offset = ?1)";
    let mut statement = db.prepare_cached(used).map_err(failed)?;
    if statement.query_row([no], |r| r.get(0)).map_err(failed)? { Ok(()) } else { delete_shared(db, no) }
}

fn delete_shared(db: &Connection, no: u64) -> Result<(), StoreError> {
    let mut statement = db.prepare_cached("DELETE FROM shared WHERE no = ?1").map_err(failed)?;
    statement.execute([no]).map_err(failed).map(|_| ())
}

/// Drops the spans in which the last of these chunks, sorted, was the last one.
pub(super) fn prune_spans(db: &Connection, deleted: &[u64]) -> Result<(), StoreError> {
    let around = "SELECT first, last FROM span WHERE first <= ?1 ORDER BY first DESC LIMIT 1";
    let left = "SELECT EXISTS (SELECT 1 FROM chunk WHERE first BETWEEN ?1 AND ?2)";
    let mut looked = 0;
    for first in deleted.iter().filter(|first| **first != 0) {
        if *first < looked {
            continue;
        }
        let mut statement = db.prepare_cached(around).map_err(failed)?;
        let span = statement.query_row([first], |r| Ok((r.get::<_, u64>(0)?, r.get::<_, u64>(1)?)));
        let Some((from, to)) = span.optional().map_err(failed)? else { continue };
        looked = to + 1;
        let mut statement = db.prepare_cached(left).map_err(failed)?;
        if !statement.query_row([from, to], |r| r.get::<_, bool>(0)).map_err(failed)? {
            let mut statement = db.prepare_cached("DELETE FROM span WHERE first = ?1").map_err(failed)?;
            statement.execute([from]).map_err(failed)?;
        }
    }
    Ok(())
}

/// Reads a head from the columns of `HEAD`. Chunks of older formats have no sum.
pub(super) fn read_head(r: &rusqlite::Row<'_>) -> Result<Head, StoreError> {
    let read = || -> rusqlite::Result<(Head, i64)> {
        let lane = Lane { queue: QueueNo(r.get(2)?), priority: Priority::NORMAL, kind: LaneKind::Fresh };
        let run = r.get::<_, Option<u32>>(4)?.map(RunNo);
        let (admitted, due) = (Time(r.get(5)?), r.get::<_, Option<i64>>(10)?.map(Time));
        Ok((Head { first: r.get(0)?, count: r.get(1)?, lane, run, admitted, due }, r.get(3)?))
    };
    let (mut head, rank) = read().map_err(failed)?;
    let priority = Priority::new(-rank).ok_or_else(|| corrupt(format!("chunk {} has rank {rank}", head.first)))?;
    head.lane.priority = priority;
    if let Some(stored) = r.get::<_, Option<u32>>(9).map_err(failed)? {
        let given = r.get::<_, Option<i64>>(6).map_err(failed)?.map(Time);
        let found = head_sum(&head, given, offsets(r)?);
        check(stored, found, || format!("the head of chunk {}", head.first))?;
    }
    Ok(head)
}

/// The offsets of its first and last job.
fn offsets(r: &rusqlite::Row<'_>) -> Result<(u64, u64), StoreError> {
    Ok((r.get(7).map_err(failed)?, r.get(8).map_err(failed)?))
}

/// The columns behind those of `HEAD` that lead to a chunk's bytes.
pub(super) const BYTES: &str = "c.bytes, c.segment, c.offset, c.length, \
    (SELECT s.bytes FROM shared s WHERE s.no = c.offset AND c.segment IS NULL)";

/// Fetches, checks and wraps the bytes of a chunk, from the columns of `HEAD` and `BYTES`.
pub(super) fn read_bytes(head: &Head, r: &rusqlite::Row<'_>, bodies: &Bodies) -> Result<Arc<Chunk>, StoreError> {
    let column = |n: usize| HEAD_COLUMNS + n;
    let shares = r.get::<_, Option<u32>>(column(1)).map_err(failed)?.is_none()
        && r.get::<_, Option<u64>>(column(2)).map_err(failed)?.is_some();
    let jobs = match r.get::<_, Option<Vec<u8>>>(HEAD_COLUMNS).map_err(failed)? {
        Some(bytes) if shares => {
            let missing = || corrupt(format!("what chunk {} shares is missing", head.first));
            let shared: Option<Vec<u8>> = r.get(column(4)).map_err(failed)?;
            Chunk::copied_from_bytes(bytes, shared.ok_or_else(missing)?)
        }
        Some(bytes) => Chunk::from_bytes(bytes),
        None => {
            let read = || Ok(Extent { file: r.get(column(1))?, offset: r.get(column(2))?, length: r.get(column(3))? });
            Chunk::from_bytes(bodies.read(read().map_err(failed)?)?)
        }
    };
    let jobs = jobs.map_err(|bad| corrupt(format!("chunk {}: {bad:?}", head.first)))?;
    if jobs.len() != usize::from(head.count) {
        return Err(corrupt(format!("chunk {} holds {} jobs, expected {}", head.first, jobs.len(), head.count)));
    }
    if jobs.offset_range() != offsets(r)? {
        return Err(corrupt(format!("chunk {} holds other jobs than those that were stored there", head.first)));
    }
    Ok(Arc::new(jobs))
}

/// One chunk by its first arrival.
pub(super) fn load(db: &Connection, bodies: &Bodies, first: u64) -> Result<Option<(Head, Arc<Chunk>)>, StoreError> {
    let sql = format!("SELECT {HEAD}, {BYTES} FROM chunk c WHERE c.first = ?1");
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query([first]).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
    let head = read_head(row)?;
    Ok(Some((head, read_bytes(&head, row, bodies)?)))
}

/// The chunk and the index in it that an id was stored at; what became of the job is said by the chunk's marks.
pub(super) fn find(
    db: &Connection,
    bodies: &Bodies,
    id: JobId,
) -> Result<Option<(Head, Arc<Chunk>, usize)>, StoreError> {
    let spans = "SELECT first, last FROM span WHERE origin = ?1 AND first_offset <= ?2 \
                 ORDER BY first_offset DESC LIMIT ?3";
    let mut statement = db.prepare_cached(spans).map_err(failed)?;
    let key = params![id.origin.bits(), id.offset, SPANS_TRIED];
    let spans = statement.query_map(key, |r| Ok((r.get::<_, u64>(0)?, r.get::<_, u64>(1)?))).map_err(failed)?;
    let spans: Vec<(u64, u64)> = spans.collect::<Result<_, _>>().map_err(failed)?;
    let sql = format!(
        "SELECT {HEAD}, {BYTES} FROM chunk c WHERE c.first BETWEEN ?1 AND ?2 AND c.base <= ?3 AND c.last >= ?3"
    );
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    for (first, last) in spans {
        let mut rows = statement.query(params![first, last, id.offset]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let head = read_head(row)?;
            let jobs = read_bytes(&head, row, bodies)?;
            if let Some(index) = jobs.find(id) {
                return Ok(Some((head, jobs, index)));
            }
        }
    }
    Ok(None)
}
