//! The tables: the description of each, and conversions between its rows and core's types.
//!
//! ```text
//!   columns.rs   every table, column by column        -> select lists, arrays, cells by name (part.rs)
//!   value.rs     values of core as columns keep them  -> text.rs: texts that PostgreSQL could not store as they are
//!   rows.rs      rows of core, to and from columns
//! ```

pub(crate) mod columns;
pub(crate) mod part;
pub(crate) mod rows;
pub(crate) mod text;
pub(crate) mod value;

use crate::postgres::fault::Fault;

/// A stored row that makes no sense to this program.
pub(crate) fn unreadable(what: impl std::fmt::Display) -> Fault {
    Fault::Unreadable(format!("a stored row cannot be read: {what}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use solehold_testkit::Postgres;
    use tokio_postgres::NoTls;

    use super::{
        columns::{self, BesidePart, DeclarationPart, LeaseKeyPart, ResourceIdPart, StateKeyPart, StatePart},
        part::{insert, list, update, upsert},
    };
    use crate::{
        postgres::{PostgresOptions, PostgresStore},
        store::Store,
    };

    /// Tables that have parts here for some of their columns, or none: statements have the rest.
    const BY_STATEMENTS: [&str; 5] = ["clock", "commits", "floors", "migrations", "old_ids"];

    #[tokio::test]
    async fn every_table_is_as_it_is_described() {
        let server = Postgres::shared().await.expect("PostgreSQL");
        let url = server.create_database("tables").await.expect("a database");
        PostgresStore::open(&url, PostgresOptions::default()).await.expect("a store").close().await;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        let sql = "SELECT c.table_name::text, c.column_name::text, c.data_type::text FROM information_schema.columns c \
                   JOIN information_schema.tables t USING (table_schema, table_name) \
                   WHERE c.table_schema = 'solehold' AND t.table_type = 'BASE TABLE'";
        let rows = client.query(sql, &[]).await.expect("the schema");
        let stored: BTreeSet<(String, String, String)> =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        let described: BTreeSet<_> = columns::all()
            .iter()
            .filter(|c| c.computed_by.is_none())
            .map(|c| (c.table.to_owned(), c.name.to_owned(), c.sql_type.to_owned()))
            .collect();
        assert_eq!(described.difference(&stored).collect::<Vec<_>>(), Vec::<&_>::new(), "not in the schema");
        let is_described = |(table, ..): &&(String, String, String)| !BY_STATEMENTS.contains(&&**table);
        let forgotten: Vec<_> = stored.difference(&described).filter(is_described).collect();
        assert_eq!(forgotten, Vec::<&_>::new(), "in the schema and not described");
    }

    #[test]
    fn statements_follow_from_the_description() {
        assert_eq!(list::<(LeaseKeyPart, BesidePart)>(), "l.resource_id, l.version, l.has_state");
        assert_eq!(
            update::<LeaseKeyPart, BesidePart>(&[
                ("has_state", "u.has_state OR l.has_state"),
                ("due_ms", "0")
            ]),
            "UPDATE solehold.leases l SET version = u.version, has_state = u.has_state OR l.has_state, due_ms = 0 \
             FROM unnest($1::bigint[], $2::bigint[], $3::boolean[]) AS u(resource_id, version, has_state) \
             WHERE l.resource_id = u.resource_id"
        );
        assert_eq!(
            upsert::<StateKeyPart, StatePart>(),
            "INSERT INTO solehold.states (resource_id, sequence, token, written_at_ms, document) \
             SELECT u.resource_id, u.sequence, u.token, u.written_at_ms, u.document \
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) \
             AS u(resource_id, sequence, token, written_at_ms, document) ON CONFLICT (resource_id) DO UPDATE SET \
             sequence = excluded.sequence, token = excluded.token, written_at_ms = excluded.written_at_ms, \
             document = excluded.document"
        );
        let labels = insert::<(ResourceIdPart, DeclarationPart)>(&[("mark", "7")]);
        assert!(labels.contains("u.labels::jsonb") && labels.contains("$5::text[]"), "{labels}");
        assert!(
            labels.contains("created_at_ms, mark) SELECT") && labels.contains(", 7 FROM unnest("),
            "{labels}"
        );
    }
}
