//! The heap of a server does not grow with the jobs that it has done.
//!
//! The allocator counts for the whole process, so this test has a binary of its own; and the server starts it again as
//! its launcher, so it has a `main` of its own, too. What SQLite allocates is not counted: its page cache has a limit.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use windlass::data_dir::DataDir;
use windlass::engine::Event;
use windlass::inbox::{Envelope, InboxWriter};
use windlass::runner::handler::{Handlers, Verdicts};
use windlass::server::{Server, ServerOptions};
use windlass_core::job::QueueName;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Policy, Service};

const NAME: &str = "a_job_that_is_done_leaves_nothing_on_the_heap";
/// Rounds of jobs. Buffers keep the size of the largest burst that they have seen, so the rounds are alike, and the
/// least of the later ones is compared with the least of the earlier ones.
const ROUNDS: usize = 8;
const JOBS: usize = 4_000;
/// Less than any record of a job has; an index entry of the archive has 56 bytes.
const BYTES_A_JOB: usize = 8;

static HEAP: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count of what is in use.
struct Counting;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Pushes so many jobs and waits until all are done and archived; the bytes of the heap after that.
fn heap_after(jobs: usize, server: &Server, writer: &mut InboxWriter) -> usize {
    let envelope = Envelope::new(QueueName::new(b"q").unwrap());
    for number in 0..jobs {
        writer.push(&envelope, number.to_string().as_bytes()).unwrap();
    }
    let drained = server.handle().ask(|answer| Event::AwaitDrained { due_only: false, here_only: false, answer });
    drained.unwrap();
    server.handle().ask(|answer| Event::CatchUp { answer }).unwrap();
    HEAP.load(Ordering::Relaxed)
}

fn main() -> ExitCode {
    if let Some(code) = windlass::runner::launcher::take_over_if_asked() {
        return code;
    }
    // A filter is for the tests of other binaries, unless it names this one; `--list` wants none.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let wanted = filters.is_empty() || filters.iter().any(|filter| NAME.contains(filter.as_str()));
    if wanted && !words.iter().any(|word| word == "--list") {
        a_job_that_is_done_leaves_nothing_on_the_heap();
    }
    ExitCode::SUCCESS
}

fn a_job_that_is_done_leaves_nothing_on_the_heap() {
    let root = tempfile::TempDir::new().unwrap();
    let dir = DataDir::open(root.path()).unwrap();
    let mut writer = InboxWriter::open(&dir.inbox()).unwrap();
    let mut options = ServerOptions::new(dir);
    options.serves = true;
    // Each ends in a way of its own, so that no two share a record of the archive.
    options.handlers = Handlers::new().on("work", |batch| {
        DONE.fetch_add(batch.jobs().count(), Ordering::Relaxed);
        Verdicts::each(batch.jobs().map(|(id, _)| Outcome::Succeeded { message: id.offset.to_string() }))
    });
    let mut policy = Policy::new("q", Service::Handler { name: "work".into(), batch: 100 });
    policy.slots = 2;
    options.policies = vec![policy];
    let server = Server::start(options).unwrap();
    let heaps: Vec<usize> = (0..ROUNDS).map(|_| heap_after(JOBS, &server, &mut writer)).collect();
    server.stop().unwrap();
    assert_eq!(DONE.load(Ordering::Relaxed), JOBS * ROUNDS);
    println!("memory: bytes of the heap after each {JOBS} jobs: {heaps:?}");
    // The first round fills what is filled once.
    let (early, late) = heaps[1..].split_at(ROUNDS / 2 - 1);
    let least = |heaps: &[usize]| heaps.iter().copied().min().unwrap_or(0);
    let grown = least(late).saturating_sub(least(early));
    let jobs = JOBS * ROUNDS / 2;
    assert!(grown < BYTES_A_JOB * jobs, "{jobs} jobs left {grown} bytes on the heap: {heaps:?}");
}
