//! Lanes: the next chunks of each, kept in memory within a budget, and the verbs `claim` and `release`.
//!
//! A window is the head of a lane. Chunks that were just admitted stay in it while the budget lasts, so that work
//! which runs soon is never read back; otherwise a few chunks are read ahead. It must not choose between lanes.

use super::super::chunk::Chunk;
use super::super::keys::Step;
use super::super::{Held, Order, Place, StoreError};
use super::bodies::Bodies;
use super::part::{Head, Mark, Part};
use super::rows::{self, Row, rank};
use super::schema::{corrupt, failed};
use super::tally::LaneCount;
use super::{Turn, chunks, tally};
use crate::numbered::ByNumber;
use rusqlite::{Connection, params};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use windlass_core::job::{Arrival, Lane, LaneKind, Priority, QueueNo, Record, RunNo};
use windlass_core::life_cycle::{Change, State};
use windlass_core::time::Time;

/// Bytes of chunks that windows keep.
const BUDGET: usize = 16 << 20;
const AHEAD: u32 = 16;
const AHEAD_OVER_BUDGET: u32 = 4;
/// Rows that one order takes at most; the next turn takes more.
const ROWS: usize = 1000;
/// Data in chunks of which one order takes no more, once it has so much.
const ORDER_BYTES: u64 = 64 << 20;

/// A chunk with jobs that wait.
#[derive(Clone, Debug)]
struct Waiting {
    head: Head,
    jobs: Arc<Chunk>,
}

impl Waiting {
    fn arrival(&self, index: usize) -> u64 {
        self.head.first + index as u64
    }
}

/// The head of a lane.
#[derive(Debug, Default)]
struct Window {
    /// The first chunk lies here and not among the others: most lanes have no other, and there may be very many lanes.
    front: Option<Waiting>,
    others: VecDeque<Waiting>,
    /// Nothing of the lane is outside the window.
    whole: bool,
}

impl Window {
    fn of(mut next: VecDeque<Waiting>, whole: bool) -> Window {
        Window { front: next.pop_front(), others: next, whole }
    }

    fn push(&mut self, waiting: Waiting) {
        match self.front {
            None => self.front = Some(waiting),
            Some(_) => self.others.push_back(waiting),
        }
    }

    /// Takes a chunk out, if it is here.
    fn remove(&mut self, first: u64) -> Option<Waiting> {
        if self.front.as_ref().is_some_and(|waiting| waiting.head.first == first) {
            return std::mem::replace(&mut self.front, self.others.pop_front());
        }
        let at = self.others.iter().position(|waiting| waiting.head.first == first)?;
        self.others.remove(at)
    }

    fn footprint(&self) -> usize {
        self.front.iter().chain(&self.others).map(|waiting| waiting.jobs.footprint()).sum()
    }
}

/// The windows of the lanes that have one.
#[derive(Debug, Default)]
pub(super) struct Windows {
    lanes: ByNumber<(i8, u32), Window>,
    bytes: usize,
}

impl Windows {
    /// Queues that were made one after another are neighbours.
    fn key(lane: Lane) -> (i8, u32) {
        (lane.priority.value(), lane.queue.0)
    }

    /// Keeps a chunk that was just listed at the end of its lane, if the lane's window reaches there.
    pub(super) fn admitted(&mut self, head: Head, jobs: &Arc<Chunk>, lane_was_empty: bool) {
        let key = Windows::key(head.lane);
        if lane_was_empty {
            self.lanes.insert(key, Window { whole: true, ..Window::default() });
        }
        let Some(window) = self.lanes.get_mut(&key).filter(|window| window.whole) else { return };
        if self.bytes + jobs.footprint() > BUDGET {
            window.whole = false;
        } else {
            self.bytes += jobs.footprint();
            window.push(Waiting { head, jobs: jobs.clone() });
        }
    }

    /// Forgets a chunk of which nothing waits any more.
    pub(super) fn remove(&mut self, head: &Head) {
        let key = Windows::key(head.lane);
        let Some(window) = self.lanes.get_mut(&key) else { return };
        if let Some(waiting) = window.remove(head.first) {
            self.bytes -= waiting.jobs.footprint();
        }
        if window.front.is_none() {
            self.lanes.remove(&key);
        }
    }

