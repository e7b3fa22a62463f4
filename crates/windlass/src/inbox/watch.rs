//! What a reader of files sleeps on: the kernel's file events of directories, and a bell for orders. Without those
//! it wakes up now and then, and without event descriptors a bell is a pipe.
//!
//! The inbox's watch is armed only for the time of a sleep, because a watched directory costs every append; the caller
//! looks once more after it was armed. There is no time-out while all is well: an idle inbox costs nothing.

use crate::error::{Failure, Kind};
use crate::without::is_without;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Rung by the other threads; one ring is enough for any number of orders.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<Ends>);

/// Where it is heard, and where it is rung if that is another end.
#[derive(Debug)]
struct Ends {
    ear: OwnedFd,
    rope: Option<OwnedFd>,
}

/// So often one looks who is not told of files.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Bell {
    pub(crate) fn new() -> Result<Bell, Failure> {
        let event = match is_without("eventfd") {
            true => Err(Errno::NOSYS),
            false => eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK),
        };
        let (ear, rope) = match event {
            Err(Errno::NOSYS) => {
                let ends = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|e| broken("pipe", e))?;
                (ends.0, Some(ends.1))
            }
            event => (event.map_err(|e| broken("eventfd", e))?, None),
        };
        Ok(Bell(Arc::new(Ends { ear, rope })))
    }

    pub(crate) fn ring(&self) {
        // It can only fail when the bell has rung so often unheard that there is no more room: then it still rings.
        let _ = rustix::io::write(self.0.rope.as_ref().unwrap_or(&self.0.ear), &1u64.to_ne_bytes());
    }

    /// Silences the bell.
    pub(crate) fn hear(&self) {
        // Nothing to read means that it did not ring; what is left in a pipe rings once more.
        let _ = rustix::io::read(&self.0.ear, &mut [0u8; 4096]);
    }

    /// Sleeps until the bell rings.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        self.wait_until(None)
    }

    /// Sleeps until the bell rings, but no longer than this.
    pub(crate) fn wait_up_to(&self, time: Duration) -> Result<(), Failure> {
        self.wait_until(Timespec::try_from(time).ok())
    }

    /// Sleeps until the bell rings or there is something to read.
    pub(crate) fn wait_with(&self, other: impl AsFd) -> Result<(), Failure> {
        wait_for(&mut [PollFd::new(&self.0.ear, PollFlags::IN), PollFd::new(&other, PollFlags::IN)], None)?;
        self.hear();
        Ok(())
    }

    fn wait_until(&self, time: Option<Timespec>) -> Result<(), Failure> {
        wait_for(&mut [PollFd::new(&self.0.ear, PollFlags::IN)], time)?;
        self.hear();
        Ok(())
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.ear.as_fd()
    }
}

/// The watch over some directories.
#[derive(Debug)]
pub(crate) struct Watch {
    /// None where the kernel tells nothing of files.
    inotify: Option<OwnedFd>,
}

/// An armed watch.
#[derive(Debug)]
pub(crate) struct Armed(i32);

impl Armed {
    /// What its events are known by.
    pub(crate) fn number(&self) -> i32 {
        self.0
    }
}

