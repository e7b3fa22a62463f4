//! What the tests are made with: a data directory of their own, the program, servers, bells and gates.
//!
//! Every wait ends with an event; `PATIENCE` only turns a test that would hang for ever into one that fails. It is
//! longer than the minute after which a client gives an answer up.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A place with a data directory in it.
pub(crate) struct Rig {
    place: tempfile::TempDir,
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Told {
    /// Standard output as text, if the process ended well.
    #[track_caller]
    pub(crate) fn fine(&self) -> &str {
        self.ended(0)
    }

    /// Standard output as text, if the process ended with this code.
    #[track_caller]
    pub(crate) fn ended(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{}{}", self.stderr, String::from_utf8_lossy(&self.stdout));
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// The one JSON document on standard output of a process that ended well.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.fine()).unwrap()
    }

    #[track_caller]
    pub(crate) fn says(&self, sentence: &str) -> &Told {
        assert!(self.stderr.contains(sentence), "expected {sentence:?} in: {}", self.stderr);
        self
    }
}

impl Rig {
    /// The data directory is made, and empty: a verb that only looks would not make it.
    pub(crate) fn new() -> Rig {
        let rig = Rig::bare();
        windlass::data_dir::DataDir::open(&rig.dir()).unwrap();
        rig
    }

    /// Nothing is made yet.
    pub(crate) fn bare() -> Rig {
        Rig { place: tempfile::tempdir().unwrap() }
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> PathBuf {
        self.path("data")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The program, with this data directory and nothing of the caller's settings.
    pub(crate) fn windlass(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command
            .env_remove("WINDLASS_CONFIG")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME")
            .env("HOME", self.path("home"));
        command.env("WINDLASS_DIR", self.dir()).stdin(Stdio::null()).args(words);
        command
    }

    /// Runs it to its end.
    #[track_caller]
    pub(crate) fn call(&self, words: &[impl AsRef<OsStr>]) -> Told {
        self.start(words, Stdio::null()).end()
    }

    /// Runs it to its end with this input.
    #[track_caller]
    pub(crate) fn feed(&self, words: &[impl AsRef<OsStr>], input: impl AsRef<[u8]>) -> Told {
        let mut process = self.start(words, Stdio::piped());
        let mut stdin = process.stdin();
        let input = input.as_ref().to_vec();
        let feeder = std::thread::spawn(move || {
            // A program that refuses its input early closes the pipe.
            let _ = stdin.write_all(&input);
        });
        let told = process.end();
        feeder.join().unwrap();
        told
    }

    #[track_caller]
    pub(crate) fn start(&self, words: &[impl AsRef<OsStr>], stdin: Stdio) -> Process {
        Process::start(self.windlass(words).stdin(stdin))
    }

    /// Starts it with a file as its input.
    #[track_caller]
    pub(crate) fn start_fed(&self, words: &[impl AsRef<OsStr>], input: &str) -> Process {
        let file = tempfile::tempfile_in(self.place.path()).unwrap();
        (&file).write_all(input.as_bytes()).unwrap();
        std::io::Seek::rewind(&mut &file).unwrap();
        self.start(words, file.into())
    }

    /// Writes the config and starts a server with it; comes back when it is ready.
    #[track_caller]
    pub(crate) fn serve(&self, config: &str) -> Server {
        std::fs::create_dir_all(self.dir()).unwrap();
        std::fs::write(self.dir().join("windlass.toml"), config).unwrap();
        self.serve_again()
    }

    /// Starts a server with the config that is there.
    #[track_caller]
    pub(crate) fn serve_again(&self) -> Server {
        let mut process = self.start(&["serve"], Stdio::null());
        let ready = process.out_line();
        assert!(ready.starts_with("windlass serves unix:"), "{ready}{}", process.rest_of_stderr());
        Server { process, ready }
    }

    /// Writes the config and starts a server that does without these means of the kernel.
    #[track_caller]
    pub(crate) fn serve_without(&self, means: &str, config: &str) -> Server {
        std::fs::write(self.dir().join("windlass.toml"), config).unwrap();
        let mut process = Process::start(self.windlass(&["serve"]).env("WINDLASS_TEST_WITHOUT", means));
        let ready = process.out_line();
        assert!(ready.starts_with("windlass serves unix:"), "{ready}{}", process.rest_of_stderr());
        Server { process, ready }
    }

    /// Waits until nothing that can run is left, whatever became of it.
    #[track_caller]
    pub(crate) fn drained(&self) {
        let told = self.call(&["wait", "--drained"]);
        assert!([Some(0), Some(1)].contains(&told.code), "{told:?}");
    }

    /// Starts a server whose pid stands in a file before it begins.
    #[track_caller]
    pub(crate) fn serve_with_pid(&self, file: &Path) -> Process {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > $1; exec $2 serve", "sh"]).arg(file).arg(env!("CARGO_BIN_EXE_windlass"));
        shell.env("WINDLASS_DIR", self.dir()).stdin(Stdio::null());
        Process::start(&mut shell)
    }

    pub(crate) fn bell(&self, name: &str) -> Bell {
        let (path, file) = self.fifo(name);
        Bell { path, file: BufReader::new(file) }
    }

    pub(crate) fn gate(&self, name: &str) -> Gate {
        let (path, file) = self.fifo(name);
        Gate { path, file }
    }

    /// A named pipe that is open at both ends, so that it neither ends nor keeps anybody from opening it.
    fn fifo(&self, name: &str) -> (String, File) {
        let path = self.path(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let file = File::options().read(true).write(true).open(&path).unwrap();
        (path.to_str().unwrap().to_owned(), file)
    }
}

/// A started process with pipes to it.
pub(crate) struct Process {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Process {
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take().map(BufReader::new), child.stderr.take().map(BufReader::new));
        Process { child, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Stops it where it stands, and comes back when the last of its threads does.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let seen = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), seen).unwrap();
    }

    /// The next line on standard output; empty at its end.
    #[track_caller]
    pub(crate) fn out_line(&mut self) -> String {
        line_of(self.stdout.as_mut().unwrap())
    }

    /// Reads standard error until a line has this text.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) -> String {
        let mut before = String::new();
        loop {
            let line = line_of(self.stderr.as_mut().unwrap());
            assert!(!line.is_empty(), "no {text:?} in: {before}");
            if line.contains(text) {
                return line;
            }
            before.push_str(&line);
        }
    }

