//! `logs --follow`: what a job writes, while it writes it.

use crate::rig::Rig;
use rustix::process::Signal;
use serde_json::Value;
use std::process::Stdio;

#[test]
fn output_is_read_along_with_while_the_job_runs() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!(
        "echo one; echo aside >&2; echo > {bell}; read x < {gate}; echo two; read x < {gate}; echo three; exit 3",
        bell = bell.path,
        gate = gate.path
    );
    let server = rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\nslots = 1\nattempts = 1\n"));
    let ids = rig.call(&["push", "q", "x", "y"]).fine().to_owned();
    let (first, second) = ids.trim_end().split_once('\n').unwrap();
    bell.next();
    // The first runs and has written; the second waits for its slot and is followed from before its start.
    let mut follow = rig.start(&["logs", "-f", first], Stdio::null());
    let mut later = rig.start(&["--json", "follow", second], Stdio::null());
    assert_eq!(follow.out_line(), "one\n");
    assert_eq!(follow.until("aside"), "aside\n");
    let mut other = rig.start(&["logs", "-f", "--stderr", first], Stdio::null());
    assert_eq!(other.out_line(), "aside\n", "one stream alone, on stdout");
    gate.open(1);
    assert_eq!(follow.out_line(), "two\n");
    other.signal(Signal::INT);
    other.end().says("no longer following; ").ended(130);
    gate.open(1);
    assert_eq!(follow.out_line(), "three\n");
    let told = follow.end();
    assert_eq!(told.says(&format!("{first} has failed")).fine(), "");
    bell.next();
    // They come through two pipes, and nobody knows which is read first.
    let mut lines = [(); 2].map(|()| serde_json::from_str::<Value>(&later.out_line()).unwrap());
    lines.sort_by_key(|line| line["stream"] == "stderr");
    for (line, stream, data) in [(&lines[0], "stdout", "one\n"), (&lines[1], "stderr", "aside\n")] {
        assert_eq!((&line["start"], &line["stream"], &line["data"]), (&1.into(), &stream.into(), &data.into()));
    }
    gate.open(2);
    let rest = later.end();
    let lines: Vec<Value> = rest.fine().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["ended"], "failed");
    let whole = |id: &str| rig.call(&["logs", id, "--stdout"]).fine().to_owned();
    assert_eq!((whole(first), whole(second)), ("one\ntwo\nthree\n".into(), "one\ntwo\nthree\n".into()));
    server.stop();
}

#[test]
fn every_attempt_is_followed_and_what_has_ended_is_printed_whole() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script =
        format!("echo try $WINDLASS_ATTEMPT; echo > {}; read x < {}; test $WINDLASS_ATTEMPT = 2", bell.path, gate.path);
    let server = rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\nbackoff = \"1ms\"\n"));
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    bell.next();
    let mut follow = rig.start(&["logs", "-f", &id], Stdio::null());
    assert_eq!(follow.out_line(), "try 1\n");
    gate.open(1);
    follow.until("start 1 of ");
    bell.next();
    assert_eq!(follow.out_line(), "try 2\n");
    gate.open(1);
    assert_eq!(follow.end().says("has succeeded").fine(), "");
    // By now it is a matter of the archive, also for its beginning.
    let told = rig.call(&["logs", "--follow", &id[..id.len() - 1]]);
    assert_eq!(told.says("has succeeded").fine(), "try 2\n");
    let waiting = rig.call(&["push", "nobody", "x"]).fine().trim_end().to_owned();
    let mut follow = rig.start(&["--json", "logs", "-f", &waiting], Stdio::null());
    rig.call(&["cancel", &waiting]).fine();
    assert_eq!(follow.out_line(), "{\"ended\":\"cancelled\"}\n");
    follow.end().fine();
    let waiting = rig.call(&["push", "nobody", "y"]).fine().trim_end().to_owned();
    rig.call(&["logs", "-f", "j-0000000000-0"]).says("no job j-0000000000-0").ended(66);
    rig.call(&["logs", "-f", &id, "--start", "1"]).ended(64);
    rig.call(&["follow", &id, "--start", "1"]).says("'--follow' cannot be used with '--start <N>'").ended(64);
    server.stop();
    assert_eq!(rig.call(&["logs", "-f", &id]).says("has succeeded").fine(), "try 2\n");
    rig.call(&["logs", "-f", &waiting]).says("is ready, and no server is running: nothing changes").ended(69);
}

#[test]
fn what_is_more_than_is_kept_comes_with_the_end() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    // 1,000 bytes a line, of which 10 are kept.
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do printf '%0999d\\\\n' $i; done; echo > {}; read x < {}; \
         for i in 10 11 12 13; do printf '%0999d\\\\n' $i; done",
        bell.path, gate.path
    );
    let config = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{script}\"]\noutput = \"10000\"\n");
    let server = rig.serve(&config);
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    bell.next();
    let mut follow = rig.start(&["logs", "-f", &id], Stdio::null());
    for line in 1..=5 {
        assert_eq!(follow.out_line(), format!("{line:0999}\n"));
    }
    gate.open(1);
    let told = follow.end();
    let rest = told.fine();
    let kept = rig.call(&["logs", &id]).fine().to_owned();
    assert_eq!(kept, (1..=5).map(|line| format!("{line:0999}\n")).collect::<String>() + rest);
    assert!(rest.ends_with(&format!("{:0999}\n", 13)) && !rest.contains(&format!("{:0999}\n", 6)));
    server.stop();
}
