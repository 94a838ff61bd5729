//! TLS by files, and what happens when they change.

mod support;

use std::{fs, path::Path, time::Duration};

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use reqwest::{Certificate, Client};
use solehold_server::{Role, Server, ServerConfig, TlsFiles, keys};
use solehold_testkit::wait_for;
use support::{Asking, PATIENCE, config, memory, name, serve_with};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

type Pair = CertifiedKey<KeyPair>;

fn pair() -> Pair {
    generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("a certificate")
}

fn write(folder: &Path, cert: &str, key: &str) -> TlsFiles {
    let files = TlsFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem"), client_ca: None };
    fs::write(&files.cert, cert).expect("a file");
    fs::write(&files.key, key).expect("a file");
    files
}

fn write_pair(folder: &Path, pair: &Pair) -> TlsFiles {
    write(folder, &pair.cert.pem(), &pair.signing_key.serialize_pem())
}

/// Whether someone who trusts only this certificate, on a new connection, is answered.
async fn is_served(asking: &Asking, pair: &Pair) -> bool {
    let trusted = Certificate::from_pem(pair.cert.pem().as_bytes()).expect("a certificate");
    let client = Client::builder().tls_certs_only([trusted]).build().expect("a client");
    let answer = client.get(format!("{}/healthz", asking.running.url())).send().await;
    answer.is_ok_and(|answer| answer.status() == 200)
}

#[tokio::test]
async fn files_that_change_are_taken_over_and_bad_ones_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = pair();
    let second = pair();
    let third = pair();
    let files = write_pair(folder.path(), &first);
    let asking = serve_with(ServerConfig { tls: Some(files), ..config() }, memory()).await;
    assert!(asking.running.url().starts_with("https://"));
    assert!(is_served(&asking, &first).await);
    assert!(!is_served(&asking, &second).await);

    write_pair(folder.path(), &second);
    wait_for("the second pair", PATIENCE, async || is_served(&asking, &second).await).await.expect("in use");
    assert!(!is_served(&asking, &first).await);

    // A key that is not the certificate's, then nonsense, each for longer than it takes to be looked at.
    for (cert, key) in [(third.cert.pem(), second.signing_key.serialize_pem()), ("no".into(), "no".into())] {
        write(folder.path(), &cert, &key);
        let began = Instant::now();
        let looked_at = async || {
            assert!(is_served(&asking, &second).await, "the former pair stays in use");
            began.elapsed() > Duration::from_millis(1_500)
        };
        wait_for("a look at bad files", PATIENCE, looked_at).await.expect("time passes");
    }
    write_pair(folder.path(), &third);
    wait_for("the third pair", PATIENCE, async || is_served(&asking, &third).await).await.expect("in use");
}

#[tokio::test]
async fn files_that_cannot_be_used_stop_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let one = pair();
    let other = pair();
    let start = async |files: TlsFiles| {
        let started = Server::start(ServerConfig { tls: Some(files), ..config() }, memory()).await;
        started.expect_err("bad files").to_string()
    };
    let gone = TlsFiles {
        cert: folder.path().join("none.pem"),
        key: folder.path().join("none.pem"),
        client_ca: None,
    };
    assert!(start(gone).await.contains("none.pem"));
    let mixed = write(folder.path(), &one.cert.pem(), &other.signing_key.serialize_pem());
    assert!(start(mixed).await.contains("key.pem"));
    let text = start(write(folder.path(), "", &other.signing_key.serialize_pem())).await;
    assert!(text.contains("there is no certificate"), "{text}");
}

#[tokio::test]
async fn a_client_without_tls_does_not_block_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let one = pair();
    let files = write_pair(folder.path(), &one);
    let asking = serve_with(ServerConfig { tls: Some(files), ..config() }, memory()).await;
    let _silent = TcpStream::connect(asking.running.local_addr()).await.expect("a connection");
    let mut loud = TcpStream::connect(asking.running.local_addr()).await.expect("a connection");
    loud.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.expect("sent");
    assert!(is_served(&asking, &one).await);
}

