//! What the log writes, and that nobody waits for it.

use super::*;
use std::sync::mpsc::{Sender, channel};

fn lines(format: Format, say: impl FnOnce(&Log)) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("log");
    let log = Log::start(LogOptions { format, file: Some(path.clone()), level: Level::Info }).unwrap();
    say(&log);
    log.flush();
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

const NASTY: &str = "a b\"c\n\r\u{1b}[2J\u{2028}\\n=\0é";

#[test]
fn whatever_a_value_holds_it_is_one_line() {
    let say = |log: &Log| log.say(Level::Info, "what\nnow", vec![("queue", NASTY.into()), ("n", 3.into())]);
    let logfmt = lines(Format::Logfmt, say);
    assert_eq!(logfmt.len(), 1);
    let (time, rest) = logfmt[0].split_once(' ').unwrap();
    assert!(time.starts_with("time=2") && time.ends_with('Z'), "{time}");
    let value = r#""a b\"c\n\r\u{1b}[2J\u{2028}\\n=\u{0}é""#;
    assert_eq!(rest, format!("level=info msg=\"what\\nnow\" queue={value} n=3"));
    let json = lines(Format::Json, say);
    assert_eq!(json.len(), 1);
    let read: Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!((&read["msg"], &read["queue"], &read["n"]), (&"what\nnow".into(), &NASTY.into(), &3.into()));
}

#[test]
fn what_matters_less_than_the_level_is_not_written() {
    let say = |log: &Log| {
        log.say(Level::Debug, "less", Vec::new());
        log.error("more");
    };
    let lines = lines(Format::Logfmt, say);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].ends_with("level=error msg=more"), "{lines:?}");
}

#[test]
fn a_rotated_file_is_opened_again_by_its_name() {
    let place = tempfile::tempdir().unwrap();
    let (path, old) = (place.path().join("log"), place.path().join("log.1"));
    let log = Log::start(LogOptions { file: Some(path.clone()), ..LogOptions::default() }).unwrap();
    log.info("first");
    log.flush();
    std::fs::rename(&path, &old).unwrap();
    log.info("second");
    log.reopen();
    log.info("third");
    log.flush();
    let (old, new) = (std::fs::read_to_string(old).unwrap(), std::fs::read_to_string(path).unwrap());
    assert!(old.contains("first") && old.contains("second") && !old.contains("third"), "{old}");
    assert!(new.contains("third") && new.lines().count() == 1, "{new}");
}

/// Says when somebody writes, and goes on only when it is let.
struct Stuck {
    begun: Sender<()>,
    go_on: Receiver<()>,
    written: Sender<String>,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.send(()).unwrap();
        self.go_on.recv().unwrap();
        self.written.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stuck_writer_holds_nobody_up_and_the_lines_it_cost_are_counted() {
    let ((begun, began), (go, go_on), (written, read)) = (channel(), channel(), channel());
    let sink = Sink::Test(Box::new(Stuck { begun, go_on, written }));
    let log = Log::write_to(sink, Format::Logfmt, Level::Info).unwrap();
    log.info("one");
    began.recv().unwrap();
    // The writer has the first line in its hands; the queue takes so many more, and the rest is dropped.
    let more = 100;
    for _ in 0..WAITING_MOST + more {
        log.info("many");
    }
    for _ in 0..WAITING_MOST + 2 {
        go.send(()).unwrap();
    }
    assert!(read.recv().unwrap().contains("msg=one"));
    let told = read.recv().unwrap();
    assert!(told.contains(&format!("msg=\"lines of this log were dropped\" lines={more}")), "{told}");
    assert!(read.recv().unwrap().contains("msg=many"));
}

#[test]
fn a_log_that_cannot_be_opened_is_said_at_once() {
    let place = tempfile::tempdir().unwrap();
    let refused = Log::start(LogOptions { file: Some(place.path().to_owned()), ..LogOptions::default() }).unwrap_err();
    assert!(refused.text.starts_with("cannot open the log"), "{}", refused.text);
}
