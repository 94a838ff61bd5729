//! What a job command says.

pub(super) mod mapping;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use solehold_sql::inbox::ID_SEPARATOR;

pub use self::mapping::{KindMapping, Mapping, Place};
use super::{
    job::{Input, Job, NewJob},
    pipeline::Pipeline,
};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CommandKind {
    /// A new job.
    Create,
    /// A job that is no longer wanted.
    Cancel,
    /// Another attempt at what failed or was cancelled.
    Retry,
}

impl CommandKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Create, Self::Cancel, Self::Retry];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Cancel => "CANCEL",
            Self::Retry => "RETRY",
        }
    }
}

/// What is kept with a job and compared with its later commands, by name.
pub type Labels = BTreeMap<String, String>;

/// A job command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Forwarded")]
pub struct Command {
    /// The job.
    pub job_id: String,
    /// The key of its message: what has the same key is in order, and in one partition.
    pub key: String,
    /// What the job is about, and whose it is.
    pub labels: Labels,
    /// What is asked for.
    #[serde(rename = "type")]
    pub kind: CommandKind,
    /// What the job works on, for CREATE.
    pub input: Value,
    /// Tells apart commands of one type for one job, such as a second RETRY; the job's id if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
}

/// A command in mail. An earlier version had two labels, each a member, and a key that was made of them.
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
    /// What tells it apart from other commands of its type for its job.
    pub fn id(&self) -> &str {
        self.command_id.as_deref().unwrap_or(&self.job_id)
    }

    /// What names it among the commands of its type for all jobs: the job, and its own id unless that is the job's.
    pub fn name(&self) -> String {
        match self.id() {
            id if id == self.job_id => id.to_owned(),
            id => format!("{}{ID_SEPARATOR}{id}", self.job_id),
        }
    }

    /// Why it may do nothing to this job, if it may not: its labels or its key are not those of the job. Comparing keys
    /// alone would not do, since labels `a` and `b:c` may make the same key as `a:b` and `c`.
    pub fn not_for(&self, job: &Job) -> Option<String> {
        if self.labels != job.labels {
            let (theirs, ours) = (list(&job.labels), list(&self.labels));
            return Some(format!("job {} has {theirs}, and this command {ours}", job.id));
        }
        let (theirs, ours) = (&job.key, &self.key);
        (ours != theirs).then(|| format!("job {} has the key {theirs:?}, and this command {ours:?}", job.id))
    }

    /// What it is for a job.
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

/// Labels for people.
fn list(labels: &Labels) -> String {
    if labels.is_empty() {
        return "no labels".to_owned();
    }
    let each = labels.iter().map(|(name, value)| format!("{name} {value}"));
    each.collect::<Vec<_>>().join(" and ")
}
