//! The conformance suite where one statement in eight fails to serialize, as CockroachDB's now and then do.

#[path = "postgres/fixture.rs"]
mod fixture;

use fixture::Database;
use solehold_engine::conformance;

const FAILING: &str = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF random() < 0.125 THEN \
            RAISE EXCEPTION 'injected' USING ERRCODE = 'serialization_failure'; \
        END IF; RETURN NULL; END $$; \
    CREATE TRIGGER fail_leases AFTER INSERT OR UPDATE OR DELETE ON solehold.leases \
        FOR EACH STATEMENT EXECUTE FUNCTION fail(); \
    CREATE TRIGGER fail_sessions AFTER INSERT OR UPDATE OR DELETE ON solehold.sessions \
        FOR EACH STATEMENT EXECUTE FUNCTION fail(); \
    CREATE TRIGGER fail_events AFTER INSERT ON solehold.lease_events FOR EACH STATEMENT EXECUTE FUNCTION fail(); \
    CREATE TRIGGER fail_commits AFTER INSERT ON solehold.commits FOR EACH STATEMENT EXECUTE FUNCTION fail()";

conformance::suite!(Database::prepared(FAILING).await);
