//! What matches, what is refused with which sentence, and input that means harm.

use super::*;

fn facts() -> Facts<'static> {
    Facts {
        id: "j-0123456789-a1",
        queue: "img.thumb",
        state: State::Failed,
        run: Some("r-0123456789"),
        priority: Priority::new(10).unwrap(),
        age: Duration::from_secs(5400),
        failures: 3,
        ended: Some(Duration::from_secs(60)),
        due: None,
        reason: Some(Reason::Poison),
        error: "exit 3: Timeout at host",
        data: b"customer-42, urgent",
        subject: Some(("invoice", "2026:17")),
    }
}

fn matches(text: &str) -> bool {
    Selector::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault}")).matches(&facts())
}

#[test]
fn words_match_as_they_say() {
    for (text, expected) in [
        ("", true),
        ("   ", true),
        ("queue:img.thumb", true),
        ("queue:img", false),
        ("queue:img.*", true),
        ("queue:pdf,img.*", true),
        ("-queue:img.*", false),
        ("state:failed,cancelled", true),
        ("-state:failed", false),
        ("state:failed queue:pdf", false),
        ("run:r-0123456789", true),
        ("run:r-0123456789.2", false),
        ("-run:r-0000000000", true),
        ("priority:high", true),
        ("priority:10,0", true),
        ("priority>=10 priority<=10", true),
        ("priority>10", false),
        ("priority>-100", true),
        ("age>1h", true),
        ("age>1h30m", false),
        ("age>=90m age<2h", true),
        ("-age<1d", false),
        ("attempt>=3", true),
        ("attempt:1,2", false),
        ("attempt=3", true),
        ("j-0123456789-a1", true),
        ("j-01234", true),
        ("j-9,j-0", true),
        ("j-0123456789", true),
        ("j-0123456789-", true),
        ("j-0123456789-a", false),
        ("-j-0123456789-a1", false),
        ("j-0123456789-a12", false),
        ("queue:img.*  \t state:failed\nage>1s", true),
        ("id:j-0123456789-a1", true),
        ("id:j-9,j-0123", true),
        ("-id:j-0123456789-a1", false),
        ("reason:poison", true),
        ("reason:expired,exhausted", false),
        ("-reason:poison", false),
        ("error:Timeout", true),
        ("error:timeout", false),
        ("text:urgent", true),
        ("text:nothing,42", true),
        ("\"customer-42, urg\"", true),
        ("-\"customer-42, urg\"", false),
        ("\"nobody\"", false),
        ("attempts>2", true),
        ("attempts:1..3", true),
        ("attempts:4..", false),
        ("attempts:..3", true),
        ("priority:-100..9", false),
        ("priority:low..high", true),
        ("age:1h..2h", true),
        ("age:2h..1d,1h..95m", true),
        ("ended<2m", true),
        ("ended>2m", false),
        ("subject:invoice:2026:17", true),
        ("subject:invoice", true),
        ("subject:invoice:2026", false),
        ("subject:customer,invoice:2026:17", true),
        ("-subject:invoice", false),
        ("due<1h", false),
        ("-due<1h", true),
    ] {
        assert_eq!(matches(text), expected, "{text}");
    }
}

#[test]
fn quotes_keep_spaces_commas_and_signs() {
    let odd = Facts { queue: "a, b:c>d", ..facts() };
    for text in ["queue:\"a, b:c>d\"", "queue:x,\"a, b:c>d\"", "queue:a\", b\":c>d", "queue:\"a, \"*"] {
        assert!(Selector::parse(text).unwrap().matches(&odd), "{text}");
    }
    let eastern = Facts { queue: "очередь", ..facts() };
    assert!(Selector::parse("queue:оч*").unwrap().matches(&eastern));
}

