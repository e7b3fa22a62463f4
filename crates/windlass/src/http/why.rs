//! Why something does not start or end: the scheduler's own decision, and what the store says of the rest.
//!
//! For a job, its state decides what there is to say; a ready one is asked about at the scheduler. For a run, the
//! sentences name everything that it still waits for. It must not guess: what it cannot see it does not say.

use super::app::{App, Call, json};
use super::problem::Problem;
use crate::api::steering::{AsideStatus, Why, WhyReason};
use crate::clock;
use crate::engine::event::{AsideInfo, Event, QueueExplained};
use crate::error::Failure;
use crate::store::{DELETED, EXPIRED, Filter, JobInfo, MOVED, RunInfo};
use crate::when;
use axum::http::StatusCode;
use axum::response::Response;
use std::collections::BTreeSet;
use windlass_core::job::{Arrival, JobId, Origin, QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::run::RunCounts;
use windlass_core::scheduler::Reason;
use windlass_core::time::Time;

/// Of a run's jobs so many are looked at for their queues and times.
const LOOKED_AT: usize = 1000;
/// Of the jobs that others wait for so many are named.
const AWAITED_SHOWN: usize = 10;
/// And so many of their queues are asked about.
const QUEUES_ASKED: usize = 10;

pub(super) async fn why(call: Call) -> Result<Response, Problem> {
    let query = call.query(&["of"])?;
    let of = query.needed("of")?.to_owned();
    let why = if let Ok(id) = of.parse::<JobId>() {
        job(&call.app, id).await?
    } else if let Ok(id) = of.parse::<RunId>() {
        run(&call.app, id).await?
    } else {
        queue(&call.app, &of).await?
    };
    json(StatusCode::OK, &why)
}

async fn explain(app: &App, queue: &str) -> Result<QueueExplained, Failure> {
    let queue = queue.to_owned();
    app.ask(|answer| Event::Explain { queue, lane: None, data: Vec::new(), answer }).await
}

async fn queue(app: &App, name: &str) -> Result<Why, Problem> {
    QueueName::new(name.as_bytes()).map_err(|bad| Problem::refused(format!("{name:?} is no queue: {bad}")))?;
    app.catch_up_in_time().await;
    let explained = explain(app, name).await?;
    let noted = without_handler(app, name).await?;
    let aside = aside(app, |kept| kept.queue == name).await?;
    if !explained.known && explained.table.is_none() && noted.is_none() && aside.is_none() {
        let hint = match name.strip_prefix("queue:") {
            Some(bare) => format!("a queue is asked for by its name alone: windlass why {bare}"),
            None => "no job of it is known, and no table serves it".to_owned(),
        };
        return Err(Problem::not_found(format!("no queue {name}")).hint(hint));
    }
    let mut reasons = vec![told(&explained.reason)];
    reasons.extend(stalemate(&explained));
    for (state, words) in [
        (State::Running, "running"),
        (State::Scheduled, "not due yet"),
        (State::Retrying, "waiting for their next try"),
        (State::Suspended, "suspended"),
    ] {
        let count = explained.by_state[state.index()];
        if count > 0 {
            reasons
                .push(WhyReason::new(state.word(), format!("{count} of its jobs {} {words}", are(count))).count(count));
        }
    }
    let table = explained.table;
    reasons.extend(ailing(app, table.as_deref()).await?);
    reasons.extend(noted);
    reasons.extend(aside);
    Ok(Why { what: "queue".into(), name: name.into(), state: None, queue: Some(name.into()), table, reasons })
}

async fn job(app: &App, id: JobId) -> Result<Why, Problem> {
    let mut found = app.read(move |reads| Ok((reads.view)()?.job(id)?)).await?;
    if found.is_none() {
        // Its id was told before it was read in.
        app.catch_up_in_time().await;
        found = app.read(move |reads| Ok((reads.view)()?.job(id)?)).await?;
    }
    let Some(info) = found else {
        let history = app.read(move |reads| (reads.archive.find)(id)).await?;
        let Some(last) = history.last() else {
            let aside = aside(app, |kept| kept.ids.contains(&id)).await?;
            let reasons = vec![aside.ok_or_else(|| Problem::not_found(format!("no job {id}")))?];
            let (what, name) = ("job".into(), id.to_string());
            return Ok(Why { what, name, state: None, queue: None, table: None, reasons });
        };
        let queue = last.get("queue").and_then(|queue| queue.as_str()).map(str::to_owned);
        let word = |key: &str| last.get(key).and_then(|word| word.as_str()).unwrap_or_default().to_owned();
        let (state, outcome) = (word("state"), word("outcome"));
        let reasons = vec![WhyReason::new("ended", gone(&state, &outcome, &word("message")))];
        return Ok(Why { what: "job".into(), name: id.to_string(), state: Some(state), queue, table: None, reasons });
    };
    let (mut reasons, table) = reasons_of(app, &info).await?;
    if matches!(info.state, State::Ready | State::Running) {
        reasons.extend(ailing(app, table.as_deref()).await?);
        reasons.extend(without_handler(app, info.queue.as_str()).await?);
    }
    let (state, queue) = (Some(info.state.word().into()), Some(info.queue.to_string()));
    Ok(Why { what: "job".into(), name: id.to_string(), state, queue, table, reasons })
}

/// What the inbox brought and the database refuses.
async fn aside(app: &App, meant: impl Fn(&AsideInfo) -> bool) -> Result<Option<WhyReason>, Failure> {
    let all = app.ask(|answer| Event::Aside { answer }).await?;
    let meant: Vec<&AsideInfo> = all.iter().filter(|kept| meant(kept)).collect();
    let count = meant.iter().map(|kept| kept.ids.len() as u64).sum();
    let told = meant.last().map(|last| {
        let text = AsideStatus::in_words(&jobs(count), &last.queue, &last.why);
        WhyReason::new("set_aside", text).count(count).at(last.since)
    });
    Ok(told)
}

/// What became of a job that only the archive knows.
fn gone(state: &str, outcome: &str, message: &str) -> String {
    match outcome {
        DELETED => "it was deleted".to_owned(),
        MOVED => format!("it was {message}"),
        EXPIRED => "it has failed: its time had passed".to_owned(),
        _ => format!("it has ended: {state}"),
    }
}

/// What keeps the workers of a table from serving: its jobs are claimed, and none of them gets on.
async fn ailing(app: &App, table: Option<&str>) -> Result<Option<WhyReason>, Failure> {
    let troubles = app.read(|reads| Ok(reads.board.troubles())).await?;
    let trouble = troubles.into_iter().find(|(entry, _)| Some(entry.as_str()) == table);
    Ok(trouble.map(|(_, text)| WhyReason::new("workers_cannot_serve", format!("its workers cannot serve: {text}"))))
}

/// What keeps a queue's file in the directory of handlers from serving it.
async fn without_handler(app: &App, queue: &str) -> Result<Option<WhyReason>, Failure> {
    let queue = queue.to_owned();
    let note = app.read(move |reads| Ok(reads.board.of_handler(&queue))).await?;
    Ok(note.map(|text| WhyReason::new("handler_does_not_serve", text)))
}

/// What a job's state leaves to say.
async fn reasons_of(app: &App, info: &JobInfo) -> Result<(Vec<WhyReason>, Option<String>), Failure> {
    let (queue, lane, data) = (info.queue.to_string(), Some((info.priority, info.kind)), info.data.clone());
    let explained = app.ask(|answer| Event::Explain { queue, lane, data, answer }).await?;
    let now = clock::now();
    let due = |code: &str, words: &str| match info.not_before {
        Some(at) => WhyReason::new(code, format!("{words} {} ({})", from_now(at, now), when::rfc3339(at))).at(at),
        None => WhyReason::new(code, words),
    };
    let mut reasons = Vec::new();
    match info.state {
        State::Ready => {
            reasons.push(told(&explained.reason));
            reasons.extend(stalemate(&explained));
            if explained.ahead > 0 {
                let text = format!("{} of a higher priority {} before it", jobs(explained.ahead), go(explained.ahead));
                reasons.push(WhyReason::new("behind", text).count(explained.ahead));
            }
        }
        State::Running => reasons.push(running(app, info).await?),
        State::Scheduled if info.record.suspicions > 0 => {
            reasons.push(due("suspect_waits", "its server died while it ran; it is tried again"))
        }
        State::Scheduled if info.not_before.is_none() => {
            let after = info.particulars.as_ref().map(|special| special.after.clone()).unwrap_or_default();
            let others: Vec<String> = after.iter().map(|id| id.to_string()).collect();
            reasons
                .push(WhyReason::new("after", format!("it waits until these have succeeded: {}", others.join(", "))));
        }
        State::Scheduled => reasons.push(due("not_before", "its time has not come; it is due")),
        State::Retrying => {
            let failures = info.record.failures;
            reasons
                .push(due("retry", &format!("it failed {failures} times; the next try is")).count(u64::from(failures)));
        }
        State::Suspended => {
            reasons.push(WhyReason::new("suspended", "a person suspended it; `windlass resume` lets it go on"))
        }
        State::Succeeded | State::Failed | State::Cancelled => {
            let why = info.reason.map(|reason| format!(" ({})", reason.word())).unwrap_or_default();
            reasons.push(WhyReason::new("ended", format!("it has ended: {}{why}", info.state)));
        }
    }
    let waits = matches!(info.state, State::Scheduled | State::Retrying);
    if let Some((key, reason)) = explained.destination.filter(|_| waits || info.state == State::Ready) {
        let mut reason = told(&reason);
        reason.text = format!("for `{key}`: {}", reason.text);
        reasons.push(reason);
    }
    if waits && explained.reason.is_lasting() {
        // Even when its time has come it would not start.
        reasons.push(told(&explained.reason));
    }
    Ok((reasons, explained.table))
}

async fn running(app: &App, info: &JobInfo) -> Result<WhyReason, Failure> {
    let flights = app.ask(|answer| Event::Flights { answer }).await?;
    let flight = flights.into_iter().find(|flight| flight.job == info.id);
    Ok(match flight {
        Some(flight) => {
            let since = when::spoken(clock::now().since(flight.started));
            let text = format!("it has been running for {since} (start {})", flight.start);
            WhyReason::new("running", text).at(flight.started)
        }
        None => WhyReason::new("running", format!("it is running (start {})", info.record.starts)),
    })
}

async fn run(app: &App, id: RunId) -> Result<Why, Problem> {
    app.catch_up_in_time().await;
    let found = app.read(move |reads| {
        let view = (reads.view)()?;
        let Some(run) = view.run(id)? else { return Ok(None) };
        let mut waiting = Vec::new();
        // One state after the other: a flood of ready jobs must not hide when the next try comes.
        for state in [State::Retrying, State::Scheduled, State::Ready] {
            let filter = Filter { states: vec![state], run: Some(id), ..Filter::default() };
            waiting.extend(view.list(&filter, Arrival(0), LOOKED_AT)?.jobs);
        }
        Ok(Some((run, waiting)))
    });
    let Some((info, waiting)) = found.await? else { return Err(Problem::not_found(format!("no run {id}"))) };
    let mut reasons = counted(&info, &waiting);
    reasons.extend(awaited(&waiting));
    // What runs may be with workers that do not get on.
    let mut queues: BTreeSet<String> = running_queues(app, id).await?;
    queues.extend(waiting.iter().filter(|job| job.state == State::Ready).map(|job| job.queue.to_string()));
    for queue in queues.into_iter().take(QUEUES_ASKED) {
        let explained = explain(app, &queue).await?;
        let ailing = ailing(app, explained.table.as_deref()).await?;
        let noted = without_handler(app, &queue).await?;
        // What runs waits for no start, so that nothing more of its queue is ready holds nobody back.
        let held = Some(&explained.reason).filter(|reason| **reason != Reason::NothingWaits).map(told);
        for mut reason in [held, stalemate(&explained), ailing, noted].into_iter().flatten() {
            reason.text = format!("queue `{queue}`: {}", reason.text);
            reasons.push(reason);
        }
    }
    let name = id.to_string();
    Ok(Why { what: "run".into(), name, state: None, queue: None, table: None, reasons })
}

/// The queues of what runs of a run, as far as it was looked at.
async fn running_queues(app: &App, id: RunId) -> Result<BTreeSet<String>, Failure> {
    let listed = app.read(move |reads| {
        let filter = Filter { states: vec![State::Running], run: Some(id), ..Filter::default() };
        Ok((reads.view)()?.list(&filter, Arrival(0), LOOKED_AT)?.jobs)
    });
    Ok(listed.await?.into_iter().map(|job| job.queue.to_string()).collect())
}

/// The jobs that some of a run wait for.
fn awaited(waiting: &[JobInfo]) -> Option<WhyReason> {
    let waits = waiting.iter().filter(|job| job.state == State::Scheduled && job.not_before.is_none());
    let waits: Vec<&JobInfo> = waits.collect();
    let after = waits.iter().filter_map(|job| job.particulars.as_ref()).flat_map(|special| special.after.iter());
    let after: BTreeSet<String> = after.map(JobId::to_string).collect();
    let count = waits.len() as u64;
    let shown: Vec<String> = after.iter().take(AWAITED_SHOWN).cloned().collect();
    let more = if after.len() > shown.len() { " …" } else { "" };
    let text = format!("{} {} until these have succeeded: {}{more}", jobs(count), wait(count), shown.join(", "));
    (!after.is_empty()).then(|| WhyReason::new("after", text).count(count))
}

/// What a run's counters say.
fn counted(info: &RunInfo, waiting: &[JobInfo]) -> Vec<WhyReason> {
    let counts = &info.counts;
    if counts.ended {
        let reason = WhyReason::new("ended", format!("it has ended{}", ends(counts)));
        return vec![match info.ended_at {
            Some(at) => reason.at(at),
            None => reason,
        }];
    }
    let now = clock::now();
    let mut reasons = Vec::new();
    if !info.seal_after.is_empty() {
        reasons.push(WhyReason::new("inbox_not_read", unread(info)));
    } else if !counts.sealed {
        let text = "it is not sealed: more jobs may be added from outside";
        reasons.push(WhyReason::new("not_sealed", text));
    }
    for state in [State::Running, State::Ready, State::Retrying, State::Scheduled, State::Suspended] {
        let count = counts.by_state[state.index()];
        if count == 0 {
            continue;
        }
        let next = waiting.iter().filter(|job| job.state == state).filter_map(|job| job.not_before).min();
        let text = format!("{} {} {}", jobs(count), are(count), state);
        reasons.push(match next {
            Some(at) => WhyReason::new(state.word(), format!("{text}, the next {}", from_now(at, now))).at(at),
            None => WhyReason::new(state.word(), text),
        });
        if let Some(last) = reasons.last_mut() {
            last.count = Some(count);
        }
    }
    reasons
}

/// The files of the inbox that a seal waits for: one that is not there any more will never be read.
fn unread(info: &RunInfo) -> String {
    let file = |(origin, position): &(Origin, u64)| format!("{origin} up to byte {position}");
    let files: Vec<String> = info.seal_after.iter().map(file).collect();
    let (files, run) = (files.join(", "), info.id);
    format!("it is sealed once the inbox has been read: file {files}; if that is gone, `windlass seal {run}` seals it")
}

/// How the jobs of a run ended.
fn ends(counts: &RunCounts) -> String {
    let ends = State::ALL.into_iter().filter(|state| state.is_end());
    let ends = ends.map(|state| (counts.by_state[state.index()], state)).filter(|(count, _)| *count > 0);
    let told: Vec<String> = ends.map(|(count, state)| format!("{count} {state}")).collect();
    if told.is_empty() { String::new() } else { format!(": {}", told.join(", ")) }
}

/// Ready work, a free slot, and nothing starts: whoever asks in the meantime is told.
fn stalemate(explained: &QueueExplained) -> Option<WhyReason> {
    let cured = explained.stalemate?;
    let text = "stalemate: nothing holds its ready jobs, and none was started; if that stays so, what is ready is read \
                from the store again";
    Some(WhyReason::new("stalemate", text).at(cured))
}

/// The scheduler's reason in the API's words.
fn told(reason: &Reason) -> WhyReason {
    let told = WhyReason::new(reason.code(), reason.sentence(when::rfc3339));
    match reason {
        Reason::Paused(made) => WhyReason { overridden: Some((&**made).into()), ..told },
        Reason::OutsideHours { opens: Some(opens), .. } => told.at(*opens),
        Reason::RateReached { next, .. } => told.at(*next),
        Reason::DestinationDead { failures, probe } => {
            let told = told.count(u64::from(*failures));
            match probe {
                Some(probe) => told.at(*probe),
                None => told,
            }
        }
        Reason::QueueSlotsTaken { slots } | Reason::CrewSlotsTaken { slots } | Reason::ServerSlotsTaken { slots } => {
            told.count(u64::from(*slots))
        }
        Reason::MemoryShort(shortage) => told.count(shortage.free),
        Reason::NextStageFull { waiting, .. } => told.count(*waiting),
        _ => told,
    }
}

fn from_now(at: Time, now: Time) -> String {
    if at <= now { "now".into() } else { format!("in {}", when::spoken(at.since(now))) }
}

fn jobs(count: u64) -> String {
    format!("{count} {}", if count == 1 { "job" } else { "jobs" })
}

fn are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

fn wait(count: u64) -> &'static str {
    if count == 1 { "waits" } else { "wait" }
}

