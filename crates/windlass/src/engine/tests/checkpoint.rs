//! What a job said of how far it has come outlives its start, and not the job.

use super::*;
use windlass_core::particulars::Particulars;

#[test]
fn a_checkpoint_is_given_to_the_next_start_and_dropped_with_the_end() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 2);
    let checkpoint = |start: &Start, text: &str, outcome, now| Finished {
        checkpoints: vec![(0, text.to_owned())],
        ..finished(start, outcome, now)
    };
    let (first, second) = (world.under_way.remove(0), world.under_way.remove(0));
    assert_eq!((first.checkpoint.as_str(), second.checkpoint.as_str()), ("", ""));
    let ends = [checkpoint(&first, "page 3", failed(), world.now), checkpoint(&second, "all", succeeded(), world.now)];
    world.turn(ends.map(Event::Finished));
    assert_eq!(world.engine.store().notes("checkpoint/", 9).unwrap().len(), 1, "who succeeded needs none");
    let again = |world: &mut World| {
        world.now = world.now.after(Duration::from_secs(7200));
        world.turn([]);
        world.under_way.remove(0)
    };
    let start = again(&mut world);
    assert_eq!(start.checkpoint, "page 3");
    world.turn([Event::Finished(finished(&start, Outcome::Interrupted, world.now))]);
    let start = again(&mut world);
    assert_eq!(start.checkpoint, "page 3", "who says nothing has not gone back");
    world.turn([Event::Finished(checkpoint(&start, "page 7", failed(), world.now))]);
    let start = again(&mut world);
    assert_eq!(start.checkpoint, "page 7");
    world.turn([Event::Finished(finished(&start, succeeded(), world.now))]);
    assert_eq!(world.engine.store().notes("checkpoint/", 9).unwrap(), []);
}

#[test]
fn a_checkpoint_goes_with_a_job_that_a_person_cancels() {
    let mut world = World::new(vec![serving("q")]);
    world.push("q", 1);
    let start = world.under_way.remove(0);
    let end = Finished { checkpoints: vec![(0, "half".into())], ..finished(&start, failed(), world.now) };
    world.turn([Event::Finished(end)]);
    let (answer, _given) = answer();
    let ids = vec![start.held.jobs.id(0)];
    world.turn([Event::Amend { ids, amendment: Amendment::Cancel, by: "ada".into(), answer }]);
    assert_eq!(world.engine.store().notes("checkpoint/", 9).unwrap(), []);
}

#[test]
fn a_checkpoint_goes_with_a_job_whose_time_is_over() {
    let mut world = World::new(vec![serving("q")]);
    let mut lot = world.lot("q", 1);
    let finish_by = Some(world.now.after(Duration::from_secs(1)));
    let particulars = Particulars { finish_by, ..Particulars::default() };
    lot.jobs[0].jobs = Arc::new(lot.jobs[0].jobs.rebuilt(Some(Arc::new(particulars)), |_| true));
    let (pushed, _given) = answer();
    world.turn([Event::Pushed { lot, durability: Durability::Full, answer: pushed }]);
    let start = world.under_way.remove(0);
    let snoozed = Outcome::Snoozed { after: Duration::from_secs(7200) };
    let end = Finished { checkpoints: vec![(0, "half".into())], ..finished(&start, snoozed, world.now) };
    world.turn([Event::Finished(end)]);
    world.now = world.now.after(Duration::from_secs(2));
    world.turn([]);
    let ended = world.engine.store().job(start.held.jobs.id(0)).unwrap().unwrap();
    assert_eq!(ended.state, State::Failed, "it waits, and its time is over");
    assert_eq!(world.engine.store().notes("checkpoint/", 9).unwrap(), []);
}
