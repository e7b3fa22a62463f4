//! Pushing from many threads: shared requests, ids of one's own, and the inbox where nobody answers.

use super::*;
use crate::http::tests::rig::{Rig, job_id, run_id};
use std::collections::{HashMap, HashSet};

fn client(rig: &Rig) -> Arc<Client> {
    Arc::new(Client::new(rig.dir.clone()))
}

/// How many records stand in the inbox: each begins with CAN LF, and nothing else holds it.
fn in_inbox(rig: &Rig) -> usize {
    let files = std::fs::read_dir(rig.dir.inbox()).unwrap();
    let bytes = files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap());
    bytes.collect::<Vec<u8>>().windows(2).filter(|pair| pair == b"\x18\n").count()
}

#[test]
fn sixty_four_pushers_get_their_own_ids_for_their_own_data() {
    let rig = Rig::new();
    let client = client(&rig);
    let threads: Vec<_> = (0..64)
        .map(|thread| {
            let client = client.clone();
            std::thread::spawn(move || {
                let push = |n: u32| {
                    let data = format!("{thread} {n}");
                    let queue = if n.is_multiple_of(2) { "even" } else { "odd" };
                    let pushed = client.push(queue, data.as_bytes(), PushOptions::default()).unwrap();
                    assert_eq!(pushed.durability, Durability::Full);
                    (pushed.id, data)
                };
                (0..50).map(push).collect::<Vec<_>>()
            })
        })
        .collect();
    let pushed: HashMap<JobId, String> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(pushed.len(), 64 * 50, "no id was given twice");
    assert_eq!(in_inbox(&rig), 0);
    let kept = rig.kept.lock().unwrap();
    let stored = kept.jobs().flat_map(|new| (0..new.jobs.len()).map(|n| (new.jobs.id(n), new.jobs.data(n).to_vec())));
    let stored: HashMap<JobId, Vec<u8>> = stored.collect();
    assert_eq!(stored.len(), pushed.len());
    for (id, data) in &pushed {
        assert_eq!(stored[id], data.as_bytes(), "{id}");
    }
}

#[test]
fn options_travel_with_the_job() {
    let rig = Rig::new();
    let client = client(&rig);
    let options = PushOptions {
        priority: Priority::new(-7).unwrap(),
        at: Some(Time(5)),
        run: Some(run_id()),
        ..PushOptions::default()
    };
    assert_eq!(client.push("a b/ż", b"\0\n", options).unwrap().id, job_id(0));
    client.push("q", b"", PushOptions { priority: Priority::new(100).unwrap(), ..PushOptions::default() }).unwrap();
    let kept = rig.kept.lock().unwrap();
    let jobs: Vec<_> = kept.jobs().collect();
    assert_eq!(
        (jobs[0].queue.as_str(), jobs[0].priority.value(), jobs[0].not_before, jobs[0].run),
        ("a b/ż", -7, Some(Time(5)), Some(run_id()))
    );
    assert_eq!((jobs[0].jobs.data(0), jobs[1].priority.value()), (&b"\0\n"[..], 100));
}

#[test]
fn without_a_server_and_for_os_the_inbox_takes_it() {
    let mut rig = Rig::new();
    let client = client(&rig);
    client.push("q", b"x", PushOptions { durability: Durability::Os, ..PushOptions::default() }).unwrap();
    assert_eq!(in_inbox(&rig), 1);
    client.push("q", b"x", PushOptions::default()).unwrap();
    assert_eq!(in_inbox(&rig), 1);
    drop(rig.server.take());
    let ids: HashSet<_> = (0..3).map(|_| client.push("q", b"x", PushOptions::default()).unwrap().id).collect();
    assert_eq!((ids.len(), in_inbox(&rig)), (3, 4));
    client.push("q", b"x", PushOptions { at: Some(Time(1)), ..PushOptions::default() }).unwrap();
    assert_eq!(in_inbox(&rig), 5);
}

#[test]
fn only_a_sure_refusal_leads_to_the_inbox() {
    let rig = Rig::new();
    let client = client(&rig);
    client.push("busy", b"x", PushOptions::default()).unwrap();
    assert_eq!(in_inbox(&rig), 1, "nothing was stored there, so the inbox takes it");
    // Another client, because this one leaves a busy server alone for a while.
    let client = self::client(&rig);
    assert_eq!(client.push("no_space", b"x", PushOptions::default()).unwrap_err().kind, Kind::Full);
    let unknown = client.push("dies", b"x", PushOptions::default()).unwrap_err();
    assert_eq!(unknown.kind, Kind::Io);
    assert!(unknown.hint.unwrap().contains("may or may not"));
    assert_eq!(in_inbox(&rig), 1, "a job that may exist must not be pushed again");
    assert_eq!(client.push("", b"x", PushOptions::default()).unwrap_err().kind, Kind::BadData);
    assert_eq!(client.push("q", &vec![0; DATA_MAX + 1], PushOptions::default()).unwrap_err().kind, Kind::BadData);
}

#[test]
fn a_server_that_hangs_does_not_hold_up_a_push() {
    let mut rig = Rig::new();
    drop(rig.server.take());
    // It listens and never answers, like a stopped process.
    let _stuck = std::os::unix::net::UnixListener::bind(rig.dir.socket()).unwrap();
    let client = client(&rig);
    client.push("q", b"x", PushOptions::default()).unwrap();
    assert_eq!(in_inbox(&rig), 1);
    // For a while it is not even asked: the next pushes see no more of it than of a server that is not there.
    assert!(client.gathering().is_avoiding());
    client.push("q", b"x", PushOptions { at: Some(Time(1)), ..PushOptions::default() }).unwrap();
    assert_eq!(in_inbox(&rig), 2);
}

#[test]
fn urls_name_both_kinds_of_server() {
    let rig = Rig::new();
    let address = rig.server.as_ref().unwrap().address().unwrap();
    let token = rig.token();
    let url = std::fs::read_to_string(rig.dir.run().join("address")).unwrap();
    let mut connection = Connection::open_url(url.trim(), Some(&token)).unwrap().unwrap();
    assert_eq!(connection.target(), &Target::Tcp(address.to_string()));
    assert_eq!(connection.get("/api/v1/status").unwrap().status, 200);
    assert_eq!(connection.get("/api/v1/status").unwrap().status, 200, "the connection is kept");
    let mut bare = Connection::open_url(&format!("http://localhost:{}/", address.port()), None).unwrap().unwrap();
    assert_eq!(bare.get_json::<api::Status>("/api/v1/status").unwrap_err().kind, Kind::NotPermitted);
    let unix = format!("unix://{}", rig.dir.socket().display());
    assert_eq!(Connection::open_url(&unix, None).unwrap().unwrap().get("/livez").unwrap().status, 200);
    for bad in [
        "",
        "localhost",
        "https://localhost:1",
        "http://a b:80",
        "http://127.0.0.1",
        "http://[::1:80",
        "http://x:99999",
    ] {
        assert_eq!(Connection::open_url(bad, None).unwrap_err().kind, Kind::Usage, "{bad}");
    }
}

#[test]
fn a_large_refused_body_still_gets_its_reason() {
    let rig = Rig::new();
    let body = vec![b'x'; api::BODY_MAX + 1];
    let response = rig.connect().post("/api/v1/jobs?queue=q", api::BYTES, &body).unwrap();
    assert_eq!(response.checked().unwrap_err().kind, Kind::BadData);
}