    /// Reading ahead may go over the budget; what nobody claimed by then is read again when it is wanted.
    pub(super) fn trim(&mut self) {
        if self.bytes > 2 * BUDGET {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Windows::default();
    }

    /// The first chunk of a lane, if its head is here.
    fn front(&self, lane: Lane) -> Option<Waiting> {
        self.lanes.get(&Windows::key(lane)).and_then(|window| window.front.clone())
    }

    /// Takes the one chunk of a lane out, if that is of one job.
    fn take_lonely(&mut self, lane: Lane) -> Option<Waiting> {
        let key = Windows::key(lane);
        let window = self.lanes.get(&key)?;
        let lonely = window.front.as_ref().filter(|waiting| waiting.head.count == 1 && waiting.head.due.is_none());
        if lonely.is_none() || !window.others.is_empty() {
            return None;
        }
        let waiting = self.lanes.remove(&key)?.front?;
        self.bytes -= waiting.jobs.footprint();
        Some(waiting)
    }

    /// How many chunks of a lane are read together.
    fn ahead(&self) -> u32 {
        if self.bytes < BUDGET { AHEAD } else { AHEAD_OVER_BUDGET }
    }

    /// Keeps the head of a lane that was read; `whole` says that there is no more of it.
    fn keep(&mut self, lane: Lane, next: VecDeque<Waiting>, whole: bool) {
        let window = Window::of(next, whole);
        self.bytes += window.footprint();
        if window.front.is_some() {
            self.lanes.insert(Windows::key(lane), window);
        }
    }
}

fn read_ahead(db: &Connection, bodies: &Bodies, lane: Lane, limit: u32) -> Result<VecDeque<Waiting>, StoreError> {
    let sql = format!(
        "SELECT {}, {} FROM lane l JOIN chunk c ON c.first = l.first \
         WHERE l.queue = ?1 AND l.rank = ?2 ORDER BY l.first LIMIT ?3",
        chunks::HEAD,
        chunks::BYTES
    );
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query(params![lane.queue.0, rank(lane.priority), limit]).map_err(failed)?;
    let mut next = VecDeque::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let head = chunks::read_head(row)?;
        if Windows::key(head.lane) != Windows::key(lane) {
            return Err(corrupt(format!("chunk {} is listed in a lane that is not its own", head.first)));
        }
        next.push_back(Waiting { head, jobs: chunks::read_bytes(&head, row, bodies)? });
    }
    Ok(next)
}

