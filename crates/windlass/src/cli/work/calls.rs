//! What a remote worker says to its server: asks for jobs, signs of life, ends. Each in a thread of its own.
//!
//! A server that does not answer is tried again, after a wait that doubles up to a few seconds. An end is told until it
//! is answered, because the answer is the proof that it is on disk; told twice, it counts once. It must not judge
//! anything.

use super::jobs::{InHand, Jobs, lease_of};
use crate::api::{self, base64, work};
use crate::cli::Context;
use crate::cli::place::Place;
use crate::client::Connection;
use crate::error::{Failure, Kind};
use crate::runner::{Finished, Stop, Stream};
use rustix::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use windlass_core::outcome::Outcome;

/// How long an ask waits at the server before it is made anew.
const ASK_WAIT: u32 = 30;
/// The wait before the next try doubles from here to there.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// What fits into one request with the rest of an end.
const EMITTED_MAX: usize = 8 << 20;
/// Ends that are told at the same time: they share a sync of the server's disk.
const TELLERS: u32 = 8;

/// The threads and what they share.
pub(super) struct Calls {
    place: Place,
    queues: Vec<String>,
    jobs: Arc<Jobs>,
    context: Context,
    /// The connection on which an ask waits now.
    asking: Mutex<Option<OwnedFd>>,
    draining: AtomicBool,
}

impl Calls {
    pub(super) fn new(place: Place, queues: Vec<String>, jobs: Arc<Jobs>, context: Context) -> Calls {
        Calls { place, queues, jobs, context, asking: Mutex::default(), draining: AtomicBool::new(false) }
    }

    fn connect(&self) -> Result<Connection, Failure> {
        self.place.server()?.ok_or_else(|| Failure::new(Kind::NoServer, "no server answers"))
    }

