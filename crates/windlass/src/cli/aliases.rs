//! Other tools' words for our verbs, so that fingers find what they look for: one table, applied before the arguments
//! are taken apart. Help, completions and refusals know the real verbs only.

use clap::Command;
use std::ffi::OsString;

/// A word that others use, and what stands for it here.
const ALIASES: [(&str, &[&str]); 7] = [
    ("add", &["push"]),
    ("enqueue", &["push"]),
    ("log", &["logs"]),
    ("follow", &["logs", "--follow"]),
    ("start", &["resume"]),
    ("parallel", &["scale"]),
    ("clean", &["delete", "state:succeeded"]),
];

/// The words with another tool's verb replaced by ours; after `help` only the verb itself.
pub(super) fn replaced(words: Vec<OsString>, command: &Command) -> Vec<OsString> {
    let Some(at) = place_of_verb(&words, command) else { return words };
    let (at, helps) = if words[at] == "help" { (at + 1, true) } else { (at, false) };
    let known = ALIASES.iter().find(|(alias, _)| words.get(at).is_some_and(|word| word == alias));
    let Some((_, ours)) = known else { return words };
    let mut replaced = words;
    let ours = if helps { &ours[..1] } else { ours };
    replaced.splice(at..=at, ours.iter().map(OsString::from));
    replaced
}

/// Where the verb stands: the first word that is neither an option nor the value of one.
fn place_of_verb(words: &[OsString], command: &Command) -> Option<usize> {
    let mut at = 1;
    loop {
        let word = words.get(at)?.to_str()?;
        if !word.starts_with('-') {
            return Some(at);
        }
        let valued = command.get_arguments().filter(|option| option.get_action().takes_values()).any(|option| {
            let long = option.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
            long || option
                .get_short()
                .is_some_and(|short| word.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4])))
        });
        at += if valued { 2 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn of(words: &str) -> String {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let replaced = replaced(words, &super::super::Arguments::command());
        replaced.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn other_words_for_our_verbs() {
        assert_eq!(of("windlass add q x"), "windlass push q x");
        assert_eq!(of("windlass --dir add -q follow j-1"), "windlass --dir add -q logs --follow j-1");
        assert_eq!(of("windlass --dir=add clean queue:a"), "windlass --dir=add delete state:succeeded queue:a");
        assert_eq!(of("windlass help follow"), "windlass help logs");
        assert_eq!(of("windlass push add x"), "windlass push add x");
        assert_eq!(of("windlass -q"), "windlass -q");
    }

    #[test]
    fn no_alias_hides_a_verb_and_each_leads_to_one() {
        let command = super::super::Arguments::command();
        for (alias, ours) in ALIASES {
            assert!(command.find_subcommand(alias).is_none(), "{alias} is a verb");
            assert!(command.find_subcommand(ours[0]).is_some(), "{} is no verb", ours[0]);
        }
    }
}
