//! The one program: a launcher where its server asks for one, else the command line.
//!
//! The launcher is this same program started again, so it is looked for before anything else happens: it must not
//! pay for, or be confused by, the parsing of people's arguments.

use std::process::ExitCode;

fn main() -> ExitCode {
    windlass::runner::launcher::take_over_if_asked();
    windlass::cli::main()
}
