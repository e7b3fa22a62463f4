//! Jobs that the inbox brought and the database does not take: set aside, so that all else of the inbox goes on.
//!
//! They were accepted, so they are kept: as notes, stored in the transaction that says that the inbox was read, each
//! with the database's words. They are tried again, less and less often, and at once when somebody asks. This file owns
//! what memory knows of them. It must not decide what a database refuses: the store says so.

use super::effects::Effects;
use super::event::AsideInfo;
use super::turn::Progress;
use super::{Engine, Stopping, unique};
use crate::store::chunk::Chunk;
use crate::store::{ASIDE, Durability, Lot, NewJobs, Refused, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::job::{JobId, Priority};
use windlass_core::time::Time;

/// How long they wait for another try at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_secs(5);
const PAUSE_MOST: Duration = Duration::from_secs(60);
/// More than these are not set aside: then the inbox waits.
const JOBS_MOST: usize = 10_000;
const BYTES_MOST: usize = 16 << 20;

/// All that is set aside.
#[derive(Debug, Default)]
pub(super) struct Aside {
    all: BTreeMap<String, Kept>,
    again_at: Option<Time>,
    pause: Duration,
    /// The part that was tried last of this round.
    tried: Option<String>,
    /// What the database would take: it comes in with the next turn.
    ready: Vec<Ready>,
    /// The open turn takes some of it in.
    comes_in: bool,
    /// What the open turn did to the notes.
    news: Vec<(String, Option<Kept>)>,
}

/// What memory knows of a part.
#[derive(Debug)]
struct Kept {
    queue: String,
    ids: Vec<JobId>,
    bytes: usize,
    why: String,
    since: Time,
}

/// A part that was set aside before: what of it comes in, and what is still refused.
#[derive(Debug)]
struct Ready {
    key: String,
    lot: Lot,
    since: Time,
}

/// The head of a note; the bytes of the chunk follow.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    queue: String,
    priority: i64,
    run: Option<String>,
    not_before: Option<i64>,
    why: String,
    since: i64,
}

impl Aside {
    pub(super) fn load(&mut self, store: &mut impl Store) -> Result<(), StoreError> {
        self.all.clear();
        self.drop_turn();
        self.ready.clear();
        for (key, value) in store.notes(ASIDE, usize::MAX)? {
            let (refused, since) = decode(&key, &value)?;
            self.all.insert(key, Kept::of(&refused, since));
        }
        if !self.all.is_empty() && self.again_at.is_none() {
            self.try_again();
        }
        Ok(())
    }

    /// Somebody wants all of it to be tried now.
    pub(super) fn try_again(&mut self) {
        (self.again_at, self.tried, self.pause) = (Some(Time::ZERO), None, PAUSE_FIRST);
    }

    /// When some of it is tried next.
    pub(super) fn next(&self) -> Option<Time> {
        self.again_at.filter(|_| !self.all.is_empty())
    }

    /// Whether there is room for these as well.
    fn has_room_for(&self, refused: &[Refused]) -> bool {
        let (jobs, bytes) =
            self.all.values().fold((0, 0), |(jobs, bytes), kept| (jobs + kept.ids.len(), bytes + kept.bytes));
        let more = refused.iter().map(|refused| refused.jobs.jobs.len()).sum::<usize>();
        let larger = refused.iter().map(|refused| refused.jobs.jobs.as_bytes().len()).sum::<usize>();
        jobs + more <= JOBS_MOST && bytes + larger <= BYTES_MOST
    }

    pub(super) fn keep_turn(&mut self, now: Time) {
        self.comes_in = false;
        for (key, kept) in std::mem::take(&mut self.news) {
            match kept {
                Some(kept) => {
                    self.all.insert(key, kept);
                    self.pause = PAUSE_FIRST;
                    self.again_at.get_or_insert(now.after(PAUSE_FIRST));
                }
                None => drop(self.all.remove(&key)),
            }
        }
        if self.all.is_empty() {
            (self.again_at, self.tried) = (None, None);
        }
    }

    /// The turn never was. Tells whether it was about to take some of it in.
    pub(super) fn drop_turn(&mut self) -> bool {
        self.news.clear();
        std::mem::take(&mut self.comes_in)
    }

    /// The round is over, or cannot go on now.
    fn put_off(&mut self, now: Time) {
        self.tried = None;
        let pause = self.pause.max(PAUSE_FIRST);
        self.again_at = Some(now.after(pause));
        self.pause = (pause * 2).min(PAUSE_MOST);
    }

    /// Due, also where the clock was set back meanwhile.
    fn is_due(&self, now: Time) -> bool {
        self.next().is_some_and(|at| at <= now || at > now.after(PAUSE_MOST))
    }

