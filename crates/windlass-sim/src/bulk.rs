//! People who operate: the same wish for many jobs, by name or by selector, at once or staged a slice at a time.
//!
//! It owns what was asked for and holds the account against what happened to the jobs: each of them met the wish once
//! at most, through any number of deaths, and the report counts just that. So that it is known whose wish a job met,
//! nobody else has the same wish meanwhile.

use crate::asks::{Ask, Said};
use crate::checkers::Seen;
use crate::ledger::{Act, Came, Known};
use crate::workload;
use crate::world::{Due, Outcome, World};
use std::collections::{BTreeMap, BTreeSet};
use windlass::engine::Event;
use windlass::engine::event::{NewOperation, OperationInfo, Report, Wish};
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;

/// The most that are under way together.
const BULKS_MAX: usize = 2;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is asked for; or, staged, the next step is.
    Asked,
    /// The last step was answered.
    Staging,
    /// It may have been accepted: whoever asked for it is not there any more.
    Orphaned,
}

/// What the jobs must be like to be meant.
#[derive(Clone, Debug)]
struct Chosen {
    queue: &'static str,
    state: State,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Bulk {
    name: u64,
    wish: Wish,
    chosen: Option<Chosen>,
    stage: Stage,
    /// It is staged in slices, under the engine's number.
    staged: bool,
    number: Option<u64>,
    /// Jobs that are still to be staged, and all.
    left: Vec<JobId>,
    all: BTreeSet<JobId>,
    expect: Option<u64>,
    accepting: bool,
    /// Where the book of wishes stood when it was asked for.
    since: usize,
}

impl Bulk {
    /// The same word, whatever comes with it.
    pub(crate) fn is_like(&self, wish: Wish) -> bool {
        self.wish.words().0 == wish.words().0
    }

    /// The engine died with what was only asked for; what was accepted goes on.
    pub(crate) fn forget(&mut self) {
        self.stage = Stage::Orphaned;
    }
}

impl World {
    /// A new one, and a look at what became of those whose asker went away.
    pub(crate) fn operate_some(&mut self) -> Outcome<()> {
        if self.engine.is_none() {
            return Ok(());
        }
        if self.people.bulks.iter().any(|bulk| bulk.stage == Stage::Orphaned) {
            let event = self.ask_for_operations();
            self.send(event);
        }
        if self.people.bulks.len() < BULKS_MAX {
            self.begin_bulk();
        }
        Ok(())
    }

    /// Whoever stages an operation does it step by step, each as soon as the one before was answered.
    pub(crate) fn go_on_with(&mut self, name: u64) -> Outcome<()> {
        let next = self.people.bulks.iter().position(|bulk| bulk.name == name && bulk.stage == Stage::Staging);
        if let Some(at) = next {
            self.go_on(at);
        }
        Ok(())
    }

    fn begin_bulk(&mut self) {
        let wish = if self.random.chance(300) { Wish::Delete } else { Wish::Amend(self.some_amendment()) };
        if self.people.bulks.iter().any(|bulk| bulk.is_like(wish)) {
            return;
        }
        let chosen = self.random.chance(600).then(|| Chosen {
            queue: self.random.pick::<&str>(&workload::QUEUES),
            state: *self.random.pick(&State::ALL),
        });
        let ids = self.chosen_ids(chosen.as_ref());
        self.people.last_bulk += 1;
        let name = self.people.last_bulk;
        let staged = self.random.chance(600);
        let expect = match self.random.below(3) {
            0 => Some(ids.len() as u64),
            1 if self.random.chance(300) => Some(ids.len() as u64 + 1),
            _ => None,
        };
        let bulk = Bulk {
            name,
            wish,
            chosen,
            stage: Stage::Asked,
            staged,
            number: None,
            all: ids.iter().copied().collect(),
            left: ids.clone(),
            expect,
            accepting: !staged,
            since: self.ledger.acts.len(),
        };
        let operation = self.order(&bulk);
        self.people.bulks.push(bulk);
        if staged {
            let answer = self.people.ask(Ask::OpenOperation(name), |number: &u64| Said::Number(*number));
            self.send(Event::OpenOperation { operation, answer });
        } else {
            let answer = self.people.ask(Ask::Operate(name), |report: &Report| Said::Report(report.clone()));
            self.send(Event::Operate { operation, ids, expect, answer });
        }
    }

