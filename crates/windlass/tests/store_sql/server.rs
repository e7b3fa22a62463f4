//! A server on a jobs table, step by step: what it is told, claims and settles, in words for tests.

use crate::databases::Place;
use std::sync::Arc;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::sql::{SqlOptions, SqlStore};
use windlass::store::{
    Changes, Durability, Evidence, Held, Lot, NewJobs, Occasion, Order, Recovered, Settlement, Store, StoreError,
};
use windlass_core::job::{JobId, Lane, LaneKind, Origin, Priority, QueueName, RunId};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

pub(crate) const NOW: Time = Time(1_900_000_000_000_000);

pub(crate) fn everywhere(story: fn(&Place)) {
    for place in [Place::sqlite(), Place::postgres(), Place::mariadb()] {
        place.options("setup").apply().unwrap();
        story(&place);
    }
}

/// A server on the table, recovered and told of everything, and what it was told.
pub(crate) struct Server {
    pub(crate) store: SqlStore,
    pub(crate) recovered: Recovered,
    pub(crate) changes: Changes,
}

pub(crate) fn server(place: &Place, name: &str) -> Server {
    server_with(place.options(name))
}

pub(crate) fn server_with(options: SqlOptions) -> Server {
    let mut store = SqlStore::open(options).unwrap();
    let recovered = store.recover(evidence(), NOW).unwrap();
    let changes = store.backlog().unwrap();
    store.changes();
    Server { store, recovered, changes }
}

pub(crate) fn evidence() -> Evidence<'static> {
    Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD }
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name.as_bytes()).unwrap()
}

pub(crate) fn jobs(name: &str, first: u64, count: u64, run: Option<RunId>) -> NewJobs {
    let mut builder = ChunkBuilder::new(Origin::from_random(7));
    (first..first + count).for_each(|offset| builder.push(offset, format!("{name} {offset}").as_bytes()));
    let jobs = Arc::new(builder.finish());
    NewJobs { queue: queue(name), priority: Priority::NORMAL, run, not_before: None, jobs }
}

impl Server {
    pub(crate) fn commit(&mut self) -> Changes {
        self.store.commit(Durability::Full).unwrap();
        self.learn()
    }

    pub(crate) fn learn(&mut self) -> Changes {
        let changes = self.store.changes();
        self.changes.queues.extend(changes.queues.clone());
        changes
    }

    pub(crate) fn look(&mut self) -> Changes {
        self.store.look(Occasion::Asked, Evidence::UNTOLD, NOW).unwrap();
        self.commit()
    }

    pub(crate) fn push(&mut self, lot: Lot) {
        self.store.admit(&lot, NOW).unwrap();
        self.commit();
    }

    pub(crate) fn lane(&self, name: &str) -> Lane {
        let found = self.changes.queues.iter().find(|(_, known)| known.as_str() == name);
        let (queue, _) = found.unwrap_or_else(|| panic!("queue {name} was never told"));
        Lane { queue: *queue, priority: Priority::NORMAL, kind: LaneKind::Fresh }
    }

    pub(crate) fn claim(&mut self, name: &str, most: u32) -> Vec<Held> {
        let lane = self.lane(name);
        let held = self.store.claim(&[Order { lane, most }], NOW).unwrap();
        self.commit();
        held
    }

    pub(crate) fn settle(&mut self, held: &Held, verdict: Verdict) -> Result<(), StoreError> {
        let end = end(held, verdict);
        self.store.settle(&[end], &[], NOW)?;
        self.store.commit(Durability::Full)?;
        self.learn();
        Ok(())
    }
}

pub(crate) fn end(held: &Held, verdict: Verdict) -> Settlement {
    let started = Time(NOW.0 - 3_400_000);
    Settlement { held: held.clone(), verdict, outcome: "test", started, finished: NOW }
}

pub(crate) fn succeed() -> Verdict {
    Verdict::Succeed { message: "done".into() }
}

pub(crate) fn fail() -> Verdict {
    Verdict::Fail { reason: windlass_core::judge::Reason::Refused, error: "it does not work".into() }
}

pub(crate) fn ids(held: &[Held]) -> Vec<JobId> {
    held.iter().flat_map(|held| held.ids()).collect()
}

/// What a lane of fresh jobs gained or lost, as it was told.
pub(crate) fn gained(changes: &Changes, lane: Lane) -> i64 {
    let moves = changes.moves.iter().filter(|step| step.lane == lane);
    let sign = |state: Option<State>| i64::from(state == Some(State::Ready));
    moves.map(|step| (sign(step.to) - sign(step.from)) * step.count as i64).sum()
}
