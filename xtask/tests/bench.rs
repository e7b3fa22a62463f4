//! Every bench still works: each is run in small, and each of its figures is there. Nothing is judged.

use std::process::Command;

const FIGURES: &[&str] = &[
    "push.asleep",
    "push.awake",
    "push-c",
    "push-php",
    "bulk.library",
    "bulk.moved",
    "bulk.moved-to-ready",
    "full.8",
    "full.64",
    "ingest.1",
    "ingest.1000",
    "ingest.50000",
    "life.1",
    "life.1000",
    "life.faulty",
    "life.turn-p99",
    "life.log-while-read",
    "spawn.true",
    "fan-out",
    "latency.p50",
    "latency.p99",
    "backlog.memory",
    "backlog.start",
    "backlog.rate",
    "queues.memory",
    "idle.switches",
    "sql.postgres",
    "sql.postgres-none",
    "sql.passed",
    "sql.latency-p50",
    "sql.latency-p99",
    "sql.mariadb",
    "sql.sqlite",
    "spool.drive",
];

#[test]
fn every_figure_is_there() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(["bench", "--quick"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for figure in FIGURES {
        let line = text.lines().find(|line| line.split(' ').next() == Some(figure));
        let value = line.and_then(|line| line.split(' ').nth(1)?.parse::<f64>().ok());
        assert!(value.is_some(), "no figure {figure} in\n{text}");
    }
}

#[test]
fn an_unknown_bench_is_refused_with_the_known_ones() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(["bench", "--quick", "nonsense"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected one of push"));
}
