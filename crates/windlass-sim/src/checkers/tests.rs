//! Each checker says so when it is shown what must not be, and is silent before that.

use super::*;
use crate::ledger::{Booking, Known};
use std::collections::BTreeMap;
use std::sync::Arc;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::{Held, Place, Settlement};
use windlass_core::job::{Arrival, Lane, LaneKind, Origin, Priority, QueueNo, Record};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::overrides::{Key, Target};
use windlass_core::policy::{Command, Policy, Service};

fn id(offset: u64) -> JobId {
    JobId { origin: Origin::from_random(1), offset }
}

pub(super) fn job(state: State) -> Known {
    Known {
        state,
        queue: "mail".into(),
        priority: Priority::NORMAL,
        kind: LaneKind::Fresh,
        run: None,
        record: Record::default(),
        reason: None,
        data: 7,
        ended: None,
        forgotten: false,
        deleted: false,
    }
}

fn booking(offset: u64) -> Booking {
    let left = BTreeSet::from([id(offset)]);
    Booking { queue: "mail".into(), kind: LaneKind::Fresh, priority: Priority::NORMAL, left }
}

fn rules(overrides: &[Override]) -> Rules {
    let mut policy = Policy::new("mail", Service::Command(Command::default()));
    policy.slots = 1;
    Rules::new(&[policy], 4, &BTreeMap::new(), overrides)
}

/// What the checker of this name says of the last of these; all before it must be fine.
fn said(name: &str, seen: &[Seen<'_>], ledger: &Ledger) -> String {
    let mut checkers = all();
    let checker = checkers.iter_mut().find(|checker| checker.name() == name).unwrap_or_else(|| panic!("no {name}"));
    let (last, before) = seen.split_last().unwrap_or_else(|| panic!("nothing was shown"));
    for fine in before {
        assert_eq!(checker.see(fine, ledger), Ok(()), "{name}");
    }
    checker.see(last, ledger).expect_err(name)
}

fn begun(offset: u64, start: u32) -> Seen<'static> {
    Seen::Begun { id: id(offset), start, epoch: 1, data: 7, attempts: 1 }
}

#[test]
fn a_job_that_is_held_or_started_twice() {
    let ledger = Ledger::default();
    assert!(said("one live token", &[begun(1, 1), begun(1, 2)], &ledger).contains("held twice"));
    assert!(said("one live token", &[begun(1, 1), begun(1, 1)], &ledger).contains("was begun after"));
    assert!(said("bounded duplicates", &[begun(1, 1), begun(1, 2)], &ledger).contains("begun 2 times"));
}

#[test]
fn a_change_that_the_table_does_not_have_and_a_conviction_of_the_healthy() {
    let ledger = Ledger::default();
    let fine = Turned { moved: vec![(id(1), None, job(State::Ready))], ..Turned::default() };
    let moved = vec![(id(1), Some(job(State::Succeeded)), job(State::Ready))];
    let illegal = Turned { moved, ..Turned::default() };
    said("legal transitions", &[Seen::Turned(&fine), Seen::Turned(&illegal)], &ledger);
    let convicted = Known { reason: Some(Reason::Poison), ..job(State::Failed) };
    let poison = Turned { moved: vec![(id(1), None, convicted)], ..Turned::default() };
    said("only killers are poison", &[Seen::Turned(&fine), Seen::Turned(&poison)], &ledger);
}

#[test]
fn more_than_the_slots_and_a_slot_that_stands_idle() {
    let rules = rules(&[]);
    let rules = || Seen::Rules(&rules);
    let mut ledger = Ledger::default();
    ledger.bookings = vec![booking(1), booking(2)];
    let claimed = Turned { claimed: vec![booking(2)], ..Turned::default() };
    said("slots are never exceeded", &[rules(), Seen::Turned(&claimed)], &ledger);
    ledger.bookings.clear();
    ledger.jobs.insert(id(3), job(State::Ready));
    let quiet = Turned::default();
    said("strict priority and no idle slot", &[rules(), Seen::Holding(false), Seen::Turned(&quiet)], &ledger);
}

#[test]
fn a_retry_beyond_the_attempts() {
    let ledger = Ledger::default();
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    builder.push(1, b"data");
    let held = Held {
        place: Place::Chunk(Arrival(1)),
        lane: Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh },
        run: None,
        record: Record::default(),
        admitted: Time(1),
        jobs: Arc::new(builder.finish()),
        first: 0,
        count: 1,
    };
    let verdict = Verdict::Retry { at: Time(9), error: "it failed".into() };
    let settlement = Settlement { held, verdict, outcome: "failed", started: Time(1), finished: Time(2) };
    let again = Turned { settled: vec![settlement], ..Turned::default() };
    said("failures within attempts", &[begun(1, 1), Seen::Turned(&again)], &ledger);
}

#[test]
fn an_end_that_was_told_too_early() {
    let ledger = Ledger::default();
    let fine = Seen::Drained { quiet: true, unread: None };
    said("drained is exact", &[fine, Seen::Drained { quiet: false, unread: None }], &ledger);
    said("drained is exact", &[Seen::Drained { quiet: true, unread: Some(id(1)) }], &ledger);
    said("every settled start is archived once", &[Seen::CaughtUp { unread: Some(id(1)), settled: 0 }], &ledger);
}

fn paused(until: Option<Time>) -> Override {
    let (target, by, reason) = (Target::Queues("mail".into()), "somebody 1".into(), String::new());
    Override { target, key: Key::Paused, value: 1, by, since: Time(0), until, reason }
}

#[test]
fn a_start_in_a_paused_queue_and_a_pause_that_is_lost_or_does_not_end() {
    const NAME: &str = "what people change holds";
    let (open, shut) = (rules(&[]), rules(&[paused(None)]));
    let mut ledger = Ledger::default();
    let claimed = Turned { claimed: vec![booking(1)], ..Turned::default() };
    let turned = || Seen::Turned(&claimed);
    said(NAME, &[Seen::Rules(&open), turned(), Seen::Rules(&shut), turned()], &ledger);
    said(NAME, &[Seen::Quiet(true), turned()], &ledger);
    ledger.jobs.insert(id(1), job(State::Running));
    said(NAME, &[Seen::Rules(&open), begun(1, 1), Seen::Rules(&shut), begun(1, 2)], &ledger);
    said(NAME, &[Seen::Steered { by: "somebody 1" }], &ledger);
    said(NAME, &[Seen::Overrides(&[]), Seen::Overrides(&[paused(None)])], &ledger);
    ledger.overrides = vec![paused(Some(Time(5)))];
    let late = Turned { now: Time(5), ..Turned::default() };
    said(NAME, &[Seen::Turned(&Turned::default()), Seen::Turned(&late)], &ledger);
}

#[test]
fn a_deleted_job_that_runs_or_comes_back() {
    const NAME: &str = "the deleted stay away";
    let mut ledger = Ledger::default();
    ledger.jobs.insert(id(1), job(State::Ready));
    said(NAME, &[begun(1, 1), Seen::Deleted { ids: &[id(1)] }], &ledger);
    let gone = Known { deleted: true, ..job(State::Cancelled) };
    ledger.jobs.insert(id(1), gone.clone());
    said(NAME, &[Seen::Deleted { ids: &[id(1)] }, begun(1, 1)], &ledger);
    let back = Turned { moved: vec![(id(1), Some(gone), job(State::Ready))], ..Turned::default() };
    said(NAME, &[Seen::Turned(&back)], &ledger);
}
