//! The random case: the store under test and the model store do the same things and must look the same.
//!
//! After every turn, committed, rolled back or crashed, what can be seen of both is compared. The seed of a failing
//! walk is in the message. Where the contract leaves the order to the store (who of the retries is first among
//! equals) the model follows; everything else it decides itself.

use super::audit::{self, Mirror};
use super::rig::{Rig, fail, ids, ok, queue_name, retry, succeed};
use super::{Bench, Case, words_of};
use crate::store::memory::Memory;
use crate::store::{
    Amendment, Changes, Cursor, Deleted, Durability, Evidence, Filter, Held, JobInfo, Lot, NewJobs, Seal, Settlement,
    Store, StoreView,
};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use windlass_core::job::{JobId, Lane, LaneKind, Origin, Priority, RunId};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// How many walks, and how many turns in each.
const WALKS: u64 = 12;
const TURNS: u32 = 60;
const QUEUES: [&str; 4] = ["a", "b", "c", "d"];
const PRIORITIES: [i64; 3] = [-10, 0, 10];

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![("random turns leave the same as in the model", walks)]
}

fn walks<B: Bench>(rig: &mut Rig<'_, B>) {
    for seed in 1..=WALKS {
        rig.restart();
        let walked = catch_unwind(AssertUnwindSafe(|| Walk::new(rig, seed).run()));
        if let Err(panic) = walked {
            panic!("seed {seed}: {}", words_of(&*panic));
        }
    }
}

/// A small generator (xorshift), so that a seed is a whole story.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

struct Walk<'r, 'b, B: Bench> {
    rig: &'r mut Rig<'b, B>,
    model: Memory,
    mirror: Mirror,
    dice: Dice,
    /// What the store under test holds, and the model's own claim of each job.
    held: Vec<Held>,
    model_held: BTreeMap<JobId, Held>,
    made: Vec<JobId>,
    offset: u64,
}

impl<'r, 'b, B: Bench> Walk<'r, 'b, B> {
    fn new(rig: &'r mut Rig<'b, B>, seed: u64) -> Walk<'r, 'b, B> {
        let (model, mirror, dice) = (Memory::new(seed), Mirror::default(), Dice::new(seed));
        let (held, model_held, made) = (Vec::new(), BTreeMap::new(), Vec::new());
        Walk { rig, model, mirror, dice, held, model_held, made, offset: 0 }
    }

    fn run(&mut self) {
        for _ in 0..TURNS {
            if self.dice.chance(10) {
                self.forget();
            }
            let before = (self.held.clone(), self.model_held.clone(), self.made.len(), self.offset);
            for _ in 0..1 + self.dice.below(4) {
                self.verb();
            }
            match self.dice.below(100) {
                0..8 => {
                    ok(self.rig.store().rollback());
                    ok(self.model.rollback());
                    (self.held, self.model_held, self.offset) = (before.0, before.1, before.3);
                    self.made.truncate(before.2);
                }
                8..16 => self.crash(before.2, before.3),
                _ => self.commit(),
            }
            self.compare();
            let seconds = self.dice.below(3) as u64;
            self.rig.later(seconds);
        }
    }

    fn commit(&mut self) {
        self.rig.step();
        ok(self.model.commit(Durability::Full));
        let changes = self.model.changes();
        self.mirror.apply(&changes);
    }

    fn crash(&mut self, made: usize, offset: u64) {
        let salt = self.dice.below(2) as u64;
        let begun = move |id: JobId, start: u32| !(id.offset / 17 + u64::from(start) + salt).is_multiple_of(3);
        let same_boot = self.dice.chance(70);
        let recovered = self.rig.crash(&begun, same_boot);
        self.model.crash();
        let now = self.rig.now;
        let expected = ok(self.model.recover(
            Evidence { begun: &begun, elsewhere: &|_, _| false, same_boot, convicted: Evidence::UNTOLD },
            now,
        ));
        assert_eq!(recovered, expected, "what recovery found (left) and the model (right)");
        let ended = self.model.changes().ended;
        self.mirror.forget_jobs();
        self.mirror.apply(&ok(self.model.backlog()));
        self.mirror.apply(&Changes { ended, ..Changes::default() });
        self.held.clear();
        self.model_held.clear();
        self.made.truncate(made);
        self.offset = offset;
    }

