//! Follows a process and all that it starts from system call to system call, and does something at the n-th of a kind:
//! stops the world, or makes the call fail. Calls are counted over all threads and processes of the program together,
//! which `strace -e inject` cannot do.
//!
//! Only the program itself is followed: a job that the launcher starts is let go as soon as it is another program.
//! A tracer owns one thread, because the kernel knows a tracer by its thread.

use crate::rig::{PATIENCE, is_ready, line_of};
use libc::{c_long, c_void, pid_t};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Which calls are counted.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// Those that change what is on this disk.
    Changing(PathBuf),
    /// Those of this number.
    Call(c_long),
    /// None: only short writes are noted.
    None,
}

/// What happens at the call that the plan names.
pub(crate) enum Act {
    Count,
    /// Before the call is done this is called, and everything that is followed is killed.
    Cut(Box<dyn FnOnce() + Send>),
    /// The call is not done and answers this error; so do all later ones of the kind if `from_then_on`.
    Fail {
        errno: i32,
        from_then_on: bool,
    },
}

pub(crate) struct Plan {
    pub(crate) which: Which,
    /// From 1.
    pub(crate) nth: u64,
    pub(crate) act: Act,
}

/// What a tracer has seen when everything it followed has ended.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How many calls were of the kind.
    pub(crate) counted: u64,
    /// All calls by number, for those who plan; reads and writes only of files.
    pub(crate) calls: BTreeMap<c_long, u64>,
    /// The plan came to pass.
    pub(crate) hit: bool,
    /// Writes that wrote less than they were given.
    pub(crate) short_writes: u64,
    /// How the first process ended: its code, or minus the signal.
    pub(crate) end: i32,
    /// What it said that nobody had read before.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A process that is being followed.
pub(crate) struct Traced {
    pid: Pid,
    stdout: BufReader<ChildStdout>,
    tracer: Option<JoinHandle<Tally>>,
}

impl Traced {
    pub(crate) fn start(mut command: Command, plan: Plan) -> Traced {
        let (tell, told) = channel();
        // The trace of a panic takes so many calls, each stopped here, that it looks like a hang.
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).env("RUST_BACKTRACE", "0");
        let tracer = std::thread::spawn(move || Tracer::new(plan).follow(command, &tell));
        let (pid, stdout) = told.recv().unwrap();
        Traced { pid, stdout: BufReader::new(stdout), tracer: Some(tracer) }
    }

    /// The next line of standard output, empty at its end; `None` if it does not come for longer than `patience`.
    pub(crate) fn out_line(&mut self, patience: Duration) -> Option<String> {
        let comes = !self.stdout.buffer().is_empty() || is_ready(self.stdout.get_ref(), patience);
        if !comes {
            self.tell_what_hangs();
        }
        comes.then(|| line_of(&mut self.stdout))
    }

    /// Each thread with the call that it is in.
    fn tell_what_hangs(&self) {
        let tasks = format!("/proc/{}/task", self.pid.as_raw_nonzero());
        for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            let of = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            eprintln!("hangs: thread `{}` in call {}", of("comm").trim(), of("syscall").trim());
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended; its number stays taken until the tracer has seen that, and it tells only at the end.
        let _ = kill_process(self.pid, signal);
    }

    /// Waits until all of it has ended; `None` if that takes longer than `patience`, after which it is killed.
    pub(crate) fn end(self, patience: Duration) -> Option<Tally> {
        self.wait(patience, None)
    }

    /// The same, while it is told again and again to end at once: two signals of a kind may arrive as one.
    pub(crate) fn end_at_once(self, patience: Duration) -> Option<Tally> {
        self.wait(patience, Some(Signal::INT))
    }

    fn wait(mut self, patience: Duration, signal: Option<Signal>) -> Option<Tally> {
        let mut rest = Vec::new();
        let by = Instant::now() + patience;
        let tracer = self.tracer.take().unwrap();
        let stdout = self.stdout.get_mut();
        // The end of all processes is the end of the pipe.
        let ended = loop {
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            if let Some(signal) = signal {
                let _ = kill_process(self.pid, signal);
            }
            let step = if signal.is_some() { left.min(AGAIN_AFTER) } else { left };
            if is_ready(stdout, step) {
                let mut piece = [0; 4096];
                match stdout.read(&mut piece).unwrap() {
                    0 => break true,
                    n => rest.extend_from_slice(&piece[..n]),
                }
            }
        };
        if !ended {
            self.tell_what_hangs();
            let _ = kill_process(self.pid, Signal::KILL);
        }
        let mut tally = tracer.join().unwrap();
        tally.stdout = String::from_utf8_lossy(&rest).into_owned();
        ended.then_some(tally)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(tracer) = self.tracer.take() {
            let _ = kill_process(self.pid, Signal::KILL);
            // A failing test must not leave anybody behind; what the tracer saw no longer matters.
            let _ = tracer.join();
        }
    }
}

