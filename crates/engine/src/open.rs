//! Opens the store that a URL or folder names.

use std::sync::Arc;

use crate::{
    clock::BootClock,
    resident,
    store::{Store, StoreError},
};

/// Opens the store that `place` names: `postgres://...`, `memory:`, or a folder for the embedded one. A store that this
/// program was built without is refused.
pub async fn open(place: &str) -> Result<Arc<dyn Store>, StoreError> {
    if place.starts_with("postgres://") || place.starts_with("postgresql://") {
        return postgres(place).await;
    }
    if place == "memory:" {
        return Ok(resident::memory(BootClock)?);
    }
    embedded(place)
}

#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    use crate::postgres::{PostgresOptions, PostgresStore};

    Ok(PostgresStore::open(url, PostgresOptions::default()).await?)
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Err(StoreError::Unusable(
        "this binary was built without PostgreSQL support; build it with the feature `postgres`".to_owned(),
    ))
}

#[cfg(feature = "embedded")]
fn embedded(folder: &str) -> Result<Arc<dyn Store>, StoreError> {
    Ok(resident::ResidentStore::embedded(crate::embedded::Folder::open(folder.as_ref())?)?)
}

#[cfg(not(feature = "embedded"))]
fn embedded(folder: &str) -> Result<Arc<dyn Store>, StoreError> {
    Err(StoreError::Unusable(format!(
        "this program was built without the embedded store, so that it cannot open the folder {folder}: turn on the \
         feature `embedded`"
    )))
}
