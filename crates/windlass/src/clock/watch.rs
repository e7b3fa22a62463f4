//! Tells the engine when somebody sets the wall clock, or the machine wakes up: it sleeps by another clock, and would
//! sleep through a time that has come meanwhile.
//!
//! The kernel cancels a timer on that clock then; the timer itself is never due. It reads no time. Where a system has
//! no such timers, a time that has come is noticed with the next event.

use crate::engine::Event;
use crate::error::Failure;
use crate::inbox::watch::Bell;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

/// In the year 2255, which every kernel can count to.
const NEVER: i64 = 9_000_000_000;

/// The thread that waits for the clock to be set.
#[derive(Debug)]
pub(crate) struct ClockWatch {
    ending: Arc<AtomicBool>,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
}

impl ClockWatch {
    pub(crate) fn start(events: Sender<Event>) -> Result<Option<ClockWatch>, Failure> {
        let cannot = |e: std::io::Error| Failure::io("cannot watch the clock", &e);
        let timer = match timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK) {
            Err(Errno::NOSYS | Errno::INVAL) => return Ok(None),
            timer => timer.map_err(|e| cannot(e.into()))?,
        };
        arm(&timer).map_err(|e| cannot(e.into()))?;
        let (ending, bell) = (Arc::<AtomicBool>::default(), Bell::new()?);
        let (told, heard) = (Arc::clone(&ending), bell.clone());
        let thread = std::thread::Builder::new().name("clock".into()).spawn(move || {
            while heard.wait_with(&timer).is_ok() && !told.load(Ordering::Acquire) {
                // What there is to read is the error that says so.
                let _cancelled = rustix::io::read(&timer, &mut [0; 8]);
                if arm(&timer).is_err() || events.send(Event::ClockSet).is_err() {
                    return;
                }
            }
        });
        Ok(Some(ClockWatch { ending, bell, thread: Some(thread.map_err(cannot)?) }))
    }
}

fn arm(timer: &OwnedFd) -> rustix::io::Result<()> {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let never = Itimerspec { it_interval: zero, it_value: Timespec { tv_sec: NEVER, tv_nsec: 0 } };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &never).map(|_| ())
}

impl Drop for ClockWatch {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // It can only have panicked, and then it has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime, clock_settime};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn whoever_sets_the_clock_wakes_the_engine_each_time() {
        let (events, told) = channel();
        let watch = ClockWatch::start(events).unwrap();
        for _ in 0..3 {
            // To the time that it has: nobody else notices.
            let set = clock_settime(ClockId::Realtime, clock_gettime(ClockId::Realtime));
            set.expect("this test sets the clock, which only root may do");
            assert!(matches!(told.recv_timeout(Duration::from_secs(60)), Ok(Event::ClockSet)));
        }
        drop(watch);
        assert!(told.recv().is_err(), "its thread has ended");
    }
}
