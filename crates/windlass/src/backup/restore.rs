//! The way back: a backup is read through and compared with its manifest before anything is written, then laid out
//! beside the place where it goes, looked through again, and put in place with one rename.

use super::manifest::{self, Manifest, Sum};
use super::pack::{BLOCK, copy, private};
use super::{STORE, damaged, sync_dir};
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::store::embedded::snapshot;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// More than any manifest has.
const MANIFEST_MOST: u64 = 256 << 20;

/// Lays a backup out in a directory that is new or empty. With `force` what is there is moved aside, and where to is
/// the answer.
pub fn restore(from: &Path, to: &Path, force: bool) -> Result<Option<PathBuf>, Failure> {
    let manifest = read_through(from)?;
    let occupied = is_occupied(to)?;
    if occupied && !force {
        let text = format!("cannot restore into {}: it is not empty", to.display());
        return Err(Failure::new(Kind::CannotCreate, text)
            .hint("name a new directory with --dir, or move what is there aside with --force"));
    }
    let to = std::path::absolute(to).map_err(|e| Failure::io(format_args!("cannot use {}", to.display()), &e))?;
    let beside = |what: &str| {
        let name = to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        to.with_file_name(format!("{name}.{what}"))
    };
    let stage = beside(&format!("restoring-{}", std::process::id()));
    let laid_out = lay_out(from, &manifest, &stage).and_then(|()| put_in_place(&stage, &to, occupied, beside));
    if laid_out.is_err() {
        // What did not become a data directory must not be taken for one.
        let _ = fs::remove_dir_all(&stage);
    }
    laid_out
}

/// How many files a backup holds, if it is whole.
pub(super) fn verify(from: &Path) -> Result<usize, Failure> {
    read_through(from).map(|manifest| manifest.files.len())
}

/// Reads everything and compares it with the manifest.
fn read_through(from: &Path) -> Result<Manifest, Failure> {
    let mut sums = BTreeMap::new();
    let mut list = None;
    each_file(from, |name, content| {
        if name == manifest::NAME {
            let mut text = String::new();
            content.take(MANIFEST_MOST).read_to_string(&mut text).map_err(|e| damaged(from, e))?;
            list = Some(text);
        } else {
            let sum = copy(content, &mut io::sink()).map_err(|e| damaged(from, e))?;
            sums.insert(name.to_owned(), sum);
        }
        Ok(())
    })?;
    let list = list.ok_or_else(|| damaged(from, "it has no manifest"))?;
    let manifest = Manifest::parse(&list).map_err(|failure| match failure.kind {
        Kind::Version => failure,
        _ => damaged(from, failure),
    })?;
    for (name, sum) in &manifest.files {
        match sums.get(name) {
            Some(found) if found == sum => {}
            Some(_) => return Err(damaged(from, format!("{name} has another checksum than when it was made"))),
            None => return Err(damaged(from, format!("{name} is missing"))),
        }
    }
    if !manifest.files.contains_key(STORE) || !manifest.files.contains_key("FORMAT") {
        return Err(damaged(from, "there is no store in it"));
    }
    Ok(manifest)
}

/// Writes every file of the manifest below a new directory, and makes the store one of its own.
fn lay_out(from: &Path, manifest: &Manifest, stage: &Path) -> Result<(), Failure> {
    let cannot = |e: io::Error| Failure::io(format_args!("cannot restore into {}", stage.display()), &e);
    let make = |dir: &Path| {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(cannot)
    };
    make(stage)?;
    let mut written = BTreeMap::<String, Sum>::new();
    each_file(from, |name, content| {
        if !manifest.files.contains_key(name) {
            return Ok(());
        }
        let path = stage.join(name);
        make(path.parent().unwrap_or(stage))?;
        let mut file = private(&path).map_err(cannot)?;
        let sum = copy(content, &mut file).map_err(cannot)?;
        file.sync_all().map_err(cannot)?;
        written.insert(name.to_owned(), sum);
        Ok(())
    })?;
    if written != manifest.files {
        return Err(damaged(from, "it changed while it was read"));
    }
    // A newer format is refused here, before anything is opened.
    let dir = DataDir::open(stage)?;
    snapshot::check(&dir.state_db())?;
    snapshot::make_own(&dir.state_db())?;
    for entry in fs::read_dir(stage).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.is_dir() {
            sync_dir(&path).map_err(cannot)?;
        }
    }
    sync_dir(stage).map_err(cannot)
}