    pub(super) fn start(self: &Arc<Calls>) -> Result<(), Failure> {
        let spawn = |name: &str, serve: fn(&Calls)| {
            let calls = Arc::clone(self);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || serve(&calls));
            thread.map(drop).map_err(|e| Failure::io("cannot start a thread", &e))
        };
        spawn("signs of life", Calls::show_signs)?;
        for _ in 0..TELLERS {
            spawn("ends", Calls::tell_ends)?;
        }
        spawn("asks", Calls::ask)
    }

    /// Takes no more jobs, and ends the ask that waits.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.jobs.drain();
        if let Some(waiting) = &*self.asking.lock().unwrap_or_else(PoisonError::into_inner) {
            // The server sees that nobody waits; what it has sent already is still read, and given back.
            let _gone_already = rustix::net::shutdown(waiting, Shutdown::Write);
        }
    }

    fn ask(&self) {
        let mut pause = PAUSE.0;
        while let Some(room) = self.jobs.room() {
            match self.ask_once(room) {
                Ok((jobs, asked)) => {
                    pause = PAUSE.0;
                    jobs.iter().for_each(|job| self.begin(job, asked));
                }
                Err(_) if self.draining.load(Ordering::Relaxed) => return,
                Err(failure) => {
                    if pause == PAUSE.0 {
                        self.context.say(format_args!("no jobs: {failure}; trying again"));
                    }
                    self.jobs.pause(pause, true);
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    /// Jobs, and a moment before which none of their leases began.
    fn ask_once(&self, room: u32) -> Result<(Vec<work::ClaimedJob>, Instant), Failure> {
        let asked = Instant::now();
        let mut connection = self.connect()?;
        let asking = |waits: Option<OwnedFd>| *self.asking.lock().unwrap_or_else(PoisonError::into_inner) = waits;
        asking(connection.hold_of_stream());
        if self.draining.load(Ordering::Relaxed) {
            return Ok((Vec::new(), asked));
        }
        connection.set_patience(Some(Duration::from_secs(u64::from(ASK_WAIT) + 30)));
        let claim = work::Claim { queues: self.queues.clone(), most: room, wait_s: ASK_WAIT };
        let claimed = connection.post_json::<work::Claimed>("/api/v1/work/claim", &claim);
        asking(None);
        let jobs = claimed?.jobs;
        // An ask that waited long may have been answered long ago, while this process was frozen.
        let is_fresh = |job: &work::ClaimedJob| asked.elapsed() < lease_of(job) / 3;
        if jobs.iter().all(is_fresh) { Ok((jobs, asked)) } else { still_ours(&mut connection, jobs) }
    }

    /// Starts a job, or gives it back where that cannot be, or where no more are taken.
    fn begin(&self, job: &work::ClaimedJob, asked: Instant) {
        let begun = match self.draining.load(Ordering::Relaxed) {
            true => Err(Failure::new(Kind::TryLater, "this worker is about to end")),
            false => self.jobs.start(job, asked),
        };
        if begun.is_err() {
            let reply = work::Reply { status: "interrupted".into(), ..work::Reply::default() };
            // A server that cannot be told takes it back when its lease ends.
            let _lease_ends = self.connect().and_then(|mut to| tell(&mut to, &job.id, &job.token, &reply));
        }
    }

    /// Renews the leases of what is in hand, well before they end, and obeys.
    fn show_signs(&self) {
        let mut connection: Option<Connection> = None;
        let mut pause = Duration::ZERO;
        while let Some(in_hand) = self.jobs.wait_for_some(pause) {
            let third = in_hand.iter().map(|(_, job)| job.lease / 3).min().unwrap_or(PAUSE.1);
            self.fence(&in_hand);
            let asked = Instant::now();
            let to = match connection.take() {
                Some(connection) => Ok(connection),
                None => self.connect(),
            };
            let beaten = to.and_then(|mut to| {
                to.set_patience(Some(third * 2 + Duration::from_secs(1)));
                self.tell_progress(&mut to, &in_hand);
                let signs = self.beat(&mut to, &in_hand, third)?;
                connection = Some(to);
                Ok(signs)
            });
            pause = match beaten {
                Ok(signs) => {
                    let numbers: Vec<u64> = in_hand.iter().map(|(number, _)| *number).collect();
                    self.jobs.renewed(&numbers, asked);
                    self.obey(&in_hand, &signs);
                    // A wait at the server has been a pause already.
                    if third < Duration::from_secs(1) { third } else { PAUSE.0 }
                }
                Err(_) => PAUSE.0.max(third / 4).min(PAUSE.1),
            };
        }
    }

    fn beat(&self, to: &mut Connection, of: &[(u64, InHand)], third: Duration) -> Result<Vec<String>, Failure> {
        let tokens = of.iter().map(|(_, job)| job.token.clone()).collect();
        let wait_s = u32::try_from(third.as_secs()).unwrap_or(0).min(ASK_WAIT);
        let beat = work::Heartbeat { tokens, wait_s };
        Ok(to.post_json::<work::Signs>("/api/v1/work/heartbeat", &beat)?.signs)
    }

    fn obey(&self, in_hand: &[(u64, InHand)], signs: &[String]) {
        for ((number, _), sign) in in_hand.iter().zip(signs) {
            match sign.as_str() {
                "cancel" => self.jobs.stop(*number, Stop::Cancel, false),
                // Its end may be on its way to the server at this moment; if so it has been told.
                "over" => self.jobs.stop(*number, Stop::Kill, true),
                // The launcher keeps the time as well, and `go_on` is what they all do.
                _ => {}
            }
        }
    }

    /// A job whose lease may have ended is stopped: another may have it by now.
    fn fence(&self, in_hand: &[(u64, InHand)]) {
        for (number, job) in in_hand.iter().filter(|(_, job)| job.is_lost()) {
            self.context.say(format_args!("{}: no word from the server within its lease, so it is stopped", job.id));
            self.jobs.stop(*number, Stop::Kill, true);
        }
    }

    /// What jobs say of themselves, where it is new.
    fn tell_progress(&self, to: &mut Connection, in_hand: &[(u64, InHand)]) {
        for (number, job) in in_hand {
            let Some(said) = self.jobs.board.of(job.id) else { continue };
            let words = [("progress", said.progress), ("phase", said.phase), ("checkpoint", said.checkpoint)];
            let extend = Some(said.extend).filter(|more| !more.is_zero()).map(|more| format!("{}ms", more.as_millis()));
            let words = words.into_iter().chain([("extended", extend)]);
            let lines: Vec<String> = words.filter_map(|(word, text)| Some(format!("{word} {}", text?))).collect();
            if lines.is_empty() || lines == job.said {
                continue;
            }
            let path = format!("/api/v1/jobs/{}/control", job.id);
            if to.post_as(&job.token, &path, api::LINES, lines.join("\n").as_bytes()).is_ok() {
                self.jobs.told(*number, lines);
            }
        }
    }

    fn tell_ends(&self) {
        let mut connection: Option<Connection> = None;
        while let Some((job, finished)) = self.jobs.next_end() {
            let reply = reply_of(&finished);
            let was_cut = finished.outcomes.first().is_some_and(|(_, outcome)| *outcome == Outcome::Interrupted);
            let mut pause = PAUSE.0;
            // Nothing is told of what ended when another may have had it, or was stopped because of that.
            let mut is_late = job.is_late();
            while !is_late {
                let to = match connection.take() {
                    Some(connection) => Ok(connection),
                    None => self.connect(),
                };
                let told = to.and_then(|mut to| {
                    // A server that is there and says nothing is tried anew as one is that is not there.
                    to.set_patience(Some(job.lease + Duration::from_secs(1)));
                    tell_checkpoint(&mut to, &job, &finished)?;
                    tell(&mut to, &job.id.to_string(), &job.token, &reply)?;
                    connection = Some(to);
                    Ok(())
                });
                match told {
                    Ok(()) => break,
                    Err(failure) if is_final(&failure) => {
                        self.context.say(format_args!("{}: its end was refused: {failure}", job.id));
                        break;
                    }
                    // Nobody is there to hear it; when its lease has ended it is another's.
                    Err(_) if job.renewed.elapsed() > job.lease * 4 && self.draining.load(Ordering::Relaxed) => break,
                    Err(_) => {
                        self.jobs.pause(pause, false);
                        pause = (pause * 2).min(PAUSE.1);
                        is_late = was_cut && job.is_late();
                    }
                }
            }
            if is_late {
                self.context.say(format_args!("{}: its lease had ended, so nothing is told of its end", job.id));
            }
            self.jobs.forget(finished.flight);
        }
    }
}

/// Those of the jobs that are this worker's still, and a moment before which their leases were renewed.
fn still_ours(
    to: &mut Connection,
    mut jobs: Vec<work::ClaimedJob>,
) -> Result<(Vec<work::ClaimedJob>, Instant), Failure> {
    let asked = Instant::now();
    let beat = work::Heartbeat { tokens: jobs.iter().map(|job| job.token.clone()).collect(), wait_s: 0 };
    let signs = to.post_json::<work::Signs>("/api/v1/work/heartbeat", &beat)?.signs;
    let mut signs = signs.iter();
    jobs.retain(|_| signs.next().is_some_and(|sign| sign != "over"));
    Ok((jobs, asked))
}

/// No further try can have another answer.
fn is_final(failure: &Failure) -> bool {
    matches!(failure.kind, Kind::Conflict | Kind::NotFound | Kind::BadData | Kind::Usage | Kind::NotPermitted)
}

/// What a job said last of how far it has come, which may be younger than what was told while it ran.
fn tell_checkpoint(to: &mut Connection, job: &InHand, finished: &Finished) -> Result<(), Failure> {
    let Some((_, text)) = finished.checkpoints.first() else { return Ok(()) };
    let (path, line) = (format!("/api/v1/jobs/{}/control", job.id), format!("checkpoint {text}"));
    match to.post_as(&job.token, &path, api::LINES, line.as_bytes())?.checked() {
        // A start that has ended already is the reply's affair: it may be told a second time.
        Err(failure) if !is_final(&failure) => Err(failure),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn tell(to: &mut Connection, job: &str, token: &str, reply: &work::Reply) -> Result<(), Failure> {
    let body = serde_json::to_vec(reply)
        .map_err(|e| Failure::new(Kind::Internal, format!("cannot write the end of a job: {e}")))?;
    to.post_as(token, &format!("/api/v1/jobs/{job}/reply"), api::JSON, &body)?.checked().map(drop)
}

/// The end of a job in the words of the API.
fn reply_of(finished: &Finished) -> work::Reply {
    let mut reply = work::Reply::default();
    let outcome = finished.outcomes.first().map(|(_, outcome)| outcome);
    reply.status = match outcome {
        Some(Outcome::Succeeded { message }) => {
            reply.message = Some(message.clone());
            "ok"
        }
        Some(Outcome::Snoozed { after }) => {
            reply.after = Some(after.as_secs_f64().into());
            "snooze"
        }
        Some(Outcome::RetryLater { after, error }) => {
            reply.error = Some(error.clone());
            reply.after = after.map(|after| after.as_secs_f64().into());
            "retry"
        }
        Some(Outcome::FailedForGood { error }) => {
            reply.error = Some(error.clone());
            "fail"
        }
        Some(other @ (Outcome::Failed { error } | Outcome::Crashed { error })) => {
            reply.error = Some(error.clone());
            other.word()
        }
        Some(other @ (Outcome::TimedOut { .. } | Outcome::Interrupted | Outcome::Cancelled)) => other.word(),
        // A launcher that died under it is this worker's trouble, and no fault of the job's.
        Some(Outcome::Lost | Outcome::Moved { .. } | Outcome::NotMoved { .. }) | None => Outcome::Interrupted.word(),
    }
    .to_owned();
    let emitted = finished
        .emitted
        .iter()
        .map(|emitted| serde_json::json!({ "queue": emitted.queue.as_str(), "data64": base64::encode(&emitted.data) }));
    let bytes: usize = finished.emitted.iter().map(|emitted| emitted.data.len() + 64).sum();
    if bytes > EMITTED_MAX {
        let error = format!("it emitted {bytes} bytes, and a remote worker can hand on {EMITTED_MAX}");
        return work::Reply { status: "failed".into(), error: Some(error), ..work::Reply::default() };
    }
    reply.emit = Some(emitted.collect::<Vec<_>>()).filter(|emitted| !emitted.is_empty()).map(Into::into);
    let coded = |stream: &Stream| Some(base64::encode(&stream.head)).filter(|_| !stream.head.is_empty());
    (reply.stdout_base64, reply.stdout_total) = (coded(&finished.output.stdout), Some(finished.output.stdout.total));
    (reply.stderr_base64, reply.stderr_total) = (coded(&finished.output.stderr), Some(finished.output.stderr.total));
    reply
}
