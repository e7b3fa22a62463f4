//! The parts of a frame, each as a table: queues, what runs, documents, what failed, runs.

use super::{Part, SORTS, Table, View, eta, live, per_minute};
use crate::api;
use crate::cli::listing::For;
use crate::cli::print::{count, data_of, field, grouped, visible};
use crate::cli::spool::STAGES;
use crate::cli::top::gather::Scene;
use crate::when;
use serde_json::{Value, json};
use std::time::Duration;

/// Below this a screen has no room for how long things take, and below the second only for what counts.
const WIDE: usize = 100;
const NARROW: usize = 70;

/// The tables of a part; of the documents one for each directory.
pub(super) fn of(part: Part, scene: &Scene, view: &View, width: Option<usize>) -> Vec<Table> {
    match part {
        Part::Queues => queues(scene, view, width).into_iter().collect(),
        Part::Running => running(scene, width).into_iter().collect(),
        Part::Documents => documents(scene, width),
        Part::Failed => failed(scene, width).into_iter().collect(),
        Part::Runs => runs(scene, width).into_iter().collect(),
    }
}

/// The columns that fit: all, the first ones, or the very first.
fn fitting(all: &[&'static str], some: usize, few: usize, width: Option<usize>) -> Vec<&'static str> {
    let shown = match width {
        Some(..NARROW) => few,
        Some(NARROW..WIDE) => some,
        Some(_) | None => all.len(),
    };
    all[..shown].to_vec()
}

fn table(title: String, columns: Vec<&'static str>, rows: Vec<Vec<(&'static str, String)>>) -> Table {
    let shown = |row: Vec<(&'static str, String)>| {
        let cell = |column: &&str| row.iter().find(|(name, _)| name == column).map(|(_, cell)| cell.clone());
        columns.iter().map(|column| cell(column).unwrap_or_default()).collect()
    };
    Table { title, rows: rows.into_iter().map(shown).collect(), columns: columns.clone(), remarks: Vec::new() }
}

/// A queue with its numbers.
struct Queue<'s> {
    name: &'s str,
    counts: &'s Value,
    closed: &'s str,
    rate: f64,
    p95: Option<f64>,
}

impl Queue<'_> {
    fn waiting(&self) -> u64 {
        live(self.counts) - count(self.counts, "running").min(live(self.counts))
    }

    /// What it is sorted by: more is earlier.
    fn weight(&self, by: &str) -> u64 {
        match by {
            "waiting" => self.waiting(),
            "jobs_min" => (self.rate * 1000.0) as u64,
            "queue" => 0,
            state => count(self.counts, state),
        }
    }

    fn cells(&self) -> Vec<(&'static str, String)> {
        let seconds = |seconds: f64| when::spoken(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        vec![
            ("queue", visible(self.name)),
            ("state", if self.closed.is_empty() { "open" } else { self.closed }.to_owned()),
            ("waiting", grouped(self.waiting())),
            ("running", grouped(count(self.counts, "running"))),
            ("failed", grouped(count(self.counts, "failed"))),
            ("jobs_min", grouped(self.rate.round() as u64)),
            ("left", eta(live(self.counts), self.rate).map_or("-".to_owned(), when::spoken)),
            ("p95", self.p95.map_or("-".to_owned(), seconds)),
            ("retrying", grouped(count(self.counts, "retrying"))),
            ("scheduled", grouped(count(self.counts, "scheduled"))),
        ]
    }
}

fn queues(scene: &Scene, view: &View, width: Option<usize>) -> Option<Table> {
    let all = ["queue", "state", "waiting", "running", "failed", "jobs_min", "left", "p95", "retrying", "scheduled"];
    let stats = scene.stats["rows"].as_array();
    let queue = |(name, counts): (&'_ String, &'_ Value)| {
        let row = stats.and_then(|rows| rows.iter().find(|row| row["key"] == name.as_str()));
        (name.clone(), counts.clone(), row.cloned().unwrap_or_default())
    };
    let found: Vec<_> = scene.status["queues"].as_object()?.iter().map(queue).collect();
    let mut queues: Vec<Queue<'_>> = found
        .iter()
        .map(|(name, counts, row)| Queue {
            name,
            counts,
            closed: scene.status["closed"][name].as_str().unwrap_or_default(),
            rate: per_minute(row),
            p95: row["run_s"]["p95"].as_f64(),
        })
        .collect();
    let by = SORTS[view.sort];
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.weight(by)));
    let title = format!("queues, by {}", by.replace('_', " "));
    let rows = queues.iter().map(Queue::cells).collect();
    let mut table = table(title, fitting(&all, 7, 5, width), rows);
    let why = scene.why.iter().filter_map(|(queue, reasons)| Some((queue, reasons.as_array()?.first()?)));
    let why = why.filter(|(_, reason)| reason["code"] != "runnable");
    table.remarks.extend(why.map(|(queue, reason)| format!("{}: {}", visible(queue), field(reason, "text"))));
    Some(table)
}

