//! The board: what jobs that run say of themselves, for whoever asks, and what ails a queue's workers.
//!
//! A command's words are read out of its control file when somebody asks, and not before; a kept worker's come with
//! its messages. It must not touch the engine.

use super::Flight;
use super::launcher::EMIT_MAX;
pub use super::reply::Said;
use super::spoken::{self, Spoken, Voice};
use crate::error::{Failure, Kind};
use crate::memcached::Copies;
use crate::store::Held;
use crate::supervisor::Roster;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;
use windlass_core::job::JobId;

/// The most of a control file that a look reads: its end.
const LOOK_MAX: u64 = 64 << 10;
/// Who has the kept workers looks at what he is told in a moment; longer than this only a server that stops takes.
const HEARS_WITHIN: Duration = Duration::from_secs(30);

/// The files of a command, and the token with which it may write to them over HTTP.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) control: PathBuf,
    pub(super) emit: PathBuf,
    pub(super) token: Option<String>,
    pub(super) written: Written,
}

/// The files of what a running command writes: of which start they are, and how much is kept of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub start: u32,
    pub most: u64,
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Control,
    Emit,
}

#[derive(Debug)]
enum Place {
    Files(Files),
    Said(Said),
}

/// Where the jobs of one process speak, each line with the name of its job.
#[derive(Debug)]
struct Together {
    control: PathBuf,
    emit: PathBuf,
    jobs: Vec<Held>,
    voice: Option<Voice>,
}

#[derive(Debug, Default)]
struct Notes {
    running: HashMap<JobId, Place>,
    batches: HashMap<Flight, Together>,
    /// Jobs whose output somebody reads along with, and how many do.
    followed: HashMap<JobId, usize>,
    troubles: BTreeMap<String, String>,
    /// By queue: why its handler file does not serve it.
    handlers: BTreeMap<String, String>,
}

/// Shared by the runners and the pages.
#[derive(Debug, Default)]
pub struct Board {
    notes: Mutex<Notes>,
    /// Where the server is reached over HTTP, if it is.
    url: OnceLock<String>,
    shows: OnceLock<Shows>,
    kept: OnceLock<Kept>,
    copies: OnceLock<Copies>,
    workers: Arc<Roster>,
}

/// Has what a running job writes put into its files.
struct Shows(Box<dyn Fn(JobId) + Send + Sync>);

impl fmt::Debug for Shows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shows")
    }
}

/// Hears what jobs of kept workers say over HTTP.
struct Kept(Box<dyn Fn(Spoken) + Send + Sync>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// Somebody reads along with what a job writes, for as long as this is held.
#[derive(Debug)]
pub struct Following {
    board: Arc<Board>,
    job: JobId,
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut notes = self.board.notes();
        if let Some(readers) = notes.followed.get_mut(&self.job) {
            *readers -= 1;
            if *readers == 0 {
                notes.followed.remove(&self.job);
            }
        }
    }
}

impl Board {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Nothing can fail between two changes of it.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All workers, and what each of them is at.
    pub fn workers(&self) -> &Arc<Roster> {
        &self.workers
    }

    /// The server is reached there; jobs that start from now on are told so.
    pub fn serve_at(&self, address: Option<std::net::SocketAddr>) {
        if let Some(address) = address {
            // It is told once.
            let _first = self.url.set(format!("http://{address}"));
        }
    }

    /// What is said is kept elsewhere, too.
    pub(crate) fn copied_to(&self, copies: Copies) {
        // It is told once.
        let _first = self.copies.set(copies);
    }

    /// Where what is said is kept, too, if it is.
    pub(super) fn copies(&self) -> Option<&Copies> {
        self.copies.get().filter(|copies| copies.is_on())
    }

    /// Who can show what a running job writes. The first one can; there is no other.
    pub(super) fn shown_by(&self, show: impl Fn(JobId) + Send + Sync + 'static) {
        let _first = self.shows.set(Shows(Box::new(show)));
    }

    /// Who hears the jobs of kept workers. There is one.
    pub(super) fn heard_by(&self, hear: impl Fn(Spoken) + Send + Sync + 'static) {
        let _first = self.kept.set(Kept(Box::new(hear)));
    }

    /// Somebody begins to read along: with what runs now, and with every later start.
    pub fn follow(self: &Arc<Board>, job: JobId) -> Following {
        // Noted before anybody is asked: a start is either told of it, or finds it noted.
        *self.notes().followed.entry(job).or_default() += 1;
        if let Some(Shows(show)) = self.shows.get() {
            show(job);
        }
        Following { board: Arc::clone(self), job }
    }

    pub(super) fn is_followed(&self, job: JobId) -> bool {
        self.notes().followed.contains_key(&job)
    }

    /// Where what a running command writes is found.
    pub fn written(&self, job: JobId) -> Option<Written> {
        match self.notes().running.get(&job)? {
            Place::Files(files) => Some(files.written),
            Place::Said(_) => None,
        }
    }

    pub(super) fn url(&self) -> Option<&str> {
        self.url.get().map(String::as_str)
    }

