//! The server's log: one line per event and per finished attempt, as logfmt or JSON, to stderr or to a file; in a short
//! form for people where stderr is a terminal.
//!
//! Whoever has something to say hands it over and goes on: a thread of its own does the writing, and where that
//! cannot keep up (a stuck pipe, a full disk) lines are dropped, counted, and the count is said as soon as a line
//! can be written again. A line never holds a job's data, its output or what it said of itself: those are the job's.

mod line;

use crate::clock;
use crate::error::{Failure, Kind};
use serde_json::Value;
use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use windlass_core::time::Time;

/// The most lines that wait for the writer.
const WAITING_MOST: usize = 8192;
/// How long the end of a server waits for its last lines to be taken.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How a line is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `key=value` pairs, quoted where they need it.
    #[default]
    Logfmt,
    /// One JSON object.
    Json,
}

impl Format {
    pub fn word(self) -> &'static str {
        match self {
            Format::Logfmt => "logfmt",
            Format::Json => "json",
        }
    }
}

/// How much a line matters; a log has a least level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    #[default]
    Info,
    Warn,
    Error,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Debug, Level::Info, Level::Warn, Level::Error];

    pub fn word(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

/// `[log]` of the config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub format: Format,
    /// Appended to, and opened anew on HUP; stderr where there is none.
    pub file: Option<PathBuf>,
    pub level: Level,
}

impl LogOptions {
    /// With the level of `WINDLASS_LOG`, where it is set.
    pub fn under(self, variable: Option<OsString>) -> Result<LogOptions, Failure> {
        let Some(word) = variable.filter(|word| !word.is_empty()) else { return Ok(self) };
        match Level::ALL.into_iter().find(|level| word.as_os_str() == level.word()) {
            Some(level) => Ok(LogOptions { level, ..self }),
            None => {
                let text = format!("WINDLASS_LOG is {word:?}, expected debug, info, warn or error");
                Err(Failure::new(Kind::Config, text))
            }
        }
    }
}

/// Something to be said: what happened, and its values.
#[derive(Clone, Debug)]
pub struct Line {
    pub level: Level,
    pub time: Time,
    pub what: Cow<'static, str>,
    pub values: Vec<(&'static str, Value)>,
}

/// A handle of the log; cheap to clone, and never waits for the writer.
#[derive(Clone)]
pub struct Log {
    lines: Option<SyncSender<Order>>,
    level: Level,
    dropped: Arc<AtomicU64>,
}

enum Order {
    Line(Line),
    /// The file may have been moved away: open it by its name again.
    Reopen,
    /// Everything before this is to be written; then the sender is told.
    Flush(SyncSender<()>),
}

impl Log {
    /// Says nothing to anybody.
    pub fn off() -> Log {
        Log { lines: None, level: Level::Error, dropped: Arc::default() }
    }

    /// Opens the log's file, if it has one, and starts its thread.
    pub fn start(options: LogOptions) -> Result<Log, Failure> {
        let sink = match options.file {
            None if is_journal() => Sink::Journal,
            None if options.format == Format::Logfmt && io::stderr().is_terminal() => {
                Sink::Terminal { color: in_color() }
            }
            None => Sink::Stderr,
            Some(path) => {
                let file = open(&path);
                let file = file.map_err(|e| Failure::io(format_args!("cannot open the log {}", path.display()), &e))?;
                Sink::File { path, file }
            }
        };
        Log::write_to(sink, options.format, options.level)
    }

    fn write_to(sink: Sink, format: Format, level: Level) -> Result<Log, Failure> {
        let (lines, orders) = sync_channel(WAITING_MOST);
        let dropped = Arc::<AtomicU64>::default();
        let writer = Writer { sink, format, lost: 0, dropped: Arc::clone(&dropped) };
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || writer.write(&orders))
            .map_err(|e| Failure::io("cannot start the log's thread", &e))?;
        Ok(Log { lines: Some(lines), level, dropped })
    }

    /// Whether a line of this level would be written at all.
    pub fn wants(&self, level: Level) -> bool {
        self.lines.is_some() && level >= self.level
    }

