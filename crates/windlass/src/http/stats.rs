//! Statistics: what ended since a time, from the archive, and what waits now, from the counters; no job is looked at.

use super::app::{Call, json};
use super::problem::Problem;
use super::selection::{self, Choice};
use crate::api::{self, StatsRow};
use crate::archiver::Group;
use crate::clock;
use crate::engine::event::Event;
use crate::store::{DELETED, MOVED};
use axum::http::StatusCode;
use axum::response::Response;
use std::collections::BTreeMap;
use std::time::Duration;
use windlass_core::contention::HeldFor;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// So far back it looks unless told otherwise.
const SINCE: Duration = Duration::from_secs(3600);
/// Sixteen steps from one power of two to the next: a percentile is at most 5 % too large.
const STEPS: u32 = 16;

/// What the rows stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Queue,
    Priority,
    State,
    Hour,
}

pub(super) async fn stats(call: Call) -> Result<Response, Problem> {
    let query = call.query(&["by", "since", "selector"])?;
    let by = match query.get("by").unwrap_or("queue") {
        "queue" => By::Queue,
        "priority" => By::Priority,
        "state" => By::State,
        "hour" => By::Hour,
        other => {
            return Err(Problem::malformed(format!("by={other}: expected queue, priority, state or hour")));
        }
    };
    let choice = selection::parse(query.get("selector").unwrap_or(""))?;
    if !choice.groups_suffice() {
        let text =
            "statistics are about many jobs: the selector may have queue:, state:, run:, priority, age and ended";
        return Err(Problem::refused(text));
    }
    let now = clock::now();
    let since = match query.get("since") {
        Some(text) => api::time_from_text(text)?,
        None => Time(now.as_micros() - SINCE.as_micros() as i64),
    };
    // What ended before this was asked is in it.
    call.app.catch_up().await?;
    let held = call.app.ask(|answer| Event::Contention { answer }).await?;
    let counted = call.app.read(move |reads| {
        let mut account = Account { by, since, rows: BTreeMap::new(), total: Tally::default() };
        (reads.archive.groups)(since, &mut |group| {
            if choice.wants_group(group) {
                account.add(group);
            }
        })?;
        let live = account.live(&choice, &(reads.view)()?.queues()?, held);
        Ok((account, live))
    });
    let (account, live) = counted.await?;
    json(StatusCode::OK, &account.answer(now, call.app.handle.busy(), live))
}

struct Account {
    by: By,
    since: Time,
    rows: BTreeMap<Key, Tally>,
    total: Tally,
}

/// Sorts as people expect: priorities from the highest, hours in order, the rest by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Name(String),
    Priority(std::cmp::Reverse<i8>),
    Hour(i64),
}

/// What is known of a queue besides what ended.
#[derive(Default)]
struct Live {
    waiting: BTreeMap<String, u64>,
    held_s: BTreeMap<String, f64>,
}

impl Live {
    fn add(&mut self, other: &Live) {
        for (state, count) in &other.waiting {
            *self.waiting.entry(state.clone()).or_default() += count;
        }
        for (code, seconds) in &other.held_s {
            *self.held_s.entry(code.clone()).or_default() += seconds;
        }
    }
}

#[derive(Default)]
struct Tally {
    attempts: u64,
    by_state: [u64; State::ALL.len()],
    deleted: u64,
    moved: u64,
    waited: Spread,
    ran: Spread,
}

impl Account {
    fn add(&mut self, group: &Group<'_>) {
        const HOUR: i64 = 3_600_000_000;
        let key = match self.by {
            By::Queue => Key::Name(group.queue.to_owned()),
            By::Priority => Key::Priority(std::cmp::Reverse(group.priority.value())),
            By::State => Key::Name(group.state.word().to_owned()),
            By::Hour => Key::Hour(group.finished.as_micros().div_euclid(HOUR) * HOUR),
        };
        self.rows.entry(key).or_default().add(group);
        self.total.add(group);
    }

    /// Jobs that have not ended, by queue, from the counters, and how long they were held; only where rows are queues.
    fn live(
        &self,
        choice: &Choice,
        queues: &[crate::store::QueueInfo],
        held: BTreeMap<String, HeldFor>,
    ) -> BTreeMap<String, Live> {
        let mut known: BTreeMap<String, Live> = BTreeMap::new();
        let wanted = |name: &str| self.by == By::Queue && choice.may_want_queue(name);
        let live = |stats: &crate::store::QueueStats| -> BTreeMap<String, u64> {
            let live = State::ALL.iter().filter(|state| !state.is_end() && stats.by_state[state.index()] > 0);
            live.map(|state| (state.word().to_owned(), stats.by_state[state.index()])).collect()
        };
        let counted = queues.iter().map(|queue| (queue.name.to_string(), live(&queue.stats)));
        for (name, waiting) in counted.filter(|(name, live)| wanted(name) && !live.is_empty()) {
            known.entry(name).or_default().waiting = waiting;
        }
        for (name, held) in held.into_iter().filter(|(name, _)| wanted(name)) {
            let seconds = held.into_iter().map(|(code, time)| (code.to_owned(), time.as_secs_f64()));
            known.entry(name).or_default().held_s = seconds.collect();
        }
        known
    }

