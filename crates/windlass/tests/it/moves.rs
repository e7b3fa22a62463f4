//! Two servers with nothing shared: queues that are forwarded and jobs that are moved, once by id, while either side
//! dies, answers nothing, refuses or goes in a circle.

use crate::ports::free_port;
use crate::rig::{Rig, Server, is_ready};
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

/// A server that keeps its address through its deaths.
pub(crate) struct Machine {
    pub(crate) rig: Rig,
    port: u16,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine { rig: Rig::new(), port: free_port() }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn serve(&self, queues: &str) -> Server {
        self.rig.serve(&format!("[server]\nlisten = \"127.0.0.1:{}\"\n{queues}", self.port))
    }

    fn token(&self) -> String {
        self.rig.dir().join("run/token").to_str().unwrap().to_owned()
    }

    /// The part of a config that forwards a queue to this machine, by this address.
    fn forward_by(&self, queue: &str, port: u16) -> String {
        // Its token is made with its first start.
        let token = self.token();
        format!(
            "[limits]\nhosts = [\"127.0.0.1\"]\n[queue.{queue}]\nforward = \"http://127.0.0.1:{port}\"\n\
             token_file = \"{token}\"\n"
        )
    }

    pub(crate) fn forward(&self, queue: &str) -> String {
        self.forward_by(queue, self.port)
    }

    /// All jobs that wait or run here, by state and data.
    fn waiting(&self) -> Vec<(String, String)> {
        let told = self.rig.call(&["ls", "-o", "jsonl", "state:scheduled,ready,running,retrying,suspended"]);
        let text = told.fine().to_owned();
        let jobs = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut found: Vec<(String, String)> = jobs
            .map(|job| (job["state"].as_str().unwrap().to_owned(), job["data"].as_str().unwrap().to_owned()))
            .collect();
        found.sort();
        found
    }

    /// The ids of all jobs that wait here, as an export has them.
    fn ids(&self) -> Vec<String> {
        let told = self.rig.call(&["export"]);
        let lines = told.fine().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|job| job["id"].as_str().map(str::to_owned)).collect()
    }
}

/// A machine whose token is there.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.serve("").stop();
    machine
}

/// Runs on its queue and writes a line for each job.
fn working(done: &std::path::Path) -> String {
    format!("[queue.mail]\nrun = [\"sh\", \"-c\", \"echo $1 >> $2\", \"sh\", \"{{}}\", \"{}\"]\n", done.display())
}

fn pushed(rig: &Rig, queue: &str, lines: std::ops::Range<u32>) -> BTreeSet<String> {
    let input: String = lines.map(|n| format!("line {n}\n")).collect();
    let told = rig.feed(&["push", queue, "-", "--ids"], input);
    told.fine().lines().map(str::to_owned).collect()
}

#[test]
fn a_forwarded_queue_is_done_on_the_other_machine_and_both_know_the_id() {
    let (here, there) = (machine(), machine());
    let done = there.rig.path("done");
    let other = there.serve(&working(&done));
    let own = here.serve(&there.forward("mail"));
    let ids = pushed(&here.rig, "mail", 0..50);
    here.rig.call(&["wait", "--drained"]).fine();
    there.rig.call(&["wait", "--drained"]).fine();
    assert_eq!(crate::rig::lines_of(&done).into_iter().collect::<BTreeSet<_>>().len(), 50);
    let id = ids.first().unwrap();
    let shown = here.rig.call(&["show", id]).fine().to_owned();
    assert!(shown.contains(&format!("moved to {}", there.url())), "{shown}");
    assert_eq!(there.rig.call(&["show", id, "--json"]).json()["state"], "succeeded");
    assert_eq!(here.rig.call(&["stats", "--json"]).json()["total"]["moved"], 50);
    own.stop();
    other.stop();
}

#[test]
fn a_machine_that_is_away_is_waited_for_and_why_says_so() {
    let (here, there) = (machine(), machine());
    let own = here.serve(&there.forward("mail"));
    let ids = pushed(&here.rig, "mail", 0..20);
    let why = |text: &str| here.rig.call(&["why", "mail"]).fine().contains(text);
    // Asking takes longer than one try, so this ends.
    while !why("cannot reach 127.0.0.1") {}
    let other = there.serve("");
    here.rig.call(&["wait", "--drained"]).fine();
    assert_eq!(there.ids().into_iter().collect::<BTreeSet<_>>(), ids);
    own.stop();
    other.stop();
}

