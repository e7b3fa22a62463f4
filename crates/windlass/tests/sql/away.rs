//! A database that cannot be reached for a while, or that is never heard to answer, seen through a door in front of it.

use crate::rig::{PATIENCE, Rig, lines_of};
use crate::table::{Kind, Table};
use rustix::process::Signal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

#[test]
fn what_ends_while_the_database_is_away_is_written_once_when_it_is_back() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        let (mut bell, mut gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let command = format!("echo $WINDLASS_ATTEMPT > {0}; read x < {1}; echo ended > {0}", bell.path, gate.path);
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\"]\n");
        let serving = table.rig.serve(&table.config_of(&through, "60s", &queue));
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "1");
        door.close();
        gate.open(1);
        assert_eq!(bell.next(), "ended", "what runs goes on");
        // Jobs are accepted, too: they wait in the inbox.
        table.rig.call(&["push", "q", "y"]).fine();
        assert_eq!(table.sql("SELECT status, attempts FROM jobs"), "processing|1");
        door.open();
        table.until("SELECT status, attempts FROM jobs WHERE data = 'x'", "completed|1");
        assert_eq!(bell.next(), "1", "the other job");
        gate.open(1);
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "2");
        serving.stop();
    }
}

/// What is committed is committed, whether the server hears of it or not: it asks, at once or when it can.
#[test]
fn a_commit_whose_answer_is_lost_is_done_once() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        let done = table.rig.path("done");
        let command = format!("echo $1 >> {}", done.display());
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\", \"sh\", \"{{}}\"]\n");
        let serving = table.rig.serve(&table.config_of(&through, "60s", &queue));
        let mut expected = Vec::new();
        // The answer that is lost is that of a claim, of an end or of a beat, as it comes.
        for n in 0..16 {
            let closes = n % 2 == 1;
            door.lose_answer(closes);
            table.insert("q", &format!("row {n:02}"));
            table.nudge();
            let begun = Instant::now();
            while !(door.has_lost_answer() && (!closes || door.is_closed())) {
                assert!(begun.elapsed() < PATIENCE, "nobody commits");
                table.sql("SELECT 1");
            }
            door.open();
            expected.push(format!("row {n:02}"));
            table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", &expected.len().to_string());
        }
        assert_eq!(lines_of(&done), expected, "each ran once, and in its turn");
        assert_eq!(table.sql("SELECT DISTINCT status, attempts FROM jobs"), "completed|1");
        // A pusher is told once its job is there, and it is there once.
        door.lose_answer(false);
        table.rig.call(&["push", "q", "pushed", "--durability", "full"]).fine();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "17");
        assert_eq!(table.sql("SELECT count(*) FROM jobs WHERE data = 'pushed'"), "1");
        let told = table.rig.call(&["status", "--json"]).json()["totals"].clone();
        assert_eq!(told["succeeded"], 17, "each is counted once: {told}");
        // What the inbox brings is taken in once, too, though its turn was never heard to be there.
        for n in 0..6 {
            let closes = n % 2 == 1;
            door.lose_answer(closes);
            table.rig.call(&["push", "q", &format!("inbox {n}"), "--durability", "os"]).fine();
            let begun = Instant::now();
            while !(door.has_lost_answer() && (!closes || door.is_closed())) {
                assert!(begun.elapsed() < PATIENCE, "nobody commits");
                table.sql("SELECT 1");
            }
            door.open();
            table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", &(18 + n).to_string());
        }
        assert_eq!(table.sql("SELECT count(*) FROM jobs"), "23");
        table.rig.drained();
        let listed = table.rig.call(&["ls", "state:succeeded", "--limit", "99", "--json"]).json();
        assert_eq!(listed.as_array().map(Vec::len), Some(23), "the archive has the end of each: {listed}");
        serving.stop();
    }
}

