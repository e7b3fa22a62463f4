//! A small life of a data directory, for the rigs that disturb it at every call: an inbox from before, a server that
//! takes it in, pushes through both doors, jobs that run, outcomes that are settled and archived, a stop.

use crate::rig::{PATIENCE, Process, Rig};
use crate::tracer::{Plan, Tally, Traced};
use crate::witness::{Verdict, Witness, fresh};
use rustix::process::Signal;
use std::process::Command;

const SLOTS: usize = 4;

/// A program of the scene that is followed call by call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A push without a server.
    Push(&'static str),
    /// A server, through to its end.
    Serve,
}

/// One data directory and its witness.
pub(crate) struct Scene {
    pub(crate) rig: Rig,
    pub(crate) witness: Witness,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let rig = Rig::new();
        let witness = Witness::new(&rig);
        Scene { rig, witness }
    }

    /// Only a config: everything else is made by whoever comes first.
    pub(crate) fn prepare_empty(&self) {
        std::fs::create_dir_all(self.rig.dir()).unwrap();
        std::fs::write(self.rig.dir().join("windlass.toml"), self.witness.config(SLOTS, "")).unwrap();
    }

    /// A directory that has lived: jobs are done and archived, others wait in an inbox file and in one moved in.
    pub(crate) fn prepare_lived(&self) {
        self.prepare_empty();
        assert!(self.witness.push(&self.rig, 3, "full"));
        let server = self.rig.serve_again();
        self.rig.call(&["wait", "--drained"]).fine();
        server.stop();
        assert!(self.witness.push(&self.rig, 2, "full") && self.witness.push(&self.rig, 2, "os"));
        let moved: String = (0..3).map(|_| format!("q\t{}\n", fresh())).collect();
        let hidden = self.rig.dir().join(".list");
        std::fs::write(&hidden, moved).unwrap();
        std::fs::rename(hidden, self.rig.dir().join("inbox/list")).unwrap();
    }

    /// Plays a part under a plan; none if it did not come to its end. `calm` waits for what is to be done.
    pub(crate) fn play(&self, part: Part, plan: Plan, calm: bool) -> Option<Tally> {
        match part {
            Part::Push(durability) => {
                let data = [fresh(), fresh()];
                let words = ["push", "q", "--durability", durability, &data[0], &data[1]];
                let tally = Traced::start(self.rig.windlass(&words), plan).end(PATIENCE)?;
                self.witness.note(&data, &tally.stdout, durability);
                Some(tally)
            }
            Part::Serve => {
                let mut server = Traced::start(self.rig.windlass(&["serve"]), plan);
                if server.out_line(PATIENCE)?.starts_with("windlass serves unix:") {
                    self.witness.push(&self.rig, 2, "full");
                    self.witness.push(&self.rig, 2, "os");
                    self.append();
                    if calm {
                        // It may lose its server.
                        let _ = self.rig.call(&["wait", "--drained"]);
                        server.signal(Signal::TERM);
                    } else {
                        // What cannot be settled is not waited for by one that is told to end at once.
                        return server.end_at_once(PATIENCE);
                    }
                }
                server.end(PATIENCE)
            }
        }
    }

    /// A foreign program adds a line as the examples do, without asking whether it will last.
    fn append(&self) {
        let script = "exec 9>>\"$1\" && flock 9 && printf '\\030\\nq\\t%s\\n' \"$2\" >&9";
        let inbox = self.rig.dir().join("inbox").join(rustix::process::geteuid().as_raw().to_string());
        let mut shell = Command::new("sh");
        // Without the file there is nobody to append for: the disk may be gone.
        if inbox.exists() {
            let _ = Process::start(shell.args(["-c", script, "sh"]).arg(inbox).arg(fresh())).end();
        }
    }

    /// Without faults: a server opens what is there, and does all of it.
    pub(crate) fn heal(&self) -> Verdict {
        let server = self.rig.serve_again();
        self.rig.drained();
        let totals = self.rig.call(&["status", "--json"]).json()["totals"].clone();
        let left = ["ready", "running", "retrying"].map(|state| totals[state].as_u64());
        assert_eq!(left, [Some(0); 3], "{totals}");
        let failed = failed(&self.rig, &totals);
        server.stop();
        Verdict { failed, ..self.witness.judge() }
    }
}

/// The jobs that a server calls failed, if there are any.
pub(crate) fn failed(rig: &Rig, totals: &serde_json::Value) -> String {
    match totals["failed"].as_u64() {
        Some(0) => String::new(),
        _ => rig.call(&["ls", "state:failed", "--json"]).fine().to_owned(),
    }
}
