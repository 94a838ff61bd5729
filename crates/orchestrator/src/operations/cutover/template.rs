//! The form of the former system's keys.

use crate::error::RunError;
use crate::model::{
    command::{CommandKind, ImportedMark},
    limits::ID_BYTES_MAX,
};

/// The longest key that is read: three ids and as much text.
const KEY_BYTES_MAX: usize = 4 * ID_BYTES_MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyField {
    Job,
    Type,
    Command,
}

impl KeyField {
    const ALL: [Self; 3] = [Self::Job, Self::Type, Self::Command];

    fn name(self) -> &'static str {
        match self {
            Self::Job => "job_id",
            Self::Type => "type",
            Self::Command => "command_id",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum KeyPart {
    Text(String),
    Field(KeyField),
}

/// The form of the former system's keys, such as `job:processed:{job_id}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTemplate(Vec<KeyPart>);

/// A `--pattern` that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {fault}")]
pub struct InvalidKeyTemplate {
    text: String,
    fault: TemplateFault,
}

/// What is wrong with a `--pattern`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum TemplateFault {
    #[error("has a {{ that is not closed")]
    NotClosed,
    #[error("has no text between two placeholders, so where one ends is unknown")]
    NoTextBetween,
    #[error("has {{{0}}} twice")]
    Twice(String),
    #[error("identifies no command: add {{job_id}} or {{command_id}}")]
    NoCommand,
    #[error(
        "has {{{0}}}, which does not identify a command; the consumer group already knows up to which offset messages were \
         processed; {KNOWN}"
    )]
    OfMessage(String),
    #[error("has the unknown placeholder {{{0}}}; {KNOWN}")]
    Unknown(String),
}

const KNOWN: &str = "use {job_id}, {command_id} and {type}, the members of a command";

impl From<InvalidKeyTemplate> for RunError {
    fn from(error: InvalidKeyTemplate) -> Self {
        Self::Usage(format!("--pattern: {error}"))
    }
}

/// Why a key is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableKey {
    #[error("the key is not text, or too long")]
    NotText,
    #[error("the parts of the key are not a job id, a command id or a command type")]
    NoCommand,
    #[error("the key is ambiguous: it is unclear where one part ends and the next begins")]
    Ambiguous,
}

impl std::str::FromStr for KeyTemplate {
    type Err = InvalidKeyTemplate;

    fn from_str(text: &str) -> Result<Self, InvalidKeyTemplate> {
        Self::parse(text).map_err(|fault| InvalidKeyTemplate { text: text.to_owned(), fault })
    }
}

impl KeyTemplate {
    fn parse(text: &str) -> Result<Self, TemplateFault> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or(TemplateFault::NotClosed)?;
            if before.is_empty() && matches!(parts.last(), Some(KeyPart::Field(_))) {
                return Err(TemplateFault::NoTextBetween);
            }
            if !before.is_empty() {
                parts.push(KeyPart::Text(before.to_owned()));
            }
            let field = KeyField::ALL.into_iter().find(|field| field.name() == name);
            let field = KeyPart::Field(field.ok_or_else(|| match name {
                "offset" | "partition" | "topic" => TemplateFault::OfMessage(name.to_owned()),
                name => TemplateFault::Unknown(name.to_owned()),
            })?);
            if parts.contains(&field) {
                return Err(TemplateFault::Twice(name.to_owned()));
            }
            parts.push(field);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(KeyPart::Text(rest.to_owned()));
        }
        let names = |field| parts.contains(&KeyPart::Field(field));
        if !names(KeyField::Job) && !names(KeyField::Command) {
            return Err(TemplateFault::NoCommand);
        }
        Ok(Self(parts))
    }

    /// The pattern by which Redis finds the keys.
    pub fn glob(&self) -> String {
        let part = |part: &KeyPart| match part {
            KeyPart::Text(text) => escape(text),
            KeyPart::Field(_) => "*".to_owned(),
        };
        self.0.iter().map(part).collect()
    }

    /// The command that a key stands for.
    pub fn read(&self, key: &[u8]) -> Result<ImportedMark, UnreadableKey> {
        let Some(key) = std::str::from_utf8(key).ok().filter(|key| key.len() <= KEY_BYTES_MAX) else {
            return Err(UnreadableKey::NotText);
        };
        let mut found = Vec::new();
        read(&self.0, key, ImportedMark::default(), &mut found);
        match found.len() {
            0 => Err(UnreadableKey::NoCommand),
            1 => Ok(found.remove(0)),
            _ => Err(UnreadableKey::Ambiguous),
        }
    }

    /// The key of a command. None if the key needs an id that the command does not have, or if it would equal the key
    /// of the job's CREATE.
    pub fn key(&self, kind: CommandKind, job: &str, command: Option<&str>) -> Option<String> {
        let has = |field| self.0.contains(&KeyPart::Field(field));
        if kind != CommandKind::Create && !has(KeyField::Type) && !has(KeyField::Command) {
            return None;
        }
        let part = |part: &KeyPart| match part {
            KeyPart::Text(text) => Some(text.clone()),
            KeyPart::Field(KeyField::Job) => Some(job.to_owned()),
            KeyPart::Field(KeyField::Type) => Some(kind.name().to_owned()),
            KeyPart::Field(KeyField::Command) => command.map(str::to_owned),
        };
        self.0.iter().map(part).collect()
    }
}

