//! Remote workers: the ready-made one and the calls themselves, against a real server, through deaths of either side.

use crate::rig::{Process, Rig, lines_of, sorted};
use rustix::process::Signal;
use serde_json::{Value, json};
use windlass::client::Connection;
use windlass::error::Kind;

const FAR: &str = "[queue.\"far*\"]\nremote = true\nslots = 50\nattempts = 2\nbackoff = \"1ms\"\n";

pub(crate) fn connect(rig: &Rig) -> Connection {
    Connection::open(&windlass::data_dir::DataDir::open(&rig.dir()).unwrap()).unwrap().unwrap()
}

fn worker(rig: &Rig, words: &[&str]) -> Process {
    // What a killed worker leaves behind goes with the rig.
    let place = rig.path("work");
    std::fs::create_dir_all(&place).unwrap();
    Process::start(rig.windlass(&[&["work", "far*"], words].concat()).env("XDG_RUNTIME_DIR", place))
}

/// Asks for jobs of a queue until there are some; one that never comes ends the test and not the patience of whoever
/// runs it.
#[track_caller]
pub(crate) fn claim(to: &mut Connection, queue: &str, most: u32) -> Vec<Value> {
    for _ in 0..5 {
        let asked = json!({ "queues": [queue], "most": most, "wait_s": 60 });
        let claimed: Value = to.post_json("/api/v1/work/claim", &asked).unwrap();
        let jobs = claimed["jobs"].as_array().unwrap().clone();
        if !jobs.is_empty() {
            return jobs;
        }
    }
    panic!("no job of {queue} within five minutes")
}

pub(crate) fn reply(to: &mut Connection, job: &Value, reply: &Value) -> Result<Value, windlass::error::Failure> {
    let (id, token) = (job["id"].as_str().unwrap(), job["token"].as_str().unwrap());
    let body = serde_json::to_vec(reply).unwrap();
    to.post_as(token, &format!("/api/v1/jobs/{id}/reply"), "application/json", &body)?.checked()?.json()
}

fn show(rig: &Rig, id: &str) -> Value {
    rig.call(&["show", id, "--json"]).json()
}

#[test]
fn a_worker_elsewhere_does_what_a_command_would() {
    let rig = Rig::new();
    let server = rig.serve(&format!("{FAR}time_limit = \"20s\"\n[queue.next]\nrun = [\"true\"]\n"));
    let script = "case $1 in
        fine) echo on stdout; echo on stderr >&2;;
        bad) exit 3;;
        never) exit 64;;
        wish) echo 'result wished' >> $WINDLASS_CONTROL;;
        again) test $WINDLASS_ATTEMPT = 2 || echo 'again' >> $WINDLASS_CONTROL;;
        emit) printf 'next\\ta\\nnext\\tb\\n' >> $WINDLASS_EMIT;;
        lost) printf 'next\\tx\\n' >> $WINDLASS_EMIT; exit 1;;
        about) echo $WINDLASS_QUEUE $WINDLASS_ATTEMPT;;
        half) test \"$WINDLASS_CHECKPOINT\" || { echo 'checkpoint page 3' >> $WINDLASS_CONTROL; exit 1; }
            echo from $WINDLASS_CHECKPOINT;;
        esac";
    let process = worker(&rig, &["-j", "3", "--", "sh", "-c", script, "sh", "{}"]);
    let cases = [
        ("fine", "succeeded", "on stdout"),
        ("bad", "failed", "exit 3"),
        ("never", "failed", "exit 64: said that it cannot succeed"),
        ("wish", "succeeded", "wished"),
        ("again", "succeeded", ""),
        ("emit", "succeeded", ""),
        ("lost", "failed", "exit 1"),
        ("about", "succeeded", "far.q 1"),
        ("half", "succeeded", "from page 3"),
    ];
    let ids = rig.call(&[&["push", "far.q"][..], &cases.map(|case| case.0)].concat()).fine().to_owned();
    rig.drained();
    for (id, (data, state, words)) in ids.lines().zip(cases) {
        let job = show(&rig, id);
        let last = job["history"].as_array().unwrap().last().unwrap().clone();
        let told =
            [&last["message"], &last["error"]].into_iter().find_map(|text| text.as_str().filter(|t| !t.is_empty()));
        assert_eq!((job["state"].as_str().unwrap(), told.unwrap_or_default()), (state, words), "{data}: {last}");
    }
    assert_eq!(rig.call(&["logs", ids.lines().next().unwrap()]).fine(), "on stdout\n");
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["next"]["succeeded"], 2);
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}

