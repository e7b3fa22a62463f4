//! A server in a process of its own: this program again, told what to do over its standard input.
//!
//! `serve` is the child's side: it says `ready`, answers each `read` with `done` when the inbox is in the store, and
//! ends when its input does. `Serving` is the bench's side.

use super::Outcome;
use super::feed;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use windlass::data_dir::DataDir;
use windlass::runner::handler::{Handlers, Verdicts};
use windlass::server::{Server, ServerOptions};
use windlass_core::policy::{self, Policy, Service};

/// The first argument that makes this program such a server.
pub(crate) const WORD: &str = "__bench_server";

/// What the server is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It accepts and runs nothing.
    Accept,
    /// It serves commands, so it has launchers.
    Command,
    /// It says `first` when the first job runs, and goes no further.
    First,
}

impl Kind {
    const ALL: [(Kind, &'static str); 3] =
        [(Kind::Accept, "accept"), (Kind::Command, "command"), (Kind::First, "first")];
}

/// The child's side.
pub(crate) fn serve(dir: &str, kind: &str) -> Result<(), String> {
    let kind = Kind::ALL.iter().find(|(_, word)| *word == kind).ok_or("unknown kind of server")?.0;
    be_server(Path::new(dir), kind).map_err(|error| error.to_string())
}

fn be_server(dir: &Path, kind: Kind) -> Outcome<()> {
    /// Held until the server is told to end: the first job goes no further.
    static GATE: Mutex<()> = Mutex::new(());
    let gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut options = ServerOptions::new(DataDir::open(dir)?);
    options.serves = kind == Kind::Command;
    match kind {
        Kind::Accept => {}
        Kind::Command => {
            let command = policy::Command { argv: vec![b"/bin/true".to_vec()], ..policy::Command::default() };
            options.policies = vec![Policy::new("*", Service::Command(command))];
        }
        Kind::First => {
            let first = Service::Handler { name: "first".into(), batch: 1 };
            options.policies = vec![Policy { slots: 1, ..Policy::new("*", first) }];
            options.handlers = Handlers::new().on("first", |_| {
                println!("first");
                drop(GATE.lock().unwrap_or_else(PoisonError::into_inner));
                Verdicts::succeeded()
            });
        }
    }
    let server = Server::start(options)?;
    println!("ready");
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "read" => feed::read(server.handle())?,
            other => return Err(format!("what is `{other}`?").into()),
        }
        println!("done");
    }
    server.halt();
    drop(gate);
    Ok(server.join()?)
}

/// The bench's side; ends with its process when dropped.
pub(super) struct Serving {
    child: Child,
    orders: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
}

impl Serving {
    /// Starts it and returns when it serves.
    pub(super) fn start(dir: &DataDir, kind: Kind) -> Outcome<Serving> {
        let mut serving = Serving::spawn(dir, kind)?;
        serving.hear("ready")?;
        Ok(serving)
    }

    /// Starts it and returns at once.
    pub(super) fn spawn(dir: &DataDir, kind: Kind) -> Outcome<Serving> {
        let word = Kind::ALL.iter().find(|(known, _)| *known == kind).map_or("", |(_, word)| word);
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WORD)
            .arg(dir.root())
            .arg(word)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let words = BufReader::new(child.stdout.take().ok_or("a server without output")?);
        let orders = child.stdin.take();
        Ok(Serving { child, orders, words })
    }

    /// Waits for this word.
    pub(super) fn hear(&mut self, word: &str) -> Outcome<()> {
        let mut line = String::new();
        self.words.read_line(&mut line)?;
        if line.trim_end() == word { Ok(()) } else { Err(format!("the server said {line:?}, expected {word}").into()) }
    }

    /// Waits until everything in the inbox is in the store.
    pub(super) fn read(&mut self) -> Outcome<()> {
        self.orders.as_mut().ok_or("a server without input")?.write_all(b"read\n")?;
        self.hear("done")
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A line of `/proc/PID/status` in MiB.
    pub(super) fn memory(&self, field: &str) -> Outcome<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kib.ok_or_else(|| format!("no {field} in the server's status"))? / 1024.0)
    }

    /// Ends it in order.
    pub(super) fn stop(mut self) -> Outcome<()> {
        self.orders = None;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}").into()) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.orders = None;
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
