//! A command runner on a directory of its own, with real launchers, and eyes on the processes it makes.

use crate::groups::Keeper;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tempfile::TempDir;
use windlass::data_dir::DataDir;
use windlass::runner::command::{CommandRunner, Settings};
use windlass::runner::launcher::slots;
use windlass::runner::progress::Board;
use windlass::runner::{Fellow, Finished, Flight, Runner, Start, Stop};
use windlass::store::chunk::ChunkBuilder;
use windlass::store::{Held, Place};
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record};
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Batch, Command, Identity, Limits, Policy, Service, Worker};
use windlass_core::time::Time;

pub(crate) struct Rig {
    /// Before the runner: what it tells of goes with that.
    witness: Witness,
    pub(crate) runner: CommandRunner,
    pub(crate) heard: mpsc::Receiver<Finished>,
    pub(crate) dir: DataDir,
    pub(crate) origin: Origin,
    board: Arc<Board>,
    control: PathBuf,
    next: u64,
    _root: TempDir,
}

/// Says at the end of a rig who kept the limits of its jobs, where any had limits that need a group.
#[derive(Default)]
struct Witness {
    run: PathBuf,
    limited: bool,
}

impl Drop for Witness {
    fn drop(&mut self) {
        if self.limited && !std::thread::panicking() {
            Keeper::of(&self.run).say();
        }
    }
}

/// One job to be: what is not said is the default.
pub(crate) struct Job {
    pub(crate) policy: Policy,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn command(argv: &[&str]) -> Job {
    let argv = argv.iter().map(|argument| argument.as_bytes().to_vec()).collect();
    let environment = vec![(b"PATH".to_vec(), b"/usr/local/bin:/usr/bin:/bin".to_vec())];
    let service = Service::Command(Command { argv, directory: Vec::new(), environment });
    let mut policy = Policy::new("q", service);
    policy.slots = 10_000;
    Job { policy, data: Vec::new() }
}

pub(crate) fn shell(script: &str) -> Job {
    command(&["sh", "-c", script])
}

impl Job {
    pub(crate) fn data(mut self, data: &[u8]) -> Job {
        self.data = data.to_vec();
        self
    }

    pub(crate) fn limit(mut self, limit: Duration, grace: Duration) -> Job {
        (self.policy.time_limit, self.policy.grace) = (Some(limit), grace);
        self
    }

    pub(crate) fn grace(mut self, grace: Duration) -> Job {
        self.policy.grace = grace;
        self
    }

    pub(crate) fn output_max(mut self, most: u64) -> Job {
        self.policy.output_max = most;
        self
    }

    pub(crate) fn slots(mut self, slots: u32) -> Job {
        self.policy.slots = slots;
        self
    }

    pub(crate) fn limits(mut self, limits: Limits) -> Job {
        self.policy.limits = limits;
        self
    }

    pub(crate) fn user(mut self, user: Identity) -> Job {
        self.policy.user = Some(user);
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Command)) -> Job {
        if let Service::Command(command) = &mut self.policy.service {
            change(command);
        }
        self
    }
}

impl Rig {
    pub(crate) fn new(launchers: usize) -> Rig {
        Rig::without(launchers, "")
    }

    /// With launchers that do without these means of the kernel.
    pub(crate) fn without(launchers: usize, means: &str) -> Rig {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let root = tempfile::tempdir().unwrap();
        let dir = DataDir::open(root.path()).unwrap();
        let origin = u64::from(std::process::id()) << 16 | NEXT.fetch_add(1, Ordering::Relaxed);
        let (tell, heard) = mpsc::channel();
        let tell = Mutex::new(tell);
        // Nobody may be left to hear when a rig is dropped with jobs under way.
        let hear = move |finished| drop(tell.lock().unwrap().send(finished));
        let program = PathBuf::from(env!("CARGO_BIN_EXE_windlass"));
        let settings = Settings { program, launchers, without: means.into(), ..Settings::of(&dir) };
        let (board, control) = (Arc::clone(&settings.board), settings.control.clone());
        let (crewed, fatal) = (Box::new(|_: &str, _| {}), Box::new(|failure| panic!("{failure}")));
        let runner = CommandRunner::new(settings, Box::new(hear), crewed, fatal).unwrap();
        // Launchers that were told to do without groups have nothing to tell of them.
        let run = if means.contains("cgroup") { PathBuf::new() } else { dir.run() };
        let witness = Witness { run, limited: false };
        let origin = Origin::from_random(origin);
        Rig { witness, runner, heard, dir, origin, board, control, next: 1, _root: root }
    }

    fn has_limits(&mut self, limits: Limits) {
        let counted = limits.memory > 0 || limits.processes > 0 || !limits.cpu.is_zero();
        self.witness.limited |= counted && self.witness.run != Path::new("");
    }