#[test]
fn whoever_is_killed_whenever_each_job_arrives_once() {
    let (here, there) = (machine(), machine());
    let config = there.forward("mail");
    let (mut own, mut other) = (here.serve(&config), there.serve(""));
    let mut ids = BTreeSet::new();
    for round in 0..8 {
        ids.append(&mut pushed(&here.rig, "mail", round * 700..(round + 1) * 700));
        if round % 2 == 0 {
            own.kill();
            own = here.rig.serve_again();
        } else {
            other.kill();
            other = there.rig.serve_again();
        }
    }
    here.rig.call(&["wait", "--drained"]).fine();
    let arrived = there.ids();
    assert_eq!((arrived.len(), arrived.into_iter().collect::<BTreeSet<_>>()), (ids.len(), ids));
    own.stop();
    other.stop();
}

/// Reads one request: its head and its body.
fn request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        bytes.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    bytes.extend(body);
    Some(bytes)
}

/// Stands between two machines and swallows the first answers; tells of each request.
fn deaf(to: u16, swallows: usize) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let Some(asked) = request(&mut stream) else { continue };
            let line = String::from_utf8_lossy(&asked).lines().next().unwrap_or_default().to_owned();
            let asked = replaced(&asked, port, to);
            let mut other = TcpStream::connect(("127.0.0.1", to)).unwrap();
            other.write_all(&asked).unwrap();
            let mut answer = Vec::new();
            other.read_to_end(&mut answer).unwrap();
            if at >= swallows {
                stream.write_all(&answer).unwrap();
            }
            stream.shutdown(Shutdown::Both).unwrap();
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    (port, told)
}

/// The request with the port of the server that it is passed on to, and the wish that the connection ends.
fn replaced(asked: &[u8], from: u16, to: u16) -> Vec<u8> {
    let end = asked.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&asked[..end]).replace(&format!(":{from}"), &format!(":{to}"));
    [format!("{head}\r\nconnection: close\r\n\r\n").as_bytes(), &asked[end + 4..]].concat()
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again_under_the_same_number() {
    let (here, there) = (machine(), machine());
    let other = there.serve("");
    let (port, told) = deaf(there.port, 2);
    let own = here.serve(&there.forward_by("mail", port));
    let ids = pushed(&here.rig, "mail", 0..30);
    here.rig.call(&["wait", "--drained"]).fine();
    let calls: Vec<String> = told.try_iter().filter(|line| !line.contains("/settled")).collect();
    assert_eq!(calls.len(), 3, "{calls:?}");
    assert!(calls.iter().all(|line| *line == calls[0]), "one lot, sent three times: {calls:?}");
    let arrived = there.ids();
    assert_eq!((arrived.len(), arrived.into_iter().collect::<BTreeSet<_>>()), (30, ids));
    own.stop();
    other.stop();
}

#[test]
fn a_server_that_dies_with_a_lot_on_its_way_asks_about_it_when_it_is_back() {
    let (here, there) = (machine(), machine());
    let other = there.serve("");
    // The lot arrives, and nobody here ever hears of it.
    let (port, told) = deaf(there.port, 1);
    let own = here.serve(&there.forward_by("mail", port));
    let ids = pushed(&here.rig, "mail", 0..30);
    let first = told.recv().unwrap();
    own.kill();
    // What it may have sent meanwhile does not matter: the number does.
    let own = here.rig.serve_again();
    here.rig.call(&["wait", "--drained"]).fine();
    assert!(told.try_iter().filter(|line| !line.contains("/settled")).all(|line| line == first));
    let arrived = there.ids();
    assert_eq!((arrived.len(), arrived.into_iter().collect::<BTreeSet<_>>()), (30, ids));
    own.stop();
    other.stop();
}

#[test]
fn a_move_takes_what_waits_with_its_times_attempts_and_errors() {
    let (here, there) = (machine(), machine());
    let failing = "[queue.bad]\nrun = [\"sh\", \"-c\", \"echo broken >&2; exit 1\"]\nattempts = 9\nbackoff = \"1h\"\n";
    let own = here.serve(failing);
    let other = there.serve("");
    here.rig.call(&["push", "idle", "ready"]).fine();
    here.rig.call(&["push", "idle", "later", "--at", "2099-01-01T00:00:00Z"]).fine();
    here.rig.call(&["push", "idle", "high", "--priority", "high"]).fine();
    let held = here.rig.call(&["push", "idle", "held"]).fine().trim().to_owned();
    here.rig.call(&["suspend", &held]).fine();
    let tried = here.rig.call(&["push", "bad", "tried"]).fine().trim().to_owned();
    while here.rig.call(&["show", &tried, "--json"]).json()["state"] != "retrying" {}
    let due = here.rig.call(&["show", &tried, "--json"]).json()["not_before"].clone();
    let token = there.token();
    let (url, with) = (there.url(), ["--token-file", token.as_str()]);
    here.rig.call(&["move", "idle", "bad", "--to", &url, with[0], with[1]]).says("moved 5 jobs").fine();
    let pair = |state: &str, data: &str| (state.to_owned(), data.to_owned());
    let expected = [
        pair("ready", "high"),
        pair("ready", "ready"),
        pair("retrying", "tried"),
        pair("scheduled", "later"),
        pair("suspended", "held"),
    ];
    assert_eq!((here.waiting(), there.waiting()), (Vec::new(), expected.to_vec()));
    let shown = there.rig.call(&["show", &tried, "--json"]).json();
    assert_eq!((&shown["not_before"], &shown["attempts"]["failures"]), (&due, &Value::from(1)));
    assert!(shown["errors"][0]["text"].as_str().unwrap().contains("broken"), "{shown}");
    assert_eq!(there.rig.call(&["ls", "queue:idle", "priority:10", "-o", "ids"]).fine().lines().count(), 1);
    // And back again, by a selector.
    let own_token = here.token();
    let back = ["move", "queue:idle", "--to", &here.url(), "--token-file", &own_token];
    there.rig.call(&back).says("moved 4 jobs").fine();
    let (mine, theirs) = (here.waiting(), there.waiting());
    assert_eq!((mine.len(), theirs.len()), (4, 1), "{mine:?} {theirs:?}");
    own.stop();
    other.stop();
}

