//! The conformance suite where transactions are serializable by default, as CockroachDB's are.

#[path = "postgres/fixture.rs"]
mod fixture;

use fixture::Database;

const STRICT: &str = "DO $$ BEGIN \
    EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''serializable''', current_database()); END $$";

solehold_conformance::suite!(Database::prepared(STRICT).await);
