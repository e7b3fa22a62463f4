//! Runs keep their terms: none is stopped before its time or bears one failure too many, none takes more jobs than it
//! said, each ends as its failures and what it bears of them say, and the end of each is announced once, in the turn
//! that ends it.

use super::{Checker, Seen};
use crate::ledger::{Ledger, Turned, end_job_of};
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::job::RunId;
use windlass_core::life_cycle::State;
use windlass_core::run::terms::{RunTerms, Stopped, Tolerance};

/// A stop may come so much later than it is due, in microseconds: an engine that is woken turns a little later.
const LATE: u64 = 1_000_000;

#[derive(Debug)]
struct Bound {
    terms: RunTerms,
    /// The steady clock at its opening, and by how much the wall's was ahead of it.
    opened: u64,
    ahead: i64,
    /// No clock was set between its opening and the start of the engine that counts its time.
    sure_of_time: bool,
    /// A person took jobs of it away or gave them another try: then its numbers are not those of its jobs.
    touched: bool,
}

#[derive(Debug, Default)]
pub(super) struct Terms {
    runs: BTreeMap<RunId, Bound>,
    holding: bool,
    /// A new engine has not counted yet.
    fresh: bool,
}

fn ends(turned: &Turned, run: RunId) -> bool {
    turned.ended.iter().any(|(ended, _)| *ended == run)
}

fn ahead(turned: &Turned) -> i64 {
    turned.now.0 - turned.at as i64
}

impl Bound {
    fn is_over_time(&self, at: u64, slack: u64) -> bool {
        let limit = self.terms.time_limit.map(|limit| limit.as_micros() as u64);
        limit.is_some_and(|limit| at >= self.opened + limit + slack)
    }

    /// What is wrong with how a run stands after a turn in which some of its jobs changed.
    fn numbers(&self, id: RunId, ledger: &Ledger, must_stop: bool) -> Result<(), String> {
        let jobs = || ledger.jobs.values().filter(|job| job.run == Some(id));
        if let Some(most) = self.terms.job_limit.filter(|most| jobs().count() as u64 > *most) {
            return Err(format!("{id} has {} jobs, it takes {most}", jobs().count()));
        }
        // What is not kept any more is not held against it any more.
        let failed = jobs().filter(|job| job.state == State::Failed && !job.forgotten).count() as u64;
        if must_stop && self.is_lost(failed) {
            return Err(format!("{id} goes on with {failed} failures"));
        }
        Ok(())
    }

    fn is_lost(&self, failed: u64) -> bool {
        match (self.terms.tolerate, self.terms.job_limit) {
            (None, _) => false,
            (Some(Tolerance::Jobs(most)), _) => failed > most,
            // A share may hold as long as jobs may come that do not fail: up to the limit, or for ever.
            (Some(Tolerance::Share(share)), Some(jobs)) => failed * 10_000 > share * jobs,
            (Some(Tolerance::Share(share)), None) => share == 0 && failed > 0,
        }
    }

    /// Whether a run that ends like this came to what was wanted.
    fn is_met(&self, id: RunId, ledger: &Ledger) -> bool {
        let of = |states: &[State]| {
            let jobs = ledger.jobs.values().filter(|job| job.run == Some(id) && states.contains(&job.state));
            jobs.count() as u64
        };
        let failed = of(&[State::Failed]);
        let borne = match self.terms.tolerate.unwrap_or(Tolerance::Jobs(0)) {
            Tolerance::Jobs(most) => failed <= most,
            Tolerance::Share(share) => failed * 10_000 <= share * of(&State::ALL),
        };
        let stopped = ledger.runs.get(&id).is_some_and(|run| run.stopped);
        borne && !stopped && of(&[State::Cancelled]) == 0
    }
}