    pub(super) fn infos(&self) -> Vec<AsideInfo> {
        let info = |kept: &Kept| AsideInfo {
            queue: kept.queue.clone(),
            ids: kept.ids.clone(),
            why: kept.why.clone(),
            since: kept.since,
        };
        self.all.values().map(info).collect()
    }
}

impl Kept {
    fn of(refused: &Refused, since: Time) -> Kept {
        let Refused { jobs: NewJobs { queue, jobs, .. }, why } = refused;
        Kept {
            queue: queue.to_string(),
            ids: (0..jobs.len()).map(|index| jobs.id(index)).collect(),
            bytes: jobs.as_bytes().len(),
            why: why.clone(),
            since,
        }
    }
}

impl<S: Store> Engine<S> {
    /// Finds out what of a lot the database does not take, and leaves the lot without that; false where that cannot be
    /// found, or where there is no room for more.
    pub(super) fn part(&mut self, lot: &mut Lot) -> Result<bool, StoreError> {
        let refused = match self.store.refused(lot, self.now) {
            Ok(refused) if refused.is_empty() || !self.aside.has_room_for(&refused) => return Ok(false),
            Err(StoreError::Away(_) | StoreError::Busy(_) | StoreError::Full(_) | StoreError::Refused(_)) => {
                return Ok(false);
            }
            other => other?,
        };
        leave(lot, &refused);
        lot.aside.extend(refused);
        Ok(true)
    }

    /// Stores what of a lot is set aside, in the turn that takes in the rest.
    pub(super) fn set_aside(
        &mut self,
        refused: &[Refused],
        since: Time,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        for refused in refused {
            let key = key_of(refused);
            self.store.note(&key, Some(&encode(refused, since)))?;
            let Refused { jobs: NewJobs { queue, jobs, .. }, why } = refused;
            let (count, first) = (jobs.len(), jobs.id(0));
            effects.notes.push(format!(
                "the database refuses what the inbox brought for queue `{queue}`: {count} of its jobs, {first} the \
                 first, are set aside and tried again, at once by `windlass nudge`: {why}"
            ));
            self.aside.news.push((key, Some(Kept::of(refused, since))));
        }
        Ok(())
    }

    /// Between two turns: asks of the next part whether the database takes by now what it refused. One at a time,
    /// because that may take long.
    pub(super) fn try_what_is_aside(&mut self, now: Time) -> Result<(), StoreError> {
        if !self.aside.is_due(now) || self.full_until.is_some() || self.stopping != Stopping::No {
            return Ok(());
        }
        let from = self.aside.tried.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.aside.all.range((from, Bound::Unbounded)).next();
        let Some(key) = next.map(|(key, _): (&String, _)| key.clone()) else {
            self.aside.put_off(now);
            return Ok(());
        };
        match self.try_part(&key, now) {
            Err(StoreError::Away(_) | StoreError::Busy(_) | StoreError::Full(_) | StoreError::Refused(_)) => {
                self.aside.put_off(now);
            }
            tried => {
                tried?;
                self.aside.tried = Some(key);
                self.turn_again = true;
            }
        }
        Ok(())
    }

    fn try_part(&mut self, key: &str, now: Time) -> Result<(), StoreError> {
        let found = self.store.notes(key, 1)?.pop();
        let Some((_, value)) = found.filter(|(found, _)| found == key) else {
            self.aside.all.remove(key);
            return Ok(());
        };
        let (Refused { jobs, .. }, since) = decode(key, &value)?;
        let mut lot = Lot { jobs: vec![jobs], ..Lot::default() };
        lot.aside = self.store.refused(&lot, now)?;
        let refused = std::mem::take(&mut lot.aside);
        leave(&mut lot, &refused);
        if let (true, Some(kept), Some(refused)) = (lot.jobs.is_empty(), self.aside.all.get_mut(key), refused.first()) {
            kept.why.clone_from(&refused.why);
            return Ok(());
        }
        lot.aside = refused;
        self.aside.ready.push(Ready { key: key.to_owned(), lot, since });
        Ok(())
    }

    /// Takes in what was set aside and is not refused any more.
    pub(super) fn admit_what_was_aside(
        &mut self,
        now: Time,
        progress: &mut Progress,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        for Ready { key, mut lot, since } in std::mem::take(&mut self.aside.ready) {
            self.aside.comes_in = true;
            unique::stamp(&mut lot, &self.scheduler);
            progress.needs(Durability::Full);
            self.store.admit(&lot, now)?;
            self.store.note(&key, None)?;
            self.aside.news.push((key, None));
            let queue = lot.jobs.first().map(|new| new.queue.to_string()).unwrap_or_default();
            effects.notes.push(format!("{} jobs of queue `{queue}` that were set aside came in", lot.len()));
            self.set_aside(&lot.aside, since, effects)?;
        }
        Ok(())
    }

