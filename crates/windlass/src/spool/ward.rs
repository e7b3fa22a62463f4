//! A driver that a watchdog runs: a process, and the number that it works under where its command asks for one with
//! `{n}`.
//!
//! The lock of the number is given to the process and to nobody else. So the number lives for as long as the driver, or
//! anything that it started, whatever becomes of the watchdog; and once the lock is free, all of them are dead. A
//! driver that does not ask for a number leases its own. It must not decide whether a driver is started again.

use super::lease::{self, About, Lease};
use super::sidecar::Sidecar;
use crate::error::{Failure, Kind};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Result};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// What stands for the number in a command.
const NUMBER: &[u8] = b"{n}";

/// What a watchdog hears.
#[derive(Debug)]
pub(super) enum News {
    /// The driver of this place has ended.
    Ended { place: usize, status: ExitStatus },
    /// Nothing that worked under this number lives any more.
    Freed { number: u32 },
    /// Everything is to end.
    Told,
}

/// A driver at work.
#[derive(Debug)]
pub(super) struct Ward {
    pub(super) number: Option<u32>,
    pub(super) born: Instant,
    pub(super) process: u32,
    /// The process itself, whatever its number means by now.
    handle: Arc<OwnedFd>,
}

/// Whether a command asks for a number.
pub(super) fn asks_number(command: &[OsString]) -> bool {
    command.iter().any(|word| word.as_bytes().windows(NUMBER.len()).any(|part| part == NUMBER))
}

fn with_number(word: &OsStr, number: u32) -> OsString {
    let (mut made, mut rest) = (Vec::new(), word.as_bytes());
    while let Some(at) = rest.windows(NUMBER.len()).position(|part| part == NUMBER) {
        made.extend_from_slice(&rest[..at]);
        made.extend_from_slice(number.to_string().as_bytes());
        rest = &rest[at + NUMBER.len()..];
    }
    made.extend_from_slice(rest);
    OsString::from_vec(made)
}

impl Ward {
    /// Starts the driver of a place; its end is told.
    pub(super) fn start(
        command: &[OsString],
        place: usize,
        number: Option<&(Sidecar, About)>,
        tell: Sender<News>,
    ) -> std::result::Result<Ward, Failure> {
        let lease = number.map(|(sidecar, about)| Lease::take(sidecar, about)).transpose()?;
        let sidecar = number.map(|(sidecar, _)| sidecar);
        let number = lease.as_ref().map(|lease| lease.number);
        let words: Vec<OsString> = match number {
            Some(number) => command.iter().map(|word| with_number(word, number)).collect(),
            None => command.to_vec(),
        };
        let started = spawn(&words, lease.as_ref());
        let (child, handle) = match started {
            Ok(started) => started,
            Err(error) => {
                // The number was nobody's.
                let _stays = lease.map(Lease::give_back);
                return Err(cannot_start(&words[0], &error));
            }
        };
        // From here on the lock is the driver's alone.
        drop(lease);
        let handle = Arc::new(handle);
        let ward = Ward { number, born: Instant::now(), process: child.id(), handle: Arc::clone(&handle) };
        let leased_in = number.zip(sidecar.cloned());
        let attend = move || attend(child, &handle, leased_in, place, &tell);
        let spawned = std::thread::Builder::new().name("ward".into()).spawn(attend);
        spawned.map_err(|e| Failure::io("cannot start a thread", &e))?;
        Ok(ward)
    }

    /// Asks it to end; one that has ended hears nothing.
    pub(super) fn signal(&self, signal: Signal) {
        let _ended = rustix::process::pidfd_send_signal(self.handle.as_fd(), signal);
    }
}

fn spawn(words: &[OsString], lease: Option<&Lease>) -> Result<(Child, OwnedFd)> {
    lease.map_or(Ok(()), Lease::let_inherit)?;
    let mut command = Command::new(&words[0]);
    // A group of its own: what is typed at the watchdog's terminal is for the watchdog, which tells its drivers.
    command.args(&words[1..]).stdin(Stdio::null()).process_group(0);
    // SAFETY: between fork and exec only system calls, which take no lock and no memory.
    unsafe {
        command.pre_exec(|| {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            match libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let mut child = command.spawn()?;
    match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(handle) => Ok((child, handle)),
        Err(error) => {
            let _ended = child.kill().and_then(|()| child.wait());
            Err(error.into())
        }
    }
}

fn cannot_start(program: &OsStr, error: &std::io::Error) -> Failure {
    let kind = match error.kind() {
        ErrorKind::NotFound => Kind::NoInput,
        ErrorKind::PermissionDenied => Kind::NotPermitted,
        _ => Kind::CannotCreate,
    };
    let program = program.to_string_lossy();
    let failure = Failure::new(kind, format!("cannot start the driver {program}: {error}"));
    match error.kind() {
        ErrorKind::NotFound if program.contains('/') => {
            failure.hint("neither it nor what its first line names (#!) may be missing")
        }
        ErrorKind::NotFound => failure.hint(format!("it was looked for in PATH; one that is here is ./{program}")),
        ErrorKind::PermissionDenied => failure.hint(format!("expected a program; if it is one: chmod +x {program}")),
        _ => failure,
    }
}

/// Waits for the end of a driver, ends what it left, and waits until its number is free.
fn attend(mut child: Child, handle: &OwnedFd, leased: Option<(u32, Sidecar)>, place: usize, tell: &Sender<News>) {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _waited = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(handle.as_fd()), ended));
    if leased.is_some() {
        // It is still there to be waited for, so that its number, and its group's, are nobody else's.
        let _gone = rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    let Ok(status) = child.wait() else { return };
    // A watchdog that has ended hears nothing.
    let _deaf = tell.send(News::Ended { place, status });
    if let Some((number, sidecar)) = leased
        && lease::wait_for_the_end(&sidecar, number).is_ok()
    {
        let _deaf = tell.send(News::Freed { number });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_stands_wherever_it_is_asked_for() {
        let words = ["driver", "{n}", "a{n}b{n}", "{n", ""].map(OsString::from);
        assert!(asks_number(&words) && !asks_number(&words[..1]) && !asks_number(&words[3..]));
        let made: Vec<OsString> = words.iter().map(|word| with_number(word, 7)).collect();
        assert_eq!(made, ["driver", "7", "a7b7", "{n", ""]);
    }
}
