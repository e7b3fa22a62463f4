//! The project's own commands: `cargo xtask test`, `bench`, `prove`, `servers`.
//!
//! Set-up of what the tests need, the tests themselves, the figures and the long proofs. It must not hold anything
//! that the product needs.

mod bench;
mod prove;
mod servers;
mod setup;
mod steps;
mod test;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask test            set up what the tests need and run them all
       cargo xtask bench [NAME…]   speed beside the raw limits of the same run; no name: all; --quick: only try them
       cargo xtask prove [NAME…] [--size N]   the long proofs; figures go to docs/proof.md
       cargo xtask prove sabotage [NAME…]   breaks one promise after the other; each must be noticed
       cargo xtask servers         PostgreSQL and MariaDB for single tests, until Ctrl-C; prints what to export";

fn main() -> ExitCode {
    if let Some(code) = windlass::runner::launcher::take_over_if_asked() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["test"] => test::test(),
        ["servers"] => servers::servers(),
        ["bench", names @ ..] => bench::bench(names),
        [bench::SERVER, dir, kind] => bench::serve(dir, kind),
        [bench::WORKER] => bench::work(),
        [bench::STAGE] => bench::stage(),
        [prove::groups::WORD, kills] => prove::groups::serve(kills),
        ["prove", names @ ..] => prove::prove(names),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}
