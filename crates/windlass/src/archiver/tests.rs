//! The archive against crashes, damage, readers and time. Frames are made by the writer itself; the cuts and flips
//! are made in its files.

use super::frame::HEAD;
use super::read::{ArchiveReader, ListFilter, output};
use super::segment::{HEADER, Header, Walk, index_name, segment_path};
use super::*;
use crate::runner::Stream;
use crate::store::chunk::{Chunk, ChunkBuilder};
use crate::store::{Held, Place};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::Receiver;
use tempfile::TempDir;
use windlass_core::job::{Arrival, JobId, Lane, LaneKind, Origin, Priority, QueueNo, Record};
use windlass_core::judge::{Reason, Verdict};

const SECOND: i64 = 1_000_000;

struct Rig {
    dir: TempDir,
}

impl Rig {
    fn new() -> Rig {
        // Thousands of syncs, and no test depends on a disk: memory where there is some.
        Rig { dir: TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap() }
    }

    fn options(&self) -> ArchiverOptions {
        ArchiverOptions::new(self.archive(), self.dir.path().join("output"))
    }

    fn archive(&self) -> std::path::PathBuf {
        self.dir.path().join("archive")
    }

    fn reader(&self) -> ArchiveReader {
        ArchiveReader::open(self.archive())
    }

    /// Archives turns, waiting for each to be confirmed, and closes.
    fn write(&self, options: ArchiverOptions, turns: Vec<ArchivedTurn>) {
        let (archiver, confirmed) = spawn(options);
        for turn in turns {
            let number = turn.turn;
            archiver.append(turn);
            while confirmed.recv().unwrap() < number {}
        }
        assert_eq!(archiver.pending_bytes(), 0);
    }

    fn find(&self, id: JobId) -> Vec<AttemptRecord> {
        self.reader().find(id).unwrap()
    }

    fn all(&self) -> Vec<AttemptRecord> {
        self.reader().replay(None).unwrap().map(Result::unwrap).collect()
    }

    fn segments(&self) -> Vec<u32> {
        segment::numbers(&self.archive()).unwrap()
    }
}

fn spawn(options: ArchiverOptions) -> (Archiver, Receiver<u64>) {
    let (tell, confirmed) = channel();
    let on_archived = Box::new(move |turn| tell.send(turn).unwrap_or_default());
    let archiver =
        Archiver::spawn(options, Told::log(Log::off()), on_archived, Box::new(|failure| panic!("{failure}"))).unwrap();
    (archiver, confirmed)
}

fn origin(number: u64) -> Origin {
    Origin::from_random(number)
}

fn id(origin_no: u64, offset: u64) -> JobId {
    JobId { origin: origin(origin_no), offset }
}

fn chunk(origin_no: u64, jobs: &[(u64, &[u8])]) -> Arc<Chunk> {
    let mut builder = ChunkBuilder::new(origin(origin_no));
    for (offset, data) in jobs {
        builder.push(*offset, data);
    }
    Arc::new(builder.finish())
}

/// Succeeded attempts of all jobs of a chunk, finished so many seconds after 1970.
fn entry(jobs: Arc<Chunk>, finished: i64) -> Entry {
    let lane = Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh };
    let count = jobs.len() as u16;
    let held = Held {
        place: Place::Chunk(Arrival(1)),
        lane,
        run: None,
        record: Record::default(),
        admitted: Time((finished - 3) * SECOND),
        jobs,
        first: 0,
        count,
    };
    let settlement = Settlement {
        held,
        verdict: Verdict::Succeed { message: String::new() },
        outcome: "succeeded",
        started: Time((finished - 2) * SECOND),
        finished: Time(finished * SECOND),
    };
    let queue = Arc::new(QueueName::new(b"mail").unwrap());
    Entry { settlement, queue, run: None, output: Output::default(), state: State::Succeeded, ran: Ran::Alone }
}

