//! Lots on their way from here: jobs that are claimed for another server, until that has them or has refused them.
//!
//! A lot is stored beside the claims of its jobs, in the transaction that claims them, and dropped in the one that
//! settles the last of them. So after a crash its claims are not given back: the other server may have the jobs, and is
//! asked about the very same lot. This file owns what is stored of a lot and who waits for it. It must not send
//! anything: the runner does.

use super::Engine;
use super::effects::Effects;
use super::event::{Answer, Departed, Departure, Wanted};
use super::turn;
use super::turn::Progress;
use crate::audit::{Audited, Stage, Verb, What};
use crate::error::{Failure, Kind};
use crate::lot::{self, Departing, LotNo, Manner, Travelled};
use crate::sabotage::{self, Sabotage};
use crate::store::{
    Amendment, AttemptError, Durability, Held, JobInfo, MOVING, Order, Past, Settlement, Store, StoreError, Unheld,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use windlass_core::job::{JobId, Origin, Record};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Forward, Host, Policy, Service};
use windlass_core::time::Time;

/// All that are on their way.
#[derive(Debug, Default)]
pub(super) struct Lots {
    open: HashMap<LotNo, Open>,
    errands: HashMap<u64, Errand>,
    last_errand: u64,
}

#[derive(Debug)]
struct Open {
    lot: Arc<Departing>,
    /// Jobs whose end is not on disk.
    left: u32,
    /// Somebody waits for it.
    errand: Option<u64>,
}

/// A person's wish, and the lots that it led to.
#[derive(Debug)]
struct Errand {
    lots: u32,
    report: Departed,
    by: String,
    chosen: String,
    answer: Answer<Departed>,
}

/// What a turn learnt of lots; it holds when the turn is on disk.
#[derive(Debug, Default)]
pub(super) struct LotNews {
    packed: Vec<LotNo>,
    ends: Vec<(LotNo, u16, Came)>,
    /// Jobs that were suspended before they were held, and are given back.
    suspend: Vec<JobId>,
}

#[derive(Debug)]
enum Came {
    Moved,
    /// It stays here, with its own words.
    Failed,
    /// It is back.
    Refused(String),
}

impl Lots {
    /// The turn is on disk: tells who waits, and names the lots that the other server may forget.
    pub(super) fn keep(&mut self, news: LotNews, now: Time, effects: &mut Effects) {
        for (number, count, came) in news.ends {
            let Some(open) = self.open.get_mut(&number) else { continue };
            open.left -= u32::from(count);
            let report = open.errand.and_then(|errand| self.errands.get_mut(&errand)).map(|errand| &mut errand.report);
            let taken = !matches!(came, Came::Refused(_));
            match (report, came) {
                (Some(report), Came::Moved) => report.moved += u64::from(count),
                (Some(report), Came::Failed) => report.failed += u64::from(count),
                (Some(report), Came::Refused(why)) => report.refused = Some(why),
                (None, _) => {}
            }
            if open.left > 0 {
                continue;
            }
            let Some(over) = self.open.remove(&number) else { continue };
            effects.confirms.extend(taken.then_some(over.lot));
            let Some(errand) = over.errand else { continue };
            if self.errands.get_mut(&errand).is_some_and(|errand| {
                errand.lots -= 1;
                errand.lots == 0
            }) && let Some(Errand { report, by, chosen, answer, .. }) = self.errands.remove(&errand)
            {
                let verb = Verb { word: "move".into(), priority: None };
                // Numbers and words only: there is nothing in it that JSON lacks.
                let counts = serde_json::to_value(&report).unwrap_or_default();
                let what = What::Operation { verb, number: None, selector: Some(chosen), stage: Stage::Done, counts };
                effects.audit.push(Audited { at: now, by, what });
                effects.answers.add(answer, Ok(report));
            }
        }
    }

