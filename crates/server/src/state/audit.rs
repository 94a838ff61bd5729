//! The audit trail: what operators did that no event of a resource shows, or that people look for in one place.
//!
//! An entry is a record that commits with what it is about, so neither is there without the other. At most
//! [`TENANT_ENTRIES_MAX`] of each tenant are kept, so that no tenant displaces the entries of others, and
//! [`ENTRIES_MAX`] in all. Each process removes the oldest with its first entry and then with every hundredth:
//! as many more may be there for each process.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use solehold_api::{admin::AuditEntry, document::read};
use solehold_core::{
    call::Note,
    command::Command,
    key::{Document, HolderKey, Name, ResourceKey},
    record::Record,
};
use solehold_engine::Engine;

use super::{identity::Identity, records::collection};
use crate::error::ApiError;

const AUDIT: &str = "audit";
/// How many entries are kept of each tenant, and of what concerns no tenant.
pub const TENANT_ENTRIES_MAX: usize = 1_000;
/// How many entries are kept in all.
pub const ENTRIES_MAX: usize = 10_000;
const TRIM_EVERY: u64 = 100;
/// How many entries are removed in one batch.
const REMOVED_AT_ONCE: usize = 128;
/// A detail that is larger than this is left out: settings of placement may be long lists.
const DETAIL_BYTES_MAX: usize = 4_096;
/// Who acts where no key is needed.
const LOCAL: &str = "local";

/// What an operator does, and to what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deed {
    /// None, if it concerns all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<Name>,
    action: String,
    target: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    details: BTreeMap<String, Value>,
}

impl Deed {
    pub fn new(action: &str, target: impl Into<String>) -> Self {
        Self { tenant: None, action: action.to_owned(), target: target.into(), details: BTreeMap::new() }
    }

    pub fn to_resource(action: &str, key: &ResourceKey) -> Self {
        Self::new(action, format!("{}/{}", key.kind, key.key)).of(&key.tenant)
    }

    pub fn to_runner(action: &str, key: &HolderKey) -> Self {
        Self::new(action, format!("runner/{}", key.name)).of(&key.tenant)
    }

    pub fn of<'a>(self, tenant: impl Into<Option<&'a Name>>) -> Self {
        Self { tenant: tenant.into().cloned(), ..self }
    }

    /// Adds a detail; of a large one only its size.
    pub fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or_default();
        let bytes = value.to_string().len();
        let value = if bytes > DETAIL_BYTES_MAX { json!(format!("({bytes} bytes)")) } else { value };
        self.details.insert(name.to_owned(), value);
        self
    }

    /// Adds a detail, if there is one.
    pub fn with_some(self, name: &str, value: Option<impl Serialize>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds each field of an object.
    pub fn with_fields(self, of: &impl Serialize) -> Self {
        let Ok(Value::Object(fields)) = serde_json::to_value(of) else { return self };
        fields.into_iter().fold(self, |deed, (name, value)| deed.with(&name, value))
    }
}

/// An entry as it is stored; its time is in the name of the record.
#[derive(Debug, Serialize, Deserialize)]
struct StoredEntry {
    /// The key's name, as it was then.
    actor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<Name>,
    #[serde(flatten)]
    deed: Deed,
}

/// What commits with a deed of this caller.
pub(crate) fn note(deed: &Deed, by: &Identity) -> Note {
    let actor = by.key_name().map_or_else(|| LOCAL.to_owned(), ToString::to_string);
    let entry = StoredEntry { actor, key_id: by.key_id().cloned(), deed: deed.clone() };
    let document = serde_json::to_string(&entry).expect("texts and values");
    let document = Document::new(document).expect("names and a few details, each of them bounded");
    Note { collection: collection(AUDIT), unique: rand::random(), document }
}

fn shown(record: &Record) -> Option<AuditEntry> {
    let entry: Option<StoredEntry> = read(&record.document);
    let Some((entry, at)) = entry.zip(Note::time(&record.id)) else {
        tracing::error!(id = %record.id, "cannot parse audit record; leaving it out");
        return None;
    };
    let StoredEntry { actor, key_id, deed: Deed { tenant, action, target, details } } = entry;
    Some(AuditEntry {
        id: record.id.to_string(),
        at: at.into(),
        actor,
        key_id: key_id.map(String::from),
        tenant: tenant.map(String::from),
        action,
        target,
        details,
    })
}

/// The newest entries of a tenant, or of all, newest first: those before `before`, and at most `limit`.
pub async fn list(
    engine: &Engine,
    tenant: Option<&Name>,
    before: Option<&Name>,
    limit: usize,
) -> Result<Vec<AuditEntry>, ApiError> {
    let mut entries = engine.records(&collection(AUDIT)).await?;
    entries.retain(|record| before.is_none_or(|before| record.id < *before));
    entries.sort_unstable_by(|a, b| b.id.cmp(&a.id));
    let is_its =
        |entry: &AuditEntry| tenant.is_none_or(|tenant| entry.tenant.as_deref() == Some(tenant.as_str()));
    Ok(entries.iter().filter_map(shown).filter(is_its).take(limit).collect())
}

