//! Marks that were imported from a system that processed the same commands before.

use solehold_sql::inbox::ID_SEPARATOR;

use super::{Command, CommandKind};

/// The type of a mark that stands for commands of all types.
const ANY: &str = "*";

/// A mark that was imported from the former system: the parts of the processed command that its key contained.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportedMark {
    pub job: Option<String>,
    pub kind: Option<CommandKind>,
    pub command: Option<String>,
}

impl ImportedMark {
    /// The type and the id of the mark in the inbox. A key with only a job stands for the job's CREATE.
    pub fn name(&self) -> (&'static str, String) {
        let kind = self.kind.map(CommandKind::name);
        match (&self.job, &self.command) {
            (Some(job), Some(command)) if job != command => {
                (kind.unwrap_or(ANY), format!("{job}{ID_SEPARATOR}{command}"))
            }
            (Some(job), Some(_)) => (kind.unwrap_or(ANY), job.clone()),
            (Some(job), None) => (kind.unwrap_or(CommandKind::Create.name()), job.clone()),
            (None, command) => {
                (kind.unwrap_or(ANY), format!("{ID_SEPARATOR}{}", command.as_deref().unwrap_or_default()))
            }
        }
    }

    /// The names of all marks by which the former system may have processed this command.
    pub fn names_of(command: &Command) -> Vec<(&'static str, String)> {
        let job = Some(command.job_id.clone());
        let kind = Some(command.kind);
        let mut names = vec![Self { job: job.clone(), kind, command: None }];
        if let Some(id) = &command.command_id {
            for job in [job, None] {
                for kind in [kind, None] {
                    names.push(Self { job: job.clone(), kind, command: Some(id.clone()) });
                }
            }
        }
        names.iter().map(Self::name).collect()
    }

    /// The name of the mark by which the former system has this job.
    pub fn name_of_job(job: &str) -> (&'static str, String) {
        Self { job: Some(job.to_owned()), ..Self::default() }.name()
    }
}