    fn answer(mut self, now: Time, busy: f64, mut live: BTreeMap<String, Live>) -> api::Stats {
        let mut all = Live::default();
        for (name, live) in &live {
            self.rows.entry(Key::Name(name.clone())).or_default();
            all.add(live);
        }
        let minutes = (now.since(self.since).as_secs_f64() / 60.0).max(1.0 / 60.0);
        let rows = self.rows.iter().map(|(key, tally)| {
            let (key, minutes) = match key {
                Key::Name(name) => (name.clone(), minutes),
                Key::Priority(std::cmp::Reverse(value)) => (value.to_string(), minutes),
                Key::Hour(hour) => (api::time_text(Time(*hour)), 60.0),
            };
            let live = live.remove(&key).unwrap_or_default();
            tally.row(key, minutes, live)
        });
        let rows = rows.collect();
        let word = match self.by {
            By::Queue => "queue",
            By::Priority => "priority",
            By::State => "state",
            By::Hour => "hour",
        };
        api::Stats {
            by: word.to_owned(),
            since: api::time_text(self.since),
            until: api::time_text(now),
            busy,
            rows,
            total: self.total.row("total".to_owned(), minutes, all),
        }
    }
}

impl Tally {
    fn add(&mut self, group: &Group<'_>) {
        if group.outcome == DELETED {
            self.deleted += group.count;
            return;
        }
        if group.outcome == MOVED {
            self.moved += group.count;
            return;
        }
        self.attempts += group.count;
        self.by_state[group.state.index()] += group.count;
        self.waited.add(group.started.since(group.admitted), group.count);
        self.ran.add(group.finished.since(group.started), group.count);
    }

    fn row(&self, key: String, minutes: f64, live: Live) -> StatsRow {
        let [succeeded, failed, cancelled] =
            [State::Succeeded, State::Failed, State::Cancelled].map(|state| self.by_state[state.index()]);
        StatsRow {
            key,
            attempts: self.attempts,
            succeeded,
            failed,
            cancelled,
            again: self.attempts - succeeded - failed - cancelled,
            deleted: self.deleted,
            moved: self.moved,
            per_minute: self.attempts as f64 / minutes,
            wait_s: self.waited.percentiles(),
            run_s: self.ran.percentiles(),
            waiting: live.waiting,
            held_s: live.held_s,
        }
    }
}

/// How often which span occurred, in steps that grow with the span.
#[derive(Default)]
struct Spread {
    steps: BTreeMap<u32, u64>,
    count: u64,
}

impl Spread {
    fn add(&mut self, span: Duration, count: u64) {
        *self.steps.entry(step(span.as_micros() as u64)).or_default() += count;
        self.count += count;
    }

    fn percentiles(&self) -> Option<api::Percentiles> {
        (self.count > 0).then(|| api::Percentiles { p50: self.at(0.5), p95: self.at(0.95), p99: self.at(0.99) })
    }

    /// The upper end of the step in which this share of all spans is reached, in seconds.
    fn at(&self, share: f64) -> f64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reached = self.steps.iter().find(|(_, count)| {
            seen += **count;
            seen >= wanted
        });
        reached.map_or(0.0, |(step, _)| end_of(*step) as f64 / 1e6)
    }
}

/// Small numbers have a step each; from then on every power of two is cut into equal parts.
fn step(micros: u64) -> u32 {
    if micros < u64::from(STEPS) {
        return micros as u32;
    }
    let power = 63 - micros.leading_zeros();
    let part = (micros >> (power - 4)) as u32 - STEPS;
    (power - 3) * STEPS + part
}

/// The largest number of a step.
fn end_of(step: u32) -> u64 {
    if step < STEPS {
        return u64::from(step);
    }
    let (power, part) = (step / STEPS + 3, step % STEPS);
    (u64::from(STEPS + part + 1) << (power - 4)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_lies_in_its_step() {
        for micros in (0..70_000).chain([1 << 40, (1 << 40) - 1, u64::from(u32::MAX)]) {
            let end = end_of(step(micros));
            assert!(end >= micros, "{micros}: {end}");
            assert!(end as f64 <= micros as f64 * 1.0626 + 1.0, "{micros}: {end}");
            assert!(micros == 0 || end_of(step(micros - 1)) <= end);
        }
    }

    #[test]
    fn percentiles_of_known_spans() {
        let mut spread = Spread::default();
        assert!(spread.percentiles().is_none());
        for second in 1..=100 {
            spread.add(Duration::from_secs(second), 1);
        }
        let told = spread.percentiles().unwrap();
        for (got, exact) in [(told.p50, 50.0), (told.p95, 95.0), (told.p99, 99.0)] {
            assert!(got >= exact && got <= exact * 1.07, "{got} for {exact}");
        }
    }
}
