//! `solehold doctor` against real folders, certificates, servers and databases, each with something wrong.

mod common;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::{Context, Result, ensure};
use common::{Ran, SOON, run, server, write};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::Value;
use solehold_testkit::{PgBouncer, Postgres, TempDir, wait_for};

/// What it found, and its exit code.
struct Found {
    code: i32,
    findings: Vec<Value>,
}

impl Found {
    async fn of(args: &[&str]) -> Result<Self> {
        let Ran { code, stdout, stderr } = run(["doctor", "--json"].iter().chain(args)).await?;
        let report: Value = serde_json::from_str(&stdout).with_context(|| format!("{stdout}{stderr}"))?;
        let findings = report["findings"].as_array().context("findings")?.clone();
        let problems = findings.iter().filter(|finding| finding["severity"] == "problem").count();
        ensure!(report["problems"] == problems, "{report}");
        ensure!((code == Some(1)) == (problems > 0) && code <= Some(1), "{code:?}: {report}");
        for finding in &findings {
            let is_ok = finding["severity"] == "ok";
            ensure!(finding["why"].is_null() == is_ok && finding["do"].is_null() == is_ok, "{finding}");
        }
        Ok(Self { code: code.context("a code")?, findings })
    }

    /// Whether a check found this, with this severity.
    fn has(&self, severity: &str, check: &str, seen: &str) -> Result<()> {
        let is_it = |finding: &&Value| {
            finding["severity"] == severity
                && finding["check"] == check
                && finding["seen"].as_str().is_some_and(|text| text.contains(seen))
        };
        ensure!(
            self.findings.iter().any(|finding| is_it(&finding)),
            "no {severity} {seen:?}: {:#?}",
            self.findings
        );
        Ok(())
    }

    /// That a check found nothing of this severity.
    fn lacks(&self, severity: &str, check: &str) -> Result<()> {
        let is_it = |finding: &&Value| finding["severity"] == severity && finding["check"] == check;
        ensure!(!self.findings.iter().any(|finding| is_it(&finding)), "{:#?}", self.findings);
        Ok(())
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

#[tokio::test]
async fn a_data_folder_and_its_server() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().join("data");
    let path = data.to_str().context("UTF-8")?;
    Found::of(&["--data-dir", path]).await?.has("ok", "store", "does not exist yet")?;
    ensure!(!data.exists(), "it changes nothing");

    let server = server().data_dir(&data).start().await?;
    let found = Found::of(&["--data-dir", path, "--server", server.url()]).await?;
    found.has("ok", "store", &format!("process {} has", server.pid()?))?;
    found.has("ok", "store", "has schema 6")?;
    found.has("ok", "server", "is ready, with the embedded engine")?;
    found.has("ok", "versions", "this program and 1 server have version")?;
    found.has("ok", "clock", "the clock of the store behind")?;
    found.has("ok", "permissions", "only its owner can read")?;
    found.has("ok", "ttl", "leases last at most 5m")?;
    set_mode(&data, 0o755)?;
    Found::of(&["--data-dir", path]).await?.has("warning", "permissions", "mode 755")?;

    server.terminate().await?;
    let found = Found::of(&["--data-dir", path, "--server", server.url()]).await?;
    found.has("ok", "store", "no process has")?;
    found.has("problem", "server", "does not answer")?;
    ensure!(found.code == 1);

    // As a newer version would leave it: the version is in the header of the file.
    let file = data.join("solehold.db");
    let mut bytes = fs::read(&file)?;
    bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
    fs::write(&file, bytes)?;
    Found::of(&["--data-dir", path]).await?.has(
        "problem",
        "store",
        "has schema 99, and this program knows 6",
    )?;
    fs::write(
        &file,
        "no database, but long enough to have a header of one hundred bytes, or more than that".repeat(2),
    )?;
    Found::of(&["--data-dir", path]).await?.has("problem", "store", "not a database")
}

#[tokio::test]
async fn a_folder_in_memory_is_no_place_for_leases() -> Result<()> {
    // Every Linux has it, and it is a tmpfs.
    let found = Found::of(&["--data-dir", "/dev/shm/solehold-doctor-test"]).await?;
    found.has("problem", "disk", "is on tmpfs")?;
    let people = run(["doctor", "--data-dir", "/dev/shm/solehold-doctor-test"]).await?;
    ensure!(
        people.code == Some(1) && people.stdout.contains("do   use a folder on a local disk"),
        "{people:?}"
    );
    Ok(())
}

/// A certificate for 127.0.0.1 that is valid between two years, and its key.
fn certificate(folder: &Path, first: i32, last: i32) -> Result<KeyPair> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "leases.example".to_owned()])?;
    params.not_before = date_time_ymd(first, 1, 1);
    params.not_after = date_time_ymd(last, 1, 1);
    write(folder, "cert.pem", &params.self_signed(&key)?.pem())?;
    write(folder, "key.pem", &key.serialize_pem())?;
    set_mode(&folder.join("key.pem"), 0o600)?;
    Ok(key)
}

