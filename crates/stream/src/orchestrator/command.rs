//! What a job command says.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use solehold_sql::inbox::ID_SEPARATOR;

use super::{
    job::{Input, Job, NewJob, key},
    limits::{COMMAND_BYTES_MAX, ID_BYTES_MAX, SHOWN_CHARS_MAX},
    pipeline::Pipeline,
};
use crate::kafka::{Failure, Message};

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

/// A job command. Members that are not named here are let through and ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// The job.
    pub job_id: String,
    /// Whose it is.
    pub organization_id: String,
    /// What it is about.
    pub match_id: String,
    /// What is asked for.
    #[serde(rename = "type")]
    pub kind: CommandKind,
    /// What the job works on, for CREATE.
    #[serde(default)]
    pub input: Value,
    /// Tells apart commands of one type for one job, such as a second RETRY; the job's id if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
}

impl Command {
    /// Reads a message.
    pub fn of(message: &Message) -> Result<Self, Failure> {
        let Some(payload) = &message.payload else {
            return Err(Failure::Poison("the message is empty (a tombstone): a command is JSON".to_owned()));
        };
        let command = Self::parse(payload).map_err(Failure::Poison)?;
        let given = message.key.as_deref();
        if given != Some(command.key().as_bytes()) {
            let given = given.map(String::from_utf8_lossy);
            let given =
                given.map_or_else(|| "no key".to_owned(), |given| format!("the key {}", shown(&given)));
            return Err(Failure::Poison(format!(
                "the message has {given}; its key must be organization_id:match_id, {:?}, so that commands stay in order",
                command.key()
            )));
        }
        Ok(command)
    }

    /// Reads what a message says.
    pub fn parse(payload: &[u8]) -> Result<Self, String> {
        if payload.len() > COMMAND_BYTES_MAX {
            return Err(format!("the command has {} bytes, more than {COMMAND_BYTES_MAX}", payload.len()));
        }
        let text =
            std::str::from_utf8(payload).map_err(|error| format!("this is not a job command: {error}"))?;
        let command: Self =
            serde_json::from_str(text).map_err(|error| format!("this is not a job command: {error}"))?;
        let ids = [
            ("job_id", Some(&command.job_id)),
            ("organization_id", Some(&command.organization_id)),
            ("match_id", Some(&command.match_id)),
            ("command_id", command.command_id.as_ref()),
        ];
        for (what, id) in ids {
            let Some(id) = id else { continue };
            if id.is_empty() || id.len() > ID_BYTES_MAX || id.chars().any(char::is_control) {
                let wanted = format!("1 to {ID_BYTES_MAX} bytes without control characters");
                return Err(format!("{what} {} will not do: use {wanted}", shown(id)));
            }
        }
        Ok(command)
    }

    /// The key of its messages.
    pub fn key(&self) -> String {
        key(&self.organization_id, &self.match_id)
    }

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

    /// Why it may do nothing to this job, if it may not: it is of another organization or match. Comparing their keys
    /// would not do, since match `b:c` of organization `a` and match `c` of organization `a:b` have the same.
    pub fn not_for(&self, job: &Job) -> Option<String> {
        let (ours, theirs) = ((&self.organization_id, &self.match_id), (&job.organization_id, &job.match_id));
        (ours != theirs).then(|| {
            format!(
                "job {} is of organization {} and match {}, not of organization {} and match {}",
                job.id, theirs.0, theirs.1, ours.0, ours.1
            )
        })
    }

    /// What it is for a job.
    pub fn input(&self, pipeline: &Arc<Pipeline>) -> Input {
        match self.kind {
            CommandKind::Create => Input::Create(NewJob {
                id: self.job_id.clone(),
                organization_id: self.organization_id.clone(),
                match_id: self.match_id.clone(),
                input: Arc::new(self.input.clone()),
                pipeline: pipeline.clone(),
            }),
            CommandKind::Cancel => Input::Cancel,
            CommandKind::Retry => Input::Retry,
        }
    }
}

/// The beginning of an id or a key, quoted, with its length if there is more.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(key: Option<&str>, payload: &str) -> Message {
        Message {
            topic: "t".into(),
            partition: 0,
            offset: 0,
            key: key.map(|key| key.to_owned().into_bytes().into()),
            payload: Some(payload.to_owned().into_bytes().into()),
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    #[test]
    fn what_is_wrong_with_a_command_is_said() {
        let good =
            json!({"job_id": "j", "organization_id": "o", "match_id": "m", "type": "CREATE", "more": 1});
        let command = Command::of(&message(Some("o:m"), &good.to_string())).expect("good");
        assert_eq!((command.kind, command.id(), &command.input), (CommandKind::Create, "j", &Value::Null));
        let told = |key, payload: &str| Command::of(&message(key, payload)).expect_err("poison").to_string();
        assert!(
            told(None, &good.to_string())
                .contains("has no key; its key must be organization_id:match_id, \"o:m\"")
        );
        assert!(told(Some("o:x"), &good.to_string()).contains("the key \"o:x\""));
        assert!(told(Some("o:m"), "{").starts_with("this is not a job command: EOF"));
        assert!(told(Some("o:m"), "{}").contains("missing field `job_id`"));
        let odd = good.to_string().replace("CREATE", "STOP");
        assert!(
            told(Some("o:m"), &odd)
                .contains("unknown variant `STOP`, expected one of `CREATE`, `CANCEL`, `RETRY`")
        );
        let odd = good.to_string().replace("\"j\"", "\"\"");
        assert!(told(Some("o:m"), &odd).contains("job_id \"\" will not do"));
        let tombstone = Message { payload: None, ..message(Some("o:m"), "") };
        assert!(Command::of(&tombstone).is_err());
    }
}
