//! The rules of a crew after they were checked: what serves which queues, and within which limits.
//!
//! A crew is one entry of the config, for a queue name or a pattern; its slots are shared by all queues it
//! matches. This file owns the checked form and the defaults. It must not read files: the config does.

use crate::hours::Hours;
use crate::job::QueueName;
use crate::notify::Notify;
use crate::particulars::Scope;
use crate::pipeline::Flow;
use crate::rate::Rate;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What serves a crew's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// One process per job.
    Command(Command),
    /// One process for many jobs, a line each.
    Batch(Batch),
    /// Processes that stay, one line in and one line out per job.
    Worker(Worker),
    /// Calls of a URL, for a job each or for many.
    Url(Url),
    /// Workers elsewhere that ask for jobs over HTTP; nothing is started here.
    Remote(Remote),
    /// Another server, which takes the jobs over for good, many at a time.
    Forward(Forward),
    /// A Rust handler of the embedding program, by name; gets up to `batch` jobs at once.
    Handler { name: String, batch: u32 },
}

impl Service {
    /// The command that is started for it, if there is one.
    pub fn command(&self) -> Option<&Command> {
        match self {
            Service::Command(command) => Some(command),
            Service::Batch(batch) => Some(&batch.command),
            Service::Worker(worker) => Some(&worker.command),
            Service::Url(_) | Service::Remote(_) | Service::Forward(_) | Service::Handler { .. } => None,
        }
    }

    pub fn command_mut(&mut self) -> Option<&mut Command> {
        match self {
            Service::Command(command) => Some(command),
            Service::Batch(batch) => Some(&mut batch.command),
            Service::Worker(worker) => Some(&mut worker.command),
            Service::Url(_) | Service::Remote(_) | Service::Forward(_) | Service::Handler { .. } => None,
        }
    }

    /// How many jobs one slot takes at once, as far as the rules say.
    pub fn jobs_a_slot(&self) -> u32 {
        match self {
            Service::Command(_) | Service::Remote(_) => 1,
            Service::Batch(batch) => batch.size.max(1),
            Service::Worker(worker) => worker.in_flight.max(1),
            Service::Url(url) => url.size.max(1),
            Service::Forward(_) => Forward::JOBS,
            Service::Handler { batch, .. } => (*batch).max(1),
        }
    }

    /// How long a queue with fewer ready jobs than a slot takes waits for more of them.
    pub fn linger(&self) -> Duration {
        match self {
            Service::Batch(batch) => batch.linger,
            Service::Url(url) => url.linger,
            Service::Command(_)
            | Service::Worker(_)
            | Service::Remote(_)
            | Service::Forward(_)
            | Service::Handler { .. } => Duration::ZERO,
        }
    }

    /// Its jobs run elsewhere: they are planned when somebody asks for them, and take no slot of this server.
    pub fn is_remote(&self) -> bool {
        matches!(self, Service::Remote(_))
    }
}

/// How long a remote worker may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// From its last sign of life on; then its jobs go to others.
    pub lease: Duration,
}

impl Default for Remote {
    fn default() -> Remote {
        Remote { lease: Duration::from_secs(30) }
    }
}

/// Another server that takes jobs over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    pub host: Host,
    /// What stands in front of the API's paths there; empty or beginning with a slash, without one at its end.
    pub base: String,
    /// The file with the token of the other server, read for each lot; none where it asks for none.
    pub token_file: Option<String>,
    /// The file that says where the other server listens now, read for each try; none where its address stays. What it
    /// says goes before `host` and `base`.
    pub address_file: Option<String>,
}

impl Forward {
    /// The most jobs of one claim; it goes as several lots where it is large.
    pub const JOBS: u32 = 40_000;
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.host.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.host, self.base)
    }
}

/// A batch command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub command: Command,
    /// The most jobs of one process, and about the most bytes of their lines: the job that reaches it is the last.
    pub size: u32,
    pub bytes: u64,
    pub linger: Duration,
    pub reply: Reply,
    pub framing: Framing,
}

impl Batch {
    pub fn new(command: Command) -> Batch {
        let (size, bytes, linger) = (1000, BATCH_BYTES, Duration::ZERO);
        Batch { command, size, bytes, linger, reply: Reply::Lines, framing: Framing::Raw }
    }
}

/// What one process or one call gets at most, unless less was asked for: more has to be held in memory by both ends.
pub const BATCH_BYTES: u64 = 16 << 20;

/// How a batch says what became of its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A line of standard output for each job.
    Lines,
    /// The exit alone: nought says that all are done.
    Exit,
}

impl Reply {
    pub fn word(self) -> &'static str {
        match self {
            Reply::Lines => "lines",
            Reply::Exit => "exit",
        }
    }
}

/// What a job's data is to whoever does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataFormat {
    /// The bytes that were pushed.
    #[default]
    Bytes,
    /// YAML, handed over as JSON.
    Yaml,
}

impl DataFormat {
    pub fn word(self) -> &'static str {
        match self {
            DataFormat::Bytes => "bytes",
            DataFormat::Yaml => "yaml",
        }
    }
}

