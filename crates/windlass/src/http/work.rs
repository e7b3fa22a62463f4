//! Routes of remote workers: ask for jobs, show signs of life, tell the end; and of jobs that speak for themselves.
//!
//! An ask waits at the engine until there is something for it; nobody looks in between. What is handed over to a
//! client that has gone away goes back at once. The end of a start is answered when it is on disk. The routes of one
//! job ask for that job's own token, whoever calls.

use super::app::{App, Call, First, json, race};
use super::guard::bearer;
use super::problem::Problem;
use crate::api::{self, base64, work};
use crate::engine::ask::Ask;
use crate::engine::event::Event;
use crate::error::Kind;
use crate::runner::progress::Channel;
use crate::runner::remote::{Handed, Handover, OUTPUT_MAX, Sign, new_tokens};
use crate::runner::{Output, Stream};
use axum::http::StatusCode;
use axum::response::Response;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use windlass_core::particulars::Subject;

/// The most jobs of one ask, and the longest it may wait.
const MOST: u32 = 100;
const WAIT_MOST: u32 = 60;
/// Queues that one ask may name, and tokens that one sign of life may carry.
const QUEUES_MOST: usize = 100;
const TOKENS_MOST: usize = 1000;

/// Takes an ask back when its client goes away, or has waited long enough.
struct Asking {
    app: Arc<App>,
    number: u64,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.app.counter.unask(self.number);
        // An engine that has ended has no asks.
        let _ended = self.app.handle.send(Event::Unask { number: self.number });
    }
}

pub(super) async fn claim(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let asked: work::Claim = call.json().await?;
    check_queues(&asked.queues)?;
    if !(1..=MOST).contains(&asked.most) || !(1..=WAIT_MOST).contains(&asked.wait_s) {
        let text = format!("expected `most` from 1 to {MOST} and `wait_s` from 1 to {WAIT_MOST}");
        return Err(Problem::refused(text));
    }
    let _place = call.app.stream()?;
    let tokens = new_tokens(asked.most)?;
    let (give, handed) = oneshot::channel::<Handover>();
    let number = call.app.counter.ask(move |handover| {
        // Where nobody takes it any more, the jobs go back as it is dropped.
        let _gone = give.send(handover);
    });
    let asking = Asking { app: Arc::clone(&call.app), number };
    call.app.handle.send(Event::Ask(Ask { number, queues: asked.queues, tokens }))?;
    let waited = timeout(Duration::from_secs(asked.wait_s.into()), handed);
    let jobs = match race(waited, call.app.stopped()).await {
        First::Left(Ok(Ok(handover))) => handover.keep(),
        First::Left(Ok(Err(_)) | Err(_)) => Vec::new(),
        First::Right(()) => return Err(super::app::stopping().into()),
    };
    drop(asking);
    json(StatusCode::OK, &work::Claimed { jobs: jobs.into_iter().map(claimed).collect() })
}

fn check_queues(queues: &[String]) -> Result<(), Problem> {
    let fits = |queue: &String| !queue.is_empty() && queue.len() <= 200 && !queue.chars().any(char::is_control);
    match !queues.is_empty() && queues.len() <= QUEUES_MOST && queues.iter().all(fits) {
        true => Ok(()),
        false => Err(Problem::refused(format!("expected 1 to {QUEUES_MOST} queues or patterns of 1 to 200 bytes"))),
    }
}

fn claimed(job: Handed) -> work::ClaimedJob {
    let (trace, subject) = job.particulars.map(|all| (all.trace.clone(), all.subject.clone())).unwrap_or_default();
    work::ClaimedJob {
        id: job.job.to_string(),
        token: job.token,
        queue: job.queue,
        attempt: job.attempt,
        run: Some(job.run).filter(|run| !run.is_empty()),
        checkpoint: Some(job.checkpoint).filter(|text| !text.is_empty()),
        trace: trace.map(Into::into),
        subject: subject.map(|Subject { kind, id }| api::Subject { kind, id }),
        data: api::Data::new(&job.data),
        lease_s: job.lease.as_secs_f64(),
        time_limit_s: job.policy.time_limit.map(|limit| limit.as_secs_f64()),
        grace_s: job.policy.grace.as_secs_f64(),
        output_max: job.policy.output_max,
    }
}

