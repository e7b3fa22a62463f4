//! The writer against full disks, limits, other boots, foreign files and missing directories.

use super::super::frame::FILE_HEADER;
use super::super::scan::{End, Found, Scan};
use super::*;
use std::fs;
use std::process::Command;
use windlass_core::job::QueueName;

fn to(queue: &str) -> Envelope {
    Envelope::new(QueueName::new(queue.as_bytes()).unwrap())
}

fn own(dir: &Path) -> PathBuf {
    dir.join(rustix::process::geteuid().as_raw().to_string())
}

/// Offsets of the frames in a file that holds nothing else.
fn frames(path: &Path) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let seed = FileHeader::decode(&bytes).unwrap().origin;
    let mut scan = Scan::new(&bytes[FILE_HEADER..], FILE_HEADER as u64, Some(seed), End::Open, None);
    let offset = |found| match found {
        Found::Framed { offset, .. } => offset,
        other => panic!("not a frame: {other:?}"),
    };
    let offsets = scan.by_ref().map(offset).collect();
    assert_eq!(scan.consumed() + FILE_HEADER, bytes.len(), "nothing is torn");
    offsets
}

/// The same test in a process of its own: a limit on file sizes is for a whole process.
#[test]
fn at_the_file_size_limit_a_job_is_rejected_whole() {
    const INBOX: &str = "WINDLASS_TEST_LIMITED_INBOX";
    if let Some(inbox) = std::env::var_os(INBOX) {
        let inbox = Path::new(&inbox);
        let mut writer = InboxWriter::open(inbox).unwrap();
        let mut accepted = Vec::new();
        let failure = loop {
            match writer.push(&to("q"), &[b'x'; 300]) {
                Ok(id) => accepted.push(id.offset),
                Err(failure) => break failure,
            }
        };
        assert_eq!(failure.kind, error::Kind::Full, "{failure}");
        assert!(failure.text.contains("rejected"), "{failure}");
        assert!(accepted.len() > 3);
        assert_eq!(frames(&own(inbox)), accepted);
        let size = fs::metadata(own(inbox)).unwrap().len();
        let lines = b"some line of a bulk that does not fit\n".repeat(200);
        assert_eq!(writer.push_lines(&to("q"), &lines).unwrap_err().kind, error::Kind::Full);
        assert_eq!(fs::metadata(own(inbox)).unwrap().len(), size, "all of a bulk or nothing");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let name = "inbox::writer::tests::at_the_file_size_limit_a_job_is_rejected_whole";
    let status = Command::new("sh")
        .args(["-c", "ulimit -f 4; exec \"$0\" --exact \"$1\" >/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(INBOX, dir.path())
        .status();
    assert!(status.unwrap().success(), "see the output of the child");
}

#[test]
fn a_file_of_another_boot_and_a_foreign_file_are_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let old = FileHeader { origin: Origin::from_random(1), boot: Some(Origin::from_random(2)), sealed: false };
    fs::write(own(dir.path()), old.encode()).unwrap();
    let mut writer = InboxWriter::open(dir.path()).unwrap();
    let id = writer.push(&to("q"), b"x").unwrap();
    let aside = dir.path().join(files::sealed_name(old.origin));
    assert_eq!(FileHeader::decode(&fs::read(aside).unwrap()), Some(FileHeader { sealed: true, ..old }));
    assert_eq!(frames(&own(dir.path())), [id.offset]);
    drop(writer);

    fs::remove_file(own(dir.path())).unwrap();
    fs::write(own(dir.path()), "q\tforeign\n").unwrap();
    let mut writer = InboxWriter::open(dir.path()).unwrap();
    let id = writer.push(&to("q"), b"x").unwrap();
    assert_eq!(frames(&own(dir.path())), [id.offset]);
    let mut texts = fs::read_dir(dir.path()).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    assert!(texts.any(|text| text == b"q\tforeign\n"), "its lines are still there to be read");
}

#[test]
fn a_sealed_file_is_left_at_the_next_record_and_a_seal_names_what_came_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = InboxWriter::open(dir.path()).unwrap();
    let first = writer.push(&to("q"), b"one").unwrap();
    let name = own(dir.path()).file_name().unwrap().to_str().unwrap().to_owned();
    let end = fs::metadata(own(dir.path())).unwrap().len();
    files::seal(&super::super::disk::Kernel::default(), dir.path(), &name, first.origin).unwrap();
    let run = RunId::first(Origin::from_random(9));
    writer.seal(run).unwrap();
    let bytes = fs::read(own(dir.path())).unwrap();
    let seed = FileHeader::decode(&bytes).unwrap().origin;
    assert_ne!(seed, first.origin);
    let found = Scan::new(&bytes[FILE_HEADER..], 0, Some(seed), End::Open, None).next();
    let Some(Found::Framed { frame, .. }) = found else { panic!("no frame: {found:?}") };
    assert_eq!((frame.run, frame.seal_positions()), (Some(run), vec![(first.origin, end)]));
}

#[test]
fn what_cannot_be_written_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let missing = InboxWriter::open(&dir.path().join("none")).unwrap_err();
    assert_eq!(missing.kind, error::Kind::NoInput);
    assert!(missing.hint.is_some());
    let mut writer = InboxWriter::open(dir.path()).unwrap();
    assert_eq!(writer.push(&to("q"), &vec![0; DATA_MAX + 1]).unwrap_err().kind, error::Kind::BadData);
    let long = [vec![b'x'; DATA_MAX + 1], b"\nshort\n".to_vec()].concat();
    assert_eq!(writer.push_lines(&to("q"), &long).unwrap_err().kind, error::Kind::BadData);
    assert!(!own(dir.path()).exists(), "a refused job leaves nothing behind");
    fs::create_dir(own(dir.path())).unwrap();
    assert!(writer.push(&to("q"), b"x").is_err());
    fs::remove_dir(own(dir.path())).unwrap();
    std::os::unix::fs::symlink("/dev/null", own(dir.path())).unwrap();
    assert!(writer.push(&to("q"), b"x").is_err(), "a link is not followed");
    assert_eq!(writer.push_lines(&to("q"), b"\n\n").unwrap(), []);
}