fn running(scene: &Scene, width: Option<usize>) -> Option<Table> {
    let row = |flight: &Value| {
        let since = api::time_from_text(&field(flight, "started")).ok();
        let progress = field(flight, "progress");
        let data = data_of(flight, "data").unwrap_or_default();
        vec![
            ("id", field(flight, "job")),
            ("queue", field(flight, "queue")),
            ("for", since.map_or(String::new(), |since| when::spoken(scene.at.since(since)))),
            ("progress", if progress.is_empty() { "-".to_owned() } else { format!("{}{progress}", bar(&progress)) }),
            ("phase", field(flight, "phase")),
            ("data", visible(&String::from_utf8_lossy(&data))),
        ]
    };
    let columns = fitting(&["id", "queue", "for", "progress", "phase", "data"], 6, 4, width);
    let rows: Vec<_> = scene.running.iter().map(row).collect();
    (!rows.is_empty()).then(|| table("running, the longest first".into(), columns, rows))
}

/// `[###.......] ` for a progress that begins with `3/10`.
fn bar(progress: &str) -> String {
    let parts = progress.split_whitespace().next().and_then(|first| first.split_once('/'));
    let numbers = parts.and_then(|(done, of)| Some((done.parse::<f64>().ok()?, of.parse::<f64>().ok()?)));
    let Some((done, of)) = numbers.filter(|(done, of)| *of > 0.0 && *done >= 0.0) else { return String::new() };
    let full = ((done / of).min(1.0) * 10.0) as usize;
    format!("[{}{}] ", "#".repeat(full), ".".repeat(10 - full))
}

/// The numbers of `windlass spool status`, for each directory that is shown.
fn documents(scene: &Scene, width: Option<usize>) -> Vec<Table> {
    let of = |spool: &api::spools::Spool| {
        let columns = fitting(STAGES.usual, 6, 4, width);
        let row = |stage: &api::spools::SpoolStage| {
            let row = json!(stage);
            let cell = |column: &&'static str| (*column, (STAGES.cell)(&row, column, For::People).unwrap_or_default());
            // A narrow screen still has how fast it goes and how long it takes.
            STAGES.usual.iter().map(cell).collect::<Vec<_>>()
        };
        let columns = match width {
            Some(NARROW..WIDE) => [&columns[..], &["per_hour", "left"]].concat(),
            _ => columns,
        };
        let left = spool.left_s.and_then(|left| Duration::try_from_secs_f64(left).ok());
        let left = left.filter(|left| !left.is_zero()).map(|left| format!(", through in about {}", when::spoken(left)));
        let title = format!("documents in {}{}", visible(&spool.directory), left.unwrap_or_default());
        let mut table = table(title, columns, spool.stages.iter().map(row).collect());
        table.remarks.extend(spool.error.as_deref().map(visible));
        table
    };
    scene.spools.iter().map(of).collect()
}

fn failed(scene: &Scene, width: Option<usize>) -> Option<Table> {
    let row = |job: &Value| {
        let last = job["errors"].as_array().and_then(|errors| errors.last()).cloned().unwrap_or_default();
        vec![
            ("id", field(job, "id")),
            ("queue", field(job, "queue")),
            ("at", when::time_of_day(&field(job, "ended"))),
            ("reason", field(job, "reason")),
            ("error", field(&last, "text")),
        ]
    };
    let rows: Vec<_> = scene.failed.iter().map(row).collect();
    let columns = match width {
        Some(..NARROW) => vec!["id", "queue", "error"],
        _ => vec!["at", "id", "queue", "reason", "error"],
    };
    (!rows.is_empty()).then(|| table("failed within the hour, the last first".into(), columns, rows))
}

fn runs(scene: &Scene, width: Option<usize>) -> Option<Table> {
    let row = |run: &Value| {
        let (total, live) = (count(run, "total"), count(run, "live"));
        let done = format!("{}/{}", total.saturating_sub(live), total);
        let counts = &run["counts"];
        vec![
            ("run", field(run, "id")),
            ("name", field(run, "name")),
            ("done", format!("{}{done}", bar(&done))),
            ("failed", grouped(count(counts, "failed"))),
            ("running", grouped(count(counts, "running"))),
            ("sealed", if run["sealed"] == true { "sealed" } else { "open" }.to_owned()),
        ]
    };
    let rows: Vec<_> = scene.runs.iter().map(row).collect();
    let columns = fitting(&["run", "done", "failed", "running", "sealed", "name"], 6, 3, width);
    (!rows.is_empty()).then(|| table("runs under way".into(), columns, rows))
}
