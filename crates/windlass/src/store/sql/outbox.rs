//! Ends that could not be written because the database is away, on the disk of this machine.
//!
//! The engine keeps them in memory and writes them when the database answers. Should this process end before that, the
//! next one finds them here and writes them, in the name of the opening that ran their jobs, before that opening's jobs
//! are taken back. Each counts only while its token does, so writing one twice changes nothing.
//!
//! ```text
//! repeated: u32 length | version, checksum, epoch, number of ends, ends as in outcomes, number of follow-ups,
//!           follow-ups: queue, priority, run + 1, jobs                                               little endian
//! ```

use super::{SqlStore, StoreError, outcomes};
use crate::sabotage::{self, Sabotage};
use crate::store::chunk::Chunk;
use crate::store::embedded::turns;
use crate::store::embedded::wire::{Reader, Writer};
use crate::store::late::{self, Ends};
use crate::store::{FollowUp, Settlement};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use windlass_core::job::{JobId, Priority, QueueName, RunNo};
use windlass_core::time::Time;

#[derive(Debug)]
pub(super) struct Outbox {
    path: PathBuf,
    file: Option<File>,
    /// Starts that are in it and not written to the database yet.
    waiting: HashSet<(JobId, u32)>,
    /// What an earlier process left in it, by the opening that ran it.
    found: Vec<(u64, Ends)>,
}

impl Outbox {
    pub(super) fn open(path: PathBuf) -> Result<Outbox, StoreError> {
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(StoreError::Io(format!("cannot read {}: {error}", path.display()))),
        };
        let (found, whole) = read_all(&bytes);
        if whole < bytes.len() {
            // What is appended behind a torn record would never be found.
            let cut = OpenOptions::new().write(true).open(&path).and_then(|file| {
                file.set_len(whole as u64)?;
                file.sync_all()
            });
            cut.map_err(|error| StoreError::Io(format!("cannot cut {}: {error}", path.display())))?;
        }
        Ok(Outbox { path, file: None, waiting: HashSet::new(), found })
    }

    /// On disk when this returns.
    fn append(&mut self, record: &[u8]) -> Result<(), StoreError> {
        let failed = |error| StoreError::Io(format!("cannot write {}: {error}", self.path.display()));
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let opened = OpenOptions::new().create(true).append(true).open(&self.path).map_err(failed)?;
                // The name has to be on disk, too.
                let dir = self.path.parent().unwrap_or(Path::new("."));
                File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
                none.insert(opened)
            }
        };
        let before = file.metadata().map_err(failed)?.len();
        let length = (record.len() as u32).to_le_bytes();
        let written = file.write_all(&[&length[..], record].concat()).and_then(|()| file.sync_data());
        if written.is_err() {
            // Half a record would hide those behind it; where even this fails, the next opening cuts it off.
            let _ = file.set_len(before);
        }
        written.map_err(failed)
    }

    fn remove(&mut self) -> Result<(), StoreError> {
        self.file = None;
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(StoreError::Io(format!("cannot remove {}: {error}", self.path.display())))
            }
            _ => Ok(()),
        }
    }
}

