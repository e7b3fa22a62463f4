//! The reader against real files: writers, rotation, removal, damage, restarts.

use super::super::frame::FileHeader;
use super::super::{Envelope, InboxWriter, files, lock};
use super::*;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use windlass_core::job::{JobId, Origin, QueueName, RunId};

/// A reader that says nothing for so long never will.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A reader and the store behind it: commits every lot as it comes.
struct Rig {
    dir: tempfile::TempDir,
    handle: Option<IngestHandle>,
    events: Receiver<Delivered>,
    jobs: BTreeMap<JobId, (String, Vec<u8>)>,
    taken: u64,
    cursors: BTreeMap<Origin, Cursor>,
    closed: Vec<Origin>,
    seals: Vec<crate::store::Seal>,
    troubles: Vec<String>,
    waiter: u64,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("inbox")).unwrap();
        fs::create_dir(dir.path().join("quarantine")).unwrap();
        Rig {
            dir,
            handle: None,
            events: channel().1,
            jobs: BTreeMap::new(),
            taken: 0,
            cursors: BTreeMap::new(),
            closed: Vec::new(),
            seals: Vec::new(),
            troubles: Vec::new(),
            waiter: 0,
        }
    }

    fn inbox(&self) -> PathBuf {
        self.dir.path().join("inbox")
    }

    fn start(&mut self) {
        let (send, events) = channel();
        let send = Mutex::new(send);
        self.events = events;
        let deliver = Box::new(move |delivered| {
            // The rig may be gone before its reader.
            let _ = send.lock().unwrap().send(delivered);
        });
        let cursors = self.cursors.values().copied().collect();
        let quarantine = self.dir.path().join("quarantine");
        self.handle = Some(Ingest::spawn(IngestOptions { inbox: self.inbox(), quarantine, cursors, deliver }).unwrap());
    }

    fn stop(&mut self) {
        self.handle.take().unwrap().stop();
    }

    fn take(&mut self) -> Option<u64> {
        match self.events.recv_timeout(PATIENCE).expect("the reader has nothing to say") {
            Delivered::Lot(lot) => {
                for new in &lot.jobs {
                    for index in 0..new.jobs.len() {
                        let job = (new.queue.to_string(), new.jobs.data(index).to_vec());
                        self.jobs.insert(new.jobs.id(index), job);
                        self.taken += 1;
                    }
                }
                for cursor in lot.cursors {
                    self.cursors.insert(cursor.origin, cursor);
                }
                for origin in lot.closed {
                    self.cursors.remove(&origin);
                    self.closed.push(origin);
                }
                self.seals.extend(lot.seals);
                self.handle.as_ref().unwrap().committed();
                None
            }
            Delivered::ReadToEnd { waiter } => Some(waiter),
            Delivered::Trouble(failure) => {
                self.troubles.push(failure.text);
                None
            }
            Delivered::Ended(failure) => panic!("the reader ended: {failure}"),
        }
    }

    fn read_to_end(&mut self) {
        self.waiter += 1;
        self.handle.as_ref().unwrap().read_to_end(self.waiter);
        while self.take() != Some(self.waiter) {}
    }

    fn until(&mut self, done: impl Fn(&Rig) -> bool) {
        while !done(self) {
            self.take();
        }
    }

    fn data(&self) -> Vec<String> {
        self.jobs.values().map(|(_, data)| String::from_utf8_lossy(data).into_owned()).collect()
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.inbox()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }
}

fn to(queue: &str) -> Envelope {
    Envelope::new(QueueName::new(queue.as_bytes()).unwrap())
}

fn own_name() -> String {
    rustix::process::geteuid().as_raw().to_string()
}

fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
}

