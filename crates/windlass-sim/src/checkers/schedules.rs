//! Each nominal time of a schedule fires at most once, whatever dies, and when it should: compared with a model that
//! is written down here a second time, on a grid of minutes instead of cron.

use super::{Checker, Seen};
use crate::agenda::{Plan, nominal};
use crate::ledger::{Ledger, Turned};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::job::RunId;
use windlass_core::overrides::{Key, Override, Target};
use windlass_core::schedule::{AHEAD, CatchUp, Overlap};
use windlass_core::time::Time;

const MINUTE: i64 = 60_000_000;

/// What the model knows of one schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model {
    /// The last time that was dealt with; nothing until it is first looked at.
    mark: Option<Time>,
    waiting: Vec<Time>,
    /// Those that it and people began, until they have ended.
    runs: Vec<RunId>,
    /// Until when it is switched off.
    off: Option<Time>,
}

#[derive(Debug, Default)]
pub(super) struct Schedules {
    plans: Vec<Plan>,
    models: BTreeMap<String, Model>,
    fired: BTreeSet<(String, Time)>,
    holding: bool,
}

impl Model {
    const NEW: Model = Model { mark: None, waiting: Vec::new(), runs: Vec::new(), off: None };

    /// The times of the grid after the mark that have come.
    fn came(&self, plan: &Plan, now: Time) -> Vec<Time> {
        let step = plan.minutes * MINUTE;
        let first = self.mark.map_or(i64::MAX, |mark| (mark.0.div_euclid(step) + 1) * step);
        (first..=now.0).step_by(step as usize).map(Time).collect()
    }

    fn is_due(&self, plan: &Plan, now: Time, is_live: bool) -> bool {
        self.off.is_none() && (!self.came(plan, now).is_empty() || !self.waiting.is_empty() && !is_live)
    }

    /// A look at a schedule that is on: which times fire, in order. With the runs that they begin, only the first can
    /// meet one that is under way.
    fn look(&mut self, plan: &Plan, now: Time, mut is_live: bool) -> Vec<Time> {
        let came = self.came(plan, now);
        self.mark = came.last().copied().or(self.mark);
        let on_time = |time: &&Time| now.0 - time.0 <= MINUTE;
        let counts: Vec<Time> = match plan.catch_up {
            CatchUp::All => came,
            CatchUp::None => came.iter().filter(on_time).copied().collect(),
            CatchUp::Last if came.last().is_some_and(|last| on_time(&last)) => {
                came.iter().filter(on_time).copied().collect()
            }
            CatchUp::Last => came.last().copied().into_iter().collect(),
        };
        self.waiting.extend(counts);
        let mut fires = Vec::new();
        for time in std::mem::take(&mut self.waiting) {
            match plan.overlap {
                Overlap::Skip if is_live => {}
                Overlap::Queue if is_live => self.waiting.push(time),
                Overlap::Skip | Overlap::Queue | Overlap::Replace | Overlap::Allow => {
                    fires.push(time);
                    is_live = true;
                }
            }
        }
        fires
    }

    /// Whether somebody switched it on while its mark was far ahead of the clock.
    fn is_reset_by(&self, turned: &Turned, plan: &Plan) -> bool {
        let ahead = self.mark.is_some_and(|mark| mark > turned.now.after(AHEAD));
        ahead && turned.enabled.contains(&plan.name)
    }

    /// What passes while it is switched off is not made up for.
    fn pass(&mut self, now: Time) {
        self.mark = self.mark.map(|mark| mark.max(now));
        self.waiting.clear();
    }
}

/// A run that a schedule began in this turn.
type Fired = (Time, RunId);

impl Schedules {
    fn turned(&mut self, turned: &Turned, ledger: &Ledger) -> Result<(), String> {
        let mut by_name: BTreeMap<&str, Vec<Fired>> = BTreeMap::new();
        for (run, name) in &turned.fired {
            let Some((schedule, time)) = nominal(name) else { continue };
            by_name.entry(schedule).or_default().push((time, *run));
        }
        for plan in &self.plans {
            let fired = by_name.remove(plan.name.as_str()).unwrap_or_default();
            let on_grid = |(time, _): &&Fired| time.0 % (plan.minutes * MINUTE) == 0;
            let (own, by_hand): (Vec<Fired>, Vec<Fired>) = fired.iter().partition(on_grid);
            for (time, _) in &own {
                if !self.fired.insert((plan.name.clone(), *time)) {
                    return Err(format!("{} fired twice for {time:?}", plan.name));
                }
            }
            let model = self.models.entry(plan.name.clone()).or_insert(Model::NEW);
            if model.is_reset_by(turned, plan) {
                // Somebody wants them, though a clock that was far ahead had dealt with them.
                self.fired.retain(|(name, time)| *name != plan.name || *time <= turned.now);
            }
            *model = next(model, plan, turned, ledger, self.holding, (&own, &by_hand))?;
        }
        match by_name.keys().next() {
            Some(name) => Err(format!("{name} fired and is no schedule")),
            None => Ok(()),
        }
    }
}

