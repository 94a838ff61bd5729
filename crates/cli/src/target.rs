//! What commands are pointed at: `KIND/KEY` names a resource, a UUID names a lease.

use std::{fmt, str::FromStr};

use solehold_core::key::Name;
use uuid::Uuid;

use crate::error::ValueError;

/// A resource, written `kind/key`: everything after the first slash is the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceArg {
    pub kind: String,
    pub key: String,
}

impl FromStr for ResourceArg {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parts = text.split_once('/').filter(|(kind, key)| !kind.is_empty() && !key.is_empty());
        let (kind, key) = parts.ok_or("write KIND/KEY, as in job/nightly")?;
        for (what, name) in [("the kind", kind), ("the key", key)] {
            Name::new(name).map_err(|error| format!("{what} {error}"))?;
            // URL parsers drop these from paths however they are escaped: the request would name something else.
            if matches!(name, "." | "..") {
                return Err(format!("{what} is {name:?}, which no URL can name").into());
            }
        }
        Ok(Self { kind: kind.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for ResourceArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.key)
    }
}

/// A lease: by its id, or by the resource that it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseArg {
    Id(Uuid),
    On(ResourceArg),
}

impl FromStr for LeaseArg {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        let odd = |_: ValueError| "give a lease id, or the resource that it is on as KIND/KEY".into();
        if text.contains('/') { text.parse().map(Self::On) } else { text.parse().map(Self::On).map_err(odd) }
    }
}

impl LeaseArg {
    /// As it is written in a command.
    pub fn typed(&self) -> String {
        match self {
            Self::Id(id) => id.to_string(),
            Self::On(resource) => resource.to_string(),
        }
    }
}

impl fmt::Display for LeaseArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "lease {id}"),
            Self::On(resource) => write!(f, "{resource}"),
        }
    }
}

/// `name=value`.
pub fn pair(text: &str) -> Result<(String, String), ValueError> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    if name.is_empty() {
        return Err("the name before = is empty".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_after_the_first_slash_is_the_key() {
        let parse = |text: &str| text.parse::<ResourceArg>().map(|r| (r.kind, r.key));
        let is = |kind: &str, key: &str| Ok((kind.to_owned(), key.to_owned()));
        assert_eq!(parse("camera/cam-1"), is("camera", "cam-1"));
        assert_eq!(parse("job/a/b//c/"), is("job", "a/b//c/"));
        assert_eq!(parse("söhne/数 🚦"), is("söhne", "数 🚦"));
        for odd in ["", "camera", "camera/", "/key", "/", "./x", "job/..", "job/a\nb"] {
            assert!(parse(odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn a_uuid_is_a_lease() {
        let id = Uuid::from_u128(7);
        assert_eq!(LeaseArg::Id(id).typed().parse(), Ok(LeaseArg::Id(id)));
        assert!(matches!("job/7".parse(), Ok(LeaseArg::On(_))));
        assert!("nightly".parse::<LeaseArg>().expect_err("neither").to_string().contains("lease id"));
    }
}
