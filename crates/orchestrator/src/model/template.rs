//! Documents with placeholders, such as `{input.video}`.
//!
//! A string that consists of one placeholder becomes the value itself, of any type. In a longer string, strings are
//! inserted as they are, and other values as JSON. `{{` and `}}` are braces.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{
    limits::{FILLED_BYTES_MAX, PLACEHOLDERS_MAX, TEMPLATE_BYTES_MAX, TEMPLATE_DEPTH_MAX},
    path::{Path, PathError},
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
    pub fn written(&self) -> &str {
        &self.written
    }

    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Value(path) => Some(path),
            Piece::Literal(_) => None,
        })
    }

    pub fn fill<'a>(&self, find: impl Fn(&Path) -> Option<&'a Value>) -> Result<Value, FillError> {
        self.fill_within(&find, &mut { FILLED_BYTES_MAX })
    }

    fn fill_within<'a>(
        &self,
        find: &impl Fn(&Path) -> Option<&'a Value>,
        left: &mut usize,
    ) -> Result<Value, FillError> {
        let found = |path: &Path| find(path).ok_or_else(|| FillError::Missing(path.clone()));
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

/// Bounds the size of the result: one large value may be inserted many times.
fn spend(left: &mut usize, bytes: usize) -> Result<(), FillError> {
    *left = left.checked_sub(bytes).ok_or(FillError::TooLarge)?;
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    #[error("there is no {0}")]
    Missing(Path),
    #[error("the result has more than {FILLED_BYTES_MAX} bytes")]
    TooLarge,
    /// The template was changed in the database.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("{text:?} has a single {brace}: write {brace}{brace} for a brace")]
    SingleBrace { text: String, brace: String },
    #[error("{text:?}: {source}")]
    Path { text: String, source: PathError },
    #[error("the template has {0} bytes, more than {TEMPLATE_BYTES_MAX}")]
    TooLarge(usize),
    #[error("the template has {0} placeholders, more than {PLACEHOLDERS_MAX}")]
    TooManyPlaceholders(usize),
    #[error("the template is nested more than {TEMPLATE_DEPTH_MAX} levels deep")]
    TooDeep,
    /// A placeholder without quotes, which is a mapping in YAML.
    #[error("YAML takes {{{0}}} without quotes for a mapping: write \"{{{0}}}\"")]
    Unquoted(String),
}

impl FromStr for Text {
    type Err = TemplateError;

    fn from_str(written: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = written;
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
                let text = written.to_owned();
                return Err(TemplateError::SingleBrace { text, brace: brace.to_owned() });
            };
            let path =
                path.parse().map_err(|source| TemplateError::Path { text: written.to_owned(), source })?;
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

/// A document whose strings may contain placeholders. Names of members may not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Template(Value);

impl TryFrom<Value> for Template {
    type Error = TemplateError;

    fn try_from(value: Value) -> Result<Self, TemplateError> {
        let bytes = value.to_string().len();
        if bytes > TEMPLATE_BYTES_MAX {
            return Err(TemplateError::TooLarge(bytes));
        }
        let mut count = 0;
        check(&value, 0, &mut count)?;
        if count > PLACEHOLDERS_MAX {
            return Err(TemplateError::TooManyPlaceholders(count));
        }
        Ok(Self(value))
    }
}

impl From<Template> for Value {
    fn from(template: Template) -> Self {
        template.0
    }
}

fn check(value: &Value, depth: usize, count: &mut usize) -> Result<(), TemplateError> {
    if depth > TEMPLATE_DEPTH_MAX {
        return Err(TemplateError::TooDeep);
    }
    match value {
        Value::String(text) => {
            *count += text.parse::<Text>()?.paths().count();
            Ok(())
        }
        Value::Array(elements) => elements.iter().try_for_each(|element| check(element, depth + 1, count)),
        Value::Object(members) => {
            if let Some(path) = unquoted(members).filter(|_| depth > 0) {
                return Err(TemplateError::Unquoted(path.to_owned()));
            }
            members.values().try_for_each(|member| check(member, depth + 1, count))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// A placeholder without quotes, as YAML reads it: `{input.video: null}`.
fn unquoted(members: &Map<String, Value>) -> Option<&str> {
    let (name, value) = members.iter().next()?;
    let root = name.split('.').next().unwrap_or_default();
    (members.len() == 1 && value.is_null() && ROOTS.contains(&root)).then_some(name)
}

/// The first names of placeholders in a task's arguments.
pub const ROOTS: [&str; 7] = ["input", "results", "job_id", "key", "labels", "stage", "attempt"];

impl Template {
    pub fn written(&self) -> &Value {
        &self.0
    }

    /// Its placeholders, each with its place in the document, such as `.files.0`.
    pub fn paths(&self) -> Vec<(String, Path)> {
        let mut found = Vec::new();
        collect(&self.0, String::new(), &mut found);
        found
    }

    pub fn fill<'a>(&self, find: impl Fn(&Path) -> Option<&'a Value>) -> Result<Value, FillError> {
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
) -> Result<Value, FillError> {
    Ok(match value {
        Value::String(text) => text.parse::<Text>()?.fill_within(find, left)?,
        Value::Array(elements) => {
            let filled = elements.iter().map(|element| fill(element, find, left));
            Value::Array(filled.collect::<Result<_, _>>()?)
        }
        Value::Object(members) => {
            let filled = members.iter().map(|(name, member)| Ok((name.clone(), fill(member, find, left)?)));
            Value::Object(filled.collect::<Result<_, FillError>>()?)
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
        Template::try_from(value).expect_err("invalid").to_string()
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
            assert_eq!(filled, Err(FillError::Missing("input.audio".parse().expect("a path"))), "{odd}");
        }
    }

    #[test]
    fn mistakes_are_reported() {
        assert_eq!(refused(json!("a{b")), r#""a{b" has a single {: write {{ for a brace"#);
        assert_eq!(refused(json!(["}"])), r#""}" has a single }: write }} for a brace"#);
        assert!(refused(json!("{}")).contains(r#""{}": "" is not a path"#));
        assert!(refused(json!("{a b}")).contains("is not a path: use names with dots between"));
        assert_eq!(
            refused(json!({"path": {"input.video": null}})),
            r#"YAML takes {input.video} without quotes for a mapping: write "{input.video}""#
        );
    }

    #[test]
    fn templates_and_their_results_are_bounded() {
        assert!(refused(json!("x".repeat(20_000))).contains("more than 16384"));
        let deep = (0..20).fold(json!(1), |inner, _| json!([inner]));
        assert!(refused(deep).contains("more than 16 levels"));
        assert!(refused(json!(vec!["{a}"; 300])).contains("300 placeholders, more than 256"));
        let large = json!({"a": "x".repeat(1_000_000)});
        for form in ["{a}", "-{a}"] {
            let filled = template(json!(vec![form; 10])).fill(|path| path.find(&large));
            assert_eq!(filled, Err(FillError::TooLarge));
        }
    }
}
