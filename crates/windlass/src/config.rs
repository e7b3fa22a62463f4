//! The config file: read once, checked as a whole, refused with file, line and column; `policies` is its essence.
//!
//! This file owns the checked form and its defaults. `config/reader.rs` turns TOML into it, `config/checks.rs` asks
//! the machine (programs, directories). It must not start anything, and nothing else reads the file.

mod checks;
mod masked;
mod reader;
mod shown;
pub mod units;
mod zone;

pub(crate) use checks::program as check_program;
pub(crate) use reader::forward::{target as forward_target, token_file};
pub use shown::{Change, Entry, Loaded, diff};

use crate::data_dir;
use crate::error::{Failure, Kind};
use crate::handlers_dir;
use crate::log::LogOptions;
use crate::memcached::ProgressOptions;
use crate::runner::lua;
use crate::schedule::Schedule;
use crate::server::ArchiveOptions;
use crate::spans::TraceOptions;
use crate::store::place::{StagePlace, StorePlace};
use reader::limits::Machine;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use windlass_core::pipeline::Stage;
use windlass_core::policy::{Command, HandlerFile, Identity, Limits, Lua, Policy, Service};
use windlass_core::router::Router;

/// The commented default file, as `windlass config init` writes it.
pub const DEFAULT_FILE: &str = include_str!("../default-config.toml");

/// No sensible file comes near it; a larger one is a mistake that must not cost memory.
pub const SIZE_MAX: u64 = 1 << 20;

/// What a command inherits from the server; everything else of its environment stands in the file.
const INHERITED: [&str; 5] = ["PATH", "HOME", "LANG", "USER", "TZ"];

/// A checked config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Starts in flight at once, over all queues.
    pub slots: u32,
    /// What all queues share of the machine: memory to plan with, and the users that jobs may run as.
    machine: Machine,
    /// Hosts on this machine or in a private network that may be called: `NAME:PORT`, or `NAME` for any port.
    pub hosts: Vec<String>,
    /// Where the jobs are.
    pub store: StorePlace,
    /// Where datagrams are awaited that say that there is work.
    pub nudge: Option<SocketAddr>,
    pub server: Server,
    pub archive: ArchiveOptions,
    pub log: LogOptions,
    pub traces: TraceOptions,
    /// Where progress is kept beside the server.
    pub progress: ProgressOptions,
    /// The directories of documents that are shown beside the queues.
    pub spools: Vec<PathBuf>,
    /// Its terms are those of every table that does not say otherwise.
    pub defaults: Policy,
    /// The directory of handlers, which goes before every table.
    pub handlers: Option<Handlers>,
    /// Those that are told of ends, each with the queue of its name; their tables go before all others.
    pub channels: Vec<Policy>,
    /// In the order of the file: the first match wins. Environments lack what is inherited.
    pub queues: Vec<Policy>,
    pub schedules: Vec<Schedule>,
    /// Who hears the jobs of which queues.
    pub router: Router,
    pub pipelines: Vec<Pipeline>,
    /// For verbs, not for the server.
    pub profiles: BTreeMap<String, Profile>,
}

/// A checked pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    pub name: String,
    /// What the workers of all its stages may need together.
    pub memory: Option<u64>,
    /// As the file has them; input comes in at the first.
    pub stages: Vec<Stage>,
    /// What serves each, with as many slots as fit into memory.
    pub rules: Vec<Policy>,
    /// Where each is kept, where it says so itself.
    pub stores: Vec<Option<StagePlace>>,
    /// What makes its input, where that is a stage without one.
    pub feeder: Option<Feeder>,
}

/// A stage without an input: each line that its command writes is one of the first stage behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feeder {
    pub name: String,
    pub argv: Vec<Vec<u8>>,
}

impl Pipeline {
    /// Whether all stages are kept where whoever runs it keeps its jobs: those of others no server serves.
    pub fn is_of_one_store(&self) -> bool {
        self.stores.iter().all(Option::is_none)
    }
}

/// A name for a data directory or a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub dir: Option<PathBuf>,
    /// What `serve` and `tick` read.
    pub config: Option<PathBuf>,
    /// Whom verbs speak to, where they go through the API.
    pub server: Option<String>,
    pub token_file: Option<PathBuf>,
}

