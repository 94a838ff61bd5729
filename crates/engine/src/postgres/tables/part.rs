//! What a description of columns gives: select lists, arrays to send, and rows read back, all in the one order in which
//! the columns are described.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::value::Value;
use crate::postgres::fault::Fault;

pub(crate) type Params<'a> = Vec<Box<dyn ToSql + Sync + Send + 'a>>;

pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

pub(crate) fn refs<'a>(params: &'a Params<'_>) -> Vec<Param<'a>> {
    params.iter().map(|p| p.as_ref() as Param<'a>).collect()
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) table: &'static str,
    pub(crate) alias: &'static str,
    pub(crate) name: &'static str,
    /// How it is computed, if it is no column of the table.
    pub(crate) computed_by: Option<&'static str>,
    pub(crate) sql_type: &'static str,
    /// Its type in arrays, from which PostgreSQL converts it.
    pub(crate) sent_as: &'static str,
}

impl Column {
    pub(crate) fn of<T: Value>(
        table: &'static str,
        alias: &'static str,
        name: &'static str,
        computed_by: Option<&'static str>,
    ) -> Self {
        Self { table, alias, name, computed_by, sql_type: T::TYPE, sent_as: T::SENT_AS }
    }

    fn selected(&self) -> String {
        match self.computed_by {
            Some(sql) => format!("{sql} AS {}", self.name),
            None => format!("{}.{}", self.alias, self.name),
        }
    }

    /// The value that was sent for it in the arrays `u`.
    fn arrived(&self) -> String {
        let cast = if self.sent_as == self.sql_type { String::new() } else { format!("::{}", self.sql_type) };
        format!("u.{}{cast}", self.name)
    }
}

/// Columns that travel together: a row, or a part of one. Tuples of parts are parts, and so is a part that is there or
/// not.
pub(crate) trait Part: Sized + 'static {
    const WIDTH: usize;
    fn columns() -> Vec<Column>;
    fn read(cells: &mut Cells<'_>) -> Result<Self, Fault>;
    /// Adds one array per column.
    fn send<'r>(rows: impl Iterator<Item = Option<&'r Self>> + Clone, arrays: &mut Params<'r>);
}

/// The cells of a row, read one after the other.
pub(crate) struct Cells<'a> {
    row: &'a Row,
    at: usize,
}

impl<'a> Cells<'a> {
    /// The next cell. Tests run with the check that it is the one that is expected.
    pub(crate) fn next<T: Value>(&mut self, name: &str) -> Result<T, Fault> {
        debug_assert_eq!(self.row.columns().get(self.at).map(|c| c.name()), Some(name));
        let stored: T::Read<'a> = self.row.try_get(self.at)?;
        self.at += 1;
        T::read(stored)
    }

    fn is_null(&self) -> Result<bool, Fault> {
        Ok(self.row.try_get::<_, Option<Anything>>(self.at)?.is_none())
    }
}

/// A cell of any type that is not NULL.
struct Anything;

impl<'a> FromSql<'a> for Anything {
    fn from_sql(_: &Type, _: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Reads a row that a query with the select list of `P` gave.
pub(crate) fn read<P: Part>(row: &Row) -> Result<P, Fault> {
    let mut cells = Cells { row, at: 0 };
    let part = P::read(&mut cells)?;
    debug_assert_eq!(cells.at, row.len(), "columns that nobody reads");
    Ok(part)
}

pub(crate) fn arrays<P: Part>(rows: &[P]) -> Params<'_> {
    let mut arrays = Vec::new();
    P::send(rows.iter().map(Some), &mut arrays);
    arrays
}

macro_rules! tuple {
    ($($part:ident $at:tt),+) => {
        impl<$($part: Part),+> Part for ($($part,)+) {
            const WIDTH: usize = 0 $(+ $part::WIDTH)+;

            fn columns() -> Vec<Column> {
                [$($part::columns()),+].concat()
            }

            fn read(cells: &mut Cells<'_>) -> Result<Self, Fault> {
                Ok(($($part::read(cells)?,)+))
            }

            fn send<'r>(rows: impl Iterator<Item = Option<&'r Self>> + Clone, arrays: &mut Params<'r>) {
                $($part::send(rows.clone().map(|row| row.map(|row| &row.$at)), arrays);)+
            }
        }
    };
}
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);

