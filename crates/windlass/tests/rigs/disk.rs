//! A disk that can be cut off from its power: ext4 in a file on a loop device, seen only by the thread that made it.
//!
//! The kernel's own `shutdown` of a file system throws away what was not synced, as a power cut does. What a disk needs
//! (root, loop devices, the tools) and does not get is a failure with a sentence.

use crate::rig::PATIENCE;
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The request of `FS_IOC_SHUTDOWN`, and its way of not even writing the journal out.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
const NO_LOG_FLUSH: u32 = 2;

/// Does something on a thread that has mounts of its own: they go with it, however it ends.
pub(crate) fn with_own_mounts<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a plain call about this thread alone.
            let own = unsafe { libc::unshare(libc::CLONE_NEWNS) };
            assert_eq!(own, 0, "no mounts of its own (root is needed): {}", std::io::Error::last_os_error());
            mount("", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "");
            body()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Mounts, or fails saying what.
pub(crate) fn mount(source: &str, at: &Path, kind: &str, flags: libc::c_ulong, options: &str) {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap();
    let (from, to) = (text(source.as_bytes()), text(at.as_os_str().as_bytes()));
    let (with, of) = (text(options.as_bytes()), text(kind.as_bytes()));
    // SAFETY: four strings that live as long as the call.
    let done = unsafe { libc::mount(from.as_ptr(), to.as_ptr(), of.as_ptr(), flags, with.as_ptr().cast()) };
    let error = std::io::Error::last_os_error();
    assert_eq!(done, 0, "cannot mount {kind} {source} at {} ({options}): {error}", at.display());
}

/// Unmounts as soon as the last descriptor of the dead is closed, which may be a moment behind them.
pub(crate) fn unmount(at: &Path) {
    let to = CString::new(at.as_os_str().as_bytes()).unwrap();
    let begun = Instant::now();
    // SAFETY: a string that lives as long as the call.
    while unsafe { libc::umount2(to.as_ptr(), 0) } != 0 {
        let error = std::io::Error::last_os_error();
        let busy = error.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < PATIENCE;
        assert!(busy, "cannot unmount {}: {error}", at.display());
        std::thread::yield_now();
    }
}

fn tool(program: &str, words: &[&std::ffi::OsStr]) {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|e| panic!("the rig needs {program}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {} {said}", output.status);
}

/// An image and where it is mounted.
pub(crate) struct Disk {
    image: PathBuf,
    at: PathBuf,
    bytes: u64,
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It may lie outside of the rig's own place.
        let _ = std::fs::remove_file(&self.image);
    }
}

impl Disk {
    pub(crate) fn new(image: PathBuf, at: &Path, mib: u64) -> Disk {
        std::fs::create_dir_all(at).unwrap();
        let disk = Disk { image, at: at.to_owned(), bytes: mib << 20 };
        disk.format();
        disk
    }

    pub(crate) fn format(&self) {
        std::fs::File::create(&self.image).and_then(|file| file.set_len(self.bytes)).unwrap();
        let quick = "lazy_itable_init=1,nodiscard,root_owner=0:0";
        tool("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-E".as_ref(), quick.as_ref(), self.image.as_os_str()]);
    }

    pub(crate) fn mount(&self) {
        let words = ["-o", "loop"].map(std::ffi::OsStr::new);
        tool("mount", &[words[0], words[1], self.image.as_os_str(), self.at.as_os_str()]);
    }

    pub(crate) fn unmount(&self) {
        unmount(&self.at);
    }

    /// The disk as it was kept.
    pub(crate) fn restore(&self, kept: &Path) {
        tool("cp", &["--sparse=always".as_ref(), kept.as_os_str(), self.image.as_os_str()]);
    }

    pub(crate) fn keep(&self, kept: &Path) {
        tool("cp", &["--sparse=always".as_ref(), self.image.as_os_str(), kept.as_os_str()]);
    }

    /// Something that cuts the power, whoever calls it from wherever.
    pub(crate) fn switch(&self) -> impl FnOnce() + Send + use<> {
        let root = std::fs::File::open(&self.at).unwrap();
        move || {
            let how = NO_LOG_FLUSH;
            // SAFETY: the kernel reads one number.
            let done = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const how) };
            assert_eq!(done, 0, "cannot shut the file system down: {}", std::io::Error::last_os_error());
        }
    }

    /// Once a mount has played the journal back, what is left must be whole.
    pub(crate) fn check(&self) {
        tool("e2fsck", &["-f".as_ref(), "-n".as_ref(), self.image.as_os_str()]);
    }
}

/// What this thread and its children take for the id of the machine's boot.
pub(crate) struct Boots {
    file: PathBuf,
    count: std::cell::Cell<u32>,
}

impl Boots {
    pub(crate) fn new(file: PathBuf) -> Boots {
        let boots = Boots { file, count: 0.into() };
        boots.boot();
        let source = boots.file.to_str().unwrap();
        mount(source, Path::new("/proc/sys/kernel/random/boot_id"), "", libc::MS_BIND, "");
        boots
    }

    /// After a power cut comes another boot.
    pub(crate) fn boot(&self) {
        self.count.set(self.count.get() + 1);
        let id = self.count.get().wrapping_mul(0x9e37_79b1);
        std::fs::write(&self.file, format!("{id:08x}-7769-4e64-8c61-7373{id:08x}\n")).unwrap();
    }
}
