//! Databases for the benches: made anew in the servers of the tests, filled as an application fills them, and gone with
//! whoever made them. What a client does here knows nothing of us.

use super::Outcome;
use futures_util::SinkExt;
use std::io::Cursor;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio_postgres::NoTls;
use windlass::store::place::JobsTable;
use windlass::store::sql::Keep;

/// Where databases can be made.
pub(super) enum Place {
    Postgres(String),
    Mariadb(String),
    /// A file, which is one.
    Sqlite(String),
}

/// A database that goes when nobody needs it any more.
pub(super) struct Database<'a> {
    place: &'a Place,
    name: String,
}

impl Place {
    pub(super) fn of(url: &str) -> Place {
        if url.starts_with("postgres") { Place::Postgres(url.to_owned()) } else { Place::Mariadb(url.to_owned()) }
    }

    pub(super) fn make(&self) -> Outcome<Database<'_>> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let name = format!("bench_{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let database = Database { place: self, name };
        database.administer(&format!("CREATE DATABASE {}", database.name))?;
        Ok(database)
    }
}

impl Database<'_> {
    pub(super) fn url(&self) -> String {
        let (Place::Postgres(base) | Place::Mariadb(base)) = self.place else {
            let Place::Sqlite(url) = self.place else { return String::new() };
            return url.clone();
        };
        format!("{}/{}", base.rsplit_once('/').map_or(base.as_str(), |(server, _)| server), self.name)
    }

    pub(super) fn table(&self, keep: Keep) -> Outcome<JobsTable> {
        Ok(JobsTable { keep, ..JobsTable::new(self.url().parse()?) })
    }

    fn administer(&self, statement: &str) -> Outcome<()> {
        match self.place {
            Place::Postgres(base) => {
                client(base, |client, runtime| Ok(runtime.block_on(client.batch_execute(statement))?))
            }
            Place::Mariadb(base) => mariadb(base, statement),
            Place::Sqlite(_) => Ok(()),
        }
    }

    /// Rows as an application inserts them: nothing but queue, data and status.
    pub(super) fn fill(&self, count: u64) -> Outcome<()> {
        let rows = match self.place {
            Place::Postgres(_) => {
                return self.run(&format!(
                    "INSERT INTO jobs (name, data, status) SELECT 'q', repeat('x', 100), 'pending' \
                     FROM generate_series(1, {count})"
                ));
            }
            Place::Mariadb(_) => format!("FROM seq_1_to_{count}"),
            Place::Sqlite(url) => {
                let db = rusqlite::Connection::open(url.trim_start_matches("sqlite:"))?;
                db.execute_batch(&format!(
                    "INSERT INTO jobs (name, data, status) WITH RECURSIVE n(i) AS \
                     (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
                     SELECT 'q', hex(zeroblob(50)), 'pending' FROM n"
                ))?;
                return Ok(());
            }
        };
        mariadb(
            &self.url(),
            &format!("INSERT INTO jobs (name, data, status) SELECT 'q', repeat('x', 100), 'pending' {rows}"),
        )
    }

    /// A statement of somebody who knows nothing of us, to PostgreSQL.
    pub(super) fn run(&self, statement: &str) -> Outcome<()> {
        client(&self.url(), |client, runtime| Ok(runtime.block_on(client.batch_execute(statement))?))
    }

    /// How many jobs wait, in PostgreSQL.
    pub(super) fn waiting(&self) -> Outcome<u64> {
        let sql = "SELECT count(*) FROM jobs WHERE status = 'pending' AND state = 1";
        client(&self.url(), |client, runtime| Ok(runtime.block_on(client.query_one(sql, &[]))?.get::<_, i64>(0) as u64))
    }

    /// Rows a second that PostgreSQL takes in as COPY: those of jobs of ours, in pieces of a transaction each.
    pub(super) fn copy(&self, count: u64, piece: u64) -> Outcome<f64> {
        self.table(Keep::Rows)?.options("bench").apply()?;
        let statement = "COPY jobs (name, queue_no, priority, state, job_origin, job_offset, data, status, \
             locked_queue_id, attempts, lane_kind, created_at, updated_at, admitted) FROM STDIN";
        let (data, time) = ("x".repeat(95), "2026-11-17T12:00:00Z");
        let line = |n: u64| format!("q.0\t1\t0\t1\t7\t{n}\t{data}\tpending\t\t0\t0\t{time}\t{time}\t1\n");
        let pieces: Vec<String> = (0..count)
            .step_by(piece as usize)
            .map(|from| (from..count.min(from + piece)).map(line).collect::<String>())
            .collect();
        client(&self.url(), |client, runtime| {
            runtime.block_on(async {
                let begun = Instant::now();
                for piece in pieces {
                    let mut rows = pin!(client.copy_in(statement).await?);
                    rows.send(Cursor::new(piece)).await?;
                    rows.finish().await?;
                }
                Ok(count as f64 / begun.elapsed().as_secs_f64())
            })
        })
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        let force = if matches!(self.place, Place::Postgres(_)) { " WITH (FORCE)" } else { "" };
        // It is in a server that is about to be stopped, and its data removed.
        let _ = self.administer(&format!("DROP DATABASE {}{force}", self.name));
    }
}

/// Does something with a connection of a client that knows nothing of us.
pub(super) fn client<T>(
    url: &str,
    act: impl FnOnce(&mut tokio_postgres::Client, &tokio::runtime::Runtime) -> Outcome<T>,
) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
    runtime.spawn(connection);
    act(&mut client, &runtime)
}

fn mariadb(url: &str, statement: &str) -> Outcome<()> {
    let rest = url.trim_start_matches("mysql://");
    let parts = rest.split_once('@').and_then(|(user, rest)| {
        let ((user, password), (server, database)) = (user.split_once(':')?, rest.split_once('/')?);
        let (host, port) = server.split_once(':')?;
        Some((user, password, host, port, database))
    });
    let (user, password, host, port, database) = parts.ok_or("not the address of a MariaDB of the tests")?;
    let mut command = std::process::Command::new("mariadb");
    command.args([
        "--no-defaults",
        "-h",
        host,
        "-P",
        port,
        "-u",
        user,
        &format!("-p{password}"),
        database,
        "-e",
        statement,
    ]);
    let output = command.output()?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned().into()) }
}
