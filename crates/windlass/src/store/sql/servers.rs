//! Who is there: one row for each opening of the store, alive until a time on the database's clock.
//!
//! Every commit of a turn writes the row of its own opening: that renews the lease, tells after a lost connection
//! whether the turn is there, and fails where another server has taken this one for dead, so that a late server
//! changes nothing. The row of a dead opening is deleted by whoever takes back what it held.

use super::database::{Database, Value};
use super::names::Names;
use super::rows::Lock;
use super::{Dialect, SqlOptions, SqlStore, StoreError};
use crate::sabotage::{self, Sabotage};
use crate::store::{MOVING, ServerInfo};
use std::collections::{HashMap, HashSet};
use std::time::Instant;
use windlass_core::job::{JobId, Origin};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// A turn whose commit was sent and not answered.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    turn: u64,
    /// What it started, if it is there.
    claimed: Vec<JobId>,
    /// The starts that it ended.
    ended: Vec<(JobId, u32)>,
}

/// What a turn did that was in doubt and is there: the engine does it again, because it was told nothing.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Ends that are written, and whose lines the archive gets when the engine says them again.
    pub(super) ended: HashSet<(JobId, u32)>,
    /// How far inbox files are read; those that are closed have no end.
    pub(super) read: HashMap<Origin, u64>,
}

/// How many turns an opening has, in bits.
const TURN_BITS: u32 = 32;

/// How much of a server's name the seed's column for locks has room for.
const LOCK_NAME_MAX: usize = 25;

pub(super) struct Entered {
    pub(super) epoch: u64,
    pub(super) lock: String,
    pub(super) origin: Origin,
    pub(super) turn: u64,
}

/// Draws this opening's number and lists it among the living.
pub(super) fn enter(db: &mut Database, names: &Names, options: &SqlOptions) -> Result<Entered, StoreError> {
    let begun = Instant::now();
    loop {
        let entered = enter_in_turn(db, names, options);
        match &entered {
            Ok(_) => db.batch(&["COMMIT"])?,
            Err(_) => drop(db.batch(&["ROLLBACK"])),
        }
        // A turn of another server may have the numbers locked.
        match entered {
            Err(StoreError::Busy(_)) if begun.elapsed() < options.time_limit => {}
            entered => return entered,
        }
    }
}

fn enter_in_turn(db: &mut Database, names: &Names, options: &SqlOptions) -> Result<Entered, StoreError> {
    db.begin()?;
    db.execute(&names.sql("UPDATE :meta SET epoch = epoch + 1"), &[])?;
    let mut row = db.one(&names.sql("SELECT epoch, origin FROM :meta"), &[])?;
    let (epoch, origin) = (row.int()?, Origin::from_random(row.int()? as u64));
    let server: Value = options.server.as_str().into();
    let last = names.sql(
        "SELECT (SELECT max(turn) FROM :servers WHERE server = $1), \
         (SELECT max(turn) FROM :outcomes WHERE server = $1)",
    );
    let mut row = db.one(&last, std::slice::from_ref(&server))?;
    // The archive knows what it holds by the numbers of turns: none may come twice, though whoever took this server for
    // dead has struck it off. So each opening has numbers of its own.
    let turn = row.maybe_int()?.max(row.maybe_int()?).unwrap_or(0).max(epoch << TURN_BITS);
    let name: String = options.server.chars().take(LOCK_NAME_MAX).collect();
    let lock = db.room.lock.cut(&format!("{name}:{epoch}"));
    let lease = i64::try_from(options.lease.as_micros()).unwrap_or(i64::MAX);
    let sql = names.sql(&format!(
        "INSERT INTO :servers (epoch, server, lock_text, lease_until, turn, slots, memory, draining) \
         VALUES ($1, $2, $3, {} + $4, $5, $6, $7, 0)",
        db.dialect.now()
    ));
    let (slots, memory) = (i64::from(options.slots), i64::try_from(options.memory.unwrap_or(0)).unwrap_or(i64::MAX));
    let params = [epoch.into(), server, lock.as_str().into(), lease.into(), turn.into(), slots.into(), memory.into()];
    db.execute(&sql, &params)?;
    Ok(Entered { epoch: epoch as u64, lock, origin, turn: turn as u64 })
}

