//! Jobs that share a process speak over HTTP, each with a token of its own: in a batch and in a worker that stays.

use crate::rig::{Bell, Process, Rig};
use serde_json::Value;
use windlass::client::Connection;

/// Two objects that a process was given, the calls of their jobs, and what is known of both.
struct Pair {
    url: String,
    jobs: Vec<Value>,
}

impl Pair {
    /// Waits for a process that rings with its URL, and reads what it was given.
    fn next(bell: &mut Bell, rig: &Rig) -> (Pair, String) {
        let rung = bell.next();
        let (url, rest) = rung.split_once(' ').unwrap();
        let given = std::fs::read_to_string(rig.path("given")).unwrap();
        let mut jobs: Vec<Value> = given.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        jobs.sort_by_key(|job| job["data"].as_str().unwrap().to_owned());
        (Pair { url: url.to_owned(), jobs }, rest.to_owned())
    }

    fn id(&self, at: usize) -> &str {
        self.jobs[at]["id"].as_str().unwrap()
    }

    fn token(&self, at: usize) -> &str {
        self.jobs[at]["token"].as_str().unwrap()
    }

    /// Says something of one job with the token of one; the status and the text of the answer.
    fn say(&self, of: usize, token: &str, route: &str, lines: &str) -> (u16, String) {
        let mut to = Connection::open_url(&self.url, Some(token)).unwrap().unwrap();
        let path = format!("/api/v1/jobs/{}/{route}", self.id(of));
        let answer = to.post(&path, "text/plain", lines.as_bytes()).unwrap();
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    }

    #[track_caller]
    fn is_taken(&self, of: usize, route: &str, lines: &str) {
        let (status, text) = self.say(of, self.token(of), route, lines);
        assert_eq!(status, 200, "{text}");
    }

    #[track_caller]
    fn is_refused(&self, of: usize, token: &str, (route, lines): (&str, &str), (status, why): (u16, &str)) {
        let told = self.say(of, token, route, lines);
        assert!(told.0 == status && told.1.contains(why), "{token} of {of}, {lines:?}: {told:?}, expected {why:?}");
    }

    /// What holds for the tokens of jobs wherever they share a process.
    fn speaks_for_each_alone(&self, rig: &Rig) {
        let show = |at: usize| rig.call(&["show", self.id(at), "--json"]).json();
        for at in [0, 1] {
            self.is_taken(at, "control", &format!("progress {at}/2 own\nextend 1h"));
        }
        for at in [0, 1] {
            assert_eq!(show(at)["progress"], format!("{at}/2 own"));
        }
        let stale = "not that of a running start of";
        for (of, token) in [(0, self.token(1)), (1, self.token(0)), (0, &"0".repeat(32)), (0, "x")] {
            for told in [("control", "phase x"), ("emit", "next\tx")] {
                self.is_refused(of, token, told, (409, stale));
            }
        }
        let (named, emitted) = (format!("@{} phase x", self.id(1)), format!("@{}\tnext\tx", self.id(1)));
        self.is_refused(0, self.token(0), ("control", &named), (422, "the token is that of"));
        self.is_refused(0, self.token(0), ("emit", &emitted), (422, "the token is that of"));
        self.is_refused(0, self.token(0), ("control", "fail no good"), (422, "cannot take \\\"fail no good\\\""));
        self.is_refused(0, self.token(0), ("emit", "no queue"), (422, "names no queue"));
        self.is_refused(0, "", ("control", "phase x"), (401, "the token of the job's running start"));
        assert_eq!((show(0)["phase"].clone(), show(1)["phase"].clone()), (Value::Null, Value::Null));
        let mut to = Connection::open_url(&self.url, Some(self.token(0))).unwrap().unwrap();
        assert_eq!(to.get("/api/v1/status").unwrap().status, 401, "it opens nothing else");
        // The helpers of a script say the same, where there is no file for all.
        let mut helper = rig.windlass(&["progress", "--phase", "helped"]);
        helper.env("WINDLASS_URL", &self.url).env("WINDLASS_JOB_TOKEN", self.token(1));
        Process::start(helper.env("WINDLASS_JOB_ID", self.id(1))).end().fine();
        assert_eq!((show(0)["phase"].clone(), show(1)["phase"].clone()), (Value::Null, "helped".into()));
        for at in [0, 1] {
            self.is_taken(at, "emit", &format!("next\tof {at}"));
            self.is_taken(at, "control", &format!("checkpoint row {at}"));
        }
    }
}

