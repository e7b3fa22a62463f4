//! Looking for what others did: rows that other programs wrote, what dead servers hold, and jobs that living ones made
//! ready.
//!
//! A row that another program inserted becomes a job of ours (`adopt`). One that another program changed gets the state
//! that its status says (`follow`). What the engine thinks of lanes is set right where other servers work, too.

use super::dialect::Dialect;
use super::promise::Promises;
use super::rows::Lock;
use super::schema;
use super::{SqlStore, StoreError, view};
use crate::store::{Move, Occasion, Told};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;
use windlass_core::job::{JobId, Lane, LaneKind, Priority, QueueNo};
use windlass_core::life_cycle::State;
use windlass_core::look;
use windlass_core::time::Time;

/// The most rows of others that one look takes in.
pub(super) const ROWS_MOST: u64 = 5_000;
/// Turns that claim fewer jobs than this are not worth to be counted for.
const FEW: u64 = 500;
/// So many ready rows are counted at every look.
const COUNTED_AT_ONCE: i64 = 20_000;
/// Completed rows that go at once, at most, when they are old; and how long the next ones wait then.
const REMOVED_MOST: usize = 2_000;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(100);
/// A word that was about no rows is reason to look at all else, but not more often than this.
const BETWEEN_WHOLE: Duration = Duration::from_secs(1);

/// When the table is looked at, and what the engine thinks of it.
#[derive(Debug)]
pub(super) struct Looks {
    look_at: Time,
    wait: Duration,
    /// When all was looked at last.
    looked_at: Time,
    /// When this server has to say again that it lives.
    beat_at: Time,
    /// Ready jobs by lane, as the engine was told.
    believed: HashMap<Lane, i64>,
    /// What of that the open turn told: it was never so if the turn is dropped.
    of_turn: HashMap<Lane, i64>,
    /// What is to be told after the commit: lanes that gave less than they were thought to have.
    corrections: Vec<Move>,
    /// Other servers were alive at the last look.
    pub(super) others: bool,
    /// Since then, a row that was to be claimed was locked by another program.
    pub(super) locked: bool,
    /// There are more new rows of others than the last look took in, and up to which one it looked.
    pub(super) more: bool,
    pub(super) after: i64,
    /// There are more changed rows than the last look followed.
    pub(super) more_changed: bool,
    /// New rows that the engine was told of and that nobody has seen.
    pub(super) promises: Promises,
    /// When the next of the old rows go, where the last look left some.
    remove_at: Option<Time>,
    /// When it was looked for rows that are too many, and when the youngest of them ended.
    surplus: Option<(Time, Option<i64>)>,
    /// How many jobs were ordered in the last turn that ordered some, and from which lanes; and in the open turn.
    orders: (u64, BTreeSet<Lane>),
    open_orders: (u64, BTreeSet<Lane>),
    /// Whether anything was ordered since the last whole look.
    ordered: bool,
    /// A lane gave less than it was thought to have, and when lanes were counted last.
    miscounted: bool,
    counted_at: Time,
}

impl Default for Looks {
    fn default() -> Looks {
        let (look_at, beat_at) = (Time::ZERO, Time::ZERO);
        Looks {
            look_at,
            wait: look::FIRST,
            looked_at: Time::ZERO,
            beat_at,
            believed: HashMap::new(),
            of_turn: HashMap::new(),
            corrections: Vec::new(),
            others: false,
            locked: false,
            more: false,
            after: 0,
            more_changed: false,
            promises: Promises::default(),
            remove_at: None,
            surplus: None,
            orders: (0, BTreeSet::new()),
            open_orders: (0, BTreeSet::new()),
            ordered: false,
            miscounted: false,
            counted_at: Time::ZERO,
        }
    }
}

impl Looks {
    /// What the engine is told of lanes it believes.
    pub(super) fn told(&mut self, step: &Move) {
        for (state, sign) in [(step.from, -1), (step.to, 1)] {
            if state == Some(State::Ready) {
                let count = sign * step.count as i64;
                *self.believed.entry(step.lane).or_default() += count;
                *self.of_turn.entry(step.lane).or_default() += count;
            }
        }
    }

    pub(super) fn keep_turn(&mut self) {
        self.of_turn.clear();
        if self.open_orders.0 > 0 {
            self.orders = std::mem::take(&mut self.open_orders);
        }
    }

    pub(super) fn ordered(&mut self, lane: Lane, count: u64) {
        self.ordered = true;
        self.open_orders.0 += count;
        self.open_orders.1.insert(lane);
    }

    /// Whether turns claim so many that it counts how often each row is written.
    pub(super) fn claims_many(&self) -> bool {
        self.wanted() >= FEW
    }

