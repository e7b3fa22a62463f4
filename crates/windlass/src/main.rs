//! The program: everything it does is in the library's `cli`.
//!
//! The launcher is this same program started again, so that is looked for before anything else happens: it must
//! not pay for, or be confused by, the parsing of people's arguments.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = windlass::runner::launcher::take_over_if_asked() {
        return code;
    }
    windlass::cli::main()
}
