//! The two forms of a backup: one file, which is a tar that any tool can list, or a directory with the same files.
//!
//! A file appears under its name only when it is whole and on disk; until then it has a hidden name beside it.

use super::manifest::{self, Manifest, Sum};
use super::sync_dir;
use crate::error::{Failure, Kind};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(super) const BLOCK: usize = 512;
/// The most bytes of a name in a header.
const NAME_MAX: usize = 100;

/// Where a backup goes.
pub(super) enum Sink {
    File { path: PathBuf, part: PathBuf, tar: BufWriter<File> },
    Directory { path: PathBuf },
}

impl Sink {
    /// An existing directory takes the files; anything else must not exist yet, and becomes one file.
    pub(super) fn new(to: &Path) -> Result<Sink, Failure> {
        let taken = |why: &str| {
            let text = format!("cannot make the backup {}: {why}", to.display());
            Failure::new(Kind::CannotCreate, text).hint("name a new file, or an empty directory")
        };
        match to.metadata() {
            Ok(meta) if meta.is_dir() => {
                let mut entries = fs::read_dir(to).map_err(|e| taken(&e.to_string()))?;
                if entries.next().is_some() {
                    return Err(taken("the directory is not empty"));
                }
                Ok(Sink::Directory { path: to.to_owned() })
            }
            Ok(_) => Err(taken("it exists and is left as it is")),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let part = hidden(to, "part").ok_or_else(|| taken("it has no name"))?;
                let file = private(&part).map_err(|e| taken(&e.to_string()))?;
                Ok(Sink::File { path: to.to_owned(), part, tar: BufWriter::with_capacity(1 << 20, file) })
            }
            Err(error) => Err(taken(&error.to_string())),
        }
    }

    /// A place for the copy of the store, where there is room for the backup itself.
    pub(super) fn scratch(&self) -> PathBuf {
        match self {
            Sink::File { path, .. } => hidden(path, "store").unwrap_or_else(|| path.with_extension("store")),
            Sink::Directory { path } => path.join(".store"),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Sink::File { part, .. } = self {
            // A finished one was renamed; half a backup is none.
            let _ = fs::remove_file(part);
        }
    }
}

/// Takes files one after another and sums them up.
pub(super) struct Packer {
    sink: Sink,
    manifest: Manifest,
    bytes: u64,
}

impl Packer {
    pub(super) fn new(sink: Sink) -> Packer {
        Packer { sink, manifest: Manifest::default(), bytes: 0 }
    }