    /// How many jobs the last turn ordered that ordered some.
    pub(super) fn wanted(&self) -> u64 {
        if self.open_orders.0 > 0 { self.open_orders.0 } else { self.orders.0 }
    }

    /// Whether that turn, or this one, ordered from a lane.
    pub(super) fn is_ordered_from(&self, lane: Lane) -> bool {
        self.orders.1.contains(&lane) || self.open_orders.1.contains(&lane)
    }

    /// What the engine knows to be there in those lanes.
    pub(super) fn stock(&self) -> u64 {
        let known: i64 = self.orders.1.iter().filter_map(|lane| self.believed.get(lane)).sum();
        u64::try_from(known).unwrap_or(0)
    }

    /// At a whole look: what nobody has ordered from since the last one stands still.
    fn forget_still_lanes(&mut self) {
        if !std::mem::take(&mut self.ordered) {
            self.orders = Default::default();
        }
    }

    /// How many new rows are taken in at once. Where turns claim many, it is what the next one will claim and does not
    /// have, and a little more, so that it grows; where others stand still for theirs, they are not forgotten.
    pub(super) fn most_new(&self) -> u64 {
        match (self.orders.0, self.stock()) {
            (wanted, _) if wanted < FEW => ROWS_MOST,
            (wanted, 0) => (wanted + wanted / 16).min(ROWS_MOST),
            (wanted, stock) => wanted.saturating_sub(stock).max(wanted / 8).min(ROWS_MOST),
        }
    }

    /// Whether the engine knew of nothing in a lane before the open turn.
    pub(super) fn was_empty(&self, lane: Lane) -> bool {
        let count = |of: &HashMap<Lane, i64>| of.get(&lane).copied().unwrap_or(0);
        count(&self.believed) <= count(&self.of_turn)
    }

    /// Whether the engine was told of more in a lane than so many.
    pub(super) fn has_more_in(&self, lane: Lane, count: usize) -> bool {
        self.believed.get(&lane).is_some_and(|told| *told > count as i64)
    }

    pub(super) fn drop_turn(&mut self) {
        for (lane, count) in self.of_turn.drain() {
            *self.believed.entry(lane).or_default() -= count;
        }
        self.corrections.clear();
        self.open_orders = Default::default();
        // What the turn found is as strange as before.
        self.look_at = Time::ZERO;
        self.look_anew();
    }

    /// The engine starts over from what it is told now.
    pub(super) fn start_over(&mut self, moves: &[Move]) {
        self.believed.clear();
        self.of_turn.clear();
        self.corrections.clear();
        self.look_anew();
        moves.iter().for_each(|step| self.told(step));
    }

    /// Whoever was told of promises knows nothing of them any more.
    fn look_anew(&mut self) {
        self.more |= self.promises.clear();
        self.after = 0;
    }

    /// Whether nobody else is known to take rows, or to keep some locked.
    pub(super) fn is_alone(&self) -> bool {
        !self.others && !self.locked
    }

    /// A lane gave less than was ordered: others have the rest.
    pub(super) fn came_short(&mut self, lane: Lane) {
        let left = self.believed.get(&lane).copied().unwrap_or(0);
        // Another program has changed rows of it, or has them locked: where they are now is to be counted.
        self.miscounted |= left > 0;
        if left > 0 && !self.corrections.iter().any(|told| told.lane == lane) {
            self.corrections.push(Move { lane, run: None, from: Some(State::Ready), to: None, count: left as u64 });
        }
    }

    pub(super) fn take_corrections(&mut self) -> Vec<Move> {
        let mut corrections = std::mem::take(&mut self.corrections);
        for step in &mut corrections {
            // What came since then is not wrong.
            let left = self.believed.get(&step.lane).copied().unwrap_or(0);
            step.count = step.count.min(left.max(0) as u64);
            self.told(step);
        }
        corrections.retain(|step| step.count > 0);
        corrections
    }

    /// Whether to count lanes at a whole look though no other server takes from them: another program may have moved
    /// rows from one to another. Of a large backlog that costs something, so it is done less often.
    fn is_to_count(&self, now: Time) -> bool {
        let known: i64 = self.believed.values().sum();
        let past = now >= self.counted_at.after(look::LONGEST) || now < self.counted_at;
        self.miscounted || known <= COUNTED_AT_ONCE || past
    }

    pub(super) fn next(&self, promises: bool) -> Time {
        let at = self.look_at.min(self.beat_at);
        // What is promised is not looked at, but where it is used up and nobody is about to end anything.
        let more = self.more_changed || self.more && !(promises && self.stock() > 0);
        if more { Time::ZERO } else { self.remove_at.map_or(at, |remove| remove.min(at)) }
    }
}

