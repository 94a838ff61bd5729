//! What is in files that options name. An error names the option and the file.

use std::{fmt::Display, fs, path::Path};

use solehold_client::transport;

use crate::error::{CommandError, CommandResult};

/// Certificates to trust, in PEM.
pub fn certificates(option: &str, path: &Path) -> CommandResult<Vec<u8>> {
    let odd = |why: &dyn Display| invalid(option, path, &format!("{why}; give a PEM file"));
    let pem = fs::read(path).map_err(|error| odd(&error))?;
    transport::check_certificates(&pem).map_err(|error| odd(&error))?;
    Ok(pem)
}

/// A secret, without the end of its line.
pub fn secret(option: &str, path: &Path) -> CommandResult<String> {
    let text = fs::read_to_string(path).map_err(|error| invalid(option, path, &error))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(invalid(option, path, &"the file is empty")),
        secret => Ok(secret.to_owned()),
    }
}

pub fn invalid(option: &str, path: &Path, why: &dyn Display) -> CommandError {
    CommandError::usage(format!("{option} {}: {why}", path.display()))
}
