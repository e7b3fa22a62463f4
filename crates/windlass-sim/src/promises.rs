//! What jobs and runs are promised besides their data: jobs to wait for, times by which to have ended, terms of runs;
//! and the destination that asks for patience.
//!
//! It makes them up and tells the checkers. Only worlds with schedules have them.

use crate::checkers::Seen;
use crate::random::{self, Random};
use crate::world::{Outcome, World};
use std::time::Duration;
use windlass_core::job::{JobId, Priority, QueueName};
use windlass_core::outcome::{self, from_status};
use windlass_core::particulars::Particulars;
use windlass_core::run::terms::{EndJob, RunTerms, Tolerance};
use windlass_core::time::Time;

/// The queue whose jobs go to a destination that is busy now and then.
const BUSY: &str = "mail";

impl World {
    /// Now and then new jobs wait for others, or must have ended by a time. What waits for others has no time of its
    /// own: no door takes both.
    pub(crate) fn promise_more(
        &mut self,
        queue: &QueueName,
        mut promised: Particulars,
        not_before: Option<Time>,
    ) -> (Particulars, Option<Time>) {
        // What goes to listeners is gone before anything could become of it.
        if !self.flows || crate::flow::is_topic(self.seed, queue.as_str()) {
            return (promised, not_before);
        }
        if self.random.chance(120) {
            let later = Duration::from_millis(self.random.between(1, 60_000));
            promised.finish_by = Some(not_before.unwrap_or(self.now()).after(later));
        }
        if self.random.chance(200) && !self.people.known.is_empty() {
            let some: Vec<JobId> =
                (0..self.random.between(1, 3)).map(|_| *self.random.pick(&self.people.known)).collect();
            promised.after = some.into_iter().filter(|id| self.ledger.jobs.contains_key(id)).collect();
            promised.after.sort_unstable();
            promised.after.dedup();
        }
        let chained = !promised.after.is_empty();
        self.totals.chained += u64::from(chained);
        (promised, not_before.filter(|_| !chained))
    }

    pub(crate) fn show_promises(&mut self, id: JobId, promised: &Particulars) -> Outcome<()> {
        if let Some(by) = promised.finish_by {
            self.show(&Seen::MustEnd { id, by })?;
        }
        if !promised.after.is_empty() {
            self.show(&Seen::Chained { id, after: &promised.after })?;
        }
        Ok(())
    }

    /// What is agreed on for a new run.
    pub(crate) fn some_terms(&mut self) -> Outcome<RunTerms> {
        let mut terms = RunTerms::default();
        if !self.flows {
            return Ok(terms);
        }
        if self.random.chance(400) {
            terms.time_limit = Some(Duration::from_millis(self.random.between(1, 20_000)));
        }
        if self.random.chance(400) {
            terms.job_limit = Some(self.random.between(1, 20));
        }
        if self.random.chance(400) {
            let share = self.random.chance(500).then(|| *self.random.pick(&[0, 50, 1000, 3333, 10_000]));
            terms.tolerate = Some(share.map_or_else(|| Tolerance::Jobs(self.random.below(3)), Tolerance::Share));
        }
        if self.random.chance(500) {
            let queue = QueueName::new(b"bulk").map_err(|bad| bad.to_string())?;
            let data = if self.random.chance(500) { Vec::new() } else { b"it is over".to_vec() };
            terms.end_job = Some(EndJob { queue, priority: Priority::NORMAL, data });
        }
        Ok(terms)
    }

    /// What the busy destination answers to this start, if it is the one that it goes to and has no time for it.
    pub(crate) fn busy(&self, queue: &str, id: JobId, start: u32) -> Option<outcome::Outcome> {
        if !self.flows || queue != BUSY {
            return None;
        }
        let mut random = Random::new(random::hash(format!("{} {id} {start} calls", self.seed).as_bytes()));
        let status = *random.pick(&[200, 200, 200, 200, 429, 503]);
        let after = Duration::from_secs(random.between(1, 40));
        (status != 200).then(|| from_status(status, Some(after)))
    }

    /// Whether a process dies of this job, with whatever others it was given.
    pub(crate) fn is_fatal(&self, id: JobId, start: u32) -> bool {
        self.flows && random::hash(format!("{} {id} {start} dies", self.seed).as_bytes()).is_multiple_of(15)
    }
}
