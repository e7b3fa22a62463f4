//! The verdict table: every outcome, with attempts left, on the last attempt, and with no bound.

use super::*;
use crate::job::LaneKind;
use std::time::Duration;

fn verdict(outcome: Outcome, failures: u32, attempts: u32) -> Verdict {
    let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(60) };
    let record = Record { starts: failures + 1, failures, suspicions: 0 };
    judge(outcome, record, Terms { attempts, backoff }, Time(0), u64::MAX)
}

fn failed() -> Outcome {
    Outcome::Failed { error: "exit 1".into() }
}

#[test]
fn failures_are_charged_up_to_the_attempts() {
    assert!(matches!(verdict(failed(), 0, 5), Verdict::Retry { .. }));
    assert!(matches!(verdict(failed(), 3, 5), Verdict::Retry { .. }));
    assert!(matches!(verdict(failed(), 4, 5), Verdict::Fail { reason: Reason::Exhausted, .. }));
    assert!(matches!(verdict(failed(), 0, 1), Verdict::Fail { reason: Reason::Exhausted, .. }));
    assert!(matches!(verdict(failed(), 4_000_000, 0), Verdict::Retry { .. }));
}

#[test]
fn what_costs_nothing_and_what_is_final() {
    assert_eq!(verdict(Outcome::Interrupted, 4, 5), Verdict::Return);
    assert_eq!(verdict(Outcome::Lost, 4, 5), Verdict::Suspect(Ruling::Ready(LaneKind::Retry)), "no failure is charged");
    assert_eq!(verdict(Outcome::Cancelled, 0, 5), Verdict::Cancel);
    assert_eq!(verdict(Outcome::NotMoved { why: "full".into() }, 4, 5), Verdict::Return);
    let there = "http://there";
    let gone = Verdict::Succeed { message: format!("moved to {there}") };
    assert_eq!(verdict(Outcome::Moved { to: there.into() }, 4, 5), gone);
    let refused = Outcome::FailedForGood { error: "exit 65".into() };
    assert!(matches!(verdict(refused, 0, 0), Verdict::Fail { reason: Reason::Refused, .. }));
    let done = Outcome::Succeeded { message: "ok".into() };
    assert_eq!(verdict(done, 4, 5), Verdict::Succeed { message: "ok".into() });
}

#[test]
fn a_named_wait_is_the_least() {
    let later = Outcome::RetryLater { after: Some(Duration::from_secs(300)), error: "busy".into() };
    assert_eq!(verdict(later, 0, 5), Verdict::Retry { at: Time(300_000_000), error: "busy".into() });
}
