//! How the other system names its keys.

use solehold_sql::inbox::ID_SEPARATOR;

use crate::{
    command::{Command, CommandKind},
    limits::ID_BYTES_MAX,
};

/// The longest key that is looked at: three ids and as much text.
const KEY_BYTES_MAX: usize = 4 * ID_BYTES_MAX;
/// In the place of a type, of a mark that is for commands of all types.
const ANY: &str = "*";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Job,
    Type,
    Command,
}

impl Field {
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
enum Part {
    Text(String),
    Field(Field),
}

/// The form of the other system's keys, such as `job:processed:{job_id}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTemplate(Vec<Part>);

/// What a key of the other system says: which command it has processed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Former {
    job: Option<String>,
    kind: Option<CommandKind>,
    command: Option<String>,
}

impl Former {
    /// The type and the id of its mark. A key that names only the job is for the job's CREATE: it tells that the other
    /// system has the job.
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

    /// The names of all marks that would say that the other system has processed this command.
    pub fn names_of(command: &Command) -> Vec<(&'static str, String)> {
        let (job, kind) = (Some(command.job_id.clone()), Some(command.kind));
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

    /// The name of the mark that says that the other system has this job.
    pub fn name_of_job(job: &str) -> (&'static str, String) {
        Self { job: Some(job.to_owned()), ..Self::default() }.name()
    }
}

impl std::str::FromStr for KeyTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else {
                return Err(format!("{text:?} has a {{ that is not closed"));
            };
            if before.is_empty() && matches!(parts.last(), Some(Part::Field(_))) {
                return Err(format!(
                    "{text:?} has nothing between two placeholders: where one ends cannot be seen"
                ));
            }
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let field = Part::Field(field(text, name)?);
            if parts.contains(&field) {
                return Err(format!("{text:?} has {{{name}}} twice"));
            }
            parts.push(field);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        let names = |field| parts.contains(&Part::Field(field));
        if !names(Field::Job) && !names(Field::Command) {
            return Err(format!("{text:?} names no command: it must have {{job_id}} or {{command_id}}"));
        }
        Ok(Self(parts))
    }
}

fn field(text: &str, name: &str) -> Result<Field, String> {
    if let Some(field) = Field::ALL.into_iter().find(|field| field.name() == name) {
        return Ok(field);
    }
    let known = "use {job_id}, {command_id} and {type}, the members of a command";
    Err(match name {
        "offset" | "partition" | "topic" => format!(
            "{text:?} has {{{name}}}: where a message stood does not name its command, and what was processed up to an \
             offset is known from the consumer group; {known}"
        ),
        name => format!("{text:?} has {{{name}}}, which is not known; {known}"),
    })
}

impl KeyTemplate {
    /// The pattern by which Redis finds the keys.
    pub fn glob(&self) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => escape(text),
            Part::Field(_) => "*".to_owned(),
        };
        self.0.iter().map(part).collect()
    }

    /// What a key says, or why it says nothing that is understood.
    pub fn read(&self, key: &[u8]) -> Result<Former, &'static str> {
        let Some(key) = std::str::from_utf8(key).ok().filter(|key| key.len() <= KEY_BYTES_MAX) else {
            return Err("it is no text, or too long");
        };
        let mut found = Vec::new();
        read(&self.0, key, Former::default(), &mut found);
        match found.len() {
            0 => Err("its parts are not a job's id, a command's id or a type of commands"),
            1 => Ok(found.remove(0)),
            _ => Err("where one part ends and the next begins can be understood in more than one way"),
        }
    }

    /// The key of a command; none if the key would have to say what the command does not, or if it is not the job's
    /// CREATE and the key could not tell the two apart.
    pub fn key(&self, kind: CommandKind, job: &str, command: Option<&str>) -> Option<String> {
        let has = |field| self.0.contains(&Part::Field(field));
        if kind != CommandKind::Create && !has(Field::Type) && !has(Field::Command) {
            return None;
        }
        let part = |part: &Part| match part {
            Part::Text(text) => Some(text.clone()),
            Part::Field(Field::Job) => Some(job.to_owned()),
            Part::Field(Field::Type) => Some(kind.name().to_owned()),
            Part::Field(Field::Command) => command.map(str::to_owned),
        };
        self.0.iter().map(part).collect()
    }
}

