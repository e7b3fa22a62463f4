//! A control group for a job that has limits: it knows every process of a tree, counts for it and kills it at once.
//!
//! Only version 2, only where we may make groups, and the memory controller only where it is handed down to us; what is
//! missing is made up for by watching (`service/watch.rs`). Groups are made once and used by one job after the other,
//! because making one costs more than a job should. Where they lie is noted beside the slot table, so that whoever
//! proves a launcher's trees dead ends its groups as well. This file must not decide what is too much.

use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use windlass_core::policy::Limits;

const PREFIX: &str = "windlass-";
/// Beyond the limit of processes, which is watched, the kernel makes no more than twice as many and these.
const SPARE_PROCESSES: u64 = 16;
/// What files in memory a job may leave in its group for the next one there, and which share of its limit at most.
const LEFT_BEHIND: u64 = 1 << 20;
const SHARE_LEFT_BEHIND: u64 = 16;
/// An end that is not told is looked for this often.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The groups of one launcher.
#[derive(Debug)]
pub(super) struct Cgroups {
    base: PathBuf,
    /// The kernel limits memory.
    memory: bool,
    /// The kernel limits processes.
    pids: bool,
    free: Vec<Cell>,
    made: u32,
}

/// The group of one job.
#[derive(Debug)]
pub(super) struct Cell {
    path: PathBuf,
    procs: File,
    /// The kernel limits its memory.
    memory: bool,
    set: (u64, u32),
    /// What had been counted before this job.
    cpu_before: u64,
    kills_before: Kills,
}

/// How often a group came to its own limit of memory, and how many processes the kernel killed for want of memory.
///
/// Both are needed: the kernel also kills for a limit of a group above, or because the machine is full.
#[derive(Clone, Copy, Debug, Default)]
struct Kills {
    at_its_limit: u64,
    killed: u64,
}

impl Cgroups {
    /// None where there is no version 2 of control groups, or none may be made.
    pub(super) fn open(table: &Path) -> Option<Cgroups> {
        let own = own_group()?;
        let meta = fs::metadata(table).ok()?;
        let number = table.extension()?.to_str()?;
        let name = format!("{PREFIX}{:x}-{:x}-{number}", meta.dev(), meta.ino());
        // A service manager that hands a group over puts the service itself into one below it, where it says so.
        let parent = own.parent().filter(|parent| is_handed_over(parent));
        let base = [parent, Some(own.as_path())].into_iter().flatten().find_map(|above| {
            let base = above.join(&name);
            make(&base).ok()?;
            for group in [above, base.as_path()].into_iter().filter(|group| may_hand_down(group)) {
                for controller in ["+memory", "+pids"] {
                    // Refused where the controller is not handed down to us.
                    let _watched_instead = fs::write(group.join("cgroup.subtree_control"), controller);
                }
            }
            Some(base)
        })?;
        let handed = fs::read_to_string(base.join("cgroup.subtree_control")).ok()?;
        let has = |name: &str| handed.split_ascii_whitespace().any(|word| word == name);
        let (memory, pids) = (has("memory"), has("pids"));
        // Kernels before 5.14 cannot end a group; then it is of no use here.
        if !base.join("cgroup.kill").exists() {
            remove(&base);
            return None;
        }
        fs::write(note_beside(table), base.as_os_str().as_bytes()).ok()?;
        let mut groups = Cgroups { base, memory, pids, free: Vec::new(), made: 0 };
        // One that cannot be used shows here and not with the first job.
        let first = groups.make_cell().ok()?;
        groups.free.push(first);
        Some(groups)
    }

