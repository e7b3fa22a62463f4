//! New rows of other programs that the engine is promised before anybody has read them, where jobs are claimed about as
//! fast as they come.
//!
//! To take a row in is an UPDATE, and so is its claim; to look at it first costs as much as a third of either. Where a
//! look found more rows than it takes in, most of them of lanes that turns claim many from, the next ones will be like
//! them. So the engine is told that there are some, and the claim itself finds them, takes them in and starts them, all
//! in one statement. It takes none that a look would do anything else with. A promise that was too large is corrected
//! by the claim that comes short. It must not promise lanes that nobody orders from: their rows are taken in, so that
//! everybody sees that they wait.

use super::database::{Cells, Value};
use super::look::strange;
use super::rows::Row;
use super::{Dialect, SqlStore, StoreError};
use crate::store::Move;
use std::collections::BTreeMap;
use windlass_core::job::{Arrival, DATA_MAX, JobId, Lane, Record};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// The most rows that are promised at once.
const PROMISED_MOST: u64 = 20_000;
/// Every claim passes over the new rows of other lanes: a lane must have so large a part of them.
const SHARE: u64 = 4;

/// Lanes that new rows were found to be of.
#[derive(Debug, Default)]
pub(super) struct Promises(BTreeMap<Lane, Promise>);

/// How many rows a claim looks at.
#[derive(Clone, Copy, Debug)]
enum Bound {
    Most(usize),
    /// Those up to this number.
    To(i64),
}

#[derive(Debug, Default)]
struct Promise {
    /// Rows up to this one are taken in or left to a look.
    after: i64,
    /// How many the engine was told of that nobody has seen.
    count: u64,
}

