//! Cases about overrides: they are part of the turn like everything else, and outlive every death.

use super::rig::{Rig, ok};
use super::{Bench, Case};
use crate::store::{Durability, Steer, Store};
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::time::Time;

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("an override replaces the one for the same target and key, and no other", replaced),
        ("overrides are seen after the commit and dropped by a rollback", dropped),
        ("overrides outlive a crash with all that is known of them", outlives),
    ]
}

fn made(target: &str, key: Key, value: u32, until: Option<i64>) -> Override {
    let (target, until) = (Target::from_text(target), until.map(Time));
    Override { target, key, value, by: "ada (uid 7)".into(), since: Time(-5), until, reason: "größe\t\"x\"".into() }
}

fn set<B: Bench>(rig: &mut Rig<'_, B>, new: &Override) {
    ok(rig.store().steer(&Steer::Set(new.clone())));
}

/// What the engine and everyone else see, which must be the same after a commit.
fn seen<B: Bench>(rig: &mut Rig<'_, B>) -> Vec<Override> {
    let mut engine = ok(rig.store().overrides());
    let mut others = ok(rig.view().overrides());
    for list in [&mut engine, &mut others] {
        list.sort_by_key(|made| (made.target.clone(), made.key));
    }
    assert_eq!(engine, others, "the view shows what the engine has");
    engine
}

fn replaced<B: Bench>(rig: &mut Rig<'_, B>) {
    set(rig, &made("q", Key::Slots, 3, None));
    set(rig, &made("q*", Key::Slots, 4, None));
    set(rig, &made("q", Key::Weight, 5, None));
    set(rig, &made("", Key::Slots, 6, Some(1)));
    set(rig, &made("q", Key::Slots, 7, Some(i64::MAX)));
    rig.step();
    let values: Vec<u32> = seen(rig).iter().map(|made| made.value).collect();
    assert_eq!(values, [6, 7, 5, 4], "server, q.slots, q.weight, q*.slots");
    let queue = Target::Queues("q".into());
    ok(rig.store().steer(&Steer::Unset(queue.clone(), Key::Slots)));
    ok(rig.store().steer(&Steer::Unset(queue, Key::Attempts)));
    rig.step();
    let left = seen(rig);
    assert_eq!(left.iter().map(|made| made.value).collect::<Vec<_>>(), [6, 5, 4], "only the one that was named goes");
}

fn dropped<B: Bench>(rig: &mut Rig<'_, B>) {
    let first = made("q", Key::Paused, 1, Some(9));
    set(rig, &first);
    assert_eq!(ok(rig.view().overrides()), [], "an open turn is not seen");
    assert_eq!(ok(rig.store().overrides()), std::slice::from_ref(&first), "but the engine sees it");
    rig.step();
    set(rig, &made("q", Key::Paused, 1, None));
    ok(rig.store().steer(&Steer::Unset(Target::Server, Key::Paused)));
    ok(rig.store().rollback());
    assert_eq!(seen(rig), [first], "a rollback leaves what was committed");
}

fn outlives<B: Bench>(rig: &mut Rig<'_, B>) {
    let kept = [made("", Key::Paused, 1, Some(8)), made("a.*", Key::Attempts, 0, None)];
    kept.iter().for_each(|kept| set(rig, kept));
    ok(rig.store().commit(Durability::Full));
    set(rig, &made("b", Key::Enabled, 0, None));
    rig.crash(&|_, _| true, true);
    assert_eq!(seen(rig), kept, "what was committed, to the letter");
}
