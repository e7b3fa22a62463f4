//! The runner of URLs against real servers: nginx, and plain sockets that misbehave in every way a server can.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod batches;
mod calls;
mod hostile;
#[path = "../shared/in_time.rs"]
mod in_time;
#[path = "../shared/ports.rs"]
mod ports;
mod rig;
mod servers;

#[path = "../shared/payloads.rs"]
mod shared;
