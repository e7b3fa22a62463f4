//! Colour: where a terminal shows it, unless somebody says otherwise. A coloured word says the same without its colour.

use std::ffi::OsString;
use std::io::IsTerminal;
use windlass_core::life_cycle::State;

/// When there is colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Color {
    /// On a terminal that is not dumb, unless NO_COLOR is set; CLICOLOR_FORCE is for pipes, too.
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// What the command line says, before it is taken apart: help and refusals have colours, too.
    pub(super) fn named_in(words: &[OsString]) -> Color {
        let own = words.iter().take_while(|word| *word != "--").collect::<Vec<_>>();
        let mut named =
            own.iter().enumerate().filter_map(|(at, word)| match word.to_str()?.strip_prefix("--color")? {
                "" => own.get(at + 1)?.to_str(),
                value => value.strip_prefix('='),
            });
        let named = named.next_back().and_then(|value| clap::ValueEnum::from_str(value, false).ok());
        named.unwrap_or_default()
    }

    /// As clap calls it; it heeds the same variables.
    pub(super) fn of_help(self) -> clap::ColorChoice {
        match self {
            Color::Auto => clap::ColorChoice::Auto,
            Color::Always => clap::ColorChoice::Always,
            Color::Never => clap::ColorChoice::Never,
        }
    }

    /// Whether standard output gets colours.
    pub(super) fn on_stdout(self) -> bool {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto if set("NO_COLOR").is_some() => false,
            Color::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
            Color::Auto => std::io::stdout().is_terminal() && set("TERM").is_some_and(|term| term != "dumb"),
        }
    }
}

/// A state's word in its colour; any other word as it is.
pub(super) fn painted(word: &str) -> String {
    let code = match word.parse::<State>() {
        Ok(State::Running) => "36",
        Ok(State::Retrying) => "33",
        Ok(State::Succeeded) => "32",
        Ok(State::Failed) => "31",
        Ok(State::Suspended | State::Cancelled) => "35",
        Ok(State::Scheduled | State::Ready) | Err(_) => return word.to_owned(),
    };
    format!("\x1b[{code}m{word}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read_before_it_is_taken_apart() {
        let named = |words: &str| Color::named_in(&words.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(named("windlass ls"), Color::Auto);
        assert_eq!(named("windlass ls --color always"), Color::Always);
        assert_eq!(named("windlass --color=never ls"), Color::Never);
        assert_eq!(named("windlass run -- ls --color always"), Color::Auto, "that is the command's");
        assert_eq!(named("windlass ls --color pink"), Color::Auto);
    }

    #[test]
    fn words_keep_their_letters() {
        assert_eq!(painted("failed"), "\x1b[31mfailed\x1b[0m");
        assert_eq!((painted("ready"), painted("fail")), ("ready".into(), "fail".into()));
    }
}
