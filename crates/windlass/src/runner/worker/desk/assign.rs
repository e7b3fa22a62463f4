//! Jobs to workers: who waits goes to who is free, and more workers are made where that is not enough.
//!
//! Which worker gets a job is core's choice. A pool with a single worker has none, so that worker gets as many lines as
//! it has room for, in one write. It must not read anything.

use super::super::kept::{Kept, Pipes};
use super::super::notices::Notices;
use super::super::pool::{Death, Waiting};
use super::{CHANNEL, Desk, Instant, NOTICES, REPLIES, ROOM, WORKERS_FROM, order, words};
use crate::clock;
use crate::runner::Flight;
use crate::runner::spoken::Mint;
use crate::supervisor::{About, Kind};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::sync::Arc;
use windlass_core::job::JobId;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Framing, Service, Worker};
use windlass_core::supervisor::{WorkerState, choice};
use windlass_core::time::Time;

impl Desk {
    /// Gives waiting jobs to workers that are free, and makes more workers where that is not enough.
    pub(super) fn assign(&mut self, at: usize, now: Instant) {
        let begun = clock::now();
        let mut given = Vec::new();
        while self.pools[at].jobs() > 0
            && let Some((number, room)) = self.free_first(at, now)
            && let Some(waiting) = self.pools[at].take(room)
        {
            self.give(number, waiting, now, begun);
            if given.last() != Some(&number) {
                given.push(number);
            }
        }
        for number in given {
            self.flush(number);
        }
        let starting = |no: &&u32| self.workers.get(no).is_some_and(|worker| worker.state() == WorkerState::Starting);
        let coming = self.pools[at].workers.iter().filter(starting).count();
        let wanted = self.pools[at].jobs().saturating_sub(coming);
        for _ in 0..wanted {
            if !self.pools[at].may_hire() || !self.has_room(at, now) || !self.hire(at) {
                break;
            }
        }
    }

    /// The worker that will be free first, and how many jobs it gets without another choice.
    fn free_first(&self, at: usize, now: Instant) -> Option<(u32, u16)> {
        let pool = &self.pools[at];
        let [only] = pool.workers[..] else {
            let loads = pool.workers.iter().filter_map(|no| Some((*no, self.workers.get(no)?.load(now)?)));
            return choice::free_first(loads).map(|number| (number, 1));
        };
        let load = self.workers.get(&only)?.load(now)?;
        // Where there can be no other, no job is better off by waiting here than in the worker's pipe.
        let room = if pool.policy.slots == 1 { load.window.saturating_sub(load.in_flight) } else { load.room() };
        (room > 0).then(|| (only, u16::try_from(room).unwrap_or(u16::MAX)))
    }

    fn give(&mut self, number: u32, Waiting { flight, positions }: Waiting, now: Instant, begun: Time) {
        let Some((_, tally)) = self.flights.get_mut(&flight) else { return };
        let Some(worker) = self.workers.get_mut(&number) else { return };
        tally.begun(begun);
        let mut refused = false;
        for position in positions {
            if let Err(error) = worker.give(&tally.start, position, now) {
                tally.end(position, Outcome::FailedForGood { error }, Vec::new());
                refused = true;
            }
        }
        if refused {
            self.is_to_be_told(flight);
        }
    }

    pub(super) fn flush(&mut self, number: u32) {
        let Some(worker) = self.workers.get_mut(&number) else { return };
        worker.mark(&mut self.marks);
        let full = !worker.flush();
        let Some(to) = worker.to.as_ref().filter(|_| full != worker.wants_to_write) else { return };
        let token = EventData::new_u64(u64::from(number) << 2 | ROOM);
        let changed = match full {
            true => epoll::add(&self.epoll, to, token, EventFlags::OUT),
            false => epoll::delete(&self.epoll, to),
        };
        worker.wants_to_write = full && changed.is_ok();
    }

    /// Makes one more worker for a pool; false where it could not even be asked for.
    fn hire(&mut self, at: usize) -> bool {
        let pool = &self.pools[at];
        self.last_worker += 1;
        let number = self.last_worker;
        let flight = Flight(WORKERS_FROM | u64::from(number));
        let id = JobId { origin: self.origin, offset: u64::from(number) };
        let user = pool.policy.user.as_ref();
        // It can do without: descriptor 3 takes the same words.
        let notices = Notices::new(&self.shared.settings.control_of(user), number, user).ok();
        // A module of ours has no way to call anybody.
        let speaks = matches!(&pool.policy.service, Service::Worker(Worker { framing: Framing::Json, lua: None, .. }));
        let url = self.shared.settings.board.url().filter(|_| speaks);
        let mint = url.and_then(|_| Mint::new());
        let ear = order::Ear { socket: notices.as_ref().map(Notices::path), url };
        let asked =
            order::lay_worker(&pool.example, flight, id, ear).map_err(|outcome| words(&outcome)).and_then(|record| {
                let cannot = |e: rustix::io::Errno| format!("no pipes for a worker: {}", std::io::Error::from(e));
                Ok((record, Pipes::new().map_err(cannot)?))
            });
        let (record, mut pipes) = match asked {
            Ok(asked) => asked,
            Err(why) => {
                self.ails(at, &why, Death::Hopeless);
                return false;
            }
        };
        let theirs = std::mem::take(&mut pipes.theirs);
        let about = About::new(Kind::Kept, Some(&pool.policy), flight);
        let made = self.shared.settings.board.workers().make(about);
        let mut worker = Kept::new(flight, at, made, Arc::clone(&pool.policy), pipes, notices);
        worker.speaks_with(mint);
        for (fd, what) in worker.fds().zip([REPLIES, CHANNEL, NOTICES]) {
            let token = EventData::new_u64(u64::from(number) << 2 | what);
            if let Err(error) = epoll::add(&self.epoll, fd, token, EventFlags::IN) {
                self.ails(at, &format!("cannot listen to a worker: {}", std::io::Error::from(error)), Death::Hopeless);
                return false;
            }
        }
        if !self.shared.start_worker(flight, &record, theirs) {
            self.ails(at, "no launcher could be started", Death::Fruitless);
            return false;
        }
        self.workers.insert(number, worker);
        self.pools[at].workers.push(number);
        self.tell_alive(at, false);
        true
    }
}