impl Promises {
    pub(super) fn count_in(&self, lane: Lane) -> u64 {
        self.0.get(&lane).map_or(0, |promise| promise.count)
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> {
        self.0.keys().copied()
    }

    /// Learns from rows that were found, the last of them this one, which lanes the next ones will be of.
    pub(super) fn learn(&mut self, found: &BTreeMap<(Lane, State), u64>, last: i64) {
        let all: u64 = found.values().sum();
        let many = found.iter().filter(|((_, state), count)| *state == State::Ready && **count * SHARE >= all);
        self.0 = many.map(|((lane, _), _)| (*lane, Promise { after: last, count: 0 })).collect();
    }

    /// Forgets them without a word, because whoever was told of them starts over; true where there were some.
    pub(super) fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

impl SqlStore {
    /// Whether new rows are left to the claims. A database that does not give back what an UPDATE changed gains
    /// nothing by it.
    pub(super) fn promises(&self) -> bool {
        let looks = &self.looks;
        let ordered = |lane| looks.is_ordered_from(lane);
        self.db.dialect.returns_updated() && looks.more && looks.claims_many() && looks.promises.lanes().any(ordered)
    }

    /// Promises more where the next claims would find too few; `least` is what they are thought to order.
    pub(super) fn promise_more(&mut self, least: u64) {
        let wanted = least.max(self.looks.wanted()).min(PROMISED_MOST / 2);
        let stock = self.looks.stock();
        if !self.promises() || stock >= wanted {
            return;
        }
        let lanes: Vec<Lane> = self.looks.promises.lanes().filter(|lane| self.looks.is_ordered_from(*lane)).collect();
        let each = (2 * wanted - stock).div_ceil(lanes.len().max(1) as u64);
        for lane in lanes {
            if let Some(promise) = self.looks.promises.0.get_mut(&lane) {
                promise.count += each;
            }
            self.tell(Move { lane, run: None, from: None, to: Some(State::Ready), count: each });
        }
    }

    /// Before a whole look, which finds out what is true.
    pub(super) fn take_promises_back(&mut self) {
        for (lane, promise) in std::mem::take(&mut self.looks.promises).0 {
            self.break_promise(lane, promise.count);
        }
        self.looks.after = 0;
    }

    fn break_promise(&mut self, lane: Lane, count: u64) {
        if count > 0 {
            self.tell(Move { lane, run: None, from: Some(State::Ready), to: None, count });
        }
    }

    /// Claims rows that were promised: finds them, takes them in and starts them.
    pub(super) fn claim_promised(&mut self, lane: Lane, most: usize, now: Time) -> Result<Vec<Row>, StoreError> {
        let Some(promise) = self.looks.promises.0.get(&lane).filter(|promise| promise.count > 0 && most > 0) else {
            return Ok(Vec::new());
        };
        let (mut after, most) = (promise.after, most.min(usize::try_from(promise.count).unwrap_or(usize::MAX)));
        let mut rows = Vec::new();
        if self.looks.is_alone()
            && let Some(next) = self.claim_next_numbers(lane, after, most, now)?
        {
            rows = next;
            after = after.saturating_add(most as i64);
        }
        if rows.len() < most {
            let first = Bound::Most(most - rows.len());
            rows.extend(self.claim_new(lane, after, first, now)?);
        }
        let Some(promise) = self.looks.promises.0.get_mut(&lane) else { return Ok(rows) };
        promise.after = rows.iter().map(|row| row.arrival.0 as i64).fold(promise.after, i64::max);
        promise.count -= rows.len() as u64;
        if rows.len() < most {
            // What is left of other lanes, or makes no sense, is found by a look.
            let broken = std::mem::take(&mut promise.count);
            self.looks.promises.0.remove(&lane);
            self.break_promise(lane, broken);
            self.looks.after = 0;
        }
        Ok(rows)
    }

    /// Mostly the next rows have the next numbers, and a statement that changes them as it finds them is half of the
    /// work. It cannot pass over what another program has locked: where something is, it gives up at once, and until
    /// the next look at all claims find and lock their rows first.
    fn claim_next_numbers(
        &mut self,
        lane: Lane,
        after: i64,
        most: usize,
        now: Time,
    ) -> Result<Option<Vec<Row>>, StoreError> {
        let next = Bound::To(after.saturating_add(most as i64));
        self.db.begin_impatiently()?;
        match self.claim_new(lane, after, next, now) {
            Err(StoreError::Busy(_)) => {
                self.looks.locked = true;
                self.db.undo_impatiently()?;
                Ok(None)
            }
            Err(other) => Err(other),
            Ok(rows) => {
                self.db.end_impatiently()?;
                Ok(Some(rows))
            }
        }
    }

    /// Claims new rows of a lane behind this one: the first so many, which are found and locked before they are
    /// changed, so that what others have locked is passed over; or those up to a number.
    fn claim_new(&mut self, lane: Lane, after: i64, bound: Bound, now: Time) -> Result<Vec<Row>, StoreError> {
        let dialect = self.db.dialect;
        let name = self.queue_name(lane.queue)?;
        let mut params: Vec<Value> = self.start_values(now).into();
        params.extend([
            i64::from(lane.queue.0).into(),
            after.into(),
            name.as_str().into(),
            i64::from(lane.priority.value()).into(),
        ]);
        params.push(match bound {
            Bound::Most(most) => (most as i64).into(),
            Bound::To(last) => last.into(),
        });
        let exact = match dialect {
            Dialect::Postgres => "CAST(:name AS text) COLLATE \"C\" = $6",
            Dialect::Mariadb | Dialect::Sqlite => "CAST(:name AS blob) = CAST($6 AS blob)",
        };
        let of_lane = format!(
            "{} AND :state IS NULL AND :id > $5 AND coalesce(:locked_queue_id, '') = '' \
             AND :status = 'pending' AND {exact} AND :priority = $7 AND :run_at IS NULL \
             AND coalesce(:taskable_type, '') = '' AND coalesce(octet_length(:data), 0) <= {DATA_MAX} \
             AND :starts = 0 AND :failures = 0 AND :suspicions = 0 AND :run_no IS NULL AND :particulars IS NULL \
             AND :body IS NULL AND :last_errors IS NULL AND :reason IS NULL AND :ended_at IS NULL",
            strange(dialect)
        );
        let created = dialect.micros("j.:created_at");
        let set = format!(
            "{}, :queue_no = $4, :state = 2, :lane_kind = 0, \
             :admitted = CASE WHEN {created} <= $3 THEN {created} ELSE $3 END",
            dialect.own_identity()
        );
        let columns = "j.:id, j.:admitted, j.:data";
        let claimed = match bound {
            Bound::Most(_) => {
                let lock = dialect.skip_locked();
                let head = format!("SELECT :id FROM :jobs WHERE {of_lane} ORDER BY :id LIMIT $8 {lock}");
                self.start_head(&head, &set, columns, &params)?
            }
            Bound::To(_) => self.start_where(&format!("{of_lane} AND :id <= $8"), &set, columns, &params)?,
        };
        claimed.into_iter().map(|cells| self.new_row(lane, cells)).collect()
    }

    /// A row of which all is known but three columns: it was never started, and its number is its id.
    fn new_row(&self, lane: Lane, mut cells: Cells) -> Result<Row, StoreError> {
        let arrival = Arrival(cells.int()? as u64);
        Ok(Row {
            arrival,
            id: JobId { origin: self.origin, offset: arrival.0 },
            queue: lane.queue,
            priority: lane.priority,
            state: State::Running,
            run: None,
            record: Record { starts: 1, ..Record::default() },
            admitted: Time(cells.int()?),
            due: None,
            ended: None,
            reason: None,
            errors: Vec::new(),
            particulars: None,
            data: cells.maybe_bytes()?.unwrap_or_default(),
            odd: None,
            details: None,
            duration: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::job::{LaneKind, Priority, QueueNo};

    #[test]
    fn a_lane_is_promised_that_has_a_good_part_of_what_was_found() {
        let lane = |queue| Lane { queue: QueueNo(queue), priority: Priority::default(), kind: LaneKind::Fresh };
        let mut promises = Promises::default();
        let found = [((lane(1), State::Ready), 700), ((lane(2), State::Ready), 50), ((lane(3), State::Scheduled), 250)];
        promises.learn(&BTreeMap::from(found), 9);
        assert_eq!(promises.lanes().collect::<Vec<_>>(), [lane(1)]);
        assert_eq!(promises.count_in(lane(1)), 0, "nobody was told of any");
        assert!(promises.clear() && !promises.clear());
    }
}
