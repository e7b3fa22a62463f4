//! FUZZ: everything that reads bytes of others is fed with noise that resembles what it expects.
//!
//! A mutator over a small corpus, in this process, on stable Rust: inbox files, chunks, the config, selectors, times,
//! messages of the launcher, archive segments, and raw HTTP requests to a real server. No input may make any thread
//! panic, and each target holds a property of its own. `WINDLASS_FUZZ_SECONDS` is for all of them together;
//! `WINDLASS_FUZZ_SEED` begins at another place.

use crate::chance::{Chance, size};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windlass::archiver::read::{ArchiveReader, ListFilter};
use windlass::archiver::{ArchivedTurn, Archiver, ArchiverOptions, Entry, Ran};
use windlass::config::Config;
use windlass::data_dir::DataDir;
use windlass::inbox::frame::{self, Envelope};
use windlass::inbox::gather::Gatherer;
use windlass::inbox::scan::{End, Scan};
use windlass::server::{Server, ServerOptions};
use windlass::store::chunk::{Chunk, ChunkBuilder};
use windlass::store::{Held, Place, Settlement};
use windlass_core::job::{Arrival, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record};
use windlass_core::judge::Verdict;
use windlass_core::life_cycle::State;
use windlass_core::selector::Selector;
use windlass_core::time::Time;

/// What a mutated input may not do, besides panic.
type Target<'a> = (&'static str, Vec<Vec<u8>>, Box<dyn FnMut(&[u8], &mut Chance) + 'a>);

/// Pieces that mean something to one of the readers.
const WORDS: &[&[u8]] = &[
    b"\x18\n",
    b"\x18\n\x02\x1d\x01",
    b"\t",
    b"\n",
    b"\r\n",
    b"_future\t@1700000000\t",
    b"queue:",
    b"state:failed",
    b"age>1h",
    b"!",
    b"\"",
    b"[queue.x]\n",
    b"run = [\"echo\"]\n",
    b"slots = ",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"-1",
    b"18446744073709551615",
    b"4294967296",
    b"Content-Length: ",
    b"Transfer-Encoding: chunked\r\n",
    b"\r\n\r\n",
    b"HTTP/1.1",
    b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xef\xbb\xbf",
    b"../",
    b"%00",
    b"\xc3\x28",
];

