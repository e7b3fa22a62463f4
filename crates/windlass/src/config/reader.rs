//! From TOML to the checked config: every value is read with its place, so that every refusal can name it.
//!
//! Unknown keys are refused with the nearest known name. Tables are walked by hand, not by derive: the order of
//! the queues is the file's, and a sentence of ours says more than a type error.

use super::shown::{Lines, Origin};
use super::units::{nearest, size};
use super::zone::hours;
use super::{Config, Handlers, checks, path_bytes};
use crate::error::{Failure, Kind};
use crate::handlers_dir;
use crate::when;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use windlass_core::job::{QUEUE_NAME_MAX, QueueName};
use windlass_core::policy::{Backoff, Command, DataFormat, Framing, HandlerFile, Policy, Service};

pub(super) mod defaults;
pub(super) mod forward;
pub(super) mod limits;
pub(super) mod notify;
mod pace;
mod pipeline;
pub(super) mod profile;
mod progress;
mod schedule;
mod sections;
mod service;
mod store;
mod subscribe;
mod traces;
mod url;
mod variables;

type Value<'i> = Spanned<DeValue<'i>>;
type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// The text being read and its name, for pointing at places.
struct Source<'t> {
    path: &'t Path,
    text: &'t str,
    /// Programs and directories must be there; else this is about the text alone.
    asks_machine: bool,
}

/// One table being read: what was taken is known, what is left over is refused.
struct Table<'t, 'i> {
    source: &'t Source<'t>,
    /// As it stands in the file: `[limits]`, `[queue.thumbnail]`.
    title: String,
    table: &'t DeTable<'i>,
}

/// Reads the files of a config, the main one first; what a later one says holds.
pub(super) fn read(files: &[(&Path, &str)], asks_machine: bool) -> Result<Config, Failure> {
    let sources: Vec<Source<'_>> = files.iter().map(|(path, text)| Source { path, text, asks_machine }).collect();
    let parsed = sources.iter().map(|source| Ok((source, source.parse()?))).collect::<Result<Vec<_>, Failure>>()?;
    let root = |(source, table)| Table { source, title: "the file".into(), table };
    let roots: Vec<Table<'_, '_>> = parsed.iter().map(|(source, table)| root((*source, table))).collect();
    let mut config = Config::default();
    for root in &roots {
        root.only(&ROOT_KEYS)?;
        config.profiles.extend(profile::read(root)?);
        sections::read(root, &mut config)?;
    }
    let channels = roots.iter().map(|root| notify::channels(root, &config)).collect::<Result<Vec<_>, _>>()?;
    config.channels = laid_over(channels, |policy| &policy.pattern);
    for root in &roots {
        config.handlers = read_handlers(root, &config)?.or(config.handlers);
    }
    let queues = roots.iter().map(|root| read_queues(root, &config)).collect::<Result<Vec<_>, _>>()?;
    config.queues = laid_over(queues, |policy| &policy.pattern);
    let schedules = roots.iter().map(|root| schedule::read(root, &config.channels)).collect::<Result<_, _>>()?;
    config.schedules = laid_over(schedules, |schedule| &schedule.name);
    join(&roots, &mut config)?;
    Ok(config)
}

/// What joins queues: who handles whose failures, pipelines, and who hears whom. All tables are known by then.
fn join(roots: &[Table<'_, '_>], config: &mut Config) -> Result<(), Failure> {
    let terms = config.handlers.iter().map(|handlers| handlers.policy.clone());
    let all: Vec<Policy> = config.queues.iter().cloned().chain(terms).collect();
    roots.iter().try_for_each(|root| check_handlers(root, &config.queues, &all))?;
    let pipelines = roots.iter().map(|root| pipeline::read(root, config)).collect::<Result<Vec<_>, _>>()?;
    config.pipelines = laid_over(pipelines, |pipeline| &pipeline.name);
    roots.iter().try_for_each(|root| pipeline::check_tables(root, config))?;
    let stages = config.pipelines.iter().flat_map(|pipeline| pipeline.rules.iter().cloned());
    let served: Vec<Policy> = config.queues.iter().cloned().chain(stages).collect();
    let heard = roots.iter().map(|root| subscribe::read(root, &served)).collect::<Result<Vec<_>, _>>()?;
    config.router = subscribe::join(roots, laid_over(heard, |subscription| &subscription.pattern))?;
    Ok(())
}

