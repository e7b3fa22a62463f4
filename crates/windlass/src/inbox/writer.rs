//! How Windlass appends to an inbox: one lock, one look at a mapped byte, one write.
//!
//! A writer keeps its file open and mapped. It must not look at the path on the way: a file that was rotated is
//! read on for as long as somebody has it open, so a late append is late, not lost. What returns `Ok` is in the
//! kernel's hands; `sync` makes it durable. What returns an error was not accepted and never becomes a job, but
//! for a failed `sync`, after which nobody knows.

use super::disk::{Disk, Kernel};
use super::files::{self, inbox_failure};
use super::frame::{self, BLOCK_BYTES, BLOCK_LINES, CAN, Envelope, FileHeader, Kind, OPEN, STATE_AT};
use super::lock::{PATIENCE, Waited, unlock};
use crate::error::{self, Failure};
use crate::sabotage::{self, Sabotage};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use windlass_core::job::{DATA_MAX, JobId, Origin, RunId};
use windlass_core::run::terms::RunTerms;

/// How many files a writer tries when lock after lock is stuck.
const FILES_MAX: u32 = 16;
/// Bytes of one write of a bulk.
const BULK_WRITE: usize = 1 << 20;

/// The ids of jobs that were written together: `first` and the `count - 1` offsets behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub first: JobId,
    pub count: u32,
}

impl IdRange {
    pub fn ids(self) -> impl Iterator<Item = JobId> {
        (0..u64::from(self.count)).map(move |k| JobId { offset: self.first.offset + k, ..self.first })
    }
}

/// An open end of an inbox.
#[derive(Debug)]
pub struct InboxWriter {
    dir: PathBuf,
    file: Option<Target>,
    /// Which of `UID`, `UID.2`, … is in use.
    number: u32,
    patience: Duration,
    disk: Kernel,
    record: Vec<u8>,
    /// The end of what was written, per file: what a seal must not overtake.
    written: Vec<(Origin, u64)>,
}

/// The file being appended to.
#[derive(Debug)]
struct Target {
    file: File,
    header: MappedHeader,
    origin: Origin,
    /// The directory entry was synced since we opened it.
    entry_synced: bool,
}

/// The first page of the file: the kernel shows a sealed byte here without being asked.
#[derive(Debug)]
struct MappedHeader(NonNull<u8>);

// The page is only read, and only through an atomic.
unsafe impl Send for MappedHeader {}

const PAGE: usize = 4096;

