//! The subject of a request, for its log line. It is noted where commands are submitted, below the handlers, in a task
//! local.

use std::{cell::RefCell, time::Duration};

use axum::response::Response;
use solehold_api::problem::ErrorCode;
use solehold_core::{
    command::{Claim, Command, Target},
    key::{Name, ResourceKey},
};
use solehold_engine::clock::BootTime;

use crate::error::ApiError;

tokio::task_local! {
    static NOTES: RefCell<Notes>;
}

#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub about: About,
    /// How long it has waited because its caller requested it.
    pub waited: Duration,
}

/// The resource and the holder that the first command of a request names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct About {
    pub tenant: Option<String>,
    /// As KIND/KEY, or the id of a lease.
    pub resource: Option<String>,
    pub holder: Option<String>,
}

impl About {
    fn of(command: &Command) -> Self {
        match command {
            Command::Acquire(ask) => Self::of_key(&ask.key).by(Some(&ask.holder)),
            Command::Renew { claim, .. }
            | Command::Release { claim, .. }
            | Command::Revoke { claim, .. }
            | Command::WriteState { claim, .. } => Self::of_claim(claim),
            Command::CancelRequest(request) => Self::of_key(&request.resource).by(Some(&request.holder)),
            Command::LeaveQueue { key, .. } | Command::Declare { key, .. } | Command::Delete { key, .. } => {
                Self::of_key(key)
            }
            Command::HandOver(ask) => Self::of_key(&ask.key),
            Command::OpenSession(ask) => Self::of_tenant(&ask.holder.tenant).by(Some(&ask.holder.name)),
            Command::HeardOf { holder, .. }
            | Command::SetStatus { holder, .. }
            | Command::RemoveHolder { holder, .. } => Self::of_tenant(&holder.tenant).by(Some(&holder.name)),
            Command::Heartbeat { tenant, holder, .. } => Self::of_tenant(tenant).by(holder.as_ref()),
            Command::CloseSession { tenant, .. } => Self::of_tenant(tenant),
            _ => Self::default(),
        }
    }

    fn of_claim(claim: &Claim) -> Self {
        let about = match &claim.target {
            Target::Resource(key) => Self::of_key(key),
            Target::Lease { tenant, id } => {
                Self { resource: Some(format!("lease {id}")), ..Self::of_tenant(tenant) }
            }
        };
        about.by(claim.holder.as_ref())
    }

    fn of_key(key: &ResourceKey) -> Self {
        Self { resource: Some(format!("{}/{}", key.kind, key.key)), ..Self::of_tenant(&key.tenant) }
    }

    fn of_tenant(tenant: &Name) -> Self {
        Self { tenant: Some(tenant.to_string()), ..Self::default() }
    }

    fn by(self, holder: Option<&Name>) -> Self {
        Self { holder: holder.map(ToString::to_string), ..self }
    }
}

/// Notes what a request is about, if this is one, and it was not noted before.
pub(crate) fn note(command: &Command) {
    // Outside of a request there is nothing to note.
    let _ = NOTES.try_with(|notes| {
        let about = &mut notes.borrow_mut().about;
        if *about == About::default() {
            *about = About::of(command);
        }
    });
}

/// Runs `work`, for which the caller is willing to wait: that time does not make a request slow.
pub(crate) async fn waiting<T>(wait: Duration, work: impl Future<Output = T>) -> T {
    let began = BootTime::now();
    let done = work.await;
    let waited = BootTime::now().since(began).min(wait);
    let _ = NOTES.try_with(|notes| notes.borrow_mut().waited += waited);
    done
}

/// Serves a request, and returns what was noted of it.
pub(crate) async fn noted<T>(work: impl Future<Output = T>) -> (T, Notes) {
    NOTES
        .scope(RefCell::default(), async {
            let done = work.await;
            (done, NOTES.with(RefCell::take))
        })
        .await
}

pub(crate) fn code_of(response: &Response) -> Option<ErrorCode> {
    response.extensions().get::<ApiError>().map(|failure| failure.0.code)
}
