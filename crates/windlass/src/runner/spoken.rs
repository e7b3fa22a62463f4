//! Words over HTTP of jobs that share a process: a token for each, and what it may say with that.
//!
//! A process with many jobs has a secret of its own, and the token of a job is what that makes of the job's name and
//! its start: nothing has to be kept for each, and all of them end with the process. This file owns what such a token
//! is good for: the words of one job. It must not know where they go.

use super::Flight;
use super::launcher::EMIT_MAX;
use super::progress::{Channel, same};
use super::reply::{self, Emits, Said};
use crate::api::base64;
use crate::error::{Failure, Kind};
use ring::hmac;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel as channel_of_one};
use windlass_core::job::{JobId, QueueName};
use windlass_core::policy::Policy;

/// What a job says over HTTP, on its way to who has the process.
#[derive(Debug)]
pub(super) struct Spoken {
    pub(super) job: JobId,
    pub(super) token: String,
    pub(super) channel: Channel,
    pub(super) lines: Vec<u8>,
    pub(super) answer: Sender<Result<(), Failure>>,
}

impl Spoken {
    /// What is said, and where the answer to it comes.
    pub(super) fn new(
        job: JobId,
        token: &str,
        channel: Channel,
        lines: &[u8],
    ) -> (Spoken, Receiver<Result<(), Failure>>) {
        let (answer, answered) = channel_of_one();
        (Spoken { job, token: token.to_owned(), channel, lines: lines.to_vec(), answer }, answered)
    }
}

/// Makes the tokens of one process.
#[derive(Clone, Debug)]
pub(super) struct Mint {
    key: hmac::Key,
}

impl Mint {
    /// None where the machine gives no random numbers; then there are no tokens.
    pub(super) fn new() -> Option<Mint> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).ok()?;
        Some(Mint { key: hmac::Key::new(hmac::HMAC_SHA256, &secret) })
    }

    /// The token of a job of this process, in the start that it has there.
    pub(super) fn of_job(&self, flight: Flight, job: JobId) -> String {
        let [flight, origin, offset] = [flight.0, job.origin.bits(), job.offset].map(u64::to_le_bytes);
        self.sign(&[flight, origin, offset].concat())
    }

    /// The token of the process itself.
    pub(super) fn of_process(&self) -> String {
        self.sign(b"process")
    }

    fn sign(&self, what: &[u8]) -> String {
        let tag = hmac::sign(&self.key, what);
        // Half of what the hash has: 128 bits, as all tokens of jobs.
        let half = tag.as_ref().iter().take(16);
        format!("{:032x}", half.fold(0, |bits: u128, byte| bits << 8 | u128::from(*byte)))
    }

    pub(super) fn is_of_job(&self, token: &str, flight: Flight, job: JobId) -> bool {
        same(token.as_bytes(), self.of_job(flight, job).as_bytes())
    }
}

/// Why a token that fits nothing that runs is refused.
pub(super) fn not_running(job: JobId) -> Failure {
    let text = format!("the token is not that of a running start of {job}: nothing was changed");
    Failure::new(Kind::Conflict, text).hint("its attempt has ended, or another has begun")
}

/// Why a job or a batch may emit no more.
pub(super) fn too_much() -> Failure {
    bad(format!("nothing more may be emitted here: expected at most {EMIT_MAX} bytes in all"))
}

fn bad(why: String) -> Failure {
    Failure::new(Kind::BadData, why)
}

/// The control lines of one job, said with its own token; an error says why none of them is heard.
pub(super) fn own_control(job: JobId, lines: &[u8]) -> Result<Vec<&[u8]>, Failure> {
    let mut own = Vec::new();
    for line in lines.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let (id, text) = reply::addressed(line);
        if let Some(other) = id.filter(|id| *id != job) {
            return Err(foreign(job, other));
        }
        check_word(text)?;
        own.push(text);
    }
    Ok(own)
}

/// How a job ends is not said here where its process replies.
fn check_word(text: &[u8]) -> Result<(), Failure> {
    let said = Said::read(text);
    if said.wish.is_none() && said.result.is_none() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(text);
    let text = &text[..text.floor_char_boundary(60)];
    Err(bad(format!("cannot take {text:?}: expected progress, phase, checkpoint or extend"))
        .hint("its process has several jobs, and its replies say how each of them ends"))
}

