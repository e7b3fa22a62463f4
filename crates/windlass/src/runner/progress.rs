//! The board: what jobs that run say of themselves, for whoever asks, and what ails a queue's workers.
//!
//! A command's words are read out of its control file when somebody asks, and not before; a kept worker's come with
//! its messages. It must not touch the engine.

pub use super::reply::Said;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use windlass_core::job::JobId;

/// The most of a control file that a look reads: its end.
const LOOK_MAX: u64 = 64 << 10;

#[derive(Debug)]
enum Place {
    ControlFile(PathBuf),
    Said(Said),
}

#[derive(Debug, Default)]
struct Notes {
    running: HashMap<JobId, Place>,
    troubles: BTreeMap<String, String>,
    /// By queue: why its handler file does not serve it.
    handlers: BTreeMap<String, String>,
}

/// Shared by the runners and the pages.
#[derive(Debug, Default)]
pub struct Board(Mutex<Notes>);

impl Board {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Nothing can fail between two changes of it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job has begun and speaks in this file.
    pub(super) fn begun(&self, job: JobId, control: PathBuf) {
        self.notes().running.insert(job, Place::ControlFile(control));
    }

    /// A job of a kept worker said something.
    pub(super) fn said(&self, job: JobId, line: &[u8]) {
        let mut notes = self.notes();
        match notes.running.entry(job).or_insert_with(|| Place::Said(Said::default())) {
            Place::Said(said) => said.hear(line),
            Place::ControlFile(_) => {}
        }
    }

    pub(super) fn ended(&self, job: JobId) {
        self.notes().running.remove(&job);
    }

    /// What keeps the workers of a policy entry from serving; none where nothing does.
    pub(crate) fn ails(&self, pattern: &str, trouble: Option<String>) {
        let mut notes = self.notes();
        match trouble {
            Some(trouble) => drop(notes.troubles.insert(pattern.to_owned(), trouble)),
            None => drop(notes.troubles.remove(pattern)),
        }
    }

    /// What a running job has said so far; nothing where it does not run or has said nothing.
    pub fn of(&self, job: JobId) -> Option<Said> {
        let path = match self.notes().running.get(&job)? {
            Place::Said(said) => return Some(said.clone()),
            Place::ControlFile(path) => path.clone(),
        };
        let said = Said::read(&end_of(&path).ok()?);
        // It may have ended while we read, and another may have begun to write there.
        let same = matches!(self.notes().running.get(&job), Some(Place::ControlFile(now)) if *now == path);
        same.then_some(said)
    }

    /// Takes what is to be said of handler files that serve nothing, by queue.
    pub(crate) fn note_handlers(&self, notes: BTreeMap<String, String>) {
        self.notes().handlers = notes;
    }

    /// Why a queue's handler file does not serve it; none where there is nothing to say.
    pub fn of_handler(&self, queue: &str) -> Option<String> {
        self.notes().handlers.get(queue).cloned()
    }

    /// Policy entries whose workers cannot serve, and why.
    pub fn troubles(&self) -> Vec<(String, String)> {
        self.notes().troubles.iter().map(|(pattern, why)| (pattern.clone(), why.clone())).collect()
    }
}

fn end_of(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = vec![0; length.min(LOOK_MAX) as usize];
    file.read_exact_at(&mut bytes, length.saturating_sub(LOOK_MAX))?;
    Ok(bytes)
}
