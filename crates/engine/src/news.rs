//! News for sessions: a holder that waits here is told at once that something has happened to its session. It then asks
//! by a heartbeat what, since only an answer to that is proof (rule 4); without the word it finds out at its next one.
//!
//! An inquiry may name many sessions, so that one connection serves all sessions of a process.

use std::{
    collections::{BTreeSet, HashMap},
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

/// What is asked: a session, and the revision of the set of leases that its holder knows.
pub type KnownSet = (SessionId, Revision);

/// What an inquiry was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionNews {
    /// The sessions that something has happened to. None, if the time has passed without news.
    pub sessions: BTreeSet<SessionId>,
    /// Where to go on from; none if that is not known, and then the next inquiry looks at the sessions' rows.
    pub cursor: Option<Cursor>,
}

/// Someone who waits.
struct Inquiry {
    /// Whose sessions they must be; anyone's, if none.
    tenant: Option<Name>,
    told: Mutex<BTreeSet<SessionId>>,
    is_told: Notify,
}

impl Inquiry {
    fn may_hear_of(&self, tenant: &Name) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    fn tell(&self, id: SessionId) {
        self.told.lock().insert(id);
        self.is_told.notify_one();
    }
}

/// Who waits for news of which session.
#[derive(Default)]
pub(crate) struct NewsDesk {
    inquiries: Mutex<HashMap<SessionId, Vec<Arc<Inquiry>>>>,
}

impl NewsDesk {
    /// Tells those who wait what these events are to them.
    pub(crate) fn tell<'a>(&self, events: impl IntoIterator<Item = &'a Event>) {
        let inquiries = self.inquiries.lock();
        if inquiries.is_empty() {
            return;
        }
        for event in events {
            for id in event.is_news_to() {
                let asked = inquiries.get(&id).into_iter().flatten();
                for inquiry in asked.filter(|inquiry| inquiry.may_hear_of(&event.key.tenant)) {
                    inquiry.tell(id);
                }
            }
        }
    }

    /// There is a gap in what is known: anything may have happened to anyone.
    pub(crate) fn tell_all(&self) {
        for (id, inquiries) in &*self.inquiries.lock() {
            for inquiry in inquiries {
                inquiry.tell(*id);
            }
        }
    }
}

/// An inquiry for as long as it waits.
struct Waiting<'a> {
    hub: &'a Hub,
    inquiry: Arc<Inquiry>,
    sessions: Vec<SessionId>,
}

impl<'a> Waiting<'a> {
    fn new(hub: &'a Hub, asked: &[KnownSet], tenant: Option<Name>) -> Self {
        hub.attend();
        let inquiry = Arc::new(Inquiry { tenant, told: Mutex::default(), is_told: Notify::new() });
        let sessions: Vec<_> = asked.iter().map(|(id, _)| *id).collect();
        let mut inquiries = hub.desk.inquiries.lock();
        for id in &sessions {
            inquiries.entry(*id).or_default().push(inquiry.clone());
        }
        drop(inquiries);
        Self { hub, inquiry, sessions }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut inquiries = self.hub.desk.inquiries.lock();
        for id in &self.sessions {
            if let Some(those) = inquiries.get_mut(id) {
                those.retain(|inquiry| !Arc::ptr_eq(inquiry, &self.inquiry));
                if those.is_empty() {
                    inquiries.remove(id);
                }
            }
        }
        drop(inquiries);
        self.hub.leave();
    }
}

impl Hub {
    /// Waits for news of one of the sessions of a tenant, for at most `wait`. What happened since `from` is told at
    /// once; where that is not known any more, or not given, a session whose set is newer than the one known is news.
    pub(crate) async fn session_news(
        &self,
        asked: &[KnownSet],
        tenant: Option<&Name>,
        from: Option<Cursor>,
        wait: Duration,
    ) -> Result<SessionNews, EngineError> {
        let waiting = Waiting::new(self, asked, tenant.cloned());
        self.is_reading().await?;
        let sessions: BTreeSet<_> = waiting.sessions.iter().copied().collect();
        let is_own = |event: &Event| waiting.inquiry.may_hear_of(&event.key.tenant);
        let missed = match from.and_then(|from| self.news_after(from, &sessions, is_own)) {
            Some(missed) => missed,
            None => {
                let wanted = Footprint { sessions: waiting.sessions.clone(), ..Default::default() };
                changed(asked, tenant, &self.load(&wanted).await?)
            }
        };
        if missed.is_empty() {
            // Out of time is an answer, too.
            let _ = tokio::time::timeout(wait, waiting.inquiry.is_told.notified()).await;
        }
        // In this order: whatever is told was told before the hub says that it has come so far.
        let cursor = self.read_up_to();
        let mut told = std::mem::take(&mut *waiting.inquiry.told.lock());
        told.extend(missed);
        Ok(SessionNews { sessions: told, cursor })
    }
}

/// The sessions that are not as their holders know them.
fn changed(asked: &[KnownSet], tenant: Option<&Name>, rows: &LoadedRows) -> BTreeSet<SessionId> {
    let is_as_known = |(id, known): &&KnownSet| {
        let session = rows.state.session(*id).filter(|session| session.is_renewable(rows.now));
        let own = session.filter(|session| tenant.is_none_or(|tenant| session.holder.tenant == *tenant));
        own.is_some_and(|session| session.lease_revision <= *known)
    };
    asked.iter().filter(|asked| !is_as_known(asked)).map(|(id, _)| *id).collect()
}
