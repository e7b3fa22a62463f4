//! A disk that forgets: what was not synced may go with the power, sector by sector, and names too.
//!
//! It stands under the shipped reader in place of the kernel. It owns the bytes as programs see them, the bytes as a
//! power cut leaves them, and who has what open. A sync can be made to fail, and a write to find no space. It must
//! not know what the bytes mean.

use crate::random::Random;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use windlass::inbox::disk::{Disk, Facts, Listed, OpenFile};
use windlass::inbox::lock::Waited;
use windlass_core::job::Origin;
use windlass_core::time::Time;

/// What a disk writes as a whole.
const SECTOR: usize = 512;

/// A file system; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct FakeDisk(Rc<RefCell<Platter>>);

#[derive(Debug)]
struct Platter {
    random: Random,
    boot: Origin,
    inodes: BTreeMap<u64, Inode>,
    /// The names as programs see them.
    names: BTreeMap<PathBuf, u64>,
    /// The names as they are on disk, and the changes since, in order: a power cut keeps the first few.
    safe_names: BTreeMap<PathBuf, u64>,
    changes: Vec<Change>,
    last_number: u64,
    syncs_to_fail: u32,
    full: bool,
}

#[derive(Debug)]
enum Change {
    Made(PathBuf, u64),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

#[derive(Debug, Default)]
struct Inode {
    bytes: Vec<u8>,
    safe: Vec<u8>,
    dirty: BTreeSet<usize>,
    open: u32,
    /// The open file that has the lock.
    lock: Option<u64>,
}

impl Inode {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[at..end].copy_from_slice(bytes);
        self.dirty.extend(at / SECTOR..end.div_ceil(SECTOR));
    }

    fn sync(&mut self) {
        self.safe.clone_from(&self.bytes);
        self.dirty.clear();
    }

    /// Each sector that was not synced is there or is not, and so is the new length.
    fn power_cut(&mut self, random: &mut Random) {
        let (least, most) = (self.safe.len().min(self.bytes.len()), self.safe.len().max(self.bytes.len()));
        let length = random.between(least as u64, most as u64) as usize;
        let mut left = self.safe.clone();
        left.resize(length, 0);
        for sector in std::mem::take(&mut self.dirty) {
            let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(length).min(self.bytes.len()));
            if from < to && random.chance(500) {
                left[from..to].copy_from_slice(&self.bytes[from..to]);
            }
        }
        self.safe.clone_from(&left);
        self.bytes = left;
        self.open = 0;
        self.lock = None;
    }
}