#[test]
fn data_passes_byte_for_byte() {
    let rig = Rig::new();
    let server = rig.serve(FAR);
    let out = rig.path("out");
    std::fs::create_dir(&out).unwrap();
    let process = worker(&rig, &["--", "sh", "-c", "cat > $1/$WINDLASS_JOB_ID", "sh", out.to_str().unwrap()]);
    let mut sent: Vec<Vec<u8>> = vec![
        b"\"'$(id)`".to_vec(),
        b"-rf".to_vec(),
        b"a\0b".to_vec(),
        (0..=255).filter(|b| *b != b'\n').collect(),
        vec![b'y'; 1 << 20],
    ];
    rig.feed(&["push", "far"], sent.join(&b'\n')).fine();
    sent.push(b"two\nlines\n".to_vec());
    rig.feed(&["push", "far", "-0"], &sent[sent.len() - 1]).fine();
    rig.drained();
    let mut came: Vec<Vec<u8>> =
        std::fs::read_dir(&out).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    came.sort();
    sent.sort();
    assert_eq!(came.len(), sent.len());
    assert!(came.iter().zip(&sent).all(|(came, sent)| came == sent));
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}

#[test]
fn why_says_that_no_worker_asks() {
    let rig = Rig::new();
    let server = rig.serve(FAR);
    rig.call(&["push", "far", "x"]).fine();
    let why = rig.call(&["why", "far"]).fine().to_owned();
    assert!(why.contains("it waits for a remote worker; none has asked since the server started"), "{why}");
    let mut to = connect(&rig);
    let job = claim(&mut to, "far", 9).remove(0);
    reply(&mut to, &job, &json!({ "status": "ok" })).unwrap();
    rig.call(&["push", "far", "y"]).fine();
    let why = rig.call(&["why", "far", "--json"]).json();
    assert_eq!(why["reasons"][0]["code"], "no_worker_asks", "{why}");
    let text = why["reasons"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("it waits for a remote worker; none has asked since 2"), "{text}");
    server.stop();
}

#[test]
fn an_end_is_told_once_however_often_and_only_with_its_token() {
    let rig = Rig::new();
    let server = rig.serve(&format!("{FAR}[queue.next]\nrun = [\"true\"]\n"));
    let ids = rig.call(&["push", "far", "a", "b"]).fine().to_owned();
    let mut to = connect(&rig);
    let jobs = claim(&mut to, "far", 9);
    assert_eq!(jobs.iter().map(|job| job["id"].as_str().unwrap()).collect::<Vec<_>>(), ids.lines().collect::<Vec<_>>());
    let done = json!({ "status": "ok", "message": "once", "emit": [{ "queue": "next", "data": "n" }] });
    // Neither another job's token, nor a word that is none, changes anything.
    let swapped = json!({ "id": jobs[0]["id"], "token": jobs[1]["token"] });
    let refused = reply(&mut to, &swapped, &done).unwrap_err();
    assert!(refused.kind == Kind::Conflict && refused.text.contains("is not that of a running start"), "{refused}");
    assert_eq!(reply(&mut to, &jobs[0], &json!({ "status": "perhaps" })).unwrap_err().kind, Kind::BadData);
    assert_eq!(reply(&mut to, &jobs[0], &json!({ "status": "ok", "x": 1 })).unwrap_err().kind, Kind::Usage);
    for _ in 0..3 {
        let taken = reply(&mut to, &jobs[0], &done).unwrap();
        assert_eq!((&taken["id"], &taken["outcome"]), (&jobs[0]["id"], &"succeeded".into()));
    }
    let id = jobs[1]["id"].as_str().unwrap();
    let path = format!("/api/v1/jobs/{id}/emit");
    let token = jobs[1]["token"].as_str().unwrap();
    to.post_as(token, &path, "text/plain", b"next\tnever").unwrap().checked().unwrap();
    assert_eq!(to.post_as(token, &path, "text/plain", b"no tab").unwrap().status, 422);
    assert_eq!(to.post(&path, "text/plain", b"next\tx").unwrap().status, 401, "without a token");
    to.post_as(token, &path.replace("emit", "control"), "text/plain", b"progress 1/2 half\nphase x").unwrap();
    assert_eq!(show(&rig, id)["progress"], "1/2 half");
    reply(&mut to, &jobs[1], &json!({ "status": "fail", "error": "no use" })).unwrap();
    rig.drained();
    assert_eq!(show(&rig, ids.lines().next().unwrap())["history"][0]["message"], "once");
    assert_eq!((&show(&rig, id)["state"], &show(&rig, id)["reason"]), (&"failed".into(), &"refused".into()));
    assert_eq!(
        rig.call(&["status", "--json"]).json()["queues"]["next"]["succeeded"],
        1,
        "only of the one that succeeded"
    );
    server.stop();
}

