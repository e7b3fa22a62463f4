//! A real server on a real socket, with an engine of hand-written replies behind it.

use crate::archiver::Group;
use crate::client::{Connection, Response};
use crate::data_dir::DataDir;
use crate::engine::event::{Answer, Drained, Event, FlightInfo, Follower, Report};
use crate::engine::handle::{EngineHandle, IdSource};
use crate::engine::operations::unexpected;
use crate::error::{Failure, Kind};
use crate::http::{Archive, Options, Reads, Server};
use crate::store::keys::Duplicate;
use crate::store::{
    Amended, AttemptError, Cursor, Durability, Filter, JobInfo, Lot, NewJobs, Page, QueueInfo, QueueStats, RunInfo,
    StoreError, StoreView, Taken,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use windlass_core::job::{Arrival, JobId, LaneKind, Origin, Priority, QueueName, QueueNo, Record, RunId, RunNo};
use windlass_core::life_cycle::State;
use windlass_core::overrides::Override;
use windlass_core::run::RunCounts;
use windlass_core::run::terms::RunTerms;
use windlass_core::scheduler::Closed;
use windlass_core::time::Time;

pub(crate) const ORIGIN: u64 = 7;

/// Job `offset` of the origin all fake jobs have.
pub(crate) fn job_id(offset: u64) -> JobId {
    JobId { origin: Origin::from_random(ORIGIN), offset }
}

pub(crate) fn run_id() -> RunId {
    RunId::first(Origin::from_random(9))
}

pub(crate) fn run_info(ended: bool) -> RunInfo {
    let mut counts = RunCounts { sealed: ended, ended, ..RunCounts::default() };
    counts.admit(State::Succeeded, 2);
    RunInfo {
        no: RunNo(1),
        id: run_id(),
        name: "nightly".into(),
        spec: Vec::new(),
        terms: RunTerms::default(),
        counts,
        taken: Taken { lines: 2, hash: 0xabc },
        seal_after: Vec::new(),
        created: Time(0),
        ended_at: ended.then_some(Time(5_000_000)),
    }
}

/// What the fake engine keeps for the test to look at, or to answer later.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) lots: Vec<(Lot, Durability)>,
    pub(crate) amended: Vec<usize>,
    pub(crate) staged: Vec<Vec<JobId>>,
    /// How many jobs each lot of another server had that were new.
    pub(crate) parcels: Vec<usize>,
    pub(crate) run_ended: bool,
    pub(crate) run_waiters: Vec<Answer<RunInfo>>,
    pub(crate) drained_waiters: Vec<Answer<Drained>>,
    pub(crate) followers: Vec<Follower>,
}

impl Kept {
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &NewJobs> {
        self.lots.iter().flat_map(|(lot, _)| &lot.jobs)
    }
}

