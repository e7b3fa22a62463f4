//! Windlass, a job engine: accepts work, never loses it, hauls it through to the end.
//!
//! This crate does what `windlass_core` decides. Read in this order: `store` (the verbs of a job's life),
//! `engine` (the turn), `runner` (the hands), then the doors.

mod allocator;
pub mod api;
pub mod archiver;
pub mod audit;
pub mod backup;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod crawler;
pub mod data_dir;
pub mod engine;
pub mod error;
pub mod handlers_dir;
pub mod http;
pub mod inbox;
pub mod log;
pub mod lot;
pub mod memcached;
pub mod mixed;
pub mod nudge;
mod numbered;
pub mod particulars;
pub mod runner;
pub mod sabotage;
pub mod schedule;
pub mod server;
pub mod service_manager;
pub mod spans;
pub mod spool;
pub mod store;
pub mod supervisor;
pub mod when;
mod without;
