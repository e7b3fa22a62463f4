//! Damage to the files of the embedded store, opened and worked through by the shipped store.

use super::{cases, damage, guarded};
use crate::chance::Chance;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use windlass::data_dir::DataDir;
use windlass::store::chunk::ChunkBuilder;
use windlass::store::embedded::Embedded;
use windlass::store::{
    Amended, Amendment, Durability, Evidence, Held, Lot, NewJobs, Order, Settlement, Store, StoreError,
};
use windlass_core::job::{JobId, Lane, Origin, Priority, QueueName, QueueNo};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::time::Time;

/// What waits in a store: queue and data by id.
type Jobs = BTreeMap<JobId, (String, Vec<u8>)>;

const BOOT: &str = "one";
/// A time of today: an early one would let ids, which are numbers of 50 bits, pass for times to come.
const NOW: Time = Time(1_790_000_000_000_000);

#[derive(Default)]
struct Figures {
    cases: u64,
    jobs: u64,
    harmless: u64,
    refused: u64,
    said: u64,
    handed_out: u64,
    altered: u64,
    silent: u64,
}

fn queue_names(store: &mut Embedded) -> Result<(BTreeMap<QueueNo, String>, Vec<Lane>), StoreError> {
    let backlog = store.backlog()?;
    let ready = backlog.moves.iter().filter(|step| step.to == Some(State::Ready));
    let lanes = ready.map(|step| step.lane).collect();
    Ok((backlog.queues.into_iter().map(|(no, name)| (no, name.to_string())).collect(), lanes))
}

/// Fills a store: chunks of many sizes in three queues, some jobs done, some as rows: given back, retried, failed.
/// Tells what is left and which of it has failed.
fn fill(dir: &DataDir, chance: &mut Chance) -> (Jobs, Vec<JobId>) {
    let (mut store, _) = Embedded::open(dir, BOOT).unwrap();
    store
        .recover(
            Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD },
            NOW,
        )
        .unwrap();
    let origin = Origin::from_random(chance.next());
    let (mut offset, mut jobs) = (0, Jobs::new());
    for _ in 0..6 + chance.below(10) {
        let queue = format!("q{}", chance.below(3));
        let mut builder = ChunkBuilder::new(origin);
        for _ in 0..1 + chance.below(60) {
            offset += 1;
            let data =
                if chance.one_in(5) { chance.bytes(3000) } else { format!("job {offset} {:x}", chance.next()).into() };
            builder.push(offset, &data);
            jobs.insert(JobId { origin, offset }, (queue.clone(), data));
        }
        let new = NewJobs {
            queue: QueueName::new(queue.as_bytes()).unwrap(),
            priority: Priority::NORMAL,
            run: None,
            not_before: None,
            jobs: Arc::new(builder.finish()),
        };
        store.admit(&Lot { jobs: vec![new], ..Lot::default() }, NOW).unwrap();
        store.commit(Durability::Full).unwrap();
    }
    flood(&mut store, chance, &mut jobs);
    let (_, lanes) = queue_names(&mut store).unwrap();
    let mut failed = Vec::new();
    for lane in lanes.into_iter().flat_map(|lane| [lane; 8]) {
        let held = store.claim(&[Order { lane, most: 4 }], NOW).unwrap();
        let settlements: Vec<Settlement> = held.into_iter().map(|held| settle(held, chance)).collect();
        for settlement in &settlements {
            match settlement.verdict.state() {
                State::Succeeded => settlement.held.ids().for_each(|id| drop(jobs.remove(&id))),
                State::Failed => failed.extend(settlement.held.ids()),
                _ => {}
            }
        }
        store.settle(&settlements, &[], NOW).unwrap();
        let turn = store.commit(Durability::Full).unwrap();
        store.archived(turn).unwrap();
        store.commit(Durability::Full).unwrap();
    }
    (jobs, failed)
}

/// A lot whose bodies lie in a file of their own, chunks of one length among them.
fn flood(store: &mut Embedded, chance: &mut Chance, jobs: &mut Jobs) {
    let origin = Origin::from_random(chance.next());
    let chunk = |n: u64| {
        let mut builder = ChunkBuilder::new(origin);
        for offset in 10 * n + 1..=10 * n + 8 {
            let mut data = format!("job {offset:04} {:016x} ", chance.next()).into_bytes();
            data.resize(12_000, b'.');
            builder.push(offset, &data);
            jobs.insert(JobId { origin, offset }, ("q1".into(), data));
        }
        let (queue, jobs) = (QueueName::new(b"q1").unwrap(), Arc::new(builder.finish()));
        NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs }
    };
    let lot = Lot { jobs: (0..8).map(chunk).collect(), ..Lot::default() };
    let (told, placed) = std::sync::mpsc::channel();
    store.body_writer().place(lot, move |lot| told.send(lot).unwrap());
    let lot = placed.recv().unwrap().unwrap();
    assert_eq!(lot.bodies.len(), 8, "a lot of this size is a flood");
    store.admit(&lot, NOW).unwrap();
    store.commit(Durability::Full).unwrap();
}

