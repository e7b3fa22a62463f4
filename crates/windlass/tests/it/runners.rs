//! Batch commands, kept workers and the control channel through the whole program, and the examples of their page.

use crate::rig::Rig;
use serde_json::Value;

/// The fenced blocks of a page, in order, with their language.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((_, behind)) = rest.split_once("\n```") {
        let (language, behind) = behind.split_once('\n').unwrap();
        let (text, behind) = behind.split_once("```").unwrap();
        blocks.push((language, text));
        rest = behind;
    }
    blocks
}

fn told(job: &Value) -> String {
    let last = job["history"].as_array().and_then(|history| history.last()).cloned().unwrap_or_default();
    let words = [&last["message"], &last["error"]].into_iter().find_map(|text| text.as_str().filter(|t| !t.is_empty()));
    format!("{} {}", job["state"].as_str().unwrap(), words.unwrap_or_default()).trim_end().to_owned()
}

#[test]
fn the_examples_of_the_page_do_what_it_says() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runners.md")).unwrap();
    let blocks = blocks(&page);
    let config: String = blocks.iter().filter(|(language, _)| *language == "toml").map(|(_, text)| *text).collect();
    let rig = Rig::new();
    std::fs::create_dir_all(rig.dir()).unwrap();
    for (_, module) in blocks.iter().filter(|(language, _)| *language == "lua") {
        let name = module.lines().next().unwrap().trim_start_matches("-- ");
        std::fs::write(rig.dir().join(name), module).unwrap();
    }
    let server = rig.serve(&config);
    let mut checked = 0;
    for pair in blocks.windows(2) {
        let [("sh", order), ("text", expected)] = pair else { continue };
        let words: Vec<String> =
            order.trim().replace("\"to be\"", "to\u{a0}be").split(' ').map(|w| w.replace('\u{a0}', " ")).collect();
        let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
        let ids = rig.call(&words).fine().to_owned();
        rig.call(&["wait", "--drained"]);
        for (id, line) in ids.lines().zip(expected.lines()) {
            let job = rig.call(&["show", id, "--json"]).json();
            assert_eq!(format!("{}: {}", job["data"].as_str().unwrap(), told(&job)), line);
            checked += 1;
        }
    }
    assert_eq!(checked, 13, "the page has as many lines of results");
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["queues"]["word"]["succeeded"], 2, "what was emitted has run");
    server.stop();
}

