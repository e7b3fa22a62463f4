//! `windlass push`: accepts jobs and says how safe they are; needs no server.
//!
//! Ids go to stdout as soon as they are final, sentences to stderr. The exit code tells whether everything was
//! accepted, not whether it could be printed.

mod api_door;

use super::Context;
use super::connect::{Connection, Link};
use super::inbox_door::InboxDoor;
use super::place::Place;
use super::print::{Out, jobs};
use super::rows::{Converted, Form};
use super::signals::{Interruptible, Signals, exit_code};
use super::terms::Limits;
use crate::clock;
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::inbox::Envelope;
use crate::particulars::trace_of_environment;
use crate::store::Durability;
use crate::when;
use api_door::ApiDoor;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use windlass_core::job::{DATA_MAX, JobId, Origin, Priority, QueueName, RunId};
use windlass_core::particulars::{OnConflict, Particulars, Scope, Subject, Trace, Unique};
use windlass_core::run::terms::{RunTerms, Tolerance};
use windlass_core::time::Time;

const EXAMPLES: &str = "\
Examples:
  windlass push mail customer-42 customer-43
  find . -name '*.pdf' | windlass push ocr
  windlass push report nightly --at '2026-11-16 03:00'
  windlass push mail --csv --header < people.csv      {data.NAME} in the command is a field
  RUN=$(windlass push ocr --run new < files.txt); windlass wait $RUN";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// The queue; it appears with its first job
    #[arg(required_unless_present = "named")]
    queue: Option<OsString>,
    /// One job each; none, or a single `-`, reads one job per line of stdin, without the empty lines
    data: Vec<OsString>,
    /// Not before this time: RFC 3339, "2026-11-15 10:00" (local) or @SECONDS
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<String>,
    /// Not before this much later: 30s 5m 2h 1d PT20M
    #[arg(long = "in", id = "delay", value_name = "DURATION")]
    delay: Option<String>,
    /// From -100 to 100, or high, normal, low; larger is sooner
    #[arg(short, long, value_name = "N", default_value = "normal", allow_hyphen_values = true)]
    priority: Priority,
    /// Join this run; `new` makes one, seals it at the end of the input and prints its id instead of the jobs'
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// The record that the jobs are about
    #[arg(long, value_name = "TYPE:ID", value_parser = subject)]
    subject: Option<Subject>,
    /// The trace that the jobs belong to: a W3C traceparent; by default that of TRACEPARENT, TRACESTATE and BAGGAGE
    #[arg(long, value_name = "TRACEPARENT")]
    trace: Option<String>,
    /// The job that these came from
    #[arg(long, value_name = "JOB")]
    parent: Option<JobId>,
    /// Failed as expired where they have not begun by this time, or so much later
    #[arg(long, value_name = "TIME|DURATION")]
    start_by: Option<String>,
    /// The same where they have not ended by then; what runs is stopped
    #[arg(long, value_name = "TIME|DURATION")]
    finish_by: Option<String>,
    /// Scheduled until these jobs have succeeded; cancelled if one of them does not
    #[arg(long, value_name = "JOB", value_delimiter = ',', conflicts_with_all = ["at", "delay"])]
    after: Vec<JobId>,
    /// One job at a time with this key; `{}` is the job's data
    #[arg(long, value_name = "KEY")]
    unique: Option<OsString>,
    /// How long a key is taken: until its job starts, until it has ended, or for the whole run
    #[arg(long, value_name = "waiting|active|run", requires = "unique")]
    unique_scope: Option<Scope>,
    /// Where the key is taken: `ignore` names the job that has it, `replace` cancels that one, `reject` is an error
    #[arg(long, value_name = "ignore|replace|reject", requires = "unique")]
    on_conflict: Option<OnConflict>,
    #[command(flatten)]
    limits: Limits,
    /// Of a new run: so many failures, or such a share (1%), are borne; with more the rest is cancelled
    #[arg(long, value_name = "N|N%")]
    tolerate: Option<Tolerance>,
    /// What an answer means: `full` survives a power cut, `os` the death of any process
    #[arg(long, value_name = "full|os", default_value = "full", value_parser = durability)]
    durability: Durability,
    /// Print every id, also for lines
    #[arg(long)]
    ids: bool,
    /// The queue, as `run` takes it: then every argument is a job
    #[arg(short = 'Q', long = "queue", id = "named", value_name = "QUEUE")]
    named: Option<OsString>,
    /// Jobs from stdin end with NUL instead of a newline, and may be empty
    #[arg(short = '0', long)]
    null: bool,
    #[command(flatten)]
    form: Form,
}

