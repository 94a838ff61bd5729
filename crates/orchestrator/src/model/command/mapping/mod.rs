//! Reads commands from messages, as configured under `commands`.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{Deserializer, Error, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};

use crate::model::{
    command::{Command, CommandKind},
    job::{Labels, Rejection},
};
use crate::model::{
    limits::{COMMAND_BYTES_MAX, COMMAND_KEY_BYTES_MAX, ID_BYTES_MAX, SHOWN_CHARS_MAX},
    path::Path,
    template::Text,
};

fn invalid<T>(what: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection(what.into()))
}

/// Where the parts of a command are in its message.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapping {
    pub job_id: Path,
    pub command_id: Path,
    pub kind: KindMapping,
    /// The input of the job. By default the member `input`, or the whole message if it has none.
    pub input: Option<Place<Value>>,
    pub labels: BTreeMap<String, Place<String>>,
    /// The key that messages must have. By default any, but all messages of a job the same.
    pub key: Option<Text>,
}

/// The path of a value, and its default.
#[derive(Debug, Clone, PartialEq)]
pub struct Place<T> {
    pub path: Path,
    /// Without a default, every message must have the value.
    pub default: Option<T>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct KindMapping {
    /// Its path, and the type of messages without one.
    pub place: Place<CommandKind>,
    /// The type for each value.
    pub values: BTreeMap<String, CommandKind>,
}

impl KindMapping {
    /// `CREATE`, `CANCEL` and `RETRY`.
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
    pub fn parse(&self, payload: Option<&[u8]>, key: Option<&[u8]>) -> Result<Command, Rejection> {
        let payload = payload
            .ok_or_else(|| Rejection("the message is empty (a tombstone): a command is JSON".to_owned()))?;
        if payload.len() > COMMAND_BYTES_MAX {
            return invalid(format!(
                "the command has {} bytes, more than {COMMAND_BYTES_MAX}",
                payload.len()
            ));
        }
        let not_json = |error: &dyn fmt::Display| Rejection(format!("this is not a job command: {error}"));
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

    /// The job of a message, even if it is no valid command.
    pub fn job_of(&self, payload: &[u8]) -> Option<String> {
        let message = serde_json::from_slice(payload).ok()?;
        id("job_id", &self.job_id, &message).ok().flatten()
    }

    fn kind(&self, message: &Value) -> Result<CommandKind, Rejection> {
        let KindMapping { place, values } = &self.kind;
        let said = match place.path.find(message) {
            None | Some(Value::Null) => return place.default.ok_or_else(|| missing("type", &place.path)),
            Some(said) => said,
        };
        let name = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
        values.get(&name).copied().ok_or_else(|| {
            let known = values.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let named = named("type", &place.path, &name);
            Rejection(format!("invalid {named}: it must be one of {known}"))
        })
    }

    fn labels(&self, message: &Value) -> Result<Labels, Rejection> {
        let label = |(name, place): (&String, &Place<String>)| {
            let field = format!("labels.{name}");
            let value = id(&field, &place.path, message)?.or_else(|| place.default.clone());
            Ok((name.clone(), value.ok_or_else(|| missing(&field, &place.path))?))
        };
        self.labels.iter().map(label).collect()
    }

    fn input(&self, mut message: Value) -> Result<Value, Rejection> {
        let Some(place) = &self.input else {
            let input = message.as_object_mut().and_then(|members| members.remove("input"));
            return Ok(input.unwrap_or(message));
        };
        let input = place.path.take_from(message).or_else(|| place.default.clone());
        input.ok_or_else(|| missing("input", &place.path))
    }

    /// The key of a message, which decides its partition.
    fn key(&self, given: Option<&[u8]>, job_id: &str, labels: &Labels) -> Result<String, Rejection> {
        let text = given.map(String::from_utf8_lossy).filter(|given| !given.is_empty());
        if let Some(template) = &self.key {
            let parts = json!({ "job_id": job_id, "labels": labels });
            let expected = template.fill(|path| path.find(&parts));
            let expected = expected.map_err(|error| Rejection(error.to_string()))?;
            let expected = expected.as_str().unwrap_or_default();
            if given != Some(expected.as_bytes()) {
                let given =
                    text.map_or_else(|| "no key".to_owned(), |text| format!("the key {}", shown(&text)));
                return invalid(format!(
                    "the message has {given}; its key must be {}, {expected:?}, so that commands stay in order",
                    template.written()
                ));
            }
        }
        let Some(text) = text else {
            return invalid(
                "the message has no key: give all messages of a job the same key, such as its id, so that they stay in \
                 order",
            );
        };
        // Bytes that are not UTF-8 were replaced by that character.
        let is_odd = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
        if text.len() > COMMAND_KEY_BYTES_MAX || text.contains(is_odd) {
            let wanted = format!("1 to {COMMAND_KEY_BYTES_MAX} bytes of text without control characters");
            return invalid(format!("the message has the key {}; a key must be {wanted}", shown(&text)));
        }
        Ok(text.into_owned())
    }
}

/// An id: a string, or a whole number in its place.
fn id(field: &str, path: &Path, message: &Value) -> Result<Option<String>, Rejection> {
    let id = match path.find(message) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) if id.is_u64() || id.is_i64() => id.to_string(),
        Some(other) => {
            let other = other.to_string();
            return invalid(format!("invalid {}: use a string", named(field, path, &other)));
        }
    };
    if !is_id(&id) {
        return invalid(format!("invalid {}: use {}", named(field, path, &id), id_bounds()));
    }
    Ok(Some(id))
}

/// Whether this can be an id or the value of a label.
pub(crate) fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains(char::is_control)
}

/// What an id or the value of a label must be.
pub(crate) fn id_bounds() -> String {
    format!("1 to {ID_BYTES_MAX} bytes without control characters")
}

fn missing(field: &str, path: &Path) -> Rejection {
    Rejection(format!("the message has no {path} (commands.{field})"))
}

fn named(field: &str, path: &Path, value: &str) -> String {
    format!("{path} {} (commands.{field})", shown(value))
}

/// An id or a key in quotes, cut if it is long.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

/// An object without duplicate members, on which parsers would not agree.
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
            let again = format!("duplicate member {}", shown(&name));
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom(again));
            }
        }
        Ok(Object(members))
    }
}

#[cfg(test)]
mod tests;