fn apply(names: &mut BTreeMap<PathBuf, u64>, change: &Change) {
    match change {
        Change::Made(path, inode) => {
            names.insert(path.clone(), *inode);
        }
        Change::Renamed(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Change::Removed(path) => {
            names.remove(path);
        }
    }
}

impl Platter {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }

    fn inode(&mut self, number: u64) -> Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn named(&self, path: &Path) -> Result<u64> {
        self.names.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn facts(&self, number: u64) -> Result<Facts> {
        let inode = self.inodes.get(&number).ok_or(ErrorKind::NotFound)?;
        let links = self.names.values().filter(|named| **named == number).count() as u64;
        let length = inode.bytes.len() as u64;
        Ok(Facts { identity: (1, number), length, is_file: true, is_ours: true, links })
    }

    fn space(&self) -> Result<()> {
        if self.full { Err(Error::from_raw_os_error(28)) } else { Ok(()) }
    }

    fn sync_works(&mut self) -> Result<()> {
        if self.syncs_to_fail > 0 {
            self.syncs_to_fail -= 1;
            return Err(Error::from_raw_os_error(5));
        }
        Ok(())
    }

    /// Forgets files that have no name and that nobody has open.
    fn sweep(&mut self) {
        let kept: BTreeSet<u64> = self.names.values().chain(self.safe_names.values()).copied().collect();
        let changing = !self.changes.is_empty();
        self.inodes.retain(|number, inode| inode.open > 0 || changing || kept.contains(number));
    }
}

impl FakeDisk {
    pub(crate) fn new(random: &mut Random) -> FakeDisk {
        let random = Random::new(random.next());
        let mut platter = Platter {
            boot: Origin::from_random(0),
            random,
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            safe_names: BTreeMap::new(),
            changes: Vec::new(),
            last_number: 0,
            syncs_to_fail: 0,
            full: false,
        };
        platter.boot = Origin::from_random(platter.random.next());
        FakeDisk(Rc::new(RefCell::new(platter)))
    }

    /// The next sync of anything fails.
    pub(crate) fn fail_a_sync(&self) {
        self.0.borrow_mut().syncs_to_fail = 1;
    }

    pub(crate) fn works_again(&self) {
        let mut platter = self.0.borrow_mut();
        platter.syncs_to_fail = 0;
        platter.full = false;
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.0.borrow_mut().full = full;
    }

    /// Everything that ran is gone, and with it what was not on disk.
    pub(crate) fn power_cut(&self) {
        let mut platter = self.0.borrow_mut();
        let Platter { random, inodes, names, safe_names, changes, boot, .. } = &mut *platter;
        let kept = random.between(0, changes.len() as u64) as usize;
        changes.drain(..).take(kept).for_each(|change| apply(safe_names, &change));
        names.clone_from(safe_names);
        inodes.values_mut().for_each(|inode| inode.power_cut(random));
        *boot = Origin::from_random(random.next());
        platter.sweep();
    }

    /// Every file with its bytes, for a person who reads a story.
    pub(crate) fn dump(&self) -> String {
        let platter = self.0.borrow();
        let file = |(path, inode): (&PathBuf, &u64)| {
            let bytes = platter.inodes.get(inode).map(|inode| inode.bytes.escape_ascii().to_string());
            format!("{}: {}\n", path.display(), bytes.unwrap_or_default())
        };
        platter.names.iter().map(file).collect()
    }

    fn handle(&self, inode: u64) -> Result<FakeFile> {
        let mut platter = self.0.borrow_mut();
        platter.inode(inode)?.open += 1;
        let (number, boot) = (platter.number(), platter.boot);
        Ok(FakeFile { disk: self.clone(), inode, number, boot })
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct FakeFile {
    disk: FakeDisk,
    inode: u64,
    number: u64,
    boot: Origin,
}

impl Drop for FakeFile {
    fn drop(&mut self) {
        let mut platter = self.disk.0.borrow_mut();
        // What was open before a power cut is nobody's any more.
        if platter.boot != self.boot {
            return;
        }
        if let Some(inode) = platter.inodes.get_mut(&self.inode) {
            inode.open = inode.open.saturating_sub(1);
            if inode.lock == Some(self.number) {
                inode.lock = None;
            }
        }
        platter.sweep();
    }
}

impl Disk for FakeDisk {
    type File = FakeFile;

    fn list(&self, dir: &Path) -> Result<Vec<Listed>> {
        let platter = self.0.borrow();
        let here = platter.names.iter().filter(|(path, _)| path.parent() == Some(dir));
        Ok(here
            .filter_map(|(path, inode)| Some(Listed { inode: *inode, name: path.file_name()?.to_owned() }))
            .collect())
    }

    fn facts(&self, path: &Path) -> Result<Facts> {
        let platter = self.0.borrow();
        platter.facts(platter.named(path)?)
    }

    fn open(&self, path: &Path) -> Result<FakeFile> {
        let inode = self.0.borrow().named(path)?;
        self.handle(inode)
    }

    fn open_to_append(&self, path: &Path) -> Result<FakeFile> {
        let found = self.0.borrow().named(path);
        match found {
            Ok(inode) => self.handle(inode),
            Err(_) => self.create(path),
        }
    }

    fn create(&self, path: &Path) -> Result<FakeFile> {
        let mut platter = self.0.borrow_mut();
        platter.space()?;
        if platter.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let inode = platter.number();
        platter.inodes.insert(inode, Inode::default());
        platter.change(Change::Made(path.to_owned(), inode));
        drop(platter);
        self.handle(inode)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut platter = self.0.borrow_mut();
        platter.named(from)?;
        if platter.names.contains_key(to) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        platter.change(Change::Renamed(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut platter = self.0.borrow_mut();
        platter.named(path)?;
        platter.change(Change::Removed(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> Result<()> {
        let mut platter = self.0.borrow_mut();
        platter.sync_works()?;
        let Platter { safe_names, changes, .. } = &mut *platter;
        changes.drain(..).for_each(|change| apply(safe_names, &change));
        platter.sweep();
        Ok(())
    }

    fn wait_for_lock(&mut self, file: FakeFile, _patience: Duration) -> Result<Waited<FakeFile>> {
        Ok(if file.try_lock()? { Waited::Locked(file) } else { Waited::Busy })
    }

    fn holder(&self, _facts: &Facts) -> Option<u32> {
        None
    }

    fn boot(&self) -> Origin {
        self.0.borrow().boot
    }

    fn random(&self) -> Result<u64> {
        Ok(self.0.borrow_mut().random.next())
    }

    /// Nobody here reads it, but how long it is as a text decides what a power cut leaves of a log.
    fn now(&self) -> Time {
        Time(0)
    }
}

impl OpenFile for FakeFile {
    fn facts(&self) -> Result<Facts> {
        self.disk.0.borrow().facts(self.inode)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let mut platter = self.disk.0.borrow_mut();
        // A read may be short.
        let most = if platter.random.chance(50) { into.len().min(7) } else { into.len() };
        let bytes = &platter.inode(self.inode)?.bytes;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(most);
        into[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.disk.0.borrow_mut().inode(self.inode)?.write(offset as usize, bytes);
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut platter = self.disk.0.borrow_mut();
        platter.space()?;
        let inode = platter.inode(self.inode)?;
        let end = inode.bytes.len();
        inode.write(end, bytes);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut platter = self.disk.0.borrow_mut();
        platter.sync_works()?;
        platter.inode(self.inode)?.sync();
        Ok(())
    }

    fn try_lock(&self) -> Result<bool> {
        let mut platter = self.disk.0.borrow_mut();
        let lock = &mut platter.inode(self.inode)?.lock;
        Ok(*lock.get_or_insert(self.number) == self.number)
    }

    fn unlock(&self) -> Result<()> {
        let mut platter = self.disk.0.borrow_mut();
        let lock = &mut platter.inode(self.inode)?.lock;
        *lock = lock.filter(|holder| *holder != self.number);
        Ok(())
    }

    fn punch(&self, from: u64, length: u64) {
        if let Ok(inode) = self.disk.0.borrow_mut().inode(self.inode) {
            let end = ((from + length) as usize).min(inode.bytes.len());
            let from = (from as usize).min(end);
            inode.write(from, &vec![0; end - from]);
        }
    }

    fn take_lease(&self) -> bool {
        self.disk.0.borrow_mut().inode(self.inode).is_ok_and(|inode| inode.open == 1)
    }

    fn give_lease_back(&self) {}
}
