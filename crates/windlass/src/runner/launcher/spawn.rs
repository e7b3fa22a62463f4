//! Makes a child: a clone that shares our memory until it becomes its program, as fast as the kernel allows.
//!
//! Everything is prepared before; between the clone and the exec the child makes system calls and nothing else,
//! because it stands in our memory on a stack of its own while we are held. What went wrong it leaves where we
//! find it. The child has its own process group, no signal blocked or ignored, the limits that the launcher was born
//! with and those of its task, descriptors 0 to 2 (and 3 where the server gave one), and dies with the launcher. Where
//! the task names a user it becomes that user first (`user`).

use super::cgroup::Cell;
use super::message::{Owner, Step, Task};
use super::user;
use crate::without::memory_file;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Resource, Rlimit, WaitId, WaitIdOptions};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const STACK: usize = 64 << 10;
const SHELL: &CStr = c"/bin/sh";
/// Where programs are looked for when the job's environment has no PATH.
pub(crate) const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// A running child and the launcher's ends of its pipes.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: Pid,
    /// None where the kernel gives no handle of a process.
    pub(super) handle: Option<OwnedFd>,
    /// Standard output and standard error; none where the server has made it.
    pub(super) pipes: [Option<Pipe>; 2],
}

/// Both ends of a pipe: as long as we hold the end for writing too, its closing by a child that exits wakes nobody,
/// and the exit itself is the one thing that we are woken for.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    fn new() -> rustix::io::Result<Pipe> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Our end alone: a program may not be handed an output that refuses to wait.
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok(Pipe { read, write })
    }
}

/// The step that failed and its errno.
pub(super) type Refusal = (Step, i32);

/// What every child needs, made once.
pub(super) struct Spawner {
    /// Whether a child is asked for with a handle of it.
    handles: bool,
    /// 16-byte units, so that the top is aligned as the ABI wants it.
    stack: Vec<u128>,
    null: File,
    own: c_int,
    descriptors: libc::rlimit,
    /// The kernel spares us when it is out of memory, whatever it costs, and would spare what we start.
    spared: bool,
    /// The hard limits that a child's own are kept within.
    data: Option<u64>,
    seconds: Option<u64>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    /// Where a child that becomes another user is told its groups.
    groups: Vec<u32>,
}

/// What one child needs; read and written by the child on our memory.
struct Plan {
    program: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    directory: *const c_char,
    streams: [c_int; 3],
    /// Becomes descriptor 3; negative where there is none.
    channel: c_int,
    own: c_int,
    descriptors: libc::rlimit,
    /// The file through which it enters its control group; negative where it has none.
    door: c_int,
    /// It must be made one that the kernel may kill, or nobody would keep the limit of its group.
    spared: bool,
    data: Option<libc::rlimit>,
    seconds: Option<libc::rlimit>,
    owner: *const Owner,
    groups: *mut [u32],
    note: *const AtomicU64,
    failed: Option<Refusal>,
}

impl Spawner {
    /// Raises our own limit of descriptors, which the children do not get.
    pub(super) fn new(handles: bool) -> std::io::Result<Spawner> {
        let born_with = rustix::process::getrlimit(Resource::Nofile);
        let raised = Rlimit { current: born_with.maximum, maximum: born_with.maximum };
        // Refused, it only means that fewer jobs fit at once; running out is handled where it happens.
        let _as_it_was = rustix::process::setrlimit(Resource::Nofile, raised);
        let unlimited = libc::RLIM_INFINITY;
        Ok(Spawner {
            handles,
            stack: vec![0; STACK / 16],
            null: File::open("/dev/null")?,
            own: rustix::process::getpid().as_raw_nonzero().get(),
            descriptors: libc::rlimit {
                rlim_cur: born_with.current.unwrap_or(unlimited),
                rlim_max: born_with.maximum.unwrap_or(unlimited),
            },
            spared: std::fs::read_to_string("/proc/self/oom_score_adj").is_ok_and(|score| score.trim() == "-1000"),
            data: rustix::process::getrlimit(Resource::Data).maximum,
            seconds: rustix::process::getrlimit(Resource::Cpu).maximum,
            argv: Vec::new(),
            envp: Vec::new(),
            groups: Vec::new(),
        })
    }

