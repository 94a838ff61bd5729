//! Administration: API keys, tenants, tokens, export and import. Ours, so unknown fields are refused.

use std::{collections::BTreeMap, fmt};

use crate::{
    body::given,
    field::{Checked, Faults},
    limits::{KEY_EXPIRY_SECONDS_MAX, KEY_GRACE_SECONDS_DEFAULT, KEY_GRACE_SECONDS_MAX, KEY_SCOPES_MAX},
    page::PageCursor,
    time::Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use solehold_core::call::ResourceScope;

/// The permissions of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    /// May see everything of its tenant.
    Reader,
    /// May also register, acquire, renew and release.
    Runner,
    /// May also declare, revoke and administer.
    Admin,
}

/// A text that is shown once, and never in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Resources of a kind, all of them or those with keys that begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyScope {
    pub kind: String,
    /// How their keys begin; all keys if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,
}

impl KeyScope {
    pub fn resources(&self, faults: &mut Faults, field: &str) -> Option<ResourceScope> {
        let kind = faults.name(&format!("{field}.kind"), &self.kind)?;
        let key_prefix = match self.key_prefix.as_deref() {
            None | Some("") => String::new(),
            Some(prefix) => faults.name(&format!("{field}.key_prefix"), prefix)?.to_string(),
        };
        Some(ResourceScope { kind, key_prefix })
    }
}

impl From<&ResourceScope> for KeyScope {
    fn from(scope: &ResourceScope) -> Self {
        let key_prefix = Some(scope.key_prefix.clone()).filter(|prefix| !prefix.is_empty());
        Self { kind: scope.kind.to_string(), key_prefix }
    }
}

/// Creates an API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateKey {
    /// A name for people to read.
    pub name: String,
    pub role: Role,
    /// The only tenant that the key can see; all of them if not given.
    pub tenant: Option<String>,
    /// The only resources that the key may touch and see; all of them if empty. Not for an admin's key.
    #[serde(default)]
    pub only: Vec<KeyScope>,
    /// A name in client certificates that stands for the key, where the server requests certificates.
    pub certificate: Option<String>,
    /// It expires after this time; never, if not given.
    pub expires_in_seconds: Option<u64>,
}

impl CreateKey {
    /// The resources that the key is limited to, or all that is wrong with it.
    pub fn scopes(&self) -> Checked<Vec<ResourceScope>> {
        let mut faults = Faults::default();
        faults.name("name", &self.name);
        faults.maybe_name("tenant", self.tenant.as_deref());
        faults.maybe_name("certificate", self.certificate.as_deref());
        faults.within("only", self.only.len() as u64, 0, KEY_SCOPES_MAX);
        if self.role == Role::Admin && !self.only.is_empty() {
            faults.note("only", "is not allowed for an admin key, which may access all resources");
        }
        let scopes = self.only.iter().enumerate();
        let scopes: Vec<_> =
            scopes.filter_map(|(at, scope)| scope.resources(&mut faults, &format!("only[{at}]"))).collect();
        check_expiry(&mut faults, self.expires_in_seconds);
        faults.finish(|| Some(scopes))
    }
}

fn check_expiry(faults: &mut Faults, seconds: Option<u64>) {
    if let Some(seconds) = seconds {
        faults.within("expires_in_seconds", seconds, 1, KEY_EXPIRY_SECONDS_MAX);
    }
}

/// Gives an API key a new secret; the old one still works for a grace period.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RotateKey {
    /// For how long the old secret still works; one hour if not given.
    pub grace_seconds: Option<u64>,
    /// The key expires after this time; as before, if not given.
    pub expires_in_seconds: Option<u64>,
}

impl RotateKey {
    pub fn grace_ms(&self) -> Checked<u64> {
        let mut faults = Faults::default();
        let seconds = self.grace_seconds.unwrap_or(KEY_GRACE_SECONDS_DEFAULT);
        faults.within("grace_seconds", seconds, 0, KEY_GRACE_SECONDS_MAX);
        check_expiry(&mut faults, self.expires_in_seconds);
        faults.finish(|| seconds.checked_mul(1_000))
    }
}

/// An API key without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    /// Also the part of the key between its underscores.
    pub id: String,
    /// A name for people to read.
    pub name: String,
    pub role: Role,
    /// The only tenant that the key can see; all of them if null.
    pub tenant: Option<String>,
    /// The only resources that the key may touch and see; all of them if empty.
    #[serde(default)]
    pub only: Vec<KeyScope>,
    /// A name in client certificates that stands for the key.
    pub certificate: Option<String>,
    pub created_at: Timestamp,
    /// When it expires; never if null.
    pub expires_at: Option<Timestamp>,
    /// When its secret was last changed.
    pub rotated_at: Option<Timestamp>,
    /// Until when the previous secret still works.
    pub grace_until: Option<Timestamp>,
}

