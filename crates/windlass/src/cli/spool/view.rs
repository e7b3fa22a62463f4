//! How queues of documents look: a row for each stage, and a picture of all of them.

use crate::api::spools::SpoolStage;
use crate::cli::Context;
use crate::cli::graph::{self, Node};
use crate::cli::listing::{Columns, For, Listing, Shape};
use crate::cli::print::{self, Out, count, counted, counted_do, field, grouped};
use crate::error::Failure;
use crate::spool::lease::Life;
use crate::spool::status::{Stage, Status};
use crate::when;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

const ALL: &[&str] = &[
    "stage",
    "waiting",
    "working",
    "failed",
    "aside",
    "drivers",
    "work",
    "wait",
    "block",
    "overhead",
    "per_hour",
    "left",
    "ready",
    "unleased",
    "writing",
    "dead",
    "documents",
    "closed",
    "path",
];

/// What is told of a stage.
pub(in crate::cli) const COLUMNS: Columns = Columns { all: ALL, usual: ALL.split_at(12).0, wide: ALL, cell };

pub(super) fn status(paths: &[PathBuf], shape: &Shape, context: &Context) -> Result<u8, Failure> {
    let listing = Listing::new(shape, COLUMNS, context)?;
    let status = Status::look(paths, false)?;
    let rows = rows(&status);
    let left = status.whole_left();
    let answer = json!({ "stages": rows, "left_s": left.map(|left| left.as_secs_f64()) });
    let people = listing.is_for_people();
    let code = listing.whole(&answer, &rows, None)?;
    if people {
        remarks(&status, left).iter().for_each(|sentence| context.say(sentence));
    }
    Ok(code)
}

fn rows(status: &Status) -> Vec<Value> {
    SpoolStage::all(status).iter().map(|stage| json!(stage)).collect()
}

fn cell(row: &Value, column: &str, whom: For) -> Result<String, Failure> {
    Ok(match (column, whom) {
        ("stage" | "path", _) => field(row, column),
        ("closed", For::People) => (if row["closed"] == true { "done" } else { "" }).to_owned(),
        ("closed", For::Machines) => field(row, column),
        ("work" | "wait" | "block" | "overhead" | "left", whom) => {
            let seconds = row.get(format!("{column}_s")).and_then(Value::as_f64);
            match (seconds, whom) {
                (None, For::People) => "-".to_owned(),
                (None, For::Machines) => String::new(),
                (Some(seconds), For::Machines) => seconds.to_string(),
                (Some(seconds), For::People) => spoken(Duration::try_from_secs_f64(seconds).unwrap_or_default()),
            }
        }
        ("per_hour", For::People) => grouped(row["per_hour"].as_f64().unwrap_or(0.0).round() as u64),
        ("per_hour", For::Machines) => field(row, column),
        ("waiting" | "ready", For::People) if row["at_least"] == true => format!("{}+", grouped(count(row, column))),
        (counted, For::People) => grouped(count(row, counted)),
        (counted, For::Machines) => count(row, counted).to_string(),
    })
}

/// As people say it, also what is less than a second.
fn spoken(time: Duration) -> String {
    if time < Duration::from_secs(1) { format!("{}ms", time.as_millis()) } else { when::spoken(time) }
}

/// What a person should know beyond the numbers.
fn remarks(status: &Status, left: Option<Duration>) -> Vec<String> {
    let sum = |of: fn(&Stage) -> u64| status.stages.iter().map(of).sum::<u64>();
    let mut remarks = Vec::new();
    let dead = sum(|stage| stage.count(Life::Dead));
    if dead > 0 {
        let who = counted_do(dead, "driver", ("is", "are"));
        remarks.push(format!("{who} dead: whoever drives next gives back what they had, or windlass watchdog"));
    }
    let unleased = sum(|stage| stage.unleased);
    if unleased > 0 {
        remarks.push(format!("{} with drivers of other programs", counted_do(unleased, "document", ("is", "are"))));
    }
    let aside = sum(|stage| stage.aside);
    if aside > 0 {
        let what = counted_do(aside, "document", ("was", "were"));
        remarks.push(format!("{what} set aside, with the reasons in failed/: windlass spool retry DIR --all"));
    }
    let waits = status.stages.iter().any(|stage| stage.times().documents > 0 && stage.waiting() + stage.working > 0);
    match left {
        Some(left) if waits => remarks.push(format!("what is there is through in about {}", spoken(left))),
        None if waits => remarks.push("nobody works on some of it".into()),
        _ => {}
    }
    remarks
}

pub(super) fn graph(path: &Path, svg: bool, context: &Context) -> Result<u8, Failure> {
    let status = Status::look(&[path.to_owned()], true)?;
    if context.json {
        return print::document(&json!({ "stages": rows(&status) }));
    }
    let node = |(stage, to): (&Stage, &Vec<usize>)| {
        let drivers = stage.count(Life::Alive) + stage.count(Life::Unknown);
        Node {
            name: stage.name(),
            lines: vec![
                format!("{} waiting", grouped(stage.waiting())),
                format!("{} working, {}", grouped(stage.working), counted(drivers, "driver")),
                format!("{} set aside{}", grouped(stage.aside), if stage.closed { ", done" } else { "" }),
            ],
            full: false,
            workers: drivers as usize,
            to: to.iter().map(|to| status.stages[*to].name()).collect(),
        }
    };
    let nodes: Vec<Node> = status.stages.iter().zip(&status.to).map(node).collect();
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let text = match (svg, graph::boxes(&nodes)) {
        (true, _) => graph::svg(&name, &nodes),
        (false, Some(boxes)) => boxes,
        (false, None) => graph::text(&name, &nodes),
    };
    let mut out = Out::new();
    out.bytes(text.as_bytes());
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::document::Times;

    fn status() -> Status {
        let second = Duration::from_secs(1);
        let gone = Times { work: 10 * second, wait: 20 * second, documents: 10, ..Times::default() };
        let stage = Stage { path: "/q/in\u{1b}".into(), ready: 1200, failed: 1, unleased: 1, gone, ..Stage::default() };
        Status { stages: vec![Stage { working: 1, aside: 2, ..stage }], to: vec![vec![]], left: vec![None] }
    }

    #[test]
    fn the_cells_of_a_stage() {
        let row = &rows(&status())[0];
        let cells = |whom| COLUMNS.usual.iter().map(|column| cell(row, column, whom).unwrap()).collect::<Vec<_>>();
        let people = ["in\\u{1b}", "1,201", "1", "1", "2", "0", "1.0s", "2.0s", "0ms", "0ms", "0", "-"];
        assert_eq!(cells(For::People), people);
        let machines = ["in\\u{1b}", "1201", "1", "1", "2", "0", "1", "2", "0", "0", "0.0", ""];
        assert_eq!(cells(For::Machines), machines);
        assert_eq!(row["path"], "/q/in\u{1b}");
    }

    #[test]
    fn what_a_person_should_know() {
        let told = remarks(&status(), None);
        assert_eq!(told[0], "1 document is with drivers of other programs");
        assert!(told[1].starts_with("2 documents were set aside"), "{told:?}");
        assert_eq!(told[2], "nobody works on some of it");
        assert!(remarks(&Status::default(), Some(Duration::ZERO)).is_empty());
    }
}