    fn rest_of_stderr(&mut self) -> String {
        let mut text = String::new();
        self.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Waits for its end and for everything that it says until then.
    #[track_caller]
    pub(crate) fn end(mut self) -> Told {
        let mut stderr = self.stderr.take().unwrap();
        let said = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
        });
        let mut stdout = self.stdout.take().unwrap();
        let put_out = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).map(|_| bytes)
        });
        let status = self.wait();
        let (stdout, stderr) = (put_out.join().unwrap().unwrap(), said.join().unwrap().unwrap());
        Told { code: status.code(), stdout, stderr }
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        let pidfd = pidfd_open(self.pid(), PidfdFlags::empty()).unwrap();
        ready(&pidfd, "the end of a process");
        self.child.wait().unwrap()
    }

    /// `kill -9`, and proof of death.
    #[track_caller]
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Most have ended by then; a failing test must not leave the others behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `windlass serve`.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) ready: String,
}

impl Server {
    /// As by `kill -9`.
    pub(crate) fn kill(self) {
        self.process.kill();
    }

    /// Drains and ends it; it must end well.
    #[track_caller]
    pub(crate) fn stop(self) -> String {
        self.process.signal(Signal::TERM);
        let told = self.process.end();
        told.fine();
        told.stderr
    }
}

/// A named pipe into which jobs write lines.
pub(crate) struct Bell {
    pub(crate) path: String,
    pub(crate) file: BufReader<File>,
}

impl Bell {
    /// Waits for the next line.
    #[track_caller]
    pub(crate) fn next(&mut self) -> String {
        if self.file.buffer().is_empty() {
            ready(self.file.get_ref(), "a job that rings");
        }
        let mut line = String::new();
        self.file.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// A named pipe at which jobs stand with `read x < PATH`, until they are let through.
pub(crate) struct Gate {
    pub(crate) path: String,
    file: File,
}

impl Gate {
    /// Lets so many through, those to come included.
    pub(crate) fn open(&mut self, jobs: usize) {
        // One byte a job: who reads it takes nothing away from the others.
        self.file.write_all(&vec![b'\n'; jobs]).unwrap();
    }
}

pub(crate) fn line_of<R: Read + AsFd>(reader: &mut BufReader<R>) -> String {
    if reader.buffer().is_empty() {
        ready(reader.get_ref(), "a line");
    }
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).unwrap();
    String::from_utf8_lossy(&line).into_owned()
}

#[track_caller]
fn ready(fd: &impl AsFd, what: &str) {
    assert!(is_ready(fd, PATIENCE), "waited in vain for {what}");
}

/// Waits until there is something to read, or the end of it; false if that takes longer than `patience`.
pub(crate) fn is_ready(fd: &impl AsFd, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).unwrap();
    rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&patience))).unwrap() > 0
}

/// The lines of a text, sorted.
pub(crate) fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

pub(crate) fn lines_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}
