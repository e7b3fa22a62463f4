//! What a server asks of a launcher and what a launcher reports: facts only, no judgement.
//!
//! This file owns the two records of each direction. Strings of a start lie in its record each with a NUL
//! behind, so that the launcher points an argv right into it.

use super::wire::{Layer, Taker};
use crate::runner::{Flight, Stop};
use std::os::fd::OwnedFd;
use std::time::Duration;
use windlass_core::job::{JobId, Origin};
use windlass_core::outcome::Exit;
use windlass_core::policy::{Identity, Limits};
use windlass_core::time::Time;

const START: u8 = 1;
const STOP: u8 = 2;
const SHOW: u8 = 3;
const UNTIL: u8 = 4;

/// One start, as it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Order<'a> {
    pub(crate) flight: Flight,
    pub(crate) job: JobId,
    pub(crate) start: u32,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) output_max: u64,
    /// The offset of the last job that the process is started for; the first one's where it is one.
    pub(crate) last: u64,
    /// How much of each output stream is kept in memory and reported as it is.
    pub(crate) in_memory: u64,
    /// The number of its control and emit files.
    pub(crate) control: Option<u32>,
    /// Which descriptors come with the record.
    pub(crate) given: Given,
    pub(crate) limits: Limits,
    pub(crate) user: Option<&'a Identity>,
    pub(crate) strings: &'a Strings,
    /// The data for standard input; empty and none are the same to the job.
    pub(crate) stdin: &'a [u8],
}

/// Which of a child's descriptors are made by the server, in this order; the launcher makes the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    /// Descriptor 3.
    pub(crate) channel: bool,
}

impl Given {
    fn flags(self) -> [bool; 3] {
        [self.stdin, self.stdout, self.channel]
    }

    fn bits(self) -> u8 {
        self.flags().into_iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(flag))
    }

    fn from_bits(bits: u8) -> Given {
        Given { stdin: bits & 1 != 0, stdout: bits & 2 != 0, channel: bits & 4 != 0 }
    }

    /// Puts passed descriptors where they belong; none where their number is wrong.
    fn assign(self, passed: Vec<OwnedFd>) -> Option<[Option<OwnedFd>; 3]> {
        let mut passed = passed.into_iter();
        let mut assigned = [None, None, None];
        for (place, wanted) in assigned.iter_mut().zip(self.flags()) {
            if wanted {
                *place = Some(passed.next()?);
            }
        }
        passed.next().is_none().then_some(assigned)
    }
}

/// The directory, the arguments and the environment of a start, laid end to end as they travel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strings {
    bytes: Vec<u8>,
    argc: u32,
    envc: u32,
}

/// A string that cannot be passed to a program, because a NUL would end it early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldsNul;

impl Strings {
    pub(crate) fn new(directory: &[u8]) -> Result<Strings, HoldsNul> {
        let mut strings = Strings::default();
        strings.add(&[directory])?;
        Ok(strings)
    }

    /// Arguments come before the environment.
    pub(crate) fn argument(&mut self, argument: &[u8]) -> Result<(), HoldsNul> {
        assert!(self.envc == 0, "arguments come first");
        self.argc += 1;
        self.add(&[argument])
    }

    pub(crate) fn variable(&mut self, name: &[u8], value: &[u8]) -> Result<(), HoldsNul> {
        self.envc += 1;
        self.add(&[name, b"=", value])
    }

    fn add(&mut self, parts: &[&[u8]]) -> Result<(), HoldsNul> {
        for part in parts {
            if memchr::memchr(0, part).is_some() {
                return Err(HoldsNul);
            }
            self.bytes.extend_from_slice(part);
        }
        self.bytes.push(0);
        Ok(())
    }
}

impl Order<'_> {
    pub(crate) fn lay(&self) -> Vec<u8> {
        let mut to = Layer(Vec::with_capacity(128 + self.strings.bytes.len() + self.stdin.len()));
        to.u8(START);
        to.u64(self.flight.0);
        to.u64(self.job.origin.bits());
        to.u64(self.job.offset);
        to.u32(self.start);
        to.u64(self.time_limit.map_or(u64::MAX, micros));
        to.u64(micros(self.grace));
        to.u64(self.output_max);
        to.u64(self.last);
        to.u64(self.in_memory);
        to.u32(self.control.unwrap_or(u32::MAX));
        to.u8(self.given.bits());
        lay_limits(self.limits, &mut to);
        lay_user(self.user, &mut to);
        to.u32(self.strings.argc);
        to.u32(self.strings.envc);
        to.bytes(self.stdin);
        to.0.extend_from_slice(&self.strings.bytes);
        to.0
    }
}

