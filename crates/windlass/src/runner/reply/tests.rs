//! Every shape of a reply, of an emitted line and of a control line; what is wrong says so.

use super::*;
use windlass_core::policy::{Remote, Service};

fn ok(message: &str) -> Outcome {
    Outcome::Succeeded { message: message.into() }
}

fn snoozed(seconds: u64) -> Outcome {
    Outcome::Snoozed { after: Duration::from_secs(seconds) }
}

fn later(error: &str, after: Option<u64>) -> Outcome {
    Outcome::RetryLater { after: after.map(Duration::from_secs), error: error.into() }
}

fn never(error: &str) -> Outcome {
    Outcome::FailedForGood { error: error.into() }
}

#[test]
fn replies_are_words_or_objects() {
    for (line, expected) in [
        ("ok", ok("")),
        ("ok\r", ok("")),
        ("ok all well", ok("all well")),
        ("retry", later("asked to be tried later", None)),
        ("retry the disk is full", later("the disk is full", None)),
        ("fail no such page", never("no such page")),
        ("fail", never("said that it cannot succeed")),
        ("again", snoozed(0)),
        ("again 2m", snoozed(120)),
        ("snooze 1h", snoozed(3600)),
        (r#"{"status":"ok"}"#, ok("")),
        (r#"{"status":"ok","message":"4 kB"}"#, ok("4 kB")),
        (r#"{"status":"retry","error":"busy","after":30}"#, later("busy", Some(30))),
        (r#"{"status":"retry","after":"5m"}"#, later("asked to be tried later", Some(300))),
        (r#"{"status":"fail","error":"gone"}"#, never("gone")),
        (r#"{"status":"snooze","after":"1h"}"#, snoozed(3600)),
    ] {
        assert_eq!(read(line.as_bytes()).unwrap(), Reply { id: None, outcome: expected, emitted: vec![] }, "{line}");
    }
    let id: JobId = "j-0000000001-5".parse().unwrap();
    assert_eq!(read(b"@j-0000000001-5 fail x").unwrap(), Reply { id: Some(id), outcome: never("x"), emitted: vec![] });
    let named = read(
        br#"{"id":"j-0000000001-5","status":"ok","emit":[{"queue":"q","data":"a\tb"},
        {"queue":"r","data64":"AP8="},{"queue":"s","data":{"n":1}},{"queue":"t"}]}"#,
    );
    let reply = named.unwrap();
    assert_eq!(reply.id, Some(id));
    let emitted: Vec<(&str, &[u8])> =
        reply.emitted.iter().map(|(q, d)| (q.as_ref().unwrap().as_str(), &d[..])).collect();
    assert_eq!(emitted, [("q", &b"a\tb"[..]), ("r", b"\0\xff"), ("s", b"{\"n\":1}"), ("t", b"")]);
}

#[test]
fn what_is_no_reply_says_what_was_expected() {
    for (line, part) in [
        ("", "the reply is \"\", expected ok, retry"),
        ("OK", "the reply is \"OK\""),
        ("snooze", "the reply is \"snooze\""),
        ("snooze soon", "the reply is \"snooze soon\""),
        ("@nobody ok", "names no job"),
        ("{", "no JSON object"),
        ("{}", "status \"\""),
        (r#"{"status":"done"}"#, "status \"done\""),
        (r#"{"status":"ok","id":7}"#, ""),
        (r#"{"status":"ok","id":"x"}"#, "names no job in `id`"),
        (r#"{"status":"retry","after":"soon"}"#, "`after` that is no time"),
        (r#"{"status":"ok","emit":{}}"#, "`emit` that is no array"),
        (r#"{"status":"ok","emit":[{"data":"x"}]}"#, ""),
        (r#"{"status":"ok","emit":[{"queue":7}]}"#, "`queue` that is no text"),
        (r#"{"status":"ok","emit":[{"queue":"-x"}]}"#, "bad queue"),
        (r#"{"status":"ok","emit":[{"queue":"q","data64":"?"}]}"#, "no base64"),
    ] {
        match read(line.as_bytes()) {
            Ok(_) => assert_eq!(part, "", "{line}"),
            Err((None, error)) => assert!(!part.is_empty() && error.contains(part), "{line}: {error}"),
            Err((Some(id), _)) => panic!("{line} is about {id}"),
        }
    }
    let noise = read(&[b'x'; 1 << 20]).unwrap_err().1;
    assert!(noise.len() < 200, "{} bytes", noise.len());
}

#[test]
fn emitted_lines_have_a_queue_and_may_have_a_parent() {
    let id: JobId = "j-0000000001-5".parse().unwrap();
    let file = b"thumb\ta b\tc\n\n@j-0000000001-5\tmail\t\xff\0\n\
        {\"queue\":\"q\",\"data64\":\"Cg==\",\"job\":\"j-0000000001-5\"}\nbare\n";
    let all = read_emit_file(file).unwrap();
    let queue = |queue: &Option<QueueName>| queue.as_ref().map(|queue| queue.to_string()).unwrap_or_default();
    let all: Vec<_> = all.iter().map(|(id, name, data)| (*id, queue(name), &data[..])).collect();
    let expected =
        [(None, "thumb", &b"a b\tc"[..]), (Some(id), "mail", b"\xff\0"), (Some(id), "q", b"\n"), (None, "", b"bare")];
    assert_eq!(all, expected.map(|(id, name, data)| (id, name.to_owned(), data)));
    let bare = vec![(None, b"bare".to_vec())];
    let nowhere = Policy::new("q", Service::Remote(Remote::default()));
    assert!(place(bare, &nowhere).unwrap_err().contains("names no queue: \"bare\""), "only a stage has a place for it");
    for (file, part) in [
        (&b"q\tx"[..], "not ended by a newline"),
        (b"-q\tx\n", "bad queue"),
        (b"@x\tq\ty\n", "names no job"),
        (b"{\"queue\":1}\n", "is no text"),
    ] {
        let error = read_emit_file(file).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_last_word_of_each_kind_counts() {
    let said = Said::read(
        b"progress 1/9\nphase load\nprogress 3/9 half way\nnonsense\n\nextend 2s\nextend 1m\nsnooze 5m\nfail later\n\
          checkpoint page 7\nresult 12 rows\nSTATUS=sorting\nWATCHDOG=1\nin_flight 8\nsnooze soon\n\
          EXTEND_TIMEOUT_USEC=9000000\nEXTEND_TIMEOUT_USEC=5000000\nSTOPPING=1",
    );
    assert_eq!(said.progress.as_deref(), Some("3/9 half way"));
    assert_eq!(said.phase.as_deref(), Some("sorting"));
    assert_eq!(said.checkpoint.as_deref(), Some("page 7"));
    assert_eq!(said.result.as_deref(), Some("12 rows"));
    assert_eq!((said.extend, said.in_flight, said.heartbeat), (Duration::from_secs(62), Some(8), true));
    assert_eq!((said.at_least, said.stopping), (Some(Duration::from_secs(5)), true));
    assert_eq!(said.wish, Some(never("later")), "a wish that cannot be read is none");
    assert_eq!(Said::read(b""), Said::default());
}