    /// Starts a task; the child's pid is in `note` before anything of its program runs. A script that does not name
    /// its interpreter is given to the shell, as every shell does it.
    pub(super) fn start(&mut self, task: &Task, cell: Option<&Cell>, note: &AtomicU64) -> Result<Child, Refusal> {
        let program = find_program(task)?;
        self.point_at_strings(task);
        match self.start_as(&program, task, cell, note) {
            Err((Step::Exec, libc::ENOEXEC)) if is_text(task, &program) => {
                self.argv[0] = program.as_ptr();
                self.argv.insert(0, SHELL.as_ptr());
                self.start_as(SHELL, task, cell, note)
            }
            other => other,
        }
    }

    fn start_as(
        &mut self,
        program: &CStr,
        task: &Task,
        cell: Option<&Cell>,
        note: &AtomicU64,
    ) -> Result<Child, Refusal> {
        let prepare = |e: rustix::io::Errno| (Step::Prepare, e.raw_os_error());
        let [given_in, given_out, channel] = task.streams.each_ref().map(|fd| fd.as_ref().map(AsRawFd::as_raw_fd));
        let stdin = if given_in.is_some() { None } else { feed(task.stdin()).map_err(prepare)? };
        let stdin_end = given_in.unwrap_or(stdin.as_ref().map_or(self.null.as_raw_fd(), AsRawFd::as_raw_fd));
        let stdout = if given_out.is_some() { None } else { Some(Pipe::new().map_err(prepare)?) };
        let stderr = Pipe::new().map_err(prepare)?;
        let stdout_end = stdout.as_ref().map(|pipe| pipe.write.as_raw_fd()).or(given_out).unwrap_or(-1);
        if let Some(owner) = &task.owner {
            self.groups.resize(owner.groups.len() + 1, 0);
            let made = [stdout.as_ref(), Some(&stderr)].into_iter().flatten().map(|pipe| pipe.write.as_fd());
            let given = task.streams.iter().flatten().map(AsFd::as_fd);
            hand_over(made.chain(given), owner).map_err(|e| (Step::Descriptors, e.raw_os_error()))?;
        }
        let mut plan = Plan {
            program: program.as_ptr(),
            argv: self.argv.as_ptr(),
            envp: self.envp.as_ptr(),
            directory: directory(task).as_ptr(),
            streams: [stdin_end, stdout_end, stderr.write.as_raw_fd()],
            channel: channel.unwrap_or(-1),
            own: self.own,
            descriptors: self.descriptors,
            door: cell.map_or(-1, Cell::door),
            spared: self.spared && cell.is_some_and(|cell| cell.keeps(task.limits)),
            data: data_limit(task.limits.memory, self.data),
            seconds: seconds_limit(task.limits.cpu, self.seconds),
            owner: task.owner.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            groups: self.groups.as_mut_slice(),
            note,
            failed: None,
        };
        let (pid, handle) = self.clone_child(&mut plan)?;
        if let Some(refusal) = plan.failed {
            // It is gone already; waiting for it only takes its entry away.
            let _ended = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            return Err(refusal);
        }
        Ok(Child { pid, handle, pipes: [stdout, Some(stderr)] })
    }

    /// Lets argv and envp point into the task's record.
    fn point_at_strings(&mut self, task: &Task) {
        self.argv.clear();
        self.envp.clear();
        let mut strings = task.strings().skip(1).map(|s| s.as_ptr().cast::<c_char>());
        self.argv.extend(strings.by_ref().take(task.argc));
        self.envp.extend(strings.take(task.envc));
        self.argv.push(std::ptr::null());
        self.envp.push(std::ptr::null());
    }

