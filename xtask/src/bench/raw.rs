//! The raw limits: what the kernel, the disk and the database do when nobody adds anything.
//!
//! Bare loops with the same bytes and the same settings as ours. They must not be clever, and not be clumsy.

use super::Outcome;
use rusqlite::{Connection, params};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use windlass::store::chunk::{Chunk, ChunkBuilder};
use windlass_core::job::Origin;

/// Jobs of one chunk and of one transaction: four MiB of lines, as the inbox hands them over.
pub(super) const CHUNK: u64 = 1000;
pub(super) const TRANSACTION: u64 = 42_000;

/// Bytes a second as appends of `piece`, each under the lock; returns appends a second.
pub(super) fn appends(path: &Path, piece: &[u8], count: u64) -> Outcome<f64> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let begun = Instant::now();
    for _ in 0..count {
        flock(&file, FlockOperation::LockExclusive)?;
        file.write_all(piece)?;
        flock(&file, FlockOperation::Unlock)?;
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

/// Jobs a second as a copy of a file in pieces: each is noted beside the original, on disk in the copy, and noted
/// again, three syncs, as a lot is that goes to another store.
pub(super) fn copy(folder: &Path, jobs: u64, job: usize, piece_jobs: u64) -> Outcome<f64> {
    let (from, mut notes, mut to) =
        (folder.join("from"), File::create(folder.join("notes"))?, File::create(folder.join("to"))?);
    std::fs::write(&from, vec![b'x'; job * jobs as usize])?;
    let mut from = File::open(&from)?;
    from.sync_all()?;
    let mut piece = vec![0; job * piece_jobs as usize];
    let begun = Instant::now();
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            break;
        }
        notes.write_all(&[1; 64])?;
        notes.sync_data()?;
        to.write_all(&piece[..read])?;
        to.sync_data()?;
        notes.write_all(&[2; 64])?;
        notes.sync_data()?;
    }
    Ok(jobs as f64 / begun.elapsed().as_secs_f64())
}

/// A log with one writer at a time: who finds none writes and syncs for all that wait.
struct GroupCommit {
    file: File,
    state: Mutex<GroupState>,
    synced: Condvar,
}

#[derive(Default)]
struct GroupState {
    waiting: Vec<u8>,
    /// The number of the group that gathers now, and of the last one that is on disk.
    gathering: u64,
    on_disk: u64,
    writes: bool,
}

impl GroupCommit {
    fn append(&self, record: &[u8]) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.extend_from_slice(record);
        let mine = state.gathering;
        while state.on_disk <= mine {
            if state.writes {
                state = self.synced.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.writes = true;
            let group = std::mem::take(&mut state.waiting);
            state.gathering += 1;
            let number = state.gathering;
            drop(state);
            (&self.file).write_all(&group)?;
            self.file.sync_data()?;
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.writes = false;
            state.on_disk = number;
            self.synced.notify_all();
        }
        Ok(())
    }
}

/// Records a second that `threads` bring to disk, one a call.
pub(super) fn group_commits(path: &Path, threads: u64, each: u64, record: &[u8]) -> Outcome<f64> {
    let log = GroupCommit { file: File::create(path)?, state: Mutex::default(), synced: Condvar::new() };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let appender = || (0..each).try_for_each(|_| log.append(record));
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(appender)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
    })?;
    Ok((threads * each) as f64 / begun.elapsed().as_secs_f64())
}

