//! Takes over from dead drivers: what they held goes back, and what they were writing goes away.
//!
//! A driver is dead when its lease says so (`lease`), and then its processes are killed and proven dead as well, where
//! this machine had them. Drivers of other programs that nobody of ours started have no lease: what they hold is left
//! alone, unless somebody says after how long a claim of theirs is given up. It must not touch what a living driver
//! has.

use super::aside::keep_unfinished;
use super::directory::Directory;
use super::hands;
use super::lease::{self, Doing, Driver, Found};
use super::queue::{Output, Queue, TakenBack, Terms};
use super::status::queues;
use super::take::TAKEN;
use super::way::Way;
use crate::error::Failure;
use crate::sabotage::{self, Sabotage};
use crate::when;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Result;
use std::ops::ControlFlow;
use std::time::Duration;
use windlass_core::document::{Name, Standing};

/// Names of files.
type Files = Vec<Vec<u8>>;

/// What was found to be taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    pub drivers: u64,
    /// Documents that wait again.
    pub again: u64,
    /// Documents that had used up their tries.
    pub aside: u64,
    /// Documents whose output had been handed on.
    pub done: u64,
}

impl TakenOver {
    fn count(&mut self, taken: TakenBack) {
        match taken {
            TakenBack::WasDone => self.done += 1,
            TakenBack::Again => self.again += 1,
            TakenBack::Aside => self.aside += 1,
            TakenBack::Gone => {}
        }
    }

    pub fn add(&mut self, other: &TakenOver) {
        self.drivers += other.drivers;
        self.again += other.again;
        self.aside += other.aside;
        self.done += other.done;
    }

    pub fn documents(&self) -> u64 {
        self.again + self.aside + self.done
    }
}

impl fmt::Display for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TakenOver { drivers, again, aside, done } = self;
        let which = if *drivers > 0 {
            format!("took over from dead drivers: {drivers}; of their documents ")
        } else {
            String::new()
        };
        write!(f, "{which}{again} go back to the queue, {aside} are set aside, {done} were done")
    }
}

fn cannot(queue: &Queue) -> impl Fn(std::io::Error) -> Failure + Copy + '_ {
    let place = queue.directory.path();
    move |e| Failure::io(format_args!("cannot take over from dead drivers in {}", place.display()), &e)
}

/// Who takes over, and what it knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Heir<'h> {
    /// Where those wrote that have no word of their own about it.
    pub(super) output: Option<&'h Output>,
    /// Where they may have written under any name.
    pub(super) littered: Vec<&'h Directory>,
    /// How many tries a document has, nought for no end of them.
    pub(super) tries: u32,
    /// Numbers that somebody ended: what they had costs no try.
    pub(super) pardoned: &'h [u32],
}

impl Heir<'_> {
    /// Another driver of the same way.
    pub(super) fn driver(way: &Way, tries: u32) -> Heir<'_> {
        Heir { output: way.output(), littered: way.littered(), tries, pardoned: &[] }
    }
}

impl Heir<'_> {
    /// What a try counts as that a driver did not live to end; none where it was not its document's fault.
    fn charge_of(&self, driver: &Driver) -> Option<String> {
        let blameless = self.pardoned.contains(&driver.number) || driver.about.extension == TAKEN;
        (!blameless).then(|| format!("driver {} on {} died while it had it", driver.number, driver.host))
    }
}

