//! The command line from outside: usage, exit codes, config files, and what holds without any server.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The program with a data directory of its own and nothing of the caller's settings.
fn windlass(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.env_remove("WINDLASS_DIR").env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
    command.env("HOME", dir.join("home")).env("WINDLASS_DIR", dir.join("data")).stdin(Stdio::null());
    command
}

fn run(dir: &Path, words: &[&str]) -> Output {
    windlass(dir).args(words).output().unwrap()
}

/// Exit code, stdout, stderr.
fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn wrong_usage_is_64_with_a_hint_and_writes_nothing() {
    let place = tempfile::tempdir().unwrap();
    for (words, hint) in [
        (&["pusch", "q", "x"][..], "'push'"),
        (&["push", "q", "x", "--priorty", "3"], "'--priority'"),
        (&["push"], "Usage:"),
        (&["push", ""], "the queue name is empty"),
        (&["push", "-x", "y"], "Usage:"),
        (&["push", ".x", "y"], "a queue name may not begin with `.`"),
        (&["push", "a\tb", "y"], "control characters"),
        (&["push", "q", "x", "--priority", "1e9"], "between -100 and 100"),
        (&["push", "q", "x", "--at", "2026-02-30 10:00"], "cannot read the time \"2026-02-30 10:00\""),
        (&["push", "q", "x", "--in", "10 minuts"], "cannot read the duration \"10 minuts\""),
        (&["push", "q", "x", "--run", "nightly"], "cannot join the run \"nightly\""),
        (&["push", "q", "x", "-0"], "-0 is about stdin"),
        (&["run", "--"], "Usage:"),
        (&["run", "-j", "0", "--", "true"], "expected a whole number from 1 to 1000000, got: 0"),
        (&["wait"], "Usage:"),
        (&["wait", "x"], "neither a job's id"),
        (&["run", "-j", "x", "--", "true"], "expected a whole number from 1 to 1000000, got: x"),
        (&["run", "-j", "2", "-j", "3", "--", "true"], "cannot be used multiple times"),
        (&["run", "--retry", "1.5", "--", "true"], "expected a whole number from 0 to 1000000, got: 1.5"),
        (&["logs", "j-0123456789-1", "--start", "0"], "expected a whole number from 1 to 4294967295, got: 0"),
        (&["priority", "101", "queue:q"], "between -100 and 100"),
        (&["retry", "j-0123456789-1", "state:failed"], "name ids only, or one selector"),
        (&["frobnicate"], "Usage:"),
        (&["config"], "Usage:"),
    ] {
        let (code, stdout, stderr) = told(&run(place.path(), words));
        assert_eq!((code, stdout.as_str()), (64, ""), "{words:?}: {stderr}");
        assert!(stderr.contains(hint), "{words:?} should say {hint}: {stderr}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn a_queue_name_that_is_no_text_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let output =
        windlass(place.path()).arg("push").arg(std::ffi::OsStr::from_bytes(b"q\xff")).arg("x").output().unwrap();
    let (code, _, stderr) = told(&output);
    assert_eq!((code, stderr.as_str()), (64, "windlass: the queue name is not UTF-8 text\n"));
}

#[test]
fn help_and_version_are_on_stdout_and_fine() {
    let place = tempfile::tempdir().unwrap();
    for words in [&["--help"][..], &["push", "--help"], &["-V"], &["help", "run"], &["config", "check", "--help"]] {
        let (code, stdout, stderr) = told(&run(place.path(), words));
        assert_eq!((code, stderr.as_str()), (0, ""), "{words:?}");
        assert!(!stdout.is_empty());
    }
}

#[test]
fn init_writes_a_file_that_check_accepts_and_never_overwrites() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("w.toml");
    let name = file.to_str().unwrap();
    assert_eq!(
        told(&run(place.path(), &["config", "init", name])),
        (0, String::new(), format!("windlass: wrote {name}\n"))
    );
    let (code, _, stderr) = told(&run(place.path(), &["config", "check", name]));
    assert_eq!((code, stderr), (0, format!("windlass: {name} is fine: 1 queue table, 8 slots\n")));
    fs::write(&file, "# mine").unwrap();
    let (code, _, stderr) = told(&run(place.path(), &["config", "init", name]));
    assert_eq!(code, 73);
    assert!(stderr.starts_with(&format!("windlass: {name} exists and is left as it is\n")), "{stderr}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "# mine");
    let (code, stdout, _) = told(&run(place.path(), &["config", "init", "-"]));
    assert!(code == 0 && stdout.contains("[queue.\"example.*\"]"));
    let (code, _, _) = told(&run(place.path(), &["config", "init", "/no/such/dir/w.toml"]));
    assert_eq!(code, 73);
}

#[test]
fn a_wrong_config_is_78_with_its_place_for_check_and_serve() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("w.toml");
    let name = file.to_str().unwrap();
    for (text, place_and_reason) in [
        ("[limits]\nslot = 3\n", ":2:1: unknown key `slot` in [limits]\nwindlass: hint: did you mean `slots`?"),
        ("[queue.a]\nrun = [\"no-such-program-here\"]\n", ":2:7: the program \"no-such-program-here\" is not in PATH"),
        ("[queue.a]\nrun = []\n", ":2:7: `run` is empty"),
        ("\u{feff}[limits]\r\nslots = 0\r\n", ":2:9: `slots` is 0"),
        ("[limits\n", ":1:8: "),
    ] {
        fs::write(&file, text).unwrap();
        for words in [&["config", "check", name][..], &["serve", "--config", name]] {
            let (code, stdout, stderr) = told(&run(place.path(), words));
            assert_eq!((code, stdout.as_str()), (78, ""), "{text:?}: {stderr}");
            assert!(stderr.contains(&format!("{name}{place_and_reason}")), "{text:?}: {stderr}");
        }
    }
    assert!(!place.path().join("data").exists(), "a wrong config makes no data directory");
    for bad in ["/no/such.toml", "/"] {
        assert_eq!(run(place.path(), &["config", "check", bad]).status.code(), Some(78), "{bad}");
    }
    fs::write(&file, "# fine").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(run(place.path(), &["config", "check", name]).status.code(), Some(78));
}

#[test]
fn check_finds_the_file_that_serve_would_read() {
    let place = tempfile::tempdir().unwrap();
    let (code, _, stderr) = told(&run(place.path(), &["config", "check"]));
    assert_eq!(code, 66, "{stderr}");
    let user = place.path().join("home/.config/windlass");
    fs::create_dir_all(&user).unwrap();
    fs::write(user.join("windlass.toml"), "[limits]\nslots = 3\n").unwrap();
    let (_, stdout, _) = told(&run(place.path(), &["config", "check", "--json"]));
    assert!(stdout.contains("\"slots\":3"), "{stdout}");
    fs::create_dir_all(place.path().join("data")).unwrap();
    fs::write(place.path().join("data/windlass.toml"), "[limits]\nslots = 5\n").unwrap();
    let (_, stdout, _) = told(&run(place.path(), &["config", "check", "--json"]));
    assert!(stdout.contains("\"slots\":5"), "the data directory comes first: {stdout}");
}

#[test]
fn errors_are_one_object_where_json_is_wanted() {
    let place = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = told(&run(place.path(), &["--json", "push", "q", "x", "--at", "never"]));
    assert_eq!((code, stdout.as_str()), (64, ""));
    let object: serde_json::Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!((&object["code"], &object["exit_code"]), (&"usage".into(), &64.into()));
}

#[test]
fn a_newer_store_is_refused_untouched() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("FORMAT"), "windlass 999\n").unwrap();
    for words in [&["ls"][..], &["push", "q", "x"], &["status", "--json"], &["serve"], &["stop"]] {
        assert_eq!(run(place.path(), words).status.code(), Some(76), "{words:?}");
    }
    assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
}

