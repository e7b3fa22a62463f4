//! Lua modules (`lua = "FILE"`): jobs done by a script, in a process of ours that is kept like any other worker.
//!
//! The program runs itself once more, as a worker that reads a JSON line and writes a reply, so everything that holds
//! for kept workers holds here: made on demand, recycled, its time limit ended by a kill, its death costing one job a
//! suspicion. `docs/runners.md` is the contract with the script. This file owns how such a worker is asked for; it must
//! not know what runs it.

use std::ffi::OsString;
use std::process::ExitCode;
use windlass_core::policy::{Command, Framing, Lua, Worker};

#[cfg(feature = "lua")]
mod json;
#[cfg(feature = "lua")]
mod module;
#[cfg(feature = "lua")]
mod offered;
#[cfg(feature = "lua")]
mod returned;
#[cfg(feature = "lua")]
mod service;
#[cfg(feature = "lua")]
mod sources;

/// The first argument that makes this program a Lua worker.
pub(super) const WORD: &str = "__lua";

/// Whether this program can be one.
pub const IS_BUILT_IN: bool = cfg!(feature = "lua");

/// With less than this not even the libraries fit.
pub const MEMORY_LEAST: u64 = 1 << 20;

/// What is started: the launcher's own program. The module and its memory are put behind it for each worker.
pub fn argv() -> Vec<Vec<u8>> {
    vec![b"/proc/self/exe".to_vec(), WORD.into()]
}

/// A worker for a module; of the command only the directory and the environment are its owner's.
pub fn worker(command: Command, lua: Lua) -> Worker {
    let command = Command { argv: argv(), ..command };
    Worker { framing: Framing::Json, lua: Some(lua), ..Worker::new(command) }
}

/// Is a Lua worker to its end.
pub(super) fn serve(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let file = arguments.next().unwrap_or_default();
    let memory = arguments.next().and_then(|memory| memory.to_str()?.parse().ok()).unwrap_or(Lua::MEMORY);
    match serve_if_built_in(file, memory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            use std::io::Write;
            // There is nobody to tell that standard error is closed.
            let _unheard = writeln!(std::io::stderr(), "windlass lua: {failure}");
            ExitCode::from(failure.kind.exit_code())
        }
    }
}

#[cfg(feature = "lua")]
fn serve_if_built_in(file: OsString, memory: u64) -> Result<(), crate::error::Failure> {
    service::Service::new(file, memory)?.serve()
}

#[cfg(not(feature = "lua"))]
fn serve_if_built_in(_file: OsString, _memory: u64) -> Result<(), crate::error::Failure> {
    Err(crate::error::Failure::new(crate::error::Kind::Config, "this windlass was built without Lua"))
}
