//! The disk under a data directory: what kind it is, whether it does what is asked of it, how much is left, and
//! whether what lies there is whole.

use super::{Finding, Health};
use crate::archiver::extent;
use crate::cli::print::counted;
use crate::config::units::spoken_size;
use crate::data_dir::{DataDir, FORMAT};
use crate::store::embedded::View;
use crate::when;
use rustix::fs::{FlockOperation, Mode, OFlags, fdatasync, flock, open, statfs};
use std::fs;
use std::time::{Duration, Instant, UNIX_EPOCH};
use windlass_core::time::Time;

/// So many bytes of the newest segments are looked through.
const ARCHIVE_LOOK: u64 = 256 << 20;

pub(super) fn file_system(dir: &DataDir) -> Finding {
    let Ok(found) = statfs(dir.root()) else {
        return Finding::new("file system", Health::Warning, "its type cannot be told", "use a local disk");
    };
    let (name, health, remedy) = known_file_system(found.f_type as u64 & 0xffff_ffff);
    Finding::new("file system", health, name, remedy)
}

/// What is known of the types that matter: what forgets, and what does not lock or wake as it should.
pub(super) fn known_file_system(magic: u64) -> (String, Health, &'static str) {
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

pub(super) fn space(dir: &DataDir) -> Finding {
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
pub(super) fn sync_time(dir: &DataDir) -> Finding {
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

/// Does on a scratch file what the store and the inbox rely on: sync, rename, a lock that holds.
pub(super) fn operations(dir: &DataDir) -> Finding {
    const REMEDY: &str = "use a local disk: the promises rest on these calls";
    let path = |end: &str| dir.root().join(format!(".doctor.{}.{end}", std::process::id()));
    let (first, second) = (path("1"), path("2"));
    let tried = || -> Result<(), String> {
        let failed = |what: &'static str| move |e: rustix::io::Errno| format!("{what}: {e}");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(&first, flags, Mode::from_raw_mode(0o600)).map_err(failed("cannot make a file"))?;
        rustix::io::write(&file, b"x").map_err(failed("cannot write"))?;
        fdatasync(&file).map_err(failed("cannot sync"))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(failed("cannot lock"))?;
        let other = open(&first, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed("cannot open"))?;
        if flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Err("a lock does not keep a second one out".into());
        }
        rustix::fs::rename(&first, &second).map_err(failed("cannot rename"))?;
        let names = fs::File::open(dir.root()).and_then(|dir| dir.sync_all());
        names.map_err(|e| format!("cannot sync the directory: {e}"))
    };
    let result = tried();
    for left in [&first, &second] {
        // One of them was never made, or both.
        let _ = fs::remove_file(left);
    }
    match result {
        Ok(()) => Finding::fine("calls", "rename, lock and sync do what they should"),
        Err(why) => Finding::new("calls", Health::Problem, why, REMEDY),
    }
}

/// Whether outcomes could still be recorded on a full disk.
pub(super) fn reserve(dir: &DataDir) -> Finding {
    match dir.reserve().metadata() {
        Ok(meta) => Finding::fine("reserve", format!("{} for a full disk", spoken_size(meta.len()))),
        Err(_) if !dir.state_db().exists() => {
            Finding::fine("reserve", "made with the store, by the first verb or server")
        }
        Err(_) => {
            let text = "it is used up, or there was no room for it";
            Finding::new("reserve", Health::Warning, text, "make room: the server makes it again by itself")
        }
    }
}

/// How old the newest backup is that was made of this directory.
pub(super) fn backup(dir: &DataDir, now: Time) -> Finding {
    const OLD: Duration = Duration::from_secs(7 * 86_400);
    const REMEDY: &str = "windlass backup FILE makes one, while the server runs or without one";
    let noted = fs::read_to_string(dir.backup_note()).unwrap_or_default();
    let (at, to) = noted.trim_end().split_once(' ').unwrap_or_default();
    let made = at.parse::<jiff::Timestamp>().map(|at| Time(at.as_microsecond())).ok();
    let since = |meta: fs::Metadata| meta.modified().ok()?.duration_since(UNIX_EPOCH).ok();
    let begun = dir.root().join("FORMAT").metadata().ok().and_then(since).unwrap_or_default();
    let begun = Time(i64::try_from(begun.as_micros()).unwrap_or(0));
    let health = if now.since(made.unwrap_or(begun)) > OLD { Health::Warning } else { Health::Fine };
    let text = match made {
        Some(made) => format!("{} ago to {to}", when::spoken(now.since(made))),
        None => "none was made of this directory yet".to_owned(),
    };
    Finding::new("backup", health, text, REMEDY)
}

/// The versions of everything that is stored, and the checksums of the newest segments.
pub(super) fn formats(dir: &DataDir) -> Vec<Finding> {
    let mut found = vec![Finding::fine("format", format!("{FORMAT}, the newest this program knows"))];
    if dir.state_db().exists() {
        found.push(match View::open(&dir.state_db()) {
            Ok(_) => Finding::fine("store", "can be read"),
            Err(error) => {
                let remedy = "restore a backup, or use the windlass that wrote it";
                Finding::new("store", Health::Problem, error.to_string(), remedy)
            }
        });
    }
    const REMEDY: &str = "what is damaged cannot be shown any more; waiting jobs are not in the archive";
    found.push(match extent::soundness(&dir.archive(), ARCHIVE_LOOK) {
        Ok(sound) if sound.damaged > 0 || sound.unreadable > 0 => {
            let text = format!("damaged bytes: {}, unreadable segments: {}", sound.damaged, sound.unreadable);
            Finding::new("archive", Health::Problem, text, REMEDY)
        }
        Ok(sound) => {
            let more =
                if sound.left_out > 0 { format!("; {} older not looked at", sound.left_out) } else { String::new() };
            let (segments, frames) = (counted(sound.segments as u64, "segment"), counted(sound.frames, "frame"));
            let text = format!("{segments}, {frames}, all checksums right{more}");
            Finding::fine("archive", text)
        }
        Err(failure) => Finding::new("archive", Health::Problem, failure.text, REMEDY),
    });
    found
}
