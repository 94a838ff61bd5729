//! The conformance suite where transactions are serializable by default, as CockroachDB's are.

#[path = "postgres/fixture.rs"]
mod fixture;

use fixture::Database;
use solehold_engine::conformance;

const STRICT: &str = "DO $$ BEGIN \
    EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''serializable''', current_database()); END $$";

conformance::suite!(Database::prepared(STRICT).await);
