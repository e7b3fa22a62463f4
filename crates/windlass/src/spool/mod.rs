//! Documents through directories: a queue is a directory, an item a file, and every change of state one atomic rename,
//! so that programs that know nothing but files and rename can feed, drain and work beside ours.
//!
//! Read in this order: `windlass_core::document` (the names, and what becomes of a document), `queue` (the renames),
//! `lease` (who is alive), `driver` (the loop). Drivers are loops of their own and no engine: the directory is the
//! store, a transaction is one rename, and others change it at any time. It must not know a job or a run.

mod arrivals;
mod aside;
pub mod coming;
pub mod directory;
pub mod door;
pub mod drive;
mod driver;
mod handover;
mod hands;
mod keeper;
pub mod lease;
pub mod pipeline;
pub mod queue;
pub mod recover;
pub mod room;
pub mod sidecar;
pub mod status;
pub mod take;
mod ward;
pub mod watchdog;
mod way;

pub use drive::{Counts, Drive, Ended, Order};
pub use queue::Queue;
pub use room::{Entrance, Limit};
pub use way::Task;
pub use windlass_core::document::TRIES;

use std::time::Duration;

/// How long a driver on another machine may be silent before it counts as dead.
pub const LEASE: Duration = Duration::from_secs(30);
/// How often a driver looks by itself: for dead ones, and for what the kernel did not tell.
pub const LOOK: Duration = Duration::from_secs(5);
/// A kept command of a driver stays for as long as the driver does.
pub const NEVER_IDLE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
