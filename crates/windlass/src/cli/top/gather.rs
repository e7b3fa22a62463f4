//! What is to be seen: asked of a server over the public API, a bounded number of questions a look, and looked up in
//! directories. It changes nothing, and what cannot be asked is told as trouble beside what was known before.

use crate::api::spools::Spool;
use crate::cli::Context;
use crate::cli::connect::{Connection, encoded};
use crate::cli::print::field;
use crate::clock;
use crate::error::{Failure, Kind};
use crate::spool::status::{Budget, Status};
use crate::when;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// Of what runs, so many of the longest are shown with what they say of themselves.
const RUNNING_MAX: usize = 50;
const FAILED_MAX: usize = 50;
const RUNS_MAX: usize = 50;
/// So many queues that wait and do not run are asked why.
const WHY_MAX: usize = 8;
/// Rates are those of the last minute.
const RATE_OVER_MICROS: i64 = 60_000_000;
/// Names that a look reads in each directory that was named.
const NAMES_MAX: u64 = 200_000;

/// What was seen at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Scene {
    pub(super) at: Time,
    /// Why the server's part is not of this moment.
    pub(super) trouble: Option<Failure>,
    /// As the API answers; null where no server was ever seen.
    pub(super) status: Value,
    pub(super) stats: Value,
    pub(super) running: Vec<Value>,
    pub(super) failed: Vec<Value>,
    pub(super) runs: Vec<Value>,
    /// By queue: what keeps its jobs from starting.
    pub(super) why: Map<String, Value>,
    pub(super) spools: Vec<Spool>,
}

impl Scene {
    /// For machines.
    pub(super) fn document(&self) -> Value {
        json!({
            "at": when::rfc3339(self.at), "status": self.status, "stats": self.stats, "running": self.running,
            "failed": self.failed, "runs": self.runs, "why": self.why, "spools": self.spools,
        })
    }
}

/// Where to look.
pub(super) struct Source {
    context: Option<Context>,
    connection: Option<Connection>,
    directories: Vec<PathBuf>,
}

impl Source {
    pub(super) fn new(context: Option<&Context>, directories: &[PathBuf]) -> Source {
        Source { context: context.cloned(), connection: None, directories: directories.to_vec() }
    }

    /// One look. Where the server does not answer, what the last look saw of it stands, and the trouble beside it.
    pub(super) fn look(&mut self, last: Option<&Scene>) -> Scene {
        let asked = self.context.clone().map_or_else(|| Ok(Scene::default()), |context| self.ask(&context));
        let mut scene = asked.unwrap_or_else(|failure| {
            self.connection = None;
            let before = last.cloned().unwrap_or_default();
            Scene { trouble: Some(failure), spools: Vec::new(), ..before }
        });
        scene.at = clock::now();
        scene.spools.extend(self.directories.iter().map(|path| {
            let directory = path.to_string_lossy().into_owned();
            match Status::look_within(std::slice::from_ref(path), false, &mut Budget::of(NAMES_MAX)) {
                Ok(status) => Spool::new(directory, &status),
                Err(failure) => Spool { directory, error: Some(failure.text), ..Spool::default() },
            }
        }));
        scene
    }

    fn ask(&mut self, context: &Context) -> Result<Scene, Failure> {
        let server = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(context.server(": there is nothing to show")?.1),
        };
        let status: Value = server.get_json("/api/v1/status")?;
        let since = when::rfc3339(Time(clock::now().as_micros() - RATE_OVER_MICROS));
        let stats = server.get_json(&format!("/api/v1/stats?since={}", encoded(&since)))?;
        let running = running(server)?;
        let failed = format!("state:{} ended<1h", State::Failed.word());
        let mut failed = items(server, &format!("/api/v1/jobs?limit=200&selector={}", encoded(&failed)))?;
        failed.sort_by_key(|job| std::cmp::Reverse(field(job, "ended")));
        failed.truncate(FAILED_MAX);
        let mut runs = items(server, &format!("/api/v1/runs?limit={RUNS_MAX}"))?;
        runs.retain(|run| run["ended"] != true);
        let why = reasons(server, &status)?;
        let spools = match server.get_json::<Value>("/api/v1/spools") {
            // An older server knows of none.
            Err(failure) if failure.kind == Kind::NotFound => Vec::new(),
            answer => serde_json::from_value(answer?["items"].take()).unwrap_or_default(),
        };
        Ok(Scene { status, stats, running, failed, runs, why, spools, ..Scene::default() })
    }
}

fn items(server: &mut Connection, path: &str) -> Result<Vec<Value>, Failure> {
    let page: Value = server.get_json(path)?;
    Ok(page["items"].as_array().cloned().unwrap_or_default())
}

/// What is in flight, the longest first, with what each says of itself.
fn running(server: &mut Connection) -> Result<Vec<Value>, Failure> {
    let mut flights = items(server, "/api/v1/flights")?;
    flights.retain(|flight| flight["stocked"] != true);
    flights.sort_by_key(|flight| field(flight, "started"));
    flights.truncate(RUNNING_MAX);
    if flights.is_empty() {
        return Ok(flights);
    }
    let ids: Vec<String> = flights.iter().map(|flight| field(flight, "job")).collect();
    let selector = encoded(&format!("id:{}", ids.join(",")));
    let jobs = items(server, &format!("/api/v1/jobs?limit={RUNNING_MAX}&selector={selector}"))?;
    for flight in &mut flights {
        let Some(job) = jobs.iter().find(|job| job["id"] == flight["job"]) else { continue };
        for key in ["progress", "phase", "data", "data_base64", "data_bytes", "attempts"] {
            if let (Some(said), Some(fields)) = (job.get(key), flight.as_object_mut()) {
                fields.insert(key.to_owned(), said.clone());
            }
        }
    }
    Ok(flights)
}

/// Why queues with ready jobs run none of them.
fn reasons(server: &mut Connection, status: &Value) -> Result<Map<String, Value>, Failure> {
    let queues = status["queues"].as_object().into_iter().flatten();
    let still = queues.filter(|(_, counts)| counts["ready"] != 0 && counts["running"] == 0);
    let mut found = Map::new();
    for (queue, _) in still.take(WHY_MAX) {
        match server.get_json::<Value>(&format!("/api/v1/why?of={}", encoded(queue))) {
            // Its last job has just gone.
            Err(failure) if failure.kind == Kind::NotFound => {}
            why => drop(found.insert(queue.clone(), why?["reasons"].take())),
        }
    }
    Ok(found)
}
