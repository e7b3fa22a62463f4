//! Windlass decides here and nowhere else: given the same inputs, the same outputs.
//!
//! This crate owns the vocabulary (job, queue, run, outcome) and every decision made about it. It must not do
//! I/O, read a clock, start a thread or draw a random number: time and randomness are arguments. Its manifest
//! has no dependency that could. Read in this order:

pub mod address;
pub mod circuit;
pub mod contention;
pub mod destination;
pub mod document;
pub mod failure;
pub mod hours;
pub mod job;
pub mod judge;
pub mod life_cycle;
pub mod look;
pub mod notify;
pub mod outcome;
pub mod overrides;
pub mod pace;
pub mod particulars;
pub mod pipeline;
pub mod policy;
pub mod progress;
pub mod rate;
pub mod retry;
pub mod router;
pub mod run;
pub mod sabotage;
pub mod schedule;
pub mod scheduler;
pub mod selector;
pub mod size;
pub mod supervisor;
pub mod suspicion;
pub mod template;
pub mod time;
