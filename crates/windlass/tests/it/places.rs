//! Where things are found: conf.d beside the config, variables in it, profiles, the service manager's directories, and
//! what `doctor` and `config show` tell of them.

use crate::rig::{Process, Rig};
use std::fs;

#[test]
fn what_lies_in_conf_d_holds_over_the_main_file() {
    let rig = Rig::new();
    let parts = rig.dir().join("conf.d");
    fs::create_dir_all(&parts).unwrap();
    fs::write(parts.join("10-mail.toml"), "[limits]\nslots = 5\n[queue.mail]\nrun = [\"echo\", \"first\"]\n").unwrap();
    fs::write(parts.join("20-mail.toml"), "[queue.mail]\nrun = [\"echo\", \"second\"]\nslots = 3\n").unwrap();
    fs::write(parts.join("notes.txt"), "not = [a config").unwrap();
    fs::write(parts.join(".hidden.toml"), "not = [a config").unwrap();
    let server = rig.serve("[limits]\nslots = 2\n[server]\ndrain = \"7s\"\n[queue.\"*\"]\nrun = [\"echo\", \"any\"]\n");
    let output = |queue: &str| {
        let id = rig.call(&["push", queue, "x"]).fine().trim_end().to_owned();
        rig.drained();
        rig.call(&["logs", &id]).fine().to_owned()
    };
    assert_eq!((output("mail").as_str(), output("other").as_str()), ("second\n", "any\n"));
    let shown = rig.call(&["config", "show", "--origin"]).fine().to_owned();
    let place = |file: &str, line: u32| format!("# {}:{line}", parts.join(file).display());
    for line in [
        format!("slots = 5  {}", place("10-mail.toml", 2)),
        format!("slots = 3  {}", place("20-mail.toml", 3)),
        "drain = \"7s\"  # line 4".to_owned(),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} in {shown}");
    }
    fs::write(parts.join("30-wrong.toml"), "[queue.mail]\nslot = 1\n").unwrap();
    let wrong = format!("{}:2:1: unknown key `slot`", parts.join("30-wrong.toml").display());
    rig.call(&["config", "reload"]).says(&wrong).ended(78);
    rig.call(&["config", "check"]).says(&wrong).ended(78);
    rig.call(&["doctor"]).ended(74);
    fs::remove_file(parts.join("30-wrong.toml")).unwrap();
    fs::remove_file(parts.join("20-mail.toml")).unwrap();
    rig.call(&["config", "reload"]).fine();
    assert_eq!(output("mail"), "first\n");
    server.stop();
    let named = rig.dir().join("named.toml");
    fs::write(&named, "# alone\n").unwrap();
    rig.call(&["config", "check", named.to_str().unwrap()]).says("0 queue tables, 8 slots").fine();
}

#[test]
fn variables_stand_in_for_text() {
    let rig = Rig::new();
    fs::create_dir_all(rig.dir()).unwrap();
    let config = "[limits]\n[server]\ndrain = \"${DRAIN:-9s}\"\n[queue.q]\n\
                  environment = { GREETING = \"${WHO} and $${WHO}\", API_TOKEN = \"${WHO}\" }\n\
                  run = [\"sh\", \"-c\", \"x=shell; echo ${x} $GREETING $API_TOKEN\"]\n";
    fs::write(rig.dir().join("windlass.toml"), config).unwrap();
    rig.call(&["config", "check"]).says("the variable WHO is not set").says("windlass.toml:5:").ended(78);
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    let run = |words: &[&str]| Process::start(rig.windlass(words).env("WHO", "s3cret")).end();
    run(&["tick"]).fine();
    assert_eq!(rig.call(&["logs", &id]).fine(), "shell s3cret and ${WHO} s3cret\n");
    let shown = run(&["config", "show"]).fine().to_owned();
    assert!(shown.contains("drain = \"9s\"") && shown.contains("API_TOKEN = \"***\""), "{shown}");
    assert!(run(&["config", "show", "--json"]).fine().contains("***"));
    let server = Process::start(rig.windlass(&["serve"]).env("WHO", "s3cret"));
    let mut server = server;
    assert!(server.out_line().starts_with("windlass serves"));
    let dir = windlass::data_dir::DataDir::open(&rig.dir()).unwrap();
    let mut api = windlass::client::Connection::open(&dir).unwrap().unwrap();
    let told = String::from_utf8(api.get("/api/v1/config").unwrap().body).unwrap();
    assert!(told.contains("API_TOKEN = \\\"***\\\""), "{told}");
    // Compared without its secrets a file is what the server has; a reload sees that they changed, and tells none.
    run(&["config", "diff"]).says("no differences").fine();
    fs::write(rig.dir().join("windlass.toml"), config.replace("API_TOKEN = \"${WHO}\"", "API_TOKEN = \"other\""))
        .unwrap();
    let changed = rig.call(&["config", "reload"]).fine().to_owned();
    assert!(changed.contains("environment") && !changed.contains("other"), "{changed}");
    server.signal(rustix::process::Signal::TERM);
    server.end().fine();
}

