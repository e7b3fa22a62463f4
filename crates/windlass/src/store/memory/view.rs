//! The committed state of the model store, as everyone but the engine sees it: an open turn is not in it.

use super::{Job, Memory};
use crate::store::{Cursor, Filter, JobInfo, Page, QueueInfo, RunInfo, StoreError, StoreView};
use windlass_core::job::{Arrival, JobId, QueueName, RunId};
use windlass_core::life_cycle::State;
use windlass_core::overrides::Override;

impl StoreView for Memory {
    fn job(&self, id: JobId) -> Result<Option<JobInfo>, StoreError> {
        let arrival = self.ids.committed_row(&id);
        arrival.and_then(|arrival| self.jobs.committed_row(arrival)).map(|job| self.info(job)).transpose()
    }

    fn list(&self, filter: &Filter, from: Arrival, limit: usize) -> Result<Page, StoreError> {
        let mut page = Page::default();
        for (arrival, job) in self.jobs.committed().range(from..) {
            let info = self.info(job)?;
            let wanted = (filter.queues.is_empty() || filter.queues.iter().any(|name| name == info.queue.as_str()))
                && (filter.states.is_empty() || filter.states.contains(&info.state))
                && (filter.run.is_none() || filter.run == info.run);
            if wanted && page.jobs.len() == limit {
                page.next = Some(**arrival);
                break;
            }
            if wanted {
                page.jobs.push(info);
            }
        }
        Ok(page)
    }

    fn queues(&self) -> Result<Vec<QueueInfo>, StoreError> {
        let queues = self.queues.committed().into_iter();
        Ok(queues.map(|(no, (name, stats))| QueueInfo { no: *no, name: name.clone(), stats: *stats }).collect())
    }

    fn run(&self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        Ok(self.run_ids.committed_row(&id).and_then(|no| self.runs.committed_row(no)).cloned())
    }

    fn runs(&self, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        // The youngest first: those are what people ask for.
        Ok(self.runs.committed().into_values().rev().take(limit).cloned().collect())
    }

    fn cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        Ok(self.cursors.committed().into_values().copied().collect())
    }

    fn overrides(&self) -> Result<Vec<Override>, StoreError> {
        Ok(self.overrides.committed().into_values().cloned().collect())
    }
}

impl Memory {
    fn info(&self, job: &Job) -> Result<JobInfo, StoreError> {
        let Some((queue, _)) = self.queues.committed_row(&job.queue) else {
            return Err(StoreError::Corrupt(format!("{} is in a queue that is not there", job.id)));
        };
        Ok(job.info(queue, job.run.and_then(|no| self.runs.committed_row(&no)).map(|run| run.id)))
    }
}

impl Job {
    pub(super) fn info(&self, queue: &QueueName, run: Option<RunId>) -> JobInfo {
        let mut record = self.record;
        // Its start is stored before it happens, so a running job has it.
        record.starts += u32::from(self.state == State::Running);
        JobInfo {
            id: self.id,
            queue: queue.clone(),
            priority: self.priority,
            kind: self.lane().kind,
            state: self.state,
            run,
            record,
            admitted: self.admitted,
            not_before: self.due_key(Arrival(0)).map(|(due, _)| due),
            ended: self.ended,
            reason: self.reason,
            errors: self.errors.clone(),
            particulars: self.chunk.particulars_of(usize::from(self.index)),
            data: self.chunk.data(usize::from(self.index)).to_vec(),
        }
    }
}
