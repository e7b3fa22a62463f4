//! Where the rules of a queue make its jobs unique: they are told so to the store, which knows no rules.
//!
//! A job that has a key of its own keeps it. It must not look at keys: the store does, in the transaction that takes
//! the job in.

use super::Engine;
use crate::error::{Failure, Kind};
use crate::store::keys::Duplicate;
use crate::store::{Lot, NewJobs, Store, StoreError};
use std::collections::HashMap;
use std::sync::Arc;
use windlass_core::job::JobId;
use windlass_core::particulars::{OnConflict, Particulars, Scope, Unique};
use windlass_core::scheduler::Scheduler;

/// What jobs have that come with these particulars into a queue with this rule.
pub(super) fn with_rules(particulars: &Particulars, rule: Option<Scope>) -> Particulars {
    let by_data = |scope| Unique { scope, on_conflict: OnConflict::Ignore, key: None };
    let unique = particulars.unique.clone().or_else(|| rule.map(by_data));
    Particulars { unique, ..particulars.clone() }
}

/// What a job that stands for another, a copy or a handler's, has of it, the trace and the record it is about, and of
/// the queue that it comes into.
pub(super) fn lineage(of: Option<&Arc<Particulars>>, rule: Option<Scope>) -> Option<Arc<Particulars>> {
    let of = of.filter(|of| of.trace.is_some() || of.subject.is_some());
    if of.is_none() && rule.is_none() {
        return None;
    }
    let Particulars { trace, subject, .. } = of.map(|all| Particulars::clone(all)).unwrap_or_default();
    Some(Arc::new(with_rules(&Particulars { trace, subject, ..Particulars::default() }, rule)))
}

/// The same for jobs that a door has laid out already.
pub(super) fn stamp(lot: &mut Lot, scheduler: &Scheduler) {
    for new in &mut lot.jobs {
        let own = new.jobs.particulars();
        let rule = scheduler.unique_of(new.queue.as_str());
        if own.is_some_and(|own| own.unique.is_some()) || rule.is_none() {
            continue;
        }
        let own = own.map(|own| Particulars::clone(own)).unwrap_or_default();
        let particulars = with_rules(&own, rule);
        new.jobs = Arc::new(new.jobs.rebuilt(Some(Arc::new(particulars)), |_| true));
    }
}

fn unique_of(new: &NewJobs) -> Option<&Unique> {
    new.jobs.particulars().and_then(|particulars| particulars.unique.as_ref())
}

/// Those of the turn's duplicates that were in this lot.
pub(super) fn duplicates_in(lot: &Lot, duplicates: &HashMap<JobId, JobId>) -> Vec<Duplicate> {
    if duplicates.is_empty() {
        return Vec::new();
    }
    let ids = lot.jobs.iter().flat_map(|new| (0..new.jobs.len()).map(|index| new.jobs.id(index)));
    ids.filter_map(|id| duplicates.get(&id).map(|of| Duplicate { id, of: *of })).collect()
}

impl<S: Store> Engine<S> {
    /// Refuses a lot with a job that must not be a duplicate and is one.
    pub(super) fn refuse_taken_keys(&mut self, lot: &Lot) -> Result<Result<(), Failure>, StoreError> {
        let strict = |new: &&NewJobs| unique_of(new).is_some_and(|unique| unique.on_conflict == OnConflict::Reject);
        for new in lot.jobs.iter().filter(strict) {
            let holders = self.store.holders(new)?;
            if let Some(holder) = holders.into_iter().flatten().next() {
                let text = format!("rejected, nothing was stored: {holder} has the unique key");
                return Ok(Err(Failure::new(Kind::Conflict, text)));
            }
        }
        Ok(Ok(()))
    }
}