/// An API key with its secret, which is shown this once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewKey {
    /// The key that a client sends.
    pub key: Secret,
    /// Everything about it that can be read later, too.
    #[serde(flatten)]
    pub about: ApiKey,
}

/// All API keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyList {
    pub keys: Vec<ApiKey>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}

/// How many of each a tenant may have; null for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quotas {
    /// Declared resources.
    pub resources: Option<u64>,
    /// Active sessions.
    pub sessions: Option<u64>,
    /// Open watches.
    pub watches: Option<u64>,
}

/// Which quotas of a tenant to change. One that is not named stays as it is; `null` removes the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaChanges {
    /// Declared resources.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>, required = false))]
    pub resources: Option<Option<u64>>,
    /// Active sessions.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>, required = false))]
    pub sessions: Option<Option<u64>>,
    /// Open watches.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>, required = false))]
    pub watches: Option<Option<u64>>,
}

impl QuotaChanges {
    /// These changes, and then those.
    #[must_use]
    pub fn and(self, then: Self) -> Self {
        Self {
            resources: then.resources.or(self.resources),
            sessions: then.sessions.or(self.sessions),
            watches: then.watches.or(self.watches),
        }
    }

    pub fn of(self, quotas: Quotas) -> Quotas {
        Quotas {
            resources: self.resources.unwrap_or(quotas.resources),
            sessions: self.sessions.unwrap_or(quotas.sessions),
            watches: self.watches.unwrap_or(quotas.watches),
        }
    }
}

/// How many of each a tenant has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    pub resources: u64,
    pub sessions: u64,
    /// Watches that are open at this server.
    pub watches: u64,
}

/// Sets quotas of a tenant. Those that are not named stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutTenant {
    #[serde(default, deserialize_with = "crate::body::object")]
    pub quotas: QuotaChanges,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tenant {
    pub tenant: String,
    pub quotas: Quotas,
    pub usage: Usage,
}

/// A page of tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantList {
    pub tenants: Vec<Tenant>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}

/// Makes tokens continue above a number, for when a gate has seen larger ones than the store gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RaiseToken {
    /// The next token is larger than this.
    pub above: u64,
}

/// Where tokens continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RaisedToken {
    pub above: u64,
}

/// Declares that the store was restored from a backup, or otherwise set back to an earlier state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RestoreNotice {
    /// Whether every holder has been stopped. If so, leases are granted again at once.
    pub holders_stopped: bool,
}

/// The history with which a restored store continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewHistory {
    /// Its epoch. Cursors of earlier epochs can no longer be used.
    pub epoch: u64,
    /// Tokens continue above this number.
    pub above: u64,
    /// For about this many milliseconds nothing is granted or renewed.
    pub barred_ms: u64,
}

/// Retires the store, because its data moves elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetireStore {
    /// Where the data goes, in words for people: every response of this store then repeats it.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub to: String,
}

/// The number of imported rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImportSummary {
    pub rows: u64,
    /// Tokens continue above this revision.
    pub revision: u64,
    /// For about this many milliseconds nothing is granted or renewed. 0 if the export retired its store.
    #[serde(default)]
    pub barred_ms: u64,
}

/// What an operator did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// Its id; ids sort by time.
    pub id: String,
    /// When it was done, by the store's clock.
    pub at: Timestamp,
    /// The name of the key that it was done with; `local` if none was needed, or without a server.
    pub actor: String,
    /// The id of that key.
    pub key_id: Option<String>,
    /// The tenant that it concerns; null if it concerns the whole store.
    pub tenant: Option<String>,
    /// What was done, such as `runner_status` or `revoke_lease`. Other versions may have other actions.
    pub action: String,
    /// To what: `KIND/KEY` of a resource, or another thing, such as `runner/gpu-1` or `key/ID`.
    pub target: String,
    /// What else the operator said, such as `reason`.
    #[serde(default)]
    pub details: BTreeMap<String, Value>,
}