    /// The offset of the next job, which is the number of its flight.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Asks for a start and tells the job's id; flights count from 1 as offsets do.
    pub(crate) fn start(&mut self, job: Job) -> JobId {
        self.has_limits(job.policy.limits);
        let offset = self.next;
        self.next += 1;
        let mut builder = ChunkBuilder::new(self.origin);
        builder.push(offset, &job.data);
        let lane = Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh };
        let held = Held {
            place: Place::Row(Arrival(offset)),
            lane,
            run: None,
            record: Record { starts: 6, ..Record::default() },
            admitted: Time::ZERO,
            jobs: Arc::new(builder.finish()),
            first: 0,
            count: 1,
        };
        self.runner.start(vec![Start {
            flight: Flight(offset),
            claim: offset,
            queue: Arc::new(QueueName::new(b"q.u e").unwrap()),
            policy: Arc::new(job.policy),
            epoch: 1,
            held,
            number: offset,
            run: "r-1".into(),
            checkpoint: String::new(),
            lent: None,
            lot: None,
            fellows: Arc::default(),
        }]);
        JobId { origin: self.origin, offset }
    }

    /// Asks for one start of many jobs under one claim; the jobs come as stretches of at most `stretch`.
    pub(crate) fn start_many(&mut self, policy: &Policy, data: &[&[u8]], stretch: usize) -> Vec<JobId> {
        self.has_limits(policy.limits);
        let first = self.next;
        self.next += data.len() as u64;
        let lane = Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh };
        let policy = Arc::new(policy.clone());
        let chunk = |at: usize| {
            let mut builder = ChunkBuilder::new(self.origin);
            let jobs = (first..).zip(data).skip(at).take(stretch);
            jobs.for_each(|(offset, data)| builder.push(offset, data));
            Arc::new(builder.finish())
        };
        let starts = (0..data.len()).step_by(stretch).map(|at| Start {
            flight: Flight(first + at as u64),
            claim: first,
            queue: Arc::new(QueueName::new(b"lines").unwrap()),
            policy: Arc::clone(&policy),
            epoch: 1,
            held: Held {
                place: Place::Chunk(Arrival(first + at as u64)),
                lane,
                run: None,
                record: Record::default(),
                admitted: Time::ZERO,
                jobs: chunk(at),
                first: 0,
                count: stretch.min(data.len() - at) as u16,
            },
            number: first + at as u64,
            run: String::new(),
            checkpoint: String::new(),
            lent: None,
            lot: None,
            fellows: Arc::default(),
        });
        let starts = starts.collect();
        self.runner.start(starts);
        (first..self.next).map(|offset| JobId { origin: self.origin, offset }).collect()
    }

    /// Asks for one start of jobs that are each alone in a queue; the flight has the offset of the first.
    pub(crate) fn start_fellows(&mut self, policy: &Policy, data: &[&[u8]]) -> Flight {
        let flight = Flight(self.next);
        let alone = |offset: u64, data: &[u8]| {
            let mut builder = ChunkBuilder::new(self.origin);
            builder.push(offset, data);
            let queue = Arc::new(QueueName::new(format!("q.{offset}").as_bytes()).unwrap());
            let lane = Lane { queue: QueueNo(offset as u32), priority: Priority::NORMAL, kind: LaneKind::Fresh };
            let (place, record, jobs) = (Place::Chunk(Arrival(offset)), Record::default(), Arc::new(builder.finish()));
            let held = Held { place, lane, run: None, record, admitted: Time::ZERO, jobs, first: 0, count: 1 };
            Fellow { queue, held }
        };
        let mut all = (self.next..).zip(data).map(|(offset, data)| alone(offset, data));
        let Fellow { queue, held } = all.next().unwrap();
        let fellows = all.collect();
        self.next += data.len() as u64;
        self.runner.start(vec![Start {
            flight,
            claim: flight.0,
            queue,
            policy: Arc::new(policy.clone()),
            epoch: 1,
            held,
            number: flight.0,
            run: String::new(),
            checkpoint: String::new(),
            lent: None,
            lot: None,
            fellows,
        }]);
        flight
    }

    /// Hears until so many jobs have ended: each with its offset, its outcome and its start's report.
    pub(crate) fn hear_jobs(&self, count: usize) -> Vec<(u64, Outcome)> {
        let mut heard: Vec<(u64, Outcome)> = Vec::new();
        while heard.len() < count {
            let finished = self.hear();
            let mut offset = finished.flight.0 + u64::from(finished.first);
            for (count, outcome) in finished.outcomes {
                heard.extend((offset..offset + u64::from(count)).map(|offset| (offset, outcome.clone())));
                offset += u64::from(count);
            }
        }
        heard.sort_by_key(|(offset, _)| *offset);
        heard
    }

    /// One claim to its end: what became of each job, in short words.
    pub(crate) fn all(&mut self, policy: &Policy, data: &[&[u8]]) -> Vec<String> {
        // A chunk ends with the job that makes it large.
        let stretch = if data.iter().any(|data| data.len() > 1 << 16) { 1 } else { 7 };
        self.start_many(policy, data, stretch);
        self.hear_jobs(data.len()).into_iter().map(|(_, outcome)| brief(&outcome)).collect()
    }

    pub(crate) fn hear(&self) -> Finished {
        self.heard.recv().unwrap()
    }

    /// Kills one job that goes on by itself.
    pub(crate) fn kill(&mut self, id: JobId) {
        self.runner.stop(Flight(id.offset), Stop::Kill);
        let finished = self.hear();
        assert_eq!((finished.flight.0, survivors(id)), (id.offset, Vec::new()), "{finished:?}");
    }

    /// Goes as a dead server does, and proves that its launchers and whatever they ran are dead.
    pub(crate) fn end(self) {
        let Rig { witness, runner, dir, .. } = self;
        drop(witness);
        drop(runner);
        slots::prove_dead(&dir.run()).unwrap();
    }

    /// Starts one job and waits for its end, which must leave nothing behind.
    pub(crate) fn run(&mut self, job: Job) -> (Outcome, Finished) {
        let id = self.start(job);
        let finished = self.hear();
        assert_eq!(survivors(id), Vec::<i32>::new(), "of {id}");
        let [(1, outcome)] = &finished.outcomes[..] else { panic!("{finished:?}") };
        (outcome.clone(), finished)
    }

    /// The stdout of a job that must succeed.
    pub(crate) fn stdout(&mut self, job: Job) -> Vec<u8> {
        let (outcome, finished) = self.run(job);
        assert_eq!(outcome.word(), "succeeded", "{outcome:?} {:?}", finished.output.stderr);
        finished.output.stdout.head
    }

    /// The error text of a job that must not succeed, after the outcome's word.
    pub(crate) fn error(&mut self, job: Job) -> String {
        match self.run(job).0 {
            outcome @ (Outcome::Failed { .. } | Outcome::FailedForGood { .. }) => words(&outcome),
            outcome @ (Outcome::Crashed { .. } | Outcome::RetryLater { .. }) => words(&outcome),
            other => panic!("{other:?}"),
        }
    }

    /// A pipe with a name, on which a job says that it has come so far.
    pub(crate) fn fifo(&self, name: &str) -> PathBuf {
        let path = self.dir.root().join(name);
        let text = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a valid string.
        assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
        path
    }

    pub(crate) fn control(&self) -> &Path {
        &self.control
    }

    pub(crate) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    pub(crate) fn launchers(&self) -> Vec<i32> {
        let run = self.dir.run().to_str().unwrap().to_owned();
        let is_launcher = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("__launcher") && line.contains(&run)
        };
        processes().filter(is_launcher).collect()
    }
}