#[test]
fn a_move_goes_from_one_data_directory_to_another_without_any_server() {
    let (here, there) = (Rig::new(), Rig::new());
    let ids = pushed(&here, "mail", 0..2500);
    let (from, to) = (here.dir(), there.dir());
    let mut command = here.windlass(&["move", "mail", "--from"]);
    command.env_remove("WINDLASS_DIR").arg(from).arg("--to").arg(to).stdin(Stdio::null());
    crate::rig::Process::start(&mut command).end().says("moved 2,500 jobs").fine();
    let left = here.call(&["ls", "state:ready", "-o", "ids"]).fine().to_owned();
    let arrived = there.call(&["ls", "state:ready", "-o", "ids"]).fine().to_owned();
    assert_eq!((left.as_str(), arrived.lines().map(str::to_owned).collect::<BTreeSet<_>>()), ("", ids));
}

#[test]
fn a_move_between_data_directories_that_is_killed_again_and_again_ends_with_each_job_once() {
    let (here, there) = (Rig::new(), Rig::new());
    let ids = pushed(&here, "mail", 0..20_000);
    let (from, to) = (here.dir(), there.dir());
    let words = ["move", "mail", "--from", from.to_str().unwrap(), "--to", to.to_str().unwrap()];
    let address = || std::fs::read_to_string(to.join("run/address")).unwrap_or_default();
    for _ in 0..6 {
        // Each serves the other directory for itself, and elsewhere than the one before.
        let before = address();
        let moving = here.start(&words, Stdio::null());
        let end = pidfd_open(moving.pid(), PidfdFlags::empty()).unwrap();
        while address() == before && !is_ready(&end, Duration::ZERO) {}
        moving.kill();
    }
    let left = || here.call(&["ls", "state:ready,running", "-o", "ids"]).fine().to_owned();
    while !left().is_empty() {
        here.call(&words).fine();
    }
    let arrived = there.call(&["ls", "state:ready", "-o", "ids"]).fine().to_owned();
    assert_eq!(arrived.lines().count(), ids.len());
    assert_eq!(arrived.lines().map(str::to_owned).collect::<BTreeSet<_>>(), ids);
}

#[test]
fn forwards_that_go_in_a_circle_are_refused_in_words_and_lose_nothing() {
    let (here, there) = (machine(), machine());
    let (own, other) = (here.serve(&there.forward("mail")), there.serve(&here.forward("mail")));
    let id = here.rig.call(&["push", "mail", "round"]).fine().trim().to_owned();
    let circles = |machine: &Machine| machine.rig.call(&["why", "mail"]).fine().contains("in a circle");
    while !circles(&there) && !circles(&here) {}
    let mut states = [here.waiting(), there.waiting()].concat();
    states.dedup();
    assert_eq!(states, [("running".to_owned(), "round".to_owned())], "{id} is in one place");
    own.stop();
    other.stop();
}

#[test]
fn jobs_of_a_run_are_not_given_away() {
    let (here, there) = (machine(), machine());
    let own = here.serve(&there.forward("mail"));
    let other = there.serve("");
    here.rig.feed(&["push", "other", "-", "--run", "new"], "a\nb\n").fine();
    let token = there.token();
    let told = here.rig.call(&["move", "other", "--to", &there.url(), "--token-file", &token]);
    told.says("moved 0 jobs").says("belong to a run").fine();
    here.rig.feed(&["push", "mail", "-", "--run", "new"], "c\n").fine();
    here.rig.call(&["wait", "--drained"]);
    assert!(here.rig.call(&["ls", "state:failed", "--json"]).fine().contains("jobs of a run are not given"));
    assert_eq!(there.ids().len(), 0);
    own.stop();
    other.stop();
}

