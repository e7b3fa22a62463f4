//! What a schedule does when its times come: which of them it heeds, and what it does about work still under way.
//!
//! A nominal time is the time that the schedule names, whenever it is noticed. Each is dealt with at most once: the
//! mark, the last one dealt with, only rises, whatever the clock does. This file owns the two policies and the memory
//! of a schedule. It must not know how times are written (cron) nor what is pushed.

use crate::job::RunId;
use crate::time::Time;
use std::time::Duration;

/// A time that is noticed this late still counts as noticed when it came.
pub const ON_TIME: Duration = Duration::from_secs(60);
/// The most times that wait for the work before them to end; later ones are skipped.
pub const WAITING_MAX: usize = 1000;
/// The most times that one look deals with; the rest is dealt with in the next. Each may be a run of its own, and on a
/// database several statements: a turn of too many would keep other servers waiting for longer than their lease.
pub const LOOK_MAX: usize = 100;
/// The most runs under way that are remembered; of more, the oldest are forgotten.
pub const RUNS_MAX: usize = 1000;
/// A mark that is so far ahead of the clock was made by a clock that was wrong, not by one that was set right a little.
pub const AHEAD: Duration = Duration::from_secs(3600);

/// What to do when a time comes while the work of an earlier one has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Leave this time out.
    #[default]
    Skip,
    /// Wait for its end.
    Queue,
    /// Cancel what is under way and begin anew.
    Replace,
    /// Begin beside it.
    Allow,
}

impl Overlap {
    pub const ALL: [Overlap; 4] = [Overlap::Skip, Overlap::Queue, Overlap::Replace, Overlap::Allow];

    pub fn word(self) -> &'static str {
        match self {
            Overlap::Skip => "skip",
            Overlap::Queue => "queue",
            Overlap::Replace => "replace",
            Overlap::Allow => "allow",
        }
    }
}

/// What to do about times that passed while nobody looked: the server was down, or the clock jumped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// Make up for the last of them.
    #[default]
    Last,
    All,
    None,
}

impl CatchUp {
    pub const ALL: [CatchUp; 3] = [CatchUp::Last, CatchUp::All, CatchUp::None];

    pub fn word(self) -> &'static str {
        match self {
            CatchUp::Last => "last",
            CatchUp::All => "all",
            CatchUp::None => "none",
        }
    }
}

/// What is remembered of a schedule, in the transactions that change it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The last nominal time that was dealt with.
    pub mark: Time,
    /// Times that wait for the end of the run before them, oldest first.
    pub waiting: Vec<Time>,
    /// The runs that were begun and have not ended, of its times and by people, oldest first.
    pub runs: Vec<RunId>,
    /// The last time that fired.
    pub fired: Option<Time>,
    pub fired_count: u64,
    pub skipped_count: u64,
}

impl Memory {
    /// Its nominal times up to its mark pass in silence although they are yet to come: a clock was once far ahead.
    pub fn silent_until(&self, now: Time) -> Option<Time> {
        (self.mark > now.after(AHEAD)).then_some(self.mark)
    }

    pub fn began(&mut self, run: RunId) {
        self.runs.push(run);
        self.runs.drain(..self.runs.len().saturating_sub(RUNS_MAX));
    }
}

/// One thing to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Push the work of this nominal time in a run of its own; cancel these runs that are under way first.
    Fire { nominal: Time, run: RunId, replace: Vec<RunId> },
    /// This time, or at least so many up to it, were left out.
    Skip { nominal: Time, count: u64 },
}

/// Looks at what has come due. `next` gives the first nominal time after a moment; `run_of` names the run of a time
/// that fires. After it, `memory` is as it has to be stored.
pub fn look(
    memory: &mut Memory,
    (overlap, catch_up): (Overlap, CatchUp),
    now: Time,
    next: impl Fn(Time) -> Option<Time>,
    mut run_of: impl FnMut(Time) -> RunId,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let came = times_that_came(memory, catch_up, now, next, &mut steps);
    memory.waiting.extend(came);
    while let Some(&nominal) = memory.waiting.first() {
        let replace = match (memory.runs.is_empty(), overlap) {
            (true, _) | (false, Overlap::Allow) => Vec::new(),
            (false, Overlap::Replace) => std::mem::take(&mut memory.runs),
            (false, Overlap::Queue) => break,
            (false, Overlap::Skip) => {
                steps.push(Step::Skip { nominal, count: 1 });
                memory.waiting.remove(0);
                continue;
            }
        };
        memory.waiting.remove(0);
        let run = run_of(nominal);
        steps.push(Step::Fire { nominal, run, replace });
        memory.began(run);
        memory.fired = Some(nominal);
        memory.fired_count += 1;
    }
    if memory.waiting.len() > WAITING_MAX {
        let left_out = memory.waiting.split_off(WAITING_MAX);
        let nominal = left_out.last().copied().unwrap_or(now);
        steps.push(Step::Skip { nominal, count: left_out.len() as u64 });
    }
    let skipped = steps.iter().map(|step| if let Step::Skip { count, .. } = step { *count } else { 0 });
    memory.skipped_count += skipped.sum::<u64>();
    steps
}