fn emitted(rig: &Rig) -> u64 {
    rig.call(&["status", "--json"]).json()["queues"]["next"]["succeeded"].as_u64().unwrap_or(0)
}

/// The ids of the lines in the file, and a reply for each: the first time one job is to be tried again.
const REPLIES: &str = "
    sed 's/.*\"id\":\"\\([^\"]*\\)\".*\"attempt\":\\([0-9]*\\),.*\"data\":\"\\([^\"]*\\)\".*/\\1 \\2 \\3/' $1 |
    while read -r id attempt data; do
        case $attempt$data in
            1b) echo \"@$id retry once more\";;
            *) echo \"@$id ok $data\";;
        esac
    done";

fn queue(kind: &str, rig: &Rig, bell: &str, gate: &str, body: &str) -> String {
    std::fs::write(rig.path("replies"), REPLIES).unwrap();
    let given = rig.path("given").display().to_string();
    let replies = rig.path("replies").display().to_string();
    let script = body.replace("GIVEN", &given).replace("REPLIES", &replies).replace("BELL", bell).replace("GATE", gate);
    format!(
        "[queue.q]\n{kind} = [\"sh\", \"-c\", {script:?}]\nframing = \"json\"\nattempts = 2\nbackoff = \"1ms\"\n\
         slots = 1\ntime_limit = \"2m\"\n[queue.next]\nrun = [\"true\"]\n"
    )
}

/// Both jobs in one process, then the one that is to be tried again in the next.
fn in_two_attempts(
    rig: &Rig,
    config: &str,
    bell: &mut Bell,
    open: &mut dyn FnMut(),
    more: &mut dyn FnMut(&Pair, &str),
) {
    let server = rig.serve(config);
    rig.call(&["pause", "q"]).fine();
    let ids = rig.call(&["push", "q", "a", "b"]).fine().to_owned();
    rig.call(&["unpause", "q"]).fine();
    let (pair, rest) = Pair::next(bell, rig);
    assert_eq!((pair.id(0), pair.id(1)), ids.trim_end().split_once('\n').unwrap());
    pair.speaks_for_each_alone(rig);
    more(&pair, &rest);
    open();
    let (again, _) = Pair::next(bell, rig);
    assert_eq!((again.id(0), &again.jobs[0]["attempt"]), (pair.id(1), &Value::from(2)));
    assert_eq!(again.jobs[0]["checkpoint"], "row 1", "what was said with the token is kept");
    let late = (409, "not that of a running start of");
    pair.is_refused(0, pair.token(0), ("control", "phase late"), late);
    pair.is_refused(1, pair.token(1), ("control", "phase late"), late);
    pair.is_refused(1, pair.token(1), ("emit", "next\tlate"), late);
    again.is_taken(0, "control", "phase second");
    again.is_taken(0, "emit", "next\tsecond");
    let shown = rig.call(&["show", again.id(0), "--json"]).json();
    assert_eq!(shown["phase"], "second");
    open();
    rig.drained();
    again.is_refused(0, again.token(0), ("emit", "next\tlate"), late);
    assert_eq!(emitted(rig), 2, "that of a, and that of the second attempt of b");
    assert_eq!(rig.call(&["status", "--json"]).json()["queues"]["q"]["succeeded"], 2);
    server.stop();
}

