//! The door that needs no server: files in `inbox/` that any program may append lines to.
//!
//! Read in this order: `frame` (the bytes), `scan` (bytes to records), `gather` (records to chunks), `writer`
//! (how we append), `ingest` (how the server reads). `files`, `lock` and `disk` are what both sides share. Nothing here
//! decides about jobs; what it took in goes to the engine as a lot.

pub mod disk;
pub mod files;
pub mod frame;
pub mod future;
pub mod gather;
pub mod ingest;
pub mod lock;
pub mod quarantine;
mod reader;
pub mod scan;
mod source;
pub(crate) mod watch;
pub mod writer;

pub use frame::Envelope;
pub use ingest::{Delivered, Ingest, IngestHandle, IngestOptions};
pub use reader::{Reader, Round};
pub use writer::{IdRange, InboxWriter};
