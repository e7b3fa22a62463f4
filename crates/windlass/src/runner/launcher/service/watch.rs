//! Watches what jobs with limits use, as often as each could come to its limit and no oftener.
//!
//! A job that is far from its limits, or that does nothing, is looked at seldom; one that grows is looked at every few
//! milliseconds. Where the kernel keeps a limit it is left to it. Too much memory or too many processes end a tree at
//! once; too much time on processors or too much output ends it as a time limit does. This file owns what is too much.

use super::{Running, Service};
use crate::runner::launcher::cgroup::Cell;
use crate::runner::launcher::message::{Cut, Resource};
use crate::runner::launcher::usage::{self, Usage};
use rustix::process::Signal;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use windlass_core::outcome::Exit;
use windlass_core::policy::Limits;

/// The least and the most time between two looks.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);
/// What a machine can fill in a second, and how many processes it can make.
const BYTES_A_SECOND: u64 = 8 << 30;
const PROCESSES_A_SECOND: u64 = 10_000;

/// When a job is looked at next, and what was seen last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) next: Instant,
    pause: Duration,
    seen: Usage,
}

impl Watch {
    /// The first look at a job; none where nothing of it is limited that needs one.
    pub(super) fn begin(limits: Limits, now: Instant) -> Option<Watch> {
        let limited = limits.memory > 0 || limits.processes > 0 || !limits.cpu.is_zero();
        let pause = pause(limits, Usage::default());
        limited.then(|| Watch { next: now + pause, pause, seen: Usage::default() })
    }

    /// Plans the next look by what this one has seen.
    fn go_on(self, limits: Limits, seen: Usage, now: Instant) -> Watch {
        let soonest = pause(limits, seen);
        let still = (seen.memory, seen.processes) == (self.seen.memory, self.seen.processes);
        let pause = if still { (self.pause * 2).clamp(soonest, LONGEST) } else { soonest };
        Watch { next: now + pause.min(until_cpu(limits, seen)), pause, seen }
    }
}

/// How long a tree that uses so much needs at least to come to its limit.
fn pause(limits: Limits, seen: Usage) -> Duration {
    let left = |limit: u64, used: u64, a_second: u64| match limit {
        0 => LONGEST,
        limit => Duration::from_secs_f64(limit.saturating_sub(used) as f64 / a_second as f64),
    };
    let memory = left(limits.memory, seen.memory, BYTES_A_SECOND);
    let processes = left(limits.processes.into(), seen.processes.into(), PROCESSES_A_SECOND);
    memory.min(processes).min(until_cpu(limits, seen)).clamp(SHORTEST, LONGEST)
}

/// The same for its time on processors, of which it can have all.
fn until_cpu(limits: Limits, seen: Usage) -> Duration {
    if limits.cpu.is_zero() {
        return LONGEST;
    }
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    (limits.cpu.saturating_sub(seen.cpu) / processors).max(SHORTEST)
}

/// The limits that are left to us to watch.
pub(super) fn watched(limits: Limits, cell: Option<&Cell>) -> Limits {
    match cell {
        Some(cell) if cell.keeps(limits) => Limits { memory: 0, ..limits },
        Some(_) | None => limits,
    }
}

impl Service {
    /// Looks at the jobs whose turn it is.
    pub(super) fn look_at_limits(&mut self) -> std::io::Result<()> {
        let now = Instant::now();
        while let Some(&(at, index, generation)) = self.looks.first().filter(|(at, ..)| *at <= now) {
            self.looks.remove(&(at, index, generation));
            let members = self.members(index)?;
            let Some(job) = &mut self.jobs[index] else { continue };
            let Some(watch) = job.watch.take().filter(|_| !job.ended) else { continue };
            let mut seen = usage::of(&members);
            if let Some(cell) = job.cell.as_ref().filter(|_| !job.task.limits.cpu.is_zero()) {
                seen.cpu = Duration::from_micros(cell.cpu());
            }
            let too_much = job.too_much(&mut seen, &members, self.without.shares);
            let watch = watch.go_on(watched(job.task.limits, job.cell.as_ref()), seen, now);
            job.watch = Some(watch);
            self.looks.insert((watch.next, index, generation));
            if let Some((resource, amount)) = too_much {
                self.end_for(index, resource, amount);
            }
        }
        Ok(())
    }

    /// Every process of a job, as far as it can be found.
    fn members(&mut self, index: usize) -> std::io::Result<Vec<i32>> {
        let Some(job) = &self.jobs[index] else { return Ok(Vec::new()) };
        if let Some(cell) = &job.cell {
            return Ok(cell.members());
        }
        let family = job.family(self.table.born_from(job.note));
        let mains: HashSet<i32> = self.jobs.iter().flatten().map(|job| job.pid.as_raw_nonzero().get()).collect();
        self.orphanage.members(&family, &mains)
    }

