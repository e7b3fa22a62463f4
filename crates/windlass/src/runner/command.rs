//! Runs processes through launchers, one launcher per core up to four: a process per job, one per batch, and those
//! that are kept.
//!
//! It keeps a crew's starts within its slots: what it is given beyond them waits here, claimed and not begun, and
//! takes the place of a job that ends without asking the engine. A launcher that dies, or that cannot be sent to, is
//! noticed, its trees are proven dead, its jobs are reported, and another takes its place (`launchers`). What a batch's
//! end means is `batch`'s affair, what kept workers do is `worker`'s. It must not judge outcomes.

use super::batch::Batch;
use super::launcher::{self, Outbox, Report};
use super::progress::{Board, Said};
use super::worker::{News, WorkerRunner};
use super::{Finished, Flight, Runner, Start, Stop, control_dir};
use crate::data_dir::DataDir;
use crate::error::Failure;
use crate::sabotage::{self, Sabotage};
use crate::supervisor::Worker;
use crate::supervisor::watch::Watch;
use rustix::net::{SendFlags, Shutdown};
use rustix::process::Pid;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Identity, Service};
use wishes::Wish;
use work::{Gone, Work};

mod launchers;
pub(super) mod order;
pub(super) mod reading;
mod wishes;
mod work;

/// More launchers than this give no more starts.
const LAUNCHERS_MAX: usize = 4;

/// Hears of every end, on any thread.
pub type Hear = Box<dyn Fn(Finished) + Send + Sync>;

/// Hears that the server must stop.
pub type Fatal = Box<dyn Fn(Failure) + Send + Sync>;

/// Hears how many kept workers of a table that names a need of memory live.
pub type Crewed = Box<dyn Fn(&str, u32) + Send + Sync>;

/// Where launchers come from and where they write.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that becomes a launcher: this one.
    pub program: PathBuf,
    /// The directory of the slot tables.
    pub run: PathBuf,
    /// The directory of large outputs.
    pub output: PathBuf,
    /// The directory of control and emit files; made and removed by the runner.
    pub control: PathBuf,
    /// What the directories of jobs that run as another user begin with; made by launchers, removed by the runner.
    pub control_of_users: PathBuf,
    /// What of the kernel's own launchers do without, so that the other way is tested: the names are
    /// those of `crate::without`.
    pub without: String,
    pub launchers: usize,
    /// Tells others who runs and what is said.
    pub board: Arc<Board>,
}

impl Settings {
    /// For a server on this data directory.
    pub fn of(dir: &DataDir) -> Settings {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Settings {
            program: "/proc/self/exe".into(),
            run: dir.run(),
            output: dir.output(),
            control: control_dir::choose(dir),
            control_of_users: control_dir::choose_for_users(dir),
            without: std::env::var(crate::without::WITHOUT).unwrap_or_default(),
            launchers: cores.min(LAUNCHERS_MAX),
            board: Arc::default(),
        }
    }
}

impl Settings {
    /// Where the control files of jobs that run as this user are.
    pub(super) fn control_of(&self, user: Option<&Identity>) -> Cow<'_, Path> {
        match user {
            None => Cow::Borrowed(&self.control),
            Some(user) => Cow::Owned(control_dir::of_user(&self.control_of_users, user.uid)),
        }
    }
}

/// One launcher as the server sees it.
#[derive(Debug, Default)]
struct Hand {
    /// None while there is no launcher.
    socket: Option<Arc<OwnedFd>>,
    /// Somebody listens to its launcher, or is about to replace it.
    manned: bool,
    outbox: Outbox,
    /// The launcher as a worker, and its process.
    worker: Option<Worker>,
    pid: Option<Pid>,
    load: usize,
    /// Free numbers of control files, and how many there are.
    controls: Vec<u32>,
    controls_made: u32,
}

/// A process that has not ended, or that waits for a slot.
#[derive(Debug)]
struct Aloft {
    work: Work,
    /// None while it waits; then its launcher, and the number of its control files there.
    hand: Option<(usize, u32)>,
    /// The process as a worker, once a launcher has it; a kept one is had by who keeps it.
    worker: Option<Worker>,
}

