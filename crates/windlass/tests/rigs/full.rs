//! FULL: disks that fill up for real, and a limit on the size of files: short writes, and what they leave behind.
//!
//! Records of all sizes are pushed until there is no room, with and without a server; then there is room again. What
//! was accepted runs with exactly its bytes, what was rejected never runs, and nobody else's job is touched. A server
//! under which the disk fills up goes on by itself when there is room again.

use crate::chance::size;
use crate::disk::{Disk, mount, unmount, with_own_mounts};
use crate::random::Random;
use crate::rig::{PATIENCE, Rig, Server, lines_of};
use crate::tracer::{Act, Plan, Traced, Which};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const MIB: u64 = 12;
const LARGEST: u64 = 100_000;
/// So many refusals end the filling of a disk.
const REFUSALS: usize = 3;

/// What runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Memory,
    Ext4,
    FileSize,
}

/// Check sum and length, as `cksum` tells them.
type Sum = String;

#[derive(Default)]
struct Figures {
    trials: u64,
    short_writes: u64,
    accepted: usize,
    rejected: usize,
    unknown: usize,
    lost: usize,
    altered: usize,
    ran_though_rejected: usize,
    servers_ended: usize,
}

#[test]
fn a_full_disk_alters_nothing_and_loses_nothing_accepted() {
    let trials = size("WINDLASS_FULL_TRIALS", 100);
    let mut random = Random::new(size("WINDLASS_FULL_SEED", 1));
    let mut figures = Figures::default();
    for number in 0..trials {
        let kind = [Kind::Memory, Kind::Ext4, Kind::FileSize][(number % 3) as usize];
        with_own_mounts(|| {
            let mut trial = Trial::new(kind);
            trial.run(&mut random, &mut figures);
            trial.judge(&format!("trial {number} {kind:?}"), &mut figures);
        });
        figures.trials += 1;
    }
    let Figures { trials, short_writes, accepted, rejected, unknown, lost, altered, .. } = figures;
    let Figures { ran_though_rejected, servers_ended, .. } = figures;
    println!(
        "full: trials {trials} short writes {short_writes} accepted {accepted} rejected {rejected} unknown {unknown} \
         lost {lost} altered or merged {altered} ran though rejected {ran_though_rejected} servers that ended \
         {servers_ended}"
    );
    assert!(short_writes * 4 >= trials, "too few short writes to mean anything");
    assert_eq!((lost, altered, ran_though_rejected, servers_ended), (0, 0, 0, 0));
}

struct Trial {
    rig: Rig,
    kind: Kind,
    disk: Option<Disk>,
    accepted: BTreeMap<String, Sum>,
    /// Accepted in front of one that was not, without a word about their ids.
    taken: BTreeSet<Sum>,
    rejected: BTreeSet<Sum>,
    pushed: BTreeSet<Sum>,
    next: u64,
}

impl Trial {
    fn new(kind: Kind) -> Trial {
        let rig = Rig::new();
        std::fs::create_dir_all(rig.dir()).unwrap();
        let disk = (kind == Kind::Ext4).then(|| Disk::new(rig.path("image"), &rig.dir(), MIB));
        match &disk {
            Some(disk) => disk.mount(),
            None => mount("tmpfs", &rig.dir(), "tmpfs", 0, &format!("size={MIB}m")),
        }
        let script = format!("s=$(cksum); echo \"$1 $s\" >> {}", rig.path("started").display());
        let config = format!(
            "[limits]\nslots = 4\n[server]\ndrain = \"1s\"\n[queue.q]\nattempts = 0\nbackoff = \"10ms\"\n\
             backoff_max = \"100ms\"\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{id}}\"]\n"
        );
        std::fs::write(rig.dir().join("windlass.toml"), config).unwrap();
        let (accepted, taken, rejected, pushed) = Default::default();
        Trial { rig, kind, disk, accepted, taken, rejected, pushed, next: 0 }
    }

    fn run(&mut self, random: &mut Random, figures: &mut Figures) {
        // Somebody's small jobs come first; their neighbours must not harm them.
        self.push(random, 100, None, figures);
        let limit = (self.kind == Kind::FileSize).then(|| 4096 + random.below(200_000));
        let ballast = limit.is_none().then(|| self.fill(4096 + random.below(300_000)));
        let mut refused = 0;
        while refused < REFUSALS {
            let largest = 1 + random.below(LARGEST);
            refused += usize::from(!self.push(random, largest, limit, figures));
        }
        ballast.into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
        let server = self.rig.serve_again();
        let server = self.drain(server, figures);
        if limit.is_none() {
            self.fill_under(random, figures);
        }
        let server = self.drain(server, figures);
        self.push(random, 100, None, figures);
        self.drain(server, figures).stop();
    }

    /// Waits until all is done. A server must not end for want of room: that it did is counted, and another goes on.
    fn drain(&self, server: Server, figures: &mut Figures) -> Server {
        if self.rig.call(&["wait", "--drained"]).code == Some(0) {
            return server;
        }
        figures.servers_ended += 1;
        let told = server.process.end();
        eprintln!("full: {:?}: a server ended with {:?}: {}", self.kind, told.code, told.stderr);
        let next = self.rig.serve_again();
        self.rig.drained();
        next
    }

    /// The disk fills up under a server and gets room again.
    fn fill_under(&mut self, random: &mut Random, figures: &mut Figures) {
        let ballast = self.fill(random.below(150_000));
        for _ in 0..6 {
            let largest = 1 + random.below(LARGEST);
            self.push(random, largest, None, figures);
        }
        std::fs::remove_file(ballast).unwrap();
    }

