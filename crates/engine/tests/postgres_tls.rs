//! TLS to PostgreSQL: encrypted when asked for, and whose certificate it is when that is asked for too.

#[path = "postgres/common.rs"]
mod common;

use std::{
    os::unix::fs::{MetadataExt, OpenOptionsExt, chown},
    path::Path,
};

use common::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use solehold_engine::{
    postgres::{PostgresOptions, PostgresStore},
    store::Store,
};
use solehold_testkit::Postgres;

/// An authority that nobody else trusts.
fn authority() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    (certificate.pem(), Issuer::new(params, key))
}

/// Gives PostgreSQL a file that only its user reads.
fn write_for(owner: &std::fs::Metadata, path: &Path, text: &str) {
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).expect("a file");
    std::io::Write::write_all(&mut file, text.as_bytes()).expect("its text");
    chown(path, Some(owner.uid()), Some(owner.gid())).expect("its owner");
}

async fn open_error(url: &str) -> String {
    match PostgresStore::open(url, PostgresOptions::default()).await {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_is_checked_as_asked() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let plain = open_error(&format!("{}?sslmode=require", postgres.url())).await;
    assert!(plain.contains("TLS") || plain.contains("tls"), "a server without TLS: {plain}");

    let client = postgres.connect().await.expect("a connection");
    let data: String = client.query_one("SHOW data_directory", &[]).await.expect("a row").get(0);
    drop(client);
    let data = Path::new(&data);
    let owner = std::fs::metadata(data).expect("the data folder");
    let (root, issuer) = authority();
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    write_for(&owner, &data.join("server.crt"), &certificate.pem());
    write_for(&owner, &data.join("server.key"), &key.serialize_pem());
    postgres.restart_with(&[("ssl", "on")], &[]).await.expect("PostgreSQL with TLS");

    let files = tempfile::tempdir().expect("a folder");
    let trusted = files.path().join("root.pem");
    std::fs::write(&trusted, root).expect("a file");
    let other = files.path().join("other.pem");
    std::fs::write(&other, authority().0).expect("a file");
    let port = postgres.addr().port();
    let url = |host: &str, mode: &str, roots: &Path| {
        format!("postgres://postgres@{host}:{port}/postgres?sslmode={mode}&sslrootcert={}", roots.display())
    };

    let store = open(&url("localhost", "verify-full", &trusted)).await;
    grant(store.as_ref(), &self::key("job"), "ann", 60_000).await;
    let client = postgres.connect().await.expect("a connection");
    let sql = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
               WHERE a.application_name LIKE 'solehold%' AND NOT s.ssl";
    assert_eq!(number(&client, sql).await, 0, "all of it is encrypted");
    let sql = "SELECT count(*) FROM pg_stat_ssl WHERE ssl";
    assert!(number(&client, sql).await > 0);
    store.close().await;

    // Another name than the certificate's: refused only where the name counts.
    open(&url("127.0.0.1", "verify-ca", &trusted)).await.close().await;
    let name = open_error(&url("127.0.0.1", "verify-full", &trusted)).await;
    assert!(name.contains("not valid for name"), "{name}");
    for mode in ["verify-ca", "verify-full"] {
        let stranger = open_error(&url("localhost", mode, &other)).await;
        assert!(stranger.contains("invalid peer certificate"), "{stranger}");
    }
    let missing = open_error(&url("localhost", "verify-full", &files.path().join("none.pem"))).await;
    assert!(missing.contains("none.pem") && missing.contains("cannot read sslrootcert"), "{missing}");
}
