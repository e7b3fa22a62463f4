//! Who waits for a call, who is in one, and what was told: the books of the thread that makes calls.
//!
//! The jobs of one claim are numbered through its starts; a piece of a claim is a stretch of those numbers. A call
//! that fails in a way that may be the fault of one of its jobs is made again in halves, and only a call with one job
//! charges it. It must not read answers or touch a socket.

use super::answer::{self, Ends, Read};
use super::call::{self, Answer};
use super::pool::Pool;
use super::request::{self, Laid, Prepared};
use crate::clock;
use crate::runner::tally::Tally;
use crate::runner::url::Hear;
use crate::runner::{Flight, Output, Start, Stop, given};
use crate::supervisor::{About, Kind, Roster, Worker};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use windlass_core::job::JobId;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Policy, Service, Url};
use windlass_core::time::Time;

/// So many messages are looked at before the free slots are filled.
const MESSAGES_MOST: usize = 512;
/// What is known is told so long after it came to be, if there are more calls to make: a turn of the engine for each of
/// them would take time from them. A crew that has nothing more to call for is told of at once.
const TELL_WITHIN: Duration = Duration::from_millis(10);

/// What the thread hears of.
pub(super) enum Message {
    Starts(Vec<Start>),
    Stop(Flight, Stop),
    Cancel(Flight, u16),
    Done(u64, Answer),
    Close,
}

/// The jobs that came with one claim.
pub(super) struct Claim {
    tallies: Vec<Tally>,
    /// The number of each start's first job.
    firsts: Vec<u32>,
    /// Jobs that a person cancelled while they were in a call with others: they end with it, or are not called again.
    unwanted: BTreeSet<u32>,
}

/// Jobs that wait for a call.
struct Piece {
    claim: u64,
    jobs: Range<u32>,
}

struct Crew {
    policy: Arc<Policy>,
    prepared: Rc<Prepared>,
    running: u32,
    waiting: VecDeque<Piece>,
}

/// A call under way.
struct Call {
    claim: u64,
    crew: Rc<str>,
    policy: Arc<Policy>,
    piece: Range<u32>,
    jobs: Vec<u32>,
    started: Time,
    abort: AbortHandle,
    worker: Worker,
}

pub(super) struct Books {
    hear: Hear,
    workers: Arc<Roster>,
    messages: UnboundedSender<Message>,
    crews: HashMap<Rc<str>, Crew>,
    claims: HashMap<u64, Claim>,
    flights: HashMap<Flight, u64>,
    calls: HashMap<u64, Call>,
    calls_made: u64,
    /// Starts of which something is known that was not told.
    untold: BTreeSet<(u64, usize)>,
    /// Since when there are such.
    untold_since: Option<Instant>,
}

impl Claim {
    fn new(starts: Vec<Start>) -> Claim {
        let mut firsts = Vec::with_capacity(starts.len());
        starts.iter().fold(0, |first, start| {
            firsts.push(first);
            first + u32::from(start.held.count)
        });
        Claim { tallies: starts.into_iter().map(Tally::new).collect(), firsts, unwanted: BTreeSet::new() }
    }

    fn count(&self) -> u32 {
        self.tallies.iter().map(|tally| u32::from(tally.start.held.count)).sum()
    }

    /// Which start a job belongs to, and its position there.
    fn place(&self, job: u32) -> (usize, u16) {
        let tally = self.firsts.partition_point(|first| *first <= job) - 1;
        (tally, (job - self.firsts[tally]) as u16)
    }

    pub(super) fn start(&self, job: u32) -> (&Start, u16) {
        let (tally, position) = self.place(job);
        (&self.tallies[tally].start, position)
    }

    /// Jobs with their starts and their positions there; neighbours are mostly of one start.
    pub(super) fn each(&self, jobs: &[u32]) -> impl Iterator<Item = (u32, &Start, u16)> {
        let (mut tally, mut of) = (0, 0..0);
        jobs.iter().map(move |job| {
            if !of.contains(job) {
                tally = self.place(*job).0;
                of = self.firsts[tally]..self.firsts[tally] + u32::from(self.tallies[tally].start.held.count);
            }
            (*job, &self.tallies[tally].start, (job - of.start) as u16)
        })
    }

