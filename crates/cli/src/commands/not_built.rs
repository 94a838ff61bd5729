//! Commands whose feature this build lacks.

use std::ffi::OsString;

use clap::Args;

use crate::error::CommandError;

/// The arguments of a command that is not in this build: any.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct NotBuilt {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<OsString>,
}

/// Explains how to build the command.
pub fn error(command: &str, feature: &str, needs: &str) -> CommandError {
    CommandError::usage(format!(
        "this solehold was built without `{command}`; build one with `cargo build --release --features {feature}` ({needs})"
    ))
}