/// Finds the ways to read the rest of a key, at most two.
fn read(parts: &[KeyPart], rest: &str, mark: ImportedMark, found: &mut Vec<ImportedMark>) {
    let Some((part, after)) = parts.split_first() else {
        if rest.is_empty() && found.len() < 2 {
            found.push(mark);
        }
        return;
    };
    let field = match part {
        KeyPart::Text(text) => {
            if let Some(rest) = rest.strip_prefix(text.as_str()) {
                read(after, rest, mark, found);
            }
            return;
        }
        KeyPart::Field(field) => *field,
    };
    let ends: Vec<usize> = match after.first() {
        Some(KeyPart::Text(text)) => (0..=rest.len())
            .filter(|end| rest.get(*end..).is_some_and(|rest| rest.starts_with(text)))
            .collect(),
        _ => vec![rest.len()],
    };
    for end in ends {
        let mut mark = mark.clone();
        let (value, rest) = rest.split_at(end);
        let is_id = !value.is_empty() && value.len() <= ID_BYTES_MAX && !value.chars().any(char::is_control);
        let kind = CommandKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(value));
        match field {
            KeyField::Job if is_id => mark.job = Some(value.to_owned()),
            KeyField::Command if is_id => mark.command = Some(value.to_owned()),
            KeyField::Type if kind.is_some() => mark.kind = kind,
            _ => continue,
        }
        read(after, rest, mark, found);
    }
}

/// Escapes the wildcards of Redis.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if "*?[]\\^".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{command::Command, job::Labels};

    fn template(text: &str) -> KeyTemplate {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn names(form: &str, key: &str) -> Result<(&'static str, String), UnreadableKey> {
        template(form).read(key.as_bytes()).map(|mark| mark.name())
    }

    fn command(kind: CommandKind, job: &str, id: Option<&str>) -> Command {
        Command {
            job_id: job.to_owned(),
            key: job.to_owned(),
            labels: Labels::default(),
            kind,
            input: serde_json::Value::Null,
            command_id: id.map(str::to_owned),
        }
    }

    #[test]
    fn a_key_identifies_the_command_that_was_processed() {
        let plain = "job:processed:{job_id}";
        assert_eq!(template(plain).glob(), "job:processed:*");
        assert_eq!(names(plain, "job:processed:a:1"), Ok(("CREATE", "a:1".to_owned())));
        assert!(names(plain, "job:processed:").is_err() && names(plain, "job:begun:a").is_err());
        assert_eq!(names("done/{type}/{job_id}", "done/cancel/a"), Ok(("CANCEL", "a".to_owned())));
        assert!(names("done/{type}/{job_id}", "done/stop/a").is_err());
        assert_eq!(names("m:{command_id}", "m:c-1"), Ok(("*", "\u{1f}c-1".to_owned())));
        assert_eq!(names("{job_id}|{command_id}", "a|c"), Ok(("*", "a\u{1f}c".to_owned())));
        assert_eq!(names("{job_id}:{command_id}", "a:b:c"), Err(UnreadableKey::Ambiguous));
        assert_eq!(names("{job_id}:{type}", "a:b:RETRY"), Ok(("RETRY", "a:b".to_owned())));
        assert!(template(plain).read(b"job:processed:\xff").is_err());
        assert_eq!(template("a[b]*{job_id}").glob(), "a\\[b\\]\\**");
    }

    #[test]
    fn a_template_that_identifies_no_command_is_rejected() {
        for (form, message) in [
            ("processed:{offset}", "does not identify a command"),
            (
                "processed:{message_id}",
                "unknown placeholder {message_id}; use {job_id}, {command_id} and {type}",
            ),
            ("processed", "add {job_id} or {command_id}"),
            ("{type}", "add {job_id} or {command_id}"),
            ("{job_id}{type}", "no text between two placeholders"),
            ("{job_id}:{job_id}", "twice"),
            ("p:{job_id", "not closed"),
        ] {
            let error = form.parse::<KeyTemplate>().expect_err(form);
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn a_mark_is_found_by_the_command_that_its_key_was_written_for() {
        let commands = [
            command(CommandKind::Create, "a", None),
            command(CommandKind::Cancel, "a", None),
            command(CommandKind::Retry, "a", Some("c-1")),
            command(CommandKind::Retry, "a", Some("c-2")),
        ];
        for form in ["p:{job_id}", "p:{type}:{job_id}", "p:{command_id}", "p:{job_id}/{command_id}"] {
            for of in &commands {
                let Some(key) = template(form).key(of.kind, &of.job_id, of.command_id.as_deref()) else {
                    continue;
                };
                let name = template(form).read(key.as_bytes()).expect("a key").name();
                assert!(ImportedMark::names_of(of).contains(&name), "{form} {key} {name:?}");
                let others = commands.iter().filter(|other| other.kind != of.kind);
                for other in others {
                    assert!(
                        !ImportedMark::names_of(other).contains(&name),
                        "{form} {key} {name:?} {other:?}"
                    );
                }
            }
        }
        assert_eq!(template("p:{job_id}").key(CommandKind::Cancel, "a", None), None);
        assert_eq!(template("p:{command_id}").key(CommandKind::Create, "a", None), None);
    }
}
