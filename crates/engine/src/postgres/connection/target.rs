//! Connection strings: where a database is, and whether to use TLS, as libpq has it.

use std::{fmt, str::FromStr, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use solehold_process::tls;
use tokio_postgres::{Config, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{postgres::fault::words, store::StoreError};

/// What a connection string says, as libpq has them: `sslmode=verify-ca`, `verify-full` and `sslrootcert` too, which
/// tokio-postgres does not know.
#[derive(Clone)]
pub struct Target {
    /// Where, as whom, and with which bounds.
    pub config: Config,
    /// How, unless without TLS.
    pub tls: Option<MakeRustlsConnect>,
}

/// Without the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("hosts", &self.config.get_hosts()).finish_non_exhaustive()
    }
}

impl FromStr for Target {
    type Err = StoreError;

    /// Errors never show the string: there may be a password in it.
    fn from_str(url: &str) -> Result<Self, StoreError> {
        let (url, tls) = TlsOptions::split_off(url);
        let mut config: Config = url
            .parse()
            .map_err(|e| StoreError::Unusable(format!("invalid connection string: {}", words(&e))))?;
        if tls.verify.is_some() {
            config.ssl_mode(SslMode::Require);
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(MakeRustlsConnect::new(tls.client()?)),
        };
        Ok(Self { config, tls })
    }
}

/// The part of a connection string that tokio-postgres does not know.
#[derive(Debug, Default)]
struct TlsOptions {
    /// `verify-ca` or `verify-full`: the certificate must be trusted, and for the latter be that of the host.
    verify: Option<bool>,
    roots: Option<String>,
}

impl TlsOptions {
    /// Takes `sslmode=verify-*` and `sslrootcert` out of a connection string.
    fn split_off(url: &str) -> (String, Self) {
        let mut options = Self::default();
        let mut keep = |pair: &str| {
            let Some((name, value)) = pair.split_once('=') else { return true };
            let value = value.trim_matches('\'');
            match (name.trim(), value) {
                ("sslmode", "verify-full") => options.verify = Some(true),
                ("sslmode", "verify-ca") => options.verify = Some(false),
                ("sslrootcert", path) => options.roots = Some(path.replace("%2F", "/").replace("%2f", "/")),
                _ => return true,
            }
            false
        };
        let rest = match url.split_once("://") {
            Some(_) => match url.split_once('?') {
                Some((place, query)) => {
                    let kept: Vec<_> = query.split('&').filter(|pair| keep(pair)).collect();
                    if kept.is_empty() { place.to_owned() } else { format!("{place}?{}", kept.join("&")) }
                }
                None => url.to_owned(),
            },
            None => url.split(' ').filter(|pair| keep(pair)).collect::<Vec<_>>().join(" "),
        };
        (rest, options)
    }

    fn client(self) -> Result<ClientConfig, StoreError> {
        let unusable = |what: String| StoreError::Unusable(what);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| unusable(format!("cannot set up TLS: {e}")))?;
        if self.verify.is_none() && self.roots.is_none() {
            // As libpq: `prefer` and `require` encrypt, and check nothing.
            let unchecked = Arc::new(LenientVerifier { provider, roots: None });
            return Ok(builder.dangerous().with_custom_certificate_verifier(unchecked).with_no_client_auth());
        }
        let roots = self.read_roots()?;
        if self.verify == Some(true) {
            return Ok(builder.with_root_certificates(roots).with_no_client_auth());
        }
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|e| unusable(format!("cannot set up TLS: {e}")))?;
        let trusted = Arc::new(LenientVerifier { provider, roots: Some(verifier) });
        Ok(builder.dangerous().with_custom_certificate_verifier(trusted).with_no_client_auth())
    }

    fn read_roots(&self) -> Result<RootCertStore, StoreError> {
        let Some(path) = self.roots.as_deref().filter(|path| *path != "system") else {
            return tls::system_roots([])
                .map_err(|error| StoreError::Unusable(format!("{error}; set sslrootcert=FILE")));
        };
        let pem = std::fs::read(path)
            .map_err(|error| StoreError::Unusable(format!("cannot read sslrootcert {path}: {error}")))?;
        tls::bundle(&pem)
            .map_err(|error| StoreError::Unusable(format!("cannot use sslrootcert {path}: {error}")))
    }
}

/// Does not check the host name of the certificate nor, without roots, its issuer.
#[derive(Debug)]
struct LenientVerifier {
    provider: Arc<CryptoProvider>,
    roots: Option<Arc<rustls::client::WebPkiServerVerifier>>,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_options_are_taken_out_of_either_form() {
        let url = "postgres://u:p@h/db?sslmode=verify-full&connect_timeout=1&sslrootcert=%2Fetc%2Fca.pem";
        let (rest, options) = TlsOptions::split_off(url);
        assert_eq!(rest, "postgres://u:p@h/db?connect_timeout=1");
        assert_eq!((options.verify, options.roots.as_deref()), (Some(true), Some("/etc/ca.pem")));
        let (rest, options) = TlsOptions::split_off("host=h sslmode=verify-ca dbname=d");
        assert_eq!(rest, "host=h dbname=d");
        assert_eq!(options.verify, Some(false));
    }
}
