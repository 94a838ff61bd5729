//! The server under test, as a process.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::server::Server;
use crate::{FakeClock, Program};

/// What the server prints, before its address, once it serves.
const LISTENING: &str = "solehold listening on ";

/// A running `solehold serve`: a [`Program`] with a URL.
#[derive(Debug)]
pub struct Solehold {
    program: Program,
    url: String,
}

impl Solehold {
    /// A server on a free port with the embedded engine in a folder of its own, unless told otherwise.
    pub fn builder() -> SoleholdBuilder {
        SoleholdBuilder::default()
    }

    /// The `solehold` binary: `CARGO_BIN_EXE_solehold` if set, else the one built beside this test.
    pub fn binary() -> Result<PathBuf> {
        if let Some(path) = std::env::var_os("CARGO_BIN_EXE_solehold") {
            return Ok(path.into());
        }
        let test = std::env::current_exe()?;
        // target/debug/deps/test-1234 and target/debug/solehold
        let found =
            test.ancestors().skip(1).take(3).map(|folder| folder.join("solehold")).find(|p| p.is_file());
        found.with_context(|| {
            format!("no `solehold` beside {}: run `cargo build -p solehold`", test.display())
        })
    }

    /// Where it serves, such as `http://127.0.0.1:41234`.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Deref for Solehold {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

/// How a [`Solehold`] is to run.
#[derive(Clone, Debug, Default)]
pub struct SoleholdBuilder {
    binary: Option<PathBuf>,
    listen: Option<SocketAddr>,
    store: Option<[OsString; 2]>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    clock: Option<FakeClock>,
}

impl SoleholdBuilder {
    /// The embedded engine in this folder, which outlives the server.
    pub fn data_dir(mut self, folder: impl AsRef<Path>) -> Self {
        let folder = std::path::absolute(folder.as_ref()).unwrap_or_else(|_| folder.as_ref().to_owned());
        self.store = Some(["--data-dir".into(), folder.into()]);
        self
    }

    /// The engine at this address, such as `postgres://...`.
    pub fn engine(mut self, url: impl Into<OsString>) -> Self {
        self.store = Some(["--engine".into(), url.into()]);
        self
    }

    /// A fixed address instead of any free port, for a server that comes back where its clients know it
    /// (take the port from [`free_port`](crate::free_port)).
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// One argument more, after `serve` and the others.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// An environment variable. No `SOLEHOLD_*` variable of the test's own environment reaches the server.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs it by this wall clock.
    pub fn fake_clock(mut self, clock: &FakeClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Runs this program instead of [`Solehold::binary`].
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Starts it, and waits until it says that it listens.
    pub async fn start(&self) -> Result<Solehold> {
        let server = Server::new("solehold", "KILL")?;
        let command = self.command(server.folder())?;
        let program = Program::start_in(server, &command, LISTENING).await?;
        let url = program.said().split(' ').next().unwrap_or_default().to_owned();
        Ok(Solehold { program, url })
    }

    fn command(&self, folder: &Path) -> Result<Command> {
        let binary = self.binary.clone().map_or_else(Solehold::binary, Ok)?;
        let listen = self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let store = self.store.clone().unwrap_or_else(|| ["--data-dir".into(), folder.join("data").into()]);
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", &listen.to_string()]).args(store).args(&self.args);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SOLEHOLD_"))
        {
            command.env_remove(name);
        }
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}
