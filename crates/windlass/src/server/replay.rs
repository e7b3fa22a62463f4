//! Gives the archive what a crash kept from it: outcomes that are committed but in no segment yet.

use crate::archiver::{self, ArchivedTurn, Archiver, Ran};
use crate::error::Failure;
use crate::runner::Output;
use crate::store::{Settlement, Store};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use windlass_core::job::{QueueName, QueueNo, RunId, RunNo};

/// Appends every turn that the archive does not hold; a turn is written once however often this is done. Tells the last
/// of them, if there are any.
pub(super) fn replay(store: &mut impl Store, archiver: &Archiver) -> Result<Option<u64>, Failure> {
    let left = store.unarchived()?;
    let last = left.iter().map(|turn| turn.turn).max();
    if left.is_empty() {
        return Ok(None);
    }
    let names: HashMap<QueueNo, Arc<QueueName>> =
        store.backlog()?.queues.into_iter().map(|(no, name)| (no, Arc::new(name))).collect();
    let mut runs: HashMap<RunNo, RunId> = HashMap::new();
    for turn in left {
        // Runs that have ended meanwhile are among them: the store knows those too.
        for no in turn.settlements.iter().filter_map(|settlement| settlement.held.run) {
            if let Entry::Vacant(place) = runs.entry(no)
                && let Some(info) = store.run_numbered(no)?
            {
                place.insert(info.id);
            }
        }
        let entry = |settlement: Settlement| {
            let queue = names.get(&settlement.held.lane.queue).cloned()?;
            let run = settlement.held.run.and_then(|no| runs.get(&no).copied());
            let state = settlement.verdict.state();
            // Whether they ran alone is not stored; spans are not worth a guess.
            Some(archiver::Entry { settlement, queue, run, output: Output::default(), state, ran: Ran::Not })
        };
        let entries = turn.settlements.into_iter().filter_map(entry).collect();
        archiver.append(ArchivedTurn { turn: turn.turn, entries, together: Vec::new() });
    }
    Ok(last)
}
