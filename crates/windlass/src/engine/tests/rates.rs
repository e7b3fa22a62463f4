//! Rates, keys of the data and dead destinations by turns, on virtual time.

use super::*;
use windlass_core::rate::Rate;
use windlass_core::scheduler::Reason;

impl World {
    fn push_data(&mut self, queue: &str, data: &[String]) {
        let mut builder = ChunkBuilder::new(Origin::from_random(7));
        for data in data {
            self.pushed += 1;
            builder.push(self.pushed, data.as_bytes());
        }
        let queue = QueueName::new(queue.as_bytes()).unwrap();
        let jobs = Arc::new(builder.finish());
        let new = NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs };
        let (answer, _given) = answer();
        let lot = Lot { jobs: vec![new], ..Lot::default() };
        self.turn([Event::Pushed { lot, durability: Durability::Full, answer }]);
    }

    /// Turns whenever the engine wants to, until that time; what starts ends at once. The data of what started.
    fn play(&mut self, until: Time, outcome: impl Fn(&str) -> Outcome) -> Vec<String> {
        let mut started = Vec::new();
        loop {
            while let Some(start) = self.under_way.pop() {
                let outcomes = start.held.range().map(|index| {
                    let data = String::from_utf8_lossy(start.held.jobs.data(index)).into_owned();
                    let outcome = outcome(&data);
                    started.push(data);
                    (1, outcome)
                });
                let outcomes = outcomes.collect();
                let end = Finished { outcomes, ..finished(&start, succeeded(), self.now) };
                self.turn([Event::Finished(end)]);
            }
            match self.engine.next_wake().unwrap() {
                Some(wake) if wake <= until => self.now = self.now.max(wake),
                _ => break,
            }
            self.turn([]);
        }
        self.now = until;
        started
    }
}

fn hosts(host: &str, count: usize) -> Vec<String> {
    (0..count).map(|_| format!("{{\"host\":\"{host}\"}}")).collect()
}

fn count(started: &[String], host: &str) -> usize {
    started.iter().filter(|data| data.contains(host)).count()
}

fn seconds(time: u64) -> Time {
    Time(1_000_000).after(Duration::from_secs(time))
}

#[test]
fn a_rate_is_kept_without_anybody_asking() {
    let mut world = World::new(vec![Policy { rate: Rate::new(10, Duration::from_secs(1)), ..serving("q") }]);
    world.push("q", 1000);
    let started = world.play(seconds(20), |_| succeeded());
    assert!(started.len().abs_diff(200) <= 4, "{} in 20 s", started.len());
    // A clock that is set does not matter: there are no jobs to make up for, and none is held longer.
    world.now = seconds(7200);
    let later = world.play(seconds(7220), |_| succeeded());
    assert!(later.len().abs_diff(200) <= 6, "{} in 20 s after a jump", later.len());
    world.now = seconds(10);
    world.turn([]);
    let back = world.play(seconds(30), |_| succeeded());
    assert!(back.len().abs_diff(200) <= 6, "{} in 20 s after a jump back", back.len());
}

#[test]
fn a_thousand_queues_keep_their_rates_within_two_percent() {
    const QUEUES: usize = 1000;
    let rate = |queue: usize| 1 + queue as u32 % 2;
    let policy =
        |queue: usize| Policy { rate: Rate::new(rate(queue), Duration::from_secs(1)), ..serving(&format!("q{queue}")) };
    let mut world = World::new(Vec::new());
    let (reloaded, _given) = answer();
    let policies = (0..QUEUES).map(policy).collect();
    let new = NewRules { policies, slots: 4 * QUEUES as u32, ..NewRules::default() };
    world.turn([Event::Reload { new, answer: reloaded }]);
    for queue in 0..QUEUES {
        world.push_data(&format!("q{queue}"), &vec![queue.to_string(); 150]);
    }
    // What starts ends at once, all of it in one turn. The first second has the bursts of the beginning.
    let mut started = [0u32; QUEUES];
    while world.now < seconds(61) {
        for start in &world.under_way {
            let data = String::from_utf8_lossy(start.held.jobs.data(usize::from(start.held.first)));
            let queue: usize = data.parse().unwrap();
            started[queue] += if world.now >= seconds(1) { u32::from(start.held.count) } else { 0 };
        }
        let ends: Vec<Event> =
            world.under_way.drain(..).map(|start| Event::Finished(finished(&start, succeeded(), world.now))).collect();
        world.turn(ends);
        let wake = world.engine.next_wake().unwrap().unwrap();
        world.now = world.now.max(wake);
        world.turn([]);
    }
    for (queue, started) in started.into_iter().enumerate() {
        let right = 60 * rate(queue);
        assert!(started.abs_diff(right) * 50 <= right, "q{queue}: {started} starts in a minute, expected {right}");
    }
}

