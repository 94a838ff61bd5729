//! A broker with TLS, users and access control.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use rcgen::{CertificateParams, KeyPair};
use solehold_testkit::{Mosquitto, free_port, wait_for};

use crate::world::{Gate, PATIENCE, Publisher, Server, subscribe_as};

/// With what a URL must escape.
const PASSWORD: &str = "p@ss:w%rd";

/// A broker that asks for passwords: test clients reach it in the clear, the gate by TLS.
struct Guarded {
    broker: Mosquitto,
    folder: PathBuf,
    tls_port: u16,
}

impl Guarded {
    /// `may` says what the gate's user may do.
    async fn start(may: &str) -> Result<Self> {
        let tls_port = free_port()?;
        let mut place = PathBuf::new();
        let broker = Mosquitto::configured(|folder, port| {
            place = folder.to_owned();
            certificate(folder)?;
            passwords(folder)?;
            access(folder, may)?;
            let at = folder.display();
            Ok(format!(
                "allow_anonymous false\npassword_file {at}/passwords\nacl_file {at}/acl\nmax_queued_messages 0\n\
                 listener {port} 127.0.0.1\nlistener {tls_port} 127.0.0.1\ncertfile {at}/cert.pem\nkeyfile {at}/key.pem\n"
            ))
        });
        Ok(Self { broker: broker.await?, folder: place, tls_port })
    }

    fn file(&self, name: &str) -> Result<String> {
        self.folder.join(name).to_str().map(str::to_owned).context("a path in UTF-8")
    }

    fn url(&self, user: &str) -> String {
        format!("mqtts://{user}@localhost:{}", self.tls_port)
    }
}

/// A certificate that signs itself, for the loopback.
fn certificate(folder: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    let params = CertificateParams::new(vec!["localhost".to_owned()])?;
    fs::write(folder.join("cert.pem"), params.self_signed(&key)?.pem())?;
    fs::write(folder.join("key.pem"), key.serialize_pem())?;
    fs::write(folder.join("password"), format!("{PASSWORD}\n"))?;
    Ok(())
}

fn passwords(folder: &Path) -> Result<()> {
    for (user, password) in [("gate", PASSWORD), ("tracker", "t"), ("consumer", "c")] {
        let file = folder.join("passwords");
        let mut command = Command::new("mosquitto_passwd");
        if !file.exists() {
            command.arg("-c");
        }
        let made = command.arg("-b").arg(&file).args([user, password]).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(())
}

fn access(folder: &Path, may: &str) -> Result<()> {
    let others = "user tracker\ntopic readwrite #\n\nuser consumer\ntopic readwrite #\n";
    Ok(fs::write(folder.join("acl"), format!("user gate\n{may}\n\n{others}"))?)
}

const ALL: &str = "topic read plant/#\ntopic readwrite gated/#\ntopic readwrite dead/#";

#[tokio::test]
async fn the_gate_logs_in_over_tls() -> Result<()> {
    let guarded = Guarded::start(ALL).await?;
    let server = Server::start().await?;
    let token = server.acquire("a").await?;
    let port = guarded.broker.port();
    let (inbox, _task) = subscribe_as("consumer", port, &["gated/#"], Some(("consumer", "c"))).await?;
    let publisher = Publisher::logged_in(port, Some(("tracker", "t")));
    let ca = guarded.file("cert.pem")?;
    let password = guarded.file("password")?;
    let more = ["--broker-ca", &ca, "--broker-password-file", &password];
    let gate = Gate::flowing(&server, &guarded.url("gate"), &more).await?;
    publisher.position("a", 0, token).await?;
    inbox.has_all("gated/", 0..1).await?;
    gate.program.terminate().await?;
    // The password in the URL, escaped.
    let url = guarded.url("gate:p%40ss%3Aw%25rd");
    let _gate = Gate::flowing(&server, &url, &["--broker-ca", &ca]).await?;
    publisher.position("a", 1, token).await?;
    inbox.has_all("gated/", 0..2).await?;
    Ok(())
}

#[tokio::test]
async fn a_gate_that_may_not_log_in_or_publish_says_so_and_takes_nothing_off_the_queue() -> Result<()> {
    let guarded = Guarded::start("topic read plant/#").await?;
    let server = Server::start().await?;
    let ca = guarded.file("cert.pem")?;
    let says = async |gate: &Gate, words: &str| {
        let said = async || gate.text("/readyz").await.is_ok_and(|text| text.contains(words));
        wait_for(words, PATIENCE, said).await
    };
    let wrong = Gate::start(&server, &guarded.url("gate:wrong"), &["--broker-ca", &ca]).await?;
    says(&wrong, "check user and password").await?;
    wrong.program.terminate().await?;
    let not_trusted = Gate::start(&server, &guarded.url("gate:p%40ss%3Aw%25rd"), &[]).await?;
    says(&not_trusted, "shard 0: ").await?;
    not_trusted.program.terminate().await?;

    let gate = Gate::start(&server, &guarded.url("gate:p%40ss%3Aw%25rd"), &["--broker-ca", &ca]).await?;
    says(&gate, "gated/solehold-gate-probe/solehold-gate-main-0-of-1").await?;
    assert_eq!(gate.measured("connects_total").await?, 0.0);
    guarded.broker.stop().await?;
    access(&guarded.folder, ALL)?;
    guarded.broker.restart().await?;
    gate.measures("shards_connected", |count| count == 1.0).await?;
    Ok(())
}
