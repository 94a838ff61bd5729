//! The certificates that a process trusts, and what a certificate says of itself.

use std::net::{Ipv4Addr, Ipv6Addr};

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer,
        pem::{self, PemObject as _},
    },
};
use x509_cert::{
    Certificate,
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
    time::Time,
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
    /// One of the certificates cannot be parsed.
    #[error("not a certificate: {0}")]
    Unreadable(#[from] x509_cert::der::Error),
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

/// What a certificate says of itself. Nothing of it is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The first moment at which it is valid, in milliseconds since the Unix epoch.
    pub not_before_ms: u64,
    /// The moment from which on it has expired.
    pub not_after_ms: u64,
    /// The host names and addresses that it is for.
    pub names: Vec<String>,
}

/// Whether a certificate is valid at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// It will be.
    NotYet,
    /// It is.
    Valid,
    /// It was.
    Expired,
}

impl CertificateInfo {
    /// Of the first certificate in a PEM text.
    pub fn of_pem(pem: &[u8]) -> Result<Self, TrustError> {
        let first = certificates(pem)?.into_iter().next().ok_or(TrustError::Empty)?;
        let certificate = Certificate::from_der(&first)?.tbs_certificate;
        let ms = |time: Time| u64::try_from(time.to_unix_duration().as_millis()).unwrap_or(u64::MAX);
        let names = certificate.get::<SubjectAltName>()?.map(|(_, names)| names.0).unwrap_or_default();
        Ok(Self {
            not_before_ms: ms(certificate.validity.not_before),
            // The last second counts as a whole.
            not_after_ms: ms(certificate.validity.not_after).saturating_add(1_000),
            names: names.iter().filter_map(name_of).collect(),
        })
    }

    /// Whether it is valid at a time, in milliseconds since the Unix epoch.
    pub fn validity(&self, now_ms: u64) -> Validity {
        match now_ms {
            now if now < self.not_before_ms => Validity::NotYet,
            now if now >= self.not_after_ms => Validity::Expired,
            _ => Validity::Valid,
        }
    }
}

/// A host name, or an address.
fn name_of(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.to_string()),
        GeneralName::IpAddress(address) => {
            let bytes = address.as_bytes();
            let four = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).to_string());
            four.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).to_string())).ok()
        }
        _ => None,
    }
}
