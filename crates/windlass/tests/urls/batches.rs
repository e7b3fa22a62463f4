//! Many jobs a call.

use crate::rig::{Rig, policy};
use crate::servers::{Handler, fine};
use crate::shared::payloads;
use serde_json::Value;
use std::io::Write;
use windlass_core::policy::{Framing, Reply};

fn items(body: &[u8]) -> Vec<Value> {
    serde_json::from_slice(body).unwrap()
}

/// The same in any framing that has objects.
fn items_in(framing: Framing, body: &[u8]) -> Vec<Value> {
    let lines = body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    match framing {
        Framing::Array => items(body),
        _ => lines.map(|line| serde_json::from_slice(line).unwrap()).collect(),
    }
}

/// A server that answers each batch by what the jobs hold.
fn judging() -> Handler {
    Handler::new(|asked, _, stream| {
        let reply = |item: &Value| match item["data"].as_str().unwrap() {
            "bad" => format!(r#"{{"id":{},"status":"fail","error":"no such row"}}"#, item["id"]),
            "later" => format!(r#"{{"id":{},"status":"retry","after":9}}"#, item["id"]),
            "odd" => format!(r#"{{"id":{},"status":"what"}}"#, item["id"]),
            text => format!(r#"{{"id":{},"status":"ok","message":"got {text}"}}"#, item["id"]),
        };
        // Backwards: ids say whose they are.
        let replies: Vec<String> = items(&asked.body).iter().rev().map(reply).collect();
        fine(stream, &format!("[{}]", replies.join(",")))
    })
}

#[test]
fn each_job_of_an_array_has_its_own_reply() {
    let server = judging();
    let mut rig = Rig::new();
    let outcomes =
        rig.all(&policy(server.address, "/{queue}", |url| url.size = 100), &[b"one", b"bad", b"two", b"later", b"odd"]);
    assert_eq!(server.asked().len(), 1, "stretches of one claim go together");
    assert_eq!(outcomes[0], "succeeded got one");
    assert_eq!(outcomes[2], "succeeded got two");
    assert_eq!(
        (&outcomes[1][..], &outcomes[3][..]),
        ("failed_for_good no such row", "retry_later 9s asked to be tried later")
    );
    assert!(outcomes[4].starts_with("failed the reply has status \"what\""), "{outcomes:?}");
}

#[test]
fn any_bytes_go_through_every_frame_that_can_hold_them() {
    let server = Handler::new(|_, _, stream| fine(stream, ""));
    let mut rig = Rig::new();
    let data: [&[u8]; 4] = [b"a\"b\n", b"\0\xff", b"-x", "ü".as_bytes()];
    for framing in [Framing::Array, Framing::Json] {
        let many = policy(server.address, "/", |url| (url.size, url.framing) = (100, framing));
        assert_eq!(rig.all(&many, &data), ["succeeded"; 4]);
        let body = server.asked().pop().unwrap().body;
        let items = items_in(framing, &body);
        assert_eq!(items[0]["data"], "a\"b\n");
        assert_eq!(items[1]["data64"], "AP8=");
        assert_eq!(
            (&items[3]["data"], &items[3]["attempt"], &items[3]["queue"]),
            (&"ü".into(), &3.into(), &"q.u e".into())
        );
    }
    let raw = policy(server.address, "/", |url| (url.size, url.framing) = (100, Framing::Raw));
    let outcomes = rig.all(&raw, &data);
    assert!(outcomes[0].starts_with("failed_for_good the data holds a newline"), "{outcomes:?}");
    assert_eq!(outcomes[1..], ["succeeded"; 3]);
    assert_eq!(server.asked().pop().unwrap().body, b"\0\xff\n-x\n\xc3\xbc\n");
}

#[test]
fn every_payload_arrives_in_calls_with_many() {
    let server = Handler::new(|_, _, stream| fine(stream, ""));
    let mut rig = Rig::new();
    let all = payloads();
    let raw: Vec<Vec<u8>> = all.iter().filter(|payload| !payload.contains(&b'\n')).cloned().collect();
    for framing in [Framing::Array, Framing::Json, Framing::Raw] {
        let sent = if framing == Framing::Raw { &raw } else { &all };
        let before = server.asked().len();
        let many = policy(server.address, "/", |url| (url.size, url.framing) = (100, framing));
        let data: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        assert_eq!(rig.all(&many, &data), vec!["succeeded"; sent.len()]);
        let body: Vec<u8> = server.asked()[before..].iter().flat_map(|asked| asked.body.clone()).collect();
        if framing == Framing::Raw {
            let joined: Vec<u8> = raw.iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
            assert!(body == joined, "raw lines are as they were");
            continue;
        }
        let came = items_in(framing, &body);
        assert_eq!(came.len(), sent.len());
        for (came, sent) in came.iter().zip(sent) {
            let bytes = match came["data"].as_str() {
                Some(text) => text.as_bytes().to_vec(),
                None => windlass::api::base64::decode(came["data64"].as_str().unwrap()).unwrap(),
            };
            assert!(bytes == *sent, "{} bytes came, {} were sent", bytes.len(), sent.len());
        }
    }
}

#[test]
fn the_shape_that_existing_batch_handlers_answer_with() {
    let server = Handler::new(|asked, _, stream| {
        let items = items(&asked.body);
        let failed: Vec<String> = items
            .iter()
            .filter(|item| item["data"] == "bad")
            .map(|item| format!(r#"{{"itemIdentifier":{}}}"#, item["id"]))
            .collect();
        match items[0]["data"].as_str().unwrap() {
            "stranger" => fine(stream, r#"{"batchItemFailures":[{"itemIdentifier":"j-9"}]}"#),
            "empty" => fine(stream, "{}"),
            "null" => fine(stream, r#"{"batchItemFailures":null}"#),
            _ => fine(stream, &format!(r#"{{"batchItemFailures":[{}]}}"#, failed.join(","))),
        }
    });
    let mut rig = Rig::new();
    let many = policy(server.address, "/", |url| url.size = 10);
    let in_list = "failed the answer has it in `batchItemFailures`";
    assert_eq!(rig.all(&many, &[b"a", b"bad", b"c"]), ["succeeded", in_list, "succeeded"]);
    assert_eq!(rig.all(&many, &[b"a", b"c"]), ["succeeded"; 2]);
    assert_eq!(rig.all(&many, &[b"empty", b"c"]), ["succeeded"; 2]);
    assert_eq!(rig.all(&many, &[b"null", b"c"]), ["succeeded"; 2]);
    let outcomes = rig.all(&many, &[b"stranger", b"c"]);
    assert!(outcomes.iter().all(|outcome| outcome.contains("names an item that was not sent")), "{outcomes:?}");
}

#[test]
fn lines_too_few_too_many_and_none_at_all() {
    let server = Handler::new(|asked, _, stream| {
        let first = asked.body.split(|b| *b == b'\n').next().unwrap();
        match first {
            b"few" => fine(stream, "ok one\n"),
            b"many" => fine(stream, "ok\nok\nok\n"),
            b"html" => fine(stream, "<html>thanks</html>"),
            _ => fine(stream, "ok a\nfail b\n"),
        }
    });
    let mut rig = Rig::new();
    let raw = policy(server.address, "/", |url| (url.size, url.framing) = (10, Framing::Raw));
    assert_eq!(rig.all(&raw, &[b"x", b"y"]), ["succeeded a", "failed_for_good b"]);
    assert_eq!(rig.all(&raw, &[b"few", b"y"]), ["succeeded one", "failed the answer has no reply for this job"]);
    let outcomes = rig.all(&raw, &[b"many", b"y"]);
    assert!(outcomes.iter().all(|outcome| outcome.contains("3 replies without an id to 2 jobs")), "{outcomes:?}");
    let outcomes = rig.all(&raw, &[b"html", b"y"]);
    assert!(outcomes[0].contains("<html>thanks</html>"), "{outcomes:?}");
    let status =
        policy(server.address, "/", |url| (url.size, url.framing, url.reply) = (10, Framing::Raw, Reply::Exit));
    assert_eq!(rig.all(&status, &[b"html", b"y"]), ["succeeded"; 2]);
}

#[test]
fn one_bad_job_never_costs_its_neighbours() {
    for how in ["close", "500", "422", "413"] {
        let server = Handler::new(move |asked, _, stream| {
            let poisoned = items(&asked.body).iter().any(|item| item["data"] == "poison");
            match (poisoned, how) {
                (false, _) => fine(stream, ""),
                (true, "close") => false,
                (true, status) => write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n").is_ok(),
            }
        });
        let mut rig = Rig::new();
        let data: Vec<&[u8]> = (0..50).map(|n| if n == 33 { &b"poison"[..] } else { b"fine" }).collect();
        let outcomes = rig.all(&policy(server.address, "/", |url| url.size = 50), &data);
        let fine = outcomes.iter().filter(|outcome| *outcome == "succeeded").count();
        assert_eq!(fine, 49, "{how}: {outcomes:?}");
        assert!(outcomes[33].starts_with("failed"), "{how}: {}", outcomes[33]);
    }
}

#[test]
fn patience_and_a_wrong_address_hold_for_the_whole_call() {
    let server = Handler::saying("HTTP/1.1 503 No\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n");
    let mut rig = Rig::new();
    let data: Vec<&[u8]> = vec![b"x"; 20];
    let outcomes = rig.all(&policy(server.address, "/", |url| url.size = 20), &data);
    assert_eq!(outcomes, vec!["retry_later 30s HTTP 503"; 20]);
    assert_eq!(server.asked().len(), 1);
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], crate::ports::free_port()));
    let outcomes = rig.all(&policy(nobody, "/", |url| url.size = 20), &data);
    assert!(outcomes.iter().all(|outcome| outcome.contains("Connection refused")), "{outcomes:?}");
}

#[test]
fn bodies_of_a_call_are_bounded() {
    let server = Handler::new(|_, _, stream| fine(stream, ""));
    let mut rig = Rig::new();
    let large = vec![b'x'; 1 << 20];
    let data: Vec<&[u8]> = vec![&large; 40];
    let outcomes = rig.all(&policy(server.address, "/", |url| url.size = 1000), &data);
    assert_eq!(outcomes, vec!["succeeded"; 40]);
    assert!(server.asked().len() >= 3 && server.asked().iter().all(|asked| asked.body.len() < 18 << 20));
    let before = server.asked().len();
    let outcomes =
        rig.all(&policy(server.address, "/", |url| (url.size, url.bytes) = (1000, 1000)), &[&large[..600]; 7]);
    assert_eq!(outcomes, vec!["succeeded"; 7]);
    let bodies: Vec<usize> = server.asked()[before..].iter().map(|asked| asked.body.len() / 600).collect();
    assert_eq!((bodies.iter().sum::<usize>(), bodies.iter().max()), (7, Some(&2)), "{bodies:?}");
}
