//! TLS with files that may change while the server runs.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use rustls::{
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;

/// How often the files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why TLS cannot be served with the files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// Which one.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// A file is not what it should be, or the key is not that of the certificate.
    #[error("cannot use {cert} with {key}: {what}")]
    Unusable {
        /// The certificate's file.
        cert: String,
        /// The key's file.
        key: String,
        /// What is wrong.
        what: String,
    },
}

/// The files as they were read last, and the pair in use.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    read: (Vec<u8>, Vec<u8>),
    pair: Arc<Pair>,
}

#[derive(Debug)]
struct Pair(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Pair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Tls {
    /// Reads the files.
    pub async fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let read = read(&files).await?;
        let pair = Arc::new(Pair(ArcSwap::from_pointee(parse(&files, &read)?)));
        Ok(Self { files, read, pair })
    }

    /// Accepts connections, always with the pair in use.
    pub fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let builder = rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let versions = builder.with_safe_default_protocol_versions();
        let versions = versions.map_err(|e| unusable(&self.files, e.to_string()))?;
        let mut config = versions.with_no_client_auth().with_cert_resolver(self.pair.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config).into())
    }

    /// Follows changes of the files, forever. A pair that cannot be used leaves the former one in use.
    pub async fn follow(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let read = match read(&self.files).await {
                Ok(read) if read == self.read => continue,
                Ok(read) => read,
                // The files are being replaced.
                Err(error) => {
                    tracing::debug!(%error, "the TLS files cannot be read now");
                    continue;
                }
            };
            match parse(&self.files, &read) {
                Ok(pair) => {
                    self.pair.0.store(Arc::new(pair));
                    tracing::info!(cert = %self.files.cert.display(), "the TLS files have changed and are in use");
                }
                Err(error) => {
                    tracing::error!(%error, "the TLS files have changed; the former ones stay in use")
                }
            }
            self.read = read;
        }
    }
}

async fn read(files: &TlsFiles) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
    let read = async |path: &std::path::Path| {
        let path_text = path.display().to_string();
        tokio::fs::read(path).await.map_err(|error| TlsError::Read { path: path_text, error })
    };
    Ok((read(&files.cert).await?, read(&files.key).await?))
}

fn parse(files: &TlsFiles, (cert, key): &(Vec<u8>, Vec<u8>)) -> Result<CertifiedKey, TlsError> {
    let wrong = |what: String| unusable(files, what);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
    let chain = chain.map_err(|e| wrong(format!("the certificate: {e}")))?;
    if chain.is_empty() {
        return Err(wrong("there is no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| wrong(format!("the key: {e}")))?;
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).map_err(|e| wrong(e.to_string()))
}

fn unusable(files: &TlsFiles, what: String) -> TlsError {
    TlsError::Unusable { cert: files.cert.display().to_string(), key: files.key.display().to_string(), what }
}