const ROOT_KEYS: [&str; 17] = [
    "handlers",
    "limits",
    "defaults",
    "store",
    "nudge",
    "server",
    "archive",
    "log",
    "traces",
    "progress",
    "spool",
    "queue",
    "schedule",
    "profile",
    "subscribe",
    "pipeline",
    "notify",
];

/// The tables of all files in the order in which they are tried: what lies in `conf.d` before what is in the main file,
/// and a table that two files have as the later one has it.
fn laid_over<T>(mut files: Vec<Vec<T>>, name: impl Fn(&T) -> &String) -> Vec<T> {
    let main = if files.is_empty() { Vec::new() } else { files.remove(0) };
    let mut all: Vec<T> = Vec::new();
    for table in files.into_iter().flatten() {
        match all.iter().position(|other| name(other) == name(&table)) {
            Some(at) => all[at] = table,
            None => all.push(table),
        }
    }
    let left = main.into_iter().filter(|table| !all.iter().any(|other| name(other) == name(table)));
    let left: Vec<T> = left.collect();
    all.extend(left);
    all
}

/// Where every key of the files stands that were read without fault.
pub(super) fn lines(files: &[(&Path, &str)]) -> Lines {
    let mut lines = Lines::new();
    for (at, (path, text)) in files.iter().enumerate() {
        let file = (at > 0).then(|| path.to_path_buf());
        let Ok(parsed) = DeTable::parse(text) else { return lines };
        let line = |span: Range<usize>| text.get(..span.start).unwrap_or(text).matches('\n').count() + 1;
        let origin = |span| Origin { file: file.clone(), line: line(span) };
        for (name, value) in parsed.get_ref() {
            let (kind, DeValue::Table(table)) = (name.get_ref(), value.get_ref()) else {
                // The short form of a table with a path, or with an address.
                let key = if name.get_ref() == "store" { "url" } else { "path" };
                lines.insert((name.get_ref().to_string(), key.to_owned()), origin(name.span()));
                continue;
            };
            if !["queue", "schedule", "pipeline", "notify"].contains(&kind.as_ref()) {
                note(&mut lines, kind, table, &origin);
                continue;
            }
            for (name, value) in table {
                let section = format!("{kind}.{}", name.get_ref());
                // A table of a later file takes the place of the whole table.
                lines.retain(|(other, _), _| *other != section);
                let Some(table) = value.get_ref().as_table() else { continue };
                note(&mut lines, &section, table, &origin);
                note_stages(&mut lines, &section, table, &origin);
            }
        }
    }
    lines
}

/// The stages of a pipeline, each by its name.
fn note_stages(lines: &mut Lines, section: &str, table: &DeTable<'_>, origin: &dyn Fn(Range<usize>) -> Origin) {
    let stages = table.get("stage").and_then(|stages| stages.get_ref().as_array());
    let stages = stages.into_iter().flat_map(|stages| stages.iter());
    for stage in stages.filter_map(|stage| stage.get_ref().as_table()) {
        let name = stage.get("name").and_then(|name| name.get_ref().as_str()).unwrap_or_default();
        note(lines, &format!("{section}.{name}"), stage, origin);
    }
}

fn note(lines: &mut Lines, section: &str, table: &DeTable<'_>, origin: &dyn Fn(Range<usize>) -> Origin) {
    for (key, _) in table {
        lines.insert((section.to_owned(), key.get_ref().to_string()), origin(key.span()));
    }
}

fn read_queues(root: &Table<'_, '_>, config: &Config) -> Result<Vec<Policy>, Failure> {
    let Some(queues) = root.section("queue")? else { return Ok(Vec::new()) };
    let mut entries: Vec<_> = queues.table.iter().collect();
    // The parser's map is sorted by name; the order that counts is the file's.
    entries.sort_by_key(|(name, _)| name.span().start);
    let read = entries.into_iter().map(|(name, value)| {
        let pattern = name.get_ref().as_ref();
        check_pattern(pattern).map_err(|why| root.source.refuse(name.span(), &why))?;
        let title = format!("[queue.{}]", quoted(pattern));
        let DeValue::Table(table) = value.get_ref() else {
            return Err(root.source.refuse(value.span(), &format!("{title} is {}, expected a table", article(value))));
        };
        read_queue(&Table { source: root.source, title, table }, pattern, config, name.span())
    });
    read.collect()
}

