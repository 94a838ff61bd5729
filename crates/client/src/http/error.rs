//! Errors of the transport.

use solehold_process::tls::TrustError;

pub(super) const SERVERS_MAX: usize = 32;

/// Why servers cannot be used as they are configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    #[error("{0} servers are given: name 1 to {SERVERS_MAX}")]
    ServerCount(usize),
    #[error("a server is empty: write HOST:PORT or a URL, with commas between several")]
    EmptyServer,
    #[error("server {server:?} {fault}, as in 127.0.0.1:7070 or https://solehold.example:7070")]
    BadServer { server: String, fault: ServerFault },
    /// The URL is left out: it has a secret in it.
    #[error("a server's URL has a user or password in it: use an API key")]
    Credentials,
    #[error("the API key has characters that no key has")]
    ApiKey,
    #[error("the CA certificates are empty: give at least one, as PEM")]
    NoCertificates,
    #[error("the CA certificates are not PEM: {0}")]
    Certificates(String),
    #[error("request_timeout is 0: no server could answer in time")]
    NoTimeout,
    #[error("TLS cannot be used: {0}")]
    Tls(String),
    #[error("{0}")]
    Client(String),
}

/// What is wrong with the address of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerFault {
    #[error("is not a URL ({0}): write HOST:PORT or one")]
    NotUrl(String),
    #[error("has no port: write HOST:PORT or a URL")]
    NoPort,
    #[error("is neither http:// nor https://: write one of them")]
    Scheme,
    #[error("has a query or a fragment: leave it out")]
    Query,
}

impl From<TrustError> for HttpError {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::Empty => Self::NoCertificates,
            error => Self::Certificates(error.to_string()),
        }
    }
}

/// The deepest source of an error, which says most, without the number that the system has for it.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let text = deepest.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
