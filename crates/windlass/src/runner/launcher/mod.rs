//! The launcher: this binary run again as a small process of one thread that starts jobs and buries them.
//!
//! It exists because the dead must be provable: it is the subreaper of everything it starts, it notes every
//! start before it happens (`slots`), it kills every tree when its server's socket closes, and its children die
//! with it. A server talks to it over one socket (`wire`, `message`). It must not decide what an outcome means,
//! and it must not know a queue or a policy.

use crate::error::Failure;
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::process::{Child, Command, Stdio};

mod aloud;
mod cgroup;
mod control;
mod message;
mod output;
mod process;
mod service;
pub mod slots;
mod spawn;
mod tree;
mod usage;
mod user;
mod wire;

pub use control::EMIT_MAX;
pub use output::{file_name, head_length, unroll};
pub use process::{JOB_MARKER, START_MARKER};

pub(in crate::runner) use control::{control_path, emit_path};
pub(in crate::runner) use message::{
    Cut, End, Given, HoldsNul, Kept, Order, Report, Resource, Step, Strings, lay_show, lay_stop, lay_until,
};
pub(in crate::runner) use output::INLINE_MAX;
pub(in crate::runner) use spawn::DEFAULT_PATH;
pub(in crate::runner) use usage::holds_more;
pub(in crate::runner) use wire::{Inbox, Outbox, Received};

/// The first argument that makes this program a launcher.
const WORD: &str = "__launcher";

/// Is a launcher, or a worker of ours that a launcher started, to its end where the first argument says so; a program's
/// `main` asks before all else and returns what it is given.
pub fn take_over_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next()?;
    if first == super::lua::WORD {
        return Some(super::lua::serve(arguments));
    }
    if first != WORD {
        return None;
    }
    let mut path = || PathBuf::from(arguments.next().unwrap_or_default());
    let places = Places { slots: path(), output: path(), control: path(), control_of_users: path(), without: path() };
    let code = match main(places) {
        Ok(()) => 0,
        Err(failure) => {
            use std::io::Write;
            // There is nobody to tell that standard error is closed.
            let _unheard = writeln!(std::io::stderr(), "windlass launcher: {failure}");
            failure.kind.exit_code()
        }
    };
    Some(ExitCode::from(code))
}

/// Where a launcher writes.
#[derive(Clone, Debug)]
pub(in crate::runner) struct Places {
    /// Its slot table; the number at its end is the launcher's.
    pub(in crate::runner) slots: PathBuf,
    /// The directory of large outputs.
    pub(in crate::runner) output: PathBuf,
    /// The directory of control and emit files …
    pub(in crate::runner) control: PathBuf,
    /// … and what those of other users begin with.
    pub(in crate::runner) control_of_users: PathBuf,
    /// What of the kernel's it does without, by name; see `Settings::without`.
    pub(in crate::runner) without: PathBuf,
}

fn main(places: Places) -> Result<(), Failure> {
    let socket = stand_alone().map_err(|e| Failure::io("cannot become a launcher", &e))?;
    let table = slots::Table::open(&places.slots)?;
    let number = places.slots.extension().and_then(|number| number.to_str()?.parse().ok()).unwrap_or(0);
    let control = control::ControlFiles::new(places.control, places.control_of_users, number);
    let without = Without::read(&places.without.to_string_lossy());
    let groups_of = if without.cgroup { None } else { Some(places.slots) };
    service::Service::new(socket, table, places.output, control, groups_of, without)
        .and_then(service::Service::serve)
        .map_err(|e| Failure::io("cannot serve", &e))
}

/// What of Linux's own a launcher is to do without, so that the other way can be tested.
#[derive(Clone, Copy, Debug, Default)]
struct Without {
    /// Control groups.
    cgroup: bool,
    /// The lists of a process's children.
    children: bool,
    /// The memory of processes with shared pages shared out.
    shares: bool,
    /// Handles of its children.
    pidfd: bool,
}

impl Without {
    fn read(words: &str) -> Without {
        let has = |name: &str| words.split(',').any(|word| word == name);
        let [cgroup, children, shares, pidfd] = ["cgroup", "children", "shares", "pidfd"].map(has);
        Without { cgroup, children, shares, pidfd }
    }
}

/// Cuts every tie to whoever started us but the socket, which is standard input.
fn stand_alone() -> std::io::Result<OwnedFd> {
    close_inherited()?;
    // SAFETY: there is one thread; the calls get valid arguments.
    unsafe {
        // Ignored signals would stay ignored in the jobs. Blocked ones are unblocked by each child: so a TERM to
        // the whole group, as service managers send it, leaves the launcher to the server's orders.
        // Asked of the kernel itself, since libc keeps two signals to itself that may come ignored as well; all
        // zeros are the default action whatever the machine's layout.
        let default = [0u64; 8];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8);
        }
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
    // Refused only to the leader of a group, who then is out of the terminal's reach already.
    let _leader_already = rustix::process::setsid();
    // What double-forks comes to us or to nobody who would know it: there is no plain way.
    if crate::without::is_without("subreaper") {
        return Err(Errno::NOSYS.into());
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    std::env::set_current_dir("/")?;
    // A copy above 2: a child puts its own streams over 0 to 2, and everything we open closes itself on exec.
    std::io::stdin().as_fd().try_clone_to_owned()
}

/// Closes whatever whoever started the server had open: the jobs must not get it.
fn close_inherited() -> std::io::Result<()> {
    // SAFETY: nothing of ours is open yet but 0 to 2, and there is one thread.
    let at_once = || unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if !crate::without::is_without("close_range") && at_once() == 0 {
        return Ok(());
    }
    let listed = std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for descriptor in listed.collect::<Vec<i32>>().into_iter().filter(|descriptor| *descriptor > 2) {
        // SAFETY: as above; that of the listing is closed already, which is no error here.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

/// For the rig FUZZ, which is outside: messages to begin with.
#[doc(hidden)]
pub fn samples() -> Vec<Vec<u8>> {
    message::samples()
}

/// For the rig FUZZ: reads a message as both ends do; what a report looks like laid out again.
#[doc(hidden)]
pub fn reread(bytes: &[u8]) -> Option<Vec<u8>> {
    message::reread(bytes)
}

/// Starts a launcher; the server's end of its socket comes back with the process.
pub(in crate::runner) fn start(program: &Path, places: &Places) -> Result<(Child, OwnedFd), Failure> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let cannot = |e: std::io::Error| Failure::io(format_args!("cannot start a launcher as {}", program.display()), &e);
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|e| cannot(e.into()))?;
    let Places { slots, output, control, control_of_users, without } = places;
    let arguments: [OsString; 6] =
        [WORD.into(), slots.into(), output.into(), control.into(), control_of_users.into(), without.into()];
    let mut command = Command::new(program);
    command.arg0("windlass-launcher").args(arguments).env_clear();
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
    command.env(crate::without::WITHOUT, without);
    crate::sabotage::pass_on(&mut command);
    let child = command.spawn().map_err(cannot)?;
    Ok((child, ours))
}
