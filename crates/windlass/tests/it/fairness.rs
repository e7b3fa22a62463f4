//! Who goes first, by the shipped program: weights over a long backlog, the bound on waiting, and priority before both.

use crate::rig::{Rig, lines_of};

/// Jobs of either queue: more than are started before the heavy one has none left.
const JOBS: usize = 450;

#[test]
fn weights_1_and_9_give_a_tenth_and_nine_tenths_and_priority_goes_before_them() {
    let rig = Rig::new();
    let log = rig.path("log");
    let table = |name: &str, weight: u32| {
        let script = format!("echo $0 >> {}", log.display());
        format!("[queue.{name}]\nrun = [\"sh\", \"-c\", {script:?}, \"{name} {{}}\"]\nweight = {weight}\n")
    };
    let lines: String = (0..JOBS).map(|n| format!("{n}\n")).collect();
    for queue in ["light", "heavy"] {
        rig.feed(&["push", queue], &lines).fine();
    }
    rig.call(&["push", "light", "first", "--priority", "10"]).fine();
    let config = format!("[limits]\nslots = 1\n{}{}", table("light", 1), table("heavy", 9));
    let server = rig.serve(&config);
    rig.call(&["wait", "--drained"]).fine();
    let order = lines_of(&log);
    assert_eq!((order.len(), order[0].as_str()), (2 * JOBS + 1, "light first"));
    // As long as both have jobs: up to the last of the heavy one.
    let both = order.iter().rposition(|line| line.starts_with("heavy")).unwrap();
    let order = &order[1..=both];
    let light = order.iter().filter(|line| line.starts_with("light")).count();
    let share = light as f64 / order.len() as f64;
    assert!((0.09..=0.11).contains(&share), "{light} of {} starts", order.len());
    let waited = order.windows(10).filter(|window| !window.iter().any(|line| line.starts_with("light"))).count();
    assert_eq!(waited, 0, "nobody waits for longer than the weights say");
    for queue in ["light", "heavy"] {
        let own: Vec<&str> = order.iter().filter_map(|line| line.strip_prefix(queue)).collect();
        assert!(own.iter().enumerate().all(|(n, data)| data.trim() == n.to_string()), "oldest first: {own:?}");
    }
    server.stop();
}
