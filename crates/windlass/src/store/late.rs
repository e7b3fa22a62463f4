//! Reports that come too late: what is left of ends when some of their starts were taken away.

use super::{FollowUp, Settlement};
use std::collections::HashSet;
use std::sync::Arc;
use windlass_core::job::JobId;

/// Ends, and what is to be taken in with them.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    pub settlements: Vec<Settlement>,
    pub follow_ups: Vec<FollowUp>,
}

/// The same without these jobs, and without what they emitted: whoever runs them now emits it.
pub fn without(settlements: &[Settlement], follow_ups: &[FollowUp], lost: &HashSet<JobId>) -> Ends {
    let mut left = Ends::default();
    for settlement in settlements {
        let held = &settlement.held;
        let ids: Vec<JobId> = held.ids().collect();
        if !ids.iter().any(|id| lost.contains(id)) {
            left.settlements.push(settlement.clone());
            continue;
        }
        for (at, _) in ids.iter().enumerate().filter(|(_, id)| !lost.contains(id)) {
            left.settlements.push(Settlement { held: held.part(at as u16, 1), ..settlement.clone() });
        }
    }
    for new in follow_ups {
        let kept = |index: usize| new.jobs.parent(index).is_none_or(|parent| !lost.contains(&parent));
        let jobs = match (0..new.jobs.len()).all(kept) {
            true => Arc::clone(&new.jobs),
            false => Arc::new(new.jobs.rebuilt(new.jobs.particulars().cloned(), kept)),
        };
        if !jobs.is_empty() {
            left.follow_ups.push(FollowUp { jobs, ..new.clone() });
        }
    }
    left
}