fn failed(jobs: Arc<Chunk>, finished: i64, error: &str) -> Entry {
    let mut entry = entry(jobs, finished);
    entry.settlement.verdict = Verdict::Fail { reason: Reason::Exhausted, error: error.into() };
    entry.settlement.outcome = "failed";
    entry.state = State::Failed;
    entry
}

fn turn(turn: u64, entries: Vec<Entry>) -> ArchivedTurn {
    ArchivedTurn { turn, entries, together: Vec::new() }
}

/// One job a turn, with the turn's number as its data.
fn simple(number: u64) -> ArchivedTurn {
    turn(number, vec![entry(chunk(1, &[(number, number.to_string().as_bytes())]), 1000 + number as i64)])
}

fn numbers_in(records: &[AttemptRecord]) -> Vec<u64> {
    records.iter().map(|record| record.id.offset).collect()
}

#[test]
fn parts_of_chunks_come_back_with_everything_that_was_known() {
    let rig = Rig::new();
    let jobs = chunk(7, &[(3, b"left out"), (10, b"one"), (300, b""), (1 << 40, b"\xff\x00\n"), (1 << 41, b"too")]);
    let mut some = entry(jobs, 5000);
    some.settlement.held = some.settlement.held.part(1, 3);
    some.settlement.held.record.starts = 4;
    some.run = Some(RunId::first(origin(99)).next_generation());
    rig.write(rig.options(), vec![turn(1, vec![some])]);

    let record = rig.find(id(7, 1 << 40)).remove(0);
    assert_eq!((record.start, record.state, record.outcome.as_str()), (5, State::Succeeded, "succeeded"));
    assert_eq!(record.data.as_deref(), Some(&b"\xff\x00\n"[..]));
    let json = record.to_json();
    assert_eq!(json["id"], id(7, 1 << 40).to_string());
    assert_eq!(json["run"], RunId { origin: origin(99), generation: 2 }.to_string());
    assert_eq!(json["data_base64"], "/wAK");
    assert_eq!(json["finished"], "1970-01-01T01:23:20Z");
    assert_eq!((json["wait_s"].as_f64(), json["run_s"].as_f64()), (Some(1.0), Some(2.0)));
    assert!(json.get("error").is_none() && json.get("data").is_none());
    assert_eq!(rig.find(id(7, 10))[0].to_json()["data"], "one");
    assert_eq!(rig.find(id(7, 300))[0].data.as_deref(), Some(&b""[..]));
    for absent in [id(7, 3), id(7, 11), id(7, 1 << 41), id(8, 10)] {
        assert_eq!(rig.find(absent), [], "{absent}");
    }
}

