//! Bulk operations: the same wish for many jobs, stored, and done a slice at a time.
//!
//! A small set is dealt with in one turn. A large one is staged first, slice by slice, and nothing of it happens before
//! it is accepted as a whole; then each turn does one slice, in one transaction with the operation's own progress, so
//! that a restart goes on exactly where the last commit stood. This file owns what is stored of an operation and its
//! account. It must not search for jobs: whoever asks has done that.

use super::checkpoint;
use super::event::{Answer, NewOperation, Report, Wish};
use crate::audit::{Audited, Stage, Verb, What};
use crate::error::{Failure, Kind};
use crate::store::chunk::{read_varint, write_varint};
use crate::store::{Amended, Amendment, Deleted, JobInfo, Settlement, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use windlass_core::job::{JobId, Origin, Priority};
use windlass_core::life_cycle::State;
use windlass_core::selector::Selector;
use windlass_core::time::Time;

/// So many jobs are changed in one turn at most.
pub const SLICE: usize = 1000;

const HEADERS: &str = "operation/";
const SLICES: &str = "slice/";

/// All operations that are not over.
#[derive(Debug, Default)]
pub struct Operations {
    by_number: BTreeMap<u64, Operation>,
    last: u64,
    /// Slices may be stored that belong to no operation any more.
    orphans: bool,
    /// Who was about to hear that something was accepted in a turn that was dropped.
    refused: Vec<Answer<Report>>,
}

/// One of them.
#[derive(Debug)]
struct Operation {
    kept: Kept,
    selector: Option<Selector>,
    /// It was accepted; before that it is only being staged.
    acting: bool,
    /// Its last slice was done in the open turn: it is told when that is committed, and goes on if it is dropped.
    over: bool,
    answer: Option<Answer<Report>>,
}

/// What is stored of an accepted operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    action: String,
    priority: Option<i8>,
    selector: Option<String>,
    /// The moment at which its ages are meant, in microseconds.
    asked: i64,
    #[serde(default)]
    by: String,
    /// Slices that were staged, and the next one to do.
    slices: u64,
    next: u64,
    report: Report,
}

/// What one slice led to, besides what the store has done.
#[derive(Debug, Default)]
pub(super) struct SliceDone {
    /// Jobs that run and are to be stopped once the turn is committed.
    pub(super) cancelled: Vec<JobId>,
    /// Jobs whose state has changed.
    pub(super) amended: Vec<(JobId, State)>,
    /// Last lines of deleted jobs.
    pub(super) deleted: Vec<Settlement>,
    pub(super) audit: Vec<Audited>,
    /// The operation is over.
    pub(super) over: bool,
    /// More slices wait.
    pub(super) more: bool,
}

impl Operations {
    /// Takes over what a restart, or a dropped turn, left: accepted operations as they are stored. Slices that nobody
    /// will accept any more go.
    pub(super) fn load(&mut self, store: &mut impl Store) -> Result<(), StoreError> {
        self.by_number.retain(|_, operation| !operation.acting || operation.answer.is_some());
        self.orphans = true;
        let mut stored = Vec::new();
        for (key, value) in store.notes(HEADERS, usize::MAX)? {
            let bad = || StoreError::Corrupt(format!("the note {key} is not an operation"));
            let number = u64::from_str_radix(&key[HEADERS.len()..], 16).map_err(|_| bad())?;
            let kept: Kept = serde_json::from_slice(&value).map_err(|_| bad())?;
            let selector = kept.selector.as_deref().map(Selector::parse).transpose().map_err(|_| bad())?;
            let answer = self.by_number.remove(&number).and_then(|known| known.answer);
            self.by_number.insert(number, Operation { kept, selector, acting: true, over: false, answer });
            self.last = self.last.max(number);
            stored.push(number);
        }
        // An operation whose acceptance was dropped with its turn never was.
        let dropped = self.by_number.extract_if(.., |number, operation| operation.acting && !stored.contains(number));
        self.refused.extend(dropped.filter_map(|(_, operation)| operation.answer));
        Ok(())
    }

    /// Those whose acceptance was dropped with its turn are to be told.
    pub(super) fn take_refused(&mut self) -> Vec<Answer<Report>> {
        std::mem::take(&mut self.refused)
    }

