//! Several servers on one table: they share the work, and what one of them dies over goes to the others, once.

use crate::constraints::has_fired_up_to;
use crate::rig::{PATIENCE, Rig, Server, is_ready, lines_of};
use crate::table::{Kind, Table};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Starts a server with a data directory of its own on the table.
fn second(table: &Table, lease: &str, more: &str) -> (Rig, Server) {
    let rig = Rig::bare();
    let url = table.url();
    let server = rig.serve(&format!("[store]\nurl = {url:?}\nlease = {lease:?}\n{more}\n"));
    (rig, server)
}

#[test]
fn two_servers_share_a_table_and_no_job_runs_twice() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let done = table.rig.path("done");
        let config =
            format!("[queue.q]\nrun = [\"sh\", \"-c\", \"echo $1 >> {}\", \"sh\", \"{{}}\"]\n", done.display());
        let first = table.serve(&config);
        let (_rig, other) = second(&table, "30s", &config);
        let rows: Vec<String> = (0..200).map(|n| format!("('q', 'n{n}', 'pending')")).collect();
        table.sql(&format!("INSERT INTO jobs (name, data, status) VALUES {}", rows.join(", ")));
        table.nudge();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "200");
        let (ran, distinct) = (lines_of(&done).len(), lines_of(&done).into_iter().collect::<BTreeSet<_>>().len());
        assert_eq!((ran, distinct), (200, 200));
        first.stop();
        other.stop();
    }
}

/// What people say to one server holds for the others from their next look on, and until it is taken back.
#[test]
fn what_is_paused_on_one_server_is_paused_on_all() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let mut bell = table.rig.bell("bell");
        let ring = |queue: &str| {
            format!("[queue.{queue}]\nrun = [\"sh\", \"-c\", \"echo $1 > {}\", \"sh\", \"{{}}\"]\n", bell.path)
        };
        // The first one only answers: what rings was run by the other.
        let first = table.serve("");
        let (rig, other) = second(&table, "30s", &(ring("q") + &ring("r")));
        table.insert("q", "first");
        rig.call(&["nudge"]).fine();
        assert_eq!(bell.next(), "first");
        table.rig.call(&["pause", "q"]).fine();
        // The word that a row is there comes by itself, and is about rows: the other one has to know before.
        let begun = Instant::now();
        while rig.call(&["status", "--json"]).json()["closed"]["q"] != "paused" {
            assert!(begun.elapsed() < PATIENCE, "the other one does not hear of it");
            rig.call(&["nudge"]).fine();
        }
        table.insert("q", "paused");
        table.insert("r", "free");
        rig.call(&["nudge"]).fine();
        assert_eq!(bell.next(), "free", "by now it has looked");
        table.insert("r", "free again");
        rig.call(&["nudge"]).fine();
        assert_eq!(bell.next(), "free again", "the paused one was there before");
        assert_eq!(table.sql("SELECT status FROM jobs WHERE data = 'paused'"), "pending");
        table.rig.call(&["unpause", "q"]).fine();
        rig.call(&["nudge"]).fine();
        assert_eq!(bell.next(), "paused");
        first.stop();
        other.stop();
    }
}

#[test]
fn servers_are_listed_and_one_is_drained_by_its_name() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let first = table.serve("[limits]\nslots = 3\nmemory = \"64MiB\"\n");
        let controls = "SELECT count(*) FROM windlass_meta m JOIN windlass_servers s ON s.epoch = m.controller";
        table.until(controls, "1");
        let listed = table.rig.call(&["servers", "-o", "json"]).json();
        let only = listed[0].clone();
        assert_eq!(
            (listed.as_array().map(Vec::len), &only["slots"], &only["running"]),
            (Some(1), &3.into(), &0.into())
        );
        assert_eq!((&only["memory"], &only["controls"]), (&(64 << 20).into(), &true.into()), "{only}");
        let name = only["name"].as_str().unwrap().to_owned();
        let told = table.rig.call(&["--store", &table.url(), "doctor"]).stdout;
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(told.contains(&format!("1 server, {name} controls")), "{told}");
        let (rig, other) = second(&table, "30s", "");
        assert_eq!(rig.call(&["servers", "-o", "json"]).json().as_array().map(Vec::len), Some(2));
        assert_eq!(rig.call(&["servers", "drain", "nobody"]).code, Some(66));
        rig.call(&["servers", "drain", &name]).fine();
        table.nudge();
        first.process.end().fine();
        let left = rig.call(&["servers", "-o", "json"]).json();
        assert!(left.as_array().is_some_and(|left| left.len() == 1 && left[0]["name"] != name.as_str()), "{left}");
        // What was the other's to control is free at once.
        rig.call(&["nudge"]).fine();
        table.until(controls, "1");
        other.stop();
    }
}

