//! Why a server gave no answer, in words that tell the reader what to do about it.

use std::{error::Error, io, time::Duration};

use reqwest::Url;
use rustls::{AlertDescription, CertificateError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::transport::root_cause;

/// Nobody listens there, or nobody gets there.
pub const NO_SERVER: &str = "no server at ";
/// Something answers there, in another protocol than was asked.
pub const SPEAKS: &str = ": this port speaks ";
/// A certificate that no one vouches for.
pub const NOT_TRUSTED: &str = " is not trusted";

/// How long a port is asked what it speaks.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// How a TLS alert begins: its type, and the major version.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAnswer {
    /// Which server, what happened, and what would be right.
    pub why: String,
    /// Nothing was done: the request never got to a server. Otherwise the outcome is unknown.
    pub is_undone: bool,
}

/// Why the server at `base` did not answer a request that was given `within`.
pub async fn no_answer(base: &str, error: &reqwest::Error, within: Duration) -> NoAnswer {
    if let Some(tls) = find::<rustls::Error>(error) {
        return NoAnswer { why: tls_failure(base, tls), is_undone: error.is_connect() };
    }
    if error.is_connect() {
        return NoAnswer { why: format!("{NO_SERVER}{base} ({})", root_cause(error)), is_undone: true };
    }
    if error.is_timeout() {
        let within = format!("{within:?}");
        return NoAnswer { why: format!("no answer from {base} within {within}"), is_undone: false };
    }
    // A connection that broke is no sign of another protocol.
    if let Some(rest) = base.strip_prefix("http://")
        && find::<io::Error>(error).is_none()
        && speaks_tls(base).await
    {
        return NoAnswer { why: format!("{base}{SPEAKS}TLS; write https://{rest}"), is_undone: true };
    }
    NoAnswer { why: format!("the connection to {base} was lost ({})", root_cause(error)), is_undone: false }
}

fn tls_failure(base: &str, error: &rustls::Error) -> String {
    use CertificateError as E;
    let rest = base.strip_prefix("https://").unwrap_or(base);
    match error {
        rustls::Error::InvalidMessage(_) => {
            format!("{base}{SPEAKS}plain HTTP; write http://{rest}")
        }
        rustls::Error::InvalidCertificate(odd) => match odd {
            E::Expired | E::ExpiredContext { .. } => format!("the certificate of {base} has expired"),
            E::NotValidYet | E::NotValidYetContext { .. } => {
                format!("the certificate of {base} is not valid yet: check the clocks")
            }
            E::NotValidForName | E::NotValidForNameContext { .. } => {
                format!("the certificate of {base} is for another name ({odd})")
            }
            E::UnknownIssuer => {
                format!("the certificate of {base}{NOT_TRUSTED}: no known authority signed it")
            }
            // What a server shows as its own and could sign others with was made by hand.
            E::Other(why) if format!("{why:?}").contains("CaUsedAsEndEntity") => {
                format!("the certificate of {base}{NOT_TRUSTED}: it is signed by itself")
            }
            _ => format!("the certificate of {base}{NOT_TRUSTED} ({odd})"),
        },
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            format!("{base} asks for a client certificate, and none was given")
        }
        rustls::Error::AlertReceived(alert) => format!("{base} refused the TLS connection ({alert:?})"),
        other => format!("no TLS connection to {base} could be made ({other})"),
    }
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