fn settle(held: Held, chance: &mut Chance) -> Settlement {
    let verdict = match chance.below(4) {
        0 => Verdict::Succeed { message: String::new() },
        1 => Verdict::Return,
        2 => Verdict::Retry { at: NOW, error: "no luck".into() },
        _ => Verdict::Fail { reason: Reason::Refused, error: "never".into() },
    };
    Settlement { held, verdict, outcome: "x", started: NOW, finished: NOW }
}

/// Everything that the store hands out until nothing is left or it says that something is wrong. What has failed is
/// asked for by its id.
fn drain(dir: &DataDir, failed: &[JobId], jobs: &mut Vec<(JobId, String, Vec<u8>)>) -> Result<(), StoreError> {
    let (mut store, _) = Embedded::open(dir, BOOT)?;
    store.recover(
        Evidence { begun: &|_, _| true, elsewhere: &|_, _| false, same_boot: true, convicted: Evidence::UNTOLD },
        NOW,
    )?;
    store.release(NOW, 1000, Evidence::UNTOLD)?;
    for (id, answer) in failed.iter().zip(store.amend(failed, Amendment::Retry, NOW)?) {
        if !matches!(answer, Amended::Done { .. }) {
            return Err(StoreError::Stale(format!("{id} is not there: {answer:?}")));
        }
    }
    store.commit(Durability::Os)?;
    let (names, lanes) = queue_names(&mut store)?;
    for lane in lanes {
        loop {
            let held = store.claim(&[Order { lane, most: 64 }], NOW)?;
            if held.is_empty() {
                break;
            }
            for held in &held {
                let queue = names.get(&held.lane.queue).cloned().unwrap_or_default();
                let all =
                    held.range().map(|index| (held.jobs.id(index), queue.clone(), held.jobs.data(index).to_vec()));
                jobs.extend(all);
            }
            if jobs.len() > 4000 {
                // It hands out the same ones again and again: the caller counts them.
                return Ok(());
            }
            let done = Verdict::Succeed { message: String::new() };
            let settle = |held| Settlement { held, verdict: done.clone(), outcome: "x", started: NOW, finished: NOW };
            let settlements: Vec<Settlement> = held.into_iter().map(settle).collect();
            store.settle(&settlements, &[], NOW)?;
            store.commit(Durability::Os)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn case(seed: u64, made: &Path, left: &(Jobs, Vec<JobId>), figures: &mut Figures) -> Result<(), String> {
    let (jobs, failed) = left;
    let mut chance = Chance::new(seed);
    let place = tempfile::tempdir().unwrap();
    copy(made, place.path());
    let dir = DataDir::open(place.path()).unwrap();
    let path = if chance.one_in(4) { dir.bodies().join("00000001") } else { dir.state_db() };
    let mut bytes = std::fs::read(&path).unwrap();
    let before = bytes.clone();
    let damage = damage(&mut bytes, 8192, &mut chance);
    std::fs::write(&path, &bytes).unwrap();
    let mut handed = Vec::new();
    let ended = drain(&dir, failed, &mut handed);
    figures.cases += 1;
    figures.jobs += jobs.len() as u64;
    figures.handed_out += handed.len() as u64;
    let mut seen = BTreeMap::new();
    for (id, queue, data) in &handed {
        *seen.entry(*id).or_insert(0) += 1;
        let fits = jobs.get(id).is_some_and(|known| known == &(queue.clone(), data.clone()));
        if !fits || seen[id] > 1 {
            figures.altered += 1;
            return Err(format!(
                "{}: {id} of {queue} was handed out {} times and is not as it was",
                damage.what, seen[id]
            ));
        }
    }
    match ended {
        Err(_) if handed.is_empty() => figures.refused += 1,
        Err(_) => figures.said += 1,
        Ok(()) if seen.len() == jobs.len() => figures.harmless += 1,
        Ok(()) => {
            figures.silent += 1;
            let same = bytes == before;
            return Err(format!(
                "{} ({same}): {} of {} jobs are missing and nothing was said",
                damage.what,
                jobs.len() - seen.len(),
                jobs.len()
            ));
        }
    }
    Ok(())
}

#[test]
fn damage_to_the_store_is_said_and_no_job_runs_as_another() {
    let made = tempfile::tempdir().unwrap();
    let left = fill(&DataDir::open(made.path()).unwrap(), &mut Chance::new(1));
    let mut whole = Vec::new();
    let copied = tempfile::tempdir().unwrap();
    copy(made.path(), copied.path());
    drain(&DataDir::open(copied.path()).unwrap(), &left.1, &mut whole).unwrap();
    assert_eq!(whole.len(), left.0.len(), "without damage everything is handed out");
    let mut figures = Figures::default();
    let mut found = Vec::new();
    for seed in cases() {
        let told = guarded(seed, || case(seed, made.path(), &left, &mut figures));
        found.extend(told.err().map(|what| format!("case {seed}: {what}")));
    }
    let Figures { cases, jobs, harmless, refused, said, handed_out, altered, silent } = figures;
    println!(
        "flip store: {cases} cases of {jobs} jobs, crashes 0, hangs 0, {harmless} harmless, {refused} refused at the \
         start, {said} said on the way, {handed_out} jobs handed out, altered {altered}, lost in silence {silent}"
    );
    found.iter().take(20).for_each(|what| println!("flip: {what}"));
    assert!(found.is_empty(), "{} findings, the first: {}; repeat it with WINDLASS_FLIP_SEED", found.len(), found[0]);
}
