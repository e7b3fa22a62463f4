//! How the program behaves towards terminals, service managers and machines: colour, questions, health, signs of life.

use crate::rig::{Process, Rig};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};

const CONFIG: &str = "[queue.bad]\nrun = [\"false\"]\nattempts = 1\n";

#[test]
fn colour_is_for_terminals_unless_somebody_says_otherwise() {
    let rig = Rig::new();
    let server = rig.serve(CONFIG);
    rig.call(&["push", "bad", "x"]).fine();
    rig.drained();
    let fields = ["--fields", "id,queue,state,data"];
    let plain = rig.call(&[&["ls"][..], &fields].concat()).fine().to_owned();
    assert!(plain.contains(" failed ") && !plain.contains('\u{1b}'), "{plain}");
    let red = "\u{1b}[31mfailed\u{1b}[0m";
    let colored = rig.call(&[&["ls", "--color", "always"][..], &fields].concat()).fine().to_owned();
    assert!(colored.contains(red), "{colored}");
    assert_eq!(colored.replace("\u{1b}[31m", "").replace("\u{1b}[0m", ""), plain, "the columns stand as they stood");
    let of = |name: &str, value: &str, words: &[&str]| {
        Process::start(rig.windlass(words).env(name, value)).end().fine().contains(red)
    };
    assert!(of("CLICOLOR_FORCE", "1", &["ls"]) && !of("CLICOLOR_FORCE", "0", &["ls"]));
    assert!(!of("CLICOLOR_FORCE", "1", &["ls", "--color", "never"]));
    assert!(of("NO_COLOR", "1", &["--color=always", "ls"]), "what is asked for goes over what is usual");
    let both = rig.windlass(&["ls"]).env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(!String::from_utf8(both.stdout).unwrap().contains('\u{1b}'));
    for words in [&["ls", "--json"][..], &["ls", "-o", "csv"], &["ls", "-o", "ids"]] {
        let told = rig.call(&[words, &["--color", "always"]].concat());
        assert!(!told.fine().contains('\u{1b}'), "{words:?}");
    }
    rig.call(&["ls", "--color", "pink"]).says("pink").ended(64);
    server.stop();
}

#[test]
fn with_no_input_nothing_is_asked() {
    let rig = Rig::new();
    rig.call(&["push", "q", "x", "y"]).fine();
    // `script` gives the program a terminal to ask on; the answer would be yes.
    let ask = |more: &str| {
        let command = format!("{} cancel queue:q {more}", env!("CARGO_BIN_EXE_windlass"));
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("WINDLASS_DIR", rig.dir());
        let mut child =
            script.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"y\n").unwrap();
        let out = child.wait_with_output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, said) = ask("--no-input");
    assert!(code == Some(64) && said.contains("needs --yes where nobody can be asked"), "{code:?} {said}");
    let (code, said) = ask("");
    assert!(code == Some(0) && said.contains("cancel 2 jobs? [y/N]") && said.contains("2 jobs cancelled"), "{said}");
}

#[test]
fn verbs_side_by_side_without_a_server_all_get_their_answer() {
    let rig = Rig::new();
    let id = rig.call(&["push", "q", "x", "y", "z"]).fine().lines().next().unwrap().to_owned();
    std::thread::scope(|scope| {
        for words in [["status", "--json"], ["show", &id], ["why", "q"], ["stats", "--json"]] {
            let rig = &rig;
            scope.spawn(move || {
                for round in 0..8 {
                    let told = rig.call(&words);
                    assert_eq!(told.code, Some(0), "{words:?}, round {round}: {}", told.stderr);
                }
            });
        }
    });
    assert_eq!(rig.call(&["status", "--json"]).json()["totals"]["ready"], 3);
}

#[test]
fn mistakes_are_objects_for_who_asks_for_json_and_the_codes_are_printed() {
    let rig = Rig::new();
    let told = rig.call(&["--json", "ls", "--limit", "none"]);
    told.ended(64);
    let object: serde_json::Value = serde_json::from_str(&told.stderr).unwrap();
    assert_eq!((&object["code"], &object["exit_code"]), (&"usage".into(), &64.into()), "{object}");
    assert!(object["detail"].as_str().unwrap().contains("expected a whole number from 1 on, got: none"), "{object}");
    for words in [&["exit-codes"][..], &["help", "exit-codes"]] {
        assert!(rig.call(words).fine().contains("124 time-out"), "{words:?}");
    }
}

#[test]
fn the_config_can_be_named_by_the_environment() {
    let rig = Rig::new();
    let named = rig.path("named.toml");
    std::fs::write(&named, "[queue.named]\nrun = [\"true\"]\n").unwrap();
    rig.call(&["push", "named", "x"]).fine();
    Process::start(rig.windlass(&["tick"]).env("WINDLASS_CONFIG", &named)).end().fine();
    assert_eq!(rig.call(&["status", "--json"]).json()["totals"]["succeeded"], 1);
    let missing = Process::start(rig.windlass(&["serve"]).env("WINDLASS_CONFIG", rig.path("missing.toml"))).end();
    missing.says("missing.toml").ended(78);
}

