//! What was asked of the engine, and what each answer may be.
//!
//! A question to an engine that died is unanswered for ever: its job may or may not be there.

use crate::checkers::Seen;
use crate::ledger::Ledger;
use crate::people::People;
use crate::world::{Outcome, World};
use windlass::engine::event::{OperationInfo, Report};
use windlass::store::{Durability, RunInfo, Taken};
use windlass_core::job::{JobId, RunId};

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Push {
        ids: Vec<JobId>,
        durability: Durability,
    },
    OpenRun,
    SealRun,
    AwaitRun(RunId),
    /// With what stood in the inbox then.
    Drained {
        inbox: Vec<JobId>,
    },
    /// With what stood in the inbox then, and how many starts were settled.
    CatchUp {
        inbox: Vec<JobId>,
        settled: usize,
    },
    Amend,
    Reload,
    /// A `windlass run` by its number.
    OpenFeeder(usize),
    Feed {
        feeder: usize,
        ids: Vec<JobId>,
        durability: Durability,
        from: Taken,
        to: Taken,
    },
    Follow(usize),
    SealFeeder(usize),
    /// Overrides, by a name that nobody else has.
    Steer(String),
    /// A bulk operation by its name: one that is done at once, and the steps of one that is staged.
    Operate(u64),
    OpenOperation(u64),
    StageOperation(u64),
    AcceptOperation(u64),
    Operations,
    /// Something that only has to be answered.
    Question,
}

/// What came back, as far as it matters.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Nothing,
    Run(Box<RunInfo>),
    Number(u64),
    Report(Report),
    Operations(Vec<OperationInfo>),
}

pub(crate) type Told = (u64, Result<Said, String>);

impl People {
    /// A question that should have been answered by now.
    pub(crate) fn unanswered(&self, ledger: &Ledger, quiet: bool) -> Option<String> {
        let due = |ask: &&Ask| match ask {
            Ask::AwaitRun(run) => ledger.runs.get(run).is_none_or(|run| run.ended),
            Ask::Drained { .. } => quiet,
            Ask::Push { .. } | Ask::OpenRun | Ask::SealRun | Ask::CatchUp { .. } | Ask::Amend | Ask::Reload => true,
            Ask::OpenFeeder(_) | Ask::Feed { .. } | Ask::Follow(_) | Ask::SealFeeder(_) => true,
            Ask::Steer(_) | Ask::Operate(_) | Ask::OpenOperation(_) | Ask::StageOperation(_) => true,
            Ask::AcceptOperation(_) | Ask::Operations | Ask::Question => true,
        };
        self.asks.values().find(due).map(|ask| format!("{ask:?}"))
    }
}

impl World {
    /// Hears the answers that a turn gave.
    pub(crate) fn people_hear(&mut self, quiet_before: bool) -> Outcome<()> {
        while let Ok((number, answer)) = self.people.ear.try_recv() {
            let Some(ask) = self.people.asks.remove(&number) else { return Err("an answer came twice".into()) };
            match (ask, answer) {
                (Ask::Push { ids, durability }, answer) => self.hear_of_jobs(&ids, durability, answer.is_ok())?,
                (Ask::OpenRun, Ok(Said::Run(info))) => {
                    self.people.runs.push(info.id);
                    self.people.bound.extend((!info.terms.is_empty()).then_some(info.id));
                }
                (Ask::AwaitRun(run), Ok(_)) => {
                    if !self.ledger.runs.get(&run).is_none_or(|run| run.ended) {
                        return Err(format!("{run} was said to have ended and has not"));
                    }
                }
                (Ask::Drained { inbox }, Ok(_)) => {
                    let unread = self.unread(&inbox);
                    self.show(&Seen::Drained { quiet: quiet_before || self.is_quiet(), unread })?;
                }
                (Ask::CatchUp { inbox, settled }, Ok(_)) => {
                    let unread = self.unread(&inbox);
                    self.show(&Seen::CaughtUp { unread, settled })?;
                }
                (Ask::OpenFeeder(feeder), Ok(Said::Run(info))) => self.feeder_opened(feeder, *info),
                (Ask::Feed { feeder, ids, durability, from, to }, answer) => {
                    self.hear_of_jobs(&ids, durability, answer.is_ok())?;
                    self.feeder_fed(feeder, from, to, answer.is_ok())?;
                }
                (Ask::Follow(feeder), Ok(_)) => self.feeder_followed(feeder),
                (Ask::SealFeeder(feeder), Ok(_)) => self.feeder_sealed(feeder),
                (Ask::OpenFeeder(feeder) | Ask::Follow(feeder) | Ask::SealFeeder(feeder), Err(_)) => {
                    self.feeder_refused(feeder);
                }
                (Ask::Steer(by), Ok(_)) => {
                    self.totals.steered += 1;
                    self.show(&Seen::Steered { by: &by })?;
                }
                (Ask::Operate(name) | Ask::AcceptOperation(name), Ok(Said::Report(report))) => {
                    self.operation_done(name, &report)?;
                }
                (Ask::OpenOperation(name), Ok(Said::Number(number))) => self.operation_opened(name, number),
                (Ask::StageOperation(name), Ok(_)) => self.operation_staged(name),
                (
                    Ask::Operate(name)
                    | Ask::OpenOperation(name)
                    | Ask::StageOperation(name)
                    | Ask::AcceptOperation(name),
                    Err(_),
                ) => self.operation_refused(name)?,
                (Ask::Operations, Ok(Said::Operations(listed))) => self.operations_listed(&listed)?,
                (Ask::SealRun | Ask::Amend | Ask::Reload | Ask::Question, _) => {}
                (Ask::OpenRun | Ask::AwaitRun(_) | Ask::Drained { .. } | Ask::CatchUp { .. }, Err(_)) => {}
                (Ask::Steer(_) | Ask::Operations, Err(_)) => {}
                (ask, Ok(said)) => return Err(format!("{ask:?} was answered with {said:?}")),
            }
        }
        self.hear_followed()
    }

    fn unread(&self, inbox: &[JobId]) -> Option<JobId> {
        inbox.iter().find(|id| !self.ledger.jobs.contains_key(id)).copied()
    }

    fn hear_of_jobs(&mut self, ids: &[JobId], durability: Durability, accepted: bool) -> Outcome<()> {
        for id in ids.iter().copied() {
            if !accepted {
                self.show(&Seen::Rejected { id })?;
                continue;
            }
            self.show(&Seen::Accepted { id, durability, at: self.mono })?;
            if !self.ledger.jobs.contains_key(&id) {
                return Err(format!("{id} was answered before it was committed"));
            }
        }
        Ok(())
    }
}
