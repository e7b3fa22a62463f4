//! Schedules by turns: each nominal time once, through crashes and clocks that jump, and each overlap as it says.

use super::super::event::{ScheduleInfo, Steering};
use super::*;
use crate::schedule::{Cron, Push, Schedule, What};
use jiff::tz::TimeZone;
use windlass_core::job::RunId;
use windlass_core::notify::{Endings, Notify};
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::particulars::Scope;
use windlass_core::run::terms::RunTerms;
use windlass_core::schedule::{CatchUp, Overlap};

const MINUTE: i64 = 60_000_000;

/// Every ten minutes.
fn schedule(overlap: Overlap, catch_up: CatchUp) -> Schedule {
    let queue = QueueName::new(b"reports").unwrap();
    let push = Push { queue: queue.clone(), priority: Priority::NORMAL, what: What::Data("{schedule} {time}".into()) };
    let cron = Cron::parse("*/10 * * * *", TimeZone::UTC).unwrap();
    Schedule {
        name: "often".into(),
        cron,
        overlap,
        catch_up,
        enabled: true,
        push,
        first_queue: queue,
        terms: Default::default(),
    }
}

impl World {
    fn scheduled(overlap: Overlap, catch_up: CatchUp) -> World {
        let mut world = World::new(vec![serving("reports")]);
        world.reload_with(vec![schedule(overlap, catch_up)]);
        world
    }

    fn reload_with(&mut self, schedules: Vec<Schedule>) {
        let (answer, given) = answer();
        let policies = vec![serving("reports"), serving("notify.ops")];
        let new = NewRules { policies, slots: 4, schedules, ..NewRules::default() };
        self.turn([Event::Reload { new, answer }]);
        given.try_recv().unwrap().unwrap();
    }

    /// Turns at that minute, as often as the engine wants to, and tells the data of what was started.
    fn at(&mut self, minute: i64) -> Vec<String> {
        self.now = Time(minute * MINUTE);
        let before = self.under_way.len();
        self.turn([]);
        while self.engine.next_wake().unwrap().is_some_and(|wake| wake <= self.now) {
            self.turn([]);
        }
        let data = |start: &Start| String::from_utf8_lossy(start.held.jobs.data(usize::from(start.held.first))).into();
        self.under_way[before..].iter().map(data).collect()
    }

    fn info(&mut self) -> ScheduleInfo {
        let (answer, given) = answer();
        self.turn([Event::Schedules { answer }]);
        given.try_recv().unwrap().unwrap().remove(0)
    }

    /// Switches the schedule on (1) or off (0), from now on and in this very turn.
    fn switch(&mut self, value: u32, until: Option<Time>) -> Result<(), Failure> {
        let (target, by, reason) = (Target::Schedule("often".into()), String::new(), String::new());
        let made = Override { target, key: Key::Enabled, value, by, since: Time(0), until, reason };
        let (answer, given) = answer();
        let steering = Steering { set: vec![made], unset: Vec::new(), by: "ada".into() };
        self.turn([Event::Steer { steering, answer }]);
        given.try_recv().unwrap().map(|_| ())
    }

    /// The server dies and another takes over the store.
    fn crash(self, overlap: Overlap, catch_up: CatchUp) -> World {
        let World { engine, now, pushed, .. } = self;
        let (seed, ids) = (now.0 as u64, Arc::new(IdSource::new(Origin::from_random(now.0 as u64))));
        let schedules = vec![schedule(overlap, catch_up)];
        let options = EngineOptions { schedules, seed, ids, ..engine.options.clone() };
        let evidence =
            Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD };
        let (engine, _) = Engine::new(engine.store, options, evidence, now).unwrap();
        World { engine, now, pushed, under_way: Vec::new() }
    }
}

