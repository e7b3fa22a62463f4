//! A driver's number, leased: a file in the sidecar that its driver holds locked and touches now and then.
//!
//! Who is alive is proven, never guessed by a process number. A lock that somebody holds is a life; one that nobody
//! holds is a death on the machine that shares it. Whether locks reach another machine nobody can tell, so of a driver
//! there the time stamp must be old as well, by the file system's own clock. The file also says what its driver is
//! about to do, so that whoever takes over knows whether the output had been handed on. It must not touch a document.

use super::directory::{Directory, Facts};
use super::sidecar::{Sidecar, boot, touch};
use crate::api::base64;
use crate::error::{Failure, Kind};
use crate::sabotage::{self, Sabotage};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Result;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use windlass_core::document::Times;

/// Numbers of ours, all of one length; drivers of other programs count from one and stay below.
const NUMBERS: std::ops::Range<u64> = 100_000..1_000_000;
/// What changes with every document stands here, what does not stands before it.
const DOING_AT: u64 = 4096;
const DOING_LENGTH: usize = 512;

/// What a driver says about itself once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// How long it may be silent.
    pub lease: Duration,
    /// Where its output goes, and the extension while it is being written.
    pub output: Option<PathBuf>,
    pub extension: String,
    /// The directory of its launchers, by which their processes are proven dead.
    pub hands: PathBuf,
}

/// The first line of the file.
#[derive(Serialize, Deserialize)]
struct Header {
    windlass_driver: u32,
    host: String,
    boot: String,
    process: u32,
    lease_seconds: f64,
    output: Option<String>,
    extension: String,
    hands: String,
}

/// What a driver is about to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doing {
    /// Nothing that leaves a trace beyond its input.
    #[default]
    Own,
    /// It has the input with this inode worked on: a file of that inode under any other name was moved there.
    Working { input: u64 },
    /// It hands on the output with this inode, made of the input with that one. While the name under which it was
    /// written leads to that inode, it has not been handed on.
    Publishing { input: u64, output: u64 },
}

/// A number that is ours for as long as this lives.
#[derive(Debug)]
pub struct Lease {
    pub number: u32,
    file: File,
    drivers: Directory,
}

impl Lease {
    /// Leases a number that nobody has; its file is there, locked and on disk when it comes back.
    pub fn take(sidecar: &Sidecar, about: &About) -> std::result::Result<Lease, Failure> {
        let place = sidecar.drivers.path();
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot lease a number in {}", place.display()), &e);
        let temporary = sidecar.temporary();
        sidecar.root.remove(&temporary).map_err(cannot)?;
        let file = sidecar.root.create(&temporary).map_err(cannot)?;
        lock(&file).map_err(cannot)?;
        let text = about.header().map_err(cannot)?;
        file.write_all_at(text.as_bytes(), 0).map_err(cannot)?;
        file.write_all_at(&laid(Doing::Own, &Times::default()), DOING_AT).map_err(cannot)?;
        file.sync_all().map_err(cannot)?;
        loop {
            let random =
                getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
            let number = (NUMBERS.start + random % (NUMBERS.end - NUMBERS.start)) as u32;
            match sidecar.root.rename_new(&temporary, &sidecar.drivers, number.to_string().as_bytes()) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                renamed => {
                    renamed.and_then(|()| sidecar.drivers.sync()).map_err(cannot)?;
                    return Ok(Lease { number, file, drivers: sidecar.drivers.clone() });
                }
            }
        }
    }

    /// The number as it stands in names.
    pub fn by(&self) -> Vec<u8> {
        self.number.to_string().into_bytes()
    }

    /// A sign of life.
    pub fn renew(&self) -> Result<()> {
        if sabotage::on(Sabotage::LeaseUnrenewed) {
            return Ok(());
        }
        touch(&self.file)
    }

    /// False where somebody has taken over what we held: nothing of it may be handed on.
    pub fn holds(&self) -> bool {
        Facts::of_file(&self.file).is_ok_and(|facts| facts.links > 0)
    }

    /// Says what comes next. It is for those who take over after a death; a power cut may forget it.
    pub fn say(&self, doing: Doing, times: &Times) -> Result<()> {
        self.file.write_all_at(&laid(doing, times), DOING_AT)
    }

    /// Whoever is started next has the lock as well, and keeps it when this goes: the number lives for as long as that
    /// process or any of its own.
    pub(super) fn let_inherit(&self) -> Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.file, rustix::io::FdFlags::empty())?)
    }

    /// The driver has ended and holds nothing.
    pub fn give_back(self) -> Result<()> {
        self.drivers.remove(&self.by()).map(drop)
    }
}

