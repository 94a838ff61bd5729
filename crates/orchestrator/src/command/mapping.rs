//! Where the parts of a command are in its message, as the file says.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{Deserializer, Error, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};

use super::{Command, CommandKind, Labels};
use crate::{
    limits::{COMMAND_BYTES_MAX, COMMAND_KEY_BYTES_MAX, ID_BYTES_MAX, SHOWN_CHARS_MAX},
    path::Path,
    template::Text,
};
use solehold_kafka::{Failure, Message};

/// Where the parts of a command are.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapping {
    /// The job.
    pub job_id: Path,
    /// What tells apart commands of one type for one job.
    pub command_id: Path,
    /// What is asked for.
    pub kind: KindMapping,
    /// What the job works on. If nothing is said: the member `input`, or the whole message if it has none.
    pub input: Option<Place<Value>>,
    /// What is kept with the job, and compared with later commands.
    pub labels: BTreeMap<String, Place<String>>,
    /// The key that messages must have. If nothing is said: any, but all messages of a job the same.
    pub key: Option<Text>,
}

/// Where a value is, and what it is in a message that has none.
#[derive(Debug, Clone, PartialEq)]
pub struct Place<T> {
    /// Where.
    pub path: Path,
    /// Unless this is given, every message must have one.
    pub default: Option<T>,
}

/// Where a message says what is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct KindMapping {
    /// Where, and what a message asks for that does not say it.
    pub place: Place<CommandKind>,
    /// What its values mean.
    pub values: BTreeMap<String, CommandKind>,
}

impl KindMapping {
    /// The names that commands have in this documentation.
    pub fn own_values() -> BTreeMap<String, CommandKind> {
        CommandKind::ALL.into_iter().map(|kind| (kind.name().to_owned(), kind)).collect()
    }
}

impl Default for Mapping {
    fn default() -> Self {
        let member = |name: &str| Path::member(name);
        Self {
            job_id: member("job_id"),
            command_id: member("command_id"),
            kind: KindMapping {
                place: Place { path: member("type"), default: Some(CommandKind::Create) },
                values: KindMapping::own_values(),
            },
            input: None,
            labels: BTreeMap::new(),
            key: None,
        }
    }
}

impl Mapping {
    /// Reads a message.
    pub fn read(&self, message: &Message) -> Result<Command, Failure> {
        self.parse(message.payload.as_deref(), message.key.as_deref()).map_err(Failure::Poison)
    }

    /// Reads what a message with this key says.
    pub fn parse(&self, payload: Option<&[u8]>, key: Option<&[u8]>) -> Result<Command, String> {
        let payload = payload.ok_or("the message is empty (a tombstone): a command is JSON")?;
        if payload.len() > COMMAND_BYTES_MAX {
            return Err(format!("the command has {} bytes, more than {COMMAND_BYTES_MAX}", payload.len()));
        }
        let not_json = |error: &dyn fmt::Display| format!("this is not a job command: {error}");
        let text = std::str::from_utf8(payload).map_err(|error| not_json(&error))?;
        let Object(members) = serde_json::from_str(text).map_err(|error| not_json(&error))?;
        let message = Value::Object(members);
        let job_id = id("job_id", &self.job_id, &message)?;
        let job_id = job_id.ok_or_else(|| missing("job_id", &self.job_id))?;
        let command_id = id("command_id", &self.command_id, &message)?;
        let kind = self.kind(&message)?;
        let labels = self.labels(&message)?;
        let key = self.key(key, &job_id, &labels)?;
        let input = match kind {
            CommandKind::Create => self.input(message)?,
            CommandKind::Cancel | CommandKind::Retry => Value::Null,
        };
        Ok(Command { job_id, key, labels, kind, input, command_id })
    }

    fn kind(&self, message: &Value) -> Result<CommandKind, String> {
        let KindMapping { place, values } = &self.kind;
        let said = match place.path.find(message) {
            None | Some(Value::Null) => return place.default.ok_or_else(|| missing("type", &place.path)),
            Some(said) => said,
        };
        let name = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
        values.get(&name).copied().ok_or_else(|| {
            let known = values.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("invalid {}: it must be one of {known}", named("type", &place.path, &name))
        })
    }

    fn labels(&self, message: &Value) -> Result<Labels, String> {
        let label = |(name, place): (&String, &Place<String>)| {
            let field = format!("labels.{name}");
            let value = id(&field, &place.path, message)?.or_else(|| place.default.clone());
            Ok((name.clone(), value.ok_or_else(|| missing(&field, &place.path))?))
        };
        self.labels.iter().map(label).collect()
    }

    fn input(&self, mut message: Value) -> Result<Value, String> {
        let Some(place) = &self.input else {
            let input = message.as_object_mut().and_then(|members| members.remove("input"));
            return Ok(input.unwrap_or(message));
        };
        let input = place.path.take_from(message).or_else(|| place.default.clone());
        input.ok_or_else(|| missing("input", &place.path))
    }

    /// The key of a message, which decides its partition and what it is in order with.
    fn key(&self, given: Option<&[u8]>, job_id: &str, labels: &Labels) -> Result<String, String> {
        let text = given.map(String::from_utf8_lossy).filter(|given| !given.is_empty());
        if let Some(template) = &self.key {
            let parts = json!({ "job_id": job_id, "labels": labels });
            let expected = template.fill(|path| path.find(&parts))?;
            let expected = expected.as_str().unwrap_or_default();
            if given != Some(expected.as_bytes()) {
                let given =
                    text.map_or_else(|| "no key".to_owned(), |text| format!("the key {}", shown(&text)));
                return Err(format!(
                    "the message has {given}; its key must be {}, {expected:?}, so that commands stay in order",
                    template.written()
                ));
            }
        }
        let Some(text) = text else {
            return Err(
                "the message has no key: give all messages of a job the same key, such as its id, so that \
                        they stay in order"
                    .to_owned(),
            );
        };
        // What is not UTF-8 has that character in its place.
        let is_odd = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
        if text.len() > COMMAND_KEY_BYTES_MAX || text.contains(is_odd) {
            let wanted = format!("1 to {COMMAND_KEY_BYTES_MAX} bytes of text without control characters");
            return Err(format!("the message has the key {}; a key must be {wanted}", shown(&text)));
        }
        Ok(text.into_owned())
    }
}

/// An id: a string, or a whole number in its place.
fn id(field: &str, path: &Path, message: &Value) -> Result<Option<String>, String> {
    let id = match path.find(message) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) if id.is_u64() || id.is_i64() => id.to_string(),
        Some(other) => {
            let other = other.to_string();
            return Err(format!("invalid {}: use a string", named(field, path, &other)));
        }
    };
    check_id(&id).map_err(|wanted| format!("invalid {}: use {wanted}", named(field, path, &id)))?;
    Ok(Some(id))
}

/// What an id or the value of a label must be, if this is none.
pub(crate) fn check_id(id: &str) -> Result<(), String> {
    let is_good = !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains(char::is_control);
    if is_good { Ok(()) } else { Err(format!("1 to {ID_BYTES_MAX} bytes without control characters")) }
}

fn missing(field: &str, path: &Path) -> String {
    format!("the message has no {path} (commands.{field})")
}

fn named(field: &str, path: &Path, value: &str) -> String {
    format!("{path} {} (commands.{field})", shown(value))
}

/// The beginning of an id or a key, quoted, with its length if there is more.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

/// An object that says nothing twice: readers would not agree on what it says.
struct Object(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut members = Map::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            let again = format!("the member {} is there twice", shown(&name));
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom(again));
            }
        }
        Ok(Object(members))
    }
}

#[cfg(test)]
mod tests;
