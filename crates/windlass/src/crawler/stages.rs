//! The two stages: `fetch` brings a page and saves it, `parse` reads its links, and each emits jobs for the other.
//!
//! What is emitted counts when its job succeeds, in one transaction. Saving is idempotent, so a job that is done again
//! changes nothing. It must not keep anything that the store or the directory does not have.

use super::distances::{Distances, Meeting};
use super::downloader::{AskedFor, Downloader, Fetched, Page};
use super::note::{Note, Skipped};
use super::order::Order;
use super::page_url::canonical;
use super::place::place;
use super::target::Target;
use super::{links, robots, sitemap};
use crate::runner::handler::{Batch, Verdicts};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use url::Url;
use windlass_core::outcome::{Outcome, from_status};

pub(super) const FETCH: &str = "fetch";
pub(super) const PARSE: &str = "parse";

/// A page that is being fetched is asked about again after this.
const MEET_AGAIN: Duration = Duration::from_millis(100);
/// A batch that is not whole after this time is settled page by page.
const SETTLE_WITHIN: Duration = Duration::from_millis(100);
/// Where pages lie until they are whole.
pub(super) const PARTIAL: &str = ".partial";

/// What both stages share.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) order: Arc<Order>,
    pub(super) downloader: Downloader,
    pub(super) distances: Distances,
    pub(super) asked_for: Arc<AskedFor>,
    pub(super) partial: AtomicU64,
    /// Set once it is known how much an earlier process has asked for: nothing begins before.
    pub(super) ready: OnceLock<()>,
}

/// What came of one job, and what follows from it.
struct Done {
    outcome: Outcome,
    emits: Vec<(&'static str, Target)>,
    /// The page that was saved with it.
    saved: Option<Target>,
}

impl Done {
    fn of(outcome: Outcome) -> Done {
        Done { outcome, emits: Vec::new(), saved: None }
    }

    /// Emits what follows, and tells how the job ended.
    fn settled(self, batch: &Batch<'_>, at: u16) -> Outcome {
        let emitted = self.emits.iter().try_for_each(|(queue, target)| batch.emit(at, queue, target.data()));
        emitted.map_or_else(|error| Outcome::FailedForGood { error: error.to_string() }, |()| self.outcome)
    }

