//! The thread of the kept workers: one wait for all their pipes, then replies, deaths, deadlines, and new lines.
//!
//! It owns the jobs between the engine and a worker. What is known is told when there is nothing more to do, or a
//! moment after the first news, so that a flood of short jobs is told in large stretches. It must not block but in its
//! one wait.

use super::kept::{Ending, Heard, Kept, Line, last_words};
use super::marks::Marks;
use super::pool::{Death, Pool};
use super::{Message, News};
use crate::clock;
use crate::error::Failure;
use crate::numbered::ByNumber;
use crate::runner::command::{Shared, order, reading};
use crate::runner::launcher::{End, Report, holds_more};
use crate::runner::reply::{self, Emits};
use crate::runner::tally::Tally;
use crate::runner::{Flight, Output, Start, Stop};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::job::Origin;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Command, Policy};
use windlass_core::supervisor::WorkerState;

mod assign;
mod ends;
mod room;
mod said;

/// How long what is known may wait to be told while there is more to do. Each telling is a turn of the engine.
const TELL_WITHIN: Duration = Duration::from_millis(10);
/// Numbers of workers' processes are flights that the engine never gives out.
const WORKERS_FROM: u64 = 1 << 63;
/// A worker's memory is looked at once in so many jobs, and with the first that ends so long after the last look.
const LOOK_EVERY: u64 = 64;
const LOOK_AFTER: Duration = Duration::from_secs(1);

const BELL: u64 = u64::MAX;
/// What an event of a worker is about, in the low bits of its token.
const REPLIES: u64 = 0;
const CHANNEL: u64 = 1;
const ROOM: u64 = 2;
const NOTICES: u64 = 3;

/// The end of one job as its worker told it, or of neighbours that ended alike and emitted nothing.
struct Answer {
    flight: Flight,
    positions: Range<u16>,
    outcome: Outcome,
    emitted: Emits,
}

