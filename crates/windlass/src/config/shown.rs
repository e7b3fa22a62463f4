//! The config as it holds, key by key: each value as the file would have it, and the line on which it stands.
//!
//! What `config show` prints and `config diff` compares. The values come from the checked form, so defaults are
//! among them. It must not know overrides: those are laid over by whoever shows them.

use super::masked::masked;
use super::reader::limits;
use super::{Config, Feeder, Handlers, Pipeline, reader};
use crate::config::units::exact_size;
use crate::schedule::{Schedule, What};
use crate::store::place::StorePlace;
use crate::when;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use windlass_core::notify::{Ending, Notify, name_of};
use windlass_core::policy::{Batch, Command, Policy, Reply, Service, Url, Worker};
use windlass_core::router::Router;

/// A table and a key of it, and where the key stands.
pub(super) type Lines = BTreeMap<(String, String), Origin>;

/// The place of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// None for the main file.
    pub(super) file: Option<PathBuf>,
    pub(super) line: usize,
}

/// A config as it was read.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// None where there is no file, and every value is a default.
    pub file: Option<PathBuf>,
    pub config: Config,
    /// Why what the file says now was not taken over, where that is so.
    pub refused: Option<String>,
    pub(super) lines: Lines,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// `limits`, `server`, `archive`, `log`, `traces`, `progress`, `schedule.NAME`, or the name of a queue's table.
    pub table: String,
    /// True for the table of a queue.
    pub queue: bool,
    pub key: String,
    /// As TOML; none where the key has no value by default.
    pub value: Option<String>,
    /// None where it is the default.
    pub line: Option<usize>,
    /// The file of `conf.d` that has it; none for the main file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl Entry {
    /// As it stands in the file: `[queue.mail] slots`.
    pub fn name(&self) -> String {
        match self.queue {
            true => format!("[queue.{}] {}", reader::quoted(&self.table), self.key),
            false => format!("[{}] {}", self.table, self.key),
        }
    }

    /// Without the secrets in its value.
    #[must_use]
    pub fn masked(mut self) -> Entry {
        self.value = self.value.as_deref().map(masked);
        self
    }

    /// True where a running server takes a new value over.
    pub fn is_live(&self) -> bool {
        let live = ["limits", "defaults", "handlers", "subscribe", "spool"].contains(&self.table.as_str());
        self.queue || live || ["schedule.", "pipeline.", "notify."].iter().any(|of| self.table.starts_with(of))
    }
}

/// One key that differs between two configs; a table that only one of them has differs in every key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub name: String,
    pub table: String,
    pub key: String,
    pub old: Option<String>,
    pub new: Option<String>,
    /// The line of the new value.
    pub line: Option<usize>,
    /// False where it takes a restart.
    pub live: bool,
}

impl Loaded {
    pub fn entries(&self) -> Vec<Entry> {
        let Config {
            slots,
            machine,
            hosts,
            store,
            nudge,
            defaults,
            handlers,
            channels,
            queues,
            schedules,
            router,
            pipelines,
            ..
        } = &self.config;
        let mut entries = Vec::new();
        let mut add = |table: &str, queue: bool, key: &str, value: Option<String>| {
            let section = if queue { format!("queue.{table}") } else { table.to_owned() };
            let (line, file) = self.origin(section, key);
            entries.push(Entry { table: table.to_owned(), queue, key: key.to_owned(), value, line, file });
        };
        add("limits", false, "slots", Some(slots.to_string()));
        add("limits", false, "memory", machine.memory.map(|bytes| format!("\"{}\"", exact_size(bytes))));
        add("limits", false, "users", Some(format!("{:?}", machine.users)));
        let names: Vec<String> = hosts.iter().map(|host| format!("{host:?}")).collect();
        add("limits", false, "hosts", Some(format!("[{}]", names.join(", "))));
        for (key, value) in store_values(store) {
            add("store", false, key, value);
        }
        add("nudge", false, "udp", nudge.map(|address| format!("\"{address}\"")));
        for (table, key, value) in self.of_the_server() {
            add(table, false, key, value);
        }
        for key in reader::defaults::KEYS {
            add("defaults", false, key, queue_value(defaults, key));
        }
        if let Some(Handlers { path, policy }) = handlers {
            add("handlers", false, "path", Some(format!("{:?}", path.display().to_string())));
            for key in reader::terms() {
                add("handlers", false, key, queue_value(policy, key));
            }
        }
        for policy in queues {
            for key in own_keys(policy) {
                add(&policy.pattern, true, key, queue_value(policy, key));
            }
        }
        for channel in channels {
            self.add_channel(channel, &mut entries);
        }
        for schedule in schedules {
            let table = format!("schedule.{}", reader::quoted(&schedule.name));
            for (key, value) in schedule_values(schedule) {
                let (line, file) = self.origin(format!("schedule.{}", schedule.name), key);
                let (table, key) = (table.clone(), key.to_owned());
                entries.push(Entry { table, queue: false, key, value, line, file });
            }
        }
        for pipeline in pipelines {
            self.add_pipeline(pipeline, &mut entries);
        }
        self.add_subscriptions(router, &mut entries);
        entries
    }