impl Args {
    fn queue(&self) -> &OsStr {
        self.named.as_deref().or(self.queue.as_deref()).unwrap_or_default()
    }

    /// The jobs that were named; with -Q the first argument is one of them.
    fn data(&self) -> impl Iterator<Item = &OsString> {
        self.queue.iter().filter(|_| self.named.is_some()).chain(&self.data)
    }

    fn reads_stdin(&self) -> bool {
        let mut data = self.data();
        match (data.next(), data.next()) {
            (None, _) => true,
            (Some(only), None) => only == "-",
            (Some(_), Some(_)) => false,
        }
    }

    fn separator(&self) -> u8 {
        if self.null { 0 } else { b'\n' }
    }
}

pub(super) fn push(args: &Args, context: &Context) -> Result<u8, Failure> {
    let (terms, fresh) = terms(args, clock::now())?;
    let from_stdin = args.reads_stdin();
    let about = [(args.null, "-0"), (args.form.jsonl, "--jsonl"), (args.form.csv, "--csv")];
    if let Some((_, option)) = about.iter().find(|(given, _)| *given && !from_stdin) {
        return Err(Failure::new(Kind::Usage, format!("{option} is about stdin, but DATA was given")));
    }
    let place = context.made_place()?;
    let door = Door { args, context, terms, fresh, out: Out::new(), ids: Vec::new(), duplicates: 0 };
    if !args.after.is_empty() && (from_stdin || door.fresh.is_some()) {
        let text = "--after is about jobs that are named, and about no new run";
        return Err(Failure::new(Kind::Usage, text).hint("give them as DATA, without --run new"));
    }
    match (from_stdin, &place) {
        (true, Place::Directory { dir, .. }) => door.lines(dir),
        (true, Place::Address { .. }) => door.lines_elsewhere(&place),
        (false, _) => door.arguments(&place),
    }
}

/// What all jobs of one push have in common, and how safe they will be.
#[derive(Debug)]
struct Terms {
    envelope: Envelope,
    durability: Durability,
    /// Those of the run that this push makes.
    run: RunTerms,
}

/// One push under way.
struct Door<'a> {
    args: &'a Args,
    context: &'a Context,
    terms: Terms,
    /// The run was made by this push, which therefore seals it.
    fresh: Option<RunId>,
    out: Out,
    /// Kept only for the one document of `--json`.
    ids: Vec<String>,
    /// Jobs that were not stored, because others have their keys.
    duplicates: u64,
}

