//! How operations fail: one list for all of them, and one body for what an operation says of itself.

use solehold_api::leases::ENVELOPED;
use utoipa::openapi::{
    Components, Content, Ref, RefOr, Response, ResponseBuilder,
    path::{Operation, Parameter, ParameterIn},
};

/// A problem that many operations may answer with.
struct CommonProblem {
    status: &'static str,
    name: &'static str,
    description: &'static str,
    /// Whether an operation may answer with it, and whether it needs a key.
    applies: fn(&Operation, bool) -> bool,
}

const COMMON: [CommonProblem; 8] = [
    CommonProblem {
        status: "400",
        name: "Invalid",
        description: "The body, a name or a parameter is wrong; `errors` lists every wrong field by its path",
        applies: |operation, _| operation.request_body.is_some() || operation.parameters.is_some(),
    },
    CommonProblem {
        status: "401",
        name: "Unauthorized",
        description: "The request has no key, or one that is unknown, expired or revoked",
        applies: |_, is_keyed| is_keyed,
    },
    CommonProblem {
        status: "403",
        name: "Forbidden",
        description: "The role, the tenant or the limits of the key do not allow it, it belongs to another key, or the tenant's quota is used up",
        applies: |_, is_keyed| is_keyed,
    },
    CommonProblem {
        status: "404",
        name: "NotFound",
        description: "What the path names does not exist, or belongs to another tenant than the key",
        applies: |operation, _| operation.parameters.iter().flatten().any(is_in_path),
    },
    CommonProblem {
        status: "408",
        name: "RequestTimeout",
        description: "The body did not arrive within `request_timeout`; nothing was done",
        applies: |operation, _| operation.request_body.is_some(),
    },
    CommonProblem {
        status: "413",
        name: "PayloadTooLarge",
        description: "The body is larger than allowed, which `limit` names",
        applies: |operation, _| operation.request_body.is_some(),
    },
    CommonProblem {
        status: "429",
        name: "TooManyRequests",
        description: "The caller asks too often; `Retry-After` says when to ask again",
        applies: |_, is_keyed| is_keyed,
    },
    CommonProblem {
        status: "503",
        name: "Unavailable",
        description: "The store does not answer or has too much to do; `code` says whether anything was done",
        applies: |_, is_keyed| is_keyed,
    },
];

fn is_in_path(parameter: &RefOr<Parameter>) -> bool {
    matches!(parameter, RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Path)
}

/// In which form an operation fails: its schema, its content type, and what the names of such responses end with.
struct Form {
    schema: &'static str,
    content_type: &'static str,
    suffix: &'static str,
}

const PROBLEM: Form = Form { schema: "Problem", content_type: "application/problem+json", suffix: "" };
const ENVELOPE: Form = Form { schema: "Envelope", content_type: "application/json", suffix: "InEnvelope" };

impl Form {
    fn response(&self, description: &str) -> Response {
        let content = Content::new(Some(Ref::from_schema_name(self.schema)));
        ResponseBuilder::new().description(description).content(self.content_type, content).build()
    }

    fn name(&self, common: &CommonProblem) -> String {
        format!("{}{}", common.name, self.suffix)
    }
}

/// Defines the common problems in both forms, for operations to refer to.
pub fn define(components: &mut Components) {
    for form in [PROBLEM, ENVELOPE] {
        for common in &COMMON {
            components.responses.insert(form.name(common), RefOr::T(form.response(common.description)));
        }
    }
}

/// Adds to an operation what it does not say of itself: the common problems, and the body of every problem.
pub fn describe(path: &str, operation: &mut Operation, is_keyed: bool) {
    let form = if ENVELOPED.contains(&path) { ENVELOPE } else { PROBLEM };
    for common in &COMMON {
        if !(common.applies)(operation, is_keyed) {
            continue;
        }
        let problem = RefOr::Ref(Ref::from_response_name(form.name(common)));
        operation.responses.responses.entry(common.status.to_owned()).or_insert(problem);
    }
    for (status, answer) in &mut operation.responses.responses {
        if let RefOr::T(answer) = answer
            && status.as_str() >= "400"
            && answer.content.is_empty()
        {
            *answer = form.response(&answer.description);
        }
    }
    let other = RefOr::T(form.response("Anything else is a problem, too"));
    operation.responses.responses.entry("default".to_owned()).or_insert(other);
}
