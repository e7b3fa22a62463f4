//! `windlass doctor`: looks at the machine and the data directory, and says what to mend.
//!
//! It changes nothing but a scratch file that is gone when it ends. Each finding has a remedy where it is not fine.

use super::connect::Link;
use super::lock_watch::is_free;
use super::print::{self, Out};
use super::{Context, connect};
use crate::clock;
use crate::config::units::spoken_size;
use crate::data_dir::{DataDir, FORMAT};
use crate::error::{Failure, Kind};
use rustix::fs::{Mode, OFlags, fdatasync, open, statfs};
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Fine,
    /// It works, but less well or less safely than it could.
    Warning,
    /// It does not work, or will not keep what was promised.
    Problem,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Health::Fine => "fine",
            Health::Warning => "warning",
            Health::Problem => "problem",
        })
    }
}

#[derive(Debug)]
struct Finding {
    check: &'static str,
    health: Health,
    text: String,
    remedy: &'static str,
}

impl Finding {
    fn fine(check: &'static str, text: impl Into<String>) -> Finding {
        Finding { check, health: Health::Fine, text: text.into(), remedy: "" }
    }

    fn new(check: &'static str, health: Health, text: impl Into<String>, remedy: &'static str) -> Finding {
        let remedy = if health == Health::Fine { "" } else { remedy };
        Finding { check, health, text: text.into(), remedy }
    }
}

pub(super) fn doctor(context: &Context) -> Result<u8, Failure> {
    let findings = match context.data_dir() {
        Ok(dir) => examine(&dir),
        Err(failure) => {
            let remedy = "name another one with --dir, or mend this one";
            vec![Finding::new("directory", Health::Problem, failure.text, remedy)]
        }
    };
    let worst = findings.iter().any(|finding| finding.health == Health::Problem);
    let code = if worst { Kind::Io.exit_code() } else { 0 };
    if context.json {
        let list: Vec<_> = findings
            .iter()
            .map(|f| json!({ "check": f.check, "health": f.health.to_string(), "text": f.text, "remedy": f.remedy }))
            .collect();
        print::document(&json!({ "healthy": !worst, "findings": list }))?;
        return Ok(code);
    }
    let mut out = Out::new();
    for finding in &findings {
        out.line(format_args!("{:<8} {:<12} {}", finding.health, finding.check, print::visible(&finding.text)));
        if !finding.remedy.is_empty() {
            out.line(format_args!("{:<21} remedy: {}", "", finding.remedy));
        }
    }
    out.finish()?;
    Ok(code)
}

fn examine(dir: &DataDir) -> Vec<Finding> {
    vec![
        directory(dir),
        Finding::fine("format", format!("{FORMAT}, the newest this program knows")),
        holder(dir),
        file_system(dir),
        space(dir),
        sync_time(dir),
        watches(),
        open_files(),
        time(dir),
    ]
}

fn directory(dir: &DataDir) -> Finding {
    let root = dir.root().display().to_string();
    match dir.root().metadata() {
        Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => {
            let text = format!("{root} belongs to uid {}", meta.uid());
            Finding::new("directory", Health::Warning, text, "work as its owner, or use --dir")
        }
        Ok(meta) if meta.mode() & 0o022 != 0 => {
            let text = format!("{root} can be written by others (mode {:o})", meta.mode() & 0o7777);
            Finding::new("directory", Health::Problem, text, "chmod go-w: whoever writes there works as you")
        }
        Ok(_) => Finding::fine("directory", root),
        Err(error) => Finding::new("directory", Health::Problem, format!("{root}: {error}"), "make it readable"),
    }
}

fn holder(dir: &DataDir) -> Finding {
    if is_free(dir) {
        return Finding::fine("server", "nobody has the data directory; verbs open it themselves");
    }
    // A text that cannot be read names nobody; that there is a holder is known all the same.
    let owner = std::fs::read_to_string(dir.root().join("lock")).unwrap_or_default();
    let owner = owner.trim().to_owned();
    match Link::to_server(dir) {
        Ok(Some(_)) => Finding::fine("server", format!("{owner} answers")),
        Ok(None) => {
            let text = format!("{owner} has the lock and does not answer");
            Finding::new("server", Health::Problem, text, "look at that process; it should serve run/socket")
        }
        Err(failure) if connect::is_gone(&failure) => Finding::new(
            "server",
            Health::Warning,
            format!("{owner} is going away: {failure}"),
            "ask again in a moment",
        ),
        Err(failure) => Finding::new("server", Health::Problem, format!("{owner}: {failure}"), "look at that process"),
    }
}

