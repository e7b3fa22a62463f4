//! What wakes a server, and what does not have to: datagrams that come, are lost, or come in floods.

use crate::table::{ALL, Kind, Table};
use std::net::UdpSocket;

#[test]
fn a_lost_nudge_costs_one_look_and_then_everything_is_run() {
    for kind in ALL {
        let table = Table::ready(kind);
        if kind == Kind::PostgreSql {
            table.sql("DROP TRIGGER windlass_nudge ON jobs");
        }
        let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
        (0..100).for_each(|_| table.insert("q", "x"));
        // Nobody says anything: it looks by itself.
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "100");
        server.stop();
    }
}

/// However many they are, one interval is all that nobody having said so costs.
#[test]
fn thousands_of_rows_that_nobody_spoke_of_are_found_by_one_look_and_those_that_follow_it() {
    for (kind, numbers) in [(Kind::PostgreSql, "generate_series(1, 20000)"), (Kind::MariaDb, "seq_1_to_20000")] {
        let table = Table::ready(kind);
        if kind == Kind::PostgreSql {
            table.sql("DROP TRIGGER windlass_nudge ON jobs");
        }
        // Nothing serves the queue: what is counted is looks.
        let server = table.serve("");
        table.until("SELECT count(*) FROM windlass_meta WHERE controller <> 0", "1");
        let turn = || table.sql("SELECT turn FROM windlass_servers").parse::<u64>().unwrap();
        let before = turn();
        table.sql(&format!("INSERT INTO jobs (name, data, status) SELECT 'q', 'x', 'pending' FROM {numbers} AS t"));
        table.until("SELECT count(*) FROM jobs WHERE state = 1", "20000");
        let turns = turn() - before;
        assert!(turns <= 12, "{turns} turns for four looks at 5,000 rows each");
        server.stop();
    }
}

/// MariaDB says nothing by itself, so a nudge is all that there is.
#[test]
fn with_every_second_nudge_lost_everything_is_run() {
    let table = Table::ready(Kind::MariaDb);
    let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
    for n in 0..40 {
        table.insert("q", &n.to_string());
        if n % 2 == 0 {
            table.nudge();
        }
    }
    table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "40");
    server.stop();
}

#[test]
fn a_flood_of_datagrams_costs_twenty_looks_a_second_and_no_work() {
    for (kind, micros) in [
        (Kind::PostgreSql, "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"),
        (Kind::MariaDb, "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"),
    ] {
        let table = Table::ready(kind);
        let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
        // Each look is a turn, and the database counts those, by its own clock.
        let turns = || {
            let said = table.sql(&format!("SELECT turn, {micros} FROM windlass_servers"));
            let (turn, at) = said.split_once('|').unwrap();
            (turn.parse::<u64>().unwrap(), at.parse::<u64>().unwrap())
        };
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (first, begun) = turns();
        let (last, seconds) = loop {
            // What the kernel has no room for is dropped, here or there.
            (0..5000).for_each(|_| drop(sender.send_to(b"flood", &table.udp)));
            let (turn, at) = turns();
            if at - begun > 3_000_000 {
                break (turn, (at - begun).div_ceil(1_000_000));
            }
        };
        let looks = last - first;
        // Twenty in each of the seconds that were begun, and one that the server makes by itself.
        assert!(looks > 5 && looks <= 20 * (seconds + 1) + 1, "{looks} looks in {seconds} s");
        table.insert("q", "x");
        table.nudge();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "1");
        table.rig.call(&["status"]).fine();
        server.stop();
    }
}

#[test]
fn a_trigger_wakes_the_server_without_a_word_of_the_application() {
    let table = Table::ready(Kind::PostgreSql);
    let mut bell = table.rig.bell("bell");
    let config = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"echo $1 > {}\", \"sh\", \"{{}}\"]\n", bell.path);
    let server = table.serve(&config);
    for n in 0..3 {
        table.insert("q", &n.to_string());
        assert_eq!(bell.next(), n.to_string());
    }
    server.stop();
}
