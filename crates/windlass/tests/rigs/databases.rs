//! Where tests find real databases: servers that `cargo xtask test` starts, and files of SQLite.
//!
//! Each `Place` is a database of its own on its server, removed when it is dropped. Without a server a test fails and
//! says how to get one; it never passes by not looking.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use windlass::store::sql::SqlOptions;

/// A database of a test's own.
pub(crate) struct Place {
    url: String,
    /// The server, and the database's name on it.
    server: Option<(String, String)>,
    schema: Option<String>,
    _dir: Option<tempfile::TempDir>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Place {
    pub(crate) fn postgres() -> Place {
        Place::on_server("WINDLASS_TEST_POSTGRES")
    }

    pub(crate) fn mariadb() -> Place {
        Place::on_server("WINDLASS_TEST_MARIADB")
    }

    pub(crate) fn sqlite() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("jobs.db").display());
        Place { url, server: None, schema: None, _dir: Some(dir) }
    }

    fn on_server(variable: &str) -> Place {
        let base = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} does not name a server: run `cargo xtask test`, or `cargo xtask servers` beside this")
        });
        let name = format!("w{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        statement(&base, &format!("CREATE DATABASE {name}"));
        let url = with_database(&base, &name);
        Place { url, server: Some((base, name)), schema: None, _dir: None }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.url.starts_with("mysql")
    }

    pub(crate) fn options(&self, server: &str) -> SqlOptions {
        SqlOptions::new(&self.url, server)
    }

    /// An empty place in this database, or a new one where a database has only itself; the one before it goes.
    pub(crate) fn next_schema(&mut self) -> Option<String> {
        let Some((base, _)) = &self.server else {
            *self = Place::sqlite();
            return None;
        };
        if !base.starts_with("postgres") {
            *self = Place::mariadb();
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        if let Some(old) = self.schema.replace(format!("s{number}")) {
            self.statement(&format!("DROP SCHEMA {old} CASCADE"));
        }
        self.statement(&format!("CREATE SCHEMA s{number}"));
        self.schema.clone()
    }

    /// Every connection to this database but the one that says so is cut.
    pub(crate) fn cut_connections(&self) {
        let Some((base, name)) = &self.server else { panic!("a file has no connections") };
        if base.starts_with("postgres") {
            let others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
            statement(base, &format!("SELECT pg_terminate_backend(pid) {others} AND datname = '{name}'"));
            return;
        }
        let list = format!("SELECT id FROM information_schema.processlist WHERE db = '{name}'");
        for id in statement(base, &list).lines() {
            statement(base, &format!("KILL {id}"));
        }
    }

    /// As another program would: with the database's own client.
    pub(crate) fn statement(&self, sql: &str) -> String {
        statement(&self.url, sql)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((base, name)) = &self.server {
            let force = if base.starts_with("postgres") { " WITH (FORCE)" } else { "" };
            statement(base, &format!("DROP DATABASE {name}{force}"));
        }
    }
}

/// The address of another database on the same server.
fn with_database(base: &str, name: &str) -> String {
    let (front, query) = base.split_once('?').unwrap_or((base, ""));
    let slash = front.rfind('/').unwrap_or(front.len());
    let front = &front[..slash];
    if query.is_empty() { format!("{front}/{name}") } else { format!("{front}/{name}?{query}") }
}

/// Runs one statement with the client that people have, and gives what it printed: a line a row, columns by tabs.
pub(crate) fn statement(url: &str, sql: &str) -> String {
    let mut command = if url.starts_with("postgres") {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--field-separator=\t"]);
        psql.args(["--set=ON_ERROR_STOP=1", url, "--command", sql]);
        psql
    } else if url.starts_with("mysql") {
        let parts = url::Url::parse(url).unwrap();
        let mut client = Command::new("mariadb");
        client.args(["--batch", "--skip-column-names", "--protocol=TCP"]);
        client.arg(format!("--host={}", parts.host_str().unwrap_or("127.0.0.1")));
        client.arg(format!("--port={}", parts.port().unwrap_or(3306)));
        client.arg(format!("--user={}", parts.username()));
        client.args(parts.password().map(|password| format!("--password={password}")));
        client.args(["--execute", sql, parts.path().trim_start_matches('/')]);
        client
    } else {
        let mut sqlite = Command::new("sqlite3");
        sqlite.args(["-batch", "-separator", "\t", "-cmd", ".timeout 10000", url.trim_start_matches("sqlite:"), sql]);
        sqlite
    };
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}