fn go(count: u64) -> &'static str {
    if count == 1 { "goes" } else { "go" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::rig::{run_id, run_info};

    /// The codes of what holds the end of a run back, and the first sentence.
    fn held_back(info: &RunInfo) -> (Vec<String>, String) {
        let reasons = counted(info, &[]);
        (reasons.iter().map(|reason| reason.code.clone()).collect(), reasons[0].text.clone())
    }

    #[test]
    fn a_run_that_nobody_sealed_and_one_whose_seal_has_not_been_read_say_so() {
        let open = run_info(false);
        let (codes, text) = held_back(&open);
        assert_eq!((codes.as_slice(), text.contains("not sealed")), (["not_sealed".to_owned()].as_slice(), true));
        let mut running = RunInfo { seal_after: vec![(run_id().origin, 4096)], ..open.clone() };
        running.counts.admit(State::Running, 3);
        let (codes, text) = held_back(&running);
        assert_eq!((codes, text.contains("inbox")), (vec!["inbox_not_read".into(), "running".into()], true));
        let mut sealed = RunInfo { seal_after: Vec::new(), ..running };
        sealed.counts.sealed = true;
        assert_eq!(held_back(&sealed), (vec!["running".into()], "3 jobs are running".into()));
        let mut over = run_info(true);
        over.counts.by_state = Default::default();
        assert_eq!(held_back(&over), (vec!["ended".into()], "it has ended".into()));
        over.counts.admit(State::Succeeded, 3);
        over.counts.admit(State::Failed, 1);
        assert_eq!(held_back(&over), (vec!["ended".into()], "it has ended: 3 succeeded, 1 failed".into()));
    }
}