    fn order(&self, bulk: &Bulk) -> NewOperation {
        let selector = bulk.chosen.as_ref().map(|chosen| format!("queue:{} state:{}", chosen.queue, chosen.state));
        NewOperation { wish: bulk.wish, selector, asked: self.now(), by: format!("operator {}", bulk.name) }
    }

    /// What somebody who looks finds; without a choice, jobs by name, and some that nobody knows.
    fn chosen_ids(&mut self, chosen: Option<&Chosen>) -> Vec<JobId> {
        let Some(Chosen { queue, state }) = chosen else {
            let known = self.people.known.clone();
            let count = self.random.between(0, 30);
            let some = (0..count).filter(|_| !known.is_empty()).map(|_| *self.random.pick(&known));
            return some.collect::<BTreeSet<JobId>>().into_iter().collect();
        };
        let meant = |job: &Known| job.state == *state && &*job.queue == *queue && !job.forgotten;
        let found = self.ledger.jobs.iter().filter(|(_, job)| meant(job) && job.state != State::Succeeded);
        found.map(|(id, _)| *id).collect()
    }

    /// One step of a staged operation.
    fn go_on(&mut self, at: usize) {
        let most = self.random.between(1, 12) as usize;
        let gives_up = self.random.chance(50);
        let bulk = &mut self.people.bulks[at];
        let (Some(number), name) = (bulk.number, bulk.name) else { return };
        if gives_up {
            self.people.bulks.remove(at);
            self.send(Event::AbandonOperation { number });
            return;
        }
        bulk.stage = Stage::Asked;
        if bulk.left.is_empty() {
            bulk.accepting = true;
            let expect = bulk.expect;
            let answer = self.people.ask(Ask::AcceptOperation(name), |report: &Report| Said::Report(report.clone()));
            self.send(Event::AcceptOperation { number, expect, answer });
            return;
        }
        let rest = bulk.left.split_off(most.min(bulk.left.len()));
        let ids = std::mem::replace(&mut bulk.left, rest);
        let answer = self.people.ask(Ask::StageOperation(name), |()| Said::Nothing);
        self.send(Event::StageOperation { number, ids, answer });
    }

    pub(crate) fn ask_for_operations(&mut self) -> Event {
        let listed = |listed: &Vec<OperationInfo>| Said::Operations(listed.clone());
        Event::Operations { answer: self.people.ask(Ask::Operations, listed) }
    }

    /// Those that nobody has accepted are given up; the others end by themselves.
    pub(crate) fn end_bulks(&mut self) {
        let given_up = self.people.bulks.extract_if(.., |bulk| bulk.stage == Stage::Staging);
        let numbers: Vec<u64> = given_up.filter_map(|bulk| bulk.number).collect();
        for number in numbers {
            self.send(Event::AbandonOperation { number });
        }
    }

    fn bulk(&mut self, name: u64) -> Option<&mut Bulk> {
        self.people.bulks.iter_mut().find(|bulk| bulk.name == name)
    }

    pub(crate) fn operation_opened(&mut self, name: u64, number: u64) {
        if let Some(bulk) = self.bulk(name) {
            bulk.number = Some(number);
        }
        self.operation_staged(name);
    }

    pub(crate) fn operation_staged(&mut self, name: u64) {
        if let Some(bulk) = self.bulk(name) {
            bulk.stage = Stage::Staging;
            let after = self.random.between(10, 20_000);
            self.at(after, Due::Bulk(name));
        }
    }

    /// Nothing of it was done, and nothing of it ever will be.
    pub(crate) fn operation_refused(&mut self, name: u64) -> Outcome<()> {
        let Some(at) = self.people.bulks.iter().position(|bulk| bulk.name == name) else { return Ok(()) };
        let bulk = self.people.bulks.remove(at);
        if let Some(number) = bulk.number {
            self.send(Event::AbandonOperation { number });
        }
        match self.met(&bulk)?.len() {
            0 => Ok(()),
            some => Err(format!("operation {name} was refused, and {some} jobs met its wish")),
        }
    }

