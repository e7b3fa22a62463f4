//! Who keeps the limits of jobs: the kernel in groups of its own, a watcher of such groups, or one of `/proc` alone.
//!
//! Every rig says at its end which it was. `WINDLASS_TEST_GROUPS` names the one that it must have been, which `cargo
//! xtask prove groups` sets in a machine that has the kernel's controllers. Without it the tests of this file hold
//! whatever is there, and those about the kernel alone say that they tried nothing.

use crate::rig::{Rig, lives, pids_from, shell, survivors};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use windlass_core::outcome::Outcome;
use windlass_core::policy::Limits;

const EXPECTED: &str = "WINDLASS_TEST_GROUPS";

/// Who keeps the limits of a rig's jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// The kernel keeps memory and processes in groups below these directories, one for each launcher.
    Kernel(Vec<PathBuf>),
    /// There are groups, and who is in them is watched.
    Watched(Vec<PathBuf>),
    /// No group can be made; whoever is found in `/proc` is watched.
    NoGroups,
}

impl Keeper {
    /// That of the launchers which note their groups in this directory.
    pub(crate) fn of(run: &Path) -> Keeper {
        let is_note = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == "cgroup");
        let notes = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().path()).filter(is_note);
        let bases: Vec<PathBuf> = notes.map(|note| fs::read_to_string(note).unwrap().into()).collect();
        let handed = |base: &PathBuf| {
            let words = fs::read_to_string(base.join("cgroup.subtree_control")).unwrap();
            ["memory", "pids"].iter().all(|name| words.split_whitespace().any(|word| word == *name))
        };
        match (bases.is_empty(), bases.iter().all(handed)) {
            (true, _) => Keeper::NoGroups,
            (false, true) => Keeper::Kernel(bases),
            (false, false) => Keeper::Watched(bases),
        }
    }

    fn bases(&self) -> &[PathBuf] {
        match self {
            Keeper::Kernel(bases) | Keeper::Watched(bases) => bases,
            Keeper::NoGroups => &[],
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Keeper::Kernel(_) => "kernel",
            Keeper::Watched(_) => "watched",
            Keeper::NoGroups => "none",
        }
    }

    /// Says who it is, with the limits as the kernel has them, and holds that it is the expected one.
    pub(crate) fn say(&self) {
        if let Ok(expected) = std::env::var(EXPECTED) {
            assert_eq!(self.word(), expected, "of those who can keep limits: {self:?}");
        }
        println!("limits are kept by: {}", self.word());
        for group in self.bases().iter().flat_map(|base| below(base)) {
            let has = |name: &str| fs::read_to_string(group.join(name)).ok();
            match [has("memory.max"), has("pids.max")].each_ref().map(|text| text.as_deref().map(str::trim)) {
                [Some(memory), Some(pids)] => println!("memory.max {memory}, pids.max {pids} in {}", group.display()),
                files => assert_ne!(self.word(), "kernel", "{} has {files:?}", group.display()),
            }
        }
    }
}

