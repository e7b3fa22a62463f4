//! What people and machines get wrong around a data directory: rights, odd inboxes, thousands of files, odd configs.

use crate::rig::{Process, Rig, Told};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// A user that owns nothing here.
const NOBODY: u32 = 65534;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The program as a user without rights; the tests run as root.
fn as_nobody(rig: &Rig, words: &[&str]) -> Told {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user, which needs root");
    mode(&rig.path("."), 0o755);
    // A copy that this user may execute, wherever the build lies. Another process makes it: a file that is open for
    // writing here is so in whatever another test has just forked, too, and is too busy to be executed.
    let program = rig.path("windlass");
    if !program.exists() {
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_windlass")).arg(&program).status().unwrap();
        assert!(copied.success(), "cp ended with {copied}");
        mode(&program, 0o755);
    }
    let mut command = Command::new(program);
    command.args(words).env_clear().env("WINDLASS_DIR", rig.dir()).env("HOME", rig.path("home"));
    command.uid(NOBODY).gid(NOBODY).current_dir("/").stdin(std::process::Stdio::null());
    Process::start(&mut command).end()
}

#[test]
fn a_user_without_rights_is_told_so_and_leaves_nothing() {
    let rig = Rig::new();
    rig.call(&["push", "q", "mine"]).fine();
    rig.call(&["ls"]).fine();
    // The directory can be seen but not written.
    mode(&rig.dir(), 0o755);
    mode(&rig.dir().join("inbox"), 0o555);
    let before = fs::read_dir(rig.dir().join("inbox")).unwrap().count();
    as_nobody(&rig, &["push", "q", "x"]).says("Permission denied").ended(77);
    as_nobody(&rig, &["ls"]).says("Permission denied").ended(77);
    as_nobody(&rig, &["serve"]).says("Permission denied").ended(77);
    assert_eq!(as_nobody(&rig, &["doctor"]).code, Some(74));
    assert_eq!(fs::read_dir(rig.dir().join("inbox")).unwrap().count(), before);
    // An inbox that everybody may write to: what others put there is not read, and is said.
    mode(&rig.dir().join("inbox"), 0o777);
    let foreign = rig.dir().join("inbox/65534");
    fs::write(&foreign, "q\tforeign\n").unwrap();
    chown(&foreign, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut server = rig.serve("[queue.other]\nrun = [\"true\"]\n");
    server.process.until("it belongs to another user");
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["ready"], 1);
    assert!(foreign.exists(), "it is left where it is");
    server.stop();
}

#[test]
fn an_inbox_that_is_no_directory_of_ours_is_refused_in_words() {
    let made = |what: &str| {
        let rig = Rig::new();
        rig.call(&["ls"]).fine();
        let inbox = rig.dir().join("inbox");
        fs::remove_dir_all(&inbox).unwrap();
        match what {
            "file" => fs::write(&inbox, "").unwrap(),
            "pipe" => assert!(Command::new("mkfifo").arg(&inbox).status().unwrap().success()),
            "device" => symlink("/dev/null", &inbox).unwrap(),
            "dangling link" => symlink(rig.path("nowhere"), &inbox).unwrap(),
            other => panic!("{other}"),
        }
        rig
    };
    for what in ["file", "pipe", "device", "dangling link"] {
        let rig = made(what);
        for words in [&["push", "q", "x"][..], &["push", "q", "--durability", "os", "x"], &["serve"], &["ls"]] {
            let told = rig.call(words);
            assert!([Some(73), Some(74)].contains(&told.code), "{what}, {words:?}: {told:?}");
            assert!(told.stderr.contains("inbox"), "{what}, {words:?}: {told:?}");
        }
        assert_eq!(rig.call(&["doctor"]).code, Some(74), "{what}");
    }
    // One that leads to a directory of the same owner is as good as a directory.
    let rig = Rig::new();
    rig.call(&["ls"]).fine();
    fs::rename(rig.dir().join("inbox"), rig.path("elsewhere")).unwrap();
    symlink(rig.path("elsewhere"), rig.dir().join("inbox")).unwrap();
    rig.feed(&["push", "q"], "a\nb\n").fine();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["ready"], 2);
}

/// More than are opened at once, several times over; names of every kind among them.
#[test]
fn thousands_of_small_files_are_read_in_batches() {
    const FILES: usize = 2000;
    let rig = Rig::new();
    rig.call(&["ls"]).fine();
    let inbox = rig.dir().join("inbox");
    for n in 0..FILES {
        fs::write(inbox.join(format!("file {n}")), format!("q\t{n}\n")).unwrap();
    }
    fs::write(inbox.join(".hidden"), "q\thidden\n").unwrap();
    let odd = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"odd \xff");
    fs::write(inbox.join(odd), "q\todd\n").unwrap();
    let mut server = rig.serve("[queue.q]\nrun = [\"true\"]\nenabled = false\n");
    server.process.until("its name is not UTF-8 text");
    rig.call(&["ls", "--limit", "1"]).fine();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["ready"], FILES);
    server.stop();
    let left = fs::read_dir(&inbox).unwrap().count();
    assert!(left <= 3, "{left} files are left: what is read is gone, what is not ours stays");
}

#[test]
fn a_config_that_is_no_plain_text_is_refused_and_odd_but_right_ones_are_taken() {
    let rig = Rig::new();
    fs::create_dir_all(rig.dir()).unwrap();
    let file = rig.path("w.toml");
    let name = file.to_str().unwrap();
    let long = "x".repeat(1 << 20);
    for (text, why) in [
        (&b""[..], "is empty"),
        (b"[limits]\nslots = 3\nslots = 4\n", ":3:1: "),
        (b"[limits]\nslots = 3\n[limits]\n", ":3:"),
        (b"[limits]\nslotz = 3\n", "did you mean `slots`?"),
        (b"[limits]\nslots = \"three\"\n", ":2:9: "),
        (b"[limits]\nslots = 3 # \xff\n", ":2:13: not UTF-8 text"),
        (b"[limits]\nslots\0 = 3\n", ":2:"),
        (format!("[queue.q]\nrun = [\"true\"]\ndirectory = \"{long}\"\n").as_bytes(), "has more than 1048576 bytes"),
    ] {
        fs::write(&file, text).unwrap();
        for words in [&["config", "check", name][..], &["serve", "--config", name]] {
            rig.call(words).says(why).ended(78);
        }
    }
    for text in ["\u{feff}[limits]\nslots = 3\n", "[limits]\r\nslots = 3\r\n", "# nothing\n", "[limits]\n\tslots\t=\t3"]
    {
        fs::write(&file, text).unwrap();
        rig.call(&["config", "check", name]).fine();
    }
    let pipe = rig.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for bad in [pipe.to_str().unwrap(), rig.path(".").to_str().unwrap(), "/dev/null", "/no/such/file"] {
        rig.call(&["serve", "--config", bad]).ended(78);
    }
    mode(&file, 0o600);
    as_nobody(&rig, &["config", "check", name]).says("Permission denied").ended(78);
}
