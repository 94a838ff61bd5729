//! The PostgreSQL store against the conformance suite, on one server with a database for each case.

#[path = "postgres/fixture.rs"]
mod fixture;

use fixture::Database;

solehold_conformance::suite!(Database::prepared("").await);