    pub(super) fn id(&self, job: u32) -> JobId {
        let (start, position) = self.start(job);
        start.held.jobs.id(usize::from(start.held.first + position))
    }

    /// As it is given; an error is the sentence of a job that can never be sent.
    pub(super) fn data(&self, job: u32) -> Result<Cow<'_, [u8]>, String> {
        let (start, position) = self.start(job);
        given(&start.policy, start.held.jobs.data(usize::from(start.held.first + position)))
    }

    fn is_open(&self, job: u32) -> bool {
        let (tally, position) = self.place(job);
        self.tallies[tally].is_open(position)
    }

    /// Those of a stretch that have no outcome yet.
    fn open_in(&self, jobs: Range<u32>) -> Vec<u32> {
        let mut open = Vec::with_capacity(jobs.len());
        let mut from = jobs.start;
        while from < jobs.end {
            let (at, _) = self.place(from);
            let (tally, first) = (&self.tallies[at], self.firsts[at]);
            let to = jobs.end.min(first + u32::from(tally.start.held.count));
            open.extend((from..to).filter(|job| tally.is_open((job - first) as u16)));
            from = to;
        }
        open
    }

    /// The jobs of the start with this flight.
    fn of_flight(&self, flight: Flight) -> Range<u32> {
        let at = self.tallies.iter().position(|tally| tally.start.flight == flight);
        at.map_or(0..0, |at| self.firsts[at]..self.firsts[at] + u32::from(self.tallies[at].start.held.count))
    }
}

fn url(policy: &Policy) -> &Url {
    match &policy.service {
        Service::Url(url) => url,
        Service::Command(_)
        | Service::Batch(_)
        | Service::Worker(_)
        | Service::Remote(_)
        | Service::Forward(_)
        | Service::Handler { .. } => {
            panic!("{} is served by no URL, yet it came to the calls", policy.pattern)
        }
    }
}

impl Books {
    pub(super) fn new(hear: Hear, workers: Arc<Roster>, messages: UnboundedSender<Message>) -> Books {
        Books {
            hear,
            workers,
            messages,
            crews: HashMap::new(),
            claims: HashMap::new(),
            flights: HashMap::new(),
            calls: HashMap::new(),
            calls_made: 0,
            untold: BTreeSet::new(),
            untold_since: None,
        }
    }

    pub(super) async fn serve(mut self, mut messages: UnboundedReceiver<Message>) {
        let pool = Rc::<Pool>::default();
        let mut heard = Vec::with_capacity(MESSAGES_MOST);
        while self.hear_some(&mut messages, &mut heard).await {
            let mut crews = BTreeSet::new();
            for message in heard.drain(..) {
                match message {
                    Message::Starts(starts) => self.take_in(starts, &mut crews),
                    Message::Stop(flight, why) => self.stop(flight, why, &mut crews),
                    Message::Cancel(flight, position) => self.cancel(flight, position, &mut crews),
                    Message::Done(call, answer) => self.done(call, answer, &mut crews),
                    Message::Close => return self.tell(),
                }
            }
            crews.iter().for_each(|crew| self.fill_slots(crew, &pool));
            if self.untold.is_empty() {
                continue;
            }
            let since = *self.untold_since.get_or_insert_with(Instant::now);
            let has_more = |crew| self.crews.get(crew).is_some_and(|crew| !crew.waiting.is_empty());
            if since.elapsed() >= TELL_WITHIN || !crews.iter().all(has_more) {
                self.tell();
            }
        }
    }

