//! `solehold completions`: what a shell needs to complete our commands.

use clap::Args;
use clap_complete::{Shell, generate};

use crate::{error::CommandResult, output};

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell; as in `solehold completions bash > /etc/bash_completion.d/solehold`
    shell: Shell,
}

pub fn run(args: &CompletionsArgs, cli: &mut clap::Command) -> CommandResult {
    let mut script = Vec::new();
    generate(args.shell, cli, "solehold", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