    /// An empty group with these limits as far as the kernel keeps them.
    pub(super) fn take(&mut self, limits: Limits) -> io::Result<Cell> {
        let mut cell = match self.free.pop() {
            Some(cell) => cell,
            None => self.make_cell()?,
        };
        if cell.set != (limits.memory, limits.processes) {
            let word = |limit: u64| if limit == 0 { "max".to_owned() } else { limit.to_string() };
            if self.memory {
                fs::write(cell.path.join("memory.max"), word(limits.memory))?;
                // What is over the limit would go out to the swap, and its job would go on without an end.
                match fs::write(cell.path.join("memory.swap.max"), if limits.memory == 0 { "max" } else { "0" }) {
                    // A kernel that swaps nothing has no such file.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    done => done?,
                }
                // One process less of a tree is seldom worth anything.
                fs::write(cell.path.join("memory.oom.group"), "1")?;
            }
            if self.pids {
                let most = u64::from(limits.processes);
                fs::write(cell.path.join("pids.max"), word(if most == 0 { 0 } else { most * 2 + SPARE_PROCESSES }))?;
            }
            cell.set = (limits.memory, limits.processes);
        }
        if !limits.cpu.is_zero() {
            cell.cpu_before = cell.cpu_counted();
        }
        if cell.keeps(limits) {
            cell.kills_before = cell.kills_counted();
        }
        Ok(cell)
    }

    /// Takes back the group of a job of which nothing lives; one that would not serve the next as it served this one
    /// is removed.
    pub(super) fn give_back(&mut self, cell: Cell) {
        match cell.is_as_new() {
            true => self.free.push(cell),
            false => remove(&cell.path),
        }
    }

    fn make_cell(&mut self) -> io::Result<Cell> {
        // One that is there already has limits that nobody here has set.
        let path = loop {
            let path = self.base.join(self.made.to_string());
            self.made += 1;
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => break made.map(|()| path)?,
            }
        };
        let procs = OpenOptions::new().read(true).write(true).open(path.join("cgroup.procs"))?;
        Ok(Cell { path, procs, memory: self.memory, set: (0, 0), cpu_before: 0, kills_before: Kills::default() })
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // What is left is ended and removed by whoever proves this launcher's trees dead.
        remove(&self.base);
    }
}

impl Cell {
    /// The file through which a process puts itself into the group.
    pub(super) fn door(&self) -> RawFd {
        self.procs.as_raw_fd()
    }

    /// Whether the kernel keeps the limit of memory, so that nobody needs to look.
    pub(super) fn keeps(&self, limits: Limits) -> bool {
        self.memory && limits.memory > 0
    }

    /// Every process of the group that is not dead, and of those that its job made in it; none of them where that
    /// cannot be read.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut members = self.own_members();
        if self.has_groups() {
            add_members_below(&self.path, &mut members);
        }
        members
    }

    fn own_members(&self) -> Vec<i32> {
        let mut text = vec![0; 4096];
        let mut filled = 0;
        while let Ok(got) = self.procs.read_at(&mut text[filled..], filled as u64)
            && got > 0
        {
            filled += got;
            if filled + 16 > text.len() {
                text.resize(text.len() * 2, 0);
            }
        }
        let lines = std::str::from_utf8(&text[..filled]).unwrap_or_default().lines();
        lines.filter_map(|line| line.parse().ok()).collect()
    }

    /// Nothing lives in it, nor in a group that its job made in it.
    pub(super) fn is_empty(&self) -> bool {
        let mut first = [0; 16];
        let has_own = matches!(self.procs.read_at(&mut first, 0), Ok(got) if got > 0);
        !has_own && counter(&self.path.join("cgroup.events"), "populated") == 0
    }

    /// Whether its job made groups in it, as a root's may and one of our own kind does.
    fn has_groups(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|meta| meta.nlink() > 2)
    }

    /// Whether another job would have all of its limit in it. A job's files in memory stay counted in its group for as
    /// long as they are there, and cannot be taken back; what was read from disks can.
    fn is_as_new(&self) -> bool {
        let most = LEFT_BEHIND.min(self.set.0 / SHARE_LEFT_BEHIND);
        let leaves = || {
            let current = fs::read_to_string(self.path.join("memory.current")).unwrap_or_default();
            let current: u64 = current.trim().parse().unwrap_or(0);
            // The second file is a long one.
            current > most && counter(&self.path.join("memory.stat"), "shmem ") > most
        };
        let is_limited = self.memory && self.set.0 > 0;
        !(self.has_groups() || is_limited && leaves())
    }

    /// Kills every process of the group, also those that are being born.
    pub(super) fn kill(&self) {
        // Whatever is wrong, the tree is killed as it is without a group.
        let _otherwise = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Time on processors that this job has used, in microseconds, those of its dead included.
    pub(super) fn cpu(&self) -> u64 {
        self.cpu_counted().saturating_sub(self.cpu_before)
    }

    /// True where the kernel killed something in it because it had come to its own limit of memory.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        let now = self.kills_counted();
        now.killed > self.kills_before.killed && now.at_its_limit > self.kills_before.at_its_limit
    }

    /// True where this job has come to its limit of memory, whether that killed anything or not.
    pub(super) fn is_full(&self) -> bool {
        self.kills_counted().at_its_limit > self.kills_before.at_its_limit
    }

    fn cpu_counted(&self) -> u64 {
        counter(&self.path.join("cpu.stat"), "usage_usec")
    }

    fn kills_counted(&self) -> Kills {
        let at_its_limit = counter(&self.path.join("memory.events.local"), "oom ");
        Kills { at_its_limit, killed: counter(&self.path.join("memory.events"), "oom_kill ") }
    }
}

