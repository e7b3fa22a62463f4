//! The inbox as foreign programs see it: plain appends, files moved in, damage, and what is no inbox file.

use crate::rig::{Process, Rig};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn own_inbox(rig: &Rig) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    rig.dir().join(format!("inbox/{uid}"))
}

pub(crate) fn append(rig: &Rig, bytes: impl AsRef<[u8]>) {
    let mut file = File::options().append(true).create(true).open(own_inbox(rig)).unwrap();
    file.write_all(bytes.as_ref()).unwrap();
}

fn data_of(rig: &Rig, queue: &str) -> Vec<String> {
    let jobs = rig.call(&["ls", &format!("queue:{queue}"), "--json"]).json();
    let mut data: Vec<String> =
        jobs.as_array().unwrap().iter().map(|job| job["data"].as_str().unwrap_or("?").to_owned()).collect();
    data.sort_unstable();
    data
}

#[test]
fn a_plain_line_is_a_job_with_and_without_a_server() {
    let rig = Rig::new();
    rig.call(&["status"]).fine();
    append(&rig, "q\tbefore\r\n\n_future\t2035-01-01T00:00:00Z\tlater\ta b\tc\n_future\t5\tq\tpast\n");
    assert_eq!(data_of(&rig, "q"), ["before", "past"]);
    let later = rig.call(&["ls", "queue:later", "--json"]).json();
    assert_eq!((&later[0]["state"], &later[0]["data"]), (&"scheduled".into(), &"a b\tc".into()));
    assert_eq!(later[0]["not_before"], "2035-01-01T00:00:00Z");
    let mut bell = rig.bell("bell");
    let server = rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", \"echo $(cat) > {}\"]\n", bell.path));
    let mut rung = [bell.next(), bell.next()];
    rung.sort_unstable();
    assert_eq!(rung, ["before", "past"]);
    append(&rig, "q\twhile it sleeps\n");
    assert_eq!(bell.next(), "while it sleeps");
    let script = format!("printf 'q\\tby the shell\\n' >> {}", own_inbox(&rig).display());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    assert_eq!(bell.next(), "by the shell");
    server.stop();
}

#[test]
fn a_whole_file_is_moved_in() {
    let rig = Rig::new();
    rig.call(&["status"]).fine();
    let lines = |name: &str| (0..5000).map(|n| format!("bulk\t{name} {n}\n")).collect::<String>();
    std::fs::write(rig.path("list"), lines("a")).unwrap();
    std::fs::rename(rig.path("list"), rig.dir().join("inbox/list")).unwrap();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["bulk"]["ready"], 5000);
    let server = rig.serve("[queue.bell]\nrun = [\"true\"]\n");
    std::fs::write(rig.path("list"), lines("b")).unwrap();
    std::fs::rename(rig.path("list"), rig.dir().join("inbox/list")).unwrap();
    rig.call(&["wait", "--drained"]).fine();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["bulk"]["ready"], 10_000);
    server.stop();
    let left = std::fs::read_dir(rig.dir().join("inbox")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != "list").collect();
    assert!(left.len() <= 1, "what is read is removed: {left:?}");
}

#[test]
fn damage_is_set_aside_with_its_place_and_everything_else_is_delivered() {
    let rig = Rig::new();
    rig.call(&["push", "q", "first"]).fine();
    let long = "x".repeat((1 << 20) + 1);
    append(&rig, "\u{18}\nq\tsecond\n");
    append(&rig, "no tab here\n");
    append(&rig, "\u{18}\nq\ttorn");
    append(&rig, "\u{18}\nq\tthird\n");
    append(&rig, format!("q\t{long}\n"));
    append(&rig, ".hidden\tx\n_future\tnever\tq\tx\n");
    append(&rig, [b"q\t", &[0u8; 40][..], b"\n"].concat());
    rig.call(&["push", "q", "fourth"]).fine();
    // One byte of a frame is turned: it is set aside, and its neighbours are not.
    rig.call(&["push", "q", "damaged-in-the-middle"]).fine();
    let path = own_inbox(&rig);
    let mut bytes = std::fs::read(&path).unwrap();
    let place = bytes.windows(7).position(|part| part == b"damaged").unwrap();
    bytes[place] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    rig.call(&["push", "q", "fifth"]).fine();
    assert_eq!(data_of(&rig, "q"), ["fifth", "first", "fourth", "second", "third"]);
    let log = std::fs::read_to_string(rig.dir().join("quarantine/inbox.log")).unwrap();
    let notes: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(notes.len(), 7, "{log}");
    for note in &notes {
        assert!(note["file"].is_string() && note["offset"].is_u64() && note["reason"].is_string(), "{note}");
    }
    let bad = std::fs::read(rig.dir().join("quarantine/inbox.bad")).unwrap();
    for part in ["no tab here", "torn", ".hidden\tx", "_future\tnever"] {
        assert!(bad.windows(part.len()).any(|window| window == part.as_bytes()), "{part} is not kept");
    }
    rig.call(&["ls"]).fine();
    assert_eq!(std::fs::read_to_string(rig.dir().join("quarantine/inbox.log")).unwrap(), log, "once each");
}

#[test]
fn what_is_no_plain_file_is_left_alone() {
    let rig = Rig::new();
    rig.call(&["status"]).fine();
    let inbox = rig.dir().join("inbox");
    std::fs::write(rig.path("secret"), "q\tstolen\n").unwrap();
    std::os::unix::fs::symlink(rig.path("secret"), inbox.join("link")).unwrap();
    std::fs::create_dir(inbox.join("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(inbox.join("fifo")).status().unwrap().success());
    std::fs::write(inbox.join(".hidden"), "q\thidden\n").unwrap();
    std::fs::hard_link(rig.path("secret"), inbox.join("twin")).unwrap();
    append(&rig, "q\tgood\n");
    assert_eq!(data_of(&rig, "q"), ["good"]);
    let server = rig.serve("# nothing\n");
    append(&rig, "q\tbetter\n");
    rig.call(&["wait", "--drained"]).fine();
    assert_eq!(data_of(&rig, "q"), ["better", "good"]);
    let log = server.stop();
    for name in ["link", "folder", "fifo", "twin"] {
        assert!(inbox.join(name).symlink_metadata().is_ok(), "{name} is gone");
        assert!(log.contains(name), "{name} is not reported: {log}");
    }
}

#[test]
fn a_stuck_lock_costs_two_seconds_and_nothing_else() {
    let rig = Rig::new();
    rig.call(&["push", "q", "1"]).fine();
    let mut holder = Command::new("flock");
    holder.arg(own_inbox(&rig)).args(["sh", "-c", "echo held; read x"]).stdin(Stdio::piped());
    let mut holder = Process::start(&mut holder);
    assert_eq!(holder.out_line(), "held\n");
    rig.call(&["push", "q", "2"]).fine();
    assert_eq!(data_of(&rig, "q"), ["1", "2"]);
    drop(holder.stdin());
    holder.end();
    rig.call(&["push", "q", "3"]).fine();
    assert_eq!(data_of(&rig, "q"), ["1", "2", "3"]);
}
