//! The closed list of everything that can wake the engine.
//!
//! Each event is data; what it leads to is decided in the turn that absorbs it. Questions carry an answer that is
//! given after the commit of that turn, and only then.

use crate::error::Failure;
use crate::lot::{self, LotNo};
use crate::runner::progress::Channel;
use crate::runner::{Finished, Flight, Output};
use crate::schedule::Schedule;
use crate::store::keys::Duplicate;
use crate::store::{Amended, Amendment, Arriving, Durability, Lot, RunInfo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use windlass_core::contention::HeldFor;
use windlass_core::job::{JobId, LaneKind, Priority, QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::particulars::Particulars;
use windlass_core::policy::{Command, Forward, HandlerFiles, Policy};
use windlass_core::router::Router;
use windlass_core::run::terms::RunTerms;
use windlass_core::schedule::Memory;
use windlass_core::scheduler::{Closed, Reason};
use windlass_core::time::Time;

/// Gives an answer once; dropped unanswered it means that the engine ended.
pub struct Answer<T>(Box<dyn FnOnce(Result<T, Failure>) + Send>);

impl<T> Answer<T> {
    pub fn new(give: impl FnOnce(Result<T, Failure>) + Send + 'static) -> Answer<T> {
        Answer(Box::new(give))
    }

    pub fn give(self, answer: Result<T, Failure>) {
        (self.0)(answer);
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

/// What can wake the engine.
#[derive(Debug)]
pub enum Event {
    /// A runner: one start is over.
    Finished(Finished),
    /// The inbox reader: these bytes of the inbox are synced and may become jobs.
    Ingested(Lot),
    /// A door with an answer.
    Pushed {
        lot: Lot,
        durability: Durability,
        /// Those of its jobs that were not taken in, because others have their keys.
        answer: Answer<Vec<Duplicate>>,
    },
    OpenRun {
        request: OpenRun,
        answer: Answer<RunInfo>,
    },
    SealRun {
        run: RunId,
        answer: Answer<()>,
    },
    Amend {
        ids: Vec<JobId>,
        amendment: Amendment,
        by: String,
        answer: Answer<Vec<Amended>>,
    },
    /// The same wish for a set that fits one turn: compared with what was expected and done in one transaction.
    Operate {
        operation: NewOperation,
        ids: Vec<JobId>,
        expect: Option<u64>,
        answer: Answer<Report>,
    },
    /// A larger set is about to be staged; answered with its number.
    OpenOperation {
        operation: NewOperation,
        answer: Answer<u64>,
    },
    /// More of its jobs.
    StageOperation {
        number: u64,
        ids: Vec<JobId>,
        answer: Answer<()>,
    },
    /// All of it is staged: it is accepted if it is as many as were expected, and answered when it is done.
    AcceptOperation {
        number: u64,
        expect: Option<u64>,
        answer: Answer<Report>,
    },
    /// Whoever staged it has gone away.
    AbandonOperation {
        number: u64,
    },
    /// The operations that are being done.
    Operations {
        answer: Answer<Vec<OperationInfo>>,
    },
    /// Tells of every finished attempt and every ended run until the follower says that it is gone.
    Watch {
        follower: Follower,
        answer: Answer<()>,
    },
    /// Answered when the run has ended.
    AwaitRun {
        run: RunId,
        answer: Answer<RunInfo>,
    },
    /// Answered when everything that can run has ended; with `due_only`, when nothing is left that could run now.
    AwaitDrained {
        due_only: bool,
        here_only: bool,
        answer: Answer<Drained>,
    },
    /// Answered when what is in the inbox now has been admitted, and what has ended is in the archive.
    CatchUp {
        answer: Answer<()>,
    },
    /// For the waiter with this number every file of the inbox was read to its end, and the handler files were told.
    InboxRead {
        waiter: u64,
    },
    /// Tells a follower of each finished job of a run until it says that it is gone.
    Follow {
        run: RunId,
        follower: Follower,
        answer: Answer<RunInfo>,
    },
    /// The archiver: all turns up to this one are on disk.
    Archived {
        turn: u64,
    },
    /// Failed and cancelled jobs that ended before this go with their retention.
    Forget {
        before: Time,
    },
    /// A new set of rules, checked as a whole.
    Reload {
        new: NewRules,
        answer: Answer<()>,
    },
    /// So many kept workers of a table that names a need of memory live now.
    Workers {
        table: String,
        alive: u32,
    },
    /// A job that a worker elsewhere has says something that counts at its end: answered when it is on disk.
    Speak {
        flight: Flight,
        channel: Channel,
        lines: Vec<u8>,
        answer: Answer<()>,
    },
    /// The handler files as they are now.
    HandlerFiles(HandlerFiles),
    /// A person steers: answered when it is on disk and holds.
    Steer {
        steering: Steering,
        answer: Answer<Steered>,
    },
    /// Fire a schedule now; answered with the run of it.
    FireSchedule {
        name: String,
        by: String,
        answer: Answer<RunId>,
    },
    /// Have a server of those that share the store end in order; answered with whether there is one of that name.
    DrainServer {
        name: String,
        answer: Answer<bool>,
    },
    /// The schedules, and how they stand.
    Schedules {
        answer: Answer<Vec<ScheduleInfo>>,
    },
    /// What holds a queue back, or the ready jobs of one of its lanes.
    Explain {
        queue: String,
        lane: Option<(Priority, LaneKind)>,
        /// The job's, where its table tells destinations apart by it.
        data: Vec<u8>,
        answer: Answer<QueueExplained>,
    },
    /// What the inbox brought and the database does not take.
    Aside {
        answer: Answer<Vec<AsideInfo>>,
    },
    /// Queues that a person or the hours closed.
    Closed {
        answer: Answer<BTreeMap<String, Closed>>,
    },
    /// What is in flight now.
    Flights {
        answer: Answer<Vec<FlightInfo>>,
    },
    /// For how long ready jobs of each queue were held since the engine began, and by what.
    Contention {
        answer: Answer<BTreeMap<String, HeldFor>>,
    },
    /// Everything that a person may want to know of the engine at once.
    Dump {
        answer: Answer<super::dump::Dump>,
    },
    /// Some jobs are to go to another server; answered when it is known what became of each.
    Depart {
        departure: Departure,
        answer: Answer<Departed>,
    },
    /// What was answered to a lot of another server, if this one has taken it.
    KnownLot {
        number: LotNo,
        answer: Answer<Option<lot::Answer>>,
    },
    /// A lot of another server.
    Parcel {
        parcel: Parcel,
        answer: Answer<lot::Answer>,
    },
    /// The other server has settled a lot and will not ask about it again.
    LotSettled {
        number: LotNo,
        answer: Answer<()>,
    },
    /// A remote worker wants jobs; they come as starts with the ask's number, as soon as there are some.
    Ask(super::ask::Ask),
    /// It wants them no longer.
    Unask {
        number: u64,
    },
    /// Look for work now; ends a quiet time.
    Nudge,
    /// Somebody says that there may be work in the store that no door took in.
    Look,
    /// Somebody has set the wall clock, so what is due is due at other moments than it was.
    ClockSet,
    /// Accept jobs, let what runs go on, start nothing.
    Quiet,
    /// Stop claiming, let what runs end for the drain time, then stop.
    Drain,
    /// Stop at once: what runs is killed and goes back without a charge.
    Halt,
}

/// What the config says now, and for the audit log what is another than before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRules {
    pub policies: Vec<Policy>,
    pub slots: u32,
    /// Memory to plan with.
    pub memory: Option<u64>,
    pub schedules: Vec<Schedule>,
    pub router: Router,
    pub by: String,
    pub changed: Vec<String>,
    /// Takes a restart.
    pub restart: Vec<String>,
}

/// A schedule and how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleInfo {
    pub schedule: Schedule,
    pub memory: Memory,
    /// As a person may have changed it.
    pub enabled: bool,
    pub next: Option<Time>,
    /// Where it fires nothing before then, because the clock was there once.
    pub silent_until: Option<Time>,
    /// Why its work is refused, while it is.
    pub error: Option<String>,
}

/// Overrides to be made and dropped together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// Who and when are filled in by the engine.
    pub set: Vec<Override>,
    /// A pattern names everything that it covers, no key all keys.
    pub unset: Vec<(Target, Option<Key>)>,
    pub by: String,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steered {
    pub removed: Vec<Override>,
    pub in_force: Vec<Override>,
}

/// What holds a queue back, out of the scheduler's own mouth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueExplained {
    pub reason: Reason,
    /// The table of the config that serves it.
    pub table: Option<String>,
    /// Ready jobs of a higher priority that go first.
    pub ahead: u64,
    pub by_state: [u64; State::ALL.len()],
    /// What holds back the destination of this very job, and the destination's name.
    pub destination: Option<(String, Reason)>,
    /// False where no job of the queue was ever seen.
    pub known: bool,
    /// Nothing holds its ready jobs, and none was started: when that is looked into once more, and cured.
    pub stalemate: Option<Time>,
}

/// Jobs of a queue that are set aside, because the database refuses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsideInfo {
    pub queue: String,
    pub ids: Vec<JobId>,
    pub why: String,
    pub since: Time,
}

