//! What is to be written: of each job that has a key, its state and its last words.
//!
//! A job that says more than can be written has its newest words here and no others. The book is bounded; a job that
//! runs keeps its place in it, so that nothing is written for ever of one that has ended. It must not wait for anybody
//! but for its own lock.

use super::Words;
use crate::inbox::watch::Bell;
use crate::when;
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::life_cycle::State;
use windlass_core::progress::Progress;
use windlass_core::time::Time;

/// The most jobs of which something is noted.
pub(super) const MOST: usize = 8192;

/// One job.
#[derive(Debug)]
struct Note {
    key: String,
    start: u32,
    state: State,
    words: Words,
    at: Time,
    /// Changes with every change of it.
    version: u64,
    /// It stands among those that are to be written.
    due: bool,
    file: Option<PathBuf>,
}

impl Note {
    fn value(&self) -> String {
        let Words { progress, phase } = &self.words;
        let read = Progress::read(progress.as_deref().unwrap_or_default());
        let (done, total) = read.count.unzip();
        let text = progress.as_ref().map(|_| read.text);
        let (state, at) = (self.state.word(), when::rfc3339(self.at));
        json!({ "state": state, "done": done, "total": total, "percent": read.percent(), "phase": phase, "text": text,
            "at": at })
        .to_string()
    }
}

/// One value on its way.
#[derive(Debug)]
pub(super) struct Item {
    job: JobId,
    version: u64,
    pub(super) key: String,
    pub(super) value: String,
}

#[derive(Debug, Default)]
struct Notes {
    of: HashMap<JobId, Note>,
    /// In the order in which they changed.
    due: VecDeque<JobId>,
    /// Of those that run no more, in the order of their ends; some are gone already, and some run again.
    ended: VecDeque<JobId>,
    /// Who speaks in which file.
    files: HashMap<PathBuf, JobId>,
    /// Directories of those that nobody was told of yet.
    directories: Vec<PathBuf>,
    told: Vec<PathBuf>,
    version: u64,
    /// Jobs whose state was not written, or will not be.
    dropped: u64,
    refusal: Option<String>,
    closing: bool,
    over: bool,
}

/// Shared by those who say something and the thread that writes it.
#[derive(Debug)]
pub(super) struct Book {
    notes: Mutex<Notes>,
    pub(super) bell: Bell,
    /// Told of the end, and when the thread has seen it.
    stirred: Condvar,
}

