//! Errors as RFC 9457 problem documents, each with one [`ErrorCode`].

use std::fmt;

use serde::{Deserialize, Serialize};
use solehold_core::{
    lease::LeaseStatus,
    limits::{CANCELLED_REQUESTS_MAX, TTL_MS_MAX},
    outcome::Refusal,
    session::SessionOver,
};
use uuid::Uuid;

use crate::{field::FieldError, time::Timestamp};

/// One row per code: what it means, its name in Rust, its status, its name on the wire, its title.
macro_rules! error_codes {
    ($($(#[doc = $about:literal])+ $code:ident $status:literal $wire:literal $title:literal;)*) => {
        /// All errors of the API, each with its HTTP status. The same codes are on the wire, in metrics and in logs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum ErrorCode {
            $($(#[doc = $about])+ #[serde(rename = $wire)] $code,)*
        }

        impl ErrorCode {
            pub const ALL: &[Self] = &[$(Self::$code),*];

            pub fn status(self) -> u16 {
                match self { $(Self::$code => $status,)* }
            }

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$code => $wire,)* }
            }

            /// A short summary, the same for every occurrence.
            pub fn title(self) -> &'static str {
                match self { $(Self::$code => $title,)* }
            }

            /// What it means, as the reference has it.
            pub fn about(self) -> &'static str {
                match self { $(Self::$code => concat!($($about),+).trim_ascii(),)* }
            }
        }
    };
}

error_codes! {
    /// The request cannot be understood.
    BadRequest 400 "bad_request" "Bad request";
    /// The body is not JSON.
    InvalidJson 400 "invalid_json" "Body is not valid JSON";
    /// A field is missing, of the wrong type, or has a value that is not allowed.
    InvalidField 400 "invalid_field" "Invalid field";
    /// A number is outside its bounds.
    OutOfBounds 400 "out_of_bounds" "Number out of bounds";
    /// The request identifies no lease: it has no token, lease id, session or holder.
    NoProof 400 "no_proof" "Lease not identified";
    /// The request has no key, or one that is unknown, expired or revoked.
    Unauthorized 401 "unauthorized" "No valid API key";
    /// The key's role does not allow it.
    Forbidden 403 "forbidden" "API key not permitted";
    /// A quota of the tenant is used up.
    QuotaExceeded 403 "quota_exceeded" "Quota exceeded";
    /// It does not exist, or belongs to another tenant than the key.
    NotFound 404 "not_found" "Not found";
    /// There is no such path.
    NoSuchRoute 404 "no_such_route" "No such route";
    /// The session is not known, closed or expired.
    NoSession 404 "no_session" "Session has ended";
    /// The session is over because its holder has opened another one.
    SessionSuperseded 404 "session_superseded" "Session superseded";
    /// The path exists, but not with this method.
    MethodNotAllowed 405 "method_not_allowed" "Method not allowed";
    /// The body did not arrive in time; nothing was changed.
    RequestTimeout 408 "request_timeout" "Request body timed out";
    /// The present state does not allow this.
    Conflict 409 "conflict" "Conflict";
    /// Another client holds the resource.
    Held 409 "held" "Held by another";
    /// The resource is free, but held back: it cannot be acquired yet.
    HeldBack 409 "held_back" "Held back";
    /// The lease is no longer held.
    Lost 409 "lost" "Lease lost";
    /// The proof in the request does not match the lease or session.
    NotYours 409 "not_yours" "Proof does not match";
    /// The request id is spent: its lease has ended, or the request was cancelled.
    RequestSpent 409 "request_spent" "Request id already used";
    /// The holder is draining and gets no new leases.
    Draining 409 "draining" "Holder is draining";
    /// The session or the runner holds as many leases as its capacity allows.
    AtCapacity 409 "at_capacity" "At capacity";
    /// The state document was already written with this sequence number or a later one.
    StaleSequence 409 "stale_sequence" "Stale sequence number";
    /// As many resources of the kind are being handed over as the move budget allows (rule 16).
    OverBudget 409 "over_budget" "Hand-over budget exhausted";
    /// The resource already has a pending lease.
    AlreadyPending 409 "already_pending" "Hand-over already pending";
    /// A held resource is deleted only with `force`.
    InUse 409 "in_use" "In use";
    /// It already exists.
    Exists 409 "exists" "Already exists";
    /// The watch's cursor is older than what is kept: begin again with a snapshot.
    Compacted 410 "compacted" "Cursor too old";
    /// The body is larger than allowed.
    PayloadTooLarge 413 "payload_too_large" "Request body too large";
    /// The caller exceeds its request rate.
    TooManyRequests 429 "too_many_requests" "Too many requests";
    /// An error of the server.
    Internal 500 "internal" "Internal error";
    /// The orchestrator that the server passes the question on to does not answer, refuses the server's key, or answers
    /// with something else than jobs.
    OrchestratorUnavailable 502 "orchestrator_unavailable" "Orchestrator unavailable";
    /// The server is overloaded; nothing was changed.
    Overloaded 503 "overloaded" "Overloaded";
    /// The store cannot be reached; nothing was changed.
    Unavailable 503 "unavailable" "Store unavailable";
    /// The request may or may not have taken effect: repeat it with the same request id.
    UnknownOutcome 503 "unknown_outcome" "Outcome unknown";
}