#[tokio::test]
async fn http2_is_used_with_clients_that_support_it() {
    let asking = support::serve().await;
    let mut stream = TcpStream::connect(asking.running.local_addr()).await.expect("a connection");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("a frame");
    assert_eq!(head[3], 4, "settings come first");
}

/// A CA, and a client's certificate for that name which it has signed.
fn client_of(name: &str) -> (String, String) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer};
    let mut ca = CertificateParams::new(Vec::new()).expect("parameters");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().expect("a key");
    let ca_pem = ca.self_signed(&ca_key).expect("a CA").pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new([name.to_owned()]).expect("parameters");
    let cert = params.signed_by(&key, &issuer).expect("a certificate");
    (ca_pem, cert.pem() + &key.serialize_pem())
}

#[tokio::test]
async fn a_clients_certificate_stands_for_a_key_and_for_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = pair();
    let (ca, tracker) = client_of("tracker");
    let (_, of_another_ca) = client_of("tracker");
    let files =
        TlsFiles { client_ca: Some(folder.path().join("ca.pem")), ..write_pair(folder.path(), &server) };
    fs::write(folder.path().join("ca.pem"), ca).expect("a file");
    let asking = serve_with(ServerConfig { tls: Some(files), ..config() }, memory()).await;
    let engine = asking.running.engine();
    let with = |pem: Option<&str>| {
        let trusted = Certificate::from_pem(server.cert.pem().as_bytes()).expect("a certificate");
        let client = Client::builder().tls_certs_only([trusted]);
        let identity = pem.map(|pem| reqwest::Identity::from_pem(pem.as_bytes()).expect("an identity"));
        identity.into_iter().fold(client, reqwest::ClientBuilder::identity).build().expect("a client")
    };
    let status = async |client: &Client, path: &str| {
        let answer = client.get(format!("{}{path}", asking.running.url())).send().await;
        answer.ok().map(|answer| answer.status().as_u16())
    };
    let root = keys::create(engine, keys::NewKey::new(name("root"), Role::Admin)).await.expect("a key");
    let of_tracker = keys::NewKey {
        certificate: Some(name("tracker")),
        tenant: Some(name("acme")),
        ..keys::NewKey::new(name("trackers"), Role::Reader)
    };
    let client = with(Some(&tracker));
    let is_refused = async || status(&client, "/api/v1/resources").await == Some(401);
    wait_for("keys to be required", PATIENCE, is_refused).await.expect("a name that stands for nothing");
    let key = keys::create(engine, of_tracker.clone()).await.expect("a key").key;
    assert_eq!(status(&client, "/api/v1/resources").await, Some(200));
    assert_eq!(status(&client, "/api/v1/admin/keys").await, Some(403), "as its key allows");
    assert_eq!(status(&client, "/api/v1/resources?tenant=other").await, Some(404), "as its key allows");
    assert_eq!(status(&with(None), "/api/v1/resources").await, Some(401));
    assert_eq!(status(&with(Some(&of_another_ca)), "/api/v1/resources").await, None, "no handshake");
    let with_key = with(None).get(format!("{}/api/v1/admin/keys", asking.running.url()));
    let shown = with_key.bearer_auth(secrecy::ExposeSecret::expose_secret(&root.text)).send().await;
    assert_eq!(shown.expect("an answer").status(), 200, "a key is enough");
    let twice = keys::create(engine, of_tracker).await.expect_err("one key for one name");
    assert!(twice.0.detail.contains(key.id.as_str()), "{twice:?}");
    keys::revoke(engine, &key.id).await.expect("revoked");
    let is_refused = async || status(&client, "/api/v1/resources").await == Some(401);
    wait_for("the revocation", PATIENCE, is_refused).await.expect("refused");
}