/// Takes back what a dead driver said of its next step, before anything goes that it spoke of.
pub(super) fn disown(file: &File, times: &Times) -> Result<()> {
    file.write_all_at(&laid(Doing::Own, times), DOING_AT)
}

/// A sign of life of a driver that cannot give one itself.
pub(super) fn renew(sidecar: &Sidecar, number: u32) -> Result<()> {
    sidecar.drivers.open_file(number.to_string().as_bytes(), true)?.map_or(Ok(()), |file| touch(&file))
}

/// Waits until nobody has the lock of this number any more.
pub(super) fn wait_for_the_end(sidecar: &Sidecar, number: u32) -> Result<()> {
    let Some(file) = sidecar.drivers.open_file(number.to_string().as_bytes(), true)? else { return Ok(()) };
    match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive)) {
        // Without locks the time stamp tells, later.
        Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl About {
    fn header(&self) -> Result<String> {
        let encode = |path: &Path| base64::encode(path.as_os_str().as_bytes());
        let header = Header {
            windlass_driver: 1,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: boot(),
            process: std::process::id(),
            lease_seconds: self.lease.as_secs_f64(),
            output: self.output.as_deref().map(encode),
            extension: self.extension.clone(),
            hands: encode(&self.hands),
        };
        Ok(serde_json::to_string(&header)? + "\n")
    }
}

fn laid(doing: Doing, times: &Times) -> Vec<u8> {
    let doing = match doing {
        Doing::Own => "own".to_owned(),
        Doing::Working { input } => format!("working {input}"),
        Doing::Publishing { input, output } => format!("publishing {input} {output}"),
    };
    let mut text = format!("{doing}\n{times}").into_bytes();
    text.resize(DOING_LENGTH, b' ');
    text
}

/// What came of asking for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locked {
    Ours,
    Anothers,
    /// The file system has none: the time stamp alone tells.
    Unknown,
}

/// Asks for a lock that is another's while anybody lives. Whoever only looks holds a part of it for a moment, and is
/// not taken for the driver.
fn lock(file: &File) -> Result<Locked> {
    const MOMENTS: usize = 100;
    for _ in 0..MOMENTS {
        match lock_as(file, FlockOperation::NonBlockingLockExclusive)? {
            Locked::Anothers => {}
            locked => return Ok(locked),
        }
        match lock_as(file, FlockOperation::NonBlockingLockShared)? {
            Locked::Ours => rustix::fs::flock(file, FlockOperation::Unlock)?,
            locked => return Ok(locked),
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    Ok(Locked::Anothers)
}

fn lock_as(file: &File, how: FlockOperation) -> Result<Locked> {
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(Locked::Ours),
        Err(Errno::WOULDBLOCK) => Ok(Locked::Anothers),
        Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(Locked::Unknown),
        Err(error) => Err(error.into()),
    }
}

/// A leased number as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Driver {
    pub number: u32,
    pub host: String,
    pub process: u32,
    /// It ran on this machine since its last start: its lock proves everything, and what it said last is not forgotten.
    pub here: bool,
    pub about: About,
    pub doing: Doing,
    pub times: Times,
    /// Since its last sign of life, by the file system's clock.
    pub silent: Duration,
}

/// What a look at a lease finds.
#[derive(Debug)]
pub enum Found {
    Alive(Driver),
    /// Dead, and proven so; whoever holds the file is the one who takes over.
    Dead(Driver, File),
    /// Nobody can tell yet: its lock is free, and its time stamp is young.
    Unknown(Driver),
    Gone,
}

/// The numbers that are leased.
pub fn numbers(sidecar: &Sidecar) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    sidecar.drivers.each_name(|name| {
        numbers.extend(std::str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok()));
        ControlFlow::Continue(())
    })?;
    numbers.sort_unstable();
    Ok(numbers)
}

