//! Checked URLs, and connections that trust the right certificates and bear the key.

use std::{net::SocketAddr, sync::Arc};

pub use reqwest::Url;
use reqwest::{ClientBuilder, dns, header};
use solehold_api::paths;
use solehold_process::resolver::Resolver;

pub use super::error::root_cause;
use super::{
    error::{HttpError, SERVERS_MAX, ServerFault},
    trust,
};

/// The servers of lists with commas between, in their order. This is the only place where servers are parsed.
pub fn server_urls<L: AsRef<str>>(lists: impl IntoIterator<Item = L>) -> Result<Vec<Url>, HttpError> {
    let of_list =
        |list: L| -> Vec<_> { list.as_ref().split(',').map(|one| server_url(one.trim())).collect() };
    let urls: Vec<Url> = lists.into_iter().flat_map(of_list).collect::<Result<_, _>>()?;
    match urls.len() {
        1..=SERVERS_MAX => Ok(urls),
        count => Err(HttpError::ServerCount(count)),
    }
}

/// One server: its URL, or `HOST:PORT` for plain HTTP.
fn server_url(server: &str) -> Result<Url, HttpError> {
    let odd = |fault| HttpError::BadServer { server: server.to_owned(), fault };
    if server.is_empty() {
        return Err(HttpError::EmptyServer);
    }
    let is_bare = !server.contains("://");
    let text = if is_bare { format!("http://{server}") } else { server.to_owned() };
    let url = Url::parse(&text).map_err(|error| odd(ServerFault::NotUrl(error.to_string())))?;
    let has_port =
        server.trim_end_matches('/').rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if is_bare && !has_port && url.username().is_empty() {
        return Err(odd(ServerFault::NoPort));
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err(odd(ServerFault::Scheme));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(HttpError::Credentials);
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(odd(ServerFault::Query));
    }
    Ok(url)
}

/// A server's URL as requests are built on it.
pub(super) fn base(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

/// Connections to these servers, with the key in each request. `ca_certs` (PEM) are trusted besides the system's
/// authorities: as authorities, and as certificates of servers, as they are.
pub fn builder(
    servers: &[Url],
    api_key: Option<&str>,
    ca_certs: Option<&[u8]>,
) -> Result<ClientBuilder, HttpError> {
    let mut headers = header::HeaderMap::new();
    if let Some(key) = api_key {
        let bearer = header::HeaderValue::try_from(format!("Bearer {key}"));
        let mut bearer = bearer.map_err(|_| HttpError::ApiKey)?;
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
    }
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .default_headers(headers)
        .dns_resolver(Arc::new(KeptAddresses::default()));
    if servers.iter().all(is_loopback) {
        // A proxy has its own loopback.
        builder = builder.no_proxy();
    }
    let given = ca_certs.map_or_else(|| Ok(Vec::new()), trust::certificates)?;
    Ok(builder.tls_backend_preconfigured(trust::client_config(given)?))
}

/// Servers are found again while the name server is away.
#[derive(Default)]
struct KeptAddresses(Arc<Resolver>);

impl dns::Resolve for KeptAddresses {
    fn resolve(&self, name: dns::Name) -> dns::Resolving {
        let resolver = self.0.clone();
        Box::pin(async move {
            let found = resolver.addresses(name.as_str()).await?;
            // The port is that of the URL.
            let all = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(all) as dns::Addrs)
        })
    }
}

pub fn check_certificates(pem: &[u8]) -> Result<(), HttpError> {
    trust::certificates(pem).map(drop)
}

pub(super) fn url(base: &str, path: &str, query: &[(impl AsRef<str>, impl AsRef<str>)]) -> String {
    let pair = |name: &str, value: &str| format!("{name}={}", paths::segment(value));
    let query: Vec<String> = query.iter().map(|(name, value)| pair(name.as_ref(), value.as_ref())).collect();
    let question = if query.is_empty() { "" } else { "?" };
    format!("{base}{path}{question}{}", query.join("&"))
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
    fn servers_are_written_in_few_ways() {
        let bases = |list: &str| server_urls([list]).map(|urls| urls.iter().map(base).collect::<Vec<_>>());
        let is = |bases: &[&str]| Ok(bases.iter().map(|base| (*base).to_owned()).collect::<Vec<_>>());
        assert_eq!(bases("127.0.0.1:7070"), is(&["http://127.0.0.1:7070"]));
        assert_eq!(
            bases("db1:7070, https://db2/solehold/ ,[::1]:7070/"),
            is(&["http://db1:7070", "https://db2/solehold", "http://[::1]:7070"])
        );
        assert_eq!(server_urls(["a:1,b:2", "http://c"]).map(|urls| urls.len()), Ok(3));
        for (odd, why) in [
            ("", "a server is empty"),
            ("http://a,", "a server is empty"),
            ("localhost", "has no port"),
            ("db1:port", "invalid port"),
            ("[::1]", "has no port"),
            ("ftp://x", "\"ftp://x\" is neither http:// nor https://"),
            ("me:hunter2@host:1", "use an API key"),
        ] {
            let error = bases(odd).expect_err(odd).to_string();
            assert!(error.contains(why) && !error.contains("hunter2"), "{odd}: {error}");
        }
    }

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
