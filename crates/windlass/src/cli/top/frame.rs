//! A frame: what was seen, laid out on lines for so many columns and rows. Pure: it knows no terminal and no clock.
//!
//! The head and the legend always stand. Between them each part has its share of the rows, or one part has them all. A
//! narrow screen loses columns, never a state or a number's digits.

mod parts;

use super::gather::Scene;
use crate::cli::listing::aligned;
use crate::cli::print::{count, field, grouped, visible};
use crate::when;
use serde_json::Value;
use std::time::Duration;
use windlass_core::life_cycle::State;

/// What the queues are sorted by, in turn.
pub(super) const SORTS: [&str; 5] = ["waiting", "running", "failed", "jobs_min", "queue"];

const HELP: [&str; 16] = [
    "windlass top: how everything stands; nothing is changed by looking",
    "",
    "  q            quit",
    "  1 to 5       only the queues, what runs, the documents, what failed, the runs",
    "  0, a, Esc    all parts; Esc also takes the filter away",
    "  up, down     move through a part, as do j, k, page up and down, home and end",
    "  s            sort the queues: by what waits, runs, failed, their rate, their name",
    "  /            show only rows that have this text; Enter keeps it, Esc does not",
    "  p, space     hold the view still, and let it go on",
    "  r            look again now",
    "",
    "  JOBS MIN is of the last minute, P95 the time that 95 of 100 jobs of it took at most, LEFT what waits at that",
    "  rate. Of documents: WORK, WAIT, BLOCK and OVERHEAD is where the time of one goes. Failed jobs are those of the",
    "  last hour. To act: windlass pause, retry, cancel, why.",
    "",
    "  ? or Esc to go back",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Queues,
    Running,
    Documents,
    Failed,
    Runs,
}

impl Part {
    pub(super) const ALL: [Part; 5] = [Part::Queues, Part::Running, Part::Documents, Part::Failed, Part::Runs];
}

/// How a person wants it.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// One part alone.
    pub(super) part: Option<Part>,
    /// The first row of it.
    pub(super) from: usize,
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) typing: Option<String>,
    pub(super) sort: usize,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// How many rows the chosen part had room for.
    pub(super) rows_shown: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Faint,
    Bad,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) tone: Tone,
    pub(super) text: String,
}

impl Line {
    fn new(tone: Tone, text: impl Into<String>) -> Line {
        Line { tone, text: text.into() }
    }
}

/// A part, ready to be laid out: cells by column, and remarks below them.
struct Table {
    title: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    remarks: Vec<String>,
}

/// Everything, for whoever has no terminal: nothing is cut.
pub(super) fn plain(scene: &Scene) -> Vec<String> {
    let view = View::default();
    let mut lines = head(scene, None);
    for table in tables(scene, &view, None) {
        lines.push(Line::new(Tone::Plain, ""));
        let shown = table.rows.len();
        lines.extend(table.lines(0, shown, None));
        lines.extend(table.remarks.iter().map(|remark| Line::new(Tone::Plain, remark.clone())));
    }
    lines.into_iter().map(|line| line.text).collect()
}

/// As many lines as the screen has at most, none of them longer than it is wide.
pub(super) fn lines(scene: &Scene, view: &mut View, width: usize, height: usize) -> Vec<Line> {
    let mut lines = match view.help {
        true => HELP.iter().map(|text| Line::new(Tone::Plain, *text)).collect(),
        false => {
            let mut lines = head(scene, Some(width));
            let room = height.saturating_sub(lines.len() + 1);
            lines.extend(body(scene, view, width, room));
            lines
        }
    };
    lines.truncate(height.saturating_sub(1));
    lines.push(legend(view));
    for line in &mut lines {
        line.text = line.text.chars().take(width).collect();
    }
    lines
}

fn body(scene: &Scene, view: &mut View, width: usize, room: usize) -> Vec<Line> {
    let tables = tables(scene, view, Some(width));
    if view.part.is_some() {
        let Some(table) = tables.first() else { return vec![Line::new(Tone::Faint, "nothing of that here")] };
        let rows = room.saturating_sub(2);
        (view.rows_shown, view.from) = (rows, view.from.min(table.rows.len().saturating_sub(rows)));
        let mut lines = table.lines(view.from, rows, Some(width));
        lines.extend(table.remarks.iter().map(|remark| Line::new(Tone::Faint, remark.clone())));
        return lines;
    }
    let wanted: Vec<usize> = tables.iter().map(|table| table.rows.len() + table.remarks.len()).collect();
    // An empty line, a title and a heading stand before the rows of each.
    let shares = shares(&wanted, room.saturating_sub(3 * tables.len()));
    let mut lines = Vec::new();
    for (table, share) in tables.iter().zip(shares) {
        lines.push(Line::new(Tone::Plain, ""));
        let remarks = table.remarks.len().min(share / 3 + usize::from(share >= wanted_of(table)));
        lines.extend(table.lines(0, share.saturating_sub(remarks), Some(width)));
        let remarks = table.remarks.iter().take(remarks);
        lines.extend(remarks.map(|remark| Line::new(Tone::Faint, remark.clone())));
    }
    lines
}

fn wanted_of(table: &Table) -> usize {
    table.rows.len() + table.remarks.len()
}

/// Rows for each part: nobody gets more than it wants, and what one leaves is for the others.
fn shares(wanted: &[usize], room: usize) -> Vec<usize> {
    let mut shares = vec![0; wanted.len()];
    let mut left = room;
    while left > 0 {
        let open: Vec<usize> = (0..wanted.len()).filter(|at| shares[*at] < wanted[*at]).collect();
        if open.is_empty() {
            break;
        }
        for at in open {
            let given = usize::from(left > 0);
            shares[at] += given;
            left -= given;
        }
    }
    shares
}

