//! The drivers of one process: how they are started, what they share, and how they end.
//!
//! What waits is told to all of them by one thread (`keeper`). It must not touch a document: the drivers do.

use super::arrivals::Arrivals;
use super::directory::{Directory, prove_rename};
use super::driver::{Driver, timed};
use super::hands::{Hands, PlaceOfHands};
use super::keeper::Keeper;
use super::lease::{About, Doing, Lease};
use super::queue::{self, Queue};
use super::recover::{Heir, TakenOver, take_over};
use super::room::{Limit, Room};
use super::sidecar::Sidecar;
use super::way::{Task, Way};
use super::{LEASE, LOOK, TRIES};
use crate::error::{Failure, Kind};
use crate::inbox::watch::Bell;
use crate::runner::Flight;
use crate::runner::handler::Handlers;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use windlass_core::document::{DONE, Times};
use windlass_core::policy::Policy;

/// What is to be driven.
#[derive(Clone, Debug)]
pub struct Order {
    pub input: PathBuf,
    pub task: Task,
    /// What the output's name ends with while it is being written.
    pub extension: String,
    pub drivers: u32,
    /// A command for each document, a kept one, or one of the handlers; its slots are the drivers.
    pub policy: Policy,
    pub handlers: Handlers,
    /// How often a document is tried; nought for no end.
    pub tries: u32,
    /// What may wait where it goes, by place of the output; what is not named has no limit.
    pub limits: Vec<(PathBuf, Limit)>,
    pub lease: Duration,
    /// The output is told that nothing more will come when nothing more will. Others do it where several write there.
    pub closes: bool,
    /// Until this is so, whoever feeds the input has more to come, and a file `done` there is not believed.
    pub fed: Arc<AtomicBool>,
}

impl Order {
    /// With the defaults of everything else.
    pub fn new(input: PathBuf, task: Task, policy: Policy) -> Order {
        let (extension, limits, handlers) = ("xml".to_owned(), Vec::new(), Handlers::new());
        Order {
            input,
            task,
            extension,
            drivers: 1,
            policy,
            handlers,
            tries: TRIES,
            limits,
            lease: LEASE,
            closes: true,
            fed: Arc::new(AtomicBool::new(true)),
        }
    }
}

/// Hears sentences for people.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// What this process has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub done: u64,
    /// Tries that failed and were not the last.
    pub failed: u64,
    pub aside: u64,
    /// Were removed while they were worked on, without having been done.
    pub gone: u64,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub counts: Counts,
    /// Nothing more will come, and the output says so.
    pub closed: bool,
}

/// What all drivers of a process share.
pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) way: Way,
    pub(super) tries: u32,
    /// What the documents are done by.
    pub(super) policy: Arc<Policy>,
    pub(super) rooms: Vec<(Directory, Room)>,
    closes: bool,
    fed: Arc<AtomicBool>,
    state: Mutex<State>,
    pub(super) news: Condvar,
    pub(super) bell: Bell,
    say: Say,
    pub(super) drivers: u32,
    pub(super) lease: Duration,
}

pub(super) struct State {
    pub(super) arrivals: Arrivals,
    /// Drivers that wait for a document.
    pub(super) idle: u32,
    /// All drivers have ended.
    pub(super) gone: bool,
    /// Starts that have not ended.
    aloft: HashSet<Flight>,
    stop: Option<Stop>,
    /// All is worked off, and nothing more will come.
    pub(super) ended: bool,
    failure: Option<Failure>,
    counts: Counts,
    said: HashSet<&'static str>,
    /// What was said of documents that nobody lets us have.
    left: HashSet<String>,
}

/// Of so many documents that stay where they are each is told.
const LEFT_TOLD: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// What is under way is finished.
    Finish,
    /// It goes back.
    Now,
}

/// The drivers at work.
pub struct Drive {
    shared: Arc<Shared>,
    hands: Arc<Hands>,
    drivers: Vec<JoinHandle<Times>>,
    leases: Vec<Arc<Lease>>,
    keeper: JoinHandle<()>,
}

impl std::fmt::Debug for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drive").field("queue", &self.shared.queue).finish_non_exhaustive()
    }
}

