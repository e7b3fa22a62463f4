//! Keeps the launchers: starts them, listens to them, and replaces one that died once its trees are proven dead; one
//! that died young after a pause.

use super::{Aloft, Gone, Shared, State, Work};
use crate::clock;
use crate::error::Failure;
use crate::runner::Flight;
use crate::runner::launcher::slots::{self, SlotsEvidence};
use crate::runner::launcher::{self, Inbox, Outbox, Places, Received, Report};
use crate::supervisor::watch::Overdue;
use crate::supervisor::{About, Kind};
use rustix::net::{RecvFlags, Shutdown};
use rustix::process::{Pid, Signal};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::job::JobId;
use windlass_core::outcome::Outcome;
use windlass_core::policy::Backoff;
use windlass_core::supervisor::{Budget, Due, Regeneration, WorkerEvent, WorkerState};

/// A launcher that lived so long did not die of what is wrong with the machine.
const STEADY: Duration = Duration::from_secs(10);
/// The pauses before one that died young is replaced double. The first is replaced at once: somebody killed it.
const BUDGET: Budget = Budget {
    backoff: Backoff { base: Duration::from_millis(20), cap: Duration::from_secs(10) },
    free: 1,
    fruitless: 5,
    deaths: 100,
    window: Duration::from_secs(60),
};

impl Work {
    /// The job and the start under which a launcher notes it; a kept worker is nobody's job.
    fn noted_as(&self) -> Option<(JobId, u32)> {
        match self {
            Work::Job(start) => Some((start.held.jobs.id(start.held.range().start), start.held.start())),
            Work::Batch(batch) => {
                let (job, _, start) = batch.span();
                Some((job, start))
            }
            Work::Worker => None,
        }
    }
}

impl Aloft {
    fn is_with(&self, launcher: usize) -> bool {
        self.hand.is_some_and(|(hand, _)| hand == launcher)
    }
}

impl Shared {
    fn slots(&self, index: usize) -> PathBuf {
        slots::path(&self.settings.run, index)
    }

    pub(super) fn start_launcher(&self, index: usize) -> Result<(Child, Arc<OwnedFd>), Failure> {
        slots::prove_one_dead(&self.slots(index), |_, _| false)?;
        let settings = &self.settings;
        let places = Places {
            slots: self.slots(index),
            output: settings.output.clone(),
            control: settings.control.clone(),
            control_of_users: settings.control_of_users.clone(),
            without: settings.without.clone().into(),
        };
        let (child, socket) = launcher::start(&self.settings.program, &places)?;
        let socket = Arc::new(socket);
        let mut state = self.state();
        if state.stopping {
            // It came too late to be told with the others.
            let _gone_already = rustix::net::shutdown(&socket, Shutdown::Write);
        }
        let hand = &mut state.hands[index];
        let mut worker = self.settings.board.workers().make(About::new(Kind::Launcher, None, Flight(index as u64)));
        worker.happens(&[WorkerEvent::Up]);
        worker.has_pid(child.id() as i32);
        (hand.worker, hand.pid) = (Some(worker), Some(Pid::from_child(&child)));
        hand.socket = Some(Arc::clone(&socket));
        hand.outbox = Outbox::default();
        Ok((child, socket))
    }

    /// One launcher after the other, until the runner stops or none can be started.
    pub(super) fn listen(&self, index: usize, mut child: Child, mut socket: Arc<OwnedFd>) {
        let mut inbox = Inbox::default();
        let (mut born, mut regeneration) = (Instant::now(), Regeneration::new(BUDGET));
        loop {
            while let Ok(Received::Records) = inbox.receive(&*socket, RecvFlags::empty()) {
                self.land(inbox.records().filter_map(Report::read).collect());
            }
            // Mostly it closed its end and is dying; where we could not read on, this makes it go.
            let _closed_already = rustix::net::shutdown(&*socket, Shutdown::Both);
            let _gone_already = child.wait();
            let asked = self.launcher_is_gone(index);
            let pause = regeneration.died(born.elapsed() >= STEADY, clock::steady());
            if !asked && regeneration.is_spent() {
                let (times, pause) = (regeneration.in_words(), pause.as_secs_f32());
                self.say(|| format!("launcher {index} died ({times}; the next is started in {pause:.1} s)"));
            }
            match self.replace(index, pause) {
                Some(next) => (child, socket) = next,
                None => return,
            }
            born = Instant::now();
        }
    }

