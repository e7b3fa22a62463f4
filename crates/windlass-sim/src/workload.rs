//! What the outside wants: the rules, the jobs, how each start of a job goes, and what people ask for.
//!
//! Everything is a function of the seed. It must not touch the engine: it makes up values, the world hands them on.

use crate::kept;
use crate::random::{self, Random};
use crate::together;
use std::time::Duration;
use windlass_core::job::{JobId, Priority};
use windlass_core::outcome::Outcome;
use windlass_core::particulars::Scope;
use windlass_core::policy::{Backoff, Command, Policy, Remote, Service};
use windlass_core::rate::Rate;

/// Queues that producers use; the last is served by nobody.
pub(crate) const QUEUES: [&str; 6] = ["mail", "thumb.a", "thumb.b", "report", "bulk", "nobody"];

/// Jobs of a run lead to nodes of a graph, each of which is taken in once: cycles and duplicates come by themselves.
pub(crate) const WEB: &str = "web";
/// Jobs that lead to others with one step less to go: trees.
pub(crate) const TREE: &str = "tree";
/// The nodes of the graph.
const NODES: u64 = 30;

/// How one start goes.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// Microseconds of work; nothing for one that hangs until it is stopped.
    pub(crate) length: Option<u64>,
    pub(crate) outcome: Outcome,
}

/// What may happen to jobs in a world, now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mood {
    /// Nothing is lost or hangs any more.
    pub(crate) calm: bool,
    /// Some ask to be run again: at once, or after a while.
    pub(crate) snoozes: bool,
}

/// The memory of a world in which it counts; no need is larger.
pub(crate) const MEMORY: u64 = 100;

/// Draws a set of rules; where there are crews of all kinds, some are kept workers, some processes and calls
/// with many jobs, some are elsewhere, and memory and rates count.
pub(crate) fn policies(random: &mut Random, crews: bool) -> (Vec<Policy>, u32) {
    let (mut policies, slots) = plain_policies(random);
    for policy in policies.iter_mut().filter(|_| crews) {
        match policy.pattern.as_str() {
            "thumb.*" => policy.service = kept::service(random),
            "bulk" if random.chance(700) => policy.service = together::batch(random),
            "mail" if random.chance(700) => policy.service = together::url(random),
            "report" => policy.service = Service::Remote(Remote::default()),
            _ if random.chance(700) => policy.limits.memory = random.between(10, MEMORY),
            _ if random.chance(500) => policy.rate = Rate::new(random.between(1, 30) as u32, Duration::from_secs(1)),
            _ => {}
        }
    }
    (policies, slots)
}

fn plain_policies(random: &mut Random) -> (Vec<Policy>, u32) {
    let mut policies = Vec::new();
    for pattern in ["mail", "thumb.*", "report", "bulk", WEB, TREE] {
        let service = if random.chance(500) {
            Service::Command(Command { argv: vec![b"work".to_vec()], ..Command::default() })
        } else {
            Service::Handler { name: "work".into(), batch: random.between(1, 12) as u32 }
        };
        let mut policy = Policy::new(pattern, service);
        policy.slots = random.between(1, 4) as u32;
        policy.weight = random.between(1, 5) as u32;
        policy.attempts = random.between(0, 5) as u32;
        policy.backoff = Backoff { base: Duration::from_millis(random.between(1, 2000)), cap: Duration::from_secs(60) };
        policy.enabled = !random.chance(30);
        policy.unique = (pattern == WEB).then_some(Scope::Run);
        policies.push(policy);
    }
    (policies, random.between(1, 8) as u32)
}

pub(crate) fn priority(random: &mut Random) -> Priority {
    let value = if random.chance(700) { 0 } else { random.between(0, 20) as i64 - 10 };
    Priority::new(value).unwrap_or_default()
}

pub(crate) fn data(random: &mut Random) -> Vec<u8> {
    let number = random.next();
    match random.below(10) {
        0 => Vec::new(),
        1 => [b"\x18\n\x10c".as_slice(), &number.to_le_bytes()].concat(),
        2 => vec![number as u8; random.between(1, 3000) as usize],
        _ => format!("job {number:x}").into_bytes(),
    }
}

/// What a job emits when it succeeds, a function of what it is. Without a run, which makes nodes unique, nothing leads
/// to them.
pub(crate) fn emits(seed: u64, queue: &str, id: JobId, data: &[u8], in_run: bool) -> Vec<(&'static str, Vec<u8>)> {
    let word = |text: String| random::hash(text.as_bytes());
    let node = |number: u64| (WEB, format!("node {}", number % NODES).into_bytes());
    let text = String::from_utf8_lossy(data);
    match queue {
        WEB => {
            let links = word(format!("{seed} {text}")) % 4;
            (0..links).map(|link| node(word(format!("{seed} {text} {link}")))).collect()
        }
        TREE => {
            let left = text.strip_prefix("steps ").and_then(|left| left.parse::<u64>().ok()).unwrap_or(0);
            let children = if left == 0 { 0 } else { word(format!("{seed} {id}")) % 3 };
            (0..children).map(|_| (TREE, format!("steps {}", left - 1).into_bytes())).collect()
        }
        _ => match word(format!("{seed} {id} emits")) % 8 {
            0 if in_run => vec![node(word(format!("{seed} {id} to")))],
            1 => vec![(TREE, b"steps 4".to_vec())],
            _ => Vec::new(),
        },
    }
}

/// How this start of this job goes: a function of both, so that the order of events does not change it.
pub(crate) fn script(seed: u64, id: JobId, start: u32, suspicions: u32, mood: Mood) -> Script {
    let Mood { calm, snoozes } = mood;
    let mut random = Random::new(random::hash(format!("{seed} {id} {start}").as_bytes()));
    let length = match random.below(20) {
        0 if !calm && start < 4 => None,
        1 => Some(random.between(1_000_000, 30_000_000)),
        2..=6 => Some(random.between(10_000, 1_000_000)),
        _ => Some(random.between(100, 20_000)),
    };
    let error = || "it failed".to_owned();
    let outcome = match random.below(24) {
        0 | 1 => Outcome::Failed { error: error() },
        2 => Outcome::Crashed { error: error() },
        3 => Outcome::TimedOut { limit: Duration::from_secs(1) },
        4 => Outcome::FailedForGood { error: error() },
        5 => Outcome::RetryLater { after: Some(Duration::from_secs(random.between(0, 20))), error: error() },
        6 => Outcome::Interrupted,
        7 if !calm && suspicions < 2 => Outcome::Lost,
        8 | 9 if snoozes => Outcome::Snoozed { after: Duration::from_millis(random.below(4) * random.below(10_000)) },
        // Where failures have no end, the work must have one.
        _ => Outcome::Succeeded { message: String::new() },
    };
    Script { length, outcome }
}
