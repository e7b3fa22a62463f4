//! The terminal: taken over for the time of the view, and given back as it was on every way out.
//!
//! Whoever ends in order drops it; a panic gives it back before its message is printed. Signals come as events, so no
//! handler has to. What is drawn is drawn over what was there: nothing is cleared first, so nothing flickers.

use super::frame::{Line, Tone};
use crate::error::Failure;
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{Write, stdin, stdout};

/// Another screen without a cursor, on which lines that are too long end at the edge.
const TAKE: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const GIVE_BACK: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

pub(super) struct Screen {
    before: Termios,
    color: bool,
}

impl Screen {
    pub(super) fn enter(color: bool) -> Result<Screen, Failure> {
        let before = tcgetattr(stdin()).map_err(|e| cannot(e.into()))?;
        let back = before.clone();
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back(&back);
            tell(panic);
        }));
        let screen = Screen { before, color };
        screen.take()?;
        Ok(screen)
    }

    fn take(&self) -> Result<(), Failure> {
        let mut own = self.before.clone();
        // Keys come one by one and are not echoed; those that make signals still do.
        own.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        own.special_codes[SpecialCodeIndex::VMIN] = 1;
        own.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin(), OptionalActions::Now, &own).map_err(|e| cannot(e.into()))?;
        put(TAKE)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(stdout()).map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        size.ok().filter(|(width, height)| *width > 0 && *height > 0).unwrap_or((80, 24))
    }

    /// Stops this process with the terminal as it was; comes back when it goes on.
    pub(super) fn stop(&self) -> Result<(), Failure> {
        give_back(&self.before);
        kill_process(getpid(), Signal::STOP).map_err(|e| Failure::io("cannot stop this process", &e.into()))
    }

    pub(super) fn go_on(&self) -> Result<(), Failure> {
        self.take()
    }

    pub(super) fn draw(&self, lines: &[Line]) -> Result<(), Failure> {
        let mut bytes = b"\x1b[H".to_vec();
        for (at, line) in lines.iter().enumerate() {
            let tone = match line.tone {
                Tone::Plain => "",
                Tone::Strong => "\x1b[1m",
                Tone::Faint => "\x1b[2m",
                Tone::Bad => "\x1b[31m",
            };
            let tone = if self.color { tone } else { "" };
            bytes.extend_from_slice(if at > 0 { b"\r\n" } else { b"" });
            bytes.extend_from_slice(format!("{tone}{}", line.text).as_bytes());
            bytes.extend_from_slice(if tone.is_empty() { b"\x1b[K" } else { b"\x1b[0m\x1b[K" });
        }
        bytes.extend_from_slice(b"\x1b[J");
        put(&bytes)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back(&self.before);
    }
}

fn put(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(cannot)
}

/// A terminal that is gone wants nothing back.
fn give_back(before: &Termios) {
    let _ = put(GIVE_BACK);
    let _ = tcsetattr(stdin(), OptionalActions::Now, before);
}

fn cannot(error: std::io::Error) -> Failure {
    Failure::io("cannot use the terminal", &error)
}
