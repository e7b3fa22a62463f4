//! What people are told who ask for jobs where there are directories: `--store dir:PATH` holds documents.
//!
//! Every verb either has nothing to do with where jobs are, or works on directories, or is named here with what does
//! its work there. It must not open anything.

use crate::error::{Failure, Kind};
use std::path::Path;

/// What a verb is refused with where the store is directories; none where it does not matter, or where it works.
pub(super) fn refusal(verb: &str, path: &Path) -> Option<Failure> {
    let path = path.display();
    let instead = match verb {
        "push" | "import" => format!("windlass spool put {path}/QUEUE FILE… puts documents into a queue"),
        "seal" => format!("windlass spool put {path}/QUEUE FILE… --done says that nothing more comes"),
        "ls" | "show" | "status" | "stats" | "why" | "watch" | "wait" | "logs" | "export" | "backup" => {
            format!("windlass spool status {path} says how the queues stand; their files can be looked at and copied")
        }
        "top" => format!("windlass top --spool {path} shows the queues, live"),
        "retry" => format!("windlass spool retry {path}/QUEUE DOC… gives back what was set aside"),
        "cancel" | "suspend" | "resume" | "delete" | "priority" | "move" => {
            format!("windlass spool take {path}/QUEUE DOC… --to DIR takes documents out; there is no priority")
        }
        "run" | "serve" | "tick" | "work" => {
            format!("windlass pipeline run works on all stages, windlass drive --in {path}/QUEUE on one of them")
        }
        "pause" | "unpause" | "scale" | "stop" | "nudge" | "schedule" | "servers" => {
            "there is no server: windlass pipeline run or windlass drive works there, which TERM ends and -j scales"
                .to_owned()
        }
        "migrate" => "there is nothing to migrate: a queue is a directory, and a document a file".to_owned(),
        _ => return None,
    };
    Some(Failure::new(Kind::Usage, format!("{path}: directories hold no jobs for windlass {verb}")).hint(instead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// What needs no store, or takes a directory; `config` reads a file, and says of the store itself what it needs.
    const ELSEWHERE: [&str; 15] = [
        "crawl",
        "drive",
        "spool",
        "watchdog",
        "pipeline",
        "attach",
        "progress",
        "emit",
        "config",
        "doctor",
        "restore",
        "completions",
        "man",
        "exit-codes",
        "help",
    ];

    #[test]
    fn every_verb_works_with_directories_or_says_what_does() {
        let mut seen = Vec::new();
        for verb in super::super::Arguments::command().get_subcommands() {
            let refused = refusal(verb.get_name(), Path::new("/queues"));
            let works = ELSEWHERE.contains(&verb.get_name());
            assert_ne!(refused.is_some(), works, "{}", verb.get_name());
            if let Some(failure) = refused {
                assert_eq!(failure.kind, Kind::Usage);
                seen.push(failure.to_string());
            }
        }
        assert!(seen.len() > 25, "{seen:?}");
    }
}
