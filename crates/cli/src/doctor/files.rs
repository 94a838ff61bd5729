//! Files with secrets in them: only their owner should be able to read them.

use std::path::PathBuf;

use super::Finding;

const CHECK: &str = "permissions";
const OTHERS: u32 = 0o007;
const GROUP: u32 = 0o070;

/// A file that holds a secret.
#[derive(Debug, Clone)]
pub struct SecretFile {
    /// As in `the private key of TLS`.
    pub what: &'static str,
    pub path: PathBuf,
    /// Its permissions, or why they cannot be read.
    pub mode: Result<u32, String>,
}

pub fn judge(files: &[SecretFile]) -> Vec<Finding> {
    files.iter().map(one).collect()
}

fn one(file: &SecretFile) -> Finding {
    let path = file.path.display();
    let what = file.what;
    let mode = match &file.mode {
        Ok(mode) => mode & 0o777,
        Err(error) => {
            return Finding::problem(
                CHECK,
                format!("{what} in {path} cannot be looked at: {error}"),
                "the server reads it at its start",
                "correct the path, or let the user that runs the server read the file",
            );
        }
    };
    let remedy = format!("chmod 600 {path}");
    if mode & OTHERS != 0 {
        let seen = format!("{what} in {path} can be read by every user of this machine (mode {mode:03o})");
        return Finding::problem(CHECK, seen, "whoever reads it can act as this server", remedy);
    }
    if mode & GROUP != 0 {
        let seen = format!("{what} in {path} can be read by its group (mode {mode:03o})");
        let why = "every member of the group can act as this server";
        return Finding::warning(CHECK, seen, why, format!("{remedy}, unless the group is meant to read it"));
    }
    Finding::ok(CHECK, format!("only its owner can read {what} in {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Severity, testing::worst};

    #[test]
    fn a_secret_is_for_its_owner_alone() {
        let file = |mode| SecretFile { what: "the private key of TLS", path: "key.pem".into(), mode };
        for (mode, severity) in [
            (Ok(0o100_600), Severity::Ok),
            (Ok(0o400), Severity::Ok),
            (Ok(0o640), Severity::Warning),
            (Ok(0o644), Severity::Problem),
            (Ok(0o602), Severity::Problem),
            (Err("No such file".to_owned()), Severity::Problem),
        ] {
            assert_eq!(worst(&judge(&[file(mode.clone())])), severity, "{mode:?}");
        }
    }
}
