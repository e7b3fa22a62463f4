//! What jobs write: out of their pipes into what is kept of it, and into their files at once where somebody reads
//! along.

use super::{Running, Service};
use crate::runner::Flight;
use crate::runner::launcher::aloud::SAID;
use crate::runner::launcher::control::ControlFiles;
use crate::runner::launcher::output::file_name;
use rustix::io::Errno;
use std::path::Path;
use std::time::Instant;

impl Service {
    /// Somebody reads along. One that has ended already is told with all that it wrote.
    pub(super) fn show(&mut self, flight: Flight) {
        if let Some(task) = self.waiting.iter_mut().find(|task| task.flight == flight) {
            task.in_memory = 0;
        }
        let Some(job) = self.by_flight.get(&flight).and_then(|index| self.jobs[*index].as_mut()) else { return };
        for (capture, stream) in job.captures.iter_mut().zip(["out", "err"]) {
            capture.show(|| self.output.join(file_name(job.task.job, job.task.start, stream)));
        }
    }

    /// What was said too soon after the last words is passed on also where the job is silent from then on.
    pub(super) fn pass_words_on(&mut self) {
        let now = Instant::now();
        while let Some((_, index, generation)) = self.words.first().copied().filter(|(at, ..)| *at <= now) {
            self.words.pop_first();
            let job = self.jobs.get_mut(index).and_then(Option::as_mut);
            if let Some(job) = job.filter(|job| job.generation == generation && !job.ended) {
                self.words.extend(job.pass_on(&self.control).map(|at| (at, index, generation)));
            }
        }
    }
}

impl Running {
    /// One job with a control file, to which its standard output can add.
    fn speaks(&self) -> bool {
        self.task.control.is_some() && self.task.last == self.task.job.offset
    }

    /// Passes on what it has said of itself aloud, or tells when that is due.
    pub(super) fn pass_on(&mut self, control: &ControlFiles) -> Option<Instant> {
        let said = self.aloud.due(Instant::now());
        self.say(control, said);
        self.aloud.due_at()
    }

    /// It has ended: what it said last is passed on now, or never.
    pub(super) fn pass_last_words_on(&mut self, control: &ControlFiles) {
        let said = self.aloud.last();
        self.say(control, said);
    }

    fn say(&mut self, control: &ControlFiles, said: Option<[u8; SAID]>) {
        if let Some((number, said)) = self.task.control.zip(said) {
            // It is only shown; what cannot be written is not.
            let _ = control.say_for(number, &said, &mut self.said_at);
        }
    }
}

/// Takes up to about `most` bytes out of one pipe, or one bufferful. It has no end while we hold it: it is empty.
pub(super) fn read_pipe(job: &mut Running, stream: usize, most: usize, buffer: &mut [u8], output: &Path) {
    let mut taken = 0;
    while taken < most
        && let Some(pipe) = job.pipes.as_ref().and_then(|pipes| pipes[stream].as_ref())
    {
        match rustix::io::read(&pipe.read, &mut *buffer) {
            Err(Errno::INTR) => {}
            // Nothing else can be wrong with a pipe.
            Ok(0) | Err(_) => return,
            Ok(got) => {
                let name = || file_name(job.task.job, job.task.start, ["out", "err"][stream]);
                job.captures[stream].take(&buffer[..got], || output.join(name()));
                if stream == 0 && job.speaks() {
                    job.aloud.hear(&buffer[..got]);
                }
                taken += got;
            }
        }
    }
}
