//! TLS with files that may change while the server runs, and the names in client certificates.

use std::{path::Path, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use solehold_core::key::Name;
use solehold_engine::clock::wall_ms;
use solehold_process::tls::{self, CertificateInfo, Validity};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::config::TlsFiles;

const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields of a variant are named in its message")]
pub enum TlsError {
    #[error("cannot read {path}: {error}")]
    Read { path: String, error: std::io::Error },
    /// A file is not what it should be, or the key is not that of the certificate.
    #[error("cannot use {cert} with {key}: {what}")]
    Unusable { cert: String, key: String, what: String },
}

/// The protocols that are offered inside TLS, the preferred one first.
pub type Protocols = &'static [&'static [u8]];
const PROTOCOLS: Protocols = &[b"h2", b"http/1.1"];

/// The files as they were last read, and the configuration that is in use.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    protocols: Protocols,
    read: TlsBytes,
    in_use: Arc<ArcSwap<ServerConfig>>,
    /// Its dates; none if only rustls can read it.
    certificate: Option<CertificateInfo>,
    /// What the log says of it so far.
    logged: Validity,
}

/// Accepts connections with the configuration that is in use.
#[derive(Debug, Clone)]
pub struct Acceptor(Arc<ArcSwap<ServerConfig>>);

impl Acceptor {
    pub async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.0.load_full()).accept(stream).await
    }
}

#[derive(Debug, PartialEq, Eq)]
struct TlsBytes {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Tls {
    /// Opens the files of the configuration, if it has any.
    pub(super) async fn of(config: &super::ServerConfig) -> Result<Option<Self>, TlsError> {
        match config.tls.clone() {
            Some(files) => Ok(Some(Self::open(files, PROTOCOLS).await?)),
            None => Ok(None),
        }
    }

    pub async fn open(files: TlsFiles, protocols: Protocols) -> Result<Self, TlsError> {
        let read = read(&files).await?;
        let in_use = Arc::new(ArcSwap::from_pointee(parse(&files, protocols, &read)?));
        let certificate = CertificateInfo::of_pem(&read.cert).ok();
        Ok(Self { files, protocols, read, in_use, certificate, logged: Validity::Valid })
    }

    /// Logs once when the certificate in use is not valid: clients refuse it, and only they would say so.
    fn warn_of_validity(&mut self) {
        let Some(certificate) = &self.certificate else { return };
        let validity = certificate.validity(wall_ms());
        let cert = self.files.cert.display();
        match validity {
            _ if validity == self.logged => {}
            Validity::Expired => {
                tracing::warn!(%cert, "TLS certificate has expired; clients refuse to connect until it is replaced")
            }
            Validity::NotYet => {
                tracing::warn!(%cert, "TLS certificate is not valid yet; clients refuse to connect until it is")
            }
            Validity::Valid => tracing::info!(%cert, "TLS certificate is valid"),
        }
        self.logged = validity;
    }

    /// Accepts connections with these files; changed files take effect while [`Self::follow`] runs.
    pub fn acceptor(&self) -> Acceptor {
        Acceptor(self.in_use.clone())
    }

    /// Follows changes of the files, forever. Files that cannot be used leave the former ones in use.
    pub async fn follow(mut self) {
        loop {
            self.warn_of_validity();
            tokio::time::sleep(LOOK_EVERY).await;
            let read = match read(&self.files).await {
                Ok(read) if read == self.read => continue,
                Ok(read) => read,
                // The files are being replaced.
                Err(error) => {
                    tracing::debug!(%error, "cannot read TLS files; retrying");
                    continue;
                }
            };
            match parse(&self.files, self.protocols, &read) {
                Ok(config) => {
                    self.certificate = CertificateInfo::of_pem(&read.cert).ok();
                    self.in_use.store(Arc::new(config));
                    tracing::info!(cert = %self.files.cert.display(), "reloaded TLS certificate");
                }
                Err(error) => {
                    tracing::error!(%error, "cannot load changed TLS files; keeping the previous certificate")
                }
            }
            self.read = read;
        }
    }
}

/// The names in the certificate that the client has shown and proven: of hosts, and URIs. None, if it showed none.
pub(super) fn client_names(stream: &TlsStream<TcpStream>) -> Arc<[Name]> {
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let Some(certificate) = certificate.and_then(|der| webpki::EndEntityCert::try_from(der).ok()) else {
        return Arc::default();
    };
    let names = certificate.valid_dns_names().chain(certificate.valid_uri_names());
    names.filter_map(|name| Name::new(name).ok()).collect()
}

async fn read(files: &TlsFiles) -> Result<TlsBytes, TlsError> {
    let read = async |path: &Path| {
        let path_text = path.display().to_string();
        tokio::fs::read(path).await.map_err(|error| TlsError::Read { path: path_text, error })
    };
    let client_ca = match &files.client_ca {
        Some(path) => Some(read(path).await?),
        None => None,
    };
    Ok(TlsBytes { cert: read(&files.cert).await?, key: read(&files.key).await?, client_ca })
}

fn parse(files: &TlsFiles, protocols: Protocols, read: &TlsBytes) -> Result<ServerConfig, TlsError> {
    let wrong = |what: String| unusable(files, what);
    let chain = tls::certificates(&read.cert).map_err(|what| wrong(format!("the certificate: {what}")))?;
    let key = PrivateKeyDer::from_pem_slice(&read.key).map_err(|e| wrong(format!("the key: {e}")))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| wrong(e.to_string()))?;
    let builder = match &read.client_ca {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let wrong = |what: String| wrong(format!("the client CA: {what}"));
            let roots = tls::roots(pem).map_err(|error| wrong(error.to_string()))?;
            // A client without a certificate can still show a key.
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            let verifier = verifier.allow_unauthenticated().build().map_err(|e| wrong(e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| wrong(e.to_string()))?;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn unusable(files: &TlsFiles, what: String) -> TlsError {
    TlsError::Unusable { cert: files.cert.display().to_string(), key: files.key.display().to_string(), what }
}