fn file_system(dir: &DataDir) -> Finding {
    let Ok(found) = statfs(dir.root()) else {
        return Finding::new("file system", Health::Warning, "its type cannot be told", "use a local disk");
    };
    let (name, health, remedy) = known_file_system(found.f_type as u64 & 0xffff_ffff);
    Finding::new("file system", health, name, remedy)
}

/// What is known of the types that matter: what forgets, and what does not lock or wake as it should.
fn known_file_system(magic: u64) -> (String, Health, &'static str) {
    const FORGETS: &str = "use a disk: after a restart of the machine all jobs would be gone, whatever was answered";
    const FAR: &str = "use a local disk: locks, syncs and file events over a network do not keep the promises";
    let known = |name: &str| (name.to_owned(), Health::Fine, "");
    match magic {
        0x0102_1994 => ("tmpfs, in memory only".into(), Health::Warning, FORGETS),
        0x8584_58f6 => ("ramfs, in memory only".into(), Health::Warning, FORGETS),
        0x6969 => ("NFS, over a network".into(), Health::Warning, FAR),
        0xff53_4d42 | 0xfe53_4d42 => ("SMB, over a network".into(), Health::Warning, FAR),
        0x0102_1997 => ("9P, from another system".into(), Health::Warning, FAR),
        0x6573_5546 => ("FUSE, a program's own".into(), Health::Warning, FAR),
        0xef53 => known("ext"),
        0x5846_5342 => known("XFS"),
        0x9123_683e => known("Btrfs"),
        0x2fc1_2fc1 => known("ZFS"),
        0xf2f5_2010 => known("F2FS"),
        0x794c_7630 => known("overlay"),
        other => (format!("type {other:#x}"), Health::Fine, ""),
    }
}

fn space(dir: &DataDir) -> Finding {
    match statfs(dir.root()) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_bsize as u64);
            let health = match free {
                0..0x400_0000 => Health::Problem,
                0x400_0000..0x4000_0000 => Health::Warning,
                _ => Health::Fine,
            };
            let text = format!("{} free", spoken_size(free));
            Finding::new("space", health, text, "make room: with a full disk nothing more is accepted")
        }
        Err(error) => Finding::new("space", Health::Warning, format!("cannot be told: {error}"), "look with df"),
    }
}

/// The middle of five synced writes: what every `full` answer costs at least.
fn sync_time(dir: &DataDir) -> Finding {
    let measured = || -> rustix::io::Result<Duration> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = open(dir.root(), flags, Mode::from_raw_mode(0o600))?;
        let mut times = [Duration::ZERO; 5];
        for time in &mut times {
            let begun = Instant::now();
            rustix::io::write(&file, &[0; 4096])?;
            fdatasync(&file)?;
            *time = begun.elapsed();
        }
        times.sort();
        Ok(times[2])
    };
    match measured() {
        Ok(time) => {
            let health = if time > Duration::from_millis(50) { Health::Warning } else { Health::Fine };
            let text = format!("{:.2} ms for a synced write", time.as_secs_f64() * 1000.0);
            Finding::new("sync", health, text, "a faster disk, or `--durability os` where a power cut may cost a job")
        }
        Err(error) => {
            Finding::new("sync", Health::Problem, format!("cannot write and sync: {error}"), "make it writable")
        }
    }
}

fn watches() -> Finding {
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

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile).current;
    let health = if limit.is_some_and(|limit| limit < 1024) { Health::Warning } else { Health::Fine };
    let text = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {limit}"));
    Finding::new("open files", health, text, "ulimit -n 4096: each running job needs a few")
}

fn time(dir: &DataDir) -> Finding {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_fine_has_a_remedy() {
        for magic in [0x0102_1994, 0x8584_58f6, 0x6969, 0xff53_4d42, 0x6573_5546, 0xef53, 0x1234] {
            let (name, health, remedy) = known_file_system(magic);
            assert_eq!(remedy.is_empty(), health == Health::Fine, "{name}");
        }
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        for finding in examine(&dir) {
            assert_eq!(finding.remedy.is_empty(), finding.health == Health::Fine, "{finding:?}");
        }
    }

    #[test]
    fn a_directory_that_others_can_write_is_a_problem() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        assert_eq!(directory(&dir).health, Health::Fine);
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(directory(&dir).health, Health::Problem);
    }

    #[test]
    fn a_silent_holder_is_a_problem() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        assert_eq!(holder(&dir).health, Health::Fine);
        let _lock = dir.lock().unwrap();
        let finding = holder(&dir);
        assert_eq!(finding.health, Health::Problem);
        assert!(finding.text.contains(&std::process::id().to_string()));
    }
}
