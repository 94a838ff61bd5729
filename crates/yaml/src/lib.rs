//! Configuration files in YAML, read so that a mistake is told with its line and in words of the file.

use std::{fs, path::Path};

use serde::de::DeserializeOwned;

/// Why a file is of no use: where, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// What is wrong with the values of a file, and the key at which if there is one: its name, or a path such as
/// `stages/decode/run_timeout`.
pub type Wrong = (Option<String>, String);

/// A value that is wrong at a key.
pub fn wrong<T>(key: &str, what: impl Into<String>) -> Result<T, Wrong> {
    Err((Some(key.to_owned()), what.into()))
}

/// Reads a file. `change` may change what it says, such as by flags; `settle` checks it and fills in the defaults.
pub fn load<File: DeserializeOwned + Default, Settings>(
    path: &Path,
    change: impl FnOnce(&mut File),
    settle: impl FnOnce(File) -> Result<Settings, Wrong>,
) -> Result<Settings, ConfigError> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| ConfigError(format!("cannot read the configuration file {shown}: {error}")))?;
    let at = |line: Option<u64>, what| match line {
        Some(line) => ConfigError(format!("{shown}:{line}: {what}")),
        None => ConfigError(format!("{shown}: {what}")),
    };
    let mut file: File = parse(&text).map_err(|(line, what)| at(line, what))?;
    change(&mut file);
    settle(file).map_err(|(key, what)| at(key.and_then(|key| line_of(&text, &key)), what))
}

/// What a file says, or the line that is wrong and what is wrong with it. A file of blanks and comments says nothing.
pub fn parse<T: DeserializeOwned + Default>(text: &str) -> Result<T, (Option<u64>, String)> {
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
            return (Some(opened), format!("the {open} is not closed"));
        }
        let key = line.and_then(|line| text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?));
        (line, reworded(key.unwrap_or_default(), message))
    })
}

/// The line on which a key stands, wherever it is nested. Of a path, the last name that has a line of its own: what is
/// between braces stands on the line of its parent.
fn line_of(text: &str, key: &str) -> Option<u64> {
    let lines: Vec<(u64, &str)> = (1..).zip(text.lines()).collect();
    let whole = key_in(&lines, key).map(|(line, _)| line);
    whole.or_else(|| {
        let (mut within, mut found) = (lines.as_slice(), None);
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
        let (mut before, mut last) = (' ', ':');
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