/// Looks whether the driver of a number lives; `now` is the file system's clock. Our own are alive.
pub fn look(sidecar: &Sidecar, number: u32, now: i64) -> Result<Found> {
    let name = number.to_string().into_bytes();
    let Some(file) = sidecar.drivers.open_regular(&name, true)? else { return Ok(Found::Gone) };
    let facts = Facts::of_file(&file)?;
    let silent = silence(&facts, now);
    let mut driver = read(&file, number, silent)?;
    if facts.owner != rustix::process::geteuid().as_raw() {
        // Paths that another user names are not ours to clear up.
        (driver.about.hands, driver.about.output) = Default::default();
    }
    let locked = lock(&file)?;
    if locked == Locked::Anothers && !sabotage::on(Sabotage::LivingTakenOver) {
        return Ok(Found::Alive(driver));
    }
    // Another may have taken over between the two, and whoever did has removed it.
    if Facts::of_file(&file)?.links == 0 {
        return Ok(Found::Gone);
    }
    let dead = (driver.here && locked == Locked::Ours) || silent > driver.about.lease;
    let dead = dead || sabotage::on(Sabotage::LivingTakenOver);
    Ok(if dead { Found::Dead(driver, file) } else { Found::Unknown(driver) })
}

/// How a driver stands, as far as can be told without touching anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Alive,
    Dead,
    /// Its lock is free, and its time stamp is young: nobody can tell yet.
    Unknown,
}

/// The same for those who only look: nothing changes, neither on disk nor who may take over.
pub fn see(sidecar: &Sidecar, number: u32, now: i64) -> Result<Option<(Driver, Life)>> {
    let Some(file) = sidecar.drivers.open_regular(number.to_string().as_bytes(), false)? else { return Ok(None) };
    let silent = silence(&Facts::of_file(&file)?, now);
    let driver = read(&file, number, silent)?;
    let life = match lock_as(&file, FlockOperation::NonBlockingLockShared)? {
        Locked::Anothers => Life::Alive,
        Locked::Ours if driver.here => Life::Dead,
        Locked::Ours | Locked::Unknown if silent > driver.about.lease => Life::Dead,
        Locked::Ours | Locked::Unknown => Life::Unknown,
    };
    Ok(Some((driver, life)))
}

fn silence(facts: &Facts, now: i64) -> Duration {
    Duration::from_nanos(u64::try_from(now.saturating_sub(facts.modified)).unwrap_or(0))
}

