//! What becomes of a worker's jobs when it dies or is told to stop.
//!
//! Lines that it never took had not begun, and cost nothing but where one ran over its time so. Of those it took, the
//! one it was at is suspected; where it works on several at once, all of them are. A worker that we end ourselves
//! accuses nobody but whom we ended it for.

use super::{CHANNEL, Death, Desk, Ending, Kept, Line, NOTICES, Report, last_words, reading};
use crate::runner::launcher::{Cut, End};
use crate::runner::reply::Emits;
use crate::runner::{Flight, Stop};
use crate::supervisor::watch::Overdue;
use rustix::event::epoll;
use windlass_core::outcome::{Exit, Outcome};
use windlass_core::supervisor::{Due, WorkerState};

impl Desk {
    /// A worker's tree is dead: its jobs go where they belong, and its pool learns from it.
    pub(super) fn buried(&mut self, number: u32, report: Option<&Report>) {
        // What it had said and answered before it died still counts.
        self.read_words(number, CHANNEL);
        self.read_words(number, NOTICES);
        self.read_replies(number);
        let Some(mut worker) = self.workers.remove(&number) else { return };
        for fd in worker.fds() {
            // Closing it below takes it out as well.
            let _out_already = epoll::delete(&self.epoll, fd);
        }
        self.pools[worker.pool].workers.retain(|other| *other != number);
        self.stirred.insert(worker.pool);
        self.tell_alive(worker.pool, true);
        if worker.is_mute && report.is_some_and(|report| matches!(report.cut, None | Some(Cut::Limit(..)))) {
            // It went by itself or for a limit, and was not ended for anything that we were about to end it for.
            worker.ending = None;
        }
        let parallel = worker.is_parallel();
        let (taken, left) = worker.sort_out();
        let took_leave = taken.is_empty() && worker.done > 0 && is_farewell(report);
        let places = taken.iter().chain(&left).filter_map(|line| line.place);
        places.for_each(|place| self.marks.died(place));
        for line in left {
            // Not even begun within its time is late as well; it would be given out again for ever.
            let purpose = worker.ending().filter(|ending| matches!(ending, Ending::TimedOut(..)));
            let outcome = purpose.map(|ending| ended_on_purpose(ending, &line, 0, &worker));
            self.end_line(&worker, line, outcome.unwrap_or(Outcome::Interrupted));
        }
        for (at, line) in taken.into_iter().enumerate() {
            let outcome = match worker.ending() {
                // One that was to be its last: it is told to go when it has answered that, and not before.
                None | Some(Ending::Retired) if at == 0 && !parallel => {
                    over_limit(&worker, report).unwrap_or(Outcome::Lost)
                }
                None | Some(Ending::Retired) if parallel => Outcome::Lost,
                None | Some(Ending::Retired) => Outcome::Interrupted,
                Some(ending) => ended_on_purpose(ending, &line, at, &worker),
            };
            self.end_line(&worker, line, outcome);
        }
        let died = worker.is_gone(took_leave) == WorkerState::Died;
        if died || matches!(worker.ending(), Some(Ending::Babbles(_))) {
            let (why, how) = self.epitaph(&worker, report);
            self.ails(worker.pool, &why, how);
        }
    }

    /// A deadline of a worker's state has passed: it is killed, whatever it was told before. One that did not come up
    /// is its pool's trouble from now on, since of its end nobody may hear for long.
    pub(super) fn overdue(&mut self, overdue: Overdue) {
        let Some(worker) = self.workers.get_mut(&super::number(overdue.flight)) else { return };
        let not_up = overdue.due == Due::StartOverdue && worker.state() == WorkerState::Starting;
        let not_gone = overdue.due == Due::StopOverdue && worker.is_stopping();
        if !not_up && !not_gone {
            return;
        }
        worker.is_told();
        let pool = worker.pool;
        self.shared.stop_worker(worker.flight, Stop::Kill);
        if not_up {
            self.ails(pool, "its worker did not come up within a minute", Death::Hopeless);
        }
    }

    fn end_line(&mut self, worker: &Kept, line: Line, outcome: Outcome) {
        if line.spoke {
            self.shared.settings.board.ended(line.id);
        }
        let wish = match worker.ending() {
            Some(Ending::Stopped(flight, Stop::Cancel)) if *flight == line.flight => Outcome::Cancelled,
            Some(Ending::Cancelled(all)) if all.contains(&(line.flight, line.position)) => Outcome::Cancelled,
            _ => outcome,
        };
        self.end(line.flight, line.position, wish, Emits::new());
    }