#[test]
fn the_attempts_of_one_job_are_found_oldest_first_across_segments() {
    let rig = Rig::new();
    let jobs = || chunk(1, &[(1, b"a"), (2, b"b")]);
    for start in 0..3u32 {
        let mut attempt = match start {
            0 => entry(jobs(), 1000),
            _ => failed(chunk(1, &[(2, b"b")]), 1000 + i64::from(start), &format!("try {start}")),
        };
        attempt.settlement.held.record.starts = start;
        let options = ArchiverOptions { segment_bytes: 1, ..rig.options() };
        rig.write(options, vec![turn(u64::from(start) + 1, vec![attempt])]);
    }
    assert_eq!(rig.segments().len(), 3);
    let found = rig.find(id(1, 2));
    assert_eq!(found.iter().map(|record| record.start).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(found[2].to_json()["error"], "try 2");
    assert_eq!(found[2].to_json()["reason"], "exhausted");
    assert_eq!(rig.find(id(1, 1)).len(), 1);
}

#[test]
fn without_bodies_the_rest_is_there() {
    let rig = Rig::new();
    rig.write(ArchiverOptions { keep_bodies: false, ..rig.options() }, vec![simple(1)]);
    let record = rig.find(id(1, 1)).remove(0);
    assert_eq!((record.data.as_ref(), record.to_json().get("data")), (None, None));
    let bytes = fs::read(segment_path(&rig.archive(), 1)).unwrap();
    assert!(bytes.len() < 200, "{}", bytes.len());
}

#[test]
fn every_cut_of_the_last_turn_costs_that_turn_and_it_is_written_once() {
    let whole = Rig::new();
    let last = turn(3, vec![entry(chunk(1, &[(3, b"three")]), 1003), failed(chunk(2, &[(3, b"x")]), 1003, "bad")]);
    whole.write(whole.options(), vec![simple(1), simple(2)]);
    let two_turns = fs::read(segment_path(&whole.archive(), 1)).unwrap().len();
    whole.write(whole.options(), vec![last.clone()]);
    let bytes = fs::read(segment_path(&whole.archive(), 1)).unwrap();
    for cut in two_turns..bytes.len() {
        let rig = Rig::new();
        fs::create_dir_all(rig.archive()).unwrap();
        fs::write(segment_path(&rig.archive(), 1), &bytes[..cut]).unwrap();
        let (archiver, _) = spawn(rig.options());
        assert_eq!(archiver.last_turn(), 2, "cut at {cut}");
        drop(archiver);
        assert_eq!(numbers_in(&rig.all()), [1, 2], "cut at {cut}");
        rig.write(rig.options(), vec![simple(1), simple(2), last.clone()]);
        assert_eq!(numbers_in(&rig.all()), [1, 2, 3, 3], "cut at {cut}");
        assert_eq!(rig.find(id(2, 3)).len(), 1);
    }
}

#[test]
fn pages_that_never_reached_the_disk_take_back_all_turns_behind_them() {
    let whole = Rig::new();
    let two = |number| {
        let jobs = |origin_no| entry(chunk(origin_no, &[(number, b"some data")]), 1000);
        turn(number, vec![jobs(1), jobs(2)])
    };
    whole.write(whole.options(), vec![two(1), two(2)]);
    let path = segment_path(&whole.archive(), 1);
    let synced = fs::metadata(&path).unwrap().len() as usize;
    let mut bytes = fs::read(&path).unwrap();
    let seed = Header::read(&File::open(&path).unwrap()).unwrap().unwrap().seed;
    let mut ends = vec![(2, synced)];
    for number in 3..=4 {
        for entry in &two(number).entries {
            frame::write_attempts(&mut bytes, seed, number, entry, true);
        }
        frame::write_turn(&mut bytes, seed, number, synced as u64);
        ends.push((number, bytes.len()));
    }
    for at in synced..bytes.len() {
        let rig = Rig::new();
        fs::create_dir_all(rig.archive()).unwrap();
        let mut torn = bytes.clone();
        let end = torn.len().min(at + 20);
        torn[at..end].fill(0);
        fs::write(segment_path(&rig.archive(), 1), torn).unwrap();
        let sound = ends.iter().rev().find(|(_, end)| *end <= at).unwrap().0;
        let (archiver, _) = spawn(rig.options());
        assert_eq!(archiver.last_turn(), sound, "nothing at {at}");
        drop(archiver);
        rig.write(rig.options(), vec![two(3), two(4)]);
        assert_eq!(numbers_in(&rig.all()), [1, 1, 2, 2, 3, 3, 4, 4], "nothing at {at}");
    }
}

#[test]
fn a_flipped_bit_costs_its_frame_and_nothing_else() {
    let whole = Rig::new();
    whole.write(whole.options(), (1..=4).map(simple).collect());
    let bytes = fs::read(segment_path(&whole.archive(), 1)).unwrap();
    let frames = {
        let file = File::open(segment_path(&whole.archive(), 1)).unwrap();
        let seed = Header::read(&file).unwrap().unwrap().seed;
        let mut walk = Walk::new(&file, seed, HEADER, bytes.len() as u64);
        std::iter::from_fn(|| walk.next().unwrap()).map(|found| (found.offset, found.end)).collect::<Vec<_>>()
    };
    assert_eq!(frames.len(), 8, "a frame of attempts and one of the turn's end, four times");
    for with_index in [false, true] {
        for (frame, (begin, end)) in frames.iter().enumerate() {
            for at in *begin..*end {
                let rig = Rig::new();
                fs::create_dir_all(rig.archive()).unwrap();
                let mut damaged = bytes.clone();
                damaged[at as usize] ^= 0x10;
                fs::write(segment_path(&rig.archive(), 1), damaged).unwrap();
                if with_index {
                    fs::copy(whole.archive().join(index_name(1)), rig.archive().join(index_name(1))).unwrap();
                }
                let lost = (frame % 2 == 0).then_some(frame as u64 / 2 + 1);
                let expected: Vec<u64> = (1..=4).filter(|number| Some(*number) != lost).collect();
                assert_eq!(numbers_in(&rig.all()), expected, "flipped {at}");
                for number in 1..=4 {
                    let found = rig.find(id(1, number)).len();
                    assert_eq!(found, usize::from(Some(number) != lost), "flipped {at}, job {number}");
                }
            }
        }
    }
}

#[test]
fn the_archiver_goes_on_behind_a_damaged_segment() {
    let rig = Rig::new();
    rig.write(rig.options(), (1..=4).map(simple).collect());
    fs::remove_file(rig.archive().join(index_name(1))).unwrap();
    let file = OpenOptions::new().write(true).open(segment_path(&rig.archive(), 1)).unwrap();
    file.write_all_at(b"!", HEADER + HEAD as u64 + 3).unwrap();
    rig.write(rig.options(), vec![simple(4), simple(5)]);
    assert_eq!(rig.segments(), [1, 2]);
    assert_eq!(numbers_in(&rig.all()), [2, 3, 4, 5]);

    // With its header gone as well, the index still knows the seed.
    file.write_all_at(&[0; 40], 0).unwrap();
    assert_eq!(numbers_in(&rig.all()), [2, 3, 4, 5]);
    fs::remove_file(rig.archive().join(index_name(1))).unwrap();
    assert_eq!(numbers_in(&rig.all()), [5]);
    rig.write(rig.options(), vec![simple(5), simple(6)]);
    assert_eq!(numbers_in(&rig.all()), [5, 6]);
}

#[test]
fn a_copy_of_the_archive_in_a_jobs_data_is_no_frame() {
    let rig = Rig::new();
    rig.write(rig.options(), vec![simple(1)]);
    let copy = fs::read(segment_path(&rig.archive(), 1)).unwrap();
    let other = Rig::new();
    other.write(other.options(), vec![turn(1, vec![entry(chunk(5, &[(8, &copy)]), 1000)]), simple(2)]);
    let file = OpenOptions::new().write(true).open(segment_path(&other.archive(), 1)).unwrap();
    file.write_all_at(b"!", HEADER + 4).unwrap();
    assert_eq!(numbers_in(&other.all()), [2]);
}

#[test]
fn segments_turn_over_and_their_indexes_are_made_again() {
    let rig = Rig::new();
    let options = ArchiverOptions { segment_bytes: 300, ..rig.options() };
    rig.write(options.clone(), (1..=20).map(simple).collect());
    let segments = rig.segments();
    assert!(segments.len() > 4, "{segments:?}");
    let index = |number: u32| rig.archive().join(index_name(number));
    let before: Vec<_> = segments.iter().map(|number| fs::read(index(*number)).unwrap()).collect();
    fs::remove_file(index(1)).unwrap();
    for at in 0..before[1].len() {
        let mut damaged = before[1].clone();
        damaged[at] ^= 1;
        fs::write(index(2), damaged).unwrap();
        assert_eq!(rig.find(id(1, 1)).len(), 1);
        let second = (1..=20).filter(|number| rig.find(id(1, *number)).len() == 1).count();
        assert_eq!(second, 20, "index damaged at {at}");
    }
    fs::write(index(2), b"short").unwrap();
    fs::write(index(3), &before[4]).unwrap();
    for number in 1..=3 {
        writer::index_closed(&options, number).unwrap();
        assert_eq!(fs::read(index(number)).unwrap(), before[number as usize - 1], "index {number}");
    }
}

#[test]
fn an_old_turn_is_confirmed_and_not_written() {
    let rig = Rig::new();
    rig.write(rig.options(), vec![simple(5)]);
    let length = fs::metadata(segment_path(&rig.archive(), 1)).unwrap().len();
    let (archiver, confirmed) = spawn(rig.options());
    assert_eq!(archiver.last_turn(), 5);
    archiver.append(simple(4));
    assert_eq!(confirmed.recv().unwrap(), 5);
    drop(archiver);
    assert_eq!(fs::metadata(segment_path(&rig.archive(), 1)).unwrap().len(), length);
}

#[test]
fn a_reader_sees_whole_frames_while_the_archiver_writes() {
    let rig = Rig::new();
    let options = ArchiverOptions { segment_bytes: 20_000, ..rig.options() };
    let (archiver, confirmed) = spawn(options);
    let done = Arc::new(Mutex::new(0));
    let reader = {
        let (reader, done) = (rig.reader(), Arc::clone(&done));
        std::thread::spawn(move || {
            loop {
                let at_least = *done.lock().unwrap();
                let seen: Vec<_> = reader.replay(None).unwrap().map(|record| record.unwrap().id.offset).collect();
                assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>());
                assert!(seen.len() >= at_least as usize, "what was confirmed is seen");
                let newest = reader.list(&ListFilter { limit: 1, ..ListFilter::default() }).unwrap().attempts;
                assert!(newest.first().map_or(0, |record| record.id.offset) >= at_least);
                if at_least == 1500 {
                    break;
                }
            }
        })
    };
    for number in 1..=1500 {
        archiver.append(simple(number));
    }
    loop {
        let turn = confirmed.recv().unwrap();
        *done.lock().unwrap() = turn;
        if turn == 1500 {
            break;
        }
    }
    reader.join().unwrap();
}

