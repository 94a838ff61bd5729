//! Records in the store: how they are named, built, and changed without undoing a concurrent write.

use serde::Serialize;
use solehold_api::problem::{ErrorCode, Problem};
use solehold_core::{
    call::{Call, Note},
    command::{Command, Footprint, Over},
    key::{Document, Name},
    outcome::Refusal,
    record::Record,
    time::StoreTime,
};
use solehold_engine::Engine;

use crate::error::ApiError;

/// The number of attempts while others change the same record.
const ATTEMPTS: u32 = 16;

/// Changes a record as the server itself does: see [`change_noted`].
pub(crate) async fn change<T>(
    engine: &Engine,
    of: &'static str,
    id: &Name,
    how: impl Fn(Option<&Record>, StoreTime) -> Result<(Record, T), ApiError>,
) -> Result<T, ApiError> {
    change_noted(engine, of, id, None, how).await
}

/// Changes the record of that name, and stores a note with it. `how` makes the new record from the stored one, if there
/// is one, and the store's time; it is called again if the record was written meanwhile.
pub(crate) async fn change_noted<T>(
    engine: &Engine,
    of: &'static str,
    id: &Name,
    note: Option<Note>,
    how: impl Fn(Option<&Record>, StoreTime) -> Result<(Record, T), ApiError>,
) -> Result<T, ApiError> {
    let footprint = Footprint { records: vec![(collection(of), id.clone())], ..Default::default() };
    let mut attempt = 1;
    loop {
        let loaded = engine.load(&footprint).await?;
        let found = loaded.state.record(&collection(of), id);
        let (record, made) = how(found, loaded.now)?;
        let over = found.map_or(Over::Nothing, |found| Over::Document(found.document.clone()));
        let call = Call { note: note.clone(), ..Command::PutRecord { record, over }.into() };
        match engine.submit(call).await? {
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

pub(crate) async fn store_time(engine: &Engine) -> Result<StoreTime, ApiError> {
    Ok(engine.load(&Footprint::default()).await?.now)
}

/// A name that is a constant of the program.
pub(crate) fn collection(name: &'static str) -> Name {
    Name::new(name).expect("a short name")
}

pub(crate) fn record(of: &'static str, id: Name, document: &impl Serialize) -> Result<Record, ApiError> {
    let text =
        serde_json::to_string(document).map_err(|e| Problem::new(ErrorCode::Internal, e.to_string()))?;
    let document =
        Document::new(text).map_err(|e| Problem::new(ErrorCode::Internal, format!("a {of} {e}")))?;
    Ok(Record { collection: collection(of), id, document })
}
