//! SEVERAL: three real servers on one table of a real database, while servers are stopped, killed, frozen past their
//! lease and cut off, and the database is restarted, crashes and is failed over to a synchronous standby.
//!
//! The witnesses are outside of the program: jobs append their number to a file, and triggers in the database note
//! every row that is written as completed, and every one that is taken away from whoever ran it. No row is lost, none
//! is settled twice, none runs more often than what the disturbed servers had in flight allows, and a server that was
//! taken for dead changes nothing: it ends, and says so.

use crate::chance::size;
use crate::database::{self, Database};
use crate::databases::statement;
use crate::door::Door;
use crate::random::Random;
use crate::rig::{Bell, Rig, Server, is_ready, lines_of};
use rustix::process::{PidfdFlags, Signal, pidfd_open};
use std::fmt::Write as _;
use std::net::UdpSocket;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A database that recovers, and a standby that must have caught up before anything is committed, take their time where
/// all else goes on beside them.
const PATIENCE: Duration = Duration::from_secs(300);
const SERVERS: usize = 3;
const SLOTS: u64 = 2;
const LEASE: &str = "9s";
/// Rows between two faults, in the long form; the short one has every fault once.
const ROWS_A_FAULT: u64 = 10_000;
/// The end of what a server says that finds itself taken for dead.
const TAKEN_FOR_DEAD: &str = "for dead and has its jobs";
const COMPLETED: &str = "SELECT count(*) FROM jobs WHERE status = 'completed'";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// TERM to a server.
    Stop,
    /// `kill -9`, and it is started again at once, or only after others have taken over from it.
    Kill,
    KillForLong,
    /// SIGSTOP until others have taken over.
    Freeze,
    /// No way to the database for a moment, or until others have taken over.
    Cut,
    CutForLong,
    /// The database is restarted in good order, or without any.
    Restart,
    Crash,
    /// The primary is killed, and its synchronous standby takes its place.
    FailOver,
}

const FAULTS: [Fault; 9] = [
    Fault::Stop,
    Fault::Kill,
    Fault::Freeze,
    Fault::Restart,
    Fault::Cut,
    Fault::FailOver,
    Fault::KillForLong,
    Fault::Crash,
    Fault::CutForLong,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    PostgreSql,
    MariaDb,
}

/// A server, its data directory, its own way to the database, and how it is called there.
struct Member {
    rig: Rig,
    door: Door,
    udp: String,
    server: Option<Server>,
    lock: String,
}

struct Several {
    kind: Kind,
    place: tempfile::TempDir,
    primary: Database,
    standby: Option<Database>,
    /// Databases that were made.
    made: usize,
    members: Vec<Member>,
    random: Random,
    counts: [usize; FAULTS.len()],
    /// What the faults may have repeated.
    bound: u64,
    /// Servers that were taken for dead and found out.
    refused: usize,
}

#[test]
fn three_servers_lose_no_row_and_settle_none_twice_on_postgresql() {
    prove(Kind::PostgreSql);
}

#[test]
fn three_servers_lose_no_row_and_settle_none_twice_on_mariadb() {
    prove(Kind::MariaDb);
}

fn prove(kind: Kind) {
    // Six servers and two databases at once would be taken for dead again and again, and show less.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (rows, begun) = (size("WINDLASS_SEVERAL_ROWS", 2_700), Instant::now());
    let witness = Rig::bare();
    let (started, mut bell) = (witness.path("started"), witness.bell("bell"));
    std::fs::File::create(&started).unwrap();
    let script = format!(
        "exec 4>>{}; while IFS= read -r d; do echo \"$d\" >&4; case $d in *!) echo > {};; esac; echo ok; done",
        started.display(),
        bell.path
    );
    let mut several = Several::start(kind, &script);
    let rounds = (rows / ROWS_A_FAULT / FAULTS.len() as u64).max(1);
    let faults: Vec<Fault> = (0..rounds).flat_map(|round| several.round(round)).collect();
    let mut inserted = 0;
    for (n, fault) in faults.iter().enumerate() {
        let upto = rows * (n as u64 + 1) / faults.len() as u64;
        while is_ready(bell.file.get_ref(), Duration::ZERO) {
            bell.next();
        }
        several.insert(inserted + 1, upto);
        inserted = upto;
        // In the middle of the work.
        several.until_it_rings(&mut bell);
        several.strike(*fault, &mut bell);
    }
    several.until(COMPLETED, &rows.to_string());
    several.judge(rows, &lines_of(&started), begun);
}

