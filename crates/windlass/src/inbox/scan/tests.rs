//! Every cut, every flip and every glue of an inbox file: nothing panics, and what is whole is found.

use super::super::frame::{self, Envelope, FILE_HEADER, FileHeader, Kind, Reason};
use super::super::gather::Gatherer;
use super::{End, Found, Scan};
use std::collections::BTreeSet;
use std::sync::Arc;
use windlass_core::job::{Origin, Priority, QueueName, RunId};
use windlass_core::particulars::{OnConflict, Particulars, Scope, Unique};
use windlass_core::time::Time;

const SEED: u64 = 0x2_1234_5678_9abc;

type Job = (u64, String, Vec<u8>);

fn seed() -> Origin {
    Origin::from_random(SEED)
}

fn envelope(queue: &str) -> Envelope {
    Envelope::new(QueueName::new(queue.as_bytes()).unwrap())
}

fn block(into: &mut Vec<u8>, queue: &str, lines: &[u8]) {
    frame::write_front(into, seed(), Kind::Block, &envelope(queue), lines, false);
    into.extend_from_slice(lines);
    into.push(b'\n');
}

/// Jobs and damage of a whole file, read in one stretch through the gatherer.
fn read(bytes: &[u8], end: End) -> (Vec<Job>, Vec<(u64, Reason)>, usize) {
    let header = FileHeader::decode(bytes);
    let start = if header.is_some() { FILE_HEADER } else { 0 };
    let stretch = &bytes[start..];
    let mut gatherer = Gatherer::default();
    let mut bad = Vec::new();
    let mut scan = Scan::new(stretch, start as u64, header.map(|h| h.origin), end, None);
    for found in &mut scan {
        let at = match found {
            Found::Line { offset, .. } | Found::Framed { offset, .. } | Found::Bad { offset, .. } => offset,
        };
        if let Err(reason) = gatherer.add(stretch, found) {
            bad.push((at, reason));
        }
    }
    let consumed = start + scan.consumed();
    let mut chunks = Vec::new();
    gatherer.finish(stretch, seed(), &mut chunks);
    let mut jobs = Vec::new();
    for new in chunks {
        for index in 0..new.jobs.len() {
            let data = new.jobs.data(index).to_vec();
            jobs.push((new.jobs.id(index).offset, new.queue.to_string(), data));
        }
    }
    jobs.sort();
    (jobs, bad, consumed)
}

/// A file with every kind of record, and where each begins.
fn sample() -> (Vec<u8>, Vec<usize>) {
    let mut file = FileHeader { origin: seed(), boot: Some(seed()), sealed: false }.encode().to_vec();
    let mut starts = Vec::new();
    let mut add = |write: &dyn Fn(&mut Vec<u8>)| {
        starts.push(file.len());
        write(&mut file);
    };
    add(&|f| f.extend_from_slice(b"\x18\nplain\tone\n"));
    add(&|f| frame::write_job(f, seed(), &envelope("job"), b"any\0bytes\n\x18\nplain\tforged\n\xff"));
    add(&|f| block(f, "block", b"a\tline\nforged\tby a line\n\nclean\t/"));
    add(&|f| f.extend_from_slice(b"\x18\n_future\t@1700000000\tlater\tdata\n"));
    add(&|f| {
        let special = Envelope {
            priority: Priority::new(-7).unwrap(),
            run: Some(RunId::first(Origin::from_random(5))),
            not_before: Some(Time(77)),
            particulars: Some(particulars()),
            ..envelope("special")
        };
        frame::write_job(f, seed(), &special, b"");
    });
    add(&|f| frame::write_seal(f, seed(), RunId::first(seed()), &[(seed(), 0x0a18_0a18), (Origin::from_random(9), 7)]));
    add(&|f| frame::write_job(f, seed(), &envelope("job"), b"last"));
    starts.push(file.len());
    (file, starts)
}

/// Ones whose key would be a fence, and a record behind it.
fn particulars() -> Arc<Particulars> {
    let key = Some(b"\x18\nplain\tforged\n\x10\x18".to_vec());
    let unique = Unique { scope: Scope::Run, on_conflict: OnConflict::Reject, key };
    Arc::new(Particulars { unique: Some(unique), ..Particulars::default() })
}

