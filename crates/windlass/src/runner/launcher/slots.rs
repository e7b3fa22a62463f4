//! The slot table: what a launcher had begun, readable after its death, and the proof that none of it lives.
//!
//! A launcher notes job and start before it starts anything, and the child itself notes its pid before it
//! becomes the program, so there is no moment in which something runs unnoted. `run/slots.K` is mapped: the page
//! cache is enough, since a reboot kills processes anyway. The launcher holds a lock on it all its life. Notes
//! are kept after the report until their slot is needed again, oldest first, because a server may die between
//! hearing of an outcome and storing it.

use super::process::{self, Marked};
use crate::data_dir::boot_id;
use crate::error::Failure;
use crate::sabotage::{self, Sabotage};
use crate::without::is_without;
use rustix::event::Timespec;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use windlass_core::job::{JobId, Origin};

/// So long it takes at most, as a rule, until the killed are gone.
const A_MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// What cannot be told of a process yet is waited for so often, since nobody is between two programs for so long.
const MOMENTS: u32 = 500;

/// How many starts one launcher can have under way.
pub const SLOTS: usize = 4096;

/// A header of eight words, this and the number of the next slot; then the slots, of eight words each.
const MAGIC: u64 = u64::from_le_bytes(*b"wlslots2");
const WORDS: usize = 8;
const SIZE: usize = (SLOTS + 1) * WORDS * 8;

const LIVE: u32 = 1;
const REPORTED: u32 = 2;
const DEAD: u32 = 3;

/// The words of a slot: the state with the start above it, the job, the pid, the first and the last tick at which
/// it can have been born, the boot id, and the offset of the last job where a process is started for several.
const STATE: usize = 0;
const ORIGIN: usize = 1;
const OFFSET: usize = 2;
const PID: usize = 3;
const BORN_FROM: usize = 4;
const BORN_TO: usize = 5;
const BOOT: usize = 6;
const LAST: usize = 7;

/// The launcher's end of the table.
#[derive(Debug)]
pub(in crate::runner) struct Table {
    words: &'static [AtomicU64],
    boot: u64,
    _lock: File,
}

impl Table {
    /// Waits for the lock, so that a table never has two writers.
    pub(in crate::runner) fn open(path: &Path) -> Result<Table, Failure> {
        let cannot = |e: rustix::io::Errno| Failure::io(format_args!("cannot use {}", path.display()), &e.into());
        let lock = open_locked(path, OFlags::CREATE).map_err(cannot)?;
        // A mapping keeps its file open, and with it a lock; so the lock is on an opening of its own.
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(cannot)?;
        rustix::fs::ftruncate(&file, SIZE as u64).map_err(cannot)?;
        // SAFETY: a fresh shared mapping of our own file; it is never unmapped and only reached by atomics.
        let words = unsafe {
            let at = rustix::mm::mmap(
                std::ptr::null_mut(),
                SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            );
            std::slice::from_raw_parts(at.map_err(cannot)?.cast::<AtomicU64>(), SIZE / 8)
        };
        if words[0].load(Ordering::Relaxed) != MAGIC {
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            words[0].store(MAGIC, Ordering::Relaxed);
        }
        Ok(Table { words, boot: boot_word(), _lock: lock })
    }