/// Adds the processes of the groups below one.
fn add_members_below(group: &Path, members: &mut Vec<i32>) {
    for below in groups_in(group) {
        let text = fs::read_to_string(below.join("cgroup.procs")).unwrap_or_default();
        members.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        add_members_below(&below, members);
    }
}

fn groups_in(group: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// The number behind a word; nought where it is not there.
fn counter(file: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    line.unwrap_or(0)
}

/// The directory of the group that this process is in.
fn own_group() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    // Behind the dash stands the kind of file system; the fourth and fifth field are its root and its place.
    let (root, place) = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let found = (fields.next()?, fields.next()?);
        (kind.split(' ').next() == Some("cgroup2")).then_some(found)
    })?;
    let below = own.strip_prefix(root.trim_end_matches('/')).unwrap_or(own);
    Some(Path::new(place).join(below.trim_start_matches('/')))
}

/// Whether a service manager says that this group is not its own affair any more.
fn is_handed_over(group: &Path) -> bool {
    let mut value = [0; 8];
    let says = |name: &str| matches!(rustix::fs::getxattr(group, name, &mut value[..]), Ok(1)) && value[0] == b'1';
    ["trusted.delegate", "user.delegate"].into_iter().any(says)
}

/// Whether a group may hand its controllers down: the first of all may, and one in which no process stands itself. Any
/// other refuses the controller of memory; it takes that of processes, but then nothing may enter the groups below it.
fn may_hand_down(group: &Path) -> bool {
    let is_first = !group.join("cgroup.type").exists();
    is_first || fs::read(group.join("cgroup.procs")).is_ok_and(|processes| processes.is_empty())
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a group and those below it, if nothing is in them.
fn remove(base: &Path) {
    groups_in(base).for_each(|below| remove(&below));
    let _not_empty = fs::remove_dir(base);
}

/// Where it is noted in which group the processes of a table are.
fn note_beside(table: &Path) -> PathBuf {
    let number = table.extension().unwrap_or_default();
    table.with_file_name("cgroup").with_extension(number)
}

/// Kills whatever a launcher left in its groups, waits until it is dead and removes them. Its table is locked.
pub(super) fn end_all_of(table: &Path) -> io::Result<()> {
    let note = note_beside(table);
    let Ok(bytes) = fs::read(&note) else { return Ok(()) };
    let base = Path::new(std::ffi::OsStr::from_bytes(&bytes));
    let is_ours = base.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()));
    // Gone with its boot, or by itself.
    let Some(events) = File::open(base.join("cgroup.events")).ok().filter(|_| is_ours) else {
        return fs::remove_file(&note);
    };
    while counter(&base.join("cgroup.events"), "populated") > 0 {
        fs::write(base.join("cgroup.kill"), "1")?;
        let mut fds = [PollFd::new(&events, PollFlags::PRI)];
        match rustix::event::poll(&mut fds, Some(&LOOK_AGAIN)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    remove(base);
    fs::remove_file(&note)
}
