//! How far a run is: one line redrawn in place on a terminal, a heartbeat line now and then elsewhere.
//!
//! It keeps its own clock of when to speak next, and never more often than ten times a second.

use crate::cli::print::{count, grouped};
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use windlass_core::life_cycle::State;

const REDRAW: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Tenths of a short run need no line each.
const HEARTBEAT_LEAST: Duration = Duration::from_secs(2);

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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Line,
    Heartbeat,
    Silent,
}

/// What there is to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Tally {
    pub(in crate::cli) total: u64,
    pub(in crate::cli) done: u64,
    pub(in crate::cli) failed: u64,
    pub(in crate::cli) running: u64,
    /// More lines may come.
    pub(in crate::cli) open: bool,
}

impl Tally {
    /// Out of a run's counters.
    pub(in crate::cli) fn of(counts: &Value, open: bool) -> Tally {
        let of = |state: State| count(counts, state.word());
        let failed = of(State::Failed) + of(State::Cancelled);
        let total = State::ALL.into_iter().map(of).sum();
        Tally { total, done: of(State::Succeeded) + failed, failed, running: of(State::Running), open }
    }

    pub(in crate::cli) fn sentence(&self) -> String {
        let more = if self.open { "+" } else { "" };
        let mut text = format!("{}/{}{more} done", grouped(self.done), grouped(self.total));
        if self.failed > 0 {
            text.push_str(&format!(", {} failed", grouped(self.failed)));
        }
        text.push_str(&format!(", {} running", grouped(self.running)));
        text
    }
}

impl Progress {
    pub(in crate::cli) fn new(quiet: bool) -> Progress {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let style = match (quiet, std::io::stderr().is_terminal() && !dumb) {
            (true, _) => Style::Silent,
            (false, true) => Style::Line,
            (false, false) => Style::Heartbeat,
        };
        let now = Instant::now();
        Progress { style, spoken: now, asked: now, tenth: 0, stale: true, drawn: false }
    }

    /// Something has changed that is worth telling.
    pub(in crate::cli) fn changed(&mut self) {
        self.stale = true;
    }

    /// When `speak` wants to be called, if nothing else happens.
    pub(in crate::cli) fn due(&self) -> Option<Instant> {
        match self.style {
            Style::Line => self.stale.then(|| self.spoken + REDRAW),
            Style::Heartbeat => Some(self.spoken + HEARTBEAT),
            Style::Silent => None,
        }
    }

    /// True where it is worth finding out the tally now.
    pub(in crate::cli) fn wants(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.spoken);
        match self.style {
            Style::Line => self.stale && since >= REDRAW,
            Style::Heartbeat => {
                let lately = now.saturating_duration_since(self.asked) < HEARTBEAT_LEAST;
                since >= HEARTBEAT || (self.stale && !lately)
            }
            Style::Silent => false,
        }
    }

    pub(in crate::cli) fn speak(&mut self, now: Instant, tally: Tally) {
        (self.stale, self.asked) = (false, now);
        match self.style {
            Style::Line => {
                self.spoken = now;
                self.drawn = true;
                write(&format!("\r\x1b[K{}", tally.sentence()));
            }
            Style::Heartbeat => {
                let tenth = if tally.open || tally.total == 0 { 0 } else { tally.done * 10 / tally.total };
                let late = now.saturating_duration_since(self.spoken) >= HEARTBEAT;
                if late || tenth > self.tenth {
                    (self.spoken, self.tenth) = (now, tenth);
                    write(&format!("windlass: {}\n", tally.sentence()));
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
        Progress { style, spoken: now, asked: now, tenth: 0, stale: true, drawn: false }
    }

    #[test]
    fn the_sentence() {
        let counts = serde_json::json!({ "ready": 577, "running": 8, "succeeded": 412, "failed": 2, "cancelled": 1 });
        assert_eq!(Tally::of(&counts, false).sentence(), "415/1,000 done, 3 failed, 8 running");
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
