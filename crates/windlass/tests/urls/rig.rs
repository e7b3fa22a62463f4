//! A runner of URLs and what it reports.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use windlass::runner::url::UrlRunner;
use windlass::runner::{Finished, Flight, Runner, Start};
use windlass::store::chunk::ChunkBuilder;
use windlass::store::{Held, Place};
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record};
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Host, Policy, Service, Url};
use windlass_core::time::Time;

pub(crate) struct Rig {
    pub(crate) runner: UrlRunner,
    heard: mpsc::Receiver<Finished>,
    origin: Origin,
    pub(crate) next: u64,
    /// What an earlier start of its jobs left.
    pub(crate) checkpoint: String,
}

/// A policy that calls this path of a server on this machine.
pub(crate) fn policy(address: SocketAddr, target: &str, change: impl FnOnce(&mut Url)) -> Policy {
    let host = Host { tls: false, name: address.ip().to_string(), port: address.port(), inside: true };
    let mut url = Url::new(host, target);
    change(&mut url);
    let limit = Some(Duration::from_secs(120));
    Policy { slots: 64, time_limit: limit, ..Policy::new("q", Service::Url(url)) }
}

impl Rig {
    pub(crate) fn new() -> Rig {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let origin = u64::from(std::process::id()) << 16 | NEXT.fetch_add(1, Ordering::Relaxed);
        let (tell, heard) = mpsc::channel();
        let tell = Mutex::new(tell);
        // Nobody may be left to hear when a rig is dropped with calls under way.
        let runner =
            UrlRunner::new(Arc::new(move |finished| drop(tell.lock().unwrap().send(finished))), Arc::default());
        Rig { runner, heard, origin: Origin::from_random(origin), next: 1, checkpoint: String::new() }
    }

    /// One claim in stretches of at most so many jobs; flights are numbered by the first job of each.
    pub(crate) fn start(&mut self, policy: &Policy, data: &[&[u8]], stretch: usize) -> Vec<JobId> {
        let first = self.next;
        self.next += data.len() as u64;
        let policy = Arc::new(policy.clone());
        let lane = Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh };
        let starts = (0..data.len()).step_by(stretch).map(|at| {
            let mut builder = ChunkBuilder::new(self.origin);
            let jobs = (first..).zip(data).skip(at).take(stretch);
            jobs.for_each(|(offset, data)| builder.push(offset, data));
            let held = Held {
                place: Place::Chunk(Arrival(first + at as u64)),
                lane,
                run: None,
                record: Record { starts: 2, ..Record::default() },
                admitted: Time::ZERO,
                jobs: Arc::new(builder.finish()),
                first: 0,
                count: stretch.min(data.len() - at) as u16,
            };
            let queue = Arc::new(QueueName::new(b"q.u e").unwrap());
            let (flight, number) = (Flight(first + at as u64), first + at as u64);
            Start {
                flight,
                claim: first,
                queue,
                policy: Arc::clone(&policy),
                epoch: 1,
                held,
                fellows: Arc::default(),
                number,
                run: String::new(),
                checkpoint: self.checkpoint.clone(),
                lent: None,
                lot: None,
            }
        });
        let starts = starts.collect();
        self.runner.start(starts);
        (first..self.next).map(|offset| JobId { origin: self.origin, offset }).collect()
    }

    pub(crate) fn hear(&self) -> Finished {
        self.heard.recv_timeout(Duration::from_secs(120)).unwrap()
    }

    /// What became of so many jobs, in the order of their numbers.
    pub(crate) fn outcomes(&self, count: usize) -> Vec<Outcome> {
        let mut heard: Vec<(u64, Outcome)> = Vec::new();
        while heard.len() < count {
            let finished = self.hear();
            let mut offset = finished.flight.0 + u64::from(finished.first);
            for (count, outcome) in finished.outcomes {
                heard.extend((offset..offset + u64::from(count)).map(|offset| (offset, outcome.clone())));
                offset += u64::from(count);
            }
        }
        heard.sort_by_key(|(offset, _)| *offset);
        heard.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// What became of the jobs of one claim, in short words.
    pub(crate) fn all(&mut self, policy: &Policy, data: &[&[u8]]) -> Vec<String> {
        // A chunk ends with the job that makes it large.
        let stretch = if data.iter().any(|data| data.len() > 1 << 16) { 1 } else { 7 };
        self.start(policy, data, stretch);
        self.outcomes(data.len()).iter().map(brief).collect()
    }

    pub(crate) fn one(&mut self, policy: &Policy, data: &[u8]) -> String {
        self.all(policy, &[data]).remove(0)
    }
}

/// An outcome's word and what it says.
pub(crate) fn brief(outcome: &Outcome) -> String {
    let said = match outcome {
        Outcome::Succeeded { message } => message.clone(),
        Outcome::Snoozed { after } => format!("{}s", after.as_secs()),
        Outcome::RetryLater { after: Some(after), error } => format!("{}s {error}", after.as_secs()),
        Outcome::RetryLater { after: None, error } => error.clone(),
        Outcome::FailedForGood { error } | Outcome::Failed { error } | Outcome::Crashed { error } => error.clone(),
        Outcome::Moved { to: text } | Outcome::NotMoved { why: text } => text.clone(),
        Outcome::TimedOut { .. } | Outcome::Interrupted | Outcome::Lost | Outcome::Cancelled => String::new(),
    };
    format!("{} {said}", outcome.word()).trim_end().to_owned()
}