/// Moves the mark over what has come by now, and says what of it counts.
fn times_that_came(
    memory: &mut Memory,
    catch_up: CatchUp,
    now: Time,
    next: impl Fn(Time) -> Option<Time>,
    steps: &mut Vec<Step>,
) -> Vec<Time> {
    if catch_up != CatchUp::All {
        memory.mark = memory.mark.max(lately(now, &next));
    }
    let mut came: Vec<Time> = Vec::new();
    let mut left_out: Option<(Time, u64)> = None;
    while let Some(time) = next(memory.mark).filter(|time| *time <= now) {
        memory.mark = time;
        let late = now.since(time) > ON_TIME;
        let passed_over = match catch_up {
            CatchUp::All => None,
            CatchUp::None => late.then_some(time),
            // A later one takes the place of one that was missed.
            CatchUp::Last => came.pop_if(|earlier| now.since(*earlier) > ON_TIME),
        };
        if let Some(passed) = passed_over {
            left_out = Some((passed, left_out.map_or(0, |(_, count)| count) + 1));
        }
        if catch_up != CatchUp::None || !late {
            came.push(time);
        }
        if came.len() >= LOOK_MAX {
            break;
        }
    }
    steps.extend(left_out.map(|(nominal, count)| Step::Skip { nominal, count }));
    came
}

