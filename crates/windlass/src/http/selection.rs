//! The words by which jobs are chosen, turned into what a store can look up and what is left to check.
//!
//! The language is the core's; this file owns the way from it to the store's and the archive's filters.

use super::problem::Problem;
use crate::clock;
use crate::store::{Filter, JobInfo, StoreError, StoreView};
use serde_json::Value;
use windlass_core::job::Priority;
use windlass_core::life_cycle::State;
use windlass_core::selector::{Facts, Selector};
use windlass_core::time::Time;

/// A selector, and the moment at which ages are meant.
#[derive(Debug)]
pub(super) struct Choice {
    selector: Selector,
    now: Time,
}

/// A word that is not known is refused, so that a slip never widens a choice.
pub(super) fn parse(text: &str) -> Result<Choice, Problem> {
    Ok(Choice { selector: Selector::parse(text).map_err(Problem::refused)?, now: clock::now() })
}

impl Choice {
    /// What can be looked up of it; `None` where nothing can match.
    pub(super) fn filter(&self, view: &dyn StoreView) -> Result<Option<Filter>, StoreError> {
        let mut filter = Filter { states: self.selector.states(), ..Filter::default() };
        if filter.states.is_empty() {
            return Ok(None);
        }
        if filter.states.len() == State::ALL.len() {
            filter.states.clear();
        }
        if self.selector.names_queues() {
            let names = view.queues()?.into_iter().map(|queue| queue.name.to_string());
            filter.queues = names.filter(|name| self.selector.may_match_queue(name)).collect();
            if filter.queues.is_empty() {
                return Ok(None);
            }
        }
        filter.run = self.selector.only_run().and_then(|run| run.parse().ok());
        Ok(Some(filter))
    }

    /// Whether a job that was looked up is meant.
    pub(super) fn wants(&self, job: &JobInfo) -> bool {
        let run = job.run.map(|run| run.to_string());
        self.selector.matches(&Facts {
            id: &job.id.to_string(),
            queue: job.queue.as_str(),
            state: job.state,
            run: run.as_deref(),
            priority: job.priority,
            age: self.now.since(job.admitted),
            failures: job.record.failures,
        })
    }

    /// The archive keeps neither priorities nor counts of failures: who asks for them means live and kept jobs.
    pub(super) fn may_be_archived(&self) -> bool {
        !self.selector.asks_numbers()
    }

    /// Whether a succeeded job that the archive found is meant.
    pub(super) fn wants_archived(&self, attempt: &Value) -> bool {
        let text = |key: &str| attempt.get(key).and_then(Value::as_str);
        let admitted = text("admitted").and_then(|text| text.parse::<jiff::Timestamp>().ok());
        self.selector.matches(&Facts {
            id: text("id").unwrap_or_default(),
            queue: text("queue").unwrap_or_default(),
            state: State::Succeeded,
            run: text("run"),
            priority: Priority::NORMAL,
            age: self.now.since(admitted.map_or(self.now, |at| Time(at.as_microsecond()))),
            failures: 0,
        })
    }
}
