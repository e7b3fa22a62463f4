//! Jobs that failed for good, as their handlers get them: a job each, in the transaction that ends the failed one.
//!
//! The handler's job is in the same run, so the run goes on until it is done. What it is told is the failed job as
//! `windlass show --json` has it, and its errors. Who handles what is core's to say (`windlass_core::failure`).

use super::{Engine, EngineOptions, emit};
use crate::api;
use crate::store::chunk::ChunkBuilder;
use crate::store::{AttemptError, FollowUp, JobInfo, Settlement, Store, StoreError};
use serde_json::json;
use std::sync::Arc;
use windlass_core::failure::Handlers;
use windlass_core::job::{DATA_MAX, JobId, Origin, Priority, QueueName, Record, RunNo};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

/// Of a failed job that would be too large with its own data, its handler gets this much, and its length.
const DATA_SHOWN: usize = 64 << 10;

/// What handlers are told together has this in common.
#[derive(Clone, PartialEq)]
struct Key {
    queue: QueueName,
    priority: Priority,
    run: Option<RunNo>,
    lineage: Option<Arc<Particulars>>,
    /// That of the failed jobs: parents that lie together have one.
    parents: Origin,
}

impl<S: Store> Engine<S> {
    /// The handlers' jobs of those that these settlements end as failed.
    pub(super) fn tell_handlers(&mut self, settlements: &[Settlement], now: Time) -> Result<Vec<FollowUp>, StoreError> {
        let (mut told, mut follow_ups) = (Vec::<(Key, ChunkBuilder)>::new(), Vec::new());
        for settlement in settlements.iter().filter(|settlement| settlement.verdict.state() == State::Failed) {
            let lane = settlement.held.lane;
            let Some((_, policy)) = self.scheduler.policy_of(lane.queue) else { continue };
            let handler = self.handlers.handler(&policy, self.queue_name(lane.queue)).cloned();
            let Some(handler) = handler else { continue };
            let lineage = emit::same_lineage(settlement.held.jobs.particulars());
            let key = Key {
                queue: handler,
                priority: lane.priority,
                run: settlement.held.run,
                lineage,
                parents: settlement.held.jobs.origin(),
            };
            for info in self.failed(settlement, now)? {
                let (origin, offset) = self.options.ids.take(1);
                let at = told.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                    told.push((key.clone(), ChunkBuilder::new(origin).with(key.lineage.clone())));
                    told.len() - 1
                });
                let builder = &mut told[at].1;
                if builder.is_full() {
                    follow_ups.push(close(&key, builder));
                }
                builder.push_from(info.id, offset, &words(&info));
            }
        }
        follow_ups.extend(told.into_iter().map(|(key, mut builder)| close(&key, &mut builder)));
        Ok(follow_ups)
    }

    /// The jobs of a settlement as they are when it is written.
    fn failed(&mut self, settlement: &Settlement, now: Time) -> Result<Vec<JobInfo>, StoreError> {
        let held = &settlement.held;
        let Some((reason, error)) = settlement.verdict.failure(held.record) else { return Ok(Vec::new()) };
        let charged = u32::from(matches!(settlement.verdict, Verdict::Fail { .. }));
        let Record { failures, suspicions, .. } = held.record;
        let record =
            Record { starts: held.start(), failures: failures + charged, suspicions: suspicions + 1 - charged };
        let queue = QueueName::clone(self.queue_name(held.lane.queue));
        let run = held.run.and_then(|no| self.runs.get(no)).map(|run| run.info.id);
        // What has never failed before has no errors to look for.
        let ids: Vec<JobId> = held.ids().collect();
        let before = match held.record.starts {
            0 => vec![None; ids.len()],
            _ => self.store.jobs(&ids)?,
        };
        let infos = held.range().zip(before).map(|(index, before)| {
            let mut errors = before.map(|info| info.errors).unwrap_or_default();
            errors.push(AttemptError { start: held.start(), at: now, text: error.clone() });
            JobInfo {
                id: held.jobs.id(index),
                queue: queue.clone(),
                priority: held.lane.priority,
                kind: held.lane.kind,
                state: State::Failed,
                run,
                record,
                admitted: held.admitted,
                not_before: None,
                ended: Some(now),
                reason: Some(reason),
                errors,
                particulars: held.jobs.particulars_of(index),
                data: held.jobs.data(index).to_vec(),
            }
        });
        Ok(infos.collect())
    }
}

/// The handler's job of one that a restart convicts, by the rules that the server starts with.
pub(super) fn of_convicted(
    info: &JobInfo,
    run: Option<RunNo>,
    options: &EngineOptions,
    handlers: &Handlers,
) -> Option<FollowUp> {
    let handler = handlers.handler_among(&options.policies, &options.files, &info.queue)?;
    let (origin, offset) = options.ids.take(1);
    let lineage = emit::same_lineage(info.particulars.as_ref());
    let mut builder = ChunkBuilder::new(origin).with(lineage.clone());
    builder.push_from(info.id, offset, &words(info));
    Some(close(
        &Key { queue: handler.clone(), priority: info.priority, run, lineage, parents: info.id.origin },
        &mut builder,
    ))
}

fn close(key: &Key, builder: &mut ChunkBuilder) -> FollowUp {
    let Key { queue, priority, run, .. } = key.clone();
    FollowUp { queue, priority, run, jobs: Arc::new(builder.finish()) }
}

/// What a handler gets: `{"job":{…},"error":{"where","message","attempts":[…]}}`.
fn words(info: &JobInfo) -> Vec<u8> {
    let told = |data_max: usize| {
        let mut job = json!(api::Job::new(info, data_max));
        let attempts = job["errors"].take();
        job.as_object_mut().map(|job| job.remove("errors"));
        let place = format!("{}, start {}", info.queue, info.record.starts);
        let message = info.errors.last().map_or("", |error| &error.text);
        let error = json!({ "where": place, "message": message, "attempts": attempts });
        json!({ "job": job, "error": error }).to_string().into_bytes()
    };
    let whole = told(usize::MAX);
    if whole.len() > DATA_MAX { told(DATA_SHOWN) } else { whole }
}