/// The keys that the table of the handlers may have beside its path.
pub(super) fn terms() -> impl Iterator<Item = &'static str> {
    QUEUE_KEYS.into_iter().chain(pace::KEYS).chain(limits::ALL_KEYS)
}

/// The keys that the table of a queue may have where this serves it.
pub(super) fn queue_keys(service: &Service) -> impl Iterator<Item = &'static str> {
    service::keys_of(service).chain(QUEUE_KEYS).chain(pace::KEYS).chain(limits::keys_of(service))
}

/// The keys of a queue that say how, not by what; `service` has those.
const QUEUE_KEYS: [&str; 18] = [
    "data",
    "slots",
    "slots_each",
    "weight",
    "unique",
    "attempts",
    "time_limit",
    "grace",
    "backoff",
    "backoff_max",
    "output",
    "environment",
    "directory",
    "enabled",
    "hours",
    "on_failure",
    "notify",
    "notify_on",
];

fn all_queue_keys() -> Vec<&'static str> {
    [&service::KEYS[..], &QUEUE_KEYS, &pace::KEYS, &limits::ALL_KEYS].concat()
}

fn read_queue(table: &Table<'_, '_>, pattern: &str, config: &Config, place: Range<usize>) -> Result<Policy, Failure> {
    table.only(&all_queue_keys())?;
    if config.channels.iter().any(|channel| channel.pattern == pattern) {
        let text = format!("{} would do nothing: its jobs are those of the channel of that name", table.title);
        return Err(table.source.refuse(place, &text));
    }
    let policy = read_policy(table, pattern, config, place)?;
    match &policy.service {
        Service::Worker(worker) if matches!(worker.framing, Framing::Paths { .. }) => {
            let text = "this `framing` is of files, and a job is none; expected it in a stage of a pipeline only";
            Err(table.refuse_value("framing", text))
        }
        _ => Ok(policy),
    }
}

/// What a table of a queue, or of a stage, says of how it is served.
fn read_policy(table: &Table<'_, '_>, pattern: &str, config: &Config, place: Range<usize>) -> Result<Policy, Failure> {
    let enabled = table.flag("enabled")?.unwrap_or(true);
    let service = service::read(table, &config.hosts, enabled, place)?;
    let limits = limits::read_limits(table, &service, &config.machine)?;
    let user = limits::read_user(table, &service, &config.machine)?;
    let notify = notify::read(table, &config.channels)?;
    read_terms(
        table,
        Policy { enabled, limits, user, notify, ..defaults::under(config, Policy::new(pattern, service)) },
    )
}

/// `handlers = "DIR"`, or a table with `path` and the terms on which its files are run.
fn read_handlers(root: &Table<'_, '_>, config: &Config) -> Result<Option<Handlers>, Failure> {
    let Some(value) = root.get("handlers") else { return Ok(None) };
    let none = DeTable::new();
    let (of, key, terms) = match value.get_ref() {
        DeValue::Table(table) => (table, "path", table),
        _ => (root.table, "handlers", &none),
    };
    let of = Table { source: root.source, title: "[handlers]".into(), table: of };
    let terms = Table { source: root.source, title: "[handlers]".into(), table: terms };
    terms.only(&[&["path"], &QUEUE_KEYS[..], &pace::KEYS, &limits::ALL_KEYS].concat())?;
    let Some(text) = of.text(key)? else {
        return Err(root.source.refuse(value.span(), "[handlers] has no `path`, expected the directory of its files"));
    };
    let base = root.source.path.parent().unwrap_or(Path::new(""));
    let path = std::path::absolute(base.join(text)).map_err(|e| of.refuse_value(key, &e.to_string()))?;
    if text.is_empty() || text.contains(['{', '}', '\0']) {
        return Err(of.refuse_value(key, &format!("`{key}` is {text:?}, expected a directory without braces")));
    }
    let enabled = terms.flag("enabled")?.unwrap_or(true);
    if enabled && root.source.asks_machine {
        handlers_dir::check(&path).map_err(|why| of.refuse_value(key, &why))?;
    }
    let argv = vec![path_bytes(&path.join("{queue}"))];
    let service = Service::Command(Command { argv, ..read_command(&terms, "", enabled)? });
    let limits = limits::read_limits(&terms, &service, &config.machine)?;
    let user = limits::read_user(&terms, &service, &config.machine)?;
    let by_file = Some(HandlerFile::Program);
    let own = defaults::under(config, Policy::new(handlers_dir::NAME, service));
    let notify = notify::read(&terms, &config.channels)?;
    let policy = read_terms(&terms, Policy { enabled, by_file, limits, user, notify, ..own })?;
    Ok(Some(Handlers { path, policy }))
}

