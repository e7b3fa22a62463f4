//! The jobs that a remote worker has in hand: started through the command runner, known by token until they are told.
//!
//! It owns the runner and the books. It must not talk to the server: `calls` does.

use crate::api::{self, work::ClaimedJob};
use crate::clock;
use crate::error::{Failure, Kind};
use crate::runner::command::{CommandRunner, Settings};
use crate::runner::progress::Board;
use crate::runner::remote::OUTPUT_MAX;
use crate::runner::{Finished, Flight, Runner, Start, Stop};
use crate::store::chunk::ChunkBuilder;
use crate::store::{Held, Place};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Priority, QueueName, QueueNo, Record};
use windlass_core::particulars::{Particulars, Subject, Trace};
use windlass_core::policy::{Command, Policy, Service};

/// One job in hand.
#[derive(Clone, Debug)]
pub(super) struct InHand {
    pub(super) id: JobId,
    pub(super) token: String,
    pub(super) lease: Duration,
    /// The last moment at which the server is known to have renewed its lease.
    pub(super) renewed: Instant,
    /// The server has taken it back: nothing is told of it any more.
    pub(super) over: bool,
    /// What was last told of its progress.
    pub(super) said: Vec<String>,
    /// It has ended, and that is being told.
    ended: bool,
}

impl InHand {
    /// How much of its lease is left; a tenth of it is kept back, so that its tree is dead when it ends.
    fn left(&self) -> Duration {
        (self.lease - self.lease / 10).saturating_sub(self.renewed.elapsed())
    }

    /// Its lease may have ended: another may have it by now.
    pub(super) fn is_late(&self) -> bool {
        self.over || self.renewed.elapsed() > self.lease
    }

    /// It runs on though another may have it by now, and was not stopped for that.
    pub(super) fn is_lost(&self) -> bool {
        self.is_late() && !self.over && !self.ended
    }
}

/// The lease of a job as it was given.
pub(super) fn lease_of(job: &ClaimedJob) -> Duration {
    Duration::try_from_secs_f64(job.lease_s).unwrap_or_default().max(Duration::from_millis(100))
}

#[derive(Default)]
struct Books {
    last: u64,
    in_hand: BTreeMap<u64, InHand>,
    /// Ends that are to be told.
    ended: VecDeque<Finished>,
    draining: bool,
    failed: Option<Failure>,
}

/// Everything in hand.
pub(super) struct Jobs {
    command: Command,
    slots: u32,
    place: tempdir::Place,
    runner: Mutex<Option<CommandRunner>>,
    pub(super) board: Arc<Board>,
    books: Arc<(Mutex<Books>, Condvar)>,
}

impl Jobs {
    pub(super) fn new(command: Command, slots: u32) -> Result<Jobs, Failure> {
        let place = tempdir::Place::new()?;
        let (books, board) = (Arc::<(Mutex<Books>, Condvar)>::default(), Arc::<Board>::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let settings = Settings {
            program: "/proc/self/exe".into(),
            run: place.sub("run")?,
            output: place.sub("output")?,
            control: place.path().join("control"),
            control_of_users: place.path().join("control-of"),
            without: String::new(),
            launchers: cores.min(4).min(slots as usize),
            board: Arc::clone(&board),
        };
        let (heard, trouble) = (Arc::clone(&books), Arc::clone(&books));
        let hear = Box::new(move |finished| {
            lock(&heard.0).ended.push_back(finished);
            heard.1.notify_all();
        });
        let fatal = Box::new(move |failure| {
            lock(&trouble.0).failed.get_or_insert(failure);
            trouble.1.notify_all();
        });
        // It keeps no workers, so nobody asks how many of them live.
        let crewed = Box::new(|_: &str, _| {});
        let runner = Mutex::new(Some(CommandRunner::new(settings, hear, crewed, fatal)?));
        Ok(Jobs { command, slots, place, runner, board, books })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books.0)
    }

