//! Bad requests, each with the answer it gets, and nothing stored.

use super::rig::{Rig, job_id, run_id};
use crate::api;
use crate::error::{Failure, Kind};
use crate::http::{Options, Server};
use serde_json::json;

const JSON: &str = "content-type: application/json\r\n";
const JOB: &str = r#"{"queue":"mail","data":"a"}"#;

#[test]
fn over_tcp_only_the_right_token_opens() {
    let rig = Rig::new();
    let token = rig.token();
    assert_eq!(token.len(), 64);
    let ask = |headers: &str| {
        rig.raw(format!("GET /api/v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"))
    };
    assert_eq!(ask(&format!("authorization: Bearer {token}\r\n")).0, 200);
    let refused = ask("").1;
    assert!(refused.to_lowercase().contains("www-authenticate: bearer"), "{refused}");
    let wrong = [
        format!("authorization: Bearer {}\r\n", "0".repeat(64)),
        format!("authorization: Basic {token}\r\n"),
        format!("authorization: Bearer {token}x\r\n"),
        "authorization: Bearer \r\n".to_owned(),
        format!("authorization: Bearer {token}\r\nauthorization: Bearer {token}\r\n"),
    ];
    let body = |answer: &str| answer.split("\r\n\r\n").nth(1).unwrap().to_owned();
    for headers in wrong {
        let (status, answer) = ask(&headers);
        assert_eq!((status, body(&answer)), (401, body(&refused)), "{headers}");
    }
    let (status, _) =
        rig.raw(format!("GET /api/v1/status?token={token} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
    assert_eq!(status, 401, "a token in the query is none");
    for open in ["/livez", "/readyz", "/", "/page.css", "/page.js"] {
        assert_eq!(rig.raw(format!("GET {open} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).0, 200);
    }
}

#[test]
fn over_tcp_the_host_must_be_this_one() {
    let rig = Rig::new();
    let ask = |hosts: &str| rig.raw(format!("GET /livez HTTP/1.1\r\n{hosts}connection: close\r\n\r\n")).0;
    for good in ["localhost", "LocalHost:80", "127.0.0.1:1", "[::1]"] {
        assert_eq!(ask(&format!("host: {good}\r\n")), 200, "{good}");
    }
    for bad in ["evil.example", "localhost.", "10.0.0.1", "localhost.evil.example", ""] {
        assert_eq!(ask(&format!("host: {bad}\r\n")), 421, "{bad}");
    }
    assert_eq!(ask(""), 421);
    assert_eq!(ask("host: localhost\r\nhost: localhost\r\n"), 421);
    assert_eq!(
        rig.raw("GET http://evil.example/livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").0,
        421
    );
}

#[test]
fn other_sites_change_nothing() {
    let rig = Rig::new();
    let push = |headers: &str| rig.tcp("POST /api/v1/jobs", &format!("{JSON}{headers}"), JOB).0;
    for bad in [
        "origin: http://evil.example\r\n",
        "origin: null\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
    ] {
        assert_eq!(push(bad), 403, "{bad}");
    }
    assert!(rig.kept.lock().unwrap().lots.is_empty());
    for good in ["origin: http://localhost\r\n", "sec-fetch-site: same-origin\r\n", "sec-fetch-site: none\r\n"] {
        assert_eq!(push(good), 201, "{good}");
    }
    assert_eq!(rig.tcp("GET /api/v1/status", "sec-fetch-site: cross-site\r\n", "").0, 200, "reading is not a change");
}

#[test]
fn a_command_is_never_taken_over_tcp() {
    let rig = Rig::new();
    let body = concat!(
        r#"{"service":{"queue":"q","argv_base64":["YQ=="],"directory_base64":"","#,
        r#""slots":1,"attempts":1,"output_max":1}}"#
    );
    assert_eq!(rig.tcp("POST /api/v1/runs", JSON, body).0, 403);
    assert_eq!(rig.tcp("POST /api/v1/runs", JSON, "{}").0, 201);
    for (from, to) in [("YQ==", "YQ"), ("[\"YQ==\"]", "[]"), ("\"slots\":1", "\"slots\":0"), ("YQ==", "AA==")] {
        let (status, problem) = rig.post("/api/v1/runs", api::JSON, body.replace(from, to).as_bytes());
        assert_eq!((status, problem["code"].as_str()), (422, Some("bad_data")), "{from} {to}");
    }
}

#[test]
fn media_types_must_say_what_the_body_is() {
    let rig = Rig::new();
    for media in [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin1",
        "application/jsonp",
        "",
    ] {
        assert_eq!(rig.post("/api/v1/jobs", media, JOB.as_bytes()).0, 415, "{media}");
    }
    assert_eq!(rig.tcp("POST /api/v1/jobs", "", JOB).0, 415);
    assert_eq!(rig.tcp("POST /api/v1/jobs", &JSON.repeat(2), JOB).0, 415);
    assert_eq!(rig.post("/api/v1/operations", "text/plain", b"{}").0, 415);
}

#[test]
fn bodies_that_do_not_hold_are_refused_whole() {
    let rig = Rig::new();
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let malformed = [
        "",
        "{",
        "[",
        "null",
        "7",
        "{}x",
        r#"{"queue":"a","data":"b"} {}"#,
        r#"{"queue":"a"}{"data":"b"}"#,
        &deep,
        r#"{"queue":"a","queue":"b","data":"c"}"#,
        r#"{"queue":"a","data":"b","colour":1}"#,
        r#"{"queue":1,"data":"b"}"#,
        r#"{"queue":"a","data":{"x":1}}"#,
        r#"{"queue":"a","data":"b","priority":1.5}"#,
        "[{\"queue\":\"a\",\"data\":\"\u{1}\"}]",
    ];
    for body in malformed {
        let (status, problem) = rig.post("/api/v1/jobs", api::JSON, body.as_bytes());
        assert_eq!((status, problem["code"].as_str()), (400, Some("usage")), "{body:.60}");
    }
    let refused = [
        json!({"queue": "a"}),
        json!({"queue": "a", "data": "b", "data_base64": "Yg=="}),
        json!({"queue": "", "data": "b"}),
        json!({"queue": "-a", "data": "b"}),
        json!({"queue": "_future", "data": "b"}),
        json!({"queue": "a\n", "data": "b"}),
        json!({"queue": "a", "data_base64": "?"}),
        json!({"queue": "a", "data": "b", "priority": 101}),
        json!({"queue": "a", "data": "b", "at": "soon"}),
        json!({"queue": "a", "data": "b", "run": "r-1"}),
        json!({"queue": "a", "data": "b", "durability": "none"}),
        json!({"queue": "a", "data": "x".repeat((1 << 20) + 1)}),
    ];
    for body in refused {
        let (status, problem) =
            rig.post("/api/v1/jobs", api::JSON, json!([{"queue": "good", "data": ""}, body]).to_string().as_bytes());
        assert_eq!((status, problem["code"].as_str()), (422, Some("bad_data")), "{body:.60}");
    }
    let (_, problem) = rig.post("/api/v1/jobs", api::JSON, br#"[{"queue":"a","data":""},{"queue":"","data":""}]"#);
    assert_eq!(problem["detail"], "job 1: the queue name is empty");
    assert!(rig.kept.lock().unwrap().lots.is_empty(), "one bad job stores none");
}

#[test]
fn too_much_is_refused() {
    let rig = Rig::new();
    let lines = "x\n".repeat(10_000);
    assert_eq!(rig.post("/api/v1/jobs?queue=q", "text/plain", lines.as_bytes()).0, 201);
    assert_eq!(rig.post("/api/v1/jobs?queue=q", "text/plain", format!("{lines}x").as_bytes()).0, 413);
    let jobs = vec![json!({"queue": "q", "data": ""}); 10_001];
    assert_eq!(rig.post("/api/v1/jobs", api::JSON, json!(jobs).to_string().as_bytes()).0, 413);
    assert_eq!(rig.post("/api/v1/jobs", api::RECORDS, &b"\x01\0q\0\0\0\0\0".repeat(10_001)).0, 413);
    let token = rig.token();
    let head = format!(
        "POST /api/v1/jobs?queue=q HTTP/1.1\r\nhost: localhost\r\n\
         authorization: Bearer {token}\r\ncontent-type: text/plain\r\n"
    );
    assert_eq!(
        rig.raw(format!("{head}content-length: 16777217\r\n\r\n")).0,
        413,
        "refused before a byte of it is read"
    );
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    assert_eq!(rig.raw(format!("{head}transfer-encoding: chunked\r\n\r\n{}", chunk.repeat(17))).0, 413);
    assert_eq!(rig.raw(format!("{head}content-length: -1\r\n\r\n")).0, 400);
    assert_eq!(rig.raw(format!("GET /livez?{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(9000))).0, 414);
    assert_eq!(rig.raw(format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(40_000))).0, 431);
    assert_eq!(rig.kept.lock().unwrap().lots.len(), 1);
}

#[test]
fn routes_and_methods_that_are_not_there() {
    let rig = Rig::new();
    for path in [
        "/page",
        "/page.html",
        "/api/v1/job",
        "/api/v2/jobs",
        "/api/v1/jobs/",
        "/../etc/passwd",
        "/%2e%2e/x",
        "/api/v1/jobs/%00",
        "/api/v1/jobs/j-x",
        "/api/v1/runs/r-1",
        "/api/v1/jobs/j-0000000001-1",
        "/api/v1/runs/r-0000000001",
        "/api/v1/runs/r-0000000001/follow",
    ] {
        let (status, problem) = rig.get(path);
        assert_eq!((status, problem["code"].as_str()), (404, Some("not_found")), "{path}");
    }
    assert_eq!(rig.get(&format!("/api/v1/jobs/{}/output", job_id(1))).0, 404);
    assert_eq!(rig.get("/api/v1/jobs/%ff").0, 400);
    for (method, path) in [
        ("GET", "/api/v1/nudge"),
        ("HEAD", "/api/v1/stop"),
        ("OPTIONS", "/api/v1/jobs"),
        ("DELETE", "/api/v1/jobs"),
        ("TRACE", "/livez"),
        ("PUT", "/api/v1/runs"),
    ] {
        let (status, answer) = rig.tcp(&format!("{method} {path}"), "", "");
        assert_eq!(status, 405, "{method} {path}");
        assert!(answer.to_lowercase().contains("allow: "), "{answer}");
    }
    let run = run_id();
    for query in [
        "jobs?limit=0",
        "jobs?limit=1001",
        "jobs?limit=-1",
        "jobs?limit=1e3",
        "jobs?limit=",
        "jobs?limit=1&limit=1",
        "jobs?offset=3",
        "jobs?cursor=x",
        "runs?limit=9999",
        "status?x",
        &format!("runs/{run}/wait?timeout=1"),
        &format!("jobs/{}/output?stream=both", job_id(1)),
    ] {
        assert_eq!(rig.get(&format!("/api/v1/{query}")).0, 400, "{query}");
    }
    assert_eq!(rig.get("/api/v1/jobs?selector=state:done").0, 422);
    assert_eq!(rig.post("/api/v1/nudge", api::JSON, b"{}").0, 400, "a body where none belongs");
}

#[test]
fn what_is_not_http_is_turned_away_and_the_rest_lives() {
    let rig = Rig::new();
    for bytes in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /livez\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
    ] {
        let (status, _) = rig.raw(bytes);
        assert!([0, 400, 505].contains(&status), "{status}");
    }
    // Half a request holds nothing up: its connection waits by itself and is dropped with the test.
    let half: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(rig.server.as_ref().unwrap().address().unwrap()).unwrap();
            std::io::Write::write_all(&mut stream, b"POST /api/v1/jobs HTTP/1.1\r\nhost: local").unwrap();
            stream
        })
        .collect();
    assert_eq!(rig.get("/livez").0, 200);
    drop(half);
    let pipelined = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(999)
        + "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(rig.raw(pipelined).1.matches("200 OK").count(), 1000);
}

#[test]
fn what_the_engine_refuses_is_said_as_it_is() {
    let mut rig = Rig::new();
    for (queue, status, code) in [("no_space", 507, "full"), ("busy", 503, "try_later"), ("dies", 500, "io")] {
        let (found, problem) = rig.post(&format!("/api/v1/jobs?queue={queue}"), "text/plain", b"x");
        assert_eq!((found, problem["code"].as_str()), (status, Some(code)));
        assert_eq!(problem["type"], format!("urn:windlass:problem:{code}"));
    }
    let (_, text) = rig.tcp("POST /api/v1/jobs?queue=busy", "content-type: text/plain\r\n", "x");
    assert!(text.to_lowercase().contains("retry-after: 1"), "{text}");
    rig.end_engine();
    assert_eq!(rig.post("/api/v1/jobs?queue=q", "text/plain", b"x").0, 503);
    assert_eq!(rig.get("/readyz").0, 503);
    assert_eq!(rig.get("/livez").0, 200);
}

#[test]
fn a_wide_address_needs_a_strong_token() {
    let rig = Rig::new();
    let start = |listen: &str, token: Option<&str>| -> Result<(), Failure> {
        let data = crate::data_dir::DataDir::open(&rig.dir.root().join("other"))?;
        let mut options = Options::new(data, |_| Ok(Vec::new()));
        options.listen = Some(listen.parse().unwrap());
        options.token = token.map(str::to_owned);
        let (send, _receive) = std::sync::mpsc::channel();
        let ids = crate::engine::handle::IdSource::new(windlass_core::job::Origin::from_random(1));
        let handle = crate::engine::handle::EngineHandle::new(send, std::sync::Arc::new(ids));
        Server::start(options, handle, super::rig::reads()).map(Server::stop)
    };
    let strong = "0123456789abcdef0123456789abcdef";
    assert_eq!(start("0.0.0.0:0", None).unwrap_err().kind, Kind::Config);
    assert_eq!(start("[::]:0", Some("short")).unwrap_err().kind, Kind::Config);
    assert_eq!(start("127.0.0.1:0", Some("")).unwrap_err().kind, Kind::Config);
    start("0.0.0.0:0", Some(strong)).unwrap();
    start("127.0.0.1:0", None).unwrap();
}

#[test]
fn steering_that_does_not_hold_reaches_no_engine() {
    let rig = Rig::new();
    for body in ["{", "7", r#"{"sets":[]}"#, r#"{"set":[{"target":"q","key":"slots"}]}"#, r#"{"unset":[{}]}"#] {
        let (status, problem) = rig.post("/api/v1/overrides", api::JSON, body.as_bytes());
        assert_eq!((status, problem["code"].as_str()), (400, Some("usage")), "{body}");
    }
    let set = |key: &str, value: serde_json::Value| json!({"target": "q", "key": key, "value": value});
    let unset: Vec<_> = (0..1001).map(|_| json!({"target": "q"})).collect();
    for body in [
        json!({}),
        json!([]),
        json!({"set": [set("colour", json!(3))]}),
        json!({"set": [set("slots", json!(3)), set("slots", json!(-1))]}),
        json!({"set": [set("slots", json!(true))]}),
        json!({"set": [set("slots", json!(1u64 << 40))]}),
        json!({"set": [set("paused", json!(1))]}),
        json!({"set": [{"target": "q", "key": "paused", "value": true, "until": "soon"}]}),
        json!({"unset": [{"target": "q", "key": "colour"}]}),
        json!({ "unset": unset }),
    ] {
        let (status, problem) = rig.post("/api/v1/overrides", api::JSON, body.to_string().as_bytes());
        assert_eq!((status, problem["code"].as_str()), (422, Some("bad_data")), "{body:.60}");
    }
    assert_eq!(rig.post("/api/v1/overrides", "text/plain", b"{}").0, 415);
    for query in ["", "?of", "?of=a%09b", "?of=q&of=q", "?job=q"] {
        let (status, _) = rig.get(&format!("/api/v1/why{query}"));
        assert!([400, 422].contains(&status), "{query}: {status}");
    }
}
