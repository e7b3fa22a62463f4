//! Who has ended, where the kernel gives no handle of a process: whenever a child's signal comes, those that have none
//! are asked for one by one, and not reaped.
//!
//! Signals of several children may come as one, so all are asked for. It must not decide what an end means.

use super::{EXIT, Service, token};
use rustix::process::{Pid, WaitId, WaitIdOptions};

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