pub(super) struct Desk {
    shared: Arc<Shared>,
    news: Arc<News>,
    epoll: OwnedFd,
    /// By policy entry, and by queue where the command names it.
    by_key: HashMap<(String, Option<String>), usize>,
    /// The rules of the last start, where they are of one pool whatever the queue, and that pool.
    last_pool: Option<(Arc<Policy>, usize)>,
    pools: Vec<Pool>,
    workers: HashMap<u32, Kept>,
    marks: Marks,
    last_worker: u32,
    flights: ByNumber<Flight, (usize, Tally)>,
    /// Pools with news since jobs were last given out, and those that wait until a worker may be made again.
    stirred: BTreeSet<usize>,
    ailing: BTreeSet<usize>,
    /// What was answered in the round of reading that is under way.
    answers: Vec<Answer>,
    /// Flights that have something to tell, since when, and the pools in which one of them is over.
    news_of: BTreeSet<Flight>,
    news_since: Option<Instant>,
    over_in: BTreeSet<usize>,
    /// What workers' processes are known by.
    origin: Origin,
    buffer: Vec<u8>,
    /// For how many workers of a table there is memory; only of those that name a need.
    room: HashMap<String, u32>,
    closed: bool,
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>, news: Arc<News>) -> Result<Desk, Failure> {
        let cannot = |e: rustix::io::Errno| Failure::io("cannot make an event queue", &e.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?;
        epoll::add(&epoll, &news.bell, EventData::new_u64(BELL), EventFlags::IN).map_err(cannot)?;
        let random = getrandom::u64()
            .map_err(|e| Failure::new(crate::error::Kind::Internal, format!("no random numbers: {e}")))?;
        let marks = Marks::open(&shared.settings.run)?;
        Ok(Desk {
            shared,
            news,
            epoll,
            by_key: HashMap::new(),
            last_pool: None,
            pools: Vec::new(),
            workers: HashMap::new(),
            marks,
            last_worker: 0,
            flights: ByNumber::default(),
            stirred: BTreeSet::new(),
            ailing: BTreeSet::new(),
            answers: Vec::new(),
            news_of: BTreeSet::new(),
            news_since: None,
            over_in: BTreeSet::new(),
            origin: Origin::from_random(random),
            buffer: vec![0; 64 << 10],
            room: HashMap::new(),
            closed: false,
        })
    }

    pub(super) fn serve(&mut self) {
        let mut events = Vec::with_capacity(256);
        while !self.closed {
            events.clear();
            let patience = self.patience();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), patience.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Nothing but our own mistake can be wrong with it; without it nobody can be served.
                Err(error) => panic!("cannot wait for the kept workers: {error}"),
            }
            // What a worker said of a job before it answered is heard before the answer.
            events.sort_by_key(|event| {
                let token = event.data.u64();
                token == BELL || ![CHANNEL, NOTICES].contains(&(token & 3))
            });
            for event in &events {
                match event.data.u64() {
                    BELL => self.hear(),
                    token => self.attend((token >> 2) as u32, token & 3),
                }
            }
            let now = Instant::now();
            self.enforce_deadlines(now);
            self.look_after_ailing();
            while let Some(pool) = self.stirred.pop_first() {
                self.assign(pool, now);
            }
            self.tell(now);
        }
    }

    /// How long the next wait may be.
    fn patience(&self) -> Option<Timespec> {
        let late = self.news_since.map(|since| since + TELL_WITHIN);
        let workers = self.workers.values().filter_map(|worker| self.due(worker)).min();
        let first = [late, workers].into_iter().flatten().min();
        let hires = self.ailing.iter().filter_map(|at| self.pools[*at].not_before()).min();
        let hires = hires.map(|at| at.since(clock::steady()));
        let left = first.map(|first| first.saturating_duration_since(Instant::now()));
        let left = [left, hires].into_iter().flatten().min()?;
        Some(Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() })
    }

    /// When something is due for a worker: a deadline of a job, its own end, or its retirement.
    fn due(&self, worker: &Kept) -> Option<Instant> {
        let rules = self.pools[worker.pool].rules()?;
        let rests = worker.state() == WorkerState::Waiting;
        let idle = rests.then(|| worker.idle_since.checked_add(rules.idle)).flatten();
        let old = rules.age.filter(|_| rests).and_then(|age| worker.born.checked_add(age));
        [worker.next_deadline(), idle, old].into_iter().flatten().min()
    }

    fn hear(&mut self) {
        for message in self.news.take() {
            match message {
                Message::Starts(starts) => starts.into_iter().for_each(|start| self.take(start)),
                Message::Stop(flight, why) => self.stop(flight, why),
                Message::Cancel(flight, position) => self.cancel(flight, position),
                Message::Report(report) => self.process(*report),
                Message::Lost(flight) => self.buried(number(flight), None),
                Message::MakeRoom(bytes) => self.make_room(bytes),
                Message::Overdue(overdue) => self.overdue(overdue),
                Message::Spoken(spoken) => self.speak(&spoken),
                Message::Close => self.closed = true,
            }
        }
    }

    /// Jobs to do: they wait in their pool.
    fn take(&mut self, start: Start) {
        let last = self.last_pool.as_ref().filter(|(policy, _)| Arc::ptr_eq(policy, &start.policy));
        let pool = last.map(|(_, pool)| *pool).unwrap_or_else(|| self.pool_for(&start));
        if self.pools[pool].learn(&start) {
            for number in self.pools[pool].workers.clone() {
                self.retire(number);
            }
        }
        self.learn_room(pool);
        self.pools[pool].add(&start);
        self.stirred.insert(pool);
        self.flights.insert(start.flight, (pool, Tally::new(start)));
    }

    fn pool_for(&mut self, start: &Start) -> usize {
        let named = start.policy.service.command().is_some_and(Command::names_queue);
        let key = (start.policy.pattern.clone(), named.then(|| start.queue.as_str().to_owned()));
        let pools = &mut self.pools;
        let pool = *self.by_key.entry(key).or_insert_with(|| {
            pools.push(Pool::new(start));
            pools.len() - 1
        });
        self.last_pool = (!named).then(|| (Arc::clone(&start.policy), pool));
        pool
    }

    fn attend(&mut self, number: u32, what: u64) {
        match what {
            REPLIES => self.read_replies(number),
            CHANNEL | NOTICES => self.read_words(number, what),
            _ => self.flush(number),
        }
    }

    fn read_replies(&mut self, number: u32) {
        let Some(mut worker) = self.workers.remove(&number) else { return };
        let mut buffer = std::mem::take(&mut self.buffer);
        let heard = worker.read_replies(&mut buffer, |worker, line| self.reply(worker, line));
        self.buffer = buffer;
        let now = Instant::now();
        worker.end_round(now);
        self.end_answered();
        match heard {
            Heard::More => {}
            Heard::Endless if worker.is_stopping() => {}
            Heard::Endless => worker.end_for(Ending::Babbles("its worker wrote a reply without an end".into())),
            Heard::Closed => {
                // What has been taken out already is out.
                let _out_already = epoll::delete(&self.epoll, &worker.from);
                worker.is_mute = true;
                worker.kill_at = worker.kill_at.or(now.checked_add(worker.policy.grace));
            }
        }
        self.settle_down(&mut worker, now);
        self.stirred.insert(worker.pool);
        self.workers.insert(number, worker);
    }

    /// One reply: its job has ended.
    fn reply(&mut self, worker: &mut Kept, line: &[u8]) {
        if matches!(worker.ending(), Some(Ending::Babbles(_))) {
            return;
        }
        let (id, outcome, emitted) = match reply::read(line) {
            Ok(reply) => (reply.id, reply.outcome, reply.emitted),
            Err((id, error)) => (id, Outcome::Failed { error }, Emits::new()),
        };
        let Some(Line { flight, position, id, spoke, .. }) = worker.answered(id) else {
            let error = "its worker replied to a job that it was not given";
            worker.end_for(Ending::Babbles(error.into()));
            return;
        };
        if self.pools[worker.pool].worked() {
            self.shared.settings.board.ails(&worker.policy.pattern, None);
        }
        if spoke {
            self.shared.settings.board.ended(id);
        }
        if !emitted.is_empty() {
            worker.emits();
        }
        match self.answers.last_mut() {
            Some(last)
                if (last.flight, last.positions.end) == (flight, position)
                    && last.emitted.is_empty()
                    && emitted.is_empty()
                    && last.outcome.is_same(&outcome) =>
            {
                last.positions.end += 1;
            }
            _ => self.answers.push(Answer { flight, positions: position..position + 1, outcome, emitted }),
        }
    }

    /// Notes what was answered, flight by flight.
    fn end_answered(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        let mut rest = answers.drain(..).peekable();
        while let Some(flight) = rest.peek().map(|answer| answer.flight) {
            let mut known = self.flights.get_mut(&flight);
            while let Some(Answer { positions, outcome, emitted, .. }) = rest.next_if(|answer| answer.flight == flight)
            {
                let Some((pool, tally)) = &mut known else { continue };
                if tally.is_shared() {
                    self.pools[*pool].ended += positions.len();
                }
                if emitted.is_empty() {
                    tally.end_alike(positions, &outcome);
                } else {
                    tally.end(positions.start, outcome, emitted);
                }
            }
            self.is_to_be_told(flight);
        }
        drop(rest);
        self.answers = answers;
    }

    /// After a round with a worker: it may have had enough, or must go.
    fn settle_down(&mut self, worker: &mut Kept, now: Instant) {
        worker.mark(&mut self.marks);
        if matches!(worker.ending(), Some(Ending::Babbles(_))) && !worker.is_stopping() {
            worker.is_told();
            self.shared.stop_worker(worker.flight, Stop::Interrupt);
            return;
        }
        let Some(rules) = self.pools[worker.pool].rules() else { return };
        let (jobs, at) = worker.looked_at_memory;
        let due = worker.done >= jobs + LOOK_EVERY.min(worker.done) || now >= at + LOOK_AFTER;
        let look = rules.memory > 0 && due;
        let large = look && worker.pid().is_some_and(|pid| holds_more(pid, rules.memory));
        if look {
            worker.looked_at_memory = (worker.done, now);
        }
        let enough = rules.jobs > 0 && worker.done + worker.lines.len() as u64 >= rules.jobs;
        let old = rules.age.is_some_and(|age| now.saturating_duration_since(worker.born) >= age);
        if worker.ending().is_none() && (enough || large || old) {
            worker.end_for(Ending::Retired);
        }
        if worker.ending() == Some(&Ending::Retired) && worker.lines.is_empty() && worker.to.is_some() {
            self.dismiss(worker, now);
        }
    }

    /// Tells a worker that no more will come; it has its grace to go.
    fn dismiss(&mut self, worker: &mut Kept, now: Instant) {
        worker.end_for(Ending::Retired);
        worker.is_told();
        worker.to = None;
        worker.kill_at = now.checked_add(worker.policy.grace);
    }

    /// A worker is to go when it has done what it has in hand.
    fn retire(&mut self, number: u32) {
        let now = Instant::now();
        let Some(mut worker) = self.workers.remove(&number) else { return };
        if worker.ending().is_none() {
            worker.end_for(Ending::Retired);
            if worker.lines.is_empty() {
                self.dismiss(&mut worker, now);
            }
        }
        self.workers.insert(number, worker);
    }

    fn enforce_deadlines(&mut self, now: Instant) {
        let due = |(no, worker): (&u32, &Kept)| self.due(worker).filter(|at| *at <= now).map(|_| *no);
        let due: Vec<u32> = self.workers.iter().filter_map(due).collect();
        for number in due {
            let Some(mut worker) = self.workers.remove(&number) else { continue };
            if worker.kill_at.is_some_and(|at| at <= now) {
                worker.kill_at = None;
                if worker.is_mute && !worker.is_stopping() {
                    worker.end_for(Ending::Babbles("its worker closed its standard output".into()));
                    worker.is_told();
                }
                self.shared.stop_worker(worker.flight, Stop::Interrupt);
            } else if !worker.is_stopping() {
                match worker.overdue(now) {
                    Some(Line { flight, position, .. }) => {
                        worker.end_for(Ending::TimedOut(flight, position));
                        worker.is_told();
                        self.shared.stop_worker(worker.flight, Stop::Interrupt);
                    }
                    // Idle or old.
                    None => self.dismiss(&mut worker, now),
                }
            }
            self.workers.insert(number, worker);
        }
    }

    /// Notes how a job ended.
    fn end(&mut self, flight: Flight, position: u16, outcome: Outcome, emitted: Emits) {
        if let Some((_, tally)) = self.flights.get_mut(&flight) {
            tally.end(position, outcome, emitted);
            self.is_to_be_told(flight);
        }
    }

    /// Notes that neighbours ended alike.
    fn end_alike(&mut self, flight: Flight, positions: Range<u16>, outcome: &Outcome) {
        if let Some((_, tally)) = self.flights.get_mut(&flight) {
            tally.end_alike(positions, outcome);
            self.is_to_be_told(flight);
        }
    }

    /// A flight has something to tell.
    fn is_to_be_told(&mut self, flight: Flight) {
        if self.news_of.insert(flight) {
            self.news_since.get_or_insert_with(Instant::now);
        }
        if let Some((pool, tally)) = self.flights.get(&flight)
            && tally.is_over()
        {
            self.over_in.insert(*pool);
        }
    }

    /// Tells all that is known: when the first of it has waited for a moment, or at once where a start is over and its
    /// pool has enough to tell. While workers have more to do, a turn of the engine would mostly take time from them.
    fn tell(&mut self, now: Instant) {
        let late = self.news_since.is_some_and(|since| now >= since + TELL_WITHIN);
        let over = std::mem::take(&mut self.over_in);
        if !late && !over.into_iter().any(|pool| self.pools[pool].has_enough_to_tell()) {
            return;
        }
        self.news_since = None;
        self.pools.iter_mut().for_each(|pool| pool.ended = 0);
        let at = clock::now();
        for flight in std::mem::take(&mut self.news_of) {
            let Some((_, tally)) = self.flights.get_mut(&flight) else { continue };
            tally.tell(at, Output::default()).into_iter().for_each(&self.shared.hear);
            if tally.is_over() {
                self.flights.remove(&flight);
            }
        }
    }

    /// Pools whose wait is over may make a worker again.
    fn look_after_ailing(&mut self) {
        if self.ailing.is_empty() {
            return;
        }
        let now = clock::steady();
        let over: Vec<usize> = self.ailing.iter().copied().filter(|at| self.pools[*at].may_make(now)).collect();
        for at in over {
            self.ailing.remove(&at);
            self.stirred.insert(at);
        }
    }

    /// A pool's worker could not be made, or died.
    fn ails(&mut self, at: usize, why: &str, how: Death) {
        let pool = &mut self.pools[at];
        pool.died(why, how, clock::steady());
        self.ailing.insert(at);
        if let Some(trouble) = pool.trouble.clone() {
            self.shared.settings.board.ails(&pool.policy.pattern, Some(trouble));
        }
    }

    /// What a launcher says of a worker's process.
    fn process(&mut self, report: Report) {
        let at = number(report.flight);
        match report.end {
            End::Up { pid } => {
                if let Some(worker) = self.workers.get_mut(&at) {
                    worker.came_up(pid, Instant::now());
                    self.stirred.insert(worker.pool);
                }
            }
            End::Exit(_) | End::CannotStart { .. } | End::NotBegun => self.buried(at, Some(&report)),
        }
    }
}

fn number(flight: Flight) -> u32 {
    flight.0 as u32
}

/// The sentence of an outcome that is not a success.
fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::FailedForGood { error } | Outcome::RetryLater { error, .. } | Outcome::Failed { error } => {
            error.clone()
        }
        other => other.word().to_owned(),
    }
}
