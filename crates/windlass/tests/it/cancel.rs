//! One job of very many under way is cancelled: the one that hangs and one that waits, whatever serves them.

use crate::rig::Rig;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

fn show(rig: &Rig, id: &str) -> Value {
    rig.call(&["show", id, "--json"]).json()
}

/// After a warm-up from which the server knows how short these jobs are, a thousand of which the first hangs: it and
/// one that waits behind it are cancelled, and no other. `hangs` comes back once the first is being worked on.
fn cancels_two_of_a_thousand(rig: &Rig, hangs: impl FnOnce(&str)) {
    for _ in 0..3 {
        rig.feed(&["push", "q"], "short\n".repeat(200)).fine();
        rig.drained();
    }
    let lines = format!("hang\n{}", "short\n".repeat(999));
    let ids = rig.feed(&["push", "q", "--ids"], lines).fine().to_owned();
    let ids: Vec<&str> = ids.lines().collect();
    assert_eq!(ids.len(), 1000);
    hangs(ids[0]);
    rig.call(&["cancel", ids[900]]).fine();
    rig.call(&["cancel", ids[0]]).fine();
    rig.drained();
    for (id, state) in [(0, "cancelled"), (1, "succeeded"), (900, "cancelled"), (999, "succeeded")] {
        let job = show(rig, ids[id]);
        assert_eq!(job["state"], state, "{job}");
        assert_eq!(job["attempts"]["failures"].as_u64().unwrap_or(0), 0, "{job}");
    }
    let of_q = &rig.call(&["status", "--json"]).json()["queues"]["q"];
    assert_eq!((&of_q["succeeded"], &of_q["cancelled"]), (&(600 + 998).into(), &2.into()), "{of_q}");
}

#[test]
fn of_a_kept_worker() {
    let rig = Rig::new();
    let mut bell = rig.bell("bell");
    let script =
        format!("while read -r job; do case $job in hang) echo > {}; sleep 1000;; *) echo ok;; esac; done", bell.path);
    let server = rig.serve(&format!("[queue.q]\nworker = [\"sh\", \"-c\", {script:?}]\nslots = 1\n"));
    cancels_two_of_a_thousand(&rig, |_| {
        bell.next();
    });
    server.stop();
}

#[test]
fn of_a_lua_module() {
    let rig = Rig::new();
    let module = rig.path("q.lua");
    std::fs::write(
        &module,
        "return function(job)\nif job.data == 'hang' then windlass.phase('hangs') while true do end end\nend\n",
    )
    .unwrap();
    let server = rig.serve(&format!("[queue.q]\nlua = {module:?}\nslots = 1\n"));
    cancels_two_of_a_thousand(&rig, |id| while show(&rig, id)["phase"] != "hangs" {});
    server.stop();
}

/// Answers calls on one connection until one hangs, which it says and never answers.
fn answer(stream: &TcpStream, hangs: &mpsc::Sender<()>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            length = line.strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().unwrap());
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if body == b"hang" {
            hangs.send(()).unwrap();
            // Until the caller goes.
            return reader.read_to_end(&mut body).ok().map(drop);
        }
        (&mut &*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

#[test]
fn of_a_url() {
    let rig = Rig::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (hangs, hanging) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, hangs) = (stream.unwrap(), hangs.clone());
            std::thread::spawn(move || answer(&stream, &hangs));
        }
    });
    let server =
        rig.serve(&format!("[limits]\nhosts = [\"{address}\"]\n[queue.q]\nurl = \"http://{address}/\"\nslots = 1\n"));
    cancels_two_of_a_thousand(&rig, |_| hanging.recv().unwrap());
    server.stop();
}
