//! Who is to blame when a server dies: jobs that had begun are suspected, and only repeated deaths convict.
//!
//! A job that kills its server must end, or the server never comes up; but a `kill -9` from outside must not
//! fail the healthy jobs that happened to run. Nothing tells the two apart at once, so evidence is gathered: a
//! job suspected twice runs as the only suspect, and only after the server has stood for a while; three deaths
//! in that setting convict it. A killer dies of its own act each time, a bystander would need the same accident
//! to hit just it five times, and a loop of kills faster than the wait never reaches it at all.

use crate::job::{LaneKind, Record};
use crate::sabotage::{self, Sabotage};
use crate::time::Time;
use std::time::Duration;

/// With so many suspicions a job is started only while no other suspect runs.
pub const ALONE_AFTER: u32 = 2;
/// With so many it is convicted.
pub const CONVICTED_AT: u32 = 5;
/// A suspect's first wait after a death; doubles with each further one.
pub const WAIT: Duration = Duration::from_secs(1);

/// What becomes of a job whose holder died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Back to ready in this lane.
    Ready(LaneKind),
    /// Held until then, so that the server stands before it is tried again.
    Wait(Time),
    /// Failed with reason `poison`.
    Convicted,
}

/// Adds one suspicion to a job that had begun when its server died in the same boot, and rules.
pub fn suspect(record: &mut Record, now: Time) -> Ruling {
    record.suspicions += 1;
    if record.suspicions >= CONVICTED_AT || sabotage::on(Sabotage::NeighboursConvicted) {
        Ruling::Convicted
    } else if record.suspicions >= ALONE_AFTER {
        Ruling::Wait(now.after(WAIT * 2u32.pow(record.suspicions - ALONE_AFTER)))
    } else {
        Ruling::Ready(lane_kind(*record))
    }
}

/// The lane a ready job waits in.
pub fn lane_kind(record: Record) -> LaneKind {
    if record.suspicions >= ALONE_AFTER {
        LaneKind::Suspect
    } else if record.failures > 0 {
        LaneKind::Retry
    } else {
        LaneKind::Fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_deaths_isolate_and_five_convict() {
        let mut record = Record::default();
        let now = Time(1_000_000);
        assert_eq!(suspect(&mut record, now), Ruling::Ready(LaneKind::Fresh));
        assert_eq!(suspect(&mut record, now), Ruling::Wait(now.after(WAIT)));
        assert_eq!(lane_kind(record), LaneKind::Suspect);
        assert_eq!(suspect(&mut record, now), Ruling::Wait(now.after(WAIT * 2)));
        assert_eq!(suspect(&mut record, now), Ruling::Wait(now.after(WAIT * 4)));
        assert_eq!(suspect(&mut record, now), Ruling::Convicted);
    }
}
