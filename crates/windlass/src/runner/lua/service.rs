//! The process of a Lua worker: a job a line in, a reply a line out, within limits that it cannot lift.
//!
//! Each job gets a Lua state of its own, and the state is gone before the reply is written: nothing of one job is left
//! for the next, and a finalizer that never ends is charged to the job that made it. It must not open anything but
//! modules.

use super::module::{self, Job, Place};
use super::returned::{Reply, Verdict};
use super::sources::Sources;
use crate::api::{Subject, base64};
use crate::error::{Failure, Kind};
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::process::{Resource, Rlimit};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;

/// Descriptors: four are given, one is for reading a module, and one for the machine's time zone.
const DESCRIPTORS: u64 = 8;
/// What the process needs beside the Lua state, which has a limit of its own: code, libraries, lines and replies.
const BESIDE: u64 = 512 << 20;

/// One job as the line has it.
#[derive(Debug, serde::Deserialize)]
struct Line {
    id: String,
    queue: String,
    attempt: u32,
    checkpoint: Option<String>,
    subject: Option<Subject>,
    data: Option<String>,
    data64: Option<String>,
}

impl Line {
    fn into_job(self) -> Option<Job> {
        let Line { id, queue, attempt, checkpoint, subject, data, data64 } = self;
        let data = match (data, data64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(coded)) => base64::decode(&coded)?,
            (None, None) | (Some(_), Some(_)) => return None,
        };
        Some(Job { id, queue, attempt, checkpoint, subject, data })
    }
}

pub(super) struct Service {
    /// The module's path; `{queue}` in it is not filled yet.
    file: String,
    memory: u64,
    sources: Rc<RefCell<Sources>>,
    /// Where control lines go; none where nobody listens.
    channel: Option<Rc<OwnedFd>>,
}

impl Service {
    pub(super) fn new(file: OsString, memory: u64) -> Result<Service, Failure> {
        let named = file.into_string().ok().filter(|file| !file.is_empty());
        let file = named.ok_or_else(|| Failure::new(Kind::Config, "the module's path is not text"))?;
        // SAFETY: whoever starts a worker gives it descriptor 3, nothing else here was told of it, and one that is not
        // open is not owned.
        let channel = unsafe { (libc::fcntl(3, libc::F_GETFD) >= 0).then(|| Rc::new(OwnedFd::from_raw_fd(3))) };
        limit(memory).map_err(|e| Failure::io("cannot limit a Lua worker", &e.into()))?;
        Ok(Service { file, memory, sources: Rc::default(), channel })
    }

    /// One job after the other, until no more will come.
    pub(super) fn serve(&mut self) -> Result<(), Failure> {
        let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = input.read_until(b'\n', &mut line).map_err(|e| Failure::io("cannot read a job", &e))?;
            if read == 0 {
                return Ok(());
            }
            let job = serde_json::from_slice::<Line>(&line).ok().and_then(Line::into_job);
            let job = job.ok_or_else(|| Failure::new(Kind::BadData, "a line that is no job came in"))?;
            let mut reply = self.run(&job).lay();
            reply.push(b'\n');
            let written = output.write_all(&reply).and_then(|()| output.flush());
            written.map_err(|e| Failure::io("cannot write a reply", &e))?;
        }
    }

    fn run(&self, job: &Job) -> Reply {
        let place = match self.place(&job.queue) {
            Ok(place) => place,
            Err(error) => return Verdict::Fail { error }.into(),
        };
        // A panic is a fault of ours; the process is as good as before, since the state goes with it.
        let ended = catch_unwind(AssertUnwindSafe(|| module::run(&place, job, self.memory)));
        ended.unwrap_or_else(|_| Verdict::Retry { error: "the Lua worker panicked".into(), after: None }.into())
    }

    fn place(&self, queue: &str) -> Result<Place, String> {
        let file = match self.file.contains("{queue}") {
            // A queue may be named as it likes, but a name must not lead anywhere else.
            true if queue.contains('/') || queue.starts_with('.') => {
                return Err(format!("the queue {queue:?} cannot be the name of a module"));
            }
            true => self.file.replace("{queue}", queue),
            false => self.file.clone(),
        };
        Ok(Place { file: PathBuf::from(file), sources: Rc::clone(&self.sources), channel: self.channel.clone() })
    }
}

/// What a script cannot do even if it finds a way out of Lua: start a process, write a file, take the machine's memory,
/// leave a core, become more than it is.
fn limit(memory: u64) -> rustix::io::Result<()> {
    let space = memory.saturating_mul(4).saturating_add(BESIDE);
    let limits = [
        (Resource::Core, 0),
        (Resource::Nproc, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, DESCRIPTORS),
        (Resource::As, space),
    ];
    for (resource, most) in limits {
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |had| had.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    rustix::thread::set_no_new_privs(true)
}
