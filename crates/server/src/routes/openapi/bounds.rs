//! What a request may say, as far as the types of the handlers do not tell: the bounds of texts, numbers and lists, and
//! which fields go together.
//!
//! The bounds are the constants that the code checks. A text of a request is a name unless [`text`] says otherwise, so
//! a field that is added later is bounded, too; the check of the whole surface (`scripts/check-surface`) finds the ones
//! that this is wrong for.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use solehold_api::limits::{
    BATCH_ITEMS_MAX, CAMERA_TTL, CAPACITY_MAX, CAPACITY_MIN, COORDINATE_MAX, KEY_EXPIRY_SECONDS_MAX,
    KEY_GRACE_SECONDS_MAX, KEY_SCOPES_MAX, LABEL_QUERY_BYTES_MAX, LABELS_MAX, OFFER_TTL,
    PAGE_CURSOR_BYTES_MAX, PAGE_SIZE_MAX, PLACEMENT_BAND_PERCENT_MAX, PLACEMENT_MOVES_MAX,
    PLACEMENT_WINDOW_MS_MAX, REASON_BYTES_MAX, RESOURCE_TTL, RUNNER_SESSION_TTL, SEALED_CURSOR_BYTES_MAX,
    SESSION_TTL, STATIC_RESOURCES_MAX, TtlBounds, URL_BYTES_MAX, WAIT_MS_MAX,
};
use solehold_core::limits::{
    ACQUIRED_TOGETHER_MAX, LOCK_DELAY_MS_MAX, NAME_BYTES_MAX, REVISION_MAX, SLOTS_MAX,
};

/// Any character of a name: all but control characters.
const NAME_CHARACTER: &str = r"[^\u0000-\u001F\u007F-\u009F]";
/// A UUID as it is usually written.
const UUID: &str = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";

/// Writes the bounds of all requests into a description.
pub fn describe(document: &mut Value) {
    let mut found = Vec::new();
    let mut bodies = Vec::new();
    for operation in operations(document) {
        let owner = operation["operationId"].as_str().unwrap_or_default().to_owned();
        for parameter in list(operation.get_mut("parameters")) {
            let name = parameter["name"].as_str().unwrap_or_default().to_owned();
            bound(&owner, &name, &mut parameter["schema"], &mut found);
        }
        for (_, content) in fields(operation.pointer_mut("/requestBody/content")) {
            bound(&owner, "body", &mut content["schema"], &mut found);
            bodies.push((owner.clone(), content["schema"].clone()));
        }
    }
    let mut seen = BTreeSet::new();
    while let Some(name) = found.pop() {
        if seen.insert(name.clone()) {
            bound(&name, "", &mut document["components"]["schemas"][&name], &mut found);
        }
    }
    let may_be_empty: BTreeSet<_> =
        bodies.iter().filter(|(_, body)| is_empty_enough(document, body)).map(|(owner, _)| owner).collect();
    for operation in operations(document) {
        let is_needed =
            !operation["operationId"].as_str().is_some_and(|id| may_be_empty.contains(&id.to_owned()));
        if let Some(body) = operation.get_mut("requestBody") {
            body["required"] = is_needed.into();
        }
    }
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let items = fields(document.get_mut("paths")).map(|(_, item)| item);
    items.flat_map(|item| fields(Some(item)).map(|(_, operation)| operation))
}

/// Whether nothing says what an empty object says: then the body may be left out.
fn is_empty_enough(document: &Value, body: &Value) -> bool {
    let named = body["$ref"].as_str().and_then(|to| document.pointer(to.trim_start_matches('#')));
    let body = named.unwrap_or(body);
    let parts = body["allOf"].as_array().into_iter().flatten();
    let is_free = body.get("required").is_none() && body.get("anyOf").is_none() && !is(body, "string");
    is_free && parts.into_iter().all(|part| is_empty_enough(document, part))
}