/// How many entries this process has written.
#[derive(Debug, Default)]
pub(crate) struct AuditTrail {
    written: AtomicU64,
}

impl AuditTrail {
    /// One more entry was written.
    pub async fn written(&self, engine: &Engine) {
        if !self.written.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIM_EVERY) {
            return;
        }
        // What was asked for is done; another entry will find more to remove.
        if let Err(failure) = trim(engine).await {
            tracing::warn!(error = %failure, "cannot remove old audit records; will retry");
        }
    }
}

/// Removes the oldest entries that are too many.
async fn trim(engine: &Engine) -> Result<(), ApiError> {
    let mut records = engine.records(&collection(AUDIT)).await?;
    records.sort_unstable_by(|a, b| b.id.cmp(&a.id));
    let mut of_tenant: HashMap<Option<Name>, usize> = HashMap::new();
    let mut kept = 0;
    records.retain(|record| {
        let tenant = read(&record.document).and_then(|entry: StoredEntry| entry.deed.tenant);
        let count = of_tenant.entry(tenant).or_default();
        *count += 1;
        let is_kept = *count <= TENANT_ENTRIES_MAX && kept < ENTRIES_MAX;
        kept += usize::from(is_kept);
        !is_kept
    });
    for surplus in records.chunks(REMOVED_AT_ONCE) {
        let remove = |record: &Record| Command::RemoveRecord {
            collection: record.collection.clone(),
            id: record.id.clone(),
        };
        for outcome in engine.submit_all(surplus.iter().map(remove).collect()).await {
            // What is refused was removed by another replica.
            let _ = outcome?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use solehold_core::call::Call;
    use solehold_engine::{EngineOptions, clock::ManualClock, resident};

    use super::{super::operator::Operator, *};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    /// Writes entries of a tenant, each a millisecond after the one before, and none of them counts as written.
    async fn fill(engine: &Engine, ticks: &ManualClock, tenant: &str, count: usize) {
        for _ in 0..count {
            let deed = Deed::new("shift", "deployment/green").of(&name(tenant));
            let note = Some(note(&deed, &Identity::keyless()));
            let remove = Command::RaiseRevision { above: Default::default() };
            engine.submit(Call { note, ..remove.into() }).await.expect("an answer").expect("no refusal");
            ticks.advance_ms(1);
        }
    }

    async fn count(engine: &Engine, tenant: Option<&str>) -> usize {
        let tenant = tenant.map(name);
        list(engine, tenant.as_ref(), None, usize::MAX).await.expect("entries").len()
    }

    #[tokio::test]
    async fn the_oldest_entries_go_and_no_tenant_displaces_those_of_others() {
        let ticks = Arc::new(ManualClock::default());
        let store = resident::memory(ticks.clone()).expect("a store in memory");
        let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
        let operator = Operator::from(&engine);
        fill(&engine, &ticks, "calm", 3).await;
        fill(&engine, &ticks, "busy", TENANT_ENTRIES_MAX + 50).await;
        operator.raise_token(1).await.expect("raised");
        assert_eq!(count(&engine, Some("busy")).await, TENANT_ENTRIES_MAX);
        assert_eq!(count(&engine, Some("calm")).await, 3, "older, and of another tenant");
        for above in 2..2 * TRIM_EVERY {
            operator.raise_token(above).await.expect("raised");
            ticks.advance_ms(1);
        }
        for tenant in 0..ENTRIES_MAX / TENANT_ENTRIES_MAX {
            fill(&engine, &ticks, &format!("t{tenant}"), TENANT_ENTRIES_MAX - 1).await;
        }
        assert!(count(&engine, None).await > ENTRIES_MAX);
        // As another process does with its first entry.
        Operator::from(&engine).raise_token(0).await.expect("raised");
        assert_eq!(count(&engine, None).await, ENTRIES_MAX);
        assert_eq!(count(&engine, Some("calm")).await, 0, "the oldest of all");
        assert_eq!(count(&engine, Some("t9")).await, TENANT_ENTRIES_MAX - 1);
        engine.stop().await;
    }

    #[test]
    fn an_entry_can_always_be_stored() {
        // Each letter takes two bytes in JSON.
        let long = name(&"\"".repeat(255));
        let key = ResourceKey::new(long.clone(), long.clone(), long);
        let reason = "\"".repeat(1_024);
        let deed = Deed::to_resource("revoke_lease", &key).with("reason", &reason).with("token", u64::MAX);
        let deed = deed.with("large", "x".repeat(100_000));
        assert_eq!(deed.details["reason"], json!(reason), "the longest reason is kept");
        assert_eq!(deed.details["large"], json!("(100002 bytes)"));
        note(&deed, &Identity::keyless());
    }
}