#[test]
fn a_time_fires_in_a_run_of_its_own_that_ends() {
    let mut world = World::scheduled(Overlap::Skip, CatchUp::Last);
    assert_eq!(world.at(9), Vec::<String>::new());
    assert_eq!(world.engine.next_wake().unwrap(), Some(Time(10 * MINUTE)), "its time is a deadline");
    assert_eq!(world.at(10), ["often 1970-01-01T00:10:00Z"]);
    let run: RunId = world.info().memory.runs[0];
    let (answer, given) = answer();
    world.turn([Event::AwaitRun { run, answer }]);
    assert!(given.try_recv().is_err(), "its job runs");
    world.finish(succeeded());
    let ended = given.try_recv().unwrap().unwrap();
    assert_eq!((ended.name.as_str(), ended.counts.sealed), ("often@1970-01-01T00:10:00Z", true));
    assert_eq!(world.at(10), Vec::<String>::new(), "once");
    let info = world.info();
    assert_eq!((info.memory.runs, info.next, info.memory.fired_count), (vec![], Some(Time(20 * MINUTE)), 1));
}

#[test]
fn a_crash_and_a_clock_that_goes_back_fire_nothing_twice() {
    let mut world = World::scheduled(Overlap::Allow, CatchUp::All);
    world.at(9);
    assert_eq!(world.at(10).len(), 1);
    let mut world = world.crash(Overlap::Allow, CatchUp::All);
    // What ran when the server died is run again; its time has been dealt with.
    assert_eq!(world.at(11), ["often 1970-01-01T00:10:00Z"]);
    assert_eq!(world.at(2), Vec::<String>::new());
    assert_eq!(world.at(19), Vec::<String>::new());
    let mut world = world.crash(Overlap::Allow, CatchUp::All);
    let started = world.at(45);
    let mut missed: Vec<&str> = started.iter().map(|data| &data[17..22]).collect();
    missed.sort_unstable();
    assert_eq!(missed, ["00:10", "00:20", "00:30", "00:40"], "the server was down, and makes up for all");
}

#[test]
fn what_was_missed_is_made_up_for_once_or_not_at_all() {
    for (catch_up, expected) in [(CatchUp::Last, 1), (CatchUp::None, 0)] {
        let mut world = World::scheduled(Overlap::Skip, catch_up);
        world.at(9);
        let mut world = world.crash(Overlap::Skip, catch_up);
        assert_eq!(world.at(57).len(), expected, "{catch_up:?}");
        assert_eq!(world.info().memory.mark, Time(50 * MINUTE));
    }
}

#[test]
fn overlap_skips_waits_replaces_or_goes_beside() {
    let mut world = World::scheduled(Overlap::Skip, CatchUp::All);
    world.at(10);
    assert_eq!(world.at(20), Vec::<String>::new());
    assert_eq!(world.info().memory.skipped_count, 1);

    let mut world = World::scheduled(Overlap::Queue, CatchUp::All);
    world.at(10);
    assert_eq!(world.at(20), Vec::<String>::new());
    world.finish(succeeded());
    assert_eq!(world.at(21), ["often 1970-01-01T00:20:00Z"], "after the end of the one before");

    let mut world = World::scheduled(Overlap::Allow, CatchUp::All);
    world.at(10);
    assert_eq!(world.at(20).len(), 1);

    let mut world = World::scheduled(Overlap::Replace, CatchUp::All);
    world.at(10);
    let first = world.info().memory.runs[0];
    world.now = Time(20 * MINUTE);
    let mut stops = Vec::new();
    for _ in 0..3 {
        stops.extend(world.turn([]).stops);
    }
    assert_eq!(stops.iter().map(|(_, why)| *why).collect::<Vec<_>>(), [Stop::Cancel], "the first is told to stop");
    let (answer, given) = answer();
    world.turn([Event::AwaitRun { run: first, answer }]);
    world.finish(Outcome::Cancelled);
    let ended = given.try_recv().unwrap().unwrap();
    assert_eq!(ended.counts.by_state[State::Cancelled.index()], 1);
    assert_eq!(world.under_way.len(), 1, "and the second runs");
}

