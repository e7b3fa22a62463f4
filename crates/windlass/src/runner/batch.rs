//! One process for many jobs: a line each on its standard input, and what its replies and its exit say of them.
//!
//! Replies count whatever happens after them. Where a process dies and some jobs have no reply, those are run again in
//! halves, and only a process with a single job charges it: one bad line never costs its neighbours an attempt. A
//! program that ends well but answers too few, too many or nothing charges whom it did not answer: running it again
//! would not make it speak. This file owns those rules. It must not start anything: `command` does.

use super::command::reading;
use super::launcher::{Cut, EMIT_MAX, End, Report};
use super::reply::{self, Emits, Said};
use super::spoken::{Mint, Voice};
use super::tally::Tally;
use super::{Finished, Flight, Output, Start, Stream};
use crate::clock;
use crate::sabotage::{self, Sabotage};
use crate::store::Held;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::time::Duration;
use windlass_core::job::JobId;
use windlass_core::outcome::{Exit, Outcome};
use windlass_core::policy::{self, Framing, Reply, Service};

mod input;

use input::Input;

/// What an object of the JSON framing has besides its data.
const OBJECT: u64 = 160;
/// A reply may be so long on average before the whole is noise, and so much is always heard.
const REPLY_MOST: u64 = 4096;
const REPLIES_LEAST: u64 = 64 << 10;
/// What is kept of standard error.
const STDERR_MOST: usize = 64 << 10;

/// A job of a batch: which of its starts, and where in it.
type Job = (u32, u16);

/// The jobs of one claim on their way through processes.
#[derive(Debug)]
pub(super) struct Batch {
    tallies: Vec<Tally>,
    /// Jobs that wait for a process, first piece last.
    todo: Vec<Vec<Job>>,
    /// The jobs of the process that runs or is about to.
    piece: Vec<Job>,
    /// Makes the tokens of that process, where its jobs can speak over HTTP.
    mint: Option<Mint>,
    /// Jobs that a person cancelled while their process had others: they end with it, or are not run again.
    unwanted: BTreeSet<Job>,
    stopped: bool,
}

impl Batch {
    pub(super) fn new(starts: Vec<Start>) -> Batch {
        let mut all: Vec<Job> = Vec::with_capacity(starts.iter().map(|start| usize::from(start.held.count)).sum());
        for (at, start) in (0..).zip(&starts) {
            all.extend((0..start.held.count).map(|position| (at, position)));
        }
        let tallies = starts.into_iter().map(Tally::new).collect();
        Batch { tallies, todo: vec![all], piece: Vec::new(), mint: None, unwanted: BTreeSet::new(), stopped: false }
    }

    /// The first start, whose flight stands for the batch.
    pub(super) fn leader(&self) -> &Start {
        &self.tallies[0].start
    }

    pub(super) fn flights(&self) -> impl Iterator<Item = Flight> {
        self.tallies.iter().map(|tally| tally.start.flight)
    }

    /// The jobs of the next process, and it, may speak with tokens that this makes.
    pub(super) fn speaks_with(&mut self, mint: Option<Mint>) {
        self.mint = mint;
    }

    /// What the process and its jobs may say over HTTP.
    pub(super) fn voice(&self) -> Option<Voice> {
        let flight = |(tally, _): &Job| self.tallies[*tally as usize].start.flight;
        let jobs = || self.piece.iter().map(|job| (self.id(*job), flight(job))).collect();
        let policy = &self.leader().policy;
        self.mint.clone().map(|mint| Voice { mint, jobs: jobs(), policy: policy.clone() })
    }

    fn policy(&self) -> &policy::Batch {
        match &self.leader().policy.service {
            Service::Batch(batch) => batch,
            Service::Command(_)
            | Service::Worker(_)
            | Service::Url(_)
            | Service::Remote(_)
            | Service::Forward(_)
            | Service::Handler { .. } => {
                panic!("a batch is made for a batch command only")
            }
        }
    }