#[test]
fn ids_are_those_the_writer_returned() {
    let mut rig = Rig::new();
    let mut writer = InboxWriter::open(&rig.inbox()).unwrap();
    let one = writer.push(&to("q"), b"one\n\0").unwrap();
    let lines: String = (0..2500).map(|n| format!("line {n}\n\n")).collect();
    let ranges = writer.push_lines(&to("lines"), (lines + "ends in CAN\x18\nlast").as_bytes()).unwrap();
    let run = RunId::first(Origin::from_random(3));
    writer.seal(run).unwrap();
    writer.sync().unwrap();
    rig.start();
    rig.read_to_end();
    assert_eq!(rig.jobs.remove(&one), Some(("q".into(), b"one\n\0".to_vec())));
    let ids: Vec<JobId> = ranges.iter().flat_map(|range| range.ids()).collect();
    assert_eq!(ids, rig.jobs.keys().copied().collect::<Vec<_>>());
    assert_eq!(ids.len(), 2502);
    assert_eq!(rig.data()[2499..], ["line 2499", "ends in CAN\x18", "last"]);
    assert_eq!(rig.seals[0].run, run);
    assert!(rig.troubles.is_empty(), "{:?}", rig.troubles);
}

#[test]
fn a_sleeping_reader_is_woken_by_an_append_and_by_a_moved_file() {
    let mut rig = Rig::new();
    rig.start();
    rig.read_to_end();
    let mut writer = InboxWriter::open(&rig.inbox()).unwrap();
    writer.push(&to("q"), b"first").unwrap();
    rig.until(|rig| rig.taken == 1);
    writer.push(&to("q"), b"second").unwrap();
    rig.until(|rig| rig.taken == 2);
    let outside = rig.dir.path().join("lines.txt");
    fs::write(&outside, "q\tmoved\n_future\t@1\tq\tdue\nbroken\nq\tcut").unwrap();
    fs::rename(&outside, rig.inbox().join("lines.txt")).unwrap();
    rig.until(|rig| !rig.closed.is_empty());
    assert_eq!(rig.taken, 4);
    assert_eq!(rig.names(), [own_name()]);
    let log = fs::read_to_string(rig.dir.path().join("quarantine/inbox.log")).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines[0]["offset"].as_u64(), lines[1]["offset"].as_u64()), (Some(25), Some(32)));
    assert_eq!(lines[0]["reason"], "no tab between queue and data");
    assert_eq!(fs::read(rig.dir.path().join("quarantine/inbox.bad")).unwrap(), b"broken\nq\tcut");
    assert_eq!(rig.handle.as_ref().unwrap().quarantined(), 2);
}

#[test]
fn many_writers_rotation_and_restarts_lose_and_double_nothing() {
    let mut rig = Rig::new();
    let (threads, each) = (4, 3000);
    let writers: Vec<_> = (0..threads)
        .map(|thread| {
            let inbox = rig.inbox();
            std::thread::spawn(move || {
                let mut writer = InboxWriter::open(&inbox).unwrap();
                let push = |n| writer.push(&to(&format!("q{}", n % 7)), format!("{thread}-{n}").as_bytes()).unwrap();
                (0..each).map(push).collect::<Vec<JobId>>()
            })
        })
        .collect();
    let foreign = {
        let path = rig.inbox().join(own_name());
        std::thread::spawn(move || (0..500).for_each(|n| append(&path, format!("\x18\nforeign\t{n}\n").as_bytes())))
    };
    let kernel = super::super::disk::Kernel::default();
    for _ in 0..5 {
        rig.start();
        rig.read_to_end();
        // Every writer is moved on, as a rotation does it: under the lock, while the name still leads to the file.
        for name in rig.names().into_iter().filter(|name| !name.ends_with(".sealed")) {
            let path = rig.inbox().join(&name);
            if let Ok(file) = files::open(&path, false)
                && let Ok(Some(header)) = files::read_header(&file)
                && lock::try_lock(&file).unwrap()
                && files::is_at(&kernel, &file, &path).unwrap()
            {
                files::seal(&kernel, &rig.inbox(), &name, header.origin).unwrap();
            }
        }
        rig.stop();
        while let Ok(delivered) = rig.events.try_recv() {
            assert!(!matches!(delivered, Delivered::Ended(_)));
        }
    }
    let mut ids: Vec<JobId> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    foreign.join().unwrap();
    rig.start();
    rig.read_to_end();
    rig.until(|rig| rig.names().iter().all(|name| !name.ends_with(".sealed")));
    ids.sort();
    let framed: Vec<JobId> = rig.jobs.iter().filter(|(_, job)| job.0 != "foreign").map(|(id, _)| *id).collect();
    let lost: Vec<_> = ids.iter().filter(|id| framed.binary_search(id).is_err()).take(5).collect();
    let new: Vec<_> = framed.iter().filter(|id| ids.binary_search(id).is_err()).take(5).collect();
    assert!(framed.len() == ids.len() && lost.is_empty() && new.is_empty(), "lost {lost:?}, made up {new:?}");
    assert!(rig.troubles.is_empty(), "{:?}", rig.troubles);
    let log = fs::read_to_string(rig.dir.path().join("quarantine/inbox.log")).unwrap_or_default();
    assert_eq!(rig.jobs.len() - framed.len(), 500, "the foreign lines; set aside were: {log}");
}

