//! Walks every state with every event, the deadlines, the deaths, and the two cycles of the seed.

use super::*;
use std::collections::BTreeMap;

const TERMS: Terms = Terms { start: Duration::from_secs(5), stop: Duration::from_secs(10) };
const W: WorkerNo = WorkerNo(7);

fn at(seconds: u64) -> Steady {
    Steady::default().after(Duration::from_secs(seconds))
}

/// One worker, known and stopped.
fn one() -> Supervisor {
    let mut supervisor = Supervisor::default();
    supervisor.enrol(W, TERMS, at(0));
    supervisor
}

fn path_to(state: WorkerState) -> &'static [WorkerEvent] {
    use WorkerEvent as E;
    match state {
        WorkerState::Stopped => &[],
        WorkerState::Starting => &[E::Make],
        WorkerState::Waiting => &[E::Make, E::Up],
        WorkerState::Working => &[E::Make, E::Up, E::Take],
        WorkerState::Emitting => &[E::Make, E::Up, E::Take, E::Emit],
        WorkerState::Stopping => &[E::Make, E::Up, E::Stop],
        WorkerState::Died => &[E::Make, E::Die],
    }
}

/// The rules in words, written down a second time so that a slip in the table shows.
fn expected(state: WorkerState, event: WorkerEvent) -> Option<WorkerState> {
    use WorkerState as S;
    let alive = !matches!(state, S::Stopped | S::Died);
    match event {
        WorkerEvent::Make => (!alive).then_some(S::Starting),
        WorkerEvent::Up => (state == S::Starting).then_some(S::Waiting),
        WorkerEvent::Take => matches!(state, S::Waiting | S::Emitting).then_some(S::Working),
        WorkerEvent::Emit => matches!(state, S::Waiting | S::Working).then_some(S::Emitting),
        WorkerEvent::Emitted => (state == S::Emitting).then_some(S::Working),
        WorkerEvent::Finish => matches!(state, S::Working | S::Emitting).then_some(S::Waiting),
        WorkerEvent::Stop => (alive && state != S::Stopping).then_some(S::Stopping),
        WorkerEvent::Exit => matches!(state, S::Waiting | S::Stopping).then_some(S::Stopped),
        WorkerEvent::Die => alive.then_some(S::Died),
    }
}

#[test]
fn every_state_meets_every_event() {
    for state in WorkerState::ALL {
        for event in WorkerEvent::ALL {
            let mut supervisor = one();
            for step in path_to(state) {
                supervisor.apply(W, *step, at(0)).unwrap();
            }
            let before = supervisor.counts().clone();
            match (supervisor.apply(W, event, at(2)), expected(state, event)) {
                (Ok(to), Some(expected)) => {
                    assert_eq!(to, expected, "{state} {event}");
                    assert_eq!(supervisor.counts().in_state(to), 1);
                    assert_eq!(supervisor.counts().now.iter().sum::<u32>(), 1);
                    let spent = supervisor.counts().spent[state as usize];
                    assert_eq!(spent, Duration::from_secs(2));
                }
                (Err(forbidden), None) => {
                    assert_eq!(supervisor.counts().transitions, before.transitions);
                    assert_eq!((supervisor.counts().now, supervisor.counts().forbidden), (before.now, 1));
                    assert!(forbidden.to_string().contains(&format!("`{event}` is not allowed")));
                }
                (got, expected) => panic!("{state} {event}: {got:?}, expected {expected:?}"),
            }
        }
    }
}

#[test]
fn no_pair_stands_twice() {
    let pairs: BTreeMap<_, _> = TRANSITIONS.iter().map(|(from, event, to)| ((from, event), to)).collect();
    assert_eq!(pairs.len(), TRANSITIONS.len());
}

