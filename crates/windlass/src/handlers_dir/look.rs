//! What makes a file a handler: a look through the directory.
//!
//! Whoever can write a handler, or put one there, runs programs as this server: a directory or file that everybody or
//! another group can write, or that somebody else owns, is refused in words, and so is a link that leads out of the
//! directory. A file that somebody still writes is not taken before it is closed. It must not watch or wait.

use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirEntry, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use windlass_core::job::QueueName;
use windlass_core::policy::{HandlerFile, HandlerFiles};

/// A name with this end is a Lua module.
pub(super) const LUA: &str = ".lua";
/// Why a file that somebody has open to write serves nothing yet.
const UNFINISHED: &str = "is still being written";

/// What a look found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) files: HandlerFiles,
    /// By the name of the file: why it serves nothing.
    pub(super) refused: BTreeMap<String, String>,
    /// One of them is still being written.
    pub(super) unfinished: bool,
}

/// What is remembered from one look to the next: files that were seen closed, as they were then.
#[derive(Debug, Default)]
pub(super) struct Looker {
    closed: HashMap<Box<str>, (u64, i64, i64)>,
}

impl Looker {
    /// Looks through the directory; an error is why nothing in it is used.
    pub(super) fn look(&mut self, directory: &Path) -> Result<Looked, String> {
        let shown = directory.display();
        let cannot = |e: std::io::Error| format!("cannot use the directory of handlers {shown}: {e}");
        let meta = directory.metadata().map_err(cannot)?;
        if !meta.is_dir() {
            return Err(format!("the directory of handlers {shown} is not a directory"));
        }
        if let Some(why) = untrusted(&meta) {
            return Err(format!("the directory of handlers {shown} {why}, and its files are run"));
        }
        let inside = directory.canonicalize().map_err(cannot)?;
        let mut looked = Looked::default();
        let mut closed = HashMap::new();
        for entry in directory.read_dir().map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let bytes = entry.file_name().as_bytes().to_vec();
            // Hidden files are an editor's or a copier's, not yet or not at all anybody's handlers.
            if bytes.starts_with(b".") {
                continue;
            }
            let name = String::from_utf8_lossy(&bytes).into_owned();
            match self.judge(&entry, &bytes, &inside, &mut closed) {
                Ok(Some((queue, kind))) => take(&mut looked, name, queue, kind),
                Ok(None) => {}
                Err(why) => {
                    looked.unfinished |= why == UNFINISHED;
                    looked.refused.insert(name, why);
                }
            }
        }
        self.closed = closed;
        Ok(looked)
    }

    /// The queue that an entry serves and how; none for what is no file, an error for one that may not serve.
    fn judge(
        &self,
        entry: &DirEntry,
        name: &[u8],
        inside: &Path,
        closed: &mut HashMap<Box<str>, (u64, i64, i64)>,
    ) -> Result<Option<(QueueName, HandlerFile)>, String> {
        let gone = |e: std::io::Error| format!("cannot be looked at: {e}");
        let path = entry.path();
        let is_link = entry.file_type().map_err(gone)?.is_symlink();
        if is_link && !leads_inside(&path, inside) {
            return Err("is a link that leads out of the directory".into());
        }
        let meta = path.metadata().map_err(gone)?;
        if meta.is_dir() {
            return Ok(None);
        }
        let (bare, kind) = match name.strip_suffix(LUA.as_bytes()) {
            Some(bare) => (bare, HandlerFile::Lua),
            None => (name, HandlerFile::Program),
        };
        let queue = QueueName::new(bare).map_err(|bad| format!("has no queue's name: {bad}"))?;
        if !meta.is_file() {
            return Err("is not a file".into());
        }
        if let Some(why) = untrusted(&meta) {
            return Err(why);
        }
        if kind == HandlerFile::Program && meta.mode() & 0o111 == 0 {
            return Err("is not executable".into());
        }
        let face = (meta.ino(), meta.ctime(), meta.ctime_nsec());
        if self.closed.get(queue.as_str()) != Some(&face) && is_being_written(&path) {
            return Err(UNFINISHED.into());
        }
        closed.insert(queue.as_str().into(), face);
        Ok(Some((queue, kind)))
    }
}

/// A program and a module of one name cannot both serve: the program does.
fn take(looked: &mut Looked, name: String, queue: QueueName, kind: HandlerFile) {
    let both = || format!("serves nothing beside the program {:?}", queue.as_str());
    match (kind, looked.files.get(queue.as_str())) {
        (HandlerFile::Lua, Some(HandlerFile::Program)) => drop(looked.refused.insert(name, both())),
        (HandlerFile::Program, Some(HandlerFile::Lua)) => {
            looked.refused.insert(format!("{name}{LUA}"), both());
            looked.files.insert(queue.as_str().into(), kind);
        }
        _ => drop(looked.files.insert(queue.as_str().into(), kind)),
    }
}

/// Why what somebody else could have written must not be run; none where only this user, its own group and root could.
fn untrusted(meta: &Metadata) -> Option<String> {
    let (us, ours) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if meta.mode() & 0o002 != 0 {
        Some("can be written by everybody".into())
    } else if meta.mode() & 0o020 != 0 && meta.gid() != ours && meta.gid() != 0 {
        Some(format!("can be written by the group {}, expected {ours} or 0, or no right to write", meta.gid()))
    } else if meta.uid() != us && meta.uid() != 0 {
        Some(format!("belongs to uid {}, expected {us} or 0", meta.uid()))
    } else {
        None
    }
}

fn leads_inside(link: &Path, inside: &Path) -> bool {
    let target: std::io::Result<PathBuf> = link.canonicalize();
    target.is_ok_and(|target| target.starts_with(inside))
}

/// Whether somebody has the file open to write. The kernel gives no read lease on such a file; where it refuses for any
/// other reason nobody can tell, and the file is taken as it is.
fn is_being_written(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    // SAFETY: a call on a descriptor that lives until its end.
    unsafe {
        if libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) == 0 {
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
            return false;
        }
    }
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}
