//! A front to a broker that is too old for logins by password: it speaks TLS, asks for a login as Kafka's protocol has
//! it (KIP-43, KIP-152; PLAIN and, by RFC 5802, SCRAM), and then passes everything on.

use std::{
    net::SocketAddr,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result, bail, ensure};
use aws_lc_rs::{digest, hmac, pbkdf2};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs as provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
    server::TlsStream,
};

pub const USER: &str = "orchestrator";
pub const PASSWORD: &str = "correct horse, battery";

const SASL_HANDSHAKE: i16 = 17;
const API_VERSIONS: i16 = 18;
const SASL_AUTHENTICATE: i16 = 36;
/// What Kafka 0.9 understands, with its newest versions, and what the front adds.
const APIS: [(i16, i16); 16] = [
    (0, 1),
    (1, 1),
    (2, 0),
    (3, 0),
    (8, 2),
    (9, 1),
    (10, 0),
    (11, 0),
    (12, 0),
    (13, 0),
    (14, 0),
    (15, 0),
    (16, 0),
    (SASL_HANDSHAKE, 1),
    (API_VERSIONS, 0),
    (SASL_AUTHENTICATE, 0),
];
const UNSUPPORTED_MECHANISM: i16 = 33;
const UNSUPPORTED_VERSION: i16 = 35;
const LOGIN_FAILED: i16 = 58;
const FRAME_MAX: usize = 64 * 1024;
const ROUNDS: u32 = 4096;
const SALT: &[u8] = b"some salt of this front";
const NONCE: &str = "3rfcNHYJY1ZVvWVs7j";

/// A port that asks for a login.
pub struct Front {
    pub addr: SocketAddr,
    logins: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Front {
    /// Asks everyone for a login by one of these mechanisms before it passes them on to `target`.
    pub async fn start(
        target: SocketAddr,
        (certificate, key): (&str, &str),
        mechanisms: &'static [&'static str],
    ) -> Result<Self> {
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let config = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let logins = Arc::new(AtomicUsize::new(0));
        let mut serving = JoinSet::new();
        let counted = logins.clone();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                let logins = counted.clone();
                connections.spawn(async move {
                    if is_controller(&stream).await? {
                        let mut stream = stream;
                        let mut broker = TcpStream::connect(target).await?;
                        tokio::io::copy_bidirectional(&mut stream, &mut broker).await?;
                        return Ok(());
                    }
                    let mut stream = acceptor.accept(stream).await?;
                    login(&mut stream, mechanisms).await?;
                    logins.fetch_add(1, Ordering::SeqCst);
                    let mut broker = TcpStream::connect(target).await?;
                    tokio::io::copy_bidirectional(&mut stream, &mut broker).await?;
                    anyhow::Ok(())
                });
            }
        });
        Ok(Self { addr, logins, _serving: serving })
    }

    /// How many connections have logged in.
    pub fn logins(&self) -> usize {
        self.logins.load(Ordering::SeqCst)
    }
}

/// Whether this is the broker's own controller, which reaches its broker as clients do: by requests of kinds 4 to 7.
async fn is_controller(stream: &TcpStream) -> Result<bool> {
    let mut first = [0; 6];
    while stream.peek(&mut first).await? < first.len() {
        tokio::task::yield_now().await;
    }
    Ok(first[0] == 0 && (4..=7).contains(&i16::from_be_bytes([first[4], first[5]])))
}

type Stream = TlsStream<TcpStream>;

/// One request: its kind, its version, its number, and what follows.
struct Request {
    kind: i16,
    version: i16,
    number: [u8; 4],
    body: Vec<u8>,
}

async fn read(stream: &mut Stream) -> Result<Request> {
    let length = usize::try_from(stream.read_i32().await?)?;
    ensure!(length <= FRAME_MAX, "a request of {length} bytes");
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    let mut rest = frame.as_slice();
    let kind = i16::from_be_bytes(take(&mut rest)?);
    let version = i16::from_be_bytes(take(&mut rest)?);
    let number = take(&mut rest)?;
    text(&mut rest)?;
    Ok(Request { kind, version, number, body: rest.to_vec() })
}

async fn answer(stream: &mut Stream, request: &Request, body: &[u8]) -> Result<()> {
    let mut frame = i32::try_from(body.len() + 4)?.to_be_bytes().to_vec();
    frame.extend(request.number);
    frame.extend(body);
    stream.write_all(&frame).await?;
    Ok(stream.flush().await?)
}

fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>().context("too short")?;
    *from = rest;
    Ok(*first)
}

