//! What a tree of processes uses: who belongs to it, and what /proc says of each.
//!
//! Memory is the sum of what each has, which counts shared pages several times; before anybody is accused the pages
//! are shared out. It must not decide what is too much, nor kill.

use super::process;
use std::fs;
use std::time::Duration;

/// What some processes use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// In bytes.
    pub(super) memory: u64,
    /// Processes and threads.
    pub(super) processes: u32,
    pub(super) cpu: Duration,
}

/// Adds up what these processes use now, and for the processors what their dead children have used.
pub(super) fn of(members: &[i32]) -> Usage {
    let page = rustix::param::page_size() as u64;
    let mut usage = Usage::default();
    let mut ticks = 0;
    for stat in members.iter().filter_map(|pid| process::stat(*pid)) {
        usage.memory += stat.pages * page;
        usage.processes += if stat.zombie { 0 } else { stat.threads };
        ticks += stat.ticks;
    }
    usage.cpu = Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second());
    usage
}

/// The memory of these processes with each shared page shared out among those who have it; none where the kernel does
/// not tell.
pub(super) fn shared_out(members: &[i32]) -> Option<u64> {
    let mut total = 0;
    for pid in members {
        let text = match fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
            Ok(text) => text,
            // One that has ended has nothing; one that is about to end has given its memory back before it is a zombie.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => continue,
            Err(_) if process::stat(*pid).is_none_or(|stat| stat.zombie) => continue,
            Err(_) => return None,
        };
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        total += kilobytes << 10;
    }
    Some(total)
}

/// Whether a process and its descendants have more memory than this; what is short of it at the first look is not
/// looked at closely.
pub(in crate::runner) fn holds_more(pid: i32, limit: u64) -> bool {
    let mut members = vec![pid];
    add_descendants(&mut members);
    let sum = of(&members).memory;
    sum > limit && shared_out(&members).unwrap_or(sum) > limit
}

/// Adds all descendants of the members to them; a child is listed at the thread that made it.
pub(super) fn add_descendants(members: &mut Vec<i32>) {
    let mut at = 0;
    while at < members.len() {
        let threads = fs::read_dir(format!("/proc/{}/task", members[at]));
        for thread in threads.into_iter().flatten().flatten() {
            let listed = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for pid in listed.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
                if !members.contains(&pid) {
                    members.push(pid);
                }
            }
        }
        at += 1;
    }
}

/// The same without those lists, which a kernel can be built without: out of what every process says of its parent.
pub(super) fn add_descendants_by_parent(members: &mut Vec<i32>) {
    let all: Vec<(i32, i32)> = process::all().filter_map(|pid| Some((pid, process::stat(pid)?.parent))).collect();
    let mut at = 0;
    while at < members.len() {
        let parent = members[at];
        let children = all.iter().filter(|(pid, of)| *of == parent && *pid != parent).map(|(pid, _)| *pid);
        let new: Vec<i32> = children.filter(|pid| !members.contains(pid)).collect();
        members.extend(new);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_tree_is_found_both_ways_and_weighed() {
        let script = "sleep 1000 & sh -c 'sleep 1000 & echo; wait' & wait";
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let pid = child.id() as i32;
        let (mut one, mut other) = (vec![pid], vec![pid]);
        add_descendants(&mut one);
        add_descendants_by_parent(&mut other);
        let usage = of(&one);
        let shared = shared_out(&one);
        // From the top, so that no parent is left to reap one that is killed next.
        for pid in &one {
            rustix::process::kill_process(rustix::process::Pid::from_raw(*pid).unwrap(), rustix::process::Signal::KILL)
                .unwrap();
        }
        child.wait().unwrap();
        one.sort_unstable();
        other.sort_unstable();
        assert_eq!(one, other);
        assert_eq!(one.len(), 4, "two shells and two sleeps");
        assert_eq!(usage.processes, 4);
        assert!(usage.memory > 1 << 20, "{usage:?}");
        assert!(shared.is_some_and(|shared| 0 < shared && shared < usage.memory), "{shared:?} {usage:?}");
        assert_eq!(of(&[]), Usage::default());
    }
}
