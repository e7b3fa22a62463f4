//! One kept process as the server sees it: its pipes, the lines it was given, and what it has answered.
//!
//! The server keeps an end of the pipe that the worker reads from, and so knows after its death which lines it never
//! took: those jobs had not begun. It must not choose jobs.

use super::marks::Marks;
use super::notices::Notices;
use crate::runner::launcher::Report;
use crate::runner::lines::Layer;
use crate::runner::spoken::Mint;
use crate::runner::{Flight, Start, Stop};
use crate::supervisor::Worker;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::job::JobId;
use windlass_core::policy::{Framing, Policy};
use windlass_core::supervisor::choice::Load;
use windlass_core::supervisor::{WorkerEvent, WorkerState};

/// A reply of one line may be so long; a worker that goes on without a newline is ended.
pub(super) const REPLY_MAX: usize = 4 << 20;
/// A new time counts for one part in so many.
const INERTIA: u32 = 8;

/// One line that has no answer yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) flight: Flight,
    pub(super) position: u16,
    pub(super) id: JobId,
    pub(super) start: u32,
    /// Where it is marked as begun.
    pub(super) place: Option<usize>,
    /// Where it begins in all that was ever written to this worker.
    begin: u64,
    pub(super) since: Instant,
    pub(super) deadline: Option<Instant>,
    /// It has said something that is on the board.
    pub(super) spoke: bool,
}

/// Why a worker is being ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It has done enough, is old, large, idle, or its rules have changed.
    Retired,
    /// The job of this flight and position ran over its time.
    TimedOut(Flight, u16),
    /// A person cancelled the jobs of these flights and positions.
    Cancelled(Vec<(Flight, u16)>),
    /// A person or the server wants this flight to end.
    Stopped(Flight, Stop),
    /// It does not keep to the protocol; whose turn it was has this error.
    Babbles(String),
}

/// The server's and the worker's ends of the three pipes of a worker to be.
pub(super) struct Pipes {
    pub(super) to: OwnedFd,
    pub(super) from: OwnedFd,
    pub(super) channel: OwnedFd,
    /// The worker's own end of its input once more, for a look at what it left there.
    unread: OwnedFd,
    /// Standard input, standard output and descriptor 3 of the process, in this order.
    pub(super) theirs: Vec<OwnedFd>,
}

impl Pipes {
    pub(super) fn new() -> rustix::io::Result<Pipes> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let ((their_in, to), (from, their_out), (channel, their_channel)) = (pipe()?, pipe()?, pipe()?);
        for ours in [&to, &from, &channel] {
            let flags = rustix::fs::fcntl_getfl(ours)?;
            rustix::fs::fcntl_setfl(ours, flags | OFlags::NONBLOCK)?;
        }
        let unread = rustix::io::fcntl_dupfd_cloexec(&their_in, 3)?;
        Ok(Pipes { to, from, channel, unread, theirs: vec![their_in, their_out, their_channel] })
    }
}

/// What is on the other end of a pipe, as far as a read of it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Somebody, who may say more.
    More,
    /// Somebody who wrote a line without end.
    Endless,
    /// Nobody any more.
    Closed,
}

/// Replies that were read together.
#[derive(Debug)]
struct Round {
    answered: u32,
    /// When the first of their jobs was begun.
    begun: Instant,
    /// The line that was first is among them.
    head_left: bool,
}

impl Round {
    fn new(now: Instant) -> Round {
        Round { answered: 0, begun: now, head_left: false }
    }
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) flight: Flight,
    pub(super) pool: usize,
    pub(super) policy: Arc<Policy>,
    framing: Framing,
    /// None once it was told that no more will come.
    pub(super) to: Option<OwnedFd>,
    pub(super) from: OwnedFd,
    pub(super) channel: OwnedFd,
    /// Its words in the protocol of service managers; none where there is no place for a socket.
    notices: Option<Notices>,
    /// The worker's own end of its input, for a look at what it left there.
    unread: OwnedFd,
    layer: Layer,
    /// Makes the tokens of its jobs, where they have any.
    pub(super) mint: Option<Mint>,
    outgoing: Vec<u8>,
    sent: usize,
    written: u64,
    pub(super) wants_to_write: bool,
    incoming: Vec<u8>,
    /// How much of `incoming` has been looked through for a newline.
    searched: usize,
    channel_text: Vec<u8>,
    pub(super) lines: VecDeque<Line>,
    /// Marks of lines that it has answered.
    unmarked: Vec<usize>,
    pub(super) window: u32,
    usual: Option<Duration>,
    last_reply: Instant,
    round: Round,
    pub(super) done: u64,
    pub(super) born: Instant,
    pub(super) idle_since: Instant,
    pid: Option<i32>,
    /// Where it is in the table that all workers go by; nothing else says what it may do.
    worker: Worker,
    /// Why it is to end, if it is: it gets no more jobs. It is told when it has done what it has in hand, or at once.
    pub(super) ending: Option<Ending>,
    /// When it is signalled if it has not gone by itself.
    pub(super) kill_at: Option<Instant>,
    /// Nobody will reply any more. Mostly it is about to be dead; else it is ended once it has had its grace.
    pub(super) is_mute: bool,
    /// After how many jobs, and when, its memory was looked at.
    pub(super) looked_at_memory: (u64, Instant),
}