#[test]
fn listings_filter_and_are_newest_first() {
    let rig = Rig::new();
    let run = RunId::first(origin(50));
    let mut turns: Vec<_> = (1..=10).map(simple).collect();
    turns[3].entries[0].queue = Arc::new(QueueName::new(b"img.small").unwrap());
    turns[4].entries[0].run = Some(run);
    turns[5].entries = vec![failed(chunk(1, &[(6, &[b'x'; 900])]), 1006, "no")];
    turns.push(turn(11, vec![entry(chunk(1, &[(20, b""), (21, b""), (22, b"")]), 1011)]));
    for segment_bytes in [1, 400, 1 << 20] {
        let rig = Rig::new();
        rig.write(ArchiverOptions { segment_bytes, ..rig.options() }, turns.clone());
        let list = |filter: ListFilter| numbers_in(&rig.reader().list(&filter).unwrap().attempts);
        let all = ListFilter::default;
        assert_eq!(list(ListFilter { limit: 5, ..all() }), [22, 21, 20, 10, 9]);
        assert_eq!(list(ListFilter { limit: 2, ..all() }), [22, 21]);
        assert_eq!(list(ListFilter { queues: ["img.small".to_owned()].into(), ..all() }), [4]);
        assert_eq!(list(ListFilter { run: Some(run), ..all() }), [5]);
        assert_eq!(list(ListFilter { states: vec![State::Failed, State::Cancelled], ..all() }), [6]);
        let (since, until) = (Some(Time(1002 * SECOND)), Some(Time(1005 * SECOND)));
        assert_eq!(list(ListFilter { since, until, ..all() }), [4, 3, 2]);
        let failed = rig.reader().list(&ListFilter { states: vec![State::Failed], ..all() }).unwrap();
        assert!(failed.complete);
        assert_eq!(failed.attempts[0].data.as_ref().map(Vec::len), Some(200));
        assert_eq!(failed.attempts[0].to_json()["data_bytes"], 900);
        let little = rig.reader().list(&ListFilter { most_bytes: 900, ..all() }).unwrap();
        assert!(!little.complete && little.attempts.len() < 13, "{}", little.attempts.len());
        let late = rig.reader().replay(Some(Time(1009 * SECOND))).unwrap().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(numbers_in(&late), [9, 10, 20, 21, 22]);
    }
    assert!(rig.reader().list(&ListFilter::default()).unwrap().attempts.is_empty(), "no archive is an empty one");
}