impl Watch {
    pub(crate) fn new() -> Result<Watch, Failure> {
        if is_without("inotify") {
            return Ok(Watch { inotify: None });
        }
        match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(inotify) => Ok(Watch { inotify: Some(inotify) }),
            Err(Errno::NOSYS) => Ok(Watch { inotify: None }),
            Err(error) => Err(broken("inotify", error).hint("raise fs.inotify.max_user_instances")),
        }
    }

    /// One that is told nothing.
    pub(crate) fn blind() -> Watch {
        Watch { inotify: None }
    }

    /// It is told nothing: whoever waits looks for himself when he wakes.
    pub(crate) fn is_blind(&self) -> bool {
        self.inotify.is_none()
    }

    /// Starts to watch for appends; `closing` also tells when a writer closes a file.
    pub(crate) fn arm(&self, dir: &Path, closing: bool) -> Result<Armed, Failure> {
        // One event is enough to be woken by, and the kernel then takes the watch away itself: a flood that comes while
        // we are still asleep pays for one event, not for each of its appends.
        let once = WatchFlags::ONESHOT | WatchFlags::ONLYDIR;
        let mut flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | once;
        if closing {
            flags |= WatchFlags::CLOSE_WRITE;
        }
        self.arm_for(dir, flags).map_err(|e| Failure::io(format_args!("cannot watch {}", dir.display()), &e.into()))
    }

    /// Starts to watch for these changes.
    pub(crate) fn arm_for(&self, dir: &Path, flags: WatchFlags) -> rustix::io::Result<Armed> {
        self.inotify.as_ref().map_or(Ok(Armed(0)), |inotify| inotify::add_watch(inotify, dir, flags).map(Armed))
    }

    /// Sleeps until a file changes or the bell rings.
    pub(crate) fn wait(&self, bell: &Bell) -> Result<(), Failure> {
        self.wait_up_to(bell, None)
    }

    /// The same, but no longer than this.
    pub(crate) fn wait_up_to(&self, bell: &Bell, most: Option<Duration>) -> Result<(), Failure> {
        self.wait_beside(bell, None, most).map(drop)
    }

    /// The same, or until there is something to read; true where there is.
    pub(crate) fn wait_beside(
        &self,
        bell: &Bell,
        other: Option<BorrowedFd<'_>>,
        most: Option<Duration>,
    ) -> Result<bool, Failure> {
        let most = match &self.inotify {
            Some(_) => most,
            None => Some(most.map_or(LOOK_EVERY, |most| most.min(LOOK_EVERY))),
        };
        let told = [Some(bell.0.ear.as_fd()), other, self.inotify.as_ref().map(AsFd::as_fd)];
        let mut fds: Vec<PollFd<'_>> =
            told.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        wait_for(&mut fds, most.and_then(|most| Timespec::try_from(most).ok()))?;
        let has_other = other.is_some() && !fds[1].revents().is_empty();
        bell.hear();
        Ok(has_other)
    }

    /// Sleeps until a file changes, where there is a watch, or there is something to read; no longer than this.
    pub(crate) fn wait_for_any(
        watch: Option<&Watch>,
        other: Option<BorrowedFd<'_>>,
        most: Duration,
    ) -> Result<(), Failure> {
        let watched = watch.and_then(|watch| watch.inotify.as_ref()).map(AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> =
            [watched, other].into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        wait_for(&mut fds, Timespec::try_from(most).ok())
    }

    /// Takes each event that has come: of which watch, what happened, and the name it happened to if it has one.
    pub(crate) fn read(&self, mut take: impl FnMut(i32, ReadFlags, Option<&[u8]>)) {
        let Some(inotify) = &self.inotify else { return };
        let mut events = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify, &mut events);
        // It ends with an error where there are no more.
        while let Ok(event) = reader.next() {
            take(event.wd(), event.events(), event.file_name().map(|name| name.to_bytes()));
        }
    }

    pub(crate) fn disarm(&self, armed: impl IntoIterator<Item = Armed>) {
        for (Armed(number), inotify) in armed.into_iter().zip(std::iter::repeat(&self.inotify)) {
            // One that has told its event, or whose directory is gone, has ended by itself.
            let _ended = inotify.as_ref().map(|inotify| inotify::remove_watch(inotify, number));
        }
        self.read(|_, _, _| {});
    }
}

fn wait_for(fds: &mut [PollFd<'_>], time: Option<Timespec>) -> Result<(), Failure> {
    loop {
        match poll(fds, time.as_ref()) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(broken("poll", error)),
        }
    }
}

fn broken(what: &str, error: Errno) -> Failure {
    Failure::new(Kind::Internal, format!("cannot wait for files: {what}: {error}"))
}
