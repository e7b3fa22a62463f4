//! Runs one process per job through launchers, one per core up to four.
//!
//! It keeps a crew's starts within its slots: what it is given beyond them waits here, claimed and not begun, and
//! takes the place of a job that ends without asking the engine. A launcher that dies, or that cannot be sent to, is
//! noticed, its trees are proven dead, its jobs are reported, and another takes its place; one that died young is
//! replaced after a pause. It must not judge outcomes.

use super::launcher::slots::{self, SlotsEvidence};
use super::launcher::{self, Inbox, Outbox, Received, Report};
use super::{Finished, Flight, Output, Runner, Start, Stop};
use crate::clock;
use crate::data_dir::DataDir;
use crate::error::Failure;
use crate::sabotage::{self, Sabotage};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use windlass_core::outcome::Outcome;

mod order;
mod reading;

/// More launchers than this give no more starts.
const LAUNCHERS_MAX: usize = 4;
/// A launcher that lived so long did not die of what is wrong with the machine.
const STEADY: Duration = Duration::from_secs(10);
/// The pauses before one that died young is replaced, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// Hears of every end, on any thread.
pub type Hear = Box<dyn Fn(Finished) + Send + Sync>;

/// Hears that the server must stop.
pub type Fatal = Box<dyn Fn(Failure) + Send + Sync>;

/// Where launchers come from and where they write.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that becomes a launcher: this one.
    pub program: PathBuf,
    /// The directory of the slot tables.
    pub run: PathBuf,
    /// The directory of large outputs.
    pub output: PathBuf,
    pub launchers: usize,
}

impl Settings {
    /// For a server on this data directory.
    pub fn of(dir: &DataDir) -> Settings {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Settings {
            program: "/proc/self/exe".into(),
            run: dir.run(),
            output: dir.output(),
            launchers: cores.min(LAUNCHERS_MAX),
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
    load: usize,
}

/// A start that has no outcome yet.
#[derive(Debug)]
struct Aloft {
    start: Start,
    /// None while it waits for a slot.
    hand: Option<usize>,
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
    crews: HashMap<String, Crew>,
    stopping: bool,
}

struct Shared {
    settings: Settings,
    hear: Hear,
    fatal: Fatal,
    state: Mutex<State>,
    /// Told when the runner stops: nobody sits out a pause.
    stopped: Condvar,
}

/// Starts commands.
pub struct CommandRunner {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for CommandRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandRunner").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl CommandRunner {
    /// Starts the launchers. What earlier ones left is killed first, but its evidence is for the engine to read
    /// (`slots::prove_dead`), whenever it likes before many jobs have run.
    pub fn new(settings: Settings, hear: Hear, fatal: Fatal) -> Result<CommandRunner, Failure> {
        let shared = Arc::new(Shared { settings, hear, fatal, state: Mutex::default(), stopped: Condvar::new() });
        let mut runner = CommandRunner { shared, readers: Vec::new() };
        for index in 0..runner.shared.settings.launchers.max(1) {
            runner.shared.state().hands.push(Hand::default());
            runner.hire(index)?;
        }
        Ok(runner)
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
        let mut ends = Vec::new();
        let mut state = self.shared.state();
        for start in starts {
            let crew = state.crews.entry(start.policy.pattern.clone()).or_default();
            crew.slots = start.policy.slots;
            crew.waiting.push_back(start.flight);
            let pattern = start.policy.pattern.clone();
            state.aloft.insert(start.flight, Aloft { start, hand: None });
            state.fill_slots(&pattern, &mut ends);
        }
        state.flush();
        drop(state);
        ends.into_iter().for_each(&self.shared.hear);
    }

    fn stop(&mut self, flight: Flight, why: Stop) {
        let mut state = self.shared.state();
        let Some(aloft) = state.aloft.get(&flight) else { return };
        if let Some(index) = aloft.hand {
            state.hands[index].tell(&launcher::lay_stop(flight, why));
            state.flush();
            return;
        }
        let pattern = aloft.start.policy.pattern.clone();
        if let Some(crew) = state.crews.get_mut(&pattern) {
            crew.waiting.retain(|waiting| *waiting != flight);
        }
        state.aloft.remove(&flight);
        drop(state);
        let outcome = match why {
            Stop::Cancel => Outcome::Cancelled,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => Outcome::Interrupted,
        };
        (self.shared.hear)(unstarted(flight, outcome));
    }
}

impl Drop for CommandRunner {
    /// Ends the launchers, which kill every tree; comes back when all of it is dead.
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stopping = true;
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
    }
}

impl State {
    fn unmanned(&self) -> impl Iterator<Item = usize> {
        self.hands.iter().enumerate().filter(|(_, hand)| !hand.manned).map(|(index, _)| index)
    }