/// What a person wants of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Amend(Amendment),
    Delete,
}

/// The same wish for many jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOperation {
    pub wish: Wish,
    /// What chose the jobs: one that it no longer means when its turn comes is left alone. `None` where a person named
    /// them one by one.
    pub selector: Option<String>,
    /// The moment at which ages are meant.
    pub asked: Time,
    pub by: String,
}

/// Jobs that are to go to another server.
#[derive(Clone, Debug)]
pub struct Departure {
    pub wanted: Wanted,
    pub to: Forward,
    /// Who wants it, and in which words the jobs were chosen: for the audit log.
    pub by: String,
    pub chosen: String,
}

/// Which jobs, about one claim of them.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Ready ones, from the heads of a queue's lanes.
    Ready(String),
    /// These, in whatever state they wait.
    Ids(Vec<JobId>),
}

/// What became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departed {
    /// Jobs that were taken out of their queues for it.
    pub held: u64,
    pub moved: u64,
    /// Could not be kept there, and have failed here with the reason.
    pub failed: u64,
    /// Jobs that were left where they are, by why.
    pub left: BTreeMap<String, u64>,
    /// Why the other server did not take the rest, which is back.
    pub refused: Option<String>,
}

impl Departed {
    pub fn leave(&mut self, why: &str, count: u64) {
        *self.left.entry(why.to_owned()).or_default() += count;
    }