#[test]
fn particulars_travel_with_a_job_and_with_every_line_of_a_block() {
    let envelope = Envelope { particulars: Some(particulars()), ..envelope("q") };
    let mut file = FileHeader { origin: seed(), boot: Some(seed()), sealed: false }.encode().to_vec();
    frame::write_job(&mut file, seed(), &envelope, b"escaped \x18\n too");
    let lines = b"a\nb";
    frame::write_front(&mut file, seed(), Kind::Block, &envelope, lines, false);
    file.extend_from_slice(b"a\nb\n");
    let mut gatherer = Gatherer::default();
    for found in Scan::new(&file[FILE_HEADER..], FILE_HEADER as u64, Some(seed()), End::Open, None) {
        gatherer.add(&file[FILE_HEADER..], found).unwrap();
    }
    let mut jobs = Vec::new();
    gatherer.finish(&file[FILE_HEADER..], seed(), &mut jobs);
    assert_eq!(jobs.len(), 1, "they are alike");
    let chunk = &jobs[0].jobs;
    assert_eq!(chunk.particulars(), Some(&particulars()));
    assert_eq!((0..3).map(|i| chunk.data(i)).collect::<Vec<_>>(), [&b"escaped \x18\n too"[..], b"a", b"b"]);
}

#[test]
fn a_whole_file_gives_every_record_as_it_was() {
    let (file, starts) = sample();
    let (jobs, bad, consumed) = read(&file, End::Open);
    assert_eq!(bad, []);
    assert_eq!(consumed, file.len());
    let block = starts[2] as u64;
    let expected: Vec<Job> = vec![
        (starts[0] as u64 + 2, "plain".into(), b"one".to_vec()),
        (starts[1] as u64, "job".into(), b"any\0bytes\n\x18\nplain\tforged\n\xff".to_vec()),
        (block + 1, "block".into(), b"a\tline".to_vec()),
        (block + 2, "block".into(), b"forged\tby a line".to_vec()),
        (block + 3, "block".into(), b"clean\t/".to_vec()),
        (starts[3] as u64 + 2, "later".into(), b"data".to_vec()),
        (starts[4] as u64, "special".into(), b"".to_vec()),
        (starts[6] as u64, "job".into(), b"last".to_vec()),
    ];
    assert_eq!(jobs, expected);
}

#[test]
fn every_cut_waits_and_then_costs_one_record() {
    let (file, starts) = sample();
    let (all, ..) = read(&file, End::Open);
    for cut in FILE_HEADER..file.len() {
        let (jobs, bad, consumed) = read(&file[..cut], End::Open);
        assert_eq!(bad, [], "cut at {cut}: a writer may still be at it");
        let whole: Vec<_> = all.iter().filter(|job| record_of(&starts, job.0).1 <= cut).cloned().collect();
        assert_eq!(jobs, whole, "cut at {cut}");
        // Read on from where it stopped: the same ids, nothing twice, nothing lost.
        let mut scan = Scan::new(&file[consumed..], consumed as u64, Some(seed()), End::Open, None);
        let rest = scan.by_ref().filter(|found| !matches!(found, Found::Bad { .. })).count();
        assert_eq!(scan.consumed(), file.len() - consumed, "cut at {cut}");
        assert!(rest > 0 || consumed == file.len(), "cut at {cut}");

        let (jobs, bad, consumed) = read(&file[..cut], End::Closed);
        assert_eq!(jobs, whole, "closed, cut at {cut}");
        assert_eq!(consumed, cut);
        assert!(bad.len() <= 1, "closed, cut at {cut}: {bad:?}");
    }
}

#[test]
fn a_torn_record_of_any_length_costs_nobody_else() {
    let (file, starts) = sample();
    let (all, ..) = read(&file, End::Open);
    for record in 0..starts.len() - 1 {
        for cut in starts[record] + 1..starts[record + 1] {
            for tail in [&b"\x18\nnext\tgood\n"[..], &framed_next()[..]] {
                let mut glued = file[..cut].to_vec();
                glued.extend_from_slice(tail);
                let (jobs, bad, consumed) = read(&glued, End::Locked);
                assert_eq!(consumed, glued.len(), "record {record} cut at {cut}");
                if tail.len() == starts[record + 1] - cut && tail[2] >= b' ' && file[starts[record] + 2] < b' ' {
                    // A line that ends exactly where the torn frame would have ended cannot be told from the
                    // frame's own damaged data: it is kept in the quarantine rather than run.
                    assert!(!bad.is_empty());
                    continue;
                }
                let mut whole: Vec<_> = all.iter().filter(|j| record_of(&starts, j.0).1 <= cut).cloned().collect();
                let id = if tail.starts_with(&frame::START) { cut } else { cut + 2 };
                whole.push((id as u64, "next".into(), b"good".to_vec()));
                assert_eq!(jobs, whole, "record {record} cut at {cut}");
            }
        }
    }
}