    /// Gives the waiting starts of a crew to launchers while it has slots.
    fn fill_slots(&mut self, pattern: &str, ends: &mut Vec<Finished>) {
        let coming = self.hands.iter().any(|hand| hand.manned);
        let Some(crew) = self.crews.get_mut(pattern) else { return };
        while crew.running < crew.slots
            && let Some(flight) = crew.waiting.pop_front()
        {
            let Some(aloft) = self.aloft.get_mut(&flight) else { continue };
            let hands = self.hands.iter_mut().enumerate().filter(|(_, hand)| hand.socket.is_some());
            let Some((index, hand)) = hands.min_by_key(|(_, hand)| hand.load) else {
                if coming {
                    crew.waiting.push_front(flight);
                    return;
                }
                let error = "cannot run: no launcher could be started".into();
                ends.push(unstarted(flight, Outcome::RetryLater { after: None, error }));
                self.aloft.remove(&flight);
                continue;
            };
            match order::lay(&aloft.start) {
                Ok(record) => {
                    hand.tell(&record);
                    hand.load += 1;
                    aloft.hand = Some(index);
                    crew.running += 1;
                }
                Err(error) => {
                    ends.push(unstarted(flight, Outcome::FailedForGood { error }));
                    self.aloft.remove(&flight);
                }
            }
        }
    }

    /// Takes an ended start out and lets the next of its crew in.
    fn land(&mut self, flight: Flight, ends: &mut Vec<Finished>) -> Option<Start> {
        let Aloft { start, hand } = self.aloft.remove(&flight)?;
        if let Some(index) = hand {
            self.hands[index].load -= 1;
            if let Some(crew) = self.crews.get_mut(&start.policy.pattern) {
                crew.running -= 1;
            }
        }
        self.fill_slots(&start.policy.pattern, ends);
        self.let_go(&start.policy.pattern);
        Some(start)
    }

