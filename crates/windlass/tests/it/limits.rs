//! Limits and users through the whole program: what the config refuses, and what a person is told.

use crate::rig::Rig;

/// The error of a job's last attempt as `show` has it.
fn error(rig: &Rig, id: &str) -> String {
    let shown = rig.call(&["show", id.trim(), "--json"]).json();
    let history = shown["history"].as_array().unwrap().clone();
    history.last().unwrap()["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_cause_of_death_is_told_by_show() {
    let rig = Rig::new();
    let hold = "dd if=/dev/zero bs=200M count=1 2>/dev/null | sleep 1000";
    let config = format!(
        "[queue.large]\nrun = [\"sh\", \"-c\", {hold:?}]\nmemory = \"50M\"\nattempts = 1\n\
         [queue.many]\nrun = [\"sh\", \"-c\", \"for i in $(seq 40); do sleep 1000 & done; wait\"]\n\
         process_limit = 20\nattempts = 1\n\
         [queue.busy]\nrun = [\"sh\", \"-c\", \"while :; do :; done\"]\ncpu_limit = \"200ms\"\nattempts = 1\n\
         [queue.loud]\nrun = [\"yes\"]\noutput_limit = \"1M\"\nattempts = 1\n"
    );
    let server = rig.serve(&config);
    let ids = ["large", "many", "busy", "loud"].map(|queue| rig.call(&["push", queue, "x"]).fine().to_owned());
    rig.drained();
    for (id, (begin, end)) in ids.iter().zip([
        ("killed: it had ", " of memory, and its limit is 50 MiB (`memory`)"),
        ("killed: it had ", " processes and threads, and its limit is 20 (`process_limit`)"),
        ("stopped: it used ", " of processor time, and its limit is 0.2s (`cpu_limit`)"),
        ("stopped: it wrote ", ", and its limit is 1 MiB (`output_limit`)"),
    ]) {
        let error = error(&rig, id);
        assert!(error.starts_with(begin) && error.ends_with(end), "{error}");
    }
    server.stop();
}

#[test]
fn a_user_must_be_on_the_list_when_a_server_starts_and_when_it_reloads() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes other users and needs root: run it as root");
    let rig = Rig::new();
    let queue = "[queue.who]\nrun = [\"sh\", \"-c\", \"echo $(id -un) $HOME $USER\"]\nuser = \"nobody\"\n";
    let config = rig.dir().join("windlass.toml");
    std::fs::create_dir_all(rig.dir()).unwrap();
    std::fs::write(&config, queue).unwrap();
    rig.call(&["serve"]).ended(78);
    rig.call(&["serve"]).says("windlass.toml:3:8: \"nobody\" is not in `users` of [limits] (which is empty)");
    let server = rig.serve(&format!("[limits]\nusers = [\"nobody\", \"root\"]\n{queue}"));
    let id = rig.call(&["push", "who", "x"]).fine().to_owned();
    rig.drained();
    let shown = rig.call(&["show", id.trim(), "--json"]).json();
    let message = shown["history"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("nobody /") && message.ends_with(" nobody"), "{message}");
    std::fs::write(&config, queue).unwrap();
    rig.call(&["config", "reload"]).ended(78);
    rig.call(&["config", "reload"]).says("\"nobody\" is not in `users` of [limits]");
    // The old rules hold.
    rig.call(&["push", "who", "y"]).fine();
    rig.drained();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["who"]["succeeded"], 2);
    server.stop();
}

#[test]
fn jobs_start_where_their_memory_fits_and_why_says_what_they_wait_for() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("begun"), rig.gate("gate"));
    let script = format!("echo x > {}; read x < {}", bell.path, gate.path);
    let config = format!(
        "[limits]\nmemory = \"500M\"\n[queue.video]\nrun = [\"sh\", \"-c\", {script:?}]\nmemory = \"200M\"\n\
         [queue.kept]\nworker = [\"sh\", \"-c\", \"while read x; do echo ok; done\"]\n\
         memory = \"300M\"\nworker_idle = \"1d\"\n[queue.free]\nrun = [\"true\"]\n"
    );
    let server = rig.serve(&config);
    let ids: Vec<String> = (0..3).map(|_| rig.call(&["push", "video", "x"]).fine().trim().to_owned()).collect();
    bell.next();
    bell.next();
    let why = rig.call(&["why", &ids[2], "--json"]).json();
    assert_eq!(why["reasons"][0]["code"], "memory_short", "{why}");
    let text = "it needs 200 MiB of memory, and 100 MiB of 500 MiB is free; held by video 400 MiB (2 × 200 MiB)";
    assert_eq!(why["reasons"][0]["text"], text);
    // Who needs none goes on beside them.
    let free = rig.call(&["push", "free", "x"]).fine().trim().to_owned();
    rig.call(&["wait", &free]).fine();
    gate.open(2);
    bell.next();
    gate.open(1);
    rig.drained();
    // A kept worker idles with its memory until somebody needs it.
    let kept = rig.call(&["push", "kept", "x"]).fine().trim().to_owned();
    rig.call(&["wait", &kept]).fine();
    rig.call(&["push", "video", "x"]).fine();
    rig.call(&["push", "video", "x"]).fine();
    bell.next();
    bell.next();
    gate.open(2);
    rig.drained();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["video"]["succeeded"], 5);
    let refused = "[limits]\nmemory = \"1G\"\n[queue.large]\nrun = [\"true\"]\nmemory = \"2G\"\n";
    std::fs::write(rig.dir().join("windlass.toml"), refused).unwrap();
    let told = rig.call(&["config", "reload"]);
    told.ended(78);
    told.says("windlass.toml:5:10: it needs 2 GiB and could never start: `memory` in [limits] is 1 GiB");
    server.stop();
}
