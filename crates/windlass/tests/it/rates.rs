//! Rates and dead destinations through the whole program, and what `why` says of them.

use crate::rig::Rig;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The reasons why, as code and sentence.
#[track_caller]
fn why(rig: &Rig, of: &str) -> Vec<(String, String)> {
    let told = rig.call(&["why", of, "--json"]).json();
    let text = |reason: &Value, key: &str| reason[key].as_str().unwrap().to_owned();
    told["reasons"].as_array().unwrap().iter().map(|reason| (text(reason, "code"), text(reason, "text"))).collect()
}

fn push(rig: &Rig, queue: &str, data: &str) -> String {
    rig.call(&["push", queue, data]).fine().trim_end().to_owned()
}

#[test]
fn each_queue_of_a_pattern_has_the_rate_for_itself_and_why_says_what_waits() {
    let rig = Rig::new();
    let server = rig.serve("[queue.\"q.*\"]\nrun = [\"echo\", \"{}\"]\nrate = \"1/h\"\n");
    for queue in ["q.a", "q.b"] {
        let first = push(&rig, queue, "1");
        rig.call(&["wait", &first]).fine();
        let second = push(&rig, queue, "2");
        let reasons = why(&rig, &second);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert_eq!(reasons[0].0, "rate_reached");
        assert!(
            reasons[0].1.starts_with("its rate (1/h) lets no further job start yet; the next may on "),
            "{reasons:?}"
        );
        assert_eq!(why(&rig, queue)[0].0, "rate_reached");
    }
    // A reload without the rate lets them go.
    std::fs::write(rig.dir().join("windlass.toml"), "[queue.\"q.*\"]\nrun = [\"echo\", \"{}\"]\n").unwrap();
    rig.call(&["config", "reload"]).fine();
    rig.drained();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q.b"]["succeeded"], 2);
    server.stop();
}

#[test]
fn each_key_of_the_data_has_the_rate_for_itself() {
    let rig = Rig::new();
    let server = rig.serve(
        "[queue.q]\nrun = [\"echo\", \"{data.host}\"]\nslots = 1\nattempts = 1\n\
         rate = \"1/h\"\nrate_key = \"{data.host}\"\n",
    );
    let hosts = ["a", "a", "b", "a", "c"].map(|host| push(&rig, "q", &format!("{{\"host\":\"{host}\"}}")));
    for at in [0, 2, 4] {
        rig.call(&["wait", &hosts[at]]).fine();
    }
    for at in [1, 3] {
        let job = rig.call(&["show", &hosts[at], "--json"]).json();
        assert_eq!(job["state"], "scheduled", "it is put off, and those behind it went on");
        assert_eq!(job["attempts"]["failures"], 0);
        let reasons = why(&rig, &hosts[at]);
        assert_eq!(reasons[1].0, "rate_reached", "{reasons:?}");
        assert!(reasons[1].1.starts_with("for `a`: its rate (1/h)"), "{reasons:?}");
    }
    // A job without the field has a destination, too; its own trouble is the template's.
    let odd = push(&rig, "q", "no json");
    rig.call(&["wait", &odd]);
    assert_eq!(rig.call(&["show", &odd, "--json"]).json()["state"], "failed");
    server.stop();
}

#[test]
fn a_dead_host_is_probed_by_one_job_at_a_time_until_it_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let lives = Arc::new(AtomicBool::new(false));
    let alive = Arc::clone(&lives);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // While it is dead it hangs up at once.
            if alive.load(Ordering::SeqCst) {
                let mut asked = Vec::new();
                let mut bytes = [0; 4096];
                while !asked.ends_with(b"\r\n\r\nx") {
                    let count = stream.read(&mut bytes).unwrap();
                    asked.extend_from_slice(&bytes[..count]);
                }
                stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").unwrap();
            }
        }
    });
    let rig = Rig::new();
    let server = rig.serve(&format!(
        "[limits]\nhosts = [\"127.0.0.1:{port}\"]\n[queue.q]\nurl = \"http://127.0.0.1:{port}/\"\nslots = 1\n\
         dead_after = 2\nattempts = 0\nbackoff = \"1ms\"\nbackoff_max = \"1ms\"\n"
    ));
    let ids: Vec<String> = (0..5).map(|_| push(&rig, "q", "x")).collect();
    let reason = loop {
        let reasons = why(&rig, "q");
        if let Some(reason) = reasons.into_iter().find(|(code, _)| code == "destination_dead") {
            break reason.1;
        }
    };
    assert!(reason.starts_with("its destination has failed ") && reason.contains(" times in a row"), "{reason}");
    let failures = |id: &String| rig.call(&["show", id, "--json"]).json()["attempts"]["failures"].as_u64().unwrap_or(0);
    let before: u64 = ids.iter().map(failures).sum();
    assert!(before < 20, "{before} failures: the other jobs' attempts are not burnt while it is dead");
    lives.store(true, Ordering::SeqCst);
    rig.drained();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["succeeded"], 5);
    server.stop();
}