    /// Forgets a crew that has nothing here: every run is a crew of its own, and they never come back.
    fn let_go(&mut self, pattern: &str) {
        if self.crews.get(pattern).is_some_and(|crew| crew.running == 0 && crew.waiting.is_empty()) {
            self.crews.remove(pattern);
        }
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
    fn tell(&mut self, record: &[u8]) {
        // Without a launcher there is nobody to tell: its listener reports whatever it was given.
        if self.socket.is_some() && self.outbox.push(record).is_err() {
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

    fn slots(&self, index: usize) -> PathBuf {
        slots::path(&self.settings.run, index)
    }

    fn start_launcher(&self, index: usize) -> Result<(Child, Arc<OwnedFd>), Failure> {
        slots::prove_one_dead(&self.slots(index))?;
        let (child, socket) = launcher::start(&self.settings.program, &self.slots(index), &self.settings.output)?;
        let socket = Arc::new(socket);
        let mut state = self.state();
        if state.stopping {
            // It came too late to be told with the others.
            let _gone_already = rustix::net::shutdown(&socket, Shutdown::Write);
        }
        let hand = &mut state.hands[index];
        hand.socket = Some(Arc::clone(&socket));
        hand.outbox = Outbox::default();
        Ok((child, socket))
    }

    /// One launcher after the other, until the runner stops or none can be started.
    fn listen(&self, index: usize, mut child: Child, mut socket: Arc<OwnedFd>) {
        let mut inbox = Inbox::default();
        let (mut born, mut died_young) = (Instant::now(), 0);
        loop {
            while let Ok(Received::Records) = inbox.receive(&*socket, RecvFlags::empty()) {
                self.land(inbox.records().filter_map(Report::read).collect());
            }
            // Mostly it closed its end and is dying; where we could not read on, this makes it go.
            let _closed_already = rustix::net::shutdown(&*socket, Shutdown::Both);
            let _gone_already = child.wait();
            died_young = if born.elapsed() < STEADY { died_young + 1 } else { 0 };
            match self.replace(index, pause_after(died_young)) {
                Some(next) => (child, socket) = next,
                None => return,
            }
            born = Instant::now();
        }
    }

    /// Reports of starts that ended.
    fn land(&self, reports: Vec<Report>) {
        let mut ends = Vec::with_capacity(reports.len());
        let mut state = self.state();
        let mut landed = Vec::with_capacity(reports.len());
        for report in reports {
            let start = state.land(report.flight, &mut ends);
            landed.extend(start.map(|start| (report, start)));
        }
        state.flush();
        drop(state);
        ends.extend(landed.into_iter().map(|(report, start)| reading::finished(report, &start)));
        if sabotage::on(Sabotage::OutcomeTwice) {
            ends.extend_from_within(..);
        }
        ends.into_iter().for_each(&self.hear);
    }

    /// After a launcher's death: proves its trees dead, reports its jobs, and after a pause starts another.
    fn replace(&self, index: usize, pause: Duration) -> Option<(Child, Arc<OwnedFd>)> {
        if self.state().stopping {
            return None;
        }
        let evidence = slots::prove_one_dead(&self.slots(index));
        let proven = evidence.is_ok();
        // Without proof nothing may be started again: the server stops before it hears of these jobs, and the next
        // one looks anew before it starts anything. No evidence says that all of them had begun.
        let evidence = evidence.unwrap_or_else(|failure| {
            (self.fatal)(failure);
            SlotsEvidence::default()
        });
        self.report_lost(index, &evidence);
        if proven && self.is_stopped_within(pause) {
            return None;
        }
        let next = proven.then(|| self.start_launcher(index).ok()).flatten();
        let mut ends = Vec::new();
        let mut state = self.state();
        state.hands[index].manned = next.is_some();
        let patterns: Vec<String> = state.crews.keys().cloned().collect();
        patterns.iter().for_each(|pattern| state.fill_slots(pattern, &mut ends));
        patterns.iter().for_each(|pattern| state.let_go(pattern));
        state.flush();
        drop(state);
        ends.into_iter().for_each(&self.hear);
        next
    }

    /// Takes a dead launcher down, and tells what became of everything that it was given.
    fn report_lost(&self, index: usize, evidence: &SlotsEvidence) {
        let mut ends = Vec::new();
        let mut state = self.state();
        state.hands[index].give_up();
        let lost: Vec<Flight> =
            state.aloft.iter().filter(|(_, aloft)| aloft.hand == Some(index)).map(|(flight, _)| *flight).collect();
        for flight in lost {
            let Some(start) = state.land(flight, &mut ends) else { continue };
            let job = start.held.jobs.id(start.held.range().start);
            let begun = evidence.begun(job, start.held.start());
            ends.push(unstarted(flight, if begun { Outcome::Lost } else { Outcome::Interrupted }));
        }
        state.flush();
        drop(state);
        ends.into_iter().for_each(&self.hear);
    }

    fn is_stopped_within(&self, pause: Duration) -> bool {
        let going_on = |state: &mut State| !state.stopping;
        match self.stopped.wait_timeout_while(self.state(), pause, going_on) {
            Ok((state, _)) => state.stopping,
            Err(poisoned) => poisoned.into_inner().0.stopping,
        }
    }
}

/// How long to wait before a launcher is replaced, after so many that died young one after the other. The first is
/// replaced at once: somebody killed it.
fn pause_after(died_young: u32) -> Duration {
    match died_young {
        0 | 1 => Duration::ZERO,
        more => (FIRST_PAUSE * 2u32.saturating_pow(more - 2)).min(LAST_PAUSE),
    }
}

/// The end of a start of which nothing more is known.
fn unstarted(flight: Flight, outcome: Outcome) -> Finished {
    let now = clock::now();
    Finished { flight, outcomes: vec![(1, outcome)], started: now, finished: now, output: Output::default() }
}