    /// Waits until something can be taken; how many, or none when no more are to be taken.
    pub(super) fn room(&self) -> Option<u32> {
        let mut books = self.books();
        loop {
            let room = self.slots.saturating_sub(books.in_hand.len() as u32);
            match books.draining || books.failed.is_some() {
                true => return None,
                false if room > 0 => return Some(room),
                false => books = self.books.1.wait(books).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Starts a job whose lease began no earlier than that; an error is why it cannot even be tried here.
    pub(super) fn start(&self, job: &ClaimedJob, renewed: Instant) -> Result<(), Failure> {
        let bad = |what: &str| Failure::new(Kind::Version, format!("the server gave a job without {what}"));
        let id: JobId = job.id.parse().map_err(|_| bad("an id"))?;
        let data = job.data.bytes().ok_or_else(|| bad("data"))?;
        let queue = QueueName::new(job.queue.as_bytes()).map_err(|_| bad("a queue"))?;
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let policy = Policy {
            slots: self.slots,
            time_limit: job.time_limit_s.map(seconds),
            grace: seconds(job.grace_s),
            output_max: job.output_max.min(OUTPUT_MAX as u64),
            ..Policy::new("work", Service::Command(self.command.clone()))
        };
        let trace = job.trace.as_ref().and_then(|trace| Trace::heard(&trace.parent, &trace.state, &trace.baggage));
        let subject = job.subject.clone().map(|api::Subject { kind, id }| Subject { kind, id });
        let particulars = Arc::new(Particulars { trace, subject, ..Particulars::default() });
        let mut builder = ChunkBuilder::new(id.origin).with(Some(particulars));
        builder.push(id.offset, &data);
        let held = Held {
            place: Place::Row(Arrival(id.offset)),
            lane: Lane { queue: QueueNo(0), priority: Priority::NORMAL, kind: LaneKind::Fresh },
            run: None,
            record: Record { starts: job.attempt.saturating_sub(1), ..Record::default() },
            admitted: clock::now(),
            jobs: Arc::new(builder.finish()),
            first: 0,
            count: 1,
        };
        let mut books = self.books();
        books.last += 1;
        let number = books.last;
        let (token, lease) = (job.token.clone(), lease_of(job));
        let in_hand = InHand { id, token, lease, renewed, over: false, said: Vec::new(), ended: false };
        let left = in_hand.left();
        books.in_hand.insert(number, in_hand);
        drop(books);
        // A sign of life is due sooner now.
        self.books.1.notify_all();
        let run = job.run.clone().unwrap_or_default();
        let (flight, policy, queue) = (Flight(number), Arc::new(policy), Arc::new(queue));
        let checkpoint = job.checkpoint.clone().unwrap_or_default();
        let start = Start {
            flight,
            claim: number,
            queue,
            policy,
            epoch: 0,
            held,
            fellows: Arc::default(),
            number,
            run,
            checkpoint,
            lent: None,
            lot: None,
        };
        if let Some(runner) = lock(&self.runner).as_mut() {
            runner.start(vec![start]);
            runner.lend(flight, left);
        }
        Ok(())
    }

    /// What is in hand, with the numbers it is known by.
    pub(super) fn in_hand(&self) -> Vec<(u64, InHand)> {
        self.books().in_hand.iter().map(|(number, job)| (*number, job.clone())).collect()
    }

    /// Waits for something in hand, or for so long; none when the end has come.
    pub(super) fn wait_for_some(&self, pause: Duration) -> Option<Vec<(u64, InHand)>> {
        let mut books = self.books();
        if !books.in_hand.is_empty() {
            books = self.books.1.wait_timeout(books, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        while books.in_hand.is_empty() {
            if books.draining || books.failed.is_some() {
                return None;
            }
            books = self.books.1.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
        Some(books.in_hand.iter().map(|(number, job)| (*number, job.clone())).collect())
    }

    /// Lets time pass; with `until_draining` no longer than until no more are taken.
    pub(super) fn pause(&self, time: Duration, until_draining: bool) {
        let goes_on = |books: &mut Books| !(until_draining && books.draining);
        drop(self.books.1.wait_timeout_while(self.books(), time, goes_on).unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn renewed(&self, numbers: &[u64], at: Instant) {
        let (mut books, mut lent) = (self.books(), Vec::new());
        for number in numbers {
            if let Some(job) = books.in_hand.get_mut(number) {
                job.renewed = at;
                lent.push((Flight(*number), job.left()));
            }
        }
        drop(books);
        if let Some(runner) = lock(&self.runner).as_mut() {
            lent.into_iter().for_each(|(flight, left)| runner.lend(flight, left));
        }
    }

    pub(super) fn told(&self, number: u64, said: Vec<String>) {
        if let Some(job) = self.books().in_hand.get_mut(&number) {
            job.said = said;
        }
    }

    /// Stops one; where the server has taken it back, nothing of it is told.
    pub(super) fn stop(&self, number: u64, why: Stop, over: bool) {
        let mut books = self.books();
        let Some(job) = books.in_hand.get_mut(&number) else { return };
        job.over |= over;
        drop(books);
        if let Some(runner) = lock(&self.runner).as_mut() {
            runner.stop(Flight(number), why);
        }
    }

    /// The next end, and whose it was; none when there will be none any more.
    pub(super) fn next_end(&self) -> Option<(InHand, Finished)> {
        let mut books = self.books();
        loop {
            if let Some(finished) = books.ended.pop_front() {
                let Some(job) = books.in_hand.get_mut(&finished.flight.0) else { continue };
                job.ended = true;
                return Some((job.clone(), finished));
            }
            if books.draining && books.in_hand.is_empty() || books.failed.is_some() {
                return None;
            }
            books = self.books.1.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Its end was told, or nobody wants to hear of it.
    pub(super) fn forget(&self, flight: Flight) {
        self.books().in_hand.remove(&flight.0);
        self.books.1.notify_all();
    }

    /// Takes no more.
    pub(super) fn drain(&self) {
        self.books().draining = true;
        self.books.1.notify_all();
    }

    /// Stops what runs; it goes back without a charge.
    pub(super) fn give_back(&self) {
        for (number, _) in self.in_hand() {
            self.stop(number, Stop::Interrupt, false);
        }
    }

    pub(super) fn wait_until_drained(&self) -> Result<(), Failure> {
        let mut books = self.books();
        while !(books.draining && books.in_hand.is_empty()) {
            if let Some(failure) = books.failed.take() {
                return Err(failure);
            }
            books = self.books.1.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Ends the launchers, and removes what they wrote.
    pub(super) fn close(&self) {
        drop(lock(&self.runner).take());
        self.place.remove();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing can fail between two changes of the books.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory of this process alone.
mod tempdir {
    use crate::error::Failure;
    use std::os::unix::fs::DirBuilderExt;
    use std::path::{Path, PathBuf};

    pub(super) struct Place(PathBuf);

    impl Place {
        pub(super) fn new() -> Result<Place, Failure> {
            let above = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
            let random = getrandom::u64().unwrap_or_default();
            let path = above.join(format!("windlass-work-{}-{random:x}", std::process::id()));
            make(&path)?;
            Ok(Place(path))
        }

        pub(super) fn path(&self) -> &Path {
            &self.0
        }

        pub(super) fn sub(&self, name: &str) -> Result<PathBuf, Failure> {
            let path = self.0.join(name);
            make(&path)?;
            Ok(path)
        }

        pub(super) fn remove(&self) {
            // What cannot be removed is a few empty files in a directory for such things.
            let _left_behind = std::fs::remove_dir_all(&self.0);
        }
    }

    fn make(path: &Path) -> Result<(), Failure> {
        let made = std::fs::DirBuilder::new().mode(0o700).create(path);
        made.map_err(|e| Failure::io(format_args!("cannot make {}", path.display()), &e))
    }
}