#[test]
fn a_file_over_the_limit_is_rotated_and_removed_when_its_writers_are_gone() {
    let mut rig = Rig::new();
    let mut writer = InboxWriter::open(&rig.inbox()).unwrap();
    let line = [vec![b'x'; 8190], b"\n".to_vec()].concat();
    let bulk = line.repeat(1024);
    for _ in 0..9 {
        writer.push_lines(&to("q"), &bulk).unwrap();
    }
    let first = writer.push(&to("q"), b"before").unwrap().origin;
    rig.start();
    rig.until(|rig| rig.taken == 9 * 1024 + 1);
    // The rotation itself tells nobody; whoever asked is answered after it.
    rig.read_to_end();
    assert!(rig.names().len() == 2 || !rig.closed.is_empty());
    let late = writer.push(&to("q"), b"after").unwrap();
    assert_ne!(late.origin, first, "the mapped byte moved the writer on");
    rig.until(|rig| rig.closed.contains(&first));
    rig.read_to_end();
    assert_eq!(rig.jobs.len(), 9 * 1024 + 2);
    assert_eq!(rig.names(), [own_name()]);
}

#[test]
fn a_late_append_to_a_sealed_file_is_read_before_it_goes() {
    let mut rig = Rig::new();
    let path = rig.inbox().join("4711");
    let mut held = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    held.write_all(b"q\tearly\n").unwrap();
    rig.start();
    rig.until(|rig| rig.taken == 1);
    rig.read_to_end();
    assert!(!path.exists(), "a file without our header was renamed");
    assert_eq!(rig.names().len(), 1, "but it stays while somebody has it open");
    held.write_all(b"q\tlate\n").unwrap();
    rig.until(|rig| rig.taken == 2);
    drop(held);
    rig.handle.as_ref().unwrap().nudge();
    rig.until(|rig| !rig.closed.is_empty());
    assert_eq!((rig.names().len(), rig.cursors.len()), (0, 0));
}

#[test]
fn a_file_that_is_not_what_the_cursor_knew_is_read_again_under_a_new_origin() {
    for shorter in [false, true] {
        let mut rig = Rig::new();
        let mut writer = InboxWriter::open(&rig.inbox()).unwrap();
        let id = writer.push(&to("q"), b"one").unwrap();
        writer.push(&to("q"), b"two").unwrap();
        rig.start();
        rig.read_to_end();
        rig.stop();
        let file = OpenOptions::new().write(true).open(rig.inbox().join(own_name())).unwrap();
        let size = file.metadata().unwrap().len();
        if shorter {
            file.set_len(size - 5).unwrap();
            append(&rig.inbox().join(own_name()), b"\x18\nq\tthree\n");
        } else {
            file.write_all_at(b"X", size - 2).unwrap();
            append(&rig.inbox().join(own_name()), b"\x18\nq\tthree\n");
        }
        drop((file, writer));
        rig.start();
        rig.read_to_end();
        assert_eq!(rig.taken, 4, "one and two, then one again and three");
        rig.until(|rig| rig.closed.len() == 2);
        assert_eq!(rig.taken, 4, "and nothing more of it");
        assert!(rig.jobs.contains_key(&id));
        assert!(rig.troubles.iter().any(|text| text.contains("is not the file that was read")), "{:?}", rig.troubles);
    }
}

