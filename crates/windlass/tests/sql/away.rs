//! A database that cannot be reached for a while, or that is never heard to answer, seen through a door in front of it.

use crate::rig::{PATIENCE, lines_of};
use crate::table::{Kind, Table};
use std::time::Instant;

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