    /// The turn never was, and so were the lots that it packed.
    pub(super) fn drop_packed(&mut self, news: &LotNews, why: &Failure) {
        for number in &news.packed {
            let errand = self.open.remove(number).and_then(|open| open.errand);
            if let Some(Errand { answer, .. }) = errand.and_then(|errand| self.errands.remove(&errand)) {
                answer.give(Err(why.clone()));
            }
        }
    }
}

impl LotNews {
    /// One stretch of a lot's jobs has ended.
    pub(super) fn ended(&mut self, lot: &Departing, count: u16, outcome: &Outcome) {
        let came = match outcome {
            Outcome::Moved { .. } => Came::Moved,
            Outcome::NotMoved { why } => Came::Refused(why.clone()),
            Outcome::Succeeded { .. }
            | Outcome::Snoozed { .. }
            | Outcome::RetryLater { .. }
            | Outcome::FailedForGood { .. }
            | Outcome::Failed { .. }
            | Outcome::Crashed { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Interrupted
            | Outcome::Lost
            | Outcome::Cancelled => Came::Failed,
        };
        self.ends.push((lot.number, count, came));
    }

    /// What becomes of jobs that the other server refused: they are what they were before they were held.
    pub(super) fn back(&mut self, lot: &Departing, held: &Held, verdict: Verdict) -> Verdict {
        let past = held.ids().next().and_then(|id| Some((id, &lot.pasts.get(&id)?.past)));
        match past {
            Some((_, Past { state: State::Scheduled | State::Retrying, due: Some(at), .. })) => {
                Verdict::Snooze { at: *at }
            }
            Some((id, Past { state: State::Suspended, .. })) => {
                self.suspend.push(id);
                verdict
            }
            Some(_) | None => verdict,
        }
    }
}

impl<S: Store> Engine<S> {
    /// Lays claimed jobs into lots and stores what must be known of these after a crash; one lot for each claim given,
    /// neighbours mostly share theirs.
    pub(super) fn pack(
        &mut self,
        held: &[Held],
        to: &Forward,
        manner: Manner,
        mut pasts: HashMap<JobId, Travelled>,
        errand: Option<u64>,
        progress: &mut Progress,
    ) -> Result<Vec<Arc<Departing>>, StoreError> {
        // What is sent must be known to be on its way after a power cut, too.
        progress.needs(Durability::Full);
        self.add_records(held, &mut pasts)?;
        let mut lots = Vec::with_capacity(held.len());
        let mut rest = held;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |held: &&Held| {
                let first = bytes == 0;
                bytes += held.bytes(0, held.count);
                first || bytes <= lot::BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (some, behind) = rest.split_at(count);
            rest = behind;
            // Each opening of a store has an epoch of its own, so no two lots share a number whatever chance does.
            let number = LotNo(u128::from(self.store.epoch()) << 64 | u128::from(self.jitter.next()));
            let ids = some.iter().flat_map(Held::ids);
            let own =
                if pasts.is_empty() { HashMap::new() } else { ids.filter_map(|id| pasts.remove_entry(&id)).collect() };
            let lot = Arc::new(Departing { number, to: to.clone(), manner, pasts: own, resumed: false });
            self.store.note(&key(number), Some(&Kept::of(&lot, some).to_bytes()))?;
            let left = some.iter().map(|held| u32::from(held.count)).sum();
            self.lots.open.insert(number, Open { lot: Arc::clone(&lot), left, errand });
            progress.lots.packed.push(number);
            lots.extend(std::iter::repeat_n(lot, count));
        }
        Ok(lots)
    }

    /// Jobs that were begun before take what is known of that along.
    fn add_records(&mut self, held: &[Held], pasts: &mut HashMap<JobId, Travelled>) -> Result<(), StoreError> {
        for held in held.iter().filter(|held| held.record != Record::default()) {
            for id in held.ids() {
                let info = self.store.jobs(&[id])?.pop().flatten();
                let errors = info.map(|info| info.errors).unwrap_or_default();
                let checkpoint = self.checkpoint_for(held)?;
                let ready = || Past { state: State::Ready, due: None, record: held.record, errors: Vec::new() };
                let known = pasts.remove(&id).map_or_else(ready, |known| known.past);
                let past = Past { record: held.record, errors, ..known };
                pasts.insert(id, Travelled { past, checkpoint });
            }
        }
        Ok(())
    }