fn lay_limits(limits: Limits, to: &mut Layer) {
    to.u64(limits.memory);
    to.u32(limits.processes);
    to.u64(micros(limits.cpu));
    to.u64(limits.output);
}

fn read_limits(from: &mut Taker<'_>) -> Option<Limits> {
    let (memory, processes) = (from.u64()?, from.u32()?);
    Some(Limits { memory, processes, cpu: Duration::from_micros(from.u64()?), output: from.u64()? })
}

fn lay_user(user: Option<&Identity>, to: &mut Layer) {
    to.u8(user.is_some().into());
    if let Some(user) = user {
        to.u32(user.uid);
        to.u32(user.gid);
        to.u32(user.groups.len() as u32);
        user.groups.iter().for_each(|group| to.u32(*group));
    }
}

/// None where the record is cut short; nobody is a user that was not asked for.
fn read_user(from: &mut Taker<'_>) -> Option<Option<Owner>> {
    if from.u8()? == 0 {
        return Some(None);
    }
    let (uid, gid, count) = (from.u32()?, from.u32()?, from.u32()?);
    let groups: Option<Vec<u32>> = (0..count).map(|_| from.u32()).collect();
    Some(Some(Owner { uid, gid, groups: groups? }))
}

/// Whom a task runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX - 1).min(u64::MAX - 1)
}

/// One start, as the launcher keeps it.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) flight: Flight,
    pub(crate) job: JobId,
    pub(crate) start: u32,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) output_max: u64,
    pub(crate) last: u64,
    pub(crate) in_memory: u64,
    pub(crate) control: Option<u32>,
    given: Given,
    pub(crate) limits: Limits,
    pub(crate) owner: Option<Owner>,
    /// The server's descriptors for it: standard input, standard output, descriptor 3.
    pub(crate) streams: [Option<OwnedFd>; 3],
    pub(crate) argc: usize,
    pub(crate) envc: usize,
    record: Vec<u8>,
    stdin: (usize, usize),
    strings: usize,
}

impl Task {
    pub(crate) fn stdin(&self) -> &[u8] {
        &self.record[self.stdin.0..self.stdin.1]
    }

    /// Takes the descriptors that came with its record; false where they are not those that it needs.
    pub(crate) fn take_streams(&mut self, passed: Vec<OwnedFd>) -> bool {
        let assigned = self.given.assign(passed);
        let whole = assigned.is_some();
        self.streams = assigned.unwrap_or_default();
        whole
    }

    /// It stays and talks to the server itself, which wants to know that it is there.
    pub(crate) fn is_kept(&self) -> bool {
        self.given.stdout
    }

    /// Once it runs, its data, its strings and its ends of pipes have been used.
    pub(crate) fn let_go(&mut self) {
        (self.record, self.stdin, self.strings) = (Vec::new(), (0, 0), 0);
        self.streams = [None, None, None];
    }

    /// The directory, then the arguments, then the environment, each with its NUL.
    pub(crate) fn strings(&self) -> impl Iterator<Item = &[u8]> {
        self.record[self.strings..].split_inclusive(|b| *b == 0)
    }
}

/// What a server asks.
#[derive(Debug)]
pub(crate) enum Request {
    Start(Box<Task>),
    Stop(Flight, Stop),
    /// What it writes is to go to its files as it comes.
    Show(Flight),
    /// Its tree may live so long from now, unless more is said by then.
    Until(Flight, Duration),
}

pub(crate) fn lay_stop(flight: Flight, why: Stop) -> Vec<u8> {
    let mut to = Layer::default();
    to.u8(STOP);
    to.u64(flight.0);
    to.u8(match why {
        Stop::Cancel => 0,
        Stop::Interrupt => 1,
        Stop::Kill => 2,
        Stop::Withdraw => 3,
    });
    to.0
}

pub(crate) fn lay_show(flight: Flight) -> Vec<u8> {
    let mut to = Layer::default();
    to.u8(SHOW);
    to.u64(flight.0);
    to.0
}

pub(crate) fn lay_until(flight: Flight, left: Duration) -> Vec<u8> {
    let mut to = Layer::default();
    to.u8(UNTIL);
    to.u64(flight.0);
    to.u64(u64::try_from(left.as_micros()).unwrap_or(u64::MAX));
    to.0
}

