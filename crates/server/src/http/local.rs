//! A server without keys trusts this machine, but not every web page that a browser on it has open.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header, uri::Authority};
use solehold_api::problem::{ErrorCode, Problem};

use crate::error::ApiError;

/// Refuses what a page from elsewhere may have sent: a name that is not this machine's (a page whose name was made to
/// point here), or an origin that is not this server (a page that posts across).
pub(crate) fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let host = uri.authority().map(Authority::as_str).or_else(|| text(header::HOST));
    let is_ours = host.is_none_or(is_this_machine);
    let is_same = text(header::ORIGIN).is_none_or(|origin| {
        let from = origin.split_once("://").map(|(_, authority)| authority);
        from.is_some() && from == host
    });
    if is_ours && is_same {
        return Ok(());
    }
    let detail =
        "without keys, only requests to localhost are accepted, and none from other web pages; create a key";
    Err(Problem::new(ErrorCode::Forbidden, detail).into())
}

/// Whether a host is an address, or a name of this machine only.
fn is_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost") || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_from_elsewhere_are_refused() {
        let allowed = |host: &'static str, origin: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a host"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().expect("an origin"));
            }
            check(&Uri::from_static("/api/v1/scenes"), &headers).is_ok()
        };
        for host in ["127.0.0.1:7070", "localhost:7070", "[::1]:7070", "LOCALHOST", "me.localhost:1"] {
            assert!(allowed(host, None), "{host}");
        }
        assert!(allowed("localhost:7070", Some("http://localhost:7070")), "its own page");
        for host in ["evil.example:7070", "localhost.evil.example", "notlocalhost"] {
            assert!(!allowed(host, None), "{host}");
        }
        for origin in ["http://evil.example", "http://localhost:8080", "null", "https://127.0.0.1:7070"] {
            assert!(!allowed("localhost:7070", Some(origin)), "{origin}");
        }
        assert!(check(&Uri::from_static("http://evil.example/x"), &HeaderMap::new()).is_err());
    }
}