    /// What the server itself goes by, table by table.
    fn of_the_server(&self) -> Vec<(&'static str, &'static str, Option<String>)> {
        let Config { server, archive, log, traces, progress, spools, .. } = &self.config;
        let shown: Vec<String> = spools.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        vec![
            ("spool", "show", Some(format!("{shown:?}"))),
            ("server", "listen", Some(format!("\"{}\"", server.listen))),
            ("server", "drain", Some(format!("\"{}\"", when::exact(server.drain)))),
            ("archive", "bodies", Some(archive.bodies.to_string())),
            ("archive", "keep_succeeded", Some(format!("\"{}\"", when::exact(archive.keep_succeeded)))),
            ("archive", "keep_failed", Some(format!("\"{}\"", when::exact(archive.keep_failed)))),
            ("archive", "max_size", Some(format!("\"{}\"", exact_size(archive.max_size)))),
            ("log", "format", Some(format!("\"{}\"", log.format.word()))),
            ("log", "level", Some(format!("\"{}\"", log.level.word()))),
            ("log", "file", log.file.as_ref().map(|file| format!("{:?}", file.display().to_string()))),
            ("traces", "export", traces.export.as_ref().map(|collector| format!("\"{collector}\""))),
            ("traces", "service", Some(format!("{:?}", traces.service))),
            ("progress", "memcached", progress.memcached.as_ref().map(|address| format!("{:?}", address.to_string()))),
            ("progress", "key", Some(format!("{:?}", progress.key.to_string()))),
            ("progress", "keep", Some(format!("\"{}\"", when::exact(progress.keep)))),
        ]
    }

    fn add_subscriptions(&self, router: &Router, entries: &mut Vec<Entry>) {
        for subscription in router.iter() {
            let names: Vec<String> = subscription.listeners.iter().map(|name| format!("{:?}", name.as_str())).collect();
            let (line, file) = self.origin("subscribe".to_owned(), &subscription.pattern);
            let (key, value) = (reader::quoted(&subscription.pattern), Some(format!("[{}]", names.join(", "))));
            entries.push(Entry { table: "subscribe".to_owned(), queue: false, key, value, line, file });
        }
    }

    fn add_channel(&self, channel: &Policy, entries: &mut Vec<Entry>) {
        let name = name_of(&channel.pattern);
        for key in own_keys(channel).filter(|key| reader::notify::is_for_channels(key)) {
            let (line, file) = self.origin(channel.pattern.clone(), key);
            let (table, value) = (format!("notify.{}", reader::quoted(name)), queue_value(channel, key));
            entries.push(Entry { table, queue: false, key: key.to_owned(), value, line, file });
        }
    }