/// Everybody on the list, by opening.
pub(super) fn list(db: &mut Database, names: &Names) -> Result<Vec<ServerInfo>, StoreError> {
    let now = db.dialect.now();
    let sql = names.sql(&format!(
        "SELECT s.server, s.epoch, s.lease_until - {now}, s.slots, s.memory, s.draining, \
         (SELECT count(*) FROM :jobs AS j WHERE j.:holder = s.epoch AND j.:state = 2), \
         (SELECT count(*) FROM :meta AS m WHERE m.controller = s.epoch AND m.controller_until > {now}) \
         FROM :servers AS s ORDER BY s.epoch"
    ));
    let read = db.query(&sql, &[])?.into_iter().map(|mut row| {
        Ok(ServerInfo {
            name: row.text()?,
            epoch: row.number()?,
            lease_micros: row.int()?,
            slots: row.number()?,
            memory: Some(row.number()?).filter(|memory| *memory > 0),
            draining: row.int()? != 0,
            running: row.number()?,
            controls: row.int()? != 0,
        })
    });
    read.collect()
}

impl SqlStore {
    /// Asks the openings of a server to end.
    pub(super) fn ask_to_drain(&mut self, name: &str) -> Result<bool, StoreError> {
        self.begin()?;
        self.written = true;
        let sql = self.names.sql("UPDATE :servers SET draining = 1 WHERE server = $1");
        Ok(self.db.execute(&sql, &[name.into()])? > 0)
    }

    /// Hears whether somebody asked this one.
    pub(super) fn hear_of_draining(&mut self) -> Result<(), StoreError> {
        let sql = self.names.sql("SELECT draining FROM :servers WHERE epoch = $1");
        let found = self.db.maybe_one(&sql, &[(self.epoch as i64).into()])?;
        self.drains = found.map(|mut row| row.int()).transpose()?.is_some_and(|draining| draining != 0);
        Ok(())
    }

    /// Writes all that the turn has gathered, says that this server lives, and commits.
    pub(super) fn write_turn(&mut self) -> Result<(), StoreError> {
        self.begin()?;
        self.write_adopted()?;
        self.flush_run_deltas()?;
        self.flush_queue_deltas()?;
        let renewed = crate::clock::steady();
        let turn = self.save_outcomes()?;
        self.wake_others()?;
        let lease = i64::try_from(self.options.lease.as_micros()).unwrap_or(i64::MAX);
        let sql = self.names.sql(&format!(
            "UPDATE :servers SET turn = $1, lease_until = {} + $2 WHERE epoch = $3",
            self.db.dialect.now()
        ));
        let params = [(turn as i64).into(), lease.into(), (self.epoch as i64).into()];
        if self.db.execute(&sql, &params)? == 0 && !sabotage::on(Sabotage::LateServerCommits) {
            return Err(StoreError::Io(format!(
                "another server has taken this one ({}) for dead and has its jobs: it was away for longer than its \
                 lease of {} s",
                self.lock,
                self.options.lease.as_secs()
            )));
        }
        if std::mem::take(&mut self.needs_control) && !self.take_control(false)? {
            return Err(StoreError::Away("another server controls by now".into()));
        }
        if let Err(error) = self.db.batch(&["COMMIT"]) {
            let (claimed, ended) = (std::mem::take(&mut self.work.claimed), std::mem::take(&mut self.work.settled));
            // One that is being repaired is not over because its repair is in doubt, too.
            if matches!(error, StoreError::Away(_)) && self.doubt.is_none() {
                self.doubt = Some(Doubt { turn, claimed, ended });
            }
            // Whether the turn is there is only known once somebody answers: at once, mostly.
            if self.db.reconnect().is_err() || !matches!(self.last_turn(), Ok(Some(last)) if last >= turn) {
                return Err(error);
            }
            self.doubt = None;
        }
        (self.open, self.written, self.turn, self.renewed) = (false, false, turn, renewed);
        self.queues.made.clear();
        self.work.claimed.clear();
        self.work.settled.clear();
        // The engine has said again what it was told nothing of.
        self.done.ended.clear();
        self.drop_outbox()
    }