/// It is there if its first column is.
impl<P: Part> Part for Option<P> {
    const WIDTH: usize = P::WIDTH;

    fn columns() -> Vec<Column> {
        P::columns()
    }

    fn read(cells: &mut Cells<'_>) -> Result<Self, Fault> {
        if cells.is_null()? {
            cells.at += P::WIDTH;
            return Ok(None);
        }
        P::read(cells).map(Some)
    }

    fn send<'r>(rows: impl Iterator<Item = Option<&'r Self>> + Clone, arrays: &mut Params<'r>) {
        P::send(rows.map(|row| row.and_then(Option::as_ref)), arrays);
    }
}

fn joined(columns: &[Column], text: impl Fn(&Column) -> String, by: &str) -> String {
    columns.iter().map(text).collect::<Vec<_>>().join(by)
}

fn name(column: &Column) -> String {
    column.name.to_owned()
}

pub(crate) fn list<P: Part>() -> String {
    joined(&P::columns(), Column::selected, ", ")
}

/// The rows that were sent, as `u`.
fn sent(columns: &[Column]) -> String {
    let arrays: Vec<_> = (1..).zip(columns).map(|(n, c)| format!("${n}::{}[]", c.sent_as)).collect();
    format!("unnest({}) AS u({})", arrays.join(", "), joined(columns, name, ", "))
}

/// Inserts rows of `P`; `others` are columns of the table that are computed from those of `P`.
pub(crate) fn insert<P: Part>(others: &[(&str, &str)]) -> String {
    let columns = P::columns();
    let mut names = joined(&columns, name, ", ");
    let mut values = joined(&columns, Column::arrived, ", ");
    for (name, value) in others {
        names += &format!(", {name}");
        values += &format!(", {value}");
    }
    format!("INSERT INTO solehold.{} ({names}) SELECT {values} FROM {}", columns[0].table, sent(&columns))
}

/// Inserts rows with the key `K`, or updates `P` of those that are there.
pub(crate) fn upsert<K: Part, P: Part>() -> String {
    let set = joined(&P::columns(), |c| format!("{0} = excluded.{0}", c.name), ", ");
    let keys = joined(&K::columns(), name, ", ");
    format!("{} ON CONFLICT ({keys}) DO UPDATE SET {set}", insert::<(K, P)>(&[]))
}

/// Updates `P` of the rows with the key `K`; `others` are columns that are set in another way than to what was sent.
pub(crate) fn update<K: Part, P: Part>(others: &[(&str, &str)]) -> String {
    let keys = K::columns();
    let changed = P::columns();
    let is_other = |c: &&Column| others.iter().any(|(name, _)| *name == c.name);
    let sent_ones = changed.iter().filter(|c| !is_other(c)).map(|c| format!("{} = {}", c.name, c.arrived()));
    let other_ones = others.iter().map(|(name, value)| format!("{name} = {value}"));
    let set: Vec<_> = sent_ones.chain(other_ones).collect();
    let Column { table, alias, .. } = keys[0];
    let is_same = joined(&keys, |c| format!("{}.{1} = u.{1}", c.alias, c.name), " AND ");
    let rows = sent(&[keys, changed].concat());
    format!("UPDATE solehold.{table} {alias} SET {} FROM {rows} WHERE {is_same}", set.join(", "))
}

/// Deletes the rows with the key `K`.
pub(crate) fn delete<K: Part>() -> String {
    let keys = K::columns();
    let Column { table, alias, .. } = keys[0];
    let is_same = joined(&keys, |c| format!("{}.{1} = u.{1}", c.alias, c.name), " AND ");
    format!("DELETE FROM solehold.{table} {alias} USING {} WHERE {is_same}", sent(&keys))
}
