//! A runner of this program's own, and the engine turned by hand on a store and an archive of its own: no server.
//!
//! A runner is given starts and reports each job exactly once. This one has a single thread and no other rule than
//! that; the engine does the rest: slots, retries, back-off, and what is durable when.

use crate::Outcome;
use crate::own_archive::Archive;
use crate::own_store::JournalStore;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use windlass::clock;
use windlass::engine::event::Answer;
use windlass::engine::{Engine, EngineOptions, Event, IdSource};
use windlass::runner::{Finished, Flight, Runner, Start, Stop};
use windlass::store::chunk::ChunkBuilder;
use windlass::store::{Durability, Evidence, Lot, NewJobs, Store};
use windlass_core::job::{Origin, Priority, QueueName};
use windlass_core::outcome::Outcome as Ended;
use windlass_core::policy::{Backoff, HandlerFiles, Policy, Service};

/// So many numbers there are.
const NUMBERS: usize = 1000;

/// Looks at the numbers that its jobs carry.
struct Reader(Sender<Start>);

impl Reader {
    fn new(events: Sender<Event>) -> Reader {
        let (work, starts) = channel::<Start>();
        std::thread::spawn(move || {
            for start in starts {
                let begun = clock::now();
                // Every third start of anything fails, so that there is something to be tried again.
                let ended = match start.flight.0 % 3 {
                    0 => Ended::Failed { error: "every third fails".into() },
                    _ => Ended::Succeeded { message: String::new() },
                };
                let finished = Finished::all(start.flight, start.held.count, ended, begun, clock::now());
                if events.send(Event::Finished(finished)).is_err() {
                    break;
                }
            }
        });
        Reader(work)
    }
}

impl Runner for Reader {
    fn start(&mut self, starts: Vec<Start>) {
        for start in starts {
            // A thread that has ended has panicked, and said so.
            let _ended = self.0.send(start);
        }
    }

    /// What has begun is over in a moment, and what has not is soon: there is nothing to stop.
    fn stop(&mut self, _: Flight, _: Stop) {}

    fn cancel(&mut self, _: Flight, _: u16) {}
}

/// A thousand numbers through the engine, whatever of them was done in this directory before. `between` is called with
/// how many are done when a turn is committed and nobody was told of it yet.
pub(crate) fn run(dir: &Path, between: impl Fn(usize) -> Outcome<()>) -> Outcome<String> {
    let (events, arriving) = channel();
    let mut runner = Reader::new(events.clone());
    let mut engine = engine(JournalStore::open(&dir.join("store"))?)?;
    let mut archive = Archive::open(&dir.join("done"))?;
    // What a crash kept from the archive the store still has.
    for left in engine.store().unarchived()? {
        archive.take(left.turn, &left.settlements)?;
        events.send(Event::Archived { turn: left.turn })?;
    }
    if engine.store().view().queues()?.is_empty() {
        events.send(Event::Pushed { lot: numbers()?, durability: Durability::Full, answer: Answer::new(|_| ()) })?;
    }
    // The first turn takes up what was left, whether anything has happened or not.
    let mut happened: Vec<Event> = arriving.try_iter().collect();
    while archive.numbers.len() < NUMBERS {
        let effects = engine.turn(clock::now(), happened)?;
        between(archive.numbers.len())?;
        effects.answers.give();
        runner.start(effects.starts);
        if !effects.archive.is_empty() {
            archive.take(effects.turn, effects.archive.iter().map(|entry| &entry.settlement))?;
            events.send(Event::Archived { turn: effects.turn })?;
        }
        happened = wait(&mut engine, &arriving)?;
    }
    archive.numbers.sort_unstable();
    match archive.numbers.iter().copied().eq(1..=NUMBERS as u64) {
        true => Ok(format!("own store and runner: each of {NUMBERS} numbers is done, and once")),
        false => Err(format!("wrong: these were done: {:?}", archive.numbers).into()),
    }
}

/// Says how many are done and waits for a line, as long as there is anybody who writes some.
pub(crate) fn on_words(done: usize) -> Outcome<()> {
    println!("{done}");
    std::io::stdout().flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

fn engine(store: JournalStore) -> Outcome<Engine<JournalStore>> {
    let quick = Backoff { base: std::time::Duration::from_millis(1), cap: std::time::Duration::from_millis(1) };
    let service = Service::Handler { name: "reader".into(), batch: 10 };
    let options = EngineOptions {
        policies: vec![Policy { attempts: 0, backoff: quick, slots: 4, ..Policy::new("*", service) }],
        slots: 4,
        memory: None,
        schedules: Vec::new(),
        router: Default::default(),
        durability: Durability::Full,
        serve_open_runs: false,
        serves_runs: false,
        drain: std::time::Duration::from_secs(1),
        seed: 1,
        ids: Arc::new(IdSource::new(Origin::from_random(1))),
        files: HandlerFiles::new(),
    };
    // A number kills nobody: whoever was in hand when the last process died is accused of nothing.
    let evidence =
        Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: false, convicted: Evidence::UNTOLD };
    let (engine, _) = Engine::new(store, options, evidence, clock::now())?;
    Ok(engine)
}

fn numbers() -> Outcome<Lot> {
    let mut builder = ChunkBuilder::new(Origin::from_random(2));
    (1..=NUMBERS as u64).for_each(|number| builder.push(number, number.to_string().as_bytes()));
    let (queue, jobs) = (QueueName::new(b"numbers")?, Arc::new(builder.finish()));
    let new = NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs };
    Ok(Lot { jobs: vec![new], ..Lot::default() })
}

/// What has happened since the last turn, or nothing once the engine has something to do by itself.
fn wait(engine: &mut Engine<JournalStore>, arriving: &Receiver<Event>) -> Outcome<Vec<Event>> {
    let first = match engine.next_wake()? {
        Some(at) => arriving.recv_timeout(at.since(clock::now())).ok(),
        None => Some(arriving.recv()?),
    };
    Ok(first.into_iter().chain(arriving.try_iter()).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_number_is_done_once() {
        let place = tempfile::tempdir().unwrap();
        super::run(place.path(), |_| Ok(())).unwrap();
    }
}
