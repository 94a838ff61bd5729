//! Configuration files in YAML. A mistake is reported with its line and in the words of the file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read the configuration file {}: {why}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// It is not YAML, or a value in it cannot be used.
    #[error("{}{}: {message}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// The line, if it is known.
        line: Option<u64>,
        /// What is wrong there.
        message: String,
    },
}

/// A value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidValue {
    /// Its key, if there is one: a name, or a path such as `stages/decode/run_timeout`.
    pub key: Option<String>,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl InvalidValue {
    /// A fault of the file as a whole.
    pub fn of_file(message: impl Into<String>) -> Self {
        Self { key: None, message: message.into() }
    }
}

/// Rejects the value at a key.
pub fn invalid<T>(key: &str, message: impl Into<String>) -> Result<T, InvalidValue> {
    Err(InvalidValue { key: Some(key.to_owned()), message: message.into() })
}

/// Text that is not a file of this kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The line at which it is wrong, if that is known.
    pub line: Option<u64>,
    /// What is wrong there.
    pub message: String,
}

/// Reads a file. `change` may change what it says, such as by flags; `settle` checks it and fills in the defaults.
pub fn load<File: DeserializeOwned + Default, Settings>(
    path: &Path,
    change: impl FnOnce(&mut File),
    settle: impl FnOnce(File) -> Result<Settings, InvalidValue>,
) -> Result<Settings, ConfigError> {
    let path = path.to_owned();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return Err(ConfigError::Unreadable { path, why: error.to_string() }),
    };
    let at = |line, message| ConfigError::Invalid { path: path.clone(), line, message };
    let mut file: File = parse(&text).map_err(|error| at(error.line, error.message))?;
    change(&mut file);
    settle(file).map_err(|invalid| at(invalid.key.and_then(|key| line_of(&text, &key)), invalid.message))
}

/// Parses the text of a file. One of blanks and comments is empty.
pub fn parse<T: DeserializeOwned + Default>(text: &str) -> Result<T, ParseError> {
    let says_nothing = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(says_nothing) {
        return Ok(T::default());
    }
    serde_saphyr::from_str(text).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map(|location| location.line());
        let message = error.to_string();
        let (message, _) = message.rsplit_once(" at line ").unwrap_or((&message, ""));
        // The parser tells where it noticed, and what it took the rest for.
        if let Some((opened, open)) = unclosed(text)
            && line.is_none_or(|line| line >= opened)
        {
            return ParseError { line: Some(opened), message: format!("the {open} is not closed") };
        }
        let key = line.and_then(|line| text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?));
        ParseError { line, message: reworded(key.unwrap_or_default(), message) }
    })
}

/// The line on which a key stands, wherever it is nested. Of a path, the last name that has a line of its own: what is
/// between braces stands on the line of its parent.
fn line_of(text: &str, key: &str) -> Option<u64> {
    let lines: Vec<(u64, &str)> = (1..).zip(text.lines()).collect();
    let whole = key_in(&lines, key).map(|(line, _)| line);
    whole.or_else(|| {
        let mut within = lines.as_slice();
        let mut found = None;
        for part in key.split('/') {
            let Some((line, below)) = key_in(within, part) else { break };
            (within, found) = (below, Some(line));
        }
        found
    })
}

/// The first of these lines that has a key, and the lines that are nested below it.
fn key_in<'a, 't>(lines: &'a [(u64, &'t str)], key: &str) -> Option<(u64, &'a [(u64, &'t str)])> {
    let is_it = |line: &str| {
        line.trim_start()
            .trim_start_matches("- ")
            .strip_prefix(key)
            .is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let found = lines.iter().position(|(_, line)| is_it(line))?;
    let (number, line) = lines[found];
    let below = &lines[found + 1..];
    let says = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let end = below.iter().position(|(_, other)| says(other) && indent(other) <= indent(line));
    Some((number, &below[..end.unwrap_or(below.len())]))
}

/// The line and the character of the last bracket or quote that is opened and never closed.
fn unclosed(text: &str) -> Option<(u64, char)> {
    let mut open: Vec<(u64, char)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        // What came before: a word in which brackets and quotes are nothing special, or what a value follows.
        let mut before = ' ';
        let mut last = ':';
        for c in line.chars() {
            let innermost = open.last().map(|(_, open)| *open);
            let is_value = ":-,[{".contains(last) && (before.is_whitespace() || "[{,".contains(before));
            match (c, innermost) {
                ('"' | '\'', Some(quote)) if c == quote && before != '\\' => drop(open.pop()),
                (_, Some('"' | '\'')) => {}
                ('#', _) if before.is_whitespace() => break,
                ('[' | '{' | '"' | '\'', _) if is_value => open.push((number, c)),
                (']' | '}', Some('[' | '{')) => drop(open.pop()),
                _ => {}
            }
            last = if c.is_whitespace() { last } else { c };
            before = c;
        }
    }
    open.pop()
}

/// The parser's words where they speak of the parser, in words of the file.
fn reworded(line: &str, message: &str) -> String {
    // The key alone: a value may be secret.
    let key = line.split(':').next().unwrap_or_default().trim().trim_start_matches("- ");
    if message.starts_with("invalid u") {
        return format!("{key} is not a whole number from 0 on");
    }
    match message {
        "expected string scalar" => format!("{key} must be a string"),
        "expected mapping start" => format!("{key} must have keys of its own below it, indented"),
        _ => message.split(", set DuplicateKeyPolicy").next().unwrap_or(message).to_owned(),
    }
}
