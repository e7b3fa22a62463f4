//! A store that nobody answers at, or in which somebody else has rows locked.

use super::*;

fn cancel(world: &World) -> Event {
    let id = world.under_way[0].held.ids().next().unwrap();
    let (answer, _refused) = channel();
    let answer = Answer::new(move |told: Result<Vec<Amended>, Failure>| drop(answer.send(told)));
    Event::Amend { ids: vec![id], amendment: Amendment::Cancel, by: "ada".into(), answer }
}

/// Whatever comes meanwhile, and fails as the first one did, the next try is a second after that.
#[test]
fn what_comes_while_nobody_answers_does_not_put_the_next_try_off() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    let begun = world.now;
    for millis in [0, 300, 600, 900] {
        world.now = begun.after(Duration::from_millis(millis));
        world.engine.store().fail_commit(StoreError::Away("test".into()));
        let cancel = cancel(&world);
        world.turn([cancel]);
        assert_eq!(world.engine.condition(), Condition::StoreAway);
    }
    world.now = begun.after(FULL_RETRY);
    let effects = world.turn([]);
    assert!(effects.notes.iter().any(|note| note.contains("answers again")), "{:?}", effects.notes);
    assert_eq!(world.engine.condition(), Condition::Serving);
}

#[test]
fn a_turn_that_could_not_have_a_row_is_done_again_and_nobody_is_away() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    world.engine.store().fail_commit(StoreError::Busy("test".into()));
    let effects = world.finish(succeeded());
    assert!(effects.archive.is_empty() && effects.notes[0].contains("has locked rows"), "{:?}", effects.notes);
    assert_eq!(world.engine.condition(), Condition::Serving);
    assert_eq!(world.engine.next_wake().unwrap(), Some(Time::ZERO), "what ended waits for no event");
    let effects = world.turn([]);
    assert_eq!(effects.archive.len(), 1);
    assert!(world.engine.next_wake().unwrap().is_none_or(|at| at > world.now), "there is nothing left to do");
}