impl ErrorCode {
    /// The code as the `type` of a problem.
    pub fn type_uri(self) -> String {
        format!("urn:solehold:problem:{}", self.as_str())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ErrorCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let about = "The kind of error, for programs. Each code has one HTTP status.";
        let mut words = crate::schema::words(Self::ALL);
        words.description = Some(about.to_owned());
        words.into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ErrorCode {}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of the [`Limit`] that the operator has set to ttls.
pub const TTL_MAX: &str = "ttl_max";

/// A limit that was exceeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limit {
    pub name: String,
    pub value: u64,
}

/// A lease at its end. What comes after `held_back_ms` is given of a lease that had ended before the request, as the
/// history has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndedLease {
    pub lease_id: Uuid,
    /// `released`, `expired` or `revoked`.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::schema::lease_status))]
    pub status: LeaseStatus,
    /// Milliseconds for which the resource cannot be acquired.
    pub held_back_ms: u64,
    /// When it ended, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its last holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The token that it had; none, if it was still pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Why it ended, or who took it over, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
}

impl EndedLease {
    /// A lease that ends with this request.
    pub fn new(lease_id: Uuid, status: LeaseStatus, held_back_ms: u64) -> Self {
        Self {
            lease_id,
            status,
            held_back_ms,
            ended_at: None,
            kind: None,
            key: None,
            holder: None,
            token: None,
            reason: None,
            code: None,
        }
    }
}

impl fmt::Display for EndedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease {}", self.lease_id)?;
        if let (Some(kind), Some(key)) = (&self.kind, &self.key) {
            write!(f, " on {kind}/{key}")?;
        }
        match self.status {
            LeaseStatus::Released => write!(f, " was released")?,
            LeaseStatus::Revoked => write!(f, " was revoked")?,
            _ => write!(f, " expired")?,
        }
        if let Some(at) = self.ended_at {
            write!(f, " at {at}")?;
        }
        if let Some(reason) = &self.reason {
            write!(f, " ({reason})")?;
        }
        match (&self.holder, self.token) {
            (Some(holder), Some(token)) => write!(f, "; {holder} had held it with token {token}"),
            _ => Ok(()),
        }
    }
}

/// An RFC 9457 problem document.
///
/// ```
/// use solehold_api::problem::{ErrorCode, Problem};
///
/// let problem = Problem::new(ErrorCode::PayloadTooLarge, "the body has 2000000 bytes").limit("body_bytes", 1_048_576);
/// assert_eq!(problem.status, 413);
/// assert_eq!(problem.to_string(), "payload_too_large: the body has 2000000 bytes");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{code}: {detail}")]
pub struct Problem {
    /// The kind of problem, as a URN that ends with the code.
    pub r#type: String,
    pub title: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// What happened, to what, and what to do next.
    pub detail: String,
    /// The path of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The kind of error, for programs.
    pub code: ErrorCode,
    /// Every field that is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Milliseconds after which to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The holder of the resource, or the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The token of the present or last grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The limit that was exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// How the lease ended that the request is about, as far as the history knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Box<EndedLease>>,
}

