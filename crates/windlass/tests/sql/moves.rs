//! Jobs that move to a table and from one, also to and from one under names of its own, and whatever dies over it.

use crate::rig::{Process, Rig, is_ready, lines_of};
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

/// The words that move a queue between two places.
fn words<'a>(from: &'a str, to: &'a str) -> [&'a str; 6] {
    ["move", "q", "--from", from, "--to", to]
}

const STATUSES: &str = "SELECT id, data, status FROM jobs ORDER BY id";

#[test]
fn jobs_that_come_back_to_their_table_are_in_their_rows_again_and_run_once() {
    for kind in ALL {
        let (table, elsewhere, here) = (Table::ready(kind), Rig::new(), Rig::new());
        table.insert("q", "a");
        table.insert("q", "b");
        table.insert("other", "stays");
        table.sql("INSERT INTO jobs (name, data, status, run_at) VALUES ('q', 'later', 'pending', 4070908800000000)");
        let (url, dir) = (table.url(), elsewhere.dir());
        let dir = dir.to_str().unwrap();
        for _ in 0..2 {
            here.call(&words(&url, dir)).says("moved 3 jobs").fine();
            let away = "1|a|completed\n2|b|completed\n3|stays|pending\n4|later|completed";
            assert_eq!(table.sql(STATUSES), away, "{kind:?}");
            here.call(&words(dir, &url)).says("moved 3 jobs").fine();
            let back = "1|a|pending\n2|b|pending\n3|stays|pending\n4|later|pending";
            assert_eq!(table.sql(STATUSES), back, "{kind:?}");
        }
        assert_eq!(table.sql("SELECT run_at FROM jobs WHERE data = 'later'"), "4070908800000000");
        assert_eq!(elsewhere.call(&["ls", "state:scheduled,ready,running", "-o", "ids"]).fine(), "");
        let done = table.rig.path("done");
        let command = format!("echo $1 >> {}", done.display());
        let serving = table.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\", \"sh\", \"{{}}\"]\n"));
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "2");
        // By hand, as any row that has ended.
        table.sql("UPDATE jobs SET status = 'pending', locked_queue_id = '' WHERE id = 1");
        table.nudge();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "2");
        serving.stop();
        assert_eq!(lines_of(&done).iter().filter(|line| *line == "b").count(), 1, "{kind:?}");
    }
}

#[test]
fn a_row_whose_job_is_elsewhere_can_be_tried_again_by_hand() {
    for kind in ALL {
        let (table, elsewhere, here) = (Table::ready(kind), Rig::new(), Rig::new());
        table.insert("q", "a");
        let (url, dir) = (table.url(), elsewhere.dir());
        let dir = dir.to_str().unwrap();
        here.call(&words(&url, dir)).says("moved 1 job").fine();
        table.sql("UPDATE jobs SET status = 'pending', locked_queue_id = '' WHERE id = 1");
        // It waits in its row, and is left as it is there.
        here.call(&words(dir, &url)).says("moved 1 job").fine();
        let serving = table.serve("[queue.q]\nrun = [\"true\"]\n");
        table.until(STATUSES, "1|a|completed");
        serving.stop();
        assert_eq!(elsewhere.call(&["ls", "state:scheduled,ready,running", "-o", "ids"]).fine(), "");
    }
}

#[test]
fn what_has_ended_in_its_table_is_not_run_when_a_copy_of_it_comes_back() {
    for kind in ALL {
        let (table, elsewhere, here) = (Table::ready(kind), Rig::new(), Rig::new());
        table.insert("q", "a");
        let (url, dir, copy) = (table.url(), elsewhere.dir(), elsewhere.path("copy"));
        let (dir, copy) = (dir.to_str().unwrap(), copy.to_str().unwrap());
        here.call(&words(&url, dir)).says("moved 1 job").fine();
        assert!(std::process::Command::new("cp").args(["-a", dir, copy]).status().unwrap().success());
        here.call(&words(dir, &url)).says("moved 1 job").fine();
        let serving = table.serve("[queue.q]\nrun = [\"true\"]\n");
        table.until(STATUSES, "1|a|completed");
        serving.stop();
        here.call(&words(copy, &url)).says("moved 1 job").fine();
        assert_eq!(table.sql("SELECT id, status FROM jobs"), "1|completed", "{kind:?}");
    }
}

#[test]
fn a_move_back_that_is_killed_again_and_again_ends_with_each_job_once_in_its_row() {
    for kind in ALL {
        let (table, elsewhere, here) = (Table::ready(kind), Rig::new(), Rig::new());
        let rows: Vec<String> = (0..9_000).map(|n| format!("('q', '{n:06}{}', 'pending')", "x".repeat(600))).collect();
        for some in rows.chunks(100) {
            table.sql(&format!("INSERT INTO jobs (name, data, status) VALUES {}", some.join(", ")));
        }
        let (url, dir) = (table.url(), elsewhere.dir());
        let dir = dir.to_str().unwrap();
        here.call(&words(&url, dir)).says("moved 9,000 jobs").fine();
        killed_again_and_again(&here, &words(dir, &url), || table.sql(WAITING));
        let left = || elsewhere.call(&["ls", "state:ready,running", "-o", "ids"]).fine().to_owned();
        while !left().is_empty() {
            here.call(&words(dir, &url)).fine();
        }
        assert_eq!(table.sql(DISTINCT), "9000|9000", "{kind:?}");
        assert_eq!(table.sql("SELECT count(*) FROM jobs"), "9000", "{kind:?}");
    }
}