impl Kept {
    pub(super) fn new(
        flight: Flight,
        pool: usize,
        worker: Worker,
        policy: Arc<Policy>,
        pipes: Pipes,
        notices: Option<Notices>,
    ) -> Kept {
        use windlass_core::policy::Service;
        let (framing, window) = match &policy.service {
            Service::Worker(worker) => (worker.framing, worker.in_flight),
            Service::Command(_)
            | Service::Batch(_)
            | Service::Url(_)
            | Service::Remote(_)
            | Service::Forward(_)
            | Service::Handler { .. } => (Framing::Raw, 1),
        };
        let now = Instant::now();
        let Pipes { to, from, channel, unread, .. } = pipes;
        Kept {
            flight,
            pool,
            policy,
            framing,
            to: Some(to),
            from,
            channel,
            notices,
            unread,
            layer: Layer::default(),
            mint: None,
            outgoing: Vec::new(),
            sent: 0,
            written: 0,
            wants_to_write: false,
            incoming: Vec::new(),
            searched: 0,
            channel_text: Vec::new(),
            lines: VecDeque::new(),
            unmarked: Vec::new(),
            window,
            usual: None,
            last_reply: now,
            round: Round::new(now),
            done: 0,
            born: now,
            idle_since: now,
            pid: None,
            worker,
            ending: None,
            kill_at: None,
            is_mute: false,
            looked_at_memory: (0, now),
        }
    }

    /// Its jobs may speak over HTTP, with tokens that this makes.
    pub(super) fn speaks_with(&mut self, mint: Option<Mint>) {
        self.layer = Layer::with(mint.clone());
        self.mint = mint;
    }

    /// It answers out of order and may work on several jobs at once.
    pub(super) fn is_parallel(&self) -> bool {
        self.framing == Framing::Json && self.window > 1
    }

    pub(super) fn state(&self) -> WorkerState {
        self.worker.state()
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    pub(super) fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// It was told to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.state() == WorkerState::Stopping
    }

    /// Its process is there.
    pub(super) fn came_up(&mut self, pid: i32, now: Instant) {
        (self.pid, self.idle_since) = (Some(pid), now);
        self.worker.has_pid(pid);
        // One that was told to end before it was there still ends.
        if self.state() == WorkerState::Starting {
            self.worker.happens(&[WorkerEvent::Up]);
        }
    }

    /// It is to end, for this reason; the last one holds.
    pub(super) fn end_for(&mut self, ending: Ending) {
        self.ending = Some(ending);
    }

    /// It is being told to end, now.
    pub(super) fn is_told(&mut self) {
        self.worker.stop();
    }

    /// One of its jobs has handed something on, and is still at work.
    pub(super) fn has_emitted(&mut self) {
        if self.state() == WorkerState::Working {
            self.worker.happens(&[WorkerEvent::Emit, WorkerEvent::Emitted]);
        }
    }

    /// It hands on what it made.
    pub(super) fn emits(&mut self) {
        if self.state() == WorkerState::Working {
            self.worker.happens(&[WorkerEvent::Emit]);
        }
    }

    /// It says what it is at.
    pub(super) fn is_in(&self, phase: &str) {
        self.worker.is_in(phase);
    }

    /// Its tree is proven dead: stopped where it was told to end or took its leave with nothing in hand, else it died.
    pub(super) fn is_gone(&mut self, took_leave: bool) -> WorkerState {
        if self.is_stopping() {
            return self.worker.happens(&[WorkerEvent::Exit]);
        }
        if !took_leave {
            return self.worker.died();
        }
        self.worker.is_done(false)
    }

    /// What the choice needs to know; none where it gets no more jobs.
    pub(super) fn load(&self, now: Instant) -> Option<Load> {
        match self.state() {
            WorkerState::Waiting | WorkerState::Working if self.ending.is_none() && !self.is_mute => {}
            WorkerState::Waiting
            | WorkerState::Working
            | WorkerState::Starting
            | WorkerState::Emitting
            | WorkerState::Stopping
            | WorkerState::Stopped
            | WorkerState::Died => return None,
        }
        let running = self.lines.front().map_or(Duration::ZERO, |line| now.saturating_duration_since(line.since));
        let (window, parallel, usual) = (self.window, self.is_parallel(), self.usual);
        Some(Load { in_flight: self.lines.len() as u32, window, parallel, usual, running })
    }