impl Problem {
    /// A problem of that kind; the detail states what happened, to what, and what to do.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            r#type: code.type_uri(),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            instance: None,
            code,
            errors: Vec::new(),
            retry_after_ms: None,
            holder: None,
            token: None,
            limit: None,
            ended: None,
        }
    }

    /// A lease that is over, and who holds its resource now with which token.
    pub fn lost(ended: EndedLease, present: Option<(String, u64)>) -> Self {
        let now = match &present {
            Some((holder, token)) => format!("; {holder} holds it now with token {token}"),
            None if ended.held_back_ms > 0 => {
                format!("; the resource is held back for another {} ms", ended.held_back_ms)
            }
            None => String::new(),
        };
        let problem = Self::new(ErrorCode::Lost, format!("{ended}{now}"));
        let (holder, token) =
            present.map_or((None, ended.token), |(holder, token)| (Some(holder), Some(token)));
        Self { holder, token, ended: Some(Box::new(ended)), ..problem }
    }

    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [] => "the request is invalid".to_owned(),
            [only] => only.to_string(),
            [first, rest @ ..] => format!("{first}, and {} more", rest.len()),
        };
        Self { errors, ..Self::new(ErrorCode::InvalidField, detail) }
    }

    /// A body that serde could not parse, at this path.
    pub fn from_json(path: &str, error: &serde_json::Error) -> Self {
        if !error.is_data() {
            return Self::new(ErrorCode::InvalidJson, format!("the body is not valid JSON: {error}"));
        }
        let field = if path == "." { "body" } else { path };
        Self::invalid(vec![FieldError::new(field, format!("is invalid: {error}"))])
    }

    /// A refusal of core's, in the words of this surface.
    pub fn from_refusal(refusal: &Refusal) -> Self {
        use ErrorCode as Code;
        let problem = |code| Self::new(code, refusal.to_string());
        match refusal {
            Refusal::NoResource(_)
            | Refusal::NoLease(_)
            | Refusal::NoHolder(_)
            | Refusal::NoRecord { .. } => problem(Code::NotFound),
            Refusal::Held { holder, token, retry_after_ms } => {
                problem(Code::Held).retry_after_ms(*retry_after_ms).holder(holder).token(token.0)
            }
            Refusal::HeldBack { token, retry_after_ms } => {
                problem(Code::HeldBack).retry_after_ms(*retry_after_ms).token(token.0)
            }
            Refusal::Lost { holder, last_token } => {
                let problem = problem(Code::Lost).token(last_token.0);
                holder.iter().fold(problem, Self::holder)
            }
            Refusal::NotYours { holder, token, .. } => problem(Code::NotYours).holder(holder).token(token.0),
            Refusal::OutOfScope(_) | Refusal::OtherKeys { .. } => problem(Code::Forbidden),
            Refusal::NoProof => problem(Code::NoProof),
            Refusal::RequestSpent(_) => problem(Code::RequestSpent),
            Refusal::TooManyCancelled { retry_after_ms, .. } => problem(Code::Conflict)
                .retry_after_ms(*retry_after_ms)
                .limit("cancelled_requests_max", CANCELLED_REQUESTS_MAX as u64),
            Refusal::NoSession { why: SessionOver::Superseded, .. } => problem(Code::SessionSuperseded),
            Refusal::NoSession { .. } => problem(Code::NoSession),
            Refusal::NotYourSession { .. } => problem(Code::NotYours),
            Refusal::Draining(holder) => problem(Code::Draining).holder(holder),
            Refusal::AtCapacity { capacity, .. } | Refusal::HolderAtCapacity { capacity, .. } => {
                problem(Code::AtCapacity).limit("capacity", (*capacity).into())
            }
            Refusal::QueueFull { waiting, .. } => {
                problem(Code::Overloaded).limit("waiters", u64::from(*waiting))
            }
            Refusal::StaleSequence { .. } => problem(Code::StaleSequence),
            Refusal::SharedState => problem(Code::Conflict),
            Refusal::NotAll { why, .. } => {
                Problem { detail: problem(Code::Conflict).detail, ..Self::from_refusal(why) }
            }
            Refusal::OverBudget { .. } => problem(Code::OverBudget),
            Refusal::AlreadyPending { holder } => problem(Code::AlreadyPending).holder(holder),
            Refusal::InUse { holder, token } => problem(Code::InUse).holder(holder).token(token.0),
            Refusal::Exists => problem(Code::Exists),
            Refusal::RecordChanged { .. } => problem(Code::Conflict),
            Refusal::OutOfBounds { what: "ttl_ms", given, least, most }
                if given > most && *most < TTL_MS_MAX =>
            {
                let message = format!(
                    "is {given}; it must be {least} to {most}, the maximum being this server's `ttl_max`"
                );
                let problem = Self::new(Code::OutOfBounds, format!("ttl_ms {message}"));
                let error = FieldError::new("ttl_ms", message).bounds(*least, *most);
                Self { errors: vec![error], ..problem.limit(TTL_MAX, *most) }
            }
            Refusal::OutOfBounds { what, given, least, most } => {
                let message = format!("is {given}; it must be {least} to {most}");
                let problem =
                    problem(Code::OutOfBounds).limit(*what, *if given < least { least } else { most });
                Self { errors: vec![FieldError::new(*what, message).bounds(*least, *most)], ..problem }
            }
        }
    }

    #[must_use]
    pub fn instance(self, instance: impl Into<String>) -> Self {
        Self { instance: Some(instance.into()), ..self }
    }

    #[must_use]
    pub fn retry_after_ms(self, ms: u64) -> Self {
        Self { retry_after_ms: Some(ms), ..self }
    }

    #[must_use]
    pub fn holder(self, holder: impl ToString) -> Self {
        Self { holder: Some(holder.to_string()), ..self }
    }

    #[must_use]
    pub fn token(self, token: u64) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Names the limit that was exceeded.
    #[must_use]
    pub fn limit(self, name: impl Into<String>, value: u64) -> Self {
        Self { limit: Some(Limit { name: name.into(), value }), ..self }
    }

    /// The same problem as "not found", for surfaces whose clients know no other status for it.
    #[must_use]
    pub fn as_not_found(self) -> Self {
        Self { status: ErrorCode::NotFound.status(), ..self }
    }

    /// The same problem as "gone", for surfaces whose clients distinguish expired from unknown leases.
    #[must_use]
    pub fn as_gone(self) -> Self {
        Self { status: 410, ..self }
    }

    /// How long to wait in whole seconds, rounded up: what `Retry-After` says.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after_ms.map(|ms| ms.div_ceil(1000))
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::from_refusal(&refusal)
    }
}