    /// The end of every job that this turn settles of a lot is written; a lot of which nothing is left goes with it.
    pub(super) fn close_lots(&mut self, now: Time, progress: &mut Progress) -> Result<(), StoreError> {
        let mut ended: HashMap<LotNo, u32> = HashMap::new();
        progress
            .lots
            .ends
            .iter()
            .for_each(|(number, count, _)| *ended.entry(*number).or_default() += u32::from(*count));
        for (number, count) in ended {
            if self.lots.open.get(&number).is_none_or(|open| open.left == count) {
                self.store.note(&key(number), None)?;
            }
        }
        if !progress.lots.suspend.is_empty() {
            self.store.amend(&progress.lots.suspend, Amendment::Suspend, now)?;
        }
        Ok(())
    }

    /// A person moves jobs: takes some of them out of their queues and has them sent; answered when it is known of each
    /// what became of it.
    pub(super) fn depart(
        &mut self,
        departure: Departure,
        answer: Answer<Departed>,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if let Some(failure) = self.departs_not() {
            effects.answers.add(answer, Err(failure));
            return Ok(());
        }
        let Departure { wanted, to, by, chosen } = departure;
        let mut report = Departed::default();
        let (held, pasts) = match wanted {
            Wanted::Ready(queue) => (self.take_ready(&queue, &mut report, now, effects)?, HashMap::new()),
            Wanted::Ids(ids) => self.hold_named(&ids, &mut report, now)?,
        };
        progress.needs(Durability::Full);
        report.held = held.iter().map(|held| u64::from(held.count)).sum();
        if held.is_empty() {
            effects.answers.add(answer, Ok(report));
            return Ok(());
        }
        self.lots.last_errand += 1;
        let errand = self.lots.last_errand;
        let lots = self.pack(&held, &to, Manner::Move, pasts, Some(errand), progress)?;
        let mut numbers: Vec<LotNo> = lots.iter().map(|lot| lot.number).collect();
        numbers.dedup();
        self.lots.errands.insert(errand, Errand { lots: numbers.len() as u32, report, by, chosen, answer });
        let policy = Arc::new(Policy::new("move", Service::Forward(to)));
        let (claim, departed) = self.flights.depart_unbooked(&policy, held, now);
        for ((flight, held), lot) in departed.into_iter().zip(lots) {
            progress.departed.push(flight);
            self.flights.belongs_to(flight, &lot);
            let start = self.start(flight, claim, held, Arc::clone(&policy), None)?;
            effects.starts.push(crate::runner::Start { lot: Some(lot), ..start });
        }
        Ok(())
    }

    /// Why nothing leaves this server now.
    fn departs_not(&self) -> Option<Failure> {
        if self.full_until.is_some() {
            return Some(self.dropped_before().failure());
        }
        let stops = self.stopping != super::Stopping::No;
        stops.then(|| Failure::new(Kind::TryLater, "the server is stopping").hint("ask again: another may take over"))
    }

    /// Ready jobs of a queue, from the heads of its lanes. Jobs of runs are given back, and counted.
    fn take_ready(
        &mut self,
        queue: &str,
        report: &mut Departed,
        now: Time,
        effects: &mut Effects,
    ) -> Result<Vec<Held>, StoreError> {
        let number = self.queues.iter().find(|(_, known)| known.name.as_str() == queue).map(|(number, _)| number);
        let Some(number) = number else { return Ok(Vec::new()) };
        let (mut taken, mut jobs, mut bytes) = (Vec::new(), 0, 0);
        for lane in self.scheduler.lanes(number) {
            if jobs >= Forward::JOBS || bytes >= lot::BYTES {
                break;
            }
            let held = self.store.claim(&[Order { lane, most: Forward::JOBS - jobs }], now)?;
            jobs += held.iter().map(|held| u32::from(held.count)).sum::<u32>();
            bytes += held.iter().map(|held| held.bytes(0, held.count)).sum::<u64>();
            taken.extend(held);
        }
        let (of_runs, held): (Vec<Held>, Vec<Held>) = taken.into_iter().partition(|held| held.run.is_some());
        if !of_runs.is_empty() {
            report.leave(OF_RUN, of_runs.iter().map(|held| u64::from(held.count)).sum());
            let word = Outcome::Interrupted.word();
            let back = |held| Settlement { held, verdict: Verdict::Return, outcome: word, started: now, finished: now };
            let back: Vec<Settlement> = of_runs.into_iter().map(back).collect();
            self.store.settle(&back, &[], now)?;
            let entries = back.iter().map(|one| turn::entry(&self.queues, &self.runs, one, Default::default()));
            effects.archive.extend(entries);
        }
        Ok(held)
    }

