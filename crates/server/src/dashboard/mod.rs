//! The dashboard: a page at `/` for people, whose files are part of the program.
//!
//! The files need no key and say nothing about the store. What they show, the browser reads from the API, with the key
//! that the user types. `files/main.js` is where to begin reading them.

mod files;

use std::hash::{DefaultHasher, Hasher};

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
};

use crate::error::ApiError;
use files::File;

/// The page runs its own files and asks its own server, and nothing else. No page elsewhere can show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

/// What every file is sent with. A browser asks each time whether it has changed, so that an upgrade is seen at once.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-cache"),
];

pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route(paths::DASHBOARD, get(async |headers: HeaderMap| send(&files::INDEX, &headers)))
        // Relative, for a proxy that serves all of this below a path of its own.
        .route("/dashboard", get(async || (StatusCode::FOUND, [(header::LOCATION, "./")])))
        .route(paths::DASHBOARD_FILE, get(file))
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match files::ALL.iter().find(|file| file.name == name) {
        Some(file) => send(file, &headers),
        None => {
            let detail = format!("the dashboard has no file {name:?}");
            ApiError::from(Problem::new(ErrorCode::NoSuchRoute, detail)).into_response()
        }
    }
}

fn send(file: &File, asked: &HeaderMap) -> Response {
    let tag = tag(file.text);
    let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = known.is_some_and(|known| known.split(',').any(|one| one.trim().ends_with(&tag)));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Body::from(file.text).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type()));
    headers.insert(header::ETAG, HeaderValue::try_from(tag).expect("hexadecimal digits in quotes"));
    response
}

/// The same content, the same tag.
fn tag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    format!("\"{:016x}\"", hasher.finish())
}

#[cfg(test)]
mod tests;
