//! Records that are read, changed and written back, without undoing what another has written meanwhile.

use solehold_core::{
    command::{Command, Footprint, Over},
    key::Name,
    outcome::Refusal,
    record::Record,
    time::StoreTime,
};
use solehold_engine::Engine;

use crate::{http::Failure, keys::collection};

/// How often a change is tried while others change the same record.
const ATTEMPTS: u32 = 16;

/// Changes the record of that name. `how` makes the new record of what is stored, if anything is, and of the store's time;
/// it is asked again if another has written the record meanwhile.
pub(crate) async fn change<T>(
    engine: &Engine,
    of: &'static str,
    id: &Name,
    how: impl Fn(Option<&Record>, StoreTime) -> Result<(Record, T), Failure>,
) -> Result<T, Failure> {
    let footprint = Footprint { records: vec![(collection(of), id.clone())], ..Default::default() };
    let mut attempt = 1;
    loop {
        let loaded = engine.load(&footprint).await?;
        let found = loaded.state.record(&collection(of), id);
        let (record, made) = how(found, loaded.now)?;
        let over = found.map_or(Over::Nothing, |found| Over::Document(found.document.clone()));
        match engine.submit(Command::PutRecord { record, over }).await? {
            Ok(_) => return Ok(made),
            Err(Refusal::RecordChanged { .. } | Refusal::NoRecord { .. } | Refusal::Exists)
                if attempt < ATTEMPTS =>
            {
                attempt += 1;
            }
            Err(refusal) => return Err(refusal.into()),
        }
    }
}