/// How a job becomes a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The data as it is; data with a newline cannot be a line and is refused.
    Raw,
    /// A JSON object with the job's id, queue, attempt and data: any bytes pass.
    Json,
    /// The same objects as one JSON array.
    Array,
    /// The path of a document in a directory, and behind a tab the one that its output is to be written to, if it has
    /// one. A job of a server has no such files.
    Paths { out: bool },
}

impl Framing {
    pub fn word(self) -> &'static str {
        match self {
            Framing::Raw => "raw",
            Framing::Json => "json",
            Framing::Array => "array",
            Framing::Paths { out: false } => "in",
            Framing::Paths { out: true } => "in-out",
        }
    }
}

/// A kept worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    pub command: Command,
    pub framing: Framing,
    /// How many lines a worker may have unanswered; it may ask for more itself.
    pub in_flight: u32,
    /// A worker is replaced after so many jobs; nought means never.
    pub jobs: u64,
    /// … or when it is so old,
    pub age: Option<Duration>,
    /// … or when it holds so many bytes of memory; nought means that nobody looks.
    pub memory: u64,
    /// A worker with nothing to do for so long is ended.
    pub idle: Duration,
    /// The module that it runs where it is the program's own Lua worker; its command is the program then.
    pub lua: Option<Lua>,
}

impl Worker {
    pub fn new(command: Command) -> Worker {
        let (framing, idle) = (Framing::Raw, Duration::from_secs(60));
        Worker { command, framing, in_flight: 1, jobs: 0, age: None, memory: 0, idle, lua: None }
    }
}

/// A Lua module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lua {
    /// Its file; `{queue}` in it is the job's queue, so one worker serves many files.
    pub file: Vec<u8>,
    /// What one job may allocate in Lua.
    pub memory: u64,
}

impl Lua {
    pub const MEMORY: u64 = 64 << 20;
}

/// How a URL is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub host: Host,
    /// Path and query, beginning with a slash; templates as in `template`, URL-encoded.
    pub target: String,
    pub method: Method,
    /// The most jobs of one call. One job is sent as it is, more of them in a frame.
    pub size: u32,
    /// About the most bytes of such a frame: the job that reaches it is the last.
    pub bytes: u64,
    pub linger: Duration,
    /// `Lines` reads a batch's outcomes out of the answer's body, `Exit` believes the status alone.
    pub reply: Reply,
    pub framing: Framing,
    /// Signs what is sent.
    pub secret: Option<Secret>,
}

impl Url {
    pub fn new(host: Host, target: impl Into<String>) -> Url {
        let (reply, framing, linger) = (Reply::Lines, Framing::Array, Duration::ZERO);
        let (method, size, bytes, target) = (Method::Post, 1, BATCH_BYTES, target.into());
        Url { host, target, method, size, bytes, linger, reply, framing, secret: None }
    }

    /// How long a call may take where the config does not say: nothing there can be asked whether it still lives.
    pub const TIME_LIMIT: Duration = Duration::from_secs(60);
    /// A host that fails so often in a row is down, whatever the jobs are.
    pub const DEAD_AFTER: u32 = 10;
}

/// As it is written, templates and all.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.host.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.host, self.target)
    }
}

/// Where a URL leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    pub tls: bool,
    /// A name or an address, without brackets.
    pub name: String,
    pub port: u16,
    /// The config names it as one that may be on this machine or in a private network.
    pub inside: bool,
}

/// As URLs and headers name it: without the port where it is the usual one.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_address = self.name.contains(':');
        let (open, close) = if is_address { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}", self.name)?;
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
}

impl Method {
    pub fn word(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
        }
    }
}

/// What a signature is made with; only where it comes from is ever shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The file's name as the config has it.
    pub file: String,
    pub key: Vec<u8>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("file", &self.file).finish_non_exhaustive()
    }
}

/// How a command is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments; templates as in `template`. Bytes, because arguments need not be text.
    pub argv: Vec<Vec<u8>>,
    /// The working directory; the data directory's parent decides nothing here, an empty one means `/`.
    pub directory: Vec<u8>,
    /// The whole environment of the child but for the `WINDLASS_…` variables of the job.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Command {
    /// Its arguments name the job's queue, so that each queue has a process of its own.
    pub fn names_queue(&self) -> bool {
        self.argv.iter().any(|argument| argument.windows(7).any(|part| part == b"{queue}"))
    }
}

/// What a process and everything it starts may use together; nought means that there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory; also what is set aside for it before it starts.
    pub memory: u64,
    /// Processes and threads at one time.
    pub processes: u32,
    /// Time on processors, of all of them together.
    pub cpu: Duration,
    /// Bytes written to standard output and standard error together.
    pub output: u64,
}

/// Whom a process runs as, exactly: nothing else of the server's rights is left to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// The supplementary groups, in ascending order.
    pub groups: Vec<u32>,
    /// The home directory, for the environment.
    pub home: Vec<u8>,
}

/// The wait before a retry: uniform between nothing and `base × 2ⁿ`, at most `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub base: Duration,
    pub cap: Duration,
}

/// A kind of file in the directory of handlers. A queue with such a file of its name is served by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerFile {
    /// A file that can be run: a process for each job.
    Program,
    /// A Lua module.
    Lua,
}

