//! The end of an attempt, for those who look up a job's progress in a memcached.

use super::ArchivedTurn;
use crate::memcached::Copies;
use crate::store::MOVED;

/// Hands over what a turn settled; called on the archiver's thread, as the log's lines are.
pub(super) fn hand_over(copies: &Copies, turn: &ArchivedTurn) {
    if !copies.is_on() {
        return;
    }
    // How a job ends that another server has now is that one's to say.
    turn.each(|entry| {
        if entry.settlement.outcome != MOVED {
            copies.ended(&entry.settlement.held, &entry.queue, entry.state);
        }
    });
}
