//! The OpenAPI document, derived from the handlers.

mod bounds;
pub mod problems;

use serde_json::{Value, json};
use solehold_api::{leases::Envelope, problem::Problem};
use utoipa::{
    OpenApi as _,
    openapi::{
        Components, Info, OpenApi, RefOr,
        path::{Operation, PathItem},
        schema::{AllOf, AnyOf, Array, Object, OneOf, Schema, Type},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(Problem, Envelope)))]
struct Common;

/// What the description says beside the routes: what it is, how to show a key, how errors look.
pub fn frame() -> OpenApi {
    let mut frame = Common::openapi();
    frame.info = Info::new("Solehold", env!("CARGO_PKG_VERSION"));
    frame.info.description = Some(
        "Leases with fencing tokens: every piece of work has exactly one owner.\n\nBodies are JSON whatever their \
         Content-Type. A trailing slash is allowed. A slash within a name is `%2F`. Every error is a problem document \
         (RFC 9457) with a `code`, the path as `instance`, and the `request_id` that is also in `X-Request-Id`; on the \
         paths of single leases the same fields come within an envelope. A key is shown as `Authorization: Bearer \
         <key>`, `Authorization: Token <key>` or `X-API-Key: <key>`. Without any key in the store, and on loopback only, \
         no key is needed."
            .to_owned(),
    );
    let components = frame.components.get_or_insert_with(Components::new);
    problems::define(components);
    components.add_security_scheme(
        "bearer",
        SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build()),
    );
    let header = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
    components.add_security_scheme("key", SecurityScheme::ApiKey(header));
    frame.security = Some(["bearer", "key"].map(|name| SecurityRequirement::new(name, [""; 0])).into());
    frame
}

/// The whole document, from the one that was derived from the handlers.
pub fn document(mut document: OpenApi) -> Value {
    for (name, schema) in document.components.iter_mut().flat_map(|c| &mut c.schemas) {
        let RefOr::T(schema) = schema else { continue };
        leave_examples_out(schema);
        if let (Schema::Object(problem), "Problem") = (schema, name.as_str()) {
            let id = Object::builder().schema_type(Type::String).description(Some("As in `X-Request-Id`."));
            problem.properties.insert("request_id".to_owned(), id.into());
        }
    }
    let mut document =
        serde_json::to_value(document).expect("keys are strings and numbers finite, so it is JSON");
    bounds::describe(&mut document);
    describe_stream(&mut document["components"]["schemas"]["WatchFrame"]);
    document
}

/// In a stream of events, what a frame says is a line of text, which is JSON.
fn describe_stream(frame: &mut Value) {
    for kind in frame["oneOf"].as_array_mut().into_iter().flatten() {
        let data = kind["properties"]["data"].take();
        kind["properties"]["data"] =
            json!({"type": "string", "contentMediaType": "application/json", "contentSchema": data});
        kind["properties"]["id"] = json!({"type": "string", "description": "The cursor to resume from."});
    }
}

/// Removes examples in Rust, which are for readers of the code.
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

pub fn operations(item: &mut PathItem) -> [Option<&mut Operation>; 5] {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get.as_mut(), put.as_mut(), post.as_mut(), delete.as_mut(), patch.as_mut()]
}
