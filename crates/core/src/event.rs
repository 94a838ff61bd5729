//! What a decision changes: events, which can be watched, and changes that are not published.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    key::{Document, HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{Declaration, Lease, Pending, Resource, StateDocument, Tenure},
    record::Record,
    request::SpentRequest,
    session::{Holder, Session, Standing},
    time::{Revision, StoreTime, Token},
    waiter::Waiter,
};

/// One change of a lease or a resource, at its place in the total order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its place in the order of all events, which is commit order.
    pub revision: Revision,
    pub at: StoreTime,
    pub key: ResourceKey,
    /// The key that asked for it (rule 26); none for what time did, and where no keys are in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    /// The session of the present holder, where this is about its resource and not about its own lease: it is told,
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_session: Option<SessionId>,
    pub what: What,
}

/// What can happen to a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A pending lease was created for its next holder.
    Pending(Pending),
    Acquired(Lease),
    /// Its holder released it.
    Released(Ended),
    /// The lease expired, or a pending lease lapsed.
    Expired(Ended),
    /// The lease was ended by a caller other than its holder.
    Revoked(Ended),
    /// Another holder takes over an expired lease that was not swept yet.
    Stolen(Ended),
    /// The old holder is known to be fenced off: the resource is not held back any longer.
    HoldBackLifted {
        /// The token of the last grant.
        token: Token,
        reason: Option<String>,
    },
    StateChanged(StateDocument),
    /// The resource was declared, or its declaration changed.
    Declared(Declaration),
    Deleted,
    /// Something beside the resource has changed that applies to it; opaque. Its row has not.
    ConfigChanged(Document),
}

/// A lease at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub lease: LeaseId,
    /// The token that it had; none, if it was still pending.
    pub token: Option<Token>,
    pub holder: Name,
    /// The session that it was attached to, if not one of its own.
    pub session: Option<SessionId>,
    pub attributes: Document,
    pub held_back_until: Option<StoreTime>,
    /// Why it ended, or who took it over, for people.
    pub reason: Option<String>,
}

impl Ended {
    pub fn of(lease: &Lease) -> Self {
        Self {
            lease: lease.id,
            token: Some(lease.token),
            holder: lease.holder.clone(),
            session: lease.tenure.session(),
            attributes: lease.attributes.clone(),
            held_back_until: None,
            reason: None,
        }
    }

    /// The end of `pending`, which was not granted.
    pub fn of_pending(pending: &Pending, reason: &str) -> Self {
        Self {
            lease: pending.id,
            token: None,
            holder: pending.holder.clone(),
            session: Some(pending.session),
            attributes: pending.attributes.clone(),
            held_back_until: None,
            reason: Some(reason.to_owned()),
        }
    }
}

