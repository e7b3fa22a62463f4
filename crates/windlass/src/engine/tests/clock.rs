//! A wall clock that is set while jobs wait.

use super::*;

#[test]
fn a_clock_that_is_set_back_stretches_no_wait() {
    let mut world = World::new(vec![serving("q")]);
    world.now = Time(7_200_000_000);
    world.push("q", 1);
    world.turn([Event::Drain]);
    world.now = Time(3_600_000_000);
    assert_eq!(world.turn([]).stops.len(), 1, "a drain of seconds takes an hour more");
}

#[test]
fn a_clock_that_is_set_changes_no_wait_but_for_named_times() {
    for hours in [-2, 2] {
        let mut world = World::new(vec![serving("q")]);
        world.now = Time(7_200_000_000 * 3);
        let minute = Duration::from_secs(60);
        let turn = |world: &mut World, steady: u64| {
            world.engine.tell_steady(Steady::default().after(Duration::from_secs(steady)));
            world.turn([])
        };
        turn(&mut world, 0);
        world.push("q", 1);
        world.finish(Outcome::Snoozed { after: minute });
        world.now = Time(world.now.0 + hours * 3_600_000_000);
        assert_eq!(turn(&mut world, 0).notes.len(), 1, "it is said");
        assert!(world.under_way.is_empty(), "set forward, it comes too early");
        world.now = world.now.after(minute);
        assert!(turn(&mut world, 60).notes.is_empty());
        assert_eq!(world.under_way.len(), 1, "set back, it comes too late");
    }
}

#[test]
fn a_job_that_ends_in_the_turn_that_hears_of_a_new_clock_waits_as_long_as_it_asked_to() {
    for hours in [-2, 2] {
        let mut world = World::new(vec![serving("q")]);
        world.now = Time(7_200_000_000 * 3);
        let second = |seconds| Steady::default().after(Duration::from_secs(seconds));
        world.engine.tell_steady(second(0));
        world.push("q", 1);
        world.now = Time(world.now.0 + hours * 3_600_000_000);
        world.engine.tell_steady(second(0));
        world.finish(Outcome::Snoozed { after: Duration::from_secs(60) });
        for (elapsed, begun) in [(59, 0), (60, 1)] {
            world.now = world.now.after(Duration::from_secs(if elapsed == 59 { 59 } else { 1 }));
            world.engine.tell_steady(second(elapsed));
            world.turn([]);
            assert_eq!(world.under_way.len(), begun, "after {elapsed} s on a clock that was set by {hours} hours");
        }
    }
}