/// Rows that are not what our columns say of them.
pub(super) fn strange(dialect: Dialect) -> String {
    match dialect {
        Dialect::Postgres | Dialect::Sqlite => schema::strange(dialect),
        Dialect::Mariadb => format!("{} = 1", schema::STRANGE_COLUMN),
    }
}

impl SqlStore {
    /// Looks where it is time or somebody asked; true where that was more than a look for rows.
    pub(super) fn look_around(&mut self, why: Occasion, convicted: Told<'_>, now: Time) -> Result<bool, StoreError> {
        self.begin()?;
        let set_back = self.looks.look_at > now.after(look::LONGEST);
        // Where rows are claimed as they come, a word that there are some is no news.
        let why = if self.promises() { Occasion::Time } else { why };
        let due = why == Occasion::Asked || now >= self.looks.look_at || set_back;
        let quiet = !due && now < self.looks.beat_at;
        // Where there was more than one look takes in, the next turns do nothing but take in the rest.
        if quiet && why == Occasion::Time && self.looks.next(self.promises()) == Time::ZERO {
            if self.looks.more_changed {
                self.follow_changes(self.there(now))?;
            }
            self.adopt_new(self.there(now))?;
            self.name_moved_queues()?;
            return Ok(false);
        }
        if self.looks.remove_at.is_some_and(|at| at <= now || at > now.after(BETWEEN_REMOVALS)) {
            self.remove_completed(false, self.there(now))?;
        }
        if !quiet {
            self.beat(now)?;
        }
        let all = due || why == Occasion::Word && self.look_for_rows(now)?;
        if all {
            self.look_at_all(why, convicted, now)?;
        }
        Ok(all || !quiet)
    }

    /// Says that this server lives, and hears what it is told.
    fn beat(&mut self, now: Time) -> Result<(), StoreError> {
        self.looks.beat_at = now.after(self.options.lease / 3);
        if self.options.controls {
            self.take_control(true)?;
        }
        self.compare_clocks()?;
        self.hear_of_draining()
    }

    /// A word is about rows, so whoever waits for their start waits for nothing else. Where there are none it was about
    /// something else, or came twice: true where it is time then to look at all.
    fn look_for_rows(&mut self, now: Time) -> Result<bool, StoreError> {
        self.take_promises_back();
        let theirs = self.there(now);
        let mut found = self.follow_changes(theirs)?;
        if self.looks.others {
            found += self.correct_lanes(theirs)?;
            self.hear_of_ends()?;
            self.due = None;
        }
        found += self.adopt_new(theirs)?;
        self.name_moved_queues()?;
        let next = if found > 0 { now.after(look::FIRST) } else { self.looks.looked_at.after(BETWEEN_WHOLE) };
        self.looks.look_at = self.looks.look_at.min(next);
        Ok(self.looks.look_at <= now)
    }

    fn look_at_all(&mut self, why: Occasion, convicted: Told<'_>, now: Time) -> Result<(), StoreError> {
        self.looks.looked_at = now;
        if why == Occasion::Time {
            self.looks.forget_still_lanes();
        }
        self.take_promises_back();
        let theirs = self.there(now);
        let mut found = self.follow_changes(theirs)?;
        found += self.take_over(convicted, theirs)?;
        let others = self.others_live()?;
        (self.looks.others, self.looks.locked) = (others, false);
        if !self.looks.more_changed && (others || self.looks.is_to_count(now)) {
            (self.looks.miscounted, self.looks.counted_at) = (false, now);
            found += self.correct_lanes(theirs)?;
        }
        if others {
            self.hear_of_ends()?;
        }
        self.remove_completed(why == Occasion::Asked, theirs)?;
        self.touch_sealed(theirs)?;
        // Others may have set times that this server does not know of.
        self.due = None;
        // Last, because all else that is looked for would have to see these rows.
        found += self.adopt_new(theirs)?;
        self.name_moved_queues()?;
        let told = why > Occasion::Time;
        self.looks.wait = if told || found > 0 { look::FIRST } else { look::longer(self.looks.wait) };
        // What other servers do is not told by nudges.
        let most = if others { self.options.lease / 3 } else { look::LONGEST };
        self.looks.look_at = now.after(self.looks.wait.min(most));
        Ok(())
    }