impl Terms {
    fn turned(&mut self, turned: &Turned, ledger: &Ledger) -> Result<(), String> {
        for (id, _, terms) in turned.opened.iter().filter(|(_, _, terms)| !terms.is_empty()) {
            let bound = Bound {
                terms: terms.clone(),
                opened: turned.at,
                ahead: ahead(turned),
                sure_of_time: true,
                touched: false,
            };
            self.runs.insert(*id, bound);
        }
        // A run that was forgotten has no terms any more, whoever begins another in its name.
        self.runs.retain(|id, _| ledger.runs.contains_key(id) && ledger.terms.contains_key(&RunId::first(id.origin)));
        if std::mem::replace(&mut self.fresh, turned.recovered) || turned.recovered {
            self.runs.values_mut().for_each(|run| run.sure_of_time &= run.ahead == ahead(turned));
        }
        let changed = self.touch(turned);
        self.stops(turned, ledger)?;
        self.ends(turned, ledger)?;
        for (id, bound) in &self.runs {
            let Some(run) = ledger.runs.get(id).filter(|run| !run.ended) else { continue };
            let goes_on = !run.stopped && !ends(turned, *id) && !self.holding && !turned.recovered;
            if goes_on && bound.sure_of_time && bound.is_over_time(turned.at, LATE) {
                return Err(format!("{id} goes on beyond its time"));
            }
            if changed.contains(id) && !bound.touched {
                bound.numbers(*id, ledger, goes_on)?;
            }
        }
        Ok(())
    }

    /// Which of them this turn changed; notes those whose numbers a person changed.
    fn touch(&mut self, turned: &Turned) -> BTreeSet<RunId> {
        let mut changed = BTreeSet::new();
        for (id, before, after) in &turned.moved {
            let Some((run, bound)) = after.run.and_then(|run| Some((run, self.runs.get_mut(&run)?))) else { continue };
            bound.touched |= after.deleted || after.forgotten || turned.revived.contains(id);
            bound.touched |= before.as_ref().is_some_and(|before| before.state == State::Failed);
            changed.insert(run);
        }
        changed
    }

    fn stops(&self, turned: &Turned, ledger: &Ledger) -> Result<(), String> {
        for (id, why) in &turned.stopped {
            let Some(bound) = self.runs.get(id) else {
                if id.generation == 1 {
                    return Err(format!("{id} was stopped and has no terms"));
                }
                continue;
            };
            let failed = ledger.jobs.values().filter(|job| job.run == Some(*id) && job.state == State::Failed).count();
            match why {
                Stopped::TimeLimit if bound.terms.time_limit.is_none() => {
                    return Err(format!("{id} may take any time and was stopped for it"));
                }
                Stopped::TimeLimit if bound.sure_of_time && !bound.is_over_time(turned.at, 0) => {
                    return Err(format!("{id} was stopped before its time"));
                }
                Stopped::Failures if !bound.touched && !bound.is_lost(failed as u64) => {
                    return Err(format!("{id} was stopped with {failed} failures"));
                }
                Stopped::TimeLimit | Stopped::Failures => {}
            }
        }
        Ok(())
    }

    fn ends(&self, turned: &Turned, ledger: &Ledger) -> Result<(), String> {
        for (id, met) in &turned.ended {
            let bound = self.runs.get(id).filter(|bound| !bound.touched);
            if bound.is_some_and(|bound| bound.is_met(*id, ledger) != *met) {
                return Err(format!("{id} ended, and whether it came to what was wanted ({met}) is wrong"));
            }
        }
        for (id, bound) in self.runs.iter().filter(|(_, bound)| bound.terms.end_job.is_some()) {
            let came = turned.moved.iter().filter(|(of, before, _)| *of == end_job_of(*id) && before.is_none()).count();
            if came != usize::from(ends(turned, *id)) {
                let over = ledger.runs.get(id).is_some_and(|run| run.ended);
                return Err(format!("the end of {id} (over before: {over}) was announced {came} times"));
            }
            let data = bound.terms.end_job.as_ref().map(|job| &job.data).filter(|data| !data.is_empty());
            let said = ledger.jobs.get(&end_job_of(*id)).map(|job| job.data);
            if let (Some(data), Some(said)) = (data, said)
                && crate::random::hash(data) != said
            {
                return Err(format!("the end of {id} was announced in other words"));
            }
        }
        Ok(())
    }
}