    /// Says something now.
    pub fn say(&self, level: Level, what: impl Into<Cow<'static, str>>, values: Vec<(&'static str, Value)>) {
        if self.wants(level) {
            self.hand_over(Order::Line(Line { level, time: clock::now(), what: what.into(), values }));
        }
    }

    /// Hands over a line that was made elsewhere.
    pub fn put(&self, line: Line) {
        if self.wants(line.level) {
            self.hand_over(Order::Line(line));
        }
    }

    pub fn info(&self, what: impl Into<Cow<'static, str>>) {
        self.say(Level::Info, what, Vec::new());
    }

    pub fn warn(&self, what: impl Into<Cow<'static, str>>) {
        self.say(Level::Warn, what, Vec::new());
    }

    pub fn error(&self, what: impl Into<Cow<'static, str>>) {
        self.say(Level::Error, what, Vec::new());
    }

    /// Opens the file by its name again, as after a rotation.
    pub fn reopen(&self) {
        self.hand_over(Order::Reopen);
    }

    /// Waits until everything said so far is written, but not for a writer that is stuck.
    pub fn flush(&self) {
        let Some(lines) = &self.lines else { return };
        let (done, written) = sync_channel(1);
        // A queue that is full belongs to a writer that is stuck: nobody waits for that.
        if lines.try_send(Order::Flush(done)).is_ok() {
            let _ = written.recv_timeout(LAST_WORDS);
        }
    }

    fn hand_over(&self, order: Order) {
        let Some(lines) = &self.lines else { return };
        match lines.try_send(order) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("level", &self.level).field("dropped", &self.dropped).finish_non_exhaustive()
    }
}

/// Where lines go.
enum Sink {
    Stderr,
    /// Stderr is the journal, which stamps lines itself and takes their weight from a number in front.
    Journal,
    /// Stderr is a terminal, and somebody looks at it.
    Terminal {
        color: bool,
    },
    File {
        path: PathBuf,
        file: File,
    },
    #[cfg(test)]
    Test(Box<dyn Write + Send>),
}

impl Sink {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stderr | Sink::Journal | Sink::Terminal { .. } => io::stderr().lock().write_all(bytes),
            Sink::File { file, .. } => file.write_all(bytes),
            #[cfg(test)]
            Sink::Test(sink) => sink.write_all(bytes),
        }
    }
}

/// The thread's own.
struct Writer {
    sink: Sink,
    format: Format,
    /// Lines that could not be written.
    lost: u64,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    fn write(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            match order {
                Order::Line(line) => self.line(&line),
                Order::Reopen => self.reopen(),
                // Whoever asked has waited long enough if it is gone.
                Order::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn line(&mut self, line: &Line) {
        self.lost += self.dropped.swap(0, Ordering::Relaxed);
        if self.lost > 0 {
            let lines = vec![("lines", Value::from(self.lost))];
            let what = "lines of this log were dropped";
            let told = Line { level: Level::Warn, time: clock::now(), what: what.into(), values: lines };
            if self.put(&told).is_err() {
                self.lost += 1;
                return;
            }
            self.lost = 0;
        }
        if self.put(line).is_err() {
            self.lost += 1;
        }
    }

    fn put(&mut self, line: &Line) -> io::Result<()> {
        let text = match self.sink {
            Sink::Journal => line::of_journal(line, self.format),
            Sink::Terminal { color } => line::of_terminal(line, color),
            _ => line::text(line, self.format),
        };
        self.sink.put(&text)
    }

    /// A file that cannot be opened now leaves the old one in use: better there than nowhere.
    fn reopen(&mut self) {
        let Sink::File { path, file } = &mut self.sink else { return };
        match open(path) {
            Ok(new) => *file = new,
            Err(error) => {
                let why = vec![("error", Value::from(error.to_string()))];
                let what = "the log cannot be opened again and goes on in the old file";
                self.line(&Line { level: Level::Error, time: clock::now(), what: what.into(), values: why });
            }
        }
    }
}

/// Whether stderr goes to the journal of the service manager: it names the stream that it made.
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(io::stderr()).is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Whether a terminal is to have colours.
fn in_color() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb")
}

/// A log tells what runs here, so it is its owner's.
fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests;
