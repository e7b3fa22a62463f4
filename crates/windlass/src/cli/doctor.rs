//! `windlass doctor`: looks at the machine and the data directory, and says what to mend.
//!
//! It changes nothing but a scratch file that is gone when it ends. Each finding has a remedy where it is not fine.

mod disk;
mod machine;

use super::connect::Link;
use super::lock_watch::is_free;
use super::print::{self, Out};
use super::{Context, connect};
use crate::api::Status;
use crate::clock;
use crate::config::Config;
use crate::data_dir::DataDir;
use crate::engine::Condition;
use crate::error::{Failure, Kind};
use crate::store::StoreView;
use crate::store::place::{JobsTable, StorePlace};
use crate::store::sql::SqlView;
use serde_json::json;
use std::fmt;
use std::os::unix::fs::MetadataExt;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Warnings count too: exit code 75 where there is one and no problem
    #[arg(long)]
    strict: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Fine,
    /// It works, but less well or less safely than it could.
    Warning,
    /// It does not work, or will not keep what was promised.
    Problem,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Health::Fine => "fine",
            Health::Warning => "warning",
            Health::Problem => "problem",
        })
    }
}

#[derive(Clone, Debug)]
struct Finding {
    check: &'static str,
    health: Health,
    text: String,
    remedy: &'static str,
}

impl Finding {
    fn fine(check: &'static str, text: impl Into<String>) -> Finding {
        Finding { check, health: Health::Fine, text: text.into(), remedy: "" }
    }

    fn new(check: &'static str, health: Health, text: impl Into<String>, remedy: &'static str) -> Finding {
        let remedy = if health == Health::Fine { "" } else { remedy };
        Finding { check, health, text: text.into(), remedy }
    }
}

pub(super) fn doctor(args: &Args, context: &Context) -> Result<u8, Failure> {
    let findings = match place(context) {
        Ok(dir) => {
            let kept = match context.store_of(dir.root()) {
                // A database is backed up by those who run it.
                Ok(StorePlace::Table(table)) => store(&table),
                Ok(StorePlace::Embedded) | Err(_) => disk::backup(&dir, clock::now()),
            };
            [examine(&dir, kept), vec![config(&dir, context)]].concat()
        }
        Err(failure) if failure.kind == Kind::Usage => return Err(failure),
        Err(failure) => {
            let remedy = "name another one with --dir, or mend this one";
            vec![Finding::new("directory", Health::Problem, failure.text, remedy)]
        }
    };
    let worst = findings.iter().map(|finding| finding.health).max().unwrap_or(Health::Fine);
    let code = match worst {
        Health::Problem => Kind::Io.exit_code(),
        Health::Warning if args.strict => Kind::TryLater.exit_code(),
        Health::Warning | Health::Fine => 0,
    };
    if context.json {
        let list: Vec<_> = findings
            .iter()
            .map(|f| json!({ "check": f.check, "health": f.health.to_string(), "text": f.text, "remedy": f.remedy }))
            .collect();
        print::document(&json!({ "healthy": worst != Health::Problem, "worst": worst.to_string(), "findings": list }))?;
        return Ok(code);
    }
    let mut out = Out::new();
    for finding in &findings {
        out.line(format_args!("{:<8} {:<12} {}", finding.health, finding.check, print::visible(&finding.text)));
        if !finding.remedy.is_empty() {
            out.line(format_args!("{:<21} remedy: {}", "", finding.remedy));
        }
    }
    out.finish()?;
    Ok(code)
}

/// The table that the jobs are in, and whether it is as it must be.
fn store(table: &JobsTable) -> Finding {
    match table.options("doctor").plan() {
        Ok(plan) if plan.is_done() => Finding::fine("store", format!("{table} is ready; {}", controller(table))),
        Ok(plan) => {
            let text = format!("{table} is not ready: {} steps are missing", plan.steps.len());
            Finding::new("store", Health::Problem, text, "windlass migrate does what is missing; --dry-run shows it")
        }
        Err(error) => Finding::new(
            "store",
            Health::Problem,
            format!("{table}: {error}"),
            "look at the database, and at the address",
        ),
    }
}

/// Who shares the table, and who of them controls.
fn controller(table: &JobsTable) -> String {
    let listed = SqlView::open(table.options("doctor")).and_then(|view| view.servers());
    match listed {
        Err(error) => format!("its servers cannot be listed: {error}"),
        Ok(servers) => {
            let count = print::counted(servers.len() as u64, "server");
            match servers.iter().find(|server| server.controls) {
                Some(server) => format!("{count}, {} controls", server.name),
                None => format!("{count}, and none controls"),
            }
        }
    }
}

/// The data directory, or an empty one that may become it: whether it is fit for that is what one asks before.
fn place(context: &Context) -> Result<DataDir, Failure> {
    let empty = context.dir_path()?.read_dir().is_ok_and(|mut entries| entries.next().is_none());
    if empty { context.data_dir() } else { context.existing_dir() }
}

/// The data directory and the machine; `kept` is what there is to say of where its jobs are.
fn examine(dir: &DataDir, kept: Finding) -> Vec<Finding> {
    let mut findings = vec![directory(dir), places(dir)];
    findings.extend(holder(dir));
    findings.extend(disk::formats(dir));
    findings.push(kept);
    findings.extend([disk::file_system(dir), disk::operations(dir), disk::space(dir), disk::reserve(dir)]);
    findings.extend([disk::sync_time(dir), machine::watches()]);
    findings.extend(machine::limits());
    findings.extend([machine::cgroups(dir), machine::time(dir), machine::pace(), machine::zone()]);
    findings
}

