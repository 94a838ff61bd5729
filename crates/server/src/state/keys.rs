//! API keys: created, listed, rotated and revoked directly through an engine, with or without a server.
//!
//! A key is `shk_<id>_<secret>`: the id is public and finds the record, the secret has 256 random bits. The
//! store has a hash of the whole text, never the text, which is shown once. A revocation is a record of its own that is
//! never overwritten, so that a rotation at the same moment cannot undo it.

use std::sync::Arc;

use blake3::Hash;
use rand::Rng;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use solehold_api::{
    admin::{self, Role},
    document::read,
    field,
    problem::{ErrorCode, Problem},
};
use solehold_core::{
    call::ResourceScope,
    command::{Command, Over},
    key::Name,
    outcome::Refusal,
    record::Record,
    time::StoreTime,
};
use solehold_engine::Engine;
use subtle::ConstantTimeEq;

use super::{
    audit::Deed,
    operator::Operator,
    records::{collection, record, store_time},
};
use crate::error::ApiError;

/// The beginning of key texts that are created here.
const PREFIX: &str = "shk_";
const KEYS: &str = "key";
const REVOKED: &str = "revoked_key";
/// The minimum length of a key text from elsewhere: a guessable key protects nothing.
pub const BOOTSTRAP_BYTES_MIN: usize = 32;
/// The largest number of keys in a store, including revoked ones.
pub const KEYS_MAX: usize = 10_000;

#[derive(Debug, Clone)]
pub struct NewKey {
    pub name: Name,
    pub role: Role,
    pub tenant: Option<Name>,
    pub scopes: Vec<ResourceScope>,
    pub certificate: Option<Name>,
    /// Milliseconds until it expires; it never does, if none.
    pub expires_in_ms: Option<u64>,
}

impl NewKey {
    /// A key for all tenants and all resources, which never expires.
    pub fn new(name: Name, role: Role) -> Self {
        Self { name, role, tenant: None, scopes: Vec::new(), certificate: None, expires_in_ms: None }
    }

    /// A key as requested, or every error in the request; the caller decides about the tenant.
    pub fn of(ask: &admin::CreateKey, tenant: Option<Name>) -> Result<Self, ApiError> {
        let scopes = ask.scopes()?;
        Ok(Self {
            name: field::name("name", &ask.name)?,
            role: ask.role,
            tenant,
            scopes,
            certificate: field::maybe_name("certificate", ask.certificate.as_deref())?,
            expires_in_ms: ask.expires_in_seconds.map(|seconds| seconds.saturating_mul(1_000)),
        })
    }
}

/// A key as it is stored, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Its public part, which is the name of its record.
    #[serde(skip_serializing)]
    pub id: Name,
    pub name: Name,
    pub role: Role,
    /// The tenant that it is for; none, if it may name any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// The only resources that it may touch; empty for all.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub scopes: Arc<[ResourceScope]>,
    /// The name in a client certificate that stands for it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Name>,
    pub created_at: StoreTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<StoreTime>,
    /// It is refused from this time on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<StoreTime>,
    /// It has been refused since then, by a record of its own.
    #[serde(skip)]
    pub revoked_at: Option<StoreTime>,
    hash: KeyHash,
    /// The hash of its former text, and until when that still works.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<(KeyHash, StoreTime)>,
}

/// The hash of a key's text, in the store as hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct KeyHash(Hash);

impl KeyHash {
    fn of(text: &str) -> Self {
        Self(blake3::hash(text.as_bytes()))
    }
}

impl TryFrom<String> for KeyHash {
    type Error = blake3::HexError;
    fn try_from(hex: String) -> Result<Self, blake3::HexError> {
        Hash::from_hex(hex).map(Self)
    }
}

impl From<KeyHash> for String {
    fn from(KeyHash(hash): KeyHash) -> Self {
        hash.to_hex().to_string()
    }
}

/// A key that was just created, and its text, which cannot be shown again.
#[derive(Debug)]
pub struct IssuedKey {
    pub key: Key,
    pub text: SecretString,
}

impl Key {
    pub fn about(&self) -> admin::ApiKey {
        admin::ApiKey {
            id: self.id.to_string(),
            name: self.name.to_string(),
            role: self.role,
            tenant: self.tenant.as_ref().map(ToString::to_string),
            only: self.scopes.iter().map(Into::into).collect(),
            certificate: self.certificate.as_ref().map(ToString::to_string),
            created_at: self.created_at.into(),
            expires_at: self.expires_at.map(Into::into),
            rotated_at: self.rotated_at.map(Into::into),
            grace_until: self.grace_until().map(Into::into),
        }
    }
}

