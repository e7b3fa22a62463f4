//! Config files, right and wrong: the sentences with line and column.

use super::*;
use windlass_core::notify::{Ending, Notify};
use windlass_core::policy::Backoff;
use windlass_core::policy::Service;

fn parse(text: &str) -> Result<Config, Failure> {
    Config::parse(Path::new("w.toml"), text)
}

#[test]
fn the_default_file_says_what_the_code_does() {
    let config = parse(DEFAULT_FILE).unwrap();
    let command =
        Command { argv: vec![b"echo".to_vec(), b"{}".to_vec()], directory: b"/".to_vec(), environment: Vec::new() };
    let expected = Policy { enabled: false, ..Policy::new("example.*", Service::Command(command)) };
    // There is no default schedule: the one that shows the keys is switched off.
    let schedules = config.schedules.clone();
    assert!(schedules.len() == 1 && !schedules[0].enabled, "{schedules:?}");
    assert_eq!(config, Config { queues: vec![expected], schedules, ..Config::default() });
    assert!(!config.policies()[0].enabled);
}

#[test]
fn every_key_of_a_queue_stands_in_the_default_file() {
    let failure = parse("[queue.a]\nrun=[\"true\"]\nzzzzzzzzzz = 1").unwrap_err();
    let known = failure.hint.unwrap();
    for key in known.trim_start_matches("known here: ").split(", ") {
        let line = |l: &str| l.trim_start_matches("# ").starts_with(&format!("{key} = "));
        assert!(DEFAULT_FILE.lines().any(line), "{key}");
    }
}

#[test]
fn who_handles_failures_is_not_handled() {
    let queue = |name: &str, handler: &str| format!("[queue.{name}]\nrun = [\"true\"]\non_failure = \"{handler}\"\n");
    let config = parse(&queue("a", "errors")).unwrap();
    assert_eq!(config.queues[0].on_failure.as_ref().unwrap().as_str(), "errors");
    assert!(parse(&(queue("a", "errors") + &queue("'*'", "errors"))).is_ok(), "a pattern may have a handler's name");
    let refused = parse(&(queue("a", "b") + &queue("b", "c"))).unwrap_err().to_string();
    assert!(refused.contains("w.toml:6:14: `b` handles the failures of `a`"), "{refused}");
    let refused = parse(&queue("a", "a")).unwrap_err().to_string();
    assert!(refused.contains("`a` handles the failures of its own jobs"), "{refused}");
    assert!(parse(&queue("a", "-x")).unwrap_err().to_string().contains("`on_failure`"));
}

#[test]
fn channels_are_queues_of_their_own_and_whoever_names_one_that_is_not_there_is_refused() {
    let channel = "[notify.ops]\nrun = [\"true\"]\nattempts = 9\n";
    let queue = |rest: &str| format!("[queue.'*']\nrun = [\"true\"]\n{rest}\n");
    let config = parse(&format!("{}{channel}", queue("notify = [\"ops\"]"))).unwrap();
    let rules = config.policies();
    assert_eq!(rules.iter().map(|rule| rule.pattern.as_str()).collect::<Vec<_>>(), ["notify.ops", "*"]);
    assert_eq!((rules[0].attempts, rules[0].notify.channels.len()), (9, 0));
    let ends = |notify: &Notify| Ending::ALL.map(|ending| notify.hears(ending));
    assert_eq!(ends(&rules[1].notify), [true, false, true]);
    let asked = queue("notify = [\"ops\"]\nnotify_on = [\"succeeded\"]");
    assert_eq!(ends(&parse(&format!("{asked}{channel}")).unwrap().queues[0].notify), [false, true, false]);
    let schedule = |rest: &str| format!("[schedule.s]\ncron = \"@daily\"\npush = {{ queue = \"q\" }}\n{rest}\n");
    let text = schedule("time_limit = \"2h\"\nnotify = [\"ops\"]\nnotify_on = [\"late\"]");
    let terms = parse(&format!("{text}{channel}")).unwrap().schedules[0].terms.clone();
    assert_eq!((ends(&terms.notify), terms.time_limit), ([false, false, true], Some(Duration::from_secs(7200))));
    for (text, sentence) in [
        (queue("notify = [\"ops\"]"), "w.toml:3:10: `notify`: no channel \"ops\""),
        (format!("{channel}{}", queue("notify = [\"ob\"]")), "w.toml:6:10: `notify`: no channel \"ob\""),
        (schedule("notify = [\"ob\"]"), "`notify`: no channel \"ob\""),
        (format!("{channel}{}", queue("notify = \"ops\"")), "`notify` is a string, expected an array"),
        (format!("{channel}{}", queue("notify = [\"ops\", \"ops\"]")), "each once, got \"ops\""),
        (queue("notify_on = [\"late\"]"), "there is no `notify`"),
        (format!("{channel}{}", queue("notify = [\"ops\"]\nnotify_on = []")), "`notify_on` is empty"),
        (format!("{channel}{}", queue("notify = [\"ops\"]\nnotify_on = [\"lost\"]")), "\"lost\" is not known"),
        (format!("{channel}notify = [\"ops\"]\n"), "nobody is told of the ends of a channel's own jobs"),
        (format!("{channel}on_failure = \"q\"\n"), "nobody is told of the ends of a channel's own jobs"),
        ("[notify.a]\nslots = 1\n".into(), "[notify.a]"),
        (format!("{channel}[queue.'notify.ops']\nrun = [\"true\"]\n"), "its jobs are those of the channel"),
    ] {
        let refused = parse(&text).unwrap_err().to_string();
        assert!(refused.contains(sentence), "{text}\n{refused}");
    }
    let hint = parse(&format!("{channel}{}", queue("notify = [\"ob\"]"))).unwrap_err().hint.unwrap();
    assert_eq!(hint, "there are: ops");
}

