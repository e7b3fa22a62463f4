//! Jobs that move to a table and from one, also to and from one under names of its own, and whatever dies over it.

use crate::rig::{Process, Rig, is_ready};
use crate::table::{ALL, Kind, Table};
use rustix::process::{PidfdFlags, pidfd_open};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// More than a lot has room for, three times.
const MANY: usize = 20_000;

const WAITING: &str = "SELECT count(*) FROM jobs WHERE status IN ('pending', 'processing')";
const DISTINCT: &str = "SELECT count(*), count(DISTINCT substr(data, 1, 6)) FROM jobs WHERE status = 'pending'";

/// Starts the command and kills it six times: as soon as it serves what it moves to, or once something arrived there.
fn killed_again_and_again(here: &Rig, words: &[&str], arrived: impl Fn() -> String) {
    for round in 0..6 {
        let (addresses, before) = (addresses(&here.dir()), arrived());
        let moving = here.start(words, Stdio::null());
        let serves = || self::addresses(&here.dir()) != addresses;
        until(&moving, || if round % 2 == 0 { serves() } else { arrived() != before });
        moving.kill();
    }
}

/// Where those listen, or listened, who serve a database for as long as a move takes.
fn addresses(dir: &Path) -> BTreeSet<String> {
    let served = std::fs::read_dir(dir.join("moves")).into_iter().flatten().flatten();
    served.filter_map(|each| std::fs::read_to_string(each.path().join("run/address")).ok()).collect()
}

/// Looks until it is so, or the process has ended.
fn until(process: &Process, so: impl Fn() -> bool) {
    let end = pidfd_open(process.pid(), PidfdFlags::empty()).unwrap();
    while !so() && !is_ready(&end, Duration::ZERO) {}
}

#[test]
fn a_move_from_one_database_to_another_takes_what_waits_and_nothing_else() {
    let (from, to, here) = (Table::ready(Kind::PostgreSql), Table::ready(Kind::MariaDb), Rig::new());
    for n in 0..50 {
        from.insert("q", &format!("n{n:02}"));
    }
    from.insert("other", "stays");
    from.sql("INSERT INTO jobs (name, data, status, run_at) VALUES ('q', 'later', 'pending', 4070908800000000)");
    from.sql("INSERT INTO jobs (name, data, status) VALUES ('q', 'done', 'completed')");
    let told = here.call(&["move", "q", "--from", &from.url(), "--to", &to.url()]);
    told.says("moved 51 jobs").fine();
    assert_eq!(from.sql("SELECT data FROM jobs WHERE status IN ('pending', 'processing')"), "stays");
    assert_eq!(to.sql("SELECT count(*), count(DISTINCT data), min(name), max(name) FROM jobs"), "51|51|q|q");
    assert_eq!(to.sql("SELECT status, run_at FROM jobs WHERE data = 'later'"), "pending|4070908800000000");
}

#[test]
fn a_move_calls_the_configured_table_and_its_columns_by_their_names() {
    for kind in ALL {
        let (table, from, there) = (Table::empty(kind), Rig::new(), Rig::new());
        let url = table.url();
        let map = "name=kind,data=payload";
        table.rig.call(&["attach", &url, "--table", "work", "--map", map, "--apply"]).fine();
        std::fs::create_dir_all(table.rig.dir()).unwrap();
        let names = "table = \"work\"\nmap = { name = \"kind\", data = \"payload\" }";
        std::fs::write(table.rig.dir().join("windlass.toml"), format!("[store]\nurl = {url:?}\n{names}\n")).unwrap();
        from.feed(&["push", "q", "-"], "x\ny\n").fine();
        let (from, to) = (from.dir(), there.dir());
        let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
        table.rig.call(&["move", "q", "--from", from, "--to", &url]).says("moved 2 jobs").fine();
        let came = table.sql("SELECT kind, payload FROM work WHERE status = 'pending' ORDER BY payload");
        assert_eq!(came, "q|x\nq|y", "{kind:?}");
        table.rig.call(&["move", "q", "--from", &url, "--to", to]).says("moved 2 jobs").fine();
        assert_eq!(table.sql("SELECT count(*) FROM work WHERE status IN ('pending', 'processing')"), "0");
        assert_eq!(there.call(&["ls", "queue:q", "-o", "ids"]).fine().lines().count(), 2);
    }
}

#[test]
fn a_move_from_one_database_to_another_that_is_killed_again_and_again_ends_with_each_job_once() {
    let (from, to, here) = (Table::ready(Kind::PostgreSql), Table::ready(Kind::MariaDb), Rig::new());
    from.sql(&format!(
        "INSERT INTO jobs (name, data, status) SELECT 'q', lpad(n::text, 6, '0') || repeat('x', 600), 'pending' \
         FROM generate_series(1, {MANY}) n"
    ));
    let (url, target) = (from.url(), to.url());
    let words = ["move", "q", "--from", url.as_str(), "--to", target.as_str()];
    killed_again_and_again(&here, &words, || to.sql("SELECT count(*) FROM jobs"));
    while from.sql(WAITING) != "0" {
        here.call(&words).fine();
    }
    assert_eq!(to.sql(DISTINCT), format!("{MANY}|{MANY}"));
    assert_eq!(to.sql("SELECT count(*) FROM jobs"), MANY.to_string());
}
