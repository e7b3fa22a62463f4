//! What a crawl came to: every page with its status, and every broken link with the pages that have it.
//!
//! The archive knows what became of each page; who links to a broken one is read in the saved pages. It must not fetch.

use super::note::{Note, Skipped};
use super::order::Order;
use super::place::place;
use super::stages::{FETCH, links_of};
use super::target::Target;
use crate::archiver::AttemptRecord;
use crate::archiver::read::ArchiveReader;
use crate::error::Failure;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use url::Url;
use windlass_core::job::RunId;
use windlass_core::life_cycle::State;

/// One page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageLine {
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Where it is saved, under the directory of the crawl.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Where a redirect leads.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// Why it is broken.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Why it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<&'static str>,
    /// The pages that link to it; told of broken ones only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub referrers: Vec<String>,
}

impl PageLine {
    pub fn is_broken(&self) -> bool {
        !self.error.is_empty()
    }
}

/// How many of what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Saved.
    pub pages: u64,
    pub redirects: u64,
    pub broken: u64,
    /// Forbidden by `robots.txt`.
    pub forbidden: u64,
    /// Left out because there were as many as were asked for.
    pub left_out: u64,
    pub bytes: u64,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    pub start: Vec<String>,
    pub seconds: f64,
    pub counts: Counts,
    pub statuses: BTreeMap<u16, u64>,
    /// In the order of their addresses.
    pub pages: Vec<PageLine>,
}

impl Report {
    pub(super) fn of(order: &Order, archive: &Path, run: RunId, took: Duration) -> Result<Report, Failure> {
        let mut lines: BTreeMap<String, PageLine> = BTreeMap::new();
        each_page(archive, run, |target, record| {
            if let Some(line) = line(order, &target.url, record) {
                lines.insert(line.url.clone(), line);
            }
        })?;
        name_referrers(order, &mut lines);
        let pages: Vec<PageLine> = lines.into_values().collect();
        let start = order.start.iter().map(Url::to_string).collect();
        let mut report = Report { start, seconds: took.as_secs_f64(), pages, ..Report::default() };
        report.count();
        Ok(report)
    }

    fn count(&mut self) {
        let counts = &mut self.counts;
        for page in &self.pages {
            match page {
                page if page.is_broken() => counts.broken += 1,
                PageLine { skipped: Some(why), .. } if *why == ROBOTS => counts.forbidden += 1,
                PageLine { skipped: Some(_), .. } => counts.left_out += 1,
                PageLine { to, .. } if !to.is_empty() => counts.redirects += 1,
                page => {
                    counts.pages += 1;
                    counts.bytes += page.bytes.unwrap_or(0);
                }
            }
            if let Some(status) = page.status {
                *self.statuses.entry(status).or_default() += 1;
            }
        }
    }

    /// A line for each page, with a head.
    pub fn csv(&self) -> String {
        let mut text = "url,status,type,bytes,file,to,error,skipped,referrers\n".to_owned();
        for page in &self.pages {
            let status = page.status.map(|status| status.to_string()).unwrap_or_default();
            let bytes = page.bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
            let (skipped, referrers) = (page.skipped.unwrap_or_default(), page.referrers.join(" "));
            let fields: [&str; 9] =
                [&page.url, &status, &page.kind, &bytes, &page.file, &page.to, &page.error, skipped, &referrers];
            text.push_str(&fields.map(csv_field).join(","));
            text.push('\n');
        }
        text
    }
}

const ROBOTS: &str = "robots.txt";