#[test]
fn what_the_table_does_not_take_of_a_move_stays_where_it_is_and_is_said() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let (table, elsewhere, here) = (Table::ready(kind), Rig::new(), Rig::new());
        table.sql("ALTER TABLE jobs ADD CONSTRAINT sober CHECK (name <> 'q')");
        elsewhere.feed(&["push", "q", "-"], "x\ny\n").fine();
        let (url, dir) = (table.url(), elsewhere.dir());
        let dir = dir.to_str().unwrap();
        let refused = here.call(&words(dir, &url));
        assert_ne!(refused.code, Some(0), "{refused:?}");
        refused.says("the database there refuses it").says("which is back");
        assert_eq!(elsewhere.call(&["ls", "state:ready", "-o", "ids"]).fine().lines().count(), 2);
        table.sql("ALTER TABLE jobs DROP CONSTRAINT sober");
        here.call(&words(dir, &url)).says("moved 2 jobs").fine();
    }
}

/// A store of any kind: a data directory of its own, or a table.
enum Stored {
    Embedded(Rig),
    InTable(Table),
}

impl Stored {
    fn one_of_each() -> Vec<Stored> {
        let tables = ALL.into_iter().map(|kind| Stored::InTable(Table::ready(kind)));
        tables.chain([Stored::Embedded(Rig::new())]).collect()
    }

    fn address(&self) -> String {
        match self {
            Stored::Embedded(rig) => rig.dir().to_str().unwrap().to_owned(),
            Stored::InTable(table) => table.url(),
        }
    }

    fn take(&self, data: &str) {
        match self {
            Stored::Embedded(rig) => drop(rig.call(&["push", "q", data]).fine()),
            Stored::InTable(table) => table.insert("q", data),
        }
    }

    /// The data of what waits, in order.
    fn waiting(&self) -> Vec<String> {
        let said = match self {
            Stored::Embedded(rig) => {
                let jobs = rig.call(&["ls", "state:ready", "--json"]).json();
                let data = jobs.as_array().unwrap().iter().map(|job| job["data"].as_str().unwrap().to_owned());
                data.collect::<Vec<_>>().join("\n")
            }
            Stored::InTable(table) => table.sql("SELECT data FROM jobs WHERE status = 'pending'"),
        };
        let mut waiting: Vec<String> = said.lines().map(str::to_owned).collect();
        waiting.sort();
        waiting
    }
}

#[test]
fn jobs_move_between_any_two_stores() {
    let (ones, others, here) = (Stored::one_of_each(), Stored::one_of_each(), Rig::new());
    let mut arrived = vec![Vec::new(); others.len()];
    for (at, from) in ones.iter().enumerate() {
        for (to_at, to) in others.iter().enumerate() {
            let data = [format!("{at}{to_at} one"), format!("{at}{to_at} two")];
            data.iter().for_each(|data| from.take(data));
            arrived[to_at].extend(data);
            here.call(&words(&from.address(), &to.address())).says("moved 2 jobs").fine();
            assert_eq!(from.waiting(), [""; 0], "{} to {}", from.address(), to.address());
            assert_eq!(to.waiting(), arrived[to_at], "{} to {}", from.address(), to.address());
        }
    }
}

#[test]
fn a_move_to_where_the_jobs_are_is_refused() {
    for store in Stored::one_of_each() {
        store.take("stays");
        let told = Rig::new().call(&words(&store.address(), &store.address()));
        assert_eq!(told.code, Some(64), "{told:?}");
        told.says("the jobs are there already");
        assert_eq!(store.waiting(), ["stays"]);
    }
}

/// Servers of both tables go on: what one has it gives away, and what comes to the other it runs.
#[test]
fn a_move_goes_beside_the_servers_of_both_tables() {
    let (from, to, here) = (Table::ready(Kind::PostgreSql), Table::ready(Kind::MariaDb), Rig::new());
    let done = to.rig.path("done");
    let command = format!("echo $1 >> {}", done.display());
    let giving = from.serve("[queue.other]\nrun = [\"true\"]\n");
    let taking = to.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\", \"sh\", \"{{}}\"]\n"));
    from.sql("INSERT INTO jobs (name, data, status) SELECT 'q', 'n' || n, 'pending' FROM generate_series(1, 300) n");
    let moving = here.start(&words(&from.url(), &to.url()), Stdio::null());
    for n in 1..=5 {
        from.insert("other", "x");
        from.until("SELECT count(*) FROM jobs WHERE name = 'other' AND status = 'completed'", &n.to_string());
    }
    moving.end().says("moved 300 jobs").fine();
    to.nudge();
    to.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "300");
    let ran = lines_of(&done);
    assert_eq!((ran.len(), ran.iter().collect::<BTreeSet<_>>().len()), (300, 300), "each once");
    giving.stop();
    taking.stop();
}