/// All records up to the first that is not whole, and where that begins: a cut one was never counted on.
fn read_all(bytes: &[u8]) -> (Vec<(u64, Ends)>, usize) {
    let (mut found, mut left) = (Vec::new(), bytes);
    while let Some((length, rest)) = left.split_first_chunk::<4>() {
        let Some((record, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else { break };
        let Ok(read) = decode(record) else { break };
        found.push(read);
        left = rest;
    }
    (found, bytes.len() - left.len())
}

fn encode(epoch: u64, settlements: &[&Settlement], follow_ups: &[FollowUp]) -> Vec<u8> {
    let mut writer = Writer::begin();
    writer.number(epoch);
    writer.number(settlements.len() as u64);
    settlements.iter().for_each(|settlement| outcomes::encode(&mut writer, settlement));
    writer.number(follow_ups.len() as u64);
    for FollowUp { queue, priority, run, jobs } in follow_ups {
        writer.text(queue.as_str());
        writer.signed(i64::from(priority.value()));
        writer.number(run.map_or(0, |run| u64::from(run.0) + 1));
        writer.bytes(jobs.as_bytes());
    }
    writer.finish()
}

fn decode(record: &[u8]) -> Result<(u64, Ends), StoreError> {
    let mut reader = Reader::open(record, "what was set aside")?;
    let bad = |what: &str| StoreError::Corrupt(format!("what was set aside has {what}"));
    let chunk = |bytes: &[u8]| Chunk::from_bytes(bytes.to_vec()).map(Arc::new).map_err(|_| bad("damaged jobs"));
    let epoch = reader.number()?;
    let mut ends = Ends::default();
    for _ in 0..reader.number()? {
        let jobs = chunk(reader.bytes()?)?;
        ends.settlements.push(turns::decode(&mut reader)?.with(jobs));
    }
    for _ in 0..reader.number()? {
        let queue = QueueName::new(reader.text()?.as_bytes()).map_err(|e| bad(&e.to_string()))?;
        let priority = Priority::new(reader.signed()?).ok_or_else(|| bad("no such priority"))?;
        let run = reader.small::<u32>()?.checked_sub(1).map(RunNo);
        ends.follow_ups.push(FollowUp { queue, priority, run, jobs: chunk(reader.bytes()?)? });
    }
    Ok((epoch, ends))
}

/// The starts that some ends are about.
pub(super) fn starts(settlements: &[Settlement]) -> impl Iterator<Item = (JobId, u32)> + '_ {
    settlements.iter().flat_map(|end| end.held.ids().map(|id| (id, end.held.start())))
}

impl SqlStore {
    /// The engine tries again every second; what is on disk already is not written again.
    pub(super) fn keep_in_outbox(
        &mut self,
        settlements: &[Settlement],
        follow_ups: &[FollowUp],
    ) -> Result<(), StoreError> {
        let epoch = self.epoch;
        let Some(outbox) = &mut self.outbox else { return Ok(()) };
        let is_new = |end: &&Settlement| end.held.ids().any(|id| !outbox.waiting.contains(&(id, end.held.start())));
        let new: Vec<&Settlement> = settlements.iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let ids: HashSet<JobId> = new.iter().flat_map(|end| end.held.ids()).collect();
        let theirs = |new: &&FollowUp| new.jobs.parent(0).is_none_or(|parent| ids.contains(&parent));
        let theirs: Vec<FollowUp> = follow_ups.iter().filter(theirs).cloned().collect();
        outbox.append(&encode(epoch, &new, &theirs))?;
        outbox.waiting.extend(starts(settlements));
        Ok(())
    }

    /// These ends are in the open turn.
    pub(super) fn settled_now(&mut self, settlements: &[Settlement]) {
        if let Some(outbox) = self.outbox.as_mut().filter(|outbox| !outbox.waiting.is_empty()) {
            for start in starts(settlements) {
                outbox.waiting.remove(&start);
            }
        }
    }

    /// After a commit: what was set aside is written.
    pub(super) fn drop_outbox(&mut self) -> Result<(), StoreError> {
        match &mut self.outbox {
            Some(outbox) if outbox.file.is_some() && outbox.waiting.is_empty() => outbox.remove(),
            Some(_) | None => Ok(()),
        }
    }

    /// Writes what an earlier process left, as far as its starts are still held.
    pub(super) fn write_what_was_set_aside(&mut self, now: Time) -> Result<(), StoreError> {
        let found = match &self.outbox {
            Some(outbox) => outbox.found.clone(),
            None => return Ok(()),
        };
        if found.is_empty() || sabotage::on(Sabotage::OutboxForgotten) {
            return Ok(());
        }
        for (epoch, ends) in found {
            self.speaks_for = epoch;
            let held: Vec<(JobId, u32)> = starts(&ends.settlements).collect();
            let lost: HashSet<JobId> = self.lost_of(&held)?.into_iter().collect();
            let Ends { settlements, follow_ups } = late::without(&ends.settlements, &ends.follow_ups, &lost);
            let settled = self.settle_all(&settlements, &follow_ups, now);
            self.speaks_for = self.epoch;
            settled?;
        }
        if self.open {
            self.write_turn()?;
        }
        let Some(outbox) = &mut self.outbox else { return Ok(()) };
        outbox.found.clear();
        outbox.remove()
    }
}
