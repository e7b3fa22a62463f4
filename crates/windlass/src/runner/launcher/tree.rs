//! Whose are the orphans: finds what the launcher adopted, and kills what belongs to jobs that ended.
//!
//! A process whose parent died becomes a child of the launcher, so the launcher's own children are all there is
//! to look at, and one that is not reaped keeps its number: no signal can hit a stranger. An orphan belongs to
//! the job whose process group or marker it has. One that shed both could be any job's that ran at its birth; it goes
//! when the last of those has ended. A job that has a control group is told by it (`cgroup`).

use super::process::{self, Marked, Stat};
use super::usage;
use crate::sabotage::{self, Sabotage};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use windlass_core::job::JobId;

/// How often the list of our children is read in one go.
const ROUNDS: usize = 8;

/// A job as far as its tree is concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) pid: i32,
    pub(super) job: JobId,
    pub(super) start: u32,
    /// Nothing of it was born before, in ticks.
    pub(super) born: u64,
    /// Its main process has ended.
    pub(super) ended: bool,
}

/// What was made out about an orphan; once it is whose it is, that stays true until it is reaped.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    stat: Stat,
    marker: Marked,
    killed: bool,
    /// It is dead, and whoever traces it has yet to take it away: nothing waits for that.
    dead: bool,
}

impl Orphan {
    fn is_of(&self, family: &Family) -> bool {
        self.stat.group == family.pid || self.marker == Marked::As(family.job, family.start)
    }
}

/// The launcher's children that it did not start.
#[derive(Debug)]
pub(super) struct Orphanage {
    children: Option<File>,
    own: i32,
    text: Vec<u8>,
    listed: Vec<i32>,
    orphans: HashMap<i32, Orphan>,
}

impl Orphanage {
    /// `listed` is false where the kernel's list of our children is not to be used.
    pub(super) fn new(listed: bool) -> Orphanage {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        // Without this file, which a kernel can be built without, all of /proc is looked through.
        let children = File::open(format!("/proc/self/task/{own}/children")).ok().filter(|_| listed);
        Orphanage { children, own, text: vec![0; 4096], listed: Vec::new(), orphans: HashMap::new() }
    }

    /// Reaps dead orphans and kills those of ended families; `families` are all that are not reaped yet. Returns
    /// the pids of ended families of which something may still live.
    pub(super) fn sweep(&mut self, families: impl Fn() -> Vec<Family>, count: usize) -> io::Result<Vec<i32>> {
        self.list()?;
        if self.listed.len() <= count || sabotage::on(Sabotage::LeaderOnlyKilled) {
            self.orphans.clear();
            return Ok(Vec::new());
        }
        let families = families();
        // Reaping one may bring its own children here, so the list is read until a round reaps nothing. Those who fork
        // faster than that would hold everybody up: they are looked at again when all else has had its turn.
        for _ in 0..ROUNDS {
            let reaped = self.reap(&families);
            let held = self.kill_doomed(&families);
            if !reaped {
                return Ok(held);
            }
            self.list()?;
        }
        Ok(ended(&families).collect())
    }

    /// Kills the orphans of ended families, and tells which families they hold.
    fn kill_doomed(&mut self, families: &[Family]) -> Vec<i32> {
        let mut held = Vec::new();
        for (pid, orphan) in self.orphans.iter_mut().filter(|(_, orphan)| !orphan.dead) {
            let owner = families.iter().find(|family| orphan.is_of(family));
            let doomed = match owner {
                Some(family) => family.ended,
                // Whoever ended may be the one whose it is.
                None if orphan.marker == Marked::NotYet => {
                    held.extend(ended(families));
                    continue;
                }
                None => !families.iter().any(|family| !family.ended && family.born <= orphan.stat.born),
            };
            if !doomed {
                continue;
            }
            if !orphan.killed {
                orphan.killed = true;
                kill(*pid, orphan.stat.group == *pid);
            }
            match owner {
                Some(family) => held.push(family.pid),
                None => held.extend(ended(families)),
            }
        }
        held
    }

