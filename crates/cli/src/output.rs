//! Printing: tables for people, JSON for programs, and silence when the reader has gone away.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::NOTHING};
use serde::Serialize;

use crate::{
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    human::one_line,
};

/// Prints text to stdout. A reader that has gone away, such as `head`, ends the program quietly.
pub fn print(text: &str) -> CommandResult {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

/// Prints a line on stdout that may get lost: a server does not end because its stdout is closed.
pub fn say(text: impl AsRef<str>) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{}", text.as_ref()).and_then(|()| stdout.flush());
}

/// Prints a line to stdout.
pub fn line(text: impl AsRef<str>) -> CommandResult {
    print(&format!("{}\n", text.as_ref()))
}

/// Prints a document on one line; indented when a person looks at it.
pub fn json(document: &impl Serialize) -> CommandResult {
    let text = if io::stdout().is_terminal() {
        serde_json::to_string_pretty(document)
    } else {
        serde_json::to_string(document)
    };
    line(text.map_err(|error| CommandError::broken(format!("cannot write JSON: {error}")))?)
}

/// Prints one document of many on one line, also on a terminal.
pub fn json_line(document: &impl Serialize) -> CommandResult {
    let text = serde_json::to_string(document);
    line(text.map_err(|error| CommandError::broken(format!("cannot write JSON: {error}")))?)
}

/// Prints the document for programs, or the text for people.
pub fn show(global: &GlobalArgs, document: &impl Serialize, text: impl FnOnce() -> String) -> CommandResult {
    if global.json {
        return json(document);
    }
    let text = text();
    if text.ends_with('\n') { print(&text) } else { line(text) }
}

/// Prints a list: under its name for programs, as a table for people, or that there is nothing to show.
pub fn list<T: Serialize>(
    global: &GlobalArgs,
    name: &str,
    items: &[T],
    none: &str,
    table: impl FnOnce(&[T]) -> String,
) -> CommandResult {
    if global.json {
        return json(&BTreeMap::from([(name, items)]));
    }
    if items.is_empty() {
        note(none);
        return Ok(());
    }
    print(&table(items))
}

/// A note to the user, on stderr: not part of the output.
pub fn note(text: impl AsRef<str>) {
    // Nobody there to read it is no reason to fail.
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

/// Rows under headings, aligned, without borders. Columns named in `numbers` are aligned to the right.
pub fn table<const N: usize>(headings: [&str; N], numbers: &[&str], rows: Vec<[String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(headings);
    for row in rows {
        table.add_row(row.map(|cell| one_line(&cell)));
    }
    for (column, heading) in table.column_iter_mut().zip(headings) {
        column.set_padding((0, 2));
        if numbers.contains(&heading) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    lines_of(&table)
}

/// Names and values below each other; what has no value is left out.
pub fn facts(facts: &[(&str, Option<String>)]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for (name, value) in facts {
        if let Some(value) = value {
            table.add_row([*name, &one_line(value)]);
        }
    }
    for (column, padding) in table.column_iter_mut().zip([(2, 2), (0, 0)]) {
        column.set_padding(padding);
    }
    lines_of(&table)
}

/// The lines of a table without the blanks at their ends.
fn lines_of(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A value, or a dash where there is none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
}
