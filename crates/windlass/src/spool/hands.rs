//! The hands of the drivers of one process: a command for each document, or one that stays, through the launchers that
//! every job has, so that limits of time and memory hold and no process outlives its document.
//!
//! A driver hands a document over and waits for its end. It must not know what a name in a directory means.

use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::runner::front::Runners;
use crate::runner::handler::Handlers;
use crate::runner::launcher::slots;
use crate::runner::progress::Board;
use crate::runner::remote::Counter;
use crate::runner::{Emitted, Finished, Flight, Runner, Start, Stop};
use crate::store::chunk::ChunkBuilder;
use crate::store::{Held, Place};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use windlass_core::job::{Arrival, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record};
use windlass_core::outcome::Outcome;
use windlass_core::policy::Policy;
use windlass_core::time::Time;

/// What the directories of launchers begin with, in the directory for temporary files.
const BEGINS: &str = "windlass-drive-";

/// How long nothing may be heard of a start before it is asked whether anybody can do it at all.
const PATIENCE: Duration = Duration::from_secs(1);

/// The launchers of a process, and the directory that is theirs alone.
pub(super) struct Hands {
    runner: Mutex<Runners>,
    policy: Arc<Policy>,
    queue: Arc<QueueName>,
    origin: Origin,
    board: Arc<Board>,
    /// Goes last: the launchers are in it.
    place: PlaceOfHands,
}

/// The directory of the launchers of a process; it goes with them.
pub(super) struct PlaceOfHands(PathBuf);

impl Drop for PlaceOfHands {
    fn drop(&mut self) {
        // It is in nobody's way, and the machine clears such directories.
        let _stays = std::fs::remove_dir_all(&self.0);
    }
}

/// A driver's way to the launchers, and back.
pub(super) struct Hand {
    hands: Arc<Hands>,
    ended: Receiver<Finished>,
    /// The flight of its first document; its later ones are so many further.
    flight: u64,
    step: u64,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").field("place", &self.place.0).finish_non_exhaustive()
    }
}

impl PlaceOfHands {
    /// Made before anything is leased, so that a lease can name it.
    pub(super) fn make() -> Result<PlaceOfHands, Failure> {
        let random = getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
        let place = std::env::temp_dir().join(format!("{BEGINS}{random:016x}"));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&place);
        made.map_err(|e| Failure::new(Kind::CannotCreate, format!("cannot make {}: {e}", place.display())))?;
        Ok(PlaceOfHands(place))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

/// Kills what the launchers of a dead driver left, and removes their directory.
pub(super) fn end_those_of(place: &Path) -> Result<(), Failure> {
    // Only what one of ours has made, wherever it has its files for a time: the path comes from a lease of this user.
    let named = place.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(BEGINS.as_bytes()));
    let ours = |meta: std::fs::Metadata| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    if !named || !place.is_absolute() || !place.symlink_metadata().is_ok_and(ours) {
        return Ok(());
    }
    // Without the tables no launcher was started.
    let run = place.join("run");
    if run.is_dir() {
        slots::prove_dead(&run)?;
    }
    drop(PlaceOfHands(place.to_owned()));
    Ok(())
}

impl Hands {
    /// Starts the launchers for so many drivers; a hand for each comes back.
    pub(super) fn start(
        place: PlaceOfHands,
        policy: Policy,
        handlers: Handlers,
        drivers: u32,
        fatal: impl Fn(Failure) + Send + Sync + 'static,
    ) -> Result<(Arc<Hands>, Vec<Hand>), Failure> {
        let random = getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
        let dir = DataDir::open(&place.0)?;
        let (tell, hear): (Vec<SyncSender<Finished>>, Vec<Receiver<Finished>>) =
            (0..drivers).map(|_| sync_channel(1)).unzip();
        let step = u64::from(drivers);
        let told = move |finished: Finished| {
            let driver = (finished.flight.0 % step) as usize;
            // A driver that has left hears no more.
            let _gone = tell[driver].try_send(finished);
        };
        let policy = Policy { slots: drivers, ..policy };
        let (board, counter): (Arc<Board>, Arc<Counter>) = Default::default();
        let (crewed, fatal) = (Box::new(|_: &str, _| {}), Box::new(fatal));
        let runner = Runners::start(Some(&dir), Arc::clone(&board), handlers, counter, Arc::new(told), crewed, fatal)?;
        let queue = QueueName::new(policy.pattern.as_bytes()).map_err(|e| Failure::new(Kind::Usage, e.to_string()))?;
        let hands = Hands {
            runner: Mutex::new(runner),
            policy: Arc::new(policy),
            queue: Arc::new(queue),
            origin: Origin::from_random(random),
            board,
            place,
        };
        let hands = Arc::new(hands);
        let hand = |(driver, ended)| Hand { hands: Arc::clone(&hands), ended, flight: driver + step, step };
        let made = (0..).zip(hear).map(hand).collect();
        Ok((hands, made))
    }

    fn runner(&self) -> std::sync::MutexGuard<'_, Runners> {
        self.runner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hand {
    /// The flight that comes next, by which it can be stopped.
    pub(super) fn flight(&self) -> Flight {
        Flight(self.flight)
    }

    /// Has a document done, and waits for the end: its outcome, and what it handed on.
    pub(super) fn have_done(&mut self, data: &[u8], used: u32) -> (Outcome, Vec<Emitted>) {
        let hands = &self.hands;
        let flight = Flight(self.flight);
        let mut jobs = ChunkBuilder::new(hands.origin);
        jobs.push(self.flight, data);
        let held = Held {
            place: Place::Row(Arrival(self.flight)),
            lane: Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh },
            run: None,
            record: Record { starts: used, ..Record::default() },
            admitted: Time::ZERO,
            jobs: Arc::new(jobs.finish()),
            first: 0,
            count: 1,
        };
        let start = Start {
            flight,
            claim: self.flight,
            queue: Arc::clone(&hands.queue),
            policy: Arc::clone(&hands.policy),
            epoch: 1,
            held,
            fellows: Arc::default(),
            number: self.flight / self.step,
            run: String::new(),
            checkpoint: String::new(),
            lent: None,
            lot: None,
        };
        self.flight += self.step;
        hands.runner().start(vec![start]);
        let Some(Finished { outcomes, emitted, .. }) = self.wait(flight) else { return (Outcome::Lost, Vec::new()) };
        (outcomes.into_iter().next().map_or(Outcome::Lost, |(_, outcome)| outcome), emitted)
    }
}

impl Hand {
    /// For the end of a start; one that waits for a kept command that cannot serve is taken back.
    fn wait(&self, flight: Flight) -> Option<Finished> {
        loop {
            match self.ended.recv_timeout(PATIENCE) {
                Ok(finished) => return Some(finished),
                Err(RecvTimeoutError::Timeout) if self.trouble().is_some() => self.hands.stop([flight]),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Why the kept command cannot serve, if that is so: it was started again and again, and died each time.
    pub(super) fn trouble(&self) -> Option<String> {
        self.hands.board.troubles().pop().map(|(_, why)| why)
    }
}

impl Hands {
    /// Ends what is under way; its drivers hear of it.
    pub(super) fn stop(&self, flights: impl IntoIterator<Item = Flight>) {
        let mut runner = self.runner();
        flights.into_iter().for_each(|flight| runner.stop(flight, Stop::Interrupt));
    }
}