    fn slot(&self, index: usize) -> &'static [AtomicU64] {
        &self.words[(index + 1) * WORDS..(index + 2) * WORDS]
    }

    /// Notes a start that is about to happen, of the jobs of one origin up to the offset `last`; none where every slot
    /// is live.
    pub(super) fn note(&self, job: JobId, last: u64, start: u32) -> Option<usize> {
        let next = self.words[1].load(Ordering::Relaxed) as usize;
        let free = |i: &usize| self.slot(*i)[STATE].load(Ordering::Relaxed) as u32 != LIVE;
        let index = (0..SLOTS).map(|i| (next + i) % SLOTS).find(free)?;
        let slot = self.slot(index);
        let values = [job.origin.bits(), job.offset, 0, process::ticks_now(), 0, self.boot, last];
        slot[STATE].store(0, Ordering::Release);
        slot[ORIGIN..].iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let state = if sabotage::on(Sabotage::StartNotNoted) { REPORTED } else { LIVE };
        slot[STATE].store(u64::from(state) | u64::from(start) << 32, Ordering::Release);
        self.words[1].store((index + 1) as u64, Ordering::Relaxed);
        Some(index)
    }

    /// Where the child writes its own pid.
    pub(super) fn pid_of(&self, index: usize) -> &'static AtomicU64 {
        &self.slot(index)[PID]
    }

    /// The child exists: it was born by now.
    pub(super) fn started(&self, index: usize) {
        self.slot(index)[BORN_TO].store(process::ticks_now(), Ordering::Release);
    }

    /// When the start was noted, in ticks: nothing of the job is older.
    pub(super) fn born_from(&self, index: usize) -> u64 {
        self.slot(index)[BORN_FROM].load(Ordering::Relaxed)
    }

    /// Its tree is dead; `heard` tells whether somebody is left to hear its outcome.
    pub(in crate::runner) fn ended(&self, index: usize, heard: bool) {
        let state = &self.slot(index)[STATE];
        let start = state.load(Ordering::Relaxed) & !0xffff_ffff;
        state.store(start | u64::from(if heard { REPORTED } else { DEAD }), Ordering::Release);
    }
}

/// The server's own notes, of jobs that go to processes which are there already. A process is proven dead by the note
/// of its launcher; here its pid only says that the job had begun.
impl Table {
    pub(in crate::runner) fn mark(&self, index: usize, job: JobId, start: u32, pid: i32) {
        let slot = self.slot(index);
        let values = [job.origin.bits(), job.offset, pid as u64, 0, 0, self.boot, job.offset];
        slot[STATE].store(0, Ordering::Release);
        slot[ORIGIN..].iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        slot[STATE].store(u64::from(LIVE) | u64::from(start) << 32, Ordering::Release);
    }

    pub(in crate::runner) fn clear(&self, index: usize) {
        self.slot(index)[STATE].store(0, Ordering::Release);
    }
}

fn open_locked(path: &Path, more: OFlags) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | more;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            other => return other.map(|()| file.into()),
        }
    }
}

/// The boot id folded into one word; it is random, so half of it would do.
fn boot_word() -> u64 {
    let digits: String = boot_id().chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).unwrap_or(0);
    number as u64 ^ (number >> 64) as u64
}

/// What became of a noted start, as far as its launcher could tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It may still live: nobody looked after its launcher ended.
    Unknown,
    /// Its outcome was handed over.
    Reported,
    /// Its tree was killed and nobody heard of it.
    Dead,
}

/// One slot as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotNote {
    /// The first job that the process was started for …
    pub job: JobId,
    /// … and the offset of the last, in the same origin.
    pub last: u64,
    pub start: u32,
    pub fate: Fate,
    /// Nought where it never became a process.
    pub pid: i32,
    pub this_boot: bool,
    born: (u64, u64),
    index: usize,
}

impl SlotNote {
    pub fn begun(&self) -> bool {
        self.pid != 0
    }

    /// The very process that was started, and not another that got its number later.
    fn is_main(&self, pid: i32, stat: process::Stat) -> bool {
        // The second mark is missing where the launcher died in the act; then the marker must do.
        pid == self.pid && self.born.1 != 0 && (self.born.0..=self.born.1).contains(&stat.born)
    }
}

/// Shows the notes of one table one by one, whoever holds its lock; false where it is no table.
///
/// A full table has as many notes as slots, and whoever wants to know is mostly after a few: only a page of it is in
/// memory at a time.
fn each_note(file: &File, mut see: impl FnMut(SlotNote)) -> std::io::Result<bool> {
    const SLOT: usize = WORDS * 8;
    let mut page = [0; 64 * SLOT];
    if file.metadata()?.len() < SIZE as u64 {
        return Ok(false);
    }
    file.read_exact_at(&mut page[..SLOT], 0)?;
    if word(&page, 0) != MAGIC {
        return Ok(false);
    }
    let boot = boot_word();
    for first in (0..SLOTS).step_by(page.len() / SLOT) {
        file.read_exact_at(&mut page, ((first + 1) * SLOT) as u64)?;
        for (n, slot) in page.as_chunks::<SLOT>().0.iter().enumerate() {
            note_of(slot, first + n, boot).into_iter().for_each(&mut see);
        }
    }
    Ok(true)
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes.as_chunks().0[index])
}