impl Door<'_> {
    /// Jobs named on the command line: accepted together, through the server if there is one to share its sync with.
    fn arguments(mut self, place: &Place) -> Result<u8, Failure> {
        let data: Vec<Vec<u8>> = self.args.data().map(|data| data.clone().into_vec()).collect();
        if let Some(place) = data.iter().position(|data| data.len() > DATA_MAX) {
            let text = format!("job {} has {} bytes, expected at most {DATA_MAX}", place + 1, data[place].len());
            return Err(Failure::new(Kind::BadData, text));
        }
        // Only who knows the store and the archive can say whether the jobs that these wait for are there.
        if !self.args.after.is_empty() {
            let ids = Link::with(place, |server| self.through(server, &data))?;
            return self.accepted(ids, true);
        }
        let server = place.server()?;
        let listens = server.is_some();
        let whole = self.terms.durability == Durability::Full && self.fresh.is_none();
        let ids = match (place, server) {
            (Place::Directory { dir, .. }, None) => self.through_inbox(dir, &data)?,
            (Place::Directory { dir, .. }, Some(_)) if !whole => self.through_inbox(dir, &data)?,
            (_, Some(mut server)) => {
                self.make_run(&mut server)?;
                match (self.through(&mut server, &data), place) {
                    // A database that is away, or a server that is about to end: what is in the inbox waits for either.
                    (Err(failure), Place::Directory { dir, .. })
                        if failure.kind == Kind::TryLater && self.fresh.is_none() =>
                    {
                        self.through_inbox(dir, &data)?
                    }
                    (answer, _) => answer?,
                }
            }
            (Place::Address { .. }, None) => return Err(Failure::new(Kind::NoServer, "no server answers")),
        };
        self.accepted(ids, listens)
    }

    fn accepted(mut self, ids: Vec<String>, listens: bool) -> Result<u8, Failure> {
        let count = ids.len() as u64 - self.duplicates;
        self.announce(ids.into_iter(), self.fresh.is_none() || self.args.ids || self.context.json);
        self.close(count, listens, None)
    }

    fn through(&mut self, server: &mut Connection, data: &[Vec<u8>]) -> Result<Vec<String>, Failure> {
        let mut door = ApiDoor::new(server, &self.terms);
        door.push_all(data)?;
        if let Some(run) = self.fresh {
            door.seal(run)?;
        }
        self.duplicates = door.duplicates;
        Ok(door.ids)
    }

    fn through_inbox(&mut self, dir: &DataDir, data: &[Vec<u8>]) -> Result<Vec<String>, Failure> {
        let mut inbox = InboxDoor::open(dir, &self.terms.envelope, self.terms.durability)?;
        open(&mut inbox, self.fresh, &self.terms.run)?;
        inbox.push_all(data)?;
        seal(&mut inbox, self.fresh)?;
        Ok(inbox.ids().map(|id| id.to_string()).collect())
    }

    /// The run of a push that makes one is the server's to name.
    fn make_run(&mut self, server: &mut Connection) -> Result<(), Failure> {
        if self.fresh.is_some() {
            let run = Some(api_door::open_run(server, &self.terms)?);
            (self.fresh, self.terms.envelope.run) = (run, run);
        }
        Ok(())
    }

    /// Jobs from stdin for a server that is somewhere else: in requests of many.
    fn lines_elsewhere(mut self, place: &Place) -> Result<u8, Failure> {
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
        let mut server = place.server()?.ok_or_else(|| Failure::new(Kind::NoServer, "no server answers"))?;
        let mut input = self.input(&signals)?;
        self.make_run(&mut server)?;
        let mut door = ApiDoor::new(&mut server, &self.terms);
        match self.args.form.rows() {
            None => door.push_input(self.args.separator(), &mut input)?,
            Some(rows) => door.push_input(self.args.separator(), &mut Converted::new(rows, &mut input))?,
        }
        if let Some(run) = self.fresh {
            door.seal(run)?;
        }
        let (count, duplicates, ids) = (door.count(), door.duplicates, door.ids);
        self.duplicates = duplicates;
        self.announce(ids.into_iter(), self.args.ids);
        self.close(count, true, input.signal)
    }

    /// Standard input. A signal ends it, not the process: what was read before that is accepted, and said so.
    fn input<'s>(&self, signals: &'s Signals) -> Result<Interruptible<'s, File>, Failure> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            self.context.say("reading jobs from the terminal, one a line; end with Ctrl-D");
        }
        // The library's buffer would only copy: the door reads in large pieces.
        let raw = rustix::io::dup(&stdin).map_err(|e| Failure::io("cannot read standard input", &e.into()))?;
        Ok(Interruptible::new(File::from(raw), signals))
    }

    /// Jobs from stdin: always through the inbox, which takes them as fast as the disk does.
    fn lines(mut self, dir: &DataDir) -> Result<u8, Failure> {
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])?;
        let mut input = self.input(&signals)?;
        let envelope = self.terms.envelope.clone();
        let mut inbox = InboxDoor::open(dir, &envelope, self.terms.durability)?;
        open(&mut inbox, self.fresh, &self.terms.run)?;
        match self.args.form.rows() {
            None => inbox.push_input(self.args.separator(), &mut input)?,
            Some(rows) => inbox.push_input(self.args.separator(), &mut Converted::new(rows, &mut input))?,
        }
        let count = seal(&mut inbox, self.fresh)?;
        self.announce(inbox.ids().map(|id| id.to_string()), self.args.ids);
        // A server that cannot be asked is one that does not listen; the jobs are in either way.
        let listens = matches!(Link::to_server(dir), Ok(Some(_)));
        self.close(count, listens, input.signal)
    }

    /// The run's id and, where wanted, the jobs': printed, or kept for the one document.
    fn announce(&mut self, ids: impl Iterator<Item = String>, wanted: bool) {
        if let Some(run) = self.fresh.filter(|_| !self.context.json) {
            self.out.line(run);
        }
        // Ids are only written out where somebody wants them: that costs more than taking the jobs.
        for id in ids.take(if wanted { usize::MAX } else { 0 }) {
            if self.context.json { self.ids.push(id) } else { self.out.line(id) }
        }
    }

    /// Says what was accepted, and how.
    fn close(mut self, count: u64, listens: bool, signal: Option<i32>) -> Result<u8, Failure> {
        let word = self.terms.durability.word();
        if self.context.json {
            let run = self.terms.envelope.run.map(|run| run.to_string());
            let document = json!({
                "count": count, "ids": self.ids, "durability": word, "run": run, "server": listens,
                "interrupted": signal.is_some(), "duplicates": self.duplicates,
            });
            self.out.line(document);
        } else {
            let interrupted = if signal.is_some() { "interrupted: " } else { "" };
            let absent = if listens { "" } else { "; no server is running" };
            let there = match self.duplicates {
                0 => String::new(),
                1 => "; 1 job was not stored: it was there already".into(),
                more => format!("; {} were not stored: they were there already", jobs(more)),
            };
            self.context.say(format_args!("{interrupted}{} accepted ({word}){there}{absent}", jobs(count)));
        }
        self.out.finish_accepted();
        Ok(signal.map_or(0, exit_code))
    }
}

