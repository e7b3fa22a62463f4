//! A runner of this program's own, and the engine turned by hand: no files, no socket, no server.
//!
//! A runner is given starts and reports each job exactly once. This one has a single thread and no other rule than
//! that; the engine does the rest: slots, retries, back-off, and what is durable when.

use crate::Outcome;
use crate::own_store::Counting;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use windlass::clock;
use windlass::engine::event::Answer;
use windlass::engine::{Engine, EngineOptions, Event, IdSource};
use windlass::runner::{Finished, Flight, Runner, Start, Stop};
use windlass::store::chunk::ChunkBuilder;
use windlass::store::memory::Memory;
use windlass::store::{Durability, Evidence, Lot, NewJobs};
use windlass_core::job::{Origin, Priority, QueueName};
use windlass_core::life_cycle::State;
use windlass_core::outcome::Outcome as Ended;
use windlass_core::policy::{Backoff, HandlerFiles, Policy, Service};

/// Adds up the numbers that its jobs carry.
struct Adder {
    work: Option<Sender<Start>>,
    thread: Option<JoinHandle<u64>>,
}

impl Adder {
    fn new(events: Sender<Event>) -> Adder {
        let (work, starts) = channel::<Start>();
        let thread = std::thread::spawn(move || {
            let mut sum = 0;
            for start in starts {
                let begun = clock::now();
                let numbers = start.held.range().map(|index| number(start.held.jobs.data(index)));
                // Every third start of anything fails, so that there is something to be tried again.
                let ended = match start.flight.0 % 3 {
                    0 => Ended::Failed { error: "every third fails".into() },
                    _ => {
                        sum += numbers.sum::<u64>();
                        Ended::Succeeded { message: String::new() }
                    }
                };
                let finished = Finished::all(start.flight, start.held.count, ended, begun, clock::now());
                if events.send(Event::Finished(finished)).is_err() {
                    break;
                }
            }
            sum
        });
        Adder { work: Some(work), thread: Some(thread) }
    }

    fn sum(mut self) -> Outcome<u64> {
        self.work = None;
        let thread = self.thread.take().ok_or("it was asked before")?;
        thread.join().map_err(|_| "the adder panicked".into())
    }
}

fn number(data: &[u8]) -> u64 {
    std::str::from_utf8(data).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Runner for Adder {
    fn start(&mut self, starts: Vec<Start>) {
        for start in starts {
            if let Some(work) = &self.work {
                // A thread that has ended has panicked, and `sum` tells so.
                let _ended = work.send(start);
            }
        }
    }

    /// What has begun is over in a moment, and what has not is soon: there is nothing to stop.
    fn stop(&mut self, _: Flight, _: Stop) {}
}

/// A thousand numbers through the engine; judged by their sum and by what the store was asked.
pub(crate) fn run() -> Outcome<String> {
    let (events, arriving) = channel();
    let mut runner = Adder::new(events.clone());
    let mut engine = engine()?;
    events.send(Event::Pushed { lot: numbers()?, durability: Durability::Full, answer: Answer::new(|_| ()) })?;
    let mut done = 0;
    while done < 1000 {
        let happened = wait(&mut engine, &arriving)?;
        let effects = engine.turn(clock::now(), happened)?;
        effects.answers.give();
        runner.start(effects.starts);
        let succeeded = effects.archive.iter().filter(|entry| entry.state == State::Succeeded);
        done += succeeded.map(|entry| u64::from(entry.settlement.held.count)).sum::<u64>();
    }
    let sum = runner.sum()?;
    let verbs = &engine.store().verbs;
    let asked = |verb: &str| verbs.get(verb).copied().unwrap_or(0);
    if sum != 1000 * 1001 / 2 || asked("admit") != 1 || asked("settle") == 0 {
        return Err(format!("wrong: the sum is {sum}, and the store was asked {verbs:?}").into());
    }
    Ok(format!("own runner: 1000 jobs added up in {} turns of the engine", asked("commit")))
}

fn engine() -> Outcome<Engine<Counting<Memory>>> {
    let quick = Backoff { base: std::time::Duration::from_millis(1), cap: std::time::Duration::from_millis(1) };
    let service = Service::Handler { name: "adder".into(), batch: 10 };
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
    let evidence =
        Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
    let (engine, _) = Engine::new(Counting::new(Memory::new(1)), options, evidence, clock::now())?;
    Ok(engine)
}

fn numbers() -> Outcome<Lot> {
    let mut builder = ChunkBuilder::new(Origin::from_random(2));
    (1..=1000u64).for_each(|number| builder.push(number, number.to_string().as_bytes()));
    let (queue, jobs) = (QueueName::new(b"numbers")?, Arc::new(builder.finish()));
    let new = NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs };
    Ok(Lot { jobs: vec![new], ..Lot::default() })
}

/// What has happened since the last turn, or nothing once the engine has something to do by itself.
fn wait(engine: &mut Engine<Counting<Memory>>, arriving: &Receiver<Event>) -> Outcome<Vec<Event>> {
    let first = match engine.next_wake()? {
        Some(at) => arriving.recv_timeout(at.since(clock::now())).ok(),
        None => Some(arriving.recv()?),
    };
    Ok(first.into_iter().chain(arriving.try_iter()).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_number_is_added_once() {
        super::run().unwrap_or_else(|e| panic!("{e}"));
    }
}