    /// A family's members: its first process, its orphans that live here, and all their descendants.
    pub(super) fn members(&mut self, family: &Family, mains: &HashSet<i32>) -> io::Result<Vec<i32>> {
        self.list()?;
        let mut members = vec![family.pid];
        for at in 0..self.listed.len() {
            let pid = self.listed[at];
            if mains.contains(&pid) {
                continue;
            }
            self.learn(pid);
            members.extend(self.orphans.get(&pid).filter(|orphan| orphan.is_of(family)).map(|_| pid));
        }
        match self.children {
            Some(_) => usage::add_descendants(&mut members),
            None => usage::add_descendants_by_parent(&mut members),
        }
        Ok(members)
    }

    /// Gets to know an orphan.
    fn learn(&mut self, pid: i32) {
        if let Some(known) = self.orphans.get_mut(&pid) {
            if known.marker == Marked::NotYet {
                known.marker = process::marker(pid);
            }
        } else if let Some(stat) = process::stat(pid) {
            let orphan = Orphan { stat, marker: process::marker(pid), killed: false, dead: false };
            self.orphans.insert(pid, orphan);
        }
    }

    /// Gets to know the orphans and takes the dead away; true where one was taken that was of no running family.
    fn reap(&mut self, families: &[Family]) -> bool {
        let mut reaped = false;
        for pid in std::mem::take(&mut self.listed) {
            if families.iter().any(|family| family.pid == pid) {
                continue;
            }
            let Some(id) = Pid::from_raw(pid) else { continue };
            // Whose a dead one was is told by its group alone.
            self.learn(pid);
            let mut taken = is_taken(id);
            let orphan = self.orphans.get_mut(&pid);
            if let Some(orphan) = orphan.filter(|orphan| !taken && (orphan.killed || orphan.stat.zombie)) {
                orphan.dead = process::has_died(pid);
                // It may have died between the two.
                taken = orphan.dead && is_taken(id);
            }
            if taken {
                let orphan = self.orphans.remove(&pid);
                let of_running = |family: &&Family| !family.ended && orphan.is_some_and(|orphan| orphan.is_of(family));
                reaped |= !families.iter().any(|family| of_running(&family));
            }
        }
        reaped
    }

    /// Reads the list of our children.
    fn list(&mut self) -> io::Result<()> {
        self.listed.clear();
        let Some(file) = &self.children else {
            let own = self.own;
            let ours = process::all().filter(|pid| process::stat(*pid).is_some_and(|stat| stat.parent == own));
            self.listed.extend(ours);
            return Ok(());
        };
        let mut filled = 0;
        loop {
            let got = file.read_at(&mut self.text[filled..], filled as u64)?;
            filled += got;
            // The kernel stops early only where a number did not fit, and none is longer than this.
            if got == 0 || filled + 16 < self.text.len() {
                break;
            }
            self.text.resize(self.text.len() + 4096, 0);
        }
        let mut number = 0;
        for byte in &self.text[..filled] {
            match byte {
                b'0'..=b'9' => number = number * 10 + i32::from(byte - b'0'),
                _ => {
                    self.listed.push(number);
                    number = 0;
                }
            }
        }
        Ok(())
    }
}

/// Takes a child of ours away where it is dead and nobody traces it.
fn is_taken(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}

/// Kills one of our own children, which is not reaped and therefore still has its number; and its group, where that has
/// the same number, with what it has just forked.
fn kill(pid: i32, leads: bool) {
    if let Some(pid) = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1) {
        // It may be a zombie by now, which is as good.
        let _dead_already = rustix::process::kill_process(pid, Signal::KILL);
        if leads {
            let _dead_already = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }
}

/// The families whose first process has ended.
fn ended(families: &[Family]) -> impl Iterator<Item = i32> {
    families.iter().filter(|family| family.ended).map(|family| family.pid)
}

/// Readable whenever a child has died, ours by start or by adoption.
pub(super) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised before use, and a descriptor that is not negative is a new one of ours.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