/// How a queue is served, by whatever serves it.
fn read_terms(table: &Table<'_, '_>, default: Policy) -> Result<Policy, Failure> {
    let backoff = Backoff {
        base: table.map("backoff", positive)?.unwrap_or(default.backoff.base),
        cap: table.map("backoff_max", positive)?.unwrap_or(default.backoff.cap),
    };
    if backoff.base > backoff.cap {
        let key = if table.get("backoff").is_some() { "backoff" } else { "backoff_max" };
        return Err(table.refuse_value(key, "`backoff` is longer than `backoff_max`"));
    }
    let format = |text: &str| {
        let known = [DataFormat::Bytes, DataFormat::Yaml].into_iter().find(|format| format.word() == text);
        known.ok_or_else(|| format!("{text:?} is no form of data, expected \"bytes\" or \"yaml\""))
    };
    let policy = Policy {
        data: table.map("data", format)?.unwrap_or(default.data),
        slots: table.count("slots")?.unwrap_or(default.slots),
        slots_each: table.count("slots_each")?,
        weight: table.count("weight")?.unwrap_or(default.weight),
        unique: table.map("unique", str::parse)?,
        attempts: table.number("attempts", 0)?.unwrap_or(default.attempts),
        time_limit: table.map("time_limit", positive)?.or(default.time_limit),
        grace: table.map("grace", when::duration)?.unwrap_or(default.grace),
        backoff,
        output_max: table.map("output", size)?.unwrap_or(default.output_max),
        hours: table.map("hours", hours)?,
        on_failure: table.map("on_failure", queue_name)?,
        ..default
    };
    pace::read(table, policy)
}

/// What is to be run, checked against the machine unless the queue is switched off; `key` has its argv.
fn read_command(table: &Table<'_, '_>, key: &str, enabled: bool) -> Result<Command, Failure> {
    let argv = table.argv(key)?;
    let environment = table.environment()?;
    let directory = match table.text("directory")? {
        None => std::path::PathBuf::from("/"),
        // A relative directory is meant from where the file stands, wherever the server was started.
        Some(text) => {
            let base = table.source.path.parent().unwrap_or(Path::new(""));
            std::path::absolute(base.join(text)).map_err(|e| table.refuse_value("directory", &e.to_string()))?
        }
    };
    if enabled && table.source.asks_machine {
        checks::directory(&directory).map_err(|why| table.refuse_value("directory", &why))?;
        let own = environment.iter().find(|(name, _)| name == b"PATH").map(|(_, value)| OsStr::from_bytes(value));
        let server = std::env::var_os("PATH");
        if let Some(program) = argv.first() {
            checks::program(program, &directory, own.or(server.as_deref()))
                .map_err(|why| table.refuse_value(key, &why))?;
        }
    }
    Ok(Command { argv, directory: path_bytes(&directory), environment })
}

fn positive(text: &str) -> Result<Duration, String> {
    match when::duration(text)? {
        Duration::ZERO => Err(format!("{text:?} is no time at all, expected a longer one")),
        longer => Ok(longer),
    }
}

