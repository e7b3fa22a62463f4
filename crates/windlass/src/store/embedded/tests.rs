//! What is particular to the embedded store: what survives a reopening, how chunks, marks and rows work together.
//!
//! "Killed" here means dropped without a commit and opened again: what the kernel has is kept, what was in memory
//! or in the open transaction is gone.

use super::*;
use crate::store::chunk::ChunkBuilder;
use crate::store::{Cursor, Filter, JobInfo, NewJobs, QueueStats, Seal, StoreView, Taken};
use std::sync::Arc;
use tempfile::TempDir;
use windlass_core::job::{LaneKind, Origin, Priority, QueueName, QueueNo, Record};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::suspicion;

mod bodies;
mod copies;
mod crash;
mod damage;
mod runs;
mod strips;
mod verbs;

const NOW: Time = Time(1_700_000_000_000_000);

fn at(seconds: i64) -> Time {
    Time(NOW.0 + seconds * 1_000_000)
}

/// A data directory with the store in it.
struct Bed {
    dir: DataDir,
    store: Option<Embedded>,
    _place: TempDir,
}

impl Bed {
    fn new() -> Bed {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        let (store, opened) = Embedded::open(&dir, "boot").unwrap();
        assert!(!opened.same_boot);
        Bed { dir, store: Some(store), _place: place }
    }

    fn store(&mut self) -> &mut Embedded {
        self.store.as_mut().unwrap()
    }

    fn commit(&mut self) -> u64 {
        self.store().commit(Durability::Full).unwrap()
    }

    /// Ends the process as it were, and opens the store again.
    fn kill(&mut self, boot: &str) -> Opened {
        self.store = None;
        let (store, opened) = Embedded::open(&self.dir, boot).unwrap();
        self.store = Some(store);
        opened
    }

    fn view(&self) -> View {
        View::open(&self.dir.state_db()).unwrap()
    }

    fn job(&self, id: JobId) -> Option<JobInfo> {
        self.view().job(id).unwrap()
    }

    fn stats(&self, queue: &str) -> QueueStats {
        self.view().queues().unwrap().into_iter().find(|info| info.name.as_str() == queue).unwrap().stats
    }

    fn admit(&mut self, jobs: Vec<NewJobs>) {
        let lot = Lot { jobs, ..Lot::default() };
        self.store().admit(&lot, NOW).unwrap();
    }

    fn claim(&mut self, queue: u32, kind: LaneKind, most: u32) -> Vec<Held> {
        let lane = Lane { queue: QueueNo(queue), priority: Priority::NORMAL, kind };
        self.store().claim(&[Order { lane, most }], NOW).unwrap()
    }

    fn settle(&mut self, held: &Held, verdict: Verdict) {
        self.store().settle(&[settled(held, verdict)], &[], NOW).unwrap();
    }

    /// The ready jobs of a fresh opening's backlog, by lane.
    fn ready(&mut self) -> u64 {
        let backlog = self.store().backlog().unwrap();
        backlog.moves.iter().filter(|m| m.to == Some(State::Ready)).map(|m| m.count).sum()
    }

    /// Everything the counters say must be what the tables hold.
    fn check(&self) {
        let db = schema::open_reader(&self.dir.state_db()).unwrap();
        let whole: String = db.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
        assert_eq!(whole, "ok");
        let view = self.view();
        let mut counted = HashMap::new();
        let mut from = Arrival(0);
        loop {
            let page = view.list(&Filter::default(), from, 500).unwrap();
            for job in page.jobs {
                *counted.entry((job.queue, job.state)).or_insert(0) += 1;
            }
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        for info in view.queues().unwrap() {
            for state in State::ALL.into_iter().filter(|state| !state.is_end()) {
                let found = counted.get(&(info.name.clone(), state)).copied().unwrap_or(0);
                assert_eq!(found, info.stats.by_state[state.index()], "{} {state}", info.name);
            }
        }
    }
}

fn settled(held: &Held, verdict: Verdict) -> Settlement {
    Settlement { held: held.clone(), verdict, outcome: "failed", started: at(1), finished: at(3) }
}

fn succeed() -> Verdict {
    Verdict::Succeed { message: String::new() }
}

fn retry(seconds: i64) -> Verdict {
    Verdict::Retry { at: at(seconds), error: "no luck".into() }
}

fn fail() -> Verdict {
    Verdict::Fail { reason: Reason::Refused, error: "never".into() }
}

/// Jobs whose data is their offset in words.
fn jobs(queue: &str, origin: u64, offsets: Range<u64>) -> NewJobs {
    let mut builder = ChunkBuilder::new(Origin::from_random(origin));
    offsets.for_each(|offset| builder.push(offset, offset.to_string().as_bytes()));
    NewJobs {
        queue: QueueName::new(queue.as_bytes()).unwrap(),
        priority: Priority::NORMAL,
        run: None,
        not_before: None,
        jobs: Arc::new(builder.finish()),
    }
}

fn id(origin: u64, offset: u64) -> JobId {
    JobId { origin: Origin::from_random(origin), offset }
}

fn offsets(held: &[Held]) -> Vec<u64> {
    held.iter().flat_map(|held| held.ids().map(|id| id.offset).collect::<Vec<_>>()).collect()
}

fn state_of(bed: &Bed, origin: u64, offset: u64) -> State {
    bed.job(id(origin, offset)).unwrap().state
}

fn row_count(bed: &Bed, table: &str) -> u64 {
    let db = schema::open_reader(&bed.dir.state_db()).unwrap();
    db.query_row(&format!("SELECT count(*) FROM {table}"), [], |r| r.get(0)).unwrap()
}
