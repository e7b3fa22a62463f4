//! After thousands of kills of every kind nothing is left: no zombie, no descendant, no descriptor.
//!
//! `WINDLASS_REAP_KILLS` sets how many, with control groups and as many without; `cargo xtask prove reap` takes ten
//! thousand. Each job is of one of the kinds that make trouble, and each ends because it is killed: by its time limit,
//! by a limit of its own, or by a person.

use crate::rig::{Job, Rig, children, descriptors, processes, shell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use windlass::runner::{Flight, Runner, Stop};
use windlass_core::outcome::Outcome;
use windlass_core::policy::Limits;

/// Kills without a number in the environment.
const SHORT: u64 = 60;
/// At once under way.
const TOGETHER: u64 = 16;

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a job of a kind ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KilledBy {
    Time,
    Person,
    Limit(Limits),
}

const NONE: Limits = Limits { memory: 0, processes: 0, cpu: Duration::ZERO, output: 0 };

/// What makes trouble, and how it is ended.
const KINDS: [(&str, &str, KilledBy); 12] = [
    ("ignores TERM", "trap '' TERM HUP INT; while :; do sleep 1000; done", KilledBy::Time),
    ("double-forks", "(setsid sh -c 'trap \"\" TERM; sleep 1000; :' &) ; sleep 1000", KilledBy::Time),
    ("sheds its marks", "(env -i setsid sleep 1000 &); sleep 1000", KilledBy::Time),
    ("stops itself", "sleep 1000 & kill -STOP $$; sleep 1000", KilledBy::Time),
    ("fills both pipes", "yes & yes >&2", KilledBy::Time),
    ("says nothing", "exec >&- 2>&-; sleep 1000", KilledBy::Time),
    ("leaves its pipes open", "sleep 1000 & setsid sleep 1000 & sleep 1000", KilledBy::Person),
    ("is cancelled", "trap 'exit 3' TERM; sleep 1000 & wait", KilledBy::Person),
    ("makes many", "for i in 1 2 3 4 5 6 7 8 9 10; do setsid sleep 1000 & done; wait", KilledBy::Person),
    ("talks too much", "yes & yes >&2", KilledBy::Limit(Limits { output: 100_000, ..NONE })),
    (
        "grows",
        "dd if=/dev/zero bs=60M count=1 2>/dev/null | sleep 1000",
        KilledBy::Limit(Limits { memory: 32 << 20, ..NONE }),
    ),
    (
        "multiplies",
        "for i in 1 2 3 4 5 6 7 8; do (setsid sleep 1000 &); done; sleep 1000",
        KilledBy::Limit(Limits { processes: 5, ..NONE }),
    ),
];

fn job(kind: usize) -> Job {
    let (_, script, killed) = KINDS[kind];
    let job = shell(script).output_max(1 << 16).slots(TOGETHER as u32);
    match killed {
        KilledBy::Time => job.limit(Duration::from_millis(60), Duration::from_millis(10)),
        KilledBy::Person => job.grace(Duration::from_millis(10)),
        KilledBy::Limit(limits) => job.limits(limits).grace(Duration::from_millis(10)),
    }
}

fn is_its_end(killed: KilledBy, outcome: &Outcome) -> bool {
    match killed {
        KilledBy::Time => matches!(outcome, Outcome::TimedOut { .. }),
        // A stop may come before it has begun.
        KilledBy::Person => *outcome == Outcome::Cancelled,
        KilledBy::Limit(_) => matches!(outcome, Outcome::Failed { error } if error.contains("its limit is")),
    }
}

/// Every process that carries the mark of a job of this rig.
fn marked(rig: &Rig) -> usize {
    let mark = format!("WINDLASS_JOB_ID=j-{}-", rig.origin);
    let carries = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|part| part == mark.as_bytes())
    };
    processes().filter(carries).count()
}