    /// Takes in what became of further jobs.
    pub fn add(&mut self, other: Departed) {
        let Departed { held, moved, failed, left, refused } = other;
        self.held += held;
        self.moved += moved;
        self.failed += failed;
        left.into_iter().for_each(|(why, count)| self.leave(&why, count));
        self.refused = self.refused.take().or(refused);
    }
}

/// A lot that another server sent, as far as it is new here.
#[derive(Debug)]
pub struct Parcel {
    pub number: LotNo,
    pub lot: Lot,
    /// Jobs that have a past, each with how far it had come.
    pub pasts: Vec<(Arriving, String)>,
    /// Jobs of it that are here already and are left as they are.
    pub known: u64,
}

impl Parcel {
    pub fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        let fresh = self.lot.jobs.iter().map(|new| &new.jobs);
        let chunks = fresh.chain(self.pasts.iter().map(|(arriving, _)| &arriving.jobs));
        chunks.flat_map(|jobs| (0..jobs.len()).map(|index| jobs.id(index)))
    }
}

/// The account of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub matched: u64,
    pub changed: u64,
    /// Were so before.
    pub already: u64,
    /// Run, and are being stopped.
    pub running: u64,
    /// Their state does not allow it; how many in which state stands in `why`.
    pub refused: u64,
    #[serde(default)]
    pub why: BTreeMap<String, u64>,
    /// Were meant when they were looked up, and no longer when their turn came.
    pub left: u64,
    /// Are not known.
    pub unknown: u64,
}

/// An operation under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationInfo {
    pub number: u64,
    pub action: String,
    pub selector: Option<String>,
    pub report: Report,
}

/// What `windlass run` asks for; taken only from the engine's own user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRun {
    /// The name it is found again by; empty for `push --run new`.
    pub name: String,
    pub service: Option<RunService>,
    pub terms: RunTerms,
}

/// How the jobs of a `windlass run` are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunService {
    pub queue: String,
    pub command: Command,
    pub slots: u32,
    pub attempts: u32,
    pub output_max: u64,
}

/// Everything that can run has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Jobs that failed while somebody waited.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
}

/// One start under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightInfo {
    pub job: JobId,
    pub count: u16,
    pub queue: String,
    pub start: u32,
    pub started: Time,
    /// Claimed ahead: it waits for a slot of its crew and has not begun.
    pub stocked: bool,
}

/// One finished job of a followed run.
#[derive(Clone, Debug)]
pub struct FollowedJob {
    pub id: JobId,
    pub state: State,
    pub error: String,
    pub output: Output,
    pub data: Vec<u8>,
}

/// The end of one start, or its beginning, as a watcher is told of it.
#[derive(Clone, Debug)]
pub struct Change {
    pub id: JobId,
    pub queue: Arc<QueueName>,
    pub run: Option<RunId>,
    pub priority: Priority,
    pub state: State,
    pub outcome: &'static str,
    pub start: u32,
    pub failures: u32,
    pub admitted: Time,
    pub started: Time,
    pub finished: Time,
    pub error: String,
    pub data: Vec<u8>,
    pub particulars: Option<Arc<Particulars>>,
}

/// What a follower is told.
#[derive(Clone, Debug)]
pub enum Followed {
    Job(FollowedJob),
    /// A start.
    Begun(Change),
    Change(Change),
    /// A person changed the state of a job.
    Amended {
        id: JobId,
        state: State,
    },
    Ended(RunInfo),
}

/// Receives what happens in a run; returns false when nobody listens any more.
pub struct Follower(pub Box<dyn FnMut(Followed) -> bool + Send>);

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Follower")
    }
}