/// Nothing fires for a time that the schedule never had, whether its table was changed, or taken out and put back.
#[test]
fn an_edited_schedule_has_its_new_times_from_then_on() {
    let every_minute = || {
        let cron = Cron::parse("* * * * *", TimeZone::UTC).unwrap();
        Schedule { cron, ..schedule(Overlap::Allow, CatchUp::All) }
    };
    // Its last time was at 10; at 19 it is to come every minute.
    let mut world = World::scheduled(Overlap::Allow, CatchUp::All);
    world.at(9);
    assert_eq!(world.at(10).len(), 1);
    world.now = Time(19 * MINUTE);
    world.reload_with(vec![every_minute()]);
    assert_eq!(world.at(19), Vec::<String>::new());
    assert_eq!(world.at(20), ["often 1970-01-01T00:20:00Z"]);
    // A reload that leaves its times alone makes up for what was missed.
    world.now = Time(23 * MINUTE);
    world.reload_with(vec![every_minute()]);
    assert_eq!(world.info().memory.fired_count, 5, "10 and 20, then 21 to 23");

    // Edited, and killed before its new time: what it misses then is its own.
    world.reload_with(vec![schedule(Overlap::Allow, CatchUp::All)]);
    world.at(24);
    let mut world = world.crash(Overlap::Allow, CatchUp::All);
    world.at(31);
    assert_eq!(world.info().memory.fired, Some(Time(30 * MINUTE)));

    // Taken out at 32, back at 55: nobody wanted 40 and 50.
    world.now = Time(32 * MINUTE);
    world.reload_with(Vec::new());
    world.now = Time(55 * MINUTE);
    world.reload_with(vec![schedule(Overlap::Allow, CatchUp::All)]);
    world.at(55);
    assert_eq!(world.info().memory.fired, None, "it is a new one");
    world.at(60);
    assert_eq!((world.info().memory.fired, world.info().memory.fired_count), (Some(Time(60 * MINUTE)), 1));
}

/// As they were before they knew their times, and of several runs.
#[test]
fn a_note_of_an_older_format_is_read() {
    let mut world = World::scheduled(Overlap::Skip, CatchUp::All);
    world.at(9);
    world.at(10);
    let run = world.info().memory.runs[0];
    let times = "\"mark\":600000000,\"waiting\":[],\"fired\":600000000,\"fired_count\":1,\"skipped_count\":0";
    let note = format!("{{{times},\"run\":\"{run}\"}}");
    world.engine.store().note("schedule/often", Some(note.as_bytes())).unwrap();
    world.engine.store().commit(Durability::Full).unwrap();
    let mut world = world.crash(Overlap::Skip, CatchUp::All);
    world.at(30);
    let memory = world.info().memory;
    assert_eq!((memory.runs, memory.skipped_count), (vec![run], 2), "20 and 30: its run goes on");
}

#[test]
fn what_a_schedule_pushes_is_unique_where_its_queue_says_so() {
    let mut world = World::new(Vec::new());
    let push = Push { what: What::Data("the same".into()), ..schedule(Overlap::Allow, CatchUp::All).push };
    let schedules = vec![Schedule { push, ..schedule(Overlap::Allow, CatchUp::All) }];
    let policies = vec![Policy { unique: Some(Scope::Active), ..serving("reports") }];
    world.turn([Event::Reload {
        new: NewRules { policies, slots: 4, schedules, ..NewRules::default() },
        answer: answer().0,
    }]);
    world.at(9);
    assert_eq!((world.at(10).len(), world.at(20).len()), (1, 0), "the first is under way");
    let memory = world.info().memory;
    assert_eq!((memory.fired_count, memory.runs.len()), (2, 1), "the second run had nothing to do, and has ended");
    world.finish(succeeded());
    assert_eq!(world.at(30).len(), 1);
}

