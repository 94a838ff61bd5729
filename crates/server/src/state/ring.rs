//! API keys and tenants' quotas as they were last read from the store, at most about one second ago.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use solehold_api::admin::QuotaChanges;
use solehold_core::{key::Name, time::StoreTime};
use solehold_engine::{Engine, clock::BootTime};
use tokio::sync::Mutex;

use super::{
    keys::{self, Key, KeyFault},
    quota, records,
};
use crate::error::ApiError;

/// However many requests have unknown keys, the store is read at most this often.
const MISS_EVERY: Duration = Duration::from_millis(200);

/// Most key texts that are remembered as ignored while the store has no keys.
const IGNORED_MAX: usize = 1_024;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Credential<'a> {
    Key(&'a str),
    /// A certificate with these names, which was verified.
    Certificate(&'a [Name]),
}

#[derive(Debug)]
pub(crate) struct Ring {
    read: ArcSwap<RingSnapshot>,
    /// One reader at a time; concurrent callers use what it read.
    turn: Mutex<()>,
    /// While the store has no keys, callers need none.
    is_open: bool,
    ignored: parking_lot::Mutex<HashSet<[u8; 32]>>,
}

#[derive(Debug)]
struct RingSnapshot {
    keys: HashMap<Name, Arc<Key>>,
    /// Names in client certificates, and the keys that they stand for.
    by_certificate: HashMap<Name, Arc<Key>>,
    quotas: BTreeMap<Name, QuotaChanges>,
    /// Store time, and when it was read here.
    now: StoreTime,
    at: BootTime,
}

impl RingSnapshot {
    fn now(&self) -> StoreTime {
        self.now.plus_ms(BootTime::now().since(self.at).as_millis() as u64)
    }

    fn find(&self, shown: &Credential<'_>) -> Result<Arc<Key>, KeyFault> {
        match shown {
            Credential::Key(text) => {
                let key = self.keys.get(&keys::id_of(text)).ok_or(KeyFault::Unknown)?;
                key.check(text, self.now())?;
                Ok(key.clone())
            }
            Credential::Certificate(names) => {
                let found = names.iter().find_map(|name| self.by_certificate.get(name));
                let key = found.ok_or(KeyFault::NoCertificate)?;
                if key.is_live(self.now()) { Ok(key.clone()) } else { Err(KeyFault::Expired) }
            }
        }
    }
}

impl Ring {
    /// An empty ring: call [`Self::refresh`] first.
    pub fn new(is_open: bool) -> Self {
        let read = RingSnapshot {
            keys: HashMap::new(),
            by_certificate: HashMap::new(),
            quotas: BTreeMap::new(),
            now: StoreTime(0),
            at: BootTime::from_ms(0),
        };
        Self {
            read: ArcSwap::from_pointee(read),
            turn: Mutex::default(),
            is_open,
            ignored: Default::default(),
        }
    }

    /// Whether there are no keys, and none are needed.
    pub fn is_open(&self) -> bool {
        self.is_open && self.read.load().keys.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.read.load().keys.is_empty()
    }

    /// Whether a key that is shown has no meaning, because there are no keys and none are needed. It may just have been
    /// created elsewhere, so the store is read again when it is shown for the first time.
    pub async fn ignores(&self, engine: &Engine, shown: &Credential<'_>) -> Result<bool, ApiError> {
        let Credential::Key(text) = shown else { return Ok(false) };
        let hash = *blake3::hash(text.as_bytes()).as_bytes();
        if self.is_open() && !self.ignored.lock().contains(&hash) {
            self.read_again(engine).await?;
        }
        if !self.is_open() {
            return Ok(false);
        }
        let mut ignored = self.ignored.lock();
        if ignored.is_empty() {
            tracing::warn!(
                "request has an API key but the store has none; ignoring keys until one is created"
            );
        }
        if ignored.len() >= IGNORED_MAX && !ignored.contains(&hash) {
            ignored.clear();
        }
        ignored.insert(hash);
        Ok(true)
    }

    /// The key that is shown, as far as is known.
    pub fn find(&self, shown: &Credential<'_>) -> Result<Arc<Key>, KeyFault> {
        self.read.load().find(shown)
    }

    /// Reads the store again for a key that is not known: it may have been created since. Waits its turn.
    pub async fn read_again(&self, engine: &Engine) -> Result<(), ApiError> {
        let asked = BootTime::now();
        let _turn = self.turn.lock().await;
        let read_at = self.read.load().at;
        if read_at < asked {
            // The store was read a moment ago: wait, rather than refuse a key that was just created elsewhere.
            tokio::time::sleep(MISS_EVERY.saturating_sub(BootTime::now().since(read_at))).await;
            self.read_store(engine).await?;
        }
        Ok(())
    }

    pub async fn refresh(&self, engine: &Engine) -> Result<(), ApiError> {
        let _turn = self.turn.lock().await;
        self.read_store(engine).await
    }

    async fn read_store(&self, engine: &Engine) -> Result<(), ApiError> {
        // Before the reads: what is older than its stamp would seem newer than it is.
        let at = BootTime::now();
        let now = records::store_time(engine).await?;
        let all: Vec<_> = keys::list(engine).await?.into_iter().map(Arc::new).collect();
        let live = all.iter().filter(|key| key.revoked_at.is_none());
        let named = live.filter_map(|key| Some((key.certificate.clone()?, key.clone())));
        let by_certificate = named.collect();
        let keys = all.into_iter().map(|key| (key.id.clone(), key)).collect();
        let quotas = quota::overrides(engine).await?;
        self.read.store(Arc::new(RingSnapshot { keys, by_certificate, quotas, now, at }));
        Ok(())
    }

    /// Store time, approximately: for people to read, never to decide about a lease.
    pub fn now(&self) -> StoreTime {
        self.read.load().now()
    }

    /// Whether a key that was valid still is.
    pub fn is_good(&self, id: &Name) -> bool {
        let read = self.read.load();
        read.keys.get(id).is_some_and(|key| key.is_live(read.now()))
    }

    /// The tenants that have keys or quotas of their own.
    pub fn tenants(&self) -> BTreeSet<Name> {
        let read = self.read.load();
        let of_keys = read.keys.values().filter_map(|key| key.tenant.clone());
        of_keys.chain(read.quotas.keys().cloned()).collect()
    }

    pub fn quotas_of(&self, tenant: &Name) -> QuotaChanges {
        self.read.load().quotas.get(tenant).copied().unwrap_or_default()
    }
}
