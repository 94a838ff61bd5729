//! Servers that speak TLS.

mod common;

use std::{fs, sync::Arc};

use common::memory;
use rcgen::generate_simple_self_signed;
use solehold_client::{ClientSession, Http, HttpConfig, SessionConfig};
use solehold_server::{Server, ServerConfig, TlsFiles};

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_trusted_only_if_it_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let pair = generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let files = TlsFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
        client_ca: None,
    };
    fs::write(&files.cert, pair.cert.pem()).expect("a file");
    fs::write(&files.key, pair.signing_key.serialize_pem()).expect("a file");
    let listen = "127.0.0.1:0".parse().expect("an address");
    let config = ServerConfig { listen, tls: Some(files), ..ServerConfig::default() };
    let running = Server::start(config, memory()).await.expect("a server");
    assert!(running.url().starts_with("https://"));
    let quick = || SessionConfig { open_timeout: std::time::Duration::ZERO, ..SessionConfig::new("one") };

    let stranger = Http::new(HttpConfig::new([running.url()])).expect("a URL");
    let error = ClientSession::open(Arc::new(stranger), quick()).await.expect_err("not trusted");
    assert!(error.to_string().contains("cannot open a session"), "{error}");

    let ca_certs = Some(pair.cert.pem().into_bytes());
    let trusting = Http::new(HttpConfig { ca_certs, ..HttpConfig::new([running.url()]) }).expect("good");
    let session = ClientSession::open(Arc::new(trusting), quick()).await.expect("a session");
    session.acquire("job", "a").await.expect("granted").release().await.expect("released");
}