    /// Jobs that came through this server may be the work that others wait for. Where they have some already, they
    /// need no word; what the trigger says is only of other programs.
    fn wake_others(&mut self) -> Result<(), StoreError> {
        if std::mem::take(&mut self.work.wakes) && self.db.dialect == Dialect::Postgres {
            let said = [self.names.channel().into(), self.options.server.as_str().into()];
            self.db.execute("SELECT pg_notify($1, $2)", &said)?;
        }
        Ok(())
    }

    /// The last turn of this opening that is there. A transaction that still goes on is waited for.
    fn last_turn(&mut self) -> Result<Option<u64>, StoreError> {
        if sabotage::on(Sabotage::DoubtForgotten) {
            return Ok(None);
        }
        let sql =
            self.names.sql(&format!("SELECT turn FROM :servers WHERE epoch = $1 {}", self.db.dialect.for_update()));
        let found = self.db.maybe_one(&sql, &[(self.epoch as i64).into()])?;
        found.map(|mut row| row.number()).transpose()
    }

    /// Connects again where the connection was lost, and sees what became of a turn in doubt. It stays in doubt until
    /// all of that is done.
    pub(super) fn come_back(&mut self) -> Result<(), StoreError> {
        self.db.reconnect()?;
        let Some(doubt) = self.doubt.clone() else { return Ok(()) };
        let repaired = self.repair(doubt);
        match &repaired {
            Ok(()) => self.doubt = None,
            Err(_) => {
                self.forget_turn();
                self.drop_transaction()?;
            }
        }
        repaired
    }

    /// A turn that was committed without our knowing started jobs that nobody runs: they go back as they were. What
    /// else it did is remembered, because the engine will want it done.
    fn repair(&mut self, doubt: Doubt) -> Result<(), StoreError> {
        let Some(last) = self.last_turn()?.filter(|last| *last >= doubt.turn) else { return Ok(()) };
        self.turn = self.turn.max(last);
        if !doubt.claimed.is_empty() {
            self.give_claims_back(&doubt.claimed)?;
        }
        self.done = Done { ended: doubt.ended.into_iter().collect(), read: self.own_cursors()? };
        Ok(())
    }

    fn give_claims_back(&mut self, claimed: &[JobId]) -> Result<(), StoreError> {
        self.begin()?;
        let mut rows = self.held_rows(claimed, Lock::Wait)?;
        for row in &mut rows {
            row.record.starts -= 1;
            row.state = State::Ready;
        }
        let now = Time(self.db.one(&format!("SELECT {}", self.db.dialect.now()), &[])?.int()?);
        rows.iter().for_each(|row| self.save(row));
        self.flush(now)?;
        self.write_turn()
    }

    /// Ends a transaction that changed nothing, or that is to change nothing.
    pub(super) fn drop_transaction(&mut self) -> Result<(), StoreError> {
        if std::mem::take(&mut self.open) {
            self.written = false;
            match self.db.batch(&["ROLLBACK"]) {
                // Without a connection there is nothing left to drop.
                Err(StoreError::Away(_)) => self.db.hang_up(),
                other => other?,
            }
        }
        Ok(())
    }

