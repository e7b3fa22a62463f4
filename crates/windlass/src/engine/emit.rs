//! From what jobs emitted to jobs that the store takes in: they get ids and are laid together by queue.
//!
//! They keep the priority, the run and the trace of the job that emitted them, and know it as their parent. It must
//! not check anything: the runner did.

use super::{IdSource, unique};
use crate::runner::{Emitted, Finished};
use crate::store::chunk::ChunkBuilder;
use crate::store::{FollowUp, Held};
use std::collections::BTreeMap;
use std::sync::Arc;
use windlass_core::judge::Verdict;
use windlass_core::particulars::Particulars;
use windlass_core::policy::Policy;
use windlass_core::scheduler::Scheduler;

/// The follow-ups of what those jobs of a report emitted that one claim holds, from position `begin` on.
pub(super) fn emitted(
    end: &Finished,
    (begin, held): (u16, &Held),
    ids: &IdSource,
    scheduler: &Scheduler,
) -> Vec<FollowUp> {
    let positions = begin..begin + held.count;
    let emitted = end.emitted.iter().filter(|emitted| positions.contains(&emitted.by));
    follow_ups(emitted, (begin, held), ids, scheduler)
}

/// The follow-ups of what one start held of a queue, from position `begin` on, in the order in which they were emitted
/// within each queue.
pub(super) fn follow_ups<'a>(
    emitted: impl Iterator<Item = &'a Emitted>,
    (begin, held): (u16, &Held),
    ids: &IdSource,
    scheduler: &Scheduler,
) -> Vec<FollowUp> {
    let mut by_queue: BTreeMap<&str, Vec<&Emitted>> = BTreeMap::new();
    for one in emitted {
        by_queue.entry(one.queue.as_str()).or_default().push(one);
    }
    let trace = held.jobs.particulars().and_then(|particulars| particulars.trace.clone());
    let kept = Particulars { trace, ..Particulars::default() };
    let mut follow_ups = Vec::new();
    for jobs in by_queue.into_values() {
        let (origin, first) = ids.take(jobs.len() as u64);
        let queue = &jobs[0].queue;
        let particulars = unique::with_rules(&kept, scheduler.unique_of(queue.as_str()));
        let mut builder = ChunkBuilder::new(origin).with(Some(Arc::new(particulars)));
        let mut close = |builder: &mut ChunkBuilder| {
            let jobs = Arc::new(builder.finish());
            follow_ups.push(FollowUp { queue: queue.clone(), priority: held.lane.priority, run: held.run, jobs });
        };
        for (offset, job) in (first..).zip(&jobs) {
            if builder.is_full() {
                close(&mut builder);
            }
            let parent = held.jobs.id(usize::from(held.first + job.by - begin));
            builder.push_from(parent, offset, &job.data);
        }
        close(&mut builder);
    }
    follow_ups
}

/// What goes to the next stages because its own says so: a job's message, or its data.
pub(super) fn passed_on(
    policy: Option<&Policy>,
    verdict: &Verdict,
    held: &Held,
    ids: &IdSource,
    scheduler: &Scheduler,
) -> Vec<FollowUp> {
    let Some(flow) = policy.and_then(|policy| policy.flow.as_ref()) else { return Vec::new() };
    let Verdict::Succeed { message } = verdict else { return Vec::new() };
    let mut passed = Vec::new();
    for (by, index) in (0..).zip(held.range()) {
        let Some(data) = flow.passes(message, held.jobs.data(index)) else { continue };
        let to = flow.to.iter();
        passed.extend(to.map(|queue| Emitted { by, queue: queue.clone(), data: data.to_vec() }));
    }
    follow_ups(passed.iter(), (0, held), ids, scheduler)
}