#[test]
fn what_a_killed_server_had_goes_to_another() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (mut bell, mut gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let command = format!("echo $WINDLASS_ATTEMPT > {}; read x < {}", bell.path, gate.path);
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\"]\n");
        let first = table.rig.serve(&table.config_of(&table.url(), "2s", &queue));
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "1");
        first.kill();
        let (_rig, other) = second(&table, "2s", &queue);
        assert_eq!(bell.next(), "2");
        gate.open(2);
        table.until("SELECT status, attempts FROM jobs", "completed|2");
        other.stop();
    }
}

#[test]
fn a_frozen_server_that_comes_back_changes_nothing() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (mut bell, mut gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let command = format!("echo $WINDLASS_ATTEMPT > {}; read x < {}", bell.path, gate.path);
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\"]\n");
        let first = table.rig.serve(&table.config_of(&table.url(), "2s", &queue));
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "1");
        first.process.freeze();
        let (_rig, other) = second(&table, "2s", &queue);
        assert_eq!(bell.next(), "2", "the lease of the frozen one is over");
        // The first one's job ends now, and its server says so too late.
        gate.open(2);
        table.until("SELECT status, attempts FROM jobs", "completed|2");
        first.process.signal(Signal::CONT);
        table.insert("q", "y");
        table.until("SELECT status, attempts FROM jobs WHERE data = 'x'", "completed|2");
        gate.open(2);
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "2");
        other.stop();
        let told = first.process.end();
        assert!(told.code != Some(0), "{told:?}");
        told.says("has taken this one").says("for dead and has its jobs");
        assert_eq!(table.sql("SELECT DISTINCT status FROM jobs"), "completed");
    }
}

/// The other one starts a job when the lease is over; by then it must have ended here, on a machine that knows nothing
/// but that nobody answers.
#[test]
fn a_server_that_is_cut_off_stops_what_it_runs_before_another_starts_it() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        let (mut bell, gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        // The gate stays shut: it is open at both ends, and what reads it waits until it is told to end.
        let command = format!(
            "trap 'echo stopped > {0}; exit 1' TERM; echo began $WINDLASS_ATTEMPT > {0}; \
             if [ $WINDLASS_ATTEMPT = 1 ]; then read x < {1} & wait $!; fi",
            bell.path, gate.path
        );
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", {command:?}]\n");
        let first = table.rig.serve(&table.config_of(&through, "12s", &queue));
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "began 1");
        let (rig, other) = second(&table, "12s", &queue);
        door.close();
        assert_eq!(bell.next(), "stopped");
        while !is_ready(bell.file.get_ref(), Duration::from_millis(200)) {
            rig.call(&["nudge"]).fine();
        }
        assert_eq!(bell.next(), "began 2");
        table.until("SELECT status, attempts FROM jobs", "completed|2");
        door.open();
        first.process.end().says("for dead and has its jobs");
        assert_eq!(table.sql("SELECT status, attempts FROM jobs"), "completed|2", "the late one changes nothing");
        other.stop();
    }
}

