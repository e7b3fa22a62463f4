//! Progress kept in a memcached: a real one that is there, is not there, is killed and comes back, and a false one that
//! takes everything and answers nothing.

use crate::moves::Machine;
use crate::rig::{Process, Rig, Server};
use crate::work;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

/// A memcached of the test's own, which says of everything that it is asked.
struct Memcached {
    process: Process,
    socket: PathBuf,
}

impl Memcached {
    fn start(socket: &Path) -> Memcached {
        let mut command = Command::new("memcached");
        // Where root starts it, it wants to be told that this is meant.
        command.args(["-vv", "-u", "root", "-s"]).arg(socket).stdin(Stdio::null());
        let there = Command::new("memcached").arg("-V").stdout(Stdio::null()).status();
        assert!(there.is_ok_and(|status| status.success()), "there is no memcached: apt-get install memcached");
        let mut process = Process::start(&mut command);
        process.until("server listening");
        Memcached { process, socket: socket.to_owned() }
    }

    /// Its lines to a question, until one begins with this.
    fn ask(&self, question: &str, last: &str) -> Vec<String> {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        write!(stream, "{question}\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map(|line| line.unwrap());
        let mut all = Vec::new();
        for line in lines {
            let is_last = line.starts_with(last);
            all.push(line);
            if is_last {
                break;
            }
        }
        all
    }

    fn get(&self, key: &str) -> Option<Value> {
        let lines = self.ask(&format!("get {key}"), "END");
        (lines.len() > 1).then(|| serde_json::from_str(&lines[1]).unwrap())
    }

    /// Waits until something is written that makes the value so.
    #[track_caller]
    fn until(&mut self, key: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(value) = self.get(key).filter(&is_it) {
                return value;
            }
            self.process.until(" STORED");
        }
    }
}

fn config(socket: &Path, rest: &str) -> String {
    format!("[progress]\nmemcached = {:?}\nkeep = \"90s\"\n{rest}", socket.display().to_string())
}

/// A queue whose jobs say something, ring, stand at the gate and then say that all is done.
fn steps(bell: &str, gate: &str) -> String {
    let script = format!(
        "echo 'progress 1/4 first pages' >> $WINDLASS_CONTROL; echo 'phase reading' >> $WINDLASS_CONTROL; \
         echo rings > {bell}; read x < {gate}; echo 'progress 4/4 all' >> $WINDLASS_CONTROL"
    );
    format!("[queue.steps]\nrun = [\"sh\", \"-c\", {script:?}]\n")
}

fn words(value: &Value) -> Value {
    let mut value = value.clone();
    let at = value.as_object_mut().unwrap().remove("at").unwrap();
    assert!(at.as_str().unwrap().ends_with('Z'), "{at}");
    value
}

fn first_words(state: &str) -> Value {
    json!({ "state": state, "done": 1, "total": 4, "percent": 25, "phase": "reading", "text": "first pages" })
}

fn last_words(state: &str) -> Value {
    json!({ "state": state, "done": 4, "total": 4, "percent": 100, "phase": "reading", "text": "all" })
}

#[test]
fn what_a_job_says_is_in_the_memcached_while_it_runs_and_when_it_has_ended() {
    for means in ["", "inotify"] {
        let rig = Rig::new();
        let (bell, mut gate, socket) = (rig.bell("bell"), rig.gate("gate"), rig.path("memcached"));
        let mut memcached = Memcached::start(&socket);
        let config = config(&socket, &(steps(&bell.path, &gate.path) + "[queue.q]\nrun = [\"true\"]\n"));
        let server = rig.serve_without(means, &config);
        rig.call(&["push", "steps", "x", "--subject", "Upload:7"]).fine();
        let value = memcached.until("progress/Upload/7", |value| !value["phase"].is_null());
        assert_eq!(words(&value), first_words("running"));
        let life = memcached.ask("mg progress/Upload/7 t", "HD").remove(0);
        let left: u32 = life.strip_prefix("HD t").unwrap().parse().unwrap();
        assert!((1..=90).contains(&left), "{life}");
        gate.open(1);
        let value = memcached.until("progress/Upload/7", |value| value["state"] != "running");
        assert_eq!(words(&value), last_words("succeeded"));
        // One that says nothing has a state; one whose key cannot be made is not written, and runs.
        rig.call(&["push", "q", "x", "--subject", "Up load:a b%"]).fine();
        rig.call(&["push", "q", "x"]).fine();
        rig.call(&["push", "q", "x", "--subject", &format!("Upload:{}", "7".repeat(300))]).fine();
        rig.drained();
        let said = server.stop();
        assert!(said.contains("progress of a job is not kept"), "{said}");
        assert!(said.contains("the key has 316 bytes, expected at most 250"), "{said}");
        let silent = json!({ "state": "succeeded", "done": null, "total": null, "percent": null, "phase": null,
            "text": null });
        assert_eq!(words(&memcached.get("progress/Up%20load/a%20b%25").unwrap()), silent);
        let stats = memcached.ask("stats", "END");
        assert!(stats.contains(&"STAT curr_items 2".to_owned()), "{stats:?}");
    }
}