/// The status and the body of an answer over the server's socket.
fn get(rig: &Rig, path: &str) -> (u16, String) {
    let mut socket = UnixStream::connect(rig.dir().join("run/socket")).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn health_is_a_status_for_machines_and_lines_for_people() {
    let rig = Rig::new();
    let server = rig.serve(CONFIG);
    for path in ["/livez", "/healthz", "/readyz"] {
        assert_eq!(get(&rig, path), (200, "ok\n".into()), "{path}");
        let (status, told) = get(&rig, &format!("{path}?verbose"));
        assert!(status == 200 && told.lines().count() > 1 && told.ends_with("\nok\n"), "{told}");
    }
    assert_eq!(get(&rig, "/readyz?verbos").0, 400);
    rig.call(&["pause", "--yes"]).fine();
    assert!(get(&rig, "/readyz?verbose").1.contains("the server is paused\n"));
    let config = rig.dir().join("windlass.toml");
    std::fs::write(&config, "[limits]\nslot = 3\n").unwrap();
    rig.call(&["config", "reload"]).ended(78);
    let (status, told) = get(&rig, "/readyz?verbose");
    assert!(status == 200 && told.contains("the last reload was refused, the old config holds: "), "{told}");
    assert!(told.contains(":2:1: unknown key `slot`"), "{told}");
    std::fs::write(&config, CONFIG).unwrap();
    rig.call(&["config", "reload"]).fine();
    assert!(!get(&rig, "/readyz?verbose").1.contains("refused"));
    server.stop();
}

#[test]
fn a_service_manager_hears_of_start_reload_life_and_end() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.dir()).unwrap();
    std::fs::write(rig.dir().join("windlass.toml"), CONFIG).unwrap();
    let path = rig.path("manager");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(crate::rig::PATIENCE)).unwrap();
    let hear = || {
        let mut words = [0; 512];
        let length = loop {
            match manager.recv(&mut words) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                heard => break heard.unwrap(),
            }
        };
        String::from_utf8(words[..length].to_vec()).unwrap()
    };
    let until = |what: &str| while !hear().contains(what) {};
    let mut command = rig.windlass(&["serve"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    let server = Process::start(&mut command);
    until("READY=1\nSTATUS=serving: 0 ready, 0 running, 0 failed");
    until("WATCHDOG=1\nSTATUS=serving: 0 ready, 0 running, 0 failed");
    rig.call(&["push", "nobody serves it", "x", "y"]).fine();
    rig.call(&["push", "bad", "x"]).fine();
    until("WATCHDOG=1\nSTATUS=serving: 2 ready, 0 running, 1 failed");
    server.signal(Signal::HUP);
    until("RELOADING=1\nMONOTONIC_USEC=");
    until("READY=1");
    server.signal(Signal::TERM);
    until("STOPPING=1");
    server.end().fine();
    // One that does not listen, and one that does not exist, are no reason not to serve.
    for nobody in [rig.path("nowhere").into_os_string(), "relative".into(), "@windlass-nobody".into()] {
        let mut command = rig.windlass(&["serve"]);
        let mut server = Process::start(command.env("NOTIFY_SOCKET", nobody));
        assert!(server.out_line().starts_with("windlass serves "));
        server.signal(Signal::TERM);
        server.end().fine();
    }
}

#[test]
fn the_journal_gets_lines_without_a_time_and_with_their_weight() {
    use std::os::unix::fs::MetadataExt;
    let rig = Rig::new();
    std::fs::create_dir_all(rig.dir()).unwrap();
    std::fs::write(rig.dir().join("windlass.toml"), CONFIG).unwrap();
    let path = rig.path("journal");
    let journal = std::fs::File::create(&path).unwrap();
    let meta = journal.metadata().unwrap();
    let mut command = rig.windlass(&["serve"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino())).stderr(journal);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut ready).unwrap();
    rig.call(&["push", "bad", "x"]).fine();
    rig.drained();
    rig.call(&["stop"]).fine();
    assert!(child.wait().unwrap().success());
    let lines = crate::rig::lines_of(&path);
    assert!(
        lines.iter().all(|line| ["<6>msg=", "<4>msg="].contains(&&line[..7]) && !line.contains("time=")),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("<4>") && line.contains("state=failed")), "{lines:?}");
}

#[test]
fn what_a_killed_server_left_in_memory_goes_with_the_next_one_of_any_directory() {
    let place = |control: &str| std::path::Path::new(control).parent().unwrap().to_owned();
    let rig = Rig::new();
    let mut bell = rig.bell("bell");
    let script = format!("echo $WINDLASS_CONTROL > {}; exec sleep 3600", bell.path);
    let config = format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\n");
    let server = rig.serve(&config);
    rig.call(&["push", "q", "x"]).fine();
    let left = place(&bell.next());
    let other = Rig::new();
    let mut rings = other.bell("bell");
    let script = format!("echo $WINDLASS_CONTROL > {}; exec sleep 3600", rings.path);
    let beside = other.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\n"));
    other.call(&["push", "q", "x"]).fine();
    let held = place(&rings.next());
    assert!(left.starts_with("/dev/shm") && left.exists(), "one that lives is left alone");
    server.process.kill();
    drop(rig);
    // From here on any server may remove it; the next one must.
    let third = Rig::new();
    third.serve("# nothing\n").stop();
    assert!(!left.exists() && held.exists());
    other.call(&["stop", "--now"]).fine();
    assert!(!held.exists());
    beside.process.end().fine();
}
