//! Ready work, a free slot and no start: noticed within its time, said, counted and cured.

use super::super::stalemate::LOOK_AFTER;
use super::*;
use windlass_core::job::{Lane, LaneKind};

/// Three jobs in a queue with one slot, of which one runs.
fn world() -> World {
    let mut policy = serving("q");
    policy.slots = 1;
    let mut world = World::new(vec![policy]);
    world.push("q", 3);
    assert_eq!(world.under_way.len(), 1);
    world
}

impl World {
    /// Turns as the driver does when nothing comes: at the time the engine names.
    fn wait(&mut self) -> Effects {
        let wake = self.engine.next_wake().unwrap().expect("it wants to be woken");
        self.now = self.now.max(wake);
        self.turn([])
    }
}

#[test]
fn work_that_the_scheduler_forgot_is_found_and_done() {
    let mut world = world();
    let queue = world.under_way[0].held.lane.queue;
    let lane = Lane { queue, priority: Priority::NORMAL, kind: LaneKind::Fresh };
    // As a slip in its books would.
    world.engine.scheduler.ready(lane, -2);
    assert_eq!(world.finish(succeeded()).starts.len(), 0);
    let (answer, explained) = answer();
    let event = Event::Explain { queue: "q".into(), lane: None, data: Vec::new(), answer };
    world.turn([event]);
    let cured = explained.try_recv().unwrap().unwrap().stalemate;
    assert_eq!(cured, Some(world.now.after(LOOK_AFTER)), "whoever asks is told");
    let (begun, mut said) = (world.now, Vec::new());
    while world.under_way.is_empty() {
        said.extend(world.wait().notes);
        assert!(world.now <= begun.after(3 * LOOK_AFTER), "{said:?}");
    }
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("stalemate: queue `q` has 2 ready jobs that nothing holds back"), "{said:?}");
    assert_eq!(world.engine.stalemates(), 1);
    assert_eq!(world.finish(succeeded()).starts.len(), 1, "its books are right again");
    world.finish(succeeded());
    assert!(world.engine.is_quiet());
}

#[test]
fn what_is_held_or_comes_in_turn_is_no_stalemate() {
    let mut world = world();
    for _ in 0..4 {
        world.now = world.now.after(LOOK_AFTER);
        let effects = world.turn([Event::Nudge]);
        assert_eq!(effects.notes, Vec::<String>::new());
    }
    assert_eq!(world.finish(succeeded()).starts.len(), 1);
    world.finish(succeeded());
    world.finish(succeeded());
    assert_eq!((world.engine.stalemates(), world.engine.is_quiet()), (0, true));
    let (answer, explained) = answer();
    world.turn([Event::Explain { queue: "q".into(), lane: None, data: Vec::new(), answer }]);
    assert_eq!(explained.try_recv().unwrap().unwrap().stalemate, None);
    while world.engine.next_wake().unwrap().is_some() {
        world.wait();
    }
}