/// Event names with the texts that stand for them, the same in the store, on the wire and in metrics.
macro_rules! event_names {
    ($count:literal: $($(#[doc = $about:literal])+ $name:ident = $text:literal,)*) => {
        /// The public name of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum EventName { $($(#[doc = $about])+ $name,)* }

        impl EventName {
            /// All of them, in the order above.
            pub const ALL: [Self; $count] = [$(Self::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// When it happens, as the reference has it.
            pub fn about(self) -> &'static str {
                match self { $(Self::$name => concat!($($about),+).trim_ascii(),)* }
            }
        }
    };
}

event_names! { 12:
    /// A lease was reserved for the next holder, which gets it when the present one releases it (rule 16).
    LeasePending = "lease_pending",
    /// A holder was granted the lease, with a token above every earlier one of the resource.
    LeaseAcquired = "lease_acquired",
    /// A lease was renewed. Sent to live watchers that ask for it, never stored (rule 19).
    LeaseRenewed = "lease_renewed",
    /// The holder released its lease, or a pending lease was called off.
    LeaseReleased = "lease_released",
    /// The lease was not renewed in time, or a pending lease lapsed.
    LeaseExpired = "lease_expired",
    /// Ended by a caller other than its holder.
    LeaseRevoked = "lease_revoked",
    /// An expired lease was taken over by another holder before it was swept.
    LeaseStolen = "lease_stolen",
    /// A resource is not held back any longer, since its old holder is fenced off.
    HoldBackLifted = "hold_back_lifted",
    /// The holder wrote the state document of the resource.
    StateChanged = "state_changed",
    /// The resource was declared, or its declaration changed.
    ResourceDeclared = "resource_declared",
    /// The resource is no longer declared.
    ResourceDeleted = "resource_deleted",
    /// Something beside a resource has changed that applies to it.
    ConfigChanged = "config_changed",
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Event {
    pub fn name(&self) -> EventName {
        match &self.what {
            What::Pending(_) => EventName::LeasePending,
            What::Acquired(_) => EventName::LeaseAcquired,
            What::Released(_) => EventName::LeaseReleased,
            What::Expired(_) => EventName::LeaseExpired,
            What::Revoked(_) => EventName::LeaseRevoked,
            What::Stolen(_) => EventName::LeaseStolen,
            What::HoldBackLifted { .. } => EventName::HoldBackLifted,
            What::StateChanged(_) => EventName::StateChanged,
            What::Declared(_) => EventName::ResourceDeclared,
            What::Deleted => EventName::ResourceDeleted,
            What::ConfigChanged(_) => EventName::ConfigChanged,
        }
    }

    /// The lease that it is about, with its holder and the session that it is attached to.
    fn about(&self) -> Option<(LeaseId, &Name, Option<SessionId>)> {
        match &self.what {
            What::Pending(p) => Some((p.id, &p.holder, Some(p.session))),
            What::Acquired(l) => Some((l.id, &l.holder, l.tenure.session())),
            What::Released(e) | What::Expired(e) | What::Revoked(e) | What::Stolen(e) => {
                Some((e.lease, &e.holder, e.session))
            }
            What::HoldBackLifted { .. }
            | What::StateChanged(_)
            | What::Declared(_)
            | What::Deleted
            | What::ConfigChanged(_) => None,
        }
    }

    /// The lease that it is about, if it is about one.
    pub fn lease(&self) -> Option<LeaseId> {
        self.about().map(|(lease, ..)| lease)
    }

    /// The holder that it is about, if it is about one.
    pub fn holder(&self) -> Option<&Name> {
        self.about().map(|(_, holder, _)| holder)
    }

    /// The session that it is about, if it is about one.
    pub fn session(&self) -> Option<SessionId> {
        self.about().and_then(|(.., session)| session)
    }

    /// The session of the holder of `resource`, before this is applied to it, if it must be told of this: not of what
    /// it does itself, nor of its own lease.
    pub(crate) fn present_holder(&self, resource: &Resource) -> Option<SessionId> {
        let held = resource.lease.as_ref().filter(|lease| self.lease() != Some(lease.id))?;
        if matches!(self.what, What::StateChanged(_)) { None } else { held.tenure.session() }
    }

    /// The sessions that this is news to: their holders did not ask for it, or are not answered in another way.
    pub fn is_news_to(&self) -> impl Iterator<Item = SessionId> {
        let is_news = match &self.what {
            What::Pending(_)
            | What::Expired(_)
            | What::Revoked(_)
            | What::Declared(_)
            | What::Deleted
            | What::ConfigChanged(_) => true,
            // A grant that was asked for is the answer to that, and one that was waited for is confirmed at once.
            What::Acquired(lease) => lease.request.is_none() && lease.confirm_by.is_none(),
            // A holder gives no reason for its own release.
            What::Released(ended) => ended.reason.is_some(),
            What::Stolen(_) | What::HoldBackLifted { .. } | What::StateChanged(_) => false,
        };
        [self.session(), self.holder_session].into_iter().flatten().filter(move |_| is_news)
    }

    /// The session whose number of leases it changes, and by how much.
    pub(crate) fn lease_count_change(&self) -> Option<(SessionId, i32)> {
        match &self.what {
            What::Acquired(l) => Some((l.tenure.session()?, 1)),
            What::Released(e) | What::Expired(e) | What::Revoked(e) => {
                Some((e.session?, if e.token.is_some() { -1 } else { 0 }))
            }
            What::Pending(p) => Some((p.session, 0)),
            What::Stolen(_)
            | What::HoldBackLifted { .. }
            | What::StateChanged(_)
            | What::Declared(_)
            | What::Deleted
            | What::ConfigChanged(_) => None,
        }
    }

    /// The token that it is about, if there is one.
    pub fn token(&self) -> Option<Token> {
        match &self.what {
            What::Acquired(l) => Some(l.token),
            What::Released(e) | What::Expired(e) | What::Revoked(e) | What::Stolen(e) => e.token,
            What::HoldBackLifted { token, .. } => Some(*token),
            What::StateChanged(s) => Some(s.token),
            What::Pending(_) | What::Declared(_) | What::Deleted | What::ConfigChanged(_) => None,
        }
    }
}

/// One step of a decision. Only [`Change::Event`] has a revision and is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Event(Event),
    /// A lease with a session of its own was renewed, or a lease reported statistics.
    LeaseRenewed {
        key: ResourceKey,
        at: StoreTime,
        tenure: Tenure,
        stats: Option<Document>,
        /// When it must be confirmed, if it still must.
        confirm_by: Option<StoreTime>,
    },
    /// The hold-back of a slot is over, so that it can be taken again (rule 29).
    SlotFreed {
        key: ResourceKey,
        at: StoreTime,
    },
    /// A waiter joined the line, or asked again and keeps its place.
    Waits(Waiter),
    WaitEnded {
        key: ResourceKey,
        arrival: Revision,
        at: StoreTime,
    },
    SessionOpened(Session),
    SessionRenewed {
        id: SessionId,
        at: StoreTime,
        deadline: StoreTime,
        metrics: Option<Document>,
    },
    SessionStanding {
        id: SessionId,
        standing: Standing,
    },
    /// A session is over and nothing is attached to it.
    SessionEnded(SessionId),
    RequestSpent {
        request: RequestKey,
        /// What is remembered of it, and how long.
        spent: SpentRequest,
    },
    /// A holder registered, or its row changed.
    HolderPut(Holder),
    HolderRemoved(HolderKey),
    RecordPut(Record),
    RecordRemoved {
        collection: Name,
        id: Name,
    },
    /// Revisions continue from here.
    RevisionRaised(Revision),
}
