//! How a server is set up, with the defaults of a server that serves no queue.

use crate::config::Loaded;
use crate::data_dir::DataDir;
use crate::error::Failure;
use crate::log::Log;
use crate::runner::handler::Handlers;
use crate::store::Durability;
use crate::store::place::StorePlace;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::policy::Policy;

/// Everything in it is checked.
pub struct ServerOptions {
    pub dir: DataDir,
    /// Where the jobs are.
    pub store: StorePlace,
    /// Where datagrams are awaited that say that there is work.
    pub nudge: Option<SocketAddr>,
    pub policies: Vec<Policy>,
    pub slots: u32,
    /// Bytes that the processes of all policies may need together; none where nobody counts.
    pub memory: Option<u64>,
    /// The loopback address beside the Unix socket; none for a verb's own short-lived server.
    pub listen: Option<SocketAddr>,
    pub durability: Durability,
    /// Whether runs that an earlier process left unfinished go on by themselves.
    pub serve_open_runs: bool,
    /// False for a process that is only there to answer: it starts no launchers and takes no `windlass run`.
    pub serves: bool,
    /// How long what runs may go on after the order to stop.
    pub drain: Duration,
    pub archive: ArchiveOptions,
    /// False for a process that was not told how long things are kept: it removes nothing that is old, and leaves the
    /// control of a table that others share to them.
    pub keeps_house: bool,
    /// Rust handlers of the embedding program.
    pub handlers: Handlers,
    /// The directory of handler files, where there is one.
    pub handlers_dir: Option<PathBuf>,
    /// The config that the policies come from, to be shown.
    pub config: Loaded,
    /// Reads the config again; absent where there is none.
    pub reload: Option<ReadConfig>,
    pub log: Log,
}

/// Reads the config anew, whole or not at all.
pub type ReadConfig = Arc<dyn Fn() -> Result<Loaded, Failure> + Send + Sync>;

/// What is kept of finished jobs, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveOptions {
    pub bodies: bool,
    pub keep_succeeded: Duration,
    pub keep_failed: Duration,
    pub max_size: u64,
}

impl Default for ArchiveOptions {
    fn default() -> ArchiveOptions {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        ArchiveOptions { bodies: true, keep_succeeded: DAY * 7, keep_failed: DAY * 30, max_size: 10 << 30 }
    }
}

impl ServerOptions {
    /// A server that accepts and answers but serves no queue.
    pub fn new(dir: DataDir) -> ServerOptions {
        ServerOptions {
            dir,
            store: StorePlace::default(),
            nudge: None,
            policies: Vec::new(),
            slots: 8,
            memory: None,
            listen: None,
            durability: Durability::Full,
            serve_open_runs: false,
            serves: false,
            drain: Duration::from_secs(25),
            archive: ArchiveOptions::default(),
            keeps_house: true,
            handlers: Handlers::default(),
            handlers_dir: None,
            config: Loaded::default(),
            reload: None,
            log: Log::off(),
        }
    }
}

impl std::fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerOptions").field("dir", &self.dir).field("slots", &self.slots).finish_non_exhaustive()
    }
}
