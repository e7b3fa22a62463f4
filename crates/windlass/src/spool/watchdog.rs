//! The watchdog of queues: gives back what dead drivers held, removes what they had half written, and starts the
//! drivers again that it runs itself.
//!
//! Everything it knows is on disk or in its children: killed at any moment it harms nothing, and the next one goes on.
//! Drivers do the same for each other while any lives; a watchdog is for when none does, for drivers of other programs,
//! and for starting them again. Who is dead is `lease`'s to say, how often a driver may die is core's. It must not
//! touch what a living driver has.

use super::directory::Directory;
use super::drive::Say;
use super::lease::{self, About};
use super::queue::{Output, Queue};
use super::recover::{Heir, TakenOver, held_by, take_back_unleased, take_over};
use super::status::queues;
use super::ward::{News, Ward};
use super::{LEASE, LOOK};
use crate::clock;
use crate::error::{Failure, Kind};
use rustix::process::Signal;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use windlass_core::policy::Backoff;
use windlass_core::supervisor::{Budget, Regeneration};

/// A driver that lives so long has started, whatever it did.
const STARTED: Duration = Duration::from_secs(5);
/// How long what a driver left may take to die, when all is to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many ends in a row, of drivers that never began, and the stage is stopped.
const FRUITLESS: u32 = 5;
/// No more deaths than this within a minute, or they are made at that pace.
const DEATHS: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// What is to be watched, and how.
#[derive(Clone, Debug)]
pub struct Guard {
    /// A queue, or a directory of queues.
    pub place: PathBuf,
    /// Where drivers write that say nothing about it.
    pub output: Option<PathBuf>,
    /// How often a document is tried; nought for no end.
    pub tries: u32,
    /// When what drivers without a lease have is given back; none for never.
    pub unleased_after: Option<Duration>,
    /// The drivers to run.
    pub crew: Option<Crew>,
}

/// Drivers that are run, and started again when they die.
#[derive(Clone, Debug)]
pub struct Crew {
    pub command: Vec<OsString>,
    pub drivers: usize,
    /// The first wait before a driver is started again; it doubles up to a minute.
    pub restart: Duration,
}

/// A watchdog at work.
pub struct Watchdog {
    guard: Guard,
    say: Say,
    tell: Sender<News>,
    hear: Receiver<News>,
    wards: Vec<Place>,
    deaths: Regeneration,
    /// Numbers whose drivers were told to end: what they still had is not their fault.
    pardoned: Vec<u32>,
    /// Numbers of drivers that have ended, and may have left somebody behind.
    leaving: Vec<u32>,
    stop: Option<Stop>,
    taken: TakenOver,
}

/// Where a driver belongs.
#[derive(Debug)]
enum Place {
    Runs(Ward),
    /// Is to be started again.
    Empty,
    /// It has ended in order, and is not started again.
    Over,
}

#[derive(Debug)]
struct Stop {
    since: Instant,
    times: u32,
    why: Option<Failure>,
}