impl Several {
    fn start(kind: Kind, script: &str) -> Several {
        let place = tempfile::tempdir().unwrap();
        let name = format!("several-{kind:?}");
        let primary = match kind {
            Kind::PostgreSql => database::start_postgres(place.path(), &name),
            Kind::MariaDb => database::start_mariadb(place.path(), &name),
        };
        let primary = primary.unwrap();
        let random = Random::new(size("WINDLASS_SEVERAL_SEED", 1));
        let (members, counts) = (Vec::new(), [0; FAULTS.len()]);
        let mut several =
            Several { kind, place, primary, standby: None, made: 1, members, random, counts, bound: 0, refused: 0 };
        Rig::bare().call(&["attach", &several.primary.url, "--apply"]).fine();
        several.set_witness();
        several.follow();
        for n in 0..SERVERS {
            let (rig, door) = (Rig::bare(), Door::to(address(&several.primary)));
            let url = several.primary.url.replace(address(&several.primary), &door.address);
            let udp = format!("127.0.0.1:{}", crate::ports::free_port());
            let config = format!(
                "[store]\nurl = {url:?}\nlease = {LEASE:?}\n[nudge]\nudp = {udp:?}\n[limits]\nslots = {SLOTS}\n\
                 [queue.q]\nworker = [\"sh\", \"-c\", {script:?}]\nslots = {SLOTS}\nattempts = 0\n"
            );
            std::fs::create_dir_all(rig.dir()).unwrap();
            std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
            several.members.push(Member { rig, door, udp, server: None, lock: String::new() });
            several.serve(n);
        }
        several
    }

    /// What the database itself notes of every row that is completed, or taken away from whoever runs it.
    fn set_witness(&self) {
        let tables = ["CREATE TABLE settled (job bigint)", "CREATE TABLE taken (job bigint, lock_text varchar(255))"];
        let triggers: &[&str] = match self.kind {
            Kind::PostgreSql => &[
                "CREATE FUNCTION settled() RETURNS trigger LANGUAGE plpgsql AS \
                 'BEGIN INSERT INTO settled VALUES (NEW.id); RETURN NULL; END'",
                "CREATE TRIGGER settled AFTER UPDATE ON jobs FOR EACH ROW WHEN (NEW.status = 'completed') \
                 EXECUTE FUNCTION settled()",
                "CREATE FUNCTION taken() RETURNS trigger LANGUAGE plpgsql AS \
                 'BEGIN INSERT INTO taken VALUES (NEW.id, OLD.locked_queue_id); RETURN NULL; END'",
                "CREATE TRIGGER taken AFTER UPDATE ON jobs FOR EACH ROW \
                 WHEN (OLD.status = 'processing' AND NEW.status <> 'completed') EXECUTE FUNCTION taken()",
            ],
            Kind::MariaDb => &[
                "CREATE TRIGGER settled AFTER UPDATE ON jobs FOR EACH ROW \
                 INSERT INTO settled SELECT NEW.id FROM DUAL WHERE NEW.status = 'completed'",
                "CREATE TRIGGER taken AFTER UPDATE ON jobs FOR EACH ROW INSERT INTO taken \
                 SELECT NEW.id, OLD.locked_queue_id FROM DUAL \
                 WHERE OLD.status = 'processing' AND NEW.status <> 'completed'",
            ],
        };
        tables.iter().chain(triggers).for_each(|sql| drop(self.sql(sql)));
    }

