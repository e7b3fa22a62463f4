//! Schedules with the real binary: fired by hand, listed by a command, switched off, refused.

use crate::rig::{Rig, sorted};
use std::collections::BTreeSet;

const CONFIG: &str = r#"
[queue.reports]
run = ["echo", "report for {}"]

[schedule.nightly]
cron = "0 2 * * *"
zone = "Europe/Berlin"
push = { queue = "reports", from = ["printf", "%s\n", "ada", "grace	hopper", "edsger"], priority = -10 }

[schedule.hourly]
cron = "@hourly"
zone = "UTC"
overlap = "queue"
push = { queue = "reports", data = "{schedule}" }

[schedule.broken]
cron = "0 0 1 1 *"
push = { queue = "reports", from = ["sh", "-c", "echo half; exit 65"] }
"#;

fn rig() -> (Rig, crate::rig::Server) {
    let rig = Rig::new();
    let server = rig.serve(CONFIG);
    (rig, server)
}

#[test]
fn what_a_command_lists_becomes_the_jobs_of_one_run() {
    let (rig, server) = rig();
    let run =
        rig.call(&["schedule", "run", "nightly"]).says("schedule `nightly` was fired").fine().trim_end().to_owned();
    rig.call(&["wait", &run]).fine();
    let jobs = rig.call(&["ls", &format!("run:{run}"), "--json"]).json();
    let listed = jobs.as_array().unwrap();
    let of = |queue: &str| listed.iter().filter(|job| job["queue"] == queue).collect::<Vec<_>>();
    assert_eq!(of("_schedule.nightly").len(), 1);
    let mut data: Vec<&str> = of("reports").iter().map(|job| job["data"].as_str().unwrap()).collect();
    data.sort_unstable();
    assert_eq!(data, ["ada", "edsger", "grace\thopper"], "a tab in a line is data");
    assert!(of("reports").iter().all(|job| job["priority"] == -10));
    let show = rig.call(&["show", &run, "--json"]).json();
    assert!(show["name"].as_str().unwrap().starts_with("nightly@"), "{show}");
    server.stop();
}

#[test]
fn a_list_that_fails_pushes_nothing_and_its_run_says_so() {
    let (rig, server) = rig();
    let run = rig.call(&["schedule", "run", "broken"]).fine().trim_end().to_owned();
    rig.call(&["wait", &run]).ended(1);
    let status = rig.call(&["status", "--json"]).json();
    assert!(status["queues"]["reports"].is_null(), "{status}");
    assert_eq!(status["queues"]["_schedule.broken"]["failed"], 1);
    server.stop();
}

#[test]
fn schedules_are_listed_with_their_times_and_switched_on_and_off() {
    let (rig, server) = rig();
    let listed = rig.call(&["schedule", "ls"]).fine().to_owned();
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(sorted(&names.join("\n")), ["NAME", "broken", "hourly", "nightly"]);
    let times = rig.call(&["schedule", "next", "hourly", "-n", "3"]).fine().to_owned();
    assert_eq!(times.lines().filter(|line| line.ends_with(":00:00Z\thourly")).count(), 3, "{times}");
    rig.call(&["schedule", "disable", "hourly", "--for", "2h"]).says("schedule `hourly` is disabled now").fine();
    let told = rig.call(&["schedule", "ls", "--json"]).json();
    let hourly = told.as_array().unwrap().iter().find(|schedule| schedule["name"] == "hourly").unwrap();
    assert_eq!((&hourly["enabled"], hourly["next"].as_array().unwrap().len()), (&false.into(), 0));
    server.stop();
    let server = rig.serve_again();
    rig.call(&["schedule", "next", "hourly"]).says("schedule `hourly` is disabled").fine();
    rig.call(&["schedule", "enable", "hourly"]).says("enabled now").fine();
    assert_eq!(rig.call(&["schedule", "next", "hourly"]).fine().lines().count(), 5);
    let fired = rig.call(&["schedule", "run", "hourly", "--json"]).json();
    rig.call(&["wait", fired["run"].as_str().unwrap()]).fine();
    server.stop();
}

