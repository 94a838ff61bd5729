//! Python with what a test needs, in a virtual environment of its own.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, ensure};

use crate::package_file;

/// The interpreter of the environment that `scripts/NAME/requirements.txt` describes, which is made if it is missing.
pub fn python(name: &str) -> Result<PathBuf> {
    let script = package_file("../../scripts/python-environment");
    let output = Command::new(script).arg(name).output()?;
    ensure!(output.status.success(), "no Python for {name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()).join("bin/python"))
}