    fn add_pipeline(&self, pipeline: &Pipeline, entries: &mut Vec<Entry>) {
        let mut add = |section: String, table: String, key: &str, value: Option<String>| {
            let (line, file) = self.origin(section, key);
            entries.push(Entry { table, queue: false, key: key.to_owned(), value, line, file });
        };
        let (section, table) =
            (format!("pipeline.{}", pipeline.name), format!("pipeline.{}", reader::quoted(&pipeline.name)));
        let memory = pipeline.memory.map(|bytes| format!("\"{}\"", exact_size(bytes)));
        add(section.clone(), table.clone(), "memory", memory);
        if let Some(Feeder { name, argv }) = &pipeline.feeder {
            let words: Vec<String> = argv.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            let table = format!("{table}.{}", reader::quoted(name));
            add(format!("{section}.{name}"), table, "feed", Some(format!("{words:?}")));
        }
        for ((stage, rules), store) in pipeline.stages.iter().zip(&pipeline.rules).zip(&pipeline.stores) {
            let section = format!("{section}.{}", stage.name);
            let table = format!("{table}.{}", reader::quoted(&stage.name));
            let Some(flow) = &rules.flow else { continue };
            add(section.clone(), table.clone(), "to", Some(format!("{:?}", stage.to)));
            let store = store.as_ref().map(|store| format!("{:?}", store.to_string()));
            add(section.clone(), table.clone(), "store", store);
            add(section.clone(), table.clone(), "limit", (flow.limit > 0).then(|| flow.limit.to_string()));
            add(section.clone(), table.clone(), "pass", Some(format!("\"{}\"", flow.pass.word())));
            // As the file has it; how many of them fit is `pipeline check`'s to say.
            let asked = Policy { slots: stage.slots, ..rules.clone() };
            for key in reader::queue_keys(&rules.service) {
                add(section.clone(), table.clone(), key, queue_value(&asked, key));
            }
        }
    }

    fn origin(&self, section: String, key: &str) -> (Option<usize>, Option<String>) {
        // A default that the file sets stands where it sets it.
        let of_defaults = || {
            let takes = ["queue.", "notify.", "pipeline.", "handlers"].iter().any(|of| section.starts_with(of));
            self.lines.get(&("defaults".to_owned(), key.to_owned())).filter(|_| takes)
        };
        let origin = self.lines.get(&(section.clone(), key.to_owned())).or_else(of_defaults);
        let file = origin.and_then(|origin| origin.file.as_ref()).map(|file| file.display().to_string());
        (origin.map(|origin| origin.line), file)
    }
}

/// Without a table elsewhere only the address could be said, and there is none.
fn store_values(store: &StorePlace) -> Vec<(&'static str, Option<String>)> {
    let Some(table) = store.table() else { return vec![("url", None)] };
    let pairs: Vec<String> = table.map.iter().map(|(column, name)| format!("{column} = {name:?}")).collect();
    vec![
        ("url", Some(format!("{:?}", table.database.secret()))),
        ("table", Some(format!("{:?}", table.table))),
        ("schema", table.schema.as_ref().map(|schema| format!("{schema:?}"))),
        ("map", Some(if pairs.is_empty() { "{}".into() } else { format!("{{ {} }}", pairs.join(", ")) })),
        ("keep", Some(format!("\"{}\"", table.keep.word()))),
        ("keep_most", table.keep_most.map(|most| most.to_string())),
        ("lease", Some(format!("\"{}\"", when::exact(table.lease)))),
    ]
}

fn schedule_values(schedule: &Schedule) -> [(&'static str, Option<String>); 9] {
    let Schedule { cron, overlap, catch_up, enabled, push, terms, .. } = schedule;
    let what = match &push.what {
        What::Data(text) => format!("data = {text:?}"),
        What::Lines(command) => format!("from = {}", argv_value(command)),
    };
    let push = format!("{{ queue = {:?}, {what}, priority = {} }}", push.queue.as_str(), push.priority);
    [
        ("cron", Some(format!("\"{cron}\""))),
        ("zone", Some(format!("\"{}\"", cron.zone_name()))),
        ("overlap", Some(format!("\"{}\"", overlap.word()))),
        ("catch_up", Some(format!("\"{}\"", catch_up.word()))),
        ("enabled", Some(enabled.to_string())),
        ("time_limit", terms.time_limit.map(|limit| format!("\"{}\"", when::exact(limit)))),
        ("notify", notify_value(&terms.notify, "notify")),
        ("notify_on", notify_value(&terms.notify, "notify_on")),
        ("push", Some(push)),
    ]
}

/// Where nobody is told there is nothing to say of what.
fn notify_value(notify: &Notify, key: &str) -> Option<String> {
    let list = |words: Vec<&str>| (!notify.channels.is_empty()).then(|| format!("{words:?}"));
    match key {
        "notify" => list(notify.names().collect()),
        _ => list(notify.on.iter().map(Ending::word).collect()),
    }
}

/// The keys of a table; what no process serves has none of those that are for processes.
fn own_keys(policy: &Policy) -> impl Iterator<Item = &'static str> {
    let no_process = matches!(policy.service, Service::Url(_) | Service::Remote(_) | Service::Forward(_));
    let of_commands = move |key: &&str| no_process && matches!(*key, "environment" | "directory");
    reader::queue_keys(&policy.service).filter(move |key| !of_commands(key))
}

