//! The trace of a job: taken at every door, kept with it, handed to whoever does it, and named in the log.

use crate::rig::{Process, Rig};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;

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
            write!(reader.get_mut(), "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
            let traced = head.into_iter().filter(|line| line.starts_with("trace") || line.starts_with("baggage"));
            calls.push((String::from_utf8(body).unwrap(), traced.collect::<Vec<_>>()));
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