#[test]
fn outputs_come_back_from_the_frame_or_from_their_file() {
    let rig = Rig::new();
    let mut attempt = entry(chunk(1, &[(1, b"a")]), 1000);
    attempt.settlement.verdict = Verdict::Succeed { message: "é".repeat(40_000) };
    let big = vec![b'o'; 100_000];
    attempt.output.stdout = Stream { head: big, file: None, total: 100_000 };
    attempt.output.stderr = Stream { head: Vec::new(), file: Some("j.1.err".into()), total: 11 };
    rig.write(rig.options(), vec![turn(1, vec![attempt])]);
    let record = rig.find(id(1, 1)).remove(0);
    assert_eq!(record.message.len(), 64 << 10, "clipped between characters");
    let dir = rig.options().output_dir;
    let stdout = output(&dir, &record.stdout).unwrap();
    assert_eq!((stdout.head.len(), stdout.missing), (64 << 10, 100_000 - (64 << 10)));
    assert_eq!(output(&dir, &record.stderr).unwrap().missing, 11, "the file is gone");
    fs::write(dir.join("j.1.err"), b"0123a789").unwrap();
    // Positions 4 to 10 went round in the last four places: 8 9 10 lie over 4 5 6.
    let stderr = output(&dir, &record.stderr).unwrap();
    assert_eq!((stderr.head.as_slice(), stderr.tail.as_slice(), stderr.missing), (&b"0123"[..], &b"9a78"[..], 3));
    let outside = Kept { file: Some("../secret".into()), total: 3, head: Vec::new() };
    fs::write(rig.dir.path().join("secret"), b"abc").unwrap();
    assert_eq!(output(&dir, &outside).unwrap().missing, 3, "a name never leaves the directory");
}

