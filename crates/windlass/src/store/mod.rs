//! The truth about jobs: the verbs of a job's life, and a read-only view for everyone else.
//!
//! A store keeps jobs, runs, counters and inbox cursors. Every verb is one legal transition of
//! `windlass_core::life_cycle`, takes many jobs at once and is given the time. The verbs of one turn make one
//! transaction: nothing is visible or durable before `commit`, and everything of it is after. A store must not
//! decide policy. Each store passes `conformance`.

use std::fmt;
use std::sync::Arc;
use windlass_core::job::{Arrival, JobId, Lane, Origin, Priority, QueueName, QueueNo, RunId, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::run::RunCounts;
use windlass_core::run::terms::{RunTerms, Stopped};
use windlass_core::time::{Steady, Time};

pub mod chunk;
mod claim;
pub mod conformance;
pub mod embedded;
mod error;
#[doc(hidden)]
pub mod fault;
pub mod keys;
pub mod late;
pub mod memory;
pub mod place;
pub mod sql;
mod travel;
mod view;

pub use claim::{End, Fellow, Held, Order, Place, Settlement, Together};
pub use error::StoreError;
pub use travel::{Arriving, Gone, Past, Unheld};
pub use view::{AttemptError, Filter, JobInfo, Page, QueueInfo, QueueStats, ServerInfo, StoreView, subject_of};

use chunk::Chunk;
use keys::Duplicate;

/// What an answer promises: on disk, or in the kernel's hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Survives the death of any process.
    Os,
    /// Survives a power cut.
    #[default]
    Full,
}

impl Durability {
    pub fn word(self) -> &'static str {
        match self {
            Durability::Os => "os",
            Durability::Full => "full",
        }
    }
}

/// Jobs of one queue, priority, run and time, as a door took them in. What else they may have lies in the chunk.
#[derive(Clone, Debug)]
pub struct NewJobs {
    pub queue: QueueName,
    pub priority: Priority,
    pub run: Option<RunId>,
    /// Not before that time; `None` is at once.
    pub not_before: Option<Time>,
    pub jobs: Arc<Chunk>,
}

/// How far an inbox file has been read: its random id, never its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub origin: Origin,
    pub offset: u64,
    /// Checksum of the last 64 bytes before the offset, so that a file that is not the one it was is noticed.
    pub tail: u32,
}

/// A run is sealed once these inbox positions have been read; none named means at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    pub run: RunId,
    pub after: Vec<(Origin, u64)>,
}

/// How many lines of its input a `windlass run` has handed over, and a running hash of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub lines: u64,
    pub hash: u64,
}

/// What one door took in together: admitted as a whole.
#[derive(Clone, Debug, Default)]
pub struct Lot {
    pub jobs: Vec<NewJobs>,
    /// Inbox files read up to here by this lot.
    pub cursors: Vec<Cursor>,
    /// Inbox files that were removed; their cursors can go.
    pub closed: Vec<Origin>,
    pub seals: Vec<Seal>,
    /// Runs that this lot opens, on these terms; one that is known stays as it is.
    pub opens: Vec<(RunId, RunTerms)>,
    /// The new position in a run's input; refused if the run is not at the first of the two.
    pub taken: Option<(RunId, Taken, Taken)>,
    /// Where the bytes of each of `jobs` are on disk already; none where the store is to write them itself.
    pub bodies: Vec<Extent>,
    /// Jobs that were in it and that the store does not take: the engine keeps them otherwise.
    pub aside: Vec<Refused>,
}

/// Jobs that a store does not take, and why.
#[derive(Clone, Debug)]
pub struct Refused {
    pub jobs: NewJobs,
    pub why: String,
}

/// Where the bytes of a chunk lie: in a body file, beside the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub file: u32,
    pub offset: u64,
    pub length: u32,
}

impl Lot {
    pub fn len(&self) -> u64 {
        self.jobs.iter().map(|new| new.jobs.len() as u64).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.cursors.is_empty()
            && self.seals.is_empty()
            && self.closed.is_empty()
            && self.opens.is_empty()
            && self.aside.is_empty()
    }
}

/// A run as it is opened by `windlass run` or `push --run new`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRun {
    /// The name it is found again by while it has not ended; empty for none.
    pub name: String,
    /// What serves it, encoded by the engine; empty for a run that is only a set of jobs.
    pub spec: Vec<u8>,
    pub terms: RunTerms,
}

