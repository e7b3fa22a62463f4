//! Which files serve, and that coming and going is noticed.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use windlass_core::policy::HandlerFile;

const PATIENCE: Duration = Duration::from_secs(60);

fn put(dir: &Path, name: &str, mode: u32) {
    let path = dir.join(name);
    std::fs::write(&path, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
}

fn names(files: &HandlerFiles) -> Vec<String> {
    let mark = |kind: &HandlerFile| if *kind == HandlerFile::Lua { "*" } else { "" };
    files.iter().map(|(name, kind)| format!("{name}{}", mark(kind))).collect()
}

#[test]
fn programs_and_modules_serve_and_the_rest_is_refused_in_words() {
    let place = tempfile::tempdir().unwrap();
    let (dir, outside) = (place.path().join("handlers"), place.path().join("outside"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(dir.join("lib")).unwrap();
    put(place.path(), "outside", 0o755);
    for (name, mode) in [
        ("thumb", 0o755),
        ("crop.lua", 0o644),
        ("both", 0o755),
        ("both.lua", 0o644),
        ("readme", 0o644),
        ("open", 0o757),
        ("-x", 0o755),
        (".hidden", 0o755),
        ("_future", 0o755),
        (".lua", 0o644),
    ] {
        put(&dir, name, mode);
    }
    put(&dir.join("lib"), "inner", 0o755);
    symlink("thumb", dir.join("alias")).unwrap();
    symlink("lib/inner", dir.join("inner")).unwrap();
    symlink(&outside, dir.join("out")).unwrap();
    symlink("../outside", dir.join("out2")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    let looked = Looker::default().look(&dir).unwrap();
    assert_eq!(names(&looked.files), ["alias", "both", "crop*", "inner", "thumb"]);
    let said: Vec<(&str, &str)> = looked.refused.iter().map(|(name, why)| (name.as_str(), why.as_str())).collect();
    let outside = "is a link that leads out of the directory";
    let expected = [
        ("-x", "has no queue's name: a queue name may not begin with `-`"),
        ("_future", "has no queue's name: `_future` is reserved"),
        ("both.lua", "serves nothing beside the program \"both\""),
        ("dangling", outside),
        ("open", "can be written by everybody"),
        ("out", outside),
        ("out2", outside),
        ("readme", "is not executable"),
    ];
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for ((name, why), (file, beginning)) in said.into_iter().zip(expected) {
        assert!(name == file && why.starts_with(beginning), "{name} {why}");
    }
}

#[test]
fn a_file_that_is_still_written_is_not_taken_and_one_that_is_closed_is() {
    let place = tempfile::tempdir().unwrap();
    put(place.path(), "slow", 0o755);
    let writer = std::fs::OpenOptions::new().append(true).open(place.path().join("slow")).unwrap();
    let mut looker = Looker::default();
    let looked = looker.look(place.path()).unwrap();
    assert_eq!((names(&looked.files), &looked.refused["slow"]), (vec![], &"is still being written".to_owned()));
    drop(writer);
    assert_eq!(names(&looker.look(place.path()).unwrap().files), ["slow"]);
}

#[test]
fn a_directory_that_everybody_can_write_serves_nothing() {
    let place = tempfile::tempdir().unwrap();
    put(place.path(), "a", 0o755);
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let why = check(place.path()).unwrap_err();
    assert!(why.contains("can be written by everybody, and its files are run"), "{why}");
    assert!(check(&place.path().join("a")).unwrap_err().contains("is not a directory"));
    assert!(check(&place.path().join("b")).unwrap_err().starts_with("cannot use the directory of handlers"));
}

#[test]
fn what_another_group_can_write_serves_nothing() {
    assert!(rustix::process::geteuid().is_root(), "this test gives files to another group, which needs root");
    let place = tempfile::tempdir().unwrap();
    let give = |path: &Path, group| std::os::unix::fs::chown(path, None, Some(group)).unwrap();
    for (name, mode, group) in [("ours", 0o775, 0), ("theirs", 0o775, 4242), ("read", 0o755, 4242)] {
        put(place.path(), name, mode);
        give(&place.path().join(name), group);
        std::fs::set_permissions(place.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    let looked = Looker::default().look(place.path()).unwrap();
    assert_eq!(names(&looked.files), ["ours", "read"]);
    assert!(looked.refused["theirs"].starts_with("can be written by the group 4242"), "{:?}", looked.refused);
    give(place.path(), 4242);
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o775)).unwrap();
    let why = check(place.path()).unwrap_err();
    assert!(why.contains("can be written by the group 4242"), "{why}");
}

fn watch(dir: &Path, board: &Arc<Board>) -> (HandlersDir, Receiver<HandlerFiles>) {
    let (tell, told) = channel();
    let tell = Box::new(move |files| drop(tell.send(files)));
    (HandlersDir::watch(Some(dir.to_owned()), Arc::clone(board), Log::off(), tell).unwrap(), told)
}

/// Waits until exactly these are told.
fn until(told: &Receiver<HandlerFiles>, expected: &[&str]) {
    while names(&told.recv_timeout(PATIENCE).unwrap()) != expected {}
}

#[test]
fn files_are_told_when_they_come_change_and_go() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("a/b");
    std::fs::create_dir_all(&dir).unwrap();
    put(&dir, "first", 0o755);
    let board = Arc::<Board>::default();
    let (watched, told) = watch(&dir, &board);
    assert_eq!(names(&told.try_recv().unwrap()), ["first"], "told before anybody can ask");
    put(&dir, "second", 0o755);
    until(&told, &["first", "second"]);
    std::fs::set_permissions(dir.join("first"), PermissionsExt::from_mode(0o644)).unwrap();
    until(&told, &["second"]);
    assert_eq!(board.of_handler("first").unwrap(), "its handler file \"first\" is not executable");
    std::fs::remove_file(dir.join("second")).unwrap();
    until(&told, &[]);
    let gone = board.of_handler("second").unwrap();
    assert!(gone.ends_with("b/second is not there any more"), "{gone}");
    put(place.path(), "moved", 0o755);
    std::fs::rename(place.path().join("moved"), dir.join("second")).unwrap();
    until(&told, &["second"]);
    assert_eq!(board.of_handler("second"), None);
    std::fs::rename(place.path().join("a"), place.path().join("away")).unwrap();
    until(&told, &[]);
    assert!(board.troubles()[0].1.starts_with("cannot use the directory of handlers"));
    std::fs::rename(place.path().join("away"), place.path().join("a")).unwrap();
    until(&told, &["second"]);
    assert_eq!(board.troubles(), []);
    watched.change(Some(place.path().join("nowhere")));
    until(&told, &[]);
    std::fs::create_dir(place.path().join("nowhere")).unwrap();
    put(&place.path().join("nowhere"), "third", 0o755);
    until(&told, &["third"]);
    watched.change(None);
    until(&told, &[]);
    assert_eq!(board.of_handler("third"), None, "without a directory there is nothing to say");
}

#[test]
fn a_path_that_leads_elsewhere_now_is_looked_at_there() {
    let place = tempfile::tempdir().unwrap();
    let release = |name: &str, file: &str| {
        let dir = place.path().join("releases").join(name).join("handlers");
        std::fs::create_dir_all(&dir).unwrap();
        put(&dir, file, 0o755);
    };
    let point_to = |name: &str| {
        symlink(Path::new("releases").join(name), place.path().join("next")).unwrap();
        std::fs::rename(place.path().join("next"), place.path().join("current")).unwrap();
    };
    release("1", "one");
    release("2", "two");
    point_to("1");
    let board = Arc::<Board>::default();
    let (_watched, told) = watch(&place.path().join("current/handlers"), &board);
    until(&told, &["one"]);
    point_to("2");
    until(&told, &["two"]);
    put(&place.path().join("releases/2/handlers"), "three", 0o755);
    until(&told, &["three", "two"]);
    std::fs::rename(place.path().join("releases"), place.path().join("old")).unwrap();
    until(&told, &[]);
}

#[test]
fn a_directory_that_is_removed_while_somebody_is_in_it_and_made_anew_is_seen() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("handlers");
    std::fs::create_dir(&dir).unwrap();
    put(&dir, "first", 0o755);
    let board = Arc::<Board>::default();
    let (_watched, told) = watch(&dir, &board);
    until(&told, &["first"]);
    let within = std::fs::File::open(&dir).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    until(&told, &[]);
    std::fs::create_dir(&dir).unwrap();
    put(&dir, "second", 0o755);
    until(&told, &["second"]);
    drop(within);
}

#[test]
fn what_is_there_when_somebody_asks_has_been_told_when_they_are_answered() {
    let place = tempfile::tempdir().unwrap();
    let board = Arc::<Board>::default();
    let (watched, told) = watch(place.path(), &board);
    let (mut last, mut names_now) = (HandlerFiles::new(), Vec::new());
    for round in 0..100 {
        // By turns a file comes and goes.
        match names_now.pop() {
            Some(name) => std::fs::remove_file(place.path().join(name)).unwrap(),
            None => {
                names_now.push(format!("h{round:03}"));
                put(place.path(), &names_now[0], 0o755);
            }
        }
        let (answer, answered) = channel();
        watched.after_look(move || answer.send(()).unwrap());
        answered.recv_timeout(PATIENCE).unwrap();
        last = told.try_iter().last().unwrap_or(last);
        assert_eq!(names(&last), names_now);
    }
    watched.stop();
    let (answer, answered) = channel();
    watched.after_look(move || answer.send(()).unwrap());
    answered.recv_timeout(PATIENCE).unwrap();
}