    /// Gives the primary a standby whose answer every commit waits for.
    fn follow(&mut self) {
        if self.kind == Kind::PostgreSql {
            self.made += 1;
            let name = format!("several-{}", self.made);
            self.standby = Some(database::start_standby(&self.primary, self.place.path(), &name).unwrap());
            self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
            self.sql("SELECT pg_reload_conf()");
            self.until("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1");
        }
    }

    /// The faults of one round, each once and in any order but for the first; a standby costs a copy of everything.
    fn round(&mut self, round: u64) -> Vec<Fault> {
        let fails_over = self.kind == Kind::PostgreSql && round.is_multiple_of(4);
        let mut faults: Vec<Fault> = FAULTS.into_iter().filter(|f| fails_over || *f != Fault::FailOver).collect();
        for last in (1..faults.len()).rev().filter(|_| round > 0) {
            faults.swap(last, self.random.below(last as u64 + 1) as usize);
        }
        faults
    }

    fn sql(&self, sql: &str) -> String {
        statement(&self.primary.url, sql)
    }

    fn until_it_rings(&mut self, bell: &mut Bell) {
        let begun = Instant::now();
        while !is_ready(bell.file.get_ref(), Duration::from_millis(200)) {
            assert!(begun.elapsed() < PATIENCE, "waited in vain for a job that rings: {}", self.state());
            self.mend();
        }
        bell.next();
    }

    /// How things stand, for whoever reads that something was waited for in vain.
    fn state(&self) -> String {
        let rows = self.sql("SELECT status, locked_queue_id, count(*) FROM jobs GROUP BY status, locked_queue_id");
        let servers = self.sql("SELECT * FROM windlass_servers");
        let said = |member: &Member| member.rig.call(&["status"]).stdout;
        let said: Vec<u8> = self.members.iter().filter(|member| member.server.is_some()).flat_map(said).collect();
        let at_work = match self.kind {
            Kind::PostgreSql => {
                "SELECT clock_timestamp(), (SELECT count(*) FROM pg_stat_replication), state, wait_event, \
                 left(query, 60) FROM pg_stat_activity WHERE state <> 'idle'"
            }
            Kind::MariaDb => "SELECT now(), time, state, left(info, 60) FROM information_schema.processlist",
        };
        format!("\n{rows}\n{servers}\n{}\n{}", self.sql(at_work), String::from_utf8_lossy(&said))
    }

    /// Asks until the answer is this, and has everybody look.
    fn until(&mut self, sql: &str, expected: &str) {
        let (mut begun, mut before) = (Instant::now(), String::new());
        loop {
            let said = self.sql(sql);
            if said == expected {
                return;
            }
            if said != before {
                (begun, before) = (Instant::now(), said);
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{sql}: waited in vain for {expected}, it stays at {before}: {}",
                self.state()
            );
            self.mend();
            let nudge = UdpSocket::bind("127.0.0.1:0").unwrap();
            self.members.iter().for_each(|member| drop(nudge.send_to(b"look", &member.udp)));
        }
    }

    /// As an application does it; the job in the middle rings.
    fn insert(&self, first: u64, last: u64) {
        let middle = (first + last) / 2;
        let rows = match self.kind {
            Kind::PostgreSql => format!(
                "SELECT 'q', n || CASE WHEN n = {middle} THEN '!' ELSE '' END, 'pending' \
                 FROM generate_series({first}, {last}) AS n"
            ),
            Kind::MariaDb => {
                format!("SELECT 'q', CONCAT(seq, IF(seq = {middle}, '!', '')), 'pending' FROM seq_{first}_to_{last}")
            }
        };
        self.sql(&format!("INSERT INTO jobs (name, data, status) {rows}"));
        let nudge = UdpSocket::bind("127.0.0.1:0").unwrap();
        self.members.iter().for_each(|member| drop(nudge.send_to(b"look", &member.udp)));
    }

