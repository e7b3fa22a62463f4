//! The runs that have not ended: their counters, who serves them, who waits for them and who follows them.
//!
//! Counters here mirror the store's: they change by the same moves. Runs that share a queue, as the generations of one
//! run do, share its crew. It must not decide when a run ends: the store says so once, in the transaction that ended
//! it.

use super::event::{Answer, Followed, Follower, OpenRun, RunService};
use super::spec;
use crate::error::{Failure, Kind};
use crate::store::RunInfo;
use std::collections::{BTreeSet, HashMap};
use windlass_core::job::{RunId, RunNo};
use windlass_core::run::terms::Stopped;
use windlass_core::scheduler::{CrewNo, Scheduler};
use windlass_core::time::{Steady, Time};

/// A run that has not ended.
#[derive(Debug)]
pub struct Run {
    pub info: RunInfo,
    pub service: Option<RunService>,
    crew: Option<CrewNo>,
    /// When it will have taken too long.
    limit: Option<Steady>,
    waiting: Vec<Answer<RunInfo>>,
    followers: Vec<Follower>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Runs {
    by_no: HashMap<RunNo, Run>,
    by_id: HashMap<RunId, RunNo>,
    /// Those that may have to be stopped.
    limited: BTreeSet<RunNo>,
}

impl Runs {
    pub fn get(&self, no: RunNo) -> Option<&Run> {
        self.by_no.get(&no)
    }

    pub fn get_mut(&mut self, no: RunNo) -> Option<&mut Run> {
        self.by_no.get_mut(&no)
    }

    pub fn by_id(&self, id: RunId) -> Option<&Run> {
        self.by_id.get(&id).and_then(|no| self.by_no.get(no))
    }