fn put_in_place(
    stage: &Path,
    to: &Path,
    occupied: bool,
    beside: impl Fn(&str) -> PathBuf,
) -> Result<Option<PathBuf>, Failure> {
    let cannot = |e: io::Error| {
        let hint = "name a directory that does not exist yet, on the same file system as its parent";
        Failure::io(format_args!("cannot put the restored directory in place of {}", to.display()), &e).hint(hint)
    };
    let mut aside = None;
    let mut lock = None;
    if occupied {
        // Whoever works in it must be gone first. A directory that is no data directory has nobody in it.
        if to.join("FORMAT").exists() {
            lock = Some(DataDir::open(to)?.lock()?);
        }
        let old = beside(&format!("before-restore-{}", std::process::id()));
        fs::rename(to, &old).map_err(cannot)?;
        aside = Some(old);
    }
    if let Err(error) = fs::rename(stage, to) {
        if let Some(old) = &aside {
            // Back to how it was; the first error is the one to tell.
            let _ = fs::rename(old, to);
        }
        return Err(cannot(error));
    }
    drop(lock);
    sync_dir(to.parent().unwrap_or(Path::new("/"))).map_err(cannot)?;
    Ok(aside)
}

fn is_occupied(to: &Path) -> Result<bool, Failure> {
    match fs::read_dir(to) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::io(format_args!("cannot restore into {}", to.display()), &error)),
    }
}

/// Hands over each file of a backup with its name, in either form.
fn each_file(from: &Path, mut take: impl FnMut(&str, &mut dyn Read) -> Result<(), Failure>) -> Result<(), Failure> {
    let cannot = |e: io::Error| {
        let kind = if e.kind() == ErrorKind::NotFound { Kind::NoInput } else { Kind::Io };
        Failure::new(kind, format!("cannot read the backup {}: {e}", from.display()))
    };
    if from.metadata().map_err(cannot)?.is_dir() {
        let list = from.join(manifest::NAME);
        let text = fs::read_to_string(&list).map_err(|_| damaged(from, "it has no manifest"))?;
        for name in Manifest::parse(&text).map_err(|f| damaged(from, f))?.files.keys() {
            match File::open(from.join(name)) {
                Ok(mut file) => take(name, &mut file)?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(cannot(error)),
            }
        }
        return take(manifest::NAME, &mut text.as_bytes());
    }
    let mut tar = BufReader::with_capacity(1 << 20, File::open(from).map_err(cannot)?);
    let mut long = None;
    loop {
        let mut header = [0; BLOCK];
        tar.read_exact(&mut header).map_err(|_| damaged(from, "it ends too early"))?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let (name, kind, length) = parse_header(&header).ok_or_else(|| damaged(from, "one of its headers is wrong"))?;
        let mut content = (&mut tar).take(length);
        match kind {
            b'L' => {
                let mut text = String::new();
                let mut short = (&mut content).take(4096);
                short.read_to_string(&mut text).map_err(|e| damaged(from, e))?;
                long = Some(text.trim_end_matches('\0').to_owned());
            }
            _ => take(&long.take().unwrap_or(name), &mut content)?,
        }
        let unread = content.limit();
        let padding = (BLOCK as u64 - length % BLOCK as u64) % BLOCK as u64;
        let skipped = io::copy(&mut (&mut tar).take(unread + padding), &mut io::sink()).map_err(cannot)?;
        if skipped != unread + padding {
            return Err(damaged(from, "it ends too early"));
        }
    }
}

/// Name, kind and length of a file in a tar.
fn parse_header(header: &[u8; BLOCK]) -> Option<(String, u8, u64)> {
    let octal = |field: &[u8]| {
        let text = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
        u64::from_str_radix(text, 8).ok()
    };
    let sum: u64 =
        header.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { (*byte).into() }).sum();
    if octal(&header[148..156])? != sum {
        return None;
    }
    let length = match header[124] {
        0x80 => u64::from_be_bytes(header[128..136].try_into().ok()?),
        _ => octal(&header[124..136])?,
    };
    let end = header[..100].iter().position(|byte| *byte == 0).unwrap_or(100);
    Some((std::str::from_utf8(&header[..end]).ok()?.to_owned(), header[156], length))
}