#[test]
fn who_is_silent_loses_the_job_and_is_told_so() {
    let rig = Rig::new();
    let server = rig.serve(&format!("{FAR}lease = \"1s\"\n"));
    let id = rig.call(&["push", "far", "x"]).fine().trim_end().to_owned();
    let mut to = connect(&rig);
    let silent = claim(&mut to, "far", 1).remove(0);
    // The next ask waits until the lease has ended.
    let next = claim(&mut to, "far", 1).remove(0);
    assert_eq!((&next["id"], &next["attempt"]), (&id.as_str().into(), &2.into()));
    let late = reply(&mut to, &silent, &json!({ "status": "ok" })).unwrap_err();
    assert!(late.kind == Kind::Conflict && late.text.contains("nothing was changed"), "{late}");
    let signs: Value =
        to.post_json("/api/v1/work/heartbeat", &json!({ "tokens": [silent["token"], next["token"]] })).unwrap();
    assert_eq!(signs["signs"], json!(["over", "go_on"]));
    let suspicions = show(&rig, &id)["attempts"]["suspicions"].clone();
    reply(&mut to, &next, &json!({ "status": "ok" })).unwrap();
    rig.drained();
    assert_eq!((suspicions, &show(&rig, &id)["state"]), (1.into(), &"succeeded".into()));
    server.stop();
}

/// What a job says for itself, with its own token.
fn speak(to: &mut Connection, job: &Value, how: &str, lines: &str) {
    let (id, token) = (job["id"].as_str().unwrap(), job["token"].as_str().unwrap());
    let path = format!("/api/v1/jobs/{id}/{how}");
    to.post_as(token, &path, "text/plain", lines.as_bytes()).unwrap().checked().unwrap();
}

#[test]
fn a_lease_outlives_the_server_that_gave_it() {
    let rig = Rig::new();
    let mut server = rig.serve(&format!("{FAR}lease = \"1h\"\n[queue.next]\nrun = [\"true\"]\n"));
    rig.call(&["push", "far", "a", "b", "c"]).fine();
    let mut to = connect(&rig);
    let jobs = claim(&mut to, "far", 9);
    speak(&mut to, &jobs[0], "emit", "next\tbefore");
    speak(&mut to, &jobs[1], "control", "again");
    for ending in ["killed", "stopped", "another process between"] {
        match ending {
            "killed" => server.process.kill(),
            // Workers elsewhere are not waited for.
            "stopped" => drop(server.stop()),
            // One that knows nothing of the config takes over the store, and leaves their jobs alone.
            _ => {
                server.process.kill();
                rig.feed(&["run", "--", "true"], "x\n").fine();
            }
        }
        server = rig.serve_again();
        to = connect(&rig);
        let tokens: Vec<&Value> = jobs.iter().map(|job| &job["token"]).collect();
        let signs: Value = to.post_json("/api/v1/work/heartbeat", &json!({ "tokens": tokens })).unwrap();
        assert_eq!(signs["signs"], json!(["go_on", "go_on", "go_on"]), "{ending}");
    }
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!((&status["queues"]["far"]["running"], &status["queues"]["far"]["ready"]), (&3.into(), &0.into()));
    speak(&mut to, &jobs[0], "emit", "next\tafter");
    for _ in 0..2 {
        assert_eq!(reply(&mut to, &jobs[0], &json!({ "status": "ok" })).unwrap()["outcome"], "succeeded");
    }
    reply(&mut to, &jobs[1], &json!({ "status": "ok" })).unwrap();
    reply(&mut to, &jobs[2], &json!({ "status": "fail", "error": "no use" })).unwrap();
    let again = claim(&mut to, "far", 9);
    assert_eq!(again.len(), 1, "what it asked for before the restart counts at its end");
    assert_eq!((&again[0]["id"], &again[0]["attempt"]), (&jobs[1]["id"], &2.into()));
    reply(&mut to, &again[0], &json!({ "status": "ok" })).unwrap();
    rig.drained();
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["queues"]["next"]["succeeded"], 2, "emitted before and after: {status}");
    assert_eq!((&status["queues"]["far"]["succeeded"], &status["queues"]["far"]["failed"]), (&2.into(), &1.into()));
    let first = show(&rig, jobs[0]["id"].as_str().unwrap());
    assert_eq!(first["attempts"], json!({ "starts": 1 }), "{first}");
    server.stop();
}