    /// Writes a job's line behind the others; an error is the sentence of a job that cannot be a line.
    pub(super) fn give(&mut self, start: &Start, position: u16, now: Instant) -> Result<(), String> {
        let (before, begin) = (self.outgoing.len(), self.written);
        self.layer.add(start, position, self.framing, &mut self.outgoing)?;
        self.written += (self.outgoing.len() - before) as u64;
        let limit = start.policy.time_limit.filter(|_| self.lines.is_empty() || self.is_parallel());
        let (_, held, index) = start.job(position);
        let id = held.jobs.id(index);
        let deadline = limit.and_then(|limit| now.checked_add(limit));
        let (flight, start, place) = (start.flight, held.start(), None);
        self.lines.push_back(Line { flight, position, id, start, place, begin, since: now, deadline, spoke: false });
        if self.state() == WorkerState::Waiting {
            self.worker.happens(&[WorkerEvent::Take]);
        }
        Ok(())
    }

    /// Marks what it is at: before it is written, and after each round of replies.
    pub(super) fn mark(&mut self, marks: &mut Marks) {
        self.unmarked.drain(..).for_each(|place| marks.clear(place));
        self.worker.is_at(self.lines.front().map(|line| line.id), self.lines.len() as u32);
        let Some(pid) = self.pid else { return };
        let at_once = if self.is_parallel() { self.lines.len() } else { 1 };
        let first = self.lines.iter_mut().take(at_once);
        // Those in front were marked when they were given.
        first.rev().take_while(|line| line.place.is_none()).for_each(|line| marks.mark(line, pid));
    }

    /// Writes what the pipe takes; false where it is full.
    pub(super) fn flush(&mut self) -> bool {
        let Some(to) = &self.to else { return true };
        while self.sent < self.outgoing.len() {
            match rustix::io::write(to, &self.outgoing[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                // It closed its input; its end will be reported.
                Err(_) => break,
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        true
    }

    /// Reads what it wrote, and hands on its whole lines.
    pub(super) fn read_replies(&mut self, buffer: &mut [u8], mut take: impl FnMut(&mut Kept, &[u8])) -> Heard {
        loop {
            let got = match rustix::io::read(&self.from, &mut *buffer) {
                Err(Errno::INTR) => continue,
                Ok(0) => return Heard::Closed,
                Err(_) => return Heard::More,
                Ok(got) => got,
            };
            self.incoming.extend_from_slice(&buffer[..got]);
            let incoming = std::mem::take(&mut self.incoming);
            let mut from = 0;
            let mut searched = self.searched;
            while let Some(at) = memchr::memchr(b'\n', &incoming[searched..]) {
                take(self, &incoming[from..searched + at]);
                from = searched + at + 1;
                searched = from;
            }
            self.incoming = incoming;
            self.incoming.drain(..from);
            self.searched = self.incoming.len();
            if self.incoming.len() > REPLY_MAX {
                return Heard::Endless;
            }
            // A pipe that gave less than it was asked for is empty; what comes later is an event of its own.
            if got < buffer.len() {
                return Heard::More;
            }
        }
    }

    /// Reads its control messages, line by line: what is in the pipe now. Who writes faster than we read would keep us
    /// here for ever; what comes meanwhile is an event of its own.
    pub(super) fn read_channel(&mut self, buffer: &mut [u8]) -> (Heard, Vec<Vec<u8>>) {
        let got = rustix::io::retry_on_intr(|| rustix::io::read(&self.channel, &mut *buffer));
        let heard = if got == Ok(0) { Heard::Closed } else { Heard::More };
        self.channel_text.extend_from_slice(&buffer[..got.unwrap_or(0)]);
        let mut messages = Vec::new();
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', &self.channel_text) {
            messages.push(self.channel_text[from..end].to_vec());
            from = end + 1;
        }
        self.channel_text.drain(..from);
        // Nobody needs so long a message.
        self.channel_text.truncate(64 << 10);
        (heard, messages)
    }

    /// Reads what it says to its socket, line by line.
    pub(super) fn read_notices(&self) -> Vec<Vec<u8>> {
        self.notices.as_ref().map(Notices::read).unwrap_or_default()
    }

    /// The line that a reply answers: the one it names, or the first.
    pub(super) fn answered(&mut self, id: Option<JobId>) -> Option<Line> {
        let at = match id {
            Some(id) => self.lines.iter().position(|line| line.id == id)?,
            None => 0,
        };
        let line = if at == 0 { self.lines.pop_front() } else { self.lines.remove(at) }?;
        self.unmarked.extend(line.place);
        if self.round.answered == 0 {
            self.round.begun = if self.is_parallel() { line.since } else { line.since.max(self.last_reply) };
        }
        self.round.answered += 1;
        self.round.head_left |= at == 0;
        self.done += 1;
        Some(line)
    }

    /// After a round of replies: how long a job takes it lately, and whose turn it is now.
    pub(super) fn end_round(&mut self, now: Instant) {
        let Round { answered, begun, head_left } = std::mem::replace(&mut self.round, Round::new(now));
        if answered == 0 {
            return;
        }
        let (took, weight) = (now.saturating_duration_since(begun) / answered, answered.min(INERTIA));
        let lately = |usual: Duration| (usual * (INERTIA - weight) + took * weight) / INERTIA;
        self.usual = Some(self.usual.map_or(took, lately));
        self.last_reply = now;
        if self.lines.is_empty() {
            self.idle_since = now;
            // One that was told to end has no next job to wait for.
            if matches!(self.state(), WorkerState::Working | WorkerState::Emitting) {
                self.worker.happens(&[WorkerEvent::Finish]);
            }
            return;
        }
        if self.state() == WorkerState::Emitting {
            self.worker.happens(&[WorkerEvent::Emitted]);
        }
        if let Some(next) = self.lines.front_mut().filter(|_| head_left) {
            // Its turn comes now, and its time counts from now.
            next.since = next.since.max(now);
            if next.deadline.is_none() {
                next.deadline = self.policy.time_limit.and_then(|limit| now.checked_add(limit));
            }
        }
    }

    /// The earliest time at which something is due for it.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let head = self.lines.iter().filter_map(|line| line.deadline).min().filter(|_| !self.is_stopping());
        [head, self.kill_at].into_iter().flatten().min()
    }

    /// The line whose time is over.
    pub(super) fn overdue(&self, now: Instant) -> Option<Line> {
        self.lines.iter().find(|line| line.deadline.is_some_and(|by| by <= now)).copied()
    }

    /// After its death: the lines that it had taken from its input, and those that it never took.
    pub(super) fn sort_out(&mut self) -> (Vec<Line>, Vec<Line>) {
        let in_pipe = rustix::io::ioctl_fionread(&self.unread).unwrap_or(0);
        let unsent = (self.outgoing.len() - self.sent) as u64;
        let taken = self.written.saturating_sub(in_pipe).saturating_sub(unsent);
        // A line of which it took a byte was begun, as far as anybody can tell.
        self.lines.drain(..).partition(|line| line.begin < taken)
    }

    /// Its replies, its channel and, where it has one, its socket.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.from.as_fd(), self.channel.as_fd()].into_iter().chain(self.notices.as_ref().map(AsFd::as_fd))
    }
}

