//! Small file systems of their own for tests that need a full or a read-only disk. Mounting needs root: a test that
//! cannot mount fails and says so, because what it did not see is not shown.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system; unmounted when it goes.
pub(crate) struct Mount {
    at: PathBuf,
}

impl Mount {
    /// An ext4 of so many MiB in a file beside the mount point.
    #[track_caller]
    pub(crate) fn ext4(at: &Path, mib: u32) -> Mount {
        let image = at.with_extension("ext4");
        File::create(&image).unwrap().set_len(u64::from(mib) << 20).unwrap();
        must(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
        Mount::new(at, Command::new("mount").args(["-o", "loop"]).arg(&image))
    }

    /// Memory of so many MiB.
    #[track_caller]
    pub(crate) fn tmpfs(at: &Path, mib: u32) -> Mount {
        let size = format!("size={mib}m,mode=0700");
        Mount::new(at, Command::new("mount").args(["-t", "tmpfs", "-o", &size, "windlass-test"]))
    }

    #[track_caller]
    fn new(at: &Path, mount: &mut Command) -> Mount {
        std::fs::create_dir_all(at).unwrap();
        must(mount.arg(at));
        Mount { at: at.to_owned() }
    }

    #[track_caller]
    pub(crate) fn read_only(&self, yes: bool) {
        let mode = if yes { "remount,ro" } else { "remount,rw" };
        must(Command::new("mount").args(["-o", mode]).arg(&self.at));
    }

    /// An ext4 stops as it does after an error of its disk: whatever is open, nothing can be written any more.
    #[track_caller]
    pub(crate) fn abort(&self) {
        must(Command::new("mount").args(["-o", "remount,abort"]).arg(&self.at));
    }

    /// Mounts an ext4 anew.
    #[track_caller]
    pub(crate) fn again(&self) {
        must(Command::new("umount").arg(&self.at));
        must(Command::new("mount").args(["-o", "loop"]).arg(self.at.with_extension("ext4")).arg(&self.at));
    }

    /// Takes every last block with a file of this name.
    pub(crate) fn fill(&self, name: &str) -> PathBuf {
        let path = self.at.join(name);
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        for size in [1 << 20, 4096, 512, 1] {
            let piece = vec![b'x'; size];
            loop {
                match file.write(&piece) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        // What the file system only counted so far is really taken now.
        file.sync_all().unwrap();
        path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a failing test may leave a process in it for a moment.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[track_caller]
fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("this test needs {command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "this test must mount file systems, which needs root: {command:?}: {said}");
}
