//! How far a run is: a bar redrawn in place on a terminal, a heartbeat line now and then elsewhere, or objects.
//!
//! It keeps its own clock of when to speak next, and never more often than ten times a second. Terminals that show it
//! in their frame are told there, too (OSC 9;4), and that is taken back at the end.

use crate::cli::Context;
use crate::cli::missed::Missed;
use crate::cli::print::{count, grouped};
use crate::when;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use windlass_core::life_cycle::State;

const REDRAW: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Tenths of a short run need no line each.
const HEARTBEAT_LEAST: Duration = Duration::from_secs(2);
/// Characters of the bar.
const BAR: u64 = 20;

/// How progress is to be shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Shown {
    /// A bar on a terminal that is not dumb, plain lines elsewhere.
    #[default]
    Auto,
    Bar,
    Plain,
    Json,
    None,
}

/// When and how to speak.
#[derive(Debug)]
pub(in crate::cli) struct Progress {
    style: Style,
    spoken: Instant,
    /// When the tally was last found out.
    asked: Instant,
    tenth: u64,
    /// Something has changed since.
    stale: bool,
    /// The line stands on the terminal now.
    drawn: bool,
    /// The terminal's frame shows it, too.
    framed: bool,
    begun: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Line,
    Heartbeat,
    Objects,
    Silent,
}

/// What there is to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Tally {
    pub(in crate::cli) total: u64,
    pub(in crate::cli) done: u64,
    pub(in crate::cli) missed: Missed,
    pub(in crate::cli) running: u64,
    /// More lines may come.
    pub(in crate::cli) open: bool,
}

impl Tally {
    /// Out of a run's counters.
    pub(in crate::cli) fn of(counts: &Value, open: bool) -> Tally {
        let of = |state: State| count(counts, state.word());
        let missed = Missed::of(counts);
        let total = State::ALL.into_iter().map(of).sum();
        Tally { total, done: of(State::Succeeded) + missed.all(), missed, running: of(State::Running), open }
    }

    pub(in crate::cli) fn sentence(&self) -> String {
        let more = if self.open { "+" } else { "" };
        let mut text = format!("{}/{}{more} done", grouped(self.done), grouped(self.total));
        if self.missed.all() > 0 {
            text.push_str(&format!(", {}", self.missed.words()));
        }
        text.push_str(&format!(", {} running", grouped(self.running)));
        text
    }

    /// How much of a hundred is done; none where the whole is not known yet.
    fn percent(&self) -> Option<u64> {
        (self.total > 0 && !self.open).then(|| self.done * 100 / self.total)
    }

    /// With the pace of the jobs so far, and when that will be all of them.
    fn pace(&self, elapsed: Duration) -> String {
        let rate = self.done as f64 / elapsed.as_secs_f64().max(0.001);
        let left = Duration::try_from_secs_f64((self.total - self.done) as f64 / rate).unwrap_or(Duration::MAX);
        match (self.done, self.open) {
            (0, _) => String::new(),
            (_, true) => format!(", {rate:.1}/s"),
            (_, false) => format!(", {rate:.1}/s, {} left", when::spoken(left)),
        }
    }

    /// `━━━━━╸     25%  415/1,000 done, 3 failed, 8 running, 46.1/s, 12s left`
    fn bar(&self, elapsed: Duration) -> String {
        let (sentence, pace) = (self.sentence(), self.pace(elapsed));
        match self.percent() {
            None => format!("{sentence}{pace}"),
            Some(percent) => {
                let filled = usize::try_from(percent * BAR / 100).unwrap_or(0);
                let (done, left) = ("━".repeat(filled), "·".repeat(BAR as usize - filled));
                format!("{done}{left} {percent:>3}%  {sentence}{pace}")
            }
        }
    }

    fn object(&self, elapsed: Duration) -> Value {
        json!({ "progress": { "total": self.total, "done": self.done, "failed": self.missed.all(),
            "running": self.running, "open": self.open, "elapsed_s": elapsed.as_secs_f64() } })
    }
}

impl Progress {
    pub(in crate::cli) fn new(context: &Context) -> Progress {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let terminal = std::io::stderr().is_terminal() && !["", "dumb"].contains(&variable("TERM").as_str());
        let style = match context.progress {
            Shown::None => Style::Silent,
            Shown::Json => Style::Objects,
            _ if context.quiet || context.json => Style::Silent,
            Shown::Auto if terminal => Style::Line,
            Shown::Bar => Style::Line,
            Shown::Auto | Shown::Plain => Style::Heartbeat,
        };
        let framed = style == Style::Line && std::io::stderr().is_terminal() && shows_in_frame(&variable);
        let now = Instant::now();
        Progress { style, spoken: now, asked: now, tenth: 0, stale: true, drawn: false, framed, begun: now }
    }

    /// Something has changed that is worth telling.
    pub(in crate::cli) fn changed(&mut self) {
        self.stale = true;
    }

    /// When `speak` wants to be called, if nothing else happens.
    pub(in crate::cli) fn due(&self) -> Option<Instant> {
        match self.style {
            Style::Line => self.stale.then(|| self.spoken + REDRAW),
            Style::Heartbeat | Style::Objects => Some(self.spoken + HEARTBEAT),
            Style::Silent => None,
        }
    }

