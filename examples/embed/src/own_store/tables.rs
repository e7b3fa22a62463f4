//! What the store keeps: sorted tables of rows, and lists that follow from them.
//!
//! A row is written and taken back in one place, `put`, which keeps the lists in step; so the journal needs to know
//! rows alone. It must not know what a verb means.

use super::stored::{Reader, Stored, structs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use windlass::store::chunk::Chunk;
use windlass::store::keys::Key as UniqueKey;
use windlass::store::{AttemptError, Cursor, Held, Place as At, QueueStats, RunInfo, Settlement};
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record, RunId, RunNo};
use windlass_core::judge::Reason;
use windlass_core::life_cycle::State;
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::suspicion;
use windlass_core::time::Time;

/// The time of what waits for jobs.
pub(super) const NEVER: Time = Time(i64::MAX);

/// A job that has not succeeded.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) laid: Laid,
    /// Its place in the chunk.
    pub(super) index: u16,
    pub(super) queue: QueueNo,
    pub(super) priority: Priority,
    pub(super) state: State,
    pub(super) run: Option<RunNo>,
    /// While it runs: as it was before this start.
    pub(super) record: Record,
    pub(super) admitted: Time,
    /// When it became or becomes due.
    pub(super) due: Time,
    pub(super) ended: Option<Time>,
    pub(super) reason: Option<Reason>,
    pub(super) errors: Vec<AttemptError>,
    /// The jobs that must succeed before it.
    pub(super) awaits: Vec<JobId>,
    /// It runs past its time: when that is said again.
    pub(super) overdue: Option<Time>,
}

/// The chunk that a job came in with, by its first arrival.
#[derive(Clone, Debug)]
pub(super) struct Laid {
    pub(super) start: Arrival,
    pub(super) jobs: Arc<Chunk>,
}

impl Stored for Laid {
    fn write(&self, to: &mut Vec<u8>) {
        self.start.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Option<Laid> {
        let start = Stored::read(from)?;
        Some(Laid { start, jobs: Arc::clone(from.chunks.get(&start)?) })
    }
}

/// Numbers that are given out once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) arrival: u64,
    pub(super) run: u32,
    pub(super) turn: u64,
    pub(super) epoch: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    pub(super) stats: QueueStats,
}

structs! {
    Job { laid, index, queue, priority, state, run, record, admitted, due, ended, reason, errors, awaits, overdue }
    Numbers { arrival, run, turn, epoch }
    Queue { name, stats }
}

macro_rules! tables {
    ($($number:literal $field:ident $name:ident: $key:ty => $value:ty,)*) => {
        /// Where a row stands.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Place { $($name($key),)* }

        /// A row as it is; without a value it is gone.
        #[derive(Clone, Debug)]
        pub(super) enum Row { $($name($key, Option<$value>),)* }

        /// The tables.
        #[derive(Clone, Debug, Default)]
        pub(super) struct Maps { $(pub(super) $field: BTreeMap<$key, $value>,)* }

        impl Maps {
            pub(super) fn row(&self, place: &Place) -> Row {
                match place { $(Place::$name(key) => Row::$name(key.clone(), self.$field.get(key).cloned()),)* }
            }

            fn set(&mut self, row: Row) {
                match row { $(
                    Row::$name(key, Some(value)) => drop(self.$field.insert(key, value)),
                    Row::$name(key, None) => drop(self.$field.remove(&key)),
                )* }
            }

            /// All rows, in an order in which they can be read.
            pub(super) fn rows(&self) -> impl Iterator<Item = Row> + '_ {
                std::iter::empty()
                    $(.chain(self.$field.iter().map(|(key, value)| Row::$name(key.clone(), Some(value.clone())))))*
            }
        }

        impl Row {
            pub(super) fn place(&self) -> Place {
                match self { $(Row::$name(key, _) => Place::$name(key.clone()),)* }
            }
        }

        impl Stored for Row {
            fn write(&self, to: &mut Vec<u8>) {
                match self { $(Row::$name(key, value) => {
                    to.push($number);
                    key.write(to);
                    value.write(to);
                })* }
            }

            fn read(from: &mut Reader<'_>) -> Option<Row> {
                match u8::read(from)? {
                    $($number => Some(Row::$name(Stored::read(from)?, Stored::read(from)?)),)*
                    _ => None,
                }
            }
        }
    };
}
// Chunks come first, because jobs and outcomes refer to them.
tables! {
    0 chunks Chunk: Arrival => Arc<Chunk>,
    1 numbers Numbers: () => Numbers,
    2 queues Queue: QueueNo => Queue,
    3 runs Run: RunNo => RunInfo,
    4 jobs Job: Arrival => Job,
    5 unique Unique: UniqueKey => JobId,
    6 cursors Cursor: Origin => Cursor,
    7 closed Closed: Origin => (),
    8 outcomes Outcomes: u64 => Vec<Settlement>,
    9 overrides Override: (Target, Key) => Override,
    10 notes Note: String => Vec<u8>,
}