fn framed_next() -> Vec<u8> {
    let mut next = Vec::new();
    frame::write_job(&mut next, seed(), &envelope("next"), b"good");
    next
}

/// The record a job id belongs to.
fn record_of(starts: &[usize], id: u64) -> (usize, usize) {
    let next = starts.partition_point(|start| *start as u64 <= id);
    (starts[next - 1], starts[next])
}

#[test]
fn every_flipped_bit_costs_only_the_records_it_touches() {
    let (file, starts) = sample();
    let (all, ..) = read(&file, End::Open);
    let known: BTreeSet<_> = all.iter().cloned().collect();
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            let (jobs, _, consumed) = read(&damaged, End::Closed);
            assert_eq!(consumed, damaged.len());
            let touched = starts.partition_point(|start| *start <= at);
            let end = starts.get(touched).copied().unwrap_or(0);
            let touched = if touched == 0 { 0..0 } else { starts[touched - 1]..end };
            for job in &all {
                let (from, _) = record_of(&starts, job.0);
                assert!(jobs.contains(job) || touched.contains(&from), "bit {bit} of {at}: lost {job:?}");
            }
            let plain = |job: &Job| touched.contains(&record_of(&starts, job.0).0) && file[touched.start + 2] >= b' ';
            for job in &jobs {
                assert!(known.contains(job) || plain(job), "bit {bit} of byte {at} forged {job:?}");
            }
        }
    }
}

#[test]
fn random_damage_never_panics_and_never_loops() {
    let (file, _) = sample();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..20_000 {
        let mut bytes = file.clone();
        for _ in 0..1 + random(6) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, [0x18, b'\n', 2, 0x1d, 1, b'\t', 0, b'q'][random(8)]),
                _ => {
                    let piece = bytes[at..bytes.len().min(at + random(80))].to_vec();
                    let to = random(bytes.len());
                    bytes.splice(to..to, piece);
                }
            }
        }
        let (_, _, consumed) = read(&bytes, End::Closed);
        assert_eq!(consumed, bytes.len());
        // In two stretches nothing is left over either.
        let cut = random(bytes.len());
        let mut scan = Scan::new(&bytes[..cut], 0, Some(seed()), End::Open, None);
        scan.by_ref().for_each(drop);
        let (from, skip) = (scan.consumed(), scan.skipping());
        let mut scan = Scan::new(&bytes[from..], from as u64, Some(seed()), End::Closed, skip);
        scan.by_ref().for_each(drop);
        assert_eq!(from + scan.consumed(), bytes.len());
    }
}

fn plain(bytes: &[u8]) -> (Vec<(String, Vec<u8>)>, Vec<Reason>) {
    let (jobs, bad, consumed) = read(bytes, End::Closed);
    assert_eq!(consumed, bytes.len());
    let jobs = jobs.into_iter().map(|(_, queue, data)| (queue, data)).collect();
    (jobs, bad.into_iter().map(|(_, reason)| reason).collect())
}

#[test]
fn bad_lines_are_named_and_their_neighbours_delivered() {
    let good = |data: &str| ("q".to_owned(), data.as_bytes().to_vec());
    let long = [b"q\t".to_vec(), vec![b'x'; (1 << 20) + 1], b"\n".to_vec()].concat();
    for (line, reason) in [
        (&b"no tab\n"[..], Reason::NoTab),
        (b"\tno queue\n", Reason::QueueName),
        (b"-x\tdata\n", Reason::QueueName),
        (b"bad\x01name\tdata\n", Reason::QueueName),
        (b"\xff\xfe\tdata\n", Reason::QueueName),
        (b"_future\tsoon\tq\tdata\n", Reason::FutureTime),
        (b"_future\t@1\tq\n", Reason::FutureTime),
        (b"_future\t@1\t_future\tx\n", Reason::QueueName),
        (b"q\ttorn\x18\n", Reason::Torn),
        (b"q\t\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0x\n", Reason::NulRun),
        (&long, Reason::TooLong),
    ] {
        let file = [b"q\tbefore\n", line, b"q\tafter\n"].concat();
        let (jobs, bad) = plain(&file);
        assert_eq!(bad, [reason], "{:?}", String::from_utf8_lossy(&line[..line.len().min(40)]));
        assert_eq!(jobs, [good("before"), good("after")]);
    }
    let (jobs, bad) = plain(b"\xef\xbb\xbfq\tone\r\n\n\r\n\x18\nq\ttwo\r\r\nq\t\nq\tun\0it\nq\tcut");
    assert_eq!(bad, [Reason::Torn]);
    assert_eq!(jobs, [good("one"), good("two\r"), good(""), good("un\0it")]);
}

