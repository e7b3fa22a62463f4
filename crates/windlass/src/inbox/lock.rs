//! A lock that is waited for without polling and not for ever, and the name of who holds it.
//!
//! The kernel has no timed `flock`. When a file is busy it is handed, with its descriptor, to a thread that may
//! block; if the time runs out the file is left to that thread, which closes it whenever it gets the lock.

use crate::sabotage::{self, Sabotage};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a stuck writer may hold up another one.
pub const PATIENCE: Duration = Duration::from_secs(2);

type Answer = std::io::Result<File>;

/// Takes locks; keeps its thread from one busy lock to the next.
#[derive(Debug, Default)]
pub struct Locker {
    thread: Option<(Sender<File>, Receiver<Answer>)>,
}

/// What came of waiting for a lock.
#[derive(Debug)]
pub enum Waited<F = File> {
    Locked(F),
    /// Still busy; the descriptor is gone with the thread that waits for it.
    Busy,
}

impl Locker {
    /// Waits up to `patience` for the exclusive lock.
    pub fn wait(&mut self, file: File, patience: Duration) -> std::io::Result<Waited> {
        if sabotage::on(Sabotage::NoLock) || try_lock(&file)? {
            return Ok(Waited::Locked(file));
        }
        let (files, answers) = match &self.thread {
            Some(thread) => thread,
            None => self.thread.insert(start()?),
        };
        if files.send(file).is_err() {
            self.thread = None;
            return Ok(Waited::Busy);
        }
        match answers.recv_timeout(patience) {
            Ok(answer) => answer.map(Waited::Locked),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.thread = None;
                Ok(Waited::Busy)
            }
        }
    }
}

fn start() -> std::io::Result<(Sender<File>, Receiver<Answer>)> {
    let (files, work) = channel::<File>();
    let (results, answers) = channel();
    std::thread::Builder::new().name("inbox-lock".into()).spawn(move || {
        for file in work {
            let answer = lock(&file).map(|()| file);
            if results.send(answer).is_err() {
                return;
            }
        }
    })?;
    Ok((files, answers))
}

/// Takes the lock if it is free.
pub fn try_lock(file: &File) -> std::io::Result<bool> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn lock(file: &File) -> std::io::Result<()> {
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            other => return other.map_err(Into::into),
        }
    }
}

pub fn unlock(file: &File) -> std::io::Result<()> {
    flock(file, FlockOperation::Unlock).map_err(Into::into)
}

/// The process that the kernel names as holder of the lock on a file.
pub fn holder(inode: u64) -> Option<u32> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let inode = format!(":{inode} ");
    let held = |line: &&str| line.contains("FLOCK") && !line.contains("->") && line.contains(&inode);
    locks.lines().find(held)?.split_whitespace().nth(4)?.parse().ok()
}
