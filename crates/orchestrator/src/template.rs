//! Documents with placeholders: `{input.video}` stands for what a job has there.
//!
//! A string that is one placeholder becomes the value itself, whatever its type. In a longer string, text is put in as
//! it is, and anything else as JSON. `{{` and `}}` are braces.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    limits::{FILLED_BYTES_MAX, PLACEHOLDERS_MAX, TEMPLATE_BYTES_MAX, TEMPLATE_DEPTH_MAX},
    path::Path,
};

/// A string with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    written: String,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Value(Path),
}

impl Text {
    /// As it was written.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// Its placeholders.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Value(path) => Some(path),
            Piece::Literal(_) => None,
        })
    }

    /// The string with values in place of its placeholders; an error names the one that has none.
    pub fn fill<'a>(&self, find: impl Fn(&Path) -> Option<&'a Value>) -> Result<Value, String> {
        self.fill_within(&find, &mut { FILLED_BYTES_MAX })
    }

    fn fill_within<'a>(
        &self,
        find: &impl Fn(&Path) -> Option<&'a Value>,
        left: &mut usize,
    ) -> Result<Value, String> {
        let found = |path: &Path| find(path).ok_or_else(|| format!("there is no {path}"));
        if let [Piece::Value(path)] = self.pieces.as_slice() {
            let value = found(path)?;
            spend(left, value.to_string().len())?;
            return Ok(value.clone());
        }
        let mut text = String::new();
        for piece in &self.pieces {
            let part = match piece {
                Piece::Literal(literal) => literal.clone(),
                Piece::Value(path) => match found(path)? {
                    Value::String(value) => value.clone(),
                    other => other.to_string(),
                },
            };
            spend(left, part.len())?;
            text.push_str(&part);
        }
        Ok(Value::String(text))
    }
}

/// One large value in many places would otherwise become a document of any size.
fn spend(left: &mut usize, bytes: usize) -> Result<(), String> {
    *left = left.checked_sub(bytes).ok_or_else(|| format!("it has more than {FILLED_BYTES_MAX} bytes"))?;
    Ok(())
}

impl FromStr for Text {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), written);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            literal.push_str(before);
            let brace = &from[..1];
            if from[1..].starts_with(brace) {
                literal.push_str(brace);
                rest = &from[2..];
                continue;
            }
            let inside = from.strip_prefix('{').and_then(|inside| inside.split_once('}'));
            let Some((path, after)) = inside else {
                return Err(format!("{written:?} has a single {brace}: write {brace}{brace} for a brace"));
            };
            let path = path.parse().map_err(|error| format!("{written:?}: {error}"))?;
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::Value(path));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Self { written: written.to_owned(), pieces })
    }
}

/// A document in which strings may have placeholders. Names of members are as they are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Template(Value);

impl TryFrom<Value> for Template {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let bytes = value.to_string().len();
        if bytes > TEMPLATE_BYTES_MAX {
            return Err(format!("it has {bytes} bytes, more than {TEMPLATE_BYTES_MAX}"));
        }
        let mut count = 0;
        check(&value, 0, &mut count)?;
        if count > PLACEHOLDERS_MAX {
            return Err(format!("it has {count} placeholders, more than {PLACEHOLDERS_MAX}"));
        }
        Ok(Self(value))
    }
}

impl From<Template> for Value {
    fn from(template: Template) -> Self {
        template.0
    }
}