#[test]
fn every_runner_that_hears_words_has_them_in_the_memcached() {
    let rig = Rig::new();
    let socket = rig.path("memcached");
    let memcached = Memcached::start(&socket);
    let worker = "while read -r line; do echo \"progress 2/3 $line\" >&3; echo ok; done";
    // What is said right before the end, and right after other words, is not lost.
    let aloud = "for i in 0 1 2; do /bin/echo ::windlass progress $i/3 x; done";
    let server = rig.serve(&config(
        &socket,
        &format!(
            "key = \"p/{{queue}}/{{key}}\"\n\
             [queue.aloud]\nrun = [\"sh\", \"-c\", {aloud:?}]\n\
             [queue.script]\nrun = [{:?}, \"progress\", \"2/3\", \"x\"]\n\
             [queue.kept]\nworker = [\"sh\", \"-c\", {worker:?}]\n\
             [queue.far]\nremote = true\n\
             [queue.bad]\nattempts = 2\nbackoff = \"1ms\"\n\
             run = [\"sh\", \"-c\", \"echo progress 2/3 x >> $WINDLASS_CONTROL; exit 3\"]\n\
             [queue.many]\nbatch = [\"sh\", \"-c\", \"while read -r x; do echo ok; done\"]\n",
            env!("CARGO_BIN_EXE_windlass")
        ),
    ));
    for queue in ["aloud", "script", "kept", "far", "bad", "many"] {
        rig.call(&["push", queue, "x", "--unique", "k"]).fine();
    }
    let mut far = work::connect(&rig);
    let job = work::claim(&mut far, "far", 1).remove(0);
    let (token, path) =
        (job["token"].as_str().unwrap(), format!("/api/v1/jobs/{}/control", job["id"].as_str().unwrap()));
    far.post_as(token, &path, "text/plain", b"progress 2/3 x").unwrap().checked().unwrap();
    work::reply(&mut far, &job, &json!({ "status": "ok" })).unwrap();
    rig.drained();
    // A server that ends has written the last of them.
    server.stop();
    for (queue, state, done) in [
        ("aloud", "succeeded", Some(2)),
        ("script", "succeeded", Some(2)),
        ("kept", "succeeded", Some(2)),
        ("far", "succeeded", Some(2)),
        ("bad", "failed", Some(2)),
        ("many", "succeeded", None),
    ] {
        let value = memcached.get(&format!("p/{queue}/k")).unwrap_or_else(|| panic!("nothing of {queue}"));
        assert_eq!((&value["state"], &value["done"]), (&json!(state), &json!(done)), "{queue}: {value}");
    }
}