/// The model after a turn; an error where the engine did something else.
fn next(
    model: &Model,
    plan: &Plan,
    turned: &Turned,
    ledger: &Ledger,
    holding: bool,
    (own, by_hand): (&[Fired], &[Fired]),
) -> Result<Model, String> {
    let target = Target::Schedule(plan.name.clone());
    let is_switch = |made: &&Override| made.target == target && made.key == Key::Enabled && made.value == 0;
    let switched_off = ledger.overrides.iter().find(is_switch);
    let off = switched_off.map(|made| made.until.unwrap_or(Time(i64::MAX)));
    let remembered = turned.remembered.get(&plan.name).copied().unwrap_or(0);
    let is_reset = model.is_reset_by(turned, plan);
    let (looked, now) = (remembered > by_hand.len() + usize::from(is_reset), turned.now);
    let mut after = model.clone();
    if let Some(until) = model.off {
        after.pass(now.min(until));
    }
    if is_reset {
        after.mark = Some(now);
    }
    after.off = off;
    after.runs.retain(|run| ledger.runs.get(run).is_none_or(|run| !run.ended));
    after.runs.extend(by_hand.iter().map(|(_, run)| *run));
    let expected_of = |times: Vec<Time>| format!("{} fired for {own:?}, expected {times:?} at {now:?}", plan.name);
    if let Some(until) = off {
        // A new engine has yet to notice that it is over.
        after.pass(now.min(until));
        after.mark = after.mark.or((remembered > 0).then_some(now));
        return if own.is_empty() { Ok(after) } else { Err(expected_of(Vec::new())) };
    }
    let is_live = |run: &&RunId| ledger.runs.get(*run).is_some_and(|run| !run.ended);
    let live: Vec<RunId> = after.runs.iter().filter(is_live).copied().collect();
    let live_before = !live.is_empty();
    if !looked {
        // It begins with what is first remembered of it.
        after.mark = after.mark.or((remembered > 0).then_some(now));
        let due = after.mark.is_some() && after.is_due(plan, now, live_before);
        let excused = holding || turned.recovered || !due;
        return if excused { Ok(after) } else { Err(format!("{} was due at {now:?} and nobody looked", plan.name)) };
    }
    if after.mark.is_none() {
        // Its first look.
        after.mark = Some(now);
        after.runs.extend(own.iter().map(|(_, run)| *run));
        return Ok(after);
    }
    let ends_now = live.iter().all(|run| turned.ended.iter().any(|(ended, _)| ended == run));
    let mut expected = Vec::new();
    for is_live in [Some(live_before), (live_before && ends_now).then_some(false)].into_iter().flatten() {
        let mut candidate = after.clone();
        expected = candidate.look(plan, now, is_live);
        if expected.iter().eq(own.iter().map(|(time, _)| time)) {
            candidate.runs.extend(own.iter().map(|(_, run)| *run));
            return Ok(candidate);
        }
    }
    Err(expected_of(expected))
}

impl Checker for Schedules {
    fn name(&self) -> &'static str {
        "schedules fire as they should"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Agenda(plans) => self.plans = plans.to_vec(),
            Seen::Holding(holding) => self.holding = *holding,
            Seen::Turned(turned) if !self.plans.is_empty() => self.turned(turned, ledger)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::job::Origin;

    fn plan(overlap: Overlap, catch_up: CatchUp) -> Plan {
        Plan { name: "a-10".into(), minutes: 10, overlap, catch_up }
    }

    fn at(minutes: i64) -> Turned {
        let remembered = BTreeMap::from([("a-10".to_owned(), 1)]);
        Turned { now: Time(minutes * MINUTE), remembered, ..Turned::default() }
    }

    /// The same turn with runs of these nominal minutes.
    fn fires(turned: Turned, nominal: &[(&str, u64)]) -> Turned {
        let run = |number: u64| RunId::first(Origin::from_random(number));
        let fired = nominal.iter().map(|(time, number)| (run(*number), format!("a-10@1970-01-01T{time}:00Z")));
        Turned { fired: fired.collect(), ..turned }
    }

    fn said(plan: Plan, turns: &[Turned]) -> Result<(), String> {
        let (mut checker, ledger) = (Schedules::default(), Ledger::default());
        checker.see(&Seen::Agenda(&[plan]), &ledger)?;
        turns.iter().try_for_each(|turned| checker.see(&Seen::Turned(turned), &ledger))
    }

    #[test]
    fn a_time_that_fires_twice_early_or_not_at_all_is_found_out() {
        let right = [at(5), fires(at(10), &[("00:10", 1)])];
        let allow = || plan(Overlap::Allow, CatchUp::All);
        assert_eq!(said(allow(), &right), Ok(()));
        let again = [at(5), fires(at(10), &[("00:10", 1)]), fires(at(11), &[("00:10", 2)])];
        assert!(said(allow(), &again).unwrap_err().contains("twice"));
        let early = [at(5), fires(at(9), &[("00:10", 1)])];
        assert!(said(allow(), &early).is_err());
        let missed = [at(5), at(10)];
        assert!(said(allow(), &missed).unwrap_err().contains("expected"));
        let unseen = Turned { remembered: BTreeMap::new(), ..at(10) };
        assert!(said(allow(), &[at(5), unseen]).unwrap_err().contains("nobody looked"));
    }

    #[test]
    fn what_was_missed_is_made_up_for_as_the_schedule_says() {
        for (catch_up, right) in [
            (CatchUp::All, vec![("00:10", 1), ("00:20", 2), ("00:30", 3)]),
            (CatchUp::Last, vec![("00:30", 3)]),
            (CatchUp::None, vec![]),
        ] {
            for (overlap, fired, fine) in
                [(Overlap::Allow, right.clone(), true), (Overlap::Allow, vec![("00:20", 2)], false)]
            {
                let told = said(plan(overlap, catch_up), &[at(5), fires(at(35), &fired)]);
                assert_eq!(told.is_ok(), fine, "{catch_up:?} {fired:?}: {told:?}");
            }
        }
    }
}
