//! What /proc tells about processes: who they are, when they were born, and whose marker they carry.
//!
//! A pid alone names nobody after a while; pid and birth together do, within one boot. This file only reads.

use std::fs;
use windlass_core::job::JobId;

/// The variable in a job's environment that says whose tree a process belongs to.
pub const JOB_MARKER: &str = "WINDLASS_JOB_ID";
/// The variable that says which start of that job.
pub const START_MARKER: &str = "WINDLASS_ATTEMPT";

/// The few fields of `/proc/PID/stat` that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) zombie: bool,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// In clock ticks since boot.
    pub(super) born: u64,
    /// Time on processors, in ticks, with that of its children who are dead and gone.
    pub(super) ticks: u64,
    pub(super) threads: u32,
    /// Memory that it has now.
    pub(super) pages: u64,
}

pub(super) fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether all of a process is dead, though it may not have been taken away yet. Its first thread can end before the
/// others; one of the others that is traced stays in the list when it is dead.
pub(super) fn has_died(pid: i32) -> bool {
    let Some(first) = stat(pid) else { return true };
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_dead = |path: std::path::PathBuf| {
        fs::read(path.join("stat")).ok().and_then(|text| parse_stat(&text)).is_none_or(|stat| stat.zombie)
    };
    first.zombie && (first.threads <= 1 || threads().all(|thread| is_dead(thread.path())))
}

/// What a dead process left for whoever waits for it.
pub(super) fn wait_status(pid: i32) -> Option<i32> {
    let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The 52nd field of the line; the third is the first one here.
    behind_name(&bytes)?.split_ascii_whitespace().nth(49)?.parse().ok()
}

/// The fields from the third on. The name in brackets may hold anything, brackets and spaces too; the last bracket ends
/// it.
fn behind_name(bytes: &[u8]) -> Option<&str> {
    let behind = bytes.iter().rposition(|b| *b == b')')? + 1;
    std::str::from_utf8(&bytes[behind..]).ok()
}

fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let mut fields = behind_name(bytes)?.split_ascii_whitespace();
    let zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // From here on every field is a number; the next one is the sixth of the line.
    let mut number = |skipped: usize| fields.nth(skipped)?.parse::<i64>().ok();
    let ticks = number(8)?.max(0) + number(0)?.max(0) + number(0)?.max(0) + number(0)?.max(0);
    let threads = number(2)?.max(0) as u32;
    let born = number(1)?.max(0) as u64;
    let pages = number(1)?.max(0) as u64;
    Some(Stat { zombie, parent, group, born, ticks: ticks as u64, threads, pages })
}

/// Whose a process is, by its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    As(JobId, u32),
    /// Its environment is empty, without a marker, overwritten or not ours to read.
    Not,
    /// It is just becoming another program or giving its memory up for good: it can be told in a moment.
    NotYet,
}

impl Marked {
    pub(super) fn owner(self) -> Option<(JobId, u32)> {
        match self {
            Marked::As(job, start) => Some((job, start)),
            Marked::Not | Marked::NotYet => None,
        }
    }
}

pub(super) fn marker(pid: i32) -> Marked {
    let Ok(text) = fs::read(format!("/proc/{pid}/environ")) else { return Marked::Not };
    // Where its program changes under the reading it comes to an end anywhere, also within a value.
    let whole = text.iter().rposition(|byte| *byte == 0).map_or(0, |last| last + 1);
    match (marker_in(&text[..whole]), environment_size(pid)) {
        (Some((job, start)), _) => Marked::As(job, start),
        (None, Size::Known(size)) if text.len() as u64 >= size => Marked::Not,
        (None, Size::Known(_) | Size::NotYet) => Marked::NotYet,
        (None, Size::Never) => Marked::Not,
    }
}

enum Size {
    Known(u64),
    /// It has no memory of its own at this moment.
    NotYet,
    /// A thread of the kernel, or a process whose first thread is dead.
    Never,
}