    /// Sets right what the engine thinks of lanes that other servers take from and add to.
    fn correct_lanes(&mut self, now: Time) -> Result<u64, StoreError> {
        self.flush(now)?;
        let mut lanes: HashMap<Lane, i64> = HashMap::new();
        for [queue, priority, kind, state, count] in view::live(&mut self.db, &self.names)? {
            if state == State::Ready.index() as i64 {
                let (queue, priority) = (QueueNo(queue as u32), Priority::new(priority).unwrap_or_default());
                lanes.insert(Lane { queue, priority, kind: kind_from(kind)? }, count);
            }
        }
        for lane in self.looks.believed.keys() {
            lanes.entry(*lane).or_default();
        }
        let mut found = 0;
        for (lane, count) in lanes {
            let wrong = count - self.looks.believed.get(&lane).copied().unwrap_or(0);
            let (from, to) = if wrong > 0 { (None, Some(State::Ready)) } else { (Some(State::Ready), None) };
            if wrong != 0 {
                self.queue_name(lane.queue)?;
                self.tell(Move { lane, run: None, from, to, count: wrong.unsigned_abs() });
                found += wrong.max(0) as u64;
            }
        }
        self.looks.believed.retain(|_, count| *count != 0);
        Ok(found)
    }

    /// When the youngest of those ended that are too many; it stays, and so does what ended in the same moment. To find
    /// it as many rows are passed over as are kept, so by itself that is done about once a minute.
    fn surplus(&mut self, recount: bool, now: Time) -> Result<Option<i64>, StoreError> {
        let Some(most) = self.options.keep_most else { return Ok(None) };
        let is_known = |(at, _): &(Time, Option<i64>)| !recount && now < at.after(look::LONGEST) && now >= *at;
        if let Some((_, known)) = self.looks.surplus.filter(is_known) {
            return Ok(known);
        }
        let sql = self.names.sql(
            "SELECT :ended_at FROM :jobs WHERE :ended_at IS NOT NULL AND :state = 5 AND :status = 'completed' \
             ORDER BY :ended_at DESC LIMIT 1 OFFSET $1",
        );
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let found = self.db.maybe_one(&sql, &[most.into()])?.map(|mut row| row.int()).transpose()?;
        self.looks.surplus = Some((now, found));
        Ok(found)
    }

    /// Completed rows that are older than they are kept, or more than are kept, go, a few at a time. One server does,
    /// so that nobody's clock but that one's counts.
    fn remove_completed(&mut self, recount: bool, now: Time) -> Result<(), StoreError> {
        self.looks.remove_at = None;
        if !self.controls {
            return Ok(());
        }
        let kept = i64::try_from(self.options.keep_completed.as_micros()).unwrap_or(i64::MAX);
        let aged = now.as_micros().saturating_sub(kept);
        let before = aged.max(self.surplus(recount, now)?.unwrap_or(aged));
        let sql = self.names.sql(&format!(
            "SELECT :id FROM :jobs WHERE :ended_at < $1 AND :state = 5 AND :status = 'completed' \
             ORDER BY :ended_at LIMIT {REMOVED_MOST} {}",
            self.db.dialect.skip_locked()
        ));
        let old = self.db.query(&sql, &[before.into()])?;
        let old = old.into_iter().map(|mut row| row.int()).collect::<Result<Vec<_>, _>>()?;
        let more = old.len() == REMOVED_MOST;
        if self.remove_old_rows(old)? && more {
            self.looks.remove_at = Some(self.here(now).after(BETWEEN_REMOVALS));
        }
        Ok(())
    }
}

pub(super) fn kind_from(number: i64) -> Result<LaneKind, StoreError> {
    match number {
        0 => Ok(LaneKind::Fresh),
        1 => Ok(LaneKind::Retry),
        2 => Ok(LaneKind::Suspect),
        _ => Err(StoreError::Corrupt(format!("a lane has kind {number}, expected 0 to 2"))),
    }
}

/// Starts that were held and are not any more, for whoever reports them late.
impl SqlStore {
    pub(super) fn lost_of(&mut self, held: &[(JobId, u32)]) -> Result<Vec<JobId>, StoreError> {
        let ids: Vec<JobId> = held.iter().map(|(id, _)| *id).collect();
        let rows = self.held_rows(&ids, Lock::None)?;
        let starts: HashMap<JobId, u32> = rows.into_iter().map(|row| (row.id, row.record.starts)).collect();
        let is_lost =
            |(id, start): &&(JobId, u32)| starts.get(id) != Some(start) && !self.done.ended.contains(&(*id, *start));
        Ok(held.iter().filter(is_lost).map(|(id, _)| *id).collect())
    }

    /// Of those that are held, the ones that cannot be locked.
    pub(super) fn locked_of(&mut self, held: &[(JobId, u32)]) -> Result<Vec<JobId>, StoreError> {
        self.begin()?;
        let ids: Vec<JobId> = held.iter().map(|(id, _)| *id).collect();
        let free: HashSet<JobId> = self.held_rows(&ids, Lock::Free)?.into_iter().map(|row| row.id).collect();
        let all = self.held_rows(&ids, Lock::None)?.into_iter().map(|row| row.id);
        Ok(all.filter(|id| !free.contains(id)).collect())
    }
}