struct Tracer {
    which: Which,
    nth: u64,
    act: Act,
    tally: Tally,
    known: HashSet<pid_t>,
    /// Calls that were taken out and have to answer this.
    failing: HashMap<pid_t, i32>,
    /// Bytes that a write under way was given.
    writing: HashMap<pid_t, u64>,
    /// Processes in the hands of the loader and of the language's own start, which are not ours to judge.
    loading: HashSet<pid_t>,
    /// Jobs, which are let go: they die with the world when it is stopped.
    jobs: Vec<OwnedFd>,
}

const AGAIN_AFTER: Duration = Duration::from_millis(200);
const OF_FILES: [c_long; 3] = [libc::SYS_read, libc::SYS_write, libc::SYS_pwrite64];
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

impl Tracer {
    fn new(plan: Plan) -> Tracer {
        Tracer {
            which: plan.which,
            nth: plan.nth,
            act: plan.act,
            tally: Tally::default(),
            known: HashSet::new(),
            failing: HashMap::new(),
            writing: HashMap::new(),
            loading: HashSet::new(),
            jobs: Vec::new(),
        }
    }

    #[expect(clippy::zombie_processes, reason = "the tracer waits for all that it follows, this one included")]
    fn follow(mut self, mut command: Command, tell: &Sender<(Pid, ChildStdout)>) -> Tally {
        let program = PathBuf::from(command.get_program());
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot follow a process: {e}"));
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let said = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
        });
        let main = child.id() as pid_t;
        tell.send((Pid::from_child(&child), stdout)).unwrap();
        let mut begun = false;
        while let Some((pid, status)) = wait() {
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.known.remove(&pid);
                self.failing.remove(&pid);
                if pid == main {
                    let code =
                        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) };
                    self.tally.end = code;
                }
                continue;
            }
            let new = self.known.insert(pid);
            let mut pass_on = 0;
            match (libc::WSTOPSIG(status), status >> 16) {
                (libc::SIGTRAP, 0) if !begun => {
                    begun = true;
                    self.loading.insert(pid);
                    ptrace(libc::PTRACE_SETOPTIONS, pid, 0, OPTIONS as usize);
                }
                (SYSCALL_STOP, _) => self.at_call(pid),
                (_, libc::PTRACE_EVENT_EXEC) if !is_running(pid, &program) => {
                    self.known.remove(&pid);
                    self.jobs.extend(Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()));
                    ptrace(libc::PTRACE_DETACH, pid, 0, 0);
                    continue;
                }
                (_, libc::PTRACE_EVENT_EXEC) => {
                    self.loading.insert(pid);
                }
                (libc::SIGSTOP, 0) if new => {}
                (signal, 0) => pass_on = signal as usize,
                _ => {}
            }
            ptrace(libc::PTRACE_SYSCALL, pid, 0, pass_on);
        }
        for job in &self.jobs {
            assert!(is_ready(job, PATIENCE), "a job outlives its launcher");
        }
        self.tally.stderr = said.join().unwrap().unwrap();
        self.tally
    }

    fn at_call(&mut self, pid: pid_t) {
        // SAFETY: all zeroes are a value of this plain structure.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        if ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, (&raw mut info) as usize) <= 0 {
            // It was killed meanwhile.
            return;
        }
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => {
                // SAFETY: `op` says which part holds.
                let entry = unsafe { info.u.entry };
                self.enter(pid, entry.nr as c_long, &entry.args);
            }
            libc::PTRACE_SYSCALL_INFO_EXIT => {
                // SAFETY: as above.
                let wrote = unsafe { info.u.exit.sval };
                let given = self.writing.remove(&pid).unwrap_or(0);
                self.tally.short_writes += u64::from(wrote > 0 && (wrote as u64) < given);
                if let Some(errno) = self.failing.remove(&pid) {
                    answer(pid, -i64::from(errno));
                }
            }
            _ => {}
        }
    }

    fn enter(&mut self, pid: pid_t, call: c_long, args: &[u64; 6]) {
        if self.loading.contains(&pid) {
            // The runtime's last act before `main` is to make a stack for signals.
            if call == libc::SYS_sigaltstack {
                self.loading.remove(&pid);
            }
            return;
        }
        if OF_FILES.contains(&call) {
            // Sockets, pipes and the like have errors of their own.
            if !is_file(pid, args[0]) {
                return;
            }
            if call != libc::SYS_read {
                self.writing.insert(pid, args[2]);
            }
        }
        *self.tally.calls.entry(call).or_default() += 1;
        let of_the_kind = match &self.which {
            Which::Changing(disk) => changes(pid, call, args, disk),
            Which::Call(number) => *number == call,
            Which::None => false,
        };
        if !of_the_kind {
            return;
        }
        self.tally.counted += 1;
        let now = self.tally.counted == self.nth;
        match &mut self.act {
            Act::Count => {}
            Act::Cut(_) if !now => {}
            Act::Cut(cut) => {
                let cut = std::mem::replace(cut, Box::new(|| ()));
                cut();
                self.tally.hit = true;
                for pid in &self.known {
                    // SAFETY: a plain call. Who is gone already is gone.
                    unsafe { libc::kill(*pid, libc::SIGKILL) };
                }
                for job in &self.jobs {
                    let _ = pidfd_send_signal(job, Signal::KILL);
                }
            }
            Act::Fail { errno, from_then_on } => {
                if now || (*from_then_on && self.tally.counted > self.nth) {
                    self.tally.hit = true;
                    self.failing.insert(pid, *errno);
                    skip(pid);
                }
            }
        }
    }
}