impl std::fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watchdog").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Watchdog {
    pub fn new(guard: Guard, say: Say) -> Watchdog {
        let (tell, hear) = channel();
        let base = guard.crew.as_ref().map_or(Duration::ZERO, |crew| crew.restart);
        let backoff = Backoff { base, cap: WINDOW.max(base) };
        let budget = Budget { backoff, free: 0, fruitless: FRUITLESS, deaths: DEATHS, window: WINDOW };
        let wards = (0..guard.crew.as_ref().map_or(0, |crew| crew.drivers)).map(|_| Place::Empty).collect();
        Watchdog {
            guard,
            say,
            tell,
            hear,
            wards,
            deaths: Regeneration::new(budget),
            pardoned: Vec::new(),
            leaving: Vec::new(),
            stop: None,
            taken: TakenOver::default(),
        }
    }

    /// For another thread: asks the drivers to end, and once they have it ends itself.
    pub fn stopper(&self) -> impl Fn() + Send + use<> {
        let tell = self.tell.clone();
        move || {
            let _ended = tell.send(News::Told);
        }
    }

    /// One look at everything: what it found is told.
    pub fn look(&mut self) -> Result<TakenOver, Failure> {
        let mut all = TakenOver::default();
        for queue in self.queues()? {
            let outputs = self.outputs_of(&queue)?;
            let heir = Heir {
                output: outputs.first().filter(|_| outputs.len() == 1),
                littered: outputs.iter().map(|output| &output.directory).collect(),
                tries: self.guard.tries,
                pardoned: &self.pardoned,
            };
            let mut taken = take_over(&queue, &heir)?;
            if taken.drivers > 0 {
                (self.say)(&format!("{}: {taken}", queue.directory.path().display()));
            }
            if let Some(after) = self.guard.unleased_after {
                let unleased = take_back_unleased(&queue, &heir, after)?;
                if unleased.documents() > 0 {
                    let place = queue.directory.path().display();
                    (self.say)(&format!("{place}: gave back what drivers of other programs had: {unleased}"));
                }
                taken.add(&unleased);
            }
            all.add(&taken);
        }
        self.taken.add(&all);
        Ok(all)
    }

    /// To the end of the work, or until told to end. What was taken over in all comes back.
    pub fn watch(mut self) -> Result<TakenOver, Failure> {
        self.look()?;
        let (mut looked, mut renewed) = (Instant::now(), Instant::now());
        loop {
            self.start_drivers()?;
            if self.is_over()? {
                break;
            }
            let next = (looked + LOOK).min(renewed + LEASE / 3).min(self.next_start());
            match self.hear.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(News::Ended { place, status }) => self.has_ended(place, status)?,
                Ok(News::Freed { number }) => {
                    self.look()?;
                    self.leaving.retain(|leaving| *leaving != number);
                }
                Ok(News::Told) => self.end_drivers(None),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look()?;
                self.note_living();
            }
            if renewed.elapsed() >= LEASE / 3 {
                renewed = Instant::now();
                self.renew()?;
            }
        }
        // What the last of them left.
        self.look()?;
        match self.stop.and_then(|stop| stop.why) {
            Some(why) => Err(why),
            None => Ok(self.taken),
        }
    }

    /// Where its drivers work; there is one queue, then.
    fn queue(&self) -> Result<Queue, Failure> {
        Queue::open(&self.guard.place)
    }

    fn queues(&self) -> Result<Vec<Queue>, Failure> {
        match self.guard.crew {
            Some(_) => Ok(vec![self.queue()?]),
            None => queues(&self.guard.place)?.0.iter().map(|directory| Queue::open(directory.path())).collect(),
        }
    }

    /// Where drivers of a queue write.
    fn outputs_of(&self, queue: &Queue) -> Result<Vec<Output>, Failure> {
        let place = queue.directory.path().display();
        let noted = queue.sidecar.noted_outputs();
        let noted = noted.map_err(|e| Failure::io(format_args!("cannot look into {place}"), &e))?;
        let paths = self.guard.output.clone().map_or(noted, |output| vec![output]);
        // One that is not there has nothing in it.
        let directories = paths.iter().filter_map(|path| Directory::open(path).ok());
        Ok(directories.map(|directory| Output { directory, extension: String::new() }).collect())
    }

    fn start_drivers(&mut self) -> Result<(), Failure> {
        let Some(crew) = self.guard.crew.as_ref().filter(|_| self.stop.is_none()) else { return Ok(()) };
        let waits = |place: &Place| matches!(place, Place::Empty);
        if !self.wards.iter().any(waits) || !self.deaths.may_make(clock::steady()) {
            return Ok(());
        }
        let queue = self.queue()?;
        let closed = self.is_worked_off(&queue)?;
        let outputs = self.outputs_of(&queue)?;
        let about = About {
            lease: LEASE,
            output: outputs.first().filter(|_| outputs.len() == 1).map(|output| output.directory.path().to_owned()),
            extension: String::new(),
            hands: PathBuf::new(),
        };
        let mut trouble = None;
        for (place, ward) in self.wards.iter_mut().enumerate().filter(|(_, ward)| waits(ward)) {
            if closed || trouble.is_some() {
                *ward = Place::Over;
                continue;
            }
            *ward = match Ward::start(&crew.command, place, &queue.sidecar, &about, self.tell.clone()) {
                Ok(started) => Place::Runs(started),
                Err(failure) => {
                    trouble = Some(failure);
                    Place::Over
                }
            };
        }
        if trouble.is_some() {
            self.end_drivers(trouble);
        }
        Ok(())
    }

    /// When the next driver may be started, if one waits for it.
    fn next_start(&self) -> Instant {
        let waits = self.stop.is_none() && self.wards.iter().any(|place| matches!(place, Place::Empty));
        let wait = match self.deaths.not_before().filter(|_| waits) {
            Some(at) => at.since(clock::steady()),
            None => LOOK,
        };
        Instant::now() + wait
    }

    fn has_ended(&mut self, place: usize, status: ExitStatus) -> Result<(), Failure> {
        let Place::Runs(ward) = std::mem::replace(&mut self.wards[place], Place::Empty) else { return Ok(()) };
        self.leaving.extend(ward.number);
        if self.stop.is_some() || status.success() {
            self.wards[place] = Place::Over;
            return Ok(());
        }
        let queue = self.queue()?;
        if self.is_worked_off(&queue)? {
            self.wards[place] = Place::Over;
            return Ok(());
        }
        let began = ward.born.elapsed() >= STARTED || self.has_begun(&ward, &queue)?;
        let wait = self.deaths.died(began, clock::steady());
        let who = ward.number.map_or_else(|| ward.process.to_string(), |number| number.to_string());
        let how = ended(status);
        if self.deaths.is_fruitless() {
            let times = self.deaths.in_words();
            let text = format!("the drivers of {} cannot start, {times}: {how}", self.guard.place.display());
            let why = Failure::new(Kind::CannotCreate, text).hint("what they say stands above; try one by hand");
            self.end_drivers(Some(why));
            return Ok(());
        }
        (self.say)(&format!("driver {who} died: {how}; another is started in {wait:?}"));
        // One without a number has leases of its own.
        if ward.number.is_none() {
            self.look()?;
        }
        Ok(())
    }

    /// Whether a driver that has ended had come so far as to have a document, or a lease of its own.
    fn has_begun(&self, ward: &Ward, queue: &Queue) -> Result<bool, Failure> {
        let place = queue.directory.path().display();
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot look into {place}"), &e);
        if let Some(number) = ward.number {
            let number = number.to_string().into_bytes();
            return held_by(queue, |by| by == number).map(|(held, _)| !held.is_empty()).map_err(cannot);
        }
        for number in lease::numbers(&queue.sidecar).map_err(cannot)? {
            let seen = lease::see(&queue.sidecar, number, 0).map_err(cannot)?;
            if seen.is_some_and(|(driver, _)| driver.here && driver.process == ward.process) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Drivers that have lived for a while have started.
    fn note_living(&mut self) {
        let lives = |place: &Place| matches!(place, Place::Runs(ward) if ward.born.elapsed() >= STARTED);
        if self.wards.iter().any(lives) {
            self.deaths.worked(clock::steady());
        }
    }

    fn renew(&self) -> Result<(), Failure> {
        let cannot = |e: std::io::Error| Failure::io("cannot renew a lease", &e);
        if self.guard.crew.is_none() {
            return Ok(());
        }
        let sidecar = self.queue()?.sidecar;
        let running = self.wards.iter().filter_map(|place| match place {
            Place::Runs(ward) => ward.number,
            Place::Empty | Place::Over => None,
        });
        running
            .chain(self.leaving.iter().copied())
            .try_for_each(|number| lease::renew(&sidecar, number))
            .map_err(cannot)
    }

    /// First asks, asks again, and then ends them.
    fn end_drivers(&mut self, why: Option<Failure>) {
        let stop = self.stop.get_or_insert_with(|| Stop { since: Instant::now(), times: 0, why });
        stop.times += 1;
        let signal = if stop.times > 2 { Signal::KILL } else { Signal::TERM };
        for place in &mut self.wards {
            match place {
                Place::Runs(ward) => {
                    self.pardoned.extend(ward.number);
                    ward.signal(signal);
                }
                Place::Empty => *place = Place::Over,
                Place::Over => {}
            }
        }
    }

    fn is_over(&self) -> Result<bool, Failure> {
        let through = self.wards.iter().all(|place| matches!(place, Place::Over));
        if let Some(stop) = &self.stop {
            return Ok(through && (self.leaving.is_empty() || stop.since.elapsed() >= PATIENCE));
        }
        if self.guard.crew.is_some() {
            return Ok(through && self.leaving.is_empty());
        }
        for queue in self.queues()? {
            let place = queue.directory.path().display();
            let numbers = lease::numbers(&queue.sidecar);
            let numbers = numbers.map_err(|e| Failure::io(format_args!("cannot look into {place}"), &e))?;
            if !numbers.is_empty() || !self.is_worked_off(&queue)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Nothing more will come, and nothing is left.
    fn is_worked_off(&self, queue: &Queue) -> Result<bool, Failure> {
        let place = queue.directory.path().display();
        let over = queue.is_closed().and_then(|closed| Ok(closed && queue.is_worked_off()?));
        over.map_err(|e| Failure::io(format_args!("cannot look into {place}"), &e))
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}