    /// A job has begun and speaks in these files.
    pub(super) fn begun(&self, job: JobId, files: Files) {
        if let Some(copies) = self.copies() {
            copies.speaks_in(job, &files.control);
        }
        self.notes().running.insert(job, Place::Files(files));
    }

    /// Many jobs have begun that share a control and an emit file.
    pub(super) fn batch_begun(&self, flight: Flight, paths: [PathBuf; 2], jobs: Vec<Held>, voice: Option<Voice>) {
        let [control, emit] = paths;
        self.notes().batches.insert(flight, Together { control, emit, jobs, voice });
    }

    pub(super) fn batch_ended(&self, flight: Flight) {
        self.notes().batches.remove(&flight);
    }

    /// Takes what a running job says with its token; an error says why nothing was taken.
    pub fn append(&self, job: JobId, token: &str, to: Channel, lines: &[u8]) -> Result<(), Failure> {
        let notes = self.notes();
        let together = |batch: &&Together| batch.voice.as_ref().is_some_and(|voice| voice.has(job));
        let (paths, lines) = match notes.running.get(&job) {
            Some(Place::Files(files))
                if files.token.as_deref().is_some_and(|own| same(token.as_bytes(), own.as_bytes())) =>
            {
                ([&files.control, &files.emit], Cow::Borrowed(lines))
            }
            Some(_) | None => match notes.batches.values().find(together) {
                Some(batch) => ([&batch.control, &batch.emit], Cow::Owned(batch.lay(job, token, to, lines)?)),
                None => {
                    drop(notes);
                    return self.tell_kept(Spoken::new(job, token, to, lines));
                }
            },
        };
        let path = paths[usize::from(to == Channel::Emit)];
        // Written while nobody can take the job off the board, so that the files are not another's by then.
        let written = std::fs::OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(&lines));
        written.map_err(|e| Failure::io(format_args!("cannot write to {}", path.display()), &e))
    }

    /// Has a job of a kept worker heard by who has the worker.
    fn tell_kept(&self, (spoken, answer): (Spoken, mpsc::Receiver<Result<(), Failure>>)) -> Result<(), Failure> {
        let job = spoken.job;
        let Some(Kept(hear)) = self.kept.get() else { return Err(spoken::not_running(job)) };
        hear(spoken);
        let unheard = |_| Failure::new(Kind::TryLater, format!("nobody heard what {job} said: the server is stopping"));
        answer.recv_timeout(HEARS_WITHIN).map_err(unheard)?
    }

    /// A job of a kept worker said something.
    pub(super) fn said(&self, job: JobId, line: &[u8]) {
        let mut notes = self.notes();
        match notes.running.entry(job).or_insert_with(|| Place::Said(Said::default())) {
            Place::Said(said) => {
                said.hear(line);
                self.copies().into_iter().for_each(|copies| copies.said(job, || said.words()));
            }
            Place::Files(_) => {}
        }
    }

    pub(super) fn ended(&self, job: JobId) {
        self.notes().running.remove(&job);
        self.copies().into_iter().for_each(|copies| copies.silent(job));
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
        let notes = self.notes();
        let path = match notes.running.get(&job) {
            Some(Place::Said(said)) => return Some(said.clone()),
            Some(Place::Files(files)) => files.control.clone(),
            None => {
                let has = |batch: &&Together| batch.jobs.iter().any(|held| held.find(job).is_some());
                let control = notes.batches.values().find(has)?.control.clone();
                drop(notes);
                return said_together(&control, job);
            }
        };
        drop(notes);
        let said = Said::read(&end_of(&path).ok()?);
        // It may have ended while we read, and another may have begun to write there.
        let same = matches!(self.notes().running.get(&job), Some(Place::Files(now)) if now.control == path);
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

impl Together {
    /// The lines of a job as its process would have written them.
    fn lay(&self, job: JobId, token: &str, to: Channel, lines: &[u8]) -> Result<Vec<u8>, Failure> {
        let voice = self.voice.as_ref().ok_or_else(|| spoken::not_running(job))?;
        let laid = voice.lay(job, token, to, lines)?;
        // More than may be emitted would cost all jobs of the process.
        let room = || EMIT_MAX.saturating_sub(std::fs::metadata(&self.emit).map_or(0, |meta| meta.len()));
        if to == Channel::Emit && laid.len() as u64 > room() {
            return Err(spoken::too_much());
        }
        Ok(laid)
    }
}

/// What a file says of one of the jobs that speak there. Its name there is its own, whoever writes there by now.
fn said_together(control: &Path, job: JobId) -> Option<Said> {
    let said = Said::read_of(&end_of(control).ok()?, job);
    (said != Said::default()).then_some(said)
}

/// Compares without telling by the time it takes where the first difference is.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(u8::from(a.len() != b.len()), |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differences) == 0
}

fn end_of(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = vec![0; length.min(LOOK_MAX) as usize];
    file.read_exact_at(&mut bytes, length.saturating_sub(LOOK_MAX))?;
    Ok(bytes)
}