/// A database that swallows what it is asked takes long to be given up; by then what runs must be dead, also where it
/// does not listen.
#[test]
fn a_server_that_gets_no_answer_kills_what_ignores_it_before_another_starts_it() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        let (mut bell, gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let pid = table.rig.path("pid");
        // The gate stays shut. The second one looks whether the first is there.
        let command = format!(
            "trap '' TERM; if [ $WINDLASS_ATTEMPT = 1 ]; then echo $$ > {0}; echo began > {1}; read x < {2}; \
             elif kill -0 $(cat {0}); then echo both > {1}; else echo alone > {1}; fi",
            pid.display(),
            bell.path,
            gate.path
        );
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", {command:?}]\ngrace = \"60s\"\n");
        let first = table.rig.serve(&table.config_of(&through, "12s", &queue));
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "began");
        let (rig, other) = second(&table, "12s", &queue);
        door.swallow();
        while !is_ready(bell.file.get_ref(), Duration::from_millis(200)) {
            rig.call(&["nudge"]).fine();
        }
        assert_eq!(bell.next(), "alone");
        table.until("SELECT status, attempts FROM jobs", "completed|2");
        door.stop_swallowing();
        first.process.end().says("for dead and has its jobs");
        other.stop();
    }
}

/// Each time of a schedule is pushed once, though whoever controls is killed over it again and again: more times have
/// passed than one turn deals with, so there is always one under way.
#[test]
fn each_time_of_a_schedule_is_pushed_once_though_whoever_controls_is_killed() {
    const PASSED: i64 = 1_500;
    let table = Table::ready(Kind::PostgreSql);
    let schedule = "[schedule.s]\ncron = \"* * * * *\"\nzone = \"UTC\"\noverlap = \"allow\"\ncatch_up = \"all\"\n\
                    push = { queue = \"s\", data = \"{time}\" }\n";
    let config = table.config_of(&table.url(), "20s", "");
    let (other, third) = (Rig::bare(), Rig::bare());
    let rigs = [&table.rig, &other, &third];
    // The names of servers stay as they are.
    let names = rigs.map(|rig| {
        let server = rig.serve(&config);
        let name = rig.call(&["servers", "-o", "json"]).json()[0]["name"].as_str().unwrap().to_owned();
        server.stop();
        name
    });
    has_fired_up_to(&table, "s", PASSED);
    let controls = "SELECT s.server FROM windlass_meta m JOIN windlass_servers s ON s.epoch = m.controller \
                    WHERE m.controller_until > CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)";
    let pushed = || table.sql("SELECT count(*) FROM jobs").parse::<i64>().unwrap();
    let config = table.config_of(&table.url(), "20s", schedule).replace(&format!("udp = {:?}", table.udp), "");
    let mut servers = rigs.map(|rig| Some(rig.serve(&config)));
    let mut killed = 0;
    let begun = Instant::now();
    let mut before = 0;
    while pushed() < PASSED {
        assert!(begun.elapsed() < PATIENCE * 3, "{} were pushed, and {killed} servers killed", pushed());
        let now = pushed();
        if now == before || killed == 2 {
            continue;
        }
        before = now;
        let who = table.sql(controls);
        let Some(at) = names.iter().position(|name| *name == who) else { continue };
        let Some(server) = servers[at].take() else { continue };
        server.kill();
        killed += 1;
        servers[at] = Some(rigs[at].serve_again());
    }
    assert_eq!(killed, 2);
    // On a slow machine one may have been taken for dead, which ends it in words.
    servers.into_iter().flatten().for_each(Server::kill);
    let counts = table.sql("SELECT count(*) = count(DISTINCT data), min(data) <> max(data) FROM jobs");
    assert_eq!(
        counts,
        "t|t",
        "{}",
        table.sql("SELECT data, count(*) FROM jobs GROUP BY data HAVING count(*) > 1 LIMIT 3")
    );
    assert_eq!(table.sql("SELECT count(*) = count(DISTINCT name) FROM windlass_runs"), "t");
    // None is missing between the first and the last.
    let gaps =
        "SELECT count(*) - 1 - extract(epoch FROM max(data::timestamptz) - min(data::timestamptz)) / 60 FROM jobs";
    assert_eq!(table.sql(gaps).parse::<f64>().unwrap(), 0.0);
}