#[test]
fn a_line_without_end_is_passed_over_in_constant_memory() {
    let piece = vec![b'y'; 2 << 20];
    let mut scan = Scan::new(&piece, 0, None, End::Open, None);
    assert!(matches!(scan.next(), Some(Found::Bad { reason: Reason::TooLong, .. })));
    assert_eq!((scan.consumed(), scan.next()), (piece.len(), None));
    let skip = scan.skipping();
    let mut scan = Scan::new(b"yyy\nq\tgood\n", 99, None, End::Open, skip);
    assert_eq!(scan.next(), Some(Found::Line { offset: 103, not_before: None, queue: b"q", data: b"good" }));
}

#[test]
fn frames_are_believed_only_under_a_header_and_their_own_seed() {
    let mut frame = Vec::new();
    frame::write_job(&mut frame, seed(), &envelope("q"), b"x");
    let (jobs, bad, _) = read(&frame, End::Closed);
    assert!(jobs.is_empty() && !bad.is_empty(), "no header");
    let other = FileHeader { origin: Origin::from_random(1), boot: None, sealed: false }.encode();
    let (jobs, bad, _) = read(&[&other[..], &frame].concat(), End::Closed);
    assert!(jobs.is_empty() && bad.len() == 1, "another file's frame");
}

#[test]
fn a_file_that_lost_its_front_gives_no_line_of_a_block_away() {
    let mut file = FileHeader { origin: seed(), boot: None, sealed: false }.encode().to_vec();
    block(&mut file, "block", "forged\tby a line\n".repeat(60).as_bytes());
    let only = file.len();
    file.extend_from_slice(b"\x18\nplain\tone\n");
    frame::write_job(&mut file, seed(), &envelope("job"), b"unproven");
    let zeros = [&[0; 512], &file[512..]].concat();
    let text = [&[b'x'; 512], &file[512..]].concat();
    for (damaged, reason) in [(&zeros[..], Reason::NulRun), (&text, Reason::NoHeader), (&file[512..], Reason::NoHeader)]
    {
        for end in [End::Open, End::Closed] {
            let (jobs, bad, consumed) = read(damaged, end);
            let found: Vec<_> = jobs.iter().map(|(_, queue, data)| (queue.as_str(), &data[..])).collect();
            assert_eq!(found, [("plain", &b"one"[..])], "what has a fence in front is a line");
            assert_eq!(bad.iter().map(|(_, reason)| *reason).collect::<Vec<_>>(), [reason, Reason::NoHeader]);
            assert_eq!((bad[0].0, consumed), (0, damaged.len()));
        }
    }
    // Nothing else is in the file: only the lost sector tells.
    assert_eq!(plain(&zeros[..only]), (Vec::new(), vec![Reason::NulRun]));
    // A file of plain lines that lost a sector in its middle loses that line.
    let lines = [b"q\tone\nq\t".to_vec(), vec![0; 512], b"\nq\ttwo\n".to_vec()].concat();
    assert_eq!(plain(&lines).0.len(), 2);
}

#[test]
fn a_torn_frame_is_known_under_the_lock_but_a_bare_line_waits() {
    let header = FileHeader { origin: seed(), boot: None, sealed: false }.encode();
    let mut file = header.to_vec();
    file.extend_from_slice(&framed_next()[..20]);
    assert_eq!(read(&file, End::Open).1, []);
    assert_eq!(read(&file, End::Locked).1.len(), 1);
    let line = [&header[..], b"q\tnot yet"].concat();
    assert_eq!(read(&line, End::Locked).1, []);
}

#[test]
fn a_damaged_header_still_tells_the_origin() {
    let whole = FileHeader { origin: seed(), boot: Some(seed()), sealed: false };
    for at in 0..FILE_HEADER {
        for bit in 0..8 {
            let mut bytes = whole.encode();
            bytes[at] ^= 1 << bit;
            assert_eq!(FileHeader::decode(&bytes).map(|h| h.origin), Some(seed()), "bit {bit} of {at}");
        }
    }
    assert!(frame::is_other_version(b"windlass-inbox 22 and then something else that is long enough............"));
}