    pub(crate) fn operation_done(&mut self, name: u64, report: &Report) -> Outcome<()> {
        let Some(at) = self.people.bulks.iter().position(|bulk| bulk.name == name) else { return Ok(()) };
        let bulk = self.people.bulks.remove(at);
        let met = self.met(&bulk)?;
        self.totals.operations += 1;
        if bulk.wish == Wish::Delete {
            let changed = met.iter().filter(|(_, came)| matches!(came, Came::Changed(_)));
            let ids: Vec<JobId> = changed.map(|(id, _)| *id).collect();
            self.show(&Seen::Deleted { ids: &ids })?;
        }
        // What is done at once matches what is meant in that very turn.
        let matched = if bulk.staged { bulk.all.len() } else { met.len() } as u64;
        if bulk.expect.is_some_and(|expected| expected != matched) {
            return Err(format!("operation {name} expected {:?} jobs, found {matched}, and was done", bulk.expect));
        }
        let count = |wanted: &dyn Fn(&Came) -> bool| met.values().filter(|came| wanted(came)).count() as u64;
        let expected = (
            matched,
            count(&|came| matches!(came, Came::Changed(_))),
            count(&|came| *came == Came::Running),
            count(&|came| *came == Came::Unknown),
            count(&|came| *came == Came::Unchanged),
            (bulk.all.len() - met.len()) as u64,
        );
        let Report { matched, changed, already, running, refused, left, unknown, .. } = *report;
        let told = (matched, changed, running, unknown, already + refused, left);
        if told != expected {
            let what = bulk.wish.words().0;
            return Err(format!("operation {name} ({what}) reports {told:?}, and what happened is {expected:?}"));
        }
        Ok(())
    }

    /// What became of the jobs since it was asked for; none of them met the wish twice, and none that was not meant.
    fn met(&self, bulk: &Bulk) -> Outcome<BTreeMap<JobId, Came>> {
        let mut met = BTreeMap::new();
        let acts = self.ledger.acts.get(bulk.since..).unwrap_or_default();
        for Act { id, came, .. } in acts.iter().filter(|act| act.wish == bulk.wish && bulk.all.contains(&act.id)) {
            if met.insert(*id, *came).is_some() {
                return Err(format!("{id} met the wish of operation {} twice", bulk.name));
            }
            let meant = |chosen: &Chosen| match came {
                Came::Changed(from) => *from == chosen.state,
                // One that is not known is left, and not met.
                Came::Unknown => false,
                Came::Running | Came::Unchanged => true,
            };
            if !bulk.chosen.as_ref().is_none_or(meant) {
                return Err(format!("operation {} did not mean {id} as it was ({came:?})", bulk.name));
            }
        }
        Ok(met)
    }

    /// Orphaned operations that are not listed any more are over: without a choice, all of it was done or nothing.
    pub(crate) fn operations_listed(&mut self, listed: &[OperationInfo]) -> Outcome<()> {
        let goes_on = |bulk: &Bulk| {
            let same = |info: &OperationInfo| Some(info.number) == bulk.number && info.action == bulk.wish.words().0;
            bulk.stage != Stage::Orphaned || listed.iter().any(same)
        };
        let over: Vec<Bulk> = self.people.bulks.extract_if(.., |bulk| !goes_on(bulk)).collect();
        for bulk in over {
            let (met, all) = (self.met(&bulk)?.len(), bulk.all.len());
            if met > 0 && (!bulk.accepting || bulk.chosen.is_none() && met != all) {
                return Err(format!("{met} of {all} jobs met the wish of operation {} that is over", bulk.name));
            }
        }
        Ok(())
    }

    /// In the end nothing of any operation is stored, nor of any job but how far those have come that may be started
    /// again: the suspended ones.
    pub(crate) fn check_operations(&mut self) -> Outcome<()> {
        use windlass::store::{SHARED, Store};
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let left = engine.store().notes("", 1000).map_err(|error| error.to_string())?;
        let waits = |key: &str| {
            let id = key.strip_prefix("checkpoint/").and_then(|rest| rest.strip_suffix('/')?.parse().ok());
            id.and_then(|id| self.ledger.jobs.get(&id)).is_some_and(|job| !job.state.is_end())
        };
        let kept = |key: &str| waits(key) || key.starts_with(SHARED);
        match left.iter().find(|(key, _)| !kept(key)) {
            Some((key, _)) => Err(format!("liveness: the note {key} is left")),
            None => Ok(()),
        }
    }
}