#[test]
fn a_profile_names_a_place() {
    let rig = Rig::new();
    let user = rig.path("home/.config/windlass");
    fs::create_dir_all(&user).unwrap();
    let other = rig.path("other");
    // What a server cannot read is none of a verb's business.
    let text =
        format!("[profile.test]\ndir = {other:?}\n[profile.here]\ndir = \"here\"\n[queue.q]\nrun = [\"${{NONE}}\"]\n");
    fs::write(user.join("windlass.toml"), text).unwrap();
    rig.call(&["push", "q", "x", "-P", "test"]).fine();
    assert!(other.join("FORMAT").exists());
    assert_eq!(rig.call(&["status", "--json"]).json()["totals"]["ready"], 0);
    let by_variable = |words: &[&str], dir: bool| {
        let mut command = rig.windlass(words);
        if !dir {
            command.env_remove("WINDLASS_DIR");
        }
        Process::start(command.env("WINDLASS_PROFILE", "test")).end()
    };
    assert_eq!(by_variable(&["status", "--json"], false).json()["totals"]["ready"], 1);
    assert_eq!(by_variable(&["status", "--json"], true).json()["totals"]["ready"], 0, "WINDLASS_DIR goes before");
    by_variable(&["push", "q", "y", "-P", "here"], false).fine();
    assert!(user.join("here/FORMAT").exists(), "a relative one is meant from the file");
    rig.call(&["ls", "-P", "tset"]).says("has no [profile.tset]").says("did you mean test?").ended(78);
    let nowhere = Process::start(rig.windlass(&["ls", "-P", "x"]).env("HOME", rig.path("nobody"))).end();
    nowhere.says("no profile \"x\": there is no config to find it in").ended(78);
    fs::write(user.join("windlass.toml"), "[profile.test]\ndri = \"x\"\n").unwrap();
    rig.call(&["ls", "-P", "test"]).says("unknown key `dri` in [profile.test]").says("did you mean `dir`?").ended(78);
}

#[test]
fn a_service_manager_says_where() {
    let rig = Rig::new();
    let (state, config) = (rig.path("lib/windlass"), rig.path("etc/windlass"));
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("windlass.toml"), "[limits]\nslots = 3\n").unwrap();
    let run = |words: &[&str], state: &str| {
        let mut command = rig.windlass(words);
        command.env_remove("WINDLASS_DIR").env("STATE_DIRECTORY", state);
        Process::start(command.env("CONFIGURATION_DIRECTORY", &config)).end()
    };
    run(&["push", "q", "x"], state.to_str().unwrap()).fine();
    assert!(state.join("FORMAT").exists());
    assert!(run(&["config", "check", "--json"], state.to_str().unwrap()).fine().contains("\"slots\":3"));
    let callers = rig.path("lib/web");
    run(&["push", "q", "x"], callers.to_str().unwrap()).fine();
    assert!(!callers.exists(), "the directory of a service that only calls us is not ours");
}

#[test]
fn the_level_of_the_log_can_come_from_the_environment() {
    let rig = Rig::new();
    fs::create_dir_all(rig.dir()).unwrap();
    fs::write(rig.dir().join("windlass.toml"), "[log]\nfile = \"log\"\n").unwrap();
    Process::start(rig.windlass(&["serve"]).env("WINDLASS_LOG", "loud")).end().says("WINDLASS_LOG").ended(78);
    let mut server = Process::start(rig.windlass(&["serve"]).env("WINDLASS_LOG", "error"));
    server.out_line();
    rig.call(&["stop"]).fine();
    server.end().fine();
    assert_eq!(fs::read_to_string(rig.dir().join("log")).unwrap(), "", "nothing went wrong");
}

