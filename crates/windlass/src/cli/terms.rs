//! The terms of a run on the command line: the same words for every command that makes one.

use crate::api::{Data, NewEndJob, Terms};
use crate::error::{Failure, Kind};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use windlass_core::notify::Notify;
use windlass_core::run::terms::{RunTerms, Tolerance};

/// What `push`, `run` and `pipeline run` agree on; what is tolerated each of them asks for itself, since `run` judges
/// that when all is over.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Limits {
    /// Of a new run: when so much time has passed, everything of it that has not ended is cancelled
    #[arg(long, value_name = "DURATION")]
    time_limit: Option<String>,
    /// Of a new run: jobs beyond so many, also emitted ones, are not taken in
    #[arg(long, value_name = "N")]
    job_limit: Option<u64>,
    /// Of a new run: a job that announces its end; without DATA it is told what the run came to
    #[arg(long, value_name = "QUEUE[:DATA]")]
    end_job: Option<OsString>,
    /// The channels ([notify.NAME] of the config) that are told how a new run ended, or without one each job
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    notify: Vec<String>,
    /// The ends that are told: failed, succeeded, late; by default failed and late
    #[arg(long, value_name = "END", value_delimiter = ',', requires = "notify")]
    notify_on: Vec<String>,
}

impl Limits {
    /// Who is told.
    pub(super) fn notify(&self) -> Result<Option<Notify>, Failure> {
        let read = Notify::from_words(&self.notify, &self.notify_on);
        let read = read.map_err(|refused| Failure::new(Kind::Usage, refused))?;
        Ok(Some(read).filter(|notify| !notify.channels.is_empty()))
    }

    /// What is left of them where no run is made, and who is told is told of jobs.
    pub(super) fn of_no_run(&self) -> Limits {
        Limits { notify: Vec::new(), notify_on: Vec::new(), ..self.clone() }
    }

    pub(super) fn terms(&self, tolerate: Option<Tolerance>) -> Result<RunTerms, Failure> {
        let Limits { time_limit, job_limit, end_job, notify, notify_on } = self.clone();
        let terms =
            Terms { time_limit, job_limit, tolerate: None, end_job: end_job.map(end_job_of), notify, notify_on };
        let checked = terms.checked().map_err(|refused| Failure::new(Kind::Usage, refused.text))?;
        Ok(RunTerms { tolerate, ..checked })
    }
}

fn end_job_of(text: OsString) -> NewEndJob {
    let mut parts = text.as_bytes().splitn(2, |byte| *byte == b':');
    let queue = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    NewEndJob { queue, priority: 0, data: parts.next().map(Data::new).unwrap_or_default() }
}