#[test]
fn a_run_by_hand_does_not_hide_the_one_that_goes_on() {
    let mut world = World::scheduled(Overlap::Skip, CatchUp::All);
    world.at(9);
    assert_eq!(world.at(10).len(), 1);
    let (fired, given) = answer();
    world.turn([Event::FireSchedule { name: "often".into(), by: "ada".into(), answer: fired }]);
    given.try_recv().unwrap().unwrap();
    assert_eq!(world.info().memory.runs.len(), 2);
    let long = world.under_way.remove(0);
    world.finish(succeeded());
    assert_eq!(world.at(20), Vec::<String>::new(), "the first goes on, whatever became of the second");
    assert_eq!(world.info().memory.skipped_count, 1);
    world.under_way.push(long);
    world.finish(succeeded());
    assert_eq!(world.at(30).len(), 1);
}

/// Somebody set the clock a year ahead and back again.
#[test]
fn a_clock_that_was_far_ahead_silences_a_schedule_until_somebody_enables_it() {
    let mut world = World::scheduled(Overlap::Allow, CatchUp::Last);
    world.at(9);
    let year = 366 * 24 * 60;
    assert_eq!(world.at(year).len(), 1);
    world.now = Time(15 * MINUTE);
    let notes = world.turn([]).notes;
    assert!(notes.iter().any(|note| note.contains("silent until 1971-01-02T00:00:00Z")), "{notes:?}");
    assert!(world.turn([]).notes.is_empty(), "it is said once");
    assert_eq!(world.at(20), Vec::<String>::new());
    assert_eq!(world.info().silent_until, Some(Time(year * MINUTE)));
    world.switch(1, None).unwrap();
    assert_eq!((world.info().silent_until, world.info().next), (None, Some(Time(30 * MINUTE))));
    assert_eq!(world.at(30), ["often 1970-01-01T00:30:00Z"]);
}

#[test]
fn what_a_person_fired_overlaps_with_the_times_that_come_and_a_crash_does_not_forget_it() {
    let mut world = World::scheduled(Overlap::Skip, CatchUp::All);
    world.at(9);
    let (fired, given) = answer();
    world.turn([Event::FireSchedule { name: "often".into(), by: "ada".into(), answer: fired }]);
    let run = given.try_recv().unwrap().unwrap();
    assert_eq!(world.info().memory.runs, [run]);
    let mut world = world.crash(Overlap::Skip, CatchUp::All);
    world.at(10);
    assert_eq!(world.info().memory.skipped_count, 1, "it goes on when the time comes");
    world.under_way.truncate(1);
    world.finish(succeeded());
    assert_eq!(world.at(20).len(), 1, "and has ended when the next one does");
}

/// Once a run that a person began was not known in the turn that began it, and so was taken for one that had ended.
#[test]
fn a_time_that_waits_goes_on_waiting_when_a_person_fires() {
    let mut world = World::scheduled(Overlap::Queue, CatchUp::All);
    world.at(9);
    assert_eq!(world.at(10).len(), 1);
    assert_eq!(world.at(20), Vec::<String>::new(), "it waits for the end of the one before it");
    let (fired, given) = answer();
    world.turn([Event::FireSchedule { name: "often".into(), by: "ada".into(), answer: fired }]);
    let run = given.try_recv().unwrap().unwrap();
    let memory = world.info().memory;
    assert_eq!((memory.runs.last(), memory.waiting), (Some(&run), vec![Time(20 * MINUTE)]));
    assert_eq!(world.under_way.len(), 2, "the first and the one by hand");
}

