//! Handlers of single jobs whose data is JSON of a Rust type: a value in, an answer out.
//!
//! The answers are the words of every other runner (`docs/runners.md`), and core's table makes outcomes of them. Data
//! that is not of the type can never become so: its job fails for good and the handler does not see it. A panic is that
//! job's affair and no other's. It must not know how jobs come in batches beyond going through them.

use super::{Batch, CheckpointError, Handlers, Verdicts, words_of};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use windlass_core::job::{DATA_MAX, JobId, QueueName};
use windlass_core::outcome::{Outcome, Word, from_word};

/// What a typed handler is told about its job beside the data.
#[derive(Debug)]
pub struct Job<'a> {
    batch: &'a Batch<'a>,
    position: u16,
    id: JobId,
}

impl<'a> Job<'a> {
    pub fn id(&self) -> JobId {
        self.id
    }

    pub fn queue(&self) -> &'a QueueName {
        self.batch.queue()
    }

    /// Which start of the job this is, from 1.
    pub fn start(&self) -> u32 {
        self.batch.start()
    }

    /// True once the job was cancelled or the server stops: the sooner it ends, the better.
    pub fn is_stopping(&self) -> bool {
        self.batch.is_stopping()
    }

    /// How far an earlier start of this job had come for good, if that said so.
    pub fn checkpoint(&self) -> Option<&'a str> {
        self.batch.checkpoint()
    }

    /// How far it has come for good: told to its next start, however this one ends.
    pub fn keep(&self, text: &str) -> Result<(), CheckpointError> {
        self.batch.keep(self.position, text)
    }

    /// How far it is, for whoever looks: so many of so many, and a text.
    pub fn progress(&self, done: u64, of: u64, text: &str) {
        self.batch.progress(self.position, done, of, text);
    }

    /// What it is at, in a word of its own, likewise.
    pub fn phase(&self, phase: &str) {
        self.batch.phase(phase);
        self.batch.show(self.position, &format!("phase {phase}"));
    }

    /// A further job, stored if this one succeeds and not otherwise.
    pub fn emit(&self, queue: &str, data: &impl Serialize) -> Result<(), EmitError> {
        let data = serde_json::to_vec(data).map_err(|error| EmitError(error.to_string()))?;
        self.batch.emit(self.position, queue, data)
    }
}

/// Why a job could not be emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmitError(String);

impl std::fmt::Display for EmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot emit a job: {}", self.0)
    }
}

impl std::error::Error for EmitError {}

/// Checks what is emitted, as every door does.
pub(super) fn checked(queue: &str, data: Vec<u8>) -> Result<(QueueName, Vec<u8>), EmitError> {
    let queue = QueueName::new(queue.as_bytes()).map_err(|bad| EmitError(bad.to_string()))?;
    match data.len() > DATA_MAX {
        true => Err(EmitError(format!("it has {} bytes of data, expected at most {DATA_MAX}", data.len()))),
        false => Ok((queue, data)),
    }
}

/// How a job ended, in the words that every runner has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done; the message may be empty.
    Ok(String),
    /// It failed this time: tried again after a back-off, or after this time where that is longer.
    Retry { error: String, after: Option<Duration> },
    /// It cannot succeed however often it is tried.
    Fail(String),
    /// Once more with the same data, after this time, at no charge.
    Snooze(Duration),
}

impl Answer {
    pub fn ok() -> Answer {
        Answer::Ok(String::new())
    }

    fn outcome(self) -> Outcome {
        match self {
            Answer::Ok(message) => from_word(Word::Ok, message, None),
            Answer::Retry { error, after } => from_word(Word::Retry, error, after),
            Answer::Fail(error) => from_word(Word::Fail, error, None),
            Answer::Snooze(after) => from_word(Word::Snooze, String::new(), Some(after)),
        }
    }
}

/// What can fail may fail another time differently: an error is a try that failed.
impl<E: std::fmt::Display> From<Result<(), E>> for Answer {
    fn from(result: Result<(), E>) -> Answer {
        match result {
            Ok(()) => Answer::ok(),
            Err(error) => Answer::Retry { error: error.to_string(), after: None },
        }
    }
}

impl<E: std::fmt::Display> From<Result<Answer, E>> for Answer {
    fn from(result: Result<Answer, E>) -> Answer {
        result.unwrap_or_else(|error| Answer::Retry { error: error.to_string(), after: None })
    }
}

impl Handlers {
    /// Adds a handler that is called with the data of one job after the other; the same name again replaces it.
    pub fn typed<T, A>(
        self,
        name: impl Into<String>,
        handler: impl Fn(T, &Job<'_>) -> A + Send + Sync + 'static,
    ) -> Handlers
    where
        T: DeserializeOwned,
        A: Into<Answer>,
    {
        self.on(name, move |batch| {
            let jobs = (0..).zip(batch.jobs());
            Verdicts::each(jobs.map(|(position, (id, data))| {
                if batch.is_cancelled(position) {
                    return Outcome::Cancelled;
                }
                let value: T = match serde_json::from_slice(data) {
                    Ok(value) => value,
                    Err(error) => {
                        let error = format!("the data is no {}: {error}", std::any::type_name::<T>());
                        return Outcome::FailedForGood { error };
                    }
                };
                let job = Job { batch, position, id };
                let answer = catch_unwind(AssertUnwindSafe(|| handler(value, &job).into()));
                answer.map_or_else(|panic| Outcome::Crashed { error: words_of(&*panic) }, Answer::outcome)
            }))
        })
    }
}