fn check(value: &Value, depth: usize, count: &mut usize) -> Result<(), String> {
    if depth > TEMPLATE_DEPTH_MAX {
        return Err(format!("it is nested more than {TEMPLATE_DEPTH_MAX} levels deep"));
    }
    match value {
        Value::String(text) => {
            *count += text.parse::<Text>()?.paths().count();
            Ok(())
        }
        Value::Array(elements) => elements.iter().try_for_each(|element| check(element, depth + 1, count)),
        Value::Object(members) => {
            if let Some(path) = unquoted(members).filter(|_| depth > 0) {
                return Err(format!(
                    "YAML takes {{{path}}} without quotes for a mapping: write \"{{{path}}}\""
                ));
            }
            members.values().try_for_each(|member| check(member, depth + 1, count))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// What a placeholder is to YAML if nobody has put it into quotes: `{input.video: null}`.
fn unquoted(members: &Map<String, Value>) -> Option<&str> {
    let (name, value) = members.iter().next()?;
    let root = name.split('.').next().unwrap_or_default();
    (members.len() == 1 && value.is_null() && ROOTS.contains(&root)).then_some(name)
}

/// What placeholders of a task's arguments begin with.
pub const ROOTS: [&str; 7] = ["input", "results", "job_id", "key", "labels", "stage", "attempt"];

impl Template {
    /// As it was written.
    pub fn written(&self) -> &Value {
        &self.0
    }

    /// Its placeholders, each with the place where it stands, such as `.files.0`.
    pub fn paths(&self) -> Vec<(String, Path)> {
        let mut found = Vec::new();
        collect(&self.0, String::new(), &mut found);
        found
    }

    /// The document with values in place of its placeholders.
    pub fn fill<'a>(&self, find: impl Fn(&Path) -> Option<&'a Value>) -> Result<Value, String> {
        fill(&self.0, &find, &mut { FILLED_BYTES_MAX })
    }
}

fn collect(value: &Value, at: String, found: &mut Vec<(String, Path)>) {
    match value {
        Value::String(text) => {
            let text = text.parse::<Text>();
            found.extend(text.iter().flat_map(Text::paths).map(|path| (at.clone(), path.clone())));
        }
        Value::Array(elements) => {
            let each = elements.iter().enumerate();
            each.for_each(|(number, element)| collect(element, format!("{at}.{number}"), found));
        }
        Value::Object(members) => {
            members.iter().for_each(|(name, member)| collect(member, format!("{at}.{name}"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn fill<'a>(
    value: &Value,
    find: &impl Fn(&Path) -> Option<&'a Value>,
    left: &mut usize,
) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => text.parse::<Text>()?.fill_within(find, left)?,
        Value::Array(elements) => {
            let filled = elements.iter().map(|element| fill(element, find, left));
            Value::Array(filled.collect::<Result<_, _>>()?)
        }
        Value::Object(members) => {
            let filled = members.iter().map(|(name, member)| Ok((name.clone(), fill(member, find, left)?)));
            Value::Object(filled.collect::<Result<_, String>>()?)
        }
        plain => plain.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(value: Value) -> Template {
        Template::try_from(value).expect("a template")
    }

    fn refused(value: Value) -> String {
        Template::try_from(value).expect_err("it is wrong")
    }

    #[test]
    fn a_placeholder_alone_keeps_its_type_and_becomes_text_in_a_longer_string() {
        let job =
            json!({"input": {"video": "a.mp4", "frames": [1, 2], "fps": 2.5, "none": null}, "attempt": 2});
        let given = json!({
            "path": "{input.video}", "frames": "{input.frames}", "second": "{input.frames.1}", "all": "{input}",
            "none": "{input.none}", "url": "s3://{input.video}?fps={input.fps}&of={input.frames}", "same": [7, true, null],
            "braces": "{{{attempt}}}", "literal": "{{input}}",
        });
        let expected = json!({
            "path": "a.mp4", "frames": [1, 2], "second": 2, "all": job["input"], "none": null,
            "url": "s3://a.mp4?fps=2.5&of=[1,2]", "same": [7, true, null], "braces": "{2}", "literal": "{input}",
        });
        let template = template(given);
        assert_eq!(template.fill(|path| path.find(&job)), Ok(expected));
        assert!(template.paths().contains(&(".path".to_owned(), "input.video".parse().expect("a path"))));
    }

    #[test]
    fn a_value_that_is_missing_is_named() {
        let job = json!({"input": {"video": "a.mp4"}});
        for odd in ["{input.audio}", "x{input.audio}", "{input.video}{input.audio}"] {
            let filled = template(json!([{"a": odd}])).fill(|path| path.find(&job));
            assert_eq!(filled, Err("there is no input.audio".to_owned()), "{odd}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        assert_eq!(refused(json!("a{b")), r#""a{b" has a single {: write {{ for a brace"#);
        assert_eq!(refused(json!(["}"])), r#""}" has a single }: write }} for a brace"#);
        assert!(refused(json!("{}")).contains(r#""{}": "" is not a path"#));
        assert!(refused(json!("{a b}")).contains("is not a path: names with dots between"));
        assert_eq!(
            refused(json!({"path": {"input.video": null}})),
            r#"YAML takes {input.video} without quotes for a mapping: write "{input.video}""#
        );
    }

    #[test]
    fn templates_and_what_comes_of_them_have_bounds() {
        assert!(refused(json!("x".repeat(20_000))).contains("more than 16384"));
        let deep = (0..20).fold(json!(1), |inner, _| json!([inner]));
        assert!(refused(deep).contains("more than 16 levels"));
        assert!(refused(json!(vec!["{a}"; 300])).contains("300 placeholders, more than 256"));
        let large = json!({"a": "x".repeat(1_000_000)});
        for form in ["{a}", "-{a}"] {
            let filled = template(json!(vec![form; 10])).fill(|path| path.find(&large));
            assert!(filled.expect_err("too large").contains("more than 4194304 bytes"));
        }
    }
}