    /// The lines of the next process, whose jobs are then `piece`; none where nothing is left to run. Where they cannot
    /// be written, `piece` are those that they were for.
    pub(super) fn next_piece(&mut self) -> io::Result<Option<File>> {
        while !self.stopped
            && let Some(jobs) = self.todo.pop()
        {
            match self.lay(&jobs) {
                Ok(_nothing) if self.piece.is_empty() => {}
                Ok(lines) => return Ok(Some(lines)),
                Err(error) => {
                    self.piece = jobs;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Makes as many of these jobs the piece as one process may get, and puts the others back.
    fn lay(&mut self, jobs: &[Job]) -> io::Result<File> {
        let (framing, most) = (self.policy().framing, self.policy().bytes);
        let mut lines = Input::new(self.expected(jobs, framing), self.mint.clone())?;
        let mut rest = jobs.iter();
        self.piece.clear();
        self.piece.reserve(jobs.len());
        while lines.len() < most
            && let Some((tally, position)) = rest.next().copied()
        {
            match lines.add(&self.tallies[tally as usize].start, position, framing)? {
                Ok(()) => self.piece.push((tally, position)),
                Err(error) => self.end((tally, position), Outcome::FailedForGood { error }),
            }
        }
        let lines = lines.finish()?;
        if !rest.as_slice().is_empty() {
            self.todo.push(rest.as_slice().to_vec());
        }
        Ok(lines)
    }

    /// About how many bytes the lines of these jobs have.
    fn expected(&self, jobs: &[Job], framing: Framing) -> u64 {
        let besides = match framing {
            Framing::Raw | Framing::Paths { .. } => 1,
            Framing::Json | Framing::Array => OBJECT,
        };
        let all = self.tallies.iter().map(|tally| tally.start.held.bytes(0, tally.start.held.count)).sum::<u64>();
        let of: u64 = self.tallies.iter().map(|tally| u64::from(tally.start.held.count)).sum();
        let jobs = jobs.len() as u64;
        // A piece that is run again is some of them, and those need not be like the others: it may turn out larger.
        (u128::from(all) * u128::from(jobs) / u128::from(of.max(1))) as u64 + jobs * besides
    }

    /// How many jobs its process has.
    pub(super) fn piece_len(&self) -> u32 {
        self.piece.len() as u32
    }

    /// The first job of the piece and the last one of the same start: what the slot table notes.
    pub(super) fn span(&self) -> (JobId, u64, u32) {
        let (first, position) = self.piece.first().copied().unwrap_or((0, 0));
        let held = &self.tallies[first as usize].start.held;
        // Pieces are in the order of their starts.
        let end = self.piece.partition_point(|(tally, _)| *tally <= first);
        let last = end.checked_sub(1).map_or(position, |last| self.piece[last].1);
        (self.id((first, position)), self.id((first, last)).offset, held.start())
    }

    fn id(&self, (tally, position): Job) -> JobId {
        let held = &self.tallies[tally as usize].start.held;
        held.jobs.id(usize::from(held.first + position))
    }

    /// How much of the process's standard output is worth hearing.
    pub(super) fn replies_most(&self) -> u64 {
        (self.piece.len() as u64 * REPLY_MOST).max(REPLIES_LEAST)
    }

    /// It is to end: what has not begun does not begin.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// A person cancels jobs of one flight, all of them where no position is named: those that wait end now. True where
    /// the process has no others, so that it is to end.
    pub(super) fn cancel(&mut self, flight: Flight, position: Option<u16>) -> bool {
        let is_meant = |(tally, at): &Job| {
            let start = &self.tallies[*tally as usize].start;
            start.flight == flight && position.is_none_or(|position| position == *at)
        };
        let waiting: Vec<Job> =
            self.todo.iter_mut().flat_map(|jobs| jobs.extract_if(.., |job| is_meant(job))).collect();
        let running: Vec<Job> = self.piece.iter().copied().filter(is_meant).collect();
        waiting.into_iter().for_each(|job| self.end(job, Outcome::Cancelled));
        self.unwanted.extend(&running);
        !running.is_empty() && self.piece.iter().all(|job| self.unwanted.contains(job))
    }

    /// Its launcher died: what a process may have done to it is found out as after any other death.
    pub(super) fn lost(&mut self, begun: bool) -> Vec<Finished> {
        if begun {
            self.charge_one(&Outcome::Lost);
        } else {
            self.put_back();
        }
        if self.stopped {
            self.end_all(&Outcome::Interrupted);
        }
        self.tell(Output::default())
    }

    /// Ends everything that has no outcome yet.
    pub(super) fn end_all(&mut self, outcome: &Outcome) {
        let waiting: Vec<Job> = self.piece.drain(..).chain(self.todo.drain(..).flatten()).collect();
        waiting.into_iter().for_each(|job| self.end(job, outcome.clone()));
    }

    fn end(&mut self, (tally, position): Job, outcome: Outcome) {
        self.tallies[tally as usize].end(position, outcome, Emits::new());
    }

    /// Takes what a process came to; afterwards `next_piece` may have more to run.
    pub(super) fn heard(&mut self, report: &Report) -> Vec<Finished> {
        self.tallies.iter_mut().for_each(|tally| tally.begun(report.started));
        let output = self.output(report);
        match report.end {
            End::CannotStart { step, errno } => self.end_piece(&reading::refusal(step, errno, self.leader())),
            End::NotBegun | End::Up { .. } => self.put_back(),
            End::Exit(exit) => {
                self.take_checkpoints(report);
                let told = self.take_replies(report);
                self.read_end(exit, report, told);
            }
        }
        if self.stopped {
            self.end_all(&Outcome::Interrupted);
        }
        self.tell(output)
    }

    /// What is known by now.
    pub(super) fn tell(&mut self, mut output: Output) -> Vec<Finished> {
        let now = clock::now();
        self.tallies.iter_mut().flat_map(|tally| tally.tell(now, std::mem::take(&mut output))).collect()
    }

    fn end_piece(&mut self, outcome: &Outcome) {
        let piece = std::mem::take(&mut self.piece);
        for neighbours in piece.chunk_by(|(tally, at), (next, behind)| tally == next && at + 1 == *behind) {
            let ((tally, first), (_, last)) = (neighbours[0], neighbours[neighbours.len() - 1]);
            self.tallies[tally as usize].end_alike(first..last + 1, outcome);
        }
    }

    /// The piece never began.
    fn put_back(&mut self) {
        let piece = std::mem::take(&mut self.piece);
        self.run_again(piece);
    }

    /// These go first, but for those that somebody cancelled meanwhile.
    fn run_again(&mut self, mut jobs: Vec<Job>) {
        let cancelled: Vec<Job> = jobs.extract_if(.., |job| self.unwanted.contains(job)).collect();
        cancelled.into_iter().for_each(|job| self.end(job, Outcome::Cancelled));
        self.todo.push(jobs);
    }

    /// Gives each reply to its job; says what was wrong with them as a whole.
    fn take_replies(&mut self, report: &Report) -> Result<(), String> {
        let mut emitted = self.take_emitted(report)?;
        let stdout = &report.stdout;
        if self.policy().reply == Reply::Exit {
            if report.cut.is_none() && matches!(report.end, End::Exit(Exit::Code(0))) {
                let done = Outcome::Succeeded { message: String::new() };
                for ((tally, position), emits) in emitted {
                    self.tallies[tally as usize].end(position, done.clone(), emits);
                }
                self.end_piece(&done);
            }
            return Ok(());
        }
        let most = self.replies_most();
        if stdout.total > most {
            let (total, jobs) = (stdout.total, self.piece.len());
            return Err(format!("it wrote {total} bytes, expected replies to {jobs} jobs of at most {most} bytes"));
        }
        // A last line without its newline was cut off by the end of the process, and says nothing.
        let end = memchr::memrchr(b'\n', &stdout.bytes);
        let lines = end.into_iter().flat_map(|end| stdout.bytes[..end].split(|b| *b == b'\n'));
        let ids = |at: usize| self.id(self.piece[at]);
        let (said, told) = reply::allot(lines.map(reply::read).collect(), self.piece.len(), &ids);
        for (job, said) in std::mem::take(&mut self.piece).into_iter().zip(said) {
            let Some((outcome, emits)) = said else {
                self.piece.push(job);
                continue;
            };
            let more = if emitted.is_empty() { None } else { emitted.remove(&job) };
            let emits = emits.into_iter().chain(more.unwrap_or_default()).collect();
            self.tallies[job.0 as usize].end(job.1, outcome, emits);
        }
        told
    }

    /// A line of a control file that names no job is believed where there is but one.
    fn take_checkpoints(&mut self, report: &Report) {
        if report.control.is_empty() {
            return;
        }
        let by_id = self.by_id();
        for line in report.control.split(|b| *b == b'\n') {
            let (id, line) = reply::addressed(line);
            let job = match (id, &self.piece[..]) {
                (Some(id), _) => by_id.get(&id).copied(),
                (None, [only]) => Some(*only),
                (None, _) => None,
            };
            if let Some(((tally, position), text)) = job.zip(Said::read(line).checkpoint) {
                self.tallies[tally as usize].checkpoint(position, text);
            }
        }
    }

    /// The jobs of the piece by what they are called.
    fn by_id(&self) -> HashMap<JobId, Job> {
        self.piece.iter().map(|job| (self.id(*job), *job)).collect()
    }

    /// All that came with the claim, whichever of it the process has.
    pub(super) fn held(&self) -> Vec<Held> {
        self.tallies.iter().map(|tally| tally.start.held.clone()).collect()
    }

    /// What the process emitted, by the job that each line names.
    fn take_emitted(&self, report: &Report) -> Result<HashMap<Job, Emits>, String> {
        let mut by_job: HashMap<Job, Emits> = HashMap::new();
        if report.emitted.is_empty() {
            return Ok(by_job);
        }
        if report.emitted.len() as u64 > EMIT_MAX {
            return Err(format!("it emitted more than {EMIT_MAX} bytes"));
        }
        let ids = self.by_id();
        for (id, queue, data) in reply::read_emit_file(&report.emitted)? {
            let job = match (id, &self.piece[..]) {
                (Some(id), _) => *ids.get(&id).ok_or_else(|| format!("it emitted for {id}, which it was not given"))?,
                (None, [only]) => *only,
                (None, _) => return Err("it emitted without naming the job: expected @ID<TAB>QUEUE<TAB>DATA".into()),
            };
            by_job.entry(job).or_default().push((queue, data));
        }
        Ok(by_job)
    }

    /// What becomes of the jobs that no reply spoke of. Once we have told a process to end, its exit says nothing of
    /// them, however politely it left: nobody knows how far it was.
    fn read_end(&mut self, exit: Exit, report: &Report, told: Result<(), String>) {
        if self.piece.is_empty() {
            return;
        }
        let policy = &self.leader().policy;
        match (report.cut, told) {
            (Some(Cut::Cancel), _) => self.end_piece(&Outcome::Cancelled),
            (Some(Cut::Interrupt), _) => self.end_piece(&Outcome::Interrupted),
            (Some(Cut::Limit(resource, seen)), _) => {
                let outcome = reading::over_limit(resource, seen, policy.limits);
                self.charge_one(&outcome);
            }
            (_, Err(error)) => self.end_piece(&Outcome::Failed { error }),
            (Some(Cut::TimeLimit), Ok(())) => {
                let outcome = Outcome::TimedOut { limit: policy.time_limit.unwrap_or(Duration::ZERO) };
                self.charge_one(&outcome);
            }
            (None, Ok(())) if exit == Exit::Code(0) => {
                let error = "the batch ended well and gave no reply for this job".into();
                self.end_piece(&Outcome::Failed { error });
            }
            // It said so of all of them.
            (None, Ok(())) if exit == Exit::Code(75) => self.end_piece(&reading::exit_outcome(exit, report)),
            (None, Ok(())) => self.charge_one(&reading::exit_outcome(exit, report)),
        }
    }

    /// Something happened that one of the jobs may be at fault for: where there are several, they are run again in
    /// halves.
    fn charge_one(&mut self, outcome: &Outcome) {
        if self.piece.len() == 1 || sabotage::on(Sabotage::NeighboursCharged) {
            return self.end_piece(outcome);
        }
        let mut first = std::mem::take(&mut self.piece);
        let second = first.split_off(first.len() / 2);
        self.run_again(second);
        self.run_again(first);
    }

    /// Replies are no output; what it wrote to standard error is, and all of it where it does not reply.
    fn output(&self, report: &Report) -> Output {
        let stream = |kept: &super::launcher::Kept| {
            let bytes = &kept.bytes;
            let head = match bytes.len() > STDERR_MOST {
                true => [&bytes[..STDERR_MOST / 2], &bytes[bytes.len() - STDERR_MOST / 2..]].concat(),
                false => bytes.clone(),
            };
            Stream { head, file: None, total: kept.total }
        };
        let stdout = match self.policy().reply {
            Reply::Lines => Stream::default(),
            Reply::Exit => stream(&report.stdout),
        };
        Output { stdout, stderr: stream(&report.stderr) }
    }

    /// True once every job of every start has an outcome.
    pub(super) fn is_over(&self) -> bool {
        self.tallies.iter().all(Tally::is_over)
    }
}

#[cfg(test)]
mod tests;
