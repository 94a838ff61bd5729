//! Rows as they are claimed, and the values that go back to the database as they came.

use std::{sync::Arc, time::SystemTime};

use bytes::BytesMut;
use tokio_postgres::{
    Row,
    types::{FromSql, IsNull, ToSql, Type},
};
use uuid::Uuid;

use crate::{
    Error,
    limits::{BATCH_ROWS_MAX, OWNER_BYTES_MAX},
};

type Boxed = Box<dyn std::error::Error + Sync + Send>;

/// The name of a worker, as it stands in the lease owner column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// A name of 1 to 255 bytes without control characters.
    pub fn new(name: &str) -> Result<Self, Error> {
        if name.is_empty() || name.len() > OWNER_BYTES_MAX || name.chars().any(char::is_control) {
            let wanted = format!("use 1 to {OWNER_BYTES_MAX} bytes without control characters");
            return Err(Error::invalid("worker id", name, wanted));
        }
        Ok(Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of a row: `uuid`, any integer, or text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowId {
    Uuid(Uuid),
    /// A `smallint`, `integer` or `bigint`.
    Int(i64),
    /// A `text` or `varchar`.
    Text(String),
}

impl RowId {
    pub(crate) fn read(row: &Row, column: usize) -> Result<Self, Error> {
        let kind = row.columns()[column].type_().clone();
        Ok(match kind {
            Type::UUID => Self::Uuid(row.try_get(column)?),
            Type::INT8 => Self::Int(row.try_get(column)?),
            Type::INT4 => Self::Int(row.try_get::<_, i32>(column)?.into()),
            Type::INT2 => Self::Int(row.try_get::<_, i16>(column)?.into()),
            Type::TEXT | Type::VARCHAR => Self::Text(row.try_get(column)?),
            other => {
                let wanted = "use uuid, smallint, integer, bigint, text or varchar";
                return Err(Error::invalid("type of the id column", other.name(), wanted));
            }
        })
    }

    /// An id as a user typed it, for a column of the type that PostgreSQL names so (`uuid`, `bigint`, `text`, ...).
    pub fn parse(text: &str, column_type: &str) -> Result<Self, Error> {
        let invalid = |wanted: &str| Error::invalid("id", text, wanted);
        match column_type {
            "uuid" => text.parse().map(Self::Uuid).map_err(|_| invalid("use a UUID, as the id column has")),
            "smallint" | "integer" | "bigint" => {
                text.parse().map(Self::Int).map_err(|_| invalid("use a number, as the id column has"))
            }
            _ => Ok(Self::Text(text.to_owned())),
        }
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Uuid(id) => id.to_string().into(),
            Self::Int(id) => (*id).into(),
            Self::Text(id) => id.as_str().into(),
        }
    }
}

impl std::fmt::Display for RowId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uuid(id) => id.fmt(f),
            Self::Int(id) => id.fmt(f),
            Self::Text(id) => id.fmt(f),
        }
    }
}

impl From<Uuid> for RowId {
    fn from(id: Uuid) -> Self {
        Self::Uuid(id)
    }
}

impl From<i64> for RowId {
    fn from(id: i64) -> Self {
        Self::Int(id)
    }
}

impl From<&str> for RowId {
    fn from(id: &str) -> Self {
        Self::Text(id.to_owned())
    }
}

/// The ids of a batch, as one array.
#[derive(Debug)]
pub(crate) enum Ids {
    Uuid(Vec<Uuid>),
    Int(Vec<i64>),
    Text(Vec<String>),
}

