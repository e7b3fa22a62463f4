//! Prints what the inbox does per second of processor time, beside a bare loop of the same run; what has threads
//! is timed by the wall. Run it with `--release`, with the directory to measure in as its argument.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use windlass::inbox::gather::Gatherer;
use windlass::inbox::lock::{try_lock, unlock};
use windlass::inbox::scan::{End, Scan};
use windlass::inbox::{Delivered, Envelope, InboxWriter, Ingest, IngestOptions};
use windlass_core::job::{Origin, QueueName};

type Done = Result<(), Box<dyn std::error::Error>>;

const RECORDS: usize = 400_000;

fn main() -> Done {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let root = Path::new(&dir).join(format!("inbox-rate-{}", std::process::id()));
    std::fs::create_dir_all(root.join("inbox"))?;
    std::fs::create_dir_all(root.join("quarantine"))?;
    let result = per_record(&root).and_then(|()| bulk(&root)).and_then(|()| parse()).and_then(|()| whole(&root));
    std::fs::remove_dir_all(&root)?;
    result
}

/// The processor time of this thread, which neighbours on a busy machine do not change.
struct Worked(Duration);

impl Worked {
    fn now() -> Worked {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Worked(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32))
    }

    fn elapsed(&self) -> Duration {
        Worked::now().0 - self.0
    }
}

fn rate(what: &str, count: usize, took: Duration) -> f64 {
    let rate = count as f64 / took.as_secs_f64();
    println!("{what:44} {:>10.2} million/s", rate / 1e6);
    rate
}

fn per_record(root: &Path) -> Done {
    let data = [b'x'; 100];
    let queue = Envelope::new(QueueName::new(b"rate")?);
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let mut bare = OpenOptions::new().append(true).create(true).open(root.join("bare"))?;
        let since = Worked::now();
        for _ in 0..RECORDS {
            assert!(try_lock(&bare)?);
            bare.write_all(&data)?;
            unlock(&bare)?;
        }
        let raw = rate("bare flock + write + unlock, 100 bytes", RECORDS, since.elapsed());
        std::fs::remove_file(root.join("bare"))?;
        let mut writer = InboxWriter::open(&root.join("inbox"))?;
        let since = Worked::now();
        for _ in 0..RECORDS {
            writer.push(&queue, &data[..])?;
        }
        ratios.push(rate("push, 100 bytes", RECORDS, since.elapsed()) / raw);
        clear(root)?;
    }
    ratios.sort_by(f64::total_cmp);
    println!("push / bare, median of five {:.2}", ratios[2]);
    Ok(())
}

fn bulk(root: &Path) -> Done {
    let line = [vec![b'x'; 99], b"\n".to_vec()].concat();
    let lines = line.repeat(10_486);
    let queue = Envelope::new(QueueName::new(b"rate")?);
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let mut bare = OpenOptions::new().append(true).create(true).open(root.join("bare"))?;
        let since = Worked::now();
        for piece in std::iter::repeat_n(&lines, 200).flat_map(|lines| lines.chunks(64 << 10)) {
            assert!(try_lock(&bare)?);
            bare.write_all(piece)?;
            unlock(&bare)?;
        }
        let raw = rate("bare appends of 64 KiB, in lines", 200 * 10_486, since.elapsed());
        std::fs::remove_file(root.join("bare"))?;
        let mut writer = InboxWriter::open(&root.join("inbox"))?;
        let since = Worked::now();
        for _ in 0..200 {
            writer.push_lines(&queue, &lines)?;
        }
        ratios.push(rate("push_lines", 200 * 10_486, since.elapsed()) / raw);
        clear(root)?;
    }
    ratios.sort_by(f64::total_cmp);
    println!("push_lines / bare, median of five {:.2}", ratios[2]);
    Ok(())
}

fn clear(root: &Path) -> Done {
    std::fs::remove_dir_all(root.join("inbox"))?;
    Ok(std::fs::create_dir_all(root.join("inbox"))?)
}

fn lines_over(queues: usize) -> Vec<u8> {
    let line = |n: usize| format!("queue.{}\t{:0>88}\n", n % queues, n).into_bytes();
    (0..200_000).flat_map(line).collect()
}

fn parse() -> Done {
    for (queues, stretch) in [(1, 4 << 20), (1000, 4 << 20), (50_000, 16 << 20)] {
        let lines = lines_over(queues);
        let mut gatherer = Gatherer::default();
        let since = Worked::now();
        let mut jobs = 0;
        for _ in 0..10 {
            let mut at = 0;
            while at < lines.len() {
                let piece = &lines[at..lines.len().min(at + stretch)];
                let mut scan = Scan::new(piece, at as u64, None, End::Open, None);
                scan.by_ref().for_each(|found| assert!(gatherer.add(piece, found).is_ok()));
                at += scan.consumed();
                let mut chunks = Vec::new();
                gatherer.finish(piece, Origin::from_random(1), &mut chunks);
                jobs += chunks.iter().map(|new| new.jobs.len()).sum::<usize>();
            }
        }
        assert_eq!(jobs, 2_000_000);
        rate(&format!("lines to chunks in memory, {queues} queues"), jobs, since.elapsed());
    }
    Ok(())
}

/// A file moved in, through the reader's thread with its syncs, into a store that only counts.
fn whole(root: &Path) -> Done {
    for queues in [1, 1000, 50_000] {
        let lines = lines_over(queues).repeat(5);
        clear(root)?;
        std::fs::write(root.join("inbox/.moved"), &lines)?;
        std::fs::rename(root.join("inbox/.moved"), root.join("inbox/moved"))?;
        let (send, receive) = channel();
        let send = Arc::new(Mutex::new(send));
        let deliver = Box::new(move |delivered| {
            if let Ok(send) = send.lock() {
                // The loop below may have counted enough.
                let _ = send.send(delivered);
            }
        });
        let since = Instant::now();
        let (inbox, quarantine) = (root.join("inbox"), root.join("quarantine"));
        let handle = Ingest::spawn(IngestOptions { inbox, quarantine, cursors: Vec::new(), deliver })?;
        let mut jobs = 0;
        while jobs < 1_000_000 {
            match receive.recv()? {
                Delivered::Lot(lot) => {
                    jobs += lot.len();
                    handle.committed();
                }
                Delivered::Trouble(failure) | Delivered::Ended(failure) => return Err(failure.into()),
                Delivered::ReadToEnd { .. } => {}
            }
        }
        rate(&format!("moved file to lots with syncs, {queues} queues"), 1_000_000, since.elapsed());
        handle.stop();
    }
    Ok(())
}
