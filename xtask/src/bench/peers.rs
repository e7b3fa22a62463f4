//! Other queues on PostgreSQL, beside ours on the same server in the same run: each by a script in its own language,
//! with its own settings for throughput.
//!
//! Their packages are installed under `target/peers`. One that cannot be installed or does not run is left out, and
//! that is said.

use super::Outcome;
use super::bed::Bed;
use super::databases::Place;
use super::figure::Figure;
use crate::steps::root;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Peer {
    name: &'static str,
    script: &'static str,
    /// The jobs that it gets, few where it is slow.
    jobs: u64,
    /// What the package manager of its language is told to install.
    packages: &'static [&'static str],
}

const PEERS: &[Peer] = &[
    Peer {
        name: "graphile-worker",
        script: "graphile-worker.mjs",
        jobs: 100_000,
        packages: &["graphile-worker@0.17.3", "pg@8.23.1"],
    },
    Peer { name: "pg-boss", script: "pg-boss.mjs", jobs: 100_000, packages: &["pg-boss@10.4.2"] },
    Peer {
        name: "procrastinate",
        script: "procrastinate.py",
        jobs: 10_000,
        packages: &["procrastinate==3.10.0", "psycopg[binary,pool]"],
    },
];

/// Runs them all; tells the jobs a second of the best, if any ran.
pub(super) fn best(bed: &mut Bed, place: &Place) -> Outcome<Option<f64>> {
    let mut best: Option<f64> = None;
    for peer in PEERS {
        match peer.rate(bed.size(peer.jobs), place) {
            Ok(rate) => {
                bed.report(&Figure::new(format!("sql.peer.{}", peer.name), rate, "jobs/s"));
                best = Some(best.map_or(rate, |best| best.max(rate)));
            }
            Err(why) => println!("# sql.peer.{} is left out: {why}", peer.name),
        }
    }
    Ok(best)
}

impl Peer {
    fn rate(&self, jobs: u64, place: &Place) -> Outcome<f64> {
        let folder = root().join("target/peers").join(self.name);
        std::fs::create_dir_all(&folder)?;
        self.install(&folder)?;
        let database = place.make()?;
        let script = root().join("xtask/src/bench/peers").join(self.script);
        // One that hangs hears no other signal.
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "600", if self.is_python() { "python3" } else { "node" }]).arg(script);
        command.arg(database.url()).arg(jobs.to_string()).env("PYTHONPATH", &folder).current_dir(&folder);
        let said = output(&mut command)?;
        said.trim().parse().map_err(|_| format!("{} said {said:?}, expected a number", self.script).into())
    }

    fn is_python(&self) -> bool {
        self.script.ends_with(".py")
    }

    fn install(&self, folder: &Path) -> Outcome<()> {
        let done: PathBuf = folder.join(".installed");
        let wanted = self.packages.join(" ");
        if std::fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
            return Ok(());
        }
        let mut command = match self.is_python() {
            true => {
                let mut pip = Command::new("python3");
                pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(folder);
                pip
            }
            false => {
                let mut npm = Command::new("npm");
                npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(folder);
                npm
            }
        };
        output(command.args(self.packages).current_dir(folder))?;
        Ok(std::fs::write(done, wanted)?)
    }
}

/// What a program says; where it fails, the end of its errors.
fn output(command: &mut Command) -> Outcome<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = told.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = last[last.len().saturating_sub(2)..].join(" / ");
    Err(format!("{program} ended with {}: {last}", output.status).into())
}