/// The starts of one policy entry.
#[derive(Debug, Default)]
struct Crew {
    running: u32,
    slots: u32,
    waiting: VecDeque<Flight>,
}

#[derive(Debug, Default)]
struct State {
    hands: Vec<Hand>,
    aloft: HashMap<Flight, Aloft>,
    /// The flights of batches but their first, and that first one, under which the batch is aloft.
    members: HashMap<Flight, Flight>,
    crews: HashMap<String, Crew>,
    /// How many batches are out of the books while their replies are read, and what was wished meanwhile.
    being_read: usize,
    late: Vec<Wish>,
    stopping: bool,
}

/// What the runner, the listeners and the kept workers share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) hear: Hear,
    pub(super) crewed: Crewed,
    fatal: Fatal,
    state: Mutex<State>,
    /// Told when the runner stops: nobody sits out a pause.
    stopped: Condvar,
    /// Where news of kept workers go.
    news: Arc<News>,
}

/// Starts commands.
pub struct CommandRunner {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    workers: WorkerRunner,
    watch: Option<Watch>,
    /// Says that the directory of control files is in use.
    _control: std::fs::File,
}

impl fmt::Debug for CommandRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandRunner").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl CommandRunner {
    /// Starts the launchers. What earlier ones left is killed first, but its evidence is for the engine to read
    /// (`slots::prove_dead`), whenever it likes before many jobs have run.
    pub fn new(settings: Settings, hear: Hear, crewed: Crewed, fatal: Fatal) -> Result<CommandRunner, Failure> {
        control_dir::remove_those_of_the_dead();
        let control = control_dir::hold(&settings.control)?;
        let news = Arc::new(News::new()?);
        let (state, stopped) = (Mutex::default(), Condvar::new());
        let shared = Shared { settings, hear, crewed, fatal, state, stopped, news: Arc::clone(&news) };
        let shared = Arc::new(shared);
        let workers = WorkerRunner::new(Arc::clone(&shared), news)?;
        let shows = Arc::downgrade(&shared);
        shared.settings.board.shown_by(move |job| shows.upgrade().into_iter().for_each(|shared| shared.show(job)));
        let hears = Arc::downgrade(&shared);
        let hear = move |spoken| {
            if let Some(shared) = hears.upgrade() {
                shared.news.spoken(spoken);
            }
        };
        shared.settings.board.heard_by(hear);
        let acts = Arc::downgrade(&shared);
        let act = move |overdue| acts.upgrade().into_iter().for_each(|shared| shared.overdue(overdue));
        let watch = Some(Watch::start(shared.settings.board.workers(), act)?);
        let mut runner = CommandRunner { shared, readers: Vec::new(), workers, watch, _control: control };
        for index in 0..runner.shared.settings.launchers.max(1) {
            runner.shared.state().hands.push(Hand::default());
            runner.hire(index)?;
        }
        Ok(runner)
    }

    /// A start that has begun may live so long from now, unless more is said by then: its launcher sees to that, so
    /// that it holds while this process is frozen, too.
    pub fn lend(&mut self, flight: Flight, left: Duration) {
        let mut state = self.shared.state();
        if let Some((index, _)) = state.aloft.get(&flight).and_then(|aloft| aloft.hand) {
            state.hands[index].tell(&launcher::lay_until(flight, left));
            state.flush();
        }
    }

    /// Starts a launcher and the thread that listens to it.
    fn hire(&mut self, index: usize) -> Result<(), Failure> {
        let (child, socket) = self.shared.start_launcher(index)?;
        let shared = Arc::clone(&self.shared);
        let reader = std::thread::Builder::new()
            .name(format!("launcher {index}"))
            .spawn(move || shared.listen(index, child, socket));
        let mut state = self.shared.state();
        state.hands[index].manned = reader.is_ok();
        let reader = reader.map_err(|e| {
            // The launcher goes with the last hold on its socket.
            state.hands[index].socket = None;
            Failure::io("cannot start a thread", &e)
        })?;
        drop(state);
        self.readers.push(reader);
        Ok(())
    }
}

