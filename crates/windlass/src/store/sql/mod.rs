//! The store on a `jobs` table, in PostgreSQL, MariaDB or SQLite: the seed's table, which any program can write to.
//!
//! One turn is one transaction on one connection, at READ COMMITTED. A job is a row; what of it people know lies in
//! the seed's columns, what we need beside it in ours (`rows`). Rows that others wrote are taken in by `look`. Nothing
//! counts what waits but the rows themselves; what has ended is counted by each server for itself (`tally`). A run
//! ends after the commit that ended its last job (`ends`). Read `names` and `schema`, then the verbs. This file owns
//! the turn and what memory holds of it.

mod admit;
mod adopt;
mod amend;
mod claim;
mod clocks;
mod columns;
mod copy;
mod database;
mod dialect;
mod ends;
mod follow;
mod keys;
mod listen;
mod look;
mod mariadb;
mod names;
mod notes;
mod outbox;
mod outcomes;
mod pace;
mod postgres;
mod promise;
mod recover;
mod refused;
mod routines;
mod rows;
mod runs;
mod schema;
mod servers;
mod settle;
mod sqlite;
mod tally;
mod times;
mod travel;
mod verbs;
mod view;

pub use dialect::Dialect;
pub(crate) use listen::{Listened, listen};
pub use names::{Names, OWN, SEED, TABLE};
pub use pace::Pace;
pub use schema::{FORMAT, Plan, Step};
pub use view::SqlView;

use super::embedded::wire::Writer;
use super::keys::Key;
use super::{Changes, Move, StoreError};
use database::{Database, Limits};
use rows::{Holder, NewRow, Row};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tally::{QueueDelta, RunDelta};
use windlass_core::job::{Arrival, JobId, Lane, Origin, QueueName, QueueNo, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::time::{Steady, Time};

/// What becomes of a row whose job succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// It stays, as `completed`, until it is old.
    #[default]
    Rows,
    /// It is deleted with its end; the archive has it.
    None,
}

/// A database that takes longer to let anybody in is taken for one that is away.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

/// Who has a row locked for longer is not waited for: all else goes on without it.
const LOCK_LIMIT: Duration = Duration::from_secs(2);

/// However short a lease is, a database may take so long to answer.
const CALL_LEAST: Duration = Duration::from_secs(2);

/// One step of a change to the tables takes no longer than this.
const CHANGE_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How a store on a table is reached, and who opens it.
#[derive(Clone, Debug)]
pub struct SqlOptions {
    pub url: String,
    pub schema: Option<String>,
    pub table: String,
    /// From our words for columns to the table's.
    pub columns: BTreeMap<String, String>,
    pub keep: Keep,
    /// How long completed rows stay, where they stay at all.
    pub keep_completed: Duration,
    /// How many of them stay at most; none for any number.
    pub keep_most: Option<u64>,
    /// Whether this server may be the one that controls.
    pub controls: bool,
    /// Who this server is, the same after a restart: letters, digits, `-` and `.`.
    pub server: String,
    /// What others are told of it: how many jobs it runs at once, and the memory that they may have.
    pub slots: u32,
    pub memory: Option<u64>,
    /// How long others take this server for alive after it last said so, by the database's clock.
    pub lease: Duration,
    /// Where ends are kept that cannot be written because the database is away; none to keep them in memory alone.
    pub outbox: Option<PathBuf>,
    /// How often a database that is away is tried, by all who have these options.
    pub pace: Pace,
    /// The longest that one call may take; never longer than a third of the lease.
    pub time_limit: Duration,
}

impl SqlOptions {
    pub fn new(url: &str, server: &str) -> SqlOptions {
        SqlOptions {
            url: url.to_owned(),
            schema: None,
            table: TABLE.to_owned(),
            columns: BTreeMap::new(),
            keep: Keep::Rows,
            keep_completed: Duration::from_secs(7 * 24 * 3600),
            keep_most: None,
            controls: true,
            server: server.to_owned(),
            slots: 0,
            memory: None,
            lease: Duration::from_secs(30),
            outbox: None,
            pace: Pace::default(),
            time_limit: Duration::from_secs(10),
        }
    }

    pub fn names(&self) -> Result<Names, StoreError> {
        Names::new(Dialect::of(&self.url)?, self.schema.as_deref(), &self.table, &self.columns)
    }

    fn connect(&self) -> Result<Database, StoreError> {
        Database::connect(&self.url, self.limits(), self.pace.clone())
    }

    fn limits(&self) -> Limits {
        let idle = (self.lease * 2 / 3).max(Duration::from_secs(1));
        // The engine waits for a call: it must be over in time to end what runs before others take it over.
        let call = self.time_limit.min((self.lease / 3).max(CALL_LEAST));
        let lock = LOCK_LIMIT.min(call / 2);
        Limits { reads: false, connect: CONNECT_LIMIT.min(call), call, lock, idle }
    }

