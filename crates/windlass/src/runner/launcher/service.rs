//! The launcher's loop: one wait for everything, then what is due, then the reports of that round together.
//!
//! It owns the jobs under way and their order of ending: the exit decides, what is in the pipes is taken without
//! waiting, the rest of the tree is killed, and only when nothing of it lives is the outcome sent and the slot
//! freed. It must not block anywhere but in its one wait.

use super::Without;
use super::aloud::Aloud;
use super::cgroup::{Cell, Cgroups};
use super::control::ControlFiles;
use super::message::{Cut, End, Kept, Report, Request, Resource, Step, Task};
use super::output::Capture;
use super::slots::Table;
use super::spawn::{Child, Pipe, Refusal, Spawner};
use super::tree::{Family, Orphanage, child_signals};
use super::wire::{Inbox, Outbox, Received};
use crate::clock;
use crate::runner::Flight;
use crate::sabotage::{self, Sabotage};
use pipes::read_pipe;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use stops::{LOOK_AGAIN, Leases};
use watch::Watch;
use windlass_core::outcome::Exit;
use windlass_core::time::Time;

mod exits;
mod pipes;
mod stops;
mod watch;

/// How many jobs are started before the loop looks at everything else again.
const STARTS_A_ROUND: usize = 8;
/// How much is taken from a pipe after the exit: the most that a pipe can hold.
const LAST_WORDS: usize = 1 << 20;
/// Without memory to send, sending is tried again after this pause, and for so long.
const SEND_PAUSE: Duration = Duration::from_millis(20);
const SEND_PATIENCE: Duration = Duration::from_secs(5);

/// A start for which its limit of memory has no room. Nothing else is refused so: no limit is set for want of memory.
const NO_ROOM: Refusal = (Step::Limits, libc::ENOMEM);

const SOCKET: u64 = u64::MAX;
const CHILDREN: u64 = u64::MAX - 1;
/// What an event of a job is about, in the low bits of its token.
const EXIT: u64 = 0;
const STDOUT: u64 = 1;

/// Stands for what happens to a job, in the kernel's list.
fn token(index: usize, generation: u32, what: u64) -> u64 {
    u64::from(generation) << 32 | (index as u64) << 2 | what
}

/// A job that runs, or that ended and whose tree is being buried.
#[derive(Debug)]
struct Running {
    task: Box<Task>,
    generation: u32,
    note: usize,
    pid: Pid,
    /// Tells of its end; without one it is asked for (`exits`).
    handle: Option<OwnedFd>,
    pipes: Option<[Option<Pipe>; 2]>,
    captures: [Capture; 2],
    started: Time,
    deadline: Option<Instant>,
    /// How much of what it asked for has been added to its time limit.
    extended: Duration,
    cut: Option<Cut>,
    ended: bool,
    cell: Option<Cell>,
    watch: Option<Watch>,
    /// What it says of itself on its standard output, and where that stands in its control file.
    aloud: Aloud,
    said_at: Option<u64>,
}

impl Running {
    fn signal(&self, signal: Signal) {
        // The leader is not reaped, so the group's number is still its own; a group of zombies is no error.
        let _all_dead = rustix::process::kill_process_group(self.pid, signal);
    }

    fn family(&self, born: u64) -> Family {
        let pid = self.pid.as_raw_nonzero().get();
        Family { pid, job: self.task.job, start: self.task.start, born, ended: self.ended }
    }
}

