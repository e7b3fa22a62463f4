//! What is on disk before what: the order of the program's own system calls, as `strace` saw them.
//!
//! A power cut shows that something was not synced only if it comes at the right moment; the order of the calls shows
//! it every time. A call counts from where it began to where it had returned.

use crate::rig::{Process, Rig};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One system call.
#[derive(Debug)]
struct Call {
    name: String,
    /// Its arguments as far as they were known when it began; descriptors carry their paths.
    arguments: String,
    began: usize,
    /// The line at which it had returned.
    ended: usize,
}

impl Call {
    /// Whether it is one of these calls and concerns a file whose path ends so.
    fn is(&self, names: &[&str], file: &str) -> bool {
        names.contains(&self.name.as_str()) && self.arguments.contains(&format!("{file}>"))
    }
}

const SYNC: &[&str] = &["fsync", "fdatasync"];
const WRITE: &[&str] = &["write", "writev", "pwrite64", "pwritev"];
const RENAME: &[&str] = &["rename", "renameat", "renameat2"];

struct Trace(Vec<Call>);

impl Trace {
    /// Reads what `strace -f -y` wrote: calls of several threads lie between each other, in two halves.
    fn read(path: &Path) -> Trace {
        let text = std::fs::read_to_string(path).unwrap();
        let mut calls: Vec<Call> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let Some((thread, rest)) = line.split_once(' ') else { continue };
            let rest = rest.trim_start();
            if let Some(resumed) = rest.strip_prefix("<... ") {
                let name = format!("{thread} {}", resumed.split(' ').next().unwrap());
                let open = calls.iter_mut().rev().find(|call| call.ended == usize::MAX && call.name == name);
                if let Some(call) = open {
                    call.ended = at;
                }
            } else if let Some((name, arguments)) = rest.split_once('(') {
                let ended = if rest.ends_with("<unfinished ...>") { usize::MAX } else { at };
                // The thread stands in front of the name until it is known which half belongs to which.
                calls.push(Call { name: format!("{thread} {name}"), arguments: arguments.into(), began: at, ended });
            }
        }
        calls.iter_mut().for_each(|call| call.name = call.name.split(' ').nth(1).unwrap_or_default().to_owned());
        Trace(calls)
    }

    /// The first of these calls that began after this line.
    #[track_caller]
    fn first(&self, after: usize, names: &[&str], file: &str) -> &Call {
        let found = self.0.iter().find(|call| call.began > after && call.is(names, file));
        found.unwrap_or_else(|| panic!("no {names:?} of {file} after line {after}"))
    }

    fn last(&self, names: &[&str], file: &str) -> &Call {
        let found = self.0.iter().rev().find(|call| call.is(names, file));
        found.unwrap_or_else(|| panic!("no {names:?} of {file}"))
    }

    /// Whether a sync of this file began after one line and had returned before another.
    fn is_synced(&self, file: &str, after: usize, before: usize) -> bool {
        self.0.iter().any(|call| call.is(SYNC, file) && call.began > after && call.ended < before)
    }
}

/// The program under `strace`, which writes what it saw into this file.
fn traced(rig: &Rig, words: &[&str]) -> (Command, PathBuf) {
    let log = rig.path("trace");
    let program = rig.windlass(words);
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-qq", "-s", "0", "-e", "signal=none", "-e"]);
    command.arg("trace=read,pread64,write,writev,pwrite64,pwritev,fsync,fdatasync,rename,renameat,renameat2,openat");
    command.arg("-o").arg(&log).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    (command, log)
}

/// A server under `strace`. It is stopped through its own door: a signal would end `strace` and not the server.
struct Server<'r> {
    rig: &'r Rig,
    process: Option<Process>,
    log: PathBuf,
}