/// Looks at all leases and takes over from the dead.
pub(super) fn take_over(queue: &Queue, heir: &Heir<'_>) -> std::result::Result<TakenOver, Failure> {
    let cannot = cannot(queue);
    let mut dead: HashMap<Vec<u8>, (Driver, File)> = HashMap::new();
    let now = queue.sidecar.clock().map_err(cannot)?;
    for number in lease::numbers(&queue.sidecar).map_err(cannot)? {
        if let Found::Dead(driver, file) = lease::look(&queue.sidecar, number, now).map_err(cannot)? {
            dead.insert(number.to_string().into_bytes(), (driver, file));
        }
    }
    let mut taken = TakenOver::default();
    if dead.is_empty() {
        return Ok(taken);
    }
    for (driver, _) in dead.values().filter(|(driver, _)| driver.here) {
        hands::end_those_of(&driver.about.hands)?;
    }
    let noted = noted_outputs(queue).map_err(cannot)?;
    for number in dead.keys() {
        taken.done += u64::from(queue.complete(number).map_err(cannot)?);
    }
    let (held, worked_on) = held_by(queue, |by| dead.contains_key(by)).map_err(cannot)?;
    for file in &held {
        let Some((name, (driver, lease))) = claimed(file).and_then(|(name, by)| Some((name, dead.get(by)?))) else {
            continue;
        };
        let own = output_of(driver);
        // What it said last may not be what it said last to the disk, if the machine went down.
        let doing = if driver.here { driver.doing } else { Doing::Own };
        let error = heir.charge_of(driver);
        let terms = Terms { most: heir.tries, error: error.as_deref() };
        let disown = || lease::disown(lease, &driver.times);
        taken.count(queue.take_back(name, doing, own.as_ref().or(heir.output), &terms, disown).map_err(cannot)?);
    }
    for (number, (driver, _locked)) in dead {
        // Not before what was handed on is told from what was not.
        match output_of(&driver).filter(|_| !driver.about.hands.as_os_str().is_empty()) {
            Some(output) => {
                let error = heir.charge_of(&driver);
                let terms = Terms { most: heir.tries, error: error.as_deref() };
                clear_output(queue, &output, &number, &driver, &terms, &mut taken).map_err(cannot)?;
            }
            // Nobody can have moved a document into what these were writing, or nobody can tell.
            None => {
                let own = output_of(&driver).map(|output| output.directory);
                let known: Vec<&Directory> = heir.littered.iter().copied().chain(&own).chain(&noted).collect();
                let of_it = |place: &Directory| remove_half_written(place, |_, by| by == number);
                known.iter().try_for_each(|place| of_it(place)).map_err(cannot)?;
                if known.is_empty() {
                    let held: Vec<_> = held.iter().filter_map(|file| claimed(file)).collect();
                    let its = |doc: &[u8]| held.iter().any(|(name, by)| name.document == doc && *by == number);
                    let of_it = |place: &Directory| remove_half_written(place, |doc, by| by == number && its(doc));
                    beside(queue).iter().try_for_each(of_it).map_err(cannot)?;
                }
            }
        }
        queue.sidecar.add_times(&driver.times).map_err(cannot)?;
        queue.sidecar.drivers.remove(&number).map_err(cannot)?;
        taken.drivers += 1;
    }
    let has = |doc: &[u8], standing| queue.directory.has(&Name { document: doc, standing }.file());
    let is_there =
        |doc: &[u8]| Ok(worked_on.contains(doc) || has(doc, Standing::Ready)? || has(doc, Standing::Failed)?);
    queue.sidecar.clear(now, is_there).map_err(cannot)?;
    Ok(taken)
}

/// Where the last driver of ours has said that it writes; one that is not there any more has nothing in it.
fn noted_outputs(queue: &Queue) -> Result<Vec<Directory>> {
    let noted = queue.sidecar.noted_outputs()?.unwrap_or_default();
    Ok(noted.iter().filter_map(|path| Directory::open(path).ok()).collect())
}

/// The queues that stand beside this one. Where nobody has said where a driver writes it may have been there; what has
/// both its leased number and the name of a document that it held is its own.
fn beside(queue: &Queue) -> Vec<Directory> {
    let place = queue.directory.path();
    let found = place.parent().and_then(|parent| queues(parent).ok());
    let (found, _) = found.unwrap_or_default();
    found.into_iter().filter(|found| found.path() != place).collect()
}

/// What a dead driver of ours was writing, now that it holds nothing: a half of an output goes. But its command may
/// have moved its input there, or have removed it, and then this is all that is left of the document.
fn clear_output(
    queue: &Queue,
    output: &Output,
    by: &[u8],
    driver: &Driver,
    terms: &Terms<'_>,
    taken: &mut TakenOver,
) -> Result<()> {
    if sabotage::on(Sabotage::HalfLeft) {
        return Ok(());
    }
    let doing = if driver.here { driver.doing } else { Doing::Own };
    for file in half_written(&output.directory, |_, writer| writer == by)? {
        let Some(Name { document, .. }) = Name::of(&file) else { continue };
        let Some(facts) = output.directory.facts(&file)? else { continue };
        match doing {
            // It is whole and on disk.
            Doing::Publishing { output: made, .. } if made == facts.inode => {
                let ready = Name { document, standing: Standing::Ready }.file();
                output.directory.rename(&file, &output.directory, &ready)?;
                output.directory.sync()?;
                taken.done += 1;
            }
            // On another file system the same number is another file's.
            Doing::Working { input } if input == facts.inode && output.directory.is_beside(&queue.directory)? => {
                let name = Name { document, standing: Standing::Working { by } };
                output.directory.rename_new(&file, &queue.directory, &name.file())?;
                taken.count(queue.take_back(name, Doing::Own, Some(output), terms, || Ok(()))?);
            }
            Doing::Own | Doing::Working { .. } | Doing::Publishing { .. } => match queue.knows(document)? {
                true => drop(output.directory.remove(&file)?),
                false => {
                    keep_unfinished(&output.directory, &file, document)?;
                    taken.aside += 1;
                }
            },
        }
    }
    Ok(())
}

