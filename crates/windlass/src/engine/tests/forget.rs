//! What the archive holds and the store may forget.

use super::*;

/// Turns whose outcomes the store still keeps for the archive.
fn kept(world: &mut World) -> usize {
    world.engine.store.unarchived().unwrap().len()
}

#[test]
fn what_the_archive_holds_of_several_turns_is_forgotten_together_and_soon() {
    let mut world = World::new(vec![Policy { slots: 3, ..serving("q") }]);
    world.push("q", 3);
    let ended: Vec<u64> = (0..2).map(|_| world.finish(succeeded()).turn).collect();
    assert_eq!(kept(&mut world), 2);
    let begun = world.now;
    world.turn([Event::Archived { turn: ended[0] }]);
    assert_eq!(world.engine.next_wake().unwrap(), Some(begun.after(TOGETHER)), "somebody wakes for it");
    world.now = begun.after(TOGETHER / 2);
    world.turn([Event::Archived { turn: ended[1] }]);
    assert_eq!(kept(&mut world), 2, "it waits for more");
    world.now = begun.after(TOGETHER);
    world.turn([]);
    assert_eq!((kept(&mut world), world.engine.forget_at), (0, None));
    // Whoever ends waits for nothing.
    let last = world.finish(succeeded()).turn;
    world.turn([Event::Drain, Event::Archived { turn: last }]);
    assert_eq!(kept(&mut world), 0);
}
