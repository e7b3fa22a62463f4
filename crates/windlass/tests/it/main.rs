//! The shipped program from outside: every verb, the inbox, real signals, real deaths.
//!
//! Nothing in here sleeps or depends on speed: tests wait for a process to end, for a line, or for a job that rings.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod amend;
mod audit;
mod backup;
mod bad_input;
mod cancel;
mod doctor;
mod durable;
mod elsewhere;
mod ending;
mod export;
mod fairness;
mod fencing;
mod flow;
mod full_disk;
mod handlers;
mod inbox;
mod limits;
mod logs;
mod lua;
mod manners;
mod memcached;
mod mount;
mod moves;
mod page;
mod pages;
mod patterns;
mod payloads;
mod places;
mod plain;
#[path = "../shared/ports.rs"]
mod ports;
mod push;
mod rates;
mod rig;
mod run;
mod runners;
mod schedule;
mod server;
mod server_log;
mod signals;
mod steer;
mod terms;
mod tokens;
mod top;
mod traces;
mod urls;
mod verbs;
mod watch;
mod words;
mod work;
mod workers;

#[path = "../shared/payloads.rs"]
mod shared;
