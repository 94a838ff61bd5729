//! Conversions between core's values and columns.

use std::{borrow::Cow, collections::BTreeMap};

use solehold_core::{
    event::EventName,
    key::{Document, LeaseId, Name, SessionId},
    session::{HolderStatus, Standing},
    time::{Revision, StoreTime, Token},
};
use tokio_postgres::types::{FromSql, Json, ToSql};
use uuid::Uuid;

use super::{text, unreadable};
use crate::postgres::fault::Fault;

/// A value that a column keeps.
pub(crate) trait Value: Sized + 'static {
    const TYPE: &'static str;
    /// Its type in arrays, where that is another one.
    const SENT_AS: &'static str = Self::TYPE;
    type Read<'r>: FromSql<'r>;
    type Sent<'r>: ToSql + Sync + Send;
    fn read(stored: Self::Read<'_>) -> Result<Self, Fault>;
    fn sent(&self) -> Self::Sent<'_>;
}

/// Values that the driver has as another type, which they become and come from by an expression each.
macro_rules! values {
    ($($value:ty: $type:literal as $sql:ty, |$in:ident| $read:expr, |$out:ident| $sent:expr;)*) => {
        $(impl Value for $value {
            const TYPE: &'static str = $type;
            type Read<'r> = $sql;
            type Sent<'r> = $sql;

            fn read($in: $sql) -> Result<Self, Fault> {
                Ok($read)
            }

            fn sent(&self) -> $sql {
                let $out = self;
                $sent
            }
        })*
    };
}

values! {
    bool: "boolean" as bool, |stored| stored, |value| *value;
    i32: "integer" as i32, |stored| stored, |value| *value;
    i64: "bigint" as i64, |stored| stored, |value| *value;
    Uuid: "uuid" as Uuid, |stored| stored, |value| *value;
    // Unsigned 64 bits are kept as signed.
    u64: "bigint" as i64, |stored| stored as u64, |value| *value as i64;
    u32: "bigint" as i64, |stored| stored as u32, |value| i64::from(*value);
    StoreTime: "bigint" as i64, |stored| StoreTime(stored as u64), |value| ms(*value);
    Revision: "bigint" as i64, |stored| Revision(stored as u64), |value| value.0 as i64;
    Token: "bigint" as i64, |stored| Token(stored as u64), |value| value.0 as i64;
    SessionId: "uuid" as Uuid, |stored| SessionId(stored), |value| value.0;
    LeaseId: "uuid" as Uuid, |stored| LeaseId(stored), |value| value.0;
}

/// Store time as a column keeps it.
pub(crate) fn ms(time: StoreTime) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

macro_rules! texts {
    ($($value:ty, |$in:ident| $read:expr, |$out:ident| $sent:expr;)*) => {
        $(impl Value for $value {
            const TYPE: &'static str = "text";
            type Read<'r> = &'r str;
            type Sent<'r> = Cow<'r, str>;

            fn read($in: &str) -> Result<Self, Fault> {
                $read
            }

            fn sent(&self) -> Cow<'_, str> {
                let $out = self;
                $sent.into()
            }
        })*
    };
}

texts! {
    String, |stored| Ok(stored.to_owned()), |value| value.as_str();
    Name, |stored| Name::stored(stored).map_err(|e| unreadable(format!("invalid stored name: {e}"))), |value| value.as_str();
    Required, |stored| Ok(Required(document(stored)?)), |value| text::stored(value.0.as_str());
    EventName, |_stored| Err(unreadable("this column is write-only")), |value| value.as_str();
    Standing, |stored| standing(stored), |value| match value {
        Standing::Current => "current",
        Standing::Draining => "draining",
        Standing::Superseded => "superseded",
    };
    HolderStatus, |stored| status(stored), |value| match value {
        HolderStatus::Active => "active",
        HolderStatus::Draining => "draining",
        HolderStatus::Maintenance => "maintenance",
    };
}

fn standing(stored: &str) -> Result<Standing, Fault> {
    match stored {
        "current" => Ok(Standing::Current),
        "draining" => Ok(Standing::Draining),
        "superseded" => Ok(Standing::Superseded),
        other => Err(unreadable(format!("unknown status {other} of a session"))),
    }
}

fn status(stored: &str) -> Result<HolderStatus, Fault> {
    match stored {
        "active" => Ok(HolderStatus::Active),
        "draining" => Ok(HolderStatus::Draining),
        "maintenance" => Ok(HolderStatus::Maintenance),
        other => Err(unreadable(format!("unknown status {other} of a holder"))),
    }
}

fn document(stored: &str) -> Result<Document, Fault> {
    Document::new(text::restored(stored)).map_err(unreadable)
}

/// A document of a column that has one in every row.
#[derive(Debug, Clone)]
pub(crate) struct Required(pub(crate) Document);

/// Most documents are empty: that is kept as NULL.
impl Value for Document {
    const TYPE: &'static str = "text";
    type Read<'r> = Option<&'r str>;
    type Sent<'r> = Option<Cow<'r, str>>;

    fn read(stored: Option<&str>) -> Result<Self, Fault> {
        stored.map_or_else(|| Ok(Self::default()), document)
    }

    fn sent(&self) -> Option<Cow<'_, str>> {
        (self.as_str() != "{}").then(|| text::stored(self.as_str()))
    }
}

/// What selects a resource.
#[derive(Debug, Clone, Default)]
pub(crate) struct Labels(pub(crate) BTreeMap<String, String>);

impl Value for Labels {
    const TYPE: &'static str = "jsonb";
    // Not every server has arrays of jsonb.
    const SENT_AS: &'static str = "text";
    type Read<'r> = Json<BTreeMap<String, String>>;
    type Sent<'r> = String;

    fn read(Json(stored): Self::Read<'_>) -> Result<Self, Fault> {
        let restore =
            |(k, v): (String, String)| (text::restored(&k).into_owned(), text::restored(&v).into_owned());
        Ok(Self(stored.into_iter().map(restore).collect()))
    }

    fn sent(&self) -> String {
        let stored = self.0.iter().map(|(k, v)| (text::stored(k).into_owned(), text::stored(v).into()));
        serde_json::Value::Object(stored.collect()).to_string()
    }
}

impl<T: Value> Value for Option<T> {
    const TYPE: &'static str = T::TYPE;
    const SENT_AS: &'static str = T::SENT_AS;
    type Read<'r> = Option<T::Read<'r>>;
    type Sent<'r> = Option<T::Sent<'r>>;

    fn read(stored: Self::Read<'_>) -> Result<Self, Fault> {
        stored.map(T::read).transpose()
    }

    fn sent(&self) -> Self::Sent<'_> {
        self.as_ref().map(T::sent)
    }
}