#[test]
fn a_flood_for_one_key_keeps_its_rate_and_nobody_else_back() {
    let rate = Rate::new(10, Duration::from_secs(1));
    let mut world = World::new(vec![Policy { rate, rate_key: Some("{data.host}".into()), ..serving("q") }]);
    world.push_data("q", &hosts("flood", 500));
    world.push_data("q", &hosts("other", 1));
    let started = world.play(seconds(1), |_| succeeded());
    assert_eq!(count(&started, "other"), 1, "the jobs behind the flood go on");
    assert!(count(&started, "flood") <= 13, "{}", count(&started, "flood"));
    let more = world.play(seconds(21), |_| succeeded());
    assert!(count(&more, "flood").abs_diff(200) <= 4, "{} in 20 s", count(&more, "flood"));
    world.play(seconds(60), |_| succeeded());
    assert!(world.engine.is_quiet(), "all 500 have been done");
}

#[test]
fn a_dead_key_is_probed_while_the_others_are_served() {
    let policy = Policy { attempts: 0, dead_after: 3, rate_key: Some("{data.host}".into()), ..serving("q") };
    let mut world = World::new(vec![policy]);
    world.push_data("q", &hosts("dead", 100));
    world.push_data("q", &hosts("fine", 100));
    let outcome = |data: &str| if data.contains("dead") { failed() } else { succeeded() };
    let started = world.play(seconds(60), outcome);
    assert_eq!(count(&started, "fine"), 100);
    // Three or a few more that were under way, then after 1, 2, 4, 8, 16 and 32 s.
    let probes = count(&started, "dead");
    assert!((6..20).contains(&probes), "{probes} starts of the dead one in a minute");
    let (answer, given) = answer();
    let lane = Some((Priority::NORMAL, windlass_core::job::LaneKind::Fresh));
    let data = hosts("dead", 1).remove(0).into_bytes();
    world.turn([Event::Explain { queue: "q".into(), lane, data, answer }]);
    let (key, reason) = given.try_recv().unwrap().unwrap().destination.unwrap();
    assert!(key == "dead" && matches!(reason, Reason::DestinationDead { failures, .. } if failures >= 3), "{reason:?}");
    world.play(seconds(600), |_| succeeded());
    assert!(world.engine.is_quiet(), "it lives again, and everything is done");
}

#[test]
fn a_dead_destination_of_a_table_holds_its_jobs_without_a_charge() {
    let mut world = World::new(vec![Policy { attempts: 3, dead_after: 4, ..serving("q") }]);
    world.push("q", 50);
    let started = world.play(seconds(20), |_| failed());
    assert!((6..14).contains(&started.len()), "{} starts in 20 s", started.len());
    assert!(world.engine.next_wake().unwrap().is_some(), "it says when it probes next");
    let failed_now = world.engine.store().queues().unwrap()[0].stats.by_state[State::Failed.index()];
    world.play(seconds(4000), |_| succeeded());
    assert!(world.engine.is_quiet());
    assert!(failed_now <= 2, "{failed_now} jobs used up their attempts as probes");
}