#[test]
fn yaml_arrives_as_json_and_the_subject_is_told_whatever_serves_a_queue() {
    let rig = Rig::new();
    let mut bell = rig.bell("bell");
    std::fs::write(
        rig.dir().join("lua.lua"),
        "return function(job)\n\
         return windlass.decode(job.data).a[2] .. ' ' .. job.subject_type .. job.subject_id\nend\n",
    )
    .unwrap();
    let ring = format!("cat > {}", bell.path);
    let config = format!(
        "[queue.stdin]\nrun = [\"sh\", \"-c\", \"(cat; echo) > {path}\"]\ndata = \"yaml\"\n\
         [queue.argument]\nrun = [\"sh\", \"-c\", \"echo $1 $WINDLASS_SUBJECT_TYPE $WINDLASS_SUBJECT_ID > {path}\", \
         \"sh\", \"{{data.a.1}}\"]\ndata = \"yaml\"\n\
         [queue.batch]\nbatch = [\"sh\", \"-c\", \"{ring}\"]\nreply = \"exit\"\nframing = \"json\"\ndata = \"yaml\"\n\
         [queue.lua]\nlua = \"lua.lua\"\ndata = \"yaml\"\n\
         [queue.bytes]\nrun = [\"sh\", \"-c\", \"(cat; echo) > {path}\"]\n",
        path = bell.path
    );
    let server = rig.serve(&config);
    let push = |queue: &str, data: &str| {
        rig.call(&["push", queue, "--subject", "Comment:7", "--", data]).fine().trim_end().to_owned()
    };
    let yaml = "---\n:a:\n- 1\n- two\n";
    push("stdin", yaml);
    assert_eq!(bell.next(), r#"{"a":[1,"two"]}"#);
    push("argument", yaml);
    assert_eq!(bell.next(), "two Comment 7");
    push("batch", yaml);
    let line: Value = serde_json::from_str(&bell.next()).unwrap();
    assert_eq!(
        (&line["data"], &line["subject"]["type"], &line["subject"]["id"]),
        (&Value::from(r#"{"a":[1,"two"]}"#), &Value::from("Comment"), &Value::from("7"))
    );
    push("bytes", "--- :a");
    assert_eq!(bell.next(), "--- :a", "byte for byte, where nobody asked for YAML");
    let (fine, wrong) = (push("lua", yaml), push("lua", "a: [1"));
    let wrong_batch = push("batch", "a: !ruby/object:X {}");
    rig.drained();
    assert_eq!(told(&rig.call(&["show", &fine, "--json"]).json()), "succeeded two Comment7");
    for id in [wrong, wrong_batch] {
        let said = told(&rig.call(&["show", &id, "--json"]).json());
        assert!(said.starts_with("failed the data is not the YAML that is expected"), "{said}");
    }
    server.stop();
}

#[test]
fn a_run_goes_on_while_its_jobs_emit_others() {
    let rig = Rig::new();
    // Each job emits one that is shorter, until nothing is left: a chain of five from one push.
    let script = "case $1 in ?*) printf 'chain\\t%s\\n' ${1%?} >> $WINDLASS_EMIT;; esac";
    let server = rig.serve(&format!("[queue.chain]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\n"));
    let run = rig.call(&["push", "chain", "xxxx", "--run", "new", "--json"]).json();
    let run = run["run"].as_str().unwrap().to_owned();
    rig.call(&["wait", &run]).fine();
    let shown = rig.call(&["show", &run, "--json"]).json();
    assert_eq!(shown["counts"]["succeeded"], 5, "{shown}");
    server.stop();
}

#[test]
fn what_a_job_emits_does_not_count_if_it_fails() {
    let rig = Rig::new();
    let script = "windlass emit next 'a\nb'; windlass emit next c; windlass progress 1/2 half --phase x; exit $1";
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_windlass")).parent().unwrap().display();
    let config = format!(
        "[queue.q]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\nattempts = 1\n\
         environment = {{ PATH = \"{bin}:/usr/bin:/bin\" }}\n[queue.next]\nrun = [\"cat\"]\n"
    );
    let server = rig.serve(&config);
    rig.call(&["push", "q", "7"]).fine();
    rig.call(&["wait", "--drained"]);
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["next"], Value::Null);
    rig.call(&["push", "q", "0"]).fine();
    rig.call(&["wait", "--drained"]).fine();
    let list = rig.call(&["ls", "queue:next", "--json"]).fine().to_owned();
    assert_eq!(
        list.matches("\"state\":\"succeeded\"").count() + list.matches("\"state\": \"succeeded\"").count(),
        2,
        "{list}"
    );
    rig.call(&["emit", "next", "x"]).says("WINDLASS_EMIT is not set").ended(64);
    rig.call(&["progress", "1/2"]).says("WINDLASS_CONTROL is not set").ended(64);
    rig.call(&["progress"]).says("nothing to say").ended(64);
    rig.call(&["emit", "-x", "y"]).ended(64);
    server.stop();
}

#[test]
fn progress_is_shown_while_a_job_runs() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!(
        "printf 'progress 3/9 half\\nphase sort\\n' >> $WINDLASS_CONTROL; echo > {}; read x < {}",
        bell.path, gate.path
    );
    let server = rig.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", {script:?}]\n"));
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    bell.next();
    let job = rig.call(&["show", &id, "--json"]).json();
    assert_eq!((&job["progress"], &job["phase"]), (&"3/9 half".into(), &"sort".into()), "{job}");
    let list = rig.call(&["ls", "queue:q", "--json"]).fine().to_owned();
    assert!(list.contains("3/9 half"), "{list}");
    gate.open(1);
    rig.call(&["wait", "--drained"]).fine();
    assert_eq!(rig.call(&["show", &id, "--json"]).json()["progress"], Value::Null);
    server.stop();
}

#[test]
fn a_queue_whose_worker_cannot_serve_says_so() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nworker = [\"sh\", \"-c\", \"echo no database >&2; exit 3\"]\n");
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    loop {
        let status = rig.call(&["status", "--json"]).json();
        if let Some(trouble) = status["troubles"]["q"].as_str() {
            assert!(trouble.contains("exit 3 before it answered a job: no database"), "{trouble}");
            break;
        }
    }
    rig.call(&["status"]).says("the workers of [queue.q] cannot serve: its worker ended with exit 3");
    for of in ["q", &id] {
        let why = rig.call(&["why", of, "--json"]).json();
        let mut codes = why["reasons"].as_array().unwrap().iter().map(|reason| reason["code"].as_str().unwrap());
        assert_eq!(codes.next_back(), Some("workers_cannot_serve"), "{why}");
    }
    let job = rig.call(&["show", &id, "--json"]).json();
    assert_eq!(job["attempts"]["failures"], 0, "{job}");
    server.stop();
}

#[test]
fn exactly_one_of_the_services_is_taken() {
    let rig = Rig::new();
    let path = rig.dir().parent().unwrap().join("c.toml");
    for (text, sentence) in [
        ("[queue.q]\nrun = [\"true\"]\nbatch = [\"true\"]\n", "[queue.q] has `run` and `batch`, expected exactly one"),
        ("[queue.q]\nslots = 1\n", "[queue.q] has no `run`"),
        (
            "[queue.q]\nrun = [\"true\"]\nbatch_size = 2\n",
            "`batch_size` belongs to `batch` or `url`, and [queue.q] has `run`",
        ),
        ("[queue.q]\nworker = [\"true\"]\nreply = \"exit\"\n", "`reply` belongs to `batch`"),
        ("[queue.q]\nrun = [\"true\"]\nframing = \"json\"\n", "`framing` belongs to `batch` or `worker`"),
        ("[queue.q]\nbatch = [\"true\", \"{}\"]\n", "`{}` in `batch` means one job"),
        ("[queue.q]\nworker = [\"true\", \"{data.x}\"]\n", "`{data.x}` in `worker` means one job"),
        ("[queue.q]\nbatch = [\"true\"]\nreply = \"maybe\"\n", "`reply` is \"maybe\", expected \"lines\" or \"exit\""),
        ("[queue.q]\nbatch = [\"true\"]\nframing = \"xml\"\n", "`framing` is \"xml\""),
        ("[queue.q]\nbatch = [\"true\"]\nbatch_size = 0\n", "`batch_size` is 0"),
        ("[queue.q]\nbatch = [\"true\"]\nbatch_linger = \"2h\"\n", "longer than an hour"),
        ("[queue.q]\nworker = [\"no-such-program\"]\n", "the program \"no-such-program\" is not in PATH"),
    ] {
        std::fs::write(&path, text).unwrap();
        rig.call(&["config", "check", path.to_str().unwrap()]).says(sentence).ended(78);
    }
}