#[test]
fn faults_name_the_word_its_place_and_what_is_known() {
    for (text, place, parts) in [
        ("queue:a stat:failed", 9, &["`stat:failed`", "unknown key `stat`", "queue:, state:"][..]),
        ("subject:invoice:", 1, &["expected subject:TYPE:ID or subject:TYPE"]),
        ("subject>invoice", 1, &["subject cannot be compared"]),
        ("état:x", 1, &["unknown key `état`"]),
        ("é é", 1, &["neither a job's id"]),
        ("queue:a  state:done", 10, &["expected a state (scheduled, ready", "got: done"]),
        ("priority:101", 1, &["between -100 and 100"]),
        ("age:1h", 1, &["age is compared, such as age>1h, or a range"]),
        ("priority:5..1", 1, &["the range 5..1 is empty"]),
        ("priority:..", 1, &["is empty, expected LOW..HIGH"]),
        ("attempts:1..x", 1, &["expected a whole number, got: x"]),
        ("age:1..2h", 1, &["expected a span"]),
        ("reason:bad", 1, &["expected a reason (exhausted, refused, poison, expired), got: bad"]),
        ("error>3", 1, &["error cannot be compared"]),
        ("id:x", 1, &["`x` is neither a job's id"]),
        ("age>1", 1, &["expected a span", "got: 1"]),
        ("age>h", 1, &["expected a span"]),
        ("age>", 1, &["no value after age"]),
        ("age>99999999999999999w", 1, &["expected a span"]),
        ("age>-1h", 1, &["expected a span"]),
        ("attempt>=x", 1, &["expected a whole number, got: x"]),
        ("attempt>=-1", 1, &["expected a whole number"]),
        ("queue>a", 1, &["queue cannot be compared"]),
        ("queue:", 1, &["a value is empty"]),
        ("queue:a,,b", 1, &["a value is empty"]),
        ("run:nightly", 1, &["`nightly` is not an id"]),
        ("-", 1, &["a value is empty"]),
        ("--state:failed", 1, &["unknown key `-state`"]),
        ("state:ready thumbnail", 13, &["`thumbnail` is neither a job's id"]),
        ("state:ready queue:\"a b", 19, &["the quote is not closed"]),
        (":x", 1, &["unknown key ``"]),
        ("\"queue\":x", 1, &["neither a job's id"]),
    ] {
        let fault = Selector::parse(text).expect_err(text);
        assert!(fault.contains(&format!("at character {place}: ")), "{text}: {fault}");
        for part in parts {
            assert!(fault.contains(part), "{text}: {fault}");
        }
    }
}

#[test]
fn hostile_input_is_refused_or_read_but_never_worse() {
    assert!(Selector::parse(&"x".repeat(SELECTOR_MAX + 1)).unwrap_err().contains("at most 65536"));
    let stars = format!("queue:{}b", "*a".repeat(20_000));
    let long = "a".repeat(200);
    assert!(!Selector::parse(&stars).unwrap().matches(&Facts { queue: &long, ..facts() }));
    let many = format!("queue:{}", vec!["q"; 30_000].join(","));
    assert!(!matches(&many));
    // Every short text over an alphabet of signs is either read or refused with a place.
    let signs = ['-', ':', '>', '=', ',', '"', ' ', 'j', 'é', '\0'];
    for number in 0..100_000usize {
        let text: String = (0..5).map(|place| signs[number / 10usize.pow(place) % 10]).collect();
        if let Err(fault) = Selector::parse(&text) {
            assert!(fault.starts_with("in the selector at character "), "{text:?}: {fault}");
        }
    }
}

#[test]
fn a_store_can_narrow_its_reading() {
    let selector = Selector::parse("state:failed,ready -state:ready queue:img.* j-01").unwrap();
    assert_eq!(selector.states(), [State::Failed]);
    assert!(selector.may_match_queue("img.a") && !selector.may_match_queue("pdf"));
    assert_eq!(selector.id_prefix(), Some("j-01"));
    assert_eq!(Selector::parse("-j-01").unwrap().id_prefix(), None);
    assert!(Selector::parse("").unwrap().is_everything());
}
