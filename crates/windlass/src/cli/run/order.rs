//! What a `windlass run` asks for: its name, its queue, and the command with the caller's directory and environment.

use super::super::rows::Rows;
use super::Args;
use super::input::hashed;
use crate::api::{Terms, base64};
use crate::error::{Failure, Kind};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use windlass_core::job::QueueName;
use windlass_core::template::{takes_data, with_columns};

/// What is kept of each output stream: a caller expects all of it, a disk expects an end to it.
const OUTPUT_MAX: u64 = 256 << 20;

/// A run before it has a number.
#[derive(Clone, Debug)]
pub(super) struct Order {
    name: String,
    queue: Option<String>,
    argv: Vec<Vec<u8>>,
    directory: PathBuf,
    environment: Vec<(OsString, OsString)>,
    pub(super) slots: u32,
    attempts: u32,
    /// Lines of the input end with NUL.
    pub(super) null: bool,
    /// What else they are than lines.
    pub(super) rows: Option<Rows>,
    terms: Terms,
}

impl Order {
    pub(super) fn new(args: &Args) -> Result<Order, Failure> {
        let directory = std::env::current_dir().map_err(|e| Failure::io("cannot tell the current directory", &e))?;
        // What a job of another run was told about itself is not true of the jobs of this one.
        let own = |name: &OsString| name.as_bytes().starts_with(b"WINDLASS_");
        let environment = std::env::vars_os().filter(|(name, _)| !own(name)).collect();
        let cores = || std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
        let argv = match &args.shell {
            Some(script) => of_shell(script.clone().into_vec())?,
            None => of_command(args.command.iter().map(|word| with_columns(word.as_bytes())).collect())?,
        };
        let name = match &args.name {
            Some(name) if name.is_empty() => return Err(Failure::new(Kind::Usage, "the name is empty")),
            Some(name) => name.clone(),
            None => digest(args.queue.as_deref(), &argv, directory.as_os_str().as_bytes()),
        };
        let slots = args.jobs.unwrap_or_else(cores);
        let terms = args.limits.terms(None)?;
        let order = Order {
            name,
            queue: args.queue.clone(),
            argv,
            directory,
            environment,
            slots,
            attempts: args.retry + 1,
            null: args.null,
            rows: args.form.rows(),
            terms: Terms::from(&terms),
        };
        QueueName::new(order.queue(1).as_bytes()).map_err(|e| Failure::new(Kind::Usage, e.to_string()))?;
        Ok(order)
    }

    pub(super) fn separator(&self) -> u8 {
        if self.null { 0 } else { b'\n' }
    }

    /// The name of the n-th run that this order has tried to continue.
    pub(super) fn name(&self, number: u32) -> String {
        if number == 1 { self.name.clone() } else { format!("{}.{number}", self.name) }
    }

    /// True where another run of the same command may have jobs in the same queue.
    pub(super) fn shares_its_queue(&self) -> bool {
        self.queue.is_some()
    }

    pub(super) fn queue(&self, number: u32) -> String {
        self.queue.clone().unwrap_or_else(|| format!("run.{}", self.name(number)))
    }

    /// As the API takes it; bytes that need not be text travel in base64.
    pub(super) fn request(&self, number: u32) -> Value {
        let variable = |(name, value): &(OsString, OsString)| {
            json!([base64::encode(name.as_bytes()), base64::encode(value.as_bytes())])
        };
        let Terms { time_limit, job_limit, tolerate, end_job, notify, notify_on } = &self.terms;
        json!({
            "name": self.name(number),
            "service": {
                "queue": self.queue(number),
                "argv_base64": self.argv.iter().map(|word| base64::encode(word)).collect::<Vec<_>>(),
                "directory_base64": base64::encode(self.directory.as_os_str().as_bytes()),
                "environment_base64": self.environment.iter().map(variable).collect::<Vec<_>>(),
                "slots": self.slots,
                "attempts": self.attempts,
                "output_max": OUTPUT_MAX,
            },
            "time_limit": time_limit,
            "job_limit": job_limit,
            "tolerate": tolerate,
            "end_job": end_job,
            "notify": notify,
            "notify_on": notify_on,
        })
    }
}