/// A user that is nobody on any machine, whom only root can become.
pub(crate) fn nobody() -> Identity {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test becomes other users and needs root: run it as root");
    Identity { name: "nobody".into(), uid: 65534, gid: 65533, groups: vec![7, 4242, 65533], home: b"/".to_vec() }
}

/// An outcome with its text.
pub(crate) fn brief(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Succeeded { message } => format!("ok {message}").trim_end().to_owned(),
        other => words(other),
    }
}

pub(crate) fn argv(words: &[&str]) -> Command {
    let argv = words.iter().map(|word| word.as_bytes().to_vec()).collect();
    let environment = vec![(b"PATH".to_vec(), b"/usr/local/bin:/usr/bin:/bin".to_vec())];
    Command { argv, directory: Vec::new(), environment }
}

/// A policy for a batch command of this shell script.
pub(crate) fn batch(script: &str, change: impl FnOnce(&mut Batch)) -> Policy {
    let mut batch = Batch::new(argv(&["sh", "-c", script]));
    change(&mut batch);
    Policy::new("lines", Service::Batch(batch))
}

/// A policy for kept workers of this shell script.
pub(crate) fn kept(script: &str, slots: u32, change: impl FnOnce(&mut Worker)) -> Policy {
    let mut worker = Worker::new(argv(&["sh", "-c", script]));
    change(&mut worker);
    Policy { slots, grace: Duration::from_secs(1), ..Policy::new("lines", Service::Worker(worker)) }
}

fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed { error }
        | Outcome::FailedForGood { error }
        | Outcome::Crashed { error }
        | Outcome::RetryLater { error, .. } => format!("{} {error}", outcome.word()),
        _ => outcome.word().into(),
    }
}

pub(crate) fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
}

/// Processes that carry the marker of this job.
pub(crate) fn survivors(id: JobId) -> Vec<i32> {
    let marker = format!("WINDLASS_JOB_ID={id}\0");
    let carries = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(marker.len()).any(|part| part == marker.as_bytes())
    };
    processes().filter(carries).collect()
}

/// Whether a process exists and is more than an entry that waits for its parent.
pub(crate) fn lives(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub(crate) fn children(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
}

pub(crate) fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Numbers, one a line, that a job wrote into a fifo; waits until all writers closed it.
pub(crate) fn pids_from(fifo: &Path) -> Vec<i32> {
    fs::read_to_string(fifo).unwrap().lines().map(|line| line.trim().parse().unwrap()).collect()
}