fn text(from: &mut &[u8]) -> Result<String> {
    let length = i16::from_be_bytes(take(from)?).max(0) as usize;
    let (text, rest) = from.split_at_checked(length).context("too short")?;
    *from = rest;
    Ok(String::from_utf8(text.to_vec())?)
}

fn written(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as i16).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// Ends with an error, and so the connection, unless the login is good.
async fn login(stream: &mut Stream, mechanisms: &[&str]) -> Result<()> {
    let mut chosen = None::<String>;
    let mut exchange = Exchange::default();
    loop {
        let request = read(stream).await?;
        let mut body = request.body.as_slice();
        match (request.kind, &chosen) {
            (API_VERSIONS, _) => {
                let code = if request.version == 0 { 0 } else { UNSUPPORTED_VERSION };
                let mut said = code.to_be_bytes().to_vec();
                said.extend((APIS.len() as i32).to_be_bytes());
                for (kind, newest) in APIS {
                    said.extend([kind, 0, newest].map(i16::to_be_bytes).concat());
                }
                answer(stream, &request, &said).await?;
            }
            (SASL_HANDSHAKE, _) => {
                chosen = Some(text(&mut body)?).filter(|name| mechanisms.contains(&name.as_str()));
                let code = if chosen.is_some() { 0 } else { UNSUPPORTED_MECHANISM };
                let mut said = code.to_be_bytes().to_vec();
                said.extend((mechanisms.len() as i32).to_be_bytes());
                said.extend(mechanisms.iter().flat_map(|name| written(name)));
                answer(stream, &request, &said).await?;
            }
            (SASL_AUTHENTICATE, Some(mechanism)) => {
                let _length: [u8; 4] = take(&mut body)?;
                let said = exchange.hear(mechanism, std::str::from_utf8(body)?);
                let (code, message, token) = match &said {
                    Ok(token) => (0_i16, "", token.as_str()),
                    Err(_) => (LOGIN_FAILED, "wrong user or password", ""),
                };
                let mut frame = code.to_be_bytes().to_vec();
                frame.extend(written(message));
                frame.extend((token.len() as i32).to_be_bytes());
                frame.extend(token.as_bytes());
                answer(stream, &request, &frame).await?;
                said?;
                if exchange.is_over {
                    return Ok(());
                }
            }
            (kind, _) => bail!("a request of kind {kind} before the login"),
        }
    }
}

/// The server's side of a login.
#[derive(Default)]
struct Exchange {
    /// Of SCRAM: the client's first message without its header, and the answer to it.
    first: Option<(String, String)>,
    is_over: bool,
}

impl Exchange {
    fn hear(&mut self, mechanism: &str, said: &str) -> Result<String> {
        let algorithms = match mechanism {
            "SCRAM-SHA-256" => (pbkdf2::PBKDF2_HMAC_SHA256, hmac::HMAC_SHA256, &digest::SHA256),
            "SCRAM-SHA-512" => (pbkdf2::PBKDF2_HMAC_SHA512, hmac::HMAC_SHA512, &digest::SHA512),
            _ => {
                ensure!(said == format!("\0{USER}\0{PASSWORD}"), "another user or password");
                self.is_over = true;
                return Ok(String::new());
            }
        };
        let Some((first, answered)) = self.first.take() else {
            let first = said.strip_prefix("n,,").context("not the beginning of SCRAM")?;
            let nonce = first.strip_prefix(&format!("n={USER},r=")).context("another user")?;
            let answer = format!("r={nonce}{NONCE},s={},i={ROUNDS}", STANDARD.encode(SALT));
            self.first = Some((first.to_owned(), answer.clone()));
            return Ok(answer);
        };
        let (without_proof, proof) = said.rsplit_once(",p=").context("no proof")?;
        let nonce = answered.split(',').next().context("a nonce")?;
        ensure!(without_proof == format!("c=biws,{nonce}"), "another exchange");
        let (derivation, hash, digest) = algorithms;
        let mut salted = vec![0; digest.output_len()];
        let rounds = NonZeroU32::new(ROUNDS).context("some")?;
        pbkdf2::derive(derivation, rounds, SALT, PASSWORD.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hash, key), text.as_bytes());
        let exchanged = format!("{first},{answered},{without_proof}");
        let key = sign(&salted, "Client Key");
        let stored = digest::digest(digest, key.as_ref());
        let signature = sign(stored.as_ref(), &exchanged);
        let expected: Vec<u8> = key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        ensure!(STANDARD.decode(proof)? == expected, "another password");
        self.is_over = true;
        let own = sign(sign(&salted, "Server Key").as_ref(), &exchanged);
        Ok(format!("v={}", STANDARD.encode(own)))
    }
}