impl Request {
    pub(crate) fn read(record: &[u8]) -> Option<Request> {
        let mut from = Taker(record);
        let kind = from.u8()?;
        let flight = Flight(from.u64()?);
        if kind == SHOW {
            return Some(Request::Show(flight));
        }
        if kind == UNTIL {
            return Some(Request::Until(flight, Duration::from_micros(from.u64()?)));
        }
        if kind == STOP {
            let why = match from.u8()? {
                0 => Stop::Cancel,
                1 => Stop::Interrupt,
                3 => Stop::Withdraw,
                _ => Stop::Kill,
            };
            return Some(Request::Stop(flight, why));
        }
        let job = JobId { origin: Origin::from_random(from.u64()?), offset: from.u64()? };
        let start = from.u32()?;
        let time_limit = Some(from.u64()?).filter(|limit| *limit != u64::MAX).map(Duration::from_micros);
        let grace = Duration::from_micros(from.u64()?);
        let output_max = from.u64()?;
        let (last, in_memory) = (from.u64()?, from.u64()?);
        let control = Some(from.u32()?).filter(|number| *number != u32::MAX);
        let given = Given::from_bits(from.u8()?);
        let limits = read_limits(&mut from)?;
        let owner = read_user(&mut from)?;
        let (argc, envc) = (from.u32()? as usize, from.u32()? as usize);
        let stdin = from.bytes()?.len();
        let strings = record.len() - from.0.len();
        Some(Request::Start(Box::new(Task {
            flight,
            job,
            start,
            time_limit,
            grace,
            output_max,
            last,
            in_memory,
            control,
            given,
            limits,
            owner,
            streams: [None, None, None],
            argc,
            envc,
            record: record.to_vec(),
            stdin: (strings - stdin, strings),
            strings,
        })))
    }
}

/// Which step of a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Descriptors or memory, before there was a process.
    Prepare,
    /// Looking for the program in PATH.
    Find,
    /// Becoming a child: process group, descriptors, signals.
    Child,
    Directory,
    Exec,
    /// Its limits, and the control group that counts what its tree uses.
    Limits,
    /// Becoming another user, one step after the other.
    Groups,
    Gid,
    Uid,
    Capabilities,
    NoNewPrivileges,
    Descriptors,
    /// What the kernel then says of it is not what was asked for.
    Verify,
}

impl Step {
    const ALL: [Step; 13] = [
        Step::Prepare,
        Step::Find,
        Step::Child,
        Step::Directory,
        Step::Exec,
        Step::Limits,
        Step::Groups,
        Step::Gid,
        Step::Uid,
        Step::Capabilities,
        Step::NoNewPrivileges,
        Step::Descriptors,
        Step::Verify,
    ];

    pub(crate) fn number(self) -> i32 {
        self as i32
    }

    pub(crate) fn from_number(number: i32) -> Step {
        usize::try_from(number).ok().and_then(|n| Step::ALL.get(n)).copied().unwrap_or(Step::Prepare)
    }
}

/// How a start ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exit(Exit),
    /// It was never a running program.
    CannotStart {
        step: Step,
        errno: i32,
    },
    /// It was stopped while it still waited for its turn.
    NotBegun,
    /// No end at all: one that stays has begun, and this is its process.
    Up {
        pid: i32,
    },
}

/// Why the launcher ended it before it ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    TimeLimit,
    Cancel,
    Interrupt,
    /// It used more than it may of this; so much was seen, in the unit of the limit.
    Limit(Resource, u64),
}

/// What a limit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// In bytes.
    Memory,
    /// Processes and threads.
    Processes,
    /// In microseconds.
    Cpu,
    /// In bytes.
    Output,
}

impl Resource {
    const ALL: [Resource; 4] = [Resource::Memory, Resource::Processes, Resource::Cpu, Resource::Output];
}

impl Cut {
    fn lay(cut: Option<Cut>, to: &mut Layer) {
        let (kind, seen) = match cut {
            None => (0, 0),
            Some(Cut::TimeLimit) => (1, 0),
            Some(Cut::Cancel) => (2, 0),
            Some(Cut::Interrupt) => (3, 0),
            Some(Cut::Limit(resource, seen)) => (4 + resource as u8, seen),
        };
        to.u8(kind);
        to.u64(seen);
    }

