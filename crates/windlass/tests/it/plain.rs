//! The plain ways of what only Linux has, forced on a machine that has all of it: the same promises hold.

use crate::inbox::append;
use crate::rig::Rig;
use std::os::unix::fs::PermissionsExt;

/// All that a server can do without, of what is not its launchers' alone.
const ALL: &str = "inotify,eventfd,memfd,pidfd";

fn succeeded(rig: &Rig, queue: &str) -> u64 {
    rig.call(&["status", "--json"]).json()["queues"][queue]["succeeded"].as_u64().unwrap_or(0)
}

#[test]
fn without_file_events_lines_and_handler_files_are_still_found() {
    let rig = Rig::new();
    let handlers = rig.path("handlers");
    std::fs::create_dir(&handlers).unwrap();
    std::fs::set_permissions(&handlers, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = format!("handlers = {handlers:?}\n[queue.q]\nrun = [\"true\"]\n");
    let server = rig.serve_without(ALL, &config);
    // Nobody rings: a line that any program appends is found by looking.
    append(&rig, "q\tline\nlate\tbacklog\n");
    while succeeded(&rig, "q") < 1 {
        std::thread::yield_now();
    }
    let coming = rig.path("coming");
    std::fs::write(&coming, "#!/bin/sh\ncat\n").unwrap();
    std::fs::set_permissions(&coming, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&coming, handlers.join("late")).unwrap();
    while succeeded(&rig, "late") < 1 {
        std::thread::yield_now();
    }
    server.stop();
}

#[test]
fn without_files_in_memory_and_event_descriptors_every_kind_of_process_gets_its_data() {
    let rig = Rig::new();
    let config = "[queue.one]\nrun = [\"wc\", \"-c\"]\n\
                  [queue.many]\nbatch = [\"sh\", \"-c\", \"wc -c >&2\"]\nreply = \"exit\"\n\
                  [queue.kept]\nworker = [\"sh\", \"-c\", \"while read x; do echo ok; done\"]\n";
    let server = rig.serve_without(ALL, config);
    // More than a packet to a launcher, and together more than a pipe holds.
    let large = vec![b'x'; 1 << 20];
    let lines = [&large[..], b"\nsmall\n", &large[..], b"\n"].concat();
    for queue in ["one", "many", "kept"] {
        rig.feed(&["push", queue, "-"], &lines).fine();
    }
    rig.call(&["wait", "--drained"]).fine();
    for queue in ["one", "many", "kept"] {
        assert_eq!(succeeded(&rig, queue), 3, "{queue}");
    }
    server.stop();
}

#[test]
fn without_handles_of_processes_a_killed_servers_trees_are_ended_before_the_next_begins() {
    let rig = Rig::new();
    let mut bell = rig.bell("bell");
    let config = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"echo $$ > {}; exec sleep 1000\"]\n", bell.path);
    let killed = rig.serve_without(ALL, &config);
    let id = rig.call(&["push", "q", "x"]).fine().trim().to_owned();
    let first: i32 = bell.next().trim().parse().unwrap();
    killed.kill();
    let second = rig.serve_without(ALL, &config);
    let again: i32 = bell.next().trim().parse().unwrap();
    assert_ne!(first, again);
    let stat = std::fs::read_to_string(format!("/proc/{first}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    rig.call(&["cancel", &id]).fine();
    second.stop();
}