#[test]
fn what_does_not_fit_is_refused_with_its_place() {
    let (rig, server) = rig();
    rig.call(&["schedule", "run", "weekly"]).says("no schedule `weekly`").says("nightly").ended(66);
    rig.call(&["schedule", "disable", "weekly"]).says("no schedule `weekly`").ended(66);
    rig.call(&["schedule", "next", "weekly"]).says("no schedule `weekly`").ended(66);
    rig.call(&["schedule", "next", "-n", "0"]).says("from 1 to 1000").ended(64);
    server.stop();
    rig.call(&["schedule", "ls"]).says("no server is running").ended(69);
    for (config, place, why) in [
        ("[schedule.a]\ncron = \"61 * * * *\"\npush = { queue = \"q\" }\n", ":2:8:", "expected five fields"),
        ("[schedule.a]\ncron = \"0 0 31 2 *\"\npush = { queue = \"q\" }\n", ":2:8:", "never come"),
        ("[schedule.a]\npush = { queue = \"q\" }\n", ":1:11:", "has no `cron`"),
        ("[schedule.a]\ncron = \"@daily\"\n", ":1:11:", "has no `push`"),
        ("[schedule.a]\ncron = \"@daily\"\npush = { data = \"x\" }\n", ":1:11:", "has no `push.queue`"),
        ("[schedule.a]\ncron = \"@daily\"\nzone = \"Mars\"\npush = { queue = \"q\" }\n", ":3:8:", "no such zone"),
        ("[schedule.a]\ncron = \"@daily\"\noverlap = \"both\"\npush = { queue = \"q\" }\n", ":3:11:", "skip, queue"),
        (
            "[schedule.a]\ncron = \"@daily\"\npush = { queue = \"q\", priority = 101 }\n",
            ":3:34:",
            "between -100 and 100",
        ),
        ("[schedule.a]\ncron = \"@daily\"\npush = { queue = \"q\", from = [\"/no/such\"] }\n", ":3:30:", "/no/such"),
        (
            "[schedule.a]\ncron = \"@daily\"\npush = { queue = \"q\", data = \"x\", from = [\"ls\"] }\n",
            ":3:42:",
            "both",
        ),
        ("[schedule.a]\ncrom = \"@daily\"\npush = { queue = \"q\" }\n", ":2:1:", "did you mean `cron`?"),
    ] {
        let file = rig.path("bad.toml");
        std::fs::write(&file, config).unwrap();
        let told = rig.call(&["config".as_ref(), "check".as_ref(), file.as_os_str()]);
        told.says(place).says(why).ended(78);
    }
}

/// A full minute is the shortest that cron knows. Each of them fires all schedules, and each time the server is killed
/// when the first job of that minute is heard of.
#[test]
fn each_nominal_time_is_pushed_once_although_the_server_is_killed_when_it_comes() {
    const SCHEDULES: usize = 20;
    let rig = Rig::new();
    let mut bell = rig.bell("bell");
    let script = format!("echo $1 > {}", bell.path);
    let mut config = format!("[queue.clock]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\nattempts = 9\n");
    for n in 0..SCHEDULES {
        config += &format!(
            "[schedule.s{n}]\ncron = \"* * * * *\"\noverlap = \"allow\"\ncatch_up = \"all\"\n\
             push = {{ queue = \"clock\", data = \"{{time}} {{schedule}}\" }}\n"
        );
    }
    let mut server = rig.serve(&config);
    let mut heard: Vec<String> = Vec::new();
    while heard.len() < 2 {
        let rung = bell.next();
        let minute = rung.split_once(' ').unwrap().0.to_owned();
        if heard.last() < Some(&minute) {
            server.kill();
            server = rig.serve_again();
            heard.push(minute);
        }
    }
    rig.drained();
    server.stop();
    let jobs = rig.call(&["ls", "queue:clock", "--json"]).json();
    let data = jobs.as_array().unwrap().iter().map(|job| job["data"].as_str().unwrap().to_owned());
    let mut pushed: Vec<(String, String)> =
        data.map(|data| data.split_once(' ').map(|(time, name)| (time.to_owned(), name.to_owned())).unwrap()).collect();
    pushed.sort_unstable();
    let all = pushed.len();
    pushed.dedup();
    assert_eq!(pushed.len(), all, "a time was pushed twice: {pushed:?}");
    let minutes: BTreeSet<&str> = pushed.iter().map(|(time, _)| time.as_str()).collect();
    // On a slow machine there are more of them than were waited for, and of the last one all may not have come yet.
    for minute in &heard {
        let times = pushed.iter().filter(|(time, _)| time == minute).count();
        assert_eq!(times, SCHEDULES, "{minute}: {pushed:?}");
    }
    let seconds: Vec<i64> = minutes.iter().map(|time| time.parse::<jiff::Timestamp>().unwrap().as_second()).collect();
    assert!(seconds.iter().all(|second| second % 60 == 0), "{minutes:?}");
    assert!(seconds.windows(2).all(|two| two[1] - two[0] == 60), "none is left out: {minutes:?}");
}