/// Renews leases; with `wait_s` the answer comes when there is something to tell, or then.
pub(super) async fn heartbeat(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let beat: work::Heartbeat = call.json().await?;
    if beat.tokens.len() > TOKENS_MOST || beat.wait_s > WAIT_MOST {
        let text = format!("expected at most {TOKENS_MOST} tokens and `wait_s` up to {WAIT_MOST}");
        return Err(Problem::refused(text));
    }
    let mut news = call.app.counter.news();
    let mut signs = call.app.counter.renew(&beat.tokens);
    if beat.wait_s > 0 {
        let _place = call.app.stream()?;
        let tokens = &beat.tokens;
        let changed = async {
            while signs.iter().all(|sign| *sign == Sign::GoOn) && news.changed().await.is_ok() {
                signs = call.app.counter.look(tokens);
            }
        };
        let waited = timeout(Duration::from_secs(beat.wait_s.into()), changed);
        if let First::Right(()) = race(waited, call.app.stopped()).await {
            return Err(super::app::stopping().into());
        }
    }
    let words = signs.into_iter().map(|sign| match sign {
        Sign::GoOn => "go_on",
        Sign::Cancel => "cancel",
        Sign::TimeLimit => "time_limit",
        Sign::Over => "over",
    });
    json(StatusCode::OK, &work::Signs { signs: words.map(str::to_owned).collect() })
}

/// Takes the end of a start; answered when it is on disk.
pub(super) async fn reply(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let (job, token) = (call.job()?, own_token(&call)?);
    let mut told: work::Reply = call.json().await?;
    let stdout = stream(told.stdout_base64.take(), told.stdout_total.take())?;
    let output = Output { stdout, stderr: stream(told.stderr_base64.take(), told.stderr_total.take())? };
    let object = serde_json::to_vec(&told).map_err(|e| super::body::unreadable(&e))?;
    let outcome = call.app.counter.reply(job, &token, &object, output)?;
    // What the engine is asked after the end it answers after the end: both are in its next transaction at the latest.
    call.app.ask(|answer| Event::Flights { answer }).await?;
    json(StatusCode::OK, &work::Taken { id: job.to_string(), outcome: outcome.into() })
}

fn stream(coded: Option<String>, total: Option<u64>) -> Result<Stream, Problem> {
    let Some(coded) = coded else { return Ok(Stream::default()) };
    let mut head = base64::decode(&coded).ok_or_else(|| Problem::refused("an output is no base64"))?;
    let total = total.unwrap_or(0).max(head.len() as u64);
    head.truncate(OUTPUT_MAX);
    Ok(Stream { head, file: None, total })
}

/// Control lines, as in the control file.
pub(super) async fn control(call: Call) -> Result<Response, Problem> {
    speak(call, Channel::Control).await
}

/// Further jobs, as in the emit file.
pub(super) async fn emit(call: Call) -> Result<Response, Problem> {
    speak(call, Channel::Emit).await
}

async fn speak(mut call: Call, channel: Channel) -> Result<Response, Problem> {
    call.query(&[])?;
    let (job, token) = (call.job()?, own_token(&call)?);
    let (_, whole) = call.body(&[api::LINES]).await?;
    let mut lines = whole.bytes.to_vec();
    // A file needs its newline; a request has an end.
    if lines.last().is_some_and(|last| *last != b'\n') {
        lines.push(b'\n');
    }
    if !call.app.counter.has(job) {
        call.app.read(move |reads| reads.board.append(job, &token, channel, &lines)).await?;
        return json(StatusCode::OK, &serde_json::json!({}));
    }
    let counter = &call.app.counter;
    if let Some(flight) = counter.weighs(job, &token, channel, &lines)? {
        let lines = lines.clone();
        call.app.ask(|answer| Event::Speak { flight, channel, lines, answer }).await?;
    }
    match channel {
        Channel::Control => counter.control(job, &token, &lines)?,
        Channel::Emit => counter.emit(job, &token, &lines)?,
    }
    json(StatusCode::OK, &serde_json::json!({}))
}

/// The token of the job that a call is about.
fn own_token(call: &Call) -> Result<String, Problem> {
    match bearer(&call.headers) {
        "" => {
            let text = "this needs the token of the job's running start";
            Err(Problem::new(StatusCode::UNAUTHORIZED, Kind::NotPermitted, text)
                .hint("send `Authorization: Bearer TOKEN` with WINDLASS_JOB_TOKEN, or the token of the claim"))
        }
        token => Ok(token.to_owned()),
    }
}
