//! The description of a table whose rows are claimed.

use crate::{Error, ident, limits::COLUMNS_MAX};

/// A table whose rows can be claimed: its name, its columns, and which of its rows are open. Made by
/// [`ClaimTable::builder`].
///
/// Names are checked and quoted. The claimable condition is the application's own SQL and is trusted as such: never
/// build it from anything that a user typed.
#[derive(Debug, Clone)]
pub struct ClaimTable {
    /// `schema.table` as it was given.
    pub(crate) name: String,
    /// The same, quoted, as all columns below are.
    pub(crate) quoted: String,
    pub(crate) id: String,
    pub(crate) state: Option<String>,
    pub(crate) state_type: String,
    pub(crate) claimable: String,
    /// Priority first if there is one; the id comes last, always.
    pub(crate) order: Vec<String>,
    pub(crate) owner: String,
    pub(crate) until: String,
    pub(crate) epoch: String,
    pub(crate) attempts: Option<String>,
    pub(crate) next_attempt: Option<String>,
    pub(crate) dead: Option<Dead>,
    pub(crate) touched: Option<String>,
    pub(crate) payload: Vec<String>,
    pub(crate) indexes: Vec<Vec<String>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Dead {
    pub(crate) at: String,
    pub(crate) reason: String,
}

impl ClaimTable {
    /// Begins a description: `table` or `schema.table`, with `id` as its key and `lease_owner`, `lease_until`,
    /// `lease_epoch` as the columns of the lease, all rows claimable, in the order of their ids, by default.
    pub fn builder(table: &str) -> ClaimTableBuilder {
        ClaimTableBuilder::new(table)
    }

    /// The table, as it was named.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When a row that was claimed or deferred may be claimed (again); null for a fresh one.
    pub(crate) fn due(&self) -> String {
        match &self.next_attempt {
            Some(next) => format!("GREATEST({}, {next})", self.until),
            None => self.until.clone(),
        }
    }

    /// Which rows are open, held or not.
    pub(crate) fn open(&self) -> String {
        let dead = self.dead.as_ref().map(|dead| format!(" AND {} IS NULL", dead.at)).unwrap_or_default();
        format!("({}){dead}", self.claimable)
    }

    /// Order columns and the id.
    pub(crate) fn key(&self) -> impl Iterator<Item = &String> {
        self.order.iter().chain([&self.id])
    }

    /// The columns that the claim's own statements write.
    pub(crate) fn managed(&self) -> impl Iterator<Item = &String> {
        let dead = self.dead.iter().flat_map(|dead| [&dead.at, &dead.reason]);
        let optional = [&self.state, &self.attempts, &self.next_attempt, &self.touched];
        let lease = [&self.id, &self.owner, &self.until, &self.epoch];
        lease.into_iter().chain(optional.into_iter().flatten()).chain(dead)
    }
}

/// Builds a [`ClaimTable`]. What is wrong is said by [`build`](Self::build).
#[derive(Debug, Clone)]
pub struct ClaimTableBuilder {
    /// With names as they were given.
    table: ClaimTable,
    priority: Option<String>,
}

impl ClaimTableBuilder {
    fn new(table: &str) -> Self {
        let table = ClaimTable {
            name: table.to_owned(),
            quoted: String::new(),
            id: "id".into(),
            state: None,
            state_type: "text".into(),
            claimable: "true".into(),
            order: Vec::new(),
            owner: "lease_owner".into(),
            until: "lease_until".into(),
            epoch: "lease_epoch".into(),
            attempts: None,
            next_attempt: None,
            dead: None,
            touched: None,
            payload: Vec::new(),
            indexes: Vec::new(),
        };
        Self { table, priority: None }
    }

    /// The key's column: `uuid`, an integer or text.
    pub fn id(mut self, column: &str) -> Self {
        self.table.id = column.to_owned();
        self
    }

    /// The column that transitions change.
    pub fn state(mut self, column: &str) -> Self {
        self.table.state = Some(column.to_owned());
        self
    }

    /// The type of the state column where it is not text, such as an enum's `schema.name`.
    pub fn state_type(mut self, name: &str) -> Self {
        self.table.state_type = name.to_owned();
        self
    }

    /// Which rows are open, in SQL over the table's columns. It becomes part of an index, so it must not depend on the
    /// time.
    pub fn claimable(mut self, sql: &str) -> Self {
        self.table.claimable = sql.to_owned();
        self
    }

    /// The order in which fresh rows are claimed, ascending; the id is always the last of it.
    pub fn order<'a>(mut self, columns: impl IntoIterator<Item = &'a str>) -> Self {
        self.table.order = columns.into_iter().map(str::to_owned).collect();
        self
    }

    /// A number that goes before the order: the lowest first.
    pub fn priority(mut self, column: &str) -> Self {
        self.priority = Some(column.to_owned());
        self
    }

    /// The columns of the lease: `text`, `timestamptz`, `bigint`.
    pub fn lease(mut self, owner: &str, until: &str, epoch: &str) -> Self {
        let table = &mut self.table;
        [table.owner, table.until, table.epoch] = [owner, until, epoch].map(str::to_owned);
        self
    }

