//! Jobs that have ended, as those get them who are to be told: a job each, in the transaction of the end.
//!
//! The job of an error handler is in the same run, so the run goes on until it is done; that of a channel is in none.
//! What both are told is the job as `windlass show --json` has it, and its errors. Who is told of what is core's to say
//! (`windlass_core::failure`).

use super::{Engine, EngineOptions, unique};
use crate::api;
use crate::store::chunk::ChunkBuilder;
use crate::store::{AttemptError, FollowUp, JobInfo, Settlement, Store, StoreError};
use serde_json::json;
use std::sync::Arc;
use windlass_core::failure::{Handlers, Listener};
use windlass_core::job::{DATA_MAX, JobId, Origin, Priority, QueueName, Record, RunNo};
use windlass_core::judge::Verdict;
use windlass_core::notify::Ending;
use windlass_core::particulars::{Particulars, Scope};
use windlass_core::time::Time;

/// Of a job that would be too large to be told with its own data, this much is, and its length.
const DATA_SHOWN: usize = 64 << 10;

/// What is told together has this in common.
#[derive(Clone, PartialEq)]
struct Key {
    queue: QueueName,
    priority: Priority,
    run: Option<RunNo>,
    lineage: Option<Arc<Particulars>>,
    /// That of the jobs told of: parents that lie together have one.
    parents: Origin,
}

impl Key {
    fn new(
        listener: Listener<'_>,
        priority: Priority,
        run: Option<RunNo>,
        of: Option<&Arc<Particulars>>,
        parents: Origin,
        rule: impl Fn(&QueueName) -> Option<Scope>,
    ) -> Key {
        let (queue, run) = match listener {
            Listener::Handler(queue) => (queue.clone(), run),
            Listener::Channel(queue) => (queue.clone(), None),
        };
        let lineage = unique::lineage(of, rule(&queue));
        Key { queue, priority, run, lineage, parents }
    }
}

/// Where the errors of a job's earlier starts come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Earlier {
    /// The store has them.
    Stored,
    /// Nobody can be asked: only the last one is told.
    Unknown,
}

impl<S: Store> Engine<S> {
    /// The jobs of those who are to be told of what these settlements end.
    pub(super) fn tell_of_ends(
        &mut self,
        settlements: &[Settlement],
        earlier: Earlier,
        now: Time,
    ) -> Result<Vec<FollowUp>, StoreError> {
        let (mut told, mut follow_ups) = (Vec::<(Key, ChunkBuilder)>::new(), Vec::new());
        for settlement in settlements {
            let Some(ending) = Ending::of_verdict(&settlement.verdict) else { continue };
            let (held, lane) = (&settlement.held, settlement.held.lane);
            let of = held.jobs.particulars();
            let own = of.and_then(|of| of.notify.as_ref());
            if !self.handlers.may_hear(ending) && !own.is_some_and(|own| own.hears(ending)) {
                continue;
            }
            let policy = self.scheduler.policy_of(lane.queue).map(|(_, policy)| policy);
            let listeners = self.handlers.listeners(policy.as_deref(), own, self.queue_name(lane.queue), ending);
            let rule = |queue: &QueueName| self.scheduler.unique_of(queue.as_str());
            let key = |listener| Key::new(listener, lane.priority, held.run, of, held.jobs.origin(), rule);
            let keys: Vec<Key> = listeners.into_iter().map(key).collect();
            if keys.is_empty() {
                continue;
            }
            let message = match &settlement.verdict {
                Verdict::Succeed { message } => Some(message.as_str()),
                _ => None,
            };
            for info in self.ended(settlement, earlier, now)? {
                let words = words(&info, ending, message);
                for key in &keys {
                    let (origin, offset) = self.options.ids.take(1);
                    let at = told.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
                        told.push((key.clone(), ChunkBuilder::new(origin).with(key.lineage.clone())));
                        told.len() - 1
                    });
                    let builder = &mut told[at].1;
                    if builder.is_full() {
                        follow_ups.push(close(key, builder));
                    }
                    builder.push_from(info.id, offset, &words);
                }
            }
        }
        follow_ups.extend(told.into_iter().map(|(key, mut builder)| close(&key, &mut builder)));
        Ok(follow_ups)
    }

    /// The jobs of a settlement as they are when it is written.
    fn ended(&mut self, settlement: &Settlement, earlier: Earlier, now: Time) -> Result<Vec<JobInfo>, StoreError> {
        let (held, verdict) = (&settlement.held, &settlement.verdict);
        let failure = verdict.failure(held.record);
        let (charged, suspected) = match (&failure, verdict) {
            (Some(_), Verdict::Fail { .. }) => (1, 0),
            (Some(_), _) => (0, 1),
            (None, _) => (0, 0),
        };
        let Record { failures, suspicions, .. } = held.record;
        let record = Record { starts: held.start(), failures: failures + charged, suspicions: suspicions + suspected };
        let queue = QueueName::clone(self.queue_name(held.lane.queue));
        let run = held.run.and_then(|no| self.runs.get(no)).map(|run| run.info.id);
        // What has never failed before has no errors to look for.
        let ids: Vec<JobId> = held.ids().collect();
        let before = match (held.record.starts, earlier) {
            (0, _) | (_, Earlier::Unknown) => vec![None; ids.len()],
            (_, Earlier::Stored) => self.store.jobs(&ids)?,
        };
        let infos = held.range().zip(before).map(|(index, before)| {
            let mut errors = before.map(|info| info.errors).unwrap_or_default();
            let error = failure.as_ref().map(|(_, error)| error.clone());
            errors.extend(error.map(|text| AttemptError { start: held.start(), at: now, text }));
            JobInfo {
                id: held.jobs.id(index),
                queue: queue.clone(),
                priority: held.lane.priority,
                kind: held.lane.kind,
                state: verdict.state(),
                run,
                record,
                admitted: held.admitted,
                not_before: None,
                ended: Some(now),
                reason: failure.as_ref().map(|(reason, _)| *reason),
                errors,
                particulars: held.jobs.particulars_of(index),
                data: held.jobs.data(index).to_vec(),
            }
        });
        Ok(infos.collect())
    }
}