fn tables(scene: &Scene, view: &View, width: Option<usize>) -> Vec<Table> {
    let chosen = |part: &Part| view.part.is_none_or(|wanted| wanted == *part);
    let tables = Part::ALL.iter().filter(|part| chosen(part)).flat_map(|part| parts::of(*part, scene, view, width));
    let kept = tables.map(|table| table.having(&view.filter));
    kept.filter(|table| !table.rows.is_empty() || !table.remarks.is_empty()).collect()
}

impl Table {
    /// Only the rows with this text in them.
    fn having(mut self, text: &str) -> Table {
        let text = text.to_lowercase();
        self.rows.retain(|row| row.iter().any(|cell| cell.to_lowercase().contains(&text)));
        self
    }

    /// The title, the heading, and rows from one on.
    fn lines(&self, from: usize, rows: usize, width: Option<usize>) -> Vec<Line> {
        let shown: Vec<Vec<String>> = self.rows.iter().skip(from).take(rows).cloned().collect();
        let hidden = self.rows.len() - shown.len();
        let more = if hidden > 0 { format!(", {} not shown", grouped(hidden as u64)) } else { String::new() };
        let mut lines = vec![Line::new(Tone::Strong, format!("{}{more}", self.title))];
        if self.rows.is_empty() {
            return lines;
        }
        let heading = self.columns.iter().map(|column| column.to_uppercase().replace('_', " ")).collect();
        let cells: Vec<Vec<String>> = std::iter::once(heading).chain(shown).collect();
        let texts = aligned(&cells, &self.columns, width, false);
        let tone = |at: usize| if at == 0 { Tone::Faint } else { Tone::Plain };
        lines.extend(texts.into_iter().enumerate().map(|(at, text)| Line::new(tone(at), text)));
        lines
    }
}

/// Who serves, how many jobs are where, and what is wrong.
fn head(scene: &Scene, width: Option<usize>) -> Vec<Line> {
    let clock = when::time_of_day(&when::rfc3339(scene.at));
    let mut lines = Vec::new();
    if let Some(trouble) = &scene.trouble {
        lines.push(Line::new(Tone::Bad, format!("trying again: {}", visible(&trouble.text))));
    }
    if scene.status.is_null() {
        lines.push(Line::new(Tone::Strong, format!("windlass  directories of documents  {clock}")));
        return lines;
    }
    let (server, totals) = (&scene.status["server"], &scene.status["totals"]);
    let tone = if scene.trouble.is_some() { Tone::Faint } else { Tone::Strong };
    let (rate, left) = (per_minute(&scene.stats["total"]), live(totals));
    let condition = field(server, "condition").replace('_', " ");
    let who = match width {
        Some(..80) => format!("windlass {condition}"),
        _ => format!(
            "windlass {} {condition}  pid {}  {}",
            field(server, "version"),
            field(server, "pid"),
            field(server, "dir")
        ),
    };
    let empty = match eta(left, rate) {
        Some(time) => format!("  empty in about {}", when::spoken(time)),
        None => String::new(),
    };
    lines.push(Line::new(tone, format!("{who}  {}  {clock}", jobs_per_second(rate))));
    let states = State::ALL.iter().filter(|state| !matches!(state, State::Succeeded | State::Cancelled));
    let states = states.map(|state| format!("{} {}", state.word(), grouped(count(totals, state.word()))));
    lines.push(Line::new(tone, format!("{}{empty}", states.collect::<Vec<_>>().join("  "))));
    for (entry, trouble) in scene.status["troubles"].as_object().into_iter().flatten() {
        let trouble = visible(trouble.as_str().unwrap_or_default());
        lines.push(Line::new(Tone::Bad, format!("the workers of [queue.{}] cannot serve: {trouble}", visible(entry))));
    }
    lines
}

fn legend(view: &View) -> Line {
    let text = match (&view.typing, view.paused) {
        (Some(typed), _) => format!("show only rows with: {}_", visible(typed)),
        (None, true) => "held still: p to go on  q quit".to_owned(),
        (None, false) => {
            let filter = Some(visible(&view.filter)).filter(|filter| !filter.is_empty());
            let filter = filter.map(|filter| format!("  only {filter:?}")).unwrap_or_default();
            format!("q quit  ? help  1-5 part  s sort  / filter  p hold{filter}")
        }
    };
    Line::new(Tone::Strong, text)
}

/// Jobs that are not in an end state.
fn live(counts: &Value) -> u64 {
    let states = State::ALL.iter().filter(|state| !state.is_end());
    states.filter(|state| **state != State::Suspended).map(|state| count(counts, state.word())).sum()
}

fn per_minute(row: &Value) -> f64 {
    row["per_minute"].as_f64().unwrap_or(0.0)
}

/// How long so many jobs take at this rate; none where nothing moves, or nothing is left.
fn eta(left: u64, per_minute: f64) -> Option<Duration> {
    (left > 0 && per_minute > 0.0).then(|| Duration::try_from_secs_f64(left as f64 / per_minute * 60.0).ok()).flatten()
}

fn jobs_per_second(per_minute: f64) -> String {
    match per_minute / 60.0 {
        rate if rate >= 10.0 => format!("{} jobs/s", grouped(rate.round() as u64)),
        rate => format!("{rate:.1} jobs/s"),
    }
}

#[cfg(test)]
mod tests;