    fn read(from: &mut Taker<'_>) -> Option<Option<Cut>> {
        let (kind, seen) = (from.u8()?, from.u64()?);
        Some(match kind {
            0 => None,
            1 => Some(Cut::TimeLimit),
            2 => Some(Cut::Cancel),
            kind => {
                let resource = usize::from(kind).checked_sub(4).and_then(|at| Resource::ALL.get(at));
                Some(resource.map_or(Cut::Interrupt, |resource| Cut::Limit(*resource, seen)))
            }
        })
    }
}

/// What is kept of one output stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) total: u64,
    /// The rest of it is in the file named after the attempt.
    pub(crate) filed: bool,
    /// All that is kept, or the last of it where the file has it all.
    pub(crate) bytes: Vec<u8>,
}

/// What a launcher reports of one start: its tree is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) flight: Flight,
    pub(crate) end: End,
    pub(crate) cut: Option<Cut>,
    pub(crate) started: Time,
    pub(crate) finished: Time,
    pub(crate) stdout: Kept,
    pub(crate) stderr: Kept,
    /// What it wrote to its control file and to its emit file.
    pub(crate) control: Vec<u8>,
    pub(crate) emitted: Vec<u8>,
}

impl Report {
    pub(crate) fn lay(&self) -> Vec<u8> {
        let mut to = Layer(Vec::with_capacity(80 + self.stdout.bytes.len() + self.stderr.bytes.len()));
        to.u64(self.flight.0);
        let (kind, value, step) = match self.end {
            End::Exit(Exit::Code(code)) => (0, code, 0),
            End::Exit(Exit::Signal(signal)) => (1, signal, 0),
            End::CannotStart { step, errno } => (2, errno, step.number() as u8),
            End::NotBegun => (3, 0, 0),
            End::Up { pid } => (4, pid, 0),
        };
        to.u8(kind);
        to.u8(step);
        to.u32(value as u32);
        Cut::lay(self.cut, &mut to);
        to.u64(self.started.0 as u64);
        to.u64(self.finished.0 as u64);
        for stream in [&self.stdout, &self.stderr] {
            to.u64(stream.total);
            to.u8(stream.filed.into());
            to.bytes(&stream.bytes);
        }
        to.bytes(&self.control);
        to.bytes(&self.emitted);
        to.0
    }

    pub(crate) fn read(record: &[u8]) -> Option<Report> {
        let mut from = Taker(record);
        let flight = Flight(from.u64()?);
        let (kind, step, value) = (from.u8()?, from.u8()?, from.u32()? as i32);
        let end = match kind {
            0 => End::Exit(Exit::Code(value)),
            1 => End::Exit(Exit::Signal(value)),
            2 => End::CannotStart { step: Step::from_number(step.into()), errno: value },
            4 => End::Up { pid: value },
            _ => End::NotBegun,
        };
        let cut = Cut::read(&mut from)?;
        let (started, finished) = (Time(from.u64()? as i64), Time(from.u64()? as i64));
        let mut stream = || {
            let (total, filed) = (from.u64()?, from.u8()? != 0);
            Some(Kept { total, filed, bytes: from.bytes()?.to_vec() })
        };
        let (stdout, stderr) = (stream()?, stream()?);
        let (control, emitted) = (from.bytes()?.to_vec(), from.bytes()?.to_vec());
        Some(Report { flight, end, cut, started, finished, stdout, stderr, control, emitted })
    }
}

/// For the rig FUZZ: some messages as both ends lay them out.
pub(super) fn samples() -> Vec<Vec<u8>> {
    let kept = |bytes: &[u8]| Kept { total: bytes.len() as u64, filed: false, bytes: bytes.to_vec() };
    let report = Report {
        flight: Flight(7),
        end: End::Exit(Exit::Code(3)),
        cut: Some(Cut::TimeLimit),
        started: Time(5),
        finished: Time(9),
        stdout: kept(b"said"),
        stderr: kept(b""),
        control: b"progress 1/2\n".to_vec(),
        emitted: b"next\tx\n".to_vec(),
    };
    vec![report.lay(), lay_stop(Flight(7), Stop::Cancel)]
}

/// For the rig FUZZ: reads bytes as both ends do; a report is laid out again.
pub(super) fn reread(bytes: &[u8]) -> Option<Vec<u8>> {
    if let Some(Request::Start(task)) = Request::read(bytes) {
        assert!(task.stdin().len() + task.strings().map(<[u8]>::len).sum::<usize>() <= bytes.len());
    }
    Report::read(bytes).map(|report| report.lay())
}
