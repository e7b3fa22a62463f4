//! The example producers against the shipped reader: all languages at once, on one file, with our own writer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use windlass::inbox::{Delivered, Envelope, InboxWriter, Ingest, IngestOptions};
use windlass_core::job::QueueName;

const EACH: usize = 50;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/inbox")
}

/// Starts a producer; a language that is not installed fails the test by name.
fn start(program: &str, package: &str, script: Option<&str>, inbox: &Path) -> Child {
    let mut command = Command::new(program);
    if let Some(script) = script {
        command.arg(examples().join(script));
    }
    command.arg(inbox).args(["example", &EACH.to_string()]);
    command.spawn().unwrap_or_else(|e| panic!("cannot start {program}: {e}; install the package {package}"))
}

#[test]
fn every_language_is_read_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (inbox, quarantine) = (dir.path().join("inbox"), dir.path().join("quarantine"));
    std::fs::create_dir(&inbox).unwrap();
    std::fs::create_dir(&quarantine).unwrap();
    let binary = dir.path().join("producer");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&binary).arg(examples().join("producer.c"));
    let built = cc.status().unwrap_or_else(|e| panic!("cannot start cc: {e}; install the package gcc"));
    assert!(built.success(), "producer.c does not compile");

    let children = [
        start("sh", "dash", Some("producer.sh"), &inbox),
        start("python3", "python3", Some("producer.py"), &inbox),
        start("php", "php-cli", Some("producer.php"), &inbox),
        start("ruby", "ruby", Some("producer.rb"), &inbox),
        start("node", "nodejs", Some("producer.js"), &inbox),
        start(&binary.to_string_lossy(), "gcc", None, &inbox),
    ];
    let mut writer = InboxWriter::open(&inbox).unwrap();
    let queue = Envelope::new(QueueName::new(b"example").unwrap());
    for n in 1..=EACH {
        writer.push(&queue, format!("rs {n}").as_bytes()).unwrap();
    }
    for mut child in children {
        assert!(child.wait().unwrap().success(), "a producer failed");
    }

    let (send, events) = channel();
    let send = Mutex::new(send);
    let deliver = Box::new(move |delivered| {
        // After the last answer nobody listens any more.
        let _ = send.lock().unwrap().send(delivered);
    });
    let handle = Ingest::spawn(IngestOptions { inbox, quarantine, cursors: Vec::new(), deliver }).unwrap();
    handle.read_to_end(1);
    let mut jobs = BTreeSet::new();
    let mut count = 0;
    loop {
        match events.recv().unwrap() {
            Delivered::Lot(lot) => {
                for new in &lot.jobs {
                    assert_eq!(new.queue.as_str(), "example");
                    count += new.jobs.len();
                    jobs.extend((0..new.jobs.len()).map(|n| String::from_utf8(new.jobs.data(n).to_vec()).unwrap()));
                }
                handle.committed();
            }
            Delivered::ReadToEnd { .. } => break,
            Delivered::Trouble(failure) | Delivered::Ended(failure) => panic!("{failure}"),
        }
    }
    let languages = ["sh", "py", "php", "rb", "js", "c", "rs"];
    let expected = languages.iter().flat_map(|language| (1..=EACH).map(move |n| format!("{language} {n}")));
    assert_eq!(jobs, expected.collect::<BTreeSet<_>>());
    assert_eq!(count, languages.len() * EACH);
    handle.stop();
}
