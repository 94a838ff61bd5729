//! Topic patterns: which topics to read, and which of their levels name a resource.

use std::{fmt, str::FromStr};

/// The longest topic that MQTT can carry.
pub const TOPIC_BYTES_MAX: usize = 65_535;

/// A topic with placeholders, such as `plant/line/{key}/+`: `{key}` is the level that names the resource,
/// `{kind}` the one that names its kind, `+` any level, and `#` at the end all that follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Level {
    Word(Box<str>),
    Any,
    Kind,
    Key,
    Rest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    pub kind: Option<&'a str>,
    pub key: &'a str,
}

/// Why a pattern is invalid. Each message continues a sentence about the pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Empty, too long, or with a NUL.
    #[error("is not a topic; {EXAMPLE}")]
    NotATopic,
    /// No `{key}`, or several.
    #[error("needs {{key}} once, at the level that names the resource; {EXAMPLE}")]
    Key,
    /// Several `{kind}`.
    #[error("has {{kind}} more than once")]
    Kind,
    /// `#` before the end.
    #[error("has # before its end; levels after it would be ignored")]
    Rest,
    /// `$share/...`
    #[error(
        "is a shared subscription, which hands out messages in turn: the gate shards by resource instead, see --shards"
    )]
    Shared,
    /// A level that mixes text and placeholders.
    #[error("has the level {0:?}; a level is a word, +, {{key}}, {{kind}}, or # at the end")]
    Level(String),
}

const EXAMPLE: &str = "write a topic such as plant/line/{key}/+";

impl Pattern {
    pub fn filter(&self) -> String {
        let level = |level: &Level| match level {
            Level::Word(word) => word.to_string(),
            Level::Any | Level::Kind | Level::Key => "+".to_owned(),
            Level::Rest => "#".to_owned(),
        };
        self.levels.iter().map(level).collect::<Vec<_>>().join("/")
    }

    /// Whether topics name the kind, too.
    pub fn names_kind(&self) -> bool {
        self.levels.contains(&Level::Kind)
    }

    /// The resource that a topic names, if it matches.
    pub fn find<'a>(&self, topic: &'a str) -> Option<Named<'a>> {
        let mut kind = None;
        let mut key = None;
        let mut given = topic.split('/');
        for level in &self.levels {
            if *level == Level::Rest {
                return Some(Named { kind, key: key? });
            }
            let text = given.next()?;
            match level {
                Level::Word(word) if **word != *text => return None,
                Level::Word(_) | Level::Any | Level::Rest => {}
                Level::Kind => kind = Some(text),
                Level::Key => key = Some(text),
            }
        }
        given.next().is_none().then_some(Named { kind, key: key? })
    }

    /// Whether a topic below a prefix could match: messages published there would be read again.
    pub fn reads_below(&self, prefix: &str) -> bool {
        let mut other: Vec<Level> = prefix.split('/').map(|word| Level::Word(word.into())).collect();
        other.push(Level::Rest);
        can_meet(&self.levels, &other)
    }
}

/// Whether some topic matches both.
fn can_meet(one: &[Level], other: &[Level]) -> bool {
    match (one, other) {
        // `a/#` is also `a`.
        ([Level::Rest, ..], _) | (_, [Level::Rest, ..]) | ([], []) => true,
        ([], _) | (_, []) => false,
        ([Level::Word(a), ..], [Level::Word(b), ..]) if a != b => false,
        ([_, one @ ..], [_, other @ ..]) => can_meet(one, other),
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() || text.len() > TOPIC_BYTES_MAX || text.contains('\0') {
            return Err(PatternError::NotATopic);
        }
        let levels: Vec<Level> = text.split('/').map(level).collect::<Result<_, _>>()?;
        if levels.iter().filter(|level| **level == Level::Key).count() != 1 {
            return Err(PatternError::Key);
        }
        if levels.iter().filter(|level| **level == Level::Kind).count() > 1 {
            return Err(PatternError::Kind);
        }
        if levels.iter().rev().skip(1).any(|level| *level == Level::Rest) {
            return Err(PatternError::Rest);
        }
        if levels[0] == Level::Word("$share".into()) {
            return Err(PatternError::Shared);
        }
        Ok(Self { levels })
    }
}

fn level(text: &str) -> Result<Level, PatternError> {
    match text {
        "+" => Ok(Level::Any),
        "#" => Ok(Level::Rest),
        "{key}" => Ok(Level::Key),
        "{kind}" => Ok(Level::Kind),
        word if word.contains(['+', '#', '{', '}']) => Err(PatternError::Level(word.to_owned())),
        word => Ok(Level::Word(word.into())),
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = |level: &Level| match level {
            Level::Word(word) => word.to_string(),
            Level::Any => "+".to_owned(),
            Level::Kind => "{kind}".to_owned(),
            Level::Key => "{key}".to_owned(),
            Level::Rest => "#".to_owned(),
        };
        f.write_str(&self.levels.iter().map(level).collect::<Vec<_>>().join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap_or_else(|why| panic!("{text} {why}"))
    }

    #[test]
    fn a_topic_names_its_resource() {
        let lines = pattern("plant/line/{key}/+");
        assert_eq!(lines.filter(), "plant/line/+/+");
        assert_eq!(lines.to_string(), "plant/line/{key}/+");
        let named = lines.find("plant/line/north/speed");
        assert_eq!(named, Some(Named { kind: None, key: "north" }));
        for other in ["plant/line/north", "plant/room/a/b", "plant/line/a/b/c"] {
            assert_eq!(lines.find(other), None, "{other}");
        }
        let all = pattern("{kind}/{key}/#");
        assert_eq!(all.filter(), "+/+/#");
        assert_eq!(all.find("scene/s/x/y"), Some(Named { kind: Some("scene"), key: "s" }));
        assert_eq!(all.find("scene/s"), Some(Named { kind: Some("scene"), key: "s" }));
        assert_eq!(all.find("scene"), None);
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        for (text, words) in [
            ("", "is not a topic"),
            ("a/b", "needs {key} once"),
            ("{key}/{key}", "needs {key} once"),
            ("{kind}/{kind}/{key}", "{kind} more than once"),
            ("#/{key}", "# before its end"),
            ("a{key}/b", "has the level \"a{key}\""),
            ("$share/g/{key}", "shared subscription"),
        ] {
            let why = text.parse::<Pattern>().expect_err(text).to_string();
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn a_gate_must_not_read_what_it_writes() {
        assert!(!pattern("plant/line/{key}/+").reads_below("gated"));
        assert!(pattern("plant/line/{key}/+").reads_below("plant"));
        assert!(!pattern("plant/line/{key}/+").reads_below("plant/gated"));
        assert!(pattern("+/{key}/#").reads_below("gated"));
        assert!(pattern("{key}/#").reads_below("gated/x"));
        assert!(!pattern("a/{key}").reads_below("b"));
    }
}
