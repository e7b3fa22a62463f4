//! `windlass completions` and `windlass man`: both printed from the one table of verbs, so they cannot be behind it.

use super::print::Out;
use crate::error::{Failure, Kind};
use clap_complete::Shell;

#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// bash, zsh or fish
    #[arg(value_parser = shell)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// The page of this verb; by default the one of windlass itself
    verb: Option<String>,
}

/// The shells that are tried; others that the crate knows would be promises that nobody keeps.
fn shell(text: &str) -> Result<Shell, String> {
    match text {
        "bash" => Ok(Shell::Bash),
        "zsh" => Ok(Shell::Zsh),
        "fish" => Ok(Shell::Fish),
        _ => Err("expected bash, zsh or fish".into()),
    }
}

pub(super) fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "windlass", &mut script);
    let mut out = Out::new();
    out.bytes(&script);
    out.finish()
}

pub(super) fn man(args: &ManArgs, command: clap::Command) -> Result<u8, Failure> {
    let mut command = command;
    command.build();
    let page = match &args.verb {
        None => clap_mangen::Man::new(command),
        Some(verb) => {
            let unknown = || Failure::new(Kind::Usage, format!("there is no verb {verb:?}")).hint("windlass --help");
            let found = command.find_subcommand(verb).cloned().ok_or_else(unknown)?;
            clap_mangen::Man::new(found).title(format!("windlass-{verb}"))
        }
    };
    let mut text = Vec::new();
    page.render(&mut text).map_err(|e| Failure::io("cannot write the page", &e))?;
    let mut out = Out::new();
    out.bytes(&text);
    out.finish()
}