fn argv_value(command: &Command) -> String {
    let words = command.argv.iter().map(|word| format!("{:?}", String::from_utf8_lossy(word)));
    format!("[{}]", words.collect::<Vec<_>>().join(", "))
}

/// The value of a queue's key.
fn queue_value(policy: &Policy, key: &str) -> Option<String> {
    let none = Command::default();
    let command = policy.service.command().unwrap_or(&none);
    let time = |time| format!("\"{}\"", when::exact(time));
    let text = |bytes: &[u8]| format!("{:?}", String::from_utf8_lossy(bytes));
    if let Some(value) = limits::value(policy, key) {
        return value;
    }
    match key {
        "run" | "batch" | "worker" if command.argv.is_empty() => None,
        "run" | "batch" | "worker" => Some(argv_value(command)),
        "data" => Some(format!("\"{}\"", policy.data.word())),
        "slots" => Some(policy.slots.to_string()),
        "slots_each" => policy.slots_each.map(|slots| slots.to_string()),
        "weight" => Some(policy.weight.to_string()),
        "unique" => policy.unique.map(|scope| format!("\"{}\"", scope.word())),
        "attempts" => Some(policy.attempts.to_string()),
        "time_limit" => policy.time_limit.map(time),
        "grace" => Some(time(policy.grace)),
        "backoff" => Some(time(policy.backoff.base)),
        "backoff_max" => Some(time(policy.backoff.cap)),
        "output" => Some(format!("\"{}\"", exact_size(policy.output_max))),
        "environment" => {
            let pair = |(name, value): &(Vec<u8>, Vec<u8>)| {
                format!("{} = {}", reader::quoted(&String::from_utf8_lossy(name)), text(value))
            };
            let pairs: Vec<String> = command.environment.iter().map(pair).collect();
            Some(if pairs.is_empty() { "{}".into() } else { format!("{{ {} }}", pairs.join(", ")) })
        }
        "directory" => Some(text(&command.directory)),
        "enabled" => Some(policy.enabled.to_string()),
        "rate" => policy.rate.map(|rate| format!("\"{rate}\"")),
        "rate_key" => policy.rate_key.as_ref().map(|key| format!("{key:?}")),
        "dead_after" => Some(policy.dead_after.to_string()),
        "on_failure" => policy.on_failure.as_ref().map(|queue| format!("{:?}", queue.as_str())),
        "notify" | "notify_on" => notify_value(&policy.notify, key),
        "hours" => policy.hours.as_ref().map(|hours| format!("\"{hours}\"")),
        _ => match &policy.service {
            Service::Batch(batch) => batch_value(batch, key),
            Service::Worker(worker) => worker_value(worker, key),
            Service::Url(url) => url_value(url, key),
            Service::Remote(remote) => match key {
                "remote" => Some("true".into()),
                "lease" => Some(time(remote.lease)),
                _ => None,
            },
            Service::Forward(forward) => match key {
                "forward" => Some(format!("\"{forward}\"")),
                "token_file" => forward.token_file.as_ref().map(|file| format!("{file:?}")),
                _ => None,
            },
            Service::Command(_) | Service::Handler { .. } => None,
        },
    }
}

fn batch_value(batch: &Batch, key: &str) -> Option<String> {
    match key {
        "batch_size" => Some(batch.size.to_string()),
        "batch_bytes" => Some(format!("\"{}\"", exact_size(batch.bytes))),
        "batch_linger" => Some(format!("\"{}\"", when::exact(batch.linger))),
        "reply" => Some(format!("\"{}\"", batch.reply.word())),
        "framing" => Some(format!("\"{}\"", batch.framing.word())),
        _ => None,
    }
}

fn worker_value(worker: &Worker, key: &str) -> Option<String> {
    match key {
        "framing" => Some(format!("\"{}\"", worker.framing.word())),
        "in_flight" => Some(worker.in_flight.to_string()),
        "worker_jobs" => Some(worker.jobs.to_string()),
        "worker_age" => worker.age.map(|age| format!("\"{}\"", when::exact(age))),
        "worker_memory" => Some(format!("\"{}\"", exact_size(worker.memory))),
        "worker_idle" => Some(format!("\"{}\"", when::exact(worker.idle))),
        "lua" => worker.lua.as_ref().map(|lua| format!("{:?}", String::from_utf8_lossy(&lua.file))),
        "lua_memory" => worker.lua.as_ref().map(|lua| format!("\"{}\"", exact_size(lua.memory))),
        _ => None,
    }
}