impl Drive {
    pub fn start(order: Order, say: Say) -> Result<Drive, Failure> {
        let queue = Queue::open(&order.input)?;
        prove_rename(&queue.sidecar.root, queue.sidecar.random())?;
        let way = Way::open(&order.task, &order.extension)?;
        for directory in way.directories() {
            if directory.path() == queue.directory.path() {
                let place = order.input.display();
                let text = format!("{place} is both input and output: what comes out would go in again");
                return Err(Failure::new(Kind::Usage, text).hint("name another directory with --out"));
            }
            // It may be the input of others, and they have the same directory beside it.
            prove_rename(&Sidecar::open(directory)?.root, queue.sidecar.random())?;
        }
        let place = PlaceOfHands::make()?;
        let about = About {
            lease: order.lease,
            output: way.output().map(|output| output.directory.path().to_owned()),
            extension: order.extension.clone(),
            hands: place.path().to_owned(),
        };
        // Before it is noted where these write: the dead may have written elsewhere.
        let taken = take_over(&queue, &Heir::driver(&way, order.tries))?;
        let noted = queue.sidecar.note_outputs(&way.directories());
        let at = queue.directory.path().display();
        noted.map_err(|e| Failure::io(format_args!("cannot note in {at} where the output goes"), &e))?;
        let leases: Result<Vec<_>, Failure> = (0..order.drivers).map(|_| Lease::take(&queue.sidecar, &about)).collect();
        let leases: Vec<Arc<Lease>> = leases?.into_iter().map(Arc::new).collect();
        let shared = Arc::new(Shared::new(&order, queue, way, say)?);
        shared.tell_taken(&taken);
        shared.tell_of_done();
        let fails = Arc::downgrade(&shared);
        let fatal = move |failure| {
            if let Some(shared) = fails.upgrade() {
                shared.fail(failure);
            }
        };
        let (hands, each) = Hands::start(place, order.policy, order.handlers, order.drivers, fatal)?;
        let keeper = Keeper::new(Arc::clone(&shared), leases.clone())?;
        let keeper = spawn("spool keeper", move || keeper.keep())?;
        let mut drivers = Vec::new();
        for (lease, hand) in leases.iter().zip(each) {
            let (shared, lease) = (Arc::clone(&shared), Arc::clone(lease));
            let mut driver = Driver { shared, lease, hand, times: Times::default() };
            let work = move || {
                if let Err(failure) = driver.drive() {
                    driver.shared.fail(failure);
                }
                driver.times
            };
            drivers.push(spawn("driver", work)?);
        }
        Ok(Drive { shared, hands, drivers, leases, keeper })
    }

    /// For another thread: first finishes what is under way, then, asked again, ends it.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + use<> {
        let (shared, hands) = (Arc::downgrade(&self.shared), Arc::downgrade(&self.hands));
        move || {
            if let (Some(shared), Some(hands)) = (shared.upgrade(), hands.upgrade()) {
                shared.stop(&hands);
            }
        }
    }

    /// Waits for the end.
    pub fn join(self) -> Result<Ended, Failure> {
        let Drive { shared, hands, drivers, leases, keeper } = self;
        let times: Vec<Times> = drivers.into_iter().map(|driver| driver.join().unwrap_or_default()).collect();
        shared.state().gone = true;
        shared.bell.ring();
        // One that panicked has told so itself.
        let _told = keeper.join();
        drop(hands);
        let mut state = shared.state();
        let (failure, counts, closed) = (state.failure.take(), state.counts, state.ended);
        drop(state);
        if let Some(failure) = failure {
            // The leases stay: whatever is held still is taken back by whoever comes next.
            return Err(failure);
        }
        let place = shared.queue.directory.path().display();
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot end the work on {place}"), &e);
        for times in &times {
            shared.queue.sidecar.add_times(times).map_err(cannot)?;
        }
        for lease in leases {
            // The threads that shared it have ended.
            Arc::into_inner(lease).map_or(Ok(()), Lease::give_back).map_err(cannot)?;
        }
        for directory in shared.way.directories().into_iter().filter(|_| closed && shared.closes) {
            queue::close(directory).map_err(cannot)?;
        }
        Ok(Ended { counts, closed })
    }
}

fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>, Failure> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    spawned.map_err(|e| Failure::io("cannot start a thread", &e))
}

