//! A database of a test's own, and the foreign client that knows nothing of Windlass: `psql`, `mariadb` or `sqlite3`.

use crate::door::Door;
use crate::rig::{PATIENCE, Rig, Server};
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    PostgreSql,
    MariaDb,
    Sqlite,
}

pub(crate) const ALL: [Kind; 3] = [Kind::PostgreSql, Kind::MariaDb, Kind::Sqlite];

/// A database, a data directory, and an address for nudges.
pub(crate) struct Table {
    pub(crate) kind: Kind,
    pub(crate) rig: Rig,
    /// Where the database is, without its name; a file for SQLite.
    base: String,
    name: String,
    pub(crate) udp: String,
}

impl Table {
    /// An empty database.
    pub(crate) fn empty(kind: Kind) -> Table {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("windlass_{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let rig = Rig::bare();
        let base = match kind {
            Kind::PostgreSql => server("WINDLASS_TEST_POSTGRES"),
            Kind::MariaDb => server("WINDLASS_TEST_MARIADB"),
            Kind::Sqlite => rig.path("app.db").display().to_string(),
        };
        let udp = format!("127.0.0.1:{}", crate::ports::free_port());
        let table = Table { kind, rig, base, name, udp };
        if kind != Kind::Sqlite {
            table.administer(&format!("CREATE DATABASE {}", table.name));
        }
        table
    }

    /// One that is ready for jobs.
    pub(crate) fn ready(kind: Kind) -> Table {
        let table = Table::empty(kind);
        table.rig.call(&["attach", &table.url(), "--apply"]).fine();
        table
    }

    pub(crate) fn url(&self) -> String {
        match self.kind {
            Kind::Sqlite => format!("sqlite:{}", self.base),
            Kind::PostgreSql | Kind::MariaDb => {
                let (server, _) = self.base.rsplit_once('/').unwrap();
                format!("{server}/{}", self.name)
            }
        }
    }

    /// A door in front of the database, and the table's address through it.
    pub(crate) fn door(&self) -> (Door, String) {
        let url = self.url();
        let server = url.split('@').nth(1).and_then(|rest| rest.split('/').next()).unwrap();
        let door = Door::to(server);
        let through = url.replace(server, &door.address);
        (door, through)
    }

    /// The config of a server on this table, with more behind it.
    pub(crate) fn config(&self, more: &str) -> String {
        self.config_of(&self.url(), "30s", more)
    }

    pub(crate) fn config_of(&self, url: &str, lease: &str, more: &str) -> String {
        let udp = &self.udp;
        format!("[store]\nurl = {url:?}\nlease = {lease:?}\n[nudge]\nudp = {udp:?}\n{more}\n")
    }

    pub(crate) fn serve(&self, more: &str) -> Server {
        self.rig.serve(&self.config(more))
    }

    /// What the foreign client says: a line for each row, columns between bars.
    #[track_caller]
    pub(crate) fn sql(&self, statement: &str) -> String {
        self.client(&self.url(), statement)
    }

    /// A statement of whoever runs the database server.
    fn administer(&self, statement: &str) {
        self.client(&self.base, statement);
    }

    /// The foreign client of an address.
    fn command(&self, url: &str) -> Command {
        match self.kind {
            Kind::PostgreSql => {
                let mut psql = Command::new("psql");
                psql.args([url, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
                psql
            }
            Kind::MariaDb => {
                let rest = url.strip_prefix("mysql://").unwrap();
                let (user, rest) = rest.split_once('@').unwrap();
                let (user, password) = user.split_once(':').unwrap();
                let (server, database) = rest.split_once('/').unwrap();
                let (host, port) = server.split_once(':').unwrap();
                let mut mariadb = Command::new("mariadb");
                mariadb.args(["--no-defaults", "-h", host, "-P", port, "-u", user, &format!("-p{password}")]);
                mariadb.args(["-N", "-B", "-n", database]);
                mariadb
            }
            Kind::Sqlite => {
                let mut sqlite = Command::new("sqlite3");
                sqlite.args(["-cmd", ".timeout 60000", &self.base]);
                sqlite
            }
        }
    }

    #[track_caller]
    fn client(&self, url: &str, statement: &str) -> String {
        let mut client = self.command(url);
        match self.kind {
            Kind::PostgreSql => client.args(["-c", statement]),
            Kind::MariaDb => client.args(["-e", statement]),
            Kind::Sqlite => client.arg(statement),
        };
        let output = client.output().unwrap_or_else(|e| panic!("{client:?}: {e}; `cargo xtask test` installs it"));
        assert!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        if self.kind == Kind::MariaDb {
            said.trim_end_matches('\n').replace('\t', "|")
        } else {
            said.trim_end_matches('\n').to_owned()
        }
    }

    /// As an application does it.
    #[track_caller]
    pub(crate) fn insert(&self, queue: &str, data: &str) {
        self.sql(&format!("INSERT INTO jobs (name, data, status) VALUES ('{queue}', '{data}', 'pending')"));
    }

    pub(crate) fn nudge(&self) {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"1", &self.udp).unwrap();
    }

    /// A transaction of another program that has some rows locked and stays open until it is dropped.
    #[track_caller]
    pub(crate) fn locking(&self, condition: &str) -> Locking {
        let mut client = self.command(&self.url());
        let mut child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut says = child.stdin.take().unwrap();
        if self.kind == Kind::MariaDb {
            // Else it would have all that it passes over, and the gaps between.
            says.write_all(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;\n").unwrap();
        }
        says.write_all(format!("BEGIN; SELECT 'locked' FROM jobs WHERE {condition} FOR UPDATE;\n").as_bytes()).unwrap();
        says.flush().unwrap();
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        assert_eq!(told.trim_end(), "locked");
        Locking { child, says: Some(says) }
    }

    /// Asks until the answer is this.
    #[track_caller]
    pub(crate) fn until(&self, statement: &str, expected: &str) {
        let begun = Instant::now();
        loop {
            let said = self.sql(statement);
            if said == expected {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{statement}: waited in vain for {expected:?}, got {said:?}");
        }
    }
}

/// See `Table::locking`.
pub(crate) struct Locking {
    child: Child,
    says: Option<ChildStdin>,
}

impl Drop for Locking {
    fn drop(&mut self) {
        // A client that hears no more ends, and its transaction with it.
        drop(self.says.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let force = if self.kind == Kind::PostgreSql { " WITH (FORCE)" } else { "" };
        if self.kind != Kind::Sqlite && !std::thread::panicking() {
            self.administer(&format!("DROP DATABASE {}{force}", self.name));
        }
    }
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} names no database server: run `cargo xtask test`, or `cargo xtask servers`")
    })
}