/// A page of the audit trail, the newest entry first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditList {
    pub entries: Vec<AuditEntry>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use solehold_core::time::StoreTime;

    use super::*;
    use crate::{body, testing::round_trip};

    fn fields<T: fmt::Debug>(checked: Checked<T>) -> Vec<String> {
        checked.expect_err("odd").into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn a_key_is_checked_whole() {
        let create: CreateKey =
            body::parse(br#"{"name": "ci", "role": "runner", "tenant": "t"}"#).expect("good");
        assert_eq!(create.scopes(), Ok(Vec::new()));
        round_trip(&create);
        let odd = CreateKey {
            name: String::new(),
            tenant: Some("\n".into()),
            only: vec![KeyScope { kind: String::new(), key_prefix: Some("\n".into()) }],
            expires_in_seconds: Some(0),
            ..create
        };
        assert_eq!(fields(odd.scopes()), ["name", "tenant", "only[0].kind", "expires_in_seconds"]);
        let limited = br#"{"name": "ci", "role": "admin", "only": [{"kind": "lock", "key_prefix": "n-"}]}"#;
        let limited: CreateKey = body::parse(limited).expect("well-formed");
        assert_eq!(fields(limited.scopes()), ["only"]);
        let scopes = CreateKey { role: Role::Runner, ..limited }.scopes().expect("good");
        assert_eq!((scopes[0].kind.as_str(), scopes[0].key_prefix.as_str()), ("lock", "n-"));
        assert!(body::parse::<CreateKey>(br#"{"name": "ci", "role": "root"}"#).is_err());
        assert!(body::parse::<CreateKey>(br#"{"name": "ci", "role": "admin", "tennant": "t"}"#).is_err());
        assert_eq!(RotateKey::default().grace_ms(), Ok(3_600_000));
        let odd = RotateKey { grace_seconds: Some(u64::MAX), expires_in_seconds: Some(u64::MAX) };
        assert_eq!(fields(odd.grace_ms()), ["grace_seconds", "expires_in_seconds"]);
        assert!(Role::Reader < Role::Runner && Role::Runner < Role::Admin);
    }

    #[test]
    fn a_secret_is_never_logged() {
        let about = ApiKey {
            id: "k1".into(),
            name: "ci".into(),
            role: Role::Admin,
            tenant: None,
            only: vec![KeyScope { kind: "lock".into(), key_prefix: None }],
            certificate: None,
            created_at: StoreTime(5).into(),
            expires_at: None,
            rotated_at: None,
            grace_until: None,
        };
        let new = NewKey { key: Secret::new("shk_k1_hunter2"), about };
        round_trip(&new);
        assert!(!format!("{new:?}").contains("hunter2"));
        assert_eq!(serde_json::to_value(&new).expect("a key")["key"], json!("shk_k1_hunter2"));
        assert_eq!(new.key.reveal(), "shk_k1_hunter2");
        round_trip(&KeyList { keys: vec![new.about], next: None });
    }

    #[test]
    fn naming_one_quota_does_not_clear_the_others() {
        let parse = |text: &str| body::parse::<PutTenant>(text.as_bytes()).expect("good").quotas;
        let set = parse(r#"{"quotas": {"resources": 5, "sessions": 6}}"#);
        let set = set.and(parse(r#"{"quotas": {"sessions": null}}"#)).and(parse("{}")).and(parse(""));
        let all = Quotas { resources: Some(1), sessions: Some(2), watches: Some(3) };
        assert_eq!(set.of(all), Quotas { resources: Some(5), sessions: None, watches: Some(3) });
        round_trip(&PutTenant { quotas: set });
    }

    #[test]
    fn tenants_and_tokens_survive_the_wire() {
        let put: PutTenant = body::parse(br#"{"quotas": {"resources": 5}}"#).expect("good");
        let quotas = put.quotas.of(Quotas { resources: Some(1), sessions: Some(2), watches: None });
        assert_eq!(quotas, Quotas { resources: Some(5), sessions: Some(2), watches: None });
        let tenant = Tenant { tenant: "t".into(), quotas, usage: Usage::default() };
        round_trip(&TenantList { tenants: vec![tenant], next: None });
        assert_eq!(body::parse::<PutTenant>(b"").expect("empty"), PutTenant::default());
        assert!(body::parse::<PutTenant>(br#"{"quotas": {"cameras": 5}}"#).is_err());
        assert!(body::parse::<RaiseToken>(br#"{"above": -1}"#).is_err());
        round_trip(&RaisedToken { above: 1 << 53 });
    }

    #[test]
    fn the_audit_trail_survives_the_wire() {
        let entry = AuditEntry {
            id: "0000019a-1".into(),
            at: StoreTime(5).into(),
            actor: "ops".into(),
            key_id: Some("k1".into()),
            tenant: None,
            action: "raise_token".into(),
            target: "store".into(),
            details: [("above".to_owned(), json!(7))].into(),
        };
        round_trip(&AuditList { entries: vec![entry], next: Some(PageCursor(vec!["0000019a-1".into()])) });
    }
}
