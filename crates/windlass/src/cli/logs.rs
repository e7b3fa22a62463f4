//! `windlass logs`: what a job wrote, byte for byte; with `--follow` as it comes, until the job has ended.

use super::Context;
use super::connect::{Link, encoded};
use super::print::{self, Out, data_of, field};
use super::show::whole_id;
use super::signals::{Signals, exit_code};
use super::values;
use super::watch::{Happened, spawn_lines, spawn_signals};
use crate::error::{Failure, Kind};
use serde_json::Value;
use std::io::Write;
use std::sync::mpsc::{Receiver, sync_channel};

const EXAMPLES: &str = "\
Examples:
  windlass logs j-0c3k5p7m2x-1f              both streams, each to its own
  windlass logs j-0c3k5p7m2x-1f --stderr     one of them, to stdout
  windlass logs j-0c3k5p7m2x-1f --start 1    an earlier attempt
  windlass logs j-0c3k5p7m2x-1f -f           as it comes, until the job has ended";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The job, or as much of its id's beginning as no other has
    id: String,
    /// Only its standard output
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only its standard error, printed to stdout
    #[arg(long)]
    stderr: bool,
    /// Of this start; by default of the last
    #[arg(long, value_name = "N", value_parser = values::start)]
    start: Option<u32>,
    /// Go on as it writes, through all its attempts, until it has ended
    #[arg(short, long, conflicts_with = "start")]
    follow: bool,
}

pub(super) fn logs(args: &Args, context: &Context) -> Result<u8, Failure> {
    if args.follow {
        return follow(args, context);
    }
    let place = context.place()?;
    let start = args.start.map_or_else(String::new, |start| format!("&start={start}"));
    let (id, stdout, stderr) = Link::ask(&place, |server| {
        let id = whole_id(server, &args.id)?;
        let mut fetch = |wanted: bool, stream| match wanted {
            true => {
                let path = format!("/api/v1/jobs/{}/output?stream={stream}{start}", encoded(&id));
                server.get(&path)?.checked().map(|response| response.body)
            }
            false => Ok(Vec::new()),
        };
        let (stdout, stderr) = (fetch(!args.stderr, "stdout")?, fetch(!args.stdout, "stderr")?);
        Ok((id, stdout, stderr))
    })?;
    if context.json {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        return print::document(&serde_json::json!({
            "id": id, "stdout": text(&stdout), "stderr": text(&stderr),
            "stdout_base64": crate::api::base64::encode(&stdout), "stderr_base64": crate::api::base64::encode(&stderr),
        }));
    }
    let mut out = Out::new();
    if args.stderr {
        out.bytes(&stderr);
        return out.finish();
    }
    out.bytes(&stdout);
    let code = out.finish()?;
    // A closed stderr is nobody's fault.
    let _ = std::io::stderr().lock().write_all(&stderr);
    Ok(code)
}

/// Where nobody serves, what was written is all that there will be, so a job that has not ended is one too many.
fn follow(args: &Args, context: &Context) -> Result<u8, Failure> {
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
    let place = context.place()?;
    let mut link = Link::open(&place)?;
    let id = match whole_id(&mut link.connection, &args.id).and_then(|id| if_it_can_end(&mut link, id)) {
        Ok(id) => id,
        Err(failure) => {
            // What is wrong with the question is the failure to tell; the stop is only tidy.
            let _ = link.close();
            return Err(failure);
        }
    };
    let stream = match (args.stdout, args.stderr) {
        (true, _) => "&stream=stdout",
        (_, true) => "&stream=stderr",
        (false, false) => "",
    };
    let connection = link.second(&place)?;
    let (tell, happened) = sync_channel(64);
    spawn_signals(signals, tell.clone());
    spawn_lines(connection, format!("/api/v1/jobs/{}/output?follow=true{stream}", encoded(&id)), tell);
    let mut out = Out::new();
    let followed = pass_on(&happened, args, context, &mut out, &id);
    let printed = out.finish();
    let stopped = link.close();
    let code = followed?;
    printed.and(stopped.map(|()| code))
}

/// Only a server of somebody else's lets a job go on.
fn if_it_can_end(link: &mut Link, id: String) -> Result<String, Failure> {
    let job: Value = link.connection.get_json(&format!("/api/v1/jobs/{}", encoded(&id)))?;
    let state = field(&job, "state");
    let ended = state.parse().is_ok_and(windlass_core::life_cycle::State::is_end);
    if link.is_own() && !ended {
        let text = format!("{id} is {state}, and no server is running: nothing changes");
        return Err(Failure::new(Kind::NoServer, text).hint("start one: windlass serve"));
    }
    Ok(id)
}

/// Prints lines until the last.
fn pass_on(
    happened: &Receiver<Happened>,
    args: &Args,
    context: &Context,
    out: &mut Out,
    id: &str,
) -> Result<u8, Failure> {
    while !out.closed() {
        let line = match happened.recv() {
            Ok(Happened::Line(line)) => line,
            Ok(Happened::Over(failure)) => return Err(failure),
            Ok(Happened::Signal(signal)) => {
                context.say(format_args!("no longer following; {id} goes on"));
                return Ok(exit_code(signal));
            }
            Err(_) => return Err(Failure::new(Kind::Internal, "all threads of the following have ended")),
        };
        if line.get("error").is_some_and(Value::is_object) {
            let problem: crate::api::FollowLine = serde_json::from_value(line)
                .map_err(|e| Failure::new(Kind::Internal, format!("the server said something else: {e}")))?;
            if let crate::api::FollowLine::Broken { error } = problem {
                return Err(error.into_failure());
            }
            continue;
        }
        if context.json {
            out.line(&line);
        } else if line.get("stream").is_some() {
            let bytes = data_of(&line, "data")?;
            if field(&line, "stream") == "stdout" || args.stderr {
                out.bytes(&bytes);
            } else {
                // A closed stderr is nobody's fault.
                let _ = std::io::stderr().lock().write_all(&bytes);
            }
        } else if line.get("ended").is_none() {
            let (start, error) = (field(&line, "start"), field(&line, "error"));
            let error = if error.is_empty() { error } else { format!(": {error}") };
            context.say(format_args!("start {start} of {id} {}{error}", field(&line, "outcome").replace('_', " ")));
        }
        out.flush();
        if line.get("ended").is_some() {
            if !context.json {
                context.say(format_args!("{id} has {}", ended_words(&field(&line, "ended"))));
            }
            return Ok(0);
        }
    }
    Ok(0)
}

fn ended_words(state: &str) -> String {
    if state == "cancelled" { "been cancelled".to_owned() } else { state.to_owned() }
}