impl From<Vec<FieldError>> for Problem {
    fn from(errors: Vec<FieldError>) -> Self {
        Self::invalid(errors)
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        Self::invalid(vec![error])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use solehold_core::{
        key::{LeaseId, SessionId},
        time::Token,
    };
    use uuid::Uuid;

    use super::*;
    use crate::testing::{key, name};

    #[test]
    fn the_reference_of_errors_is_kept() {
        let mut page = String::from(
            "# Error codes\n\n<!-- Made from the code: make reference -->\n\n\
             Every error is a problem document (RFC 9457). Its `code` is what programs look at; each code has one HTTP \
             status. [A request and\nits answer](../api.md) for each call, [what a client does](../guides/http.md) \
             about each code, [exit codes](commands.md#exit-codes) of the\ncommand line.\n\n\
             | code | status | title | meaning |\n|---|---|---|---|\n",
        );
        for code in ErrorCode::ALL {
            let about = code.about();
            assert!(about.ends_with('.'), "{code}: {about}");
            page += &format!("| `{code}` | {} | {} | {about} |\n", code.status(), code.title());
        }
        solehold_testkit::golden("reference/errors.md", &page);
    }

    #[test]
    fn codes_are_snake_case_and_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for code in ErrorCode::ALL {
            let wire = serde_json::to_value(code).expect("a code");
            assert_eq!(wire, json!(code.as_str()));
            assert_eq!(serde_json::from_value::<ErrorCode>(wire).expect("a code"), *code);
            assert!(code.as_str().chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{code}");
            assert!((400..600).contains(&code.status()) && !code.title().is_empty(), "{code}");
            assert!(seen.insert(code.as_str()), "{code} twice");
        }
    }

    #[test]
    fn every_refusal_has_its_code() {
        let holder = name("w");
        let token = Token(7);
        let session = SessionId(Uuid::from_u128(1));
        let lease = LeaseId(Uuid::from_u128(2));
        let cases = [
            (Refusal::NoResource(key("k")), "not_found", 404),
            (Refusal::NoLease(lease), "not_found", 404),
            (Refusal::NoHolder(holder.clone()), "not_found", 404),
            (Refusal::NoRecord { collection: name("c"), id: name("i") }, "not_found", 404),
            (Refusal::Held { holder: holder.clone(), token, retry_after_ms: 1_500 }, "held", 409),
            (Refusal::HeldBack { token, retry_after_ms: 1 }, "held_back", 409),
            (Refusal::Lost { holder: Some(holder.clone()), last_token: token }, "lost", 409),
            (Refusal::NotYours { what: "holder", holder: holder.clone(), token }, "not_yours", 409),
            (Refusal::NoProof, "no_proof", 400),
            (Refusal::RequestSpent(name("r")), "request_spent", 409),
            (Refusal::TooManyCancelled { holder: holder.clone(), retry_after_ms: 9 }, "conflict", 409),
            (Refusal::NoSession { session, why: SessionOver::Unknown }, "no_session", 404),
            (Refusal::NoSession { session, why: SessionOver::Expired }, "no_session", 404),
            (Refusal::NoSession { session, why: SessionOver::Superseded }, "session_superseded", 404),
            (Refusal::NotYourSession { session, holder: holder.clone() }, "not_yours", 409),
            (Refusal::Draining(holder.clone()), "draining", 409),
            (Refusal::AtCapacity { session, capacity: 3 }, "at_capacity", 409),
            (Refusal::HolderAtCapacity { holder: holder.clone(), capacity: 3 }, "at_capacity", 409),
            (Refusal::StaleSequence { given: 1, stored: 2 }, "stale_sequence", 409),
            (Refusal::SharedState, "conflict", 409),
            (
                Refusal::NotAll { key: key("k"), why: Box::new(Refusal::Draining(holder.clone())) },
                "draining",
                409,
            ),
            (Refusal::OverBudget { budget: 1, kind: name("job") }, "over_budget", 409),
            (Refusal::AlreadyPending { holder: holder.clone() }, "already_pending", 409),
            (Refusal::InUse { holder, token }, "in_use", 409),
            (Refusal::Exists, "exists", 409),
            (Refusal::OutOfBounds { what: "ttl_ms", given: 5, least: 10, most: 20 }, "out_of_bounds", 400),
        ];
        for (refusal, code, status) in cases {
            let problem = Problem::from_refusal(&refusal);
            assert_eq!((problem.code.as_str(), problem.status), (code, status), "{refusal}");
            assert_eq!(problem.detail, refusal.to_string());
            let json = serde_json::to_string(&problem).expect("a problem");
            assert_eq!(serde_json::from_str::<Problem>(&json).expect(&json), problem);
        }
    }

    #[test]
    fn a_refusal_has_the_fields_that_the_caller_needs() {
        let held = Refusal::Held { holder: name("w"), token: Token(7), retry_after_ms: 1_500 };
        let held = Problem::from(held).instance("/api/v1/scenes/s/lease");
        assert_eq!(held.retry_after_seconds(), Some(2));
        assert_eq!(
            serde_json::to_value(&held).expect("a problem"),
            json!({
                "type": "urn:solehold:problem:held", "title": "Held by another", "status": 409, "code": "held",
                "detail": "held by w with token 7, for another 1500 ms unless it is renewed", "instance": "/api/v1/scenes/s/lease",
                "retry_after_ms": 1500, "holder": "w", "token": 7,
            })
        );
        let bound =
            |given| Problem::from(Refusal::OutOfBounds { what: "ttl_ms", given, least: 10, most: 20 });
        assert_eq!(bound(5).limit, Some(Limit { name: "ttl_ms".into(), value: 10 }));
        assert_eq!(bound(50).limit, Some(Limit { name: "ttl_max".into(), value: 20 }), "as it is configured");
        let gone = held.as_not_found();
        assert_eq!((gone.status, gone.code, gone.token), (404, ErrorCode::Held, Some(7)));
    }

    #[test]
    fn faults_make_one_problem() {
        let fault = |field: &str| FieldError::new(field, "is empty");
        assert_eq!(Problem::invalid(vec![fault("a")]).detail, "a is empty");
        let many = Problem::from(vec![fault("a"), fault("b"), fault("c")]);
        assert_eq!((many.detail.as_str(), many.errors.len()), ("a is empty, and 2 more", 3));
    }
}
