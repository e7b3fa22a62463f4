//! How fast finished jobs are archived, beside the bare limit of the same disk.
//!
//! `cargo run --release -p windlass --example archive_rate -- DIR [MILLIONS]` archives succeeded jobs with 100-byte
//! bodies, a thousand to a chunk, and writes the same bytes with plain writes and syncs in turn. DIR must lie on
//! the file system in question; a folder in it is made and removed.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;
use windlass::archiver::read::{ArchiveReader, ListFilter};
use windlass::archiver::{ArchivedTurn, Archiver, ArchiverOptions, Entry, PENDING_MAX, Ran, Told};
use windlass::log::Log;
use windlass::runner::Output;
use windlass::store::chunk::{Chunk, ChunkBuilder};
use windlass::store::{Held, Place, Settlement};
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

const JOBS_A_CHUNK: u64 = 1000;
const CHUNKS_A_TURN: u64 = 16;
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory?")?;
    let millions: u64 = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let dir = Path::new(&dir).join("archive_rate");
    let turns = turns(millions * 1_000_000);
    for round in 1..=ROUNDS {
        let (jobs, seconds, bytes) = archive(&dir, &turns)?;
        let bare = write_bare(&dir, bytes)?;
        println!(
            "round {round}: archived {:.2} M jobs/s, {:.0} MB/s; bare write+fdatasync {:.0} MB/s; ratio {:.2}",
            jobs as f64 / seconds / 1e6,
            bytes as f64 / seconds / 1e6,
            bytes as f64 / bare / 1e6,
            bare / seconds,
        );
        if round == ROUNDS {
            read(&dir.join("archive"), jobs)?;
        }
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

/// Turns of full chunks, made before the clock runs.
fn turns(jobs: u64) -> Vec<ArchivedTurn> {
    let queue = Arc::new(QueueName::new(b"bench").expect("a good name"));
    let mut offset = 0;
    let turn = |number: u64| {
        let entries = (0..CHUNKS_A_TURN).map(|_| entry(chunk(&mut offset), &queue)).collect();
        ArchivedTurn { turn: number, entries, together: Vec::new() }
    };
    (1..=jobs / (JOBS_A_CHUNK * CHUNKS_A_TURN)).map(turn).collect()
}

fn chunk(offset: &mut u64) -> Chunk {
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    for _ in 0..JOBS_A_CHUNK {
        builder.push(*offset, format!("{offset:0100}").as_bytes());
        *offset += 107;
    }
    builder.finish()
}

fn entry(jobs: Chunk, queue: &Arc<QueueName>) -> Entry {
    let held = Held {
        place: Place::Chunk(Arrival(1)),
        lane: Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh },
        run: None,
        record: Record::default(),
        admitted: Time(1),
        count: jobs.len() as u16,
        jobs: Arc::new(jobs),
        first: 0,
    };
    let verdict = Verdict::Succeed { message: String::new() };
    let settlement = Settlement { held, verdict, outcome: "succeeded", started: Time(2), finished: Time(3) };
    Entry {
        settlement,
        queue: Arc::clone(queue),
        run: None,
        output: Output::default(),
        state: State::Succeeded,
        ran: Ran::Alone,
    }
}

/// Archives all turns, holding back as an engine would; gives jobs, seconds until all is durable, and bytes.
fn archive(dir: &Path, turns: &[ArchivedTurn]) -> Result<(u64, f64, u64), Box<dyn Error>> {
    let options = ArchiverOptions::new(dir.join("archive"), dir.join("output"));
    let (tell, confirmed) = channel();
    let on_archived = Box::new(move |turn| tell.send(turn).expect("the bench listens"));
    let archiver =
        Archiver::spawn(options, Told::log(Log::off()), on_archived, Box::new(|failure| panic!("{failure}")))?;
    let begin = Instant::now();
    for turn in turns {
        while archiver.pending_bytes() > PENDING_MAX {
            confirmed.recv()?;
        }
        archiver.append(turn.clone());
    }
    while archiver.last_turn() < turns.len() as u64 {
        confirmed.recv()?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    drop(archiver);
    let mut bytes = 0;
    for file in std::fs::read_dir(dir.join("archive"))? {
        bytes += file?.metadata()?.len();
    }
    Ok((turns.len() as u64 * CHUNKS_A_TURN * JOBS_A_CHUNK, seconds, bytes))
}

/// The same number of bytes in writes of 1 MiB with a sync after every eighth.
fn write_bare(dir: &Path, bytes: u64) -> Result<f64, Box<dyn Error>> {
    let block: Vec<u8> = (0..1u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let begin = Instant::now();
    let mut file = File::create(dir.join("bare"))?;
    for number in 1..=bytes >> 20 {
        file.write_all(&block)?;
        if number % 8 == 0 {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    Ok(begin.elapsed().as_secs_f64())
}

fn read(dir: &Path, jobs: u64) -> Result<(), Box<dyn Error>> {
    let reader = ArchiveReader::open(dir);
    let id = JobId { origin: Origin::from_random(1), offset: jobs / 2 * 107 };
    let begin = Instant::now();
    let found = reader.find(id)?.len();
    println!("find one of {jobs} jobs: {found} record, {:.2} ms", begin.elapsed().as_secs_f64() * 1e3);
    let begin = Instant::now();
    let listed = reader.list(&ListFilter::default())?.attempts.len();
    println!("list the newest {listed}: {:.2} ms", begin.elapsed().as_secs_f64() * 1e3);
    let begin = Instant::now();
    let replayed = reader.replay(None)?.filter(Result::is_ok).count();
    println!("replay {replayed}: {:.2} M/s", replayed as f64 / begin.elapsed().as_secs_f64() / 1e6);
    for file in std::fs::read_dir(dir)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "idx") {
            std::fs::remove_file(path)?;
        }
    }
    let begin = Instant::now();
    let found = reader.find(id)?.len();
    println!("find without any index: {found} record, {:.2} ms", begin.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