    /// Takes all the room but this much.
    fn fill(&self, but: u64) -> PathBuf {
        let path = self.rig.dir().join(".ballast");
        let found = rustix::fs::statvfs(self.rig.dir()).unwrap();
        let mut length = (found.f_bavail * found.f_frsize).saturating_sub(but).max(1);
        let file = File::create(&path).unwrap();
        // Some of what is free goes into keeping account of it.
        while let Err(error) = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length) {
            assert_eq!(error, rustix::io::Errno::NOSPC);
            length -= length.min(4096);
        }
        path
    }

    /// Pushes one to three records in one request; false if they were refused.
    fn push(&mut self, random: &mut Random, largest: u64, limit: Option<u64>, figures: &mut Figures) -> bool {
        let count = if random.below(4) == 0 { 3 } else { 1 };
        let records: Vec<Vec<u8>> = (0..count).map(|_| self.record(1 + random.below(largest))).collect();
        let sums: Vec<Sum> = records.iter().map(|record| cksum(record)).collect();
        self.pushed.extend(sums.iter().cloned());
        let mut input = tempfile::tempfile().unwrap();
        for record in &records {
            input.write_all(record).and_then(|()| input.write_all(b"\0")).unwrap();
        }
        std::io::Seek::rewind(&mut input).unwrap();
        let durability = if random.below(2) == 0 { "full" } else { "os" };
        let words = ["push", "q", "-0", "--ids", "--durability", durability];
        let mut command = self.rig.windlass(&words);
        limit.into_iter().for_each(|bytes| limit_file_size(&mut command, bytes));
        command.stdin(Stdio::from(input));
        let plan = Plan { which: Which::None, nth: 0, act: Act::Count };
        let tally = Traced::start(command, plan).end(PATIENCE).unwrap_or_else(|| panic!("a push hangs"));
        figures.short_writes += tally.short_writes;
        if tally.end == 0 {
            self.accepted.extend(tally.stdout.lines().map(str::to_owned).zip(sums));
            return true;
        }
        let told = &tally.stderr;
        assert!(!told.contains("panicked") && !told.is_empty(), "ended with {}: {told}", tally.end);
        if told.contains("unknown") {
            figures.unknown += count;
            return false;
        }
        // Of several, those in front may be in; it says how many.
        let taken = taken_before(told);
        figures.rejected += count - taken;
        self.taken.extend(sums[..taken].iter().cloned());
        self.rejected.extend(sums[taken..].iter().cloned());
        false
    }

    /// A record that no other one is like; any byte but the one that ends it.
    fn record(&mut self, length: u64) -> Vec<u8> {
        self.next += 1;
        let mut record = format!("{}.", self.next).into_bytes();
        let mut bytes = Random::new(self.next);
        while (record.len() as u64) < length {
            record.push(1 + bytes.below(255) as u8);
        }
        record
    }

    fn judge(&self, which: &str, figures: &mut Figures) {
        let mut ran = BTreeMap::new();
        for line in lines_of(&self.rig.path("started")) {
            let (id, sum) = line.split_once(' ').unwrap();
            let again = ran.insert(id.to_owned(), sum.to_owned());
            if !self.pushed.contains(sum) || again.is_some_and(|before| before != sum) {
                eprintln!("full: {which}: {id} had other bytes: {sum}");
                figures.altered += 1;
            }
            if self.rejected.contains(sum) {
                eprintln!("full: {which}: {id} ran though it was rejected");
                figures.ran_though_rejected += 1;
            }
        }
        for (id, sum) in &self.accepted {
            match ran.get(id) {
                None => {
                    eprintln!("full: {which}: {id} was accepted and never ran");
                    figures.lost += 1;
                }
                Some(other) if other != sum => figures.altered += 1,
                Some(_) => {}
            }
        }
        for sum in self.taken.iter().filter(|sum| !ran.values().any(|other| other == *sum)) {
            eprintln!("full: {which}: {sum} was called accepted and never ran");
            figures.lost += 1;
        }
        figures.accepted += self.accepted.len() + self.taken.len();
        unmount(&self.rig.dir());
        if let Some(disk) = &self.disk {
            disk.check();
        }
    }
}

/// `… 1 job before that was accepted`, `… N jobs before that were accepted`.
fn taken_before(told: &str) -> usize {
    let before = told.split(" before that w").next().filter(|before| before.len() < told.len());
    before.map_or(0, |before| before.rsplit(' ').nth(1).and_then(|n| n.parse().ok()).unwrap())
}

/// Sets a limit on the size of files for a program that is not started yet.
fn limit_file_size(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let set = move || match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(set) };
}

/// What the program of this name prints for these bytes.
fn cksum(bytes: &[u8]) -> Sum {
    let length = bytes.len();
    let mut sum = 0u32;
    let take =
        |sum: u32, byte: u8| {
            (0..8).fold(sum ^ u32::from(byte) << 24, |sum, _| {
                if sum & 0x8000_0000 == 0 { sum << 1 } else { sum << 1 ^ 0x04c1_1db7 }
            })
        };
    for byte in bytes {
        sum = take(sum, *byte);
    }
    let mut rest = length;
    while rest > 0 {
        sum = take(sum, rest as u8);
        rest >>= 8;
    }
    format!("{} {length}", !sum)
}

#[test]
fn sums_are_those_of_the_program() {
    assert_eq!(cksum(b""), "4294967295 0");
    assert_eq!(cksum(b"123456789"), "930766865 9");
}