/// Jobs that a settled job emitted: they are taken in with its end, in its run, whether that run is sealed or not.
#[derive(Clone, Debug)]
pub struct FollowUp {
    pub queue: QueueName,
    pub priority: Priority,
    /// The run of the job that emitted them.
    pub run: Option<RunNo>,
    pub jobs: Arc<Chunk>,
}

/// What a person wants of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amendment {
    Cancel,
    /// Another try, now: failed, cancelled, retrying and scheduled jobs become ready with no failures and no
    /// suspicions. A job of an ended run goes to the run's next generation; the ended run keeps its counts.
    Retry,
    Suspend,
    Resume,
    Priority(Priority),
}

/// A change to what people changed while running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steer {
    /// In the place of an earlier override for the same target and key.
    Set(Override),
    /// Where there is none, nothing changes.
    Unset(Target, Key),
}

/// What came of one amendment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amended {
    Done {
        from: State,
        to: State,
    },
    /// It was so before, and nothing was changed.
    Same(State),
    /// It runs: the engine asks the runner to stop it and settles it when its tree is proven dead.
    Running,
    /// Its state does not allow it.
    Refused(State),
    /// It would live again, but this job has its unique key by now.
    Taken(JobId),
    Unknown,
}

/// What notes begin with that all servers on a store share; only the one that controls may write them.
pub const SHARED: &str = "schedule/";

/// Notes with this in front are of jobs on their way to another server. Whether they arrived is known there alone, and
/// only the server that sent them asks: until it has, nobody else may run them.
pub const MOVING: &str = "moving/";

/// Notes with this in front are of lots that were taken. Any server on a store may be sent a lot again, so all of them
/// know what one has taken.
pub const LOTS: &str = "lot/";

/// Notes with this in front are of jobs that the inbox brought and the database does not take.
pub const ASIDE: &str = "aside/";

/// The archive's word for the last line of a job that a person deleted.
pub const DELETED: &str = "deleted";

/// The archive's word for the last line of a job that another server has now.
pub const MOVED: &str = "moved";

/// The archive's word for the last line of a job that was too late.
pub const EXPIRED: &str = "expired";

/// What came of the wish to delete one job.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// It is gone; this is its last line in the archive.
    Done {
        from: State,
        last: Settlement,
    },
    /// It runs, and only what does not run can be deleted.
    Running,
    Unknown,
}

/// Jobs that went from one state to another; the engine's scheduler and counters live on these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub lane: Lane,
    pub run: Option<RunNo>,
    /// `None`: they are new.
    pub from: Option<State>,
    /// `None`: they are forgotten.
    pub to: Option<State>,
    pub count: u64,
}

/// What the verbs of a turn changed, in order.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub queues: Vec<(QueueNo, QueueName)>,
    /// Runs that were made.
    pub runs: Vec<RunInfo>,
    pub moves: Vec<Move>,
    /// Runs whose end came with this turn: each is reported once.
    pub ended: Vec<RunInfo>,
    /// Jobs that were not taken in.
    pub duplicates: Vec<Duplicate>,
    /// How many jobs were more than their run takes, for each time.
    pub beyond_limit: Vec<(RunNo, u64)>,
    /// The last lines of jobs that had not begun or ended in time.
    pub expired: Vec<Settlement>,
    /// Jobs that run past the time by which they had to end: the engine asks the runner to stop them.
    pub overdue: Vec<JobId>,
}

/// Everything that is known of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    pub no: RunNo,
    pub id: RunId,
    pub name: String,
    pub spec: Vec<u8>,
    pub terms: RunTerms,
    pub counts: RunCounts,
    pub taken: Taken,
    /// The inbox positions a pending seal waits for.
    pub seal_after: Vec<(Origin, u64)>,
    pub created: Time,
    pub ended_at: Option<Time>,
}

impl RunInfo {
    /// One that is made now, with nothing in it.
    pub fn begin(no: RunNo, id: RunId, run: &NewRun, now: Time) -> RunInfo {
        let NewRun { name, spec, terms } = run.clone();
        let (counts, taken, seal_after) = (RunCounts::default(), Taken::default(), Vec::new());
        RunInfo { no, id, name, spec, terms, counts, taken, seal_after, created: now, ended_at: None }
    }

