//! What others wish to end before its time: a start, or one job of a batch.
//!
//! A batch whose replies are being read is out of the books for that moment; a wish that comes then is kept until it is
//! back. It must not judge what an end means.

use super::super::launcher;
use super::super::{Finished, Flight, Output, Stop};
use super::{Shared, State, Work};
use windlass_core::outcome::Outcome;

/// A start is to end, or the job at one position of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) flight: Flight,
    pub(super) position: Option<u16>,
    pub(super) why: Stop,
}

impl Shared {
    pub(super) fn obey(&self, wishes: &[Wish]) {
        let (mut state, mut ends) = (self.state(), Vec::new());
        wishes.iter().for_each(|wish| state.obey(*wish, &mut ends));
        state.flush();
        drop(state);
        ends.into_iter().for_each(&self.hear);
    }
}

impl State {
    fn obey(&mut self, wish: Wish, ends: &mut Vec<Finished>) {
        let Wish { flight, position, why } = wish;
        let leader = self.members.get(&flight).copied().unwrap_or(flight);
        let Some(aloft) = self.aloft.get_mut(&leader) else {
            self.late.extend((self.being_read > 0).then_some(wish));
            return;
        };
        let mut ends_now = true;
        if let Work::Batch(batch) = &mut aloft.work {
            if why == Stop::Cancel {
                ends_now = batch.cancel(flight, position);
                ends.extend(batch.tell(Output::default()));
                ends_now |= batch.is_over();
            } else if aloft.hand.is_some() {
                // What of it has not begun yet is not begun any more.
                batch.stop();
            }
        }
        match aloft.hand {
            _ if !ends_now => {}
            Some((index, _)) => {
                if let Some(worker) = aloft.worker.as_mut().filter(|_| why != Stop::Withdraw) {
                    worker.stop();
                }
                self.hands[index].tell(&launcher::lay_stop(leader, why));
            }
            None => self.end_waiting(leader, why, ends),
        }
    }

    /// What waits for a slot waits no more.
    fn end_waiting(&mut self, flight: Flight, why: Stop, ends: &mut Vec<Finished>) {
        let Some(work) = self.remove(flight) else { return };
        let pattern = work.leader().map(|start| start.policy.pattern.clone()).unwrap_or_default();
        if let Some(crew) = self.crews.get_mut(&pattern) {
            crew.waiting.retain(|waiting| *waiting != flight);
        }
        self.let_go(&pattern);
        ends.extend(work.end(match why {
            Stop::Cancel => Outcome::Cancelled,
            Stop::Withdraw | Stop::Interrupt | Stop::Kill => Outcome::Interrupted,
        }));
    }

    /// So many batches are back in the books, or have ended.
    pub(super) fn are_read(&mut self, batches: usize, ends: &mut Vec<Finished>) {
        self.being_read -= batches;
        if self.being_read == 0 {
            // Those of which nobody knows have ended.
            std::mem::take(&mut self.late).into_iter().for_each(|wish| self.obey(wish, ends));
        }
    }
}