impl Runner for CommandRunner {
    fn start(&mut self, starts: Vec<Start>) {
        let unmanned: Vec<usize> = self.shared.state().unmanned().collect();
        for index in unmanned {
            // One that could not be replaced when it died is tried again when there is work; if it fails again,
            // the others do the work, or the starts are told that there is nobody.
            let _others_do = self.hire(index);
        }
        let is_kept = |start: &Start| matches!(start.policy.service, Service::Worker(_));
        let (kept, starts): (Vec<Start>, Vec<Start>) = starts.into_iter().partition(is_kept);
        self.workers.start(kept);
        let mut ends = Vec::new();
        let mut state = self.shared.state();
        for work in work::works(starts) {
            let Some((flight, policy)) = work.leader().map(|start| (start.flight, Arc::clone(&start.policy))) else {
                continue;
            };
            if let Work::Batch(batch) = &work {
                state.members.extend(batch.flights().skip(1).map(|member| (member, flight)));
            }
            let crew = state.crews.entry(policy.pattern.clone()).or_default();
            crew.slots = policy.slots;
            crew.waiting.push_back(flight);
            state.aloft.insert(flight, Aloft { work, hand: None, worker: None });
            state.fill_slots(&policy.pattern, &self.shared.settings, &mut ends);
        }
        state.flush();
        drop(state);
        ends.into_iter().for_each(&self.shared.hear);
    }

    fn stop(&mut self, flight: Flight, why: Stop) {
        self.workers.stop(flight, why);
        self.shared.obey(&[Wish { flight, position: None, why }]);
    }

    fn cancel(&mut self, flight: Flight, position: u16) {
        self.workers.cancel(flight, position);
        self.shared.obey(&[Wish { flight, position: Some(position), why: Stop::Cancel }]);
    }

    fn make_room(&mut self, bytes: u64) {
        self.workers.make_room(bytes);
    }
}

impl Shared {
    /// Has what a running job writes put where it can be read along with.
    fn show(&self, job: JobId) {
        let mut state = self.state();
        let is_it = |work: &Work| matches!(work, Work::Job(start) if start.held.ids().any(|id| id == job));
        let found = state.aloft.iter().find(|(_, aloft)| is_it(&aloft.work));
        if let Some((flight, (index, _))) = found.and_then(|(flight, aloft)| Some((*flight, aloft.hand?))) {
            state.hands[index].tell(&launcher::lay_show(flight));
            state.flush();
        }
    }
}

impl Drop for CommandRunner {
    /// Ends the launchers, which kill every tree; comes back when all of it is dead.
    fn drop(&mut self) {
        self.watch = None;
        self.workers.close();
        let mut state = self.shared.state();
        state.stopping = true;
        state.hands.iter_mut().filter_map(|hand| hand.worker.as_mut()).for_each(Worker::stop);
        for socket in state.hands.iter().filter_map(|hand| hand.socket.as_ref()) {
            // One that is gone already needs no telling.
            let _gone_already = rustix::net::shutdown(socket, Shutdown::Write);
        }
        drop(state);
        self.shared.stopped.notify_all();
        for reader in self.readers.drain(..) {
            // A reader that panicked has told so itself.
            let _told = reader.join();
        }
        control_dir::remove(&self.shared.settings.control);
        control_dir::remove_those_of_users(&self.shared.settings.control_of_users);
    }
}

impl State {
    fn unmanned(&self) -> impl Iterator<Item = usize> {
        self.hands.iter().enumerate().filter(|(_, hand)| !hand.manned).map(|(index, _)| index)
    }

    /// The launcher with the least to do.
    fn least_loaded(&mut self) -> Option<(usize, &mut Hand)> {
        let hands = self.hands.iter_mut().enumerate().filter(|(_, hand)| hand.socket.is_some());
        hands.min_by_key(|(_, hand)| hand.load)
    }

