//! A server with keys and TLS, and a broker that asks for a password.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use rcgen::{CertificateParams, KeyPair};
use reqwest::{Certificate, Client};
use serde_json::{Value, json};
use solehold_testkit::{Mosquitto, Solehold, TempDir, free_port, wait_for};
use tokio::time::timeout;

use crate::world::{Kind, PATIENCE, consume_by, options, program};

/// With what a URL must escape.
const PASSWORD: &str = "p@ss:w%rd";

struct World {
    server: Solehold,
    http: Client,
    admin: String,
    broker: Mosquitto,
    broker_tls: u16,
    folder: TempDir,
}

impl World {
    async fn start() -> Result<Self> {
        let folder = TempDir::new()?;
        certificate(folder.path())?;
        let file = |name: &str| folder.path().join(name);
        let server = Solehold::builder().arg("--tls-cert").arg(file("cert.pem"));
        let server = server.arg("--tls-key").arg(file("key.pem")).start().await?;
        let trusted = Certificate::from_pem(&fs::read(file("cert.pem"))?)?;
        let http = Client::builder().add_root_certificate(trusted).build()?;
        let (broker, broker_tls) = guarded_broker(folder.path()).await?;
        let mut world = Self { server, http, admin: String::new(), broker, broker_tls, folder };
        (_, world.admin) = world.key("admin").await?;
        let url = format!("{}/api/v1/scenes/scene-00", world.url());
        let declared = world.http.put(url).bearer_auth(&world.admin).json(&json!({})).send().await?;
        ensure!(declared.status().is_success(), "not declared: {}", declared.text().await?);
        Ok(world)
    }

    /// The name in the certificate.
    fn url(&self) -> String {
        self.server.url().replace("127.0.0.1", "localhost")
    }

    /// A new key with this role: its id, and the key itself.
    async fn key(&self, role: &str) -> Result<(String, String)> {
        let ask = self.http.post(format!("{}/api/v1/admin/keys", self.url()));
        let ask = if self.admin.is_empty() { ask } else { ask.bearer_auth(&self.admin) };
        let made: Value = ask.json(&json!({ "name": role, "role": role })).send().await?.json().await?;
        let text = |name: &str| made[name].as_str().map(str::to_owned).with_context(|| made.to_string());
        Ok((text("id")?, text("key")?))
    }

    async fn revoke(&self, id: &str) -> Result<()> {
        let url = format!("{}/api/v1/admin/keys/{id}", self.url());
        let revoked = self.http.delete(url).bearer_auth(&self.admin).send().await?;
        ensure!(revoked.status().is_success(), "not revoked: {}", revoked.text().await?);
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A tracker that can reach everything; the key, if there is one, is in its environment.
    fn tracker(&self, kind: Kind, key: Option<&str>) -> Command {
        let mut command = program(kind);
        command.args(["--server", &self.url(), "--id", "t", "--ca-cert"]).arg(self.file("cert.pem"));
        let unit = if kind == Kind::Rust { "s" } else { "" };
        command.args(["--ttl", &format!("3{unit}"), "--renew-every", &format!("1{unit}")]);
        command.args(["--broker", &format!("mqtts://tracker@localhost:{}", self.broker_tls), "--broker-ca"]);
        command.arg(self.file("cert.pem")).arg("--broker-password-file").arg(self.file("password"));
        command.envs(key.map(|key| ("SOLEHOLD_API_KEY", key)));
        command
    }
}

/// A certificate that signs itself, for the loopback.
fn certificate(folder: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    let params = CertificateParams::new(vec!["localhost".to_owned()])?;
    fs::write(folder.join("cert.pem"), params.self_signed(&key)?.pem())?;
    fs::write(folder.join("key.pem"), key.serialize_pem())?;
    Ok(fs::write(folder.join("password"), format!("{PASSWORD}\n"))?)
}

/// A broker that asks for passwords: the consumer reaches it in the clear, trackers by TLS at the port returned.
async fn guarded_broker(folder: &Path) -> Result<(Mosquitto, u16)> {
    let tls = free_port()?;
    let passwords = folder.join("passwords");
    for (more, user, password) in [(Some("-c"), "tracker", PASSWORD), (None, "consumer", "c")] {
        let mut command = Command::new("mosquitto_passwd");
        let made = command.args(more).arg("-b").arg(&passwords).args([user, password]).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let at = folder.display();
    let broker = Mosquitto::configured(|_, port| {
        Ok(format!(
            "allow_anonymous false\npassword_file {at}/passwords\nlistener {port} 127.0.0.1\n\
             listener {tls} 127.0.0.1\ncertfile {at}/cert.pem\nkeyfile {at}/key.pem\n"
        ))
    });
    Ok((broker.await?, tls))
}

/// What a program printed that ends by itself.
async fn ended(command: Command) -> Result<Output> {
    let mut command = tokio::process::Command::from(command);
    Ok(timeout(PATIENCE, command.kill_on_drop(true).output()).await.context("it goes on")??)
}

async fn follows_with_key_tls_and_login(kind: Kind) -> Result<()> {
    let world = World::start().await?;
    let mut consumer = options(world.broker.port(), "consumer");
    consumer.set_credentials("consumer", "c");
    let (inbox, _task) = consume_by(consumer, "scenescape/#").await?;
    let (id, key) = world.key("runner").await?;
    let running = tokio::spawn(ended(world.tracker(kind, Some(&key))));
    wait_for("messages", PATIENCE, async || running.is_finished() || !inbox.all().is_empty()).await?;
    ensure!(!inbox.all().is_empty(), "it published nothing: {:?}", running.await?);

    // A key that is revoked ends it, and does not leave it idle.
    world.revoke(&id).await?;
    is_refused(&running.await??, "unauthorized: ")
}

/// It has ended, and said why.
fn is_refused(output: &Output, words: &str) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    let is_told =
        |line: &str| line.starts_with("tracker: the server refuses this tracker: ") && line.contains(words);
    let is_right = told.lines().any(is_told);
    ensure!(is_right && output.status.code() == Some(1), "{} {told}", output.status);
    ensure!(!said.contains("has 0 scenes"), "{said}");
    Ok(())
}

#[tokio::test]
async fn the_tracker_follows_with_key_tls_and_login() -> Result<()> {
    follows_with_key_tls_and_login(Kind::Rust).await
}

#[tokio::test]
async fn the_tracker_with_plain_http_follows_with_key_tls_and_login() -> Result<()> {
    follows_with_key_tls_and_login(Kind::Python).await
}

async fn ends_when_it_is_refused(kind: Kind) -> Result<()> {
    let world = World::start().await?;
    let (_, reader) = world.key("reader").await?;
    for (key, words) in
        [(None, "unauthorized: "), (Some("wrong"), "unauthorized: "), (Some(reader.as_str()), "forbidden: ")]
    {
        is_refused(&ended(world.tracker(kind, key)).await?, words)?;
    }
    let mut odd = program(kind);
    odd.args(["--id", "t", "--broker", "mqtts://localhost", "--broker-ca", "/nonexistent.pem"]);
    let output = ended(odd).await?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && told.contains("--broker-ca /nonexistent.pem"), "{told}");
    Ok(())
}

#[tokio::test]
async fn the_tracker_ends_when_it_is_refused() -> Result<()> {
    ends_when_it_is_refused(Kind::Rust).await
}

#[tokio::test]
async fn the_tracker_with_plain_http_ends_when_it_is_refused() -> Result<()> {
    ends_when_it_is_refused(Kind::Python).await
}
