//! What an HTTP request shows, and what it is told when it is refused. The layer and `solehold gate http` share it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::json;
use solehold_core::{
    fence::{Doubt, Verdict},
    key::{Name, ResourceKey, SessionId},
    limits::SLOTS_MAX,
    time::Token,
};

use super::{flights::WasCut, judge::Gate};

/// The resource that the request is about, as `KIND/KEY`.
pub const RESOURCE: HeaderName = HeaderName::from_static("solehold-resource");
/// The fencing token that the work is done under.
pub const TOKEN: HeaderName = HeaderName::from_static("solehold-token");
/// The number of the slot that the token is of; only for one who shares the resource.
pub const SLOT: HeaderName = HeaderName::from_static("solehold-slot");
/// The session that the token was granted to; optional.
pub const SESSION: HeaderName = HeaderName::from_static("solehold-session");

/// How soon to ask again what cannot be decided now.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const UNDECIDABLE: &str = "undecidable";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub key: ResourceKey,
    pub token: Token,
    pub session: Option<SessionId>,
}

impl Shown {
    /// What the headers of a request say; none if they say nothing and the request only reads.
    pub fn of(gate: &Gate, method: &Method, headers: &HeaderMap) -> Result<Option<Self>, Refused> {
        let resource = text(headers, &RESOURCE)?;
        let token = text(headers, &TOKEN)?;
        let (Some(resource), Some(token)) = (resource, token) else {
            if method.is_safe() && resource.is_none() && token.is_none() {
                return Ok(None);
            }
            return Err(Refused::bad(
                "the headers Solehold-Resource and Solehold-Token are missing, as in `Solehold-Resource: scene/lobby` \
                 and `Solehold-Token: 42`"
                    .to_owned(),
            ));
        };
        let (kind, name) = resource.split_once('/').ok_or_else(|| {
            Refused::bad(format!("Solehold-Resource is {resource:?}; write KIND/KEY, as in scene/lobby"))
        })?;
        let key = gate.key(kind, name).map_err(|why| Refused::bad(format!("in Solehold-Resource {why}")))?;
        if !gate.kinds().contains(&key.kind) {
            let guarded = gate.kinds().iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
            let detail =
                format!("this gate does not guard the kind {kind:?} of Solehold-Resource, only {guarded}");
            return Err(Refused { code: "unguarded_kind", ..Refused::bad(detail) });
        }
        let digits = token.parse().ok().filter(|_| token.bytes().all(|byte| byte.is_ascii_digit()));
        let token = digits.map(Token).ok_or_else(|| {
            Refused::bad(format!("Solehold-Token is {token:?}; write the token of the grant, as in 42"))
        })?;
        let slot = text(headers, &SLOT)?.map(|slot| {
            slot.parse().ok().filter(|number| (1..=SLOTS_MAX).contains(number)).ok_or_else(|| {
                let wanted = format!("write the slot of the grant, as in 2, at most {SLOTS_MAX}");
                Refused::bad(format!("Solehold-Slot is {slot:?}; {wanted}, or leave it out if there is none"))
            })
        });
        let key = key.of_slot(slot.transpose()?.unwrap_or(0));
        let session = text(headers, &SESSION)?.map(|id| id.parse().map(SessionId));
        let session = session
            .transpose()
            .map_err(|_| Refused::bad("Solehold-Session is not the id of a session".to_owned()))?;
        Ok(Some(Self { key, token, session }))
    }
}

/// A resource or a slot of one, as messages and the log name it. A gate is for one tenant.
pub(super) fn name_of(key: &ResourceKey) -> String {
    let ResourceKey { kind, key, slot, .. } = key;
    if *slot == 0 { format!("{kind}/{key}") } else { format!("slot {slot} of {kind}/{key}") }
}

/// The one value of a header.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let value = value.to_str().ok().filter(|_| values.next().is_none());
    value
        .map(Some)
        .ok_or_else(|| Refused::bad(format!("the header {name} must be given once, in plain text")))
}

/// A request that is refused, and what it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub status: StatusCode,
    pub code: &'static str,
    pub detail: String,
    pub newest: Option<Token>,
}

impl Refused {
    fn bad(detail: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "bad_request", detail, newest: None }
    }

    /// What cannot be done now, and may be later.
    pub fn later(code: &'static str, detail: String) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, code, detail, newest: None }
    }

    /// The same, with why the store was not reached, where that may be the reason.
    #[must_use]
    pub(super) fn with_trouble(self, trouble: Option<String>) -> Self {
        match trouble.filter(|_| self.code == UNDECIDABLE) {
            Some(why) => Self { detail: format!("{}; {why}", self.detail), ..self },
            None => self,
        }
    }

    /// A request that was passed on, and of which nobody knows whether it has taken effect.
    pub fn unknown(code: &'static str, detail: String) -> Self {
        Self { status: StatusCode::GATEWAY_TIMEOUT, code, detail, newest: None }
    }

    /// What a verdict other than admission means for a request.
    pub fn by(verdict: Verdict, shown: &Shown) -> Option<Self> {
        let Shown { key, token, .. } = shown;
        let resource = name_of(key);
        Some(match verdict {
            Verdict::Admit => return None,
            Verdict::Stale { newest } if newest == *token => Self {
                status: StatusCode::PRECONDITION_FAILED,
                code: "stale",
                detail: format!("token {token} of {resource} belongs to another session: stop this work"),
                newest: Some(newest),
            },
            Verdict::Stale { newest } => Self {
                status: StatusCode::PRECONDITION_FAILED,
                code: "stale",
                detail: format!(
                    "token {token} of {resource} is stale, the newest is {newest}: stop this work, another holder does it"
                ),
                newest: Some(newest),
            },
            Verdict::Undecidable(doubt) if doubt.may_pass() => {
                Self::later(UNDECIDABLE, format!("token {token} of {resource} is undecidable now: {doubt}"))
            }
            Verdict::Undecidable(doubt) => Self {
                status: StatusCode::CONFLICT,
                code: doubt.as_str(),
                detail: format!("token {token} of {resource} is refused: {doubt}"),
                newest: if let Doubt::NeverGiven { newest } = doubt { Some(newest) } else { None },
            },
        })
    }

    /// The answer, with a problem document.
    pub fn response<B: From<String>>(&self) -> http::Response<B> {
        let mut problem = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let Some(newest) = self.newest {
            problem["token"] = newest.0.into();
        }
        let mut response = http::Response::new(B::from(problem.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER.as_secs()));
        }
        response
    }
}

impl From<WasCut> for Refused {
    fn from(was_cut: WasCut) -> Self {
        Self::unknown("cut", was_cut.to_string())
    }
}
