//! Where a value is in JSON: the names of members with dots between, as in `input.video`.

use std::{fmt, str::FromStr};

use serde_json::Value;

use crate::model::limits::{PATH_BYTES_MAX, PATH_PARTS_MAX};

/// A path such as `input.frames.0`. An element of an array is named by its number, and `.` is the whole document. A
/// member that has a dot in its name cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    parts: Vec<String>,
}

impl Path {
    /// A member of the document itself.
    pub fn member(name: &str) -> Self {
        Self { parts: vec![name.to_owned()] }
    }

    /// The names, from the outermost on.
    pub fn parts(&self) -> &[String] {
        &self.parts
    }

    /// The rest of the path behind its first name.
    pub fn below(&self) -> Self {
        Self { parts: self.parts.iter().skip(1).cloned().collect() }
    }

    pub fn find<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        self.parts.iter().try_fold(document, |at, part| match at {
            Value::Object(members) => members.get(part),
            Value::Array(elements) => elements.get(index(part)?),
            _ => None,
        })
    }

    /// Moves the value at this path out of the document.
    pub fn take_from(&self, document: Value) -> Option<Value> {
        self.parts.iter().try_fold(document, |at, part| match at {
            Value::Object(mut members) => members.remove(part),
            Value::Array(mut elements) => {
                let at = index(part).filter(|at| *at < elements.len())?;
                Some(elements.swap_remove(at))
            }
            _ => None,
        })
    }
}

/// The index of an element. `01` and `+1` are names of members.
fn index(part: &str) -> Option<usize> {
    let is_number = part == "0" || !part.starts_with(['0', '+']);
    part.parse().ok().filter(|_| is_number)
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() { f.write_str(".") } else { f.write_str(&self.parts.join(".")) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It has empty names or characters that a name cannot have.
    #[error("{0:?} is not a path: use names with dots between, as in input.video")]
    Invalid(String),
    #[error("the path has {names} names and {bytes} bytes, more than {PATH_PARTS_MAX} or {PATH_BYTES_MAX}")]
    TooLong { names: usize, bytes: usize },
}

impl FromStr for Path {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        if text == "." {
            return Ok(Self { parts: Vec::new() });
        }
        let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
        let is_odd = |c: char| c.is_control() || c.is_whitespace() || "{}".contains(c);
        if text.len() > PATH_BYTES_MAX || parts.len() > PATH_PARTS_MAX {
            return Err(PathError::TooLong { names: parts.len(), bytes: text.len() });
        }
        if parts.iter().any(|part| part.is_empty() || part.contains(is_odd)) {
            return Err(PathError::Invalid(text.to_owned()));
        }
        Ok(Self { parts })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(text: &str) -> Path {
        text.parse().expect("a path")
    }

    #[test]
    fn a_path_leads_through_members_and_elements() {
        let document = json!({"a": {"b": [1, {"c": null}]}, "0": "zero"});
        for (at, found) in [
            ("a.b.0", Some(json!(1))),
            ("a.b.1.c", Some(json!(null))),
            ("0", Some(json!("zero"))),
            (".", Some(document.clone())),
            ("a.b.2", None),
            ("a.b.01", None),
            ("a.b.0.x", None),
            ("b", None),
        ] {
            assert_eq!(path(at).find(&document), found.as_ref(), "{at}");
            assert_eq!(path(at).take_from(document.clone()), found, "{at}");
            assert_eq!(path(at).to_string(), at);
        }
        let long = ["a"; 17].join(".");
        for odd in ["", "a.", ".a", "a..b", "a b", "{a}", "a\u{0}", long.as_str()] {
            assert!(odd.parse::<Path>().is_err(), "{odd:?}");
        }
    }
}
