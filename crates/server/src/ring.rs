//! The keys and the tenants' quotas as they were last read from the store: about a second ago at most.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use solehold_api::admin::QuotaChanges;
use solehold_core::{key::Name, time::StoreTime};
use solehold_engine::{Engine, clock::BootTime};
use tokio::sync::Mutex;

use crate::{
    http::Failure,
    keys::{self, Key, KeyFault},
    quota,
};

/// A text that opens nothing makes the store be asked at most this often, however many come.
const MISS_EVERY: Duration = Duration::from_millis(200);

/// The keys and the tenants' quotas.
#[derive(Debug)]
pub(crate) struct Ring {
    read: ArcSwap<Read>,
    /// One reader at a time; those who wait find what it read.
    turn: Mutex<()>,
    /// Without any key everyone may do everything.
    is_open: bool,
}

#[derive(Debug)]
struct Read {
    keys: HashMap<Name, Arc<Key>>,
    quotas: BTreeMap<Name, QuotaChanges>,
    /// Store time, and when it was read here.
    now: StoreTime,
    at: BootTime,
}

impl Read {
    fn now(&self) -> StoreTime {
        self.now.plus_ms(BootTime::now().since(self.at).as_millis() as u64)
    }

    fn find(&self, text: &str) -> Result<Arc<Key>, KeyFault> {
        let key = self.keys.get(keys::id_of(text).as_str()).ok_or(KeyFault::Unknown)?;
        key.check(text, self.now())?;
        Ok(key.clone())
    }
}

impl Ring {
    /// An empty ring: [`Self::refresh`] comes before all else.
    pub fn new(is_open: bool) -> Self {
        let read = Read {
            keys: HashMap::new(),
            quotas: BTreeMap::new(),
            now: StoreTime(0),
            at: BootTime::from_ms(0),
        };
        Self { read: ArcSwap::from_pointee(read), turn: Mutex::default(), is_open }
    }

    /// Whether there are no keys, and none are needed.
    pub fn is_open(&self) -> bool {
        self.is_open && self.read.load().keys.is_empty()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.read.load().keys.is_empty()
    }

    /// The key of that text, as far as is known.
    pub fn find(&self, text: &str) -> Result<Arc<Key>, KeyFault> {
        self.read.load().find(text)
    }

    /// The key of that text, after asking the store: it may be newer than what is known. Waits its turn.
    pub async fn find_anew(
        &self,
        engine: &Engine,
        text: &str,
    ) -> Result<Result<Arc<Key>, KeyFault>, Failure> {
        let asked = BootTime::now();
        let turn = self.turn.lock().await;
        let read_at = self.read.load().at;
        if read_at < asked {
            // Read since it was last allowed: wait, rather than refuse a key that was just made elsewhere.
            tokio::time::sleep(MISS_EVERY.saturating_sub(BootTime::now().since(read_at))).await;
            self.read_store(engine).await?;
        }
        drop(turn);
        Ok(self.find(text))
    }

    /// Reads the store.
    pub async fn refresh(&self, engine: &Engine) -> Result<(), Failure> {
        let _turn = self.turn.lock().await;
        self.read_store(engine).await
    }

    async fn read_store(&self, engine: &Engine) -> Result<(), Failure> {
        // Before the reads: what is older than its stamp would seem newer than it is.
        let at = BootTime::now();
        let now = keys::store_time(engine).await?;
        let keys = keys::list(engine).await?.into_iter().map(|key| (key.id.clone(), Arc::new(key))).collect();
        let quotas = quota::overrides(engine).await?;
        self.read.store(Arc::new(Read { keys, quotas, now, at }));
        Ok(())
    }

    /// Store time, as far as can be told here: for people to read, never to decide about a lease.
    pub fn now(&self) -> StoreTime {
        self.read.load().now()
    }

    /// Whether a key that was good once still is.
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

    /// What a tenant may have, if that was said of it.
    pub fn quotas_of(&self, tenant: &Name) -> QuotaChanges {
        self.read.load().quotas.get(tenant).copied().unwrap_or_default()
    }
}