    /// The turn is committed: what it ended can be told.
    pub(super) fn take_over(&mut self) -> Vec<(u64, Option<Answer<Report>>, Report)> {
        let over = self.by_number.extract_if(.., |_, operation| operation.over);
        over.map(|(number, operation)| (number, operation.answer, operation.kept.report)).collect()
    }

    /// Drops staged slices of operations that no longer are; bounded, and asked again while it did something.
    pub(super) fn drop_orphans(&mut self, store: &mut impl Store) -> Result<bool, StoreError> {
        if !self.orphans {
            return Ok(false);
        }
        self.orphans = false;
        // The lowest number comes first; what is behind an operation that lives is looked at when that is over.
        let Some((key, _)) = store.notes(SLICES, 1)?.into_iter().next() else { return Ok(false) };
        let number = key.get(SLICES.len()..SLICES.len() + 16).and_then(|text| u64::from_str_radix(text, 16).ok());
        if number.is_some_and(|number| self.by_number.contains_key(&number)) {
            return Ok(false);
        }
        let prefix = key.get(..SLICES.len() + 16).unwrap_or(&key).to_owned();
        for (key, _) in store.notes(&prefix, SLICE)? {
            store.note(&key, None)?;
        }
        self.orphans = true;
        Ok(true)
    }

    /// Begins to stage, under a number of which nothing is left: while there was no space, slices of an operation that
    /// ended with the last server may still lie there, and would be taken for its own.
    pub(super) fn open(
        &mut self,
        store: &mut impl Store,
        new: &NewOperation,
    ) -> Result<Result<u64, Failure>, StoreError> {
        let operation = match Operation::new(new) {
            Ok(operation) => operation,
            Err(failure) => return Ok(Err(failure)),
        };
        self.last += 1;
        while !store.notes(&format!("{SLICES}{:016x}/", self.last), 1)?.is_empty() {
            self.last += 1;
        }
        self.by_number.insert(self.last, operation);
        Ok(Ok(self.last))
    }

    /// Stores the next slice of one that is being staged.
    pub(super) fn stage(
        &mut self,
        store: &mut impl Store,
        number: u64,
        mut ids: Vec<JobId>,
    ) -> Result<Result<(), Failure>, StoreError> {
        let Some(operation) = self.by_number.get_mut(&number).filter(|operation| !operation.acting) else {
            return Ok(Err(unknown(number)));
        };
        ids.sort_unstable();
        store.note(&slice_key(number, operation.kept.slices), Some(&encode(&ids)))?;
        operation.kept.slices += 1;
        operation.kept.report.matched += ids.len() as u64;
        Ok(Ok(()))
    }

    /// Gives up one that is being staged; its slices go with the next look for orphans.
    pub(super) fn abandon(&mut self, number: u64) {
        if self.by_number.get(&number).is_some_and(|operation| !operation.acting) {
            self.by_number.remove(&number);
            self.orphans = true;
        }
    }

    /// Accepts what was staged, if it is as many as were expected: from this commit on it will be done.
    pub(super) fn accept(
        &mut self,
        store: &mut impl Store,
        number: u64,
        expect: Option<u64>,
        answer: Answer<Report>,
    ) -> Result<Option<(Answer<Report>, Failure)>, StoreError> {
        let Some(operation) = self.by_number.get_mut(&number).filter(|operation| !operation.acting) else {
            return Ok(Some((answer, unknown(number))));
        };
        let matched = operation.kept.report.matched;
        if let Some(expected) = expect.filter(|expected| *expected != matched) {
            self.by_number.remove(&number);
            self.orphans = true;
            return Ok(Some((answer, unexpected(expected, matched))));
        }
        operation.acting = true;
        operation.answer = Some(answer);
        store.note(&header_key(number), Some(&operation.kept.to_bytes()))?;
        Ok(None)
    }

    /// The line of one that was just accepted.
    pub(super) fn accepted(&self, number: u64, now: Time) -> Option<Audited> {
        Some(self.by_number.get(&number)?.audited(Some(number), Stage::Accepted, now))
    }