    /// Waits for what a seal names before it is sealed; one that names nothing seals now. A sealed run stays so.
    pub fn note_seal(&mut self, seal: &Seal) {
        if self.counts.sealed {
            return;
        }
        self.counts.sealed = seal.after.is_empty();
        if self.counts.sealed {
            self.seal_after.clear();
        }
        self.seal_after.extend_from_slice(&seal.after);
    }

    /// Whether it takes jobs that come after the seal of the first: a later generation does until it ends.
    pub fn takes_late_jobs(&self) -> bool {
        self.id.generation > 1 && self.ended_at.is_none() && self.counts.stopped.is_none()
    }

    /// The one that is made for jobs that come too late for this one, as it begins.
    pub fn next_generation(self) -> RunInfo {
        let counts = RunCounts { sealed: true, ..RunCounts::default() };
        let (taken, seal_after) = (Taken::default(), Vec::new());
        RunInfo { id: self.id.next_generation(), counts, taken, seal_after, ended_at: None, ..self }
    }
}

/// What the slot table and the boot say about claims whose server is gone.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// Whether this start of the job had begun; where there is no record, say that it had.
    pub begun: &'a dyn Fn(JobId, u32) -> bool,
    /// Whether a worker elsewhere has this start: it goes on, and its claim stays as it is.
    pub elsewhere: &'a dyn Fn(JobId, u32) -> bool,
    /// False after a reboot, which accuses nobody.
    pub same_boot: bool,
    pub convicted: Told<'a>,
}

/// What is to be taken in with the end of a job that fails without a report, because it is convicted or too late; it is
/// shown as it is then.
pub type Told<'a> = &'a dyn Fn(&JobInfo, Option<RunNo>) -> Vec<FollowUp>;

impl Evidence<'_> {
    /// Nobody is told.
    pub const UNTOLD: Told<'static> = &|_, _| Vec::new();
}

impl fmt::Debug for Evidence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evidence").field("same_boot", &self.same_boot).finish_non_exhaustive()
    }
}

/// What a restart found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Claims that never began: given back as they were.
    pub returned: u64,
    /// Claims that had begun: given back with one more start.
    pub repeated: u64,
    /// Jobs convicted of killing servers.
    pub convicted: u64,
}

/// Outcomes of a committed turn that the archive does not hold yet.
#[derive(Clone, Debug)]
pub struct Unarchived {
    pub turn: u64,
    pub settlements: Vec<Settlement>,
}

/// Why a store looks for what others did to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occasion {
    /// As far as its time has come.
    #[default]
    Time,
    /// Somebody said that there are jobs: those now, and all else when its time comes.
    Word,
    /// Somebody wants everything looked at now.
    Asked,
}

/// When a server that is not heard of stops what it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// It is told to end.
    pub told: Steady,
    /// From now on others may run it.
    pub overtaken: Steady,
}

/// The verbs. The first verb after a commit opens the turn's transaction.
pub trait Store {
    /// Everything that waits or runs, as moves from nothing: what the engine starts with. Changes nothing; moves and
    /// queues that `changes` has not told yet are in the answer and are not told again.
    fn backlog(&mut self) -> Result<Changes, StoreError>;

    /// Runs that have not ended.
    fn open_runs(&mut self) -> Result<Vec<RunInfo>, StoreError>;