    /// Waits for messages, or until what is known must be told; false where none will come.
    async fn hear_some(&self, messages: &mut UnboundedReceiver<Message>, heard: &mut Vec<Message>) -> bool {
        let some = messages.recv_many(heard, MESSAGES_MOST);
        match self.untold_since.filter(|_| !self.untold.is_empty()) {
            None => some.await > 0,
            // Nobody has anything to say yet: the loop goes on and tells.
            Some(since) => !matches!(tokio::time::timeout_at(since + TELL_WITHIN, some).await, Ok(0)),
        }
    }

    /// Cuts claims into pieces of a call's size; starts of one claim come together.
    fn take_in(&mut self, starts: Vec<Start>, crews: &mut BTreeSet<Rc<str>>) {
        let mut starts = starts.into_iter().peekable();
        while let Some(first) = starts.next() {
            let (claim, policy) = (first.claim, Arc::clone(&first.policy));
            let mut together = vec![first];
            while let Some(next) = starts.next_if(|next| next.claim == claim) {
                together.push(next);
            }
            self.flights.extend(together.iter().map(|start| (start.flight, claim)));
            let name: Rc<str> = policy.pattern.as_str().into();
            let fresh = || Crew {
                prepared: Rc::new(Prepared::new(url(&policy))),
                policy: Arc::clone(&policy),
                running: 0,
                waiting: VecDeque::new(),
            };
            let crew = self.crews.entry(Rc::clone(&name)).or_insert_with(fresh);
            if !Arc::ptr_eq(&crew.policy, &policy) && crew.policy != policy {
                (crew.policy, crew.prepared) = (Arc::clone(&policy), Rc::new(Prepared::new(url(&policy))));
            }
            let (together, size) = (Claim::new(together), url(&policy).size.max(1));
            let count = together.count();
            let pieces = (0..count).step_by(size as usize).map(|at| at..count.min(at + size));
            crew.waiting.extend(pieces.map(|jobs| Piece { claim, jobs }));
            self.claims.insert(claim, together);
            crews.insert(name);
        }
    }

    fn fill_slots(&mut self, name: &Rc<str>, pool: &Rc<Pool>) {
        while let Some(crew) = self.crews.get_mut(name)
            && crew.running < crew.policy.slots
            && let Some(piece) = crew.waiting.pop_front()
        {
            let (policy, prepared) = (Arc::clone(&crew.policy), Rc::clone(&crew.prepared));
            let Some(claim) = self.claims.get(&piece.claim) else { continue };
            let jobs = claim.open_in(piece.jobs.clone());
            let Laid { request, jobs, refused, rest } = request::lay(url(&policy), &prepared, claim, &jobs);
            let mut range = piece.jobs;
            if let Some(rest) = rest {
                crew.waiting.push_front(Piece { claim: piece.claim, jobs: rest..range.end });
                range.end = rest;
            }
            let Some(request) = request else {
                self.end(piece.claim, refused, clock::now());
                continue;
            };
            crew.running += 1;
            self.calls_made += 1;
            let (number, messages, pool) = (self.calls_made, self.messages.clone(), Rc::clone(pool));
            let (limit, most) = (policy.time_limit, answer::body_most(url(&policy), jobs.len()));
            let host = url(&policy).host.clone();
            let made = async move {
                let (answer, connection) = call::make(&pool, &host, request, limit, most).await;
                // Nobody hears it where the thread is about to end.
                let _closing = messages.send(Message::Done(number, answer));
                if let Some(connection) = connection {
                    pool.keep(&host, connection).await;
                }
            };
            let abort = tokio::task::spawn_local(made).abort_handle();
            let started = clock::now();
            let about = About::new(Kind::Call, Some(&policy), Flight(number));
            let job = jobs.first().map(|job| claim.id(*job));
            let worker = self.workers.make_for(About { job, jobs: jobs.len() as u32, ..about });
            let claim = piece.claim;
            let call = Call { claim, crew: Rc::clone(name), policy, piece: range, jobs, started, abort, worker };
            self.calls.insert(number, call);
            self.end(claim, refused, started);
        }
        if self.crews.get(name).is_some_and(|crew| crew.running == 0 && crew.waiting.is_empty()) {
            self.crews.remove(name);
        }
    }