/// Opens the run that this push makes, where there are terms to tell; else its first job does.
fn open(inbox: &mut InboxDoor<'_>, fresh: Option<RunId>, terms: &RunTerms) -> Result<(), Failure> {
    match fresh.filter(|_| !terms.is_empty()) {
        Some(run) => inbox.open_run(run, terms),
        None => Ok(()),
    }
}

/// Ends the run that this push made, and makes everything durable.
fn seal(inbox: &mut InboxDoor<'_>, fresh: Option<RunId>) -> Result<u64, Failure> {
    if let Some(run) = fresh {
        inbox.seal(run)?;
    }
    inbox.sync()
}

/// Checks everything that can be checked before anything is written.
fn terms(args: &Args, now: Time) -> Result<(Terms, Option<RunId>), Failure> {
    let queue = QueueName::new(args.queue().as_bytes()).map_err(|e| Failure::new(Kind::Usage, e.to_string()))?;
    let not_before = match (&args.at, &args.delay) {
        (Some(text), _) => Some(when::time(text, now)?),
        (None, Some(text)) => Some(now.after(when::duration(text).map_err(|e| Failure::new(Kind::Usage, e))?)),
        (None, None) => None,
    };
    let fresh = match args.run.as_deref() {
        Some("new") => Some(RunId::first(random_origin()?)),
        _ => None,
    };
    let run = match (fresh, args.run.as_deref()) {
        (None, Some(text)) => {
            let refused = |e| Failure::new(Kind::Usage, format!("cannot join the run {text:?}: {e}"));
            Some(text.parse().map_err(refused)?)
        }
        (fresh, _) => fresh,
    };
    let not_before = not_before.filter(|time| *time > now);
    let particulars = particulars(args, now)?;
    let envelope = Envelope { queue, priority: args.priority, run, not_before, particulars };
    let run = match fresh {
        Some(_) => args.limits.terms(args.tolerate)?,
        None => args.limits.of_no_run().terms(args.tolerate)?,
    };
    if fresh.is_none() && !run.is_empty() {
        return Err(Failure::new(Kind::Usage, "these are terms of a run that is made: add --run new"));
    }
    Ok((Terms { envelope, durability: args.durability, run }, fresh))
}