/// The files of the directory of handlers, by the queue that each serves.
pub type HandlerFiles = BTreeMap<Box<str>, HandlerFile>;

/// One crew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A queue name, or a pattern in which `*` stands for any text.
    pub pattern: String,
    /// It serves the queues that have such a handler file, whatever its pattern, which is then only its name.
    pub by_file: Option<HandlerFile>,
    pub service: Service,
    /// What the data of its jobs is. A Rust handler gets the bytes all the same.
    pub data: DataFormat,
    /// How many starts of this crew may be in flight at once.
    pub slots: u32,
    /// How many of them one queue may have; none means all.
    pub slots_each: Option<u32>,
    /// A queue's share of the starts among queues whose best jobs have the same priority.
    pub weight: u32,
    /// How many failures end a job; nought means none ever does.
    pub attempts: u32,
    pub time_limit: Option<Duration>,
    /// Between TERM and KILL.
    pub grace: Duration,
    pub backoff: Backoff,
    /// How much of each output stream of an attempt is kept.
    pub output_max: u64,
    pub limits: Limits,
    /// None runs as the server itself.
    pub user: Option<Identity>,
    /// False accepts everything and starts nothing.
    pub enabled: bool,
    /// When jobs may start; none means always. What runs when they end goes on.
    pub hours: Option<Hours>,
    /// How many jobs of each of its queues may start in a time, or of each destination where there is a `rate_key`.
    pub rate: Option<Rate>,
    /// A template that tells the destinations of its jobs apart.
    pub rate_key: Option<String>,
    /// Failures in a row after which a destination seems dead and is only probed; nought means never. Without a
    /// `rate_key` all jobs of a crew have one destination.
    pub dead_after: u32,
    /// Its jobs are unique by their data, and for how long.
    pub unique: Option<Scope>,
    /// The queue that is told of its jobs that failed for good.
    pub on_failure: Option<QueueName>,
    /// The channels that are told of the ends of its jobs.
    pub notify: Notify,
    /// It is a stage of a pipeline.
    pub flow: Option<Flow>,
}

impl Policy {
    /// The defaults of every key, for one service.
    pub fn new(pattern: impl Into<String>, service: Service) -> Policy {
        let (time_limit, dead_after) = match &service {
            Service::Url(_) => (Some(Url::TIME_LIMIT), Url::DEAD_AFTER),
            Service::Command(_)
            | Service::Batch(_)
            | Service::Worker(_)
            | Service::Remote(_)
            | Service::Forward(_)
            | Service::Handler { .. } => (None, 0),
        };
        Policy {
            pattern: pattern.into(),
            by_file: None,
            service,
            data: DataFormat::default(),
            slots: 4,
            slots_each: None,
            weight: 1,
            attempts: 5,
            time_limit,
            grace: Duration::from_secs(10),
            backoff: Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(3600) },
            output_max: 1 << 20,
            limits: Limits::default(),
            user: None,
            enabled: true,
            hours: None,
            rate: None,
            rate_key: None,
            dead_after,
            unique: None,
            on_failure: None,
            notify: Notify::default(),
            flow: None,
        }
    }

    /// The rate of each of its queues, where it is not that of a key.
    pub fn queue_rate(&self) -> Option<Rate> {
        self.rate.filter(|_| self.rate_key.is_none())
    }

    /// After so many failures in a row all of it is only probed; nought means never.
    pub fn crew_dead_after(&self) -> u32 {
        if self.rate_key.is_some() { 0 } else { self.dead_after }
    }

    /// Whether its pattern has this name.
    pub fn matches(&self, queue: &str) -> bool {
        pattern_matches(self.pattern.as_bytes(), queue.as_bytes())
    }

    /// Whether it serves a queue while these handler files are there.
    pub fn serves(&self, queue: &str, files: &HandlerFiles) -> bool {
        match self.by_file {
            None => self.matches(queue),
            kind => files.get(queue).copied() == kind,
        }
    }
}

/// Matches `*` against any text, everything else against itself; linear but for the last star's retries.
pub fn pattern_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_serves_the_queue_of_its_name_and_no_other() {
        let files = HandlerFiles::from([("a".into(), HandlerFile::Program), ("b".into(), HandlerFile::Lua)]);
        let by = |by_file| Policy { by_file, ..Policy::new("*", Service::Command(Command::default())) };
        for (policy, served) in [
            (by(None), [true, true, true]),
            (by(Some(HandlerFile::Program)), [true, false, false]),
            (by(Some(HandlerFile::Lua)), [false, true, false]),
        ] {
            assert_eq!(["a", "b", "c"].map(|queue| policy.serves(queue, &files)), served, "{:?}", policy.by_file);
        }
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("img", "img", true),
            ("img", "img.x", false),
            ("img.*", "img.thumb", true),
            ("img.*", "img", false),
            ("*", "", true),
            ("*.jpg", "a.b.jpg", true),
            ("a*b*c", "aXXbYYbZc", true),
            ("a*b*c", "aXXbYY", false),
        ] {
            assert_eq!(pattern_matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
