//! An OpenAPI document for people to read: `docs/api.md`.

use std::{collections::BTreeMap, fmt::Write, sync::LazyLock};

use serde_json::{Map, Value};
use solehold_api::problem::ErrorCode;

/// The pattern of a name in the document.
const NAME: &str = r"^[^\u0000-\u001F\u007F-\u009F]+$";
/// The suffix of responses that have the problem within an envelope.
const IN_ENVELOPE: &str = "InEnvelope";
/// The methods, in the order in which they are listed.
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// How to show a key, and what the words of the page mean.
const WORDS: &str = "## Keys

A request shows its key in one of these headers:

```text
Authorization: Bearer <key>
Authorization: Token <key>
X-API-Key: <key>
```

Each operation below says which role the key needs: `reader`, `runner` or `admin`, each of which may do what those
before it may. A key can be limited to one tenant.

A *name* is 1 to 255 bytes of UTF-8 without control characters.";

/// Renders a document: the calls, keys, each operation by surface with an example, the problems, then the schemas.
/// Examples are named by the method and the path of their call.
pub fn render(document: &Value, calls: &str, examples: &BTreeMap<String, String>) -> String {
    let mut page = Page { document, examples, text: String::new() };
    page.line(&format!("# {} API {}", text(&document["info"]["title"]), text(&document["info"]["version"])));
    page.line("<!-- Made from the code: make reference -->");
    page.line(text(&document["info"]["description"]));
    page.line(calls);
    page.line(WORDS);
    for tag in page.tags() {
        page.surface(&tag);
    }
    page.common_problems();
    page.line("## Schemas");
    for (name, schema) in object(&document["components"]["schemas"]) {
        page.schema(name, schema);
    }
    page.text
}

struct Page<'a> {
    document: &'a Value,
    examples: &'a BTreeMap<String, String>,
    text: String,
}

struct Operation<'a> {
    method: &'a str,
    path: &'a str,
    what: &'a Value,
}

impl Page<'_> {
    /// A block, and an empty line after it.
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push_str("\n\n");
    }

    fn operations(&self) -> Vec<Operation<'_>> {
        let mut operations = Vec::new();
        for (path, item) in object(&self.document["paths"]) {
            let of_path = METHODS.iter().filter_map(|method| Some((*method, item.get(method)?)));
            operations.extend(of_path.map(|(method, what)| Operation { method, path, what }));
        }
        operations
    }

    fn tags(&self) -> Vec<String> {
        let mut tags: Vec<String> =
            self.operations().iter().map(|o| text(&o.what["tags"][0]).to_owned()).collect();
        tags.sort();
        tags.dedup();
        tags
    }

    fn surface(&mut self, tag: &str) {
        let of_tag = |page: &Self| {
            let operations = page.operations().into_iter().filter(|o| text(&o.what["tags"][0]) == tag);
            let with_example = |operation: Operation| {
                let example = page.example(&operation);
                format!("{}\n{example}\n", describe(operation))
            };
            operations.map(with_example).collect::<Vec<_>>()
        };
        let mut name = tag.to_owned();
        name[..1].make_ascii_uppercase();
        let blocks = of_tag(self);
        self.line(&format!("## {name}"));
        blocks.iter().for_each(|block| self.line(block));
    }

    /// The example of an operation. Where two paths fit a call, as `/cameras/{id}` and `/cameras/available`, it is of
    /// the one that has it word for word.
    fn example(&self, operation: &Operation<'_>) -> &str {
        let is_literal = |call: &str| object(&self.document["paths"]).contains_key(call);
        let fits = |call: &str| {
            let Some((method, path)) = call.split_once(' ') else { return false };
            let mut parts = operation.path.split('/').zip(path.split('/'));
            let has_as_many = operation.path.split('/').count() == path.split('/').count();
            let is_same = parts.all(|(wanted, part)| wanted == part || wanted.starts_with('{'));
            let is_own = operation.path == path || !is_literal(path);
            method.eq_ignore_ascii_case(operation.method) && has_as_many && is_same && is_own
        };
        let found = self.examples.iter().find(|(call, _)| fits(call));
        let name = || format!("{} {}", operation.method.to_uppercase(), operation.path);
        let found = found.unwrap_or_else(|| panic!("support/calls.txt has no call of {}", name()));
        found.1
    }

    /// The answers to which operations refer, once for all of them.
    fn common_problems(&mut self) {
        let mut list = String::new();
        let common = object(&self.document["components"]["responses"]);
        for (name, answer) in common.iter().filter(|(name, _)| !name.ends_with(IN_ENVELOPE)) {
            let _ = writeln!(list, "- {name}: {}", one_line(text(&answer["description"])));
        }
        self.line("## Common problems");
        self.line("Operations answer with these beside the problems that they list themselves.");
        self.line(&list);
        self.line("## Error codes");
        self.line("The `code` of a problem is what programs look at; each has its one status.");
        let row = |code: &ErrorCode| format!("| `{code}` | {} | {} |\n", code.status(), code.title());
        let rows: String = ErrorCode::ALL.iter().map(row).collect();
        self.line(&format!("| code | status | |\n|---|---|---|\n{rows}"));
    }

    fn schema(&mut self, name: &str, schema: &Value) {
        self.line(&format!("### {name}"));
        if let Some(description) = schema["description"].as_str() {
            self.line(description);
        }
        if let Some(words) = schema["enum"].as_array() {
            let words: Vec<_> = words.iter().map(|word| format!("`{}`", text(word))).collect();
            self.line(&words.join(", "));
        }
        let mut found = Vec::new();
        parts(self.document, schema, &mut found);
        let fields = fields_table(&found);
        if !fields.is_empty() {
            self.line(&fields);
        }
        for part in found {
            if let Some(choices) = part["oneOf"].as_array().filter(|choices| choices.iter().all(is_named)) {
                let choices: Vec<_> = choices.iter().map(kind).collect();
                let also = if fields.is_empty() { "The fields" } else { "Also the fields" };
                self.line(&format!("{also} of {}.", choices.join(" or ")));
            }
        }
    }
}

