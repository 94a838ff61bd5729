//! Authentication: which key or certificate a request has, and whether it is valid.

use std::{net::IpAddr, sync::Arc};

use axum::http::{HeaderMap, Uri, header};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_core::key::Name;

use super::local;
use crate::{
    context::Context,
    error::ApiError,
    state::{identity::Identity, rates::RateLimitKey, ring::Credential},
};

/// Where a request comes from.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub ip: IpAddr,
    /// The names in the certificate that the client has shown, if it showed one.
    pub names: Arc<[Name]>,
}

/// Whether a path needs no key: all but the API, and the API's description.
pub(crate) fn is_public(path: &str) -> bool {
    !path.starts_with(paths::BASE) || path == paths::OPENAPI
}

/// Whether a path is for probes: a key that has expired must not make a healthy server look ill.
pub(crate) fn is_probe(path: &str) -> bool {
    [paths::HEALTH, paths::HEALTH_CHECK, paths::READY].contains(&path)
}

/// Admits a request by its key, or without one while the store has none, within the rate limit.
pub(crate) async fn admit(
    context: &Context,
    uri: &Uri,
    headers: &HeaderMap,
    peer: &Peer,
) -> Result<Identity, ApiError> {
    let ring = &context.ring;
    let shown = shown(headers, peer);
    // While the store has no keys, a key in the request is ignored, so that clients with some other token are admitted.
    let is_open = match &shown {
        None => ring.is_open(),
        Some(shown) => ring.ignores(context.engine(), shown).await?,
    };
    if is_open {
        context.rates.check(&RateLimitKey::at(peer.ip))?;
        local::check(uri, headers)?;
        return Ok(Identity::keyless());
    }
    let known = shown.map(|shown| (shown, ring.find(&shown)));
    let key = match known {
        Some((_, Ok(key))) => key,
        stranger => {
            context.rates.check(&RateLimitKey::at(peer.ip))?;
            let (shown, _) = stranger.ok_or_else(|| unauthorized("the request has no API key"))?;
            ring.read_again(context.engine()).await?;
            ring.find(&shown).map_err(|fault| unauthorized(fault.to_string()))?
        }
    };
    context.rates.check(&RateLimitKey::Key(key.id.clone()))?;
    Ok(Identity::of(key))
}

fn unauthorized(detail: impl Into<String>) -> ApiError {
    let detail =
        format!("{}; send one as `Authorization: Bearer <key>` or `X-API-Key: <key>`", detail.into());
    Problem::new(ErrorCode::Unauthorized, detail).into()
}

/// The credential of a request: a key, or else the client certificate of its connection.
pub(crate) fn shown<'a>(headers: &'a HeaderMap, peer: &'a Peer) -> Option<Credential<'a>> {
    let certificate = || (!peer.names.is_empty()).then(|| Credential::Certificate(&peer.names));
    shown_key(headers).map(Credential::Key).or_else(certificate)
}

/// The key in `Authorization: Bearer` or `Token`, or in `X-API-Key`.
fn shown_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let by_scheme = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        let is_known = ["bearer", "token"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        is_known.then(|| key.trim())
    });
    let bare = || text(header::HeaderName::from_static("x-api-key")).map(str::trim);
    by_scheme.or_else(bare).filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_in_three_ways() {
        let shown = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a header"));
            shown_key(&headers).map(str::to_owned)
        };
        assert_eq!(shown("authorization", "Bearer k1").as_deref(), Some("k1"));
        assert_eq!(shown("authorization", "token  k1 ").as_deref(), Some("k1"));
        assert_eq!(shown("x-api-key", "k1").as_deref(), Some("k1"));
        assert_eq!(shown("authorization", "Basic azE="), None);
        assert_eq!(shown("authorization", "Bearer "), None);
        assert_eq!(shown("cookie", "k1"), None);
    }

    #[test]
    fn the_surface_is_not_public_but_its_description_is() {
        for path in ["/healthz", "/readyz", "/metrics", "/", "/api/v1/openapi.json", "/elsewhere"] {
            assert!(is_public(path), "{path}");
        }
        for path in ["/api/v1", "/api/v1/scenes", "/api/v1/admin/keys", "/api/v1/unknown"] {
            assert!(!is_public(path), "{path}");
        }
    }
}
