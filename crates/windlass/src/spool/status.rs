//! How queues of documents stand: what waits, is worked on and was set aside, who works, and where the time went.
//!
//! It reads names, leases and times, and changes nothing: no file is made or touched, so that a person who looks cannot
//! disturb anybody. It must not judge: what the numbers mean for the time that is left is core's (`pace`).

use super::directory::Directory;
use super::lease::{self, Driver, Life};
use super::queue::FAILED;
use super::sidecar::{NAME, Sidecar};
use crate::clock;
use crate::error::Failure;
use rustix::fs::FileType;
use std::collections::HashSet;
use std::io::Result;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;
use windlass_core::document::{DONE, Name, Standing, Times};
use windlass_core::pace::{self, Load, Pace};

/// One queue, as it stands.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    pub path: PathBuf,
    pub ready: u64,
    /// Wait for another try.
    pub failed: u64,
    pub working: u64,
    /// Of those, the ones of drivers without a lease.
    pub unleased: u64,
    /// Are being written into it.
    pub writing: u64,
    /// Were given up, and are kept.
    pub aside: u64,
    /// Nothing more will come.
    pub closed: bool,
    pub drivers: Vec<(Driver, Life)>,
    /// What the drivers that are gone have spent.
    pub gone: Times,
    /// Where its output goes, as far as anybody has said.
    pub outputs: Vec<PathBuf>,
    /// There is more than was counted: whoever looked had seen enough.
    pub at_least: bool,
}

/// How many names may still be read, over all directories of a look.
#[derive(Debug)]
pub struct Budget(u64);

impl Budget {
    pub fn of(names: u64) -> Budget {
        Budget(names)
    }

    fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// One name more; breaks where that is one too many.
    fn spend(&mut self) -> ControlFlow<()> {
        if self.is_spent() {
            return ControlFlow::Break(());
        }
        self.0 -= 1;
        ControlFlow::Continue(())
    }
}

/// Queues that belong together, what feeds before what is fed.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub stages: Vec<Stage>,
    /// Which feed which, by place.
    pub to: Vec<Vec<usize>>,
    /// For what is in each and will come to it; none where nobody works.
    pub left: Vec<Option<Duration>>,
}

impl Stage {
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    pub fn waiting(&self) -> u64 {
        self.ready + self.failed
    }

    pub fn count(&self, life: Life) -> u64 {
        self.drivers.iter().filter(|(_, found)| *found == life).count() as u64
    }

    /// Of all drivers that ever were.
    pub fn times(&self) -> Times {
        let mut times = self.gone;
        self.drivers.iter().for_each(|(driver, _)| times.add(&driver.times));
        times
    }

    pub fn pace(&self) -> Pace {
        let living = self.drivers.iter().filter(|(_, life)| *life != Life::Dead);
        Pace::of(living.map(|(driver, _)| &driver.times), &self.times())
    }

    fn look(directory: &Directory, budget: &mut Budget) -> std::result::Result<Stage, Failure> {
        let cannot =
            |e: std::io::Error| Failure::io(format_args!("cannot look into {}", directory.path().display()), &e);
        let mut stage = Stage { path: directory.path().to_owned(), ..Stage::default() };
        if let Some(sidecar) = Sidecar::find(directory)? {
            stage.read(&sidecar).map_err(cannot)?;
        }
        let leased: HashSet<Vec<u8>> =
            stage.drivers.iter().map(|(driver, _)| driver.number.to_string().into_bytes()).collect();
        directory
            .each_name(|file| {
                budget.spend()?;
                stage.count_name(file, &leased);
                ControlFlow::Continue(())
            })
            .map_err(cannot)?;
        if let Some(failed) = directory.existing(FAILED).map_err(cannot)? {
            // What was refused is there under the name it came with.
            failed
                .each_name(|file| {
                    budget.spend()?;
                    stage.aside += u64::from(!file.ends_with(b".reason"));
                    ControlFlow::Continue(())
                })
                .map_err(cannot)?;
        }
        stage.at_least = budget.is_spent();
        Ok(stage)
    }

    fn count_name(&mut self, file: &[u8], leased: &HashSet<Vec<u8>>) {
        self.closed |= file == DONE;
        let Some(name) = Name::of(file) else { return };
        match name.standing {
            Standing::Ready => self.ready += 1,
            Standing::Failed => self.failed += 1,
            Standing::Working { by } => {
                self.working += 1;
                self.unleased += u64::from(!leased.contains(by));
            }
            Standing::Writing { .. } => self.writing += 1,
        }
    }

    fn read(&mut self, sidecar: &Sidecar) -> Result<()> {
        // The file system's own clock would have to be touched; for those who only look the machine's will do.
        let now = clock::now().as_micros().saturating_mul(1000);
        for number in lease::numbers(sidecar)? {
            self.drivers.extend(lease::see(sidecar, number, now)?);
        }
        self.gone = sidecar.times()?;
        let said = self.drivers.iter().filter_map(|(driver, _)| driver.about.output.clone());
        self.outputs = sidecar.noted_outputs()?.unwrap_or_default().into_iter().chain(said).collect();
        self.outputs.sort_unstable();
        self.outputs.dedup();
        Ok(())
    }
}