fn fields(value: Option<&mut Value>) -> impl Iterator<Item = (&String, &mut Value)> {
    value.and_then(Value::as_object_mut).into_iter().flatten()
}

fn list(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_array_mut).into_iter().flatten()
}

/// Writes the bounds of one schema; notes the schemas that it refers to. `owner` is the schema that has the field, or
/// the operation that has the parameter.
fn bound(owner: &str, field: &str, schema: &mut Value, found: &mut Vec<String>) {
    found.extend(schema["$ref"].as_str().and_then(|to| to.rsplit('/').next()).map(str::to_owned));
    if let Some(own) = special(owner, field) {
        replace(schema, own);
        return;
    }
    if schema["format"] == "uuid" {
        merge(schema, json!({"pattern": UUID}));
    } else if is_plain_text(schema) {
        merge(schema, text(owner, field));
    } else if is(schema, "integer") || is(schema, "number") {
        merge(schema, range(owner, field).unwrap_or_else(|| whole_range(schema)));
    } else if is(schema, "array") {
        merge(schema, count(field));
    } else if schema.get("properties").is_some() {
        merge(schema, together(schema));
    } else if field == "labels" {
        merge(schema, labels());
    }
    for choice in ["oneOf", "anyOf", "allOf"] {
        list(schema.get_mut(choice)).for_each(|part| bound(owner, field, part, found));
    }
    schema.get_mut("items").into_iter().for_each(|item| bound(owner, field, item, found));
    for (field, property) in fields(schema.get_mut("properties")) {
        bound(owner, field, property, found);
    }
}

fn is(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind || schema["type"].as_array().is_some_and(|kinds| kinds.contains(&kind.into()))
}

fn is_plain_text(schema: &Value) -> bool {
    let more = ["format", "enum", "pattern", "const"];
    is(schema, "string") && more.iter().all(|word| schema.get(word).is_none())
}

fn merge(schema: &mut Value, more: Value) {
    if let (Value::Object(schema), Value::Object(more)) = (schema, more) {
        schema.extend(more);
    }
}

/// Puts a schema in place of another, whose description stays.
fn replace(schema: &mut Value, own: Value) {
    let mut kept = Map::new();
    if let Some(about) = schema.get("description") {
        kept.insert("description".to_owned(), about.clone());
    }
    *schema = Value::Object(kept);
    merge(schema, own);
}

fn only(character: &str) -> String {
    format!("^{character}*$")
}

fn name() -> Value {
    json!({"minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": format!("^{NAME_CHARACTER}+$")})
}

fn text(owner: &str, field: &str) -> Value {
    let maybe_empty = json!({"maxLength": NAME_BYTES_MAX, "pattern": only(NAME_CHARACTER)});
    match (owner, field) {
        (_, "lease_id") => json!({"format": "uuid", "pattern": UUID}),
        (operation, "id") if operation.ends_with("_session") => json!({"format": "uuid", "pattern": UUID}),
        (_, "reason") => json!({"maxLength": REASON_BYTES_MAX}),
        (_, "rtsp_url") => json!({"maxLength": URL_BYTES_MAX}),
        (_, "sealed_cursor") => json!({"maxLength": SEALED_CURSOR_BYTES_MAX}),
        (_, "cursor") => json!({"minLength": 1, "maxLength": PAGE_CURSOR_BYTES_MAX, "pattern": "^[!-~]+$"}),
        (_, "from" | "known_set") => json!({"pattern": r"^[0-9]{1,19}\.[0-9]{1,19}$"}),
        (_, "label") => {
            let pair = r"[^\u0000-\u001F\u007F-\u009F,=]{1,255}=[^\u0000-\u001F\u007F-\u009F,]{0,255}";
            json!({"maxLength": LABEL_QUERY_BYTES_MAX, "pattern": format!("^({pair}(,{pair})*)?$")})
        }
        ("ZoneId", _) => {
            let mut id = name();
            merge(&mut id, json!({"not": {"const": "0"}}));
            id
        }
        // One that was declared as a resource may have any name.
        ("Camera", "camera_uuid" | "site_id") => maybe_empty,
        ("AcquireLease", "shard_id" | "tenant_id" | "site_id" | "config_version" | "zone_version") => {
            maybe_empty
        }
        _ => name(),
    }
}