/// What ended while nobody answered is on disk: a process that dies over it repeats nothing.
#[test]
fn an_end_that_was_set_aside_outlives_the_server_and_counts_once() {
    for (kind, taken_over) in [(Kind::PostgreSql, false), (Kind::MariaDb, false), (Kind::PostgreSql, true)] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        let (mut bell, mut gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let command = format!("echo $WINDLASS_ATTEMPT > {0}; read x < {1}; echo ended > {0}", bell.path, gate.path);
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\"]\n");
        let lease = if taken_over { "2s" } else { "60s" };
        let config = table.config_of(&through, lease, &queue);
        let first = table.rig.serve(&config);
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "1");
        door.close();
        gate.open(1);
        assert_eq!(bell.next(), "ended");
        let outbox = table.rig.dir().join("outbox");
        let begun = Instant::now();
        while !std::fs::metadata(&outbox).is_ok_and(|file| file.len() > 0) {
            assert!(begun.elapsed() < PATIENCE, "the end is not set aside");
            table.sql("SELECT 1");
        }
        first.kill();
        let other = taken_over.then(|| {
            let rig = Rig::bare();
            let other = rig.serve(&format!("[store]\nurl = {:?}\nlease = \"2s\"\n{queue}", table.url()));
            assert_eq!(bell.next(), "2", "another server has it by now");
            gate.open(1);
            assert_eq!(bell.next(), "ended");
            table.until("SELECT status, attempts FROM jobs", "completed|2");
            (rig, other)
        });
        door.open();
        let again = table.rig.serve(&config);
        let attempts = if taken_over { 2 } else { 1 };
        table.until("SELECT status, attempts FROM jobs", &format!("completed|{attempts}"));
        assert!(!outbox.exists(), "what was set aside is written, or too late");
        table.insert("q", "y");
        table.nudge();
        assert_eq!(bell.next(), "1", "nothing was started but this");
        gate.open(1);
        assert_eq!(bell.next(), "ended");
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "2");
        again.stop();
        if let Some((_rig, other)) = other {
            other.stop();
        }
    }
}

/// Words that keep coming must not keep a server from trying: it tries once a second whatever it hears.
#[test]
fn a_server_that_hears_words_all_the_time_finds_its_way_back() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        let (mut bell, mut gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let command = format!("echo $WINDLASS_ATTEMPT > {0}; read x < {1}; echo ended > {0}", bell.path, gate.path);
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\"]\n");
        let serving = table.rig.serve(&table.config_of(&through, "60s", &queue));
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "1");
        door.close();
        let (ended, ends) = channel::<()>();
        std::thread::scope(|scope| {
            // One word every tenth of a second, for as long as anybody waits.
            scope.spawn(|| {
                let begun = Instant::now();
                let ends = ends;
                while begun.elapsed() < PATIENCE * 2 {
                    match ends.recv_timeout(Duration::from_millis(100)) {
                        Err(RecvTimeoutError::Timeout) => table.nudge(),
                        Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            });
            let ended = ended;
            gate.open(1);
            assert_eq!(bell.next(), "ended");
            let knocks = door.knocks();
            let begun = Instant::now();
            while door.knocks() < knocks + 3 {
                assert!(begun.elapsed() < PATIENCE, "nobody tries");
                // Each of these questions is answered at once, and none of them is a try.
                let told = table.rig.call(&["status"]);
                assert_eq!(told.code, Some(75), "{told:?}");
                told.says("the database is away");
            }
            let (tries, seconds) = (door.knocks() - knocks, begun.elapsed().as_secs() as usize);
            assert!(tries <= 2 * (seconds + 2), "{tries} tries in {seconds} s");
            door.open();
            table.until("SELECT status, attempts FROM jobs", "completed|1");
            drop(ended);
        });
        serving.stop();
    }
}

/// A row that another program has locked keeps nobody but itself.
#[test]
fn a_locked_row_waits_alone() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (mut bell, mut gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let command = format!("echo $WINDLASS_ATTEMPT > {0}; read x < {1}; echo ended > {0}", bell.path, gate.path);
        let config = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\"]\n[queue.other]\nrun = [\"true\"]\n");
        if kind == Kind::MariaDb {
            // Of a table with a few rows all are read, and locked, whatever was asked for.
            table.sql(
                "INSERT INTO jobs (name, status) SELECT 'old', 'completed' FROM seq_1_to_1000; ANALYZE TABLE jobs",
            );
        }
        let serving = table.serve(&config);
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "1");
        let locking = table.locking("data = 'x'");
        gate.open(1);
        assert_eq!(bell.next(), "ended");
        for n in 0..3 {
            table.insert("other", &format!("y{n}"));
            table.nudge();
            let done = format!("SELECT status, attempts FROM jobs WHERE data = 'y{n}'");
            table.until(&done, "completed|1");
        }
        assert_eq!(table.sql("SELECT status FROM jobs WHERE data = 'x'"), "processing");
        let status = table.rig.call(&["status", "--json"]).json();
        assert_eq!(status["server"]["condition"], "serving", "nobody is away: {status}");
        drop(locking);
        table.until("SELECT status, attempts FROM jobs WHERE data = 'x'", "completed|1");
        serving.stop();
    }
}

