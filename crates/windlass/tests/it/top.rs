//! `windlass top`: one frame for scripts, and the live view on a terminal of the test's own, which is given back on
//! every way out.

use crate::rig::{PATIENCE, Rig, is_ready};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const LEFT: &str = "\x1b[?1049l";

/// A job that says how far it is, rings, and waits at a gate.
fn config(bell: &str, gate: &str, more: &str) -> String {
    let script = format!(
        "windlass=$1; \"$windlass\" progress 3/10 pages; \"$windlass\" progress --phase parse; \
         echo > {bell}; read x < {gate}"
    );
    let program = env!("CARGO_BIN_EXE_windlass");
    format!(
        "[queue.work]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", {program:?}]\n\
         [queue.bad]\nrun = [\"sh\", \"-c\", \"echo no such page >&2; exit 65\"]\n\
         [queue.shut]\nrun = [\"true\"]\n{more}"
    )
}

/// A terminal with the view on it.
struct Terminal {
    master: File,
    slave: OwnedFd,
    child: Child,
    seen: String,
}

impl Terminal {
    fn start(mut command: Command, size: (u16, u16)) -> Terminal {
        let (mut master, mut slave) = (0, 0);
        let nothing = std::ptr::null_mut();
        // SAFETY: both descriptors are written to live locals, and nothing else is asked for.
        let made = unsafe { libc::openpty(&mut master, &mut slave, nothing, nothing.cast(), nothing.cast()) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call above has just made them, and nobody else owns them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        resize(&master, size);
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        Terminal { child: command.spawn().unwrap(), master, slave, seen: String::new() }
    }

    /// Reads until the text stands in what was drawn since the last time.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        let began = Instant::now();
        while !self.seen.contains(text) {
            // The view goes on drawing, so that silence alone would never end this.
            let left = PATIENCE.saturating_sub(began.elapsed());
            assert!(!left.is_zero() && is_ready(&self.master, left), "no {text:?} in: {}", self.seen);
            let mut bytes = [0; 4096];
            let length = self.master.read(&mut bytes).unwrap();
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
        let end = self.seen.find(text).unwrap() + text.len();
        self.seen.drain(..end).collect()
    }

    fn say(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// It ends with this code, and the terminal is as it was.
    #[track_caller]
    fn ends(mut self, code: i32, before: &str) {
        self.until(LEFT);
        assert_eq!(self.child.wait().unwrap().code(), Some(code));
        assert_eq!(modes(&self.slave), before);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Most have ended by then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(master: &File, (width, height): (u16, u16)) {
    tcsetwinsize(master, Winsize { ws_col: width, ws_row: height, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

fn modes(terminal: &OwnedFd) -> String {
    let modes = tcgetattr(terminal).unwrap();
    format!("{:?} {:?} {:?} {:?}", modes.local_modes, modes.input_modes, modes.output_modes, modes.control_modes)
}

/// Every name below a directory, with when it was last written to.
fn everything(path: &Path) -> Vec<String> {
    let listed = Command::new("find").arg(path).args(["-printf", "%p %T@ %s\n"]).output().unwrap();
    assert!(listed.status.success());
    let mut lines: Vec<String> = String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn one_frame_for_who_has_no_terminal() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    rig.call(&["spool", "put", rig.path("docs").to_str().unwrap(), "/etc/hostname"]).fine();
    let server = rig.serve(&config(&bell.path, &gate.path, "[spool]\nshow = [\"../docs\", \"/nowhere\"]\n"));
    rig.call(&["pause", "shut", "--reason", "for a while"]).fine();
    rig.call(&["push", "shut", "x"]).fine();
    rig.call(&["push", "bad", "x"]).fine();
    rig.call(&["wait", "queue:bad"]).ended(1);
    let run = rig.call(&["push", "work", "--run", "new", "evil\u{1b}[2J"]).fine().trim_end().to_owned();
    bell.next();
    let before = everything(&rig.path("docs"));
    let told = rig.call(&["top"]);
    let frame = told.fine();
    for part in [
        "windlass ",
        " serving ",
        "ready 1  running 1",
        "[###.......] 3/10 pages  parse",
        "evil\\u{1b}[2J",
        "shut: ",
        "for a while",
        "no such page",
        run.as_str(),
        "documents in ",
        "docs",
        "nowhere",
    ] {
        assert!(frame.contains(part), "no {part:?} in:\n{frame}");
    }
    assert!(!frame.contains('\u{1b}'), "{frame}");
    let document = rig.call(&["top", "--once", "--json"]).json();
    assert_eq!(document["running"][0]["progress"], "3/10 pages");
    assert_eq!(document["failed"][0]["queue"], "bad");
    assert_eq!(document["spools"][0]["stages"][0]["waiting"], 1);
    assert_eq!(document["why"]["shut"][0]["code"], "paused");
    assert_eq!(everything(&rig.path("docs")), before, "looking changes nothing");
    rig.call(&["top", "--delay", "1ms"]).says("expected at least 100ms").ended(64);
    rig.call(&["top", "--spool", "a", "b"]).ended(64);
    gate.open(1);
    server.stop();
    rig.call(&["top"]).says("no server is running").ended(69);
}

#[test]
fn directories_of_documents_are_shown_without_a_server() {
    let rig = Rig::bare();
    let docs = rig.path("docs");
    let docs = docs.to_str().unwrap();
    rig.call(&["spool", "put", docs, "/etc/hostname"]).fine();
    let frame = rig.call(&["top", "--spool", docs]).fine().to_owned();
    assert!(frame.starts_with("windlass  directories of documents"), "{frame}");
    assert!(
        frame.contains(&format!("documents in {docs}")) && frame.contains("WORK  WAIT  BLOCK  OVERHEAD"),
        "{frame}"
    );
    let spools = rig.call(&["top", docs, "--json"]).json();
    let mut stage = spools["spools"][0]["stages"][0].clone();
    let status = rig.call(&["spool", "status", docs, "--json"]).json();
    assert_eq!(stage.take(), status["stages"][0], "the same numbers as of spool status");
    let nowhere = rig.call(&["top", "--spool", "/nowhere/at/all"]).fine().to_owned();
    assert!(nowhere.contains("/nowhere/at/all"), "{nowhere}");
    assert!(!rig.dir().exists(), "no data directory is made for it");
}

#[test]
fn of_drivers_at_work_the_server_top_and_spool_status_tell_the_same() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let (docs, input, output) = (rig.path("docs"), rig.path("docs/in"), rig.path("docs/out"));
    let (docs, input, output) = (docs.to_str().unwrap(), input.to_str().unwrap(), output.to_str().unwrap());
    for name in ["1", "2", "3"] {
        rig.call(&["spool", "put", input, "/etc/hostname", "--name", name]).fine();
    }
    let script = format!("cp $1 $2; case $1 in */2.*) echo > {}; read x < {};; esac", bell.path, gate.path);
    let driver = rig.start(
        &["drive", "--in", input, "--out", output, "--", "sh", "-c", &script, "sh", "{in}", "{out}"],
        Stdio::null(),
    );
    bell.next();
    let server = rig.serve("[spool]\nshow = [\"../docs\"]\n");
    // Each looks for itself, and a driver's times may change in between.
    let deadline = Instant::now() + PATIENCE;
    let (told, served) = loop {
        let told = rig.call(&["spool", "status", docs, "--json"]).json();
        let served = rig.call(&["top", "--json"]).json()["spools"][0].clone();
        let alone = rig.call(&["top", "--spool", docs, "--json"]).json()["spools"].clone();
        let alone = alone.as_array().unwrap().last().unwrap().clone();
        let parts = ["stages", "left_s"];
        if parts.iter().all(|part| told[part] == served[part] && told[part] == alone[part]) {
            break (told, served);
        }
        assert!(Instant::now() < deadline, "{told}\n{served}\n{alone}");
    };
    // Where the config stands there is a step up, which nobody needs to see.
    assert_eq!(served["directory"], docs);
    let stage = &told["stages"][0];
    assert_eq!((&stage["waiting"], &stage["working"], &stage["documents"]), (&1.into(), &1.into(), &1.into()));
    for number in ["work_s", "per_hour", "left_s"] {
        assert!(stage[number].as_f64().unwrap() > 0.0, "{number}: {stage}");
    }
    driver.signal(Signal::TERM);
    gate.open(1);
    driver.end().fine();
    server.stop();
}

#[test]
fn the_live_view_goes_on_and_gives_the_terminal_back() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let server = rig.serve(&config(&bell.path, &gate.path, ""));
    let mut terminal = Terminal::start(rig.windlass(&["top", "-d", "100ms"]), (100, 30));
    let before = modes(&terminal.slave);
    terminal.until("q quit  ? help");
    assert_ne!(modes(&terminal.slave), before, "keys are not echoed");
    rig.call(&["push", "work", "x"]).fine();
    bell.next();
    terminal.until("[###.......] 3/10 pages");
    terminal.say("?");
    terminal.until("hold the view still");
    terminal.say("\x1b/nothing-has-this\r");
    terminal.until("only \"nothing-has-this\"");
    terminal.say("\x1bs");
    terminal.until("queues, by running");
    terminal.say("p");
    terminal.until("held still");
    terminal.say("p2");
    terminal.until("running, the longest first");
    resize(&terminal.master, (40, 10));
    terminal.signal(Signal::WINCH);
    terminal.say("1");
    let narrow = terminal.until("queues, by") + &terminal.until("FAILED");
    assert!(!narrow.contains("SCHEDULED"), "{narrow}");
    gate.open(1);
    server.stop();
    terminal.until("trying again");
    let server = rig.serve_again();
    terminal.until("serving");
    terminal.say("q");
    terminal.ends(0, &before);
    server.stop();
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    let start = || Terminal::start(rig.windlass(&["top"]), (80, 24));
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut terminal = start();
        let before = modes(&terminal.slave);
        terminal.until("q quit");
        terminal.signal(signal);
        terminal.ends(code, &before);
    }
    let mut terminal = start();
    let before = modes(&terminal.slave);
    terminal.until("q quit");
    terminal.signal(Signal::TSTP);
    let (_, status) = waitpid(Some(terminal.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped(), "{status:?}");
    terminal.until(LEFT);
    assert_eq!(modes(&terminal.slave), before, "whoever has the terminal meanwhile finds it as it was");
    terminal.signal(Signal::CONT);
    terminal.until("\x1b[?1049h");
    terminal.until("q quit");
    terminal.say("q");
    terminal.ends(0, &before);
    server.stop();
}

#[test]
fn without_colour_nothing_is_lost() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    for (no_color, tones) in [("", true), ("1", false)] {
        let mut command = rig.windlass(&["top"]);
        command.env("NO_COLOR", no_color);
        let mut terminal = Terminal::start(command, (80, 24));
        let before = modes(&terminal.slave);
        let drawn = terminal.until("q quit");
        assert_eq!(drawn.contains("\x1b[1m"), tones, "{drawn:?}");
        assert!(drawn.contains("serving"), "{drawn:?}");
        terminal.say("q");
        terminal.ends(0, &before);
    }
    server.stop();
}