    /// What is there and what is missing; changes nothing.
    pub fn plan(&self) -> Result<Plan, StoreError> {
        let limits = Limits { reads: true, ..self.limits() };
        schema::plan(&mut Database::connect(&self.url, limits, self.pace.clone())?, &self.names()?)
    }

    /// Makes what is missing; tells what it did.
    pub fn apply(&self) -> Result<Plan, StoreError> {
        // An index of a large table takes as long as it takes, and nobody waits for us meanwhile.
        let limits = Limits { call: CHANGE_LIMIT, ..self.limits() };
        let (mut db, names) = (Database::connect(&self.url, limits, self.pace.clone())?, self.names()?);
        let mut plan = schema::plan(&mut db, &names)?;
        plan.refused = schema::apply(&mut db, &names, &plan)?;
        Ok(plan)
    }
}

/// The store; see the file's head.
#[derive(Debug)]
pub struct SqlStore {
    db: Database,
    names: Names,
    options: SqlOptions,
    /// This opening's number, and how it is written where the seed has its lock.
    epoch: u64,
    lock: String,
    /// Where the ids of rows come from that others inserted.
    origin: Origin,
    /// The last turn that was committed.
    turn: u64,
    /// A transaction is open, and something was written in it.
    open: bool,
    written: bool,
    queues: Queues,
    changes: Changes,
    work: Work,
    /// The next time at which `release` has work, if it is known.
    due: Option<Option<Time>>,
    /// Runs that may have ended with a turn that is committed.
    touched: BTreeMap<RunNo, Time>,
    /// Runs that the engine knows and was told no end of.
    open_runs: BTreeSet<RunNo>,
    looks: look::Looks,
    clocks: clocks::Clocks,
    /// The opening whose starts are settled: this one, but for what was set aside before it.
    speaks_for: u64,
    /// This server was the one that controls when it last said that it lives; and the open turn rests on that.
    controls: bool,
    needs_control: bool,
    /// Somebody asked this server to end.
    drains: bool,
    doubt: Option<servers::Doubt>,
    done: servers::Done,
    /// When this server last began to say that it lives, and was heard.
    renewed: Steady,
    outbox: Option<outbox::Outbox>,
    /// Other tables refer to rows that are old, or to one that was to go with its end.
    keeps_old_rows: bool,
    /// What people should know.
    remarks: Vec<String>,
}

/// The queues' names and numbers, with those that the open turn made.
#[derive(Debug, Default)]
struct Queues {
    numbers: HashMap<Arc<str>, QueueNo>,
    names: HashMap<QueueNo, QueueName>,
    made: Vec<QueueName>,
}

/// What the open turn is to write and has not written.
#[derive(Debug, Default)]
struct Work {
    inserts: Vec<NewRow>,
    saves: BTreeMap<Arrival, Row>,
    /// Rows of others that are ready, locked and not claimed yet.
    adopted: BTreeMap<Lane, VecDeque<adopt::Adopted>>,
    freed: Vec<(Key, JobId)>,
    queue_deltas: BTreeMap<QueueNo, QueueDelta>,
    run_deltas: BTreeMap<RunNo, RunDelta>,
    /// Jobs that the verb ended, and whether they succeeded.
    ends: Vec<(JobId, bool)>,
    touched: BTreeMap<RunNo, Time>,
    outcomes: Vec<Writer>,
    /// What the turn started, and the starts that it ended.
    claimed: Vec<JobId>,
    settled: Vec<(JobId, u32)>,
    /// Moves that the engine is told of after the commit.
    told_later: Vec<Move>,
    /// The turn put jobs into lanes in which other servers have seen none.
    wakes: bool,
}

impl SqlStore {
    /// Opens a table that is ready for us, as a new opening of this server.
    pub fn open(options: SqlOptions) -> Result<SqlStore, StoreError> {
        let (mut db, names) = (options.connect()?, options.names()?);
        let plan = schema::plan(&mut db, &names)?;
        if let Some(step) = plan.steps.first() {
            let more = plan.steps.len() - 1;
            return Err(StoreError::Io(format!("the database is not ready: {}, and {more} more steps", step.why)));
        }
        let (outbox, renewed) = (options.outbox.clone().map(outbox::Outbox::open).transpose()?, crate::clock::steady());
        db.copies = copy::is_taken(&mut db, &names)?;
        db.room = columns::Room::of(&mut db, &names)?;
        let entered = servers::enter(&mut db, &names, &options)?;
        let mut store = SqlStore {
            db,
            names,
            epoch: entered.epoch,
            lock: entered.lock,
            origin: entered.origin,
            turn: entered.turn,
            options,
            open: false,
            written: false,
            queues: Queues::default(),
            changes: Changes::default(),
            work: Work::default(),
            due: None,
            touched: BTreeMap::new(),
            open_runs: BTreeSet::new(),
            looks: look::Looks::default(),
            clocks: clocks::Clocks::default(),
            speaks_for: entered.epoch,
            controls: false,
            needs_control: false,
            drains: false,
            doubt: None,
            done: servers::Done::default(),
            renewed,
            outbox,
            keeps_old_rows: false,
            remarks: plan.remarks,
        };
        store.compare_clocks()?;
        Ok(store)
    }

