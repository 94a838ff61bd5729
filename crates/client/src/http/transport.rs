//! What every HTTP client of a Solehold server needs, here and in the CLI: a checked URL, connections that trust the
//! right certificates and bear the key, and the part of an error that says most.

use reqwest::{Certificate, ClientBuilder, Url, header};
use solehold_api::paths;

/// Why servers cannot be asked as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HttpError(pub(super) String);

/// Checks the URL of a server.
pub fn server_url(server: &str) -> Result<Url, HttpError> {
    let odd = |why: String| HttpError(format!("server {server:?} {why}, as in http://127.0.0.1:7070"));
    let url = Url::parse(server).map_err(|error| odd(format!("is not a URL ({error}): write one")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(odd("is neither http:// nor https://: write one of them".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // The URL is left out: it has a secret in it.
        return Err(HttpError("a server's URL has a user or password in it: use an API key".to_owned()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(odd("has a query or a fragment: leave it out".to_owned()));
    }
    Ok(url)
}

/// Connections to these servers, with the key in each request. `ca_certs` (PEM) are trusted besides the system's.
pub fn builder(
    servers: &[Url],
    api_key: Option<&str>,
    ca_certs: Option<&[u8]>,
) -> Result<ClientBuilder, HttpError> {
    let mut headers = header::HeaderMap::new();
    if let Some(key) = api_key {
        let bearer = header::HeaderValue::try_from(format!("Bearer {key}"));
        let odd = |_| HttpError("the API key has characters that no key has".to_owned());
        let mut bearer = bearer.map_err(odd)?;
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
    }
    let mut builder =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).default_headers(headers);
    if servers.iter().all(is_loopback) {
        // A proxy has its own loopback.
        builder = builder.no_proxy();
    }
    if let Some(pem) = ca_certs {
        builder = builder.tls_certs_merge(certificates(pem)?);
    }
    Ok(builder)
}

/// The certificates of a PEM file.
pub fn certificates(pem: &[u8]) -> Result<Vec<Certificate>, HttpError> {
    let odd =
        |error: reqwest::Error| HttpError(format!("the CA certificates are not PEM: {}", root_cause(&error)));
    let certificates = Certificate::from_pem_bundle(pem).map_err(odd)?;
    if certificates.is_empty() {
        return Err(HttpError("the CA certificates are empty: give at least one, as PEM".to_owned()));
    }
    Ok(certificates)
}

/// The URL of a request.
pub fn url(base: &str, path: &str, query: &[(impl AsRef<str>, impl AsRef<str>)]) -> String {
    let pair = |name: &str, value: &str| format!("{name}={}", paths::segment(value));
    let query: Vec<String> = query.iter().map(|(name, value)| pair(name.as_ref(), value.as_ref())).collect();
    let question = if query.is_empty() { "" } else { "?" };
    format!("{base}{path}{question}{}", query.join("&"))
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

fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_needs_no_proxy() {
        let is = |url: &str| is_loopback(&Url::parse(url).expect("a URL"));
        assert!(is("http://127.0.0.1:7070") && is("http://[::1]:7070") && is("https://localhost"));
        assert!(!is("http://192.168.0.1:7070") && !is("http://example.org"));
    }

    #[test]
    fn what_is_given_is_escaped() {
        let none: [(&str, &str); 0] = [];
        assert_eq!(url("http://a", "/b", &none), "http://a/b");
        assert_eq!(url("http://a", "/b", &[("c", "d e"), ("f", "g")]), "http://a/b?c=d%20e&f=g");
    }
}
