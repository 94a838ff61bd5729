//! The token that a message carries: a member of the JSON object that it is.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use solehold_core::time::Token;

use crate::refusal::Reason;

/// The token in the member `field` of a JSON object: a whole number from 1 on.
pub fn token(payload: &[u8], field: &str) -> Result<Token, Reason> {
    let text = std::str::from_utf8(payload).map_err(|_| Reason::NotJson)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let found = Member(field).deserialize(&mut json).and_then(|found| json.end().map(|()| found));
    match found.map_err(|_| Reason::NotJson)? {
        Found::Missing => Err(Reason::NoToken),
        Found::Twice => Err(Reason::BadToken),
        Found::Once(value) => match value.get().parse::<u64>() {
            Ok(number) if number > 0 => Ok(Token(number)),
            _ => Err(Reason::BadToken),
        },
    }
}

/// The same object without that member; everything else is as it was, to the letter.
pub fn without(payload: &Bytes, field: &str) -> Bytes {
    let Ok(Members(members)) = serde_json::from_slice(payload) else { return payload.clone() };
    let mut text = String::with_capacity(payload.len());
    for (name, value) in members.iter().filter(|(name, _)| name != field) {
        text.push(if text.is_empty() { '{' } else { ',' });
        text.push_str(&serde_json::to_string(name).unwrap_or_default());
        text.push(':');
        text.push_str(value.get());
    }
    if text.is_empty() {
        text.push('{');
    }
    text.push('}');
    Bytes::from(text)
}

enum Found<'a> {
    Missing,
    Once(&'a RawValue),
    Twice,
}

/// Looks for one member, and only skips the others.
struct Member<'f>(&'f str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Found<'de>, A::Error> {
        let mut found = Found::Missing;
        while let Some(Name(name)) = members.next_key()? {
            if name != self.0 {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = members.next_value()?;
            found = if matches!(found, Found::Missing) { Found::Once(value) } else { Found::Twice };
        }
        Ok(found)
    }
}

/// A member's name, copied only where it has escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// All members, in order.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    members.push((name, map.next_value::<&RawValue>().map_err(A::Error::custom)?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_whole_number_from_one_on() {
        let of = |text: &str| token(text.as_bytes(), "token");
        let document = r#"{ "line": "north", "data": { "objects": [], "token": 7 }, "token": 42 }"#;
        assert_eq!(of(document), Ok(Token(42)));
        assert_eq!(of(r#"{"\u0074oken":18446744073709551615}"#), Ok(Token(u64::MAX)));
        for text in ["", "x", "{", r#"{"token":1"#, r#"{"token":1} x"#, "[1]", "7", "null", "\"token\""] {
            assert_eq!(of(text), Err(Reason::NotJson), "{text}");
        }
        for text in ["{}", r#"{"tokens":1}"#, r#"{"data":{"token":1}}"#] {
            assert_eq!(of(text), Err(Reason::NoToken), "{text}");
        }
        for odd in ["-1", "0", "1.0", "1e3", "\"42\"", "null", "true", "[1]", "18446744073709551616"] {
            assert_eq!(of(&format!(r#"{{"token":{odd}}}"#)), Err(Reason::BadToken), "{odd}");
        }
        assert_eq!(of(r#"{"token":1,"token":2}"#), Err(Reason::BadToken), "which one?");
        assert_eq!(token(b"{\"token\":1,\"x\":\"\xff\"}", "token"), Err(Reason::NotJson));
    }

    #[test]
    fn the_rest_of_a_message_is_left_as_it_was() {
        let of = |text: &str| String::from_utf8(without(&Bytes::from(text.to_owned()), "token").into());
        let is = |text: &str| Ok(text.to_owned());
        assert_eq!(of(r#"{ "a" : 1.50, "token": 42 ,"b": [1, 2] }"#), is(r#"{"a":1.50,"b":[1, 2]}"#));
        assert_eq!(of(r#"{"token":1}"#), is("{}"));
        assert_eq!(of(r#"{"z":1,"a":{"token":2},"token":3}"#), is(r#"{"z":1,"a":{"token":2}}"#));
        assert_eq!(of(r#"{"\"ö\n":1e400,"token":3}"#), is(r#"{"\"ö\n":1e400}"#));
    }
}
