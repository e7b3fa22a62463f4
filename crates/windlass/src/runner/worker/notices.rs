//! What a kept worker says in the protocol of service managers: datagrams of `NAME=VALUE` lines to `NOTIFY_SOCKET`.
//!
//! Each worker has a socket of its own, so that what comes there is its own. The socket lies with the control files,
//! where only the worker's user can reach it, and is gone when the worker is. This file must not know what is meant.

use crate::runner::control_dir;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use windlass_core::policy::Identity;

/// The most of one datagram that is heard, as with other managers.
const WORDS_MAX: usize = 4096;
/// So many are taken at a time. The kernel keeps fewer for a reader, so what was said before an answer is heard before
/// it; who says more than that while we listen is heard in the next round.
const AT_A_TIME: usize = 1024;

/// The manager's end of one worker's socket.
#[derive(Debug)]
pub(super) struct Notices {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Notices {
    /// Makes the socket of the worker of this number, for who it runs as.
    pub(super) fn new(dir: &Path, number: u32, user: Option<&Identity>) -> io::Result<Notices> {
        if let Some(user) = user {
            control_dir::make_for_user(dir, user.gid)?;
        }
        let path = dir.join(format!("{number}.notify"));
        // One that a server left that was killed.
        let _not_there = std::fs::remove_file(&path);
        let notices = Notices { socket: UnixDatagram::bind(&path)?, path };
        notices.socket.set_nonblocking(true)?;
        std::fs::set_permissions(&notices.path, std::fs::Permissions::from_mode(0o600))?;
        if let Some(user) = user {
            lchown(&notices.path, Some(user.uid), Some(user.gid))?;
        }
        Ok(notices)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The lines of all that was sent, within bounds. Descriptors that come along are dropped and so closed, which is
    /// the answer that who sent a `BARRIER=1` waits for.
    pub(super) fn read(&self) -> Vec<Vec<u8>> {
        let (mut lines, mut words) = (Vec::new(), [0; WORDS_MAX]);
        for _ in 0..AT_A_TIME {
            let got = match rustix::net::recv(&self.socket, &mut words[..], RecvFlags::empty()) {
                Ok((got, _)) => got,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let said = words[..got.min(WORDS_MAX)].split(|b| *b == b'\n');
            lines.extend(said.filter(|line| !line.is_empty()).map(<[u8]>::to_vec));
        }
        lines
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // The whole directory goes with the runner, if this did not.
        let _left_behind = std::fs::remove_file(&self.path);
    }
}
