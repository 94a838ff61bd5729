//! Paths work with or without a trailing slash.

use axum::http::{Uri, uri::PathAndQuery};

/// Takes slashes off the end of the path. Nothing is decoded: a `%2F` stays part of its name.
pub(crate) fn without_trailing_slash(uri: &mut Uri) {
    let path = uri.path();
    if path.len() < 2 || !path.ends_with('/') {
        return;
    }
    let bare = path.trim_end_matches('/');
    let bare = if bare.is_empty() { "/" } else { bare };
    let text = uri.query().map_or_else(|| bare.to_owned(), |query| format!("{bare}?{query}"));
    let mut parts = uri.clone().into_parts();
    let Ok(path) = PathAndQuery::try_from(text) else { return };
    parts.path_and_query = Some(path);
    if let Ok(normal) = Uri::from_parts(parts) {
        *uri = normal;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_slashes_go() {
        for (given, wanted) in [
            ("/", "/"),
            ("//", "/"),
            ("/a", "/a"),
            ("/a/", "/a"),
            ("/a//", "/a"),
            ("/a/b%2F/", "/a/b%2F"),
            ("/a/b%2F", "/a/b%2F"),
            ("/a/?q=/", "/a?q=/"),
            ("http://host:1/a/?q", "http://host:1/a?q"),
        ] {
            let mut uri: Uri = given.parse().expect(given);
            without_trailing_slash(&mut uri);
            assert_eq!(uri.to_string(), wanted.parse::<Uri>().expect(wanted).to_string(), "{given}");
        }
    }
}