    /// Jobs that were named, in whatever state they wait.
    fn hold_named(
        &mut self,
        ids: &[JobId],
        report: &mut Departed,
        now: Time,
    ) -> Result<(Vec<Held>, HashMap<JobId, Travelled>), StoreError> {
        let infos = self.store.jobs(ids)?;
        let (mut all, mut pasts) = (Vec::new(), HashMap::new());
        for ((id, held), info) in ids.iter().zip(self.store.hold(ids, now)?).zip(infos) {
            match held {
                Ok(held) => {
                    pasts.extend(info.and_then(|info| past_of(&info)).map(|travelled| (*id, travelled)));
                    all.push(held);
                }
                Err(why) => report.leave(words(why), 1),
            }
        }
        Ok((all, pasts))
    }

    /// Puts in flight again what was on its way when the last server ended.
    pub(super) fn resume_lots(&mut self, lots: Travelling, now: Time) -> Result<(), StoreError> {
        if sabotage::on(Sabotage::LotGivenBack) {
            return Ok(());
        }
        for (number, kept) in lots.0 {
            let mut held = Vec::new();
            for (id, start) in kept.starts() {
                held.extend(self.store.held(id)?.filter(|held| held.start() == start));
            }
            if held.is_empty() {
                self.store.note(&key(number), None)?;
                continue;
            }
            let lot = Arc::new(kept.departing(number));
            let left = held.iter().map(|held| u32::from(held.count)).sum();
            self.lots.open.insert(number, Open { lot: Arc::clone(&lot), left, errand: None });
            let policy = Arc::new(Policy::new("move", Service::Forward(lot.to.clone())));
            let (claim, departed) = self.flights.depart_unbooked(&policy, held, now);
            for (flight, held) in departed {
                self.flights.belongs_to(flight, &lot);
                let start = self.start(flight, claim, held, Arc::clone(&policy), None)?;
                self.resumed.push(crate::runner::Start { lot: Some(Arc::clone(&lot)), ..start });
            }
        }
        Ok(())
    }
}

/// Why a job of a run is left where it is.
const OF_RUN: &str = "belong to a run, and stay with it";

fn words(why: Unheld) -> &'static str {
    match why {
        Unheld::Unknown => "are not here any more",
        Unheld::Running => "run",
        Unheld::Ended(_) => "have ended",
        Unheld::OfRun(_) => OF_RUN,
        Unheld::Waits => "wait for other jobs",
        Unheld::Unable => "cannot be taken out of this store",
    }
}

/// What a job that was held had waited for; nothing where it was ready.
fn past_of(info: &JobInfo) -> Option<Travelled> {
    let due = info.not_before.filter(|_| info.state != State::Suspended);
    let past = Past { state: info.state, due, record: info.record, errors: info.errors.clone() };
    (info.state != State::Ready).then_some(Travelled { past, checkpoint: String::new() })
}

/// Lots that were on their way when the last server ended.
#[derive(Debug, Default)]
pub(super) struct Travelling(BTreeMap<LotNo, Kept>);