#[test]
fn a_lease_that_nobody_speaks_for_after_a_restart_accuses_nobody() {
    let rig = Rig::new();
    let server = rig.serve(&format!("{FAR}lease = \"1s\"\n"));
    let id = rig.call(&["push", "far", "x"]).fine().trim_end().to_owned();
    let silent = claim(&mut connect(&rig), "far", 1).remove(0);
    server.process.kill();
    let server = rig.serve_again();
    let mut to = connect(&rig);
    // The next ask waits until the lease has ended.
    let next = claim(&mut to, "far", 1).remove(0);
    assert_eq!((&next["id"], &next["attempt"]), (&id.as_str().into(), &2.into()));
    assert_eq!(show(&rig, &id)["attempts"]["suspicions"], 0);
    assert_eq!(reply(&mut to, &silent, &json!({ "status": "ok" })).unwrap_err().kind, Kind::Conflict);
    // Where workers elsewhere serve the queue no more, their leases are over at once.
    server.process.kill();
    let server = rig.serve("[queue.far]\nrun = [\"true\"]\n");
    rig.drained();
    assert_eq!(show(&rig, &id)["state"], "succeeded");
    assert_eq!(reply(&mut connect(&rig), &next, &json!({ "status": "ok" })).unwrap_err().kind, Kind::Conflict);
    server.stop();
}

#[test]
fn a_cancelled_job_is_stopped_where_it_runs() {
    let rig = Rig::new();
    let server = rig.serve(FAR);
    let mut bell = rig.bell("bell");
    let script = format!("echo $$ > {}; exec sleep 1000", bell.path);
    let process = worker(&rig, &["--", "sh", "-c", &script]);
    let id = rig.call(&["push", "far", "x"]).fine().trim_end().to_owned();
    let pid: i32 = bell.next().parse().unwrap();
    rig.call(&["cancel", &id]).fine();
    rig.drained();
    assert_eq!(show(&rig, &id)["state"], "cancelled");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "its process is gone");
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}

#[test]
fn nothing_is_lost_while_server_and_worker_are_killed() {
    let rig = Rig::new();
    let witness = rig.path("witness");
    let mut bell = rig.bell("bell");
    // Each start tells the witness before it does anything else; the bell rings for each that has.
    let script = format!("echo $1 >> {}; echo $1 > {}; echo done", witness.display(), bell.path);
    let words: Vec<String> = ["-j", "4", "--", "sh", "-c", &script, "sh", "{}"].map(str::to_owned).to_vec();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server = rig.serve("[queue.far]\nremote = true\nlease = \"2s\"\nattempts = 0\nslots = 50\n");
    let all: Vec<String> = (0..60).map(|number| format!("job-{number}")).collect();
    rig.feed(&["push", "far"], all.join("\n")).fine();
    let mut process = worker(&rig, &words);
    for round in 0..6 {
        for _ in 0..5 {
            bell.next();
        }
        match round % 3 {
            0 => {
                process.kill();
                process = worker(&rig, &words);
            }
            1 => {
                server.process.kill();
                server = rig.serve_again();
            }
            _ => {
                server.process.kill();
                process.kill();
                process = worker(&rig, &words);
                server = rig.serve_again();
            }
        }
    }
    rig.drained();
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["queues"]["far"]["succeeded"], 60, "{status}");
    let mut seen = lines_of(&witness);
    let starts = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, sorted(&all.join("\n")));
    // What ran when somebody was killed may have run again, and nothing else: four slots, six rounds.
    assert!(starts <= 60 + 6 * 4 * 2, "{starts} starts of 60 jobs");
    process.signal(Signal::TERM);
    process.end().fine();
    server.stop();
}

