//! The committed state, as everyone but the engine sees it.

use super::tables::{Job, NEVER, Tables};
use windlass::store::{Cursor, Filter, JobInfo, Page, QueueInfo, RunInfo, StoreError, StoreView};
use windlass_core::job::{Arrival, JobId, RunId};
use windlass_core::life_cycle::State;
use windlass_core::overrides::Override;

impl StoreView for Tables {
    fn job(&self, id: JobId) -> Result<Option<JobInfo>, StoreError> {
        let job = self.ids.get(&id).and_then(|arrival| self.maps.jobs.get(arrival));
        job.map(|job| self.info(job)).transpose()
    }

    fn list(&self, filter: &Filter, from: Arrival, limit: usize) -> Result<Page, StoreError> {
        let mut page = Page::default();
        for (arrival, job) in self.maps.jobs.range(from..) {
            let info = self.info(job)?;
            let wanted = (filter.queues.is_empty() || filter.queues.iter().any(|name| name == info.queue.as_str()))
                && (filter.states.is_empty() || filter.states.contains(&info.state))
                && (filter.run.is_none() || filter.run == info.run);
            if wanted && page.jobs.len() == limit {
                page.next = Some(*arrival);
                break;
            }
            page.jobs.extend(wanted.then_some(info));
        }
        Ok(page)
    }

    fn queues(&self) -> Result<Vec<QueueInfo>, StoreError> {
        let queues = self.maps.queues.iter();
        Ok(queues.map(|(no, queue)| QueueInfo { no: *no, name: queue.name.clone(), stats: queue.stats }).collect())
    }

    fn run(&self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        Ok(self.run_ids.get(&id).and_then(|no| self.maps.runs.get(no)).cloned())
    }

    /// The youngest first.
    fn runs(&self, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        Ok(self.maps.runs.values().rev().take(limit).cloned().collect())
    }

    fn cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        Ok(self.maps.cursors.values().copied().collect())
    }

    fn overrides(&self) -> Result<Vec<Override>, StoreError> {
        Ok(self.maps.overrides.values().cloned().collect())
    }
}

impl Tables {
    pub(super) fn info(&self, job: &Job) -> Result<JobInfo, StoreError> {
        let missing = || StoreError::Corrupt(format!("{} is in a queue that is not there", job.id()));
        let queue = self.maps.queues.get(&job.queue).ok_or_else(missing)?.name.clone();
        let mut record = job.record;
        // Its start is stored before it happens, so a running job has it.
        record.starts += u32::from(job.state == State::Running);
        let waits = matches!(job.state, State::Scheduled | State::Retrying) && job.due != NEVER;
        Ok(JobInfo {
            id: job.id(),
            queue,
            priority: job.priority,
            kind: job.lane().kind,
            state: job.state,
            run: job.run.and_then(|no| self.maps.runs.get(&no)).map(|run| run.id),
            record,
            admitted: job.admitted,
            not_before: waits.then_some(job.due),
            ended: job.ended,
            reason: job.reason,
            errors: job.errors.clone(),
            particulars: job.laid.jobs.particulars_of(usize::from(job.index)),
            data: job.laid.jobs.data(usize::from(job.index)).to_vec(),
        })
    }
}
