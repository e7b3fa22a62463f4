//! Ports for servers that are told where to listen, and for addresses at which nobody does.
//!
//! None of those that the kernel gives out by itself: between the choice of such a one and its use, or between two
//! lives of a server, anybody who asked for any port could get it. Each is given out once by a process.

use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below what the kernel gives out unless it was told otherwise.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// A port that nobody has, and that nobody gets by chance.
pub(crate) fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Programs of the tests that run at the same time begin at places of their own.
    let begin = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let number = begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = (FIRST + number) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("none of the ports from {FIRST} on is free");
}
