//! Taking in a lot: chunks at the right edge of their table, runs, cursors and seals, all or nothing.
//!
//! Arrivals are consecutive: a chunk's jobs have its first one and those after it. It must not split or join
//! chunks: a door built them.

use super::super::{FollowUp, Lot, NewJobs, StoreError};
use super::Turn;
use super::chunks::{self, Body, Span};
use super::part::Head;
use super::schema::failed;
use super::times::NEVER;
use crate::sabotage::{self, Sabotage};
use std::sync::Arc;
use windlass_core::job::{Lane, LaneKind, QueueName, QueueNo, RunId, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

impl Turn<'_> {
    pub(super) fn admit(&mut self, lot: &Lot, now: Time) -> Result<(), StoreError> {
        if sabotage::on(Sabotage::CursorOutsideTransaction) && !lot.cursors.is_empty() {
            lot.cursors.iter().try_for_each(|cursor| self.m.runs.read_to(self.db, cursor))?;
            self.db.execute_batch("COMMIT; BEGIN IMMEDIATE").map_err(failed)?;
        }
        if let Some((id, from, to)) = lot.taken {
            self.m.runs.take(self.db, id, from, to)?;
        }
        for open in &lot.opens {
            self.m.runs.open_on(self.db, &mut self.m.state, open.clone(), now)?;
        }
        let mut spans: Vec<Span> = Vec::new();
        let mut runs: Vec<(RunId, RunNo)> = Vec::new();
        for (at, new) in lot.jobs.iter().enumerate().filter(|(_, new)| !new.jobs.is_empty()) {
            let run = match new.run {
                Some(id) => Some(self.run_for(id, &mut runs, now)?),
                None => None,
            };
            let body = lot.bodies.get(at).map_or(Body::Row, |extent| Body::File(*extent));
            let span = self.admit_chunk(new, run, body, now)?;
            span.into_iter().for_each(|span| add_span(&mut spans, span));
        }
        self.save_spans(spans)?;
        for cursor in &lot.cursors {
            self.m.runs.read_to(self.db, cursor)?;
        }
        for origin in &lot.closed {
            self.m.runs.close(self.db, *origin, now)?;
        }
        if !lot.cursors.is_empty() || !lot.closed.is_empty() {
            self.m.runs.apply_seals();
        }
        for seal in &lot.seals {
            self.m.runs.seal(self.db, &mut self.m.state, seal, now)?;
        }
        self.end_runs(now)
    }

    /// Jobs of no run.
    pub(super) fn admit_all(&mut self, jobs: &[NewJobs], now: Time) -> Result<(), StoreError> {
        let mut spans = Vec::new();
        for new in jobs {
            spans.extend(self.admit_chunk(new, None, Body::Row, now)?);
        }
        self.save_spans(spans)
    }

    /// What settled jobs emitted; whether their run is sealed does not matter, since they are of it.
    pub(super) fn admit_follow_ups(&mut self, follow_ups: &[FollowUp], now: Time) -> Result<(), StoreError> {
        let mut spans: Vec<Span> = Vec::new();
        for copies in follow_ups.chunk_by(share) {
            let body = self.share(copies)?;
            for new in copies.iter().filter(|new| !new.jobs.is_empty()) {
                let FollowUp { queue, priority, run, jobs } = new.clone();
                let new = NewJobs { queue, priority, run: None, not_before: None, jobs };
                let span = self.admit_chunk(&new, run, body, now)?;
                span.into_iter().for_each(|span| add_span(&mut spans, span));
            }
            if let Body::Shared(no) = body {
                // Their run may have taken in fewer, which lie for themselves then.
                chunks::delete_unused(self.db, no)?;
            }
        }
        self.save_spans(spans)
    }

    /// Stores once what these have in common, if they are copies of the same jobs.
    fn share(&mut self, copies: &[FollowUp]) -> Result<Body, StoreError> {
        let Some(shared) = copies[0].jobs.shared() else { return Ok(Body::Row) };
        let no = self.m.state.next_arrival;
        let count: u64 = copies.iter().map(|copy| copy.jobs.len() as u64).sum();
        chunks::insert_shared(self.db, no, no + count, shared.as_bytes())?;
        Ok(Body::Shared(no))
    }

    fn admit_chunk(
        &mut self,
        new: &NewJobs,
        run: Option<RunNo>,
        body: Body,
        now: Time,
    ) -> Result<Option<Span>, StoreError> {
        let queue = self.number_of(&new.queue)?;
        let jobs = &self.take_keys(&new.jobs, queue, run, now)?;
        let as_written = match body {
            Body::File(extent) => extent.length as usize == jobs.as_bytes().len(),
            Body::Row | Body::Shared(_) => true,
        };
        let as_written = as_written && Arc::ptr_eq(jobs, &new.jobs);
        let body = if as_written { body } else { self.leave_body(body, new)? };
        if jobs.is_empty() {
            return Ok(None);
        }
        let lane = Lane { queue, priority: new.priority, kind: LaneKind::Fresh };
        let (unmet, doomed) = if jobs.is_plain() { (Vec::new(), None) } else { self.unmet(jobs)? };
        let waits = !unmet.is_empty() || doomed.is_some();
        let due = if waits { Some(NEVER) } else { new.not_before.filter(|time| *time > now) };
        let count = jobs.len() as u16;
        let head = Head { first: self.m.state.next_arrival, count, lane, run, admitted: now, due };
        self.m.state.next_arrival += u64::from(count);
        chunks::insert(self.db, &head, jobs, body)?;
        if let Body::File(extent) = body {
            self.m.files.add(extent, head.first, count);
        }
        if due.is_none() {
            let lane_was_empty = self.m.queues.lane(lane).is_none_or(|lane| lane.ready == lane.rows);
            self.m.windows.admitted(head, jobs, lane_was_empty);
        }
        let state = if due.is_some() { State::Scheduled } else { State::Ready };
        self.shift(lane, run, None, Some(state), u64::from(count), false)?;
        let span = Span::of(head.first, jobs);
        if !jobs.is_plain() {
            self.list_waits(&head, jobs, &unmet)?;
        }
        if let Some(because) = doomed {
            // Its jobs are found by their ids.
            span.save(self.db)?;
            self.give_up(head.first, because, now)?;
        }
        Ok(Some(span))
    }

    pub(super) fn number_of(&mut self, name: &QueueName) -> Result<QueueNo, StoreError> {
        let (queue, is_new) = self.m.queues.number(self.db, name)?;
        if is_new {
            self.m.changes.queues.push((queue, name.clone()));
        }
        Ok(queue)
    }

    /// A chunk came in otherwise than it was written, so its bytes in the body file are nobody's.
    fn leave_body(&mut self, body: Body, new: &NewJobs) -> Result<Body, StoreError> {
        if let Body::File(extent) = body {
            self.m.files.add(extent, self.m.state.next_arrival, new.jobs.len() as u16);
            self.m.files.remove(extent.file, u64::from(extent.length))?;
        }
        Ok(Body::Row)
    }

    /// One lot's jobs of one run stay together, also when the run was sealed before them.
    fn run_for(&mut self, id: RunId, runs: &mut Vec<(RunId, RunNo)>, now: Time) -> Result<RunNo, StoreError> {
        if let Some((_, no)) = runs.iter().rev().find(|(known, _)| *known == id) {
            return Ok(*no);
        }
        let no = self.m.runs.for_jobs(self.db, &mut self.m.state, id, now)?;
        runs.push((id, no));
        Ok(no)
    }

    fn save_spans(&mut self, spans: Vec<Span>) -> Result<(), StoreError> {
        for mut span in spans {
            if let Some(before) = self.m.span.filter(|before| before.leads_to(&span)) {
                span.join(&before);
            }
            span.save(self.db)?;
            self.m.span = Some(span);
        }
        Ok(())
    }
}

/// Whether these are copies of the same jobs.
fn share(one: &FollowUp, next: &FollowUp) -> bool {
    one.jobs.shared().zip(next.jobs.shared()).is_some_and(|(one, next)| Arc::ptr_eq(one, next))
}

/// One span for each origin, as far as one lot goes.
fn add_span(spans: &mut Vec<Span>, span: Span) {
    match spans.iter_mut().find(|known| known.origin == span.origin) {
        Some(known) => known.join(&span),
        None => spans.push(span),
    }
}