    fn done(&mut self, number: u64, answer: Answer, crews: &mut BTreeSet<Rc<str>>) {
        let Some(mut call) = self.calls.remove(&number) else { return };
        let Some(claim) = self.claims.get(&call.claim) else { return };
        let ids = |at: usize| claim.id(call.jobs[at]);
        let limit = call.policy.time_limit.unwrap_or_default();
        let broke = matches!(answer, Answer::Broken(_));
        let checkpoint = match &answer {
            Answer::Whole { checkpoint, .. } => checkpoint.clone().filter(|_| call.jobs.len() == 1),
            Answer::Unreached(_) | Answer::Broken(_) | Answer::TimedOut => None,
        };
        let Read { ends, output, halves } = answer::read(url(&call.policy), call.jobs.len(), &ids, answer, limit);
        let has_output = output != Output::default();
        if has_output {
            // Output belongs to the jobs of this call and to no others.
            self.tell();
        }
        let emits = matches!(&ends, Ends::Each(ends) if ends.iter().any(|(_, _, emitted)| !emitted.is_empty()));
        if let Some((checkpoint, claim)) = checkpoint.zip(self.claims.get_mut(&call.claim)) {
            let (tally, position) = claim.place(call.jobs[0]);
            claim.tallies[tally].checkpoint(position, checkpoint);
        }
        if broke {
            call.worker.died()
        } else {
            call.worker.is_done(emits)
        };
        match ends {
            Ends::None => self.end_unwanted(&call),
            Ends::All(outcome) => self.end_all(&call, &outcome),
            Ends::Each(ends) => {
                let whole = |(at, outcome, emitted): (usize, _, _)| (call.jobs[at], outcome, emitted);
                self.end(call.claim, ends.into_iter().map(whole).collect(), call.started);
            }
        }
        if has_output {
            self.tell_with(output);
        }
        self.land(&call);
        if let Some(crew) = self.crews.get_mut(&call.crew) {
            let middle = call.piece.start + (call.piece.end - call.piece.start) / 2;
            if halves {
                crew.waiting.push_front(Piece { claim: call.claim, jobs: middle..call.piece.end });
                crew.waiting.push_front(Piece { claim: call.claim, jobs: call.piece.start..middle });
            }
            crews.insert(call.crew);
        }
    }

    fn land(&mut self, call: &Call) {
        if let Some(crew) = self.crews.get_mut(&call.crew) {
            crew.running -= 1;
        }
    }

    /// Ends all jobs of a call in the same way.
    fn end_all(&mut self, call: &Call, outcome: &Outcome) {
        let Some(claim) = self.claims.get_mut(&call.claim) else { return };
        for neighbours in call.jobs.chunk_by(|job, next| job + 1 == *next) {
            let mut rest = neighbours[0]..neighbours[neighbours.len() - 1] + 1;
            while !rest.is_empty() {
                let (at, position) = claim.place(rest.start);
                let tally = &mut claim.tallies[at];
                let count = rest.len().min(usize::from(tally.start.held.count - position)) as u16;
                tally.begun(call.started);
                tally.end_alike(position..position + count, outcome);
                self.untold.insert((call.claim, at));
                rest.start += u32::from(count);
            }
        }
    }

    fn end(&mut self, number: u64, ends: Vec<answer::End>, started: Time) {
        let Some(claim) = self.claims.get_mut(&number) else { return };
        for (job, outcome, emitted) in ends {
            let (tally, position) = claim.place(job);
            claim.tallies[tally].begun(started);
            claim.tallies[tally].end(position, outcome, emitted);
            self.untold.insert((number, tally));
        }
    }

    /// Jobs that a person cancelled are not called again.
    fn end_unwanted(&mut self, call: &Call) {
        let Some(claim) = self.claims.get(&call.claim) else { return };
        let unwanted = call.jobs.iter().filter(|job| claim.unwanted.contains(job));
        let ends = unwanted.map(|job| (*job, Outcome::Cancelled, Vec::new())).collect();
        self.end(call.claim, ends, call.started);
    }