    /// True where it is worth finding out the tally now.
    pub(in crate::cli) fn wants(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.spoken);
        match self.style {
            Style::Line => self.stale && since >= REDRAW,
            Style::Heartbeat | Style::Objects => {
                let lately = now.saturating_duration_since(self.asked) < HEARTBEAT_LEAST;
                since >= HEARTBEAT || (self.stale && !lately)
            }
            Style::Silent => false,
        }
    }

    pub(in crate::cli) fn speak(&mut self, now: Instant, tally: Tally) {
        self.speak_beside(now, tally, "");
    }

    /// With something to stand beside it, for people.
    pub(in crate::cli) fn speak_beside(&mut self, now: Instant, tally: Tally, aside: &str) {
        (self.stale, self.asked) = (false, now);
        let elapsed = now.saturating_duration_since(self.begun);
        match self.style {
            Style::Line => {
                self.spoken = now;
                self.drawn = true;
                let frame = if self.framed { frame(&tally) } else { String::new() };
                write(&format!("\r\x1b[K{frame}{}{aside}", tally.bar(elapsed)));
            }
            Style::Heartbeat | Style::Objects => {
                let tenth = if tally.open || tally.total == 0 { 0 } else { tally.done * 10 / tally.total };
                let late = now.saturating_duration_since(self.spoken) >= HEARTBEAT;
                if late || tenth > self.tenth {
                    (self.spoken, self.tenth) = (now, tenth);
                    write(&match self.style {
                        Style::Objects => format!("{}\n", tally.object(elapsed)),
                        _ => format!("windlass: {}{}{aside}\n", tally.sentence(), tally.pace(elapsed)),
                    });
                }
            }
            Style::Silent => {}
        }
    }

    /// Takes the line off the terminal, so that other text can stand there.
    pub(in crate::cli) fn clear(&mut self) {
        if self.drawn {
            write("\r\x1b[K");
            (self.drawn, self.stale) = (false, true);
        }
    }
}

impl Drop for Progress {
    /// However it ends, no terminal goes on showing a run that nobody follows.
    fn drop(&mut self) {
        self.clear();
        if self.framed {
            write("\x1b]9;4;0\x1b\\");
        }
    }
}

/// What the frame of a terminal shows: so much of a hundred, in red once a job has failed; or that something goes on.
fn frame(tally: &Tally) -> String {
    let state = if tally.missed.all() > 0 { 2 } else { 1 };
    match tally.percent() {
        Some(percent) => format!("\x1b]9;4;{state};{percent}\x1b\\"),
        None => "\x1b]9;4;3\x1b\\".to_owned(),
    }
}

/// Terminals that are known for it; others would print the words, or ring.
fn shows_in_frame(variable: &dyn Fn(&str) -> String) -> bool {
    let known = ["ghostty", "WezTerm", "iTerm.app"].contains(&variable("TERM_PROGRAM").as_str());
    known || ["WT_SESSION", "ConEmuANSI", "KONSOLE_VERSION"].iter().any(|name| !variable(name).is_empty())
}

fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // A closed stderr is nobody's fault.
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(style: Style) -> Progress {
        let now = Instant::now();
        Progress { style, spoken: now, asked: now, tenth: 0, stale: true, drawn: false, framed: false, begun: now }
    }

    #[test]
    fn a_bar_where_the_whole_is_known() {
        let missed = Missed { failed: 3, cancelled: 0 };
        let tally = Tally { total: 1000, done: 415, missed, running: 8, open: false };
        let shown = tally.bar(Duration::from_secs(10));
        assert_eq!(shown, "━━━━━━━━············  41%  415/1,000 done, 3 failed, 8 running, 41.5/s, 14s left");
        let open = Tally { open: true, ..tally };
        assert_eq!(open.bar(Duration::from_secs(10)), "415/1,000+ done, 3 failed, 8 running, 41.5/s");
        assert_eq!(Tally::default().bar(Duration::ZERO), "0/0 done, 0 running");
        assert_eq!((frame(&tally), frame(&open)), ("\x1b]9;4;2;41\x1b\\".into(), "\x1b]9;4;3\x1b\\".into()));
        assert!(shows_in_frame(&|name| if name == "TERM_PROGRAM" { "ghostty".into() } else { String::new() }));
        assert!(!shows_in_frame(&|_| String::new()));
    }

    #[test]
    fn the_sentence() {
        let counts = serde_json::json!({ "ready": 577, "running": 8, "succeeded": 412, "failed": 2, "cancelled": 1 });
        assert_eq!(Tally::of(&counts, false).sentence(), "415/1,000 done, 2 failed, 1 cancelled, 8 running");
        assert_eq!(Tally::of(&serde_json::json!({ "ready": 2 }), true).sentence(), "0/2+ done, 0 running");
    }

    #[test]
    fn a_line_is_redrawn_ten_times_a_second_at_most_and_only_when_stale() {
        let mut line = progress(Style::Line);
        let begun = line.spoken;
        assert!(!line.wants(begun + Duration::from_millis(99)));
        assert!(line.wants(begun + REDRAW));
        line.stale = false;
        assert!(!line.wants(begun + HEARTBEAT) && line.due().is_none(), "an idle run wakes nobody");
    }

    #[test]
    fn heartbeats_come_by_time_or_by_tenths() {
        let mut beat = progress(Style::Heartbeat);
        let begun = beat.spoken;
        let tally = |done| Tally { total: 100, done, ..Tally::default() };
        beat.speak(begun + HEARTBEAT_LEAST, tally(9));
        assert_eq!(beat.spoken, begun, "not a tenth yet");
        beat.changed();
        assert!(!beat.wants(begun + HEARTBEAT_LEAST), "a flood of ends does not ask each time");
        beat.speak(begun + HEARTBEAT_LEAST, tally(10));
        assert_eq!(beat.spoken, begun + HEARTBEAT_LEAST);
        assert!(beat.wants(begun + HEARTBEAT_LEAST + HEARTBEAT));
        assert_eq!(progress(Style::Silent).due(), None);
    }
}
