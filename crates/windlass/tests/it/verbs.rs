//! The verbs that look at jobs and change them: ls, show, status, retry, cancel, and the config file's bad cases.

use crate::rig::Rig;
use std::os::unix::fs::PermissionsExt;
use windlass::data_dir::DataDir;
use windlass::inbox::disk::Kernel;
use windlass::inbox::{Envelope, InboxWriter, files};
use windlass_core::job::{Origin, QueueName, RunId};

fn count(rig: &Rig, selector: &str) -> usize {
    rig.call(&["ls", "--json", "--", selector]).json().as_array().unwrap().len()
}

#[test]
fn one_selector_language() {
    let rig = Rig::new();
    let ids = rig.call(&["push", "img.a", "1", "2"]).fine().to_owned();
    rig.call(&["push", "img.b", "3", "--priority", "7"]).fine();
    rig.call(&["push", "mail", "4", "--in", "1h"]).fine();
    let first = ids.lines().next().unwrap();
    for (selector, expected) in [
        ("", 4),
        ("queue:img.*", 3),
        ("queue:img.a,mail", 3),
        ("-queue:img.*", 1),
        ("state:scheduled", 1),
        ("-state:scheduled queue:img.b", 1),
        ("priority>=5", 1),
        ("priority:0", 3),
        ("age<1h", 4),
        ("age>1h", 0),
        ("attempt:0", 4),
        ("queue:nobody", 0),
        (first, 1),
    ] {
        assert_eq!(count(&rig, selector), expected, "{selector}");
    }
    for bad in ["failed", "state:done", "run:x", "colour:red", "priority>=x", "age:1h", "priority:9..1", "\"open"] {
        let told = rig.call(&["ls", "--", bad]);
        told.says("in the selector at character ").ended(65);
    }
    rig.call(&["cancel", "queue:img.*", "--dry-run"]).says("would cancel 3 jobs").fine();
    rig.call(&["cancel", "queue:img.* priority>=5", "--yes"]).says("1 job cancelled").fine();
    assert_eq!(count(&rig, "state:cancelled"), 1);
    assert_eq!(rig.call(&["ls", "--limit", "2", "--json"]).json().as_array().unwrap().len(), 2);
}

#[test]
fn show_finds_a_job_by_its_beginning() {
    let rig = Rig::new();
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    let beginning = &id[..7];
    assert_eq!(rig.call(&["show", beginning, "--json"]).json()["id"], id.as_str());
    rig.call(&["push", "q", "y"]).fine();
    rig.call(&["show", beginning]).says("several jobs begin with").ended(64);
    rig.call(&["show", "j-00000"]).says("no job begins with").ended(66);
    rig.call(&["show", "j-0000000000-1"]).ended(66);
    rig.call(&["show", "r-0000000000"]).ended(66);
    rig.call(&["show", "what"]).says("not an id").ended(66);
    rig.call(&["logs", "j-0000000000-1"]).ended(66);
    rig.call(&["logs", &id]).says("no output").ended(66);
    let run = rig.call(&["push", "q", "--run", "new", "a"]).fine().trim_end().to_owned();
    assert_eq!(rig.call(&["show", &run[..7], "--json"]).json()["id"], run.as_str());
}

#[test]
fn finished_jobs_have_the_same_words() {
    let rig = Rig::new();
    rig.feed(&["run", "-Q", "q", "--", "sh", "-c", "echo $1; test $1 = a", "sh"], "a\nb\n").ended(1);
    let jobs = rig.call(&["ls", "--json"]).json();
    assert_eq!(jobs.as_array().unwrap().len(), 2);
    for job in jobs.as_array().unwrap() {
        for key in ["id", "queue", "state", "run", "admitted", "ended", "data", "attempts"] {
            assert!(!job[key].is_null(), "{key} is missing: {job}");
        }
        let shown = rig.call(&["show", job["id"].as_str().unwrap(), "--json"]).json();
        assert_eq!((&shown["state"], &shown["attempts"]["starts"]), (&job["state"], &1.into()), "{shown}");
        assert_eq!(shown["history"].as_array().unwrap().len(), 1);
        let text = rig.call(&["show", job["id"].as_str().unwrap()]);
        assert!(text.fine().contains("starts 1"), "{}", text.fine());
    }
    let status = rig.call(&["status", "--json"]).json();
    for state in ["scheduled", "ready", "running", "retrying", "suspended", "succeeded", "failed", "cancelled"] {
        assert!(status["queues"]["q"][state].is_u64() && status["totals"][state].is_u64(), "{state}: {status}");
    }
    let table = rig.call(&["status"]).fine().to_owned();
    assert!(table.starts_with("QUEUE") && table.contains("SUCCEEDED"), "{table}");
}

