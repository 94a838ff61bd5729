//! The surface's own description: OpenAPI, made from the handlers, and the same for people to read.

mod markdown;

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use solehold_api::{paths, problem::Problem};
use utoipa::{
    OpenApi as _,
    openapi::{
        Components, Content, Info, OpenApi, Ref, RefOr, ResponseBuilder, Responses,
        path::{Operation, PathItem},
        schema::{AllOf, AnyOf, Array, Object, OneOf, Schema, Type},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::Context;

pub fn routes() -> OpenApiRouter<Context> {
    OpenApiRouter::new().routes(routes!(get_document))
}

#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(Problem)))]
struct Common;

/// What the description says beside the routes: what it is, how to show a key, how errors look.
pub fn frame() -> OpenApi {
    let mut frame = Common::openapi();
    frame.info = Info::new("Solehold", env!("CARGO_PKG_VERSION"));
    frame.info.description = Some(
        "Leases with fencing tokens: every piece of work has exactly one owner.\n\nBodies are JSON whatever their \
         Content-Type. A trailing slash is allowed. A slash within a name is `%2F`. Every error is a problem document \
         (RFC 9457) with a `code`, the path as `instance`, and the `request_id` that is also in `X-Request-Id`. Without \
         any key in the store, and on loopback only, no key is needed."
            .to_owned(),
    );
    let components = frame.components.get_or_insert_with(Components::new);
    components.add_security_scheme(
        "bearer",
        SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build()),
    );
    let header = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
    components.add_security_scheme("key", SecurityScheme::ApiKey(header));
    frame.security = Some(["bearer", "key"].map(|name| SecurityRequirement::new(name, [""; 0])).into());
    frame
}

/// The whole description.
fn document() -> OpenApi {
    let mut document = super::all().into_openapi();
    for item in document.paths.paths.values_mut() {
        operations(item).into_iter().flatten().for_each(add_problems);
    }
    for (name, schema) in document.components.iter_mut().flat_map(|c| &mut c.schemas) {
        let RefOr::T(schema) = schema else { continue };
        leave_examples_out(schema);
        if let (Schema::Object(problem), "Problem") = (schema, name.as_str()) {
            let id = Object::builder().schema_type(Type::String).description(Some("As in `X-Request-Id`."));
            problem.properties.insert("request_id".to_owned(), id.into());
        }
    }
    document
}

/// Examples in Rust are for those who read the code.
fn leave_examples_out(schema: &mut Schema) {
    let description = match schema {
        Schema::Object(Object { description, .. })
        | Schema::Array(Array { description, .. })
        | Schema::OneOf(OneOf { description, .. })
        | Schema::AllOf(AllOf { description, .. })
        | Schema::AnyOf(AnyOf { description, .. }) => description,
        _ => return,
    };
    if let Some((words, _)) = description.as_ref().and_then(|text| text.split_once("```")) {
        *description = Some(words.trim_end().to_owned());
    }
}

fn operations(item: &mut PathItem) -> [Option<&mut Operation>; 5] {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get.as_mut(), put.as_mut(), post.as_mut(), delete.as_mut(), patch.as_mut()]
}

/// Every operation may fail in ways that are the same for all.
fn add_problems(operation: &mut Operation) {
    let content = Content::new(Some(Ref::from_schema_name("Problem")));
    let problem = ResponseBuilder::new()
        .description("Anything else is a problem document")
        .content("application/problem+json", content)
        .build();
    let Responses { responses, .. } = &mut operation.responses;
    responses.entry("default".to_owned()).or_insert(RefOr::T(problem));
}

/// The OpenAPI document of everything that is served, as JSON.
pub fn openapi_json() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let text = document().to_pretty_json();
        text.expect("keys are strings and numbers finite, so it is JSON") + "\n"
    });
    &TEXT
}

/// The same for people to read, as Markdown.
pub fn openapi_markdown() -> String {
    let document = serde_json::from_str(openapi_json()).expect("it was JSON when it was written");
    markdown::render(&document)
}

/// This description.
#[utoipa::path(
    get, path = paths::OPENAPI, tag = "operating", operation_id = "openapi", security(()),
    responses((status = 200, description = "The OpenAPI document", body = String, content_type = "application/json"))
)]
async fn get_document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi_json()).into_response()
}
