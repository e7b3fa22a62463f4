//! A job a call.

use crate::rig::{Rig, policy};
use crate::servers::{Handler, Nginx, fine};
use crate::shared::payloads;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use windlass::runner::{Flight, Runner, Stop};
use windlass_core::policy::{Host, Method, Policy, Secret, Service, Url};

#[test]
fn every_payload_arrives_byte_for_byte() {
    let server = Handler::new(|_, _, stream| fine(stream, ""));
    let mut rig = Rig::new();
    for payload in payloads() {
        assert_eq!(rig.one(&policy(server.address, "/in", |_| ()), &payload), "succeeded");
        let asked = server.asked().pop().unwrap();
        assert!(asked.body == payload, "{} bytes became {}", payload.len(), asked.body.len());
        assert_eq!(asked.line, "POST /in HTTP/1.1\r\n");
    }
    assert_eq!(server.connections(), 1, "one call after the other needs one connection");
}

#[test]
fn in_a_url_data_stays_one_part_of_it() {
    let server = Handler::new(|_, _, stream| fine(stream, ""));
    let mut rig = Rig::new();
    let get = policy(server.address, "/x/{queue}?v={}&n={attempt}", |url| url.method = Method::Get);
    for payload in payloads().into_iter().filter(|payload| payload.len() < 1 << 10) {
        assert_eq!(rig.one(&get, &payload), "succeeded");
        let asked = server.asked().pop().unwrap();
        let coded: String = asked.line.split("v=").nth(1).unwrap().split("&n=3 ").next().unwrap().to_owned();
        assert!(asked.line.starts_with("GET /x/q.u%20e?v=") && asked.body.is_empty(), "{}", asked.line);
        let mut rest = coded.as_bytes();
        let mut decoded = Vec::new();
        while let Some((first, behind)) = rest.split_first() {
            let hex =
                (*first == b'%').then(|| u8::from_str_radix(std::str::from_utf8(&behind[..2]).unwrap(), 16).unwrap());
            decoded.push(hex.unwrap_or(*first));
            rest = if hex.is_some() { &behind[2..] } else { behind };
        }
        assert!(decoded == payload, "{coded}");
    }
    let before = server.asked().len();
    let path = policy(server.address, "/x/{}/y", |_| ());
    assert!(rig.one(&path, b"../../admin").starts_with("failed_for_good the URL would have `.` or `..`"));
    assert!(rig.one(&get, &vec![b'x'; 1 << 20]).starts_with("failed_for_good the URL would have 10485"));
    let field = policy(server.address, "/{data.to}", |_| ());
    assert!(rig.one(&field, b"{}").starts_with("failed_for_good the data has no field `to`"));
    assert_eq!(server.asked().len(), before, "none of them was sent");
    assert_eq!(rig.one(&field, br#"{"to":"a b"}"#), "succeeded");
    assert_eq!(server.asked().pop().unwrap().line, "POST /a%20b HTTP/1.1\r\n");
}

#[test]
fn statuses_and_retry_after_become_outcomes() {
    let server = Handler::new(|asked, _, stream| {
        let body = String::from_utf8_lossy(&asked.body);
        let (status, after) = body.split_once(' ').unwrap_or((&body, ""));
        let after = if after.is_empty() { String::new() } else { format!("Retry-After: {after}\r\n") };
        let head = format!(
            "HTTP/1.1 {status} Word\r\n{after}Location: http://127.0.0.1:1/\r\nContent-Length: 4\r\n\r\nso\n\n"
        );
        stream.write_all(head.as_bytes()).is_ok()
    });
    let mut rig = Rig::new();
    let policy = policy(server.address, "/", |_| ());
    for (data, expected) in [
        ("200", "succeeded so"),
        ("301", "failed_for_good HTTP 301: redirects are not followed: so"),
        ("307", "failed_for_good HTTP 307: redirects are not followed: so"),
        ("404", "failed_for_good HTTP 404: so"),
        ("429 7", "snoozed 7s"),
        ("429 Sun, 06 Nov 1994 08:49:37 GMT", "snoozed 0s"),
        ("429 Wed, 06 Nov 2999 08:49:37 GMT", "snoozed 86400s"),
        ("429 nonsense", "retry_later HTTP 429: so"),
        ("503 120", "retry_later 120s HTTP 503: so"),
        ("500", "failed HTTP 500: so"),
        ("999", "failed HTTP 999: so"),
    ] {
        assert_eq!(rig.one(&policy, data.as_bytes()), expected, "{data}");
    }
    assert_eq!(server.asked().len(), 11, "no redirect was followed");
}

#[test]
fn a_server_that_misbehaves_costs_its_job_and_nothing_else() {
    let server = Handler::new(|asked, _, stream| {
        let mut write = |bytes: &str| stream.write_all(bytes.as_bytes()).is_ok();
        match &asked.body[..] {
            b"reset" => false,
            b"short" => !write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"),
            b"long" => write("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef"),
            b"chunked" => {
                write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
            }
            b"bad chunk" => write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            b"1.0" => !write("HTTP/1.0 200 OK\r\n\r\nold"),
            b"noise" => write("hello\r\n\r\n"),
            b"many" => {
                let many: String = (0..2000).map(|n| format!("X-{n}: y\r\n")).collect();
                write(&format!("HTTP/1.1 200 OK\r\n{many}\r\n"))
            }
            b"continue" => write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            _ => write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        }
    });
    let mut rig = Rig::new();
    let policy = policy(server.address, "/", |_| ());
    for (data, expected) in [
        ("reset", "failed the answer broke off"),
        ("short", "failed the answer broke off"),
        ("long", "succeeded abc"),
        ("chunked", "succeeded abcde"),
        ("bad chunk", "failed the answer"),
        ("1.0", "succeeded old"),
        ("noise", "failed the answer is no HTTP"),
        ("many", "failed the answer"),
        ("continue", "succeeded"),
        ("fine", "succeeded"),
    ] {
        let outcome = rig.one(&policy, data.as_bytes());
        assert!(outcome.starts_with(expected), "{data}: {outcome}");
    }
}

#[test]
fn a_gigabyte_is_not_taken_in() {
    let server = Handler::new(|_, _, stream| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1u64 << 30);
        let written = stream.write_all(head.as_bytes()).is_ok();
        // The client hangs up long before the end.
        let sent = (0..1 << 14).take_while(|_| stream.write_all(&[b'x'; 1 << 16]).is_ok()).count();
        assert!(sent < 1 << 13, "it read on");
        !written
    });
    let mut rig = Rig::new();
    let outcome = rig.one(&policy(server.address, "/", |_| ()), b"x");
    assert!(outcome.starts_with("succeeded xxx"), "the status has spoken");
    let many = policy(server.address, "/", |url| url.size = 2);
    let outcomes = rig.all(&many, &[b"a", b"b"]);
    assert!(outcomes.iter().all(|outcome| outcome.starts_with("failed the answer has more than")), "{outcomes:?}");
}