fn foreign(job: JobId, other: JobId) -> Failure {
    bad(format!("a line is about {other}, and the token is that of {job}: nothing was changed"))
}

/// What one job emits with its own token.
pub(super) fn own_emit(job: JobId, policy: &Policy, lines: &[u8]) -> Result<Emits, Failure> {
    let mut emits = Emits::new();
    for (id, queue, data) in reply::read_emit_file(lines).map_err(bad)? {
        if let Some(other) = id.filter(|id| *id != job) {
            return Err(foreign(job, other));
        }
        emits.push((queue, data));
    }
    reply::place(emits.clone(), policy).map_err(bad)?;
    Ok(emits)
}

/// The voices of a batch: what each of its jobs, and the process, may write into its files.
#[derive(Debug)]
pub(super) struct Voice {
    pub(super) mint: Mint,
    pub(super) jobs: Vec<(JobId, Flight)>,
    pub(super) policy: Arc<Policy>,
}

impl Voice {
    pub(super) fn has(&self, job: JobId) -> bool {
        self.jobs.iter().any(|(id, _)| *id == job)
    }

    /// The lines as they stand in a file that all jobs of the process share; an error says why nothing is written.
    pub(super) fn lay(&self, job: JobId, token: &str, to: Channel, lines: &[u8]) -> Result<Vec<u8>, Failure> {
        let is_own = |(id, flight): &(JobId, Flight)| *id == job && self.mint.is_of_job(token, *flight, job);
        let only = match self.jobs.iter().any(is_own) {
            true => Some(job),
            false if same(token.as_bytes(), self.mint.of_process().as_bytes()) => None,
            false => return Err(not_running(job)),
        };
        match to {
            Channel::Control => self.lay_control(only, lines),
            Channel::Emit => self.lay_emit(only, lines),
        }
    }

    /// Whose a line is: of the token's job, of the job that it names, or of the only one.
    fn whose(&self, only: Option<JobId>, named: Option<JobId>) -> Result<JobId, Failure> {
        match (only, named, &self.jobs[..]) {
            (Some(job), Some(other), _) if job != other => Err(foreign(job, other)),
            (Some(job), ..) => Ok(job),
            (None, Some(job), _) if self.has(job) => Ok(job),
            (None, Some(other), _) => Err(bad(format!("{other} is no job of this process: nothing was changed"))),
            (None, None, [(job, _)]) => Ok(*job),
            (None, None, all) => {
                let text =
                    format!("a line names none of the {} jobs of the process: expected @ID before it", all.len());
                Err(bad(text).hint("or say it with the token of one job, which JSON lines have"))
            }
        }
    }

    fn lay_control(&self, only: Option<JobId>, lines: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut laid = Vec::with_capacity(lines.len());
        for line in lines.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let (named, text) = reply::addressed(line);
            check_word(text)?;
            // The jobs have one time limit, that of their process.
            if !text.starts_with(b"extend ") {
                laid.extend_from_slice(format!("@{} ", self.whose(only, named)?).as_bytes());
            } else if named.is_some() {
                self.whose(only, named)?;
            }
            laid.extend_from_slice(text);
            laid.push(b'\n');
        }
        Ok(laid)
    }

    fn lay_emit(&self, only: Option<JobId>, lines: &[u8]) -> Result<Vec<u8>, Failure> {
        let read = reply::read_emit_file(lines).map_err(bad)?;
        let emits = read.iter().map(|(_, queue, data)| (queue.clone(), data.clone())).collect();
        reply::place(emits, &self.policy).map_err(bad)?;
        let mut laid = Vec::with_capacity(lines.len());
        for (named, queue, data) in read {
            lay_emitted(self.whose(only, named)?, queue.as_ref(), &data, &mut laid);
        }
        Ok(laid)
    }
}

