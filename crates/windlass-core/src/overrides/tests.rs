//! Overrides as tables: what may be set, what holds a queue, and what a rule becomes.

use super::*;
use crate::policy::{Command, Service};

fn made(target: &str, key: Key, value: u32, since: i64, until: Option<i64>) -> Override {
    let target = Target::from_text(target);
    let (since, until) = (Time(since), until.map(Time));
    Override { target, key, value, by: "ada".into(), since, until, reason: String::new() }
}

#[test]
fn what_may_be_set() {
    let queue = Target::Queues("q".into());
    for (target, key, value, fits) in [
        (&queue, Key::Paused, 1, true),
        (&queue, Key::Paused, 0, false),
        (&queue, Key::Slots, 0, false),
        (&queue, Key::Slots, NUMBER_MAX, true),
        (&queue, Key::Slots, NUMBER_MAX + 1, false),
        (&queue, Key::Weight, 0, false),
        (&queue, Key::Attempts, 0, true),
        (&queue, Key::Enabled, 2, false),
        (&Target::Server, Key::Paused, 1, true),
        (&Target::Server, Key::Slots, 9, true),
        (&Target::Server, Key::Weight, 1, false),
        (&Target::Server, Key::Enabled, 0, false),
    ] {
        assert_eq!(key.check(target, value).is_ok(), fits, "{target} {key:?} {value}");
    }
    assert_eq!(Key::Slots.check(&queue, 0).unwrap_err(), "`slots` is 0, expected 1 to 1000000");
    for key in Key::ALL {
        assert_eq!(Key::from_word(key.word()), Some(key));
    }
}

#[test]
fn a_queue_is_held_by_its_own_pause_first() {
    let all = Overrides::new(vec![
        made("img.*", Key::Paused, 1, 1, None),
        made("img.a", Key::Paused, 1, 5, None),
        made("img.*", Key::Slots, 3, 1, None),
        made("", Key::Paused, 1, 2, Some(9)),
    ]);
    for (queue, by) in [("img.a", Some("img.a")), ("img.b", Some("img.*")), ("other", None), ("", None)] {
        assert_eq!(all.pause_of(queue).map(|made| made.target.as_text()).as_deref(), by, "{queue:?}");
    }
    assert_eq!(all.server_pause().unwrap().since, Time(2));
    assert_eq!((all.slots_of("img.a"), all.slots_of("img.*")), (None, Some(3)));
}

#[test]
fn one_for_each_target_and_key_and_each_ends_at_its_time() {
    let mut all = Overrides::default();
    all.set(made("q", Key::Slots, 3, 1, Some(10)));
    all.set(made("q", Key::Slots, 4, 2, Some(20)));
    all.set(made("q", Key::Paused, 1, 3, Some(15)));
    assert_eq!((all.iter().count(), all.next_end()), (2, Some(Time(15))));
    for (now, ended) in [(14, 0), (15, 1), (19, 1), (20, 2)] {
        assert_eq!(all.ended(Time(now)).count(), ended, "{now}");
    }
    all.unset(&Target::Queues("q".into()), Key::Paused);
    assert_eq!(all.next_end(), Some(Time(20)));
}

#[test]
fn a_rule_is_changed_by_the_overrides_that_name_its_table() {
    let policy = Policy::new("img.*", Service::Command(Command::default()));
    let all = Overrides::new(vec![
        made("img.*", Key::Slots, 9, 1, None),
        made("img.*", Key::Weight, 2, 1, None),
        made("img.*", Key::Attempts, 0, 1, None),
        made("img.*", Key::Enabled, 0, 1, None),
        made("img.a", Key::Slots, 1, 1, None),
        made("", Key::Slots, 77, 1, None),
    ]);
    let laid = all.lay_over(&policy);
    assert_eq!((laid.slots, laid.weight, laid.attempts, laid.enabled), (9, 2, 0, false));
    assert_eq!(Overrides::default().lay_over(&policy), policy);
    assert_eq!((all.server_slots(8), Overrides::default().server_slots(8)), (77, 8));
    let other = Policy { pattern: "img.a".into(), ..policy.clone() };
    assert_eq!(all.lay_over(&other), Policy { slots: 1, ..other.clone() });
}
