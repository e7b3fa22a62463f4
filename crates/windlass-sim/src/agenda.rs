//! Schedules of a world, and what people do to them: switch them off and on, and fire them by hand.
//!
//! Every schedule has its times on a grid of minutes, so that the checker can say when they come without reading cron.

use crate::asks::{Ask, Said};
use crate::random::{self, Random};
use crate::world::{Outcome, World};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::time::Duration;
use windlass::engine::Event;
use windlass::engine::event::Steering;
use windlass::schedule::{Cron, Push, Schedule, What};
use windlass_core::job::QueueName;
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::schedule::{CatchUp, Overlap};
use windlass_core::time::Time;

/// Queues that schedules push to.
const QUEUES: [&str; 3] = ["mail", "report", "bulk"];

/// A schedule as far as its times go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) name: String,
    /// It comes every so many minutes of the hour.
    pub(crate) minutes: i64,
    pub(crate) overlap: Overlap,
    pub(crate) catch_up: CatchUp,
}

/// Draws the schedules of a world.
pub(crate) fn schedules(seed: u64) -> Outcome<Vec<Schedule>> {
    let mut random = Random::new(random::hash(format!("{seed} agenda").as_bytes()));
    let count = random.between(1, 3);
    (0..count).map(|number| schedule(&mut random, number)).collect()
}

fn schedule(random: &mut Random, number: u64) -> Outcome<Schedule> {
    let (overlap, catch_up) = (*random.pick(&Overlap::ALL), *random.pick(&CatchUp::ALL));
    // Where every missed time is made up for, a jump of hours must not flood the world.
    let minutes = *random.pick(if catch_up == CatchUp::All { &[10, 15, 30] } else { &[1, 2, 5] });
    let queue = QueueName::new(random.pick(&QUEUES).as_bytes()).map_err(|bad| bad.to_string())?;
    let push = Push { queue, priority: Default::default(), what: What::Data("{schedule} {time}".into()) };
    let name = format!("plan{number}-{minutes}");
    Ok(Schedule {
        cron: Cron::parse(&format!("*/{minutes} * * * *"), TimeZone::UTC)?,
        overlap,
        catch_up,
        enabled: true,
        first_queue: Schedule::first_queue(&name, &push)?,
        push,
        terms: Default::default(),
        name,
    })
}

pub(crate) fn plans(schedules: &[Schedule]) -> Vec<Plan> {
    let plan = |schedule: &Schedule| {
        let (name, overlap, catch_up) = (schedule.name.clone(), schedule.overlap, schedule.catch_up);
        let minutes = name.rsplit('-').next().and_then(|minutes| minutes.parse().ok()).unwrap_or(1);
        Plan { name, minutes, overlap, catch_up }
    };
    schedules.iter().map(plan).collect()
}

/// The schedule and the nominal time in the name of a run that one of them began.
pub(crate) fn nominal(run_name: &str) -> Option<(&str, Time)> {
    let (schedule, time) = run_name.split_once('@')?;
    let time: Timestamp = time.parse().ok()?;
    Some((schedule, Time(time.as_microsecond())))
}

impl World {
    /// People act every now and then; where schedules have times, some of it has to pass.
    pub(crate) fn until_next_act(&mut self) -> u64 {
        match self.flows && self.random.chance(40) {
            true => self.random.between(1_000_000, 90_000_000),
            false => self.random.between(100, 150_000),
        }
    }

    pub(crate) fn look_after_schedules(&mut self) -> Outcome<()> {
        if self.options.schedules.is_empty() {
            return Ok(());
        }
        let name = self.random.pick(&self.options.schedules).name.clone();
        if self.random.chance(300) {
            let answer = self.people.ask(Ask::Question, |_| Said::Nothing);
            self.send(Event::FireSchedule { name, by: "somebody".into(), answer });
            return Ok(());
        }
        let target = Target::Schedule(name);
        let until = self.random.chance(300).then(|| Duration::from_millis(self.random.between(1, 90_000)));
        let until = until.map(|after| self.now().after(after));
        let value = self.random.below(2) as u32;
        let (by, since, reason) = (String::new(), Time(0), "the weather".to_owned());
        let off = Override { target: target.clone(), key: Key::Enabled, value, by, since, until, reason };
        let steering = match self.random.chance(400) {
            true => Steering { unset: vec![(target, None)], ..Steering::default() },
            false => Steering { set: vec![off], ..Steering::default() },
        };
        self.steer(steering);
        Ok(())
    }
}
