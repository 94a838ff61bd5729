//! Examples at the end of each command's help, and a test that they are there and can be typed as they stand.

/// The text below the options: each line as it follows `solehold`.
macro_rules! examples {
    ($($line:literal),+ $(,)?) => { concat!("Examples:", $("\n  solehold ", $line),+) };
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::args::Cli;

    /// The words of a line as a shell would split them, up to a pipe, a redirection or an ampersand.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for c in line.chars() {
            match (quote, c) {
                (None, '"' | '\'') => quote = Some(c),
                (Some(open), _) if open == c => quote = None,
                (None, ' ') => words.push(String::new()),
                (None, '|' | '>' | '&' | ';') => break,
                _ => words.last_mut().expect("a word").push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        // The shell's own process id.
        words.iter_mut().filter(|word| *word == "$$").for_each(|word| *word = "4711".to_owned());
        words
    }

    /// The lines of a help that run this program, wherever they stand in a script.
    fn commands(help: &str) -> impl Iterator<Item = &str> {
        let (_, examples) = help.split_once("Examples:\n").unwrap_or_default();
        examples.lines().filter_map(|line| line.find("solehold ").map(|at| &line[at..]))
    }

    fn check(command: &clap::Command, path: &str, lacking: &mut Vec<String>) {
        let below: Vec<_> = command
            .get_subcommands()
            .filter(|below| !below.is_hide_set() && below.get_name() != "help")
            .collect();
        for below in &below {
            check(below, &format!("{path} {}", below.get_name()), lacking);
        }
        if !below.is_empty() {
            return;
        }
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let own: Vec<&str> = commands(&help).filter(|line| line.starts_with(path)).collect();
        if own.is_empty() {
            lacking.push(format!("{path}: no line of it below \"Examples:\" in its help"));
        }
        for line in commands(&help) {
            if let Err(error) = Cli::try_parse_from(words(line)) {
                lacking.push(format!("{line}: {error}"));
            }
        }
    }

    #[test]
    fn every_command_has_examples_that_can_be_typed() {
        let mut lacking = Vec::new();
        check(&Cli::command(), "solehold", &mut lacking);
        assert!(lacking.is_empty(), "{}", lacking.join("\n"));
    }

    #[test]
    fn lines_are_split_as_a_shell_splits_them() {
        assert_eq!(
            words("solehold sql --claimable \"a = 'b'\" | psql"),
            ["solehold", "sql", "--claimable", "a = 'b'"]
        );
        assert_eq!(words("solehold run -- ./x  > out &"), ["solehold", "run", "--", "./x"]);
        assert_eq!(commands("text solehold no\nExamples:\n  coproc { exec solehold yes; }").count(), 1);
    }
}