    /// What was to come in did not: it is tried again as if it had been refused.
    pub(super) fn put_aside_off(&mut self) {
        self.aside.drop_turn();
        self.aside.put_off(self.now);
    }
}

/// Leaves a lot without what is refused of it.
fn leave(lot: &mut Lot, refused: &[Refused]) {
    let gone: std::collections::HashSet<JobId> = refused
        .iter()
        .flat_map(|refused| (0..refused.jobs.jobs.len()).map(|index| refused.jobs.jobs.id(index)))
        .collect();
    for new in &mut lot.jobs {
        let stays = |index: usize| !gone.contains(&new.jobs.id(index));
        if !(0..new.jobs.len()).all(stays) {
            new.jobs = Arc::new(new.jobs.rebuilt(new.jobs.particulars().cloned(), stays));
        }
    }
    lot.jobs.retain(|new| !new.jobs.is_empty());
}

fn key_of(refused: &Refused) -> String {
    format!("{ASIDE}{}", refused.jobs.jobs.id(0))
}

fn encode(refused: &Refused, since: Time) -> Vec<u8> {
    let Refused { jobs: NewJobs { queue, priority, run, not_before, jobs }, why } = refused;
    let head = Head {
        queue: queue.to_string(),
        priority: i64::from(priority.value()),
        run: run.map(|run| run.to_string()),
        not_before: not_before.map(Time::as_micros),
        why: why.clone(),
        since: since.as_micros(),
    };
    // Text and numbers only: there is nothing in it that JSON lacks.
    let head = serde_json::to_vec(&head).unwrap_or_default();
    [&(head.len() as u32).to_le_bytes()[..], &head, jobs.as_bytes()].concat()
}

fn decode(key: &str, value: &[u8]) -> Result<(Refused, Time), StoreError> {
    let bad = || StoreError::Corrupt(format!("the note {key} cannot be read"));
    let (length, rest) = value.split_first_chunk::<4>().ok_or_else(bad)?;
    let (head, chunk) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(bad)?;
    let head: Head = serde_json::from_slice(head).map_err(|_| bad())?;
    let jobs = NewJobs {
        queue: windlass_core::job::QueueName::new(head.queue.as_bytes()).map_err(|_| bad())?,
        priority: Priority::new(head.priority).ok_or_else(bad)?,
        run: head.run.map(|run| run.parse().map_err(|_| bad())).transpose()?,
        not_before: head.not_before.map(Time),
        jobs: Arc::new(Chunk::from_bytes(chunk.to_vec()).map_err(|_| bad())?),
    };
    Ok((Refused { jobs, why: head.why }, Time(head.since)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::chunk::ChunkBuilder;
    use windlass_core::job::{Origin, QueueName, RunId};

    fn refused(jobs: u64) -> Refused {
        let mut builder = ChunkBuilder::new(Origin::from_random(7));
        (0..jobs).for_each(|n| builder.push(n, format!("job {n}").as_bytes()));
        let jobs = NewJobs {
            queue: QueueName::new(b"mail").unwrap(),
            priority: Priority::new(-3).unwrap(),
            run: Some(RunId::first(Origin::from_random(9))),
            not_before: Some(Time(99)),
            jobs: Arc::new(builder.finish()),
        };
        Refused { jobs, why: "no".into() }
    }

    #[test]
    fn what_is_set_aside_reads_back() {
        let (one, key) = (refused(3), "aside/x");
        let bytes = encode(&one, Time(5));
        let (read, since) = decode(key, &bytes).unwrap();
        assert_eq!((read.why.as_str(), since, read.jobs.run), ("no", Time(5), one.jobs.run));
        assert_eq!(
            (&read.jobs.queue, read.jobs.not_before, &read.jobs.jobs),
            (&one.jobs.queue, Some(Time(99)), &one.jobs.jobs)
        );
        for end in 0..bytes.len() {
            assert!(decode(key, &bytes[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_lot_is_left_without_what_is_refused_of_it() {
        let whole = refused(4).jobs;
        let some = NewJobs { jobs: Arc::new(whole.jobs.rebuilt(None, |index| index % 2 == 0)), ..whole.clone() };
        let mut lot = Lot { jobs: vec![whole.clone()], ..Lot::default() };
        leave(&mut lot, &[Refused { jobs: some, why: String::new() }]);
        assert_eq!((lot.jobs.len(), lot.jobs[0].jobs.len(), lot.jobs[0].jobs.id(0).offset), (1, 2, 1));
        leave(&mut lot, &[Refused { jobs: whole, why: String::new() }]);
        assert!(lot.jobs.is_empty());
    }
}
