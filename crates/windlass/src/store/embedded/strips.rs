//! The rows of marks: one for each opened chunk, or one strip for neighbouring chunks that are alike.
//!
//! A job that is alone in its queue is alone in its chunk; lanes that came together are claimed in the order in which
//! they came, and end so, and a row for each of them twice would be most of what a turn writes. A strip of which one
//! chunk changes is written anew with all of its chunks, in pieces. It must not know what a mark means for a lane.

use super::super::{Place, StoreError};
use super::part::{Head, Mark, Part, Strip};
use super::schema::{corrupt, failed};
use super::{Turn, chunks};
use crate::numbered::ByNumber;
use crate::sabotage::{self, Sabotage};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use windlass_core::job::Arrival;

/// The most chunks of a strip, so that one change costs a bounded number of looks.
const CHUNKS_MOST: usize = 256;

/// Which marks are to be written with this turn, and which of those that are written lie together.
#[derive(Debug, Default)]
pub(super) struct Strips {
    touched: Vec<u64>,
    /// The first and the last chunk of each strip that may still change.
    claimed: BTreeMap<u64, u64>,
}

impl Strips {
    /// Nothing is to be written.
    pub(super) fn is_clean(&self) -> bool {
        self.touched.is_empty()
    }

    /// A chunk is opened: it lies in no strip yet.
    pub(super) fn open(&mut self, first: u64) {
        self.touched.push(first);
    }

    /// The marks of a chunk change for the first time in this turn; those of its strip are written with them.
    pub(super) fn touch(&mut self, first: u64, parts: &mut ByNumber<u64, Part>) -> Result<(), StoreError> {
        self.touched.push(first);
        let around = self.claimed.range(..=first).next_back().filter(|(_, last)| **last >= first);
        let Some((begin, last)) = around.map(|(begin, last)| (*begin, *last)) else { return Ok(()) };
        self.claimed.remove(&begin);
        let mut next = begin;
        while next <= last {
            let part = parts.get_mut(&next).ok_or_else(|| corrupt(format!("chunk {next} is not open")))?;
            if next != first && !std::mem::replace(&mut part.dirty, true) {
                self.touched.push(next);
            }
            next += u64::from(part.head.count);
        }
        Ok(())
    }
}

/// A chunk whose marks are to be written.
struct Changed {
    first: u64,
    /// Where its neighbour begins.
    next: u64,
    alike: Option<Mark>,
    had_row: bool,
}

impl Changed {
    fn leads_to(&self, next: &Changed) -> bool {
        self.next == next.first && self.alike.is_some() && self.alike == next.alike
    }
}

impl Turn<'_> {
    /// Writes the marks that this turn has changed: all that are gone are so since this turn.
    pub(super) fn write_marks(&mut self) -> Result<(), StoreError> {
        let mut touched = std::mem::take(&mut self.m.strips.touched);
        touched.sort_unstable();
        let mut changed = Vec::with_capacity(touched.len());
        for first in touched {
            let Some(part) = self.m.parts.get_mut(&first) else { continue };
            part.dirty = false;
            if part.claimed == 0 || !sabotage::on(Sabotage::ClaimNotStored) {
                self.m.state.parts += u64::from(!std::mem::replace(&mut part.stored, true));
                let had_row = std::mem::take(&mut part.has_row);
                let next = first + u64::from(part.head.count);
                changed.push(Changed { first, next, alike: part.alike(), had_row });
            }
        }
        let together = changed.chunk_by(Changed::leads_to).flat_map(|alike| alike.chunks(CHUNKS_MOST));
        together.into_iter().try_for_each(|chunks| self.write_row(chunks))
    }

    /// One row for neighbours.
    fn write_row(&mut self, chunks: &[Changed]) -> Result<(), StoreError> {
        let [Changed { first, alike, .. }, others @ ..] = chunks else { return Ok(()) };
        let part = self.m.parts.get_mut(first).ok_or_else(|| corrupt(format!("chunk {first} is not open")))?;
        part.has_row = true;
        let bytes = match others.last().zip(*alike) {
            None => part.encode(),
            Some((last, mark)) => {
                if others.iter().any(|other| other.had_row) {
                    let sql = "DELETE FROM part WHERE first > ?1 AND first <= ?2";
                    let mut statement = self.db.prepare_cached(sql).map_err(failed)?;
                    statement.execute([*first, last.first]).map_err(failed)?;
                }
                if mark == Mark::Claimed {
                    self.m.strips.claimed.insert(*first, last.first);
                }
                Strip { last: last.first, mark }.encode(*first)
            }
        };
        let gone = (*alike == Some(Mark::Gone)).then_some(self.m.state.turn + 1);
        let sql = "INSERT OR REPLACE INTO part (first, gone, bits) VALUES (?1, ?2, ?3)";
        let mut statement = self.db.prepare_cached(sql).map_err(failed)?;
        statement.execute(params![first, gone, bytes]).map_err(failed).map(|_| ())
    }
}