/// What a lease says; one that says nothing we can read is believed by its time stamp alone.
fn read(file: &File, number: u32, silent: Duration) -> Result<Driver> {
    let mut bytes = vec![0; DOING_AT as usize + DOING_LENGTH];
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    let (first, second) = bytes[..length].split_at(length.min(DOING_AT as usize));
    let line = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let path = |text: &str| base64::decode(text).map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes)));
    let second = String::from_utf8_lossy(second);
    let mut words = second.lines().next().unwrap_or_default().split(' ');
    let doing = match (words.next(), words.next().map(str::parse), words.next().map(str::parse)) {
        (Some("working"), Some(Ok(input)), _) => Doing::Working { input },
        (Some("publishing"), Some(Ok(input)), Some(Ok(output))) => Doing::Publishing { input, output },
        _ => Doing::Own,
    };
    let header = serde_json::from_slice::<Header>(line).ok();
    let about = About {
        lease: header
            .as_ref()
            .map_or(super::LEASE, |header| Duration::try_from_secs_f64(header.lease_seconds).unwrap_or(super::LEASE)),
        output: header.as_ref().and_then(|header| path(header.output.as_deref()?)),
        extension: header.as_ref().map(|header| header.extension.clone()).unwrap_or_default(),
        hands: header.as_ref().and_then(|header| path(&header.hands)).unwrap_or_default(),
    };
    Ok(Driver {
        number,
        here: header.as_ref().is_some_and(|header| header.boot == boot()),
        process: header.as_ref().map_or(0, |header| header.process),
        host: header.map(|header| header.host).unwrap_or_default(),
        about,
        doing,
        times: Times::read(&second),
        silent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        let output = Some(PathBuf::from("/o\n"));
        About { lease: Duration::from_secs(30), output, extension: "xml".into(), hands: "/h".into() }
    }

    #[test]
    fn a_held_lease_is_a_life_and_a_free_one_a_death() {
        let root = tempfile::tempdir().unwrap();
        let sidecar = Sidecar::open(&Directory::open(root.path()).unwrap()).unwrap();
        let lease = Lease::take(&sidecar, &about()).unwrap();
        let number = lease.number;
        assert_eq!(numbers(&sidecar).unwrap(), [number]);
        let times = Times { documents: 5, ..Times::default() };
        lease.say(Doing::Publishing { input: 3, output: 4 }, &times).unwrap();
        let now = || sidecar.clock().unwrap();
        let life = || see(&sidecar, number, now()).unwrap().map(|(_, life)| life);
        let Found::Alive(driver) = look(&sidecar, number, now()).unwrap() else { panic!("it lives") };
        assert_eq!(life(), Some(Life::Alive));
        assert_eq!((driver.about, driver.doing), (about(), Doing::Publishing { input: 3, output: 4 }));
        assert_eq!((driver.times, driver.here, driver.process), (times, true, std::process::id()));
        assert!(lease.holds());
        // As a crash leaves it: the lock is gone, the file is there.
        drop(lease);
        assert_eq!(life(), Some(Life::Dead));
        let Found::Dead(_, held) = look(&sidecar, number, now()).unwrap() else { panic!("it is dead") };
        assert!(matches!(look(&sidecar, number, now()).unwrap(), Found::Alive(_)), "one at a time takes over");
        drop(held);
        // Whoever only looks is no life.
        let looker = sidecar.drivers.open_regular(number.to_string().as_bytes(), false).unwrap().unwrap();
        assert_eq!(lock_as(&looker, FlockOperation::NonBlockingLockShared).unwrap(), Locked::Ours);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| look(&sidecar, number, now()).unwrap());
            std::thread::park_timeout(Duration::from_millis(5));
            drop(looker);
            assert!(matches!(looks.join().unwrap(), Found::Dead(..)));
        });
        sidecar.drivers.remove(number.to_string().as_bytes()).unwrap();
        assert!(matches!(look(&sidecar, number, now()).unwrap(), Found::Gone));
        assert_eq!(life(), None);
    }

    #[test]
    fn of_another_machine_the_time_stamp_must_be_old_as_well() {
        let root = tempfile::tempdir().unwrap();
        let sidecar = Sidecar::open(&Directory::open(root.path()).unwrap()).unwrap();
        let lease = Lease::take(&sidecar, &about()).unwrap();
        let (number, path) = (lease.number, sidecar.drivers.at(&lease.by()));
        drop(lease);
        let text = std::fs::read(&path).unwrap();
        let elsewhere = String::from_utf8(text).unwrap().replace(&boot(), "00000000-elsewhere-00000000-00000000");
        std::fs::write(&path, elsewhere).unwrap();
        let now = sidecar.clock().unwrap();
        assert!(matches!(look(&sidecar, number, now).unwrap(), Found::Unknown(_)));
        assert_eq!(see(&sidecar, number, now).unwrap().map(|(_, life)| life), Some(Life::Unknown));
        let later = now + 31_000_000_000;
        assert_eq!(see(&sidecar, number, later).unwrap().map(|(_, life)| life), Some(Life::Dead));
        assert!(matches!(look(&sidecar, number, later).unwrap(), Found::Dead(..)));
        // One that nobody can read has only its time stamp.
        std::fs::write(&path, "").unwrap();
        assert!(matches!(look(&sidecar, number, now).unwrap(), Found::Unknown(_)));
        assert!(matches!(look(&sidecar, number, later).unwrap(), Found::Dead(..)));
    }

    #[test]
    fn who_was_taken_over_holds_nothing() {
        let root = tempfile::tempdir().unwrap();
        let sidecar = Sidecar::open(&Directory::open(root.path()).unwrap()).unwrap();
        let lease = Lease::take(&sidecar, &about()).unwrap();
        sidecar.drivers.remove(&lease.by()).unwrap();
        assert!(!lease.holds());
    }
}