/// An administrator may have idle sessions ended: that is no reason for a server to end, too.
#[test]
fn a_session_that_the_database_ends_for_being_idle_is_opened_again() {
    let table = Table::ready(Kind::PostgreSql);
    let name = table.sql("SELECT current_database()");
    table.sql(&format!("ALTER DATABASE {name} SET idle_session_timeout = '100ms'"));
    let serving = table.serve("[queue.q]\nrun = [\"true\"]\n");
    for n in 1..=3 {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
        table.until(&format!("{sessions} AND application_name = 'windlass'"), "0");
        table.insert("q", "x");
        table.nudge();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", &n.to_string());
    }
    serving.stop();
}

/// Whoever starts a server starts it again; a server that waited by itself would have to be found first.
#[test]
fn who_starts_while_the_database_is_away_is_told_at_once_and_tries_once() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        door.close();
        table.rig.call(&["--store", &through, "push", "q", "kept"]).fine();
        for verb in [&["serve"][..], &["ls"], &["status"]] {
            let before = door.knocks();
            let told = table.rig.call(&[&["--store", &through], verb].concat());
            assert_eq!(told.code, Some(75), "{told:?}");
            told.says("the database is away").says("does the database run?");
            assert_eq!(door.knocks() - before, 1, "{verb:?}");
        }
        door.open();
        let serving = table.rig.serve(&table.config_of(&through, "30s", "[queue.q]\nrun = [\"true\"]\n"));
        table.until("SELECT data, status FROM jobs", "kept|completed");
        serving.stop();
    }
}

/// What has ended is kept on its machine: nobody has to wait for the database, also where that does not even refuse.
#[test]
fn a_server_can_be_stopped_while_the_database_is_away_and_its_ends_are_kept() {
    for (kind, swallows) in [(Kind::PostgreSql, false), (Kind::MariaDb, false), (Kind::PostgreSql, true)] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        let (mut bell, mut gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let command = format!("echo $WINDLASS_ATTEMPT > {0}; read x < {1}; echo ended > {0}", bell.path, gate.path);
        let queue = format!("[server]\ndrain = \"1s\"\n[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\"]\n");
        let config = table.config_of(&through, "60s", &queue);
        let serving = table.rig.serve(&config);
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "1");
        if swallows {
            door.swallow()
        } else {
            door.close()
        }
        gate.open(1);
        assert_eq!(bell.next(), "ended");
        serving.process.signal(Signal::TERM);
        serving.process.end().fine();
        if swallows {
            door.stop_swallowing()
        } else {
            door.open()
        }
        let again = table.rig.serve(&config);
        table.until("SELECT status, attempts FROM jobs", "completed|1");
        again.stop();
    }
}

/// Whoever is told of a failure is told of earlier ones, too, which the database has; that must not keep the end
/// itself, nor any that comes with it, from the disk.
#[test]
fn a_failure_that_is_to_be_told_is_kept_while_the_database_is_away() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let (door, through) = table.door();
        let (mut bell, mut gate) = (table.rig.bell("bell"), table.rig.gate("gate"));
        let command = format!("echo $WINDLASS_ATTEMPT > {0}; read x < {1}; echo ended > {0}", bell.path, gate.path);
        let fails = format!("[queue.f]\nrun = [\"sh\", \"-c\", \"{command}; exit 1\"]\n");
        let queues = format!("{fails}attempts = 2\nbackoff = \"1ms\"\non_failure = \"handler\"\n");
        let config = table.config_of(&through, "60s", &queues);
        let serving = table.rig.serve(&config);
        table.insert("f", "x");
        table.nudge();
        assert_eq!(bell.next(), "1");
        gate.open(1);
        assert_eq!(bell.next(), "ended");
        assert_eq!(bell.next(), "2");
        door.close();
        gate.open(1);
        assert_eq!(bell.next(), "ended");
        let outbox = table.rig.dir().join("outbox");
        let begun = Instant::now();
        while !std::fs::metadata(&outbox).is_ok_and(|file| file.len() > 0) {
            assert!(begun.elapsed() < PATIENCE, "the end is not set aside");
            table.sql("SELECT 1");
        }
        serving.kill();
        door.open();
        let again = table.rig.serve(&config);
        table.until("SELECT status, attempts FROM jobs WHERE name = 'f'", "error|2");
        table.until("SELECT count(*), min(status) FROM jobs WHERE name = 'handler'", "1|pending");
        again.stop();
    }
}