#[test]
fn a_held_lock_with_a_silent_holder_is_75_and_names_it() {
    let place = tempfile::tempdir().unwrap();
    let dir = windlass::data_dir::DataDir::open(&place.path().join("data")).unwrap();
    let _lock = dir.lock().unwrap();
    for words in [&["ls"][..], &["serve"]] {
        let (code, _, stderr) = told(&run(place.path(), words));
        assert_eq!(code, 75, "{stderr}");
        assert!(stderr.contains(&format!("windlass process {}", std::process::id())), "{stderr}");
    }
}

#[test]
fn stop_without_a_server_is_69() {
    let place = tempfile::tempdir().unwrap();
    let (code, _, stderr) = told(&run(place.path(), &["stop"]));
    assert_eq!(code, 69);
    assert!(stderr.contains("no server is running in "), "{stderr}");
}

#[test]
fn the_doctor_looks_at_everything_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (code, stdout, _) = told(&run(place.path(), &["doctor", "--json"]));
    assert!(code == 74 && stdout.contains("there is no data directory at"), "{stdout}");
    fs::create_dir(place.path().join("data")).unwrap();
    let (code, stdout, _) = told(&run(place.path(), &["doctor", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let checks: Vec<&str> =
        report["findings"].as_array().unwrap().iter().map(|f| f["check"].as_str().unwrap()).collect();
    let of_the_directory = [
        "directory",
        "places",
        "server",
        "format",
        "archive",
        "backup",
        "file system",
        "calls",
        "space",
        "reserve",
        "sync",
    ];
    let of_the_machine =
        ["inotify", "open files", "processes", "file size", "cgroups", "clock", "clock pace", "time zone"];
    assert_eq!(checks, [&of_the_directory[..], &of_the_machine, &["config"]].concat());
    assert_eq!(code == 0, report["healthy"] == true);
    let left: Vec<_> = fs::read_dir(place.path().join("data/run")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    fs::write(place.path().join("file"), "").unwrap();
    let output = windlass(place.path()).env("WINDLASS_DIR", place.path().join("file")).arg("doctor").output().unwrap();
    let (code, stdout, _) = told(&output);
    assert!(code == 74 && stdout.starts_with("problem  directory"), "{stdout}");
}

#[test]
fn a_job_sees_no_signal_blocked_or_ignored_whatever_its_callers_did() {
    let place = tempfile::tempdir().unwrap();
    let ignoring =
        "trap '' HUP INT USR1 USR2 XFSZ IO; exec \"$0\" run -j 1 -- grep -hE '^Sig(Blk|Ign):' /proc/self/status {}";
    let program = env!("CARGO_BIN_EXE_windlass");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("echo /dev/null | ({ignoring})"), program]);
    shell.env("HOME", place.path().join("home")).env("WINDLASS_DIR", place.path().join("data"));
    let (code, stdout, stderr) = told(&shell.output().unwrap());
    let nought = "0".repeat(16);
    assert_eq!((code, stdout), (0, format!("SigBlk:\t{nought}\nSigIgn:\t{nought}\n")), "{stderr}");
}

#[test]
fn a_reader_that_leaves_or_a_full_device() {
    let place = tempfile::tempdir().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = windlass(place.path()).args(["config", "init", "-"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let output = windlass(place.path()).args(["config", "init", "-"]).stdout(write).output().unwrap();
    assert_eq!(told(&output), (0, String::new(), String::new()), "a broken pipe ends it quietly");
}