    pub fn by_id_mut(&mut self, id: RunId) -> Option<&mut Run> {
        self.by_id.get(&id).and_then(|no| self.by_no.get_mut(no))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Run> {
        self.by_no.values()
    }

    /// Takes a run in, or refreshes what is known of it after a turn was dropped.
    pub fn learn(&mut self, info: RunInfo, serve: bool, scheduler: &mut Scheduler) {
        self.by_id.insert(info.id, info.no);
        if let Some(known) = self.by_no.get_mut(&info.no) {
            known.info = info;
            return;
        }
        // A later generation goes on with what was asked for last.
        let earlier = self.by_no.values().filter(|run| run.info.id.origin == info.id.origin);
        let earlier = earlier.max_by_key(|run| run.info.id.generation).and_then(|run| run.service.clone());
        let service = earlier.or_else(|| spec::decode(&info.spec));
        let crew = service.as_ref().filter(|_| serve).map(|service| scheduler.add_crew(spec::policy(service)));
        if info.terms.time_limit.is_some() || info.terms.tolerate.is_some() {
            self.limited.insert(info.no);
        }
        let (waiting, followers) = (Vec::new(), Vec::new());
        self.by_no.insert(info.no, Run { info, service, crew, limit: None, waiting, followers });
    }

    /// Gives each run that is seen for the first time the time that it has left. Every turn does so, also one that
    /// could not stop any: a clock that is set before the next would change what is left.
    pub fn give_time(&mut self, now: Time, steady: Steady) {
        for no in &self.limited {
            let Some(run) = self.by_no.get_mut(no) else { continue };
            if let (Some(limit), None) = (run.info.terms.time_limit, run.limit) {
                run.limit = Some(steady.after(run.info.created.after(limit).since(now)));
            }
        }
    }

    /// Runs that are to be stopped.
    pub fn beyond_terms(&self, steady: Steady) -> Vec<(RunNo, RunId, Stopped)> {
        let mut beyond = Vec::new();
        for no in &self.limited {
            let Some(run) = self.by_no.get(no) else { continue };
            let RunInfo { terms, counts, id, .. } = &run.info;
            let why = match run.limit {
                Some(limit) if limit <= steady => Some(Stopped::TimeLimit),
                _ => terms.fails(counts).then_some(Stopped::Failures),
            };
            beyond.extend(why.filter(|_| counts.stopped.is_none()).map(|why| (*no, *id, why)));
        }
        beyond
    }

    /// When the next of them has taken too long; one that was stopped, now or by the server before, wakes nobody.
    pub fn next_limit(&self) -> Option<Steady> {
        let goes_on = |run: &&Run| run.info.counts.stopped.is_none();
        self.limited.iter().filter_map(|no| self.by_no.get(no).filter(goes_on)?.limit).min()
    }

    /// Forgets runs that the store does not have: they were made in a turn that was dropped.
    pub fn keep_only(&mut self, open: &[RunInfo], scheduler: &mut Scheduler) {
        let made_up: Vec<RunNo> =
            self.by_no.keys().copied().filter(|no| !open.iter().any(|info| info.no == *no)).collect();
        for no in made_up {
            let Some(run) = self.by_no.remove(&no) else { continue };
            self.limited.remove(&no);
            self.by_id.remove(&run.info.id);
            self.leave(&run, scheduler);
        }
    }

    /// Takes over the number of slots that the caller of an opened run wants now, for all its generations.
    pub fn set_slots(&mut self, no: RunNo, slots: u32, scheduler: &mut Scheduler) {
        let Some(origin) = self.by_no.get(&no).map(|run| run.info.id.origin) else { return };
        for run in self.by_no.values_mut().filter(|run| run.info.id.origin == origin) {
            let Some(service) = &mut run.service else { continue };
            service.slots = slots;
            if let Some(crew) = run.crew {
                scheduler.change_crew(crew, spec::policy(service));
            }
        }
    }

    /// The crew of a run that is gone goes with it, or serves those that share it on the terms of the youngest.
    fn leave(&self, gone: &Run, scheduler: &mut Scheduler) {
        let Some(crew) = gone.crew else { return };
        scheduler.remove_crew(crew);
        let sharing = self.by_no.values().filter(|run| run.crew == Some(crew)).max_by_key(|run| run.info.no);
        if let Some(service) = sharing.and_then(|run| run.service.as_ref()) {
            scheduler.change_crew(crew, spec::policy(service));
        }
    }

    /// The unfinished run of that name, if its command is the one asked for; its first generation goes before others.
    pub fn named(&self, request: &OpenRun) -> Result<Option<RunNo>, Failure> {
        let named = self.iter().filter(|run| !request.name.is_empty() && run.info.name == request.name);
        let Some(run) = named.min_by_key(|run| run.info.id.generation) else { return Ok(None) };
        let same = match (&run.service, &request.service) {
            (Some(a), Some(b)) => (&a.command.argv, &a.queue) == (&b.command.argv, &b.queue),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            let text = format!("run `{}` is unfinished and has another command or queue", request.name);
            return Err(
                Failure::new(Kind::Conflict, text).hint("finish it with its own command, or choose another --name")
            );
        }
        Ok(Some(run.info.no))
    }

    /// How many unfinished jobs stand in a queue for runs with just this command.
    pub fn live_in(&self, service: &RunService) -> u64 {
        let same = |run: &&Run| {
            run.service.as_ref().is_some_and(|s| s.queue == service.queue && s.command.argv == service.command.argv)
        };
        self.iter().filter(same).map(|run| run.info.counts.live()).sum()
    }

    pub fn await_end(&mut self, id: RunId, answer: Answer<RunInfo>) -> Result<(), Answer<RunInfo>> {
        match self.by_id_mut(id) {
            Some(run) => {
                run.waiting.push(answer);
                Ok(())
            }
            None => Err(answer),
        }
    }

    /// From now on the follower hears of what ends, and a run with a command of its own is served: not before, or the
    /// output of its first jobs would have nobody to go to.
    pub fn follow(&mut self, id: RunId, follower: Follower, scheduler: &mut Scheduler) -> Option<RunInfo> {
        let run = self.by_id_mut(id)?;
        run.followers.push(follower);
        if let (Some(service), None) = (&run.service, run.crew) {
            run.crew = Some(scheduler.add_crew(spec::policy(service)));
        }
        Some(run.info.clone())
    }

    pub fn is_followed(&self, no: RunNo) -> bool {
        self.by_no.get(&no).is_some_and(|run| !run.followers.is_empty())
    }

    /// Tells the followers; one that no longer listens is dropped.
    pub fn tell(&mut self, no: RunNo, told: &Followed) {
        if let Some(run) = self.by_no.get_mut(&no) {
            run.followers.retain_mut(|follower| (follower.0)(told.clone()));
        }
    }

    /// Takes an ended run out: who waited for it, and the crew that served it goes.
    pub fn end(&mut self, info: &RunInfo, scheduler: &mut Scheduler) -> Vec<Answer<RunInfo>> {
        self.by_id.remove(&info.id);
        self.limited.remove(&info.no);
        let Some(mut run) = self.by_no.remove(&info.no) else { return Vec::new() };
        for follower in &mut run.followers {
            // The run is over: whether somebody still listens no longer matters.
            let _ = (follower.0)(Followed::Ended(info.clone()));
        }
        self.leave(&run, scheduler);
        run.waiting
    }
}
