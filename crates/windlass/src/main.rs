//! The program: everything it does is in the library's `cli`.
//!
//! The launcher is this same program started again, so its word is looked for before anything else happens: it
//! must not pay for, or be confused by, the parsing of people's arguments.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "__launcher") {
        return windlass::cli::connect::launcher();
    }
    windlass::cli::main()
}
