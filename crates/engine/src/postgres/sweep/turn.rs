//! Which replica sweeps expired leases and deletes ended rows: one at a time.
//!
//! ```text
//!   keeper   ...sweep, renew the turn, sweep, sweep, renew...      crashed
//!   others   ...is it kept? is it kept? is it kept?..................it has run out: take it
//! ```
//!
//! This only saves work. Nominations are judged like any other command, so two replicas that sweep at once do no harm,
//! and acquires judge by time, whether a replica sweeps or not (rule 11). A turn is a row that is inserted and never
//! updated: its number is one more than the last one's, and of two replicas that insert the same number one finds it
//! taken.

use std::time::Duration;

use tokio::join;
use uuid::Uuid;

use crate::clock::BootTime;
use crate::postgres::{
    PostgresStore,
    clock::Reading,
    connection::pool::{Conn, Purpose, ROUND_TRIP, in_time},
    fault::Fault,
    statements::Sql,
    tables::{columns::TurnPart, part},
};

/// How long a turn lasts. After its keeper has died, no replica sweeps for this long.
const TERM_MS: i64 = 500;
/// The keeper renews its turn when this much is left: several sweeps earlier than it has to.
const RENEW_MS: i64 = 300;
/// A replica that stops gives its turn back, unless that takes longer than this.
const GIVE_BACK: Duration = Duration::from_millis(500);

impl TurnPart {
    /// How much of it is left, if it is kept. One that ends later than any can was taken in another history.
    fn left_ms(&self, now: i64) -> Option<i64> {
        let left = self.until_ms - now;
        (1..=2 * TERM_MS).contains(&left).then_some(left)
    }
}

impl PostgresStore {
    /// Reads the clock, and whose turn it is, in one round trip.
    pub(crate) async fn read_clock_and_turn(&self, conn: &Conn) -> Result<(Reading, TurnPart), Fault> {
        let asked = BootTime::now();
        let read = async {
            let (clock, turn) = join!(biased;
                async { conn.query(Sql::ReadClock, &[]).await },
                async { conn.query(Sql::LastTurn, &[]).await },
            );
            Ok((clock?, turn?))
        };
        let (clock, turn) = in_time("reading the clock", ROUND_TRIP, read).await?;
        let reading = Reading::of(&clock, asked)?;
        let never = TurnPart { number: 0, keeper: Uuid::nil(), until_ms: 0 };
        Ok((reading, turn.first().map(part::read).transpose()?.unwrap_or(never)))
    }

    /// Whether it is this replica's turn: its number, if so. Renews it in time, and takes one that has run out.
    pub(crate) async fn keep_turn(
        &self,
        conn: &Conn,
        last: TurnPart,
        now: i64,
    ) -> Result<Option<i64>, Fault> {
        let left = last.left_ms(now);
        let is_mine = last.keeper == self.replica;
        let mut number = last.number;
        match left {
            Some(left) if is_mine && left > RENEW_MS => {}
            Some(_) if !is_mine => return Ok(None),
            _ => {
                number += 1;
                let until_ms = now + TERM_MS;
                if conn.execute(Sql::TakeTurn, &[&number, &self.replica, &until_ms]).await? == 0 {
                    return Ok(None);
                }
            }
        }
        self.sweep_progress.lock().turn = Some(number);
        Ok(Some(number))
    }

    /// Gives the turn up, so that another replica can take the next one at once.
    pub(crate) async fn give_turn_back(&self) {
        let Some(number) = self.sweep_progress.lock().turn.take() else { return };
        let work = async {
            let lent = self.lend(Purpose::Write).await?;
            lent.execute(Sql::TakeTurn, &[&(number + 1), &self.replica, &0i64]).await?;
            lent.give_back();
            Ok(())
        };
        if let Err(fault) = in_time("giving a turn back", GIVE_BACK, work).await {
            tracing::debug!(error = %fault, "cannot give up the sweeper's turn; another replica takes over when it expires");
        }
    }
}
