//! An export comes back: checked as a whole, admitted as a whole, under the ids that its jobs had.
//!
//! A job that is here already, waiting or ended, is left alone, so importing twice changes nothing. One import at a
//! time: between the look for an id and its admission no other may bring it in.

use super::app::{Call, json};
use super::problem::Problem;
use crate::api::NDJSON;
use crate::api::export::{Entry, IMPORT_MAX, Imported, Job, Reader};
use crate::engine::event::Event;
use crate::engine::handle::IdSource;
use crate::error::{Failure, Kind};
use crate::http::Reads;
use crate::store::chunk::ChunkBuilder;
use crate::store::{Durability, Lot, NewJobs};
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use http_body_util::{BodyExt, Limited};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use windlass_core::job::{JobId, Origin, Priority, QueueName, RunId};
use windlass_core::particulars::Particulars;
use windlass_core::time::Time;

/// What jobs of one chunk have in common.
type Key = (QueueName, Priority, Option<RunId>, Option<Time>, Origin, Option<Arc<Particulars>>);

pub(super) async fn import(mut call: Call) -> Result<Response, Problem> {
    let query = call.query(&["resume"])?;
    let resume = query.truth("resume")?.unwrap_or(false);
    let text = call.headers.get("content-type").and_then(|media| media.to_str().ok());
    if text != Some(NDJSON) {
        let text = format!("expected a body of type {NDJSON}");
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Kind::Usage, text).closing());
    }
    let _alone = call.app.imports.lock().await;
    let body = std::mem::replace(&mut call.body, Body::empty());
    let collected = Limited::new(body, IMPORT_MAX).collect().await.map_err(|_| {
        let text = format!("an import may have at most {} MiB, and must come whole", IMPORT_MAX >> 20);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, Kind::BadData, text).hint("export by queue or state").closing()
    })?;
    let bytes = collected.to_bytes();
    call.app.catch_up().await?;
    let app = call.app.clone();
    let read = call.app.read(move |reads| wanted(&bytes, resume, reads, app.handle.ids()));
    let (jobs, done) = read.await?;
    if !jobs.is_empty() {
        let lot = Lot { jobs: lay_out(jobs), ..Lot::default() };
        call.app.ask(|answer| Event::Pushed { lot, durability: Durability::Full, answer }).await?;
    }
    json(StatusCode::OK, &done)
}

/// The jobs that are to be admitted, and what becomes of the others.
fn wanted(text: &[u8], resume: bool, reads: &Reads, ids: &IdSource) -> Result<(Vec<Job>, Imported), Failure> {
    let mut done = Imported::default();
    let mut jobs: BTreeMap<JobId, Job> = BTreeMap::new();
    let mut ended = HashSet::new();
    let mut reader = Reader::new(text)?;
    while let Some(line) = reader.next_job()? {
        let entry = line.entry(resume).map_err(|why| Failure { text: reader.bad(&why).text, ..why })?;
        let job = match entry {
            Entry::Waits(job) => job,
            Entry::Ended(id) => {
                ended.insert(id);
                continue;
            }
        };
        let id = job.id;
        if let Some(before) = jobs.insert(id, job)
            && jobs.get(&id).is_some_and(|job| (&job.data, &job.queue) != (&before.data, &before.queue))
        {
            return Err(reader.bad(format!("{id} comes twice with different data")));
        }
    }
    // One that ended while it was being exported stands there twice: it has ended.
    jobs.retain(|id, _| !ended.contains(id));
    done.ended = ended.len() as u64;
    let view = (reads.view)()?;
    let mut new = Vec::with_capacity(jobs.len());
    for (id, mut job) in jobs {
        if view.job(id)?.is_some() || !(reads.archive.find)(id)?.is_empty() {
            done.known += 1;
            continue;
        }
        if ids.will_give(id) {
            let text = format!("{id} is an id that this server will give to another job");
            return Err(Failure::new(Kind::Conflict, text).hint("restart the server, then import again"));
        }
        if let Some(run) = job.run
            && view.run(run)?.is_none_or(|run| run.counts.ended)
        {
            job.run = None;
            done.without_run += 1;
        }
        done.imported += 1;
        new.push(job);
    }
    Ok((new, done))
}

/// Lays jobs of the same kind and origin into chunks, in the order of their ids, which is how they come.
fn lay_out(jobs: Vec<Job>) -> Vec<NewJobs> {
    let mut groups: Vec<(Key, ChunkBuilder)> = Vec::new();
    let mut laid = Vec::new();
    let mut finish = |key: &Key, builder: &mut ChunkBuilder| {
        let (queue, priority, run, not_before, ..) = key.clone();
        laid.push(NewJobs { queue, priority, run, not_before, jobs: Arc::new(builder.finish()) });
    };
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for job in jobs {
        let key: Key = (job.queue, job.priority, job.run, job.not_before, job.id.origin, job.particulars);
        let place = *places.entry(format!("{key:?}")).or_insert_with(|| {
            let builder = ChunkBuilder::new(job.id.origin).with(key.5.clone());
            groups.push((key, builder));
            groups.len() - 1
        });
        let (key, builder) = &mut groups[place];
        if builder.is_full() {
            finish(key, builder);
        }
        builder.push(job.id.offset, &job.data);
    }
    for (key, builder) in &mut groups {
        finish(key, builder);
    }
    laid
}