/// The stored marks of a chunk, where it was opened.
pub(super) fn part_of(db: &Connection, head: Head) -> Result<Part, StoreError> {
    let sql = "SELECT first, bits FROM part WHERE first <= ?1 ORDER BY first DESC LIMIT 1";
    let mut statement = db.prepare_cached(sql).map_err(failed)?;
    let row = statement.query_row([head.first], |r| Ok((r.get::<_, u64>(0)?, r.get::<_, Vec<u8>>(1)?)));
    let Some((first, bytes)) = row.optional().map_err(failed)? else { return Ok(Part::fresh(head)) };
    match Strip::decode(first, &bytes)? {
        Some(strip) if head.first <= strip.last => Ok(Part::within(head, strip, first == head.first)),
        Some(_) => Ok(Part::fresh(head)),
        None if first == head.first => Part::decode(head, &bytes),
        None => Ok(Part::fresh(head)),
    }
}

/// Reads the marks of all opened chunks; returns those that are over, with the turn that ended them.
pub(super) fn load(
    db: &Connection,
    parts: &mut ByNumber<u64, Part>,
    strips: &mut Strips,
) -> Result<Vec<(u64, Place)>, StoreError> {
    let sql = format!("SELECT {}, p.gone, p.bits FROM part p JOIN chunk c ON c.first = p.first", chunks::HEAD);
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    let mut finished = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let head = chunks::read_head(row)?;
        let gone: Option<u64> = row.get(chunks::HEAD_COLUMNS).map_err(failed)?;
        let bytes: Vec<u8> = row.get(chunks::HEAD_COLUMNS + 1).map_err(failed)?;
        let read = match Strip::decode(head.first, &bytes)? {
            None => vec![Part::decode(head, &bytes)?],
            Some(strip) => {
                if strip.mark == Mark::Claimed {
                    strips.claimed.insert(head.first, strip.last);
                }
                load_strip(db, head.first, strip)?
            }
        };
        for part in read {
            let first = part.head.first;
            if part.is_gone() != gone.is_some() {
                return Err(corrupt(format!("the end of chunk {first} is not what its marks say")));
            }
            parts.insert(first, part);
            finished.extend(gone.map(|turn| (turn, Place::Chunk(Arrival(first)))));
        }
    }
    Ok(finished)
}

/// The chunks of a strip: between neighbours there is none that is missing.
fn load_strip(db: &Connection, first: u64, strip: Strip) -> Result<Vec<Part>, StoreError> {
    let sql = format!("SELECT {} FROM chunk c WHERE c.first BETWEEN ?1 AND ?2 ORDER BY c.first", chunks::HEAD);
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    let mut rows = statement.query([first, strip.last]).map_err(failed)?;
    let (mut parts, mut next) = (Vec::new(), first);
    while let Some(row) = rows.next().map_err(failed)? {
        let head = chunks::read_head(row)?;
        if head.first != next {
            break;
        }
        next += u64::from(head.count);
        parts.push(Part::within(head, strip, head.first == first));
    }
    match parts.last() {
        Some(part) if part.head.first == strip.last => Ok(parts),
        _ => Err(corrupt(format!("chunk {next} has marks and is missing"))),
    }
}