fn lay_emitted(job: JobId, queue: Option<&QueueName>, data: &[u8], into: &mut Vec<u8>) {
    let queue = queue.map(QueueName::as_str);
    let object = serde_json::json!({ "job": job.to_string(), "queue": queue, "data64": base64::encode(data) });
    into.extend_from_slice(object.to_string().as_bytes());
    into.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::job::Origin;
    use windlass_core::policy::{Command, Service};

    fn job(offset: u64) -> JobId {
        JobId { origin: Origin::from_random(7), offset }
    }

    fn voice(jobs: u64) -> Voice {
        let policy = Arc::new(Policy::new("q", Service::Command(Command::default())));
        let jobs = (1..=jobs).map(|offset| (job(offset), Flight(9))).collect();
        Voice { mint: Mint::new().unwrap(), jobs, policy }
    }

    #[test]
    fn a_token_is_that_of_one_job_in_one_start_of_one_process() {
        let (mint, other) = (Mint::new().unwrap(), Mint::new().unwrap());
        let token = mint.of_job(Flight(1), job(1));
        assert_eq!((token.len(), token.chars().all(|c| c.is_ascii_hexdigit())), (32, true));
        assert!(mint.is_of_job(&token, Flight(1), job(1)));
        assert!(!mint.is_of_job(&token, Flight(2), job(1)) && !mint.is_of_job(&token, Flight(1), job(2)));
        assert!(!other.is_of_job(&token, Flight(1), job(1)) && !mint.is_of_job("", Flight(1), job(1)));
        assert!(!mint.is_of_job(&mint.of_process(), Flight(1), job(1)) && mint.of_process() != other.of_process());
    }

    #[test]
    fn a_batch_hears_a_job_by_its_name_and_nobody_else_through_it() {
        let voice = voice(3);
        let own = voice.mint.of_job(Flight(9), job(2));
        let process = voice.mint.of_process();
        let say = |token: &str, to: Channel, lines: &str| {
            voice.lay(job(2), token, to, lines.as_bytes()).map(|laid| String::from_utf8(laid).unwrap())
        };
        let (two, three) = (job(2), job(3));
        let laid = say(&own, Channel::Control, "progress 1/2 x\nextend 5s\n").unwrap();
        assert_eq!(laid, format!("@{two} progress 1/2 x\nextend 5s\n"));
        let laid = say(&process, Channel::Control, &format!("@{three} phase x\nextend 5s\n")).unwrap();
        assert_eq!(laid, format!("@{three} phase x\nextend 5s\n"));
        for (token, lines, why) in [
            (&own, format!("@{three} phase x\n"), "the token is that of"),
            (&own, format!("@{three} extend 1h\n"), "the token is that of"),
            (&process, "phase x\n".into(), "expected @ID"),
            (&process, format!("@{} phase x\n", job(4)), "no job of this process"),
            (&own, "fail it is no good\n".into(), "cannot take \"fail it is no good\""),
            (&own, "phase x\nresult y\n".into(), "cannot take \"result y\""),
            (&"0".repeat(32), "phase x\n".into(), "not that of a running start"),
        ] {
            let refused = say(token, Channel::Control, &lines).unwrap_err();
            assert!(refused.text.contains(why), "{refused:?}");
        }
        let laid = say(&own, Channel::Emit, "next\ta b\n").unwrap();
        let read = reply::read_emit_file(laid.as_bytes()).unwrap();
        assert_eq!(read, [(Some(two), Some(QueueName::new(b"next").unwrap()), b"a b".to_vec())]);
        for (token, lines) in [(&own, format!("@{three}\tnext\tx\n")), (&process, "next\tx\n".into())] {
            say(token, Channel::Emit, &lines).unwrap_err();
        }
        let refused = say(&own, Channel::Emit, "no queue\n").unwrap_err();
        assert!(refused.text.contains("names no queue"), "{refused:?}");
    }

    #[test]
    fn the_only_job_of_a_process_needs_no_name() {
        let voice = voice(1);
        let process = voice.mint.of_process();
        let laid = voice.lay(job(1), &process, Channel::Control, b"phase x\n").unwrap();
        assert_eq!(String::from_utf8(laid).unwrap(), format!("@{} phase x\n", job(1)));
        voice.lay(job(1), &process, Channel::Emit, b"next\tx\n").unwrap();
    }
}
