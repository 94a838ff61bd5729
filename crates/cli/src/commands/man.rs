//! `solehold man`: the manual pages, made from the definitions of the commands.

mod markdown;

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use clap::{Args, Command};
use clap_mangen::{
    Man,
    roff::{Roff, bold, italic, roman},
};

use crate::{
    config,
    error::{CommandError, CommandResult},
    exit::Exit,
    output,
};

#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder to write them into, which is made if it is missing; `man -l DIR/solehold.1` shows the first
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Write Markdown instead: `commands.md`, and a page for each command in `commands/`
    #[arg(long)]
    markdown: bool,
}

/// The files of an installed package, by the command that they belong to.
const FILES: [(&str, &str, &str); 6] = [
    ("solehold-serve", "/etc/solehold/solehold.yaml", "The configuration of solehold.service."),
    ("solehold-serve", "/etc/default/solehold", "Variables of solehold.service."),
    ("solehold-serve", "/etc/solehold/credentials/", "Secrets, which only the service can read."),
    ("solehold-serve", "/var/lib/solehold/", "The data folder of solehold.service."),
    ("solehold-agent", "/etc/solehold/agents/NAME.yaml", "The configuration of solehold-agent@NAME.service."),
    ("solehold-agent", "/etc/solehold/agents/NAME.key", "Its API key."),
];

pub fn run(args: &ManArgs, cli: Command) -> CommandResult {
    let folder = &args.folder;
    let mut cli = cli.disable_help_subcommand(true);
    // Options that `-h` leaves out have no help to show otherwise.
    cli = cli.mut_args(|arg| arg.hide_short_help(false));
    cli.build();
    let write = || if args.markdown { markdown::write_all(&cli, folder) } else { write_all(cli, folder) };
    let count = fs::create_dir_all(folder).and_then(|()| write()).map_err(|error| {
        CommandError::usage(format!("cannot write manual pages to {}: {error}", folder.display()))
    })?;
    output::line(format!("wrote {count} manual pages to {}", folder.display()))
}

fn write_all(cli: Command, folder: &Path) -> io::Result<usize> {
    let date = date();
    let mut left = vec![cli];
    let mut count = 0;
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned());
        let man = Man::new(command.clone()).source(format!("solehold {}", env!("CARGO_PKG_VERSION")));
        let man = man.manual("Solehold").date(&date);
        fs::write(folder.join(man.get_filename()), page(&man, &command)?)?;
        count += 1;
    }
    Ok(count)
}

/// The day that `SOURCE_DATE_EPOCH` names, as in all builds that can be repeated. A blank has quotes around it: an
/// empty argument would be left out, and the next one taken for the date.
fn date() -> String {
    let seconds = env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let time = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    let text = time.map(|time| humantime::format_rfc3339_seconds(time).to_string());
    text.and_then(|text| Some(text.split_once('T')?.0.to_owned())).unwrap_or_else(|| " ".to_owned())
}

fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut rest = Roff::new();
    examples(&mut rest, command);
    environment(&mut rest, command, name);
    files(&mut rest, name);
    exit_status(&mut rest, name);
    see_also(&mut rest, name);
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// What the help has at its end, as it stands there. That of the program is the table of exit codes.
fn examples(page: &mut Roff, command: &Command) {
    let Some(text) = command.get_after_help() else { return };
    let text = text.to_string();
    page.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in text.lines().filter(|line| *line != "Examples:") {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}

fn environment(page: &mut Roff, command: &Command, name: &str) {
    let variables = variables(command, name);
    if variables.is_empty() {
        return;
    }
    page.control("SH", ["ENVIRONMENT"]);
    for (variable, meaning) in variables {
        page.control("TP", []).text([bold(variable)]).text([roman(meaning)]);
    }
}

/// The variables that options name, each with its option; for `serve` also those of keys that have no option.
fn variables(command: &Command, name: &str) -> BTreeMap<String, String> {
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(long) = arg.get_long() else { continue };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let in_help = help.split("[env: ").nth(1).and_then(|rest| rest.split(']').next());
        let own = arg.get_env().map(|name| name.to_string_lossy().into_owned());
        if let Some(variable) = own.or_else(|| in_help.map(str::to_owned)) {
            variables.insert(variable, format!("The same as --{long}."));
        }
    }
    if name == "solehold-serve" {
        let first_key = "The text of the first key, stored once when there are no keys.";
        variables.insert("SOLEHOLD_BOOTSTRAP_KEY".to_owned(), first_key.to_owned());
        for variable in config::VARIABLES {
            let of_file = "The same as the key of the configuration file with this name.";
            variables.entry((*variable).to_owned()).or_insert_with(|| of_file.to_owned());
        }
    }
    for secret in config::SECRETS {
        if variables.contains_key(secret) {
            let in_file = format!("A file that has the value of {secret}.");
            variables.insert(format!("{secret}_FILE"), in_file);
        }
    }
    variables
}

fn files(page: &mut Roff, name: &str) {
    let files: Vec<_> = FILES.iter().filter(|(command, ..)| *command == name).collect();
    if files.is_empty() {
        return;
    }
    page.control("SH", ["FILES"]);
    for (_, path, meaning) in files {
        page.control("TP", []).text([italic(*path)]).text([roman(*meaning)]);
    }
}

/// Only the commands that hold a lease for a command have the codes that name them.
fn exit_status(page: &mut Roff, name: &str) {
    let has_command = ["solehold", "solehold-run", "solehold-lock", "solehold-elect", "solehold-lease-keep"]
        .contains(&name);
    page.control("SH", ["EXIT STATUS"]);
    for exit in Exit::ALL {
        if exit.meaning().starts_with("run, lock,") && !has_command {
            continue;
        }
        page.control("TP", []).text([bold(exit.code().to_string())]).text([roman(exit.meaning())]);
    }
}

fn see_also(page: &mut Roff, name: &str) {
    let Some((above, _)) = name.rsplit_once('-') else { return };
    page.control("SH", ["SEE ALSO"]).text([bold(above), roman("(1)")]);
}
