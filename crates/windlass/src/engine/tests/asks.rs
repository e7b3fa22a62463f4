//! Asks of remote workers by turns: what is claimed for them, and what is left where that fails.

use super::ask::Ask;
use super::*;
use windlass_core::policy::Remote;

fn remote(slots: u32) -> Policy {
    Policy { slots, ..Policy::new("far", Service::Remote(Remote::default())) }
}

fn ask(number: u64, most: u32) -> Event {
    let tokens = (0..most).map(|nth| format!("token-{number}-{nth}")).collect();
    Event::Ask(Ask { number, queues: vec!["far".into()], tokens })
}

#[test]
fn a_claim_for_an_ask_that_fails_leaves_nothing_booked() {
    // The claim and the lease of each of three jobs, in turn.
    for verb in 1..=6 {
        let mut world = World::new(vec![remote(3)]);
        world.push("far", 3);
        assert_eq!(world.under_way.len(), 0, "nobody asks");
        world.engine.store().fail_verb(verb, StoreError::Full("test".into()));
        let dropped = world.turn([ask(1, 3)]);
        assert!(dropped.starts.is_empty() && dropped.archive.is_empty(), "verb {verb}");
        world.now = world.engine.next_wake().unwrap().unwrap();
        world.turn([]);
        assert_eq!(world.under_way.len(), 3, "all its slots are there after verb {verb} has failed");
        let lent = |start: &Start| start.lent.clone().unwrap();
        assert!(world.under_way.iter().all(|start| lent(start).ask == Some(1) && start.held.start() == 1));
        for _ in 0..3 {
            world.finish(succeeded());
        }
        world.push("far", 3);
        world.turn([ask(2, 9)]);
        assert_eq!(world.under_way.len(), 3, "and again");
    }
}
