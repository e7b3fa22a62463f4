//! The text of modules, read again when a file has changed.
//!
//! A file is looked at before each job that needs it, and its text is kept as long as the file is the same: device,
//! inode, size and times. Clocks of file systems are coarse, so a file that changed within the last moments is not
//! trusted to be the same next time. It must not run anything.

use crate::clock;
use std::collections::HashMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use windlass_core::time::Time;

/// No module needs more.
const TEXT_MAX: u64 = 4 << 20;
/// So many are kept; a directory with more is read more often.
const KEPT_MAX: usize = 256;
/// A change may hide behind another one for so long.
const COARSE: Duration = Duration::from_secs(2);

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    changed: [(i64, i64); 2],
}

/// The texts that were read last.
#[derive(Debug, Default)]
pub(super) struct Sources {
    kept: HashMap<PathBuf, (Stamp, Rc<[u8]>)>,
}

impl Sources {
    /// The text of a file as it is now; an error is a sentence.
    pub(super) fn read(&mut self, path: &Path) -> Result<Rc<[u8]>, String> {
        let cannot = |why: &dyn std::fmt::Display| format!("cannot read the module {}: {why}", path.display());
        let meta = std::fs::metadata(path).map_err(|e| cannot(&e))?;
        // Opening anything else could wait for ever.
        if !meta.is_file() {
            return Err(cannot(&"it is not a file"));
        }
        let stamp = stamp(&meta);
        if let Some((of, text)) = self.kept.get(path)
            && *of == stamp
        {
            return Ok(Rc::clone(text));
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(|e| cannot(&e))?;
        file.take(TEXT_MAX + 1).read_to_end(&mut bytes).map_err(|e| cannot(&e))?;
        if bytes.len() as u64 > TEXT_MAX {
            return Err(cannot(&format_args!("it has more than {TEXT_MAX} bytes")));
        }
        let text: Rc<[u8]> = bytes.into();
        self.kept.remove(path);
        if is_settled(&meta) {
            if self.kept.len() >= KEPT_MAX {
                self.kept.clear();
            }
            self.kept.insert(path.to_owned(), (stamp, Rc::clone(&text)));
        }
        Ok(text)
    }
}

fn stamp(meta: &std::fs::Metadata) -> Stamp {
    let changed = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
    Stamp { file: (meta.dev(), meta.ino()), size: meta.size(), changed }
}

/// Its last change is long enough ago for the next one to have another time.
fn is_settled(meta: &std::fs::Metadata) -> bool {
    clock::now().since(Time(meta.ctime().saturating_mul(1_000_000))) > COARSE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.lua");
        let mut sources = Sources::default();
        for round in 0..50 {
            let text = format!("return {round:04}");
            std::fs::write(&path, &text).unwrap();
            assert_eq!(&*sources.read(&path).unwrap(), text.as_bytes());
        }
        std::fs::remove_file(&path).unwrap();
        assert!(sources.read(&path).unwrap_err().starts_with("cannot read the module"));
        assert!(sources.read(dir.path()).unwrap_err().ends_with("it is not a file"));
        let settled = std::fs::metadata("/bin/sh").unwrap();
        assert!(is_settled(&settled), "an old file is kept");
    }
}