impl Travelling {
    pub(super) fn read(store: &mut impl Store) -> Result<Travelling, StoreError> {
        let mut lots = BTreeMap::new();
        for (key, value) in store.notes(MOVING, usize::MAX)? {
            let bad = || StoreError::Corrupt(format!("the note {key} is no lot"));
            let number = key[MOVING.len()..].parse().map_err(|_| bad())?;
            lots.insert(number, serde_json::from_slice(&value).map_err(|_| bad())?);
        }
        Ok(Travelling(lots))
    }

    /// The starts of all of them.
    pub(super) fn starts(&self) -> HashSet<(JobId, u32)> {
        if sabotage::on(Sabotage::LotGivenBack) {
            return HashSet::new();
        }
        self.0.values().flat_map(Kept::starts).collect()
    }
}

fn key(number: LotNo) -> String {
    format!("{MOVING}{number}")
}

/// What is stored of a lot.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    tls: bool,
    host: String,
    port: u16,
    inside: bool,
    base: String,
    token_file: Option<String>,
    #[serde(default)]
    address_file: Option<String>,
    manner: Manner,
    jobs: Vec<Stretch>,
    pasts: Vec<KeptPast>,
}

/// Jobs of one origin that were claimed together, each offset as the distance from the one before.
#[derive(Debug, Serialize, Deserialize)]
struct Stretch {
    origin: u64,
    start: u32,
    steps: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptPast {
    id: String,
    state: String,
    due: Option<i64>,
    record: (u32, u32, u32),
    errors: Vec<(u32, i64, String)>,
    checkpoint: String,
}

impl Kept {
    fn of(lot: &Departing, held: &[Held]) -> Kept {
        let Forward { host, base, token_file, address_file } = lot.to.clone();
        let stretch = |held: &Held| {
            let mut before = 0;
            let steps = held.ids().map(|id| id.offset - std::mem::replace(&mut before, id.offset)).collect();
            Stretch { origin: held.jobs.origin().bits(), start: held.start(), steps }
        };
        let past = |(id, Travelled { past, checkpoint }): (&JobId, &Travelled)| KeptPast {
            id: id.to_string(),
            state: past.state.word().to_owned(),
            due: past.due.map(Time::as_micros),
            record: (past.record.starts, past.record.failures, past.record.suspicions),
            errors: past.errors.iter().map(|e| (e.start, e.at.as_micros(), e.text.clone())).collect(),
            checkpoint: checkpoint.clone(),
        };
        Kept {
            tls: host.tls,
            host: host.name,
            port: host.port,
            inside: host.inside,
            base,
            token_file,
            address_file,
            manner: lot.manner,
            jobs: held.iter().map(stretch).collect(),
            pasts: lot.pasts.iter().map(past).collect(),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        // Text and numbers only: there is nothing in it that JSON lacks.
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn starts(&self) -> impl Iterator<Item = (JobId, u32)> + '_ {
        self.jobs.iter().flat_map(|stretch| {
            let origin = Origin::from_random(stretch.origin);
            let offsets = stretch.steps.iter().scan(0u64, |offset, step| {
                *offset = offset.wrapping_add(*step);
                Some(*offset)
            });
            offsets.map(move |offset| (JobId { origin, offset }, stretch.start))
        })
    }

    fn departing(self, number: LotNo) -> Departing {
        let Kept { tls, host: name, port, inside, base, token_file, address_file, manner, pasts, .. } = self;
        let to = Forward { host: Host { tls, name, port, inside }, base, token_file, address_file };
        let pasts = pasts.into_iter().filter_map(KeptPast::read).collect();
        Departing { number, to, manner, pasts, resumed: true }
    }
}

impl KeptPast {
    fn read(self) -> Option<(JobId, Travelled)> {
        let (starts, failures, suspicions) = self.record;
        let error = |(start, at, text)| AttemptError { start, at: Time(at), text };
        let past = Past {
            state: self.state.parse().ok()?,
            due: self.due.map(Time),
            record: Record { starts, failures, suspicions },
            errors: self.errors.into_iter().map(error).collect(),
        };
        Some((self.id.parse().ok()?, Travelled { past, checkpoint: self.checkpoint }))
    }
}