/// Jobs a second as inserts of 1,000-job chunks; for a whole life each is marked in the next transaction and deleted
/// in the one after.
pub(super) fn chunks(folder: &Path, jobs: u64, whole_life: bool) -> Outcome<f64> {
    let db = Connection::open(folder.join("bare.db"))?;
    db.execute_batch(
        "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -16384;
         PRAGMA wal_autocheckpoint = 2048; PRAGMA temp_store = MEMORY;
         CREATE TABLE chunk (first INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
         CREATE TABLE part (first INTEGER PRIMARY KEY, bits BLOB NOT NULL);",
    )?;
    let chunks: Vec<Chunk> = (0..TRANSACTION / CHUNK).map(|n| chunk(n * CHUNK)).collect();
    let begun = Instant::now();
    let mut before: Option<u64> = None;
    for from in (0..jobs).step_by(TRANSACTION as usize) {
        db.execute_batch("BEGIN IMMEDIATE")?;
        let firsts = |from: u64| (from..from + TRANSACTION).step_by(CHUNK as usize);
        for (first, chunk) in firsts(from).zip(&chunks) {
            db.prepare_cached("INSERT INTO chunk VALUES (?1, ?2)")?.execute(params![first as i64, chunk.as_bytes()])?;
        }
        if whole_life {
            for first in before.into_iter().flat_map(firsts) {
                db.prepare_cached("DELETE FROM chunk WHERE first = ?1")?.execute([first as i64])?;
                db.prepare_cached("DELETE FROM part WHERE first = ?1")?.execute([first as i64])?;
            }
            for first in firsts(from) {
                db.prepare_cached("INSERT INTO part VALUES (?1, ?2)")?.execute(params![first as i64, [1u8; 2]])?;
            }
        }
        db.execute_batch("COMMIT")?;
        before = Some(from);
    }
    let done = jobs.div_ceil(TRANSACTION) * TRANSACTION;
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

fn chunk(first: u64) -> Chunk {
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    (first..first + CHUNK).for_each(|offset| builder.push(offset, &[b'x'; 95]));
    builder.finish()
}

/// Processes a second: the better of one thread and one for each core.
pub(super) fn spawns(program: &Path, argument: &str, count: u64) -> Outcome<f64> {
    let cores = std::thread::available_parallelism()?.get() as u64;
    let mut best = 0.0f64;
    for threads in [1, cores] {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let spawner = || (0..count / threads).try_for_each(|_| spawn(program, argument).map_err(|e| e.to_string()));
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(spawner)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a panic".into())))
        })?;
        best = best.max((count / threads * threads) as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// One process with three pipes: started, its output read, waited for.
pub(super) fn spawn(program: &Path, argument: &str) -> Outcome<()> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let ((child_in, own_in), (own_out, child_out), (own_err, child_err)) = (pipe()?, pipe()?, pipe()?);
    let (program, argument) = (CString::new(program.as_os_str().as_bytes())?, CString::new(argument)?);
    let argv = [program.as_ptr(), argument.as_ptr(), std::ptr::null()];
    let envp: [*const libc::c_char; 1] = [std::ptr::null()];
    let mut pid = 0;
    // SAFETY: the actions are initialised before use, and everything outlives the call.
    let failed = unsafe {
        let mut actions = std::mem::zeroed::<libc::posix_spawn_file_actions_t>();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        for (to, from) in [&child_in, &child_out, &child_err].into_iter().enumerate() {
            libc::posix_spawn_file_actions_adddup2(&raw mut actions, from.as_raw_fd(), to as i32);
        }
        let (argv, envp) = (argv.as_ptr().cast(), envp.as_ptr().cast());
        let failed =
            libc::posix_spawn(&raw mut pid, program.as_ptr(), &raw const actions, std::ptr::null(), argv, envp);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        failed
    };
    if failed != 0 {
        return Err(std::io::Error::from_raw_os_error(failed).into());
    }
    drop((child_in, child_out, child_err, own_in));
    read_out(&own_out)?;
    read_out(&own_err)?;
    let pid = rustix::process::Pid::from_raw(pid).ok_or("no process was started")?;
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
    Ok(())
}

fn read_out(end: &OwnedFd) -> Outcome<()> {
    let mut buffer = [0u8; 4096];
    while rustix::io::read(end, &mut buffer)? > 0 {}
    Ok(())
}

/// The time on the clock that every process of this machine shares.
pub(super) fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}
