//! The server's log from outside: a line per finished attempt, never its data, and nobody waits for its reader.

use crate::rig::{Rig, lines_of};
use rustix::process::Signal;
use serde_json::Value;

const SECRET: &str = "hunter2 \n\"x\" y=z";

#[test]
fn every_finished_attempt_is_one_line_without_its_data() {
    for format in ["json", "logfmt"] {
        let rig = Rig::new();
        let script = "read a; echo $a; echo $a >&2; exit $1";
        let server = rig.serve(&format!(
            "[log]\nformat = {format:?}\nfile = \"log\"\n\
             [queue.\"s *\"]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"0\"]\n\
             [queue.f]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"3\"]\nattempts = 2\nbackoff = \"1ms\"\n\
             [queue.k]\nrun = [\"sh\", \"-c\", \"kill -9 $$\"]\nattempts = 1\n"
        ));
        let name = "s \"\u{2028}=";
        let ids: Vec<String> =
            [name, "f", "k"].map(|queue| rig.call(&["push", queue, SECRET]).fine().trim_end().to_owned()).to_vec();
        rig.drained();
        server.stop();
        let text = std::fs::read_to_string(rig.dir().join("log")).unwrap();
        assert!(!text.contains("hunter2"), "data is nobody's business: {text}");
        let lines = lines_of(&rig.dir().join("log"));
        let of = |id: &str| lines.iter().filter(|line| line.contains(id)).collect::<Vec<_>>();
        assert_eq!([of(&ids[0]).len(), of(&ids[1]).len(), of(&ids[2]).len()], [1, 2, 1], "{text}");
        if format == "logfmt" {
            let wanted =
                format!("job={} queue=\"s \\\"\\u{{2028}}=\" start=1 outcome=succeeded state=succeeded", ids[0]);
            assert!(of(&ids[0])[0].contains(&wanted), "{text}");
            let last = of(&ids[1])[1];
            for part in
                ["level=warn msg=attempt event=job.finish", "start=2", "state=failed", "reason=exhausted exit=3"]
            {
                assert!(last.contains(part), "{last}");
            }
            continue;
        }
        let read: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |id: &str, start: u64| {
            let found = read.iter().find(|line| line["job"] == id && line["start"] == start);
            found.unwrap_or_else(|| panic!("no line of {id}: {text}"))
        };
        let first = of(&ids[0], 1);
        assert_eq!(
            (&first["queue"], &first["state"], &first["level"]),
            (&name.into(), &"succeeded".into(), &"info".into())
        );
        assert!(first["wait_s"].as_f64().unwrap() >= 0.0 && first["run_s"].as_f64().unwrap() > 0.0, "{first}");
        let (retry, last, killed) = (of(&ids[1], 1), of(&ids[1], 2), of(&ids[2], 1));
        assert_eq!((&retry["state"], &retry["exit"], &retry["reason"]), (&"retrying".into(), &3.into(), &Value::Null));
        assert_eq!(
            (&last["state"], &last["exit"], &last["reason"]),
            (&"failed".into(), &3.into(), &"exhausted".into())
        );
        assert_eq!((&killed["outcome"], &killed["signal"]), (&"crashed".into(), &9.into()));
    }
}

/// Nobody reads the server's stderr: 800 lines are more than a pipe holds, and the work goes on all the same.
#[test]
fn a_log_that_nobody_reads_holds_up_no_job() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    let input: String = (0..800).map(|n| format!("{n}\n")).collect();
    let run = rig.feed(&["push", "q", "--run", "new"], input).fine().trim_end().to_owned();
    rig.call(&["wait", &run]).fine();
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["succeeded"], 800);
    // A reload says what came of it, and does not wait for a reader either: a burst by signal, and one with an answer.
    (0..20).for_each(|_| server.process.signal(Signal::HUP));
    std::fs::write(rig.dir().join("windlass.toml"), "[queue.q]\nrun = [\"true\"]\nweight = 7\n").unwrap();
    assert!(rig.call(&["config", "reload"]).fine().lines().count() <= 1, "a signal may have come later than the file");
    let shown = rig.call(&["config", "show"]).fine().to_owned();
    assert!(shown.contains("weight = 7"), "{shown}");
    let said = server.stop();
    assert_eq!(said.lines().filter(|line| line.contains("msg=attempt")).count(), 800);
    assert!(said.contains("msg=reloaded"));
}

#[test]
fn a_wrong_log_is_refused_at_the_start() {
    let rig = Rig::new();
    for (config, code, why) in [
        ("[log]\nformat = \"xml\"\n", 78, ":2:10: `format`: \"xml\" is not a format, expected \"logfmt\" or \"json\""),
        ("[log]\nlevel = \"loud\"\n", 78, "\"loud\" is not a level"),
        ("[log]\nfile = \"\"\n", 78, "the name is empty"),
        ("[log]\nfiles = \"x\"\n", 78, "did you mean `file`?"),
        ("[log]\nfile = \"no/such/place\"\n", 74, "cannot open the log"),
    ] {
        std::fs::create_dir_all(rig.dir()).unwrap();
        std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
        rig.call(&["serve"]).says(why).ended(code);
    }
}