    fn verb(&mut self) {
        match self.dice.below(100) {
            0..30 => self.admit(),
            30..55 => self.claim(),
            55..80 => self.settle(),
            80..87 => {
                let now = self.rig.now;
                ok(self.rig.store().release(now, 10_000, Evidence::UNTOLD));
                ok(self.model.release(now, 10_000, Evidence::UNTOLD));
            }
            _ => self.amend(),
        }
    }

    fn admit(&mut self) {
        let mut lot = Lot::default();
        for _ in 0..1 + self.dice.below(3) {
            let count = 1 + self.dice.below(20);
            let wait = self.dice.below(4) as u64;
            let not_before = self.dice.chance(25).then(|| self.rig.in_seconds(wait));
            let run = self.dice.chance(50).then(|| self.run_id());
            let queue = self.dice.pick(&QUEUES);
            let priority = Priority::new(self.dice.pick(&PRIORITIES)).unwrap_or_default();
            let new = NewJobs { priority, run, not_before, ..self.rig.new_jobs(queue, count) };
            self.made.extend((0..count).map(|index| new.jobs.id(index)));
            lot.jobs.push(new);
        }
        let origin = Origin::from_random(1);
        if self.dice.chance(50) {
            self.offset += 10;
            lot.cursors.push(Cursor { origin, offset: self.offset, tail: 3 });
        }
        if self.dice.chance(15) {
            let ahead = 10 * self.dice.below(3) as u64;
            let after = if ahead == 0 { Vec::new() } else { vec![(origin, self.offset + ahead)] };
            lot.seals.push(Seal { run: self.run_id(), after });
        }
        let now = self.rig.now;
        ok(self.rig.store().admit(&lot, now));
        ok(self.model.admit(&lot, now));
    }

    fn run_id(&mut self) -> RunId {
        RunId::first(Origin::from_random(1000 + self.dice.below(5) as u64))
    }

    fn claim(&mut self) {
        let queue = self.dice.pick(&QUEUES);
        let priority = self.dice.pick(&PRIORITIES);
        let kind = self.dice.pick(&[LaneKind::Fresh, LaneKind::Fresh, LaneKind::Retry, LaneKind::Suspect]);
        // A queue whose first job is in the open turn has no number that the rig knows.
        if self.rig.mirror.queue_no(queue).is_none() {
            return;
        }
        let lane = self.rig.lane(queue, priority, kind);
        let most = 1 + self.dice.below(25) as u32;
        let claimed = self.rig.claim_lane(lane, most);
        let model_queue = self.mirror.queue_no(queue).unwrap_or(lane.queue);
        let expected = self.model.head(Lane { queue: model_queue, ..lane }, most);
        let got = ids(&claimed);
        assert_eq!(got.len(), expected.len(), "jobs claimed from {lane:?}, and in the model");
        if kind == LaneKind::Fresh {
            assert_eq!(got, expected, "fresh jobs claimed from {lane:?}, and in the model");
        }
        for id in got {
            self.model_held.insert(id, ok(self.model.claim_job(id)));
        }
        self.held.extend(claimed);
    }

    fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let whole = self.held.swap_remove(self.dice.below(self.held.len()));
        let first = self.dice.below(usize::from(whole.count)) as u16;
        let count = 1 + self.dice.below(usize::from(whole.count - first)) as u16;
        // What is left on both sides of the settled part stays held.
        let rest = [(0, first), (first + count, whole.count - first - count)];
        self.held.extend(rest.into_iter().filter(|(_, count)| *count > 0).map(|(at, count)| whole.part(at, count)));
        let wait = self.dice.below(4) as u64;
        let at = self.rig.in_seconds(wait);
        let verdict = match self.dice.below(10) {
            0..4 => succeed(),
            4..6 => retry(at),
            6 => fail(),
            7 => Verdict::Snooze { at },
            8 => Verdict::Return,
            _ => Verdict::Cancel,
        };
        let settlement = self.rig.settlement(&whole.part(first, count), verdict);
        let now = self.rig.now;
        ok(self.rig.store().settle(std::slice::from_ref(&settlement), &[], now));
        for id in settlement.held.ids() {
            let held = self.model_held.remove(&id).unwrap_or_else(|| panic!("the model does not hold {id}"));
            ok(self.model.settle(&[Settlement { held, ..settlement.clone() }], &[], now));
        }
    }

    fn amend(&mut self) {
        if self.made.is_empty() {
            return;
        }
        let ids: Vec<_> = (0..1 + self.dice.below(5)).map(|_| self.dice.pick(&self.made)).collect();
        let priority = Priority::new(self.dice.pick(&PRIORITIES)).unwrap_or_default();
        let wish = self.dice.pick(&[
            Amendment::Cancel,
            Amendment::Retry,
            Amendment::Suspend,
            Amendment::Resume,
            Amendment::Priority(priority),
        ]);
        let now = self.rig.now;
        if self.dice.below(12) == 0 {
            return self.delete(&ids);
        }
        let answers = ok(self.rig.store().amend(&ids, wish, now));
        assert_eq!(answers, ok(self.model.amend(&ids, wish, now)), "{wish:?}: the answers, and the model's");
    }

    fn delete(&mut self, ids: &[JobId]) {
        let now = self.rig.now;
        let told = |answers: Vec<Deleted>| -> Vec<String> {
            let word = |answer: &Deleted| match answer {
                Deleted::Done { from, last } => {
                    let held = &last.held;
                    format!("{from} {:?} {:?} {}", held.ids().collect::<Vec<_>>(), held.record, last.outcome)
                }
                Deleted::Running => "running".to_owned(),
                Deleted::Unknown => "unknown".to_owned(),
            };
            answers.iter().map(word).collect()
        };
        let answers = told(ok(self.rig.store().delete(ids, now)));
        assert_eq!(answers, told(ok(self.model.delete(ids, now))), "what was deleted, and in the model");
    }

    /// Forgets in turns of its own. Stores may keep what the archive does not hold yet, so it holds everything.
    fn forget(&mut self) {
        self.rig.archive_all();
        let turn = ok(self.model.commit(Durability::Full));
        ok(self.model.archived(turn));
        let before = Time(self.rig.now.0 - 20_000_000);
        while ok(self.rig.store().forget(before, 1000)) > 0 {}
        while ok(self.model.forget(before, 1000)) > 0 {}
        self.commit();
        // A run that was forgotten and is named again is another one, with an end of its own.
        let known: Vec<RunId> = ok(self.model.runs(audit::ALL)).into_iter().map(|run| run.id).collect();
        self.mirror.ended.retain(|run, _| known.contains(run));
        self.rig.mirror.ended.retain(|run, _| known.contains(run));
    }

    fn compare(&self) {
        let (view, model) = (&*self.rig.view(), &self.model);
        let jobs = |view: &dyn StoreView| -> Vec<JobInfo> {
            audit::list(view, &Filter::default(), 1000).into_iter().map(plain).collect()
        };
        for (job, expected) in jobs(view).iter().zip(&jobs(model)) {
            assert_eq!(job, expected, "a listed job, and in the model");
        }
        assert_eq!(jobs(view).len(), jobs(model).len(), "the number of jobs, and in the model");
        for name in QUEUES {
            let stats = |view: &dyn StoreView| {
                let queue = ok(view.queues()).into_iter().find(|queue| queue.name == queue_name(name));
                queue.map(|queue| (queue.stats.by_state, queue.stats.ran, queue.stats.waited))
            };
            assert_eq!(stats(view), stats(model), "the counters of queue {name}, and in the model");
        }
        let runs = |view: &dyn StoreView| {
            let runs = ok(view.runs(audit::ALL)).into_iter();
            let runs = runs.map(|run| (run.id, (run.counts, run.taken, run.seal_after.is_empty(), run.ended_at)));
            runs.collect::<BTreeMap<_, _>>()
        };
        assert_eq!(runs(view), runs(model), "the runs, and in the model");
        assert_eq!(ok(view.cursors()), ok(model.cursors()), "the cursors, and in the model");
        assert_eq!(self.rig.mirror.ended, self.mirror.ended, "the ends that were told, and by the model");
    }
}

/// A job without what the contract leaves to the store.
fn plain(mut job: JobInfo) -> JobInfo {
    match job.state {
        State::Scheduled | State::Retrying => {}
        State::Running => {
            job.record.starts = 0;
            job.not_before = None;
        }
        State::Ready | State::Suspended => job.not_before = None,
        State::Failed | State::Cancelled | State::Succeeded => {
            job.not_before = None;
            job.kind = LaneKind::Fresh;
            // A failed job that is then cancelled may keep why it failed.
            job.reason = job.reason.filter(|_| job.state == State::Failed);
        }
    }
    if job.reason == Some(Reason::Poison) {
        job.errors.clear();
    }
    for error in &mut job.errors {
        error.at = Time::ZERO;
    }
    job
}