#[tokio::test]
async fn certificates_and_files_with_secrets() -> Result<()> {
    let folder = TempDir::new()?;
    let in_folder = |name: &str| folder.path().join(name).display().to_string();
    let listen = |address: &str| {
        let data = in_folder("data");
        let cert = in_folder("cert.pem");
        let key = in_folder("key.pem");
        let text = format!("listen: {address}\ndata_dir: {data}\ntls: {{cert: {cert}, key: {key}}}\n");
        write(folder.path(), "solehold.yaml", &text)
    };
    let config = listen("127.0.0.1:7070")?;
    set_mode(Path::new(&config), 0o600)?;
    certificate(folder.path(), 2020, 4000)?;
    let found = Found::of(&["--config", &config]).await?;
    found.has("ok", "certificates", "is valid for another")?;
    found.has("ok", "certificates", "is for 127.0.0.1")?;
    found.lacks("problem", "permissions")?;

    set_mode(&folder.path().join("key.pem"), 0o644)?;
    let found = Found::of(&["--config", &config]).await?;
    found.has("problem", "permissions", "the private key of TLS in")?;
    let config = listen("10.1.2.3:7070")?;
    Found::of(&["--config", &config]).await?.has("warning", "certificates", "not for 10.1.2.3")?;

    certificate(folder.path(), 3000, 4000)?;
    Found::of(&["--config", &config]).await?.has("problem", "certificates", "is not valid yet")?;
    certificate(folder.path(), 2020, 2021)?;
    Found::of(&["--config", &config]).await?.has("problem", "certificates", "expired")?;
    let other = KeyPair::generate()?;
    write(folder.path(), "key.pem", &other.serialize_pem())?;
    let found = Found::of(&["--config", &config]).await?;
    found.has("problem", "certificates", "cannot use")?;
    write(folder.path(), "cert.pem", "nothing")?;
    Found::of(&["--config", &config]).await?.has("problem", "certificates", "cannot be read")
}

/// Only clients would notice otherwise.
#[tokio::test]
async fn serve_logs_that_its_certificate_has_expired() -> Result<()> {
    let folder = TempDir::new()?;
    certificate(folder.path(), 2020, 2021)?;
    let file = |name: &str| folder.path().join(name);
    let tls = |builder: solehold_testkit::SoleholdBuilder| {
        builder.arg("--tls-cert").arg(file("cert.pem")).arg("--tls-key").arg(file("key.pem"))
    };
    let server = tls(server()).start().await?;
    let says = async |words: &str| server.logs().contains(words);
    wait_for("a warning", SOON, async || says("TLS certificate has expired").await).await?;
    certificate(folder.path(), 2020, 4000)?;
    wait_for("the new one", SOON, async || says("TLS certificate is valid").await).await?;
    Ok(())
}