    /// The last look, when the first process has ended: where the kernel refuses more processes, the first one may end
    /// for just that, before anybody has looked.
    pub(super) fn look_at_what_is_left(&mut self, index: usize) {
        let limit =
            self.jobs[index].as_ref().filter(|job| job.cut.is_none()).map_or(0, |job| job.task.limits.processes);
        if limit == 0 {
            return;
        }
        // A listing that fails fails again at the burial, which says so.
        let seen = usage::of(&self.members(index).unwrap_or_default()).processes;
        if let Some(job) = self.jobs[index].as_mut().filter(|_| seen > limit) {
            job.cut = Some(Cut::Limit(Resource::Processes, seen.into()));
        }
    }

    /// Ends a job that used too much of something.
    pub(super) fn end_for(&mut self, index: usize, resource: Resource, amount: u64) {
        let Some(job) = self.jobs[index].as_mut().filter(|job| !job.ended) else { return };
        let first = job.cut.is_none();
        if first {
            job.cut = Some(Cut::Limit(resource, amount));
        }
        match resource {
            Resource::Memory | Resource::Processes => self.kill(index),
            // Its grace runs already where it is being ended.
            Resource::Cpu | Resource::Output if first => self.ask_to_end(index),
            Resource::Cpu | Resource::Output => {}
        }
    }
}

impl Running {
    /// Kills all that can be reached at once; the rest of the tree is found when the first process has ended.
    pub(super) fn kill(&self) {
        if let Some(cell) = &self.cell {
            cell.kill();
        }
        self.signal(Signal::KILL);
    }

    /// What of its limits it is over, and how much it has of that.
    fn too_much(&self, seen: &mut Usage, members: &[i32], summed: bool) -> Option<(Resource, u64)> {
        let limits = watched(self.task.limits, self.cell.as_ref());
        if limits.memory > 0 && seen.memory > limits.memory {
            if members.len() > 1 && !summed {
                seen.memory = usage::shared_out(members).unwrap_or(seen.memory);
            }
            if seen.memory > limits.memory {
                return Some((Resource::Memory, seen.memory));
            }
        }
        if limits.processes > 0 && seen.processes > limits.processes {
            return Some((Resource::Processes, seen.processes.into()));
        }
        let cpu = seen.cpu.as_micros() as u64;
        (!limits.cpu.is_zero() && seen.cpu >= limits.cpu).then_some((Resource::Cpu, cpu))
    }

    /// Why it ended, where the kernel ended it for one of its limits and nobody else did.
    pub(super) fn kernels_cut(&self, exit: Exit) -> Option<Cut> {
        let limits = self.task.limits;
        let out_of_memory = || self.cell.as_ref().is_some_and(|cell| cell.keeps(limits) && cell.ran_out_of_memory());
        match exit {
            Exit::Signal(libc::SIGXCPU) if !limits.cpu.is_zero() => {
                Some(Cut::Limit(Resource::Cpu, limits.cpu.as_micros() as u64))
            }
            Exit::Code(0) => None,
            // The kernel kills one after the other: a first process may have seen that of its child and ended itself.
            Exit::Signal(_) | Exit::Code(_) if out_of_memory() => Some(Cut::Limit(Resource::Memory, limits.memory)),
            Exit::Signal(_) | Exit::Code(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_near_a_limit_is_looked_at_often_and_who_rests_is_not() {
        let limits = Limits { memory: 2 << 30, ..Limits::default() };
        let seen = |memory| Usage { memory, processes: 1, cpu: Duration::ZERO };
        let now = Instant::now();
        let first = Watch::begin(limits, now).unwrap();
        assert_eq!(first.next - now, Duration::from_millis(250));
        let near = first.go_on(limits, seen((2 << 30) - 4096), now);
        assert_eq!(near.next - now, SHORTEST);
        let far = near.go_on(limits, seen(1 << 30), now);
        assert_eq!(far.next - now, Duration::from_millis(125));
        let mut rests = far;
        for _ in 0..5 {
            rests = rests.go_on(limits, seen(1 << 30), now);
        }
        assert_eq!(rests.next - now, LONGEST);
        assert!(Watch::begin(Limits { output: 1, ..Limits::default() }, now).is_none());
        let cpu = Limits { cpu: Duration::from_secs(1), ..Limits::default() };
        let used = Usage { cpu: Duration::from_millis(999), ..Usage::default() };
        assert_eq!(rests.go_on(cpu, used, now).next - now, SHORTEST, "processor time is never left to chance");
    }
}