    /// After a launcher's death: proves its trees dead, reports its jobs, and after a pause starts another.
    fn replace(&self, index: usize, pause: Duration) -> Option<(Child, Arc<OwnedFd>)> {
        if self.state().stopping {
            return None;
        }
        let given = self.given(index);
        let evidence = slots::prove_one_dead(&self.slots(index), |job, start| given.contains(&(job, start)));
        let proven = evidence.is_ok();
        // Without proof nothing may be started again: the server stops before it hears of these jobs, and the next
        // one looks anew before it starts anything. No evidence says that all of them had begun.
        let evidence = evidence.unwrap_or_else(|failure| {
            (self.fatal)(failure);
            SlotsEvidence::default()
        });
        self.report_lost(index, &evidence);
        if proven && self.is_stopped_within(pause) {
            return None;
        }
        let next = proven.then(|| self.start_launcher(index).ok()).flatten();
        let mut ends = Vec::new();
        let mut state = self.state();
        state.hands[index].manned = next.is_some();
        let patterns: Vec<String> = state.crews.keys().cloned().collect();
        patterns.iter().for_each(|pattern| state.fill_slots(pattern, &self.settings, &mut ends));
        patterns.iter().for_each(|pattern| state.let_go(pattern));
        state.flush();
        drop(state);
        ends.into_iter().for_each(&self.hear);
        next
    }

    /// The first job and the start of what a launcher was given and has not reported: its table has the
    /// notes of thousands that ended long ago as well.
    fn given(&self, index: usize) -> HashSet<(JobId, u32)> {
        let state = self.state();
        state.aloft.values().filter(|aloft| aloft.is_with(index)).filter_map(|aloft| aloft.work.noted_as()).collect()
    }

    /// Takes a dead launcher down, and tells what became of everything that it was given.
    fn report_lost(&self, index: usize, evidence: &SlotsEvidence) {
        let mut ends = Vec::new();
        let mut state = self.state();
        state.hands[index].give_up();
        let lost: Vec<Flight> =
            state.aloft.iter().filter(|(_, aloft)| aloft.is_with(index)).map(|(flight, _)| *flight).collect();
        for flight in lost {
            let Some(work) = state.land(flight, Gone::Died, &self.settings, &mut ends) else { continue };
            let Some((job, start)) = work.noted_as() else {
                self.news.lost(flight);
                continue;
            };
            let begun = evidence.begun(job, start);
            match work {
                Work::Batch(mut batch) => {
                    ends.extend(batch.lost(begun));
                    if !batch.is_over() {
                        state.go_on(batch, &self.settings, &mut ends);
                    }
                }
                work => ends.extend(work.end(if begun { Outcome::Lost } else { Outcome::Interrupted })),
            }
        }
        state.flush();
        drop(state);
        ends.into_iter().for_each(&self.hear);
    }

    /// A launcher's process has ended; says whether it was told to.
    fn launcher_is_gone(&self, index: usize) -> bool {
        let mut state = self.state();
        state.hands[index].pid = None;
        let Some(mut worker) = state.hands[index].worker.take() else { return false };
        let asked = worker.state() == WorkerState::Stopping;
        if asked {
            worker.is_done(false)
        } else {
            worker.died()
        };
        asked
    }

    fn say(&self, what: impl FnOnce() -> String) {
        self.settings.board.workers().say(what);
    }

    /// A deadline has passed. What becomes of a kept worker is its keeper's affair. A process that was told to end, and
    /// of whose end nobody hears, may have a launcher that somebody stopped: it is let go on. There is nothing else
    /// that could be done and is not being done by the launcher already.
    pub(super) fn overdue(&self, overdue: Overdue) {
        match overdue.kind {
            Kind::Kept => self.news.overdue(overdue),
            Kind::Process | Kind::Batch => {}
            Kind::Launcher | Kind::Call | Kind::Remote | Kind::Thread => return,
        }
        if overdue.due == Due::StopOverdue {
            self.let_launcher_go_on(overdue.flight);
        }
    }

    fn let_launcher_go_on(&self, flight: Flight) {
        let state = self.state();
        let hand = state.aloft.get(&flight).and_then(|aloft| aloft.hand);
        let stopped = hand.and_then(|(index, _)| state.hands[index].pid).filter(|pid| is_stopped(*pid));
        if let Some(pid) = stopped {
            self.say(|| format!("its launcher (process {pid}) is stopped, and is let go on"));
            // One that has gone meanwhile needs it no longer.
            let _gone = rustix::process::kill_process(pid, Signal::CONT);
        }
    }

    fn is_stopped_within(&self, pause: Duration) -> bool {
        let goes_on = |state: &mut State| !state.stopping;
        match self.stopped.wait_timeout_while(self.state(), pause, goes_on) {
            Ok((state, _)) => state.stopping,
            Err(poisoned) => poisoned.into_inner().0.stopping,
        }
    }
}

/// Somebody stopped this process, as a terminal does.
fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name stands in brackets and may hold anything; the state follows the last one.
    stat.rsplit_once(')').is_some_and(|(_, after)| after.trim_start().starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_that_die_young_are_replaced_later_and_later() {
        let mut regeneration = Regeneration::new(BUDGET);
        let now = clock::steady();
        let pauses: Vec<u128> = (0..12).map(|_| regeneration.died(false, now).as_millis()).collect();
        assert_eq!(pauses[..4], [0, 20, 40, 80]);
        assert_eq!(pauses[10..], [10_000, 10_000]);
    }
}