    pub(super) fn wants_a_turn(&self) -> bool {
        self.by_number.values().any(|operation| operation.acting && !operation.over)
    }

    /// What is being done now, with its account so far.
    pub(super) fn reports(&self) -> Vec<(u64, String, Option<String>, Report)> {
        let acting = self.by_number.iter().filter(|(_, operation)| operation.acting);
        acting
            .map(|(number, Operation { kept, .. })| {
                (*number, kept.action.clone(), kept.selector.clone(), kept.report.clone())
            })
            .collect()
    }

    /// Does the next slice of the oldest accepted operation.
    pub(super) fn act(&mut self, store: &mut impl Store, now: Time) -> Result<Option<SliceDone>, StoreError> {
        let oldest = self.by_number.iter_mut().find(|(_, operation)| operation.acting && !operation.over);
        let Some((number, operation)) = oldest else { return Ok(None) };
        let number = *number;
        let mut done = SliceDone::default();
        let key = slice_key(number, operation.kept.next);
        if let Some((_, bytes)) = store.notes(&key, 1)?.into_iter().next() {
            let ids = decode(&bytes).ok_or_else(|| StoreError::Corrupt(format!("the note {key} holds no ids")))?;
            let meant = operation.still_meant(store, ids)?;
            operation.apply(store, &meant, now, &mut done)?;
            store.note(&key, None)?;
        }
        operation.kept.next += 1;
        if operation.kept.next < operation.kept.slices {
            store.note(&header_key(number), Some(&operation.kept.to_bytes()))?;
        } else {
            store.note(&header_key(number), None)?;
            done.audit.push(operation.audited(Some(number), Stage::Done, now));
            operation.over = true;
            self.orphans = true;
            done.over = true;
        }
        done.more = self.wants_a_turn();
        Ok(Some(done))
    }
}

/// Does a small set at once: counted, compared and changed in one transaction.
pub(super) fn at_once(
    store: &mut impl Store,
    new: &NewOperation,
    ids: Vec<JobId>,
    expect: Option<u64>,
    now: Time,
) -> Result<Result<(Report, SliceDone), Failure>, StoreError> {
    let mut operation = match Operation::new(new) {
        Ok(operation) => operation,
        Err(failure) => return Ok(Err(failure)),
    };
    let meant = operation.still_meant(store, ids)?;
    let matched = meant.len() as u64;
    operation.kept.report.matched = matched;
    if let Some(expected) = expect.filter(|expected| *expected != matched) {
        return Ok(Err(unexpected(expected, matched)));
    }
    let mut done = SliceDone::default();
    operation.apply(store, &meant, now, &mut done)?;
    // Jobs that were named one by one have a line each.
    if operation.selector.is_some() {
        done.audit.push(operation.audited(None, Stage::Done, now));
    }
    Ok(Ok((operation.kept.report, done)))
}

impl Operation {
    fn new(new: &NewOperation) -> Result<Operation, Failure> {
        let refused = |fault| Failure::new(Kind::BadData, fault);
        let selector = new.selector.as_deref().map(Selector::parse).transpose().map_err(refused)?;
        let (action, priority) = new.wish.words();
        let kept = Kept {
            action: action.to_owned(),
            priority,
            selector: new.selector.clone(),
            asked: new.asked.as_micros(),
            by: new.by.clone(),
            slices: 0,
            next: 0,
            report: Report::default(),
        };
        Ok(Operation { kept, selector, acting: false, over: false, answer: None })
    }

    fn audited(&self, number: Option<u64>, stage: Stage, now: Time) -> Audited {
        let Kept { action, priority, selector, by, report, .. } = &self.kept;
        let verb = Verb { word: action.clone(), priority: *priority };
        // Numbers only: there is nothing in it that JSON lacks.
        let counts = serde_json::to_value(report).unwrap_or_default();
        let what = What::Operation { verb, number, selector: selector.clone(), stage, counts };
        Audited { at: now, by: by.clone(), what }
    }

