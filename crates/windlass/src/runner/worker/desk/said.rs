//! What a worker says of its jobs, and what they say themselves with their tokens.
//!
//! It comes on the worker's channel, at its socket or over HTTP, and is the same in all three. It must not end a job.

use super::{CHANNEL, Desk, Ending, Heard, Instant};
use crate::error::Failure;
use crate::runner::progress::Channel;
use crate::runner::reply::{self, Said};
use crate::runner::spoken::{self, Spoken};
use rustix::event::epoll;
use windlass_core::job::JobId;

impl Desk {
    /// What a worker says on its channel or to its socket.
    pub(super) fn read_words(&mut self, number: u32, what: u64) {
        let Some(worker) = self.workers.get_mut(&number) else { return };
        let (heard, messages) = match what {
            CHANNEL => worker.read_channel(&mut self.buffer),
            _ => (Heard::More, worker.read_notices()),
        };
        if heard == Heard::Closed {
            // It says nothing there, and may go on with its work.
            let _out_already = epoll::delete(&self.epoll, &worker.channel);
        }
        let mut goes = false;
        for message in messages {
            let Some(worker) = self.workers.get_mut(&number) else { return };
            // Where several are in flight a message names its job; else it is about the one it is at.
            let (id, text) = reply::addressed(&message);
            let said = Said::read(text);
            if let Some(window) = said.in_flight {
                worker.window = window;
                // It may wait for what it has room for now before it answers what it has.
                self.stirred.insert(worker.pool);
            }
            // One that goes before it has done anything is to be counted as such.
            if said.stopping && worker.ending().is_none() && (worker.done > 0 || !worker.lines.is_empty()) {
                worker.end_for(Ending::Retired);
                goes = worker.lines.is_empty();
            }
            self.heed(number, id, text, &said);
        }
        if goes && let Some(mut worker) = self.workers.remove(&number) {
            self.dismiss(&mut worker, Instant::now());
            self.workers.insert(number, worker);
        }
    }

    /// One line about a job of a worker: the one that it names, or the one that the worker is at.
    fn heed(&mut self, number: u32, id: Option<JobId>, text: &[u8], said: &Said) {
        let Some(worker) = self.workers.get_mut(&number) else { return };
        let line = match id {
            Some(id) => worker.lines.iter_mut().find(|line| line.id == id),
            None => worker.lines.front_mut(),
        };
        let Some(line) = line else { return };
        if let Some(deadline) = line.deadline {
            let beat = worker.policy.time_limit.filter(|_| said.heartbeat).max(said.at_least);
            let anew = beat.and_then(|more| Instant::now().checked_add(more)).unwrap_or(deadline);
            line.deadline = anew.max(deadline).checked_add(said.extend);
        }
        line.spoke = true;
        self.shared.settings.board.said(line.id, text);
        if let Some((checkpoint, (_, tally))) = said.checkpoint.clone().zip(self.flights.get_mut(&line.flight)) {
            tally.checkpoint(line.position, checkpoint);
        }
        if let Some(phase) = &said.phase {
            worker.is_in(phase);
        }
    }

    /// A job speaks over HTTP; who called waits for what becomes of it.
    pub(super) fn speak(&mut self, spoken: &Spoken) {
        let taken = self.take_spoken(spoken);
        // A caller who has given up needs no answer.
        let _gone = spoken.answer.send(taken);
    }

    fn take_spoken(&mut self, Spoken { job, token, channel, lines, .. }: &Spoken) -> Result<(), Failure> {
        let found = self.workers.iter_mut().find_map(|(number, worker)| {
            let line = worker.lines.iter().find(|line| line.id == *job).copied()?;
            let is_its_own = worker.mint.as_ref()?.is_of_job(token, line.flight, *job);
            is_its_own.then_some((*number, worker, line))
        });
        let Some((number, worker, line)) = found else { return Err(spoken::not_running(*job)) };
        match channel {
            Channel::Control => {
                for text in spoken::own_control(*job, lines)? {
                    self.heed(number, Some(*job), text, &Said::read(text));
                }
            }
            Channel::Emit => {
                let emits = spoken::own_emit(*job, &worker.policy, lines)?;
                let tally = self.flights.get_mut(&line.flight).map(|(_, tally)| tally);
                if !tally.is_some_and(|tally| tally.emit(line.position, lines.len() as u64, emits)) {
                    return Err(spoken::too_much());
                }
                worker.has_emitted();
            }
        }
        Ok(())
    }
}