/// Answers every request in the same way.
fn always(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if request(&mut stream).is_some() {
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    port
}

#[test]
fn what_the_other_server_refuses_is_back_as_it_was_and_said_in_its_words() {
    let here = Machine::new();
    let own = here.serve("");
    let refusals = [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "no server that takes lots, or an older one"),
        ("HTTP/1.1 505 Version\r\nContent-Length: 36\r\n\r\n{\"detail\":\"the lot has version 9, x\"}", "HTTP 505"),
        ("HTTP/1.1 507 Full\r\nContent-Length: 27\r\n\r\n{\"detail\":\"no space left\"}\r\n", "no space left"),
        ("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "HTTP 401"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 33\r\n\r\n{\"taken\":false,\"why\":\"not today\"}\n", "not today"),
    ];
    here.rig.call(&["push", "mail", "one", "--at", "2099-01-01T00:00:00Z"]).fine();
    pushed(&here.rig, "mail", 0..10);
    for (answer, words) in refusals {
        let to = format!("http://127.0.0.1:{}", always(answer));
        let told = here.rig.call(&["move", "mail", "--to", &to]);
        told.says("did not take the rest, which is back").says(words).ended(75);
        let states: Vec<String> = here.waiting().into_iter().map(|(state, _)| state).collect();
        assert_eq!(states.iter().filter(|state| *state == "ready").count(), 10, "{states:?}");
        assert_eq!(states.iter().filter(|state| *state == "scheduled").count(), 1, "{states:?}");
    }
    let nobody = format!("http://127.0.0.1:{}", free_port());
    here.rig.call(&["move", "mail", "--to", &nobody]).says("cannot reach").ended(75);
    assert_eq!(here.waiting().len(), 11);
    own.stop();
}

#[test]
fn a_forward_is_refused_with_a_sentence_where_it_cannot_be_meant() {
    let rig = Rig::new();
    let path = rig.path("c.toml");
    std::fs::write(rig.path("open"), "token\n").unwrap();
    std::fs::set_permissions(rig.path("open"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    for (keys, sentence) in [
        ("forward = \"ftp://x\"", "is no URL that can be called"),
        ("forward = \"http://127.0.0.1:1\"", "leads to 127.0.0.1"),
        ("forward = \"http://there/?x=1\"", "is no server's address"),
        ("forward = \"http://there\"\nattempts = 3", "`attempts` does nothing"),
        ("forward = \"http://there\"\nrun = [\"true\"]", "expected exactly one of them"),
        ("run = [\"true\"]\ntoken_file = \"open\"", "`token_file` belongs to `forward`"),
        ("forward = \"http://there\"\ntoken_file = \"missing\"", "No such file"),
        ("forward = \"http://there\"\ntoken_file = \"open\"", "everybody can read"),
    ] {
        std::fs::write(&path, format!("[queue.q]\n{keys}\n")).unwrap();
        rig.call(&["config", "check", path.to_str().unwrap()]).says(sentence).ended(78);
    }
}

/// Twenty jobs on their way to a machine that is away, and nobody who serves either of them.
fn stranded() -> (Machine, Machine, BTreeSet<String>) {
    let (here, there) = (machine(), machine());
    let own = here.serve(&there.forward("mail"));
    let ids = pushed(&here.rig, "mail", 0..20);
    while !here.rig.call(&["why", "mail"]).fine().contains("cannot reach 127.0.0.1") {}
    own.kill();
    (here, there, ids)
}

#[test]
fn whoever_only_asks_does_not_wait_for_what_is_on_its_way_to_a_server_that_is_away() {
    let (here, _there, ids) = stranded();
    // Each verb serves for a moment.
    let listed = here.rig.call(&["ls", "state:running", "-o", "ids"]).fine().to_owned();
    assert_eq!(listed.lines().map(str::to_owned).collect::<BTreeSet<_>>(), ids);
    assert_eq!(here.rig.call(&["status", "--json"]).json()["totals"]["running"], 20);
}

#[test]
fn a_move_says_that_it_waits_for_what_an_earlier_one_has_on_its_way() {
    let (here, there, ids) = stranded();
    here.rig.call(&["push", "later", "x"]).fine();
    let (url, token) = (there.url(), there.token());
    let words = ["move", "later", "--to", &url, "--token-file", &token];
    let mut moving = here.rig.start(&words, Stdio::null());
    moving.until("20 jobs of an earlier command are on their way");
    let other = there.serve("");
    moving.end().says("moved 1 job").fine();
    assert_eq!(there.ids().len(), ids.len() + 1);
    other.stop();
}