    fn clone_child(&mut self, plan: &mut Plan) -> Result<(Pid, Option<OwnedFd>), Refusal> {
        const FLAGS: c_int = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let flags = if self.handles { FLAGS | libc::CLONE_PIDFD } else { FLAGS };
        let mut handle: c_int = -1;
        // SAFETY: the stack outlives the child's use of it, since the call returns only when the child has become
        // its program or ended; the child writes to nothing but the plan, the note and errno.
        let pid = unsafe {
            let top = self.stack.as_mut_ptr().add(self.stack.len()).cast::<c_void>();
            let plan = std::ptr::from_mut(plan).cast::<c_void>();
            libc::clone(become_the_program, top, flags, plan, &raw mut handle)
        };
        // A refusal is a negative number, which is no pid to even ask about.
        match Pid::from_raw(pid.max(0)) {
            // A kernel that does not know the flag leaves the number as it was.
            // SAFETY: any other number is a descriptor that the kernel has just made for us.
            Some(pid) => Ok((pid, (handle >= 0).then(|| unsafe { OwnedFd::from_raw_fd(handle) }))),
            None => Err((Step::Prepare, std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN))),
        }
    }
}

/// The child. No allocation, no lock, no panic: only system calls through libc's thin wrappers.
extern "C" fn become_the_program(plan: *mut c_void) -> c_int {
    // SAFETY: the plan outlives us, and the one who made it is held until we are done with it.
    unsafe {
        let plan = &mut *plan.cast::<Plan>();
        let step = child_steps(plan);
        plan.failed = Some((step, *libc::__errno_location()));
        libc::_exit(127)
    }
}

/// Returns the step that failed; on success it does not return.
///
/// # Safety
/// Only for the child of `clone_child`, with the plan made for it.
unsafe fn child_steps(plan: &Plan) -> Step {
    // SAFETY: plain system calls on values that were prepared for them.
    unsafe {
        // A group and not a session: where the kernel groups processes by session to share out the processors, every
        // new session begins with next to no share, and starts take several times as long beside other load.
        if libc::setpgid(0, 0) < 0 {
            return Step::Child;
        }
        if let Err(step) = take_limits(plan) {
            return step;
        }
        for (to, from) in plan.streams.iter().enumerate() {
            if libc::dup2(*from, to as c_int) < 0 {
                return Step::Child;
            }
        }
        // No stream comes from 3, which is the launcher's socket for as long as it lives.
        if plan.channel >= 0 && libc::dup2(plan.channel, 3) < 0 {
            return Step::Child;
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const plan.descriptors) < 0
            || libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) < 0
        {
            return Step::Child;
        }
        if !plan.owner.is_null() {
            let first = if plan.channel >= 0 { 4 } else { 3 };
            if let Err(step) = user::become_owner(&*plan.owner, first, &mut *plan.groups) {
                return step;
            }
        }
        // Behind the change of the user, which takes it back.
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
            return Step::Child;
        }
        // The launcher may have died before the line above; then nobody will ever tell us.
        if libc::getppid() != plan.own {
            *libc::__errno_location() = libc::ESRCH;
            return Step::Child;
        }
        (*plan.note).store(libc::getpid() as u64, Ordering::Release);
        if libc::chdir(plan.directory) < 0 {
            return Step::Directory;
        }
        libc::execve(plan.program, plan.argv, plan.envp);
        Step::Exec
    }
}

/// Puts the child under its limits.
///
/// # Safety
/// As `child_steps`.
unsafe fn take_limits(plan: &Plan) -> Result<(), Step> {
    // SAFETY: plain system calls on values that were prepared for them.
    unsafe {
        if plan.door >= 0 && libc::write(plan.door, c"0".as_ptr().cast(), 1) < 0 {
            return Err(Step::Limits);
        }
        if plan.spared && !be_spared_no_more() {
            return Err(Step::Limits);
        }
        for (resource, limit) in [(libc::RLIMIT_DATA, &plan.data), (libc::RLIMIT_CPU, &plan.seconds)] {
            if let Some(limit) = limit
                && libc::setrlimit(resource, limit) < 0
            {
                return Err(Step::Limits);
            }
        }
        Ok(())
    }
}

/// Takes back what the launcher was born with, as anybody may.
///
/// # Safety
/// As `child_steps`.
unsafe fn be_spared_no_more() -> bool {
    // SAFETY: plain system calls on valid strings; the descriptor is the one that was just opened.
    unsafe {
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        file >= 0 && libc::write(file, c"0".as_ptr().cast(), 1) == 1 && libc::close(file) == 0
    }
}