/// The directory of handlers, and how its files are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handlers {
    pub path: PathBuf,
    pub policy: Policy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The loopback address of the HTTP listener; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// How long a stopping server lets running jobs go on.
    pub drain: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            slots: 8,
            machine: Machine::default(),
            hosts: Vec::new(),
            store: StorePlace::default(),
            nudge: None,
            server: Server { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), drain: Duration::from_secs(25) },
            archive: ArchiveOptions::default(),
            log: LogOptions::default(),
            traces: TraceOptions::default(),
            progress: ProgressOptions::default(),
            spools: Vec::new(),
            defaults: Policy::new("defaults", Service::Command(Command::default())),
            handlers: None,
            channels: Vec::new(),
            queues: Vec::new(),
            schedules: Vec::new(),
            router: Router::default(),
            pipelines: Vec::new(),
            profiles: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Reads and checks a file, the machine's side included: programs and directories must be there.
    pub fn load(path: &Path) -> Result<Config, Failure> {
        Loaded::load(path).map(|loaded| loaded.config)
    }

    /// Checks a text as if it stood in the file `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Config, Failure> {
        Loaded::parse(path, text).map(|loaded| loaded.config)
    }

    /// Memory to plan with: what the file says, else what the machine has.
    pub fn memory(&self) -> Option<u64> {
        self.machine.memory.or_else(checks::machine_memory)
    }

    /// The rules for the engine, in the file's order; the crews of commands that list for a schedule and the channels
    /// come before them, so that no pattern takes their queues.
    pub fn policies(&self) -> Vec<Policy> {
        self.policies_under(&|name| std::env::var_os(name))
    }

    /// The rules of the stages of a pipeline, for whoever runs them.
    pub fn rules_of(&self, pipeline: &Pipeline) -> Vec<Policy> {
        let rules = pipeline.rules.iter().cloned();
        rules.map(|policy| with_environment(policy, &|name| std::env::var_os(name))).collect()
    }

    fn policies_under(&self, variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<Policy> {
        let lists = self.schedules.iter().filter_map(Schedule::crew);
        let handlers = self.handlers.iter().flat_map(Handlers::policies);
        let served = self.pipelines.iter().filter(|pipeline| pipeline.is_of_one_store());
        let stages = served.flat_map(|pipeline| pipeline.rules.iter().cloned());
        let channels = self.channels.iter().cloned();
        let all = lists.chain(channels).chain(stages).chain(handlers).chain(self.queues.iter().cloned());
        all.map(|policy| with_environment(policy, variable)).collect()
    }
}

impl Handlers {
    /// The crews that serve it: one for the programs, and one on the same terms for the modules where there is Lua.
    fn policies(&self) -> Vec<Policy> {
        let command = self.policy.service.command().filter(|_| lua::IS_BUILT_IN).cloned();
        let modules = command.map(|command| {
            let module = Lua { file: path_bytes(&self.path.join("{queue}.lua")), memory: Lua::MEMORY };
            let (pattern, service) = (handlers_dir::LUA_NAME.to_owned(), Service::Worker(lua::worker(command, module)));
            // A process that stays has no end to count these up to.
            let limits = Limits { cpu: Duration::ZERO, output: 0, ..self.policy.limits };
            Policy { pattern, service, limits, by_file: Some(HandlerFile::Lua), ..self.policy.clone() }
        });
        std::iter::once(self.policy.clone()).chain(modules).collect()
    }
}

impl Loaded {
    /// Reads a file and what lies beside it in `conf.d`, each once, checks it as `Config::load` does, and notes where
    /// each value stands.
    pub fn load(path: &Path) -> Result<Loaded, Failure> {
        Loaded::read(path, true)
    }

    /// Reads it as a text of another machine: programs and directories need not be here.
    pub fn load_elsewhere(path: &Path) -> Result<Loaded, Failure> {
        Loaded::read(path, false)
    }

    fn read(path: &Path, asks_machine: bool) -> Result<Loaded, Failure> {
        let mut files = vec![(path.to_owned(), read_text(path)?)];
        for part in parts_of(path)? {
            let text = read_text(&part)?;
            files.push((part, text));
        }
        Loaded::of_files(&files, asks_machine)
    }

    pub fn parse(path: &Path, text: &str) -> Result<Loaded, Failure> {
        Loaded::of_files(&[(path.to_owned(), text.to_owned())], true)
    }

    /// The main file, and those that lie over it.
    fn of_files(files: &[(PathBuf, String)], asks_machine: bool) -> Result<Loaded, Failure> {
        let texts = files.iter().map(|(path, text)| (path.as_path(), text.trim_start_matches('\u{feff}')));
        let texts: Vec<(&Path, &str)> = texts.collect();
        let config = reader::read(&texts, asks_machine)?;
        let file = files.first().map(|(path, _)| path.clone());
        Ok(Loaded { file, config, refused: None, lines: reader::lines(&texts) })
    }
}