    /// Leaves out what the selector no longer means: a job that went on meanwhile is not what the person saw.
    fn still_meant(&mut self, store: &mut impl Store, ids: Vec<JobId>) -> Result<Vec<JobId>, StoreError> {
        let Some(selector) = &self.selector else { return Ok(ids) };
        let asked = Time(self.kept.asked);
        let infos = store.jobs(&ids)?;
        let meant = |info: &Option<JobInfo>| info.as_ref().is_some_and(|info| info.matches(selector, asked));
        let before = ids.len();
        let left: Vec<JobId> = ids.into_iter().zip(&infos).filter(|(_, info)| meant(info)).map(|(id, _)| id).collect();
        self.kept.report.left += (before - left.len()) as u64;
        Ok(left)
    }

    fn apply(
        &mut self,
        store: &mut impl Store,
        ids: &[JobId],
        now: Time,
        done: &mut SliceDone,
    ) -> Result<(), StoreError> {
        let report = &mut self.kept.report;
        let Some(wish) = Wish::from_words(&self.kept.action, self.kept.priority) else {
            return Err(StoreError::Corrupt(format!("an operation wants {}, which is unknown", self.kept.action)));
        };
        let named = self.selector.is_none();
        let mut tell = |what: Option<What>| {
            let what = what.filter(|_| named);
            done.audit.extend(what.map(|what| Audited { at: now, by: self.kept.by.clone(), what }));
        };
        match wish {
            Wish::Amend(amendment) => {
                for (id, amended) in ids.iter().zip(store.amend(ids, amendment, now)?) {
                    if amended == Amended::Running && amendment == Amendment::Cancel {
                        done.cancelled.push(*id);
                    }
                    if let Amended::Done { to, .. } = amended {
                        done.amended.push((*id, to));
                        if to.is_end() {
                            store.note(&checkpoint::key(*id), None)?;
                        }
                    }
                    tell(wish.audited(*id, amended));
                    report.note(amendment, amended);
                }
            }
            Wish::Delete => {
                for (id, deleted) in ids.iter().zip(store.delete(ids, now)?) {
                    match deleted {
                        Deleted::Done { from, last } => {
                            tell(Some(What::Job { verb: wish.verb(), id: *id, from, to: None }));
                            report.changed += 1;
                            done.deleted.push(last);
                            store.note(&checkpoint::key(*id), None)?;
                        }
                        Deleted::Running => report.refuse(State::Running.word()),
                        Deleted::Unknown => report.unknown += 1,
                    }
                }
            }
        }
        Ok(())
    }
}

impl Kept {
    fn to_bytes(&self) -> Vec<u8> {
        // Text and numbers only: there is nothing in it that JSON lacks.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Report {
    fn note(&mut self, amendment: Amendment, amended: Amended) {
        match amended {
            Amended::Done { .. } => self.changed += 1,
            Amended::Same(_) => self.already += 1,
            Amended::Running => self.running += 1,
            Amended::Refused(state) if is_so(amendment, state) => self.already += 1,
            Amended::Refused(state) => self.refuse(state.word()),
            Amended::Taken(_) => self.refuse("unique key taken"),
            Amended::Unknown => self.unknown += 1,
        }
    }

    fn refuse(&mut self, why: &str) {
        self.refused += 1;
        *self.why.entry(why.to_owned()).or_default() += 1;
    }
}

/// Whether a job in this state is as it was wished already; then there is nothing to refuse.
pub fn is_so(amendment: Amendment, state: State) -> bool {
    match amendment {
        Amendment::Cancel => state == State::Cancelled,
        Amendment::Suspend => state == State::Suspended,
        Amendment::Retry => matches!(state, State::Ready | State::Running),
        Amendment::Resume => matches!(state, State::Scheduled | State::Ready | State::Running | State::Retrying),
        Amendment::Priority(_) => false,
    }
}

impl Wish {
    /// The word of the verb, and its value.
    pub fn words(self) -> (&'static str, Option<i8>) {
        match self {
            Wish::Amend(Amendment::Cancel) => ("cancel", None),
            Wish::Amend(Amendment::Retry) => ("retry", None),
            Wish::Amend(Amendment::Suspend) => ("suspend", None),
            Wish::Amend(Amendment::Resume) => ("resume", None),
            Wish::Amend(Amendment::Priority(priority)) => ("priority", Some(priority.value())),
            Wish::Delete => ("delete", None),
        }
    }

