//! Damage to inbox files, read by the shipped reader.

use super::{Damage, cases, damage, guarded};
use crate::chance::Chance;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::channel;
use windlass::inbox::{Delivered, Envelope, InboxWriter, Ingest, IngestOptions};
use windlass_core::job::{JobId, QueueName};

/// A record that was written: where it stands with what parts it from its neighbours, and its jobs.
struct Record {
    place: Range<usize>,
    framed: bool,
    jobs: Vec<(JobId, String, Vec<u8>)>,
}

#[derive(Default)]
struct Figures {
    cases: u64,
    records: u64,
    touched: u64,
    lost: u64,
    lines_lost: u64,
    altered_lines: u64,
    with_the_header: u64,
    invented: u64,
}

/// Writes an inbox file with the shipped writer and with plain appends; says what stands where.
fn write(inbox: &Path, chance: &mut Chance) -> (std::path::PathBuf, Vec<Record>) {
    let mut writer = InboxWriter::open(inbox).unwrap();
    let queue = |chance: &mut Chance| format!("q{}", chance.below(3));
    let envelope = |queue: &str| Envelope::new(QueueName::new(queue.as_bytes()).unwrap());
    let path = inbox.join(rustix::process::geteuid().as_raw().to_string());
    let mut records = Vec::new();
    for number in 0..20 + chance.below(120) {
        let (queue, before) = (queue(chance), std::fs::metadata(&path).map_or(64, |meta| meta.len() as usize));
        let (framed, jobs) = match if number == 0 { 3 } else { chance.below(6) } {
            0 => {
                let lines: Vec<String> =
                    (0..1 + chance.below(40)).map(|n| format!("{number}.{n}\tx{}", chance.next())).collect();
                let ranges = writer.push_lines(&envelope(&queue), lines.join("\n").as_bytes()).unwrap();
                let ids = ranges.into_iter().flat_map(|range| range.ids());
                (true, ids.zip(lines).map(|(id, line)| (id, queue.clone(), line.into_bytes())).collect())
            }
            1 | 2 => {
                let data = format!("line {number} {:x}", chance.next());
                let origin = writer.push(&envelope("origin"), b"").unwrap();
                let at = std::fs::metadata(&path).unwrap().len();
                let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
                file.write_all(format!("{queue}\t{data}\n").as_bytes()).unwrap();
                let place = before..at as usize;
                records.push(Record { place, framed: true, jobs: vec![(origin, "origin".into(), Vec::new())] });
                (false, vec![(JobId { offset: at, ..origin }, queue, data.into_bytes())])
            }
            _ => {
                let data = if chance.one_in(4) {
                    chance.bytes(6000)
                } else {
                    format!("job {number} {:x}", chance.next()).into()
                };
                (true, vec![(writer.push(&envelope(&queue), &data).unwrap(), queue, data)])
            }
        };
        let start = jobs[0].0.offset as usize;
        let end = std::fs::metadata(&path).unwrap().len() as usize;
        // A block is numbered from the byte behind its start; a line needs the end of the one before it.
        let start = if framed { start.min(before.max(64)) } else { start - 1 };
        records.push(Record { place: start..end, framed, jobs });
    }
    (path, records)
}

/// Everything that the reader delivers, and how much it set aside.
fn read(inbox: &Path, quarantine: &Path) -> (BTreeMap<JobId, (String, Vec<u8>)>, u64) {
    let (send, delivered) = channel();
    let send = std::sync::Mutex::new(send);
    let deliver = Box::new(move |what| {
        // The receiver is gone only once all was read.
        let _ = send.lock().unwrap().send(what);
    });
    let options = IngestOptions { inbox: inbox.into(), quarantine: quarantine.into(), cursors: Vec::new(), deliver };
    let handle = Ingest::spawn(options).unwrap();
    handle.read_to_end(1);
    let mut jobs = BTreeMap::new();
    for what in delivered {
        match what {
            Delivered::Lot(lot) => {
                for new in &lot.jobs {
                    for index in 0..new.jobs.len() {
                        jobs.insert(new.jobs.id(index), (new.queue.to_string(), new.jobs.data(index).to_vec()));
                    }
                }
                handle.committed();
            }
            Delivered::ReadToEnd { .. } => break,
            Delivered::Trouble(_) => {}
            Delivered::Ended(failure) => panic!("the reader ended: {failure}"),
        }
    }
    let aside = handle.quarantined();
    handle.stop();
    (jobs, aside)
}