#[test]
fn silence_and_slow_headers_end_with_the_time_limit() {
    let server = Handler::new(|asked, _, stream| {
        if asked.body == b"slow" {
            let mut bytes = b"HTTP/1.1 200 OK\r\nX: ".iter().copied().chain(std::iter::repeat(b'y'));
            // Drips until the other side has had enough.
            while stream.write_all(&[bytes.next().unwrap()]).and_then(|()| stream.flush()).is_ok() {
                std::thread::park_timeout(Duration::from_millis(20));
            }
        }
        stream.set_read_timeout(None).unwrap();
        true
    });
    let mut rig = Rig::new();
    let limited = Policy { time_limit: Some(Duration::from_millis(300)), ..policy(server.address, "/", |_| ()) };
    assert_eq!(rig.all(&limited, &[b"hang", b"slow"]), ["timed_out", "timed_out"]);
}

#[test]
fn an_answer_in_json_says_what_became_of_its_job_and_other_json_is_a_message() {
    // The path is the kind of the answer, the job's data its body.
    let server = Handler::new(|asked, _, stream| {
        let kind = if asked.line.contains("/json") { "application/json; charset=utf-8" } else { "text/plain" };
        let length = asked.body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&asked.body)).is_ok()
    });
    let mut rig = Rig::new();
    for (path, answer, outcome) in [
        ("/json", r#"{"status":"ok","message":"taken"}"#, "succeeded taken"),
        ("/json", r#"{"status":"fail","error":"no such order"}"#, "failed_for_good no such order"),
        ("/json", r#"{"status":"retry","error":"not yet"}"#, "retry_later not yet"),
        ("/json", r#"{"status":"again"}"#, "snoozed"),
        ("/json", r#"{"status":"snooze","after":"5m"}"#, "snoozed"),
        ("/json", r#"{"status":"accepted"}"#, r#"succeeded {"status":"accepted"}"#),
        ("/json", r#"{"id":7}"#, r#"succeeded {"id":7}"#),
        ("/json", r#"{"status":"ok","emit":7}"#, "failed "),
        ("/text", r#"{"status":"fail"}"#, r#"succeeded {"status":"fail"}"#),
    ] {
        let said = rig.one(&policy(server.address, path, |_| ()), answer.as_bytes());
        assert!(said.starts_with(outcome), "{path} {answer}: {said}");
    }
    let emits = br#"{"status":"ok","emit":[{"queue":"bill","data":"42"}]}"#;
    rig.start(&policy(server.address, "/json", |_| ()), &[emits], 1);
    let heard = rig.hear();
    assert_eq!(heard.emitted.len(), 1);
    assert_eq!((heard.emitted[0].queue.as_str(), &heard.emitted[0].data[..]), ("bill", &b"42"[..]));
    assert_eq!(heard.output.stdout.head, emits, "and the answer is kept");
}

#[test]
fn a_connection_that_was_closed_meanwhile_costs_nothing() {
    // Closes without a word at the second request of each connection.
    let server = Handler::new(|_, number, stream| number == 1 && fine(stream, ""));
    let mut rig = Rig::new();
    for _ in 0..20 {
        assert_eq!(rig.one(&policy(server.address, "/", |_| ()), b"x"), "succeeded");
    }
    assert_eq!(server.connections(), 20);
}

#[test]
fn only_hosts_that_are_named_may_be_inside() {
    let server = Handler::new(|_, _, stream| fine(stream, ""));
    let canary = server.address.port();
    let mut rig = Rig::new();
    let hosts = "127.0.0.1 localhost ::1 0.0.0.0 :: ::ffff:127.0.0.1 ::127.0.0.1 127.1 0x7f.1 2130706433 0177.0.0.1 \
                 169.254.169.254 10.0.0.1 192.168.0.1 fe80::1 fd00:ec2::254 64:ff9b::7f00:1 2002:7f00:1::1";
    for name in hosts.split_whitespace() {
        let host = Host { tls: false, name: name.into(), port: canary, inside: false };
        let outcome = rig.one(&Policy::new("q", Service::Url(Url::new(host, "/"))), b"x");
        assert!(outcome.starts_with("retry_later cannot reach"), "{name}: {outcome}");
    }
    assert_eq!(server.connections(), 0);
    for (name, fine) in
        [("localhost", true), ("127.0.0.1", true), ("127.1", true), ("169.254.169.254", false), ("0.0.0.0", false)]
    {
        let host = Host { tls: false, name: name.into(), port: canary, inside: true };
        let outcome = rig.one(&Policy::new("q", Service::Url(Url::new(host, "/"))), b"x");
        assert_eq!(outcome == "succeeded", fine, "{name}: {outcome}");
    }
}

#[test]
fn headers_name_the_job_and_the_signature_holds() {
    let server = Handler::new(|_, _, stream| fine(stream, ""));
    let mut rig = Rig::new();
    let signed =
        policy(server.address, "/", |url| url.secret = Some(Secret { file: "hook.secret".into(), key: vec![7; 32] }));
    let id = rig.start(&signed, &[b"{\"a\":1}"], 1).remove(0).to_string();
    rig.outcomes(1);
    let asked = server.asked().remove(0);
    assert_eq!(asked.header("webhook-id"), id);
    assert_eq!(asked.header("content-type"), "application/json");
    assert_eq!((asked.header("windlass-queue"), asked.header("windlass-attempt")), ("q.u%20e", "3"));
    let told = [&id, ".", asked.header("webhook-timestamp"), ".{\"a\":1}"].concat();
    let script = "import base64,hashlib,hmac,sys\n\
                  made = hmac.new(bytes([7]*32), sys.argv[1].encode(), hashlib.sha256).digest()\n\
                  print(base64.b64encode(made).decode())";
    let stock = std::process::Command::new("python3").args(["-c", script, &told]).output().unwrap();
    assert_eq!(asked.header("webhook-signature"), format!("v1,{}", String::from_utf8(stock.stdout).unwrap().trim()));
}

#[test]
fn tls_is_checked_against_whom_the_system_trusts() {
    let nginx = Nginx::start("location / { return 200 'safe\n'; }", true);
    let host = |name: &str| Host { tls: true, name: name.into(), port: nginx.port, inside: true };
    let mut rig = Rig::new();
    let outcome = rig.one(&Policy::new("q", Service::Url(Url::new(host("localhost"), "/"))), b"x");
    assert!(
        outcome.contains("cannot reach localhost") && outcome.contains("TLS: invalid peer certificate"),
        "{outcome}"
    );
    assert!(nginx.certificate().is_file());
}

/// Through the program, since the variable is a process's own.
#[test]
fn a_certificate_that_the_environment_names_is_trusted() {
    let nginx = Nginx::start("location / { return 200 'safe\\n'; }", true);
    let dir = tempfile::tempdir().unwrap();
    let call = |words: &[&str], trusted: Option<&std::path::Path>| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.env_remove("SSL_CERT_DIR").env_remove("WINDLASS_CONFIG").env("WINDLASS_DIR", dir.path());
        let output = command.args(words).envs(trusted.map(|path| ("SSL_CERT_FILE", path))).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let theirs = || Some(nginx.certificate());
    for (trusted, name, state, words) in [
        (None, "localhost", "failed", "TLS: invalid peer certificate"),
        (theirs(), "localhost", "succeeded", "safe"),
        (theirs(), "127.0.0.1", "failed", "TLS: invalid peer certificate: certificate not valid for name"),
    ] {
        let config = format!(
            "[limits]\nhosts = [\"{name}\"]\n[queue.q]\nurl = \"https://{name}:{}/\"\nattempts = 1\n",
            nginx.port
        );
        std::fs::write(dir.path().join("windlass.toml"), config).unwrap();
        let id = call(&["push", "q", "x"], None).1;
        assert!(call(&["serve", "--idle", "100ms"], trusted.as_deref()).0);
        let shown = call(&["show", id.trim(), "--json"], None).1;
        assert!(shown.contains(&format!("\"state\":\"{state}\"")) && shown.contains(words), "{shown}");
    }
}

/// In a process of its own, where nobody else opens anything.
#[test]
fn ten_thousand_calls_leave_no_descriptor() {
    const ALONE: &str = "WINDLASS_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "calls::ten_thousand_calls_leave_no_descriptor"]).env(ALONE, "1");
        let output = alone.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let nginx = Nginx::start("location / { return 204; } keepalive_requests 100;", false);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let address = SocketAddr::from(([127, 0, 0, 1], nginx.port));
    let mut rig = Rig::new();
    rig.one(&policy(address, "/", |_| ()), b"first");
    drop(rig);
    let before = open();
    let mut rig = Rig::new();
    let data: Vec<&[u8]> = vec![b"x"; 1000];
    for _ in 0..10 {
        rig.start(&policy(address, "/", |_| ()), &data, 1000);
    }
    let outcomes = rig.outcomes(10_000);
    assert!(outcomes.iter().all(|outcome| outcome.word() == "succeeded"));
    drop(rig);
    assert_eq!(open(), before);
}

#[test]
fn calls_that_are_stopped_are_told_so_and_what_waits_does_not_begin() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new();
    let one = Policy { slots: 1, ..policy(listener.local_addr().unwrap(), "/", |_| ()) };
    rig.start(&one, &[b"a"], 1);
    let _accepted = listener.accept().unwrap();
    rig.start(&one, &[b"b"], 1);
    rig.runner.stop(Flight(2), Stop::Withdraw);
    assert_eq!(rig.outcomes(1)[0].word(), "interrupted");
    rig.runner.stop(Flight(1), Stop::Withdraw);
    rig.runner.stop(Flight(1), Stop::Cancel);
    assert_eq!(rig.outcomes(1)[0].word(), "cancelled");
    rig.start(&one, &[b"c"], 1);
    let _accepted = listener.accept().unwrap();
    rig.runner.stop(Flight(3), Stop::Interrupt);
    assert_eq!(rig.outcomes(1)[0].word(), "interrupted");
}

#[test]
fn a_checkpoint_goes_with_the_call_and_comes_with_its_answer() {
    let server = Handler::new(|_, _, stream| {
        let head = "HTTP/1.1 500 No\r\nWindlass-Checkpoint: page%208%0A%C3%A9\r\nContent-Length: 0\r\n\r\n";
        std::io::Write::write_all(stream, head.as_bytes()).is_ok()
    });
    let mut rig = Rig::new();
    let policy = policy(server.address, "/in", |_| ());
    for (told, sent) in [("", ""), ("page 7\n%\u{e9}", "page%207%0A%25%C3%A9")] {
        rig.checkpoint = told.into();
        rig.start(&policy, &[b"x"], 1);
        assert_eq!(rig.hear().checkpoints, [(0, "page 8\n\u{e9}".to_owned())]);
        assert_eq!(server.asked().pop().unwrap().header("windlass-checkpoint"), sent);
    }
}
