//! A private RabbitMQ, with an Erlang port mapper of its own.

use std::{fs, net::TcpStream, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{port::Port, program::on_path, server::Server};

/// It takes eight seconds where nothing else runs.
const START: Duration = Duration::from_secs(180);
/// The one in `sbin` changes the user.
const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// A running RabbitMQ. Starting one takes long: a test process should start no more than one.
#[derive(Debug)]
pub struct RabbitMq {
    // First, so that it ends before what it is registered with.
    server: Server,
    _mapper: Server,
    mapper_port: Port,
    port: Port,
    distribution_port: Port,
    tls_port: Port,
}

impl RabbitMq {
    /// Starts one, and waits until it takes clients.
    pub async fn start() -> Result<Self> {
        Self::start_with(None).await
    }

    /// The same, which also speaks TLS with this certificate and its key, both PEM.
    pub async fn start_tls(certificate: &str, key: &str) -> Result<Self> {
        Self::start_with(Some([certificate, key])).await
    }

    async fn start_with(tls: Option<[&str; 2]>) -> Result<Self> {
        ensure!(
            Path::new(PROGRAM).is_file(),
            "RabbitMQ is not here: install the Debian package `rabbitmq-server`"
        );
        let mapper_port = Port::reserve()?;
        let mapper = start_mapper(&mapper_port).await?;
        let server = Server::new("rabbitmq", "KILL")?;
        let port = Port::reserve()?;
        let distribution_port = Port::reserve()?;
        let tls_port = Port::reserve()?;
        let folder = server.folder();
        let mut config = String::new();
        if let Some([certificate, key]) = tls {
            let [certificate_file, key_file] = ["cert.pem", "key.pem"].map(|file| folder.join(file));
            fs::write(&certificate_file, certificate)?;
            fs::write(&key_file, key)?;
            config = format!(
                "listeners.ssl.1 = 127.0.0.1:{}\nssl_options.certfile = {}\nssl_options.keyfile = {}\n\
                 ssl_options.verify = verify_none\n",
                tls_port.number,
                certificate_file.display(),
                key_file.display()
            );
        }
        fs::write(folder.join("rabbitmq.conf"), config)?;
        fs::write(folder.join("plugins"), "[].\n")?;
        let broker = Self { server, _mapper: mapper, mapper_port, port, distribution_port, tls_port };
        broker.spawn().await?;
        Ok(broker)
    }

    async fn spawn(&self) -> Result<()> {
        let folder = self.server.folder();
        let mut command = Command::new(PROGRAM);
        let number = |port: &Port| port.number.to_string();
        command
            .env("HOME", folder)
            .env("ERL_EPMD_PORT", number(&self.mapper_port))
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("t{}@localhost", self.port.number))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", number(&self.port))
            .env("RABBITMQ_DIST_PORT", number(&self.distribution_port))
            .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("plugins"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            // The script becomes the broker instead of waiting for it.
            .env("RUNNING_UNDER_SYSTEMD", "true");
        self.server.spawn(&command, None)?;
        self.server.wait_ready(START, || listens(&self.port)).await
    }

    /// Such as `amqp://guest:guest@127.0.0.1:21234/%2f`.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port.number)
    }

    /// The same over TLS, by the name `localhost`.
    pub fn tls_url(&self) -> String {
        format!("amqps://guest:guest@localhost:{}/%2f", self.tls_port.number)
    }

    /// Ends it with SIGKILL.
    pub async fn kill9(&self) -> Result<()> {
        self.server.kill9().await
    }

    /// Starts it again, with what it had on disk.
    pub async fn restart(&self) -> Result<()> {
        self.spawn().await
    }
}

fn listens(port: &Port) -> Option<()> {
    TcpStream::connect(("127.0.0.1", port.number)).is_ok().then_some(())
}

/// Otherwise RabbitMQ would start one for the whole machine, which nobody ends.
async fn start_mapper(port: &Port) -> Result<Server> {
    let program = on_path("epmd", &["/usr/lib/erlang/bin"]).context("Erlang's epmd is not here")?;
    let server = Server::new("epmd", "TERM")?;
    let mut command = Command::new(program);
    command.args(["-port", &port.number.to_string(), "-address", "127.0.0.1"]);
    server.spawn(&command, None)?;
    server.wait_ready(START, || listens(port)).await?;
    Ok(server)
}