/// The next thing that happened to anyone whom this thread follows; none when nobody is left.
fn wait() -> Option<(pid_t, i32)> {
    loop {
        let mut status = 0;
        // SAFETY: a plain call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if pid > 0 {
            return Some((pid, status));
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

fn ptrace(request: libc::c_uint, pid: pid_t, address: usize, data: usize) -> c_long {
    // SAFETY: the caller gives the kernel a valid place where the request writes. One that was killed answers
    // an error, which tells nothing new: its end is on the way.
    unsafe { libc::ptrace(request, pid, address as *mut c_void, data as *mut c_void) }
}

/// Takes the call out that a process is about to make.
#[cfg(target_arch = "x86_64")]
fn skip(pid: pid_t) {
    ptrace(libc::PTRACE_POKEUSER, pid, 8 * libc::ORIG_RAX as usize, usize::MAX);
}

/// What the call that it has just left is to answer.
#[cfg(target_arch = "x86_64")]
fn answer(pid: pid_t, value: i64) {
    ptrace(libc::PTRACE_POKEUSER, pid, 8 * libc::RAX as usize, value as usize);
}

#[cfg(not(target_arch = "x86_64"))]
fn skip(_: pid_t) {
    panic!("the rig can make calls fail only on x86_64");
}

#[cfg(not(target_arch = "x86_64"))]
fn answer(_: pid_t, _: i64) {}

fn is_running(pid: pid_t, program: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
}

/// Where a descriptor leads to.
fn place_of(pid: pid_t, fd: u64) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/fd/{}", fd as i32)).ok()
}

fn is_file(pid: pid_t, fd: u64) -> bool {
    place_of(pid, fd).is_some_and(|place| place.is_absolute())
}

/// Whether a call changes what is on the disk, or makes a change durable.
fn changes(pid: pid_t, call: c_long, args: &[u64; 6], disk: &Path) -> bool {
    let open = |fd: u64| place_of(pid, fd).is_some_and(|place| place.starts_with(disk));
    let named = |at: u64| text_at(pid, at).is_some_and(|path| path.is_relative() || path.starts_with(disk));
    let creates = |flags: u64| flags as i32 & (libc::O_CREAT | libc::O_TRUNC) != 0;
    match call {
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => {
            open(args[0])
        }
        libc::SYS_ftruncate | libc::SYS_fallocate | libc::SYS_fsync | libc::SYS_fdatasync => open(args[0]),
        libc::SYS_sync_file_range | libc::SYS_fchmod | libc::SYS_copy_file_range => open(args[0]),
        libc::SYS_openat => creates(args[2]) && named(args[1]),
        libc::SYS_unlinkat | libc::SYS_mkdirat | libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => {
            named(args[1])
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => creates(args[1]) && named(args[0]),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink | libc::SYS_mkdir | libc::SYS_rename | libc::SYS_link | libc::SYS_rmdir => named(args[0]),
        _ => false,
    }
}

/// A path in the memory of a process.
fn text_at(pid: pid_t, at: u64) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut bytes = vec![0; libc::PATH_MAX as usize];
    // The string may stand at the very end of what is mapped.
    let to_page_end = 4096 - (at as usize % 4096);
    let mut length = memory.read_at(&mut bytes[..to_page_end], at).ok()?;
    if !bytes[..length].contains(&0) {
        let more = memory.read_at(&mut bytes[length..], at + length as u64).unwrap_or(0);
        length += more;
    }
    let end = bytes[..length].iter().position(|b| *b == 0)?;
    bytes.truncate(end);
    Some(std::ffi::OsString::from_vec(bytes).into())
}