impl<'r> Server<'r> {
    /// Starts it and waits until it is ready.
    fn start(rig: &'r Rig, config: &str) -> Server<'r> {
        std::fs::create_dir_all(rig.dir()).unwrap();
        std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
        let (mut command, log) = traced(rig, &["serve"]);
        let mut server = Server { rig, process: Some(Process::start(&mut command)), log };
        let ready = server.process.as_mut().unwrap().out_line();
        assert!(ready.starts_with("windlass serves unix:"), "{ready}");
        server
    }

    /// Stops it; what it did is known then.
    fn stop(mut self) -> Trace {
        let process = self.process.take().unwrap();
        self.rig.call(&["stop"]).fine();
        process.end().fine();
        Trace::read(&self.log)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        if self.process.is_some() {
            // A failing test must not leave it behind.
            let _ = self.rig.windlass(&["stop"]).output();
        }
    }
}

fn own_inbox() -> String {
    format!("/inbox/{}", rustix::process::geteuid().as_raw())
}

#[test]
fn a_push_without_a_server_is_told_after_file_and_directory_are_on_disk() {
    let rig = Rig::new();
    let (mut command, log) = traced(&rig, &["push", "q", "data"]);
    Process::start(&mut command).end().fine();
    let trace = Trace::read(&log);
    let inbox = own_inbox();
    let named = trace.0.iter().find(|call| RENAME.contains(&call.name.as_str()) && call.arguments.contains(&inbox));
    let named = named.expect("the inbox file got its name").ended;
    let written = trace.last(WRITE, &inbox).ended;
    let told = trace.0.iter().find(|call| call.name == "write" && call.arguments.starts_with("1<"));
    let told = told.expect("an id was told").began;
    assert!(trace.is_synced(&inbox, written, told), "the id was told before the record was synced");
    assert!(trace.is_synced("/inbox", named, told), "the id was told before the name of the file was synced");
}

#[test]
fn an_inbox_file_is_synced_before_the_store_says_how_far_it_was_read() {
    let rig = Rig::new();
    rig.call(&["push", "q", "data", "--durability", "os"]).fine();
    let server = Server::start(&rig, "[queue.another]\nrun = [\"true\"]\n");
    rig.drained();
    assert_eq!(rig.call(&["ls", "--json"]).json().as_array().map(Vec::len), Some(1), "the job was taken in");
    let trace = server.stop();
    let read = trace.first(0, &["pread64"], &own_inbox()).began;
    let noted = trace.first(read, WRITE, "state.db-wal").began;
    assert!(trace.is_synced(&own_inbox(), read, noted), "the store noted as read what could still be lost");
}

#[test]
fn the_archive_is_synced_before_the_store_forgets() {
    let rig = Rig::new();
    let server = Server::start(&rig, "[queue.q]\nrun = [\"true\"]\n");
    rig.call(&["push", "q", "data"]).fine();
    rig.drained();
    let trace = server.stop();
    let named =
        trace.0.iter().find(|call| RENAME.contains(&call.name.as_str()) && call.arguments.contains("/archive/"));
    let named = named.expect("an archive segment got its name");
    let path = Path::new(named.arguments.split('"').nth(3).unwrap());
    let segment = format!("/archive/{}", path.file_name().unwrap().to_str().unwrap());
    let first = trace.first(named.ended, WRITE, &segment).began;
    assert!(trace.is_synced("/archive", named.ended, first), "the name of the segment was not synced");
    let last = trace.last(WRITE, &segment).ended;
    let forgotten = trace.first(last, WRITE, "state.db-wal").began;
    assert!(trace.is_synced(&segment, last, forgotten), "the store forgot what was not yet in the archive");
}

/// Enough to be a flood: its bodies do not go into the store's log.
const FLOOD: usize = 6000;

#[test]
fn the_bodies_of_a_flood_are_on_disk_before_the_store_refers_to_them() {
    let rig = Rig::new();
    let server = Server::start(&rig, "[queue.another]\nrun = [\"true\"]\n");
    let lines: String = (0..FLOOD).map(|n| format!("q\t{n:0>120}\n")).collect();
    std::fs::write(rig.path("lines"), lines).unwrap();
    std::fs::rename(rig.path("lines"), rig.dir().join("inbox/lines")).unwrap();
    rig.drained();
    let trace = server.stop();
    let made = trace.0.iter().find(|call| call.name == "openat" && call.arguments.contains("/bodies/00000001\""));
    let made = made.expect("a body file was made").ended;
    let body = "/bodies/00000001";
    let first = trace.first(made, WRITE, body);
    assert!(trace.is_synced("/bodies", made, first.began), "the name of the body file was not synced");
    let written = trace.last(WRITE, body).ended;
    let noted = trace.first(written, WRITE, "state.db-wal").began;
    assert!(trace.is_synced(body, written, noted), "the store refers to bodies that could still be lost");
}
