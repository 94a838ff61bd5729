//! Parts that the requests of all surfaces share: the terms of an acquire, and the proof of a lease.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use solehold_core::{
    command::{Acquire, AskedTenure, Claim, StateWrite, Target, Undeclared},
    key::{Document, LeaseId, Name, ResourceKey, SessionId},
    limits::SLOTS_MAX,
    time::Token,
};
use uuid::Uuid;

use crate::{
    field::{Checked, Faults, FieldError},
    limits::{TtlBounds, WAIT_MS_MAX},
};

/// The terms of an acquire. Only the server knows the rest: the resource, the id of the grant and the route's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireTerms {
    pub holder: Name,
    /// What keeps the lease alive: its own ttl or a session.
    pub tenure: AskedTenure,
    /// The client's name for the request.
    pub request: Option<Name>,
    /// Any JSON that is kept with the lease.
    pub attributes: Document,
    /// Of how many slots one is asked for; none for an exclusive lease.
    pub slots: Option<u32>,
}

impl AcquireTerms {
    pub fn acquire(self, key: ResourceKey, lease: LeaseId, undeclared: Undeclared) -> Acquire {
        let Self { holder, tenure, request, attributes, slots } = self;
        Acquire {
            key,
            lease,
            holder,
            tenure,
            request,
            attributes,
            undeclared,
            wait: None,
            slots,
            holds_at_most: None,
        }
    }
}

/// The fields of a request to acquire; the holder's field has different names.
pub(crate) struct AcquireFields<'a> {
    pub holder: (&'static str, &'a str),
    pub ttl_ms: Option<&'a Number>,
    pub ttl_seconds: Option<&'a Number>,
    pub session_id: Option<Uuid>,
    pub request_id: Option<&'a str>,
    pub slots: Option<u64>,
}

impl AcquireFields<'_> {
    /// Checks the fields; `attributes` are made by the surface. With a session the ttl is the session's, and one that
    /// is given is checked but not used.
    pub fn checked(
        self,
        ttl: TtlBounds,
        mut faults: Faults,
        attributes: Option<Document>,
    ) -> Checked<AcquireTerms> {
        let holder = faults.name(self.holder.0, self.holder.1);
        let request = faults.maybe_name("request_id", self.request_id);
        let ttl_ms = faults.take(ttl.resolve(self.ttl_ms, self.ttl_seconds));
        let slots = faults.take(slots(self.slots));
        let own = ttl_ms.map(|ttl_ms| AskedTenure::Own { ttl_ms });
        let tenure = self.session_id.map(|id| AskedTenure::Session(SessionId(id))).or(own);
        faults.finish(|| {
            Some(AcquireTerms {
                holder: holder?,
                tenure: tenure?,
                request: request?,
                attributes: attributes?,
                slots: slots?,
            })
        })
    }
}

/// The fields that prove a lease (rule 6); the holder's field has different names.
pub(crate) struct Proof<'a> {
    pub holder: (&'static str, Option<&'a str>),
    pub token: Option<u64>,
    pub session_id: Option<Uuid>,
}

impl Proof<'_> {
    pub fn claim(self, target: Target) -> Checked<Claim> {
        let mut faults = Faults::default();
        let holder = faults.maybe_name(self.holder.0, self.holder.1);
        let token = self.token.map(Token);
        let session = self.session_id.map(SessionId);
        faults.finish(|| Some(Claim { target, token, session, holder: holder? }))
    }
}

/// Declares requests that identify a lease by token, lease id or session: adds these fields to the request's own.
macro_rules! lease_requests {
    ($($(#[$attribute:meta])* pub struct $request:ident { $($own:tt)* })*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $request {
            /// The fencing token of the grant.
            pub token: Option<u64>,
            pub lease_id: Option<Uuid>,
            /// The session that the lease is attached to.
            pub session_id: Option<Uuid>,
            /// The holder: checked, but not sufficient alone.
            pub holder: Option<String>,
            $($own)*
        }

        impl $request {
            fn proof(&self) -> Proof<'_> {
                Proof { holder: ("holder", self.holder.as_deref()), token: self.token, session_id: self.session_id }
            }
        }
    )*};
}
pub(crate) use lease_requests;

/// The number of slots that one is asked for of.
fn slots(given: Option<u64>) -> Result<Option<u32>, FieldError> {
    let fault = |given: u64| {
        FieldError::new("slots", format!("is {given}; it must be 1 to {SLOTS_MAX} holders at once"))
    };
    let within = |given: u64| u32::try_from(given).ok().filter(|slots| (1..=SLOTS_MAX).contains(slots));
    given.map(|given| within(given).ok_or_else(|| fault(given))).transpose()
}

/// How long a request waits: for its turn in line, or for news.
pub fn wait(given: Option<&Number>) -> Result<Duration, FieldError> {
    let Some(given) = given else { return Ok(Duration::ZERO) };
    let ms = given.as_u64().filter(|ms| *ms <= WAIT_MS_MAX);
    let fault =
        || FieldError::new("wait_ms", format!("is {given}; it must be 0 to {WAIT_MS_MAX} milliseconds"));
    ms.map(Duration::from_millis).ok_or_else(fault)
}

pub(crate) fn state_write(at: &str, sequence: u64, document: &Value) -> Checked<StateWrite> {
    let mut faults = Faults::default();
    let document = faults.take(crate::document::to_document(&crate::field::join(at, "document"), document));
    faults.finish(|| Some(StateWrite { sequence, document: document? }))
}

/// A write of the state document within a release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FinalState {
    /// Must be above the stored one under the same token.
    pub sequence: u64,
    /// The document for the next holder.
    pub document: Value,
}

impl FinalState {
    pub(crate) fn write(&self) -> Checked<StateWrite> {
        state_write("state", self.sequence, &self.document)
    }
}