/// The jobs of those who are to be told of one that ended without a report, by the rules that hold before this turn: a
/// restart convicts it, or its time has passed.
pub(super) fn of_failed(
    info: &JobInfo,
    run: Option<RunNo>,
    options: &EngineOptions,
    handlers: &Handlers,
) -> Vec<FollowUp> {
    let Some(reason) = info.reason else { return Vec::new() };
    let ending = Ending::of_failure(reason);
    let own = info.particulars.as_ref().and_then(|of| of.notify.as_ref());
    let listeners = handlers.listeners_among(&options.policies, &options.files, own, &info.queue, ending);
    let rule = |queue: &QueueName| {
        let serving = options.policies.iter().find(|policy| policy.serves(queue.as_str(), &options.files));
        serving.and_then(|policy| policy.unique)
    };
    let told = listeners.into_iter().map(|listener| {
        let key = Key::new(listener, info.priority, run, info.particulars.as_ref(), info.id.origin, rule);
        let (origin, offset) = options.ids.take(1);
        let mut builder = ChunkBuilder::new(origin).with(key.lineage.clone());
        builder.push_from(info.id, offset, &words(info, ending, None));
        close(&key, &mut builder)
    });
    told.collect()
}

fn close(key: &Key, builder: &mut ChunkBuilder) -> FollowUp {
    let Key { queue, priority, run, .. } = key.clone();
    FollowUp { queue, priority, run, jobs: Arc::new(builder.finish()) }
}

/// What is told: `{"event","job":{…},"error":{"where","message","attempts":[…]}}`, or `"message"` of what succeeded.
fn words(info: &JobInfo, ending: Ending, message: Option<&str>) -> Vec<u8> {
    let told = |data_max: usize| {
        let mut job = json!(api::Job::new(info, data_max));
        let attempts = job["errors"].take();
        job.as_object_mut().map(|job| job.remove("errors"));
        let event = ending.word();
        let told = match message {
            Some(message) => json!({ "event": event, "job": job, "message": message }),
            None => {
                let place = format!("{}, start {}", info.queue, info.record.starts);
                let message = info.errors.last().map_or("", |error| &error.text);
                let error = json!({ "where": place, "message": message, "attempts": attempts });
                json!({ "event": event, "job": job, "error": error })
            }
        };
        told.to_string().into_bytes()
    };
    let whole = told(usize::MAX);
    if whole.len() > DATA_MAX { told(DATA_SHOWN) } else { whole }
}
