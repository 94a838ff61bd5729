//! Configuration of the connection to servers.

use std::time::Duration;

use secrecy::SecretString;

#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Their URLs, such as `https://solehold.example:7070`, or `HOST:PORT` for plain HTTP; all over one store. One
    /// entry may be a list with commas between. The first is preferred to begin with.
    pub servers: Vec<String>,
    pub api_key: Option<SecretString>,
    /// The tenant to speak for, with a key that may see several.
    pub tenant: Option<String>,
    /// Certificates to trust besides the system's, as PEM: of authorities, or of servers themselves.
    pub ca_certs: Option<Vec<u8>>,
    /// How long one server may take to answer before another is asked. Heartbeats have their own bound.
    pub request_timeout: Duration,
}

impl HttpConfig {
    /// Servers at these URLs, without a key.
    pub fn new<U: Into<String>>(servers: impl IntoIterator<Item = U>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            api_key: None,
            tenant: None,
            ca_certs: None,
            request_timeout: Duration::from_secs(5),
        }
    }
}
