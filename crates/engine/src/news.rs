//! News for sessions: a holder that waits here is notified at once when something has happened to its session. It then
//! sends a heartbeat, since only the answer to that is proof (rule 28); without a notification it finds out at its next
//! one.
//!
//! One subscription may name many sessions, so that one connection serves all sessions of a process.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use solehold_core::{
    command::Footprint,
    event::Event,
    key::{Name, SessionId},
    time::Revision,
};
use tokio::sync::Notify;

use crate::{
    error::EngineError,
    store::{Cursor, LoadedRows},
    watch::Hub,
};

const JUST_OVER_MAX: usize = 1_024;

/// A session, and the revision of the lease set that its holder knows.
pub type KnownSet = (SessionId, Revision);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionNews {
    /// The sessions that something has happened to; empty if the time has passed without news.
    pub sessions: BTreeSet<SessionId>,
    /// Where the next request resumes; none if that is not known, and then it reads the sessions' rows.
    pub cursor: Option<Cursor>,
}

struct Subscriber {
    /// Only sessions of this tenant; of all tenants, if none.
    tenant: Option<Name>,
    news: Mutex<BTreeSet<SessionId>>,
    has_news: Notify,
}

impl Subscriber {
    fn may_see(&self, tenant: &Name) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    fn notify(&self, id: SessionId) {
        self.news.lock().insert(id);
        self.has_news.notify_one();
    }
}

/// The holders that wait for news, by session.
#[derive(Default)]
pub(crate) struct SessionNotifier {
    subscribers: Mutex<HashMap<SessionId, Vec<Arc<Subscriber>>>>,
    /// The last sessions that were superseded or closed here, for a holder that subscribes just afterwards.
    just_over: Mutex<VecDeque<SessionId>>,
}

impl SessionNotifier {
    /// Notifies the subscribers of all sessions that these events concern.
    pub(crate) fn notify<'a>(&self, events: impl IntoIterator<Item = &'a Event>) {
        let subscribers = self.subscribers.lock();
        if subscribers.is_empty() {
            return;
        }
        for event in events {
            for id in event.is_news_to() {
                let of_session = subscribers.get(&id).into_iter().flatten();
                for subscriber in of_session.filter(|subscriber| subscriber.may_see(&event.key.tenant)) {
                    subscriber.notify(id);
                }
            }
        }
    }

    /// Notifies the subscribers of sessions that were superseded or closed.
    pub(crate) fn sessions_over(&self, sessions: &[SessionId]) {
        if sessions.is_empty() {
            return;
        }
        let mut just_over = self.just_over.lock();
        just_over.extend(sessions);
        let surplus = just_over.len().saturating_sub(JUST_OVER_MAX);
        just_over.drain(..surplus);
        drop(just_over);
        let subscribers = self.subscribers.lock();
        for id in sessions {
            for subscriber in subscribers.get(id).into_iter().flatten() {
                subscriber.notify(*id);
            }
        }
    }

    /// Events may have been missed: every session may have news.
    pub(crate) fn notify_all(&self) {
        for (id, subscribers) in &*self.subscribers.lock() {
            for subscriber in subscribers {
                subscriber.notify(*id);
            }
        }
    }
}

/// A subscription; dropping it ends it.
struct Subscription<'a> {
    hub: &'a Hub,
    subscriber: Arc<Subscriber>,
    sessions: Vec<SessionId>,
}

impl<'a> Subscription<'a> {
    fn new(hub: &'a Hub, asked: &[KnownSet], tenant: Option<Name>) -> Self {
        hub.attend();
        let subscriber = Arc::new(Subscriber { tenant, news: Mutex::default(), has_news: Notify::new() });
        let sessions: Vec<_> = asked.iter().map(|(id, _)| *id).collect();
        let mut subscribers = hub.notifier.subscribers.lock();
        for id in &sessions {
            subscribers.entry(*id).or_default().push(subscriber.clone());
        }
        drop(subscribers);
        let asked: BTreeSet<_> = sessions.iter().copied().collect();
        for id in hub.notifier.just_over.lock().iter().filter(|id| asked.contains(id)) {
            subscriber.notify(*id);
        }
        Self { hub, subscriber, sessions }
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let mut subscribers = self.hub.notifier.subscribers.lock();
        for id in &self.sessions {
            if let Some(of_session) = subscribers.get_mut(id) {
                of_session.retain(|subscriber| !Arc::ptr_eq(subscriber, &self.subscriber));
                if of_session.is_empty() {
                    subscribers.remove(id);
                }
            }
        }
        drop(subscribers);
        self.hub.leave();
    }
}

impl Hub {
    /// Waits for news of one of the sessions of a tenant, for at most `wait`. Events since `from` are news at once.
    /// Where those are no longer known, or `from` is not given, a session whose lease set is newer than the known one
    /// is news. At the end of the wait, a session that is over is news: no event says that another replica superseded
    /// it.
    pub(crate) async fn session_news(
        &self,
        asked: &[KnownSet],
        tenant: Option<&Name>,
        from: Option<Cursor>,
        wait: Duration,
    ) -> Result<SessionNews, EngineError> {
        let subscription = Subscription::new(self, asked, tenant.cloned());
        self.is_reading().await?;
        let sessions: BTreeSet<_> = subscription.sessions.iter().copied().collect();
        let is_own = |event: &Event| subscription.subscriber.may_see(&event.key.tenant);
        let mut missed = match from.and_then(|from| self.news_after(from, &sessions, is_own)) {
            Some(missed) => missed,
            None => self.changed_sessions(asked, tenant).await?,
        };
        if missed.is_empty() {
            let has_news = subscription.subscriber.has_news.notified();
            if tokio::time::timeout(wait, has_news).await.is_err() {
                let any_set: Vec<_> = asked.iter().map(|(id, _)| (*id, Revision(u64::MAX))).collect();
                missed = self.changed_sessions(&any_set, tenant).await?;
            }
        }
        // The cursor first: all news up to it has been delivered by the time that it is read.
        let cursor = self.head.borrow().cursor;
        let mut news = std::mem::take(&mut *subscription.subscriber.news.lock());
        news.extend(missed);
        Ok(SessionNews { sessions: news, cursor })
    }

    /// The sessions that are over, or have a newer lease set than the known one, by their rows.
    async fn changed_sessions(
        &self,
        asked: &[KnownSet],
        tenant: Option<&Name>,
    ) -> Result<BTreeSet<SessionId>, EngineError> {
        let sessions = asked.iter().map(|(id, _)| *id).collect();
        let wanted = Footprint { sessions, ..Default::default() };
        Ok(changed(asked, tenant, &self.store.load(&wanted).await?))
    }
}

/// The sessions whose lease set is not the one that their holders know.
fn changed(asked: &[KnownSet], tenant: Option<&Name>, rows: &LoadedRows) -> BTreeSet<SessionId> {
    let is_as_known = |(id, known): &&KnownSet| {
        let session = rows.state.session(*id).filter(|session| session.is_renewable(rows.now));
        let own = session.filter(|session| tenant.is_none_or(|tenant| session.holder.tenant == *tenant));
        own.is_some_and(|session| session.lease_revision <= *known)
    };
    asked.iter().filter(|asked| !is_as_known(asked)).map(|(id, _)| *id).collect()
}
