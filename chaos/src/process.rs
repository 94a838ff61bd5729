//! A process that is killed and started again at its place.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};
use solehold_testkit::Program;

/// How to start a program, and the one that runs.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    command: Command,
    ready: &'static str,
    running: Option<Program>,
}

impl Process {
    /// A process of `program` that is not started yet; `ready` is how the line begins that it prints once it works.
    pub fn new(
        name: &'static str,
        program: &Path,
        arguments: impl IntoIterator<Item = String>,
        ready: &'static str,
    ) -> Self {
        let mut command = Command::new(program);
        command.args(arguments);
        Self { name, command, ready, running: None }
    }

    /// Starts it, unless it runs.
    pub async fn start(&mut self) -> Result<()> {
        if self.running.is_none() {
            self.running = Some(Program::start(self.name, &self.command, self.ready).await?);
        }
        Ok(())
    }

    /// SIGKILL.
    pub async fn kill(&mut self) -> Result<()> {
        match self.running.take() {
            Some(program) => program.kill9().await,
            None => Ok(()),
        }
    }

    /// SIGTERM; fails if it does not end well.
    pub async fn terminate(&mut self) -> Result<()> {
        let Some(program) = self.running.take() else { return Ok(()) };
        let status = program.terminate().await?;
        anyhow::ensure!(status.success(), "{} ended with {status}:\n{}", self.name, program.logs());
        Ok(())
    }

    /// The one that runs.
    pub fn program(&self) -> Result<&Program> {
        self.running.as_ref().with_context(|| format!("{} does not run", self.name))
    }
}