impl Turn<'_> {
    pub(super) fn claim(&mut self, orders: &[Order]) -> Result<Vec<Held>, StoreError> {
        let mut held = Vec::with_capacity(orders.len());
        for order in orders {
            let mut claimed = Vec::new();
            let Some(count) = self.m.queues.lane(order.lane) else { continue };
            if let Some(lonely) = self.claim_lonely(order, count)? {
                held.push(lonely);
                continue;
            }
            let most = order.most as usize;
            let most_rows = most.min(ROWS);
            let rows = self.first_rows(order.lane, count.rows, most_rows)?;
            if (rows.len() as u64) < count.rows.min(most_rows as u64) {
                return Err(corrupt(format!("queue {} counts ready jobs that no row holds", order.lane.queue.0)));
            }
            match order.lane.kind {
                LaneKind::Fresh => {
                    let chunked = count.ready - count.rows;
                    self.claim_fresh(order.lane, most, chunked, rows, (&mut held, &mut claimed))?;
                }
                LaneKind::Retry | LaneKind::Suspect => {
                    for row in rows {
                        claimed.push(row.arrival);
                        held.push(self.hold_row(row)?);
                    }
                }
            }
            rows::claim_all(self.db, &claimed)?;
        }
        Ok(held)
    }

    /// The only ready job of a lane, where it has its chunk for itself and that waits in memory: tens of thousands of
    /// lanes may have nothing else, and what the way for all looks up several times is known here.
    fn claim_lonely(&mut self, order: &Order, count: LaneCount) -> Result<Option<Held>, StoreError> {
        let Order { lane, most } = *order;
        if (count.ready, count.rows, lane.kind) != (1, 0, LaneKind::Fresh) || most == 0 {
            return Ok(None);
        }
        let Some(Waiting { head, jobs }) = self.m.windows.take_lonely(lane) else { return Ok(None) };
        let Head { first, run, admitted, .. } = head;
        match self.m.parts.entry(first) {
            Entry::Vacant(place) => place.insert(Part::claimed_whole(head)),
            // It was open before, and waits again.
            Entry::Occupied(_) => return Ok(None),
        };
        self.m.strips.open(first);
        self.m.unlisted.push(head);
        self.free_keys(&jobs, 0..1, lane.queue, Step::Begun)?;
        self.change(lane, run, State::Ready, Change::Claim, 1, false)?;
        self.m.queues.tally(lane.queue).stats.started += 1;
        let (place, record) = (Place::Chunk(Arrival(first)), Record::default());
        Ok(Some(Held { place, lane, run, record, admitted, jobs, first: 0, count: 1 }))
    }

    /// The first ready rows of a lane. Most retries start in the turn that releases them; where a lane has no others,
    /// its release is not written by itself, for to change a row once costs half.
    fn first_rows(&mut self, lane: Lane, ready: u64, most: usize) -> Result<Vec<Row>, StoreError> {
        if ready == 0 || most == 0 {
            return Ok(Vec::new());
        }
        match self.m.released.get_mut(&lane) {
            Some(released) if released.len() as u64 == ready => {
                let taken: Vec<u64> = released.drain(..most.min(released.len())).collect();
                if released.is_empty() {
                    self.m.released.remove(&lane);
                }
                let rows = rows::by_arrivals(self.db, &taken)?;
                let mut rows = rows::expect(rows, "due", |row| row.due.is_some() && row.lane() == lane)?;
                rows.sort_by_key(|row| (row.due, row.arrival));
                // Each has a time of its own, so the one that is given does not matter.
                rows.iter_mut().for_each(|row| row.make_ready(row.admitted));
                Ok(rows)
            }
            Some(_) => {
                self.write_released()?;
                ready_rows(self.db, lane, most)
            }
            None => ready_rows(self.db, lane, most),
        }
    }

    /// Takes from chunks and rows together, by arrival. `chunked` is how many ready jobs of the lane are in chunks.
    fn claim_fresh(
        &mut self,
        lane: Lane,
        most: usize,
        mut chunked: u64,
        rows: Vec<Row>,
        (held, claimed): (&mut Vec<Held>, &mut Vec<u64>),
    ) -> Result<(), StoreError> {
        let (mut left, mut bytes) = (most, 0);
        let mut rows = rows.into_iter().peekable();
        while left > 0 && bytes < ORDER_BYTES {
            let front = if chunked > 0 { Some(self.front(lane, left)?) } else { None };
            let row_first = rows.peek().map(|row| row.arrival);
            match front {
                Some((waiting, range)) if row_first.is_none_or(|row| waiting.arrival(range.start) <= row) => {
                    let until = row_first.map_or(range.end, |row| range.end.min((row - waiting.head.first) as usize));
                    let range = range.start..until;
                    if range.is_empty() || range.len() as u64 > chunked {
                        return Err(corrupt(format!("queue {} counts other jobs than its chunks hold", lane.queue.0)));
                    }
                    left -= range.len();
                    chunked -= range.len() as u64;
                    let stretch = self.claim_range(&waiting, range)?;
                    bytes += stretch.bytes(0, stretch.count);
                    held.push(stretch);
                }
                _ => {
                    let Some(row) = rows.next() else { break };
                    left -= 1;
                    claimed.push(row.arrival);
                    held.push(self.hold_row(row)?);
                }
            }
        }
        Ok(())
    }

    /// The first waiting neighbours of a lane's chunks.
    fn front(&mut self, lane: Lane, most: usize) -> Result<(Waiting, Range<usize>), StoreError> {
        let missing = || corrupt(format!("queue {} counts ready jobs that no chunk holds", lane.queue.0));
        let waiting = match self.m.windows.front(lane) {
            Some(front) => front,
            None => self.read_front(lane)?.ok_or_else(missing)?,
        };
        let part = self.m.parts.entry(waiting.head.first).or_insert_with(|| Part::fresh(waiting.head));
        let range = part.next_waiting(most).ok_or_else(missing)?;
        Ok((waiting, range))
    }

    /// Reads the head of a lane. What this turn has taken out of it may still be listed there.
    fn read_front(&mut self, lane: Lane) -> Result<Option<Waiting>, StoreError> {
        let limit = self.m.windows.ahead();
        let mut next = read_ahead(self.db, self.bodies, lane, limit)?;
        let is_over = |waiting: &Waiting| self.m.parts.get(&waiting.head.first).is_some_and(|part| part.waiting == 0);
        if next.iter().any(is_over) {
            self.write_unlisted()?;
            next = read_ahead(self.db, self.bodies, lane, limit)?;
        }
        let (front, whole) = (next.front().cloned(), next.len() < limit as usize);
        self.m.windows.keep(lane, next, whole);
        Ok(front)
    }

    /// Takes chunks of which nothing waits any more out of their lanes. Where all queues from one to another have
    /// nothing in chunks that waits, whatever is listed of them goes with one statement.
    pub(super) fn write_unlisted(&mut self) -> Result<(), StoreError> {
        let mut unlisted = std::mem::take(&mut self.m.unlisted);
        unlisted.sort_unstable_by_key(|head| head.lane.queue);
        let idle = |head: &Head| self.m.queues.has_no_chunks(head.lane.queue);
        let beside = |one: &Head, next: &Head| next.lane.queue.0 - one.lane.queue.0 <= 1 && idle(one) && idle(next);
        for heads in unlisted.chunk_by(beside) {
            let [first, .., last] = heads else {
                heads.iter().try_for_each(|head| chunks::unlist(self.db, head))?;
                continue;
            };
            let listed = chunks::unlist_queues(self.db, first.lane.queue, last.lane.queue)?;
            if listed != heads.len() {
                let (first, last) = (first.lane.queue.0, last.lane.queue.0);
                let text = format!("queues {first} to {last} list {listed} chunks, expected {}", heads.len());
                return Err(corrupt(text));
            }
        }
        Ok(())
    }

    fn claim_range(&mut self, waiting: &Waiting, range: Range<usize>) -> Result<Held, StoreError> {
        let Head { first, lane, run, admitted, .. } = waiting.head;
        let held = Held {
            place: Place::Chunk(Arrival(first)),
            lane,
            run,
            record: Record::default(),
            admitted,
            jobs: waiting.jobs.clone(),
            first: range.start as u16,
            count: range.len() as u16,
        };
        let count = range.len() as u64;
        self.free_keys(&waiting.jobs, range.clone(), lane.queue, Step::Begun)?;
        self.mark(first, range, Mark::Waiting, Mark::Claimed)?;
        self.change(lane, run, State::Ready, Change::Claim, count, false)?;
        self.m.queues.tally(lane.queue).stats.started += count;
        Ok(held)
    }

    /// Counts a row whose claim is written with the others.
    fn hold_row(&mut self, row: Row) -> Result<Held, StoreError> {
        self.change(row.lane(), row.run, State::Ready, Change::Claim, 1, true)?;
        self.m.queues.tally(row.queue).stats.started += 1;
        let held = row.held(row.record);
        self.free_keys(&held.jobs, 0..1, row.queue, Step::Begun)?;
        let record = Record { starts: row.record.starts + 1, ..row.record };
        self.m.running.insert(row.arrival, Row { state: State::Running, record, data: Vec::new(), ..row });
        Ok(held)
    }

    /// Makes due jobs ready, earliest first. A chunk is released as a whole, so the last one may go over the limit.
    pub(super) fn release(&mut self, now: Time, limit: u32) -> Result<(), StoreError> {
        let mut rows = due_rows(self.db, now, limit)?.into_iter().peekable();
        let mut heads = due_chunks(self.db, now, limit)?.into_iter().peekable();
        let mut left = u64::from(limit);
        let mut released = Vec::new();
        while left > 0 {
            let row_due = rows.peek().map(|row| row.due);
            match heads.peek().copied() {
                Some(head) if row_due.is_none_or(|due| head.due <= Some(due)) => {
                    heads.next();
                    left = left.saturating_sub(self.release_chunk(head)?);
                }
                _ => {
                    let Some(row) = rows.next() else { break };
                    left -= 1;
                    match row.lane.kind {
                        LaneKind::Fresh => released.push(row.arrival),
                        LaneKind::Retry | LaneKind::Suspect => {
                            self.m.released.entry(row.lane).or_default().push(row.arrival);
                        }
                    }
                    self.change(row.lane, row.run, row.state, Change::Release, 1, true)?;
                }
            }
        }
        rows::release_all(self.db, &released)
    }

    /// Writes what this turn has released and not claimed.
    pub(super) fn write_released(&mut self) -> Result<(), StoreError> {
        std::mem::take(&mut self.m.released).values().try_for_each(|released| rows::release_all(self.db, released))
    }

    pub(super) fn release_chunk(&mut self, head: Head) -> Result<u64, StoreError> {
        chunks::unlist(self.db, &head)?;
        let ready = Head { due: None, ..head };
        chunks::list(self.db, &ready)?;
        // It is older than what the window may hold, so the window is read anew.
        self.m.windows.drop_lane(head.lane);
        let part = self.m.parts.get_mut(&head.first);
        let count = part.map_or(head.count, |part| {
            part.head = ready;
            part.waiting
        });
        let count = u64::from(count);
        self.change(head.lane, head.run, State::Scheduled, Change::Release, count, false)?;
        Ok(count)
    }
}

