//! `solehold completions`: what a shell needs to complete our commands.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::{args::Cli, failure::Outcome, output};

/// For which shell.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell; as in `solehold completions bash > /etc/bash_completion.d/solehold`
    shell: Shell,
}

/// Runs it.
pub fn run(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "solehold", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