/// The last words of a worker, for a person.
pub(super) fn last_words(report: &Report) -> String {
    crate::runner::command::reading::last_line(&report.stderr.bytes).map_or(String::new(), |line| format!(": {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::{About, Kind, Roster};
    use windlass_core::policy::{Command, Service, Worker};

    fn worker() -> Kept {
        let policy = Arc::new(Policy::new("q", Service::Worker(Worker::new(Command::default()))));
        let pipes = Pipes::new().unwrap();
        let about = About::new(Kind::Kept, Some(&policy), Flight(1));
        let made = Arc::<Roster>::default().make(about);
        Kept::new(Flight(1), 0, made, policy, pipes, None)
    }

    #[test]
    fn a_worker_goes_by_the_table_and_gets_jobs_only_where_that_lets_it() {
        let now = Instant::now();
        let mut retired = worker();
        assert_eq!((retired.state(), retired.load(now).is_some()), (WorkerState::Starting, false));
        retired.came_up(7, now);
        assert_eq!((retired.state(), retired.load(now).is_some()), (WorkerState::Waiting, true));
        retired.end_for(Ending::Retired);
        assert_eq!((retired.state(), retired.load(now).is_some()), (WorkerState::Waiting, false));
        retired.is_told();
        retired.end_for(Ending::Babbles("x".into()));
        retired.is_told();
        assert_eq!(
            (retired.is_gone(false), retired.ending()),
            (WorkerState::Stopped, Some(&Ending::Babbles("x".into())))
        );
        let mut unasked = worker();
        unasked.came_up(7, now);
        assert_eq!((unasked.is_gone(false), unasked.ending()), (WorkerState::Died, None));
        let mut leaving = worker();
        leaving.came_up(7, now);
        assert_eq!(leaving.is_gone(true), WorkerState::Stopped);
        let mut early = worker();
        early.is_told();
        early.came_up(7, now);
        assert_eq!((early.state(), early.is_gone(false)), (WorkerState::Stopping, WorkerState::Stopped));
    }
}
