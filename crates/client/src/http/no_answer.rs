//! Why a server gave no answer, in words that tell the reader what to do about it.

use std::{error::Error, io, time::Duration};

use reqwest::Url;
use rustls::{AlertDescription, CertificateError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::error::root_cause;
use crate::authority::Obstacle;

/// How long a port is asked what it speaks.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// How a TLS alert begins: its type, and the major version.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAnswer {
    /// Which server, what happened, and what would be right.
    pub why: String,
    /// Nothing was done: the request never got to a server. Otherwise the outcome is unknown.
    pub is_undone: bool,
    /// What keeps requests from being answered, where that is known.
    pub obstacle: Option<Obstacle>,
}

impl NoAnswer {
    /// The request may have been carried out.
    pub(super) fn unknown(why: String) -> Self {
        Self { why, is_undone: false, obstacle: None }
    }

    /// The server was given `within`.
    pub(super) fn slow(base: &str, within: Duration) -> Self {
        Self::unknown(format!("no answer from {base} within {within:?}"))
    }
}

/// Why the server at `base` did not answer a request that was given `within`.
pub(super) async fn no_answer(base: &str, error: &reqwest::Error, within: Duration) -> NoAnswer {
    if let Some(tls) = find::<rustls::Error>(error) {
        let (why, obstacle) = tls_failure(base, tls);
        return NoAnswer { why, is_undone: error.is_connect(), obstacle };
    }
    if error.is_connect() {
        let why = format!("no server at {base} ({})", root_cause(error));
        return NoAnswer { why, is_undone: true, obstacle: Some(Obstacle::NoServer) };
    }
    if error.is_timeout() {
        return NoAnswer::slow(base, within);
    }
    // A connection that broke is no sign of another protocol.
    if let Some(rest) = base.strip_prefix("http://")
        && find::<io::Error>(error).is_none()
        && speaks_tls(base).await
    {
        let why = format!("{base}: this port speaks TLS; write https://{rest}");
        return NoAnswer { why, is_undone: true, obstacle: Some(Obstacle::WrongScheme) };
    }
    NoAnswer::unknown(format!("the connection to {base} was lost ({})", root_cause(error)))
}

fn tls_failure(base: &str, error: &rustls::Error) -> (String, Option<Obstacle>) {
    use CertificateError as E;
    let rest = base.strip_prefix("https://").unwrap_or(base);
    let untrusted = |reason: &str| {
        (format!("the certificate of {base} is not trusted{reason}"), Some(Obstacle::Untrusted))
    };
    let why = match error {
        rustls::Error::InvalidMessage(_) => {
            let why = format!("{base}: this port speaks plain HTTP; write http://{rest}");
            return (why, Some(Obstacle::WrongScheme));
        }
        rustls::Error::InvalidCertificate(odd) => match odd {
            E::Expired | E::ExpiredContext { .. } => format!("the certificate of {base} has expired"),
            E::NotValidYet | E::NotValidYetContext { .. } => {
                format!("the certificate of {base} is not valid yet: check the clocks")
            }
            E::NotValidForName | E::NotValidForNameContext { .. } => {
                format!("the certificate of {base} is for another name ({odd})")
            }
            E::UnknownIssuer => return untrusted(": no known authority signed it"),
            // What a server shows as its own and could sign others with was made by hand.
            E::Other(why) if format!("{why:?}").contains("CaUsedAsEndEntity") => {
                return untrusted(": it is signed by itself");
            }
            _ => return untrusted(&format!(" ({odd})")),
        },
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            format!("{base} asks for a client certificate, and none was given")
        }
        rustls::Error::AlertReceived(alert) => format!("{base} refused the TLS connection ({alert:?})"),
        other => format!("no TLS connection to {base} could be made ({other})"),
    };
    (why, None)
}

/// Whether a port that did not answer in HTTP answers a plain request with a TLS alert.
async fn speaks_tls(base: &str) -> bool {
    let asked = async {
        let url = Url::parse(base).ok()?;
        let host = url.host_str()?.trim_matches(['[', ']']);
        let mut stream = TcpStream::connect((host, url.port_or_known_default()?)).await.ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.ok()?;
        let mut answer = [0; TLS_ALERT.len()];
        stream.read_exact(&mut answer).await.ok()?;
        Some(answer == TLS_ALERT)
    };
    timeout(PROBE_MAX, asked).await.ok().flatten().unwrap_or(false)
}

/// The cause of this type, however deep it lies.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // What an I/O error wraps is not its source.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}
