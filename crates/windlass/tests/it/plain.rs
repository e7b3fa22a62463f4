//! The plain ways of what only Linux has, forced on a machine that has all of it: the same promises hold.

use crate::inbox::append;
use crate::rig::{Process, Rig, Server};
use std::os::unix::fs::PermissionsExt;

/// All that a server can do without, of what is not its launchers' alone.
const ALL: &str = "inotify,eventfd,memfd,tmpfile,pidfd,close_range";

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

/// What the descriptors of some processes are, as the kernel names them.
fn descriptors(pids: &[i32]) -> Vec<String> {
    let of = |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    // One that was closed meanwhile has no name.
    let names = pids.iter().flat_map(of).filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

fn launchers_of(server: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|of| of.trim() == server.to_string()))
    };
    all.filter(is_child).collect()
}

/// Which means of Linux a server and its launchers use while a job runs: event descriptors are counted, since the
/// runtime of the pages has some of its own.
#[derive(Debug)]
struct Used {
    inotify: bool,
    eventfds: usize,
    pidfd: bool,
    lines_in_memory: bool,
    inherited: bool,
}

fn used(without: &str) -> Used {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let config = format!(
        "[queue.holds]\nrun = [\"sh\", \"-c\", \"echo > {}; read x < {}\"]\n\
         [queue.lines]\nbatch = [\"sh\", \"-c\", \"echo ok $(readlink /proc/self/fd/0)\"]\n",
        bell.path, gate.path
    );
    std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    // Whoever starts it leaves a file open.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec 9< /dev/zero; exec $0 serve", env!("CARGO_BIN_EXE_windlass")]);
    let mut process = Process::start(shell.env("WINDLASS_DIR", rig.dir()).env("WINDLASS_TEST_WITHOUT", without));
    let ready = process.out_line();
    assert!(ready.starts_with("windlass serves unix:"), "{ready}");
    rig.call(&["push", "holds", "x"]).fine();
    bell.next();
    let server = process.pid().as_raw_nonzero().get();
    let launchers = launchers_of(server);
    assert!(!launchers.is_empty());
    let (all, theirs) = (descriptors(&[&[server][..], &launchers].concat()), descriptors(&launchers));
    let id = rig.feed(&["push", "lines", "--ids"], [&vec![b'x'; 1 << 20][..], b"\n"].concat()).fine().to_owned();
    rig.call(&["wait", id.trim()]).fine();
    let lines = rig.call(&["show", id.trim(), "--json"]).json()["history"][0]["message"].to_string();
    gate.open(1);
    rig.drained();
    Server { process, ready }.stop();
    let has = |word: &str| all.iter().any(|name| name.contains(word));
    Used {
        inotify: has("inotify"),
        eventfds: all.iter().filter(|name| name.contains("eventfd")).count(),
        pidfd: has("pidfd"),
        lines_in_memory: lines.contains("memfd:"),
        inherited: theirs.iter().any(|name| name == "/dev/zero"),
    }
}

#[test]
fn the_plain_ways_are_taken_where_they_are_forced_and_only_there() {
    let (with, without) = (used(""), used(ALL));
    assert!(with.inotify && with.pidfd && with.lines_in_memory, "{with:?}");
    assert!(!without.inotify && !without.pidfd && !without.lines_in_memory, "{without:?}");
    assert!(without.eventfds < with.eventfds, "{without:?} {with:?}");
    assert!(!with.inherited && !without.inherited, "{without:?} {with:?}");
}