#[test]
fn a_job_speaks_over_http_with_a_token_of_its_own() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo $WINDLASS_URL $WINDLASS_JOB_TOKEN > {}; read open < {}; exit $1", bell.path, gate.path);
    let config = format!(
        "[queue.q]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\nattempts = 1\n\
         [queue.next]\nrun = [\"true\"]\n"
    );
    let server = rig.serve(&config);
    let mut tokens = Vec::new();
    for (code, emitted) in [("1", 0), ("0", 1)] {
        let id = rig.call(&["push", "q", code]).fine().trim_end().to_owned();
        let told = bell.next();
        let (url, token) = told.split_once(' ').unwrap();
        let mut to = Connection::open_url(url, Some(token)).unwrap().unwrap();
        let (control, emit) = (format!("/api/v1/jobs/{id}/control"), format!("/api/v1/jobs/{id}/emit"));
        to.post(&control, "text/plain", b"progress 2/3 far\nresult told over HTTP").unwrap().checked().unwrap();
        to.post(&emit, "text/plain", b"next\tone").unwrap().checked().unwrap();
        assert_eq!(show(&rig, &id)["progress"], "2/3 far");
        // The helpers of a script do the same where there is no file.
        let mut helper = rig.windlass(&["progress", "--phase", "sent"]);
        helper.env("WINDLASS_URL", url).env("WINDLASS_JOB_TOKEN", token).env("WINDLASS_JOB_ID", &id);
        Process::start(&mut helper).end().fine();
        assert_eq!(show(&rig, &id)["phase"], "sent");
        // The token opens nothing else, and no other token opens this.
        assert_eq!(to.get("/api/v1/status").unwrap().status, 401);
        assert_eq!(to.post_as(&"0".repeat(32), &control, "text/plain", b"phase x").unwrap().status, 409);
        tokens.push((id.clone(), token.to_owned(), url.to_owned()));
        assert_eq!(
            to.post_as(&tokens[0].1, &control, "text/plain", b"phase x").unwrap().status == 200,
            tokens.len() == 1
        );
        gate.open(1);
        rig.drained();
        assert_eq!(
            rig.call(&["status", "--json"]).json()["queues"]["next"]["succeeded"].as_u64().unwrap_or(0),
            emitted
        );
    }
    let (id, token, url) = tokens.pop().unwrap();
    assert_eq!(show(&rig, &id)["history"][0]["message"], "told over HTTP");
    let mut to = Connection::open_url(&url, Some(&token)).unwrap().unwrap();
    let late = to.post(&format!("/api/v1/jobs/{id}/emit"), "text/plain", b"next\tlate").unwrap();
    assert_eq!(late.status, 409, "its attempt has ended");
    server.stop();
}

#[test]
fn bad_words_are_refused() {
    let rig = Rig::new();
    let server = rig.serve(FAR);
    rig.call(&["work", "far"]).ended(64);
    rig.call(&["work", "--", "true"]).ended(64);
    rig.call(&["work", "far", "--", ""]).says("the command is the empty string").ended(64);
    rig.call(&["work", "far", "-j", "0", "--", "true"]).ended(64);
    rig.call(&["work", "far", "--server", "ftp://x", "--", "true"]).says("expected http://HOST:PORT").ended(64);
    let mut to = connect(&rig);
    for body in
        [json!({ "queues": [] }), json!({ "queues": ["x"], "most": 0 }), json!({ "queues": ["x"], "wait_s": 0 })]
    {
        assert_eq!(to.post_json::<Value>("/api/v1/work/claim", &body).unwrap_err().kind, Kind::BadData, "{body}");
    }
    let path = rig.path("c.toml");
    for (text, sentence) in [
        ("remote = false\n", "`remote` is false, expected true"),
        ("remote = true\nlease = \"10ms\"\n", "is no lease, expected 1s to 1d"),
        ("run = [\"true\"]\nlease = \"1s\"\n", "`lease` belongs to `remote`"),
        ("remote = true\ndirectory = \"/\"\n", "`directory` does nothing where the jobs run elsewhere"),
        ("remote = true\nworker = [\"true\"]\n", "[queue.q] has `worker` and `remote`"),
    ] {
        std::fs::write(&path, format!("[queue.q]\n{text}")).unwrap();
        rig.call(&["config", "check", path.to_str().unwrap()]).says(sentence).ended(78);
    }
    server.stop();
}
