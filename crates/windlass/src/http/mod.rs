//! The HTTP door: the routes that commands, the library and pages use, on a Unix socket and on loopback TCP.
//!
//! Parsing, encoding and reading happen here, beside the engine; what changes anything goes to it as an event and
//! is answered after its commit. This part must not hold state of its own that a restart would miss. Read in this
//! order: `routes` (the table), `guard` (who may ask), `push` (work comes in), then the rest.

use crate::archiver::Group;
use crate::config::{Change, Loaded};
use crate::data_dir::DataDir;
use crate::engine::handle::EngineHandle;
use crate::error::Failure;
use crate::log::Log;
use crate::runner::progress::Board;
use crate::runner::remote::Counter;
use crate::store::{Filter, StoreView};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use windlass_core::job::JobId;
use windlass_core::time::Time;

mod app;
mod body;
mod caller;
mod control;
mod follow;
mod guard;
mod import;
mod jobs;
mod lots;
mod moves;
mod operations;
mod output;
mod page;
mod problem;
mod push;
mod query;
pub mod routes;
mod runs;
mod schedules;
mod selection;
mod serve;
mod servers;
mod spools;
mod stats;
mod steer;
mod watch;
mod why;
mod work;
mod workers;

pub use serve::Server;

/// Where the server listens and what it may do.
pub struct Options {
    pub dir: DataDir,
    /// The TCP address; none listens on the Unix socket only.
    pub listen: Option<SocketAddr>,
    /// Needed to listen beyond loopback; else one is made in `run/token` at the first start.
    pub token: Option<String>,
    /// Names besides `localhost` and addresses by which clients may call the server over TCP.
    pub hosts: Vec<String>,
    /// Reads the config again and hands it to the engine.
    pub reload: Box<Reload>,
    /// The config as it was read last.
    pub config: Box<dyn Fn() -> Arc<Loaded> + Send + Sync>,
    /// Where trouble at the door is told.
    pub log: Log,
    /// Where remote workers come.
    pub counter: Arc<Counter>,
}

/// Reads the config again for somebody, and tells what has changed.
pub type Reload = dyn Fn(String) -> Result<Vec<Change>, Failure> + Send + Sync;

impl Options {
    /// A Unix socket and any free port of the loopback interface.
    pub fn new(
        dir: DataDir,
        reload: impl Fn(String) -> Result<Vec<Change>, Failure> + Send + Sync + 'static,
    ) -> Options {
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let config = Box::new(Arc::<Loaded>::default);
        let (token, hosts, reload, log) = (None, Vec::new(), Box::new(reload), Log::off());
        Options { dir, listen, token, hosts, reload, config, log, counter: Arc::default() }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("dir", &self.dir).field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// A view of the committed state, opened for one question.
pub type OpenView = Arc<dyn Fn() -> Result<Box<dyn StoreView + Send>, Failure> + Send + Sync>;

/// What the routes read: they never ask the engine for what the store can tell.
pub struct Reads {
    pub view: OpenView,
    pub archive: Archive,
    /// What running jobs say of themselves.
    pub board: Arc<Board>,
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reads")
    }
}

/// The finished attempts of a job, oldest first; none where the archive does not know it.
pub type FindArchived = Box<dyn Fn(JobId) -> Result<Vec<serde_json::Value>, Failure> + Send + Sync>;
/// The newest finished jobs that a filter wants, at most so many, from the place on that an earlier page named.
pub type ListArchived = Box<dyn Fn(&Filter, Option<&str>, usize) -> Result<ArchivedPage, Failure> + Send + Sync>;
/// Finished jobs, and where older ones begin.
pub type ArchivedPage = (Vec<serde_json::Value>, Option<String>);
/// What one start (or the last one) of a job wrote: standard output, or standard error where asked.
pub type ArchivedOutput = Box<dyn Fn(JobId, Option<u32>, bool) -> Result<Option<Vec<u8>>, Failure> + Send + Sync>;

/// Shows what finished at or after a time, grouped as it ended.
pub type GroupsArchived = Box<dyn Fn(Time, &mut dyn FnMut(&Group<'_>)) -> Result<(), Failure> + Send + Sync>;

/// How the last archived attempt of each of these jobs came out, in the archive's word, as far as it knows them; the
/// ids are given in order.
pub type LastArchived = Box<dyn Fn(&[JobId]) -> Result<HashMap<JobId, String>, Failure> + Send + Sync>;

/// The archive as the routes see it.
pub struct Archive {
    pub find: FindArchived,
    pub last: LastArchived,
    pub groups: GroupsArchived,
    pub list: ListArchived,
    pub output: ArchivedOutput,
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Archive")
    }
}

impl Server {
    /// Listens and serves until it is stopped. The caller holds the data directory's lock.
    pub fn start(options: Options, handle: EngineHandle, reads: Reads) -> Result<Server, Failure> {
        serve::start(options, handle, reads)
    }
}

#[cfg(test)]
pub(crate) mod tests;