/// The schemas that a schema is put together from: itself, and all of `allOf`, whether named or not.
fn parts<'a>(document: &'a Value, schema: &'a Value, found: &mut Vec<&'a Value>) {
    let named = schema["$ref"].as_str().and_then(|to| document.pointer(to.trim_start_matches('#')));
    let schema = named.unwrap_or(schema);
    found.push(schema);
    for part in schema["allOf"].as_array().into_iter().flatten() {
        parts(document, part, found);
    }
}

fn describe(operation: Operation<'_>) -> String {
    let Operation { method, path, what } = operation;
    let mut block = format!("### `{} {path}`\n\n", method.to_uppercase());
    let words = [text(&what["summary"]), text(&what["description"])];
    for words in words.into_iter().filter(|words| !words.is_empty()) {
        let _ = writeln!(block, "{words}\n");
    }
    for parameter in what["parameters"].as_array().into_iter().flatten() {
        let name = text(&parameter["name"]);
        let place = text(&parameter["in"]);
        let about = one_line(text(&parameter["description"]));
        let _ = writeln!(block, "- {place} `{name}`: {}{}", kind(&parameter["schema"]), after(", ", &about));
    }
    if let Some(role) = what["security"][0]["bearer"][0].as_str() {
        let _ = writeln!(block, "- role `{role}`");
    }
    for (content, body) in object(&what["requestBody"]["content"]) {
        let _ = writeln!(block, "- body `{content}`: {}", kind(&body["schema"]));
    }
    let is_own = |(status, answer): &(&String, &Value)| *status != "default" && answer["$ref"].is_null();
    for (status, answer) in object(&what["responses"]).iter().filter(is_own) {
        let bodies: Vec<_> = object(&answer["content"]).values().map(|body| kind(&body["schema"])).collect();
        let about = one_line(text(&answer["description"]));
        let _ = writeln!(block, "- answers {status}: {about}{}", after(", ", &bodies.join(", ")));
    }
    block
}

fn is_named(schema: &Value) -> bool {
    schema["$ref"].is_string()
}

/// A table of the fields of an object, those of its parts included.
fn fields_table(parts: &[&Value]) -> String {
    let mut rows = String::new();
    for part in parts {
        let required: Vec<_> = part["required"].as_array().into_iter().flatten().map(text).collect();
        for (name, field) in object(&part["properties"]) {
            let needed = if required.contains(&name.as_str()) { "yes" } else { "" };
            let about = one_line(text(&field["description"]));
            let _ = writeln!(rows, "| `{name}` | {} | {needed} | {about} |", kind(field));
        }
    }
    if rows.is_empty() { rows } else { format!("| field | type | always | |\n|---|---|---|---|\n{rows}") }
}

/// What a schema says a value is, in a few words.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or(name);
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(content) = schema.get("contentSchema") {
        return format!("text: {} as JSON", kind(content));
    }
    for (choice, word) in [("oneOf", " or "), ("anyOf", " or "), ("allOf", " and ")] {
        if let Some(kinds) = schema[choice].as_array() {
            return kinds.iter().map(kind).collect::<Vec<_>>().join(word);
        }
    }
    let of_type = |one: &str| match one {
        "array" => format!("list of {}", kind(&schema["items"])),
        "string" if schema["pattern"] == NAME => "name".to_owned(),
        "string" if schema["enum"].is_array() => {
            let words = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
            words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
        }
        one => one.to_owned(),
    };
    let types = match &schema["type"] {
        Value::String(one) => of_type(one),
        Value::Array(several) => several.iter().map(text).map(of_type).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    };
    types + &extent(schema)
}

/// The format of a value, or its bounds if they are narrower than those of its type.
fn extent(schema: &Value) -> String {
    let least = &schema["minimum"];
    let most = &schema["maximum"];
    if most.as_u64().is_some_and(|most| most < i64::MAX.unsigned_abs()) && !least.is_null() {
        return format!(", {least} to {most}");
    }
    schema["format"].as_str().map(|format| format!(" ({format})")).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn object(value: &Value) -> &Map<String, Value> {
    static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    value.as_object().unwrap_or(&NONE)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn after(separator: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{separator}{text}") }
}