    /// Gives the waiting starts of a crew to launchers while it has slots.
    fn fill_slots(&mut self, pattern: &str, settings: &Settings, ends: &mut Vec<Finished>) {
        while let Some(crew) = self.crews.get_mut(pattern)
            && crew.running < crew.slots
            && let Some(flight) = crew.waiting.pop_front()
        {
            let coming = self.hands.iter().any(|hand| hand.manned);
            let Some((index, _)) = self.least_loaded() else {
                if coming {
                    self.crews.entry(pattern.to_owned()).or_default().waiting.push_front(flight);
                    return;
                }
                let error = "cannot run: no launcher could be started".into();
                if let Some(work) = self.remove(flight) {
                    ends.extend(work.end(Outcome::RetryLater { after: None, error }));
                }
                continue;
            };
            let Some(aloft) = self.aloft.get_mut(&flight) else { continue };
            let hand = &mut self.hands[index];
            let number = hand.take_control();
            let user = aloft.work.leader().and_then(|start| start.policy.user.as_ref());
            let dir = settings.control_of(user);
            let control = order::Control { dir: &dir, launcher: index, number, http: None };
            let laid = match &mut aloft.work {
                Work::Job(start) => order::lay(start, &control, &settings.board).map(|record| (record, Vec::new())),
                Work::Batch(batch) => order::lay_batch(batch, &control, &settings.board),
                Work::Worker => continue,
            };
            match laid {
                Ok((record, given)) => {
                    hand.tell_with(&record, given);
                    hand.load += 1;
                    aloft.hand = Some((index, number));
                    aloft.worker = aloft.work.worker(settings.board.workers());
                    if let Some(crew) = self.crews.get_mut(pattern) {
                        crew.running += 1;
                    }
                }
                Err(outcome) => {
                    hand.controls.push(number);
                    if let Some(work) = self.remove(flight) {
                        ends.extend(work.end(outcome));
                    }
                }
            }
        }
    }

    /// Takes an ended process out and lets the next of its crew in.
    fn land(&mut self, flight: Flight, end: Gone, settings: &Settings, ends: &mut Vec<Finished>) -> Option<Work> {
        let aloft = self.aloft.get_mut(&flight)?;
        let hand = aloft.hand;
        if let Some(mut worker) = aloft.worker.take() {
            match end {
                Gone::Done { emitted } => worker.is_done(emitted),
                Gone::Died => worker.died(),
            };
        }
        let work = self.remove(flight)?;
        if let Work::Job(start) = &work {
            // Before its control files are another's: what it says over HTTP from now on must not be taken for theirs.
            settings.board.ended(start.held.jobs.id(start.held.range().start));
        }
        if let Work::Batch(_) = &work {
            settings.board.batch_ended(flight);
        }
        let pattern = work.leader().map(|start| start.policy.pattern.clone());
        if let Some((index, number)) = hand {
            self.hands[index].load -= 1;
            self.hands[index].controls.push(number);
            if let Some(crew) = pattern.as_ref().and_then(|pattern| self.crews.get_mut(pattern)) {
                crew.running -= 1;
            }
        }
        if let Some(pattern) = pattern {
            self.fill_slots(&pattern, settings, ends);
            self.let_go(&pattern);
        }
        Some(work)
    }

    /// Forgets a crew that has nothing here: every run is a crew of its own, and they never come back.
    fn let_go(&mut self, pattern: &str) {
        if self.crews.get(pattern).is_some_and(|crew| crew.running == 0 && crew.waiting.is_empty()) {
            self.crews.remove(pattern);
        }
    }

    fn remove(&mut self, flight: Flight) -> Option<Work> {
        let Aloft { work, .. } = self.aloft.remove(&flight)?;
        if let Work::Batch(batch) = &work {
            for member in batch.flights() {
                self.members.remove(&member);
            }
        }
        Some(work)
    }

    /// A batch goes on with its next piece, before anything else of its crew.
    fn go_on(&mut self, batch: Box<Batch>, settings: &Settings, ends: &mut Vec<Finished>) {
        let (flight, policy) = (batch.leader().flight, &batch.leader().policy);
        let (pattern, slots) = (policy.pattern.clone(), policy.slots);
        self.members.extend(batch.flights().skip(1).map(|member| (member, flight)));
        self.aloft.insert(flight, Aloft { work: Work::Batch(batch), hand: None, worker: None });
        // The crew may have been let go with the piece before.
        let crew = self.crews.entry(pattern.clone()).or_default();
        crew.slots = slots;
        crew.waiting.push_front(flight);
        self.fill_slots(&pattern, settings, ends);
    }