/// The bounds of a number by the name of its field.
fn range(owner: &str, field: &str) -> Option<Value> {
    let between = |least: u64, most: u64| Some(json!({"minimum": least, "maximum": most}));
    let ms = |ttl: TtlBounds| between(ttl.least_ms, ttl.most_ms);
    let seconds = |ttl: TtlBounds| between(ttl.least_ms / 1_000, ttl.most_ms / 1_000);
    let ttl = match owner {
        "AcquireLease" | "RenewLease" => CAMERA_TTL,
        "OpenSession" => SESSION_TTL,
        "OfferResource" => OFFER_TTL,
        _ => RESOURCE_TTL,
    };
    match (owner, field) {
        (_, "ttl_ms") => ms(ttl),
        (_, "ttl_seconds") => seconds(ttl),
        (_, "session_ttl_seconds") => seconds(RUNNER_SESSION_TTL),
        (_, "wait_ms") => between(0, WAIT_MS_MAX),
        (_, "limit") => between(1, PAGE_SIZE_MAX as u64),
        (_, "slots") => between(1, SLOTS_MAX.into()),
        (_, "port" | "metrics_port") => between(1, u16::MAX.into()),
        (_, "capacity") => between(CAPACITY_MIN.into(), CAPACITY_MAX.into()),
        (_, "lock_delay_ms") => between(0, LOCK_DELAY_MS_MAX),
        ("ExpireKey", "expires_in_seconds") => between(0, KEY_EXPIRY_SECONDS_MAX),
        (_, "expires_in_seconds") => between(1, KEY_EXPIRY_SECONDS_MAX),
        (_, "grace_seconds") => between(0, KEY_GRACE_SECONDS_MAX),
        (_, "percent") => between(0, 100),
        (_, "band_percent") => between(1, PLACEMENT_BAND_PERCENT_MAX.into()),
        (_, "moves_at_once") => between(1, PLACEMENT_MOVES_MAX.into()),
        (_, "return_window_ms" | "settle_ms") => between(0, PLACEMENT_WINDOW_MS_MAX),
        (_, "above") => between(0, REVISION_MAX),
        // 0 stands for the whole frame.
        ("ZoneId", _) => between(1, u64::MAX),
        (_, "min_score" | "iou_threshold" | "downscale") => between(0, 1),
        _ => None,
    }
}

/// The bounds of a whole number that has no others: those of its type.
fn whole_range(schema: &Value) -> Value {
    let is_unsigned = schema["minimum"] == 0;
    match schema["format"].as_str() {
        Some("int64") if is_unsigned => json!({"format": "uint64", "maximum": u64::MAX}),
        Some("int64") => json!({"minimum": i64::MIN, "maximum": i64::MAX}),
        Some("int32") if is_unsigned => json!({"maximum": u32::MAX}),
        _ => json!({}),
    }
}

/// The schema of a field that cannot be derived at all.
fn special(owner: &str, field: &str) -> Option<Value> {
    match (owner, field) {
        // A camera's id is left out only where the path has it.
        ("create_camera" | "put_camera" | "put_site_camera", "body") => {
            let camera = json!({"$ref": "#/components/schemas/Camera"});
            if owner != "create_camera" {
                return Some(camera);
            }
            let id = json!({"properties": {"camera_uuid": name()}, "required": ["camera_uuid"]});
            Some(json!({"allOf": [camera, id]}))
        }
        ("PutRunnerStatus", "status") => {
            Some(json!({"type": "string", "enum": ["active", "draining", "drain", "maintenance"]}))
        }
        ("list_leases", "status") => {
            let words = ["pending", "active", "expired", "released", "revoked"];
            Some(json!({"type": "string", "enum": words}))
        }
        ("PlacementSettings", "static_lists") => Some(static_lists()),
        ("PutPlacement", "static_lists") => Some(json!({"oneOf": [{"type": "null"}, static_lists()]})),
        ("Zone", "kind") => Some(json!({"type": ["string", "null"], "enum": ["include", "exclude", null]})),
        ("Zone", "polygon") => {
            let number = json!({"type": "number", "minimum": -COORDINATE_MAX, "maximum": COORDINATE_MAX});
            let point = json!({"type": "array", "items": number, "minItems": 2, "maxItems": 2});
            Some(json!({"type": "array", "items": point, "minItems": 3}))
        }
        _ => None,
    }
}