impl Ids {
    /// All of one type and none of them twice; at most [`BATCH_ROWS_MAX`].
    pub(crate) fn collect<'a>(ids: impl Iterator<Item = &'a RowId> + Clone) -> Result<Self, Error> {
        let count = ids.clone().count();
        if count > BATCH_ROWS_MAX {
            let wanted = format!("at most {BATCH_ROWS_MAX}; send several batches");
            return Err(Error::invalid("number of rows", count.to_string(), wanted));
        }
        let mut seen = std::collections::HashSet::with_capacity(count);
        if let Some(twice) = ids.clone().find(|id| !seen.insert(*id)) {
            return Err(Error::invalid("row", twice.to_string(), "name it once in a batch"));
        }
        let uuid = |id: &RowId| if let RowId::Uuid(id) = id { Some(*id) } else { None };
        let int = |id: &RowId| if let RowId::Int(id) = id { Some(*id) } else { None };
        let text = |id: &RowId| if let RowId::Text(id) = id { Some(id.clone()) } else { None };
        let uuids = ids.clone().map(uuid).collect::<Option<_>>().map(Self::Uuid);
        let all = uuids
            .or_else(|| ids.clone().map(int).collect::<Option<_>>().map(Self::Int))
            .or_else(|| ids.clone().map(text).collect::<Option<_>>().map(Self::Text));
        all.ok_or_else(|| Error::invalid("batch", "ids of several types", "use rows of one table"))
    }

    pub(crate) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Uuid(ids) => (ids, Type::UUID_ARRAY),
            Self::Int(ids) => (ids, Type::INT8_ARRAY),
            Self::Text(ids) => (ids, Type::TEXT_ARRAY),
        }
    }
}

/// What proves a claim. Every change of the row checks it, together with the database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    pub id: RowId,
    pub owner: Owner,
    /// The number of this claim of the row: a fencing token for everything that the work touches.
    pub epoch: i64,
}

/// A row that this worker may work on until its lease runs out.
#[derive(Debug)]
pub struct ClaimedRow {
    /// What every later change must show.
    pub proof: Proof,
    /// How often the row has been claimed without a result, this time included; 0 without such a column.
    pub attempts: i32,
    /// The state that it is in, if the table has a state column.
    pub state: Option<String>,
    /// The database's time when it was claimed.
    pub claimed_at: SystemTime,
    pub(crate) row: Row,
    /// Where the payload's columns begin: their names are the application's, and may be the same as ours.
    pub(crate) payload_from: usize,
}

impl ClaimedRow {
    pub fn id(&self) -> &RowId {
        &self.proof.id
    }

    /// The value of a payload column.
    pub fn get<'a, T: FromSql<'a>>(&'a self, column: &str) -> Result<T, Error> {
        let payload = &self.row.columns()[self.payload_from..];
        let at = payload.iter().position(|known| known.name() == column);
        let at = at.ok_or_else(|| Error::invalid("column", column, "name it in the payload of the table"))?;
        Ok(self.row.try_get(self.payload_from + at)?)
    }
}

/// A value in PostgreSQL's binary form, which goes back exactly as it came, whatever its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) kind: Type,
    bytes: Vec<u8>,
}

impl<'a> FromSql<'a> for Raw {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Boxed> {
        Ok(Self { kind: kind.clone(), bytes: raw.to_vec() })
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl ToSql for Raw {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Boxed> {
        out.extend_from_slice(&self.bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_one_type_and_no_row_twice() {
        let ids = [RowId::from(1), RowId::from(2)];
        assert!(matches!(Ids::collect(ids.iter()).unwrap(), Ids::Int(ids) if ids == [1, 2]));
        let twice = Ids::collect([RowId::from("a"), RowId::from("a")].iter()).unwrap_err().to_string();
        assert!(twice.contains("once"), "{twice}");
        let mixed = Ids::collect([RowId::from("a"), RowId::from(1)].iter()).unwrap_err().to_string();
        assert!(mixed.contains("one table"), "{mixed}");
        let many: Vec<RowId> = (0..=BATCH_ROWS_MAX as i64).map(RowId::from).collect();
        assert!(Ids::collect(many.iter()).unwrap_err().to_string().contains("several batches"));
    }

    #[test]
    fn workers_have_names() {
        assert_eq!(Owner::new("host-1/42").unwrap().as_str(), "host-1/42");
        for bad in ["", "a\nb", &"x".repeat(OWNER_BYTES_MAX + 1)] {
            assert!(Owner::new(bad).unwrap_err().to_string().contains("worker id"));
        }
    }
}
