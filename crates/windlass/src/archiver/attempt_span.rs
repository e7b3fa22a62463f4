//! The spans of a finished attempt: that the job was taken in, with its first, and that it was tried.

use super::{ArchivedTurn, Entry, Ran};
use crate::spans::{Did, Ended, Span, Spans};
use std::sync::Arc;
use windlass_core::judge::Verdict;

/// Hands over what a turn settled of traced jobs; called on the archiver's thread, as the log's lines are.
pub(super) fn hand_over(spans: &Spans, turn: &ArchivedTurn) {
    if !spans.is_on() {
        return;
    }
    turn.each(|entry| {
        let Some(particulars) = entry.settlement.held.jobs.particulars().filter(|of| of.trace.is_some()) else {
            return;
        };
        let (settlement, held) = (&entry.settlement, &entry.settlement.held);
        for index in held.range() {
            let span = |from, to, did| Span {
                job: held.jobs.id(index),
                queue: Arc::clone(&entry.queue),
                particulars: Arc::clone(particulars),
                from,
                to,
                did,
            };
            // Nothing is done on the way in, so that traces cost no push anything.
            if held.start() == 1 {
                spans.put(span(held.admitted, held.admitted, Did::Send));
            }
            if let Some(did) = process(entry) {
                spans.put(span(settlement.started, settlement.finished, did));
            }
        }
    });
}

fn process(entry: &Entry) -> Option<Did> {
    let linked = match entry.ran {
        Ran::Not => return None,
        Ran::Alone => false,
        Ran::Together => true,
    };
    let settlement = &entry.settlement;
    let ended = match &settlement.verdict {
        Verdict::Succeed { .. } => Ended::Well,
        Verdict::Fail { error, .. } | Verdict::Retry { error, .. } => Ended::Badly(error.clone()),
        Verdict::Suspect(_) => Ended::Badly("its worker died while it ran".into()),
        Verdict::Snooze { .. } | Verdict::Return | Verdict::Cancel => Ended::Otherwise,
    };
    Some(Did::Process { attempt: settlement.held.start(), outcome: settlement.outcome, ended, linked })
}
