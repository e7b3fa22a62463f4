//! The audit log: what people did to jobs and to the config stands in it when they are answered.

use crate::rig::{Rig, lines_of};
use rustix::process::Signal;
use serde_json::Value;

pub(crate) fn audit(rig: &Rig) -> Vec<Value> {
    lines_of(&rig.dir().join("audit.log")).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(rig: &Rig, words: &[&str]) -> Vec<String> {
    rig.call(words).fine().lines().map(str::to_owned).collect()
}

/// Who changed which job, and from what to what: a line each for those named, the account for those chosen.
#[test]
fn what_people_do_to_jobs_is_in_the_audit_log() {
    let rig = Rig::new();
    let (mut bell, gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo > {}; read x < {}", bell.path, gate.path);
    let config = format!("[queue.slow]\nrun = [\"sh\", \"-c\", {script:?}]\n");
    let server = rig.serve(&config);
    let user = String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let log = || -> Vec<Value> {
        let lines = audit(&rig);
        assert!(lines.iter().all(|line| line["by"] == user.trim_end() && line["time"].is_string()));
        lines
    };
    let last = |what: [&str; 4]| {
        let lines = log();
        let line = lines.last().unwrap();
        what.map(|key| line[key].as_str().map_or(line[key].to_string(), str::to_owned))
    };
    let made = ids(&rig, &["push", "q", "1", "2", "3"]);
    let (one, two) = (made[0].as_str(), made[1].as_str());
    for (words, from, to) in [
        (&["suspend", one][..], "ready", "suspended"),
        (&["resume", one], "suspended", "ready"),
        (&["priority", "7", one], "ready", "ready"),
        (&["cancel", one], "ready", "cancelled"),
        (&["retry", one], "cancelled", "ready"),
        (&["delete", one], "ready", "null"),
    ] {
        rig.call(words).fine();
        assert_eq!(last(["action", "job", "from", "to"]), [words[0], one, from, to]);
    }
    assert_eq!((log().len(), log()[2]["priority"].as_i64()), (6, Some(7)));
    // What changes nothing is no change.
    rig.call(&["retry", one]).ended(75);
    rig.call(&["resume", two]).fine();
    rig.call(&["cancel", "queue:q", "--dry-run"]).fine();
    rig.call(&["cancel", "queue:q", "--yes", "--expect", "9"]).ended(75);
    assert_eq!(log().len(), 6);
    rig.call(&["suspend", "queue:q", "--yes"]).fine();
    assert_eq!(last(["action", "selector", "stage", "operation"]), ["suspend", "queue:q", "done", "null"]);
    assert_eq!(log()[6]["counts"]["changed"], 2);
    let running = ids(&rig, &["push", "slow", "x"]).remove(0);
    bell.next();
    rig.call(&["cancel", &running]).fine();
    assert_eq!(last(["action", "job", "from", "to"]), ["cancel", &running, "running", "null"]);
    let lines: String = (0..2500).map(|n| format!("{n}\n")).collect();
    rig.feed(&["push", "many"], lines).fine();
    rig.call(&["cancel", "queue:many", "--yes"]).fine();
    let two: Vec<Value> = log().split_off(8);
    let told: Vec<_> = two.iter().map(|line| (line["stage"].as_str(), line["counts"]["matched"].as_u64())).collect();
    assert_eq!(told, [(Some("accepted"), Some(2500)), (Some("done"), Some(2500))]);
    assert_eq!((&two[1]["counts"]["changed"], &two[1]["operation"]), (&2500.into(), &two[0]["operation"]));
    server.stop();
}

#[test]
fn a_reload_is_in_the_audit_log_and_a_refused_one_is_not() {
    let rig = Rig::new();
    let mut server = rig.serve("[limits]\nslots = 2\n");
    let write = |text: &str| std::fs::write(rig.dir().join("windlass.toml"), text).unwrap();
    write("[limits]\nslots = 3\n[server]\ndrain = \"9s\"\n");
    rig.call(&["config", "reload"]).fine();
    write("[limits]\nslotz = 3\n");
    rig.call(&["config", "reload"]).ended(78);
    write("[limits]\nslots = 4\n[server]\ndrain = \"9s\"\n");
    server.process.signal(Signal::HUP);
    server.process.until("restart=0");
    let log = audit(&rig);
    assert_eq!(log.len(), 2);
    assert_eq!(
        (&log[0]["action"], &log[0]["changed"][0], &log[0]["restart"][0]),
        (&"reload".into(), &"[limits] slots".into(), &"[server] drain".into())
    );
    assert_eq!((&log[1]["by"], &log[1]["restart"]), (&"signal".into(), &serde_json::json!([])));
    server.stop();
}
