//! A server in the background, for `run --detach` where nobody serves: `serve --idle`, in a session of its own. No
//! other verb starts anything that outlives it.

use super::Context;
use super::connect::Link;
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::store::place::StorePlace;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// So long it stays when there is nothing left to do.
const IDLE: &str = "10m";

/// Comes back when somebody serves: whoever does already, or a server that this starts.
pub(super) fn have_served(dir: &DataDir, context: &Context) -> Result<(), Failure> {
    if Link::to_server(dir)?.is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|e| Failure::io("cannot find this program", &e))?;
    let path = dir.run().join("background.log");
    let log = File::create(&path).map_err(|e| Failure::io(format_args!("cannot make {}", path.display()), &e))?;
    let mut command = Command::new(program);
    command.args(["serve", "--idle", IDLE, "--dir"]).arg(dir.root());
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    if let (Some(_), StorePlace::Table(table)) = (&context.whereabouts.store, context.store_of(dir.root())?) {
        // Not as an argument, which everybody on the machine can read.
        command.env("WINDLASS_STORE", table.database.secret());
    }
    // SAFETY: one system call between fork and exec, which takes no lock and no memory.
    unsafe {
        // Of a terminal that is closed it must not hear.
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    let mut child = command.spawn().map_err(|e| Failure::io("cannot start a server in the background", &e))?;
    let mut ready = String::new();
    if let Some(stdout) = child.stdout.take() {
        // Its one line, or the end of it.
        BufReader::new(stdout).read_line(&mut ready).map_err(|e| Failure::io("cannot hear the server", &e))?;
    }
    // Another one may have been faster; then that one serves.
    if ready.is_empty() && Link::to_server(dir)?.is_none() {
        let told = std::fs::read_to_string(&path).unwrap_or_default();
        let why = told.lines().last().unwrap_or("it said nothing").trim_start_matches("windlass: ").to_owned();
        let text = format!("the server in the background did not start: {why}");
        return Err(Failure::new(Kind::NoServer, text).hint(format!("its words are in {}", path.display())));
    }
    if !ready.is_empty() {
        let (pid, place) = (child.id(), dir.root().display());
        context.say(format_args!(
            "no server was running: started one (process {pid}, {place}); it ends {IDLE} after the last job. \
             Stop it: windlass stop"
        ));
    }
    Ok(())
}