/// What the jobs have that most lack.
fn particulars(args: &Args, now: Time) -> Result<Option<Arc<Particulars>>, Failure> {
    let named = |parent: &String| Trace { parent: parent.clone(), state: String::new(), baggage: String::new() };
    let particulars = Particulars {
        subject: args.subject.clone(),
        trace: args.trace.as_ref().map(named).or_else(trace_of_environment),
        parent: args.parent,
        unique: args.unique.as_ref().map(|key| unique(args, key)),
        start_by: args.start_by.as_deref().map(|text| time_or_delay(text, now)).transpose()?,
        finish_by: args.finish_by.as_deref().map(|text| time_or_delay(text, now)).transpose()?,
        after: args.after.clone(),
        // Of a run that is made, it is the run's end that is told.
        notify: args.limits.notify()?.filter(|_| args.run.as_deref() != Some("new")),
    };
    let in_run = |unique: &Unique| unique.scope == Scope::Run && args.run.is_none();
    if particulars.unique.as_ref().is_some_and(in_run) {
        return Err(Failure::new(Kind::Usage, "--unique-scope run is about a run, and there is no --run"));
    }
    particulars.check().map_err(|bad| Failure::new(Kind::Usage, bad.to_string()))?;
    Ok(Some(particulars).filter(|particulars| !particulars.is_empty()).map(Arc::new))
}

/// `5m` is so much later, everything else a time.
fn time_or_delay(text: &str, now: Time) -> Result<Time, Failure> {
    when::duration(text).map(|delay| now.after(delay)).or_else(|_| when::time(text, now))
}

fn unique(args: &Args, key: &OsStr) -> Unique {
    Unique {
        scope: args.unique_scope.unwrap_or(Scope::Active),
        on_conflict: args.on_conflict.unwrap_or(OnConflict::Ignore),
        key: (key != "{}").then(|| key.as_bytes().to_vec()),
    }
}

fn subject(text: &str) -> Result<Subject, String> {
    match text.split_once(':') {
        Some((kind, id)) => Ok(Subject { kind: kind.into(), id: id.into() }),
        None => Err(format!("expected TYPE:ID, as in customer:42, got: {text}")),
    }
}

fn random_origin() -> Result<Origin, Failure> {
    let bits = getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
    Ok(Origin::from_random(bits))
}

fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "full" => Ok(Durability::Full),
        "os" => Ok(Durability::Os),
        other => Err(format!("expected full or os, got: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<(Terms, Option<RunId>), Failure> {
        #[derive(clap::Parser)]
        struct Probe {
            #[command(flatten)]
            args: Args,
        }
        let words = ["push"].iter().chain(words);
        let probe =
            <Probe as clap::Parser>::try_parse_from(words).map_err(|e| Failure::new(Kind::Usage, e.to_string()))?;
        terms(&probe.args, Time(1_000_000_000))
    }

    #[test]
    fn what_is_checked_before_anything_is_written() {
        for words in [
            &["", "x"][..],
            &["a\nb", "x"],
            &[".hidden", "x"],
            &["_future", "x"],
            &["q", "--priority", "101"],
            &["q", "--priority", "1.5"],
            &["q", "--at", "2026-02-30 10:00"],
            &["q", "--in", "5"],
            &["q", "--run", "j-1"],
            &["q", "--durability", "maybe"],
            &["q", "--at", "@5", "--in", "5s"],
            &["q", "--in", "1s", "--in", "2s"],
            &["q", "--subject", "customer"],
            &["q", "--subject", ":42"],
            &["q", "--trace", "00-1-2-01"],
            &["q", "--parent", "r-1"],
            &["q", "--unique", ""],
            &["q", "--unique", "k", "--unique-scope", "ever"],
            &["q", "--unique", "k", "--unique-scope", "run"],
            &["q", "--on-conflict", "reject"],
            &["q", "--job-limit", "5"],
            &["q", "--run", "r-0123456789", "--job-limit", "5"],
            &["q", "--run", "new", "--tolerate", "101%"],
            &["q", "--run", "new", "--end-job", ":x"],
            &["q", "--run", "new", "--time-limit", "5"],
            &["q", "--notify", ""],
            &["q", "--notify", "ops", "--notify-on", "lost"],
            &["q", "--notify-on", "late"],
            &["q", "--run", "new", "--notify-on", "late"],
            &["q", "--run", "new", "--notify", "ops", "--notify-on", "lost"],
            &["q", "--run", "new", "--notify", "ops,ops"],
        ] {
            let Err(failure) = read(words) else { panic!("{words:?} was taken") };
            assert_eq!(failure.kind, Kind::Usage, "{words:?}");
        }
        assert!(read(&[&"q".repeat(201), "x"]).is_err());
    }

    #[test]
    fn terms_of_a_push() {
        let (terms, fresh) = read(&["q", "x", "--priority", "-7", "--in", "1h30m", "--durability", "os"]).unwrap();
        assert_eq!((terms.envelope.priority.value(), fresh), (-7, None));
        assert_eq!(terms.envelope.not_before, Some(Time(1_000_000_000 + 5_400_000_000)));
        let (terms, _) = read(&["q", "--at", "1970-01-01T00:00:00Z"]).unwrap();
        assert_eq!(terms.envelope.not_before, None, "the past is now");
        assert_eq!(terms.envelope.particulars, None);
        let (terms, _) = read(&["q", "x", "--subject", "customer:4:2"]).unwrap();
        let told = api_door::request(&terms, b"x");
        assert_eq!((&told["subject"]["type"], &told["subject"]["id"]), (&json!("customer"), &json!("4:2")));
        let (terms, _) = read(&["q", "x", "--unique", "{}", "--on-conflict", "replace"]).unwrap();
        assert_eq!(api_door::request(&terms, b"x")["unique"], json!({ "scope": "active", "on_conflict": "replace" }));
        let (terms, _) = read(&["q", "x", "--notify", "ops,b", "--notify-on", "succeeded"]).unwrap();
        let told = api_door::request(&terms, b"x");
        assert_eq!((&told["notify"], &told["notify_on"]), (&json!(["ops", "b"]), &json!(["succeeded"])));
        let (terms, _) = read(&["q", "--run", "new", "--notify", "ops"]).unwrap();
        assert_eq!((terms.envelope.particulars, terms.run.is_empty()), (None, false), "it is the run's");
        let (terms, fresh) = read(&["q", "--run", "new"]).unwrap();
        assert!(fresh.is_some() && terms.envelope.run == fresh);
    }

    #[test]
    fn data_that_is_no_text_travels_whole() {
        let (terms, _) = read(&["q"]).unwrap();
        assert_eq!(api_door::request(&terms, b"a\xff\n")["data_base64"], "Yf8K");
        assert_eq!(api_door::request(&terms, "ü\n".as_bytes())["data"], "ü\n");
    }
}