impl Checker for Terms {
    fn name(&self) -> &'static str {
        "runs keep their terms"
    }

    fn see(&mut self, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        match seen {
            Seen::Holding(holding) => self.holding = *holding,
            // What was opened and went with the power is opened no more.
            Seen::Died { .. } => self.runs.retain(|id, _| ledger.runs.contains_key(id)),
            Seen::Turned(turned) => self.turned(turned, ledger)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;
    use crate::ledger::{Known, RunModel};
    use std::time::Duration;
    use windlass_core::job::{JobId, Origin};

    const SECOND: u64 = 1_000_000;

    fn said(terms: RunTerms, failed: u64, at: u64, stopped: Option<Stopped>) -> Result<(), String> {
        let (mut checker, mut ledger) = (Terms::default(), Ledger::default());
        let run = RunId::first(Origin::from_random(7));
        ledger.runs.insert(run, RunModel { stopped: stopped.is_some(), ..RunModel::default() });
        ledger.terms.insert(run, terms.clone());
        let opened = Turned { opened: vec![(run, String::new(), terms)], ..Turned::default() };
        checker.see(&Seen::Turned(&opened), &ledger)?;
        let moved: Vec<_> = (0..failed)
            .map(|offset| {
                let id = JobId { origin: Origin::from_random(1), offset };
                (id, None, Known { run: Some(run), ..job(State::Failed) })
            })
            .collect();
        ledger.jobs.extend(moved.iter().map(|(id, _, job)| (*id, job.clone())));
        let stopped = stopped.map(|why| (run, why)).into_iter().collect();
        checker.see(&Seen::Turned(&Turned { moved, stopped, at, ..Turned::default() }), &ledger)
    }

    #[test]
    fn a_stop_that_is_early_or_late_and_a_job_too_many_are_found_out() {
        let time = || RunTerms { time_limit: Some(Duration::from_secs(10)), ..RunTerms::default() };
        let bears = || RunTerms { tolerate: Some(Tolerance::Jobs(1)), ..RunTerms::default() };
        let tenth = |job_limit| RunTerms { tolerate: Some(Tolerance::Share(1000)), job_limit, ..RunTerms::default() };
        let few = || RunTerms { job_limit: Some(2), ..RunTerms::default() };
        for (terms, failed, at, stopped, right) in [
            (time(), 0, 9 * SECOND, None, true),
            (time(), 0, 9 * SECOND, Some(Stopped::TimeLimit), false),
            (time(), 0, 10 * SECOND, Some(Stopped::TimeLimit), true),
            (time(), 0, 12 * SECOND, None, false),
            (bears(), 1, 0, None, true),
            (bears(), 1, 0, Some(Stopped::Failures), false),
            (bears(), 2, 0, Some(Stopped::Failures), true),
            (bears(), 2, 0, None, false),
            (tenth(None), 9, 0, None, true),
            (tenth(None), 9, 0, Some(Stopped::Failures), false),
            (tenth(Some(20)), 2, 0, None, true),
            (tenth(Some(20)), 2, 0, Some(Stopped::Failures), false),
            (tenth(Some(20)), 3, 0, None, false),
            (tenth(Some(20)), 3, 0, Some(Stopped::Failures), true),
            (few(), 2, 0, None, true),
            (few(), 3, 0, None, false),
        ] {
            let told = said(terms.clone(), failed, at, stopped);
            assert_eq!(told.is_ok(), right, "{terms:?} {failed} {at} {stopped:?}: {told:?}");
        }
    }

    #[test]
    fn an_end_that_is_taken_for_another_is_found_out() {
        let share = |share| RunTerms { tolerate: Some(Tolerance::Share(share)), ..RunTerms::default() };
        for (terms, failed, succeeded, met, right) in [
            (share(2500), 1, 3, true, true),
            (share(2500), 1, 3, false, false),
            (share(2500), 1, 2, true, false),
            (share(2500), 1, 2, false, true),
        ] {
            let (mut checker, mut ledger) = (Terms::default(), Ledger::default());
            let run = RunId::first(Origin::from_random(7));
            ledger.runs.insert(run, RunModel::default());
            ledger.terms.insert(run, terms.clone());
            let opened = Turned { opened: vec![(run, String::new(), terms)], ..Turned::default() };
            checker.see(&Seen::Turned(&opened), &ledger).unwrap();
            for offset in 0..failed + succeeded {
                let state = if offset < failed { State::Failed } else { State::Succeeded };
                let id = JobId { origin: Origin::from_random(1), offset };
                ledger.jobs.insert(id, Known { run: Some(run), ..job(state) });
            }
            let turned = Turned { ended: vec![(run, met)], ..Turned::default() };
            let told = checker.see(&Seen::Turned(&turned), &ledger);
            assert_eq!(told.is_ok(), right, "{failed} of {}: {met}", failed + succeeded);
        }
    }
}