#[test]
fn states_that_may_not_last_have_a_deadline_and_say_it_once() {
    let mut s = one();
    s.apply(W, WorkerEvent::Make, at(0)).unwrap();
    assert_eq!(s.next_deadline(), Some(at(5)));
    assert!(s.take_due(at(4)).is_empty());
    assert_eq!(s.take_due(at(5)), [(W, Due::StartOverdue)]);
    assert!(s.take_due(at(9)).is_empty() && s.next_deadline().is_none());
    s.apply(W, WorkerEvent::Stop, at(6)).unwrap();
    assert!(!s.is_quiet());
    assert_eq!(s.take_due(at(16)), [(W, Due::StopOverdue)]);
    s.apply(W, WorkerEvent::Exit, at(17)).unwrap();
    assert!(s.is_quiet() && s.next_deadline().is_none());
    assert_eq!(s.counts().overdue, [1, 1]);
    s.forget(W);
    assert_eq!(s.counts().now, [0; 7]);
    assert!(s.apply(W, WorkerEvent::Make, at(18)).is_err(), "nobody knows it any more");
}

#[test]
fn coming_up_in_time_lifts_the_deadline() {
    let mut s = one();
    s.apply(W, WorkerEvent::Make, at(0)).unwrap();
    s.apply(W, WorkerEvent::Up, at(1)).unwrap();
    assert_eq!(s.next_deadline(), None);
    s.apply(W, WorkerEvent::Stop, at(2)).unwrap();
    s.forget(W);
    assert_eq!(s.next_deadline(), None, "one that is forgotten has none");
}

#[test]
fn a_phase_lasts_as_long_as_its_state() {
    let mut s = one();
    for event in path_to(WorkerState::Working) {
        s.apply(W, *event, at(0)).unwrap();
    }
    assert!(s.set_phase(W, "downloading") && !s.set_phase(W, "downloading"));
    assert_eq!(s.get(W).unwrap().phase, "downloading");
    s.apply(W, WorkerEvent::Emit, at(1)).unwrap();
    assert_eq!(s.get(W).unwrap().phase, "");
}

const PAGE: &str = include_str!("../../../../docs/life-cycle.md");

/// The rows of the table under a heading of the page, without its head.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).expect("the page has the heading");
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect()).collect()
}

#[test]
fn the_page_shows_the_tables_of_the_code() {
    let of_workers: Vec<_> = TRANSITIONS.iter().map(|(a, b, c)| vec![a.word(), b.word(), c.word()]).collect();
    assert_eq!(table("Transitions of a worker"), of_workers);
    let of_jobs = crate::life_cycle::TRANSITIONS.map(|(a, b, c)| (a.word(), format!("{b:?}").to_lowercase(), c.word()));
    let shown = table("Transitions of a job");
    let shown: Vec<_> = shown.iter().map(|row| (row[0], row[1].to_string(), row[2])).collect();
    assert_eq!(shown, of_jobs);
    let states: Vec<_> = table("States of a job").iter().map(|row| row[0]).collect();
    assert_eq!(states, crate::life_cycle::State::ALL.map(|state| state.word()));
    let states: Vec<_> = table("States of a worker").iter().map(|row| row[0]).collect();
    assert_eq!(states, WorkerState::ALL.map(|state| state.word()));
}

#[test]
fn the_two_cycles_of_the_seed_fit_the_table() {
    let rows = table("The eleven states of the seed");
    assert_eq!(rows.len(), 11);
    let ours: Vec<WorkerState> = rows
        .iter()
        .map(|row| *WorkerState::ALL.iter().find(|state| state.word() == row[2]).expect("a state of ours"))
        .collect();
    let fetcher: [&[usize]; 2] = [&[1, 3, 4, 6, 7, 8, 9, 5, 1], &[2, 1, 2, 3, 4, 6, 7, 8, 9, 2, 1]];
    let parser: [&[usize]; 2] = [&[1, 3, 4, 8, 9, 5, 1], &[2, 1, 2, 3, 4, 8, 9, 2, 1]];
    // The optional steps left out, as both cycles allow from the second turn on.
    let short: [&[usize]; 2] = [&[1, 3, 4, 6, 7, 8, 2, 1], &[1, 3, 4, 2, 1]];
    for cycle in fetcher.into_iter().chain(parser).chain(short) {
        for pair in cycle.windows(2) {
            let (from, to) = (ours[pair[0]], ours[pair[1]]);
            let allowed = from == to || TRANSITIONS.iter().any(|(a, _, b)| (*a, *b) == (from, to));
            assert!(allowed, "{cycle:?}: {from} to {to}");
        }
    }
    assert_eq!((ours[0], ours[10]), (WorkerState::Stopped, WorkerState::Died));
}
