//! The trace of a job: taken at every door, kept with it, handed to whoever does it, and named in the log.

use crate::rig::{Process, Rig};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const ID: &str = "0af7651916cd43dd8448eb211c80319c";

fn parent(span: &str) -> String {
    format!("00-{ID}-{span}-01")
}

/// What the server answers to a request on its socket.
fn post(rig: &Rig, path: &str, headers: &str, body: &str) -> String {
    let mut socket = UnixStream::connect(rig.dir().join("run/socket")).unwrap();
    let length = body.len();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The lines of a request's head, and its body; no lines where the connection has ended.
fn request(reader: &mut BufReader<TcpStream>) -> (Vec<String>, String) {
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
        head.push(line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

/// A collector of traces that answers so, and the spans that it is posted, one by one.
fn collector(status: &'static str) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let (told, spans) = channel();
    // It ends with the test's process.
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let mut reader = BufReader::new(stream);
            loop {
                let (head, body) = request(&mut reader);
                let Some(first) = head.first() else { break };
                assert_eq!(first, "post /v1/traces http/1.1");
                assert!(head.contains(&"content-type: application/json".to_owned()), "{head:?}");
                let document: Value = serde_json::from_str(&body).unwrap();
                let resource = &document["resourceSpans"][0];
                let service = json!([{ "key": "service.name", "value": { "stringValue": "nightly" } }]);
                assert_eq!(resource["resource"]["attributes"], service);
                for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
                    let _gone = told.send(span.clone());
                }
                write!(reader.get_mut(), "HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}").unwrap();
            }
        }
    });
    (address, spans)
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == key);
    let value = &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"];
    value.get("stringValue").unwrap_or(&value["intValue"])
}

#[test]
fn every_attempt_of_a_traced_job_is_a_span_for_the_collector() {
    let rig = Rig::new();
    let (address, spans) = collector("200 OK");
    let reply = "while read -r line; do echo ok; done";
    let server = rig.serve(&format!(
        "[traces]\nexport = {address:?}\nservice = \"nightly\"\n[queue.good]\nrun = [\"true\"]\n\
         [queue.bad]\nattempts = 2\nbackoff = \"1ms\"\nrun = [\"sh\", \"-c\", \"exit 3\"]\n\
         [queue.many]\nbatch = [\"sh\", \"-c\", {reply:?}]\n"
    ));
    let push =
        |queue: &str, trace: &str| rig.call(&["push", queue, "x", "--trace", trace]).fine().trim_end().to_owned();
    let traced = parent("b7ad6b7169203331");
    // Neither a job without a trace nor one whose trace nobody records has any.
    rig.call(&["push", "good", "plain"]).fine();
    push("good", &format!("00-{ID}-b7ad6b7169203331-00"));
    let (good, bad, many) = (push("good", &traced), push("bad", &traced), push("many", &traced));
    rig.drained();
    let heard: Vec<Value> = (0..7).map(|_| spans.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    server.stop();
    assert_eq!(spans.try_iter().collect::<Vec<_>>(), Vec::<Value>::new());
    let of = |id: &str, name: &str| -> Vec<&Value> {
        let mine = |span: &&Value| attribute(span, "messaging.message.id") == id && span["name"] == name;
        heard.iter().filter(mine).collect()
    };
    for (id, queue, attempts) in [(&good, "good", 1), (&bad, "bad", 2), (&many, "many", 1)] {
        let (sent, processed) = (of(id, &format!("send {queue}")), of(id, &format!("process {queue}")));
        assert_eq!((sent.len(), processed.len()), (1, attempts), "{heard:#?}");
        assert_eq!((&sent[0]["kind"], &processed[0]["kind"]), (&json!(4), &json!(5)));
        assert_eq!((&sent[0]["traceId"], &sent[0]["parentSpanId"]), (&json!(ID), &json!("b7ad6b7169203331")));
        assert_eq!(attribute(processed[0], "messaging.system"), "windlass");
        assert_eq!(attribute(processed[0], "messaging.destination.name"), queue);
        let at = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
        let (start, end) = (at(processed[0], "startTimeUnixNano"), at(processed[0], "endTimeUnixNano"));
        assert!(at(sent[0], "endTimeUnixNano") <= start && start <= end, "{heard:#?}");
    }
    for span in of(&good, "process good").into_iter().chain(of(&bad, "process bad")) {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(ID), &json!("b7ad6b7169203331")));
    }
    assert_eq!(of(&good, "process good")[0]["status"], json!({ "code": 1 }));
    for (at, span) in of(&bad, "process bad").into_iter().enumerate() {
        assert_eq!(attribute(span, "windlass.attempt"), (at + 1).to_string().as_str());
        assert_eq!(attribute(span, "windlass.outcome"), "failed");
        assert_eq!(span["status"], json!({ "code": 2, "message": "exit 3" }));
    }
    // One of a batch is nobody's child.
    let linked = of(&many, "process many")[0];
    assert_eq!(linked.get("parentSpanId"), None, "{linked}");
    assert_ne!(linked["traceId"], ID);
    let link = &linked["links"][0];
    assert_eq!((&link["traceId"], &link["spanId"]), (&json!(ID), &json!("b7ad6b7169203331")));
}

