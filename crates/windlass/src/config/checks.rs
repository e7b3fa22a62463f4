//! What only the machine can answer about a config: is the program there, is the directory one.
//!
//! Asked when the file is loaded, so that a mistake is found then and not by the first job.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Fails with a sentence unless the program can be started from `directory` with this search path.
pub(super) fn program(program: &[u8], directory: &Path, search: Option<&OsStr>) -> Result<(), String> {
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