/// `conf.d/*.toml` beside a `windlass.toml`, in the order of their names. A file of another name stands for itself.
fn parts_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let folder = path.with_file_name("conf.d");
    if path.file_name() != Some(OsStr::new(USUAL_NAME)) || !folder.is_dir() {
        return Ok(Vec::new());
    }
    let cannot = |e: std::io::Error| Failure::new(Kind::Config, format!("cannot list {}: {e}", folder.display()));
    let mut parts = Vec::new();
    for entry in folder.read_dir().map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        let hidden = name.as_bytes().starts_with(b".");
        if !hidden && Path::new(&name).extension() == Some(OsStr::new("toml")) {
            parts.push(folder.join(name));
        }
    }
    parts.sort();
    Ok(parts)
}

/// Puts the few inherited variables under what the file says.
fn with_environment(mut policy: Policy, variable: &dyn Fn(&str) -> Option<OsString>) -> Policy {
    let user = policy.user.clone();
    if let Some(Command { environment, .. }) = policy.service.command_mut() {
        let inherited = INHERITED.into_iter().filter_map(|name| Some((name.into(), variable(name)?.into_vec())));
        let mut built: BTreeMap<Vec<u8>, Vec<u8>> = inherited.collect();
        if let Some(Identity { name, home, .. }) = user {
            // The server's own would send it to a home that is not its own.
            built.extend([(b"HOME".to_vec(), home), (b"USER".to_vec(), name.into_bytes())]);
        }
        built.extend(environment.drain(..));
        *environment = built.into_iter().collect();
    }
    policy
}

const USUAL_NAME: &str = "windlass.toml";

/// The file that `serve` reads when none is named: that of `WINDLASS_CONFIG`, else the first there is in the data
/// directory, where a service manager says, in the user's config directory, and for root in `/etc/windlass`.
pub fn usual_file(data_dir: &Path) -> Option<PathBuf> {
    let named = std::env::var_os("WINDLASS_CONFIG").filter(|named| !named.is_empty()).map(PathBuf::from);
    let beside = std::iter::once(data_dir.join(USUAL_NAME));
    let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
    named.or_else(|| beside.chain(outside_files()).find(is_there))
}

/// The same, where no data directory is known yet.
fn outside_files() -> impl Iterator<Item = PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    let manager = data_dir::of_service_manager("CONFIGURATION_DIRECTORY", &variable);
    let user = variable("XDG_CONFIG_HOME").filter(|dir| Path::new(dir).is_absolute()).map(PathBuf::from);
    let user = user.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
    let root = rustix::process::geteuid().is_root().then(|| PathBuf::from("/etc/windlass"));
    let dirs = [manager, user.map(|dir| dir.join("windlass")), root];
    dirs.into_iter().flatten().map(|dir| dir.join(USUAL_NAME))
}

/// The profile of this name, out of the file of `WINDLASS_CONFIG` or the first of the usual ones.
pub fn profile(name: &str) -> Result<Profile, Failure> {
    let named = std::env::var_os("WINDLASS_CONFIG").filter(|named| !named.is_empty()).map(PathBuf::from);
    let looked: Vec<PathBuf> = named.map_or_else(|| outside_files().collect(), |named| vec![named]);
    match looked.iter().find(|path| path.symlink_metadata().is_ok()) {
        Some(path) => reader::profile::of_text(path, &read_text(path)?, name),
        None => Err(reader::profile::no_file(name, &looked)),
    }
}

/// Reads the whole file once, so that a change in the middle of the check cannot matter.
fn read_text(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let refuse = |why: String| Failure::new(Kind::Config, why);
    let cannot = |e: std::io::Error| {
        refuse(format!("cannot read the config {shown}: {e}"))
            .hint("`windlass config init FILE` writes a commented one")
    };
    let link = path.symlink_metadata().map_err(cannot)?;
    // A pipe must not be waited for: it is no file, and is refused below.
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(cannot)?;
    let meta = file.metadata().map_err(cannot)?;
    if !meta.is_file() {
        return Err(refuse(format!("the config {shown} is not a file")));
    }
    if meta.mode() & 0o002 != 0 {
        return Err(refuse(format!("the config {shown} can be written by everybody, and it names commands to run"))
            .hint(format!("chmod o-w {shown}")));
    }
    if link.uid() != meta.uid() {
        return Err(refuse(format!("the config {shown} is a link to a file of another owner (uid {})", meta.uid())));
    }
    let mut bytes = Vec::new();
    file.take(SIZE_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > SIZE_MAX {
        return Err(refuse(format!("the config {shown} has more than {SIZE_MAX} bytes")));
    }
    if bytes.is_empty() {
        return Err(refuse(format!("the config {shown} is empty")).hint("a file with a comment is enough to mean it"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        let column = before.len() - memchr::memrchr(b'\n', before).map_or(0, |at| at + 1) + 1;
        refuse(format!("{shown}:{line}:{column}: not UTF-8 text"))
    })
}

/// Bytes of a path for `Command::directory`.
pub(crate) fn path_bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

#[cfg(test)]
mod tests;
