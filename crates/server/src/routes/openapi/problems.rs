//! How operations fail: one list for all of them, and one body for what an operation says of itself.

use utoipa::openapi::{
    Components, Content, Ref, RefOr, Response, ResponseBuilder,
    path::{Operation, Parameter, ParameterIn},
};

use crate::http::Admission;

/// A problem that many operations may answer with.
struct CommonProblem {
    status: &'static str,
    name: &'static str,
    description: &'static str,
    /// Whether an operation may answer with it, and whether it needs a key.
    applies: fn(&Operation, bool) -> bool,
    /// Whether it comes from the handler, and so in the form in which that answers.
    is_handlers: bool,
}

const COMMON: [CommonProblem; 4] = [
    CommonProblem {
        status: "400",
        name: "Invalid",
        description: "The body, a name or a parameter is wrong; `errors` lists every wrong field by its path",
        applies: |operation, _| operation.request_body.is_some() || operation.parameters.is_some(),
        is_handlers: true,
    },
    CommonProblem {
        status: "401",
        name: "Unauthorized",
        description: "The request has no key, or one that is unknown, expired or revoked",
        applies: |_, is_keyed| is_keyed,
        is_handlers: false,
    },
    CommonProblem {
        status: "403",
        name: "Forbidden",
        description: "The role or the tenant of the key does not allow it, or the tenant's quota is used up",
        applies: |_, is_keyed| is_keyed,
        is_handlers: true,
    },
    CommonProblem {
        status: "404",
        name: "NotFound",
        description: "What the path names does not exist, or belongs to another tenant than the key",
        applies: |operation, _| operation.parameters.iter().flatten().any(is_in_path),
        is_handlers: true,
    },
];

fn is_in_path(parameter: &RefOr<Parameter>) -> bool {
    matches!(parameter, RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Path)
}

/// Defines the common problems, for operations to refer to.
pub fn define(components: &mut Components) {
    for common in COMMON {
        let response = response(common.description, ("Problem", "application/problem+json"));
        components.responses.insert(common.name.to_owned(), RefOr::T(response));
    }
}

/// Adds to an operation what it does not say of itself: the common problems, and the body of every problem.
pub fn describe<A: Admission>(operation: &mut Operation) {
    let is_enveloped = A::REFUSAL.0 != "Problem";
    for common in COMMON {
        if !(common.applies)(operation, A::ROLE.is_some()) {
            continue;
        }
        let problem = match common.is_handlers && is_enveloped {
            true => RefOr::T(response(common.description, A::REFUSAL)),
            false => RefOr::Ref(Ref::from_response_name(common.name)),
        };
        operation.responses.responses.entry(common.status.to_owned()).or_insert(problem);
    }
    for (status, answer) in &mut operation.responses.responses {
        if let RefOr::T(answer) = answer
            && status.as_str() >= "400"
            && answer.content.is_empty()
        {
            *answer = response(&answer.description, A::REFUSAL);
        }
    }
    let other = response("Anything else is a problem document", ("Problem", "application/problem+json"));
    operation.responses.responses.entry("default".to_owned()).or_insert(RefOr::T(other));
}

fn response(description: &str, (schema, content_type): (&str, &str)) -> Response {
    let content = Content::new(Some(Ref::from_schema_name(schema)));
    ResponseBuilder::new().description(description).content(content_type, content).build()
}
