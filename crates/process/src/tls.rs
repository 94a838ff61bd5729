//! The certificates that a process trusts.

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer,
        pem::{self, PemObject as _},
    },
};

/// Why no certificate can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file or text is not PEM.
    #[error("not PEM: {0}")]
    NotPem(#[from] pem::Error),
    /// One of the certificates is broken.
    #[error(transparent)]
    Broken(#[from] rustls::Error),
    /// There is none.
    #[error("there is no certificate in it")]
    Empty,
    /// Neither the system nor `SSL_CERT_FILE` has one.
    #[error("the system has no certificate of an authority to trust")]
    NoSystemRoots,
}

/// The certificates in a PEM text; at least one.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    if certificates.is_empty() { Err(TrustError::Empty) } else { Ok(certificates) }
}

/// The certificates in a PEM text as authorities to trust; each of them must be good.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// The same for a bundle of many: those that cannot be parsed are left out, as long as one is good.
pub fn bundle(pem: &[u8]) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(pem)?);
    if roots.is_empty() { Err(TrustError::Empty) } else { Ok(roots) }
}

/// The authorities of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`, and `more`. Certificates of the system that
/// cannot be read are left out.
pub fn system_roots(
    more: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs().certs;
    roots.add_parsable_certificates(more.into_iter().chain(system));
    if roots.is_empty() { Err(TrustError::NoSystemRoots) } else { Ok(roots) }
}