impl Status {
    /// Looks at these queues; a directory that is none stands for those in it and the ones that they feed. With
    /// `follow` the outputs of all of them are looked at as well.
    pub fn look(paths: &[PathBuf], follow: bool) -> std::result::Result<Status, Failure> {
        Status::look_within(paths, follow, &mut Budget(u64::MAX))
    }

    /// The same, reading no more names than the budget has: what was counted last is a least number then.
    pub fn look_within(paths: &[PathBuf], follow: bool, budget: &mut Budget) -> std::result::Result<Status, Failure> {
        let mut stages: Vec<Stage> = Vec::new();
        for path in paths {
            let (directories, whole) = queues_within(path, budget)?;
            let mut next: Vec<(Directory, bool)> = directories.into_iter().map(|dir| (dir, follow || whole)).collect();
            while let Some((directory, follow)) = next.pop() {
                if stages.iter().any(|stage| stage.path == directory.path()) {
                    continue;
                }
                let stage = Stage::look(&directory, budget)?;
                // An output that is not there any more is no stage.
                let outputs = stage.outputs.iter().filter(|_| follow).filter_map(|path| Directory::open(path).ok());
                next.extend(outputs.map(|directory| (directory, true)));
                stages.push(stage);
            }
        }
        Ok(Status::of(stages))
    }

    fn of(mut stages: Vec<Stage>) -> Status {
        stages.sort_by(|one, other| one.path.cmp(&other.path));
        let depths = pace::depths(&ways(&stages));
        let mut sorted: Vec<(usize, Stage)> = depths.into_iter().zip(stages).collect();
        sorted.sort_by_key(|(depth, _)| *depth);
        let stages: Vec<Stage> = sorted.into_iter().map(|(_, stage)| stage).collect();
        let to = ways(&stages);
        let load = |(stage, to): (&Stage, &Vec<usize>)| {
            let here = stage.waiting() + stage.working;
            Load { here, possible: stage.pace().possible, to: to.clone() }
        };
        let left = pace::time_left(&stages.iter().zip(&to).map(load).collect::<Vec<_>>());
        Status { stages, to, left }
    }

    /// Until the last stage that anybody ever worked on is through; none where one of them stands still.
    pub fn whole_left(&self) -> Option<Duration> {
        let worked = self.stages.iter().zip(&self.left).filter(|(stage, _)| stage.times().documents > 0);
        worked.map(|(_, left)| *left).try_fold(Duration::ZERO, |most, left| left.map(|left| most.max(left)))
    }
}

fn ways(stages: &[Stage]) -> Vec<Vec<usize>> {
    let place = |path: &PathBuf| stages.iter().position(|stage| stage.path == *path);
    stages.iter().map(|stage| stage.outputs.iter().filter_map(place).collect()).collect()
}

/// The queue that a path names, or the queues in it; true for the latter.
pub fn queues(path: &Path) -> std::result::Result<(Vec<Directory>, bool), Failure> {
    queues_within(path, &mut Budget(u64::MAX))
}

fn queues_within(path: &Path, budget: &mut Budget) -> std::result::Result<(Vec<Directory>, bool), Failure> {
    let directory = Directory::open(path)?;
    let cannot = |e: std::io::Error| Failure::io(format_args!("cannot look into {}", path.display()), &e);
    if is_queue(&directory, budget).map_err(cannot)? {
        return Ok((vec![directory], false));
    }
    let mut names = Vec::new();
    directory
        .each_name(|name| {
            budget.spend()?;
            names.extend((!name.starts_with(b".") && name != FAILED.as_bytes()).then(|| name.to_vec()));
            ControlFlow::Continue(())
        })
        .map_err(cannot)?;
    let mut found = Vec::new();
    for name in names {
        let facts = directory.facts(&name).map_err(cannot)?;
        if facts.is_some_and(|facts| facts.kind == FileType::Directory) {
            let inner = Directory::open(&directory.at(&name))?;
            if is_queue(&inner, budget).map_err(cannot)? {
                found.push(inner);
            }
        }
    }
    Ok(if found.is_empty() { (vec![directory], false) } else { (found, true) })
}

/// The same where there is one at all: an empty directory may become anything.
pub(super) fn queues_so_far(path: &Path) -> std::result::Result<(Vec<Directory>, bool), Failure> {
    let budget = &mut Budget(u64::MAX);
    let (mut found, whole) = queues_within(path, budget)?;
    if let [only] = &found[..] {
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot look into {}", path.display()), &e);
        if !is_queue(only, budget).map_err(cannot)? {
            found.clear();
        }
    }
    Ok((found, whole))
}

/// Somebody of ours was here, or something has a document's name.
fn is_queue(directory: &Directory, budget: &mut Budget) -> Result<bool> {
    if directory.has(NAME.as_bytes())? || directory.has(DONE)? {
        return Ok(true);
    }
    let mut found = false;
    directory.each_name(|file| {
        budget.spend()?;
        found = Name::of(file).is_some();
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}