    pub(super) fn verb(self) -> Verb {
        let (word, priority) = self.words();
        Verb { word: word.to_owned(), priority }
    }

    /// What the audit log says of one job, if anything was changed or will be.
    pub(super) fn audited(self, id: JobId, amended: Amended) -> Option<What> {
        let (from, to) = match amended {
            Amended::Done { from, to } => (from, Some(to)),
            Amended::Running if self == Wish::Amend(Amendment::Cancel) => (State::Running, None),
            Amended::Running | Amended::Same(_) | Amended::Refused(_) | Amended::Taken(_) | Amended::Unknown => {
                return None;
            }
        };
        Some(What::Job { verb: self.verb(), id, from, to })
    }

    pub fn from_words(action: &str, priority: Option<i8>) -> Option<Wish> {
        Some(match (action, priority) {
            ("cancel", None) => Wish::Amend(Amendment::Cancel),
            ("retry", None) => Wish::Amend(Amendment::Retry),
            ("suspend", None) => Wish::Amend(Amendment::Suspend),
            ("resume", None) => Wish::Amend(Amendment::Resume),
            ("delete", None) => Wish::Delete,
            ("priority", Some(value)) => Wish::Amend(Amendment::Priority(Priority::new(i64::from(value))?)),
            _ => return None,
        })
    }
}

fn header_key(number: u64) -> String {
    format!("{HEADERS}{number:016x}")
}

fn slice_key(number: u64, slice: u64) -> String {
    format!("{SLICES}{number:016x}/{slice:016x}")
}

fn unknown(number: u64) -> Failure {
    Failure::new(Kind::Conflict, format!("operation {number} is not being staged")).hint("ask for it anew")
}

pub fn unexpected(expected: u64, found: u64) -> Failure {
    let jobs = if expected == 1 { "job" } else { "jobs" };
    let text = format!("expected {expected} {jobs}, found {found}; nothing was changed");
    Failure::new(Kind::Conflict, text).hint("look again with --dry-run")
}

/// Sorted ids: for each origin how many there are, then each offset as the distance from the one before.
fn encode(ids: &[JobId]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ids.len() * 2);
    for group in ids.chunk_by(|a, b| a.origin == b.origin) {
        bytes.extend_from_slice(&group[0].origin.bits().to_le_bytes());
        write_varint(&mut bytes, group.len() as u64);
        let mut before = 0;
        for id in group {
            write_varint(&mut bytes, id.offset - before);
            before = id.offset;
        }
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<Vec<JobId>> {
    let mut ids = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let origin = bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)?;
        at += 8;
        let count = read_varint(bytes, &mut at).ok()?;
        let mut offset = 0u64;
        for _ in 0..count {
            offset = offset.checked_add(read_varint(bytes, &mut at).ok()?)?;
            ids.push(JobId { origin: Origin::from_random(origin), offset });
        }
    }
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_kept_whole() {
        let id = |origin: u64, offset| JobId { origin: Origin::from_random(origin), offset };
        let mut ids: Vec<JobId> = (0..1000).map(|n| id(n % 3, n * n)).chain([id(7, u64::MAX)]).collect();
        ids.sort_unstable();
        assert_eq!(decode(&encode(&ids)), Some(ids));
        assert_eq!(decode(&[]), Some(Vec::new()));
        assert_eq!(decode(&[1, 2, 3]), None);
        assert_eq!(decode(&[0, 0, 0, 0, 0, 0, 0, 0, 9]), None, "fewer offsets than it says");
    }

    #[test]
    fn every_wish_has_its_word() {
        let high = Priority::new(10).unwrap();
        for amendment in
            [Amendment::Cancel, Amendment::Retry, Amendment::Suspend, Amendment::Resume, Amendment::Priority(high)]
        {
            let (word, value) = Wish::Amend(amendment).words();
            assert_eq!(Wish::from_words(word, value), Some(Wish::Amend(amendment)));
        }
        assert_eq!(Wish::from_words("delete", None), Some(Wish::Delete));
        assert_eq!(Wish::from_words("delete", Some(1)), None);
        assert_eq!(Wish::from_words("priority", None), None);
    }
}