impl IssuedKey {
    /// The key with its text, which cannot be shown again.
    pub fn shown_once(&self) -> admin::NewKey {
        admin::NewKey { key: admin::Secret::new(self.text.expose_secret()), about: self.key.about() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// No key has this text, or the key was rotated.
    #[error("the key is unknown")]
    Unknown,
    /// No key was created for any of the names in the certificate.
    #[error("no API key is bound to a name in the client certificate")]
    NoCertificate,
    #[error("the key has expired")]
    Expired,
    #[error("the key was revoked")]
    Revoked,
}

impl Key {
    /// Whether `text` is valid for this key at `now`.
    pub fn check(&self, text: &str, now: StoreTime) -> Result<(), KeyFault> {
        let KeyHash(hash) = KeyHash::of(text);
        let is = |KeyHash(other): &KeyHash| bool::from(hash.as_bytes().ct_eq(other.as_bytes()));
        let is_former = self.previous.as_ref().is_some_and(|(former, until)| is(former) && now < *until);
        if !is(&self.hash) && !is_former {
            return Err(KeyFault::Unknown);
        }
        if self.revoked_at.is_some() {
            return Err(KeyFault::Revoked);
        }
        if self.is_live(now) { Ok(()) } else { Err(KeyFault::Expired) }
    }

    /// Whether it is neither revoked nor expired.
    pub fn is_live(&self, now: StoreTime) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| now < at)
    }

    /// Until when its former text still works.
    pub fn grace_until(&self) -> Option<StoreTime> {
        self.previous.as_ref().map(|(_, until)| *until)
    }
}

#[derive(Serialize, Deserialize)]
struct Revocation {
    at: StoreTime,
}

/// The public part of a key text, by which its record is found. For a text that was not created here it is made from
/// the hash.
pub(crate) fn id_of(text: &str) -> Name {
    let made_here = text.strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once('_'));
    made_here.and_then(|(id, _)| Name::new(id).ok()).unwrap_or_else(|| {
        let hash = blake3::hash(text.as_bytes()).to_hex();
        Name::new(format!("k{}", &hash[..15])).expect("a letter and digits")
    })
}

pub async fn create(by: impl Into<Operator>, new: NewKey) -> Result<IssuedKey, ApiError> {
    let by = by.into();
    let keys = list(by.engine()).await?;
    let count = keys.len();
    let has_it = |key: &&Key| key.revoked_at.is_none() && key.certificate == new.certificate;
    if let Some(other) = keys.iter().find(has_it).filter(|_| new.certificate.is_some()) {
        let detail =
            format!("the certificate name is already bound to key {}; revoke that key first", other.id);
        return Err(Problem::new(ErrorCode::Exists, detail).into());
    }
    if count >= KEYS_MAX {
        let problem = Problem::new(
            ErrorCode::QuotaExceeded,
            format!("the store already has {count} keys, the maximum; revoked keys count too"),
        );
        return Err(problem.limit("keys", KEYS_MAX as u64).into());
    }
    let id = format!("{:016x}", rand::random::<u64>());
    let text = fresh_text(&id);
    let key = store_new(&by, new, &text).await?;
    Ok(IssuedKey { key, text })
}

/// Stores a key text from elsewhere, if the store has no keys; returns whether it did.
pub async fn bootstrap(engine: &Engine, text: &SecretString) -> Result<bool, ApiError> {
    if !list(engine).await?.is_empty() {
        return Ok(false);
    }
    let bytes = text.expose_secret().trim().len();
    if bytes < BOOTSTRAP_BYTES_MIN {
        let detail =
            format!("the bootstrap key has {bytes} bytes; it must have at least {BOOTSTRAP_BYTES_MIN}");
        return Err(Problem::new(ErrorCode::InvalidField, detail).into());
    }
    let text = SecretString::from(text.expose_secret().trim());
    let new = NewKey::new(collection("bootstrap"), Role::Admin);
    match store_new(&engine.into(), new, &text).await {
        // Another replica with the same variable was quicker.
        Err(failure) if failure.0.code == ErrorCode::Exists => Ok(false),
        stored => stored.map(|_| true),
    }
}

pub async fn list(engine: &Engine) -> Result<Vec<Key>, ApiError> {
    // Revocations are read later, so that a key that seems valid was so when it was read.
    let keys = engine.records(&collection(KEYS)).await?;
    let revoked = engine.records(&collection(REVOKED)).await?;
    let revoked: std::collections::BTreeMap<_, _> = revoked.iter().filter_map(revocation).collect();
    let read = |record: &Record| {
        let key = read_key(record);
        if key.is_none() {
            tracing::error!(key = %record.id, "cannot parse API key record; rejecting the key");
        }
        Some(Key { revoked_at: revoked.get(&record.id).copied(), ..key? })
    };
    Ok(keys.iter().filter_map(read).collect())
}

