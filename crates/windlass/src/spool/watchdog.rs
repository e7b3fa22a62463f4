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
use super::sidecar::Sidecar;
use super::status::{queues, queues_so_far};
use super::ward::{News, Ward, asks_number};
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
use windlass_core::document::DONE;
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
    /// The driver that died last had said that it cannot serve.
    unfit: bool,
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
            unfit: false,
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
            if taken.documents() > 0 {
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
        self.refuse_several()?;
        self.tell_of_litter()?;
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

    /// What drivers of other programs leave half written can only be found where somebody says that it is.
    fn tell_of_litter(&self) -> Result<(), Failure> {
        if self.gives_numbers() && self.ways_out_of(&self.queue()?)?.is_none_or(|paths| paths.is_empty()) {
            let place = self.guard.place.display();
            (self.say)(&format!(
                "nobody says where these drivers write: what they leave half written is looked for in the queues \
                 beside {place} alone; name it with --out"
            ));
        }
        Ok(())
    }

    /// A number is leased in one queue: of several nobody could say which it is that its driver has.
    fn refuse_several(&self) -> Result<(), Failure> {
        if !self.gives_numbers() || !queues(&self.guard.place)?.1 {
            return Ok(());
        }
        let text = format!(
            "{} is a directory of queues, and a driver that asks for a number works on one",
            self.guard.place.display()
        );
        Err(Failure::new(Kind::Usage, text).hint("name the queue of this driver; each has a watchdog of its own"))
    }

    /// Its drivers ask for numbers, and are programs of others.
    fn gives_numbers(&self) -> bool {
        self.guard.crew.as_ref().is_some_and(|crew| asks_number(&crew.command))
    }

    /// Where drivers with numbers work; there is one queue, then.
    fn queue(&self) -> Result<Queue, Failure> {
        Queue::open(&self.guard.place)
    }

    fn queues(&self) -> Result<Vec<Queue>, Failure> {
        let found = match self.guard.crew {
            Some(_) if self.gives_numbers() => return Ok(vec![self.queue()?]),
            // A driver of ours, or a whole pipeline of them, makes its queues itself.
            Some(_) => queues_so_far(&self.guard.place)?.0,
            None => queues(&self.guard.place)?.0,
        };
        found.iter().map(|directory| Queue::open(directory.path())).collect()
    }

    /// Where drivers of a queue write, as it was named or as the last of them has said; none where nobody has.
    fn ways_out_of(&self, queue: &Queue) -> Result<Option<Vec<PathBuf>>, Failure> {
        if let Some(output) = &self.guard.output {
            if output.exists() {
                Directory::open(output)?;
            }
            return Ok(Some(vec![output.clone()]));
        }
        let place = queue.directory.path().display();
        let noted = queue.sidecar.noted_outputs();
        noted.map_err(|e| Failure::io(format_args!("cannot look into {place}"), &e))
    }

    fn outputs_of(&self, queue: &Queue) -> Result<Vec<Output>, Failure> {
        let paths = self.ways_out_of(queue)?.unwrap_or_default();
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
        let through = self.are_through(false)?;
        let number = self.number_to_give()?;
        let mut trouble = None;
        for (place, ward) in self.wards.iter_mut().enumerate().filter(|(_, ward)| waits(ward)) {
            if through || trouble.is_some() {
                *ward = Place::Over;
                continue;
            }
            *ward = match Ward::start(&crew.command, place, number.as_ref(), self.tell.clone()) {
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

    /// Where drivers that ask for a number get it, and what is said of them there.
    fn number_to_give(&self) -> Result<Option<(Sidecar, About)>, Failure> {
        if !self.gives_numbers() {
            return Ok(None);
        }
        let queue = self.queue()?;
        let outputs = self.outputs_of(&queue)?;
        let output = outputs.first().filter(|_| outputs.len() == 1).map(|output| output.directory.path().to_owned());
        let about = About { lease: LEASE, output, extension: String::new(), hands: PathBuf::new() };
        Ok(Some((queue.sidecar, about)))
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
        if self.stop.is_some() || self.are_through(true)? {
            self.wards[place] = Place::Over;
            return Ok(());
        }
        let who = ward.number.map_or_else(|| ward.process.to_string(), |number| number.to_string());
        if status.success() {
            // One that does not tell its output that nothing more will come has ended in order all the same.
            if !self.is_pipeline()? && !self.are_worked_off()? {
                let how = "ended in order, with 0, before all was done; it is not started again";
                (self.say)(&format!("driver {who} {how}"));
            }
            self.wards[place] = Place::Over;
            return Ok(());
        }
        // It says itself that it cannot serve, however long it took to find that out.
        self.unfit = status.code() == Some(Kind::Config.exit_code().into());
        let began = !self.unfit && (ward.born.elapsed() >= STARTED || self.has_begun(&ward)?);
        let wait = self.deaths.died(began, clock::steady());
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

    /// Whether a driver that has ended had come so far as to have a document.
    fn has_begun(&self, ward: &Ward) -> Result<bool, Failure> {
        for queue in self.queues()? {
            if self.has_begun_in(ward, &queue)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_begun_in(&self, ward: &Ward, queue: &Queue) -> Result<bool, Failure> {
        let place = queue.directory.path().display();
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot look into {place}"), &e);
        let mut numbers: Vec<Vec<u8>> = ward.number.iter().map(|number| number.to_string().into_bytes()).collect();
        if ward.number.is_none() {
            for number in lease::numbers(&queue.sidecar).map_err(cannot)? {
                let seen = lease::see(&queue.sidecar, number, 0).map_err(cannot)?;
                let Some((driver, _)) = seen else { continue };
                if driver.here && driver.process == ward.process {
                    if driver.times.documents > 0 {
                        return Ok(true);
                    }
                    numbers.push(number.to_string().into_bytes());
                }
            }
        }
        let holds = held_by(queue, |by| numbers.iter().any(|number| by == number));
        holds.map(|(held, _)| !held.is_empty()).map_err(cannot)
    }

    /// Drivers that have lived for a while have started, unless the last one said that it could not serve.
    fn note_living(&mut self) {
        if self.unfit {
            return;
        }
        let lives = |place: &Place| matches!(place, Place::Runs(ward) if ward.born.elapsed() >= STARTED);
        if self.wards.iter().any(lives) {
            self.deaths.worked(clock::steady());
        }
    }

    fn renew(&self) -> Result<(), Failure> {
        let cannot = |e: std::io::Error| Failure::io("cannot renew a lease", &e);
        if !self.gives_numbers() {
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
        if !self.are_worked_off()? {
            return Ok(false);
        }
        for queue in self.queues()? {
            let place = queue.directory.path().display();
            let numbers = lease::numbers(&queue.sidecar);
            let numbers = numbers.map_err(|e| Failure::io(format_args!("cannot look into {place}"), &e))?;
            if !numbers.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What works on several queues at once says itself when all is done: its last one is nobody's to work off.
    fn is_pipeline(&self) -> Result<bool, Failure> {
        Ok(self.guard.crew.is_some() && queues_so_far(&self.guard.place)?.1)
    }

    fn are_worked_off(&self) -> Result<bool, Failure> {
        for queue in self.queues()? {
            if !self.is_worked_off(&queue)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether there is nothing that a driver should be started for.
    fn are_through(&self, have_run: bool) -> Result<bool, Failure> {
        if self.is_pipeline()? {
            return Ok(false);
        }
        let queues = self.queues()?;
        for queue in &queues {
            if !self.is_through(queue, have_run)? {
                return Ok(false);
            }
        }
        Ok(!queues.is_empty())
    }

    /// Nothing is left to be done, and whoever reads what became of it was told. Where nobody has said where that is,
    /// only a driver can know; one of another program that has run needs to tell nobody.
    fn is_through(&self, queue: &Queue, has_run: bool) -> Result<bool, Failure> {
        if !self.is_worked_off(queue)? {
            return Ok(false);
        }
        let says_done = |path: &PathBuf| match Directory::open(path) {
            Ok(directory) => directory.has(DONE),
            Err(_) => Ok(false),
        };
        let Some(paths) = self.ways_out_of(queue)? else { return Ok(has_run && self.gives_numbers()) };
        for path in &paths {
            let place = path.display();
            if !says_done(path).map_err(|e| Failure::io(format_args!("cannot look into {place}"), &e))? {
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
