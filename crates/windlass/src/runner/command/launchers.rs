//! Keeps the launchers: starts them, listens to them, and replaces one that died once its trees are proven dead.

use super::{Shared, Work};
use crate::error::Failure;
use crate::runner::Flight;
use crate::runner::launcher::slots::{self, SlotsEvidence};
use crate::runner::launcher::{self, Inbox, Outbox, Places, Received, Report};
use rustix::net::{RecvFlags, Shutdown};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use windlass_core::outcome::Outcome;

impl Shared {
    fn slots(&self, index: usize) -> PathBuf {
        slots::path(&self.settings.run, index)
    }

    pub(super) fn start_launcher(&self, index: usize) -> Result<(Child, Arc<OwnedFd>), Failure> {
        slots::prove_one_dead(&self.slots(index))?;
        let (output, control) = (self.settings.output.clone(), self.settings.control.clone());
        let places = Places { slots: self.slots(index), output, control };
        let (child, socket) = launcher::start(&self.settings.program, &places)?;
        let socket = Arc::new(socket);
        let mut state = self.state();
        if state.stopping {
            // It came too late to be told with the others.
            let _gone_already = rustix::net::shutdown(&socket, Shutdown::Write);
        }
        let hand = &mut state.hands[index];
        hand.socket = Some(Arc::clone(&socket));
        hand.outbox = Outbox::default();
        Ok((child, socket))
    }

    /// One launcher after the other, until the runner stops or none can be started.
    pub(super) fn listen(&self, index: usize, mut child: Child, mut socket: Arc<OwnedFd>) {
        let mut inbox = Inbox::default();
        loop {
            while let Ok(Received::Records) = inbox.receive(&*socket, RecvFlags::empty()) {
                self.land(inbox.records().filter_map(Report::read).collect());
            }
            // Mostly it closed its end and is dying; where we could not read on, this makes it go.
            let _closed_already = rustix::net::shutdown(&*socket, Shutdown::Both);
            let _gone_already = child.wait();
            match self.replace(index) {
                Some(next) => (child, socket) = next,
                None => return,
            }
        }
    }

    /// After a launcher's death: proves its trees dead, starts another, reports its jobs.
    fn replace(&self, index: usize) -> Option<(Child, Arc<OwnedFd>)> {
        if self.state().stopping {
            return None;
        }
        let evidence = slots::prove_one_dead(&self.slots(index));
        let proven = evidence.is_ok();
        // Without proof nothing may be started again: the server stops before it hears of these jobs, and the next
        // one looks anew before it starts anything. No evidence says that all of them had begun.
        let evidence = evidence.unwrap_or_else(|failure| {
            (self.fatal)(failure);
            SlotsEvidence::default()
        });
        // Taken down before another launcher can be given anything.
        let mut state = self.state();
        state.hands[index].socket = None;
        let of_it = |hand: Option<(usize, u32)>| hand.is_some_and(|(hand, _)| hand == index);
        let lost: Vec<Flight> =
            state.aloft.iter().filter(|(_, aloft)| of_it(aloft.hand)).map(|(flight, _)| *flight).collect();
        drop(state);
        let next = proven.then(|| self.start_launcher(index).ok()).flatten();
        let mut ends = Vec::new();
        let mut state = self.state();
        state.hands[index].manned = next.is_some();
        for flight in lost {
            let Some(work) = state.land(flight, &self.settings, &mut ends) else { continue };
            let begun = match &work {
                Work::Job(start) => evidence.begun(start.held.jobs.id(start.held.range().start), start.held.start()),
                Work::Batch(batch) => {
                    let (job, _, start) = batch.span();
                    evidence.begun(job, start)
                }
                Work::Worker => {
                    self.news.lost(flight);
                    continue;
                }
            };
            ends.extend(work.end(if begun { Outcome::Lost } else { Outcome::Interrupted }));
        }
        let patterns: Vec<String> = state.crews.keys().cloned().collect();
        patterns.iter().for_each(|pattern| state.fill_slots(pattern, &self.settings, &mut ends));
        state.flush();
        drop(state);
        ends.into_iter().for_each(&self.hear);
        next
    }
}
