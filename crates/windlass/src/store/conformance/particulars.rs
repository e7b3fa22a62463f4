//! Cases about what most jobs lack: it stays with the job wherever the job goes.

use super::rig::{Rig, ok, retry, succeed};
use super::{Bench, Case};
use crate::store::chunk::ChunkBuilder;
use crate::store::{FollowUp, Held, NewJobs, Store};
use std::sync::Arc;
use windlass_core::job::{JobId, LaneKind, Origin};
use windlass_core::judge::Verdict;
use windlass_core::particulars::{Particulars, Subject};

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("particulars stay with a job in its chunk, its claim, its row and its outcome", kept),
        ("an emitted job knows the one that it came from, also as a row", parents),
    ]
}

/// The particulars of a claim's only job.
fn of(held: &Held) -> Option<Arc<Particulars>> {
    assert_eq!(held.count, 1, "one job was claimed");
    held.jobs.particulars_of(usize::from(held.first))
}

fn about(id: &str) -> Option<Arc<Particulars>> {
    let subject = Some(Subject { kind: "customer".into(), id: id.into() });
    Some(Arc::new(Particulars { subject, ..Particulars::default() }))
}

impl<B: Bench> Rig<'_, B> {
    /// The same jobs with these particulars.
    fn with(&mut self, new: NewJobs, particulars: Option<Arc<Particulars>>) -> NewJobs {
        let mut builder = ChunkBuilder::new(new.jobs.origin()).with(particulars);
        (0..new.jobs.len()).for_each(|index| builder.push(new.jobs.id(index).offset, new.jobs.data(index)));
        NewJobs { jobs: Arc::new(builder.finish()), ..new }
    }
}

fn kept<B: Bench>(rig: &mut Rig<'_, B>) {
    let (plain, special) = (rig.new_jobs("q", 1), rig.new_jobs("q", 2));
    let special = rig.with(special, about("42"));
    let ids = rig.admit(vec![plain, special]);
    let seen = |rig: &Rig<'_, B>, id| rig.job(id).particulars;
    assert_eq!([seen(rig, ids[0]), seen(rig, ids[1]), seen(rig, ids[2])], [None, about("42"), about("42")]);
    let claimed = rig.claim("q", 3);
    let claimed: Vec<Held> = claimed.iter().flat_map(|held| (0..held.count).map(|n| held.part(n, 1))).collect();
    assert_eq!(claimed.iter().map(of).collect::<Vec<_>>(), [None, about("42"), about("42")]);
    rig.settle(&claimed[1], retry(rig.now));
    rig.settle(&claimed[0], Verdict::Return);
    rig.release(10);
    rig.crash(&|_, _| true, false);
    assert_eq!([seen(rig, ids[0]), seen(rig, ids[1]), seen(rig, ids[2])], [None, about("42"), about("42")]);
    let lane = rig.lane("q", 0, LaneKind::Retry);
    let again = rig.claim_lane(lane, 1);
    rig.step();
    assert_eq!(of(&again[0]), about("42"), "a row has them, too");
    rig.settle(&again[0], succeed());
    rig.crash(&|_, _| true, false);
    let outcomes: Vec<_> = ok(rig.store().unarchived()).into_iter().flat_map(|turn| turn.settlements).collect();
    let told: Vec<_> = outcomes.iter().map(|outcome| of(&outcome.held)).collect();
    assert_eq!(told, [about("42"), None, about("42")], "retried, returned, succeeded");
}

fn parents<B: Bench>(rig: &mut Rig<'_, B>) {
    let ids = rig.push("q", 2);
    let held = rig.claim("q", 2);
    let mut builder = ChunkBuilder::new(Origin::from_random(9));
    builder.push_from(ids[1], 1, b"of the second");
    builder.push_from(ids[0], 2, b"of the first");
    let NewJobs { queue, priority, .. } = rig.new_jobs("next", 1);
    let emitted = FollowUp { queue, priority, run: None, jobs: Arc::new(builder.finish()) };
    let ends: Vec<_> = held.iter().map(|held| rig.settlement(held, succeed())).collect();
    let now = rig.now;
    ok(rig.store().settle(&ends, &[emitted], now));
    rig.step();
    let emitted = |offset| JobId { origin: Origin::from_random(9), offset };
    let parent = |rig: &Rig<'_, B>, offset| rig.job(emitted(offset)).particulars.and_then(|kept| kept.parent);
    assert_eq!((parent(rig, 1), parent(rig, 2)), (Some(ids[1]), Some(ids[0])));
    let held = rig.claim("next", 2);
    held.iter().for_each(|held| rig.settle(held, retry(rig.in_seconds(5))));
    rig.crash(&|_, _| true, false);
    assert_eq!((parent(rig, 1), parent(rig, 2)), (Some(ids[1]), Some(ids[0])), "as rows");
}