#[test]
fn a_checkpoint_reaches_the_next_attempt_of_a_command_and_of_a_kept_worker() {
    let rig = Rig::new();
    let script = "case $WINDLASS_CHECKPOINT in '') echo checkpoint page 3 >> $WINDLASS_CONTROL; exit 1;; esac
                  echo from $WINDLASS_CHECKPOINT";
    let worker = "while read -r line; do case $line in
                  *checkpoint*) echo \"ok $line\";; *) echo checkpoint row 9 >&3; echo retry;; esac; done";
    let soon = "backoff = \"1ms\"\nbackoff_max = \"1ms\"\n";
    let server = rig.serve(&format!(
        "[queue.pages]\nrun = [\"sh\", \"-c\", {script:?}]\n{soon}\
         [queue.rows]\nworker = [\"sh\", \"-c\", {worker:?}]\nframing = \"json\"\n{soon}"
    ));
    for (queue, message) in [("pages", "from page 3"), ("rows", "\"checkpoint\":\"row 9\"")] {
        let id = rig.call(&["push", queue, "x"]).fine().trim().to_owned();
        rig.call(&["wait", &id]).fine();
        let job = rig.call(&["show", &id, "--json"]).json();
        assert!(told(&job).contains(message), "{queue}: {}", told(&job));
        assert_eq!(job["history"].as_array().unwrap().len(), 2, "{queue}");
    }
    server.stop();
}

#[test]
fn a_drain_gives_the_jobs_of_a_polite_batch_back() {
    let rig = Rig::new();
    let mut bell = rig.bell("bell");
    let table = |reply: &str| {
        let script = format!("trap 'exit 0' TERM; read job; echo {reply} > {}; sleep 1000 & wait", bell.path);
        format!("[queue.{reply}]\nbatch = [\"sh\", \"-c\", {script:?}]\nreply = \"{reply}\"\n")
    };
    let server = rig.serve(&format!("[server]\ndrain = \"10ms\"\n{}{}", table("lines"), table("exit")));
    let pushed = ["lines", "exit"].map(|queue| rig.call(&["push", queue, "a", "b", "c"]).fine().to_owned());
    for _ in 0..2 {
        bell.next();
    }
    server.stop();
    for id in pushed.iter().flat_map(|ids| ids.lines()) {
        let job = rig.call(&["show", id, "--json"]).json();
        assert_eq!((&job["state"], &job["attempts"]["failures"]), (&"ready".into(), &0.into()), "{job}");
    }
}

#[test]
fn jobs_of_a_batch_say_how_far_they_are_each_by_its_name() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!(
        r#"n=0; while read -r line; do
            id=$(echo "$line" | sed 's/.*"id":"\([^"]*\)".*/\1/'); n=$((n + 1))
            printf '@%s progress %s/9 part\n@%s phase sorts %s\n' $id $n $id $n >> $WINDLASS_CONTROL
            printf '@%s checkpoint row %s\nphase of nobody\n' $id $n >> $WINDLASS_CONTROL
            case $line in *checkpoint*) echo "ok $line";; *) echo retry;; esac
        done; echo > {}; read go < {}"#,
        bell.path, gate.path
    );
    let server = rig.serve(&format!(
        "[queue.q]\nbatch = [\"sh\", \"-c\", {script:?}]\nframing = \"json\"\nslots = 1\n\
         backoff = \"1ms\"\nbackoff_max = \"1ms\"\n"
    ));
    let ids = rig.call(&["push", "q", "a", "b"]).fine().to_owned();
    let ids: Vec<&str> = ids.lines().collect();
    bell.next();
    for (number, id) in (1..).zip(&ids) {
        let job = rig.call(&["show", id, "--json"]).json();
        assert_eq!(
            (&job["progress"], &job["phase"]),
            (&format!("{number}/9 part").into(), &format!("sorts {number}").into()),
            "{job}"
        );
    }
    // Everything after that is let through.
    gate.open(9);
    rig.drained();
    for (number, id) in (1..).zip(&ids) {
        let job = rig.call(&["show", id, "--json"]).json();
        assert!(told(&job).contains(&format!("\"checkpoint\":\"row {number}\"")), "{}", told(&job));
        assert_eq!(job["progress"], Value::Null);
    }
    server.stop();
}