pub(crate) struct Rig {
    pub(crate) dir: DataDir,
    pub(crate) kept: Arc<Mutex<Kept>>,
    pub(crate) server: Option<Server>,
    /// The name of each event, after the fake engine has dealt with it.
    events: Receiver<&'static str>,
    engine: Option<JoinHandle<()>>,
    handle: EngineHandle,
    _temporary: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::under("")
    }

    /// A server in a subdirectory of a temporary one.
    pub(crate) fn under(sub: &str) -> Rig {
        let temporary = tempfile::tempdir().unwrap();
        let dir = DataDir::open(&temporary.path().join(sub)).unwrap();
        let kept = Arc::new(Mutex::new(Kept::default()));
        let (send, receive) = channel();
        let (tell, events) = channel();
        let keeping = kept.clone();
        let engine = std::thread::spawn(move || engine(&receive, &tell, &keeping));
        let handle = EngineHandle::new(send, Arc::new(IdSource::new(Origin::from_random(ORIGIN))));
        let options =
            Options::new(dir.clone(), |_| Err(Failure::new(Kind::Config, "windlass.toml:3: unknown key slotz")));
        let server = Server::start(options, handle.clone(), reads()).unwrap();
        Rig { dir, kept, server: Some(server), events, engine: Some(engine), handle, _temporary: temporary }
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(&self.dir).unwrap().expect("the server listens")
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        read(self.connect().get(path).unwrap())
    }

    pub(crate) fn post(&self, path: &str, media: &str, body: &[u8]) -> (u16, Value) {
        read(self.connect().post(path, media, body).unwrap())
    }

    /// Waits until the engine has dealt with an event of this name.
    pub(crate) fn seen(&self, name: &str) {
        while self.events.recv().unwrap() != name {}
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.dir.run().join("token")).unwrap().trim().to_owned()
    }

    /// Sends bytes over TCP and returns the status and all that came back before the server closed.
    pub(crate) fn raw(&self, request: impl AsRef<[u8]>) -> (u16, String) {
        let mut stream = TcpStream::connect(self.server.as_ref().unwrap().address().unwrap()).unwrap();
        // A server that has refused already may have closed its end.
        let _ = stream.write_all(request.as_ref());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        (status, answer)
    }

    /// A request over TCP with the right host and token, and whatever headers follow.
    pub(crate) fn tcp(&self, line: &str, headers: &str, body: &str) -> (u16, String) {
        let token = self.token();
        let length = body.len();
        self.raw(format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        ))
    }

    pub(crate) fn start_again(&mut self) {
        let options = Options::new(self.dir.clone(), |_| Ok(Vec::new()));
        self.server = Some(Server::start(options, self.handle.clone(), reads()).unwrap());
    }

    pub(crate) fn end_engine(&mut self) {
        self.handle.send(Event::Halt).unwrap();
        self.engine.take().unwrap().join().unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.server.take());
        if self.engine.is_some() && !std::thread::panicking() {
            self.end_engine();
        }
    }
}

fn read(response: Response) -> (u16, Value) {
    (response.status, serde_json::from_slice(&response.body).unwrap_or(Value::Null))
}

