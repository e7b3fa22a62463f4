//! The way of a document: what its command is given, and where what it becomes goes.

use super::directory::Directory;
use super::queue::Output;
use crate::error::Failure;
use std::path::PathBuf;
use windlass_core::job::QueueName;

/// What a queue's documents are to their command, by paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Files: the command reads one and writes another. None where nothing comes out.
    Files { output: Option<PathBuf> },
    /// Data of a job, as in any other queue; what the job hands on to a stage becomes documents there.
    Data { stage: String, to: Vec<(QueueName, PathBuf)> },
}

/// The same, with the directories open.
#[derive(Clone, Debug)]
pub(super) enum Way {
    Files { output: Option<Output> },
    Data { stage: String, to: Vec<(QueueName, Directory)> },
}

impl Way {
    pub(super) fn open(task: &Task, extension: &str) -> std::result::Result<Way, Failure> {
        match task {
            Task::Files { output } => {
                let open = |path: &PathBuf| {
                    Directory::make(path).map(|directory| Output { directory, extension: extension.to_owned() })
                };
                Ok(Way::Files { output: output.as_ref().map(open).transpose()? })
            }
            Task::Data { stage, to } => {
                let open = |(queue, path): &(QueueName, PathBuf)| Ok((queue.clone(), Directory::make(path)?));
                Ok(Way::Data {
                    stage: stage.clone(),
                    to: to.iter().map(open).collect::<std::result::Result<_, Failure>>()?,
                })
            }
        }
    }

    /// The one output of a command that writes a file.
    pub(super) fn output(&self) -> Option<&Output> {
        match self {
            Way::Files { output } => output.as_ref(),
            Way::Data { .. } => None,
        }
    }

    /// Where anything may go.
    pub(super) fn directories(&self) -> Vec<&Directory> {
        match self {
            Way::Files { output } => output.iter().map(|output| &output.directory).collect(),
            Way::Data { to, .. } => to.iter().map(|(_, directory)| directory).collect(),
        }
    }

    /// Where a dead driver may have left what it was writing under any name.
    pub(super) fn littered(&self) -> Vec<&Directory> {
        match self {
            // The one name under which a file is written goes with its document.
            Way::Files { .. } => Vec::new(),
            Way::Data { .. } => self.directories(),
        }
    }
}