#[test]
fn the_run_of_a_time_has_its_terms_and_its_channels_are_told_how_it_ended() {
    let mut world = World::new(vec![serving("reports"), serving("notify.ops")]);
    let channels = vec![QueueName::new(b"notify.ops").unwrap()];
    let notify = Notify { channels, on: Endings::default() };
    let terms = RunTerms { time_limit: Some(Duration::from_secs(120)), notify, ..RunTerms::default() };
    world.reload_with(vec![Schedule { terms, ..schedule(Overlap::Skip, CatchUp::Last) }]);
    world.at(9);
    world.at(10);
    world.finish(succeeded());
    assert!(world.under_way.is_empty(), "what went well wakes nobody");
    world.at(20);
    world.at(22);
    world.turn([]);
    world.finish(Outcome::Cancelled);
    let [told] = &world.under_way[..] else { panic!("{:?}", world.under_way) };
    let told: serde_json::Value = serde_json::from_slice(told.held.jobs.data(usize::from(told.held.first))).unwrap();
    assert_eq!((&told["event"], &told["name"]), (&"late".into(), &"often@1970-01-01T00:20:00Z".into()));
    assert_eq!((&told["run"]["stopped"], &told["run"]["cancelled"]), (&"time_limit".into(), &1.into()));
}

#[test]
fn a_person_fires_it_and_switches_it_off_and_a_removed_one_is_gone() {
    let mut world = World::scheduled(Overlap::Skip, CatchUp::Last);
    world.at(9);
    world.switch(0, None).unwrap();
    assert_eq!(world.at(20), Vec::<String>::new());
    assert_eq!(world.info().next, None);
    let (fired, given) = answer();
    world.turn([Event::FireSchedule { name: "often".into(), by: "ada".into(), answer: fired }]);
    given.try_recv().unwrap().unwrap();
    assert_eq!(world.under_way.len(), 1, "by hand it fires all the same");
    world.finish(succeeded());
    world.now = Time(25 * MINUTE);
    world.switch(1, None).unwrap();
    assert_eq!(world.at(29), Vec::<String>::new(), "what passed while it was off is not made up for");
    assert_eq!(world.at(30).len(), 1);
    let (fired, given) = answer::<RunId>();
    world.turn([Event::FireSchedule { name: "seldom".into(), by: "ada".into(), answer: fired }]);
    assert_eq!(given.try_recv().unwrap().unwrap_err().to_string(), "no schedule `seldom`");
    world.reload_with(Vec::new());
    assert_eq!(world.at(40), Vec::<String>::new());
    assert_eq!(world.switch(0, None).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn what_passed_while_it_was_off_is_not_made_up_for_though_the_engine_slept_all_the_while() {
    let mut world = World::scheduled(Overlap::Allow, CatchUp::All);
    world.at(9);
    world.switch(0, None).unwrap();
    // Nothing wakes the engine at 10 and 20; the turn at 25 that switches it on is the first to see that they passed.
    world.now = Time(25 * MINUTE);
    world.switch(1, None).unwrap();
    assert!(world.under_way.is_empty(), "{:?}", world.under_way);
    assert_eq!(world.at(30), ["often 1970-01-01T00:30:00Z"]);
}

#[test]
fn a_switch_that_ended_while_the_server_was_down_hides_only_what_came_before_its_end() {
    let mut world = World::scheduled(Overlap::Allow, CatchUp::All);
    world.at(9);
    world.switch(0, Some(Time(15 * MINUTE))).unwrap();
    let mut world = world.crash(Overlap::Allow, CatchUp::All);
    let mut made_up = world.at(35);
    made_up.sort_unstable();
    assert_eq!(made_up, ["often 1970-01-01T00:20:00Z", "often 1970-01-01T00:30:00Z"]);
}

#[test]
fn what_waits_for_the_end_of_the_one_before_is_dropped_when_the_schedule_is_switched_off() {
    let mut world = World::scheduled(Overlap::Queue, CatchUp::All);
    world.at(10);
    assert_eq!(world.at(20), Vec::<String>::new());
    world.switch(0, None).unwrap();
    assert_eq!(world.info().memory.waiting, []);
    world.now = Time(21 * MINUTE);
    world.switch(1, None).unwrap();
    world.finish(succeeded());
    assert_eq!(world.at(29), Vec::<String>::new(), "it was waiting when somebody switched it off");
    assert_eq!(world.at(30).len(), 1);
}
