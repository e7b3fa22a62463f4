//! One driver: takes a document, has it done, settles it, and takes the next, until nothing more comes or it is told to
//! end. It holds one document at a time, under a number of its own.

use super::directory::Directory;
use super::drive::Shared;
use super::handover::Handed;
use super::hands::Hand;
use super::lease::{Doing, Lease};
use super::queue::{Back, Claim, Claimed, NAME_TAKEN};
use super::sidecar;
use super::way::Way;
use crate::error::{Failure, Kind};
use crate::runner::Emitted;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::document::{Settlement, Times, settle};
use windlass_core::job::DATA_MAX;
use windlass_core::outcome::Outcome;
use windlass_core::policy::Service;
use windlass_core::template;

/// An output without room for so many bytes has failed whoever wrote to it.
const FULL_BELOW: usize = 64 << 10;

pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    pub(super) lease: Arc<Lease>,
    pub(super) hand: Hand,
    pub(super) times: Times,
}

impl Driver {
    /// To the end of the work, or until told otherwise.
    pub(super) fn drive(&mut self) -> Result<(), Failure> {
        let place = self.shared.queue.directory.path().display().to_string();
        let output = self.shared.way.output().map(|output| output.directory.path().display());
        let into = output.map(|output| format!(" with output to {output}")).unwrap_or_default();
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot work on {place}{into}"), &e);
        while let Some(file) = self.shared.next(&self.lease, &mut self.times)? {
            self.attempt(&file).map_err(cannot)?;
            if let Some(why) = self.hand.trouble() {
                let text = format!("the command for {place} cannot serve: {why}");
                return Err(Failure::new(Kind::Config, text).hint("no document was charged for it"));
            }
        }
        // What it spent is told to those who come after it.
        self.lease.say(Doing::Own, &self.times).map_err(cannot)
    }

    fn attempt(&mut self, file: &[u8]) -> std::io::Result<()> {
        let begun = Instant::now();
        let extension = self.shared.way.output().map_or("", |output| &output.extension);
        let mut claim = match self.shared.queue.claim(file, &self.lease.by(), extension)? {
            Claimed::Ours(claim) => claim,
            Claimed::Lost => return Ok(()),
            Claimed::Refused(why) => {
                self.shared.count(|counts| counts.aside += 1);
                self.shared.say(format!("set aside {why}"));
                return Ok(());
            }
            Claimed::Left(why) => {
                self.shared.say_of_left(why);
                return Ok(());
            }
        };
        let settled = self.work_on(&mut claim, begun);
        match settled {
            // What was said of this one must not be taken for the next, which may have its inode.
            Ok(()) => self.lease.say(Doing::Own, &self.times),
            Err(error) => {
                if !claim.handed_on {
                    // The error ends the process; what it had goes back first, if that can be done at all. Otherwise it
                    // stays claimed, and whoever takes over knows what has become of it.
                    let _stays = self.leave(&claim);
                }
                Err(error)
            }
        }
    }

    fn work_on(&mut self, claim: &mut Claim, begun: Instant) -> std::io::Result<()> {
        let (used, most) = (claim.tries.used, self.shared.tries);
        if most != 0 && used >= most {
            let why = "it had used up its tries when it was found as failed";
            self.shared.count(|counts| counts.aside += 1);
            self.shared.say(format!("set aside {}: {why}", claim.doc));
            return self.shared.queue.keep_aside(claim, why).map(drop);
        }
        self.lease.say(Doing::Working { input: claim.facts.inode }, &self.times)?;
        let working = Instant::now();
        let (outcome, emitted) = self.have_done(claim);
        let work = working.elapsed();
        let settled = self.settle(claim, outcome, emitted);
        self.times.work += work;
        self.times.overhead += begun.elapsed().saturating_sub(work);
        settled
    }

    /// Gives a document back as it was, of which nothing has been handed on.
    fn leave(&self, claim: &Claim) -> std::io::Result<()> {
        let shared = &self.shared;
        if self.lease.holds() && shared.queue.recall(claim, shared.way.output())?.is_some() {
            return Ok(());
        }
        shared.queue.remove_output(claim, shared.way.output())?;
        self.lease.say(Doing::Own, &self.times)?;
        shared.queue.give_back(claim, None).map(drop)
    }

    /// What became of it, and what it handed on.
    fn have_done(&mut self, claim: &Claim) -> (Outcome, Vec<Emitted>) {
        let data = match self.data_of(claim) {
            Ok(data) => data,
            Err(error) => return (Outcome::FailedForGood { error }, Vec::new()),
        };
        let flight = self.hand.flight();
        if !self.shared.takes_off(flight) {
            return (Outcome::Interrupted, Vec::new());
        }
        let (outcome, mut emitted) = self.hand.have_done(&data, claim.tries.used);
        self.shared.has_landed(flight);
        if let (Outcome::Succeeded { message }, Some(flow)) = (&outcome, &self.shared.policy.flow)
            && let Some(passed) = flow.passes(message, &data)
            && matches!(self.shared.way, Way::Data { .. })
        {
            let to = flow.to.iter().cloned();
            emitted.extend(to.map(|queue| Emitted { by: 0, queue, data: passed.to_vec() }));
        }
        (outcome, emitted)
    }

