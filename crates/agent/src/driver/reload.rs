//! Looks at the configuration file again and again. A new one that is wrong is refused, once, and the old one stays.

use std::{fs, path::PathBuf};

use crate::config::{self, AgentFile, ConfigError, Settings};

/// Changes what a file says, such as by flags.
pub type Change = Box<dyn Fn(&mut AgentFile) + Send>;

#[derive(Debug)]
pub(super) enum Reloaded {
    Same,
    Changed(Box<Settings>),
    Refused(String),
}

/// Reads the file, and notices when it has changed.
pub struct Reloader {
    path: PathBuf,
    change: Change,
    seen: Option<Vec<u8>>,
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Reloader {
    pub fn load(path: PathBuf, change: Change) -> Result<(Self, Settings), ConfigError> {
        let seen = fs::read(&path).ok();
        let settings = config::load(&path, &change)?;
        Ok((Self { path, change, seen }, settings))
    }

    /// What became of the file since it was looked at last. By its bytes, since the time of a file says little where
    /// files are replaced by links. A file that is away is being replaced.
    pub(super) fn look(&mut self, present: &Settings) -> Reloaded {
        let Ok(bytes) = fs::read(&self.path) else { return Reloaded::Same };
        if self.seen.as_ref() == Some(&bytes) {
            return Reloaded::Same;
        }
        self.seen = Some(bytes);
        match config::load(&self.path, &self.change) {
            Err(error) => Reloaded::Refused(error.to_string()),
            Ok(next) => match present.fixed_change(&next) {
                Some(key) => {
                    Reloaded::Refused(format!("{key} cannot change while the agent runs: start it again"))
                }
                None => Reloaded::Changed(Box::new(next)),
            },
        }
    }
}
