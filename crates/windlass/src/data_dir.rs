//! The data directory: its paths, its format line and its lock.
//!
//! ```text
//! DIR/FORMAT  lock  audit.log  backup  reserve  store  server  inbox/  run/{socket,address,token,slots.K}
//!     state.db  bodies/  archive/  output/  quarantine/
//! ```
//!
//! `FORMAT` is read before anything else is opened, so that an older program refuses a newer store without
//! touching it. One process at a time holds the lock: a server, a `run`, or a verb that found no server.

use crate::error::{Failure, Kind};
use crate::sabotage::{self, Sabotage};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The format this program writes and the newest it reads.
pub const FORMAT: u32 = 1;

/// The file that says where the jobs are, if they are not here.
pub const STORE_NOTE: &str = "store";

/// The paths under one data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    root: PathBuf,
}

impl DataDir {
    /// Makes the directory where it is missing, and checks its format before anything in it is opened.
    pub fn open(root: &Path) -> Result<DataDir, Failure> {
        let cannot = |what: &Path, error: &std::io::Error| {
            Failure::new(Kind::CannotCreate, format!("cannot use the data directory {}: {error}", what.display()))
                .hint("name another one with --dir or WINDLASS_DIR")
        };
        make_private(root).map_err(|e| cannot(root, &e))?;
        let root = fs::canonicalize(root).map_err(|e| cannot(root, &e))?;
        let dir = DataDir { root };
        dir.check_format()?;
        for sub in ["inbox", "run", "bodies", "archive", "output", "quarantine"] {
            let path = dir.root.join(sub);
            make_private(&path).map_err(|e| cannot(&path, &e))?;
        }
        Ok(dir)
    }

    /// The data directory that is there; none where nothing of ours is, and then nothing is made. A program that writes
    /// to the inbox may have come before any of ours.
    pub fn find(root: &Path) -> Result<Option<DataDir>, Failure> {
        for ours in ["FORMAT", "inbox"] {
            match root.join(ours).symlink_metadata() {
                Ok(_) => return DataDir::open(root).map(Some),
                Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {}
                Err(error) => {
                    let looking = format!("cannot look into the data directory {}", root.display());
                    return Err(Failure::io(looking, &error));
                }
            }
        }
        Ok(None)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn inbox(&self) -> PathBuf {
        self.root.join("inbox")
    }

    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    pub fn socket(&self) -> PathBuf {
        self.root.join("run/socket")
    }

    pub fn state_db(&self) -> PathBuf {
        self.root.join("state.db")
    }

    /// What floods brought, until it is worked off.
    pub fn bodies(&self) -> PathBuf {
        self.root.join("bodies")
    }

    /// Blocks that are given up when the disk is full.
    pub fn reserve(&self) -> PathBuf {
        self.root.join("reserve")
    }

    pub fn archive(&self) -> PathBuf {
        self.root.join("archive")
    }

    pub fn output(&self) -> PathBuf {
        self.root.join("output")
    }

    /// What people changed, one line each.
    pub fn audit_log(&self) -> PathBuf {
        self.root.join("audit.log")
    }

    /// When the newest backup was made, and where to.
    pub fn backup_note(&self) -> PathBuf {
        self.root.join("backup")
    }

    /// Which store the jobs are in, where that is not this directory.
    pub fn store_note(&self) -> PathBuf {
        self.root.join(STORE_NOTE)
    }

    pub fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }

    /// Why nothing can be written here, if that is so: a file without a name is written and synced.
    pub fn write_error(&self) -> Option<std::io::Error> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let tried = rustix::fs::open(&self.root, flags, Mode::from_raw_mode(0o600)).and_then(|file| {
            rustix::io::write(&file, &[0; 4096])?;
            rustix::fs::fdatasync(&file)
        });
        // A file system that has no such files has said nothing about others.
        tried.err().filter(|error| *error != rustix::io::Errno::OPNOTSUPP).map(std::io::Error::from)
    }

    fn check_format(&self) -> Result<(), Failure> {
        let path = self.root.join("FORMAT");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let found = text.trim().strip_prefix("windlass ").and_then(|n| n.parse::<u32>().ok());
                match found {
                    Some(found) if found <= FORMAT => Ok(()),
                    Some(found) => Err(Failure::new(
                        Kind::Version,
                        format!(
                            "{} has format {found}, this program knows formats up to {FORMAT}",
                            self.root.display()
                        ),
                    )
                    .hint("use the newer windlass that wrote it; nothing was changed")),
                    None => Err(Failure::new(
                        Kind::BadData,
                        format!("{} does not say `windlass N` but {:?}", path.display(), text.trim()),
                    )),
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                write_durably(&self.root, "FORMAT", format!("windlass {FORMAT}\n").as_bytes())
                    .map_err(|e| Failure::io(format_args!("cannot write {}", path.display()), &e))
            }
            Err(error) => Err(Failure::io(format_args!("cannot read {}", path.display()), &error)),
        }
    }

    /// Takes the lock, or tells who has it.
    pub fn lock(&self) -> Result<Lock, Failure> {
        let path = self.root.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .map_err(|e| Failure::io(format_args!("cannot open {}", path.display()), &e.into()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) if sabotage::on(Sabotage::NoServerLock) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let owner = fs::read_to_string(&path).unwrap_or_default();
                let text = format!("{} is in use by {}", self.root.display(), owner.trim());
                return Err(Failure::new(Kind::TryLater, text));
            }
            Err(error) => return Err(Failure::io(format_args!("cannot lock {}", path.display()), &error.into())),
        }
        let mut file = fs::File::from(file);
        let owner = format!("windlass process {}, format {FORMAT}, boot {}\n", std::process::id(), boot_id());
        // Over the old text and not after emptying the file: on a full disk the block would not come back.
        file.write_all(owner.as_bytes())
            .and_then(|()| file.set_len(owner.len() as u64))
            .map_err(|e| Failure::io("cannot write the lock", &e))?;
        Ok(Lock { _file: file.into() })
    }
}

/// The data directory where none is named: what a service manager gives, else the user's state directory. Root has the
/// one of an installed service, where there is one.
pub fn usual_place(variable: &dyn Fn(&str) -> Option<OsString>, installed: Option<&Path>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").filter(|dir| dir.is_absolute());
    let home = || set("HOME").map(|home| home.join(".local/state"));
    let given = of_service_manager("STATE_DIRECTORY", variable);
    let given = given.or_else(|| state.as_ref().map(|dir| dir.join("windlass"))).or(installed.map(Path::to_owned));
    given.or_else(|| home().map(|dir| dir.join("windlass")))
}

/// A directory that a service manager gives its service in a variable. The service may be somebody else's, who only
/// calls us: one without our name on it is not ours.
pub fn of_service_manager(name: &str, variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = variable(name)?;
    let ours = |path: &PathBuf| path.is_absolute() && path.components().any(|part| part.as_os_str() == "windlass");
    given.as_bytes().split(|byte| *byte == b':').map(|path| PathBuf::from(OsStr::from_bytes(path))).find(ours)
}

/// Held while it lives; the kernel frees it on every way out.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

/// This boot's id: what ran under another one is dead.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

/// Makes a directory and its parents, private where it is new.
fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a small file so that after a power cut it is there whole or not at all.
pub fn write_durably(dir: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = dir.join(format!(".{name}.new"));
    let written = fs::File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written {
        // On a full disk even a half of it is in the way; a leftover is overwritten by the next try.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    fs::rename(&temporary, dir.join(name))?;
    if sabotage::on(Sabotage::NameNotSynced) {
        return Ok(());
    }
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_place() {
        let place = |set: &[(&str, &str)], installed: Option<&str>| {
            let variable =
                |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value));
            usual_place(&variable, installed.map(Path::new)).map(|path| path.display().to_string())
        };
        let home = ("HOME", "/home/ann");
        assert_eq!(place(&[home], None).unwrap(), "/home/ann/.local/state/windlass");
        assert_eq!(place(&[home], Some("/var/lib/windlass")).unwrap(), "/var/lib/windlass");
        let state = ("XDG_STATE_HOME", "/s");
        assert_eq!(place(&[home, state], Some("/var/lib/windlass")).unwrap(), "/s/windlass");
        assert_eq!(place(&[home, ("XDG_STATE_HOME", "s")], None).unwrap(), "/home/ann/.local/state/windlass");
        let unit = ("STATE_DIRECTORY", "/var/lib/web:/var/lib/windlass/a");
        assert_eq!(place(&[home, state, unit], None).unwrap(), "/var/lib/windlass/a");
        let other = ("STATE_DIRECTORY", "/var/lib/web");
        assert_eq!(place(&[home, other], None).unwrap(), "/home/ann/.local/state/windlass", "it is a caller's");
        assert_eq!(place(&[], None), None);
    }
}