pub(super) fn queue_name(text: &str) -> Result<QueueName, String> {
    QueueName::new(text.as_bytes()).map_err(|bad| bad.to_string())
}

/// A handler's own failures are handled by nobody, so a table that names it and a handler for it says what cannot be.
fn check_handlers(root: &Table<'_, '_>, queues: &[Policy], all: &[Policy]) -> Result<(), Failure> {
    for policy in queues.iter().filter(|policy| policy.on_failure.is_some()) {
        let handles =
            all.iter().find(|other| other.on_failure.as_ref().is_some_and(|of| of.as_str() == policy.pattern));
        let Some(other) = handles else { continue };
        let Some(section) = root.section("queue")? else { continue };
        let Some(DeValue::Table(table)) = section.get(&policy.pattern).map(Spanned::get_ref) else { continue };
        let table = Table { source: root.source, title: String::new(), table };
        let of = if other.pattern == policy.pattern { "its own jobs".into() } else { format!("`{}`", other.pattern) };
        let why = format!("`{}` handles the failures of {of}, and a handler that fails is not handled", policy.pattern);
        return Err(table.refuse_value("on_failure", &why).hint("leave `on_failure` out of this table"));
    }
    Ok(())
}

fn check_pattern(pattern: &str) -> Result<(), String> {
    match pattern.as_bytes() {
        [] => Err("the queue name is empty".into()),
        [first @ (b'-' | b'.'), ..] => Err(format!("a queue name may not begin with `{}`", *first as char)),
        long if long.len() > QUEUE_NAME_MAX => {
            Err(format!("the queue name has {} bytes, expected at most {QUEUE_NAME_MAX}", long.len()))
        }
        _ if pattern.chars().any(char::is_control) => Err("a queue name may not hold control characters".into()),
        _ => Ok(()),
    }
}

impl<'t> Source<'t> {
    /// The text as a table, with the variables in its strings filled in.
    fn parse(&self) -> Result<DeTable<'t>, Failure> {
        let mut table = self.parse_only()?;
        variables::fill(&mut table, self)?;
        Ok(table)
    }

    fn parse_only(&self) -> Result<DeTable<'t>, Failure> {
        let end = self.text.len();
        let parsed = DeTable::parse(self.text);
        let refused = |e: toml::de::Error| self.refuse(e.span().unwrap_or(end..end), first_line(e.message()));
        parsed.map(Spanned::into_inner).map_err(refused)
    }

    /// A refusal at a place of the file, `FILE:LINE:COLUMN: why`.
    fn refuse(&self, place: Range<usize>, why: &str) -> Failure {
        let before = self.text.get(..place.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Failure::new(Kind::Config, format!("{}:{line}:{column}: {why}", self.path.display()))
    }
}

impl<'t, 'i> Table<'t, 'i> {
    fn get(&self, key: &str) -> Option<&'t Value<'i>> {
        self.table.get(key)
    }

    /// Refuses the first key in the file that is not one of these.
    fn only(&self, known: &[&str]) -> Result<(), Failure> {
        let unknown = self.table.iter().filter(|(key, _)| !known.contains(&key.get_ref().as_ref()));
        let Some((key, value)) = unknown.min_by_key(|(key, _)| key.span().start) else { return Ok(()) };
        let name = key.get_ref();
        let refused =
            self.source.refuse(key.span(), &format!("unknown key `{}` in {}", name.escape_debug(), self.title));
        let near = nearest(name, known);
        let is_queue = self.title.starts_with("[queue.");
        Err(match (near, value.get_ref()) {
            (Some(near), _) => refused.hint(format!("did you mean `{near}`?")),
            (None, DeValue::Table(_)) if is_queue => {
                let inner = self.title.trim_start_matches("[queue.").trim_end_matches(']');
                refused.hint(format!("a queue name with a dot stands in quotes: [queue.\"{inner}.{name}\"]"))
            }
            (None, _) => refused.hint(format!("known here: {}", known.join(", "))),
        })
    }

