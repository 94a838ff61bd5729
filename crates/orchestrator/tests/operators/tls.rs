//! A database that is reached by TLS.

use std::{
    fs::{self, Metadata, OpenOptions},
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown},
    path::Path,
};

use anyhow::{Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use solehold_testkit::Postgres;

use crate::world::World;

/// An authority that nobody else trusts.
fn authority() -> Result<(String, Issuer<'static, KeyPair>)> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), Issuer::new(params, key)))
}

/// Gives PostgreSQL a file that only its user reads.
fn write_for(owner: &Metadata, path: &Path, text: &str) -> Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())?;
    Ok(chown(path, Some(owner.uid()), Some(owner.gid()))?)
}

/// A PostgreSQL with a certificate for `localhost`, and the URL by which it is known for certain.
pub async fn database(files: &Path) -> Result<(Postgres, String)> {
    let postgres = Postgres::start().await?;
    let data: String = postgres.connect().await?.query_one("SHOW data_directory", &[]).await?.get(0);
    let owner = fs::metadata(&data)?;
    let data = Path::new(&data);
    let (root, issuer) = authority()?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])?.signed_by(&key, &issuer)?;
    write_for(&owner, &data.join("server.crt"), &certificate.pem())?;
    write_for(&owner, &data.join("server.key"), &key.serialize_pem())?;
    postgres.restart_with(&[("ssl", "on")], &[]).await?;
    let trusted = files.join("root.pem");
    fs::write(&trusted, root)?;
    let port = postgres.addr().port();
    let trusted = trusted.display();
    let url =
        format!("postgres://postgres@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={trusted}");
    Ok((postgres, url))
}

/// Everything that the orchestrator did so far went by TLS, and it knows whom it spoke to.
pub async fn is_used_and_checked(world: &World) -> Result<()> {
    let sql = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl), \
               count(*) FILTER (WHERE ssl AND query LIKE 'LISTEN%') FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
               WHERE application_name = 'solehold-orchestrator'";
    let row = world.postgres.connect().await?.query_one(sql, &[]).await?;
    let [by_tls, plain, listening]: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
    ensure!(
        by_tls > 1 && plain == 0 && listening == 1,
        "{by_tls} by TLS, {plain} without, {listening} listen"
    );
    fs::write(world.files.path().join("other.pem"), authority()?.0)?;
    let other = |config: &mut Value| {
        let url = config["postgres"]["url"].as_str().unwrap_or_default().replace("root.pem", "other.pem");
        config["postgres"]["url"] = json!(url);
    };
    let file = world.file(other)?;
    let ran = world.run(&format!("orchestrator --check --config {file}")).await?;
    ensure!(ran.code == Some(5) && ran.stderr.contains("invalid peer certificate"), "{ran:?}");
    Ok(())
}