fn url_value(url: &Url, key: &str) -> Option<String> {
    let reply = match url.reply {
        Reply::Lines => "lines",
        Reply::Exit => "status",
    };
    match key {
        "url" => Some(format!("\"{url}\"")),
        "method" => Some(format!("\"{}\"", url.method.word())),
        "batch_size" => Some(url.size.to_string()),
        "secret_file" => url.secret.as_ref().map(|secret| format!("{:?}", secret.file)),
        // These are for calls with many jobs.
        "batch_bytes" | "batch_linger" | "reply" | "framing" if url.size == 1 => None,
        "batch_bytes" => Some(format!("\"{}\"", exact_size(url.bytes))),
        "batch_linger" => Some(format!("\"{}\"", when::exact(url.linger))),
        "reply" => Some(format!("\"{reply}\"")),
        "framing" => Some(format!("\"{}\"", url.framing.word())),
        _ => None,
    }
}

/// What taking over `new` in the place of `old` would change.
pub fn diff(old: &[Entry], new: &[Entry]) -> Vec<Change> {
    let same = |a: &Entry, b: &Entry| (a.queue, &a.table, &a.key) == (b.queue, &b.table, &b.key);
    let change = |entry: &Entry, old: Option<String>, new: Option<String>, line: Option<usize>| Change {
        name: entry.name(),
        table: entry.table.clone(),
        key: entry.key.clone(),
        old: old.as_deref().map(masked),
        new: new.as_deref().map(masked),
        line,
        live: entry.is_live(),
    };
    let mut changes = Vec::new();
    for entry in new {
        let before = old.iter().find(|old| same(old, entry)).and_then(|old| old.value.clone());
        if before != entry.value {
            changes.push(change(entry, before, entry.value.clone(), entry.line));
        }
    }
    for entry in old.iter().filter(|old| !new.iter().any(|new| same(old, new))) {
        if entry.value.is_some() {
            changes.push(change(entry, entry.value.clone(), None, None));
        }
    }
    let tables = |entries: &[Entry]| -> Vec<String> {
        let mut tables: Vec<String> = entries.iter().filter(|e| e.queue).map(|e| e.table.clone()).collect();
        tables.dedup();
        tables
    };
    let (before, after) = (tables(old), tables(new));
    let names = |tables: &[String]| tables.iter().cloned().collect::<BTreeSet<_>>();
    if before != after && names(&before) == names(&after) {
        // The first match wins, so the order is a value of its own.
        let list = |tables: &[String]| Some(tables.join(", "));
        let (old, new) = (list(&before), list(&after));
        let (name, table, key) = ("the order of the queues".to_owned(), "queue".to_owned(), "order".to_owned());
        changes.push(Change { name, table, key, old, new, line: None, live: true });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn loaded(text: &str) -> Loaded {
        Loaded::parse(Path::new("w.toml"), text).unwrap()
    }

    fn shown(text: &str) -> Vec<String> {
        let line = |line: Option<usize>| line.map(|line| format!(" # {line}")).unwrap_or_default();
        let entries = loaded(text).entries();
        entries
            .iter()
            .map(|e| format!("{} = {}{}", e.name(), e.value.as_deref().unwrap_or("-"), line(e.line)))
            .collect()
    }

    #[test]
    fn every_value_with_its_line() {
        let text = "[limits]\nslots = 0x3\n\n[queue.\"a.*\"]\nrun = [\"true\", \"{}\"]\nhours = \"1:00-2:00 UTC\"\n\
                    environment = { LEVEL = \"3\" }\ngrace = \"PT90M\"\n";
        let shown = shown(text);
        for line in [
            "[limits] slots = 3 # 2",
            "[server] drain = \"25s\"",
            "[archive] max_size = \"10GiB\"",
            "[queue.\"a.*\"] run = [\"true\", \"{}\"] # 5",
            "[queue.\"a.*\"] hours = \"1:00-2:00 UTC\" # 6",
            "[queue.\"a.*\"] environment = { LEVEL = \"3\" } # 7",
            "[queue.\"a.*\"] grace = \"1h30m\" # 8",
            "[queue.\"a.*\"] time_limit = -",
            "[queue.\"a.*\"] slots = 4",
        ] {
            assert!(shown.iter().any(|shown| shown == line), "{line} in {shown:#?}");
        }
        assert_eq!(
            shown.len(),
            21 + 8 + 27,
            "of the server, its spools, store, log, traces, progress, the defaults, and those of a queue with `run`"
        );
    }

    #[test]
    fn what_is_shown_means_the_same_when_it_is_read_again() {
        let text = "[server]\ndrain = \"1d1h1m1s5ms\"\n[queue.q]\nrun = [\"true\"]\noutput = \"1025\"\n\
             backoff = \"1500ms\"\n\
             [queue.b]\nbatch = [\"true\"]\nbatch_size = 7\nbatch_bytes = \"3MiB\"\nslots_each = 2\n\
             batch_linger = \"20ms\"\nreply = \"exit\"\n\
             framing = \"json\"\nrate = \"7/90s\"\nrate_key = \"{data.host}\"\ndead_after = 3\n\
             [queue.w]\nworker = [\"true\"]\nframing = \"json\"\nin_flight = 3\nworker_jobs = 9\nworker_age = \"2h\"\n\
             worker_memory = \"3MiB\"\nworker_idle = \"61s\"\n[queue.defaults]\nworker = [\"true\"]\n\
             [queue.l]\nlua = \"/m/{queue}.lua\"\nlua_memory = \"5MiB\"\nworker_jobs = 3\n\
             [queue.u]\nurl = \"https://[2606:4700::1]:8443/a/{queue}?x=1\"\nbatch_size = 9\nreply = \"status\"\n\
             batch_bytes = \"70KiB\"\n\
             framing = \"json\"\nbatch_linger = \"5ms\"\n[queue.one]\nurl = \"http://example.org\"\nmethod = \"GET\"\n\
             [queue.inside]\nurl = \"http://127.0.0.1:99/\"\n[limits]\nhosts = [\"127.0.0.1:99\"]\n\
             [traces]\nexport = \"http://127.0.0.1:4318/v1/traces\"\nservice = \"nightly\"\n\
             [progress]\nmemcached = \"[::1]:11211\"\nkey = \"p/{queue}/{id} %\"\nkeep = \"90s\"\n\
             [store]\nurl = \"postgres://ann:pw@db/app\"\ntable = \"work\"\nmap = { queue = \"kind\" }\n\
             keep = \"none\"\nlease = \"9s\"\n\
             [notify.ops]\nurl = \"https://example.org/\"\n[queue.told]\nrun = [\"true\"]\n\
             notify = [\"ops\"]\nnotify_on = [\"succeeded\", \"late\"]\n[nudge]\nudp = \"127.0.0.1:4488\"\n";
        let first = loaded(text);
        let mut again = String::new();
        let mut table = String::new();
        for entry in first.entries() {
            let head = entry.name().rsplit_once(' ').unwrap().0.to_owned();
            if head != table {
                again.push_str(&format!("{head}\n"));
                table = head;
            }
            again.extend(entry.value.map(|value| format!("{} = {value}\n", entry.key)));
        }
        assert_eq!(loaded(&again).config, first.config);
        let said = |table: &str| first.entries().iter().filter(|e| e.table == table && e.value.is_none()).count();
        assert_eq!(
            (said("b"), said("w")),
            (11, 12),
            "but for `time_limit`, `hours`, `on_failure`, `notify`, `unique`, limits, in one `rate` and `slots_each`"
        );
    }

    #[test]
    fn differences() {
        let old = loaded("[queue.a]\nrun = [\"true\"]\n[queue.b]\nrun = [\"true\"]\nslots = 3\n").entries();
        let new =
            loaded("[server]\ndrain = \"1s\"\n[queue.b]\nrun = [\"true\"]\n[queue.a]\nrun = [\"true\"]\n").entries();
        assert_eq!(diff(&old, &old), []);
        let changes = diff(&old, &new);
        let told: Vec<_> = changes.iter().map(|c| (c.name.as_str(), c.line, c.live)).collect();
        let expected = [
            ("[server] drain", Some(2), false),
            ("[queue.b] slots", None, true),
            ("the order of the queues", None, true),
        ];
        assert_eq!(told, expected);
        let gone = diff(&old, &loaded("[queue.b]\nrun = [\"true\"]\nslots = 3\n").entries());
        assert!(gone.iter().all(|c| c.table == "a" && c.new.is_none()) && gone.len() > 5);
    }
}
