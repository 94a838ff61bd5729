//! Whether each connection has a session of PostgreSQL to itself.
//!
//! A pooler in transaction mode gives each transaction of a client whichever session is free. Prepared statements,
//! settings and timeouts belong to a session, so they would be missing, or another client's. What gives it away is not
//! its name but what it does: two connections that are open at once meet in one session, or one of them changes its
//! session.

use crate::postgres::{
    connection::pool::{Conn, ROUND_TRIP, in_time},
    fault::Fault,
    tables::unreadable,
};
use crate::store::StoreError;

/// How often the two connections are compared: others may be at the same pooler, and take sessions in between.
const ROUNDS: usize = 8;

/// Refuses a pooler that does not keep a session for each of two open connections.
pub(crate) async fn refuse_shared_sessions(one: &Conn, two: &Conn) -> Result<(), Fault> {
    let work = async {
        let first = [session_of(one).await?, session_of(two).await?];
        // Of two servers, sessions may have the same number.
        let is_same_server = one.identity.is_some() && one.identity == two.identity;
        let mut is_shared = is_same_server && first[0] == first[1];
        for round in 0..ROUNDS {
            // In either order, and twice in a row: a pooler may prefer the session that was used last, or first.
            let order = if round.is_multiple_of(2) { [0, 0, 1, 1] } else { [1, 0, 1, 0] };
            for at in order {
                is_shared |= session_of([one, two][at]).await? != first[at];
            }
        }
        Ok(is_shared)
    };
    if in_time("looking for a pooler", ROUND_TRIP, work).await? {
        let text = "there is a pooler in front of PostgreSQL that gives transactions of one connection to different \
                    sessions, such as PgBouncer in transaction mode: prepared statements and settings do not survive \
                    that. Connect to PostgreSQL directly, or set the pooler to session mode (pool_mode = session)";
        return Err(StoreError::Unusable(text.to_owned()).into());
    }
    Ok(())
}

/// The number of the session that a statement runs in.
async fn session_of(conn: &Conn) -> Result<i32, Fault> {
    conn.value("SELECT pg_backend_pid()").await?.ok_or_else(|| unreadable("PostgreSQL returned no session"))
}