fn directory(dir: &DataDir) -> Finding {
    let root = dir.root().display().to_string();
    match dir.root().metadata() {
        Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => {
            let text = format!("{root} belongs to uid {}", meta.uid());
            Finding::new("directory", Health::Warning, text, "work as its owner, or use --dir")
        }
        Ok(meta) if meta.mode() & 0o022 != 0 => {
            let text = format!("{root} can be written by others (mode {:o})", meta.mode() & 0o7777);
            Finding::new("directory", Health::Problem, text, "chmod go-w: whoever writes there works as you")
        }
        Ok(_) => Finding::fine("directory", root),
        Err(error) => Finding::new("directory", Health::Problem, format!("{root}: {error}"), "make it readable"),
    }
}

/// Where everything is, for whoever looks for it.
fn places(dir: &DataDir) -> Finding {
    let (socket, inbox, archive) = (dir.socket(), dir.inbox(), dir.archive());
    let token = dir.run().join("token");
    let places = [("socket", &socket), ("token", &token), ("inbox", &inbox), ("archive", &archive)];
    let places = places.map(|(name, path)| format!("{name} {}", path.display()));
    Finding::fine("places", places.join(", "))
}

fn holder(dir: &DataDir) -> Vec<Finding> {
    if is_free(dir) {
        return vec![Finding::fine("server", "nobody has the data directory; verbs open it themselves")];
    }
    // A text that cannot be read names nobody; that there is a holder is known all the same.
    let owner = std::fs::read_to_string(dir.root().join("lock")).unwrap_or_default();
    let owner = owner.trim().to_owned();
    let said = match Link::to_server(dir) {
        Ok(Some(mut server)) => match server.get_json::<Status>("/api/v1/status") {
            Ok(status) => {
                let found = condition(&owner, &status.server.condition);
                return vec![found, drift(&status.server.version, env!("CARGO_PKG_VERSION"))];
            }
            Err(failure) => {
                let text = format!("{owner} answers, but not what was asked: {failure}");
                Finding::new("server", Health::Problem, text, "see its log")
            }
        },
        Ok(None) => {
            let text = format!("{owner} has the lock and does not answer");
            Finding::new("server", Health::Problem, text, "look at that process; it should serve run/socket")
        }
        Err(failure) if connect::is_gone(&failure) => Finding::new(
            "server",
            Health::Warning,
            format!("{owner} is going away: {failure}"),
            "ask again in a moment",
        ),
        Err(failure) => Finding::new("server", Health::Problem, format!("{owner}: {failure}"), "look at that process"),
    };
    vec![said]
}

/// Whether the server and who speaks to it are of one version.
fn drift(server: &str, own: &str) -> Finding {
    let health = if server == own { Health::Fine } else { Health::Warning };
    let text =
        if server == own { format!("{own}, server and this") } else { format!("{own}, but the server is {server}") };
    Finding::new("version", health, text, "restart the server: it goes on with the program that is there now")
}

/// The config that a server here would read, and whether it could.
fn config(dir: &DataDir, context: &Context) -> Finding {
    match context.config_file(None, dir.root()) {
        None => Finding::fine("config", "none, so no queue is served but those of runs"),
        Some(path) => match Config::load(&path) {
            Ok(_) => Finding::fine("config", path.display().to_string()),
            Err(failure) => Finding::new("config", Health::Problem, failure.text, "windlass config check tells more"),
        },
    }
}

/// What the server says of itself.
fn condition(owner: &str, word: &str) -> Finding {
    let known = Condition::ALL.into_iter().find(|condition| condition.word() == word).unwrap_or_default();
    let (health, remedy) = match known {
        Condition::Serving => (Health::Fine, ""),
        Condition::NoSpace => (Health::Problem, "make room on its disk: it goes on by itself within seconds"),
        Condition::StoreAway => (Health::Problem, "start its database: it goes on by itself within seconds"),
        Condition::ArchiveBehind => (Health::Warning, "its disk is too slow or too full for what is done"),
        Condition::Paused => (Health::Warning, "windlass unpause lets it start jobs again"),
        Condition::Quiet => (Health::Warning, "kill -CONT lets it start jobs again"),
        Condition::Draining | Condition::Halting => (Health::Warning, "it is about to end: ask again"),
    };
    Finding::new("server", health, format!("{owner} answers: {word}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_fine_has_a_remedy() {
        for magic in [0x0102_1994, 0x8584_58f6, 0x6969, 0xff53_4d42, 0x6573_5546, 0xef53, 0x1234] {
            let (name, health, remedy) = disk::known_file_system(magic);
            assert_eq!(remedy.is_empty(), health == Health::Fine, "{name}");
        }
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        for finding in examine(&dir, disk::backup(&dir, clock::now())) {
            assert_eq!(finding.remedy.is_empty(), finding.health == Health::Fine, "{finding:?}");
        }
    }

    #[test]
    fn a_directory_that_others_can_write_is_a_problem() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        assert_eq!(directory(&dir).health, Health::Fine);
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(directory(&dir).health, Health::Problem);
    }

    #[test]
    fn versions_that_differ_are_told() {
        assert_eq!(drift("0.1.0", "0.1.0").health, Health::Fine);
        let drifted = drift("0.2.0", "0.1.0");
        assert_eq!((drifted.health, drifted.text.as_str()), (Health::Warning, "0.1.0, but the server is 0.2.0"));
    }

    #[test]
    fn a_silent_holder_is_a_problem() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        assert_eq!(holder(&dir)[0].health, Health::Fine);
        let _lock = dir.lock().unwrap();
        let finding = holder(&dir).remove(0);
        assert_eq!(finding.health, Health::Problem);
        assert!(finding.text.contains(&std::process::id().to_string()));
    }
}
