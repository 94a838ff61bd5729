//! What is secret is in no log line, at any level, whatever goes wrong.

mod common;

use std::{fs, path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use common::{Ran, SOON, command, ran, write};
use rustix::process::{Pid, Signal, kill_process};
use solehold_testkit::{Postgres, TempDir, free_port, wait_for};
use tokio::process::{Child, Command};

const DATABASE: &str = "hunter1ofthedatabase";
const KEY: &str = "hunter2, the text of a first key, long enough to be one";
const WRONG_KEY: &str = "hunter3, which is the key of nobody here at all";
const HEADER: &str = "hunter4-of-the-collector";
const RELAYS: &str = "
relays:
  - name: queue
    rabbitmq: {url: 'amqp://relay:hunter5@127.0.0.1:CLOSED/vhost'}
  - name: floor
    mqtt: {url: 'mqtt://relay:hunter6@127.0.0.1:CLOSED'}
  - name: hook
    webhook: {url: 'http://relay:hunter7@127.0.0.1:CLOSED/?token=hunter8', secret_file: SECRET_FILE}
";
const SIGNING: &str = "hunter9, a secret of thirty-two bytes or more";

/// A server whose every line is kept, with a secret of every sort.
struct Place {
    folder: TempDir,
    engine: String,
    address: String,
    closed: u16,
}

impl Place {
    fn new(postgres: &Postgres) -> Result<Self> {
        let folder = TempDir::new()?;
        let closed = free_port()?;
        let secret = write(folder.path(), "secret", SIGNING)?;
        let relays = RELAYS.replace("CLOSED", &closed.to_string()).replace("SECRET_FILE", &secret);
        write(folder.path(), "solehold.yaml", &relays)?;
        let address = format!("127.0.0.1:{}", free_port()?);
        Ok(Self { folder, engine: postgres.url(), address, closed })
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }

    fn serve(&self) -> Command {
        let config = self.folder.path().join("solehold.yaml");
        let mut serve = command(["serve", "--listen", &self.address, "--engine", &self.engine, "--config"]);
        serve.arg(config).args(["--log-level", "trace"]);
        serve.args(["--otlp-endpoint", &format!("http://127.0.0.1:{}", self.closed)]);
        serve.env("SOLEHOLD_BOOTSTRAP_KEY", KEY).env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-key={HEADER}"));
        serve
    }

    fn start(&self) -> Result<Child> {
        let log = fs::File::create(self.log())?;
        Ok(self.serve().stdout(log.try_clone()?).stderr(Stdio::from(log)).spawn()?)
    }

    /// Runs a command against it, with everything that it has to say.
    async fn ask(&self, key: &str, arguments: &str) -> Result<Ran> {
        let mut command = command(arguments.split_whitespace());
        command.args(["--log-level", "trace", "--server", &format!("http://{}", self.address)]);
        command.env("SOLEHOLD_API_KEY", key);
        ran(command).await
    }
}

fn check(text: &str, secrets: &[&str]) -> Result<()> {
    for line in text.lines() {
        let found = secrets.iter().find(|secret| line.contains(*secret));
        ensure!(found.is_none(), "{found:?} was logged: {line}");
    }
    Ok(())
}

fn logged(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

#[tokio::test]
async fn no_log_line_has_a_secret() -> Result<()> {
    let postgres = Postgres::builder().password(DATABASE).start().await?;
    let place = Place::new(&postgres)?;
    let mut server = place.start()?;
    let is_up = async || place.ask(KEY, "lease ls").await.is_ok_and(|ran| ran.code == Some(0));
    wait_for("the server", SOON, is_up).await?;

    let mut said = Vec::new();
    let created = place.ask(KEY, "admin key create --name second --role admin").await?;
    ensure!(created.code == Some(0), "{created:?}");
    let second = created.stdout.trim().to_owned();
    said.push(created.stderr);
    for (key, arguments) in [
        (KEY, "lease acquire job/a --holder ann --ttl 1m"),
        (second.as_str(), "lock nightly -- true"),
        (WRONG_KEY, "lease ls"),
        (KEY, "doctor"),
    ] {
        said.push(place.ask(key, arguments).await?.stderr);
    }
    postgres.stop().await?;
    said.push(place.ask(KEY, "lease acquire job/b --holder ann").await?.stderr);
    // One that cannot start says why.
    let ended = ran(place.serve()).await?;
    ensure!(ended.code != Some(0) && !ended.stderr.is_empty(), "{ended:?}");
    said.push(ended.stderr);
    postgres.start_again().await?;
    let again = async || {
        place.ask(KEY, "lease acquire job/b --holder ann").await.is_ok_and(|ran| ran.code == Some(0))
    };
    wait_for("the server to serve again", SOON, again).await?;
    let relays = async || {
        let log = logged(&place.log()).unwrap_or_default();
        ["queue", "floor", "hook"].iter().all(|name| log.contains(&format!("relay=\"{name}\"")))
    };
    wait_for("each relay to fail", SOON, relays).await?;
    let pid = Pid::from_raw(server.id().context("it runs")?.cast_signed()).context("a pid")?;
    kill_process(pid, Signal::TERM)?;
    tokio::time::timeout(SOON, server.wait()).await??;

    let log = logged(&place.log())?;
    ensure!(log.contains("TRACE") && log.contains("DEBUG"), "everything is logged");
    said.push(log);
    let secrets = [DATABASE, KEY, WRONG_KEY, HEADER, SIGNING, "hunter", &second];
    said.iter().try_for_each(|text| check(text, &secrets))
}