fn read_key(record: &Record) -> Option<Key> {
    let mut document: Map<String, Value> = read(&record.document)?;
    document.insert("id".to_owned(), json!(record.id));
    serde_json::from_value(Value::Object(document)).ok()
}

pub async fn get(engine: &Engine, id: &Name) -> Result<Key, ApiError> {
    let key = list(engine).await?.into_iter().find(|key| key.id == *id);
    Ok(key.ok_or_else(|| no_key(id))?)
}

fn no_key(id: &Name) -> Refusal {
    Refusal::NoRecord { collection: collection(KEYS), id: id.clone() }
}

/// Gives a key a new text. The former one still works for `grace_ms`; the key expires as before, or after
/// `expires_in_ms`.
pub async fn rotate(
    by: impl Into<Operator>,
    id: &Name,
    grace_ms: u64,
    expires_in_ms: Option<u64>,
) -> Result<IssuedKey, ApiError> {
    let text = fresh_text(id.as_str());
    let hash = KeyHash::of(text.expose_secret());
    let rotated = |key: Key, now: StoreTime| Key {
        hash,
        previous: (grace_ms > 0).then(|| (key.hash, now.plus_ms(grace_ms))),
        rotated_at: Some(now),
        expires_at: expires_in_ms.map(|ms| now.plus_ms(ms)).or(key.expires_at),
        ..key
    };
    let key = change(&by.into(), id, |key| deed("rotate_key", key), rotated).await?;
    Ok(IssuedKey { key, text })
}

/// Lets a key expire after `in_ms`; never, if none.
pub async fn expire(by: impl Into<Operator>, id: &Name, in_ms: Option<u64>) -> Result<Key, ApiError> {
    let deed = |key: &Key| deed("expire_key", key).with("expires_in_seconds", in_ms.map(|ms| ms / 1_000));
    let expiring = |key, now: StoreTime| Key { expires_at: in_ms.map(|ms| now.plus_ms(ms)), ..key };
    change(&by.into(), id, deed, expiring).await
}

/// Changes a key that is not revoked. A concurrent change is not undone.
async fn change(
    by: &Operator,
    id: &Name,
    deed: impl Fn(&Key) -> Deed,
    how: impl Fn(Key, StoreTime) -> Key,
) -> Result<Key, ApiError> {
    let found = get(by.engine(), id).await?;
    if found.revoked_at.is_some() {
        let detail = format!("key {id} was revoked; create a new key");
        return Err(Problem::new(ErrorCode::Conflict, detail).into());
    }
    by.change(KEYS, id, &deed(&found), |found, now| {
        let key = found.and_then(read_key).ok_or_else(|| no_key(id))?;
        let key = how(key, now);
        Ok((record(KEYS, id.clone(), &key)?, key))
    })
    .await
}

/// Revokes a key permanently; revoking it again changes nothing.
pub async fn revoke(by: impl Into<Operator>, id: &Name) -> Result<Key, ApiError> {
    let by = by.into();
    let key = get(by.engine(), id).await?;
    if key.revoked_at.is_some() {
        return Ok(key);
    }
    let at = store_time(by.engine()).await?;
    let record = record(REVOKED, id.clone(), &Revocation { at })?;
    by.submit(Command::PutRecord { record, over: Over::Anything }, &deed("revoke_key", &key)).await??;
    Ok(Key { revoked_at: Some(at), ..key })
}

async fn store_new(by: &Operator, new: NewKey, text: &SecretString) -> Result<Key, ApiError> {
    let now = store_time(by.engine()).await?;
    let text = text.expose_secret();
    let key = Key {
        id: id_of(text),
        name: new.name,
        role: new.role,
        tenant: new.tenant,
        scopes: new.scopes.into(),
        certificate: new.certificate,
        created_at: now,
        rotated_at: None,
        expires_at: new.expires_in_ms.map(|ms| now.plus_ms(ms)),
        revoked_at: None,
        hash: KeyHash::of(text),
        previous: None,
    };
    let record = record(KEYS, key.id.clone(), &key)?;
    let deed = deed("create_key", &key).with("role", key.role);
    by.submit(Command::PutRecord { record, over: Over::Nothing }, &deed).await??;
    Ok(key)
}

fn deed(action: &str, key: &Key) -> Deed {
    Deed::new(action, format!("key/{}", key.id)).of(key.tenant.as_ref()).with("name", &key.name)
}

fn fresh_text(id: &str) -> SecretString {
    let mut secret = [0; 32];
    rand::rng().fill_bytes(&mut secret);
    // A hash only by its type: 32 bytes as hex.
    format!("{PREFIX}{id}_{}", Hash::from_bytes(secret).to_hex()).into()
}

fn revocation(record: &Record) -> Option<(Name, StoreTime)> {
    let revocation: Revocation = read(&record.document)?;
    Some((record.id.clone(), revocation.at))
}