#[test]
fn each_job_of_a_batch_speaks_with_its_own_token() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let body = "cat > GIVEN; echo $WINDLASS_URL $WINDLASS_JOB_ID $WINDLASS_JOB_TOKEN > BELL; read -r open < GATE
        sh REPLIES GIVEN";
    let config = queue("batch", &rig, &bell.path, &gate.path, body);
    let mut open = || gate.open(1);
    in_two_attempts(&rig, &config, &mut bell, &mut open, &mut |pair, rest| {
        // The process has a token, too, and says with it what it may write into its files.
        let (first, process) = rest.split_once(' ').unwrap();
        assert_eq!(first, pair.id(0));
        let (status, text) = pair.say(0, process, "control", &format!("@{} phase named\nextend 1h", pair.id(1)));
        assert_eq!(status, 200, "{text}");
        assert_eq!(rig.call(&["show", pair.id(1), "--json"]).json()["phase"], "named");
        pair.is_refused(0, process, ("control", "phase whose"), (422, "expected @ID"));
        pair.is_refused(0, process, ("emit", "next\twhose"), (422, "expected @ID"));
        pair.is_refused(0, process, ("emit", "@j-0000000000-1\tnext\tx"), (422, "no job of this process"));
    });
}

#[test]
fn each_job_of_a_kept_worker_speaks_with_its_own_token() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    // Two at once, then one: the second attempt comes alone.
    let body = "many=2; while read -r one; do
        echo \"$one\" > GIVEN
        if [ $many = 2 ]; then read -r two; echo \"$two\" >> GIVEN; fi
        many=1
        echo $WINDLASS_URL ${WINDLASS_JOB_TOKEN-none} > BELL; read -r open < GATE
        sh REPLIES GIVEN
        done";
    let config = queue("worker", &rig, &bell.path, &gate.path, body).replace("slots = 1", "slots = 1\nin_flight = 2");
    let mut open = || gate.open(1);
    in_two_attempts(&rig, &config, &mut bell, &mut open, &mut |_, rest| {
        assert_eq!(rest, "none", "it has no job of its own");
    });
}

/// Raw lines are data and nothing else.
#[test]
fn raw_lines_have_no_tokens_and_a_batch_of_them_one_for_its_process() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let tell = "echo \"$line\" ${WINDLASS_URL-none} ${WINDLASS_JOB_ID-none} ${WINDLASS_JOB_TOKEN-none} >";
    let script = format!("while read -r line; do {tell} {}; read -r open < {}; echo ok; done", bell.path, gate.path);
    let server = rig.serve(&format!(
        "[queue.kept]\nworker = [\"sh\", \"-c\", {script:?}]\n[queue.batch]\nbatch = [\"sh\", \"-c\", {script:?}]\n\
         [queue.next]\nrun = [\"true\"]\n"
    ));
    rig.call(&["push", "kept", "plain"]).fine();
    let told = bell.next();
    let words: Vec<&str> = told.split(' ').collect();
    assert_eq!((words[0], words[1], words[3]), ("plain", "none", "none"));
    gate.open(1);
    let id = rig.call(&["push", "batch", "plain"]).fine().trim_end().to_owned();
    let told = bell.next();
    let words: Vec<&str> = told.split(' ').collect();
    assert_eq!((words[0], words[2]), ("plain", &id[..]), "a process with one job has its name");
    let mut to = Connection::open_url(words[1], Some(words[3])).unwrap().unwrap();
    let mut say = |route: &str, line: &str| {
        let path = format!("/api/v1/jobs/{id}/{route}");
        to.post(&path, "text/plain", line.as_bytes()).unwrap().status
    };
    assert_eq!((say("control", "phase alone"), say("emit", "next\tone")), (200, 200));
    assert_eq!(rig.call(&["show", &id, "--json"]).json()["phase"], "alone");
    gate.open(1);
    rig.drained();
    assert_eq!((say("control", "phase late"), emitted(&rig)), (409, 1));
    server.stop();
}
