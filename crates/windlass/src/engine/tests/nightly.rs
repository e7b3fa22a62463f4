//! Nights of a schedule on virtual time: both changes of the clock, every report once, every run to its
//! end.

use super::*;
use crate::schedule::{Cron, Push, Schedule, What};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use windlass_core::schedule::{CatchUp, Overlap};

const CUSTOMERS: usize = 2000;

fn nightly() -> Schedule {
    let list = Command { argv: vec![b"./list-customers".to_vec()], ..Command::default() };
    let (queue, priority) = (QueueName::new(b"reports").unwrap(), Priority::new(-10).unwrap());
    let push = Push { queue, priority, what: What::Lines(list) };
    let cron = Cron::parse("0 2 * * *", TimeZone::get("Europe/Berlin").unwrap()).unwrap();
    let first_queue = Schedule::first_queue("nightly", &push).unwrap();
    let (overlap, catch_up) = (Overlap::Skip, CatchUp::Last);
    Schedule {
        name: "nightly".into(),
        cron,
        overlap,
        catch_up,
        enabled: true,
        push,
        first_queue,
        terms: Default::default(),
    }
}

impl World {
    fn night_watch(from: &str) -> World {
        let schedule = nightly();
        let policies = vec![serving("reports"), schedule.crew().unwrap()];
        let mut world = World::new(policies.clone());
        world.now = Time(from.parse::<Timestamp>().unwrap().as_microsecond());
        let (answer, given) = answer();
        let new = NewRules { policies, slots: 4, schedules: vec![schedule], ..NewRules::default() };
        world.turn([Event::Reload { new, answer }]);
        given.try_recv().unwrap().unwrap();
        world
    }

    /// Goes to the next moment at which the engine has something to do, and does all of it; the data of what was
    /// started, by queue.
    fn next_night(&mut self) -> (Vec<String>, Vec<String>) {
        self.now = self.engine.next_wake().unwrap().unwrap();
        self.turn([]);
        let (mut lists, mut reports) = (Vec::new(), Vec::new());
        while !self.under_way.is_empty() {
            let start = self.under_way.remove(0);
            let data = String::from_utf8(start.held.jobs.data(usize::from(start.held.first)).to_vec()).unwrap();
            let mut end = finished(&start, succeeded(), self.now);
            if start.queue.as_str() == "reports" {
                assert_eq!(start.held.lane.priority, Priority::new(-10).unwrap());
                reports.push(data);
            } else {
                let customer = |n| format!("customer-{n:04}").into_bytes();
                let queue = QueueName::new(b"reports").unwrap();
                let emitted = (0..CUSTOMERS).map(|n| Emitted { by: 0, queue: queue.clone(), data: customer(n) });
                end.emitted = emitted.collect();
                lists.push(data);
            }
            self.turn([Event::Finished(end)]);
        }
        (lists, reports)
    }
}

#[test]
fn the_nights_of_the_example_on_a_virtual_clock() {
    for (from, nights) in [
        // In spring two o'clock does not come: the night's work begins right after the gap.
        ("2026-03-27T12:00:00Z", ["2026-03-28T01:00:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"]),
        // In autumn it comes twice, and the work once.
        ("2026-10-23T12:00:00Z", ["2026-10-24T00:00:00Z", "2026-10-25T00:00:00Z", "2026-10-26T01:00:00Z"]),
    ] {
        let mut world = World::night_watch(from);
        for night in nights {
            let (lists, mut reports) = world.next_night();
            assert_eq!(lists, [night]);
            assert_eq!(world.now, Time(night.parse::<Timestamp>().unwrap().as_microsecond()));
            reports.sort_unstable();
            reports.dedup();
            assert_eq!(reports.len(), CUSTOMERS, "{night}");
            assert!(world.engine.is_quiet(), "the run of the night has ended: {night}");
        }
    }
}