#[test]
fn a_file_that_a_writer_sets_aside_during_the_first_look_keeps_its_cursor() {
    let mut rig = Rig::new();
    let id = InboxWriter::open(&rig.inbox()).unwrap().push(&to("q"), &[b'x'; 100]).unwrap();
    rig.start();
    rig.read_to_end();
    rig.stop();
    let path = rig.inbox().join(own_name());
    let file = files::open(&path, false).unwrap();
    let other_boot = FileHeader { origin: id.origin, boot: Some(Origin::from_random(5)), sealed: false };
    file.write_all_at(&other_boot.encode(), 0).unwrap();
    assert!(lock::try_lock(&file).unwrap());
    // The reader has listed the file and waits for its lock; what it says about that is the moment to rename it.
    let (send, events) = channel();
    let inbox = rig.inbox();
    let deliver = Box::new(move |delivered| {
        if matches!(delivered, Delivered::Trouble(_)) {
            files::seal(&Kernel::default(), &inbox, &own_name(), id.origin).unwrap();
        }
        send.send(delivered).unwrap();
    });
    let quarantine = rig.dir.path().join("quarantine");
    let cursors = rig.cursors.values().copied().collect();
    let options = IngestOptions { inbox: rig.inbox(), quarantine, cursors, deliver };
    let mut reader = Reader::new(options, Kernel::default());
    for _ in 0..4 {
        reader.step().unwrap();
    }
    let told: Vec<Delivered> = events.try_iter().collect();
    assert!(matches!(told[..], [Delivered::Trouble(_)]), "it was read to its end, and its cursor is kept: {told:?}");
    assert!(rig.inbox().join(files::sealed_name(id.origin)).exists());
}