    /// Says that this server controls, for as long as a lease; false where another does. It is taken over from one
    /// whose time is past, by the database's clock, and never in the middle of a turn that rests on it.
    pub(super) fn take_control(&mut self, over: bool) -> Result<bool, StoreError> {
        let lease = i64::try_from(self.options.lease.as_micros()).unwrap_or(i64::MAX);
        let (now, own) = (self.db.dialect.now(), (self.epoch as i64).into());
        let past = if over { format!(" OR controller_until <= {now}") } else { String::new() };
        // Whoever has it locked is about to say that it controls, and may take longer than others can wait for.
        if over && !self.controls {
            let skip = self.db.dialect.skip_locked();
            let free = self.names.sql(&format!("SELECT 1 FROM :meta WHERE controller = $1{past} {skip}"));
            if self.db.maybe_one(&free, &[(self.epoch as i64).into()])?.is_none() {
                return Ok(false);
            }
        }
        let sql = self.names.sql(&format!(
            "UPDATE :meta SET controller = $1, controller_until = {now} + $2 WHERE controller = $1{past}"
        ));
        self.controls = self.db.execute(&sql, &[own, lease.into()])? > 0;
        Ok(self.controls)
    }

    /// The last that this opening does: another server may control at once, and nobody has to wait for its end. It
    /// stays listed where jobs of it go on elsewhere.
    pub(super) fn strike_off(&mut self) -> Result<(), StoreError> {
        let own = [(self.epoch as i64).into()];
        self.db.begin()?;
        let free = self.names.sql("UPDATE :meta SET controller = 0, controller_until = 0 WHERE controller = $1");
        self.db.execute(&free, &own)?;
        let gone = self
            .names
            .sql("DELETE FROM :servers WHERE epoch = $1 AND NOT EXISTS (SELECT 1 FROM :jobs WHERE :holder = $1)");
        self.db.execute(&gone, &own)?;
        self.db.batch(&["COMMIT"])
    }

    /// Whether other servers are alive.
    pub(super) fn others_live(&mut self) -> Result<bool, StoreError> {
        let sql = self.names.sql("SELECT 1 FROM :servers WHERE epoch <> $1 LIMIT 1");
        Ok(self.db.maybe_one(&sql, &[(self.epoch as i64).into()])?.is_some())
    }

    /// Whether jobs of this server are on their way elsewhere: only it can ask whether they have arrived.
    pub(super) fn sends_jobs(&mut self, server: &str) -> Result<bool, StoreError> {
        let sql = self.names.sql("SELECT note FROM :notes WHERE server = $1 AND note >= $2 ORDER BY note LIMIT 1");
        let first = self.db.maybe_one(&sql, &[server.into(), MOVING.into()])?;
        Ok(first.map(|mut row| row.text()).transpose()?.is_some_and(|note| note.starts_with(MOVING)))
    }

    /// Strikes the dead off the list and tells which openings they were: earlier ones of this server, and others'.
    /// A lease is over at the time it names, not after it: SQLite's clock has milliseconds, in which much can happen.
    pub(super) fn buried(&mut self, lock: &str) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
        let now = if sabotage::on(Sabotage::LeaseIgnored) { "lease_until + 1" } else { self.db.dialect.now() };
        let sql = self.names.sql(&format!(
            "SELECT epoch, server FROM :servers WHERE epoch <> $1 AND (server = $2 OR lease_until <= {now}) {lock}"
        ));
        let params = [(self.epoch as i64).into(), self.options.server.as_str().into()];
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for mut row in self.db.query(&sql, &params)? {
            let epoch = row.int()?;
            let server = row.text()?;
            let ours = server == self.options.server;
            if !ours && self.sends_jobs(&server)? {
                continue;
            }
            if ours { &mut own } else { &mut others }.push(epoch as u64);
            self.written = true;
            self.db.execute(&self.names.sql("DELETE FROM :servers WHERE epoch = $1"), &[epoch.into()])?;
        }
        Ok((own, others))
    }
}