/// So many kills; what each kind came to, and how long the longest took from its kill to its report.
fn kill(rig: &mut Rig, kills: u64) -> BTreeMap<&'static str, u64> {
    let mut ended: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut kinds: BTreeMap<u64, usize> = BTreeMap::new();
    let mut begun = 0;
    let mut heard = 0;
    while heard < kills {
        while begun < kills && begun - heard < TOGETHER {
            let kind = (begun % KINDS.len() as u64) as usize;
            let id = rig.start(job(kind));
            kinds.insert(id.offset, kind);
            if KINDS[kind].2 == KilledBy::Person {
                rig.runner.stop(Flight(id.offset), Stop::Cancel);
            }
            begun += 1;
        }
        let finished = rig.hear();
        let kind = kinds.remove(&finished.flight.0).unwrap();
        let (name, _, killed) = KINDS[kind];
        let [(1, outcome)] = &finished.outcomes[..] else { panic!("{finished:?}") };
        assert!(is_its_end(killed, outcome), "{name}: {outcome:?}");
        *ended.entry(name).or_default() += 1;
        heard += 1;
    }
    ended
}

/// What a launcher has open: files that it keeps for the next job in a slot, and all others.
fn open_files(pid: i32, control: &Path) -> (usize, usize) {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links: Vec<PathBuf> = links.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).collect();
    let kept = links.iter().filter(|link| link.ends_with("cgroup.procs") || link.starts_with(control)).count();
    (kept, links.len() - kept)
}

#[test]
fn thousands_of_kills_leave_nothing() {
    let alone = std::env::var("WINDLASS_REAP_KILLS").ok();
    let kills = alone.as_ref().map_or(SHORT, |number| number.parse().unwrap());
    for means in ["", "cgroup,children,pidfd"] {
        let mut rig = Rig::without(2, means);
        // Whatever a launcher opens only once is open before anything is counted.
        kill(&mut rig, KINDS.len() as u64 * 4);
        let launchers = rig.launchers();
        let before: usize = launchers.iter().map(|pid| open_files(*pid, rig.control()).1).sum();
        let own = descriptors(std::process::id() as i32);
        let since = Instant::now();
        let ended = kill(&mut rig, kills);
        let seconds = since.elapsed().as_secs_f64();
        let open = || launchers.iter().map(|pid| open_files(*pid, rig.control())).collect::<Vec<_>>();
        let others = |open: &[(usize, usize)]| open.iter().map(|(_, others)| *others).sum::<usize>();
        let mut after = open();
        // A launcher tells of an end before it closes what it had for the job.
        let told = Instant::now();
        while others(&after) > before && told.elapsed() < PATIENCE {
            std::thread::yield_now();
            after = open();
        }
        let zombies: usize = launchers.iter().map(|pid| children(*pid).split_whitespace().count()).sum();
        let left = marked(&rig);
        let more = others(&after) as i64 - before as i64;
        let own = descriptors(std::process::id() as i32) as i64 - own as i64;
        let how = if means.is_empty() { "with control groups" } else { "without" };
        let kinds = ended.len();
        println!(
            "reap: {kills} kills of {kinds} kinds {how}, zombies and children left {zombies}, descendants left {left}, \
             descriptors of launchers {more:+}, of the server {own:+}, {seconds:.1} s"
        );
        assert_eq!((zombies, left), (0, 0));
        assert!(more <= 0, "{before} became {after:?}");
        // Two control files and a group for each that was ever under way at once, all of them in one launcher at worst.
        assert!(after.iter().all(|(kept, _)| *kept as u64 <= 3 * TOGETHER), "{after:?}");
        // Other tests of this process open descriptors of their own at the same time; alone, it is exact.
        assert!(alone.is_none() || own == 0, "{own:+} descriptors of the server");
        let files = std::fs::read_dir(rig.dir.output()).unwrap().count();
        assert_eq!(files, 0, "no output is large enough for a file");
    }
}