#[test]
fn a_memcached_that_is_down_holds_up_no_job_and_is_told_everything_when_it_comes() {
    let rig = Rig::new();
    let (mut bell, mut gate, socket) = (rig.bell("bell"), rig.gate("gate"), rig.path("memcached"));
    let mut server = rig.serve(&config(&socket, &steps(&bell.path, &gate.path)));
    gate.open(1);
    rig.call(&["push", "steps", "x", "--subject", "Upload:1"]).fine();
    bell.next();
    rig.drained();
    let said = server.process.until("progress is not kept");
    assert!(said.contains("cannot reach"), "{said}");
    rig.call(&["push", "steps", "x", "--subject", "Upload:2"]).fine();
    bell.next();
    let mut memcached = Memcached::start(&socket);
    server.process.until("progress is kept again");
    assert_eq!(words(&memcached.get("progress/Upload/1").unwrap()), last_words("succeeded"));
    memcached.until("progress/Upload/2", |value| words(value) == first_words("running"));
    // Killed, it takes everything with it. Who runs is there again without a word; who ended meanwhile, too.
    memcached.process.kill();
    rig.call(&["push", "steps", "x", "--subject", "Upload:3"]).fine();
    bell.next();
    gate.open(1);
    let ended = |rig: &Rig| rig.call(&["ls", "state:succeeded", "--json"]).json().as_array().unwrap().len();
    let mut memcached = Memcached::start(&socket);
    let states = |memcached: &mut Memcached| {
        ["2", "3"].map(|number| memcached.until(&format!("progress/Upload/{number}"), |_| true)["state"].clone())
    };
    while !states(&mut memcached).contains(&json!("succeeded")) {
        memcached.process.until(" STORED");
    }
    assert_eq!(ended(&rig), 2);
    gate.open(1);
    rig.drained();
    server.stop();
    assert_eq!(states(&mut memcached), [json!("succeeded"), json!("succeeded")]);
}

#[test]
fn a_memcached_that_takes_everything_and_answers_nothing_holds_up_no_job() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (told, taken) = channel();
    // It ends with the test's process; no connection of it is closed before.
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut begin = [0; 4];
            stream.read_exact(&mut begin).unwrap();
            let _gone = told.send(begin);
            held.push(stream);
        }
    });
    let mut server = rig.serve(&config(Path::new(&address), &steps(&bell.path, &gate.path)));
    rig.call(&["push", "steps", "x", "--subject", "Upload:1"]).fine();
    bell.next();
    assert_eq!(&taken.recv_timeout(crate::rig::PATIENCE).unwrap(), b"set ");
    // It still waits for its answer, or tries again: jobs begin and end all the same.
    for number in 2..20 {
        gate.open(1);
        rig.call(&["push", "steps", "x", "--subject", &format!("Upload:{number}")]).fine();
        bell.next();
    }
    gate.open(1);
    rig.drained();
    assert!(server.process.until("progress is not kept").contains("does not answer"));
    let rest = server.stop();
    assert!(!rest.contains("progress is kept again"), "{rest}");
}

#[test]
fn what_was_said_of_a_job_whose_server_was_killed_is_put_right_by_the_next() {
    let rig = Rig::new();
    let (mut bell, mut gate, socket) = (rig.bell("bell"), rig.gate("gate"), rig.path("memcached"));
    let mut memcached = Memcached::start(&socket);
    let server: Server = rig.serve(&config(&socket, &steps(&bell.path, &gate.path)));
    rig.call(&["push", "steps", "x", "--subject", "Upload:1"]).fine();
    bell.next();
    memcached.until("progress/Upload/1", |value| value["done"] == 1);
    server.kill();
    let server = rig.serve_again();
    bell.next();
    gate.open(1);
    rig.drained();
    server.stop();
    assert_eq!(words(&memcached.get("progress/Upload/1").unwrap()), last_words("succeeded"));
}

#[test]
fn of_a_job_that_went_to_another_server_that_one_speaks_and_no_other() {
    let (here, there) = (Machine::new(), Machine::new());
    let (mut bell, mut gate, socket) = (there.rig.bell("bell"), there.rig.gate("gate"), there.rig.path("memcached"));
    let mut memcached = Memcached::start(&socket);
    let doing = there.serve(&config(&socket, &steps(&bell.path, &gate.path)));
    let sending = here.serve(&config(&socket, &there.forward("steps")));
    here.rig.call(&["push", "steps", "x", "--subject", "Upload:1"]).fine();
    bell.next();
    // What a server has to say it has said when it ends.
    here.rig.drained();
    sending.stop();
    let value = memcached.until("progress/Upload/1", |_| true);
    assert_eq!(value["state"], "running", "{value}");
    gate.open(1);
    there.rig.drained();
    doing.stop();
    assert_eq!(words(&memcached.get("progress/Upload/1").unwrap()), last_words("succeeded"));
}