/// Panics of any thread since the start.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn mutate(corpus: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = corpus[chance.below(corpus.len())].clone();
    for _ in 0..1 + chance.below(6) {
        let at = chance.below(bytes.len() + 1);
        match chance.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
            1 if at < bytes.len() => bytes[at] = chance.next() as u8,
            2 => {
                let word = WORDS[chance.below(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            3 => {
                let noise = chance.bytes(20);
                bytes.splice(at..at, noise);
            }
            4 => {
                let end = at + chance.below(bytes.len() - at + 1);
                bytes.drain(at..end);
            }
            5 => {
                let end = at + chance.below((bytes.len() - at).min(300) + 1);
                let copy = bytes[at..end].to_vec();
                let to = chance.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            6 => {
                let other = &corpus[chance.below(corpus.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[chance.below(other.len() + 1)..]);
            }
            _ => bytes.truncate(at),
        }
    }
    bytes.truncate(1 << 16);
    bytes
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || memchr::memmem::find(bytes, part).is_some()
}

/// An inbox file with every kind of record.
fn inbox_corpus(seed: Origin) -> Vec<Vec<u8>> {
    let envelope = Envelope::new(QueueName::new(b"mail").unwrap());
    let mut file = Vec::new();
    frame::write_job(&mut file, seed, &envelope, b"one");
    file.extend_from_slice(b"mail\ttwo\n_future\t@1700000000.5\tmail\tthree\n_future\t2023-11-14T22:13:20Z\tq\tx\n");
    frame::write_job(&mut file, seed, &envelope, b"\x18\nescaped\x10");
    frame::write_front(&mut file, seed, frame::Kind::Block, &envelope, b"a\nb\n\nc", false);
    file.extend_from_slice(b"a\nb\n\nc\n");
    frame::write_seal(&mut file, seed, windlass_core::job::RunId::first(seed), &[(seed, 77)]);
    vec![file, b"q\tdata\nq2\tmore\r\n".to_vec(), Vec::new()]
}

/// No job is made of bytes that are not there, the scan ends, and it never passes the end.
fn inbox(bytes: &[u8], seed: Origin, chance: &mut Chance) {
    let end = [End::Open, End::Locked, End::Closed][chance.below(3)];
    let known = (!chance.one_in(4)).then_some(seed);
    let mut scan = Scan::new(bytes, chance.next() >> 20, known, end, None);
    let mut gatherer = Gatherer::default();
    let mut found = 0;
    for record in scan.by_ref() {
        found += 1;
        assert!(found <= bytes.len(), "more records than bytes");
        let _ = gatherer.add(bytes, record);
    }
    assert!(scan.consumed() <= bytes.len());
    let mut jobs = Vec::new();
    gatherer.finish(bytes, seed, &mut jobs);
    for new in &jobs {
        assert!(contains(bytes, new.queue.as_str().as_bytes()), "a queue that nobody named");
        for index in 0..new.jobs.len() {
            let data = new.jobs.data(index);
            let escaped: Vec<u8> = data
                .iter()
                .flat_map(|b| match b {
                    0x18 => b"\x10c".to_vec(),
                    0x10 => b"\x10d".to_vec(),
                    other => vec![*other],
                })
                .collect();
            assert!(contains(bytes, data) || contains(bytes, &escaped), "data that nobody wrote");
        }
    }
}

/// What is written is read back, whatever the data is.
fn written(data: &[u8], seed: Origin) {
    let envelope = Envelope::new(QueueName::new(b"q").unwrap());
    let mut file = Vec::new();
    frame::write_job(&mut file, seed, &envelope, data);
    let mut gatherer = Gatherer::default();
    for record in Scan::new(&file, 64, Some(seed), End::Open, None) {
        gatherer.add(&file, record).unwrap();
    }
    let mut jobs = Vec::new();
    gatherer.finish(&file, seed, &mut jobs);
    assert_eq!((jobs.len(), jobs[0].jobs.data(0)), (1, data));
}

fn chunk(bytes: &[u8]) {
    // A checksum stands in front: make it fit now and then, or nothing behind it is ever reached.
    let mut bytes = bytes.to_vec();
    if bytes.len() > 24 {
        let sum = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    }
    if let Ok(chunk) = Chunk::from_bytes(bytes.clone()) {
        assert_eq!(chunk.as_bytes(), bytes);
        let total: usize = (0..chunk.len()).map(|index| chunk.data(index).len()).sum();
        assert!(total <= bytes.len());
    }
}

fn text(bytes: &[u8], most: usize, read: impl Fn(&str) -> Result<(), String>) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(said) = read(text) {
        assert!(!said.is_empty() && said.len() < most + 4 * text.len(), "a refusal of {} bytes", said.len());
    }
}

/// One request to a real server: whatever it is, the reply is HTTP and bounded, or the line is closed.
fn http(bytes: &[u8], dir: &DataDir) {
    let mut line = UnixStream::connect(dir.socket()).unwrap();
    line.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // It may close the line before it has read everything.
    let _ = line.write_all(bytes).and_then(|()| line.shutdown(std::net::Shutdown::Write));
    let mut reply = Vec::new();
    match line.take(1 << 20).read_to_end(&mut reply) {
        Ok(_) => assert!(reply.is_empty() || reply.starts_with(b"HTTP/1."), "a reply that is not HTTP"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
}

fn http_corpus() -> Vec<Vec<u8>> {
    let post = |path: &str, media: &str, body: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\nContent-Length: {}\r\n",
            body.len()
        );
        format!("{head}Connection: close\r\n\r\n{body}").into_bytes()
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").into_bytes();
    vec![
        get("/api/v1/status"),
        get("/api/v1/jobs?select=queue:x%20state:ready&limit=3"),
        get("/api/v1/flights"),
        get("/api/v1/runs"),
        get("/api/v1/jobs/j-ehxcccsc8p-c6"),
        post("/api/v1/jobs?queue=x", "text/plain", "a\nb\n"),
        post("/api/v1/jobs?queue=x&priority=high&durability=os", "application/octet-stream", "\u{1}data"),
        post("/api/v1/jobs", "application/json", r#"{"queue":"x","jobs":[{"data":"a"},{"data":{"b":1}}]}"#),
        post(
            "/api/v1/runs",
            "application/json",
            r#"{"name":"n","service":{"queue":"run.n","command":["echo","{}"],"slots":2}}"#,
        ),
        post("/api/v1/operations", "application/json", r#"{"action":"cancel","select":"queue:x","dry_run":true}"#),
    ]
}

/// A segment that a real archive wrote, with some bytes changed: reading it ends, with records or words.
fn archive(bytes: &[u8], place: &std::path::Path, name: &str) {
    std::fs::write(place.join(name), bytes).unwrap();
    let reader = ArchiveReader::open(place);
    let listed = reader.list(&ListFilter { limit: 100, ..ListFilter::default() });
    assert!(listed.map_or(0, |listing| listing.attempts.len()) <= bytes.len());
    if let Ok(replay) = reader.replay(None) {
        assert!(replay.take(100_000).count() <= bytes.len() + 1, "more records than bytes");
    }
}

/// Writes a small archive with the shipped archiver.
fn make_segment(place: &std::path::Path) {
    let origin = Origin::from_random(5);
    let options = ArchiverOptions::new(place.to_owned(), place.join("output"));
    let failed = Box::new(|failure: windlass::error::Failure| panic!("{failure}"));
    let archiver =
        Archiver::spawn(options, windlass::archiver::Told::log(windlass::log::Log::off()), Box::new(|_| ()), failed)
            .unwrap();
    for turn in 1..4 {
        let mut builder = ChunkBuilder::new(origin);
        (0..3).for_each(|n| builder.push(10 * turn + n, b"some data"));
        let lane = Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh };
        let held = Held {
            place: Place::Chunk(Arrival(10 * turn)),
            lane,
            run: None,
            record: Record::default(),
            admitted: Time(1),
            jobs: std::sync::Arc::new(builder.finish()),
            first: 0,
            count: 3,
        };
        let verdict = Verdict::Succeed { message: String::new() };
        let settlement = Settlement { held, verdict, outcome: "succeeded", started: Time(2), finished: Time(3) };
        let queue = std::sync::Arc::new(QueueName::new(b"mail").unwrap());
        let output = windlass::runner::Output::default();
        let entry = Entry { settlement, queue, run: None, output, state: State::Succeeded, ran: Ran::Together };
        archiver.append(ArchivedTurn { turn, entries: vec![entry], together: Vec::new() });
    }
}

/// The first segment of an archive.
fn segments(place: &std::path::Path) -> Option<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(place).ok()?.flatten();
    let mut files: Vec<_> = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "seg")).collect();
    files.sort_by_key(|entry| entry.file_name());
    let name = files.first()?.file_name().into_string().ok()?;
    Some((name.clone(), std::fs::read(place.join(name)).ok()?))
}

#[test]
fn noise_makes_nobody_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(what);
    }));
    let seconds = size("WINDLASS_FUZZ_SECONDS", 60);
    let seed = size("WINDLASS_FUZZ_SEED", 1);
    let place = tempfile::tempdir().unwrap();
    let dir = DataDir::open(place.path()).unwrap();
    let server = Server::start(ServerOptions::new(dir.clone())).unwrap();
    let archived = tempfile::tempdir().unwrap();
    make_segment(archived.path());
    let (name, segment) = segments(archived.path()).unwrap();
    let origin = Origin::from_random(77);
    let mut builder = ChunkBuilder::new(origin);
    (1..9).for_each(|n| builder.push(n * 3, &vec![b'x'; n as usize * 5]));
    let texts = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let selectors = ["queue:mail state:failed,ready age>1h", "!run:r-abc \"some text\"", "id:j-1 priority>=3 starts<2"];
    let config_path = std::path::Path::new("windlass.toml");
    let mut targets: Vec<Target<'_>> = vec![
        ("inbox", inbox_corpus(origin), Box::new(|b, c| inbox(b, origin, c))),
        ("frame", vec![b"data".to_vec(), b"\x18\n".to_vec()], Box::new(|b, _| written(b, origin))),
        ("chunk", vec![builder.finish().as_bytes().to_vec()], Box::new(|b, _| chunk(b))),
        (
            "config",
            texts(&[windlass::config::DEFAULT_FILE, "[queue.x]\nrun = [\"a\"]\nslots = 3\n"]),
            Box::new(|b, _| text(b, 4000, |t| Config::parse(config_path, t).map(drop).map_err(|f| f.to_string()))),
        ),
        (
            "selector",
            texts(&selectors),
            Box::new(|b, _| {
                text(b, 4000, |t| {
                    let selector = Selector::parse(t)?;
                    selector.states();
                    selector.may_match_queue("mail");
                    Ok(())
                });
            }),
        ),
        (
            "launcher",
            windlass::runner::launcher::samples(),
            Box::new(|b, _| {
                if let Some(again) = windlass::runner::launcher::reread(b) {
                    assert_eq!(
                        windlass::runner::launcher::reread(&again),
                        Some(again.clone()),
                        "what is read is laid out alike"
                    );
                }
            }),
        ),
        ("archive", vec![segment], Box::new(|b, _| archive(b, archived.path(), &name))),
        ("http", http_corpus(), Box::new(|b, _| http(b, &dir))),
    ];
    let each = Duration::from_secs(seconds) / targets.len() as u32;
    let (mut executions, mut crashes, mut told) = (0u64, 0u64, Vec::new());
    for (name, corpus, target) in &mut targets {
        let (begun, mut count) = (Instant::now(), 0u64);
        while begun.elapsed() < each {
            let mut chance = Chance::new(seed.wrapping_add(count));
            let bytes = mutate(corpus, &mut chance);
            let fine = std::panic::catch_unwind(AssertUnwindSafe(|| target(&bytes, &mut chance)));
            if fine.is_err() {
                crashes += 1;
                eprintln!(
                    "{name}: case {} of {} bytes: {}",
                    seed + count,
                    bytes.len(),
                    bytes[..bytes.len().min(400)].escape_ascii()
                );
                break;
            }
            count += 1;
        }
        executions += count;
        told.push(format!("{name} {count}"));
    }
    drop(targets);
    server.stop().unwrap();
    let panics = PANICS.load(Ordering::Relaxed);
    println!("fuzz: {executions} executions in {seconds} s ({}), crashes {}", told.join(", "), panics.max(crashes));
    assert_eq!((panics, crashes), (0, 0));
}