    /// Sends what was laid; a launcher always listens, so this waits a moment at most.
    fn flush(&mut self) {
        for hand in &mut self.hands {
            if let Some(socket) = &hand.socket
                && !hand.outbox.is_empty()
                && hand.outbox.flush(socket, SendFlags::empty()).is_err()
            {
                // It died, or there was no memory to send: what it was given is not all there.
                hand.give_up();
            }
        }
    }
}

impl Hand {
    fn take_control(&mut self) -> u32 {
        self.controls.pop().unwrap_or_else(|| {
            self.controls_made += 1;
            self.controls_made - 1
        })
    }

    fn tell(&mut self, record: &[u8]) {
        self.tell_with(record, Vec::new());
    }

    fn tell_with(&mut self, record: &[u8], given: Vec<OwnedFd>) {
        // Without a launcher there is nobody to tell: its listener reports whatever it was given.
        if self.socket.is_none() {
            return;
        }
        let pushed = match given.is_empty() {
            true => self.outbox.push(record),
            false => self.outbox.push_with(record, given),
        };
        if pushed.is_err() {
            // No memory file for a large record: as good as a launcher that never got it.
            self.give_up();
        }
    }

    /// Counts the launcher as dead: it is given nothing more, and it ends when it hears that nobody speaks to it. Then
    /// its listener reports whatever it was given, sent or not, and replaces it.
    fn give_up(&mut self) {
        self.outbox = Outbox::default();
        if let Some(socket) = self.socket.take() {
            let _gone_already = rustix::net::shutdown(socket, Shutdown::Write);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere does not make the books wrong: each change of them is whole before anything can fail.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Starts a kept process under this number; false where there is no launcher for it.
    pub(super) fn start_worker(&self, flight: Flight, record: &[u8], given: Vec<OwnedFd>) -> bool {
        let mut state = self.state();
        let Some((index, hand)) = state.least_loaded() else { return false };
        let number = hand.take_control();
        hand.tell_with(record, given);
        hand.load += 1;
        state.aloft.insert(flight, Aloft { work: Work::Worker, hand: Some((index, number)), worker: None });
        state.flush();
        true
    }

    /// Tells a kept process to end.
    pub(super) fn stop_worker(&self, flight: Flight, why: Stop) {
        let mut state = self.state();
        if let Some((index, _)) = state.aloft.get(&flight).and_then(|aloft| aloft.hand) {
            state.hands[index].tell(&launcher::lay_stop(flight, why));
            state.flush();
        }
    }

    /// What it said last may have been said since anybody looked.
    fn copy_last_words(&self, report: &Report, start: &Start) {
        if let Some(copies) = self.settings.board.copies() {
            let job = start.held.jobs.id(start.held.range().start);
            copies.said(job, || Said::read(&report.control).words());
        }
    }

    /// Reports of processes that ended, or that are up.
    fn land(&self, reports: Vec<Report>) {
        let mut ends = Vec::with_capacity(reports.len());
        let mut landed = Vec::with_capacity(reports.len());
        let mut state = self.state();
        for report in reports {
            if matches!(report.end, launcher::End::Up { .. }) {
                self.news.add(report);
                continue;
            }
            let work = state.land(report.flight, Gone::of(&report), &self.settings, &mut ends);
            landed.extend(work.map(|work| (report, work)));
        }
        let batches = landed.iter().filter(|(_, work)| matches!(work, Work::Batch(_))).count();
        state.being_read += batches;
        state.flush();
        drop(state);
        let mut unfinished = Vec::new();
        for (report, work) in landed {
            match work {
                Work::Job(start) => {
                    self.copy_last_words(&report, &start);
                    ends.push(reading::finished(report, &start));
                }
                Work::Batch(mut batch) => {
                    ends.extend(batch.heard(&report));
                    unfinished.extend((!batch.is_over()).then_some(batch));
                }
                Work::Worker => self.news.add(report),
            }
        }
        if batches > 0 {
            let mut state = self.state();
            unfinished.into_iter().for_each(|batch| state.go_on(batch, &self.settings, &mut ends));
            state.are_read(batches, &mut ends);
            state.flush();
        }
        if sabotage::on(Sabotage::OutcomeTwice) {
            ends.extend_from_within(..);
        }
        ends.into_iter().for_each(&self.hear);
    }
}