fn case(seed: u64, figures: &mut Figures) -> Result<(), String> {
    let mut chance = Chance::new(seed);
    let place = tempfile::tempdir().unwrap();
    let (inbox, quarantine) = (place.path().join("inbox"), place.path().join("quarantine"));
    std::fs::create_dir(&inbox).unwrap();
    std::fs::create_dir(&quarantine).unwrap();
    let (path, records) = write(&inbox, &mut chance);
    let mut bytes = std::fs::read(&path).unwrap();
    // The header stands there three times over; what a whole lost header costs is another matter.
    let front = bytes[..64].to_vec();
    let damage: Damage = damage(&mut bytes, 4096, &mut chance);
    let header_gone = bytes.len() < 64 || bytes[..64] != front[..];
    std::fs::write(&path, &bytes).unwrap();
    let (jobs, aside) = read(&inbox, &quarantine);
    figures.cases += 1;
    // Two jobs may have the same data in different queues: none at all, for one.
    let known: BTreeSet<(&str, &[u8])> =
        records.iter().flat_map(|record| &record.jobs).map(|(_, queue, data)| (queue.as_str(), &data[..])).collect();
    for (id, (queue, data)) in &jobs {
        let at = id.offset as usize;
        if known.contains(&(queue.as_str(), &data[..])) {
            continue;
        }
        // A plain line has no checksum: one that is damaged, or parted from what stood before it, may still be a line.
        let line = at.saturating_sub(1)..at + queue.len() + data.len() + 2;
        let moved = matches!(damage.what, "duplicate" | "swap");
        match damage.touches(&line) || moved {
            true => figures.altered_lines += 1,
            false => {
                figures.invented += 1;
                let near = records.iter().filter(|record| record.place.end + 600 > at && record.place.start < at + 600);
                let near: Vec<_> = near.map(|record| (record.place.clone(), record.framed)).collect();
                return Err(format!(
                    "{} at {:?}: {id} at {at} of queue {queue} was never written; records near it {near:?}",
                    damage.what, damage.places
                ));
            }
        }
    }
    for record in &records {
        figures.records += 1;
        if damage.touches(&record.place) {
            figures.touched += 1;
            continue;
        }
        let whole = record
            .jobs
            .iter()
            .all(|(id, queue, data)| jobs.get(id).is_some_and(|job| job == &(queue.clone(), data.clone())));
        match (whole, record.framed) {
            (true, _) => {}
            (false, _) if header_gone => figures.with_the_header += 1,
            (false, false) if aside > 0 => figures.lines_lost += 1,
            (false, framed) => {
                figures.lost += 1;
                return Err(format!(
                    "{} at {:?}: record at {:?} (framed {framed}) is lost",
                    damage.what, damage.places, record.place
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn damage_to_an_inbox_file_costs_only_what_it_touches() {
    let mut figures = Figures::default();
    for seed in cases() {
        let told = guarded(seed, || case(seed, &mut figures));
        if let Err(what) = told {
            panic!("{what}; repeat it with WINDLASS_FLIP_SEED={seed}");
        }
    }
    let Figures { cases, records, touched, lost, lines_lost, altered_lines, with_the_header, invented } = figures;
    println!(
        "flip inbox: {cases} cases, {records} records, {touched} touched, crashes 0, hangs 0, lost outside \
         the damage {lost}, plain lines set aside behind it {lines_lost}, set aside \
         with a lost file header {with_the_header}, damaged plain lines \
         taken for lines {altered_lines}, invented {invented}"
    );
}