#[test]
fn a_terminal_gets_a_short_log() {
    let rig = Rig::new();
    fs::create_dir_all(rig.dir()).unwrap();
    fs::write(rig.dir().join("windlass.toml"), "[queue.q]\nrun = [\"false\"]\nattempts = 1\n").unwrap();
    rig.call(&["push", "q", "x"]).fine();
    let command = format!("{} tick", env!("CARGO_BIN_EXE_windlass"));
    let mut script = std::process::Command::new("script");
    script
        .args(["-qec", &command, "/dev/null"])
        .env("WINDLASS_DIR", rig.dir())
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    let output = script.stdin(std::process::Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find(|line| line.contains("job.finish")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(" \u{1b}[33mwarn \u{1b}[0m attempt event=job.finish job=j-"), "{line}");
    assert_eq!(line.find(':'), Some(2), "the time of day comes first: {line}");
}

#[test]
fn doctor_knows_of_the_backup_the_version_and_the_config() {
    let rig = Rig::new();
    let server = rig.serve("[limits]\nslots = 2\n");
    let finding = |check: &str| {
        let told = rig.call(&["doctor", "--json"]).json();
        let found = told["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == check).cloned();
        found.unwrap_or_else(|| panic!("no {check} in {told}"))
    };
    assert_eq!(finding("backup")["text"], "none was made of this directory yet");
    assert_eq!(finding("version")["health"], "fine");
    assert_eq!(finding("config")["text"], rig.dir().join("windlass.toml").to_str().unwrap());
    let to = rig.path("backup.tar");
    rig.call(&["backup", to.to_str().unwrap()]).fine();
    let told = finding("backup");
    assert!(told["text"].as_str().unwrap().ends_with(&format!("ago to {}", to.display())), "{told}");
    fs::write(rig.dir().join("backup"), "2020-01-01T00:00:00Z /old.tar\n").unwrap();
    let told = finding("backup");
    assert_eq!((&told["health"], told["remedy"].as_str().unwrap().is_empty()), (&"warning".into(), false), "{told}");
    server.stop();
}

#[test]
fn a_job_knows_its_limits_and_can_tell_its_progress_aloud() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!(
        "echo before; echo '::windlass phase parsing'; echo '::windlass progress 2/9 pages'; \
         for i in 1 2 3; do /bin/echo '::windlass progress 3/9 pages'; done; \
         echo '::windlass result nonsense'; echo $WINDLASS_MAX_ATTEMPTS $WINDLASS_DEADLINE > {}; read x < {}",
        bell.path, gate.path
    );
    let server =
        rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\nattempts = 7\ntime_limit = \"10m\"\n"));
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    let told = bell.next();
    let (most, deadline) = told.split_once(' ').unwrap();
    let deadline: jiff::Timestamp = deadline.parse().unwrap();
    let left = deadline.duration_since(jiff::Timestamp::now()).as_secs();
    assert!(most == "7" && (1..=600).contains(&left), "{told}");
    // The launcher reads the pipe when it can, and passes words on once a second: they come some time after the bell.
    let shown = loop {
        let shown = rig.call(&["show", &id, "--json"]).json();
        if shown["progress"] == "3/9 pages" {
            break shown;
        }
    };
    assert_eq!((&shown["progress"], &shown["phase"]), (&"3/9 pages".into(), &"parsing".into()), "{shown}");
    assert!(shown["result"].is_null());
    gate.open(1);
    rig.drained();
    assert!(rig.call(&["logs", &id]).fine().contains("\n::windlass progress 3/9 pages\n"));
    server.stop();
}

#[test]
fn a_config_can_be_checked_on_another_machine() {
    let rig = Rig::new();
    let file = rig.path("elsewhere.toml");
    let name = file.to_str().unwrap();
    fs::write(&file, "[queue.q]\nrun = [\"no-such-program-here\"]\ndirectory = \"/no/such/place\"\n").unwrap();
    rig.call(&["config", "check", name]).ended(78);
    rig.call(&["config", "check", name, "--no-environment"]).says("is fine: 1 queue table").fine();
    fs::write(&file, "[queue.q]\nrun = []\n").unwrap();
    rig.call(&["config", "check", name, "--no-environment"]).says("`run` is empty").ended(78);
}
