//! Which key a request shows, and whether it is valid.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
};

use super::{ApiError, Identity, local, rate::RateLimitKey};
use crate::Context;

/// The address that a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub IpAddr);

/// Whether a path is for everyone: all but the surface, and the surface's description.
pub(crate) fn is_public(path: &str) -> bool {
    !path.starts_with(paths::BASE) || path == paths::OPENAPI
}

/// Admits a request by the key that it shows, or without one while the store has none; not more often than allowed.
pub(crate) async fn admit(
    context: &Context,
    uri: &Uri,
    headers: &HeaderMap,
    peer: IpAddr,
) -> Result<Identity, ApiError> {
    let ring = context.ring();
    if ring.is_open() {
        context.rates().check(&RateLimitKey::at(peer))?;
        local::check(uri, headers)?;
        return Ok(Identity::keyless());
    }
    let shown = shown_key(headers);
    let known = shown.map(|text| (text, ring.find(text)));
    let key = match known {
        Some((_, Ok(key))) => key,
        stranger => {
            context.rates().check(&RateLimitKey::at(peer))?;
            let (text, _) =
                stranger.ok_or_else(|| unauthorized("this needs a key, and the request shows none"))?;
            let found = ring.find_anew(context.engine(), text).await?;
            found.map_err(|fault| unauthorized(fault.to_string()))?
        }
    };
    context.rates().check(&RateLimitKey::Key(key.id.clone()))?;
    Ok(Identity::of(key))
}

fn unauthorized(detail: impl Into<String>) -> ApiError {
    let detail =
        format!("{}; show one as `Authorization: Bearer <key>` or `X-API-Key: <key>`", detail.into());
    Problem::new(ErrorCode::Unauthorized, detail).into()
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