fn engine(events: &Receiver<Event>, tell: &Sender<&'static str>, kept: &Mutex<Kept>) {
    for event in events {
        let mut kept = kept.lock().unwrap();
        let name = match event {
            Event::Halt => return,
            Event::Pushed { lot, durability, answer } => {
                push(&mut kept, lot, durability, answer);
                "pushed"
            }
            Event::FireSchedule { answer, .. } => {
                answer.give(Ok(run_id()));
                "fire_schedule"
            }
            Event::DrainServer { name, answer } => {
                answer.give(Ok(name == "other"));
                "drain_server"
            }
            Event::Schedules { answer } => {
                answer.give(Ok(Vec::new()));
                "schedules"
            }
            Event::OpenRun { request, answer } => {
                answer.give(Ok(RunInfo { name: request.name, ..run_info(false) }));
                "open_run"
            }
            Event::SealRun { run, answer } => {
                answer.give(if run == run_id() { Ok(()) } else { Err(Failure::new(Kind::NotFound, "no such run")) });
                "seal_run"
            }
            Event::Amend { ids, answer, .. } => {
                kept.amended.push(ids.len());
                answer.give(Ok(ids.iter().map(|id| amend(id.offset)).collect()));
                "amend"
            }
            Event::Operate { ids, expect, answer, .. } => {
                let told = match expect.filter(|expected| *expected != ids.len() as u64) {
                    Some(expected) => Err(unexpected(expected, ids.len() as u64)),
                    None => Ok(report(&mut kept, &[ids])),
                };
                answer.give(told);
                "operate"
            }
            Event::OpenOperation { answer, .. } => {
                kept.staged.clear();
                answer.give(Ok(1));
                "open_operation"
            }
            Event::StageOperation { ids, answer, .. } => {
                kept.staged.push(ids);
                answer.give(Ok(()));
                "stage_operation"
            }
            Event::AcceptOperation { expect, answer, .. } => {
                let staged = std::mem::take(&mut kept.staged);
                let count = staged.iter().map(Vec::len).sum::<usize>() as u64;
                let told = match expect.filter(|expected| *expected != count) {
                    Some(expected) => Err(unexpected(expected, count)),
                    None => Ok(report(&mut kept, &staged)),
                };
                answer.give(told);
                "accept_operation"
            }
            Event::AbandonOperation { .. } => "abandon_operation",
            Event::Operations { answer } => {
                answer.give(Ok(Vec::new()));
                "operations"
            }
            Event::Watch { follower, answer } => {
                kept.followers.push(follower);
                answer.give(Ok(()));
                "watch"
            }
            Event::AwaitRun { answer, .. } => {
                match kept.run_ended {
                    true => answer.give(Ok(run_info(true))),
                    false => kept.run_waiters.push(answer),
                }
                "await_run"
            }
            Event::AwaitDrained { answer, .. } => {
                kept.drained_waiters.push(answer);
                "await_drained"
            }
            Event::Follow { run, follower, answer } => {
                if run == run_id() {
                    kept.followers.push(follower);
                    answer.give(Ok(run_info(false)));
                } else {
                    answer.give(Err(Failure::new(Kind::NotFound, "no such run")));
                }
                "follow"
            }
            Event::Flights { answer } => {
                let started = Time(1_000_000);
                let queue = "mail".into();
                answer.give(Ok(vec![FlightInfo {
                    job: job_id(4),
                    count: 1,
                    queue,
                    start: 2,
                    started,
                    stocked: false,
                }]));
                "flights"
            }
            Event::Contention { answer } => {
                answer.give(Ok(BTreeMap::new()));
                "contention"
            }
            Event::CatchUp { answer } => {
                answer.give(Ok(()));
                "read_inbox"
            }
            Event::Aside { answer } => {
                answer.give(Ok(Vec::new()));
                "aside"
            }
            Event::Closed { answer } => {
                answer.give(Ok(BTreeMap::from([("mail".to_owned(), Closed::Paused)])));
                "closed"
            }
            Event::KnownLot { answer, .. } => {
                answer.give(Ok(None));
                "known_lot"
            }
            Event::Parcel { parcel, answer } => {
                let (taken, known) = (true, parcel.known);
                kept.parcels.push(parcel.ids().count());
                answer.give(Ok(crate::lot::Answer { taken, known, ..Default::default() }));
                "parcel"
            }
            Event::LotSettled { answer, .. } => {
                answer.give(Ok(()));
                "lot_settled"
            }
            Event::Depart { answer, .. } => {
                answer.give(Ok(Default::default()));
                "depart"
            }
            Event::Dump { .. } => "dump",
            Event::Ask(_) => "ask",
            Event::Unask { .. } => "unask",
            Event::Nudge => "nudge",
            Event::Look => "look",
            Event::ClockSet => "clock_set",
            Event::Quiet => "quiet",
            Event::Drain => "drain",
            Event::Reload { .. }
            | Event::Workers { .. }
            | Event::Speak { .. }
            | Event::HandlerFiles(_)
            | Event::Steer { .. }
            | Event::Explain { .. }
            | Event::Finished(_)
            | Event::Ingested(_)
            | Event::InboxRead { .. }
            | Event::Forget { .. }
            | Event::Archived { .. } => "other",
        };
        drop(kept);
        tell.send(name).ok();
    }
}

fn push(kept: &mut Kept, lot: Lot, durability: Durability, answer: Answer<Vec<Duplicate>>) {
    let queue = lot.jobs.first().map(|new| new.queue.to_string()).unwrap_or_default();
    let elsewhere = lot.taken.is_some_and(|(_, before, _)| before.hash != 0xabc);
    match queue.as_str() {
        "no_space" => answer.give(Err(Failure::new(Kind::Full, "no space left"))),
        "busy" => answer.give(Err(Failure::new(Kind::TryLater, "draining"))),
        "dies" => drop(answer),
        _ if elsewhere => answer.give(Err(Failure::new(Kind::Conflict, "the run is elsewhere"))),
        _ => {
            kept.lots.push((lot, durability));
            answer.give(Ok(Vec::new()));
        }
    }
}

fn amend(offset: u64) -> Amended {
    match offset % 10 {
        0 => Amended::Running,
        1 => Amended::Refused(State::Ready),
        2 => Amended::Unknown,
        _ => Amended::Done { from: State::Failed, to: State::Ready },
    }
}

fn report(kept: &mut Kept, slices: &[Vec<JobId>]) -> Report {
    let mut report = Report::default();
    for ids in slices {
        kept.amended.push(ids.len());
        report.matched += ids.len() as u64;
        for id in ids {
            match amend(id.offset) {
                Amended::Done { .. } | Amended::Same(_) => report.changed += 1,
                Amended::Running => report.running += 1,
                Amended::Refused(_) | Amended::Taken(_) => report.refused += 1,
                Amended::Unknown => report.unknown += 1,
            }
        }
    }
    report
}