impl Book {
    pub(super) fn new(bell: Bell) -> Book {
        Book { notes: Mutex::default(), bell, stirred: Condvar::new() }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Nothing can fail between two changes of it.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and wakes the thread where there is something to do that was not there before.
    fn change(&self, change: impl FnOnce(&mut Notes)) {
        let mut notes = self.notes();
        let had_any = notes.has_news();
        change(&mut notes);
        if !had_any && notes.has_news() {
            drop(notes);
            self.bell.ring();
        }
    }

    pub(super) fn begun(&self, job: JobId, key: String, start: u32, now: Time) {
        self.change(|notes| notes.put(job, key, start, State::Running, now));
    }

    pub(super) fn ended(&self, job: JobId, key: String, start: u32, state: State, now: Time) {
        self.change(|notes| {
            // What is said of a start can come when the next has begun.
            if notes.of.get(&job).is_none_or(|note| note.start <= start) {
                notes.put(job, key, start, state, now);
            }
        });
    }

    pub(super) fn said(&self, job: JobId, words: impl FnOnce() -> Words, now: Time) {
        self.change(|notes| {
            let Some(note) = notes.of.get_mut(&job).filter(|note| note.state == State::Running) else { return };
            let Words { progress, phase } = words();
            let words = Words {
                progress: progress.or_else(|| note.words.progress.clone()),
                phase: phase.or_else(|| note.words.phase.clone()),
            };
            if words != note.words {
                (note.words, note.at) = (words, now);
                notes.changed(job);
            }
        });
    }

    pub(super) fn speaks_in(&self, job: JobId, file: &Path) {
        self.change(|notes| {
            let Some(note) = notes.of.get_mut(&job) else { return };
            note.file = Some(file.to_owned());
            notes.files.insert(file.to_owned(), job);
            let Some(directory) = file.parent().filter(|of| !notes.told.iter().any(|told| told == of)) else { return };
            notes.told.push(directory.to_owned());
            notes.directories.push(directory.to_owned());
        });
    }

    pub(super) fn silent(&self, job: JobId) {
        let mut notes = self.notes();
        if let Some(file) = notes.of.get_mut(&job).and_then(|note| note.file.take()) {
            notes.files.remove(&file);
        }
    }

    /// A job gets no key; why is said once.
    pub(super) fn refused(&self, why: impl FnOnce() -> String) {
        self.change(|notes| {
            notes.dropped += 1;
            notes.refusal.get_or_insert_with(why);
        });
    }

    pub(super) fn close(&self) {
        self.notes().closing = true;
        self.stirred.notify_all();
        self.bell.ring();
    }

    pub(super) fn wait_until_over(&self, most: Duration) {
        let waited = self.stirred.wait_timeout_while(self.notes(), most, |notes| !notes.over);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    // What follows is for the thread.

    /// Lets a moment pass in which more may come, unless nothing more comes; true where that is so.
    pub(super) fn gather(&self, moment: Duration) -> bool {
        let waited = self.stirred.wait_timeout_while(self.notes(), moment, |notes| !notes.closing);
        waited.unwrap_or_else(PoisonError::into_inner).0.closing
    }

    pub(super) fn is_over(&self) {
        self.notes().over = true;
        self.stirred.notify_all();
    }

    pub(super) fn new_directories(&self) -> Vec<PathBuf> {
        std::mem::take(&mut self.notes().directories)
    }

    /// Those who speak in files that this is true of.
    pub(super) fn speakers(&self, which: impl Fn(&Path) -> bool) -> Vec<JobId> {
        self.notes().files.iter().filter(|(file, _)| which(file)).map(|(_, job)| *job).collect()
    }

    pub(super) fn speaker(&self, file: &Path) -> Option<JobId> {
        self.notes().files.get(file).copied()
    }

    pub(super) fn has_due(&self) -> bool {
        !self.notes().due.is_empty()
    }

    pub(super) fn has_any(&self) -> bool {
        !self.notes().of.is_empty()
    }

    /// Has everything written that is noted: whoever had it may have forgotten it.
    pub(super) fn all_again(&self) {
        let mut notes = self.notes();
        let jobs: Vec<JobId> = notes.of.keys().copied().collect();
        jobs.into_iter().for_each(|job| notes.is_due(job));
    }

    /// The next that are to be written.
    pub(super) fn take(&self, most: usize) -> Vec<Item> {
        let mut notes = self.notes();
        let mut items = Vec::new();
        while items.len() < most
            && let Some(job) = notes.due.pop_front()
        {
            let Some(note) = notes.of.get_mut(&job) else { continue };
            note.due = false;
            items.push(Item { job, version: note.version, key: note.key.clone(), value: note.value() });
        }
        items
    }

    /// They were written, or never will be: of jobs that run no more nothing is left to be done.
    pub(super) fn done(&self, items: &[Item], refused: u64) {
        let mut notes = self.notes();
        notes.dropped += refused;
        for item in items {
            let ended = |note: &Note| note.state != State::Running && note.version == item.version;
            if notes.of.get(&item.job).is_some_and(ended) {
                notes.of.remove(&item.job);
            }
        }
        if notes.ended.len() > 2 * MOST {
            let Notes { ended, of, .. } = &mut *notes;
            ended.retain(|job| of.contains_key(job));
        }
    }

    /// They were not: they are to be written again.
    pub(super) fn undone(&self, items: &[Item]) {
        let mut notes = self.notes();
        items.iter().for_each(|item| notes.is_due(item.job));
    }

    /// How many were dropped since this was asked last, and why a job got no key.
    pub(super) fn losses(&self) -> (u64, Option<String>) {
        let mut notes = self.notes();
        (std::mem::take(&mut notes.dropped), notes.refusal.clone())
    }
}

impl Notes {
    fn has_news(&self) -> bool {
        !self.due.is_empty() || !self.directories.is_empty() || self.dropped > 0
    }

    /// What a job has said goes with its start: the next begins with nothing said.
    fn put(&mut self, job: JobId, key: String, start: u32, state: State, at: Time) {
        match self.of.get_mut(&job) {
            Some(note) if state == State::Running => {
                if let Some(file) = note.file.take() {
                    self.files.remove(&file);
                }
                *note = Note { key, start, state, at, words: Words::default(), file: None, ..*note }
            }
            Some(note) => (note.key, note.start, note.state, note.at) = (key, start, state, at),
            None => {
                if self.of.len() >= MOST && !self.make_room() {
                    self.dropped += 1;
                    return;
                }
                let (version, due, words, file) = (0, false, Words::default(), None);
                self.of.insert(job, Note { key, start, state, words, at, version, due, file });
            }
        }
        if state != State::Running {
            self.ended.push_back(job);
        }
        self.changed(job);
    }

    /// Drops the oldest end; false where all run.
    fn make_room(&mut self) -> bool {
        while let Some(job) = self.ended.pop_front() {
            if self.of.get(&job).is_some_and(|note| note.state != State::Running) {
                self.of.remove(&job);
                self.dropped += 1;
                return true;
            }
        }
        false
    }

    fn changed(&mut self, job: JobId) {
        self.version += 1;
        let version = self.version;
        self.of.entry(job).and_modify(|note| note.version = version);
        self.is_due(job);
    }

    fn is_due(&mut self, job: JobId) {
        if let Some(note) = self.of.get_mut(&job).filter(|note| !note.due) {
            note.due = true;
            self.due.push_back(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::job::Origin;

    fn book() -> Book {
        Book::new(Bell::new().unwrap())
    }

    fn job(number: u64) -> JobId {
        JobId { origin: Origin::from_random(7), offset: number }
    }

    fn written(book: &Book) -> Vec<(String, serde_json::Value)> {
        let items = book.take(usize::MAX);
        book.done(&items, 0);
        items.into_iter().map(|item| (item.key, serde_json::from_str(&item.value).unwrap())).collect()
    }

    #[test]
    fn the_newest_of_each_job_is_written_once() {
        let book = book();
        let says = |progress: &str, phase: Option<&str>| {
            let words = || Words { progress: Some(progress.into()), phase: phase.map(str::to_owned) };
            book.said(job(1), words, Time(2_000_000));
        };
        book.begun(job(1), "k".into(), 1, Time(1_000_000));
        says("1/4 pages", Some("reading"));
        says("2/4 pages", None);
        let value = json!({ "state": "running", "done": 2, "total": 4, "percent": 50, "phase": "reading",
            "text": "pages", "at": "1970-01-01T00:00:02Z" });
        assert_eq!(written(&book), [("k".to_owned(), value.clone())]);
        assert_eq!(written(&book), []);
        says("2/4 pages", None);
        assert_eq!(written(&book), [], "it has said nothing new");
        book.all_again();
        assert_eq!(written(&book), [("k".to_owned(), value)]);
        book.ended(job(1), "k".into(), 1, State::Succeeded, Time(3_000_000));
        says("3/4 pages", None);
        let value = json!({ "state": "succeeded", "done": 2, "total": 4, "percent": 50, "phase": "reading",
            "text": "pages", "at": "1970-01-01T00:00:03Z" });
        assert_eq!(written(&book), [("k".to_owned(), value)], "an end is the last word");
        assert!(!book.has_any());
    }

    #[test]
    fn the_end_of_a_start_says_nothing_of_the_next() {
        let book = book();
        let state = |book: &Book| written(book).into_iter().map(|(_, value)| value["state"].clone()).next();
        book.begun(job(1), "k".into(), 1, Time(1));
        book.begun(job(1), "k".into(), 2, Time(2));
        book.ended(job(1), "k".into(), 1, State::Retrying, Time(3));
        assert_eq!(state(&book), Some("running".into()));
        book.ended(job(1), "k".into(), 2, State::Failed, Time(4));
        assert_eq!(state(&book), Some("failed".into()));
    }

    #[test]
    fn what_is_not_taken_waits_and_the_oldest_ends_make_room() {
        let book = book();
        for number in 0..MOST as u64 {
            book.begun(job(number), number.to_string(), 1, Time(1));
        }
        book.begun(job(9_999_999), "no room".into(), 1, Time(1));
        assert_eq!(book.losses(), (1, None));
        book.ended(job(3), "3".into(), 1, State::Succeeded, Time(2));
        book.ended(job(2), "2".into(), 1, State::Succeeded, Time(2));
        let items = book.take(usize::MAX);
        book.undone(&items);
        book.begun(job(9_999_999), "room".into(), 1, Time(1));
        assert_eq!(book.losses(), (1, None));
        let keys: Vec<String> = written(&book).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), MOST);
        assert!(!keys.contains(&"3".to_owned()) && keys.contains(&"2".to_owned()) && keys.contains(&"room".to_owned()));
    }

    #[test]
    fn a_file_is_of_who_speaks_in_it_now() {
        let book = book();
        let file = Path::new("/control/0.1");
        book.speaks_in(job(1), file);
        assert_eq!(book.speaker(file), None, "it has no key");
        [1, 2].into_iter().for_each(|number| book.begun(job(number), "k".into(), 1, Time(1)));
        book.speaks_in(job(1), file);
        assert_eq!((book.speaker(file), book.new_directories()), (Some(job(1)), vec!["/control".into()]));
        book.silent(job(1));
        assert_eq!(book.speaker(file), None);
        book.speaks_in(job(2), file);
        book.silent(job(1));
        assert_eq!((book.speaker(file), book.new_directories()), (Some(job(2)), vec![]));
    }
}