/// The words of a command; the line is the last where none of them has it.
fn of_command(mut argv: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Failure> {
    if argv[0].is_empty() {
        return Err(Failure::new(Kind::Usage, "the command is the empty string"));
    }
    if !takes_data(&argv) {
        argv.push(b"{}".to_vec());
    }
    Ok(argv)
}

/// A script gets the line as an argument, never as a part of its text: a shell would take that apart and obey it.
fn of_shell(script: Vec<u8>) -> Result<Vec<Vec<u8>>, Failure> {
    if script.is_empty() {
        return Err(Failure::new(Kind::Usage, "the script is the empty string"));
    }
    if takes_data(std::slice::from_ref(&script)) {
        let text = "the script has {} in it, where the shell would take a line for commands";
        return Err(Failure::new(Kind::Usage, text).hint("write \"$1\", with the quotes, where the line belongs"));
    }
    Ok(vec![b"sh".to_vec(), b"-c".to_vec(), script, b"sh".to_vec(), b"{}".to_vec()])
}

/// The same queue, command and directory have the same name; parts are kept apart by their lengths.
fn digest(queue: Option<&str>, argv: &[Vec<u8>], directory: &[u8]) -> String {
    let queue = queue.unwrap_or_default().as_bytes();
    let parts = [queue, directory].into_iter().chain(argv.iter().map(Vec::as_slice));
    let hash = parts.fold(0, |hash, part| hashed(hashed(hash, &part.len().to_le_bytes()), part));
    format!("{:012x}", hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(words: &[&str]) -> Result<Order, Failure> {
        #[derive(clap::Parser)]
        struct Probe {
            #[command(flatten)]
            args: Args,
        }
        let probe: Probe = clap::Parser::try_parse_from(["run"].iter().chain(words)).unwrap();
        Order::new(&probe.args)
    }

    fn argv(words: &[&str]) -> Vec<String> {
        order(words).unwrap().argv.into_iter().map(|word| String::from_utf8(word).unwrap()).collect()
    }

    #[test]
    fn the_line_is_the_last_argument_unless_it_is_placed() {
        assert_eq!(argv(&["--", "echo", "-n"]), ["echo", "-n", "{}"]);
        assert_eq!(argv(&["--", "cp", "{}", "{.}.bak"]), ["cp", "{}", "{.}.bak"]);
        assert_eq!(argv(&["--", "ls", "{//}"]), ["ls", "{//}"]);
        assert_eq!(argv(&["--", "echo", "{#}"]), ["echo", "{#}", "{}"], "a number is not the line");
        assert_eq!(argv(&["--", "sh", "-c", "--", "x"]), ["sh", "-c", "--", "x", "{}"]);
        assert_eq!(argv(&["--shell", "wc \"$1\""]), ["sh", "-c", "wc \"$1\"", "sh", "{}"]);
    }

    #[test]
    fn the_name_follows_from_queue_command_and_directory() {
        let name = |words: &[&str]| order(words).unwrap().name(1);
        assert_eq!(name(&["--", "echo"]), name(&["-j", "3", "--retry", "2", "--", "echo"]));
        assert_ne!(name(&["--", "echo"]), name(&["-Q", "q", "--", "echo"]));
        assert_ne!(name(&["--", "ab", "c{}"]), name(&["--", "a", "bc{}"]));
        assert_ne!(digest(None, &[], b"/a"), digest(None, &[], b"/b"));
        assert_eq!(name(&["--name", "n", "--", "echo"]), "n");
        let named = order(&["--name", "n", "--", "echo"]).unwrap();
        assert_eq!((named.name(2).as_str(), named.queue(2).as_str()), ("n.2", "run.n.2"));
        assert_eq!(order(&["-Q", "q", "--name", "n", "--", "echo"]).unwrap().queue(2), "q");
    }

    #[test]
    fn refused_orders() {
        for words in [
            &["--name", "", "--", "x"][..],
            &["-Q", ".x", "--", "x"],
            &["--name", "a\nb", "--", "x"],
            &["--", ""],
            &["--shell", ""],
            &["--shell", "rm {}"],
            &["--time-limit", "soon", "--", "x"],
            &["--end-job", ":x", "--", "x"],
        ] {
            assert_eq!(order(words).unwrap_err().kind, Kind::Usage, "{words:?}");
        }
    }

    #[test]
    fn tried_once_unless_told_otherwise() {
        assert_eq!(order(&["--", "x"]).unwrap().request(1)["service"]["attempts"], 1);
        assert_eq!(order(&["--retry", "2", "--", "x"]).unwrap().request(1)["service"]["attempts"], 3);
    }
}
