//! The same pages as Markdown, for `docs/reference`: an overview, and a page for each command with those below it.

use std::{collections::BTreeMap, fmt::Write, fs, io, path::Path};

use clap::{Arg, Command};

use super::variables;
use crate::exit::Exit;

const MADE: &str = "<!-- Made from the code: make reference -->";

/// Writes `commands.md` and a page for each command below `commands/`. Returns the number of pages.
pub fn write_all(cli: &Command, folder: &Path) -> io::Result<usize> {
    let pages = folder.join("commands");
    fs::create_dir_all(&pages)?;
    let shown: Vec<&Command> = cli.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    fs::write(folder.join("commands.md"), overview(cli, &shown))?;
    for command in &shown {
        fs::write(pages.join(format!("{}.md", command.get_name())), page(command))?;
    }
    Ok(shown.len() + 1)
}

fn overview(cli: &Command, commands: &[&Command]) -> String {
    let mut text = format!("# Commands\n\n{MADE}\n\n");
    text += "Every command, option and variable. [The command line](../cli.md) introduces them.\n\n";
    text += "| command | |\n|---|---|\n";
    for command in commands {
        let name = command.get_name();
        let _ = writeln!(text, "| [`solehold {name}`](commands/{name}.md) | {} |", cell(&about(command)));
    }
    text += "\n## Options of every command\n\nThey may stand before the command or after it. Commands that send no ";
    text += "requests to a server refuse those that\nname one.\n\n";
    text += &options(cli.get_arguments().filter(|arg| !arg.is_hide_set()));
    text += "\n## Variables\n\nA flag overrides its variable, and a variable overrides the configuration file.\n\n";
    text += "| variable | command | |\n|---|---|---|\n";
    for ((variable, meaning), commands) in all_variables(cli) {
        let _ = writeln!(text, "| `{variable}` | {} | {} |", commands.join(", "), cell(&meaning));
    }
    text += "\n## Exit codes\n\n| code | meaning |\n|---|---|\n";
    for exit in Exit::ALL {
        let _ = writeln!(text, "| {} | {} |", exit.code(), cell(exit.meaning()));
    }
    text
}

/// Every variable and what it means, with the commands that read it.
fn all_variables(cli: &Command) -> BTreeMap<(String, String), Vec<String>> {
    let mut all: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let globals = variables(cli, "solehold");
    for (variable, meaning) in &globals {
        all.insert((variable.clone(), meaning.clone()), vec!["all that ask a server".to_owned()]);
    }
    let mut left: Vec<&Command> = cli.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().filter(|below| !below.is_hide_set()));
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        for variable in variables(command, name) {
            if globals.contains_key(&variable.0) && globals[&variable.0] == variable.1 {
                continue;
            }
            all.entry(variable).or_default().push(format!("`{}`", name.replace('-', " ")));
        }
    }
    all.values_mut().for_each(|commands| commands.sort());
    all
}

/// A command, then those below it.
fn page(command: &Command) -> String {
    let mut text = String::new();
    let mut left = vec![(command, 1)];
    while let Some((command, depth)) = left.pop() {
        section(&mut text, command, depth);
        if depth == 1 {
            let _ = write!(text, "\n{MADE}\n");
        }
        body(&mut text, command);
        let below: Vec<_> = command.get_subcommands().filter(|below| !below.is_hide_set()).collect();
        left.extend(below.into_iter().rev().map(|below| (below, depth + 1)));
    }
    text
}

fn section(text: &mut String, command: &Command, depth: usize) {
    if depth > 1 {
        text.push('\n');
    }
    let _ = writeln!(text, "{} {}", "#".repeat(depth), full_name(command));
}

fn body(text: &mut String, command: &Command) {
    let _ = writeln!(text, "\n{}.", escaped(about(command).trim_end_matches('.')));
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).replace("\n       ", "\n");
    let _ = writeln!(text, "\n```text\n{usage}\n```");
    let own = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && !is_help(arg);
    let table = options(command.get_arguments().filter(own));
    if !table.is_empty() {
        let _ = write!(text, "\n{table}");
    }
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        let after = after.to_string();
        let lines: Vec<&str> = after.lines().filter(|line| *line != "Examples:").collect();
        let _ = writeln!(text, "\n```text\n{}\n```", lines.join("\n").trim_end());
    }
}

fn full_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn is_help(arg: &Arg) -> bool {
    ["help", "version"].contains(&arg.get_id().as_str())
}

/// A table of options and arguments; nothing, if there are none.
fn options<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let mut rows = String::new();
    for arg in args {
        let _ =
            writeln!(rows, "| {} | {} | {} |", cell(&written(arg)), cell(&defaults(arg)), cell(&help(arg)));
    }
    if rows.is_empty() { rows } else { format!("| option | default | |\n|---|---|---|\n{rows}") }
}

/// As it is written on the command line.
fn written(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default().iter();
    let values = names.map(|name| if arg.is_positional() { name.to_string() } else { format!("<{name}>") });
    let values = values.collect::<Vec<_>>().join(" ");
    let takes_value = arg.get_action().takes_values();
    let many = if arg.get_num_args().is_some_and(|count| count.max_values() > 1) { "..." } else { "" };
    let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    match arg.get_long() {
        Some(long) if takes_value => format!("{short}`--{long} {values}{many}`"),
        Some(long) => format!("{short}`--{long}`"),
        None => format!("`{values}{many}`"),
    }
}

fn defaults(arg: &Arg) -> String {
    if arg.is_hide_default_value_set() || !arg.get_action().takes_values() {
        return String::new();
    }
    let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if values.is_empty() { String::new() } else { format!("`{}`", values.join(" ")) }
}

/// What it does, its variable and its possible values.
fn help(arg: &Arg) -> String {
    let text = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = escaped(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    if let Some(variable) = arg.get_env() {
        let _ = write!(help, " (`{}`)", variable.to_string_lossy());
    }
    if arg.get_action().takes_values() && !arg.is_hide_possible_values_set() {
        let values = arg.get_possible_values();
        let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
        if !values.is_empty() {
            let values: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
            let _ = write!(help, " ({})", values.join(", "));
        }
    }
    if arg.is_required_set() {
        help += " (required)";
    }
    help
}

fn about(command: &Command) -> String {
    let about = command.get_long_about().or_else(|| command.get_about());
    about.map(ToString::to_string).unwrap_or_default()
}

/// Text in which `<` begins no HTML, outside of code.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

/// Text in one cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
