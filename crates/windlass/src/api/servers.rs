//! The shapes of the list of servers that share a store.

use crate::store::ServerInfo;
use serde::{Deserialize, Serialize};

/// A server that shares the store with others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// The host, and what tells it from others there.
    pub name: String,
    /// The number of its opening, which the database gave it.
    pub epoch: u64,
    /// How long it is taken for alive if it is not heard of, in seconds by the database's clock.
    pub lease_s: f64,
    pub slots: u64,
    /// The memory that its jobs may have, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    pub running: u64,
    pub draining: bool,
    /// It is the one that fires schedules and removes what is old.
    pub controls: bool,
}

impl From<&ServerInfo> for Server {
    fn from(info: &ServerInfo) -> Server {
        let ServerInfo { name, epoch, lease_micros, slots, memory, running, draining, controls } = info.clone();
        Server { name, epoch, lease_s: lease_micros as f64 / 1e6, slots, memory, running, draining, controls }
    }
}