/// The tables and what follows from them.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub(super) maps: Maps,
    pub(super) ids: BTreeMap<JobId, Arrival>,
    pub(super) ready: BTreeSet<(Lane, Time, Arrival)>,
    pub(super) due: BTreeSet<(Time, Arrival)>,
    /// Jobs that must have begun (true) or ended by a time.
    pub(super) expiry: BTreeSet<(Time, Arrival, bool)>,
    /// Jobs that wait, by what they wait for.
    pub(super) awaited: BTreeSet<(JobId, Arrival)>,
    pub(super) of_run: BTreeSet<(RunNo, Arrival)>,
    pub(super) run_ids: BTreeMap<RunId, RunNo>,
    pub(super) queue_names: BTreeMap<QueueName, QueueNo>,
}

impl Tables {
    /// Writes a row, or takes it away.
    pub(super) fn put(&mut self, row: Row) {
        let place = row.place();
        self.list(&place, false);
        self.maps.set(row);
        self.list(&place, true);
    }

    pub(super) fn numbers(&self) -> Numbers {
        self.maps.numbers.get(&()).copied().unwrap_or_default()
    }

    /// Enters what follows from a row into the lists, or strikes it out.
    fn list(&mut self, place: &Place, enter: bool) {
        match place {
            Place::Job(arrival) => {
                if let Some(job) = self.maps.jobs.get(arrival).cloned() {
                    self.list_job(*arrival, &job, enter);
                }
            }
            Place::Run(no) => {
                let id = self.maps.runs.get(no).map(|run| run.id);
                id.into_iter().for_each(|id| listed_as(&mut self.run_ids, id, *no, enter));
            }
            Place::Queue(no) => {
                let name = self.maps.queues.get(no).map(|queue| queue.name.clone());
                name.into_iter().for_each(|name| listed_as(&mut self.queue_names, name, *no, enter));
            }
            _ => {}
        }
    }

    fn list_job(&mut self, arrival: Arrival, job: &Job, enter: bool) {
        let waits = !job.state.is_end() && job.state != State::Running;
        listed_as(&mut self.ids, job.id(), arrival, enter);
        if job.state == State::Ready {
            let lane = job.lane();
            let time = if lane.kind == LaneKind::Fresh { Time::ZERO } else { job.due };
            listed(&mut self.ready, (lane, time, arrival), enter);
        }
        if matches!(job.state, State::Scheduled | State::Retrying) {
            listed(&mut self.due, (job.due, arrival), enter);
        }
        if let Some(run) = job.run.filter(|_| !job.state.is_end()) {
            listed(&mut self.of_run, (run, arrival), enter);
        }
        job.awaits.iter().for_each(|id| listed(&mut self.awaited, (*id, arrival), enter));
        let Some(particulars) = job.laid.jobs.particulars() else { return };
        if let Some(at) = particulars.start_by.filter(|_| waits && job.record.starts == 0) {
            listed(&mut self.expiry, (at, arrival, true), enter);
        }
        if let Some(at) = particulars.finish_by.filter(|_| !job.state.is_end()) {
            listed(&mut self.expiry, (job.overdue.unwrap_or(at), arrival, false), enter);
        }
    }
}

fn listed<T: Ord>(list: &mut BTreeSet<T>, entry: T, enter: bool) {
    if enter {
        list.insert(entry)
    } else {
        list.remove(&entry)
    };
}

fn listed_as<K: Ord, V>(list: &mut BTreeMap<K, V>, key: K, value: V, enter: bool) {
    if enter {
        list.insert(key, value)
    } else {
        list.remove(&key)
    };
}

impl Job {
    pub(super) fn id(&self) -> JobId {
        self.laid.jobs.id(usize::from(self.index))
    }

    pub(super) fn lane(&self) -> Lane {
        Lane { queue: self.queue, priority: self.priority, kind: suspicion::lane_kind(self.record) }
    }

    /// The claim of this one job, as of its record.
    pub(super) fn held(&self) -> Held {
        let Laid { start, jobs } = self.laid.clone();
        let (lane, run, record, admitted) = (self.lane(), self.run, self.record, self.admitted);
        Held { place: At::Chunk(start), lane, run, record, admitted, jobs, first: self.index, count: 1 }
    }

    /// True where it waits for other jobs.
    pub(super) fn is_held_back(&self) -> bool {
        self.state == State::Scheduled && self.due == NEVER
    }

    /// The last ten are kept.
    pub(super) fn note_error(&mut self, at: Time, text: &str) {
        if self.errors.len() == 10 {
            self.errors.remove(0);
        }
        self.errors.push(AttemptError { start: self.record.starts, at, text: text.to_owned() });
    }
}
