//! The inbox on a disk that forgets: what was not synced may go with the power, in part or as noise.
//!
//! It owns the bytes of the inbox files and who wrote which record where. They are read with the shipped scanner
//! and gatherer into lots, synced before they are handed over, as the shipped reader does. It must not know what
//! becomes of a lot but for whether it was committed.

use crate::random::{self, Random};
use windlass::inbox::frame::{self, Envelope, FILE_HEADER, FileHeader};
use windlass::inbox::gather::Gatherer;
use windlass::inbox::scan::{End, Found, Scan, Skip};
use windlass::store::{Cursor, Lot};
use windlass_core::job::{JobId, Origin, QueueName};

/// One record that a producer wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) id: JobId,
    pub(crate) end: usize,
}

#[derive(Debug)]
struct File {
    origin: Origin,
    bytes: Vec<u8>,
    synced: usize,
    /// A power cut closed it: nobody appends any more.
    closed: bool,
    position: usize,
    /// Handed over up to here.
    cursor: usize,
    skip: Option<Skip>,
    /// The last write was torn: only a fence may follow, or the next line would become part of it.
    torn: bool,
    written: Vec<Written>,
}

impl File {
    fn new(origin: Origin) -> File {
        let bytes = FileHeader { origin, boot: None, sealed: false }.encode().to_vec();
        File {
            origin,
            bytes,
            synced: 0,
            closed: false,
            position: FILE_HEADER,
            cursor: FILE_HEADER,
            skip: None,
            torn: false,
            written: Vec::new(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Disk {
    files: Vec<File>,
    gatherer: Gatherer,
    /// Files that were removed; their cursors can go with the next lot.
    removed: Vec<Origin>,
}

impl Disk {
    pub(crate) fn new(random: &mut Random) -> Disk {
        let files = vec![File::new(Origin::from_random(random.next()))];
        Disk { files, gatherer: Gatherer::default(), removed: Vec::new() }
    }

    fn last(&mut self) -> &mut File {
        let last = self.files.len() - 1;
        &mut self.files[last]
    }

    /// Where the next record of ours will stand, which is its id.
    pub(crate) fn end(&mut self) -> (Origin, u64) {
        let file = self.last();
        (file.origin, file.bytes.len() as u64)
    }

    /// Appends a job as our writers do; its id is its place.
    pub(crate) fn write_job(&mut self, envelope: &Envelope, data: &[u8]) -> JobId {
        let file = self.last();
        let id = JobId { origin: file.origin, offset: file.bytes.len() as u64 };
        frame::write_job(&mut file.bytes, file.origin, envelope, data);
        file.torn = false;
        file.written.push(Written { id, end: file.bytes.len() });
        id
    }

    /// Appends a line as any program might; nothing where a torn record would swallow it.
    pub(crate) fn write_line(&mut self, queue: &QueueName, data: &[u8]) -> Option<JobId> {
        let file = self.last();
        if file.torn {
            return None;
        }
        let id = JobId { origin: file.origin, offset: file.bytes.len() as u64 };
        file.bytes.extend_from_slice(queue.as_str().as_bytes());
        file.bytes.push(b'\t');
        file.bytes.extend_from_slice(data);
        file.bytes.push(b'\n');
        file.written.push(Written { id, end: file.bytes.len() });
        Some(id)
    }

    /// A writer died in the middle of a record.
    pub(crate) fn write_torn(&mut self, envelope: &Envelope, data: &[u8], random: &mut Random) {
        let file = self.last();
        let mut bytes = Vec::new();
        frame::write_job(&mut bytes, file.origin, envelope, data);
        let cut = random.between(1, bytes.len() as u64 - 1) as usize;
        file.bytes.extend_from_slice(&bytes[..cut]);
        file.torn = true;
    }

    /// Bytes that make no sense: no tab, so that none of them can be taken for a job.
    pub(crate) fn write_garbage(&mut self, random: &mut Random) {
        let file = self.last();
        for _ in 0..random.between(1, 80) {
            let byte = random.next() as u8;
            file.bytes.push(if byte == b'\t' { b'?' } else { byte });
        }
        file.torn = true;
    }

    pub(crate) fn write_seal(&mut self, run: windlass_core::job::RunId) {
        let (origin, end) = self.end();
        let file = self.last();
        frame::write_seal(&mut file.bytes, origin, run, &[(origin, end)]);
        file.torn = false;
    }

    /// A producer syncs what it appended: from here on those records are accepted, though no engine may know it.
    pub(crate) fn sync(&mut self) {
        let file = self.last();
        file.synced = file.bytes.len();
    }

    /// Loses power: of what was not synced a part stays, and may end in noise. Names the records that are gone.
    pub(crate) fn power_cut(&mut self, random: &mut Random) -> Vec<JobId> {
        let mut gone = Vec::new();
        for file in &mut self.files {
            let kept = random.between(file.synced.min(file.bytes.len()) as u64, file.bytes.len() as u64) as usize;
            file.bytes.truncate(kept);
            gone.extend(file.written.iter().filter(|record| record.end > kept).map(|record| record.id));
            file.written.retain(|record| record.end <= kept);
            if random.chance(300) {
                file.bytes.resize(kept + random.between(1, 64) as usize, 0);
            }
            file.closed = true;
            file.synced = file.bytes.len();
        }
        self.files.retain(|file| file.bytes.len() >= FILE_HEADER);
        self.files.push(File::new(Origin::from_random(random.next())));
        gone
    }

    /// A new reader begins where the store left off.
    pub(crate) fn reopen(&mut self, cursors: &[Cursor]) -> Result<(), String> {
        // A death may have come between the removal of a file and the commit that says so.
        let gone = |cursor: &&Cursor| !self.files.iter().any(|file| file.origin == cursor.origin);
        self.removed = cursors.iter().filter(gone).map(|cursor| cursor.origin).collect();
        for file in &mut self.files {
            let cursor = cursors.iter().find(|cursor| cursor.origin == file.origin);
            file.position = cursor.map_or(FILE_HEADER, |cursor| cursor.offset as usize);
            file.cursor = file.position;
            file.skip = None;
            if file.position > file.bytes.len() {
                return Err(format!("the store has read {} to {}, beyond its end", file.origin, file.position));
            }
            if cursor.is_some_and(|cursor| cursor.tail != tail(&file.bytes[..file.position])) {
                return Err(format!("the bytes of {} before its cursor are not those that were read", file.origin));
            }
        }
        Ok(())
    }

    /// Reads what is new into one lot; the bytes are on disk before it is handed over. A file that nobody appends
    /// to is removed once everything of it is committed.
    pub(crate) fn read(&mut self, locked: bool, all_committed: bool) -> Option<Lot> {
        let mut lot = Lot::default();
        let done = |file: &File| all_committed && file.closed && file.position == file.bytes.len();
        self.removed.extend(self.files.iter().filter(|file| done(file)).map(|file| file.origin));
        self.files.retain(|file| !done(file));
        lot.closed = std::mem::take(&mut self.removed);
        for file in &mut self.files {
            let end = if file.closed {
                End::Closed
            } else if locked {
                End::Locked
            } else {
                End::Open
            };
            let stretch = &file.bytes[file.position..];
            let mut scan = Scan::new(stretch, file.position as u64, Some(file.origin), end, file.skip);
            let mut damage = None;
            for found in scan.by_ref() {
                if let Found::Bad { offset, .. } = &found {
                    damage = Some(*offset as usize);
                }
                // What is no job goes to quarantine, which is not simulated: nothing of it may become a job.
                let _ = self.gatherer.add(stretch, found);
            }
            let (consumed, skip) = (scan.consumed(), scan.skipping());
            lot.seals.extend(self.gatherer.finish(stretch, file.origin, &mut lot.jobs));
            // While something is being passed over the cursor stays in front of it: a restart must begin there.
            let cursor = match (skip, damage) {
                (None, _) => file.position + consumed,
                (Some(_), Some(from)) if file.skip.is_none() || from > file.position => from,
                (Some(_), _) => file.cursor,
            };
            file.position += consumed;
            file.skip = skip;
            if consumed > 0 {
                file.synced = file.bytes.len();
            }
            if cursor > file.cursor {
                file.cursor = cursor;
                let tail = tail(&file.bytes[..cursor]);
                lot.cursors.push(Cursor { origin: file.origin, offset: cursor as u64, tail });
            }
        }
        (!lot.is_empty()).then_some(lot)
    }

    /// Where each file stood, for someone who asks whether all of that was read.
    pub(crate) fn ids_written(&self) -> Vec<JobId> {
        self.files.iter().flat_map(|file| file.written.iter().map(|record| record.id)).collect()
    }
}

fn tail(bytes: &[u8]) -> u32 {
    random::hash(&bytes[bytes.len().saturating_sub(64)..]) as u32
}