/// The note in a slot, if there is one.
fn note_of(slot: &[u8], index: usize, boot: u64) -> Option<SlotNote> {
    let state = word(slot, STATE);
    let fate = match state as u32 {
        LIVE => Fate::Unknown,
        REPORTED => Fate::Reported,
        DEAD => Fate::Dead,
        _ => return None,
    };
    Some(SlotNote {
        job: JobId { origin: Origin::from_random(word(slot, ORIGIN)), offset: word(slot, OFFSET) },
        last: word(slot, LAST),
        start: (state >> 32) as u32,
        fate,
        pid: word(slot, PID) as i32,
        this_boot: word(slot, BOOT) == boot,
        born: (word(slot, BORN_FROM), word(slot, BORN_TO)),
        index,
    })
}

/// The path of a launcher's table under `run/`.
pub fn path(run: &Path, launcher: usize) -> PathBuf {
    run.join(format!("slots.{launcher}"))
}

/// The path of the server's own table, of what kept workers are at.
pub(in crate::runner) fn kept_path(run: &Path) -> PathBuf {
    run.join("slots.kept")
}

/// What the tables under `run/` say now, without waiting for anybody.
pub fn read_all(run: &Path) -> Result<Vec<SlotNote>, Failure> {
    let mut notes = Vec::new();
    for path in tables(run)? {
        let read = File::open(&path).and_then(|file| each_note(&file, |note| notes.push(note)));
        read.map_err(|e| Failure::io(format_args!("cannot read {}", path.display()), &e))?;
    }
    Ok(notes)
}

fn tables(run: &Path) -> Result<Vec<PathBuf>, Failure> {
    let cannot = |e: std::io::Error| Failure::io(format_args!("cannot read {}", run.display()), &e);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(run).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with("slots.")) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// What is known of starts whose server is gone; everything it speaks of is dead.
#[derive(Clone, Debug, Default)]
pub struct SlotsEvidence {
    notes: HashMap<(JobId, u32), SlotNote>,
    /// Of processes for several jobs, in order of their first.
    ranges: BTreeMap<(JobId, u32), SlotNote>,
    tables: usize,
}

impl SlotsEvidence {
    fn add(&mut self, notes: Option<Vec<SlotNote>>) {
        self.tables += usize::from(notes.is_some());
        for note in notes.into_iter().flatten() {
            self.notes.insert((note.job, note.start), note);
            if note.last > note.job.offset {
                self.ranges.insert((note.job, note.start), note);
            }
        }
    }

    fn note(&self, job: JobId, start: u32) -> Option<&SlotNote> {
        let holds = |note: &&SlotNote| {
            note.start == start && note.job.origin == job.origin && (note.job.offset..=note.last).contains(&job.offset)
        };
        let range = || self.ranges.range(..=(job, start)).next_back().map(|(_, note)| note).filter(holds);
        self.notes.get(&(job, start)).or_else(range)
    }

    /// Whether this start had become a process. What no table speaks of had not; without tables all had, since
    /// then nothing is known.
    pub fn begun(&self, job: JobId, start: u32) -> bool {
        self.tables == 0 || self.note(job, start).is_some_and(SlotNote::begun)
    }

    /// Whether this start was still running, in this boot, when its server or launcher died.
    pub fn was_running(&self, job: JobId, start: u32) -> bool {
        let note = self.note(job, start);
        note.is_some_and(|note| note.begun() && note.this_boot && note.fate != Fate::Reported)
    }

    /// False where everything that was cut short was cut short by a reboot.
    pub fn same_boot(&self) -> bool {
        let mut cut = self.notes.values().filter(|note| note.fate != Fate::Reported).peekable();
        cut.peek().is_none() || cut.any(|note| note.this_boot)
    }
}

/// Waits until every old launcher is gone, kills what it left behind, and tells what had begun.
pub fn prove_dead(run: &Path) -> Result<SlotsEvidence, Failure> {
    let mut evidence = SlotsEvidence::default();
    for path in tables(run)? {
        evidence.add(prove_table_dead(&path, |_| true)?);
    }
    Ok(evidence)
}

/// The same for one table, of whose starts only those are told that the caller asks for.
pub(in crate::runner) fn prove_one_dead(
    path: &Path,
    asked: impl Fn(JobId, u32) -> bool,
) -> Result<SlotsEvidence, Failure> {
    let mut evidence = SlotsEvidence::default();
    evidence.add(prove_table_dead(path, |note| asked(note.job, note.start))?);
    Ok(evidence)
}