    fn noted(note: &Note, emits: Vec<(&'static str, Target)>) -> Done {
        Done { outcome: Outcome::Succeeded { message: note.to_string() }, emits, saved: None }
    }
}

impl Stages {
    /// All pages of a batch at once. Those that are slow hold up no others: these are settled without them.
    pub(super) fn fetch(&self, batch: &Batch<'_>) -> Verdicts {
        self.ready.wait();
        batch.phase("downloading");
        let (answer, answers) = channel();
        let mut done: Vec<Option<Done>> = Vec::with_capacity(batch.len());
        let mut awaited: HashMap<usize, Target> = HashMap::new();
        for (at, (_, data)) in batch.jobs().enumerate() {
            let Some(target) = Target::read(data) else {
                done.push(Some(no_target(data)));
                continue;
            };
            let ready = self.begin(&target);
            if ready.is_none() {
                self.downloader.fetch(target.url.clone(), at, &answer);
                awaited.insert(at, target);
            }
            done.push(ready);
        }
        drop(answer);
        let mut patience = Some(Instant::now() + SETTLE_WITHIN);
        loop {
            let left = patience.map(|until| until.saturating_duration_since(Instant::now()));
            match left.map_or_else(|| answers.recv().map_err(Into::into), |left| answers.recv_timeout(left)) {
                Ok((at, fetched)) => done[at] = awaited.remove(&at).map(|target| self.end(&target, fetched)),
                Err(RecvTimeoutError::Timeout) => patience = None,
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if patience.is_none() {
                let ended = (0..).zip(&mut done).filter_map(|(at, done)| Some((at, done.take()?))).collect();
                for (at, done) in self.on_disk(ended) {
                    batch.report(at, done.settled(batch, at));
                }
            }
        }
        // A page of which no word came was not fetched.
        for (at, target) in awaited {
            done[at] = Some(self.end(&target, Fetched::Stopped));
        }
        let ended = (0..).zip(done).filter_map(|(at, done)| Some((at, done?))).collect();
        Verdicts::each(self.on_disk(ended).into_iter().map(|(at, done)| done.settled(batch, at)))
    }

    /// What there is to do without a request; none where the page has to be fetched.
    fn begin(&self, target: &Target) -> Option<Done> {
        match self.distances.meet(target) {
            Meeting::Known => return Some(Done::noted(&Note::skipped(Skipped::Known), Vec::new())),
            Meeting::Later => return Some(Done::of(Outcome::Snoozed { after: MEET_AGAIN })),
            Meeting::Nearer(note) => return Some(Done::noted(&note, self.following(target, &note))),
            Meeting::Fetch => {}
        }
        if self.asked_for.is_all() {
            let note = Note::skipped(Skipped::MaxPages);
            self.distances.done(target, &note);
            return Some(Done::noted(&note, Vec::new()));
        }
        None
    }

    /// What a fetched page comes to.
    fn end(&self, target: &Target, fetched: Fetched) -> Done {
        let was_asked = matches!(fetched, Fetched::Answer(_));
        let done = match fetched {
            Fetched::Answer(page) => self.answered(target, page),
            Fetched::Forbidden => Ok(Note::skipped(Skipped::Robots)),
            Fetched::Beyond => Ok(Note::skipped(Skipped::MaxPages)),
            Fetched::Later(after) => Err(Outcome::Snoozed { after }),
            Fetched::Failed(error) => Err(Outcome::Failed { error }),
            Fetched::Stopped => Err(Outcome::Interrupted),
        };
        match done {
            Ok(note) => {
                self.distances.done(target, &note);
                let done = Done::noted(&note, self.following(target, &note));
                let is_saved = note.skipped.is_none() && note.to.is_empty();
                Done { saved: is_saved.then(|| target.clone()), ..done }
            }
            Err(outcome) => self.not_done(target, was_asked, outcome),
        }
    }

    fn not_done(&self, target: &Target, was_asked: bool, outcome: Outcome) -> Done {
        if was_asked {
            self.asked_for.give_back();
        }
        self.distances.forget(target);
        Done::of(outcome)
    }

    /// What was saved is on disk before its page counts as fetched: all of them with one order.
    fn on_disk(&self, done: Vec<(u16, Done)>) -> Vec<(u16, Done)> {
        if done.iter().all(|(_, done)| done.saved.is_none()) {
            return done;
        }
        let out = &self.order.out;
        let synced = File::open(out).and_then(|dir| rustix::fs::syncfs(dir).map_err(Into::into));
        let Err(e) = synced else { return done };
        let error = format!("cannot bring the pages in {} to disk: {e}", out.display());
        let lost = |(at, done): (u16, Done)| match &done.saved {
            Some(target) => (at, self.not_done(target, true, Outcome::Failed { error: error.clone() })),
            None => (at, done),
        };
        done.into_iter().map(lost).collect()
    }

    fn answered(&self, target: &Target, page: Page) -> Result<Note, Outcome> {
        let note = Note { status: page.status, bytes: page.body.len() as u64, ..Note::default() };
        match page.status {
            200..=299 if page.cut => {
                let most = self.order.body_most >> 20;
                Err(Outcome::FailedForGood { error: format!("the page has more than {most} MiB") })
            }
            200..=299 => {
                let kind = page.kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
                let saved = save(&self.order.out, &place(&target.url), &page.body, &self.partial);
                saved.map_err(|error| Outcome::Failed { error })?;
                Ok(Note { kind, ..note })
            }
            300..=399 => {
                let to = page.location.as_deref().and_then(|to| canonical(Some(&target.url), to));
                let to = to.ok_or_else(|| {
                    let error = format!("HTTP {} that leads nowhere", page.status);
                    Outcome::FailedForGood { error }
                })?;
                Ok(Note { to: to.to_string(), ..note })
            }
            status => Err(from_status(status, page.retry_after)),
        }
    }

    fn has_links(&self, url: &Url, kind: &str) -> bool {
        match kind {
            "text/html" | "application/xhtml+xml" => true,
            "text/xml" | "application/xml" => self.order.sitemap,
            _ => self.order.sitemap && url.path() == "/robots.txt",
        }
    }

    /// The jobs that follow from what came of a page.
    fn following(&self, target: &Target, note: &Note) -> Vec<(&'static str, Target)> {
        match note {
            Note { skipped: Some(_), .. } => Vec::new(),
            Note { to, .. } if !to.is_empty() => {
                let to = Url::parse(to).ok().map(|to| target.moved(to));
                to.filter(|to| self.is_wanted(to)).map(|to| (FETCH, to)).into_iter().collect()
            }
            Note { kind, .. } if self.has_links(&target.url, kind) => vec![(PARSE, target.clone())],
            _ => Vec::new(),
        }
    }

    fn is_wanted(&self, target: &Target) -> bool {
        self.order.scope.admit(&target.url, target.depth()).is_ok() && !self.distances.is_known(target)
    }

    pub(super) fn parse(&self, batch: &Batch<'_>) -> Verdicts {
        self.ready.wait();
        batch.phase("parsing");
        Verdicts::each((0..).zip(batch.jobs()).map(|(at, (_, data))| {
            let done = Target::read(data).map_or_else(|| no_target(data), |target| self.read(&target));
            done.settled(batch, at)
        }))
    }

    fn read(&self, target: &Target) -> Done {
        let path = self.order.out.join(place(&target.url));
        let body = match std::fs::read(&path) {
            Ok(body) => body,
            Err(e) => return Done::of(Outcome::Failed { error: format!("cannot read {}: {e}", path.display()) }),
        };
        let found = links_of(&target.url, &body, self.order.sitemap);
        let links = found.into_iter().map(|url| target.link(url)).filter(|link| self.is_wanted(link));
        Done {
            outcome: Outcome::Succeeded { message: String::new() },
            emits: links.map(|link| (FETCH, link)).collect(),
            saved: None,
        }
    }
}

/// The links of a saved page, whatever kind of page it is.
pub(super) fn links_of(page: &Url, body: &[u8], sitemaps: bool) -> Vec<Url> {
    let listed = match sitemaps {
        true if page.path() == "/robots.txt" => Some(robots::sitemaps(body)),
        true if begins_as_xml(body) => sitemap::listed(body),
        _ => None,
    };
    match listed {
        Some(listed) => listed.iter().filter_map(|link| canonical(Some(page), link)).collect(),
        None => links::links(body, page),
    }
}

fn begins_as_xml(body: &[u8]) -> bool {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
    [&b"<?xml"[..], b"<urlset", b"<sitemapindex"].iter().any(|begin| body.starts_with(begin))
}

fn no_target(data: &[u8]) -> Done {
    let error = format!("`{}` is no page", String::from_utf8_lossy(data));
    Done::of(Outcome::FailedForGood { error })
}

/// Whole or not at all: written aside, then put in its place.
fn save(out: &Path, place: &Path, body: &[u8], number: &AtomicU64) -> Result<(), String> {
    let (partial, path): (PathBuf, PathBuf) =
        (out.join(PARTIAL).join(number.fetch_add(1, Ordering::Relaxed).to_string()), out.join(place));
    let failed = |e: std::io::Error| format!("cannot save {}: {e}", path.display());
    std::fs::write(&partial, body).map_err(failed)?;
    match std::fs::rename(&partial, &path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path.parent().unwrap_or(out)).map_err(failed)?;
            std::fs::rename(&partial, &path).map_err(failed)
        }
        renamed => renamed.map_err(failed),
    }
}