/// Every way of reading the rest of a key, two at most.
fn read(parts: &[Part], rest: &str, former: Former, found: &mut Vec<Former>) {
    let Some((part, after)) = parts.split_first() else {
        if rest.is_empty() && found.len() < 2 {
            found.push(former);
        }
        return;
    };
    let field = match part {
        Part::Text(text) => {
            if let Some(rest) = rest.strip_prefix(text.as_str()) {
                read(after, rest, former, found);
            }
            return;
        }
        Part::Field(field) => *field,
    };
    let ends: Vec<usize> = match after.first() {
        Some(Part::Text(text)) => (0..=rest.len())
            .filter(|end| rest.get(*end..).is_some_and(|rest| rest.starts_with(text)))
            .collect(),
        _ => vec![rest.len()],
    };
    for end in ends {
        let mut former = former.clone();
        let (value, rest) = rest.split_at(end);
        let is_id = !value.is_empty() && value.len() <= ID_BYTES_MAX && !value.chars().any(char::is_control);
        let kind = CommandKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(value));
        match field {
            Field::Job if is_id => former.job = Some(value.to_owned()),
            Field::Command if is_id => former.command = Some(value.to_owned()),
            Field::Type if kind.is_some() => former.kind = kind,
            _ => continue,
        }
        read(after, rest, former, found);
    }
}

/// A text of which Redis takes no character for a wildcard.
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
    use crate::command::Labels;

    fn template(text: &str) -> KeyTemplate {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn names(form: &str, key: &str) -> Result<(&'static str, String), &'static str> {
        template(form).read(key.as_bytes()).map(|former| former.name())
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
    fn a_key_says_which_command_was_processed() {
        let plain = "job:processed:{job_id}";
        assert_eq!(template(plain).glob(), "job:processed:*");
        assert_eq!(names(plain, "job:processed:a:1"), Ok(("CREATE", "a:1".to_owned())));
        assert!(names(plain, "job:processed:").is_err() && names(plain, "job:begun:a").is_err());
        assert_eq!(names("done/{type}/{job_id}", "done/cancel/a"), Ok(("CANCEL", "a".to_owned())));
        assert!(names("done/{type}/{job_id}", "done/stop/a").is_err());
        assert_eq!(names("m:{command_id}", "m:c-1"), Ok(("*", "\u{1f}c-1".to_owned())));
        assert_eq!(names("{job_id}|{command_id}", "a|c"), Ok(("*", "a\u{1f}c".to_owned())));
        let twofold = names("{job_id}:{command_id}", "a:b:c").expect_err("two ways");
        assert!(twofold.contains("more than one way"), "{twofold}");
        assert_eq!(names("{job_id}:{type}", "a:b:RETRY"), Ok(("RETRY", "a:b".to_owned())));
        assert!(template(plain).read(b"job:processed:\xff").is_err());
        assert_eq!(template("a[b]*{job_id}").glob(), "a\\[b\\]\\**");
    }

    #[test]
    fn a_form_that_cannot_name_a_command_is_refused() {
        for (form, told) in [
            ("processed:{offset}", "known from the consumer group"),
            (
                "processed:{message_id}",
                "{message_id}, which is not known; use {job_id}, {command_id} and {type}",
            ),
            ("processed", "it must have {job_id} or {command_id}"),
            ("{type}", "it must have {job_id} or {command_id}"),
            ("{job_id}{type}", "nothing between two placeholders"),
            ("{job_id}:{job_id}", "twice"),
            ("p:{job_id", "not closed"),
        ] {
            let error = form.parse::<KeyTemplate>().expect_err(form);
            assert!(error.contains(told), "{error}");
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
                assert!(Former::names_of(of).contains(&name), "{form} {key} {name:?}");
                let others = commands.iter().filter(|other| other.kind != of.kind);
                for other in others {
                    assert!(!Former::names_of(other).contains(&name), "{form} {key} {name:?} {other:?}");
                }
            }
        }
        assert_eq!(template("p:{job_id}").key(CommandKind::Cancel, "a", None), None);
        assert_eq!(template("p:{command_id}").key(CommandKind::Create, "a", None), None);
    }
}