    pub fn options(&self) -> &SqlOptions {
        &self.options
    }

    /// Where the ids of rows come from that others inserted.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Before the first statement of a turn that writes or locks.
    fn begin(&mut self) -> Result<(), StoreError> {
        if !self.open {
            self.db.begin()?;
            self.open = true;
        }
        Ok(())
    }

    /// Writes what verbs have gathered, so that the statements after it see it.
    fn flush(&mut self, now: Time) -> Result<(), StoreError> {
        self.write_adopted()?;
        self.flush_own(now)
    }

    /// The same but for rows of others that are only to be taken in.
    fn flush_own(&mut self, now: Time) -> Result<(), StoreError> {
        let inserts = std::mem::take(&mut self.work.inserts);
        let saves: Vec<Row> = std::mem::take(&mut self.work.saves).into_values().collect();
        if !inserts.is_empty() || !saves.is_empty() {
            self.begin()?;
            self.written = true;
        }
        let first_of_lanes = inserts.chunk_by(|one, other| one.lane() == other.lane()).map(|rows| &rows[0]);
        let wakes = |row: &NewRow| row.state == State::Ready && self.looks.was_empty(row.lane());
        self.work.wakes |= self.looks.others && first_of_lanes.into_iter().any(wakes);
        rows::insert(&mut self.db, &self.names, &inserts, now)?;
        let holder = Holder { epoch: self.epoch, lock: &self.lock };
        rows::save(&mut self.db, &self.names, &saves, holder, now)?;
        self.flush_freed_keys()
    }

    /// Remembers a row that is to be written.
    fn save(&mut self, row: &Row) {
        self.work.saves.insert(row.arrival, row.clone());
    }

    fn queue_no(&mut self, name: &QueueName) -> Result<QueueNo, StoreError> {
        if let Some(no) = self.queues.numbers.get(name.as_str()) {
            return Ok(*no);
        }
        self.begin()?;
        self.written = true;
        let into = self.names.sql(":queues (name)");
        let insert = match self.names.dialect {
            Dialect::Postgres | Dialect::Sqlite => format!("INSERT INTO {into} VALUES ($1) ON CONFLICT DO NOTHING"),
            Dialect::Mariadb => format!("INSERT IGNORE INTO {into} VALUES ($1)"),
        };
        let found = self.find_queue(name)?;
        let no = match found {
            Some(no) => no,
            None => {
                self.db.execute(&insert, &[name.as_str().into()])?;
                let made = self.find_queue(name)?;
                made.ok_or_else(|| StoreError::Corrupt(format!("queue {name} cannot be made")))?
            }
        };
        self.note_queue(no, name.clone());
        Ok(no)
    }

    fn find_queue(&mut self, name: &QueueName) -> Result<Option<QueueNo>, StoreError> {
        let sql = self.names.sql("SELECT number FROM :queues WHERE name = $1");
        let found = self.db.maybe_one(&sql, &[name.as_str().into()])?;
        found.map(|mut row| Ok(QueueNo(row.number()?))).transpose()
    }

    fn note_queue(&mut self, no: QueueNo, name: QueueName) {
        self.queues.numbers.insert(name.as_str().into(), no);
        self.queues.names.insert(no, name.clone());
        self.queues.made.push(name.clone());
        self.changes.queues.push((no, name));
    }

    /// Learns the queues that others made.
    fn learn_queues(&mut self) -> Result<(), StoreError> {
        for mut row in self.db.query(&self.names.sql("SELECT number, name FROM :queues ORDER BY number"), &[])? {
            let no = QueueNo(row.number()?);
            let name = row.text()?;
            if !self.queues.names.contains_key(&no) {
                let bad = |e| StoreError::Corrupt(format!("queue {name}: {e}"));
                self.note_queue(no, QueueName::new(name.as_bytes()).map_err(bad)?);
            }
        }
        Ok(())
    }

    /// Jobs may have moved in queues that another server made: the engine hears of those first.
    fn name_moved_queues(&mut self) -> Result<(), StoreError> {
        let unknown = |step: &Move| !self.queues.names.contains_key(&step.lane.queue);
        if self.changes.moves.iter().any(unknown) { self.learn_queues() } else { Ok(()) }
    }

    fn queue_name(&mut self, no: QueueNo) -> Result<QueueName, StoreError> {
        if !self.queues.names.contains_key(&no) {
            self.learn_queues()?;
        }
        let name = self.queues.names.get(&no).cloned();
        name.ok_or_else(|| StoreError::Corrupt(format!("there is no queue {}", no.0)))
    }

    /// Forgets everything that a dropped turn had in memory.
    fn forget_turn(&mut self) {
        self.work = Work::default();
        self.needs_control = false;
        self.looks.drop_turn();
        self.changes = Changes::default();
        self.due = None;
        for name in std::mem::take(&mut self.queues.made) {
            if let Some(no) = self.queues.numbers.remove(name.as_str()) {
                self.queues.names.remove(&no);
            }
        }
    }
}