/// The notes that are asked for, of a table of which nobody is left.
fn prove_table_dead(path: &Path, asked: impl Fn(&SlotNote) -> bool) -> Result<Option<Vec<SlotNote>>, Failure> {
    let cannot = |e: std::io::Error| Failure::io(format_args!("cannot use {}", path.display()), &e);
    let file = match open_locked(path, OFlags::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(|e| cannot(e.into()))?,
    };
    let (mut open, mut notes) = (Vec::new(), Vec::new());
    let see = |note: SlotNote| {
        open.extend((note.fate == Fate::Unknown).then_some(note));
        notes.extend(asked(&note).then_some(note));
    };
    if !each_note(&file, see).map_err(cannot)? {
        return Ok(None);
    }
    let suspects: Vec<SlotNote> = open.iter().filter(|note| note.this_boot && note.begun()).copied().collect();
    super::cgroup::end_all_of(path).map_err(cannot)?;
    if !suspects.is_empty() {
        kill_all(&suspects).map_err(|e| cannot(e.into()))?;
    }
    for note in &open {
        let state = u64::from(DEAD) | u64::from(note.start) << 32;
        file.write_all_at(&state.to_le_bytes(), ((note.index + 1) * WORDS * 8) as u64).map_err(cannot)?;
    }
    Ok(Some(notes))
}

/// Kills until a look over all processes finds nobody who belongs to these starts.
fn kill_all(suspects: &[SlotNote]) -> rustix::io::Result<()> {
    let marked: HashSet<(JobId, u32)> = suspects.iter().map(|note| (note.job, note.start)).collect();
    let mains: HashMap<i32, &SlotNote> = suspects.iter().map(|note| (note.pid, note)).collect();
    let is_main = |pid: i32| {
        let stat = process::stat(pid).filter(|_| !process::has_died(pid));
        stat.is_some_and(|stat| mains.get(&pid).is_some_and(|note| note.is_main(pid, stat)))
    };
    let belongs = |pid: i32| is_main(pid) || process::marker(pid).owner().is_some_and(|owner| marked.contains(&owner));
    let mut unclear = MOMENTS;
    loop {
        let others = process::all().filter(|pid| *pid > 1);
        let (found, rest): (Vec<i32>, Vec<i32>) = others.partition(|pid| belongs(*pid));
        if found.is_empty() {
            if unclear == 0 || !rest.into_iter().any(|pid| process::marker(pid) == Marked::NotYet) {
                return Ok(());
            }
            // It is becoming another program, or about to be dead, which is soon over.
            unclear -= 1;
            let _woken = rustix::event::poll(&mut [], Some(&A_MOMENT));
            continue;
        }
        for pid in found {
            let Some(pid) = Pid::from_raw(pid) else { continue };
            let handle = match is_without("pidfd") {
                true => Err(Errno::NOSYS),
                false => rustix::process::pidfd_open(pid, PidfdFlags::empty()),
            };
            let handle = match handle {
                Err(Errno::SRCH) => continue,
                Err(Errno::NOSYS) => {
                    kill_by_number(pid, belongs)?;
                    continue;
                }
                other => other?,
            };
            // Asked again through the number that the handle now pins: it may have been another's in between.
            if belongs(pid.as_raw_nonzero().get()) {
                match rustix::process::pidfd_send_signal(&handle, Signal::KILL) {
                    Ok(()) | Err(Errno::SRCH) => wait_for(&handle)?,
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Without a handle: whom the number names is looked at right before the signal, by birth and marker, and the next look
/// over all processes comes after a moment.
fn kill_by_number(pid: Pid, belongs: impl Fn(i32) -> bool) -> rustix::io::Result<()> {
    if belongs(pid.as_raw_nonzero().get()) {
        match rustix::process::kill_process(pid, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error),
        }
        // Woken early or not, everybody is looked at again.
        let _woken = rustix::event::poll(&mut [], Some(&A_MOMENT));
    }
    Ok(())
}

fn wait_for(process: impl AsFd) -> rustix::io::Result<()> {
    let mut fds = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut fds, None) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

#[cfg(test)]
mod tests;