fn count(field: &str) -> Value {
    match field {
        "items" => json!({"maxItems": BATCH_ITEMS_MAX}),
        "capabilities" | "kinds" | "unplaced_kinds" => json!({"maxItems": LABELS_MAX}),
        "only" => json!({"maxItems": KEY_SCOPES_MAX}),
        _ => json!({}),
    }
}

/// Lists of `kind/key` by runner; they are bounded together, too.
fn static_lists() -> Value {
    let part = r"[^\u0000-\u001F\u007F-\u009F/]{1,60}";
    let resource = json!({"type": "string", "pattern": format!("^{part}/{part}$")});
    let most = STATIC_RESOURCES_MAX / 10;
    let list = json!({"type": "array", "maxItems": most, "items": resource});
    json!({"type": "object", "maxProperties": 10, "propertyNames": name(), "additionalProperties": list})
}

fn labels() -> Value {
    let value = json!({"type": "string", "maxLength": NAME_BYTES_MAX, "pattern": only(NAME_CHARACTER)});
    json!({"maxProperties": LABELS_MAX, "propertyNames": name(), "additionalProperties": value})
}

/// Fields of an object that exclude or require each other.
fn together(schema: &Value) -> Value {
    let has = |fields: &[&str]| fields.iter().all(|field| schema["properties"].get(field).is_some());
    let given = |field: &str| json!({"required": [field], "properties": {field: {"not": {"type": "null"}}}});
    let absent = |field: &str| json!({"properties": {field: {"type": "null"}}});
    let mut rules = Map::new();
    if has(&["ttl_ms", "ttl_seconds"]) {
        rules.insert("not".to_owned(), json!({"allOf": [given("ttl_ms"), given("ttl_seconds")]}));
    }
    // A key of an administrator is not limited.
    if has(&["role", "only"]) {
        let limited = json!({"properties": {"only": {"minItems": 1}}, "required": ["only"]});
        let rule = json!({"allOf": [{"properties": {"role": {"const": "admin"}}}, limited, given("only")]});
        rules.insert("not".to_owned(), rule);
    }
    if has(&["items", "all_or_none"]) {
        let one_by_one = json!({"properties": {"all_or_none": {"const": false}}});
        let few = json!({"properties": {"items": {"maxItems": ACQUIRED_TOGETHER_MAX}}});
        rules.insert("anyOf".to_owned(), json!([one_by_one, few]));
    }
    // An item of a batch names its lease by its id, or else by what it is on.
    if has(&["kind", "key", "lease_id"]) {
        let by_id = json!({"allOf": [given("lease_id"), absent("kind"), absent("key")]});
        let by_key = json!({"allOf": [given("kind"), given("key"), absent("lease_id")]});
        rules.insert("oneOf".to_owned(), json!([by_id, by_key]));
    } else if has(&["token", "lease_id", "session_id"]) && !has(&["fenced"]) && !has(&["runner_id", "reason"])
    {
        // A holder's name alone is no proof; a revocation needs none, nor does the report of a failure.
        rules.insert("anyOf".to_owned(), json!(["token", "lease_id", "session_id"].map(given)));
    }
    Value::Object(rules)
}
