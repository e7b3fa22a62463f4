//! Signals as events: blocked before any thread starts, taken by one thread, handed on through a pipe.
//!
//! No code runs in a signal handler. The threads of this process inherit the blocked set, and so would children:
//! whoever starts a program must give it an empty mask
//! and the default actions.

use crate::error::Failure;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Blocked signals and the end of the pipe on which they arrive, one byte each.
#[derive(Debug)]
pub(super) struct Signals {
    arrived: OwnedFd,
}

impl Signals {
    /// Must be called while the process has one thread.
    pub(super) fn take(signals: &[i32]) -> Result<Signals, Failure> {
        let failed = |e: std::io::Error| Failure::io("cannot take over the signals", &e);
        let set = block(signals).map_err(failed)?;
        let (arrived, tell) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let watch = move || {
            loop {
                let mut signal = 0;
                // SAFETY: both pointers are to live locals, and the set was filled by `block`.
                let result = unsafe { libc::sigwait(&set, &mut signal) };
                let byte = u8::try_from(signal).unwrap_or(0);
                if result != 0 || rustix::io::write(&tell, &[byte]).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(failed)?;
        Ok(Signals { arrived })
    }

    /// Readable when one has arrived.
    pub(super) fn arrived(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }

    /// Whether one has arrived that nobody has taken.
    pub(super) fn have_arrived(&self) -> bool {
        let mut waiting = [PollFd::new(&self.arrived, PollFlags::IN)];
        poll(&mut waiting, Some(&rustix::event::Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Waits for the next one; `None` only if the pipe is broken.
    pub(super) fn next(&self) -> Option<i32> {
        let mut byte = [0];
        loop {
            match rustix::io::read(&self.arrived, &mut byte) {
                Ok(1) => return Some(i32::from(byte[0])),
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return None,
            }
        }
    }
}

fn block(signals: &[i32]) -> std::io::Result<libc::sigset_t> {
    // SAFETY: `sigemptyset` initialises the set it is given; the other calls only read or fill live locals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => Ok(set),
            error => Err(std::io::Error::from_raw_os_error(error)),
        }
    }
}

/// A reader that ends as if the input had ended when a signal arrives, so that a writer always ends in order.
#[derive(Debug)]
pub(super) struct Interruptible<'s, R> {
    input: R,
    signals: &'s Signals,
    /// What ends the input as well, once there is something to read.
    until: Option<BorrowedFd<'s>>,
    /// The signal that ended the input.
    pub(super) signal: Option<i32>,
}

impl<'s, R: Read + AsFd> Interruptible<'s, R> {
    pub(super) fn new(input: R, signals: &'s Signals) -> Interruptible<'s, R> {
        Interruptible { input, signals, until: None, signal: None }
    }

    /// The input also ends when there is something to read here.
    pub(super) fn or_until(self, until: BorrowedFd<'s>) -> Interruptible<'s, R> {
        Interruptible { until: Some(until), ..self }
    }
}

impl<R: Read + AsFd> Read for Interruptible<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.signal.is_some() {
            return Ok(0);
        }
        let until = self.until.iter().map(|until| PollFd::from_borrowed_fd(*until, PollFlags::IN));
        let mut waiting =
            vec![PollFd::new(&self.signals.arrived, PollFlags::IN), PollFd::new(&self.input, PollFlags::IN)];
        waiting.extend(until);
        poll(&mut waiting, None)?;
        let has_come = |at: usize| waiting.get(at).is_some_and(|waiting| waiting.revents().contains(PollFlags::IN));
        if has_come(0) {
            self.signal = self.signals.next();
            return Ok(0);
        }
        if has_come(2) {
            return Ok(0);
        }
        self.input.read(into)
    }
}

/// A file that may not grow is an error to be told, not a reason to die in the middle of a write.
pub(super) fn ignore_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler and touches no memory.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The shell's number for an end by this signal.
pub(super) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