fn names_in(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn set_changed(path: &Path, seconds: i64) {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds as u64);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Lets the archiver sweep and returns once it did: closing waits for it.
fn sweep(options: ArchiverOptions, now: i64) {
    let (archiver, _) = spawn(options);
    archiver.retain(Time(now * SECOND));
    drop(archiver);
}

#[test]
fn retention_removes_old_segments_and_keeps_failures_longer() {
    const DAY: i64 = 86_400;
    let rig = Rig::new();
    let options = ArchiverOptions { segment_bytes: 1, ..rig.options() };
    let job = |number: u64| chunk(1, &[(number, b"x")]);
    rig.write(
        options.clone(),
        vec![
            turn(1, vec![entry(job(1), DAY)]),
            turn(2, vec![failed(job(2), DAY, "e")]),
            turn(3, vec![entry(job(3), 5 * DAY)]),
            turn(4, vec![entry(job(4), 6 * DAY)]),
        ],
    );
    for (name, day) in [("old.out", 0), ("failed.out", 1), ("young.out", 9)] {
        fs::write(options.output_dir.join(name), b"x").unwrap();
        set_changed(&options.output_dir.join(name), day * DAY + 10);
    }
    let outputs = || names_in(&options.output_dir);
    sweep(options.clone(), 10 * DAY);
    assert_eq!(numbers_in(&rig.all()), [2, 3, 4], "the first is past 7 days, the second has a failure");
    assert_eq!(outputs(), ["failed.out", "young.out"]);
    sweep(options.clone(), 60 * DAY);
    assert_eq!(numbers_in(&rig.all()), [4], "the newest segment stays: it knows the last turn");
    assert_eq!(outputs(), ["young.out"]);
    assert_eq!(spawn(options).0.last_turn(), 4);
}

#[test]
fn retention_by_size_takes_the_oldest_first() {
    let rig = Rig::new();
    let options = ArchiverOptions { segment_bytes: 1, max_bytes: 2000, ..rig.options() };
    rig.write(options.clone(), (1..=30).map(simple).collect());
    let now = 1000 + 10 * 3600;
    for hour in 0..6 {
        let path = options.output_dir.join(format!("{hour}.out"));
        fs::write(&path, [0; 600]).unwrap();
        set_changed(&path, 4000 + hour * 3600);
    }
    sweep(options.clone(), now);
    let left = numbers_in(&rig.all());
    assert!(left.len() < 30 && left.len() > 1, "{left:?}");
    assert_eq!(left, (31 - left.len() as u64..=30).collect::<Vec<_>>());
    let bytes: u64 = fs::read_dir(rig.archive()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= 2000, "{bytes}");
    assert_eq!(names_in(&options.output_dir), ["3.out", "4.out", "5.out"]);
}

#[test]
fn a_failed_write_is_told_once_and_nothing_more_is_written() {
    let rig = Rig::new();
    let options = ArchiverOptions { segment_bytes: 1, ..rig.options() };
    let (tell_turn, confirmed) = channel();
    let (tell_failure, failures) = channel();
    let archiver = Archiver::spawn(
        options.clone(),
        Told::log(Log::off()),
        Box::new(move |turn| tell_turn.send(turn).unwrap()),
        Box::new(move |failure| tell_failure.send(failure).unwrap()),
    )
    .unwrap();
    archiver.append(simple(1));
    assert_eq!(confirmed.recv().unwrap(), 1);
    fs::rename(&options.dir, rig.dir.path().join("away")).unwrap();
    archiver.append(simple(2));
    // The first segment is full: its end may be read for the index only after the directory went away.
    let told = failures.recv().unwrap().text;
    assert!(told.starts_with("cannot write the archive segment") || told.starts_with("cannot read"), "{told}");
    assert!(failures.recv().is_err(), "once");
    archiver.append(simple(3));
    assert!(confirmed.recv().is_err());
    assert_eq!(archiver.last_turn(), 1);
    assert!(archiver.pending_bytes() > 0, "what is not safe stays visible");
    fs::rename(rig.dir.path().join("away"), &options.dir).unwrap();
    rig.write(options, vec![simple(2), simple(3)]);
    assert_eq!(numbers_in(&rig.all()), [1, 2, 3]);
}

#[test]
fn an_archive_of_a_newer_program_is_refused_untouched() {
    let rig = Rig::new();
    rig.write(rig.options(), vec![simple(1)]);
    let path = segment_path(&rig.archive(), 1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    let crc = crc32fast::hash(&bytes[..36]);
    bytes[36..40].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let refused =
        Archiver::spawn(rig.options(), Told::log(Log::off()), Box::new(|_| {}), Box::new(|_| {})).unwrap_err();
    assert_eq!(refused.kind, crate::error::Kind::Version);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(rig.reader().find(id(1, 1)).unwrap_err().kind, crate::error::Kind::Version);
}

/// Whoever reads an index has it in memory; the writer of a segment has none of it.
#[test]
fn a_segment_of_many_small_frames_is_closed_and_indexed() {
    const A_TURN: u64 = 1024;
    let rig = Rig::new();
    let (archiver, confirmed) = spawn(rig.options());
    let turns = 2 * writer::FRAMES_MAX / A_TURN + 1;
    for number in 1..=turns {
        let lonely = |n| entry(chunk(1, &[(number * A_TURN + n, b"")]), 1000);
        archiver.append(turn(number, (0..A_TURN).map(lonely).collect()));
    }
    while confirmed.recv().unwrap() < turns {}
    drop(archiver);
    assert_eq!(rig.segments(), [1, 2, 3]);
    let frames = |number| index::Stored::open(&rig.archive(), number).unwrap().load().unwrap().entries.len() as u64;
    assert_eq!([1, 2, 3].map(frames), [writer::FRAMES_MAX, writer::FRAMES_MAX, A_TURN]);
    for number in [1, turns / 2, turns] {
        assert_eq!(rig.find(id(1, number * A_TURN + 7)).len(), 1);
    }
}