impl Windows {
    fn drop_lane(&mut self, lane: Lane) {
        if let Some(window) = self.lanes.remove(&Windows::key(lane)) {
            self.bytes -= window.footprint();
        }
    }
}

fn ready_rows(db: &Connection, lane: Lane, limit: usize) -> Result<Vec<Row>, StoreError> {
    let rest = "WHERE state = 1 AND queue = ?1 AND rank = ?2 AND kind = ?3 ORDER BY placed LIMIT ?4";
    let rows = rows::many(db, rest, params![lane.queue.0, rank(lane.priority), lane.kind as i64, limit])?;
    rows::expect(rows, "ready", |row| row.state == State::Ready && row.lane() == lane)
}

/// What a release must know of a row.
struct DueRow {
    arrival: u64,
    lane: Lane,
    run: Option<RunNo>,
    state: State,
    due: Time,
}

fn due_rows(db: &Connection, now: Time, limit: u32) -> Result<Vec<DueRow>, StoreError> {
    let sql = "SELECT arrival, queue, rank, kind, run, state, due FROM job WHERE due <= ?1 ORDER BY due LIMIT ?2";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let mut rows = statement.query(params![now.as_micros(), limit]).map_err(failed)?;
    let mut due = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let number = |column: usize| row.get::<_, i64>(column).map_err(failed);
        let (arrival, rank, kind, due_at) = (number(0)? as u64, number(2)?, number(3)?, Time(number(6)?));
        let (queue, state) = (QueueNo(row.get(1).map_err(failed)?), row.get(5).map_err(failed)?);
        let run = row.get::<_, Option<u32>>(4).map_err(failed)?.map(RunNo);
        let (Some(state), Some(priority)) = (State::from_index(state), Priority::new(-rank)) else {
            return Err(corrupt(format!("job {arrival} has an unknown state or priority")));
        };
        if !tally::TIMED.contains(&state) || due_at > now {
            return Err(corrupt(format!("the index of due jobs has job {arrival}, which is none")));
        }
        let lane = Lane { queue, priority, kind: tally::kind_from(kind)? };
        due.push(DueRow { arrival, lane, run, state, due: due_at });
    }
    Ok(due)
}

fn due_chunks(db: &Connection, now: Time, limit: u32) -> Result<Vec<Head>, StoreError> {
    let sql = format!(
        "SELECT {} FROM due e JOIN chunk c ON c.first = e.first WHERE e.due <= ?1 ORDER BY e.due, e.first LIMIT ?2",
        chunks::HEAD
    );
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query(params![now.as_micros(), limit]).map_err(failed)?;
    let mut heads = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        heads.push(chunks::read_head(row)?);
    }
    Ok(heads)
}

/// The earliest time at which a chunk or a row becomes ready.
pub(super) fn next_due(db: &Connection) -> Result<Option<Time>, StoreError> {
    let sql = "SELECT min(due) FROM (SELECT * FROM (SELECT due FROM due ORDER BY due LIMIT 1) \
               UNION ALL SELECT * FROM (SELECT due FROM job WHERE due IS NOT NULL ORDER BY due LIMIT 1))";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let due: Option<i64> = statement.query_row([], |r| r.get(0)).map_err(failed)?;
    Ok(due.map(Time))
}