    fn serve(&mut self, n: usize) {
        self.members[n].server = Some(self.members[n].rig.serve_again());
        // It is the last that came.
        self.members[n].lock = self.sql("SELECT lock_text FROM windlass_servers ORDER BY epoch DESC LIMIT 1");
    }

    /// Adds what this server, or all of them, have in flight to what may be repeated.
    fn may_repeat(&mut self, n: Option<usize>) {
        let of = n.map(|n| format!(" AND locked_queue_id = '{}'", self.members[n].lock)).unwrap_or_default();
        self.bound_by(&format!("SELECT count(*) FROM jobs WHERE status = 'processing'{of}"));
    }

    fn bound_by(&mut self, sql: &str) {
        self.bound += self.sql(sql).parse::<u64>().unwrap();
    }

    fn until_taken_over(&mut self, n: usize) {
        let lock = self.members[n].lock.clone();
        self.until(&format!("SELECT count(*) FROM windlass_servers WHERE lock_text = '{lock}'"), "0");
    }

    /// A server that was taken for dead ends, and says why.
    fn ends_as_dead(&mut self, n: usize) {
        if let Some(server) = self.members[n].server.take() {
            let told = server.process.end();
            assert!(told.code != Some(0) && told.stderr.contains(TAKEN_FOR_DEAD), "{told:?}");
            self.refused += 1;
        }
        self.serve(n);
    }

    /// Starts those again that others took for dead because the database, or this machine, was slow.
    fn mend(&mut self) {
        for n in 0..self.members.len() {
            let Some(server) = &self.members[n].server else { continue };
            let end = pidfd_open(server.process.pid(), PidfdFlags::empty()).unwrap();
            if is_ready(&end, Duration::ZERO) {
                self.bound_by_what_was_taken(n);
                self.ends_as_dead(n);
            }
        }
    }

    /// Ends one in order. It may have been taken for dead while the last rows were done, and find out now.
    fn stop(&mut self, n: usize) {
        let server = self.members[n].server.take().unwrap();
        server.process.signal(Signal::TERM);
        let told = server.process.end();
        if told.code != Some(0) {
            assert!(told.stderr.contains(TAKEN_FOR_DEAD), "{told:?}");
            self.refused += 1;
            self.bound_by_what_was_taken(n);
        }
    }

    /// What one had that was taken for dead was counted by nobody but the database, when others took it.
    fn bound_by_what_was_taken(&mut self, n: usize) {
        self.bound_by(&format!("SELECT count(*) FROM taken WHERE lock_text = '{}'", self.members[n].lock));
    }

    fn strike(&mut self, fault: Fault, bell: &mut Bell) {
        let n = self.random.below(SERVERS as u64) as usize;
        self.mend();
        match fault {
            Fault::Stop => {
                self.stop(n);
                self.serve(n);
            }
            Fault::Kill | Fault::KillForLong => {
                self.members[n].server.take().unwrap().kill();
                self.may_repeat(Some(n));
                if fault == Fault::KillForLong {
                    self.until_taken_over(n);
                }
                self.serve(n);
            }
            Fault::Freeze => self.freeze(n),
            Fault::Cut | Fault::CutForLong => {
                self.members[n].door.close();
                self.may_repeat(Some(n));
                if fault == Fault::CutForLong {
                    self.until_cut_off_is_taken_over(n);
                } else {
                    // For a moment that may be nothing.
                    is_ready(bell.file.get_ref(), Duration::from_millis(self.random.below(1500)));
                    self.members[n].door.open();
                }
            }
            Fault::Restart | Fault::Crash => {
                let signal = match (fault, self.kind) {
                    (Fault::Restart, Kind::PostgreSql) => Signal::INT,
                    (Fault::Restart, Kind::MariaDb) => Signal::TERM,
                    (_, Kind::PostgreSql) => Signal::QUIT,
                    (_, Kind::MariaDb) => Signal::KILL,
                };
                self.primary.end(signal).unwrap();
                self.members.iter().for_each(|member| member.door.close());
                self.primary.start_again().unwrap();
                self.let_in_again();
            }
            Fault::FailOver => self.fail_over(),
        }
        self.counts[FAULTS.iter().position(|known| *known == fault).unwrap()] += 1;
    }

