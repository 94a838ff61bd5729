//! Commands for jobs, and how to read them from messages.

mod imported;
pub(crate) mod mapping;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use solehold_sql::inbox::ID_SEPARATOR;

pub use self::{
    imported::ImportedMark,
    mapping::{KindMapping, Mapping, Place},
};
use crate::model::{
    job::{Input, Job, Labels, NewJob},
    pipeline::Pipeline,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CommandKind {
    Create,
    Cancel,
    /// Retry stages that failed or were cancelled.
    Retry,
}

impl CommandKind {
    pub const ALL: [Self; 3] = [Self::Create, Self::Cancel, Self::Retry];

    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Cancel => "CANCEL",
            Self::Retry => "RETRY",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Forwarded")]
pub struct Command {
    pub job_id: String,
    /// The key of its message. Messages of one key are in order, and in one partition.
    pub key: String,
    pub labels: Labels,
    #[serde(rename = "type")]
    pub kind: CommandKind,
    /// The input of the job, for CREATE.
    pub input: Value,
    /// Distinguishes commands of one type for one job, such as a second RETRY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
}

/// A command in mail. An earlier version had two labels as members, and a key made of them.
#[derive(Deserialize)]
struct Forwarded {
    job_id: String,
    key: Option<String>,
    #[serde(default)]
    labels: Labels,
    organization_id: Option<String>,
    match_id: Option<String>,
    #[serde(rename = "type")]
    kind: CommandKind,
    #[serde(default)]
    input: Value,
    command_id: Option<String>,
}

impl From<Forwarded> for Command {
    fn from(given: Forwarded) -> Self {
        let Forwarded { job_id, key, mut labels, organization_id, match_id, kind, input, command_id } = given;
        let former = || Some(format!("{}:{}", organization_id.as_ref()?, match_id.as_ref()?));
        let key = key.or_else(former).unwrap_or_default();
        let former = [("organization_id", organization_id), ("match_id", match_id)];
        labels.extend(former.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Self { job_id, key, labels, kind, input, command_id }
    }
}

impl Command {
    /// Identifies it among commands of its type for its job: the job's id if the command has none.
    pub fn id(&self) -> &str {
        self.command_id.as_deref().unwrap_or(&self.job_id)
    }

    /// Identifies it among commands of its type for all jobs: the job, and its own id unless that is the job's.
    pub fn name(&self) -> String {
        match self.id() {
            id if id == self.job_id => id.to_owned(),
            id => format!("{}{ID_SEPARATOR}{id}", self.job_id),
        }
    }

    /// Why it must not be applied to this job, if its labels or its key differ. Comparing keys alone is not enough,
    /// since labels `a` and `b:c` may make the same key as `a:b` and `c`.
    pub fn mismatch(&self, job: &Job) -> Option<String> {
        if self.labels != job.labels {
            let theirs = list(&job.labels);
            let ours = list(&self.labels);
            return Some(format!("job {} has {theirs}, and this command {ours}", job.id));
        }
        let has_other_key = self.key != job.key;
        has_other_key
            .then(|| format!("job {} has the key {:?}, and this command {:?}", job.id, job.key, self.key))
    }

    pub fn input(&self, pipeline: &Arc<Pipeline>) -> Input {
        match self.kind {
            CommandKind::Create => Input::Create(NewJob {
                id: self.job_id.clone(),
                key: self.key.clone(),
                labels: self.labels.clone(),
                input: Arc::new(self.input.clone()),
                pipeline: pipeline.clone(),
            }),
            CommandKind::Cancel => Input::Cancel,
            CommandKind::Retry => Input::Retry,
        }
    }
}

fn list(labels: &Labels) -> String {
    if labels.is_empty() {
        return "no labels".to_owned();
    }
    let each = labels.iter().map(|(name, value)| format!("{name} {value}"));
    each.collect::<Vec<_>>().join(" and ")
}
