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

/// Explains how to build `commands`.
pub fn error(commands: &str, feature: &str) -> CommandError {
    let needs = match feature {
        "kafka" => " (it builds librdkafka, which needs a C compiler, make, pkg-config and libssl-dev)",
        _ => "",
    };
    CommandError::usage(format!(
        "this solehold was built without {commands}; build one with `cargo build --release --features {feature}`{needs}"
    ))
}