    fn stop(&mut self, flight: Flight, why: Stop, crews: &mut BTreeSet<Rc<str>>) {
        let claim = self.flights.get(&flight).and_then(|number| Some((*number, self.claims.get(number)?)));
        if let Some((number, jobs)) = claim.map(|(number, claim)| (number, claim.of_flight(flight))) {
            self.cut_off(number, jobs, why, crews);
        }
    }

    fn cancel(&mut self, flight: Flight, position: u16, crews: &mut BTreeSet<Rc<str>>) {
        let claim = self.flights.get(&flight).and_then(|number| Some((*number, self.claims.get(number)?)));
        if let Some((number, jobs)) = claim.map(|(number, claim)| (number, claim.of_flight(flight))) {
            let job = jobs.start + u32::from(position);
            self.cut_off(number, job..jobs.end.min(job + 1), Stop::Cancel, crews);
        }
    }

    /// Ends what of these jobs waits, and cuts off what is under way unless it may go on. Some of the jobs of a call
    /// are not worth the call of the others, so a person's order lets such a call end by itself.
    fn cut_off(&mut self, number: u64, wanted: Range<u32>, why: Stop, crews: &mut BTreeSet<Rc<str>>) {
        let outcome = match why {
            Stop::Cancel => Outcome::Cancelled,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => Outcome::Interrupted,
        };
        let touches = |call: &Call| call.claim == number && call.jobs.iter().any(|job| wanted.contains(job));
        let alone = |call: &Call| call.jobs.iter().all(|job| wanted.contains(job));
        let under_way: Vec<u64> = self.calls.iter().filter(|(_, call)| touches(call)).map(|(no, _)| *no).collect();
        let (mut going, mut ended) = (BTreeSet::new(), Vec::new());
        for no in under_way {
            let goes_on = match why {
                Stop::Withdraw => true,
                Stop::Cancel => self.calls.get(&no).is_some_and(|call| !alone(call)),
                Stop::Interrupt | Stop::Kill => false,
            };
            if goes_on {
                going.extend(self.calls.get(&no).into_iter().flat_map(|call| call.jobs.iter().copied()));
            } else if let Some(mut call) = self.calls.remove(&no) {
                call.abort.abort();
                call.worker.stop();
                call.worker.is_done(false);
                ended.extend(call.jobs.iter().map(|job| (*job, outcome.clone(), Vec::new())));
                self.land(&call);
                crews.insert(Rc::clone(&call.crew));
            }
        }
        let Some(claim) = self.claims.get_mut(&number) else { return };
        if why == Stop::Cancel {
            claim.unwanted.extend(wanted.clone().filter(|job| going.contains(job)));
        }
        let waits = wanted.filter(|job| claim.is_open(*job) && !going.contains(job));
        ended.extend(waits.map(|job| (job, outcome.clone(), Vec::new())));
        self.end(number, ended, clock::now());
    }

    /// Tells what is known.
    fn tell(&mut self) {
        self.tell_with(Output::default());
    }

    fn tell_with(&mut self, mut output: Output) {
        let now = clock::now();
        let untold = std::mem::take(&mut self.untold);
        self.untold_since = None;
        for (number, at) in &untold {
            let Some(claim) = self.claims.get_mut(number) else { continue };
            let tally = &mut claim.tallies[*at];
            tally.tell(now, std::mem::take(&mut output)).into_iter().for_each(|report| (self.hear)(report));
            if tally.is_over() {
                self.flights.remove(&tally.start.flight);
            }
        }
        // Only now has everything that is known been told.
        for (number, _) in untold {
            if self.claims.get(&number).is_some_and(|claim| claim.tallies.iter().all(Tally::is_over)) {
                self.claims.remove(&number);
            }
        }
    }
}