/// As RFC 4180 has it.
fn csv_field(field: &str) -> String {
    match field.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

/// Every page of a run that has ended, as the archive has it.
pub(super) fn each_page(
    archive: &Path,
    run: RunId,
    mut told: impl FnMut(Target, AttemptRecord),
) -> Result<(), Failure> {
    for record in ArchiveReader::open(archive).replay(None)? {
        let record = record?;
        let over = matches!(record.state, State::Succeeded | State::Failed | State::Cancelled);
        if record.run != Some(run) || record.queue != FETCH || !over {
            continue;
        }
        if let Some(target) = record.data.as_deref().and_then(Target::read) {
            told(target, record);
        }
    }
    Ok(())
}

/// None for a job that found its page known.
fn line(order: &Order, url: &Url, record: AttemptRecord) -> Option<PageLine> {
    let line = PageLine { url: url.to_string(), ..PageLine::default() };
    let Some(note) = Note::read(&record.message).filter(|_| record.state == State::Succeeded) else {
        // What nobody links to and nobody asked for is not missed.
        let missed = order.start.contains(url) || !order.seeds().contains(url);
        let status = record.error.strip_prefix("HTTP ").and_then(|rest| rest.get(..3)).and_then(|s| s.parse().ok());
        let error = if record.error.is_empty() { record.state.word().to_owned() } else { record.error };
        return missed.then_some(PageLine { status, error, ..line });
    };
    let line = PageLine { status: (note.status > 0).then_some(note.status), kind: note.kind, to: note.to, ..line };
    match note.skipped {
        Some(Skipped::Known) => None,
        Some(Skipped::Robots) => Some(PageLine { skipped: Some(ROBOTS), ..line }),
        Some(Skipped::MaxPages) => Some(PageLine { skipped: Some("max-pages"), ..line }),
        None if !line.to.is_empty() => Some(line),
        None => Some(PageLine { bytes: Some(note.bytes), file: place(url).to_string_lossy().into_owned(), ..line }),
    }
}

/// Reads the saved pages once more for links to broken ones; where nothing is broken nothing is read.
fn name_referrers(order: &Order, lines: &mut BTreeMap<String, PageLine>) {
    let broken: BTreeSet<&String> = lines.values().filter(|line| line.is_broken()).map(|line| &line.url).collect();
    if broken.is_empty() {
        return;
    }
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines.values() {
        let mut refers = |to: &str| {
            if broken.contains(&to.to_owned()) {
                found.entry(to.to_owned()).or_default().push(line.url.clone());
            }
        };
        if !line.to.is_empty() {
            refers(&line.to);
        }
        let is_text = line.kind.contains("html") || order.sitemap;
        let Some(url) = Url::parse(&line.url).ok().filter(|_| !line.file.is_empty() && is_text) else { continue };
        // A page that somebody has removed meanwhile has no links any more.
        let body = std::fs::read(order.out.join(&line.file)).unwrap_or_default();
        links_of(&url, &body, order.sitemap).iter().for_each(|link| refers(link.as_str()));
    }
    for (url, referrers) in found {
        if let Some(line) = lines.get_mut(&url) {
            line.referrers = referrers;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_csv() {
        let line = |url: &str| PageLine { url: url.into(), ..PageLine::default() };
        let pages = vec![
            PageLine {
                status: Some(200),
                kind: "text/html".into(),
                bytes: Some(7),
                file: "a".into(),
                ..line("http://x/a,b")
            },
            PageLine {
                status: Some(404),
                error: "HTTP 404".into(),
                referrers: vec!["http://x/a".into(), "http://x/b".into()],
                ..line("http://x/c")
            },
            PageLine { status: Some(301), to: "http://x/a".into(), ..line("http://x/d") },
            PageLine { skipped: Some(ROBOTS), ..line("http://x/e") },
            PageLine { skipped: Some("max-pages"), ..line("http://x/f") },
        ];
        let mut report = Report { pages, ..Report::default() };
        report.count();
        let expected = Counts { pages: 1, redirects: 1, broken: 1, forbidden: 1, left_out: 1, bytes: 7 };
        assert_eq!((report.counts, report.statuses.len()), (expected, 3));
        let csv = report.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[1], r#""http://x/a,b",200,text/html,7,a,,,,"#);
        assert_eq!(lines[2], "http://x/c,404,,,,,HTTP 404,,http://x/a http://x/b");
        assert_eq!(lines[4], "http://x/e,,,,,,,robots.txt,");
    }
}