impl Shared {
    fn new(order: &Order, queue: Queue, way: Way, say: Say) -> Result<Shared, Failure> {
        let limited = |directory: &Directory| {
            let at = |(path, _): &&(PathBuf, Limit)| path.canonicalize().is_ok_and(|path| path == directory.path());
            let limit = order.limits.iter().find(at).map(|(_, limit)| *limit).unwrap_or_default();
            (limit != Limit::default()).then(|| (directory.clone(), Room::new(limit)))
        };
        let rooms = way.directories().into_iter().filter_map(limited).collect();
        let state = State {
            arrivals: Arrivals::new(),
            idle: 0,
            gone: false,
            aloft: HashSet::new(),
            stop: None,
            ended: false,
            failure: None,
            counts: Counts::default(),
            said: HashSet::new(),
            left: HashSet::new(),
        };
        Ok(Shared {
            queue,
            way,
            tries: order.tries,
            policy: Arc::new(order.policy.clone()),
            rooms,
            closes: order.closes,
            fed: Arc::clone(&order.fed),
            state: Mutex::new(state),
            news: Condvar::new(),
            bell: Bell::new()?,
            say,
            drivers: order.drivers,
            lease: order.lease,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a file `done` is to be believed.
    pub(super) fn is_fed(&self) -> bool {
        self.fed.load(Ordering::SeqCst)
    }

    pub(super) fn say(&self, sentence: impl AsRef<str>) {
        (self.say)(sentence.as_ref());
    }

    pub(super) fn say_once(&self, sentence: &'static str) {
        if self.state().said.insert(sentence) {
            self.say(sentence);
        }
    }

    /// Each is met again at every look, and told once.
    pub(super) fn say_of_left(&self, why: String) {
        let mut state = self.state();
        let news = state.left.len() < LEFT_TOLD && state.left.insert(why.clone());
        let last = news && state.left.len() == LEFT_TOLD;
        drop(state);
        if news {
            self.say(why);
        }
        if last {
            self.say("more documents that stay where they are will not be told of");
        }
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.state().counts);
    }

    /// The next document for a driver, when there is one and room for what it becomes; none when there is nothing more
    /// to do. Whenever it wakes it says how long it has waited, for those who look.
    pub(super) fn next(&self, lease: &Lease, times: &mut Times) -> Result<Option<Box<[u8]>>, Failure> {
        let mut has_room = self.rooms.is_empty();
        let mut state = self.state();
        let mut idles = false;
        let found = loop {
            if state.is_over() {
                break None;
            }
            if state.arrivals.is_empty() || !state.arrivals.may_take() {
                if !idles {
                    idles = true;
                    state.idle += 1;
                    // The keeper may know where there are more, or that there are none.
                    self.bell.ring();
                }
                drop(timed(&mut times.wait, || self.wait(state)));
                self.say_times(lease, times)?;
                state = self.state();
            } else if has_room {
                break state.arrivals.take();
            } else {
                drop(state);
                has_room = self.has_room()?;
                state = self.state();
                if !has_room {
                    drop(timed(&mut times.block, || self.wait(state)));
                    self.say_times(lease, times)?;
                    state = self.state();
                }
            }
        };
        state.idle -= u32::from(idles);
        Ok(found)
    }

    fn say_times(&self, lease: &Lease, times: &Times) -> Result<(), Failure> {
        let place = self.queue.directory.path().display();
        lease.say(Doing::Own, times).map_err(|e| Failure::io(format_args!("cannot work on {place}"), &e))
    }

    /// Something of this size was handed on.
    pub(super) fn has_grown(&self, directory: &Directory, size: u64) {
        let grown = self.rooms.iter().filter(|(known, _)| known.path() == directory.path());
        grown.for_each(|(_, room)| room.has_grown(size));
    }

    /// Whether there is room for one more wherever it may go.
    fn has_room(&self) -> Result<bool, Failure> {
        for (directory, room) in &self.rooms {
            let place = directory.path().display();
            if !room.take(directory).map_err(|e| Failure::io(format_args!("cannot look into {place}"), &e))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses to go on where a directory is not where it was: its path is what commands are given.
    pub(super) fn are_in_place(&self) -> Result<(), Failure> {
        let mut places = std::iter::once(&self.queue.directory).chain(self.way.directories());
        match places.find(|place| !place.is_in_place()) {
            None => Ok(()),
            Some(gone) => {
                let text = format!("{} is not there any more", gone.path().display());
                Err(Failure::new(Kind::NoInput, text).hint("put it back; what was in work waits there again"))
            }
        }
    }

    /// Until something happens, or it is time to look by oneself.
    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.news.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0
    }

    /// A driver that can do nothing now waits for the next look.
    pub(super) fn pause(&self) {
        let state = self.state();
        if !state.is_over() {
            drop(self.wait(state));
        }
    }

    /// A start is about to be; false where everything is to end now.
    pub(super) fn takes_off(&self, flight: Flight) -> bool {
        let mut state = self.state();
        let goes = state.stop != Some(Stop::Now);
        if goes {
            state.aloft.insert(flight);
        }
        goes
    }

    pub(super) fn has_landed(&self, flight: Flight) {
        self.state().aloft.remove(&flight);
    }

    fn stop(&self, hands: &Hands) {
        let mut state = self.state();
        let again = state.stop.is_some();
        state.stop = Some(if again { Stop::Now } else { Stop::Finish });
        let aloft: Vec<Flight> = state.aloft.iter().copied().collect();
        drop(state);
        if again {
            hands.stop(aloft);
        }
        self.wake();
    }

    pub(super) fn fail(&self, failure: Failure) {
        self.state().failure.get_or_insert(failure);
        self.wake();
    }

    fn wake(&self) {
        self.news.notify_all();
        self.bell.ring();
    }

    /// Whoever reads an output that says that nothing more will come may have ended.
    fn tell_of_done(&self) {
        let says_done = |directory: &Directory| directory.has(DONE).unwrap_or(false);
        if says_done(&self.queue.directory) {
            return;
        }
        for output in self.way.directories().into_iter().filter(|output| says_done(output)) {
            let place = output.path().display();
            self.say(format!("{place} has a file `done` already: whoever reads there may have ended"));
        }
    }

    pub(super) fn tell_taken(&self, taken: &TakenOver) {
        self.count(|counts| counts.aside += taken.aside);
        if taken.drivers > 0 {
            self.say(taken.to_string());
        }
    }
}

impl State {
    pub(super) fn is_over(&self) -> bool {
        self.ended || self.stop.is_some() || self.failure.is_some()
    }
}