#[test]
fn a_pipeline_is_checked_as_a_whole() {
    let stage = |name: &str, rest: &str| format!("[[pipeline.p.stage]]\nname = \"{name}\"\nrun = [\"true\"]\n{rest}\n");
    let text = format!(
        "[limits]\nmemory = \"8G\"\n[pipeline.p]\nmemory = \"4G\"\n{}{}",
        stage("a", "slots = 9\nmemory = \"1G\"\nto = [\"b\"]\nattempts = 2"),
        stage("b", "limit = 5\npass = \"lines\"\nto = [\"a\", \"b\"]")
    );
    let config = parse(&text).unwrap();
    let [a, b] = &config.pipelines[0].rules[..] else { panic!("two stages") };
    assert_eq!((a.pattern.as_str(), a.slots, a.attempts, b.slots), ("p.a", 4, 2, 4), "as many as fit");
    let flow = b.flow.as_ref().unwrap();
    assert_eq!((flow.limit, flow.pass, flow.to.len()), (5, windlass_core::pipeline::Pass::Lines, 2));
    assert!(a.flow.as_ref().unwrap().held_by.is_empty(), "a circle holds nobody");
    assert_eq!(config.policies()[..2].iter().map(|p| p.pattern.as_str()).collect::<Vec<_>>(), ["p.a", "p.b"]);
    for (text, expected) in [
        ("[pipeline.p]\n".to_owned(), "[pipeline.p] has no stages"),
        ("[pipeline.\"a.b\"]\n".to_owned(), "a pipeline's name is \"a.b\""),
        (stage("a", "") + &stage("a", ""), "w.toml:6:8: an earlier stage has this name"),
        (stage("a", "to = [\"c\"]"), "`to` names the stage \"c\", which is not there; the stages are a"),
        (stage("a", "") + &stage("b", ""), "w.toml:6:8: nothing reaches this stage"),
        (stage("a.b", ""), "a stage's name is \"a.b\""),
        (stage("a", "pass = \"data\""), "there is no `to`"),
        (stage("a", "pass = \"all\"\nto = [\"a\"]"), "expected one of emitted, message, lines, data"),
        (
            "[limits]\nmemory = \"1G\"\n[pipeline.p]\nmemory = \"2G\"\n".to_owned() + &stage("a", ""),
            "there is only 1 GiB",
        ),
        (
            "[pipeline.p]\nmemory = \"1G\"\n".to_owned()
                + &stage("a", "memory = \"600M\"\nto = [\"b\"]")
                + &stage("b", "memory = \"600M\""),
            "one worker of each stage needs",
        ),
        (stage("a", "") + "[queue.\"p.a\"]\nrun = [\"true\"]\n", "`p.a` is a stage of a pipeline"),
        (stage("a", "") + "[subscribe]\n\"p.*\" = [\"x\"]\n", "would do nothing"),
        (stage("a", "worker = [\"true\"]"), "`run` and `worker`"),
        (stage("a", "zzz = 1"), "unknown key `zzz` in stage 1 of [pipeline.p]"),
    ] {
        let refused = parse(&text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

#[test]
fn the_example_of_a_pipeline_is_one() {
    let config = parse(crate::cli::PIPELINE_EXAMPLE).unwrap();
    assert_eq!(config.pipelines[0].stages.len(), 3);
}

#[test]
fn who_has_subscribed_to_what() {
    let config =
        parse("[subscribe]\n\"order.*\" = [\"mail\", \"bill\"]\nx = [\"mail\"]\n[queue.mail]\nrun = [\"true\"]\n");
    let config = config.unwrap();
    let heard: Vec<String> = config.router.listeners("order.new").iter().map(|name| name.to_string()).collect();
    assert_eq!(heard, ["mail", "bill"]);
    for (text, expected) in [
        ("a = []", "w.toml:2:5: nobody listens"),
        ("a = \"b\"", "w.toml:2:5: `a` is a string, expected an array of queue names"),
        ("a = [1]", "w.toml:2:6: `a` is an integer, expected queue names only"),
        ("a = [\"-x\"]", "w.toml:2:6: "),
        ("a = [\"b\", \"b\"]", "w.toml:2:11: \"b\" stands here twice"),
        ("\"a*\" = [\"ab\"]", "w.toml:2:8: a message would go in a circle: \"a*\" -> ab"),
        ("a = [\"b\"]\nb = [\"a\"]", "w.toml:2:5: a message would go in a circle: a -> b -> a"),
        ("a = [\"b\"]\n[queue.a]\nrun = [\"true\"]", "w.toml:2:1: [queue.a] would do nothing"),
    ] {
        let refused = parse(&format!("[subscribe]\n{text}\n")).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

#[test]
fn a_whole_queue() {
    let text = r#"
        [limits]
        slots = 0x10
        [queue.thumbnail]
        run = ["sh", "-c", "exit 0", "{}"]
        slots = 2
        weight = 3
        attempts = 0
        time_limit = "20m"
        grace = "0s"
        backoff = "2s"
        backoff_max = "PT5M"
        output = "64KiB"
        environment = { LEVEL = "3", HOME = "/nowhere" }
        directory = "/tmp"
        enabled = false
        hours = "Mon-Fri 22:00-06:00 Europe/Berlin"
    "#;
    let config = parse(text).unwrap();
    assert_eq!(config.slots, 16);
    let variable = |name: &str| ["PATH", "HOME"].contains(&name).then(|| OsString::from("from the server"));
    let [policy] = config.policies_under(&variable).try_into().unwrap();
    let seconds = Duration::from_secs;
    assert_eq!((policy.slots, policy.weight, policy.attempts), (2, 3, 0));
    assert_eq!((policy.time_limit, policy.grace), (Some(seconds(1200)), Duration::ZERO));
    assert_eq!(policy.backoff, Backoff { base: seconds(2), cap: seconds(300) });
    assert!(!policy.enabled && policy.output_max == 65536);
    assert_eq!(policy.hours.unwrap().to_string(), "Mon-Fri 22:00-06:00 Europe/Berlin");
    let Service::Command(command) = policy.service else { panic!("a command") };
    let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    let expected = vec![pair("HOME", "/nowhere"), pair("LEVEL", "3"), pair("PATH", "from the server")];
    assert_eq!(command.environment, expected);
    assert_eq!(command.directory, b"/tmp");
}

#[test]
fn queues_stand_in_the_order_of_the_file() {
    let text = "[queue.zebra]\nrun=[\"true\"]\n[queue.\"*\"]\nrun=[\"true\"]\n[queue.ant]\nrun=[\"true\"]\n";
    let patterns: Vec<_> = parse(text).unwrap().policies().into_iter().map(|p| p.pattern).collect();
    assert_eq!(patterns, ["zebra", "*", "ant"]);
    let dotted = "queue.z.run = [\"true\"]\nqueue.a.run = [\"true\"]\nqueue.z.slots = 2\n";
    let patterns: Vec<_> = parse(dotted).unwrap().policies().into_iter().map(|p| p.pattern).collect();
    assert_eq!(patterns, ["z", "a"]);
}

#[test]
fn refusals_name_place_value_and_what_was_expected() {
    for (text, expected, hint) in [
        ("[limits]\nslot = 3", "w.toml:2:1: unknown key `slot` in [limits]", "did you mean `slots`?"),
        ("[limit]", "w.toml:1:2: unknown key `limit` in the file", "did you mean `limits`?"),
        ("[limits]\nslots = 0", "w.toml:2:9: `slots` is 0, expected 1 to 1000000", ""),
        ("[limits]\nslots = -1", "w.toml:2:9: `slots` is -1, expected 1 to 1000000", ""),
        ("[limits]\nslots = \"8\"", "w.toml:2:9: `slots` is a string, expected a whole number", ""),
        ("[limits]\nslots = 2.5", "w.toml:2:9: `slots` is a float, expected a whole number", ""),
        (
            "[limits]\nslots = 99999999999999999999",
            "w.toml:2:9: `slots` is 99999999999999999999, expected 1 to 1000000",
            "",
        ),
        (
            "[traces]\nexport = \"localhost:4318\"",
            "w.toml:2:10: `export`: \"localhost:4318\" is no collector, expected http://HOST:PORT/v1/traces",
            "",
        ),
        (
            "[progress]\nmemcached = \"localhost\"",
            "w.toml:2:13: `memcached`: \"localhost\" is no memcached, expected HOST:PORT or the path of a socket",
            "",
        ),
        (
            "[progress]\nkey = \"progress\"",
            "w.toml:2:7: `key`: \"progress\" is the same for many jobs, expected {subject_id}, {key} or {id} in it",
            "",
        ),
        (
            "[progress]\nkeep = \"31d\"",
            "w.toml:2:8: `keep`: \"31d\" is no life time that a memcached takes, expected 1s to 30d",
            "",
        ),
        ("[traces]\nexports = \"\"", "w.toml:2:1: unknown key `exports` in [traces]", "did you mean `export`?"),
        ("limits = 3", "w.toml:1:10: `limits` is an integer, expected a table", ""),
        ("queue = 3", "w.toml:1:9: `queue` is an integer, expected a table", ""),
        (
            "[server]\nlisten = \"0.0.0.0:80\"",
            "w.toml:2:10: `listen`: 0.0.0.0:80 is not a loopback address, and this listener asks nobody for a password",
            "",
        ),
        (
            "[server]\r\ndrain = \"10 minuts\"",
            "w.toml:2:9: `drain`: cannot read the duration \"10 minuts\"; \
             expected a duration such as 30s, 5m, 2h, 1d, 1h30m or PT20M",
            "",
        ),
        (
            "[archive]\nmax_size = \"lots\"",
            "w.toml:2:12: `max_size`: cannot read the size \"lots\"; expected a size such as 64KiB, 512M or 2GiB",
            "",
        ),
        (
            "[queue.a]\nslots = 1",
            "w.toml:1:8: [queue.a] has no `run`, so nothing would do its jobs",
            "add run = [\"PROGRAM\", \"ARGUMENT\"…], or `batch`, `worker`, `lua`, `url`, `remote` or \
             `forward` in its place",
        ),
        ("[queue.a]\nrun = []", "w.toml:2:7: `run` is empty, expected a program and its arguments", ""),
        (
            "[queue.a]\nrun = \"echo {}\"",
            "w.toml:2:7: `run` is a string, expected an array of strings",
            "no shell splits it: run = [\"PROGRAM\", \"ARGUMENT\"…]",
        ),
        ("[queue.a]\nrun = [\"true\", 3]", "w.toml:2:16: `run` is an integer, expected strings only", ""),
        ("[queue.a]\nrun = [\"true\"]\nweight = 0", "w.toml:3:10: `weight` is 0, expected 1 to 1000000", ""),
        (
            "[queue.a]\nrun = [\"true\"]\ntime_limit = \"0s\"",
            "w.toml:3:14: `time_limit`: \"0s\" is no time at all, expected a longer one",
            "",
        ),
        ("[queue.a]\nrun = [\"true\"]\nbackoff = \"2h\"", "w.toml:3:11: `backoff` is longer than `backoff_max`", ""),
        ("[queue.a]\nrun = [\"/no/such\"]", "w.toml:2:7: the program \"/no/such\" is not there", ""),
        ("[queue.a]\nrun = [\"/etc/passwd\"]", "w.toml:2:7: the program \"/etc/passwd\" is not executable", ""),
        (
            "[queue.a]\nrun = [\"true\"]\ndirectory = \"/no/such\"",
            "w.toml:3:13: cannot use the directory /no/such: No such file or directory (os error 2)",
            "",
        ),
        (
            "[queue.img.thumb]\nrun = [\"true\"]",
            "w.toml:1:12: unknown key `thumb` in [queue.img]",
            "a queue name with a dot stands in quotes: [queue.\"img.thumb\"]",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nhours = \"22-06\"",
            "w.toml:3:9: `hours`: cannot read the times \"22-06\"; \
             expected hours such as 22:00-06:00 or Mon-Fri 08:00-18:00 Europe/Berlin",
            "",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nhours = \"1:00-2:00 Mars/X\"",
            "w.toml:3:9: `hours`: no such zone \"Mars/X\"; expected a name such as UTC or Europe/Berlin",
            "",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nrate = \"fast\"",
            "w.toml:3:8: `rate`: \"fast\" is no rate, expected a number and a time such as 100/s, 5/m or 1/90s",
            "",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nrate = \"0/s\"",
            "w.toml:3:8: `rate`: \"0/s\" cannot be kept, expected 1 to 1000000 in a time of up to a year",
            "",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nrate = 100",
            "w.toml:3:8: `rate` is an integer, expected a string in quotes",
            "",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nrate = \"1/s\"\nrate_key = \"host\"",
            "w.toml:4:12: `rate_key`: \"host\" takes nothing of the data, expected a template such as {data.host}",
            "",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nrate = \"1/s\"\nrate_key = \"{data.host}{id}\"",
            "w.toml:4:12: `rate_key`: \"{data.host}{id}\" has {id}, which is another for each job or attempt",
            "",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nrate_key = \"{data}\"",
            "w.toml:3:12: `rate_key` tells destinations apart, and there is neither a `rate` nor a `dead_after` \
             for them",
            "",
        ),
        ("[queue.a]\nrun = [\"true\"]\ndead_after = -1", "w.toml:3:14: `dead_after` is -1, expected 0 to 1000000", ""),
        ("[queue.\"\"]\nrun = [\"true\"]", "w.toml:1:8: the queue name is empty", ""),
        ("[queue.\"-a\"]\nrun = [\"true\"]", "w.toml:1:8: a queue name may not begin with `-`", ""),
        (
            "[queue.a]\nrun = [\"true\"]\nenvironment = { WINDLASS_X = \"1\" }",
            "w.toml:3:17: \"WINDLASS_X\" is set by windlass itself for each job",
            "",
        ),
        (
            "[queue.a]\nrun = [\"true\"]\nenvironment = { X = 1 }",
            "w.toml:3:21: `X` is an integer, expected a string in quotes",
            "",
        ),
    ] {
        let failure = parse(text).expect_err(text);
        assert_eq!((failure.text.as_str(), failure.hint.as_deref().unwrap_or("")), (expected, hint));
        assert_eq!(failure.kind, Kind::Config);
    }
}

#[test]
fn limits_and_users_are_checked_against_the_machine_and_the_list() {
    let queue = "[queue.a]\nrun=[\"true\"]\n";
    for (text, expected) in [
        (format!("{queue}process_limit = 0"), "w.toml:3:17: `process_limit` is 0, expected 1 to 1000000"),
        (
            format!("{queue}output_limit = \"0\""),
            "w.toml:3:16: `output_limit`: \"0\" is no output at all, expected more",
        ),
        (format!("{queue}cpu_limit = \"0s\""), "w.toml:3:13: `cpu_limit`: \"0s\" is no time at all"),
        (
            format!("[limits]\nmemory = \"1G\"\n{queue}memory = \"1025M\""),
            "w.toml:5:10: it needs 1.0 GiB and could never start: `memory` in [limits] is 1 GiB",
        ),
        (
            format!("{queue}memory = \"1000T\""),
            "w.toml:3:10: it needs 1000 TiB and could never start: this machine has",
        ),
        ("[limits]\nmemory = \"0\"".into(), "w.toml:2:10: `memory`: \"0\" is no memory at all"),
        ("[limits]\nusers = \"root\"".into(), "w.toml:2:9: `users` is a string, expected an array of names"),
        ("[limits]\nusers = [3]".into(), "w.toml:2:10: `users` is an integer, expected names only"),
        (format!("{queue}user = \"nobody\""), "w.toml:3:8: \"nobody\" is not in `users` of [limits] (which is empty)"),
        (
            format!("[limits]\nusers = [\"nobody\"]\n{queue}user = \"root\""),
            "w.toml:5:8: \"root\" is not in `users` of [limits] (nobody)",
        ),
        (
            format!("[limits]\nusers = [\"no one here\"]\n{queue}user = \"no one here\""),
            "w.toml:5:8: this machine has no user \"no one here\"",
        ),
        (
            "[queue.a]\nworker=[\"true\"]\ncpu_limit = \"1s\"".into(),
            "w.toml:3:13: `cpu_limit` is for a process that ends with its jobs, and [queue.a] has one that stays",
        ),
    ] {
        let refused = parse(&text).unwrap_err().to_string();
        assert!(refused.starts_with(expected), "{refused}\nexpected {expected}");
    }
    let text = format!(
        "[limits]\nmemory = \"9G\"\nusers = [\"nobody\"]\n{queue}memory = \"9G\"\nprocess_limit = 3\n\
         cpu_limit = \"90s\"\noutput_limit = \"1M\"\nuser = \"nobody\""
    );
    let policy = &parse(&text).unwrap().policies_under(&|_| None)[0];
    let limits = policy.limits;
    assert_eq!((limits.memory, limits.processes, limits.cpu.as_secs(), limits.output), (9 << 30, 3, 90, 1 << 20));
    let user = policy.user.as_ref().unwrap();
    assert!(user.uid > 0 && user.groups.contains(&user.gid), "{user:?}");
    let environment = &policy.service.command().unwrap().environment;
    assert!(environment.contains(&(b"USER".to_vec(), b"nobody".to_vec())) && environment.len() == 2);
}

#[test]
fn what_the_parser_refuses_has_a_place_too() {
    for text in ["[limits", "[limits]\nslots = 1\nslots = 2", "a = \"\u{1}\"", "x = 1\0"] {
        let failure = parse(text).expect_err(text);
        assert!(failure.text.starts_with("w.toml:") && !failure.text.contains('\n'), "{}", failure.text);
    }
    assert!(parse(&format!("a = {}1", "[".repeat(100_000))).is_err(), "deep nesting ends in a refusal");
}

#[test]
fn a_switched_off_queue_is_not_checked_against_the_machine() {
    let off = parse("[queue.a]\nenabled = false\nrun = [\"/no/such\"]").unwrap().policies();
    assert!(off.len() == 1 && !off[0].enabled, "it keeps its jobs from the tables behind it");
    assert!(parse("[queue.a]\nrun = [\"{}\"]").is_ok(), "a template can be the program");
}

#[test]
fn files_that_cannot_be_a_config() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.toml");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let failure = Config::load(&path).unwrap_err();
        assert_eq!(failure.kind, Kind::Config);
        failure.text.replace(&dir.path().display().to_string(), "D")
    };
    assert_eq!(refused(b""), "the config D/w.toml is empty");
    assert_eq!(refused(b"# fine\n# \xff"), "D/w.toml:2:3: not UTF-8 text");
    assert_eq!(refused(&vec![b'\n'; 2 << 20]), "the config D/w.toml has more than 1048576 bytes");
    std::fs::write(&path, "\u{feff}[limits]\r\nslots = 3\r\n").unwrap();
    assert_eq!(Config::load(&path).unwrap().slots, 3);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(Config::load(&path).unwrap_err().text.contains("can be written by everybody"));
    assert!(Config::load(dir.path()).unwrap_err().text.contains("is not a file"));
    assert_eq!(Config::load(&dir.path().join("none")).unwrap_err().kind, Kind::Config);
}

#[test]
fn defaults_hold_where_a_table_does_not_say_otherwise() {
    let text = "[defaults]\nattempts = 2\ntime_limit = \"1m\"\n[queue.a]\nrun = [\"true\"]\n\
                [queue.b]\nrun = [\"true\"]\nattempts = 7\n\
                [pipeline.p]\n[[pipeline.p.stage]]\nname = \"s\"\nrun = [\"true\"]\n";
    let loaded = Loaded::parse(Path::new("windlass.toml"), text).unwrap();
    let config = &loaded.config;
    let of = |policy: &Policy| (policy.attempts, policy.time_limit.map(|limit| limit.as_secs()), policy.slots);
    assert_eq!((of(&config.queues[0]), of(&config.queues[1])), ((2, Some(60), 4), (7, Some(60), 4)));
    assert_eq!(config.pipelines[0].rules[0].attempts, 2);
    let entries = loaded.entries();
    let line = |table: &str, key: &str| entries.iter().find(|e| e.table == table && e.key == key).unwrap().line;
    assert_eq!((line("a", "attempts"), line("b", "attempts"), line("a", "slots")), (Some(2), Some(8), None));
    assert_eq!((line("defaults", "attempts"), line("pipeline.p.s", "time_limit")), (Some(2), Some(3)));
    let refused = |text: &str| Config::parse(Path::new("windlass.toml"), text).unwrap_err().text;
    assert!(refused("[defaults]\nrun = [\"true\"]\n").contains("unknown key `run` in [defaults]"));
    assert!(refused("[defaults]\nslots = 0\n").contains("slots"));
}