    /// What the command is given; an error is why it never can be.
    fn data_of(&self, claim: &Claim) -> Result<Vec<u8>, String> {
        let shared = &self.shared;
        let input = shared.queue.directory.at(&claim.file());
        let output = match &shared.way {
            Way::Files { output } => output.as_ref().map(|output| output.directory.at(&claim.writing(output))),
            Way::Data { .. } if claim.facts.size > DATA_MAX as u64 => {
                return Err(format!("it has {} bytes, and the data of a job has {DATA_MAX} at most", claim.facts.size));
            }
            Way::Data { .. } => return shared.queue.read(claim, DATA_MAX),
        };
        let (input, output) = (input.as_os_str().as_bytes(), output.as_ref().map(|path| path.as_os_str().as_bytes()));
        if !matches!(shared.policy.service, Service::Worker(_)) {
            return Ok(template::document(input, output.unwrap_or_default()));
        }
        let paths = [Some(input), output].into_iter().flatten().collect::<Vec<_>>();
        match paths.iter().any(|path| path.contains(&b'\t') || path.contains(&b'\n')) {
            true => Err("its name has a tab or a newline in it, which no line for a kept command can carry".into()),
            false => Ok(paths.join(&b'\t')),
        }
    }

    /// Hands on what it became; an error is why the try has failed.
    fn hand_on(&self, claim: &mut Claim, emitted: Vec<Emitted>) -> std::io::Result<Result<(), String>> {
        let shared = &self.shared;
        let Way::Data { stage, to } = &shared.way else {
            let output = shared.way.output();
            let published = shared.queue.publish(claim, output, &self.lease, &self.times)?;
            return Ok(
                published.map(|size| output.into_iter().for_each(|output| shared.has_grown(&output.directory, size)))
            );
        };
        let mut handed = Vec::new();
        for (number, Emitted { queue, data, .. }) in emitted.into_iter().enumerate() {
            let Some((_, into)) = to.iter().find(|(known, _)| *known == queue) else {
                return Ok(Err(format!("it hands on to {}, and there is no such stage after its own", queue.as_str())));
            };
            handed.push(Handed { into, doc: claim.doc.made_by(stage, number + 1), data });
        }
        shared.queue.hand_over(claim, &handed, &self.lease)?;
        handed.iter().for_each(|handed| shared.has_grown(handed.into, handed.data.len() as u64));
        Ok(Ok(()))
    }

    fn settle(&mut self, claim: &mut Claim, outcome: Outcome, emitted: Vec<Emitted>) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let output = shared.way.output();
        let mut settlement = settle(outcome, claim.tries.used, shared.tries);
        if settlement == Settlement::Done {
            match self.hand_on(claim, emitted)? {
                Ok(()) => {
                    shared.count(|counts| counts.done += 1);
                    self.times.documents += 1;
                    self.times.done += 1;
                    return Ok(());
                }
                Err(error) => settlement = settle(Outcome::Failed { error }, claim.tries.used, shared.tries),
            }
        }
        if self.lease.holds()
            && let Some(why) = shared.queue.recall(claim, output)?
        {
            return self.has_lost(claim, why);
        }
        let by = self.lease.number.to_string();
        let back = match settlement {
            Settlement::Done => Back::InTheQueue,
            Settlement::Back => shared.queue.give_back(claim, output)?,
            // Nor is it a document's fault that its command was given a path that leads nowhere.
            Settlement::Again { .. } | Settlement::Aside { .. } if self.is_misplaced() => {
                shared.queue.give_back(claim, output)?
            }
            // A full disk is nobody's fault, and passes.
            Settlement::Again { .. } | Settlement::Aside { .. } if self.is_full() => {
                let back = shared.queue.give_back(claim, output)?;
                shared.say_once("there is no room left in the output; waiting for some");
                timed(&mut self.times.block, || shared.pause());
                back
            }
            Settlement::Again { error } => {
                self.times.documents += 1;
                shared.count(|counts| counts.failed += 1);
                shared.queue.fail(claim, output, &by, &error)?
            }
            Settlement::Aside { error } => {
                self.times.documents += 1;
                shared.count(|counts| counts.aside += 1);
                let tries = match claim.tries.used + 1 {
                    1 => "1 try".to_owned(),
                    more => format!("{more} tries"),
                };
                shared.say(format!("set aside {} after {tries}: {error}", claim.doc));
                return shared.queue.set_aside(claim, output, &by, &error).map(drop);
            }
        };
        match back {
            Back::InTheQueue => {}
            Back::Aside => {
                shared.count(|counts| counts.aside += 1);
                shared.say(format!("set aside {}: {NAME_TAKEN}", claim.doc));
            }
            // Whoever took it from us has settled it.
            Back::Gone if !self.lease.holds() => {}
            Back::Gone => return self.has_lost(claim, "somebody removed it while it was worked on"),
        }
        Ok(())
    }

    /// The document is not there any more, and nobody of ours has taken it.
    fn has_lost(&mut self, claim: &Claim, why: &str) -> std::io::Result<()> {
        self.times.documents += 1;
        self.shared.count(|counts| counts.gone += 1);
        self.shared.say(format!("{} is gone: {why}", claim.doc));
        self.shared.queue.sidecar.forget(&claim.doc)
    }

    /// Whether a directory was moved away, which ends all drivers.
    fn is_misplaced(&self) -> bool {
        self.shared.are_in_place().map_err(|failure| self.shared.fail(failure)).is_err()
    }

    fn is_full(&self) -> bool {
        let temporary = self.shared.queue.sidecar.temporary();
        let mut outputs = self.shared.way.directories().into_iter();
        // One without the directory of a sidecar is no output of ours any more.
        let sidecar = |output: &Directory| output.existing(sidecar::NAME).ok().flatten();
        outputs.any(|output| sidecar(output).is_some_and(|place| place.is_full_for(FULL_BELOW, &temporary)))
    }
}

/// Adds up how long something took.
pub(super) fn timed<T>(sum: &mut Duration, wait: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = wait();
    *sum += begun.elapsed();
    result
}