pub(super) fn reads() -> Reads {
    let known = |id: JobId| id == job_id(77_777);
    Reads {
        board: Arc::default(),
        view: Arc::new(|| Ok(Box::new(View))),
        archive: Archive {
            find: Box::new(move |id| {
                Ok(if known(id) {
                    vec![json!({"start": 1, "queue": "mail", "outcome": "succeeded"})]
                } else {
                    Vec::new()
                })
            }),
            last: Box::new(move |ids| {
                let known = ids.iter().filter(|id| known(**id));
                Ok(known.map(|id| (*id, "succeeded".to_owned())).collect())
            }),
            list: Box::new(|filter, _, most| {
                assert_eq!(filter.states, [State::Succeeded]);
                let one = json!({"id": job_id(77_777).to_string(), "queue": "mail", "state": "succeeded"});
                Ok((vec![one].into_iter().take(most).collect(), None))
            }),
            groups: Box::new(|since, show| {
                let group = |queue, priority: i64, state, ran: u64| Group {
                    queue,
                    run: None,
                    priority: Priority::new(priority).unwrap(),
                    state,
                    outcome: "succeeded",
                    start: 1,
                    admitted: since,
                    started: since.after(std::time::Duration::from_secs(1)),
                    finished: since.after(std::time::Duration::from_secs(1 + ran)),
                    count: 10,
                };
                show(&group("mail", 0, State::Succeeded, 2));
                show(&group("mail", 10, State::Failed, 4));
                show(&Group { outcome: "deleted", ..group("img", 0, State::Cancelled, 0) });
                Ok(())
            }),
            output: Box::new(move |id, start, stderr| {
                Ok(known(id).then(|| format!("{start:?} {stderr}\0").into_bytes()))
            }),
        },
    }
}

/// 2,500 failed jobs, whose arrival is their offset.
struct View;

const JOBS: u64 = 2500;

fn info(offset: u64) -> JobInfo {
    JobInfo {
        id: job_id(offset),
        queue: QueueName::new(b"mail").unwrap(),
        priority: Priority::NORMAL,
        kind: LaneKind::Fresh,
        state: State::Failed,
        run: Some(run_id()),
        record: Record { starts: 2, failures: 1, suspicions: 0 },
        admitted: Time(0),
        not_before: None,
        ended: Some(Time(1)),
        reason: None,
        errors: vec![AttemptError { start: 1, at: Time(1), text: "exit 3".into() }],
        particulars: None,
        data: if offset == 1 { vec![0xff; 4] } else { vec![b'd'; 300] },
    }
}

impl StoreView for View {
    fn job(&self, id: JobId) -> Result<Option<JobInfo>, StoreError> {
        Ok((id.origin.bits() == ORIGIN && id.offset < JOBS).then(|| info(id.offset)))
    }

    fn list(&self, filter: &Filter, from: Arrival, limit: usize) -> Result<Page, StoreError> {
        let fits = filter.states.is_empty() || filter.states.contains(&State::Failed);
        let end = if fits { (from.0 + limit as u64).min(JOBS) } else { 0 };
        let next = (fits && end < JOBS).then_some(Arrival(end));
        Ok(Page { jobs: (from.0..end).map(info).collect(), next })
    }

    fn queues(&self) -> Result<Vec<QueueInfo>, StoreError> {
        let mut stats = QueueStats { started: 9, ..QueueStats::default() };
        stats.by_state[State::Failed.index()] = JOBS;
        let queue = |no, name: &[u8]| QueueInfo { no: QueueNo(no), name: QueueName::new(name).unwrap(), stats };
        Ok(vec![queue(1, b"mail"), queue(2, b"img")])
    }

    fn run(&self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        Ok((id == run_id()).then(|| run_info(false)))
    }

    fn runs(&self, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        Ok(vec![run_info(false), run_info(true)].into_iter().take(limit).collect())
    }

    fn cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        Ok(Vec::new())
    }

    fn overrides(&self) -> Result<Vec<Override>, StoreError> {
        Ok(Vec::new())
    }
}