/// Takes back what drivers without a lease have had for longer than `after` and have written nothing of for as long.
pub(super) fn take_back_unleased(
    queue: &Queue,
    heir: &Heir<'_>,
    after: Duration,
) -> std::result::Result<TakenOver, Failure> {
    let cannot = cannot(queue);
    // Whoever claims has a lease before: read after the claims, none of theirs is missing.
    let held = held_by(queue, |_| true).map_err(cannot)?.0;
    let leased: Vec<Vec<u8>> =
        lease::numbers(&queue.sidecar).map_err(cannot)?.iter().map(|number| number.to_string().into_bytes()).collect();
    let is_leased = |by: &[u8]| leased.iter().any(|number| number == by);
    let now = queue.sidecar.clock().map_err(cannot)?;
    let is_old = |time: i64| now.saturating_sub(time) > i64::try_from(after.as_nanos()).unwrap_or(i64::MAX);
    let mut taken = TakenOver::default();
    for file in held {
        let output = heir.output;
        let Some((name, by)) = claimed(&file).filter(|(_, by)| !is_leased(by)) else { continue };
        let Some(facts) = queue.directory.facts(&file).map_err(cannot)? else { continue };
        let writes = |output: &Output| {
            let mut fresh = false;
            let written = half_written(&output.directory, |doc, writer| doc == name.document && writer == by)?;
            for file in &written {
                fresh |= output.directory.facts(file)?.is_some_and(|facts| !is_old(facts.modified));
            }
            Ok::<_, std::io::Error>(fresh)
        };
        if !is_old(facts.changed) || output.map_or(Ok(false), writes).map_err(cannot)? {
            continue;
        }
        let who = String::from_utf8_lossy(by);
        let error = format!("driver {who} of another program had it for longer than {}", when::exact(after));
        let terms = Terms { most: heir.tries, error: Some(&error) };
        if let Some(output) = output {
            remove_half_written(&output.directory, |doc, writer| doc == name.document && writer == by)
                .map_err(cannot)?;
        }
        taken.count(queue.take_back(name, Doing::Own, output, &terms, || Ok(())).map_err(cannot)?);
    }
    Ok(taken)
}

/// Where a driver says that it writes.
fn output_of(driver: &Driver) -> Option<Output> {
    let directory = Directory::open(driver.about.output.as_deref()?).ok()?;
    Some(Output { directory, extension: driver.about.extension.clone() })
}

fn claimed(file: &[u8]) -> Option<(Name<'_>, &[u8])> {
    let name = Name::of(file)?;
    let Standing::Working { by } = name.standing else { return None };
    Some((name, by))
}

/// The names of what these have, read in one go before anything is renamed; and all documents that anybody has.
pub(super) fn held_by(queue: &Queue, theirs: impl Fn(&[u8]) -> bool) -> Result<(Files, HashSet<Vec<u8>>)> {
    let (mut held, mut worked_on) = (Vec::new(), HashSet::new());
    queue.directory.each_name(|file| {
        if let Some((name, by)) = claimed(file) {
            worked_on.insert(name.document.to_vec());
            held.extend(theirs(by).then(|| file.to_vec()));
        }
        ControlFlow::Continue(())
    })?;
    Ok((held, worked_on))
}

/// The names under which something is being written, chosen by document and driver.
fn half_written(output: &Directory, chosen: impl Fn(&[u8], &[u8]) -> bool) -> Result<Files> {
    let mut found = Vec::new();
    output.each_name(|file| {
        if let Some(Name { document, standing: Standing::Writing { by, .. } }) = Name::of(file)
            && chosen(document, by)
        {
            found.push(file.to_vec());
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn remove_half_written(output: &Directory, chosen: impl Fn(&[u8], &[u8]) -> bool) -> Result<()> {
    if sabotage::on(Sabotage::HalfLeft) {
        return Ok(());
    }
    half_written(output, chosen)?.iter().try_for_each(|file| output.remove(file).map(drop))
}