#[test]
fn retry_and_cancel() {
    let rig = Rig::new();
    let (mut bell, gate) = (rig.bell("bell"), rig.gate("gate"));
    // The tree ignores TERM, a grandchild included.
    let stubborn = format!("trap '' TERM; (read x < {}) & echo $! > {}; wait", gate.path, bell.path);
    let flag = rig.path("flag");
    let server = rig.serve(&format!(
        "[queue.stubborn]\nrun = [\"sh\", \"-c\", {stubborn:?}]\ngrace = \"100ms\"\n\
         [queue.flag]\nrun = [\"test\", \"-e\", {flag:?}]\nattempts = 1\n"
    ));
    let id = rig.call(&["push", "stubborn", "x"]).fine().trim_end().to_owned();
    let grandchild = bell.next();
    rig.call(&["cancel", &id]).says("running and being stopped").fine();
    rig.drained();
    assert_eq!(rig.call(&["show", &id, "--json"]).json()["state"], "cancelled");
    assert!(!std::path::Path::new(&format!("/proc/{grandchild}")).exists(), "the whole tree is gone");
    rig.call(&["cancel", &id]).says("1 was so already").fine();
    let failed = rig.call(&["push", "flag", "x"]).fine().trim_end().to_owned();
    rig.drained();
    assert_eq!(rig.call(&["show", &failed, "--json"]).json()["state"], "failed");
    std::fs::write(&flag, "").unwrap();
    rig.call(&["retry", &failed]).says("1 job ready again").fine();
    rig.drained();
    assert_eq!(rig.call(&["show", &failed, "--json"]).json()["state"], "succeeded");
    rig.call(&["retry", &failed]).ended(75);
    rig.call(&["retry", "j-0000000000-1"]).ended(66);
    server.stop();
    let waiting = rig.call(&["push", "flag", "y"]).fine().trim_end().to_owned();
    rig.call(&["cancel", &waiting]).says("1 job cancelled").fine();
    rig.call(&["cancel", "state:ready", "--yes"]).says("0 jobs").fine();
}

#[test]
fn a_config_that_is_no_config() {
    let rig = Rig::bare();
    let file = rig.path("w.toml");
    let name = file.to_str().unwrap();
    let deep = format!("a = {}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    let cases: [(&[u8], &str); 9] = [
        (b"", "is empty"),
        (b"[limits]\nslots = 1\nslots = 2\n", ":3:"),
        (b"[limits]\nslots = \"many\"\n", ":2:9"),
        (b"[queue.q]\nrun = [\"true\"]\ntime_limit = \"10 minuts\"\n", "10 minuts"),
        (b"[queue.q]\nrun = [\"true\"]\ntime_limit = \"-5s\"\n", "-5s"),
        (b"[limits]\nslots = 8\xff\n", "UTF-8"),
        (b"[limits]\nslots = 8\0\n", ":2:"),
        (deep.as_bytes(), "w.toml"),
        (b"[queue.q]\nrun = [\"/etc/passwd\"]\n", "/etc/passwd"),
    ];
    for (text, sentence) in cases {
        std::fs::write(&file, text).unwrap();
        for words in [&["config", "check", name][..], &["serve", "--config", name]] {
            rig.call(words).says(sentence).ended(78);
        }
    }
    std::fs::File::create(&file).unwrap().set_len(100 << 20).unwrap();
    rig.call(&["config", "check", name]).ended(78);
    std::fs::write(&file, "\u{feff}# fine\r\n[limits]\r\n\tslots = 3\r\n").unwrap();
    rig.call(&["config", "check", name]).says("3 slots").fine();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o602)).unwrap();
    rig.call(&["config", "check", name]).ended(78);
    assert!(!rig.dir().exists(), "nothing was started");
    std::fs::create_dir(rig.dir()).unwrap();
    rig.call(&["doctor", "--json"]).json();
}

/// A program wrote to one file of the inbox, then to the next, and sealed its run there; the first was lost before
/// anybody read it. The run waits for what will never come, and says for what; a person ends that.
#[test]
fn a_run_whose_seal_waits_for_a_lost_file_says_which_and_a_person_seals_it() {
    let rig = Rig::new();
    let inbox = DataDir::open(&rig.dir()).unwrap().inbox();
    let mut writer = InboxWriter::open(&inbox).unwrap();
    let run = RunId::first(Origin::from_random(77));
    let envelope = Envelope { run: Some(run), ..Envelope::new(QueueName::new(b"q").unwrap()) };
    let lost = writer.push(&envelope, b"lost").unwrap();
    let name = rustix::process::geteuid().as_raw().to_string();
    let sealed = files::seal(&Kernel::default(), &inbox, &name, lost.origin).unwrap();
    let there = writer.push(&envelope, b"there").unwrap();
    assert_ne!(lost.origin, there.origin, "it is in the next file");
    writer.seal(run).unwrap();
    writer.sync().unwrap();
    std::fs::remove_file(sealed).unwrap();

    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    rig.call(&["wait", &there.to_string()]).fine();
    let run = run.to_string();
    let why = rig.call(&["why", &run, "--json"]).json();
    assert_eq!(why["reasons"][0]["code"], "inbox_not_read", "{why}");
    let text = why["reasons"][0]["text"].as_str().unwrap();
    assert!(text.contains(&lost.origin.to_string()) && text.contains(&format!("windlass seal {run}")), "{text}");
    rig.call(&["seal", &run]).fine();
    rig.call(&["wait", &run]).fine();
    server.stop();
}