    fn section(&self, key: &str) -> Result<Option<Table<'t, 'i>>, Failure> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.get_ref() {
                DeValue::Table(table) => Ok(Some(Table { source: self.source, title: format!("[{key}]"), table })),
                _ => Err(self.wrong(key, value, "a table")),
            },
        }
    }

    fn text(&self, key: &str) -> Result<Option<&'t str>, Failure> {
        self.get(key)
            .map(|value| value.get_ref().as_str().ok_or_else(|| self.wrong(key, value, "a string in quotes")))
            .transpose()
    }

    fn map<T>(&self, key: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, Failure> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        read(text).map(Some).map_err(|why| self.refuse_value(key, &format!("`{key}`: {why}")))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, Failure> {
        self.get(key)
            .map(|value| value.get_ref().as_bool().ok_or_else(|| self.wrong(key, value, "true or false")))
            .transpose()
    }

    /// A number of things of which there must be one at least.
    fn count(&self, key: &str) -> Result<Option<u32>, Failure> {
        self.number(key, 1)
    }

    fn number(&self, key: &str, least: u32) -> Result<Option<u32>, Failure> {
        const MOST: u32 = 1_000_000;
        let Some(value) = self.get(key) else { return Ok(None) };
        let DeValue::Integer(integer) = value.get_ref() else {
            return Err(self.wrong(key, value, "a whole number"));
        };
        let number = u32::from_str_radix(integer.as_str(), integer.radix()).ok();
        match number.filter(|n| (least..=MOST).contains(n)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.refuse_value(key, &format!("`{key}` is {integer}, expected {least} to {MOST}"))),
        }
    }

    /// A program and its arguments; nothing where the key is not there.
    fn argv(&self, key: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let DeValue::Array(array) = value.get_ref() else {
            let refused = self.wrong(key, value, "an array of strings");
            return Err(refused.hint(format!("no shell splits it: {key} = [\"PROGRAM\", \"ARGUMENT\"…]")));
        };
        if array.is_empty() {
            return Err(self.refuse_value(key, &format!("`{key}` is empty, expected a program and its arguments")));
        }
        let words = array.iter().map(|word| match word.get_ref().as_str() {
            Some(text) if text.contains('\0') => Err(self.source.refuse(word.span(), "an argument holds a NUL byte")),
            Some(text) => Ok(text.as_bytes().to_vec()),
            None => Err(self.wrong(key, word, "strings only")),
        });
        let argv: Vec<Vec<u8>> = words.collect::<Result<_, _>>()?;
        match argv[0].is_empty() {
            true => Err(self.refuse_value(key, &format!("the program in `{key}` is the empty string"))),
            false => Ok(argv),
        }
    }

    fn environment(&self) -> Result<Variables, Failure> {
        let Some(value) = self.get("environment") else { return Ok(Vec::new()) };
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong("environment", value, "a table such as { LEVEL = \"3\" }"));
        };
        let variables = table.iter().map(|(name, value)| {
            let key = name.get_ref().as_ref();
            let text = value.get_ref().as_str().ok_or_else(|| self.wrong(key, value, "a string in quotes"))?;
            let why = match key {
                "" => "a variable has an empty name".to_owned(),
                _ if key.contains(['=', '\0']) => format!("the variable {key:?} holds `=` or NUL"),
                _ if text.contains('\0') => format!("the variable {key:?} has a NUL byte in its value"),
                _ if key.starts_with("WINDLASS_") => format!("{key:?} is set by windlass itself for each job"),
                _ => return Ok((key.as_bytes().to_vec(), text.as_bytes().to_vec())),
            };
            Err(self.source.refuse(name.span(), &why))
        });
        variables.collect()
    }

    /// A refusal that points at the value of a key.
    fn refuse_value(&self, key: &str, why: &str) -> Failure {
        let place = self.get(key).map_or(0..0, Spanned::span);
        self.source.refuse(place, why)
    }

    fn wrong(&self, key: &str, value: &Value<'_>, expected: &str) -> Failure {
        self.source.refuse(value.span(), &format!("`{key}` is {}, expected {expected}", article(value)))
    }
}

fn article(value: &Value<'_>) -> String {
    let kind = value.get_ref().type_str();
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}

/// A queue name as the file needs it: bare where TOML allows it.
pub(super) fn quoted(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if bare { name.to_owned() } else { format!("{name:?}") }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}
