//! What only the machine can answer about a config: is the program there, is the directory one, who is that user, how
//! much memory is there.
//!
//! Asked when the file is loaded, so that a mistake is found then and not by the first job.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use windlass_core::policy::Identity;

/// Fails with a sentence unless the program can be started from `directory` with this search path.
pub(crate) fn program(program: &[u8], directory: &Path, search: Option<&OsStr>) -> Result<(), String> {
    let shown = String::from_utf8_lossy(program);
    if program.contains(&b'{') {
        // A template decides it only when there is a job.
        return Ok(());
    }
    if program.contains(&0) {
        return Err(format!("the program {shown:?} holds a NUL byte"));
    }
    let name = Path::new(OsStr::from_bytes(program));
    if program.contains(&b'/') {
        let path = directory.join(name);
        return executable(&path).map_err(|why| format!("the program {shown:?} {why}"));
    }
    let search = search.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let mut found = std::env::split_paths(search).map(|dir: PathBuf| dir.join(name));
    match found.any(|path| executable(&path).is_ok()) {
        true => Ok(()),
        false => Err(format!("the program {shown:?} is not in PATH ({})", search.to_string_lossy())),
    }
}

/// Fails with a sentence unless the file of a Lua module can be read.
pub(super) fn module(file: &[u8]) -> Result<(), String> {
    if file.contains(&b'{') {
        // A template decides it only when there is a job.
        return Ok(());
    }
    let path = Path::new(OsStr::from_bytes(file));
    let cannot = |why: String| format!("cannot read the module {}: {why}", path.display());
    match std::fs::File::open(path).and_then(|file| file.metadata()) {
        Ok(meta) if meta.is_file() => Ok(()),
        Ok(_) => Err(cannot("it is not a file".into())),
        Err(error) => Err(cannot(error.to_string())),
    }
}

/// Fails with a sentence unless the path is a directory.
pub(super) fn directory(path: &Path) -> Result<(), String> {
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(format!("{} is not a directory", path.display())),
        Err(error) => Err(format!("cannot use the directory {}: {error}", path.display())),
    }
}

fn executable(path: &Path) -> Result<(), &'static str> {
    match path.metadata() {
        Err(_) => Err("is not there"),
        Ok(meta) if !meta.is_file() => Err("is not a file"),
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => Err("is not executable"),
        Ok(_) => Ok(()),
    }
}

/// The memory that the machine has; none where it does not tell.
pub(super) fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Whom a name stands for, with all groups, as the machine's databases say now.
pub(super) fn identity(name: &str) -> Result<Identity, String> {
    const ROOM: usize = 64 << 10;
    let unknown = || format!("this machine has no user {name:?}");
    let text = CString::new(name).map_err(|_| unknown())?;
    let mut room = vec![0; ROOM];
    // SAFETY: every pointer is to something of ours that is as large as is said, and the entry is read while it lives.
    let (uid, gid, home) = unsafe {
        let mut entry = std::mem::zeroed::<libc::passwd>();
        let mut found = std::ptr::null_mut();
        let errno =
            libc::getpwnam_r(text.as_ptr(), &raw mut entry, room.as_mut_ptr().cast(), room.len(), &raw mut found);
        match (errno, found.is_null()) {
            (0, false) => (entry.pw_uid, entry.pw_gid, CStr::from_ptr(entry.pw_dir).to_bytes().to_vec()),
            (0 | libc::ENOENT | libc::ESRCH, _) => return Err(unknown()),
            (errno, _) => {
                return Err(format!("cannot look up the user {name:?}: {}", std::io::Error::from_raw_os_error(errno)));
            }
        }
    };
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let mut count = i32::try_from(groups.len()).unwrap_or(i32::MAX);
        // SAFETY: there is room for as many groups as is said.
        let fits = unsafe { libc::getgrouplist(text.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let found = usize::try_from(count).unwrap_or(0);
        if fits >= 0 {
            groups.truncate(found);
            break;
        }
        groups.resize(found.max(groups.len() * 2), 0);
    }
    groups.sort_unstable();
    groups.dedup();
    Ok(Identity { name: name.to_owned(), uid, gid, groups, home })
}