fn environment_size(pid: i32) -> Size {
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let Ok(bytes) = fs::read(format!("/proc/{pid}/stat")) else { return Size::Never };
    let fields: Vec<&str> = behind_name(&bytes).unwrap_or_default().split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    match fields.first() {
        None | Some(&("Z" | "X")) => Size::Never,
        Some(_) if number(6) & KERNEL_THREAD != 0 => Size::Never,
        // Fields 27, 50 and 51 of the line; the third is the first one here. The end of the program's code is what the
        // kernel sets last of these.
        Some(_) if number(24) == 0 || number(48) == 0 => Size::NotYet,
        Some(_) => Size::Known(number(48).saturating_sub(number(47))),
    }
}

fn marker_in(environment: &[u8]) -> Option<(JobId, u32)> {
    let value = |name: &str| {
        let of = |entry: &'_ [u8]| -> Option<String> {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            String::from_utf8(value.to_vec()).ok()
        };
        environment.split(|b| *b == 0).find_map(of)
    };
    Some((value(JOB_MARKER)?.parse().ok()?, value(START_MARKER)?.parse().ok()?))
}

/// Every process of the machine that can be seen.
pub(super) fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Now, on the clock of `Stat::born`.
pub(super) fn ticks_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_brackets_is_only_a_name() {
        let line = b"42 (a) R 1 (b) Z) S 7 42 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 987654 1000 55 3";
        let stat = Stat { zombie: false, parent: 7, group: 42, born: 987_654, ticks: 26, threads: 9, pages: 55 };
        assert_eq!(parse_stat(line), Some(stat));
        assert_eq!(parse_stat(b"42 (a"), None);
    }

    #[test]
    fn this_process_is_found_as_it_is() {
        let pid = std::process::id() as i32;
        let seen = stat(pid).unwrap();
        assert!(!seen.zombie && seen.born <= ticks_now());
        assert_eq!(seen.parent, std::os::unix::process::parent_id() as i32);
        assert!(all().any(|p| p == pid));
    }

    /// Between two programs a process has no environment. Whoever took that for one without a marker would let it live
    /// on when its job has ended.
    #[test]
    fn one_that_becomes_another_program_again_and_again_has_its_marker_all_the_while() {
        let again = r#"export C='exec sh -c "$C"'; exec sh -c "$C""#;
        let mut command = std::process::Command::new("sh");
        command.args(["-c", again]).env(JOB_MARKER, "j-0000000001-5").env(START_MARKER, "3");
        let mut child = command.spawn().unwrap();
        let pid = child.id() as i32;
        // Before its first program it is still we, who have no marker.
        while marker(pid).owner().is_none() {}
        let mut looks = (0..20_000).map(|_| marker(pid));
        let wrong = looks.find(|marked| *marked == Marked::Not);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(wrong, None);
        let mut bare = std::process::Command::new("sleep").arg("1000").env_clear().spawn().unwrap();
        let bare_is = loop {
            match marker(bare.id() as i32) {
                Marked::NotYet => {}
                told => break told,
            }
        };
        bare.kill().unwrap();
        bare.wait().unwrap();
        assert_eq!(bare_is, Marked::Not, "an empty environment is one");
    }

    #[test]
    fn a_marker_is_both_variables_and_nothing_near_them() {
        let id: JobId = "j-0000000001-5".parse().unwrap();
        assert_eq!(marker_in(b"A=1\0WINDLASS_JOB_ID=j-0000000001-5\0WINDLASS_ATTEMPT=3\0"), Some((id, 3)));
        assert_eq!(marker_in(b"XWINDLASS_JOB_ID=j-0000000001-5\0WINDLASS_ATTEMPT=3\0"), None);
        assert_eq!(marker_in(b"WINDLASS_JOB_ID=j-0000000001-5\0WINDLASS_ATTEMPTS=3\0"), None);
        assert_eq!(marker_in(b""), None);
    }
}
