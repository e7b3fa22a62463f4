//! After thousands of kills of every kind nothing is left: no zombie, no descendant, no descriptor.
//!
//! `WINDLASS_REAP_KILLS` sets how many, with control groups and as many without; `cargo xtask prove reap` takes ten
//! thousand. Each job is of one of the kinds that make trouble (`trouble`), served in one of the ways that processes
//! are, and each ends because it is killed: by its time limit, by a limit of its own, or by a person. It needs root,
//! which is what runs jobs as another user.

use crate::rig::{Rig, children, descriptors, nobody, processes};
use crate::trouble::{self, KilledBy, Trouble, Way};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use windlass::runner::{Flight, Runner, Stop};

/// At once under way.
const TOGETHER: u64 = 16;

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// A variable of our own: every process of a start that has not shed it can be told from all others.
const MARK: &str = "WINDLASS_REAP";

/// What has this mark, or one that begins with it.
fn marked(mark: &str) -> usize {
    let mark = format!("{MARK}={mark}");
    let carries = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|part| part == mark.as_bytes())
    };
    processes().filter(carries).count()
}

/// What marks a start of this rig.
fn mark(rig: &Rig, flight: u64) -> String {
    format!("{}.{flight}.", rig.origin)
}

/// Starts one, whose flight has this number.
fn start(rig: &mut Rig, trouble: &Trouble) -> u64 {
    let number = rig.next();
    let mut policy = trouble.policy.clone();
    let command = policy.service.command_mut().unwrap();
    command.environment.push((MARK.into(), mark(rig, number).into_bytes()));
    if matches!(trouble.way, Way::Kept | Way::Lua) {
        // The worker of another would be as good, and would have the other's mark.
        policy.pattern = format!("kept.{number}");
    }
    let id = rig.start_many(&policy, &[b"x"], 1)[0];
    if trouble.killed == KilledBy::Person {
        rig.runner.stop(Flight(id.offset), Stop::Cancel);
    }
    id.offset
}

/// So many kills; how many ended of each kind and way.
fn kill(rig: &mut Rig, troubles: &[Trouble], kills: u64) -> BTreeMap<(&'static str, String), u64> {
    let mut ended = BTreeMap::new();
    let mut under_way: BTreeMap<u64, &Trouble> = BTreeMap::new();
    let mut begun = 0;
    for heard in 0..kills {
        while begun < kills && begun - heard < TOGETHER {
            let trouble = &troubles[begun as usize % troubles.len()];
            under_way.insert(start(rig, trouble), trouble);
            begun += 1;
        }
        let finished = rig.hear();
        let trouble = under_way.remove(&finished.flight.0).unwrap();
        let (name, way) = (trouble.name, format!("{:?}", trouble.way));
        let [(1, outcome)] = &finished.outcomes[..] else { panic!("{finished:?}") };
        assert!(trouble.is_its_end(outcome), "{name}, {way}: {outcome:?}");
        // A kept worker tells of a job by its reply, while it lives.
        if matches!(trouble.way, Way::Command | Way::Batch) {
            assert_eq!(marked(&mark(rig, finished.flight.0)), 0, "{name}, {way}: reported while something of it lives");
        }
        *ended.entry((name, way)).or_default() += 1;
    }
    ended
}

/// What a launcher has open: files that it keeps for the next job in a slot, of whichever user, and all others.
fn open_files(pid: i32) -> (usize, usize) {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links: Vec<PathBuf> = links.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).collect();
    let is_kept = |link: &&PathBuf| {
        link.extension().is_some_and(|kind| ["control", "emit", "procs"].iter().any(|kept| kind == *kept))
    };
    let kept = links.iter().filter(is_kept).count();
    (kept, links.len() - kept)
}

/// Waits until this is so, as long as anybody could; whoever asks says what is wrong.
fn until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() && since.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
}

/// What is left of them once all is quiet: zombies and children, and what carries a mark.
fn left(rig: &Rig, launchers: &[i32]) -> (usize, usize) {
    let below = || launchers.iter().map(|pid| children(*pid).split_whitespace().count()).sum::<usize>();
    // Who traced others is buried before what he leaves to us of them, and a kept worker after its last word.
    until(|| below() == 0);
    (below(), marked(&format!("{}.", rig.origin)))
}

#[test]
fn thousands_of_kills_leave_nothing() {
    let alone = std::env::var("WINDLASS_REAP_KILLS").ok();
    for means in ["", "cgroup,children,pidfd"] {
        let mut rig = Rig::without(2, means);
        let modules = tempfile::tempdir().unwrap();
        let troubles = trouble::all(modules.path(), TOGETHER as u32, &nobody());
        let kills = alone.as_ref().map_or(troubles.len() as u64, |number| number.parse().unwrap());
        // Whatever a launcher opens only once is open before anything is counted.
        kill(&mut rig, &troubles, 4 * TOGETHER);
        let launchers = rig.launchers();
        assert_eq!(left(&rig, &launchers), (0, 0));
        let before: usize = launchers.iter().map(|pid| open_files(*pid).1).sum();
        let own = descriptors(std::process::id() as i32);
        let since = Instant::now();
        let ended = kill(&mut rig, &troubles, kills);
        let seconds = since.elapsed().as_secs_f64();
        let (zombies, left) = left(&rig, &launchers);
        assert_eq!(rig.launchers(), launchers, "none of them died of it");
        let open = || launchers.iter().map(|pid| open_files(*pid)).collect::<Vec<_>>();
        let others = || open().iter().map(|(_, others)| *others).sum::<usize>();
        // A launcher tells of an end before it closes what it had for the job.
        until(|| others() <= before);
        let more = others() as i64 - before as i64;
        let now = || descriptors(std::process::id() as i32) as i64 - own as i64;
        until(|| alone.is_none() || now() <= 0);
        let own = now();
        let how = if means.is_empty() { "with control groups" } else { "without" };
        let kinds = ended.keys().map(|(name, _)| name).collect::<BTreeSet<_>>().len();
        let ways = ended.keys().map(|(_, way)| way).collect::<BTreeSet<_>>().len();
        println!(
            "reap: {kills} kills of {kinds} kinds in {ways} ways {how}, zombies and children left {zombies}, \
             descendants left {left}, descriptors of launchers {more:+}, of the server {own:+}, {seconds:.1} s"
        );
        assert_eq!((zombies, left), (0, 0));
        assert!(more <= 0, "{before} became {:?}", open());
        // Two control files and a group for each that was ever under way at once, by user, all of them in one launcher
        // at worst.
        assert!(open().iter().all(|(kept, _)| *kept as u64 <= 3 * TOGETHER), "{:?}", open());
        // Other tests of this process open descriptors of their own at the same time; alone, it is exact.
        assert!(alone.is_none() || own == 0, "{own:+} descriptors of the server");
        let files = std::fs::read_dir(rig.dir.output()).unwrap().count();
        assert_eq!(files, 0, "no output is large enough for a file");
    }
}
