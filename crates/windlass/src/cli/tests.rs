//! The table of verbs: every one has help that begins with examples, and no two share a name.

use super::*;

fn help_of(verb: &str) -> String {
    let words = ["windlass", verb, "--help"].into_iter().filter(|word| !word.is_empty());
    parse(words.map(OsString::from)).unwrap_err().to_string()
}

fn refusal(words: &[&str]) -> String {
    let error = parse(["windlass"].iter().chain(words).map(OsString::from)).unwrap_err();
    assert!(error.use_stderr(), "{words:?} is no refusal");
    error.to_string()
}

#[test]
fn the_table_is_sound() {
    Arguments::command().debug_assert();
}

/// They would be one argument, of two kinds.
#[test]
fn no_verb_has_an_argument_with_the_name_of_one_that_all_have() {
    let command = Arguments::command();
    let all: Vec<String> = command.get_arguments().map(|option| option.get_id().to_string()).collect();
    assert!(all.len() > 5, "{all:?}");
    let mut verbs: Vec<&clap::Command> = command.get_subcommands().collect();
    while let Some(verb) = verbs.pop() {
        verbs.extend(verb.get_subcommands());
        for argument in verb.get_arguments() {
            let id = argument.get_id().as_str();
            assert!(!all.iter().any(|other| other == id), "{} has `{id}`", verb.get_name());
        }
    }
}

/// Whoever looks for what a verb can do does not look for it between what all can do.
#[test]
fn the_options_of_every_verb_stand_behind_its_own() {
    let help = help_of("crawl");
    let (own, all) = help.split_once(EVERYWHERE).unwrap();
    assert!(own.contains("--include") && own.contains("--report") && !own.contains("--dir "), "{help}");
    assert!(all.contains("--dir ") && !all.contains("--include"), "{help}");
}

#[test]
fn help_begins_with_examples() {
    for verb in [
        "", "push", "run", "serve", "wait", "ls", "show", "logs", "retry", "cancel", "suspend", "resume", "priority",
        "delete", "watch", "stats", "tick", "config", "top",
    ] {
        let help = help_of(verb);
        let examples = help.find("Examples").unwrap_or_else(|| panic!("no examples in {verb}: {help}"));
        assert!(examples < help.find("Usage:").unwrap(), "{verb}: {help}");
    }
    assert!(help_of("").contains("Exit codes: 0 fine, 1 some job failed, 64 usage"));
}

#[test]
fn mistakes_are_answered_with_the_nearest_name() {
    assert!(refusal(&["puhs", "q", "x"]).contains("'push'"));
    assert!(refusal(&["push", "q", "x", "--prioritty", "3"]).contains("'--priority'"));
}

#[test]
fn a_refusal_is_one_sentence_for_machines() {
    let refusal = |words: &[&str]| refused(&parse(words.iter().map(OsString::from)).unwrap_err());
    let mistyped = refusal(&["windlass", "--json", "pusj", "q"]);
    assert_eq!((mistyped.kind, mistyped.text.as_str()), (Kind::Usage, "unrecognized subcommand 'pusj'"));
    assert!(mistyped.hint.unwrap().contains("'push'"));
    assert_eq!(refusal(&["windlass", "push", "q", "x", "--in", "1h", "--in", "2h"]).text.lines().count(), 1);
    let missing = refusal(&["windlass", "retry"]);
    assert_eq!(missing.text, "the following required arguments were not provided: <ID|SELECTOR>...");
}

#[test]
fn refused_before_anything_happens() {
    for words in [
        &[][..],
        &["--"],
        &["push"],
        &["run"],
        &["run", "--"],
        &["run", "-j", "0", "--", "true"],
        &["run", "-j", "2", "-j", "3", "--", "true"],
        &["run", "--retry", "-1", "--", "true"],
        &["run", "--tolerate", "x", "--", "true"],
        &["wait"],
        &["wait", "r-0123456789", "--drained"],
        &["wait", "j-0123456789-1", "--for", "ready"],
        &["ls", "--color", "pink"],
        &["logs", "-f", "j-0123456789-1", "--start", "1"],
        &["wait", "--drained", "--timeout", "10 minuts"],
        &["retry"],
        &["logs", "j-0123456789-1", "--stdout", "--stderr"],
        &["ls", "--limit", "-3"],
        &["ls", "--sort", "colour"],
        &["ls", "-o", "xml"],
        &["suspend"],
        &["priority", "high"],
        &["priority", "101", "queue:a"],
        &["delete"],
        &["stats", "--by", "colour"],
        &["stats", "--since", "soon"],
        &["-q", "-v", "ls"],
        &["config"],
    ] {
        refusal(words);
    }
}