#[test]
fn a_collector_that_is_dead_or_unwilling_costs_no_job_anything() {
    let closed = format!("127.0.0.1:{}", crate::ports::free_port());
    let (unwilling, _spans) = collector("503 Service Unavailable");
    for (address, why) in [(format!("http://{closed}/"), "nobody listens"), (unwilling, "answered with status 503")] {
        let rig = Rig::new();
        let mut server = rig.serve(&format!(
            "[traces]\nexport = {address:?}\nservice = \"nightly\"\n\
             [queue.q]\nrun = [\"true\"]\n"
        ));
        let succeeds = || {
            let pushed = rig.call(&["push", "q", "x", "--trace", &parent("b7ad6b7169203331")]);
            rig.drained();
            assert_eq!(rig.call(&["show", pushed.fine().trim_end(), "--json"]).json()["state"], "succeeded");
        };
        succeeds();
        let said = server.process.until("spans are dropped");
        assert!(said.contains(why), "{said}");
        // Once is enough.
        succeeds();
        let rest = server.stop();
        assert!(!rest.contains("spans are dropped"), "{rest}");
    }
}

#[test]
fn without_a_collector_in_the_config_nothing_is_sent() {
    let rig = Rig::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::fs::write(rig.path("w.toml"), "[traces]\nservice = \"nightly\"\n[queue.q]\nrun = [\"true\"]\n").unwrap();
    let mut tick = rig.windlass(&["tick", "--config", rig.path("w.toml").to_str().unwrap()]);
    rig.call(&["push", "q", "x", "--trace", &parent("b7ad6b7169203331")]).fine();
    // What others make of these variables is theirs.
    let variables = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    Process::start(tick.envs(variables.map(|name| (name, &address)))).end().fine();
    let done = rig.call(&["ls", "--json"]).json();
    assert_eq!(done[0]["state"], "succeeded", "{done}");
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_trace_goes_from_the_pusher_to_the_command_and_to_what_it_emits() {
    let rig = Rig::new();
    let out = rig.path("out");
    let script = format!(
        "echo \"$1 $TRACEPARENT|$TRACESTATE|$BAGGAGE\" >> {}; \
         test \"$1\" != first || printf 'q\\tsecond\\n' >> $WINDLASS_EMIT",
        out.display()
    );
    let server = rig.serve(&format!(
        "[log]\nfile = \"log\"\n[queue.q]\nslots = 1\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\n"
    ));
    let variables =
        [("TRACEPARENT", parent("b7ad6b7169203331")), ("TRACESTATE", "a=1".into()), ("BAGGAGE", "u=42".into())];
    let mut command = rig.windlass(&["push", "q", "first"]);
    let id = Process::start(command.envs(variables)).end().fine().trim_end().to_owned();
    rig.drained();
    let told = format!("{}|a=1|u=42", parent("b7ad6b7169203331"));
    assert_eq!(crate::rig::lines_of(&out), [format!("first {told}"), format!("second {told}")]);
    let shown = rig.call(&["show", &id, "--json"]).json();
    assert_eq!(shown["trace"]["parent"], parent("b7ad6b7169203331").as_str(), "{shown}");
    let shown = rig.call(&["show", &id]).fine().to_owned();
    assert!(shown.contains(ID), "{shown}");
    // A parent that is none is as if it were not there; an option goes before the environment, and must be one.
    let pushed = |value: &str, words: &[&str]| {
        Process::start(rig.windlass(&[&["push", "q", "plain"], words].concat()).env("TRACEPARENT", value)).end()
    };
    pushed("00-nonsense-01", &[]).fine();
    let other = parent("00f067aa0ba902b7");
    pushed(&parent("b7ad6b7169203331"), &["--trace", &other]).fine();
    pushed("", &["--trace", "00-nonsense-01"]).says("the trace parent is none").ended(64);
    rig.drained();
    server.stop();
    assert_eq!(crate::rig::lines_of(&out)[2..], ["plain ||".to_owned(), format!("plain {other}||")]);
    let log = crate::rig::lines_of(&rig.dir().join("log"));
    assert_eq!(log.iter().filter(|line| line.contains(&format!("trace_id={ID}"))).count(), 3, "{log:?}");
}

#[test]
fn a_trace_goes_from_the_headers_of_a_push_to_those_of_a_call() {
    let rig = Rig::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = rig.serve(&format!(
        "[limits]\nhosts = [\"127.0.0.1:{port}\"]\n[queue.q]\nslots = 1\nurl = \"http://127.0.0.1:{port}/\"\n"
    ));
    let heard = std::thread::spawn(move || {
        let mut calls = Vec::new();
        while calls.len() < 4 {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let (head, body) = request(&mut reader);
            write!(reader.get_mut(), "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
            let traced = head.into_iter().filter(|line| line.starts_with("trace") || line.starts_with("baggage"));
            calls.push((body, traced.collect::<Vec<_>>()));
        }
        calls.sort();
        calls
    });
    let (one, two) = (parent("b7ad6b7169203331"), parent("00f067aa0ba902b7"));
    let json = "content-type: application/json\r\n";
    post(
        &rig,
        "/api/v1/jobs",
        &format!("{json}traceparent: {one}\r\ntracestate: a=1\r\nbaggage: u=42\r\n"),
        &format!(
            "[{{\"queue\":\"q\",\"data\":\"1\"}},{{\"queue\":\"q\",\"data\":\"2\",\"trace\":{{\"parent\":\"{two}\"}}}}]"
        ),
    );
    post(&rig, "/api/v1/jobs?queue=q", &format!("content-type: text/plain\r\ntraceparent: {two}\r\n"), "3\n");
    post(&rig, "/api/v1/jobs?queue=q", "content-type: text/plain\r\ntraceparent: 00-zz\r\ntracestate: a=1\r\n", "4\n");
    rig.drained();
    let expected = [
        ("1", vec!["baggage: u=42".to_owned(), format!("traceparent: {one}"), "tracestate: a=1".to_owned()]),
        ("2", vec![format!("traceparent: {two}")]),
        ("3", vec![format!("traceparent: {two}")]),
        ("4", Vec::new()),
    ];
    for ((body, mut traced), (data, wanted)) in heard.join().unwrap().into_iter().zip(expected) {
        traced.sort();
        assert_eq!((body.as_str(), traced), (data, wanted));
    }
    server.stop();
}

#[test]
fn a_trace_reaches_a_worker_elsewhere() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nremote = true\n");
    let mut bell = rig.bell("bell");
    let one = parent("b7ad6b7169203331");
    rig.call(&["push", "q", "x", "--trace", &one]).fine();
    let script = format!("echo $TRACEPARENT > {}", bell.path);
    let worker = rig.start(&["work", "q", "-j", "1", "--", "sh", "-c", &script], std::process::Stdio::null());
    assert_eq!(bell.next(), one);
    rig.drained();
    worker.signal(rustix::process::Signal::TERM);
    worker.end().fine();
    server.stop();
}

#[test]
fn a_trace_stands_in_the_line_of_each_job_of_a_process_that_has_many() {
    let rig = Rig::new();
    let (batch, kept) = (rig.path("batch"), rig.path("kept"));
    let seen = |path: &std::path::Path, reply: &str| {
        format!("while read -r line; do echo \"$line\" >> {}; {reply}; done", path.display())
    };
    let (one, two) = (seen(&batch, "echo ok"), seen(&kept, "echo ok"));
    let server = rig.serve(&format!(
        "[queue.batch]\nbatch = [\"sh\", \"-c\", {one:?}]\nframing = \"json\"\n\
         [queue.kept]\nworker = [\"sh\", \"-c\", {two:?}]\nframing = \"json\"\n"
    ));
    let one = parent("b7ad6b7169203331");
    for queue in ["batch", "kept"] {
        rig.call(&["push", queue, "traced", "--trace", &one]).fine();
        rig.call(&["push", queue, "plain"]).fine();
    }
    rig.drained();
    server.stop();
    for file in [batch, kept] {
        let lines = crate::rig::lines_of(&file);
        let told = |data: &str| {
            let read = |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap();
            lines.iter().map(read).find(|job| job["data"] == data).unwrap()
        };
        assert_eq!(told("traced")["trace"], serde_json::json!({ "parent": one }), "{lines:?}");
        assert_eq!(told("plain").get("trace"), None, "{lines:?}");
    }
}