pub(super) struct Service {
    socket: OwnedFd,
    epoll: OwnedFd,
    child_signals: OwnedFd,
    table: Table,
    output: PathBuf,
    control: ControlFiles,
    spawner: Spawner,
    orphanage: Orphanage,
    waiting: VecDeque<Box<Task>>,
    jobs: Vec<Option<Running>>,
    free: Vec<usize>,
    by_flight: HashMap<Flight, usize>,
    deadlines: BTreeSet<(Instant, usize, u32)>,
    /// When which job's use of its limits is looked at.
    looks: BTreeSet<(Instant, usize, u32)>,
    /// When what which job has said aloud is passed on.
    words: BTreeSet<(Instant, usize, u32)>,
    leases: Leases,
    /// The table whose groups they are, until the first job that needs one comes.
    groups_of: Option<PathBuf>,
    cgroups: Option<Cgroups>,
    without: Without,
    ended: Vec<usize>,
    generation: u32,
    inbox: Inbox,
    outbox: Outbox,
    wants_to_write: bool,
    /// Since when there has been no memory to send.
    unsent: Option<Instant>,
    /// The server is gone: nobody hears us, everything is killed.
    orphaned: bool,
    /// Out of descriptors or memory; tried again when a job has ended.
    short: bool,
    buffer: Vec<u8>,
}

