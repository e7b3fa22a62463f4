//! The machine around a data directory: limits, clocks, and what the kernel offers.

use super::{Finding, Health};
use crate::clock;
use crate::data_dir::DataDir;
use rustix::process::{Resource, getrlimit};
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

pub(super) fn watches() -> Finding {
    let limit = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    match (limit("max_user_watches"), limit("max_user_instances")) {
        (Some(watches), Some(instances)) => {
            let health = if watches < 64 || instances < 16 { Health::Warning } else { Health::Fine };
            let text = format!("{watches} watches, {instances} instances for a user");
            Finding::new("inotify", health, text, "raise fs.inotify.max_user_* with sysctl")
        }
        _ => Finding::new("inotify", Health::Warning, "its limits cannot be read", "mount /proc"),
    }
}

/// Descriptors, processes, and how long a file may become.
pub(super) fn limits() -> Vec<Finding> {
    let said = |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {limit}"));
    let check = |check, resource, least: u64, remedy| {
        let limit = getrlimit(resource).current;
        let health = if limit.is_some_and(|limit| limit < least) { Health::Warning } else { Health::Fine };
        Finding::new(check, health, said(limit), remedy)
    };
    vec![
        check("open files", Resource::Nofile, 1024, "ulimit -n 4096: each running job needs a few"),
        check("processes", Resource::Nproc, 256, "ulimit -u 4096: each running job is one at least"),
        check("file size", Resource::Fsize, 1 << 30, "ulimit -f unlimited: the store is one file"),
    ]
}

/// Whether jobs could be kept in groups of the kernel's own, and who keeps the limits of those of this server.
pub(super) fn cgroups(dir: &DataDir) -> Finding {
    let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let Some(root) = root.into_iter().find(|root| root.join("cgroup.controllers").exists()) else {
        return Finding::fine("cgroups", "version 2 is not there; trees are found by their parents");
    };
    let writable = rustix::fs::access(root, rustix::fs::Access::WRITE_OK).is_ok();
    let may = if writable { "can be used" } else { "belong to somebody else; trees are found by their parents" };
    let kept = kept_by(dir).unwrap_or_default();
    Finding::fine("cgroups", format!("version 2 at {} {may}{kept}", root.display()))
}

/// Who keeps limits is known once a job had any: then a launcher has noted where its groups are, and they are there.
fn kept_by(dir: &DataDir) -> Option<&'static str> {
    let mut entries = dir.run().read_dir().ok()?.flatten().map(|entry| entry.path());
    let group = entries.find(|path| path.file_stem().is_some_and(|stem| stem == "cgroup"))?;
    let base = std::fs::read_to_string(group).ok()?;
    let handed = std::fs::read_to_string(Path::new(&base).join("cgroup.subtree_control")).ok()?;
    let has = |name: &str| handed.split_ascii_whitespace().any(|word| word == name);
    Some(match (has("memory"), has("pids")) {
        (true, true) => "; the kernel keeps the limits of this server's jobs",
        (true, false) => "; the kernel keeps this server's limits of memory, those of processes are watched",
        (false, _) => "; the controller of memory is not handed down to this server: limits are watched",
    })
}

/// The zone that local times are read in.
pub(super) fn zone() -> Finding {
    match jiff::tz::TimeZone::try_system() {
        Ok(zone) => Finding::fine("time zone", zone.iana_name().unwrap_or("of a rule without a name").to_owned()),
        Err(error) => {
            let text = format!("it cannot be told ({error}); local times are read as UTC");
            Finding::new("time zone", Health::Warning, text, "set TZ, or /etc/localtime")
        }
    }
}

/// Both clocks over the same short time: one that is being set or runs wild is seen in it.
pub(super) fn pace() -> Finding {
    const LOOK: Duration = Duration::from_millis(20);
    let (wall, steady) = (clock::now(), Instant::now());
    while steady.elapsed() < LOOK {
        std::thread::yield_now();
    }
    let (by_wall, by_steady) = (clock::now().as_micros() - wall.as_micros(), steady.elapsed().as_micros() as i64);
    let apart = (by_wall - by_steady).abs();
    let health = if apart > 5_000 { Health::Warning } else { Health::Fine };
    let text = format!("wall and steady clock are {apart} µs apart over {} ms", by_steady / 1000);
    Finding::new("clock pace", health, text, "see what sets the clock: it should be slewed, not jump")
}

pub(super) fn time(dir: &DataDir) -> Finding {
    const REMEDY: &str = "set the clock: due times and retention are counted by it";
    let now = clock::now();
    let shown = crate::when::rfc3339(now);
    // 2024 is before this program was written.
    if now.as_micros() < 1_704_067_200_000_000 {
        return Finding::new("clock", Health::Problem, format!("{shown} is in the past"), REMEDY);
    }
    let written = dir.root().join("FORMAT").metadata().and_then(|meta| meta.modified()).ok();
    let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_micros());
    match written > now.as_micros().unsigned_abs().into() {
        true => {
            Finding::new("clock", Health::Warning, format!("{shown} is before the data directory was made"), REMEDY)
        }
        false => Finding::fine("clock", shown),
    }
}