/// A net under the watching of a tree's memory, for one process that takes very much at once: twice the limit, but at
/// least a GiB above it, because what a program may write to is more than what it has.
fn data_limit(memory: u64, hard: Option<u64>) -> Option<libc::rlimit> {
    const SPARE: u64 = 1 << 30;
    if memory == 0 {
        return None;
    }
    let most = memory.saturating_add(memory.max(SPARE)).min(hard.unwrap_or(u64::MAX));
    Some(libc::rlimit { rlim_cur: most, rlim_max: most })
}

/// The same for its time on processors, in whole seconds: a signal, and some seconds later the end.
fn seconds_limit(cpu: Duration, hard: Option<u64>) -> Option<libc::rlimit> {
    const SPARE: u64 = 5;
    if cpu.is_zero() {
        return None;
    }
    let hard = hard.unwrap_or(u64::MAX);
    let soft = (cpu.as_secs() + 2).min(hard);
    Some(libc::rlimit { rlim_cur: soft, rlim_max: soft.saturating_add(SPARE).min(hard) })
}

/// Gives what the child reads from and writes to to whom it will be, so that it can open it again by its name in /dev.
fn hand_over<'f>(streams: impl Iterator<Item = BorrowedFd<'f>>, owner: &Owner) -> rustix::io::Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(owner.uid), rustix::fs::Gid::from_raw(owner.gid));
    for stream in streams {
        rustix::fs::fchown(stream, Some(uid), Some(gid))?;
    }
    Ok(())
}

/// A memory file with the job's data at its beginning; none where there is no data.
fn feed(data: &[u8]) -> rustix::io::Result<Option<File>> {
    if data.is_empty() {
        return Ok(None);
    }
    let file = memory_file("windlass-data")?;
    // Written by position, so that the child's reading starts at the beginning.
    file.write_all_at(data, 0).map_err(|e| rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO))?;
    Ok(Some(file))
}

/// The directory that the job will stand in.
fn directory(task: &Task) -> &CStr {
    task.strings().next().and_then(|s| CStr::from_bytes_with_nul(s).ok()).unwrap_or(c"/")
}

/// Whether a file that the kernel does not know how to run is a script: what shells go by is that there is no NUL at
/// its beginning, which a program of another machine has.
fn is_text(task: &Task, program: &CStr) -> bool {
    let path = Path::new(OsStr::from_bytes(directory(task).to_bytes())).join(OsStr::from_bytes(program.to_bytes()));
    let mut beginning = [0u8; 80];
    let read = File::open(path).and_then(|file| file.read_at(&mut beginning, 0));
    read.is_ok_and(|read| !beginning[..read].contains(&0))
}

/// The path of the program: as it stands where it has a slash, else searched in the PATH of the job.
fn find_program(task: &Task) -> Result<CString, Refusal> {
    let with_nul = task.strings().nth(1).unwrap_or_default();
    let name = CStr::from_bytes_with_nul(with_nul).map_err(|_| (Step::Find, libc::ENOENT))?;
    if name.is_empty() {
        return Err((Step::Find, libc::ENOENT));
    }
    if name.to_bytes().contains(&b'/') {
        return Ok(name.to_owned());
    }
    let directory = directory(task).to_bytes();
    let listed = task.strings().skip(1 + task.argc).find_map(|entry| entry.strip_prefix(b"PATH="));
    let listed = listed.and_then(|path| path.strip_suffix(b"\0")).unwrap_or(DEFAULT_PATH);
    let mut errno = libc::ENOENT;
    for entry in listed.split(|b| *b == b':') {
        // An entry that is relative or empty is meant from the directory that the job will stand in.
        let path = Path::new(OsStr::from_bytes(directory))
            .join(OsStr::from_bytes(entry))
            .join(OsStr::from_bytes(name.to_bytes()));
        match rustix::fs::stat(&path) {
            Ok(found) if found.st_mode & libc::S_IFMT == libc::S_IFREG => {}
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => continue,
            // Whether it is there cannot be told; that is not the same as that it is not.
            Err(error) => {
                errno = error.raw_os_error();
                continue;
            }
        }
        match rustix::fs::access(&path, rustix::fs::Access::EXEC_OK) {
            Ok(()) => return CString::new(path.into_os_string().into_encoded_bytes()).map_err(|_| (Step::Find, errno)),
            Err(error) => errno = error.raw_os_error(),
        }
    }
    Err((Step::Find, errno))
}