    /// Why a worker ended that nobody had told to, and what that means for the next.
    fn epitaph(&self, worker: &Kept, report: Option<&Report>) -> (String, Death) {
        let how = if worker.done == 0 { Death::Fruitless } else { Death::AfterWork };
        let Some(report) = report else { return ("its launcher died".into(), how) };
        let example = &self.pools[worker.pool].example;
        match report.end {
            End::CannotStart { step, errno } => {
                (super::words(&reading::refusal(step, errno, example)), Death::Hopeless)
            }
            End::Exit(exit) => {
                if let Some(outcome) = over_limit(worker, Some(report)) {
                    return (super::words(&outcome), how);
                }
                let when = if worker.done == 0 { " before it answered a job" } else { "" };
                let what = match exit {
                    Exit::Code(code) => format!("its worker ended with exit {code}{when}"),
                    Exit::Signal(signal) => format!("its worker was killed by signal {signal}{when}"),
                };
                (what + &last_words(report), how)
            }
            End::NotBegun | End::Up { .. } => ("its worker was not started".into(), how),
        }
    }

    /// Ends a flight: what waits comes back, and who works at it is killed.
    pub(super) fn stop(&mut self, flight: Flight, why: Stop) {
        let Some((pool, _)) = self.flights.get(&flight) else { return };
        let outcome = match why {
            Stop::Cancel => Outcome::Cancelled,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => Outcome::Interrupted,
        };
        for withdrawn in self.pools[*pool].withdraw(flight) {
            self.end_alike(flight, withdrawn.positions, &outcome);
        }
        if why == Stop::Withdraw {
            return;
        }
        for worker in self.workers.values_mut() {
            if worker.lines.iter().any(|line| line.flight == flight) {
                if !worker.is_stopping() || why == Stop::Cancel {
                    worker.end_for(Ending::Stopped(flight, why));
                }
                worker.is_told();
                self.shared.stop_worker(worker.flight, why);
            }
        }
    }

    /// Ends one job and no other: one that waits does so no more, and who works at it is ended.
    pub(super) fn cancel(&mut self, flight: Flight, position: u16) {
        let Some((pool, _)) = self.flights.get(&flight) else { return };
        if self.pools[*pool].withdraw_one(flight, position) {
            self.end_alike(flight, position..position + 1, &Outcome::Cancelled);
            return;
        }
        let is_it = |line: &Line| (line.flight, line.position) == (flight, position);
        let Some(worker) = self.workers.values_mut().find(|worker| worker.lines.iter().any(is_it)) else { return };
        match &mut worker.ending {
            // It is being ended for another of its jobs already.
            Some(Ending::Cancelled(all)) => all.push((flight, position)),
            _ => {
                worker.end_for(Ending::Cancelled(vec![(flight, position)]));
                worker.is_told();
                self.shared.stop_worker(worker.flight, Stop::Cancel);
            }
        }
    }
}

/// It ended as a program does that has nothing more to do.
fn is_farewell(report: Option<&Report>) -> bool {
    report.is_some_and(|report| matches!(report.end, End::Exit(Exit::Code(0))) && report.cut.is_none())
}

/// The failure of the one job that a worker was at when its limits ended it.
fn over_limit(worker: &Kept, report: Option<&Report>) -> Option<Outcome> {
    match report?.cut? {
        Cut::Limit(resource, seen) => Some(reading::over_limit(resource, seen, worker.policy.limits)),
        Cut::TimeLimit | Cut::Cancel | Cut::Interrupt => None,
    }
}

/// The outcome of a line in the hands of a worker that we ended ourselves.
fn ended_on_purpose(ending: &Ending, line: &Line, at: usize, worker: &Kept) -> Outcome {
    match ending {
        Ending::TimedOut(flight, position) if (*flight, *position) == (line.flight, line.position) => {
            Outcome::TimedOut { limit: worker.policy.time_limit.unwrap_or_default() }
        }
        Ending::Babbles(error) if at == 0 => Outcome::Failed { error: error.clone() },
        Ending::TimedOut(..) | Ending::Cancelled(..) | Ending::Babbles(_) | Ending::Stopped(..) | Ending::Retired => {
            Outcome::Interrupted
        }
    }
}
