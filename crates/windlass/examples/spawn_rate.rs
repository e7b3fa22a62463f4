//! How fast commands are run: `/bin/true` with its output kept, through launchers, beside a bare `posix_spawn`
//! with three pipes and a wait on the same cores in the same run. Then handlers that do nothing, in batches.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use windlass::data_dir::DataDir;
use windlass::runner::command::{CommandRunner, Settings};
use windlass::runner::handler::{HandlerRunner, Handlers, Verdicts};
use windlass::runner::{Flight, Runner, Start};
use windlass::store::chunk::{Chunk, ChunkBuilder};
use windlass::store::{Held, Place};
use windlass_core::job::{Arrival, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record};
use windlass_core::policy::{Command, Policy, Service};
use windlass_core::time::Time;

const ROUNDS: usize = 7;
const JOBS: u64 = 1000;

fn main() {
    windlass::runner::launcher::take_over_if_asked();
    let mut bare = [Vec::new(), Vec::new(), Vec::new()];
    let ours = [(1, 1), (1, 2), (2, 2), (2, 4), (2, 8)];
    let mut rates = vec![Vec::new(); ours.len()];
    for _ in 0..ROUNDS {
        for (rates, (threads, session)) in bare.iter_mut().zip([(1, false), (2, false), (2, true)]) {
            rates.push(JOBS as f64 / bare_spawns(threads, session).as_secs_f64());
        }
        for (rates, (launchers, slots)) in rates.iter_mut().zip(ours) {
            rates.push(JOBS as f64 / through_launchers(launchers, slots).as_secs_f64());
        }
    }
    let bare: Vec<f64> = bare.into_iter().map(median).collect();
    let best = bare[0].max(bare[1]);
    println!("bare posix_spawn, three pipes, wait: {:.0}/s on 1 thread, {:.0}/s on 2", bare[0], bare[1]);
    println!("the same on 2 threads, each child in a session of its own, as jobs are: {:.0}/s", bare[2]);
    for (rates, (launchers, slots)) in rates.into_iter().zip(ours) {
        let rate = median(rates);
        println!("{launchers} launchers, {slots} slots: {rate:.0}/s, {:.2} of the best bare", rate / best);
    }
    println!("handlers, batches of a thousand: {:.1} million jobs/s", handled() / 1e6);
}

fn handled() -> f64 {
    const BATCHES: u64 = 20_000;
    let (tell, heard) = mpsc::channel();
    let tell = Mutex::new(tell);
    let hear = move |finished| tell.lock().expect("no panic").send(finished).expect("a listener");
    let handlers = Handlers::new().on("none", |batch| {
        assert_eq!(batch.jobs().filter(|(_, data)| data.is_empty()).count(), 0);
        Verdicts::succeeded()
    });
    let mut runner = HandlerRunner::new(handlers, 2, Box::new(hear)).expect("threads");
    let policy = Arc::new(Policy::new("q", Service::Handler { name: "none".into(), batch: 1000 }));
    let queue = Arc::new(QueueName::new(b"q").expect("a name"));
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    (0..1000).for_each(|n| builder.push(n, b"some data"));
    let jobs = Arc::new(builder.finish());
    let began = Instant::now();
    for n in 0..BATCHES {
        runner.start(vec![Start {
            flight: Flight(n),
            queue: Arc::clone(&queue),
            policy: Arc::clone(&policy),
            epoch: 1,
            held: Held { count: 1000, ..held(n, &jobs) },
            number: n,
            run: String::new(),
        }]);
    }
    let ended: u64 = heard.iter().take(BATCHES as usize).map(|finished| u64::from(finished.outcomes[0].0)).sum();
    ended as f64 / began.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn through_launchers(launchers: usize, slots: u32) -> Duration {
    let root = tempfile::tempdir().expect("a temporary directory");
    let dir = DataDir::open(root.path()).expect("a data directory");
    let (tell, heard) = mpsc::channel();
    let tell = Mutex::new(tell);
    let hear = move |finished| tell.lock().expect("no panic").send(finished).expect("a listener");
    let settings = Settings { launchers, ..Settings::of(&dir) };
    let mut runner =
        CommandRunner::new(settings, Box::new(hear), Box::new(|failure| panic!("{failure}"))).expect("launchers");
    let argv = vec![b"/bin/true".to_vec(), b"{}".to_vec()];
    let mut policy = Policy::new("q", Service::Command(Command { argv, ..Command::default() }));
    policy.slots = slots;
    let (policy, queue) = (Arc::new(policy), Arc::new(QueueName::new(b"q").expect("a name")));
    let chunks: Vec<Arc<Chunk>> = (0..JOBS).map(|n| Arc::new(chunk(n))).collect();
    let start = |n: u64| Start {
        flight: Flight(n),
        queue: Arc::clone(&queue),
        policy: Arc::clone(&policy),
        epoch: 1,
        held: held(n, &chunks[n as usize]),
        number: n,
        run: String::new(),
    };
    let began = Instant::now();
    runner.start((0..JOBS).map(start).collect());
    for _ in 0..JOBS {
        assert_eq!(heard.recv().expect("an outcome").outcomes[0].1.word(), "succeeded");
    }
    began.elapsed()
}

fn chunk(n: u64) -> Chunk {
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    builder.push(n, b"data");
    builder.finish()
}

fn held(n: u64, jobs: &Arc<Chunk>) -> Held {
    Held {
        place: Place::Row(Arrival(n)),
        lane: Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh },
        run: None,
        record: Record::default(),
        admitted: Time::ZERO,
        jobs: Arc::clone(jobs),
        first: 0,
        count: 1,
    }
}

fn bare_spawns(threads: usize, session: bool) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(move || (0..JOBS / threads as u64).for_each(|_| bare_spawn(session)));
        }
    });
    began.elapsed()
}

fn bare_spawn(session: bool) {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let ((child_in, own_in), (own_out, child_out), (own_err, child_err)) = (pipe(), pipe(), pipe());
    let argv = [c"/bin/true".as_ptr(), c"data".as_ptr(), std::ptr::null()];
    let envp: [*const libc::c_char; 1] = [std::ptr::null()];
    let mut pid = 0;
    // SAFETY: the actions are initialised before use and everything outlives the call.
    unsafe {
        let mut actions = std::mem::zeroed::<libc::posix_spawn_file_actions_t>();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        for (to, from) in [&child_in, &child_out, &child_err].into_iter().enumerate() {
            libc::posix_spawn_file_actions_adddup2(&raw mut actions, from.as_raw_fd(), to as i32);
        }
        let mut attributes = std::mem::zeroed::<libc::posix_spawnattr_t>();
        libc::posix_spawnattr_init(&raw mut attributes);
        if session {
            libc::posix_spawnattr_setflags(&raw mut attributes, libc::POSIX_SPAWN_SETSID as libc::c_short);
        }
        let (argv, envp) = (argv.as_ptr().cast(), envp.as_ptr().cast());
        let path = c"/bin/true".as_ptr();
        assert_eq!(libc::posix_spawn(&raw mut pid, path, &raw const actions, &raw const attributes, argv, envp), 0);
        libc::posix_spawnattr_destroy(&raw mut attributes);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
    drop((child_in, child_out, child_err, own_in));
    let mut buffer = [0u8; 4096];
    let read_out = |end: OwnedFd, buffer: &mut [u8]| while rustix::io::read(&end, &mut *buffer).expect("a pipe") > 0 {};
    read_out(own_out, &mut buffer);
    read_out(own_err, &mut buffer);
    let pid = rustix::process::Pid::from_raw(pid).expect("a child");
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).expect("a child");
}