/// A moment not long before now with a nominal time after it: where only the last one counts, a schedule of every
/// minute need not be followed through the year that the server was down.
fn lately(now: Time, next: impl Fn(Time) -> Option<Time>) -> Time {
    const MINUTE: i64 = 60_000_000;
    let spans = [2, 60, 24 * 60, 32 * 24 * 60, 367 * 24 * 60].map(|minutes| now.0.saturating_sub(minutes * MINUTE));
    let found = spans.into_iter().map(Time).find(|moment| next(*moment).is_some_and(|time| time <= now));
    found.unwrap_or(Time(i64::MIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Origin;

    const MINUTE: i64 = 60_000_000;

    fn at(minute: i64) -> Time {
        Time(minute * MINUTE)
    }

    /// Every ten minutes.
    fn next(after: Time) -> Option<Time> {
        Some(at((after.0.div_euclid(10 * MINUTE) + 1) * 10))
    }

    fn run_of(nominal: Time) -> RunId {
        RunId::first(Origin::from_random(nominal.0 as u64))
    }

    fn seen(memory: &mut Memory, policies: (Overlap, CatchUp), now: i64) -> (Vec<i64>, u64) {
        let steps = look(memory, policies, at(now), next, run_of);
        let mut fired = Vec::new();
        let mut skipped = 0;
        for step in steps {
            match step {
                Step::Fire { nominal, .. } => fired.push(nominal.0 / MINUTE),
                Step::Skip { count, .. } => skipped += count,
            }
        }
        (fired, skipped)
    }

    #[test]
    fn a_time_fires_once_whatever_the_clock_does() {
        let mut memory = Memory { mark: at(5), ..Memory::default() };
        let policies = (Overlap::Allow, CatchUp::All);
        assert_eq!(seen(&mut memory, policies, 9), (vec![], 0));
        assert_eq!(seen(&mut memory, policies, 10), (vec![10], 0));
        assert_eq!(seen(&mut memory, policies, 10), (vec![], 0));
        assert_eq!(seen(&mut memory, policies, 3), (vec![], 0), "the clock went back");
        assert_eq!(seen(&mut memory, policies, 19), (vec![], 0), "and came again");
        assert_eq!(seen(&mut memory, policies, 20), (vec![20], 0));
    }

    #[test]
    fn missed_times_are_made_up_for_as_the_policy_says() {
        for (catch_up, expected) in
            [(CatchUp::All, (vec![10, 20, 30, 40], 0)), (CatchUp::Last, (vec![40], 3)), (CatchUp::None, (vec![], 4))]
        {
            let mut memory = Memory { mark: at(5), ..Memory::default() };
            assert_eq!(seen(&mut memory, (Overlap::Allow, catch_up), 45), expected, "{catch_up:?}");
            assert_eq!(memory.mark, at(40));
        }
        let mut memory = Memory { mark: at(-10_000_000), ..Memory::default() };
        assert_eq!(seen(&mut memory, (Overlap::Allow, CatchUp::Last), 45), (vec![40], 5), "after years, in few steps");
        // One that is noticed as it comes counts under every policy.
        let mut memory = Memory { mark: at(5), ..Memory::default() };
        assert_eq!(seen(&mut memory, (Overlap::Allow, CatchUp::None), 40).0, [40]);
    }

    #[test]
    fn work_under_way_is_heeded_as_the_policy_says() {
        let start = || {
            let mut memory = Memory { mark: at(5), ..Memory::default() };
            assert_eq!(seen(&mut memory, (Overlap::Queue, CatchUp::All), 10), (vec![10], 0));
            memory
        };
        let mut memory = start();
        assert_eq!(seen(&mut memory, (Overlap::Skip, CatchUp::All), 30), (vec![], 2));
        memory.runs.clear();
        assert_eq!(seen(&mut memory, (Overlap::Skip, CatchUp::All), 40), (vec![40], 0));

        let mut memory = start();
        assert_eq!(seen(&mut memory, (Overlap::Queue, CatchUp::All), 30), (vec![], 0));
        memory.runs.clear();
        assert_eq!(seen(&mut memory, (Overlap::Queue, CatchUp::All), 31), (vec![20], 0), "one at a time");
        memory.runs.clear();
        assert_eq!(seen(&mut memory, (Overlap::Queue, CatchUp::All), 31), (vec![30], 0));

        let mut memory = start();
        let steps = look(&mut memory, (Overlap::Replace, CatchUp::All), at(20), next, run_of);
        assert_eq!(steps, [Step::Fire { nominal: at(20), run: run_of(at(20)), replace: vec![run_of(at(10))] }]);
        let mut memory = start();
        assert_eq!(seen(&mut memory, (Overlap::Allow, CatchUp::All), 30), (vec![20, 30], 0));
        assert_eq!((memory.fired_count, memory.skipped_count), (3, 0));
    }

    #[test]
    fn the_end_of_one_run_does_not_hide_another_that_goes_on() {
        let both = || Memory { mark: at(5), runs: vec![run_of(at(0)), run_of(at(1))], ..Memory::default() };
        let mut memory = both();
        memory.runs.pop();
        assert_eq!(seen(&mut memory, (Overlap::Skip, CatchUp::All), 10), (vec![], 1));
        assert_eq!(seen(&mut memory, (Overlap::Queue, CatchUp::All), 20), (vec![], 0));
        let mut memory = both();
        let steps = look(&mut memory, (Overlap::Replace, CatchUp::All), at(10), next, run_of);
        let replace = vec![run_of(at(0)), run_of(at(1))];
        assert_eq!(steps, [Step::Fire { nominal: at(10), run: run_of(at(10)), replace }]);
        assert_eq!(memory.runs, [run_of(at(10))]);
    }

    #[test]
    fn a_mark_far_ahead_of_the_clock_is_told_from_one_of_a_clock_set_right() {
        let memory = Memory { mark: at(100), ..Memory::default() };
        assert_eq!(memory.silent_until(at(20)), Some(at(100)));
        assert_eq!((memory.silent_until(at(40)), memory.silent_until(at(200))), (None, None));
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut memory = Memory { mark: at(5), runs: vec![run_of(at(0))], ..Memory::default() };
        let looks = (WAITING_MAX + 500) as i64;
        let look = |_| seen(&mut memory, (Overlap::Queue, CatchUp::All), looks * 10).1;
        let left_out: u64 = (0..looks / LOOK_MAX as i64).map(look).sum();
        assert_eq!((left_out, memory.waiting.len()), (500, WAITING_MAX));
        assert_eq!(memory.mark, at(looks * 10));
    }
}
