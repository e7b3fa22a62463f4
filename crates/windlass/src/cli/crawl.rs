//! `windlass crawl`: a site to its last page, saved under a directory, with a report of what is broken.
//!
//! The crawler itself is the library's; here it gets its words, its signals and its way to speak. A crawl that was
//! stopped or killed goes on with the same command.

use super::Context;
use super::missed::Missed;
use super::print::{self, Out, counted, grouped};
use super::run::{Progress, Tally};
use super::signals::{Signals, exit_code};
use super::values;
use crate::crawler::{Counts, Crawl, Order, PageLine, Report, Wishes};
use crate::error::{Failure, Kind};
use crate::store::RunInfo;
use crate::when;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use windlass_core::life_cycle::State;
use windlass_core::rate::Rate;

const EXAMPLES: &str = "\
Examples:
  windlass crawl https://example.org/
  windlass crawl https://example.org/docs/ --include '/docs/*' --out docs --report csv > pages.csv
  windlass crawl https://example.org/ --depth 3 --exclude '*.pdf' --rate 2/s

Patterns: * is any text; /docs/* and *.pdf are for path and query, http://HOST/* is for whole
addresses and lets other hosts in. Without --include the hosts of the URLs are crawled.
Stopped or killed? The same command goes on.
Exits with 1 if a link is broken.";

/// So many broken links are told on stderr; the report has all.
const TOLD_MOST: usize = 20;

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// Where to begin
    #[arg(required = true, value_name = "URL")]
    urls: Vec<String>,
    /// Follow only what matches; may be given several times
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Do not follow what matches; goes before --include
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Follow at most so many links from the start; by default as many as there are
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    /// Ask for at most so many pages
    #[arg(long, value_name = "N")]
    max_pages: Option<u64>,
    /// Who asks; robots.txt is read for the name before the slash
    #[arg(long, value_name = "TEXT")]
    user_agent: Option<String>,
    /// A header for the hosts of the URLs, such as 'Cookie: a=b'; may be given several times
    #[arg(long, value_name = "HEADER")]
    header: Vec<String>,
    /// Begin with the pages that the sitemaps list, too
    #[arg(long)]
    sitemap: bool,
    /// Save the pages there; by default crawl-HOST
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Requests at once, for each host
    #[arg(short, long, value_name = "N", value_parser = values::slots)]
    jobs: Option<u32>,
    /// Requests in a time at most, for each host: 2/s or 30/m
    #[arg(long, value_name = "RATE", value_parser = crate::config::units::rate)]
    rate: Option<Rate>,
    /// Print what became of each page, and who links to broken ones
    #[arg(long, value_name = "FORMAT", value_enum)]
    report: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Json,
    Csv,
}

enum Event {
    /// The run has ended, or why nobody knows.
    Ended(Result<(), Failure>),
    Signal(i32),
}

pub(super) fn crawl(args: &Args, context: &Context) -> Result<u8, Failure> {
    let order = Order::new(&wishes(args))?;
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    let (sender, events) = channel();
    let ended = sender.clone();
    // Without a main thread there is nobody to tell.
    let crawl = Crawl::begin(order, move |result| drop(ended.send(Event::Ended(result.map(drop)))))?;
    spawn_signals(signals, move |signal| sender.send(Event::Signal(signal)).is_ok())?;
    if crawl.is_continued() {
        context.say(format!("continuing the crawl in {}", crawl.out().display()));
    }
    match follow(&crawl, &events, context)? {
        None => finish(crawl, args, context),
        Some(signal) => {
            let out = crawl.out().display().to_string();
            crawl.join()?;
            context.say(format!("stopped; what is in {out} is kept, and the same command goes on with it"));
            Ok(exit_code(signal))
        }
    }
}

fn wishes(args: &Args) -> Wishes {
    Wishes {
        urls: args.urls.clone(),
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        depth: args.depth,
        max_pages: args.max_pages,
        user_agent: args.user_agent.clone(),
        headers: args.header.clone(),
        sitemap: args.sitemap,
        out: args.out.clone(),
        per_host: args.jobs,
        pause: args.rate.map(|rate| rate.per() / rate.count()).unwrap_or_default(),
    }
}

/// Stays until the run has ended, or a signal has ended the engine: then with the signal.
fn follow(crawl: &Crawl, events: &Receiver<Event>, context: &Context) -> Result<Option<i32>, Failure> {
    let mut progress = Progress::new(context);
    let mut signalled = None;
    loop {
        let wait =
            progress.due().map_or(Duration::from_secs(3600), |due| due.saturating_duration_since(Instant::now()));
        match events.recv_timeout(wait) {
            Ok(Event::Ended(Ok(_))) => {
                progress.clear();
                return Ok(None);
            }
            // It had ended before anybody could ask.
            Ok(Event::Ended(Err(failure))) if failure.kind == Kind::NotFound => return Ok(None),
            Ok(Event::Ended(Err(failure))) => return signalled.map_or(Err(failure), |signal| Ok(Some(signal))),
            Ok(Event::Signal(signal)) if signalled.is_none() => {
                progress.clear();
                context.say("stopping when the pages under way are here; once more stops now");
                signalled = Some(signal);
                crawl.drain();
            }
            Ok(Event::Signal(_)) => crawl.halt(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new(Kind::Internal, "all threads of the crawl have ended"));
            }
        }
        let now = Instant::now();
        if progress.wants(now)
            && let Some(run) = crawl.info()?
        {
            progress.speak(now, tally(&run));
            progress.changed();
        }
    }
}

fn tally(run: &RunInfo) -> Tally {
    let of = |state: State| run.counts.by_state[state.index()];
    let missed = Missed { failed: of(State::Failed), cancelled: of(State::Cancelled) };
    let total = run.counts.by_state.iter().sum();
    Tally { total, done: of(State::Succeeded) + missed.all(), missed, running: of(State::Running), open: true }
}

/// The report and the last words of a crawl that has ended.
fn finish(crawl: Crawl, args: &Args, context: &Context) -> Result<u8, Failure> {
    let place = crawl.out().display().to_string();
    let report = crawl.report()?;
    let code = if report.counts.broken > 0 { Kind::JobFailed.exit_code() } else { 0 };
    let mut out = Out::new();
    match args.report {
        Some(Format::Csv) => out.bytes(report.csv().as_bytes()),
        None if !context.json => {}
        Some(Format::Json) | None => {
            let text = serde_json::to_string(&report)
                .map_err(|e| Failure::new(Kind::Internal, format!("cannot write the report: {e}")))?;
            out.line(&text);
        }
    }
    if !context.json {
        tell(&report, &place, args.report.is_some(), context);
    }
    out.finish().map(|_| code)
}

fn tell(report: &Report, place: &str, reported: bool, context: &Context) {
    let broken: Vec<&PageLine> = report.pages.iter().filter(|page| page.is_broken()).collect();
    if !reported {
        for page in broken.iter().take(TOLD_MOST) {
            let from = page.referrers.first().map(|from| format!(", linked from {from}")).unwrap_or_default();
            let more = page.referrers.len().saturating_sub(1);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            context.say(print::visible(&format!("{}: {}{from}{more}", page.url, page.error)));
        }
        if broken.len() > TOLD_MOST {
            let more = counted((broken.len() - TOLD_MOST) as u64, "more broken link");
            context.say(format!("{more}; all of them: --report json"));
        }
    }
    let took = when::spoken(Duration::from_secs_f64(report.seconds));
    context.say(format!("crawl ended in {took}: {}", summary(report.counts, place)));
}

/// `1,204 pages in DIR, 1 redirect, 3 broken`
fn summary(counts: Counts, place: &str) -> String {
    let mut parts = vec![format!("{} in {place}", counted(counts.pages, "page"))];
    if counts.redirects > 0 {
        parts.push(counted(counts.redirects, "redirect"));
    }
    for (count, words) in [
        (counts.forbidden, "forbidden by robots.txt"),
        (counts.left_out, "left out by --max-pages"),
        (counts.broken, "broken"),
    ] {
        if count > 0 {
            parts.push(format!("{} {words}", grouped(count)));
        }
    }
    parts.join(", ")
}

fn spawn_signals(signals: Signals, tell: impl Fn(i32) -> bool + Send + 'static) -> Result<(), Failure> {
    let watch = move || {
        while let Some(signal) = signals.next() {
            if !tell(signal) {
                return;
            }
        }
    };
    let spawned = std::thread::Builder::new().name("crawl signals".into()).spawn(watch);
    spawned.map(drop).map_err(|e| Failure::io("cannot start a thread", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one_page_and_one_redirect() {
        let counts = Counts { pages: 1, redirects: 1, broken: 1, ..Counts::default() };
        assert_eq!(summary(counts, "out"), "1 page in out, 1 redirect, 1 broken");
        let counts = Counts { pages: 1204, redirects: 2, forbidden: 3, ..Counts::default() };
        assert_eq!(summary(counts, "out"), "1,204 pages in out, 2 redirects, 3 forbidden by robots.txt");
    }
}
