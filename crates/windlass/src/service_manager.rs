//! What the service manager that started this process is told, in systemd's words: ready, reloading, stopping, a line
//! of status, and that the engine still turns.
//!
//! Without `NOTIFY_SOCKET` nobody is told anything. A manager that does not listen is no reason to stop serving.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How often a manager that wants no sign of life is told what is new.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The manager's ear.
#[derive(Debug, Default)]
pub struct ServiceManager {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// It wants a sign of life this often.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// As the environment says.
    pub fn of_this_process() -> ServiceManager {
        let variable = |name: &str| std::env::var_os(name);
        let number = |name: &str| variable(name)?.to_str()?.parse::<u64>().ok();
        let meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| meant && *micros > 0).map(Duration::from_micros);
        ServiceManager { to: variable("NOTIFY_SOCKET").and_then(|name| listener(&name)), watchdog }
    }

    /// How often it is told how things are, if it listens: twice as often as it wants a sign of life.
    pub fn beat(&self) -> Option<Duration> {
        self.to.as_ref().map(|_| self.watchdog.map_or(TOLD_EVERY, |wanted| wanted / 2))
    }

    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stopping");
    }

    /// The engine turns, and so things stand; without a watchdog that is told only where it is news.
    pub fn alive(&self, status: &str, news: bool) {
        match self.watchdog {
            Some(_) => self.tell(&format!("WATCHDOG=1\nSTATUS={status}")),
            None if news => self.tell(&format!("STATUS={status}")),
            None => {}
        }
    }

    fn tell(&self, words: &str) {
        if let Some((socket, to)) = &self.to {
            // A manager that cannot hear us will find out by itself.
            let _ = socket.send_to_addr(words.as_bytes(), to);
        }
    }
}

/// A path, or a name of the abstract kind behind an `@`.
fn listener(name: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    let to = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok()?,
        [b'/', ..] => SocketAddr::from_pathname(name).ok()?,
        _ => return None,
    };
    let socket = UnixDatagram::unbound().ok()?;
    // Nobody waits for a manager that does not read.
    socket.set_nonblocking(true).ok()?;
    Some((socket, to))
}
