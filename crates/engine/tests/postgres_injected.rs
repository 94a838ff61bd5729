//! The conformance suite where one statement in eight fails to serialize, as CockroachDB's now and then do. Which ones
//! is told by a seed; `SOLEHOLD_SEED` replays one.

#[path = "postgres/fixture.rs"]
mod fixture;

use std::hash::BuildHasher;

use fixture::Database;

const FAILING: &str = "CREATE SEQUENCE statements; \
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF hashint8extended(nextval('statements'), SEED) % 8 = 0 THEN \
            RAISE EXCEPTION 'injected' USING ERRCODE = 'serialization_failure'; \
        END IF; RETURN NULL; END $$; \
    CREATE TRIGGER fail_leases AFTER INSERT OR UPDATE OR DELETE ON solehold.leases \
        FOR EACH STATEMENT EXECUTE FUNCTION fail(); \
    CREATE TRIGGER fail_sessions AFTER INSERT OR UPDATE OR DELETE ON solehold.sessions \
        FOR EACH STATEMENT EXECUTE FUNCTION fail(); \
    CREATE TRIGGER fail_events AFTER INSERT ON solehold.lease_events FOR EACH STATEMENT EXECUTE FUNCTION fail(); \
    CREATE TRIGGER fail_commits AFTER INSERT ON solehold.commits FOR EACH STATEMENT EXECUTE FUNCTION fail()";

/// What makes statements fail; prints its random seed, which is shown when the test fails.
fn failing() -> &'static str {
    let seed = match std::env::var("SOLEHOLD_SEED") {
        Ok(seed) => seed.parse().expect("SOLEHOLD_SEED is a number"),
        Err(_) => std::hash::RandomState::new().hash_one(0) as u32,
    };
    println!("SOLEHOLD_SEED={seed} replays which statements fail");
    FAILING.replace("SEED", &seed.to_string()).leak()
}

solehold_conformance::suite!(Database::prepared(failing()).await);
