//! Failure at every I/O call: a fixed script of turns runs while the n-th call fails, for n = 1, 2, 3, … until
//! nothing fails any more.
//!
//! After each run the store is opened without faults and must be exactly where the last answered commit left it,
//! or one turn further, the turn whose answer was lost; nothing between. Then it must go on working. A turn that
//! finds no space is rolled back and done again, as the engine does. It must not know how calls are made to fail.

use super::audit;
use crate::store::chunk::ChunkBuilder;
use crate::store::memory::Memory;
use crate::store::{
    Amendment, Cursor, Durability, Evidence, Filter, Held, JobInfo, Lot, NewJobs, Order, Seal, Settlement, Store,
    StoreError, StoreView,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::job::{JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record, RunId};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// A store whose calls can be made to fail.
pub trait Shaky {
    type Store: Store;

    /// Throws away what is stored: the next opening finds nothing.
    fn wipe(&mut self);

    fn open(&mut self) -> Result<Self::Store, StoreError>;

    /// The process that has the store dies.
    fn kill(&mut self, store: Self::Store);

    fn view<'a>(&'a self, store: &'a Self::Store) -> Box<dyn StoreView + 'a>;

    /// From now on the `nth` call fails, and all later ones if `from_then_on`.
    fn arm(&mut self, nth: u64, from_then_on: bool);

    /// Lets all calls through; says whether any failed.
    fn disarm(&mut self) -> bool;
}

/// More calls than any store may need for the script; a store that never gets through is broken.
const CALLS_MAX: u64 = 100_000;

/// Runs the script with every single call failing, once and from then on; returns how many runs that took.
pub fn every_call(shaky: &mut impl Shaky) -> u64 {
    [false, true].into_iter().map(|from_then_on| each_call(shaky, from_then_on)).sum()
}

/// The same in one way only: once, or from then on.
pub fn each_call(shaky: &mut impl Shaky, from_then_on: bool) -> u64 {
    let expected = expected();
    for nth in 1..CALLS_MAX {
        if one_run(shaky, nth, from_then_on, &expected) {
            return nth;
        }
    }
    panic!("the script never came through untouched");
}

/// What a job looks like to the checker.
type Seen = (State, Record, Vec<u8>, Option<RunId>, Priority);

/// The store after a kill and a recovery: its jobs, how far the inbox was read, and how many outcomes wait for the
/// archive.
#[derive(Debug, PartialEq, Eq)]
struct Picture {
    jobs: BTreeMap<JobId, Seen>,
    cursors: BTreeMap<Origin, (u64, u32)>,
    outcomes: usize,
}

fn one_run(shaky: &mut impl Shaky, nth: u64, from_then_on: bool, expected: &[Picture]) -> bool {
    let which = format!("call {nth} failed{}", if from_then_on { " and all after it" } else { "" });
    shaky.wipe();
    shaky.arm(nth, from_then_on);
    let mut answered = 0;
    if let Ok(mut store) = shaky.open() {
        // An error that ends the process is as good as a kill: what counts is what the next one finds.
        answered = Script::default().play(&mut store);
        shaky.kill(store);
    }
    let failed = shaky.disarm();
    assert!(failed || answered == TURNS, "{which}: nothing failed, and {answered} of {TURNS} turns were answered");
    let mut store = shaky.open().unwrap_or_else(|e| panic!("{which}: the store cannot be opened: {e}"));
    let found = picture(&mut store, |store| {
        let view = shaky.view(store);
        (audit::check(&*view), view.cursors())
    });
    let found = found.unwrap_or_else(|e| panic!("{which}: {e}"));
    let one_further = expected.get(answered + 1).is_some_and(|next| *next == found);
    assert!(one_further || found == expected[answered], "{which}, {answered} turns were answered, and then: {found:?}");
    goes_on(&mut store).unwrap_or_else(|e| panic!("{which}: the store does not go on: {e}"));
    audit::check(&*shaky.view(&store));
    shaky.kill(store);
    !failed
}

/// The pictures after 0, 1, 2, … turns, by the model store.
fn expected() -> Vec<Picture> {
    let played = |turns| {
        let (mut model, mut script) = (Memory::new(1), Script::default());
        let opened = script.open(&mut model);
        assert_eq!(opened, Ok(()), "the model store opens");
        for turn in 0..turns {
            assert_eq!(script.turn(&mut model, turn), Ok(()), "the script runs on the model store");
        }
        model.crash();
        picture(&mut model, |model| (audit::list(model, &Filter::default(), 1000), model.cursors()))
    };
    (0..=TURNS).map(|turns| played(turns).unwrap_or_else(|e| panic!("the model store failed: {e}"))).collect()
}

fn picture<S: Store>(
    store: &mut S,
    look: impl FnOnce(&S) -> (Vec<JobInfo>, Result<Vec<Cursor>, StoreError>),
) -> Result<Picture, StoreError> {
    store.recover(
        Evidence { begun: &|_, _| false, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD },
        NOW,
    )?;
    let turns = store.unarchived()?;
    let outcomes = turns.iter().flat_map(|turn| &turn.settlements).map(|done| usize::from(done.held.count)).sum();
    let (jobs, cursors) = look(store);
    let cursors = cursors?.into_iter().map(|cursor| (cursor.origin, (cursor.offset, cursor.tail)));
    let jobs = jobs.into_iter().map(|job| (job.id, (job.state, job.record, job.data, job.run, job.priority)));
    Ok(Picture { jobs: jobs.collect(), cursors: cursors.collect(), outcomes })
}

/// A whole life of one more job.
fn goes_on(store: &mut impl Store) -> Result<(), StoreError> {
    let mut script = Script::default();
    let jobs = vec![script.jobs("after", 999_000, 1)];
    script.note_queues(store.backlog()?.queues);
    store.admit(&Lot { jobs, ..Lot::default() }, NOW)?;
    script.commit(store, Durability::Full)?;
    let held = store.claim(&[script.order("after", LaneKind::Fresh, 1)], NOW)?;
    assert_eq!(held.len(), 1, "a new job can be claimed after a fault");
    script.commit(store, Durability::Full)?;
    store.settle(&[settlement(&held[0], Verdict::Succeed { message: String::new() })], &[], NOW)?;
    script.commit(store, Durability::Full)
}

const NOW: Time = Time(5_000_000_000);
const TURNS: usize = 7;

/// The fixed script; it remembers what an engine remembers.
#[derive(Clone, Default)]
struct Script {
    queues: BTreeMap<String, QueueNo>,
    held: Vec<Held>,
    last_turn: u64,
}

impl Script {
    /// Plays until the end or an error that ends the process; returns how many turns were answered.
    fn play(&mut self, store: &mut impl Store) -> usize {
        if self.open(store).is_err() {
            return 0;
        }
        for turn in 0..TURNS {
            let before = self.clone();
            let answer = match self.turn(store, turn) {
                Err(StoreError::Full(_)) => {
                    *self = before;
                    store.rollback().and_then(|()| self.turn(store, turn))
                }
                answer => answer,
            };
            if answer.is_err() {
                return turn;
            }
        }
        TURNS
    }

    fn open(&mut self, store: &mut impl Store) -> Result<(), StoreError> {
        store.recover(
            Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD },
            NOW,
        )?;
        let backlog = store.backlog()?;
        self.note_queues(backlog.queues);
        Ok(())
    }

    fn turn(&mut self, store: &mut impl Store, number: usize) -> Result<(), StoreError> {
        let run = RunId::first(Origin::from_random(77));
        let origin = Origin::from_random(1);
        let mut durability = Durability::Full;
        match number {
            0 => {
                let fresh = NewJobs { run: Some(run), ..self.jobs("work", 0, 300) };
                let not_before = Some(NOW.after(Duration::from_secs(9)));
                let later = NewJobs { not_before, ..self.jobs("later", 5_000, 5) };
                let cursors = vec![Cursor { origin, offset: 6_000, tail: 1 }];
                store.admit(&Lot { jobs: vec![fresh, later], cursors, ..Lot::default() }, NOW)?;
            }
            1 => self.held = store.claim(&[self.order("work", LaneKind::Fresh, 200)], NOW)?,
            2 => {
                durability = Durability::Os;
                let verdicts = verdicts();
                let held = self.held.remove(0);
                let parts = verdicts.into_iter().enumerate();
                let parts = parts.map(|(part, verdict)| settlement(&held.part(part as u16 * 20, 20), verdict));
                store.settle(&parts.collect::<Vec<_>>(), &[], NOW)?;
                self.held.insert(0, held.part(100, held.count - 100));
            }
            3 => {
                let seals = vec![Seal { run, after: vec![(origin, 6_500)] }];
                let jobs = vec![NewJobs { run: Some(run), ..self.jobs("work", 10_000, 3) }];
                let cursors = vec![Cursor { origin, offset: 7_000, tail: 2 }];
                store.admit(&Lot { jobs, seals, cursors, ..Lot::default() }, NOW)?;
                let later = NOW.after(Duration::from_secs(9));
                store.release(later, 100, Evidence::UNTOLD)?;
                self.held.extend(store.claim(&[self.order("work", LaneKind::Retry, 7)], later)?);
            }
            4 => {
                let id = |offset| JobId { origin, offset };
                store.amend(&[id(2_990), id(2_980)], Amendment::Cancel, NOW)?;
                store.amend(&[id(2_970)], Amendment::Suspend, NOW)?;
                store.amend(&[id(2_960)], Amendment::Priority(Priority::new(5).unwrap_or_default()), NOW)?;
                // The fifth group of twenty had been cancelled.
                store.amend(&[id(800), id(810)], Amendment::Retry, NOW)?;
            }
            5 => {
                let done = |held| settlement(held, Verdict::Succeed { message: "ok".into() });
                store.settle(&self.held.iter().map(done).collect::<Vec<_>>(), &[], NOW)?;
                self.held.clear();
            }
            _ => {
                durability = Durability::Os;
                store.archived(self.last_turn)?;
                store.forget(NOW.after(Duration::from_secs(1)), 25)?;
            }
        }
        self.commit(store, durability)
    }

    fn commit(&mut self, store: &mut impl Store, durability: Durability) -> Result<(), StoreError> {
        self.last_turn = store.commit(durability)?;
        self.note_queues(store.changes().queues);
        Ok(())
    }

    fn note_queues(&mut self, queues: Vec<(QueueNo, QueueName)>) {
        self.queues.extend(queues.into_iter().map(|(no, name)| (name.to_string(), no)));
    }

    fn order(&self, queue: &str, kind: LaneKind, most: u32) -> Order {
        let queue = self.queues.get(queue).copied().unwrap_or_else(|| panic!("queue {queue} was never reported"));
        Order { lane: Lane { queue, priority: Priority::NORMAL, kind }, most }
    }

    /// Jobs at every tenth offset from `first` on.
    fn jobs(&self, queue: &str, first: u64, count: u64) -> NewJobs {
        let mut builder = ChunkBuilder::new(Origin::from_random(1));
        for number in 0..count {
            builder.push(first + 10 * number, format!("{queue} {number} {}", "x".repeat(100)).as_bytes());
        }
        let queue = super::rig::queue_name(queue);
        let jobs = Arc::new(builder.finish());
        NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs }
    }
}

/// One of each kind, for five groups of twenty.
fn verdicts() -> [Verdict; 5] {
    let at = NOW.after(Duration::from_secs(3));
    [
        Verdict::Succeed { message: "ok".into() },
        Verdict::Retry { at, error: "exit 1".into() },
        Verdict::Fail { reason: Reason::Exhausted, error: "exit 2".into() },
        Verdict::Return,
        Verdict::Cancel,
    ]
}

fn settlement(held: &Held, verdict: Verdict) -> Settlement {
    Settlement { held: held.clone(), verdict, outcome: "test", started: NOW, finished: NOW }
}
