//! Many queues under tables by pattern: each of them has the terms of the table that its name leads to.

use crate::inbox::append;
use crate::rig::Rig;

const QUEUES: usize = 200;

#[track_caller]
fn why(rig: &Rig, of: &str) -> String {
    let told = rig.call(&["why", of, "--json"]).json();
    told["reasons"][0]["code"].as_str().unwrap().to_owned()
}

#[test]
fn hundreds_of_queues_of_several_patterns_each_go_by_the_terms_of_their_own() {
    let rig = Rig::new();
    let mut gate = rig.gate("gate");
    let config = format!(
        "[limits]\nslots = 8\n\
         [queue.\"held.*\"]\nrun = [\"sh\", \"-c\", \"read x < {}\"]\nslots = 3\nslots_each = 1\n\
         [queue.\"slow.*\"]\nrun = [\"true\"]\nrate = \"1/h\"\n\
         [queue.\"page.*\"]\nworker = [\"sh\", \"-c\", \"while read line; do echo ok $line; done\"]\nslots = 2\n\
         [queue.\"off.*\"]\nrun = [\"true\"]\nenabled = false\n\
         [queue.\"*\"]\nbatch = [\"cat\"]\nreply = \"exit\"\n",
        gate.path
    );
    let server = rig.serve(&config);
    let kinds = ["slow", "page", "off", "rest"];
    let each = |kinds: &[&str]| -> String {
        let lines = |kind: &&str| (0..QUEUES).map(|n| format!("{kind}.{n}\tx\n")).collect::<String>();
        kinds.iter().map(lines).collect()
    };
    append(&rig, each(&kinds));
    rig.drained();
    let queues = rig.call(&["status", "--json"]).json()["queues"].take();
    for kind in kinds {
        for number in 0..QUEUES {
            let queue = &queues[format!("{kind}.{number}")];
            let expected = if kind == "off" { (0, 1) } else { (1, 0) };
            let seen = (queue["succeeded"].as_u64().unwrap_or(0), queue["ready"].as_u64().unwrap_or(0));
            assert_eq!(seen, expected, "{kind}.{number}: {queue}");
        }
    }
    // Each has used up the rate for itself; the others of the same names are not held by it.
    append(&rig, each(&["slow", "page"]));
    for number in [0, 77, QUEUES - 1] {
        assert_eq!(why(&rig, &format!("slow.{number}")), "rate_reached");
        assert_eq!(why(&rig, &format!("off.{number}")), "disabled");
    }
    // Of three slots one queue gets one, however much it has.
    let several = "held.a\tx\n".repeat(5) + "held.b\tx\nheld.b\tx\n";
    append(&rig, several);
    loop {
        let queues = rig.call(&["status", "--json"]).json()["queues"].take();
        let running = |queue: &str| queues[queue]["running"].as_u64().unwrap_or(0);
        assert!(running("held.a") <= 1 && running("held.b") <= 1);
        if (running("held.a"), running("held.b")) == (1, 1) {
            break;
        }
    }
    assert_eq!((why(&rig, "held.a"), why(&rig, "held.b")), ("queue_slots_taken".into(), "queue_slots_taken".into()));
    gate.open(7);
    rig.call(&["pause", "slow.*"]).fine();
    rig.drained();
    server.stop();
}