#[tokio::test]
async fn times_of_an_agent_are_compared_with_the_server_s() -> Result<()> {
    let folder = TempDir::new()?;
    let agent = "runner_id: r1\nserver: http://127.0.0.1:1\nkinds: [camera]\nlease_ttl_seconds: 600\n\
                 worker: {command: [sleep, \"1\"], stop_timeout_seconds: 5}\n";
    let agent = write(folder.path(), "agent.yaml", agent)?;
    let data = folder.path().join("data").display().to_string();
    let found = Found::of(&["--data-dir", &data, "--agent", &agent]).await?;
    found.has("problem", "ttl", "lease_ttl_seconds is 10m, and the server grants at most 5m")
}

#[tokio::test]
async fn settings_of_postgresql_that_lose_commits() -> Result<()> {
    let lax = ["fsync", "full_page_writes", "synchronous_commit"];
    let builder = lax.iter().fold(Postgres::builder(), |builder, name| builder.setting(*name, "off"));
    let postgres = builder.setting("max_connections", "20").start().await?;
    let url = postgres.create_database("doctor").await?;
    let found = Found::of(&["--engine", &url]).await?;
    for name in ["fsync", "full_page_writes"] {
        found.has("problem", "postgres", &format!("{name} = off (command line)"))?;
    }
    found.has("warning", "postgres", "synchronous_commit = off (command line)")?;
    found.has("problem", "store", "PostgreSQL runs with fsync = off")?;
    found.has("ok", "store", "there is no store in the database yet")?;
    found.has("ok", "clock", "the clock of PostgreSQL")?;

    let admin = postgres.connect().await?;
    admin.batch_execute("ALTER ROLE postgres SET synchronous_commit = 'local'").await?;
    let sets = Found::of(&["--engine", &url]).await?;
    sets.has("warning", "postgres", "synchronous_commit = local (user)")?;
    Ok(())
}

#[tokio::test]
async fn a_role_a_pooler_a_standby_and_a_database_that_is_not_there() -> Result<()> {
    let postgres = Postgres::start().await?;
    let url = postgres.create_database("doctor").await?;
    let server = server().engine(&url).start().await?;
    let found = Found::of(&["--engine", &url, "--server", server.url()]).await?;
    found.lacks("problem", "store")?;
    found.lacks("problem", "postgres")?;
    found.has("ok", "store", "the store has schema")?;
    found.has("ok", "permissions", "the role has all rights")?;
    found.has("ok", "postgres", "no standby is attached")?;
    found.has("ok", "server", "with the postgres engine")?;
    server.terminate().await?;

    let admin = postgres.connect().await?;
    admin.batch_execute("CREATE ROLE guest LOGIN").await?;
    let (own, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    own.batch_execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC").await?;
    let guest = url.replace("postgres@", "guest@");
    let found = Found::of(&["--engine", &guest]).await?;
    found.has("problem", "permissions", "USAGE on schema solehold")?;
    found.has("problem", "permissions", "UPDATE on solehold.leases")?;
    found.has("problem", "permissions", "EXECUTE on function pg_control_system()")?;

    let pooler = PgBouncer::start(&postgres, 4).await?;
    let pooled = Found::of(&["--engine", &pooler.url_for(&url)]).await?;
    pooled.has("problem", "store", "pool_mode = session")?;

    let standby = Postgres::builder().standby_of(&postgres).start().await?;
    let attached = async || {
        let count =
            admin.query_one("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", &[]).await;
        count.is_ok_and(|row| row.get::<_, i64>(0) == 1)
    };
    wait_for("the standby", SOON, attached).await?;
    Found::of(&["--engine", &url]).await?.has("warning", "postgres", "1 standby is attached")?;
    let database = url.rsplit('/').next().context("a database")?;
    let found = Found::of(&["--engine", &standby.url_for(database)]).await?;
    found.has("problem", "store", "is a standby, which takes no writes")?;

    let nowhere = Found::of(&["--engine", &postgres.url_for("nowhere")]).await?;
    nowhere.has("problem", "store", "cannot be asked")
}
