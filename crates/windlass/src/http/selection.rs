//! The words by which jobs are chosen, turned into what a store can look up and what is left to check.
//!
//! The language is the core's; this file owns the way from it to the store's and the archive's filters.

use super::problem::Problem;
use crate::api::base64;
use crate::archiver::Group;
use crate::clock;
use crate::engine::event::Change;
use crate::store::{Filter, JobInfo, StoreError, StoreView, subject_of};
use serde_json::Value;
use std::time::Duration;
use windlass_core::job::{Arrival, Priority};
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

    /// The meant jobs from an arrival on, about so many of them, and where the next ones begin.
    pub(super) fn page(
        &self,
        view: &dyn StoreView,
        from: Arrival,
        limit: usize,
    ) -> Result<(Vec<JobInfo>, Option<Arrival>), StoreError> {
        if let Some(ids) = self.selector.only_ids() {
            // Named by their ids, they are not searched for; they are few enough to be one page.
            let found = ids.into_iter().map(|id| view.job(id)).collect::<Result<Vec<_>, _>>()?;
            return Ok((found.into_iter().flatten().filter(|job| self.wants(job)).collect(), None));
        }
        let Some(filter) = self.filter(view)? else { return Ok((Vec::new(), None)) };
        let page = view.list(&filter, from, limit)?;
        Ok((page.jobs.into_iter().filter(|job| self.wants(job)).collect(), page.next))
    }

    /// Whether a job that was looked up is meant.
    pub(super) fn wants(&self, job: &JobInfo) -> bool {
        job.matches(&self.selector, self.now)
    }

    pub(super) fn is_everything(&self) -> bool {
        self.selector.is_everything()
    }

    pub(super) fn may_want_queue(&self, queue: &str) -> bool {
        self.selector.may_match_queue(queue)
    }

    /// The archive does not keep everything that can be asked of a job: who asks for that means live and kept jobs.
    pub(super) fn may_be_archived(&self) -> bool {
        !self.selector.asks_the_living()
    }

    /// Whether a succeeded job that the archive found is meant. Only the listed beginning of its data is looked at.
    pub(super) fn wants_archived(&self, attempt: &Value) -> bool {
        let text = |key: &str| attempt.get(key).and_then(Value::as_str);
        let time = |key: &str| {
            let stamp = text(key).and_then(|text| text.parse::<jiff::Timestamp>().ok());
            stamp.map_or(self.now, |at| Time(at.as_microsecond()))
        };
        let priority = attempt.get("priority").and_then(Value::as_i64).and_then(Priority::new);
        let data = data_of(attempt);
        self.selector.matches(&Facts {
            id: text("id").unwrap_or_default(),
            queue: text("queue").unwrap_or_default(),
            run: text("run"),
            priority: priority.unwrap_or(Priority::NORMAL),
            age: self.now.since(time("admitted")),
            ended: Some(self.now.since(time("finished"))),
            data: &data,
            subject: subject(attempt),
            ..self.ended(State::Succeeded)
        })
    }

    /// Whether the end of a start is of a job that is meant; ages are those of the moment when it happened.
    pub(super) fn wants_change(&self, change: &Change) -> bool {
        let run = change.run.map(|run| run.to_string());
        self.selector.matches(&Facts {
            id: &change.id.to_string(),
            queue: change.queue.as_str(),
            run: run.as_deref(),
            priority: change.priority,
            age: change.finished.since(change.admitted),
            failures: change.failures,
            error: &change.error,
            data: &change.data,
            subject: subject_of(change.particulars.as_deref()),
            ..self.ended(change.state)
        })
    }

    /// Whether a group of attempts is meant, as far as a group can tell.
    pub(super) fn wants_group(&self, group: &Group<'_>) -> bool {
        let run = group.run.map(|run| run.to_string());
        self.selector.matches(&Facts {
            queue: group.queue,
            run: run.as_deref(),
            priority: group.priority,
            age: self.now.since(group.admitted),
            ended: Some(self.now.since(group.finished)),
            ..self.ended(group.state)
        })
    }

    pub(super) fn groups_suffice(&self) -> bool {
        !self.selector.asks_the_living() && !self.selector.asks_single_jobs()
    }

    /// The facts of a job of which little is known.
    fn ended(&self, state: State) -> Facts<'static> {
        Facts {
            id: "",
            queue: "",
            state,
            run: None,
            priority: Priority::NORMAL,
            age: Duration::ZERO,
            failures: 0,
            ended: None,
            due: None,
            reason: None,
            error: "",
            data: &[],
            subject: None,
        }
    }
}

/// The record that a listed attempt was about.
fn subject(attempt: &Value) -> Option<(&str, &str)> {
    let subject = attempt.get("subject")?;
    Some((subject.get("type")?.as_str()?, subject.get("id")?.as_str()?))
}

/// A listed attempt's data, as its bytes.
fn data_of(attempt: &Value) -> Vec<u8> {
    let text = |key: &str| attempt.get(key).and_then(Value::as_str);
    match (text("data"), text("data_base64")) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, Some(text)) => base64::decode(text).unwrap_or_default(),
        (None, None) => Vec::new(),
    }
}