impl Service {
    pub(super) fn new(
        socket: OwnedFd,
        table: Table,
        output: PathBuf,
        control: ControlFiles,
        groups_of: Option<PathBuf>,
        without: Without,
    ) -> io::Result<Service> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let child_signals = child_signals()?;
        epoll::add(&epoll, &socket, EventData::new_u64(SOCKET), EventFlags::IN)?;
        epoll::add(&epoll, &child_signals, EventData::new_u64(CHILDREN), EventFlags::IN)?;
        Ok(Service {
            socket,
            epoll,
            child_signals,
            table,
            output,
            control,
            spawner: Spawner::new(!without.pidfd)?,
            orphanage: Orphanage::new(!without.children),
            waiting: VecDeque::new(),
            jobs: Vec::new(),
            free: Vec::new(),
            by_flight: HashMap::new(),
            deadlines: BTreeSet::new(),
            looks: BTreeSet::new(),
            words: BTreeSet::new(),
            leases: Leases::default(),
            groups_of,
            cgroups: None,
            without,
            ended: Vec::new(),
            generation: 0,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            wants_to_write: false,
            unsent: None,
            orphaned: false,
            short: false,
            buffer: vec![0; 64 << 10],
        })
    }

    /// Serves until the server is gone and every tree is dead.
    pub(super) fn serve(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        while !(self.orphaned && self.by_flight.is_empty()) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), self.patience().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut look_at_children = false;
            for event in &events {
                match event.data.u64() {
                    SOCKET => self.talk()?,
                    CHILDREN => {
                        self.forget_child_signals();
                        self.ask_for_exits();
                        look_at_children = true;
                    }
                    token => self.attend(token),
                }
            }
            self.enforce_deadlines();
            self.enforce_leases()?;
            self.look_at_limits()?;
            self.pass_words_on();
            if look_at_children || !self.ended.is_empty() {
                self.bury()?;
            }
            self.start_waiting()?;
            self.send()?;
        }
        Ok(())
    }

    /// How long the next wait may be; nothing to wait for where starts are due.
    fn patience(&self) -> Option<Timespec> {
        if !self.waiting.is_empty() && !self.short {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let first = [&self.deadlines, &self.looks, &self.words].into_iter().filter_map(|due| due.first()).min();
        let first = first.map(|(first, ..)| *first).into_iter().chain(self.leases.first()).min();
        let due = first.map(|first| first.saturating_duration_since(Instant::now()));
        let pauses = [self.unsent.map(|_| SEND_PAUSE), (!self.ended.is_empty()).then_some(LOOK_AGAIN)];
        let left = due.into_iter().chain(pauses.into_iter().flatten()).min()?;
        Some(Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() })
    }

    fn forget_child_signals(&self) {
        let mut info = [0u8; 256];
        // Level-triggered: what is not read now is told again.
        let _read_again = rustix::io::read(&self.child_signals, &mut info);
    }

    /// Hears everything that the server said.
    fn talk(&mut self) -> io::Result<()> {
        loop {
            match self.inbox.receive(&self.socket, RecvFlags::DONTWAIT)? {
                Received::Nothing => return Ok(()),
                Received::Closed => {
                    self.lose_server();
                    return Ok(());
                }
                Received::Records => {
                    let mut passed = self.inbox.take_passed();
                    let requests: Vec<Request> = self.inbox.records().filter_map(Request::read).collect();
                    for request in requests {
                        match request {
                            Request::Start(mut task) => match task.take_streams(std::mem::take(&mut passed)) {
                                true => self.waiting.push_back(task),
                                false => self.refuse(task.flight, libc::EMFILE)?,
                            },
                            Request::Stop(flight, why) => self.stop(flight, why)?,
                            Request::Show(flight) => self.show(flight),
                            Request::Until(flight, left) => self.leases.lend(flight, left),
                        }
                    }
                }
            }
        }
    }

    /// Something happened to a job: its output came, or it ended.
    fn attend(&mut self, token: u64) {
        let index = ((token as u32) >> 2) as usize;
        let generation = (token >> 32) as u32;
        // An event of this round may be about a job that another event of it has ended.
        let Some(job) = self.jobs.get_mut(index).and_then(Option::as_mut) else { return };
        if job.generation != generation || job.ended {
            return;
        }
        match token & 3 {
            EXIT => self.end(index, generation),
            stream => {
                let stream = (stream - STDOUT) as usize;
                read_pipe(job, stream, 1, &mut self.buffer, &self.output);
                self.words.extend(job.pass_on(&self.control).map(|at| (at, index, generation)));
                let written = job.captures.iter().map(Capture::total).sum();
                if job.task.limits.output > 0 && written > job.task.limits.output {
                    self.end_for(index, Resource::Output, written);
                }
            }
        }
    }

    /// Its first process has ended: what it wrote last is taken, and the rest of its tree is killed.
    fn end(&mut self, index: usize, generation: u32) {
        self.look_at_what_is_left(index);
        let Some(job) = &mut self.jobs[index] else { return };
        for stream in 0..2 {
            read_pipe(job, stream, LAST_WORDS, &mut self.buffer, &self.output);
        }
        job.pass_last_words_on(&self.control);
        job.pipes = None;
        let written = job.captures.iter().map(Capture::total).sum();
        if job.cut.is_none() && job.task.limits.output > 0 && written > job.task.limits.output {
            job.cut = Some(Cut::Limit(Resource::Output, written));
        }
        job.ended = true;
        job.signal(Signal::KILL);
        if let Some(cell) = job.cell.as_ref().filter(|cell| !cell.is_empty()) {
            cell.kill();
        }
        if let Some(by) = job.deadline.take() {
            self.deadlines.remove(&(by, index, generation));
        }
        if let Some(watch) = job.watch.take() {
            self.looks.remove(&(watch.next, index, generation));
        }
        self.ended.push(index);
    }

    /// Kills what ended jobs left behind, and reports those of which nothing is left.
    fn bury(&mut self) -> io::Result<()> {
        let (jobs, table) = (&self.jobs, &self.table);
        let families = || jobs.iter().flatten().map(|job| job.family(table.born_from(job.note))).collect();
        let held = self.orphanage.sweep(families, self.by_flight.len())?;
        let ended = std::mem::take(&mut self.ended);
        for index in ended {
            let Some(job) = &self.jobs[index] else { continue };
            let in_cell = job.cell.as_ref().is_some_and(|cell| !cell.is_empty());
            let lives = in_cell || held.contains(&job.pid.as_raw_nonzero().get());
            if lives && !sabotage::on(Sabotage::SlotFreedEarly) {
                // Its end has been seen; only the death of the others is news now.
                self.ended.push(index);
            } else {
                self.report(index)?;
            }
        }
        Ok(())
    }

    /// The tree is dead: takes the leader away too, frees the slot and says so.
    fn report(&mut self, index: usize) -> io::Result<()> {
        let Some(mut job) = self.jobs[index].take() else { return Ok(()) };
        let exit = exits::take_away(job.pid)?;
        let cut = job.cut.or_else(|| job.kernels_cut(exit));
        if let (Some(cell), Some(cgroups)) = (job.cell.take(), &mut self.cgroups) {
            cgroups.give_back(cell);
        }
        self.by_flight.remove(&job.task.flight);
        self.free.push(index);
        self.short = false;
        self.table.ended(job.note, !self.orphaned);
        let [stdout, stderr] = &mut job.captures;
        let (control, emitted) = job.task.control.map(|number| self.control.take(number)).unwrap_or_default();
        let report = Report {
            flight: job.task.flight,
            end: End::Exit(exit),
            cut,
            started: job.started,
            finished: clock::now(),
            stdout: stdout.finish(),
            stderr: stderr.finish(),
            control,
            emitted,
        };
        self.say(&report)
    }

    /// It cannot be started for want of something of the machine's.
    fn refuse(&mut self, flight: Flight, errno: i32) -> io::Result<()> {
        let now = clock::now();
        self.report_unstarted(flight, End::CannotStart { step: Step::Prepare, errno }, None, now)
    }

    fn report_unstarted(&mut self, flight: Flight, end: End, cut: Option<Cut>, at: Time) -> io::Result<()> {
        let (stdout, stderr) = (Kept::default(), Kept::default());
        let (control, emitted) = (Vec::new(), Vec::new());
        let finished = clock::now();
        self.say(&Report { flight, end, cut, started: at, finished, stdout, stderr, control, emitted })
    }

    fn say(&mut self, report: &Report) -> io::Result<()> {
        if !self.orphaned {
            self.outbox.push(&report.lay())?;
        }
        Ok(())
    }

    fn start_waiting(&mut self) -> io::Result<()> {
        for _ in 0..STARTS_A_ROUND {
            if self.short {
                break;
            }
            let Some(mut task) = self.waiting.pop_front() else { break };
            let Some(note) = self.table.note(task.job, task.last, task.start) else {
                self.waiting.push_front(task);
                self.short = true;
                break;
            };
            let started = clock::now();
            let mut begun = self.begin(&task, note);
            if matches!(begun, Err((_, libc::EMFILE | libc::ENFILE))) && self.close_idle_control_files() {
                begun = self.begin(&task, note);
            }
            match begun {
                Ok((child, cell)) => {
                    self.table.started(note);
                    task.let_go();
                    if task.is_kept() {
                        let pid = child.pid.as_raw_nonzero().get();
                        self.report_unstarted(task.flight, End::Up { pid }, None, started)?;
                    }
                    self.watch(task, child, cell, note, started)?;
                }
                // The kernel keeps a limit in which not even the program has room; it never passes.
                Err(NO_ROOM) => {
                    self.table.ended(note, true);
                    let cut = Cut::Limit(Resource::Memory, task.limits.memory);
                    self.report_unstarted(task.flight, End::Exit(Exit::Signal(libc::SIGKILL)), Some(cut), started)?;
                }
                // Shortages pass when something ends here; with nothing here they are for the server to hear of.
                Err((_, libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM)) if !self.by_flight.is_empty() => {
                    self.table.pid_of(note).store(0, std::sync::atomic::Ordering::Release);
                    self.table.ended(note, true);
                    self.waiting.push_front(task);
                    self.short = true;
                }
                Err((step, errno)) => {
                    self.table.ended(note, true);
                    self.report_unstarted(task.flight, End::CannotStart { step, errno }, None, started)?;
                }
            }
        }
        Ok(())
    }

    /// Makes what a task needs, and then its process.
    fn begin(&mut self, task: &Task, note: usize) -> Result<(Child, Option<Cell>), Refusal> {
        if let Some(number) = task.control {
            let errno = |e: io::Error| (Step::Prepare, e.raw_os_error().unwrap_or(libc::EIO));
            self.control.prepare(number, task.owner.as_ref()).map_err(errno)?;
        }
        let pid = self.table.pid_of(note);
        // What needs counting over a tree; without a group the tree is watched from outside.
        let counted = task.limits.memory > 0 || task.limits.processes > 0 || !task.limits.cpu.is_zero();
        if let Some(table) = self.groups_of.take_if(|_| counted) {
            self.cgroups = Cgroups::open(&table);
        }
        let cell = self.cgroups.as_mut().filter(|_| counted).and_then(|groups| groups.take(task.limits).ok());
        match (self.spawner.start(task, cell.as_ref(), pid), cell) {
            (Ok(child), cell) => Ok((child, cell)),
            (Err((Step::Limits, _)), Some(_)) => {
                self.cgroups = None;
                self.spawner.start(task, None, pid).map(|child| (child, None))
            }
            (Err(refusal), cell) => {
                let is_full = cell.as_ref().is_some_and(|cell| cell.keeps(task.limits) && cell.is_full());
                if let (Some(cell), Some(groups)) = (cell, &mut self.cgroups) {
                    groups.give_back(cell);
                }
                Err(if is_full { NO_ROOM } else { refusal })
            }
        }
    }

    /// Control files of jobs that have ended stay open for the next, unless descriptors are short.
    fn close_idle_control_files(&mut self) -> bool {
        let used: HashSet<u32> = self.jobs.iter().flatten().filter_map(|job| job.task.control).collect();
        self.control.close(|number| !used.contains(&number))
    }

    /// Takes a new child into the loop.
    fn watch(
        &mut self,
        task: Box<Task>,
        child: Child,
        cell: Option<Cell>,
        note: usize,
        started: Time,
    ) -> io::Result<()> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            self.jobs.len() - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let token = |what: u64| EventData::new_u64(token(index, generation, what));
        // Once only: what we close stays open, and in epoll, in a child that is just becoming its program, and an
        // ended process is readable for ever. We would be woken without end by one that is long buried.
        if let Some(handle) = &child.handle {
            epoll::add(&self.epoll, handle, token(EXIT), EventFlags::IN | EventFlags::ONESHOT)?;
        }
        for (pipe, what) in child.pipes.iter().zip(STDOUT..).filter_map(|(pipe, what)| Some((pipe.as_ref()?, what))) {
            epoll::add(&self.epoll, &pipe.read, token(what), EventFlags::IN)?;
        }
        let deadline = task.time_limit.and_then(|limit| Instant::now().checked_add(limit));
        self.deadlines.extend(deadline.map(|by| (by, index, generation)));
        let watch = Watch::begin(watch::watched(task.limits, cell.as_ref()), Instant::now());
        self.looks.extend(watch.map(|watch| (watch.next, index, generation)));
        self.by_flight.insert(task.flight, index);
        let captures = [(); 2].map(|()| Capture::new(task.output_max, task.in_memory));
        self.jobs[index] = Some(Running {
            task,
            generation,
            note,
            pid: child.pid,
            handle: child.handle,
            pipes: Some(child.pipes),
            captures,
            started,
            deadline,
            extended: Duration::ZERO,
            cut: None,
            ended: false,
            cell,
            watch,
            aloud: Aloud::default(),
            said_at: None,
        });
        Ok(())
    }

    /// Sends what there is to say; a full socket is watched until it is not.
    fn send(&mut self) -> io::Result<()> {
        if self.orphaned {
            return Ok(());
        }
        match self.outbox.flush(&self.socket, SendFlags::DONTWAIT) {
            Ok(_) => self.unsent = None,
            // What runs here need not die of a shortage that passes.
            Err(Errno::NOMEM | Errno::NOBUFS)
                if self.unsent.get_or_insert_with(Instant::now).elapsed() < SEND_PATIENCE =>
            {
                return Ok(());
            }
            Err(_) => {
                // The server went away while we spoke; the socket will say so as well, but it says it only once.
                self.lose_server();
                return Ok(());
            }
        }
        if self.outbox.is_empty() == self.wants_to_write {
            self.wants_to_write = !self.wants_to_write;
            let interest = if self.wants_to_write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &self.socket, EventData::new_u64(SOCKET), interest)?;
        }
        Ok(())
    }
}
