//! The PostgreSQL store by itself: batches are committed without HTTP or the engine's driver around it.

pub mod batches;
pub mod pinned;

use solehold_core::{
    call::Call,
    command::{Command, Footprint},
    decide_all,
    key::Name,
    ledger::{FoundLate, Ledger},
    outcome::Outcome,
    time::Moment,
};
use solehold_engine::{
    observe::Lane,
    postgres::PostgresStore,
    store::{BatchDecision, Decider, Store, StoreError},
};

struct Batch {
    calls: Vec<Call>,
    outcomes: Vec<Outcome>,
}

impl Decider for Batch {
    fn decide(&mut self, ledger: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
        let decisions = decide_all(ledger, &self.calls, moment)?;
        let decided = BatchDecision::from(&decisions);
        self.outcomes = decisions.outcomes;
        Ok(decided)
    }
}

/// Commits one batch.
async fn commit(store: &PostgresStore, commands: Vec<Command>) -> Result<Vec<Outcome>, StoreError> {
    let mut footprint = Footprint::default();
    commands.iter().for_each(|command| command.footprint(&mut footprint));
    let lane = Lane::of(&commands);
    let mut batch = Batch { calls: commands.into_iter().map(Into::into).collect(), outcomes: Vec::new() };
    store.transact(&footprint, lane, &mut batch).await?;
    Ok(batch.outcomes)
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}