    /// Adds a file that may go away at any moment, which then is not missed.
    pub(super) fn add_if_there(&mut self, name: &str, from: &Path, length: Option<u64>) -> Result<(), Failure> {
        match open_plain(from) {
            Ok(file) => self.take(name, from, file, length),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Failure::io(format_args!("cannot read {}", from.display()), &error)),
        }
    }

    /// Adds a file, or the beginning of it.
    pub(super) fn add(&mut self, name: &str, from: &Path, length: Option<u64>) -> Result<(), Failure> {
        let file = open_plain(from).map_err(|e| Failure::io(format_args!("cannot read {}", from.display()), &e))?;
        self.take(name, from, file, length)
    }

    fn take(&mut self, name: &str, from: &Path, file: File, length: Option<u64>) -> Result<(), Failure> {
        let meta = file.metadata().map_err(|e| Failure::io(format_args!("cannot read {}", from.display()), &e))?;
        if !meta.is_file() {
            return Ok(());
        }
        if !manifest::is_safe(name) {
            let text = format!("{name:?} cannot be backed up: its name holds what a list of names cannot");
            return Err(Failure::new(Kind::BadData, text).hint("rename it"));
        }
        let length = length.unwrap_or(meta.len()).min(meta.len());
        let sum = self.write(name, file.take(length), length, meta.mtime())?;
        if sum.length != length {
            let text = format!("{} became shorter while it was copied", from.display());
            return Err(Failure::new(Kind::TryLater, text).hint("try again"));
        }
        self.bytes += length;
        self.manifest.files.insert(name.to_owned(), sum);
        Ok(())
    }

    fn write(&mut self, name: &str, from: impl Read, length: u64, modified: i64) -> Result<Sum, Failure> {
        let cannot = |e: io::Error| Failure::io("cannot write the backup", &e);
        match &mut self.sink {
            Sink::File { tar, .. } => {
                write_header(tar, name, length, modified).map_err(cannot)?;
                let sum = copy(from, tar).map_err(cannot)?;
                let padding = (BLOCK - (length % BLOCK as u64) as usize) % BLOCK;
                tar.write_all(&[0; BLOCK][..padding]).map_err(cannot)?;
                Ok(sum)
            }
            Sink::Directory { path } => {
                let to = path.join(name);
                if let Some(parent) = to.parent() {
                    fs::create_dir_all(parent).map_err(cannot)?;
                }
                let mut file = private(&to).map_err(cannot)?;
                let sum = copy(from, &mut file).map_err(cannot)?;
                file.sync_all().map_err(cannot)?;
                Ok(sum)
            }
        }
    }

    /// Adds the manifest and brings everything to disk; then, and only then, the backup has its name.
    pub(super) fn finish(mut self, head: &str) -> Result<(usize, u64), Failure> {
        let text = self.manifest.to_text(head);
        self.write(manifest::NAME, text.as_bytes(), text.len() as u64, 0)?;
        let cannot = |e: io::Error| Failure::io("cannot finish the backup", &e);
        match &mut self.sink {
            Sink::File { path, part, tar } => {
                tar.write_all(&[0; 2 * BLOCK]).and_then(|()| tar.flush()).map_err(cannot)?;
                tar.get_ref().sync_all().map_err(cannot)?;
                fs::rename(part, &*path).map_err(cannot)?;
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
                sync_dir(parent).map_err(cannot)?;
            }
            Sink::Directory { path } => {
                for entry in fs::read_dir(&*path).map_err(cannot)? {
                    let entry = entry.map_err(cannot)?.path();
                    if entry.is_dir() {
                        sync_dir(&entry).map_err(cannot)?;
                    }
                }
                sync_dir(path).map_err(cannot)?;
            }
        }
        Ok((self.manifest.files.len(), self.bytes))
    }
}

/// Copies and sums up.
pub(super) fn copy(mut from: impl Read, to: &mut impl Write) -> io::Result<Sum> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    let mut length = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(Sum { length, crc: hasher.finalize() }),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                to.write_all(&buffer[..n])?;
                length += n as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A new file of the owner's alone.
pub(super) fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// No link is followed and no pipe is waited for: what lies in an inbox was put there by others.
fn open_plain(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)
}

fn hidden(path: &Path, what: &str) -> Option<PathBuf> {
    let name = path.file_name()?.to_string_lossy();
    Some(path.with_file_name(format!(".{name}.{what}.{}", std::process::id())))
}

/// A name that does not fit into the header is written before it, as every tar of today reads it.
fn write_header(tar: &mut impl Write, name: &str, length: u64, modified: i64) -> io::Result<()> {
    if name.len() > NAME_MAX {
        let padding = (BLOCK - (name.len() + 1) % BLOCK) % BLOCK;
        tar.write_all(&header("././@LongLink", b'L', name.len() as u64 + 1, 0))?;
        tar.write_all(name.as_bytes())?;
        tar.write_all(&[0; BLOCK + 1][..padding + 1])?;
    }
    let mut end = name.len().min(NAME_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    tar.write_all(&header(&name[..end], b'0', length, modified))
}

/// The header of a file in a tar, in the old common form; a size beyond eleven octal digits is written in binary.
fn header(name: &str, kind: u8, length: u64, modified: i64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(136, &format!("{:011o}\0", modified.clamp(0, 0o77_777_777_777)));
    put(148, "        ");
    put(257, "ustar\x0000");
    header[156] = kind;
    if length < 1 << 33 {
        header[124..136].copy_from_slice(format!("{length:011o}\0").as_bytes());
    } else {
        header[124] = 0x80;
        header[128..136].copy_from_slice(&length.to_be_bytes());
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