fn below(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

/// The groups of a rig, made by a first job that has limits.
fn bases(rig: &mut Rig) -> Vec<PathBuf> {
    assert_eq!(rig.stdout(shell("echo here").limits(memory(500))), b"here\n");
    Keeper::of(&rig.dir.run()).bases().to_vec()
}

/// The same where the kernel keeps the limits.
fn kernels_bases(rig: &mut Rig) -> Option<Vec<PathBuf>> {
    let bases = bases(rig);
    let is_kernels = matches!(Keeper::of(&rig.dir.run()), Keeper::Kernel(_));
    if !is_kernels {
        println!("not tried: the kernel's controllers are not handed down here");
    }
    is_kernels.then_some(bases)
}

fn memory(mebibytes: u64) -> Limits {
    Limits { memory: mebibytes << 20, ..Limits::default() }
}

/// A process that has so many MiB once, and ends.
fn has_once(mebibytes: u32) -> String {
    format!("dd if=/dev/zero bs={mebibytes}M count=1 2>/dev/null | wc -c")
}

#[test]
fn what_asks_for_more_processes_than_the_kernel_gives_is_told_of_its_limit() {
    for means in ["", "cgroup"] {
        let mut rig = Rig::without(1, means);
        let limits = Limits { processes: 5, ..Limits::default() };
        for last in ["wait", "exit 0"] {
            let error = rig.error(shell(&format!("for i in $(seq 200); do sleep 1000 & done; {last}")).limits(limits));
            assert!(error.starts_with("failed killed: it had "), "{error}");
            assert!(error.ends_with(" processes and threads, and its limit is 5 (`process_limit`)"), "{error}");
        }
    }
}

#[test]
fn a_limit_that_no_program_fits_into_is_told() {
    for means in ["", "cgroup"] {
        let mut rig = Rig::without(1, means);
        let other = rig.start(shell("sleep 1000"));
        for bytes in [1, 4096, 65536] {
            let id = rig.start(shell("sleep 1000").limits(Limits { memory: bytes, ..Limits::default() }));
            let outcome = rig.hear().outcomes[0].1.clone();
            let Outcome::Failed { error } = outcome else { panic!("{bytes} bytes: {outcome:?}") };
            assert!(error.ends_with("(`memory`)"), "{bytes} bytes: {error}");
            assert_eq!(survivors(id), Vec::<i32>::new());
        }
        rig.kill(other);
    }
}

#[test]
fn a_group_is_empty_when_its_job_has_ended_and_gone_when_the_server_has() {
    let mut rig = Rig::new(1);
    let bases = bases(&mut rig);
    let many = "for i in $(seq 30); do (env -i setsid sleep 1000 &); done";
    for script in ["exit 0", "exit 3", "kill -KILL $$"] {
        let id = rig.start(shell(&format!("{many}; {script}")).limits(memory(500)));
        rig.hear();
        assert_eq!(survivors(id), Vec::<i32>::new());
        for group in bases.iter().flat_map(|base| below(base)) {
            let events = fs::read_to_string(group.join("cgroup.events")).unwrap();
            assert!(events.contains("populated 0"), "{} after {script}: {events}", group.display());
        }
    }
    Keeper::of(&rig.dir.run()).say();
    // The kernel removes no group in which anything lives.
    for group in bases.iter().flat_map(|base| below(base)) {
        fs::remove_dir(&group).unwrap();
    }
    rig.end();
    assert_eq!(bases.iter().filter(|base| base.exists()).count(), 0, "{bases:?}");
}

#[test]
fn the_doctor_says_who_keeps_the_limits() {
    let mut rig = Rig::new(1);
    bases(&mut rig);
    let doctor = Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(["doctor", "--json"])
        .env("WINDLASS_DIR", rig.dir.root())
        .output();
    let said = String::from_utf8(doctor.unwrap().stdout).unwrap();
    let expected = match Keeper::of(&rig.dir.run()) {
        Keeper::Kernel(_) => "; the kernel keeps the limits of this server's jobs\"",
        Keeper::Watched(_) => "not handed down to this server: limits are watched\"",
        Keeper::NoGroups => "\"cgroups\"",
    };
    assert!(said.contains(expected), "{said}");
}

/// As a root's job may, and a Windlass that is a job does.
#[test]
fn what_a_job_hides_in_groups_of_its_own_is_counted_and_ends_with_it() {
    let mut rig = Rig::new(1);
    let bases = bases(&mut rig);
    let Some(base) = bases.first() else { return println!("not tried: no groups can be made here") };
    let (fifo, go) = (rig.fifo("pid"), rig.fifo("go"));
    let stays = rig.start(shell("sleep 1000"));
    let multiplies = "for i in 1 2 3 4 5 6; do sleep 1000 & done; wait";
    for (hidden_does, processes) in [("sleep 1000; :", 0), (multiplies, 4)] {
        // A group that has had others in it is not used again, so each job here finds one that was made for it.
        let group = below(base).pop().unwrap().join("own");
        let enter = format!("echo 0 > {}/cgroup.procs; echo $$ > {}", group.display(), fifo.display());
        let hide = format!("(env -i setsid sh -c '{enter}; {hidden_does}' &)");
        let limits = Limits { processes, ..memory(500) };
        rig.start(shell(&format!("mkdir {}; {hide}; read x < {}", group.display(), go.display())).limits(limits));
        let hidden = pids_from(&fifo)[0];
        if processes == 0 {
            assert!(lives(hidden));
            fs::write(&go, "\n").unwrap();
        }
        match (&rig.hear().outcomes[0].1, processes) {
            (Outcome::Succeeded { .. }, 0) => {}
            (Outcome::Failed { error }, 4) if error.ends_with("its limit is 4 (`process_limit`)") => {}
            (outcome, _) => panic!("{hidden_does}: {outcome:?}"),
        }
        assert!(!lives(hidden), "although another job of its time still runs");
        assert!(!group.exists(), "{}", group.display());
        assert_eq!(rig.stdout(shell("echo on").limits(memory(500))), b"on\n");
    }
    rig.kill(stays);
    rig.end();
    assert!(!base.exists());
}

#[test]
fn what_a_job_leaves_in_memory_is_not_counted_for_the_next_one() {
    let mut rig = Rig::new(1);
    if kernels_bases(&mut rig).is_none() {
        return;
    }
    let file = format!("/dev/shm/windlass-test-{}", std::process::id());
    let leaves = shell(&format!("head -c 40M /dev/zero > {file}; echo left")).limits(memory(64));
    assert_eq!(rig.stdout(leaves), b"left\n");
    let next = rig.run(shell(&has_once(40)).limits(memory(64))).0;
    fs::remove_file(file).unwrap();
    assert_eq!(next, Outcome::Succeeded { message: "41943040".into() });
}

#[test]
fn who_is_killed_because_others_have_the_memory_is_not_told_of_a_limit_of_his_own() {
    let mut rig = Rig::new(1);
    let Some(bases) = kernels_bases(&mut rig) else { return };
    for (file, value) in [("memory.swap.max", "0"), ("memory.max", "50331648")] {
        // Where nothing is swapped there is no such file.
        assert!(fs::write(bases[0].join(file), value).is_ok() || file == "memory.swap.max");
    }
    let error = rig.error(shell(&has_once(100)).limits(memory(500)));
    assert!(!error.contains("its limit"), "{error}");
    let own = rig.error(shell(&has_once(40)).limits(memory(20)));
    assert!(own.ends_with("its limit is 20 MiB (`memory`)"), "{own}");
}

/// The kernel kills one process after the other; a first one that sees its child die may end itself before its turn.
#[test]
fn a_shell_whose_child_takes_too_much_is_told_of_the_limit() {
    let mut rig = Rig::new(1);
    if kernels_bases(&mut rig).is_none() {
        return;
    }
    for _ in 0..10 {
        let error = rig.error(shell(&format!("{}; exit 3", has_once(100))).limits(memory(32)));
        assert!(error.ends_with("its limit is 32 MiB (`memory`)"), "{error}");
    }
}

/// A service manager may have the kernel spare a server, and what a server starts is spared with it.
#[test]
fn a_job_of_a_server_that_the_kernel_spares_is_killed_for_its_limit_all_the_same() {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let before = fs::read_to_string(SCORE).unwrap();
    if let Err(error) = fs::write(SCORE, "-1000") {
        println!("this user may not be spared, so this server is not: {error}");
    }
    let mut rig = Rig::new(1);
    let error = rig.error(shell(&format!("{} | sleep 1000", has_once(100))).limits(memory(32)));
    let score = rig.stdout(shell(&format!("cat {SCORE}")).limits(memory(32)));
    fs::write(SCORE, before).unwrap();
    assert!(error.ends_with("its limit is 32 MiB (`memory`)"), "{error}");
    if matches!(Keeper::of(&rig.dir.run()), Keeper::Kernel(_)) {
        assert_eq!(String::from_utf8_lossy(&score), "0\n");
    }
}