#[test]
fn links_pipes_and_directories_are_reported_and_not_read() {
    let mut rig = Rig::new();
    fs::write(rig.dir.path().join("secret"), "q\tsecret\n").unwrap();
    std::os::unix::fs::symlink(rig.dir.path().join("secret"), rig.inbox().join("1")).unwrap();
    fs::hard_link(rig.dir.path().join("secret"), rig.inbox().join("2")).unwrap();
    fs::create_dir(rig.inbox().join("3")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, rig.inbox().join("4"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::write(rig.inbox().join(".hidden"), "q\thidden\n").unwrap();
    fs::write(rig.inbox().join("5"), "q\tgood\n").unwrap();
    rig.start();
    rig.read_to_end();
    assert_eq!(rig.data(), ["good"]);
    assert_eq!(rig.troubles.len(), 4, "{:?}", rig.troubles);
}

#[test]
fn read_to_end_names_who_holds_a_lock_and_does_not_wait_for_ever() {
    let mut rig = Rig::new();
    let mut writer = InboxWriter::open(&rig.inbox()).unwrap();
    writer.push(&to("q"), b"one").unwrap();
    let stuck = fs::File::open(rig.inbox().join(own_name())).unwrap();
    assert!(super::super::lock::try_lock(&stuck).unwrap());
    writer.set_patience(std::time::Duration::from_millis(1));
    let id = writer.push(&to("q"), b"two").unwrap();
    assert!(rig.inbox().join(format!("{}.2", own_name())).exists());
    rig.start();
    rig.read_to_end();
    assert_eq!(rig.data().len(), 2);
    assert!(rig.jobs.contains_key(&id));
    let me = format!("process {}", std::process::id());
    assert!(rig.troubles.iter().any(|text| text.contains(&me)), "{:?}", rig.troubles);
}

#[test]
fn no_more_than_six_lots_are_under_way() {
    let mut rig = Rig::new();
    let mut writer = InboxWriter::open(&rig.inbox()).unwrap();
    let bulk = [vec![b'x'; 1022], b"\n".to_vec()].concat().repeat(8 << 10);
    for _ in 0..4 {
        writer.push_lines(&to("q"), &bulk).unwrap();
    }
    rig.start();
    rig.handle.as_ref().unwrap().read_to_end(7);
    for _ in 0..LOTS_UNDER_WAY {
        assert!(matches!(rig.events.recv().unwrap(), Delivered::Lot(_)));
    }
    // The fourth lot can only come after a commit, so nothing may be waiting now or later.
    assert!(rig.events.recv_timeout(std::time::Duration::from_millis(50)).is_err());
    (0..LOTS_UNDER_WAY).for_each(|_| rig.handle.as_ref().unwrap().committed());
    while rig.take() != Some(7) {}
}

#[test]
fn a_torn_frame_at_the_end_holds_up_nobody() {
    let mut rig = Rig::new();
    let mut writer = InboxWriter::open(&rig.inbox()).unwrap();
    let id = writer.push(&to("q"), &[b'x'; 100]).unwrap();
    let path = rig.inbox().join(own_name());
    let record = fs::read(&path).unwrap()[id.offset as usize..].to_vec();
    append(&path, &record[..60]);
    rig.start();
    rig.until(|rig| rig.troubles.len() == 1);
    append(&path, b"\x18\nq\tnaive\n");
    rig.until(|rig| rig.taken == 2);
    writer.push(&to("q"), b"framed").unwrap();
    rig.until(|rig| rig.taken == 3);
}

#[test]
fn what_trickles_in_behind_a_lot_goes_together_after_its_commit() {
    let rig = Rig::new();
    let (send, lots) = channel();
    let deliver = Box::new(move |delivered| send.send(matches!(delivered, Delivered::Lot(_))).unwrap());
    let quarantine = rig.dir.path().join("quarantine");
    let options = IngestOptions { inbox: rig.inbox(), quarantine, cursors: Vec::new(), deliver };
    let mut reader = Reader::new(options, Kernel::default());
    let mut writer = InboxWriter::open(&rig.inbox()).unwrap();
    let envelope = Envelope::new(QueueName::new(b"q").unwrap());
    let round = |reader: &mut Reader<Kernel>| reader.step().unwrap();
    writer.push(&envelope, b"first").unwrap();
    assert_eq!(round(&mut reader), Round::Read, "nothing is under way: it goes at once");
    assert_eq!(round(&mut reader), Round::AtEnd);
    writer.push(&envelope, b"second").unwrap();
    assert_eq!(round(&mut reader), Round::Gathers);
    writer.push(&envelope, b"third").unwrap();
    assert_eq!(round(&mut reader), Round::Gathers);
    reader.note_commits(1);
    assert_eq!(round(&mut reader), Round::Read);
    assert_eq!(lots.try_iter().collect::<Vec<_>>(), [true, true], "the second and the third are one lot");
    writer.push(&envelope, b"fourth").unwrap();
    assert_eq!(round(&mut reader), Round::Gathers);
    reader.take_waiters(vec![1]);
    assert_eq!(round(&mut reader), Round::Read, "somebody waits for it");
    reader.note_commits(3);
    assert_eq!(round(&mut reader), Round::AtEnd, "the waiter is answered");
    writer.push(&envelope, b"fifth").unwrap();
    assert_eq!(round(&mut reader), Round::Read);
    writer.push(&envelope, b"sixth").unwrap();
    fs::write(rig.inbox().join("moved"), "q\tseventh\n").unwrap();
    assert_eq!(round(&mut reader), Round::Read, "what was moved in does not grow");
}

#[test]
fn a_file_stays_until_its_last_lot_is_committed() {
    let rig = Rig::new();
    fs::write(rig.inbox().join("first"), "q\tone\n").unwrap();
    let (send, delivered) = channel();
    let deliver = Box::new(move |what| send.send(what).unwrap());
    let (inbox, quarantine) = (rig.inbox(), rig.dir.path().join("quarantine"));
    let options = IngestOptions { inbox, quarantine, cursors: Vec::new(), deliver };
    let mut reader = Reader::new(options, Kernel::default());
    // The last step of all finds nothing to read and looks at what has been read.
    let mut lots = || {
        while reader.step().unwrap() != Round::AtEnd {}
        let lots = delivered.try_iter().map(|what| match what {
            Delivered::Lot(lot) => (lot.jobs.len(), lot.closed.len()),
            other => panic!("not a lot: {other:?}"),
        });
        let lots: Vec<(usize, usize)> = lots.collect();
        reader.note_commits(lots.len() as u64);
        reader.wake();
        lots
    };
    // Nobody has the file open and all of it was handed over, but nothing says that the store has it on disk.
    assert_eq!((lots(), rig.names().len()), (vec![(1, 0)], 1), "a file was given up before its commit");
    assert_eq!((lots(), rig.names().len()), (vec![(0, 1)], 0), "and goes after it");
}
