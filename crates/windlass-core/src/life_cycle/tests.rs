//! Walks every state with every change, so that the table and these rules cannot drift apart.

use super::*;

#[test]
fn every_state_meets_every_change() {
    for from in State::ALL {
        for change in Change::ALL {
            let to = next(from, change);
            match change {
                Change::Claim => assert_eq!(to.is_some(), from == State::Ready),
                Change::Hold => {
                    assert_eq!(to, Some(State::Running).filter(|_| !from.is_end() && from != State::Running));
                }
                Change::Succeed | Change::Retry | Change::Fail | Change::Interrupt | Change::Snooze => {
                    assert_eq!(to.is_some(), from == State::Running, "{from} {change:?}");
                }
                Change::Release => {
                    assert_eq!(to.is_some(), matches!(from, State::Scheduled | State::Retrying));
                }
                Change::Resume => assert_eq!(to.is_some(), from == State::Suspended),
                Change::Revive => assert_ne!(
                    to.is_some(),
                    matches!(from, State::Ready | State::Running | State::Suspended | State::Succeeded)
                ),
                Change::Suspend => {
                    assert_eq!(to.is_some(), !from.is_end() && !matches!(from, State::Running | State::Suspended));
                }
                Change::Expire => {
                    assert_eq!(to, Some(State::Failed).filter(|_| !from.is_end() && from != State::Running));
                }
                Change::Cancel => {
                    assert_eq!(to.is_some(), !matches!(from, State::Succeeded | State::Cancelled));
                }
            }
        }
    }
}

#[test]
fn no_pair_stands_twice_and_succeeded_is_final() {
    for (i, a) in TRANSITIONS.iter().enumerate() {
        assert!(TRANSITIONS[i + 1..].iter().all(|b| (a.0, a.1) != (b.0, b.1)), "{a:?}");
        assert_ne!(a.0, State::Succeeded);
    }
}

#[test]
fn words_read_back() {
    for state in State::ALL {
        assert_eq!(state.word().parse(), Ok(state));
        assert_eq!(State::from_index(state.index()), Some(state));
    }
    assert!("done".parse::<State>().is_err());
}