    /// Counts claims without a result (`integer`), so that rows that kill their workers can be recognised.
    pub fn attempts(mut self, column: &str) -> Self {
        self.table.attempts = Some(column.to_owned());
        self
    }

    /// Keeps the time before which a deferred row is not claimed (`timestamptz`). Without it, the lease's end says so.
    pub fn next_attempt(mut self, column: &str) -> Self {
        self.table.next_attempt = Some(column.to_owned());
        self
    }

    /// Where a row that cannot be worked on is buried: when (`timestamptz`) and why (`text`). A buried row is not
    /// claimed.
    pub fn dead_letter(mut self, at: &str, reason: &str) -> Self {
        self.table.dead = Some(Dead { at: at.to_owned(), reason: reason.to_owned() });
        self
    }

    /// A `timestamptz` that each transition sets to the database's time, such as `updated_at`.
    pub fn touched(mut self, column: &str) -> Self {
        self.table.touched = Some(column.to_owned());
        self
    }

    /// The columns that a claim returns beside the id.
    pub fn payload<'a>(mut self, columns: impl IntoIterator<Item = &'a str>) -> Self {
        self.table.payload = columns.into_iter().map(str::to_owned).collect();
        self
    }

    /// One more index for the migrations to make, for the application's own queries.
    pub fn index<'a>(mut self, columns: impl IntoIterator<Item = &'a str>) -> Self {
        self.table.indexes.push(columns.into_iter().map(str::to_owned).collect());
        self
    }

    /// Checks every name.
    pub fn build(self) -> Result<ClaimTable, Error> {
        let columns = |names: &[String]| -> Result<Vec<String>, Error> {
            if names.len() > COLUMNS_MAX {
                let wanted = format!("at most {COLUMNS_MAX}");
                return Err(Error::invalid("number of columns", names.len().to_string(), wanted));
            }
            names.iter().map(|name| ident::column(name)).collect()
        };
        let optional = |name: &Option<String>| name.as_deref().map(ident::column).transpose();
        let Self { table, priority } = self;
        let quoted = ident::table(&table.name)?;
        let id = ident::column(&table.id)?;
        let order: Vec<String> = priority.into_iter().chain(table.order).collect();
        Ok(ClaimTable {
            state: optional(&table.state)?,
            state_type: state_type(&table.state_type)?,
            claimable: condition(table.claimable)?,
            order: columns(&order)?.into_iter().filter(|column| *column != id).collect(),
            owner: ident::column(&table.owner)?,
            until: ident::column(&table.until)?,
            epoch: ident::column(&table.epoch)?,
            attempts: optional(&table.attempts)?,
            next_attempt: optional(&table.next_attempt)?,
            dead: match table.dead {
                Some(Dead { at, reason }) => {
                    Some(Dead { at: ident::column(&at)?, reason: ident::column(&reason)? })
                }
                None => None,
            },
            touched: optional(&table.touched)?,
            payload: columns(&table.payload)?,
            indexes: table.indexes.iter().map(|names| columns(names)).collect::<Result<_, _>>()?,
            name: table.name,
            quoted,
            id,
        })
    }
}

fn state_type(name: &str) -> Result<String, Error> {
    // `text` unquoted: quoted it would be looked for in the search path like any other.
    if name == "text" { Ok(name.to_owned()) } else { ident::table(name) }
}

/// The condition is trusted, but what would break out of its parentheses is a slip worth naming.
fn condition(sql: String) -> Result<String, Error> {
    let mut depth = 0_i32;
    let mut in_string = false;
    for c in sql.chars() {
        match c {
            '\'' => in_string = !in_string,
            '(' if !in_string => depth += 1,
            ')' if !in_string => depth -= 1,
            ';' if !in_string => depth = -1,
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    let comment = sql.contains("--") || sql.contains("/*");
    if depth != 0 || in_string || comment || sql.trim().is_empty() {
        let wanted =
            "use one SQL condition with balanced parentheses and quotes, without comments or semicolons";
        return Err(Error::invalid("claimable condition", sql, wanted));
    }
    Ok(sql)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_named() {
        let table = || ClaimTable::builder("app.jobs");
        let wrong = [
            (table().id("id; --"), "column"),
            (table().order(["a", "b c"]), "b c"),
            (table().claimable("a = 1) OR (true"), "claimable condition"),
            (table().claimable("a = 'x"), "claimable condition"),
            (table().claimable(" "), "claimable condition"),
            (table().claimable("true; DROP TABLE x"), "claimable condition"),
            (table().lease("o", "u u", "e"), "u u"),
            (table().state_type("a-b"), "a-b"),
            (ClaimTable::builder("a.b.c"), "schema.table"),
            (table().payload(["x"; COLUMNS_MAX + 1]), "number of columns"),
        ];
        for (builder, expected) in wrong {
            let error = builder.build().unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should name {expected}");
        }
        table().claimable("kind = ')' AND (a OR b)").build().unwrap();
    }
}
