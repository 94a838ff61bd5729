//! Changes of a site's configuration, and when the last one was.
//!
//! A change of a camera is an event of that camera. A zone applies to cameras that nobody has touched, so that each of
//! them gets a `config_changed` event in the same commit: who holds a camera is told by its name.

use serde::{Deserialize, Serialize};
use serde_json::json;
use solehold_api::document::{content_hash, read, to_document};
use solehold_core::{
    command::{Command, Footprint, Over},
    key::{Name, ResourceKey},
    outcome::Answer,
    record::Record,
    time::StoreTime,
};

use crate::{
    error::unexpected,
    http::{ApiError, Context},
    state::records::collection,
};

/// The collection of records that say when the configuration of a site last changed.
const CONFIG_CHANGES: &str = "config_changes";

/// When something at a site last changed. A site has no life of its own, and what was deleted leaves no row.
#[derive(Debug, Serialize, Deserialize)]
struct ChangedSite {
    tenant: String,
    site: String,
    at_ms: u64,
}

fn record_id(tenant: &Name, site: Option<&Name>) -> Result<Name, ApiError> {
    let site = site.map(Name::as_str).unwrap_or_default();
    Ok(solehold_api::field::name("site_id", &content_hash([tenant.as_str(), site]))?)
}

/// Changes a zone, and adds an event to each camera that it applies to.
pub(super) async fn make(
    context: &Context,
    change: Command,
    cameras: Vec<ResourceKey>,
) -> Result<(), ApiError> {
    let about = match &change {
        Command::Declare { key, .. } | Command::Delete { key, .. } => json!({ "zone": key.key }),
        _ => json!({}),
    };
    let details = to_document("zone", &about)?;
    let notes = cameras.into_iter().map(|key| Command::NoteConfig { key, details: details.clone() });
    let mut outcomes = context.submit_all([change].into_iter().chain(notes).collect()).await.into_iter();
    let changed = outcomes.next().ok_or_else(|| unexpected(&Answer::Noted))?;
    changed??;
    for note in outcomes {
        // A camera that was deleted meanwhile needs no note.
        let _ = note?;
    }
    Ok(())
}

/// Notes that the configuration of a site has changed just now. The change is made by now, and is not undone if this
/// fails.
pub(super) async fn note_time(context: &Context, tenant: &Name, site: Option<&Name>) {
    if let Err(failure) = try_to_note_time(context, tenant, site).await {
        let error = failure.0;
        tracing::warn!(%error, %tenant, "cannot record the time of a configuration change; the previous time stays");
    }
}

async fn try_to_note_time(context: &Context, tenant: &Name, site: Option<&Name>) -> Result<(), ApiError> {
    let now = context.engine().load(&Footprint::default()).await?.now;
    let changed = ChangedSite {
        tenant: tenant.to_string(),
        site: site.map(ToString::to_string).unwrap_or_default(),
        at_ms: now.0,
    };
    let document = to_document("site_id", &changed)?;
    let record = Record { collection: collection(CONFIG_CHANGES), id: record_id(tenant, site)?, document };
    context.execute(Command::PutRecord { record, over: Over::Anything }).await?;
    Ok(())
}

/// When the configuration of a site last changed, if that was noted.
pub(super) async fn last_at_site(
    context: &Context,
    tenant: &Name,
    site: &Name,
) -> Result<StoreTime, ApiError> {
    let key = (collection(CONFIG_CHANGES), record_id(tenant, Some(site))?);
    let footprint = Footprint { records: vec![key.clone()], ..Default::default() };
    let loaded = context.engine().load(&footprint).await?;
    let changed: Option<ChangedSite> = loaded.state.record(&key.0, &key.1).and_then(|r| read(&r.document));
    Ok(changed.map(|changed| StoreTime(changed.at_ms)).unwrap_or_default())
}

/// When the configuration of any site of a tenant, or of all tenants, last changed.
pub(super) async fn last_of(context: &Context, tenant: Option<&Name>) -> Result<StoreTime, ApiError> {
    let records = context.engine().records(&collection(CONFIG_CHANGES)).await?;
    let changed = records.iter().filter_map(|record| read::<ChangedSite>(&record.document));
    let its = changed.filter(|changed| tenant.is_none_or(|tenant| changed.tenant == tenant.as_str()));
    Ok(its.map(|changed| StoreTime(changed.at_ms)).max().unwrap_or_default())
}