impl MappedHeader {
    fn of(file: &File) -> std::io::Result<MappedHeader> {
        // SAFETY: a new mapping at a place of the kernel's choice, of a file that is never cut below its header.
        let page = unsafe { mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        NonNull::new(page.cast()).map(MappedHeader).ok_or_else(|| ErrorKind::Other.into())
    }

    fn is_open(&self) -> bool {
        // SAFETY: the page is mapped while `self` lives; others write the byte, so it is read as an atomic.
        unsafe { AtomicU8::from_ptr(self.0.as_ptr().add(STATE_AT)) }.load(Ordering::Relaxed) == OPEN
    }
}

impl Drop for MappedHeader {
    fn drop(&mut self) {
        // SAFETY: exactly what `of` mapped. A failure would leave one page mapped, which harms nobody.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

impl InboxWriter {
    /// Opens the inbox directory for this process's user; its file is opened with the first record.
    pub fn open(dir: &Path) -> Result<InboxWriter, Failure> {
        let meta = std::fs::metadata(dir).map_err(|e| inbox_failure("cannot open the inbox", dir, &e))?;
        if !meta.is_dir() {
            return Err(Failure::new(error::Kind::CannotCreate, format!("{} is not a directory", dir.display())));
        }
        ignore_file_size_signal();
        Ok(InboxWriter {
            dir: dir.to_owned(),
            file: None,
            number: 1,
            patience: PATIENCE,
            disk: Kernel::default(),
            record: Vec::with_capacity(4096),
            written: Vec::new(),
        })
    }

    /// Waits this long for a busy lock before another file is used.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Appends one job with any bytes.
    pub fn push(&mut self, envelope: &Envelope, data: &[u8]) -> Result<JobId, Failure> {
        if data.len() > DATA_MAX {
            return Err(too_long(data.len()));
        }
        self.append(false, |record, origin| frame::write_job(record, origin, envelope, data))
    }

    /// Appends jobs in one write: all of them are accepted, or none.
    pub fn push_all<D: AsRef<[u8]>>(&mut self, envelope: &Envelope, jobs: &[D]) -> Result<Vec<JobId>, Failure> {
        if let Some(data) = jobs.iter().find(|data| data.as_ref().len() > DATA_MAX) {
            return Err(too_long(data.as_ref().len()));
        }
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let starts = std::cell::RefCell::new(Vec::with_capacity(jobs.len()));
        let first = self.append(jobs.len() > 1, |record, origin| {
            starts.borrow_mut().clear();
            for data in jobs {
                starts.borrow_mut().push(record.len() as u64);
                frame::write_job(record, origin, envelope, data.as_ref());
            }
        })?;
        let ids = starts.into_inner().into_iter().map(|at| JobId { offset: first.offset + at, ..first });
        Ok(ids.collect())
    }

    /// Opens a run on these terms, before its first job.
    pub fn open_run(&mut self, run: RunId, terms: &RunTerms) -> Result<(), Failure> {
        self.append(false, |record, origin| frame::write_open(record, origin, run, terms)).map(|_| ())
    }

    /// Says that nobody adds to the run any more, after everything this writer has written.
    pub fn seal(&mut self, run: RunId) -> Result<(), Failure> {
        let after = self.written.clone();
        self.append(false, |record, origin| frame::write_seal(record, origin, run, &after)).map(|_| ())
    }

    /// Appends one job per line; empty lines are none, a last line without an end counts. All are accepted, or none.
    pub fn push_lines(&mut self, envelope: &Envelope, lines: &[u8]) -> Result<Vec<IdRange>, Failure> {
        let blocks = cut(lines)?;
        if blocks.is_empty() {
            return Ok(Vec::new());
        }
        let mut target = self.locked()?;
        let origin = target.origin;
        let result = write_blocks(&mut target, envelope, lines, &blocks);
        let (ranges, end) = self.finish(target, result)?;
        self.note(origin, end);
        Ok(ranges)
    }

    /// Makes everything written so far durable. A failure is final: nobody knows what is on disk.
    pub fn sync(&mut self) -> Result<(), Failure> {
        let Some(target) = &mut self.file else { return Ok(()) };
        let unknown = |e: std::io::Error| {
            let mut failure = inbox_failure("cannot sync the inbox", &self.dir, &e);
            failure.text.push_str("; whether the last jobs were accepted is unknown");
            failure
        };
        if !sabotage::on(Sabotage::NoFsync) {
            target.file.sync_data().map_err(unknown)?;
        }
        if !target.entry_synced && !sabotage::on(Sabotage::NoDirectoryFsync) {
            self.disk.sync_dir(&self.dir).map_err(unknown)?;
            target.entry_synced = true;
        }
        Ok(())
    }

    /// One append of one record, or of several that are accepted together.
    fn append(&mut self, several: bool, build: impl Fn(&mut Vec<u8>, Origin)) -> Result<JobId, Failure> {
        let mut target = self.locked()?;
        self.record.clear();
        build(&mut self.record, target.origin);
        let length = self.record.len() as u64;
        let result = match several {
            true => take_room(&mut target.file, length).and_then(|_| write_record(&mut target.file, &self.record)),
            false => write_record(&mut target.file, &self.record),
        };
        let end = self.finish(target, result)?;
        let origin = self.file.as_ref().map(|target| target.origin);
        let Some(origin) = origin else { unreachable!("a finished write leaves its file open") };
        self.note(origin, end);
        Ok(JobId { origin, offset: end - length })
    }

    /// Unlocks; on a failed write first takes back what was written of it.
    fn finish<T>(&mut self, target: Target, result: Result<T, WriteFailure>) -> Result<T, Failure> {
        let result = result.map_err(|failed| {
            if let Some(start) = failed.start {
                // If this fails too, the remains are torn, and a torn record never becomes a job.
                let _ = target.file.set_len(start);
            }
            let mut failure = inbox_failure("cannot write to", &self.path(), &failed.error);
            failure.text.push_str("; the job was rejected");
            failure
        });
        unlock(&target.file).map_err(|e| inbox_failure("cannot unlock", &self.path(), &e))?;
        self.file = Some(target);
        result
    }

    fn note(&mut self, origin: Origin, end: u64) {
        match self.written.last_mut() {
            Some((last, offset)) if *last == origin => *offset = end,
            _ => self.written.push((origin, end)),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(self.name())
    }

    fn name(&self) -> String {
        let uid = rustix::process::geteuid().as_raw();
        if self.number == 1 { uid.to_string() } else { format!("{uid}.{}", self.number) }
    }

    /// The file to append to, locked, open for more.
    fn locked(&mut self) -> Result<Target, Failure> {
        loop {
            let Target { file, header, origin, entry_synced } = match self.file.take() {
                Some(target) => target,
                None => self.reopen()?,
            };
            match self.disk.wait_for_lock(file, self.patience) {
                Ok(Waited::Locked(file)) if header.is_open() || sabotage::on(Sabotage::NoSealCheck) => {
                    return Ok(Target { file, header, origin, entry_synced });
                }
                // It was sealed while we were away: the name leads to the next one.
                Ok(Waited::Locked(_)) => {}
                Ok(Waited::Busy) if self.number < FILES_MAX => self.number += 1,
                Ok(Waited::Busy) => {
                    let holder = self.disk.facts(&self.path()).ok().and_then(|facts| self.disk.holder(&facts));
                    let by = holder.map_or("another program".into(), |pid| format!("process {pid}"));
                    let text = format!("{} files of {} are locked, the last by {by}", FILES_MAX, self.dir.display());
                    return Err(Failure::new(error::Kind::TryLater, text));
                }
                Err(error) => return Err(inbox_failure("cannot lock", &self.path(), &error)),
            }
        }
    }

    /// Opens the file behind our name; makes it, or puts aside what cannot be appended to.
    fn reopen(&mut self) -> Result<Target, Failure> {
        loop {
            let path = self.path();
            let cannot = |e: &std::io::Error| inbox_failure("cannot open", &path, e);
            let file = match files::open(&path, true) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    files::create(&self.disk, &self.dir, &self.name())?;
                    continue;
                }
                Err(error) => return Err(cannot(&error)),
            };
            let meta = file.metadata().map_err(|e| cannot(&e))?;
            if !meta.is_file() {
                let text = format!("{} is not a regular file", path.display());
                return Err(Failure::new(error::Kind::CannotCreate, text).hint("move it away"));
            }
            let header = files::read_header(&file).map_err(|e| cannot(&e))?;
            match header {
                Some(FileHeader { origin, boot, sealed: false })
                    if boot == Some(files::boot()) || sabotage::on(Sabotage::NoBootCheck) =>
                {
                    let header = MappedHeader::of(&file).map_err(|e| cannot(&e))?;
                    return Ok(Target { file, header, origin, entry_synced: false });
                }
                other => self.set_aside(file, other, &path)?,
            }
        }
    }

    /// A file of another boot may have lost its end, a foreign file believes no frames, a sealed one is full.
    fn set_aside(&mut self, file: File, header: Option<FileHeader>, path: &Path) -> Result<(), Failure> {
        let cannot = |e: &std::io::Error| inbox_failure("cannot set aside", path, e);
        let file = match self.disk.wait_for_lock(file, self.patience).map_err(|e| cannot(&e))? {
            Waited::Locked(file) => file,
            Waited::Busy => {
                self.number += 1;
                return Ok(());
            }
        };
        if files::is_at(&self.disk, &file, path).map_err(|e| cannot(&e))? {
            let origin = match header {
                Some(header) => header.origin,
                None => files::random_origin(&self.disk).map_err(|e| cannot(&e))?,
            };
            files::seal(&self.disk, &self.dir, &self.name(), origin).map_err(|e| cannot(&e))?;
            self.disk.sync_dir(&self.dir).map_err(|e| cannot(&e))?;
        }
        Ok(())
    }
}

/// What stands in front of a block, about.
const FRONT_ABOUT: usize = 64;

/// A write that was refused, and the size to go back to where something of it was written.
struct WriteFailure {
    error: std::io::Error,
    start: Option<u64>,
}

/// One append; returns the end of the file.
fn write_record(file: &mut File, record: &[u8]) -> Result<u64, WriteFailure> {
    let refused = |error| WriteFailure { error, start: None };
    match retry(|| file.write(record)) {
        Ok(n) if n == record.len() || sabotage::on(Sabotage::ShortWriteAccepted) => {
            file.stream_position().map_err(refused)
        }
        Ok(short) => {
            let start = file.stream_position().map_err(refused)? - short as u64;
            // Room may come back meanwhile: a record whose last byte is written may have been read, so it is accepted.
            match file.write_all(&record[short..]) {
                Ok(()) => Ok(start + record.len() as u64),
                Err(error) => Err(WriteFailure { error, start: Some(start) }),
            }
        }
        Err(error) => Err(refused(error)),
    }
}

fn retry<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// One stretch of the input that becomes one frame.
struct Block {
    from: usize,
    to: usize,
    jobs: u32,
    /// Holds a fence: goes as a single escaped job.
    escaped: bool,
}

/// Cuts lines into blocks. A line that ends in CAN would look like the start of a record and goes alone.
fn cut(lines: &[u8]) -> Result<Vec<Block>, Failure> {
    let mut blocks = Vec::with_capacity(lines.len() / BLOCK_BYTES + 1);
    let has_can = memchr::memchr(CAN, lines).is_some();
    let (mut from, mut at, mut count, mut jobs) = (0, 0, 0, 0);
    for end in memchr::memchr_iter(b'\n', lines).chain((!lines.ends_with(b"\n")).then_some(lines.len())) {
        if end - at > DATA_MAX {
            return Err(too_long(end - at));
        }
        if has_can && end > at && lines[end - 1] == CAN {
            close(&mut blocks, from, at, jobs);
            blocks.push(Block { from: at, to: end, jobs: 1, escaped: true });
            (from, count, jobs) = (end + 1, 0, 0);
        } else {
            jobs += u32::from(end > at);
            count += 1;
            if count == BLOCK_LINES || end + 1 - from >= BLOCK_BYTES {
                close(&mut blocks, from, lines.len().min(end + 1), jobs);
                (from, count, jobs) = (end + 1, 0, 0);
            }
        }
        at = end + 1;
    }
    close(&mut blocks, from, lines.len(), jobs);
    Ok(blocks)
}

/// Ends a block behind the line feed of its last line, or behind the input.
fn close(blocks: &mut Vec<Block>, from: usize, behind: usize, jobs: u32) {
    if jobs > 0 {
        blocks.push(Block { from, to: behind, jobs, escaped: false });
    }
}

/// Writes all blocks under the lock that is held, without copying a line: front, lines, front, lines.
fn write_blocks(
    target: &mut Target,
    envelope: &Envelope,
    lines: &[u8],
    blocks: &[Block],
) -> Result<(Vec<IdRange>, u64), WriteFailure> {
    let start = take_room(&mut target.file, (lines.len() + FRONT_ABOUT * blocks.len()) as u64)?;
    let failed = |error| WriteFailure { error, start: Some(start) };
    let mut ranges = Vec::with_capacity(blocks.len());
    let mut offset = start;
    let mut first = 0;
    let mut fronts = Vec::new();
    while first < blocks.len() {
        let mut bytes = 0;
        let count = blocks[first..].iter().take(256).take_while(|block| {
            let fits = bytes < BULK_WRITE;
            bytes += block.to - block.from;
            fits
        });
        let count = count.count();
        fronts.clear();
        let mut ends = Vec::with_capacity(count);
        for block in &blocks[first..first + count] {
            let body = write_block_front(&mut fronts, target.origin, envelope, lines, block);
            ends.push((fronts.len(), body));
        }
        let mut slices = Vec::with_capacity(3 * count);
        let mut at = 0;
        for ((front, body), block) in ends.iter().zip(&blocks[first..]) {
            let (id, jobs) = (offset + u64::from(!block.escaped), block.jobs);
            ranges.push(IdRange { first: JobId { origin: target.origin, offset: id }, count: jobs });
            slices.push(IoSlice::new(&fronts[at..*front]));
            slices.push(IoSlice::new(body));
            let line_feed: &[u8] = if !block.escaped && !body.ends_with(b"\n") { b"\n" } else { b"" };
            slices.push(IoSlice::new(line_feed));
            offset += (front - at + body.len() + line_feed.len()) as u64;
            at = *front;
        }
        write_slices(&mut target.file, &mut slices).map_err(failed)?;
        first += count;
    }
    Ok((ranges, offset))
}

/// Takes the room for many records before the first is written, and tells where they begin: those in front of one that
/// found none may have been read, and would run although all were rejected. Where a file system cannot promise room the
/// write itself tells.
fn take_room(file: &mut File, length: u64) -> Result<u64, WriteFailure> {
    use rustix::io::Errno;
    let refused = |error| WriteFailure { error, start: None };
    let start = file.seek(SeekFrom::End(0)).map_err(refused)?;
    let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if most.is_some_and(|most| start + length > most) {
        return Err(refused(Errno::FBIG.into()));
    }
    match rustix::fs::fallocate(&*file, rustix::fs::FallocateFlags::KEEP_SIZE, start, length.max(1)) {
        // What it took before there was no more is given back.
        Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(WriteFailure { error: error.into(), start: Some(start) }),
        _ => Ok(start),
    }
}

/// Writes what stands before a block's lines; returns the lines with their line feed.
fn write_block_front<'a>(
    fronts: &mut Vec<u8>,
    origin: Origin,
    envelope: &Envelope,
    lines: &'a [u8],
    block: &Block,
) -> &'a [u8] {
    let body = &lines[block.from..block.to];
    if block.escaped {
        frame::write_job(fronts, origin, envelope, body);
        return &[];
    }
    let data = body.strip_suffix(b"\n").unwrap_or(body);
    frame::write_front(fronts, origin, Kind::Block, envelope, data, false);
    body
}

fn write_slices(file: &mut File, mut slices: &mut [IoSlice<'_>]) -> std::io::Result<()> {
    while !slices.is_empty() {
        let written = retry(|| file.write_vectored(slices))?;
        if written == 0 && slices.iter().any(|slice| !slice.is_empty()) {
            return Err(ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

fn too_long(length: usize) -> Failure {
    let text = format!("the data has {length} bytes, expected at most {DATA_MAX}");
    Failure::new(error::Kind::BadData, text).hint("put it in a file and push its path")
}

/// A write past the file size limit must fail with an error, not with a signal that kills the program.
fn ignore_file_size_signal() {
    // SAFETY: changes the disposition only where the default, death, is in force.
    unsafe {
        let before = libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        if before != libc::SIG_DFL && before != libc::SIG_IGN && before != libc::SIG_ERR {
            libc::signal(libc::SIGXFSZ, before);
        }
    }
}

#[cfg(test)]
mod tests;