    /// What it does when it wakes up changes nothing any more.
    fn freeze(&mut self, n: usize) {
        // Out of the others' hands: a frozen process has not ended.
        let server = self.members[n].server.take().unwrap();
        server.process.freeze();
        self.may_repeat(Some(n));
        self.until_taken_over(n);
        server.process.signal(Signal::CONT);
        self.members[n].server = Some(server);
        self.ends_as_dead(n);
    }

    fn until_cut_off_is_taken_over(&mut self, n: usize) {
        self.until_taken_over(n);
        self.members[n].door.open();
        self.ends_as_dead(n);
    }

    fn fail_over(&mut self) {
        // What a crash before this left on one disk alone is on both again.
        self.until("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1");
        self.primary.end(Signal::KILL).unwrap();
        self.members.iter().for_each(|member| member.door.close());
        self.primary = self.standby.take().unwrap();
        assert_eq!(self.sql("SELECT pg_promote()"), "t");
        self.let_in_again();
        self.follow();
    }

    /// Before anybody is let in, the database tells what all of them had when it went.
    fn let_in_again(&mut self) {
        self.may_repeat(None);
        for member in &self.members {
            member.door.lead_to(address(&self.primary));
            member.door.open();
        }
    }

    fn judge(mut self, rows: u64, lines: &[String], begun: Instant) {
        self.mend();
        let told = self.members[0].rig.call(&["status", "--json"]).json()["totals"].clone();
        (0..self.members.len()).for_each(|n| self.stop(n));
        let mut starts = vec![0_u64; rows as usize];
        let mut altered = Vec::new();
        for line in lines {
            let number = line.trim_end_matches('!').parse::<u64>().ok().filter(|n| (1..=rows).contains(n));
            match number {
                Some(n) => starts[n as usize - 1] += 1,
                None => altered.push(line),
            }
        }
        let lost = starts.iter().filter(|starts| **starts == 0).count();
        let repeats: u64 = starts.iter().map(|starts| starts.saturating_sub(1)).sum();
        let twice = self.sql("SELECT count(*) FROM (SELECT job FROM settled GROUP BY job HAVING count(*) > 1) AS t");
        let settled = self.sql("SELECT count(DISTINCT job) FROM settled");
        let faults = FAULTS.iter().zip(self.counts).fold(String::new(), |mut text, (fault, count)| {
            let _ = write!(text, "{}{fault:?} {count}", if text.is_empty() { "" } else { ", " });
            text
        });
        println!(
            "several: {:?}: {SERVERS} servers, rows {rows} lost {lost} altered {} settled twice {twice} \
             repeats {repeats} (bound {}), faults ({faults}), late servers refused {}, {:.0} s",
            self.kind,
            altered.len(),
            self.bound,
            self.refused,
            begun.elapsed().as_secs_f64()
        );
        assert!(altered.is_empty() && lost == 0, "{lost} never ran, and nobody pushed {altered:?}");
        assert_eq!((twice.as_str(), settled), ("0", rows.to_string()));
        assert_eq!(self.sql("SELECT count(*) FROM jobs"), rows.to_string());
        assert_eq!(told["succeeded"].as_u64(), Some(rows), "each is counted once: {told}");
        assert!(repeats <= self.bound, "{repeats} repeats, at most {} were expected", self.bound);
        assert!(self.refused >= self.counts[2] + self.counts[8], "who was taken for dead must find out");
    }
}

/// Host and port.
fn address(database: &Database) -> &str {
    database.url.split('@').nth(1).and_then(|rest| rest.split('/').next()).unwrap()
}
