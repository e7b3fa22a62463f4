//! A pooler between the servers and PostgreSQL that gives a connection to whoever has a transaction, and to another
//! with the next one: nothing that a session remembers is there.

use crate::rig::{Process, Rig, lines_of};
use crate::table::{Kind, Table};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A `pgbouncer` of this test's own, which ends with it.
struct Pooler {
    _process: Process,
    _place: tempfile::TempDir,
    address: String,
}

impl Pooler {
    /// In front of the server at this address, with two connections to it.
    fn to(server: &str) -> Pooler {
        let (user, at) = server.strip_prefix("postgres://").unwrap().split_once('@').unwrap();
        let (user, password) = user.split_once(':').unwrap();
        let (host, port) = at.split_once('/').unwrap().0.split_once(':').unwrap();
        let own = std::net::SocketAddr::from(([127, 0, 0, 1], crate::ports::free_port()));
        let place = tempfile::tempdir().unwrap();
        // It does not run as root, and has to read what root wrote.
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = place.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={host} port={port} user={user} password={password}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n",
            own.port()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        }
        command.args(["--pdeathsig", "KILL", "--", "pgbouncer"]).arg(&config);
        let mut process = Process::start(&mut command);
        process.until("process up");
        Pooler { _process: process, _place: place, address: own.to_string() }
    }
}

#[test]
fn a_pooler_between_transactions_costs_nothing_but_the_words_of_the_database() {
    let table = Table::ready(Kind::PostgreSql);
    let url = table.url();
    let pooler = Pooler::to(&url);
    let server = url.split('@').nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let through = url.replace(server, &pooler.address);
    let done = table.rig.path("done");
    let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"echo $1 >> {}\", \"sh\", \"{{}}\"]\n", done.display());
    let mut first = table.rig.serve(&table.config_of(&through, "30s", &queue));
    let rig = Rig::bare();
    let second = rig.serve(&format!("[store]\nurl = {through:?}\n{queue}"));
    first.process.until("its words do not come through");
    let rows: Vec<String> = (0..200).map(|n| format!("('q', 'row{n}', 'pending')")).collect();
    table.sql(&format!("INSERT INTO jobs (name, data, status) VALUES {}", rows.join(", ")));
    // More than enough for a COPY, which has to be prepared.
    let lines: String = (0..200).map(|n| format!("line{n}\n")).collect();
    table.rig.feed(&["push", "q", "-"], lines).fine();
    table.nudge();
    table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "400");
    let ran = lines_of(&done);
    assert_eq!((ran.len(), ran.into_iter().collect::<BTreeSet<_>>().len()), (400, 400));
    assert_eq!(table.rig.call(&["servers", "-o", "jsonl"]).fine().lines().count(), 2);
    // Nothing of ours is left in the sessions that others get next.
    table.insert("q", "after all");
    table.nudge();
    table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "401");
    first.stop();
    second.stop();
}