#[test]
fn bulks_of_many_writers_do_not_mix_and_each_has_its_own_ids() {
    const WRITERS: usize = 4;
    const BULKS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let begin = std::sync::Barrier::new(WRITERS);
    let (place, begin) = (dir.path(), &begin);
    let write = move |writer: usize| {
        let mut inbox = InboxWriter::open(place).unwrap();
        // Longer than one write of a bulk, so that another could come between; a stuck lock is not what is tested.
        inbox.set_patience(Duration::from_secs(600));
        let line = |bulk: usize, n: usize| format!("{writer} {bulk} {n} {}", "x".repeat(1000));
        begin.wait();
        let mut written = Vec::new();
        for bulk in 0..BULKS {
            let lines: Vec<String> = (0..3000).map(|n| line(bulk, n)).collect();
            let ranges = inbox.push_lines(&to("q"), lines.join("\n").as_bytes()).unwrap();
            written.extend(ranges.into_iter().flat_map(IdRange::ids).zip(lines));
        }
        written
    };
    let written: Vec<(JobId, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let bytes = fs::read(own(dir.path())).unwrap();
    let origin = FileHeader::decode(&bytes).unwrap().origin;
    let stretch = &bytes[FILE_HEADER..];
    let mut gatherer = super::super::gather::Gatherer::default();
    for found in Scan::new(stretch, FILE_HEADER as u64, Some(origin), End::Open, None) {
        assert_eq!(gatherer.add(stretch, found), Ok(()), "nothing is torn");
    }
    let mut read = Vec::new();
    gatherer.finish(stretch, origin, &mut read);
    let read: std::collections::HashMap<JobId, &[u8]> =
        read.iter().flat_map(|new| (0..new.jobs.len()).map(|n| (new.jobs.id(n), new.jobs.data(n)))).collect();
    assert_eq!((read.len(), written.len()), (WRITERS * BULKS * 3000, WRITERS * BULKS * 3000));
    let wrong = written.iter().filter(|(id, line)| read.get(id) != Some(&line.as_bytes())).count();
    assert_eq!(wrong, 0, "ids that stand for another line than was told");
}
