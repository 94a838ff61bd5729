//! Which certificates of servers are trusted: those that an authority of the system or a given one has signed, and a
//! given certificate itself, whatever it says about its use and its name.

use std::sync::{Arc, OnceLock};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use solehold_process::tls;

use super::error::HttpError;

pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    tls::roots(pem)?;
    Ok(tls::certificates(pem)?)
}

/// TLS for clients that trust `given` besides the system's authorities.
pub(super) fn client_config(given: Vec<CertificateDer<'static>>) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let trust = Trust { given, authorities: OnceLock::new(), provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| HttpError::Tls(error.to_string()))?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(trust));
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct Trust {
    given: Vec<CertificateDer<'static>>,
    /// Read from the system when the first certificate is shown: most servers of a loopback speak plain HTTP. None if
    /// there is no authority at all.
    authorities: OnceLock<Option<Arc<WebPkiServerVerifier>>>,
    provider: Arc<CryptoProvider>,
}

impl Trust {
    fn authorities(&self) -> Option<&WebPkiServerVerifier> {
        let read = || {
            let roots = tls::system_roots(self.given.iter().cloned()).ok()?;
            WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone()).build().ok()
        };
        self.authorities.get_or_init(read).as_deref()
    }
}

/// What a certificate that was given cannot be forgiven: it is not what it was when it was given.
fn is_spoilt(error: &Error) -> bool {
    use CertificateError as E;
    let Error::InvalidCertificate(error) = error else { return true };
    matches!(
        error,
        E::Expired
            | E::ExpiredContext { .. }
            | E::NotValidYet
            | E::NotValidYetContext { .. }
            | E::BadEncoding
            | E::Revoked
    )
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judged = match self.authorities() {
            Some(all) => all.verify_server_cert(shown, intermediates, name, ocsp_response, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        match judged {
            Err(error) if self.given.iter().any(|given| given == shown) && !is_spoilt(&error) => {
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, shown, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
