//! Who has ended, where the kernel gives no handle of a process: whenever a child's signal comes, those that have none
//! are asked for one by one, and not reaped. And how each has ended, once its tree is dead.
//!
//! Signals of several children may come as one, so all are asked for. It must not decide what an end means.

use super::super::process;
use super::{EXIT, Service, token};
use rustix::process::{Pid, WaitId, WaitIdOptions};
use std::io;
use windlass_core::outcome::Exit;

impl Service {
    pub(super) fn ask_for_exits(&mut self) {
        let jobs = self.jobs.iter().enumerate().filter_map(|(index, job)| Some((index, job.as_ref()?)));
        let silent = jobs.filter(|(_, job)| job.handle.is_none() && !job.ended && has_ended(job.pid));
        let ended: Vec<u64> = silent.map(|(index, job)| token(index, job.generation, EXIT)).collect();
        ended.into_iter().for_each(|token| self.attend(token));
    }
}

/// Our own child that is not reaped: the number is still its own.
fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}

/// Takes a dead child of ours away, and tells how it ended. One that somebody traces is his to take away first, and he
/// may never do that: it is as dead, what it ended with is read, and what is left of it goes with the orphans (`tree`).
pub(super) fn take_away(pid: Pid) -> io::Result<Exit> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    Ok(match rustix::process::waitid(WaitId::Pid(pid), options)? {
        Some(status) if status.exited() => Exit::Code(status.exit_status().unwrap_or(-1)),
        Some(status) => Exit::Signal(status.terminating_signal().unwrap_or(0)),
        None => match process::wait_status(pid.as_raw_nonzero().get()) {
            Some(status) if libc::WIFEXITED(status) => Exit::Code(libc::WEXITSTATUS(status)),
            Some(status) => Exit::Signal(libc::WTERMSIG(status)),
            None => Exit::Signal(0),
        },
    })
}