    /// Once after opening: takes back what dead servers held, but for what is elsewhere, and commits. A conviction
    /// leaves an outcome (`lost`).
    fn recover(&mut self, evidence: Evidence<'_>, now: Time) -> Result<Recovered, StoreError>;

    /// Takes in a lot, but for jobs whose unique key is taken: those are told as duplicates and counted as dropped by
    /// their run. So are jobs that are more than their run takes; of those the number is told. A key is taken in the
    /// transaction that takes in its job. A run that is not known is made. Jobs for a sealed run go to its youngest
    /// generation: one after the first takes jobs until it ends or is stopped, else the next is made, sealed from the
    /// start, with the same name, spec and terms.
    fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError>;

    /// Between two turns, after one that was refused: those of a lot's jobs that would be, each part with the words of
    /// the refusal. Changes nothing.
    fn refused(&mut self, _lot: &Lot, _now: Time) -> Result<Vec<Refused>, StoreError> {
        Ok(Vec::new())
    }

    /// Who has the keys of these jobs, as far as they are unique.
    fn holders(&mut self, new: &NewJobs) -> Result<Vec<Option<JobId>>, StoreError>;

    /// The run that jobs for this one would go to, as it stands in the open turn; one that would be made for them as it
    /// would begin, and nothing where that has no terms.
    fn joined(&mut self, run: RunId) -> Result<Option<RunInfo>, StoreError>;

    /// Opens a run; a name is found again by the engine through `open_runs`.
    fn open_run(&mut self, id: RunId, run: &NewRun, now: Time) -> Result<RunNo, StoreError>;

    /// A run takes no more jobs and is sealed; what of it has not ended is the engine's to cancel.
    fn stop_run(&mut self, no: RunNo, why: Stopped, now: Time) -> Result<(), StoreError>;

    /// Takes from the heads of lanes, oldest first (retries by due time); may give less than was ordered.
    fn claim(&mut self, orders: &[Order], now: Time) -> Result<Vec<Held>, StoreError>;

    /// The claim of a job that runs, as it was given out: for a start that outlives the server that claimed it.
    fn held(&mut self, id: JobId) -> Result<Option<Held>, StoreError>;

    /// Takes jobs that wait out of their queues, by id and in whatever state they wait: they run from then on, with a
    /// start that is stored, until they are settled. Keys that are free once a job has begun stay taken.
    fn hold(&mut self, ids: &[JobId], _now: Time) -> Result<Vec<Result<Held, Unheld>>, StoreError> {
        Ok(ids.iter().map(|_| Err(Unheld::Unable)).collect())
    }

    /// Whether `arrive` takes anything.
    fn takes_pasts(&self) -> bool {
        false
    }

    /// Takes in jobs of another server as they were there. One whose key is taken is told as a duplicate; one whose id
    /// is here is left alone. One that was here before and has ended may be `Busy` until the archive has its end.
    fn arrive(&mut self, _jobs: &[Arriving], _now: Time) -> Result<(), StoreError> {
        Err(StoreError::Stale("this store takes no job that was begun elsewhere".into()))
    }

    /// Ends starts and takes in what they emitted, before any run is looked at: a run whose last job emits another goes
    /// on. A claim that is no longer held is `Stale` and changes nothing.
    fn settle(&mut self, settlements: &[Settlement], follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError>;

    /// Whether `settle_together` may be asked; elsewhere each end is settled for itself.
    fn ends_together(&self) -> bool {
        false
    }

    /// `settle` for each, after it: a run goes on while a job of it has not ended. None has a key and nothing follows.
    fn settle_together(&mut self, ends: &[Together], now: Time) -> Result<(), StoreError> {
        self.settle(&ends.iter().flat_map(Together::ends).map(End::settlement).collect::<Vec<_>>(), &[], now)
    }

    /// Fails what has not begun or ended in time and takes in what is to be said of that, before any run is looked at;
    /// then makes about `limit` due jobs ready, earliest first. Those that were admitted as one go together, so the
    /// last ones may go over the limit.
    fn release(&mut self, now: Time, limit: u32, late: Told<'_>) -> Result<(), StoreError>;

    /// The next time at which `release` has work.
    fn next_due(&mut self) -> Result<Option<Time>, StoreError>;

    /// The wall clock was set by so many microseconds. A job that has been started waits for a length of time, which
    /// stays as long as it was; a time that somebody named stays as it is. Where several clocks write the times of a
    /// store, nobody can say which of them was wrong: nothing is changed, and the answer is false.
    fn shift_waits(&mut self, _by: i64) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Changes single jobs for a person.
    fn amend(&mut self, ids: &[JobId], amendment: Amendment, now: Time) -> Result<Vec<Amended>, StoreError>;

    /// Keeps or drops an override; whether it makes sense is not the store's business.
    fn steer(&mut self, step: &Steer) -> Result<(), StoreError>;

    /// The overrides as this turn has them.
    fn overrides(&mut self) -> Result<Vec<Override>, StoreError>;
    /// Jobs as they are in the open turn.
    fn jobs(&mut self, ids: &[JobId]) -> Result<Vec<Option<JobInfo>>, StoreError>;

    /// Jobs of a run that have not ended, by arrival from `from` on, and where to go on; `limit` bounds the answer and
    /// the work, so an answer may be empty and not the last.
    fn of_run(&mut self, run: RunId, from: Arrival, limit: usize) -> Result<(Vec<JobId>, Option<Arrival>), StoreError>;

    /// Removes jobs that do not run. One that waits is counted as cancelled, in its queue and in its run; one that has
    /// ended stays counted as it ended. Each leaves an outcome, so that the archive can tell where it went.
    fn delete(&mut self, ids: &[JobId], now: Time) -> Result<Vec<Deleted>, StoreError>;

    /// A run by its number, ended or not; nothing where it was forgotten.
    fn run_numbered(&mut self, no: RunNo) -> Result<Option<RunInfo>, StoreError>;

    /// Keeps bytes under a key, or drops them: what the engine has begun and must know again after a restart. Where
    /// several servers share a store each has notes of its own, but for those that begin with `SHARED`.
    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError>;

    /// The first notes whose keys begin so, by key, as they are in the open turn.
    fn notes(&mut self, prefix: &str, limit: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// Forgets failed and cancelled jobs that ended before `before`, and runs with nothing left, up to `limit`. A run
    /// goes after its earlier generations, so that no generation is told twice.
    fn forget(&mut self, before: Time, limit: u32) -> Result<u64, StoreError>;

    /// The archive holds all turns up to this one; their rows and settled chunks can go.
    fn archived(&mut self, turn: u64) -> Result<(), StoreError>;

    /// Outcomes that a crash kept from the archive, oldest first.
    fn unarchived(&mut self) -> Result<Vec<Unarchived>, StoreError>;

    /// What changed since this was last asked, also within the open transaction.
    fn changes(&mut self) -> Changes;

    /// Ends the turn; returns its number. On error nothing of the turn happened, but for a failed sync: then the turn
    /// may have happened and the process must end. `Full` makes all earlier `Os` commits durable too, also where the
    /// turn itself changed nothing.
    fn commit(&mut self, durability: Durability) -> Result<u64, StoreError>;

    /// Drops the turn and everything that memory holds; `backlog` is asked again after it.
    fn rollback(&mut self) -> Result<(), StoreError>;

    /// At the start and after `Full`: whether there is room for more than the ends of what runs. A store that keeps no
    /// reserve for those can only hope so.
    fn has_room(&mut self) -> bool {
        true
    }

    /// Looks for what others did to the store and takes it in, told through `changes`; and says that this server lives.
    /// True where more than new jobs was looked at. A store that nobody else writes to sees nothing.
    fn look(&mut self, _why: Occasion, _convicted: Told<'_>, _now: Time) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// When `look` wants to be called though nobody asks; none where nobody else writes.
    fn next_look(&mut self) -> Option<Time> {
        None
    }

    /// After a commit: whether `changes` has something to tell that came with it, so that the engine must turn again.
    fn has_news(&self) -> bool {
        false
    }

    /// The turn had nothing that must be committed now. A store that others wait for lets go of what it holds.
    fn rest(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// After `settle` was refused as stale: which of these starts are not held any more. Only where others can take
    /// jobs away is there an answer; elsewhere a stale claim is a fault of the caller.
    fn lost(&mut self, _held: &[(JobId, u32)]) -> Result<Vec<JobId>, StoreError> {
        Ok(Vec::new())
    }

    /// What people should know of the store, once.
    fn remarks(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Of these starts those whose jobs somebody else has locked; the others are the open turn's from now on.
    fn locked(&mut self, _held: &[(JobId, u32)]) -> Result<Vec<JobId>, StoreError> {
        Ok(Vec::new())
    }

    /// Keeps ends that cannot be written because the store is away, on the disk of this machine: should this process
    /// end before they are, the next one writes them.
    fn set_aside(&mut self, _settlements: &[Settlement], _follow_ups: &[FollowUp]) -> Result<(), StoreError> {
        Ok(())
    }

    /// When what this server runs has to end if it cannot say that it lives; none where nobody would notice.
    fn fenced_at(&self) -> Option<Fenced> {
        None
    }

    /// Asks a server of those that share the store to end in order; false where none has that name.
    fn drain_server(&mut self, _name: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Whether somebody asked that of this one, as of the last look.
    fn drains(&self) -> bool {
        false
    }

    /// The last call, at an end in order: others need not wait until they notice.
    fn leave(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether this server is the one that does what only one may: fire schedules, and remove what is old.
    fn controls(&self) -> bool {
        true
    }

    /// The number drawn when the store was opened: part of every token.
    fn epoch(&self) -> u64;
}
