//! The config file: read once, checked as a whole, refused with file, line and column; `policies` is its essence.
//!
//! This file owns the checked form and its defaults. `config/reader.rs` turns TOML into it, `config/checks.rs` asks
//! the machine (programs, directories). It must not start anything, and nothing else reads the file.

mod checks;
mod reader;
mod shown;
pub mod units;
mod zone;

pub use shown::{Change, Entry, Loaded, diff};

use crate::error::{Failure, Kind};
use crate::handlers_dir;
use crate::log::LogOptions;
use crate::runner::lua;
use crate::schedule::Schedule;
use crate::server::ArchiveOptions;
use reader::limits::Machine;
use std::collections::BTreeMap;
use std::ffi::OsString;
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
    pub server: Server,
    pub archive: ArchiveOptions,
    pub log: LogOptions,
    /// The directory of handlers, which goes before every table.
    pub handlers: Option<Handlers>,
    /// In the order of the file: the first match wins. Environments lack what is inherited.
    pub queues: Vec<Policy>,
    pub schedules: Vec<Schedule>,
    /// Who hears the jobs of which queues.
    pub router: Router,
    pub pipelines: Vec<Pipeline>,
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
            server: Server { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), drain: Duration::from_secs(25) },
            archive: ArchiveOptions::default(),
            log: LogOptions::default(),
            handlers: None,
            queues: Vec::new(),
            schedules: Vec::new(),
            router: Router::default(),
            pipelines: Vec::new(),
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
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        reader::read(path, text)
    }

    /// Memory to plan with: what the file says, else what the machine has.
    pub fn memory(&self) -> Option<u64> {
        self.machine.memory.or_else(checks::machine_memory)
    }

    /// The rules for the engine, in the file's order; the crews of commands that list for a schedule come before them,
    /// so that no pattern takes their queues.
    pub fn policies(&self) -> Vec<Policy> {
        self.policies_under(&|name| std::env::var_os(name))
    }

    fn policies_under(&self, variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<Policy> {
        let lists = self.schedules.iter().filter_map(Schedule::crew);
        let handlers = self.handlers.iter().flat_map(Handlers::policies);
        let stages = self.pipelines.iter().flat_map(|pipeline| pipeline.rules.iter().cloned());
        let all = lists.chain(stages).chain(handlers).chain(self.queues.iter().cloned());
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
    /// Reads a file once and checks it, as `Config::load`, and notes where each value stands.
    pub fn load(path: &Path) -> Result<Loaded, Failure> {
        let text = read_text(path)?;
        Loaded::parse(path, &text)
    }

    pub fn parse(path: &Path, text: &str) -> Result<Loaded, Failure> {
        let config = Config::parse(path, text)?;
        Ok(Loaded { file: Some(path.to_owned()), config, lines: reader::lines(text) })
    }
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

/// The file that `serve` reads when none is named: that of `WINDLASS_CONFIG`, else in the data directory, else in the
/// user's config directory.
pub fn usual_file(data_dir: &Path) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("WINDLASS_CONFIG").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let user = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|dir| Path::new(dir).is_absolute())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".config")));
    let candidates = [Some(data_dir.join("windlass.toml")), user.map(|dir| dir.join("windlass/windlass.toml"))];
    candidates.into_iter().flatten().find(|path| path.symlink_metadata().is_ok())
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
