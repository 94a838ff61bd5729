//! Documents from a file or a URL: JSON lists, Django fixtures, CSV, and lists of a REST API page by page.

use std::{collections::BTreeSet, env, fs, path::Path};

use serde_json::{Map, Value};
use solehold_api::problem::ErrorCode;
use solehold_client::{
    HttpError,
    pool::Response,
    transport::{self, Url, root_cause},
};

use crate::{
    client::ServerArgs,
    error::{CommandError, CommandResult},
};

/// The variable with the value of the Authorization header, such as `Token 1234` or `Bearer 1234`.
pub const AUTHORIZATION: &str = "SOLEHOLD_IMPORT_AUTHORIZATION";
/// Bounds of what is read: a list that never ends must not fill the memory.
const BYTES_MAX: usize = 64 * 1024 * 1024;
const PAGES_MAX: usize = 10_000;
const ITEMS_MAX: usize = 100_000;
/// The names that a list may be wrapped by.
const WRAPPERS: [&str; 4] = ["results", "cameras", "zones", "scenes"];

/// One object of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Where it was found, for messages: the file, and the line or the index.
    pub at: String,
    /// The model of a Django fixture, without its application.
    pub model: Option<String>,
    pub fields: Map<String, Value>,
}

/// All objects of all sources.
pub async fn read_all(sources: &[String], server: &ServerArgs) -> CommandResult<Vec<Item>> {
    let mut items = Vec::new();
    for source in sources {
        if source.starts_with("http://") || source.starts_with("https://") {
            items.extend(fetch(source, server).await?);
        } else {
            items.extend(open(Path::new(source))?);
        }
        if items.len() > ITEMS_MAX {
            return Err(CommandError::usage(format!("{source}: more than {ITEMS_MAX} objects at once")));
        }
    }
    Ok(items)
}

fn open(path: &Path) -> CommandResult<Vec<Item>> {
    let odd = |why: &dyn std::fmt::Display| CommandError::usage(format!("{}: {why}", path.display()));
    let bytes = fs::metadata(path).map_err(|error| odd(&error))?.len();
    if bytes > BYTES_MAX as u64 {
        return Err(odd(&format!("the file has {bytes} bytes; at most {BYTES_MAX} are read")));
    }
    let text = fs::read_to_string(path).map_err(|error| odd(&error))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
        return csv_items(&name, &text).map_err(|why| odd(&why));
    }
    let list = serde_json::from_str(&text).map_err(|error| odd(&format!("not JSON: {error}")))?;
    let (items, next) = page(list).map_err(|why| odd(&why))?;
    if next.is_some() {
        return Err(odd(&"this is one page of several; give the URL of the list instead"));
    }
    items_of(&name, items).map_err(|why| odd(&why))
}

/// The rows of a CSV file with a line of headings. A cell that is JSON is taken as that; an empty one is left out.
fn csv_items(name: &str, text: &str) -> Result<Vec<Item>, String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let headings = reader.headers().map_err(|error| error.to_string())?.clone();
    let mut items = Vec::new();
    for row in reader.records() {
        let row = row.map_err(|error| error.to_string())?;
        let line = row.position().map_or(0, csv::Position::line);
        let cells = headings.iter().zip(&row).filter(|(_, cell)| !cell.is_empty());
        let fields = cells.map(|(heading, cell)| (heading.to_owned(), cell_value(heading, cell))).collect();
        items.push(Item { at: format!("{name} line {line}"), model: None, fields });
    }
    Ok(items)
}

/// Ids and names stay text, whatever they look like.
fn cell_value(heading: &str, cell: &str) -> Value {
    let is_text =
        heading.ends_with("_id") && heading != "zone_id" || ["name", "camera_uuid"].contains(&heading);
    let text = || Value::String(cell.to_owned());
    if is_text { text() } else { serde_json::from_str(cell).unwrap_or_else(|_| text()) }
}

/// The objects of a list, bare or as a page, and where the next page is.
fn page(list: Value) -> Result<(Vec<Value>, Option<String>), String> {
    let mut fields = match list {
        Value::Array(items) => return Ok((items, None)),
        Value::Object(fields) => fields,
        _ => return Err("neither a list nor a page with results".to_owned()),
    };
    let next = fields.get("next").and_then(Value::as_str).map(str::to_owned);
    for name in WRAPPERS {
        if let Some(Value::Array(items)) = fields.remove(name) {
            return Ok((items, next));
        }
    }
    Err("neither a list nor a page with results".to_owned())
}

fn items_of(name: &str, items: Vec<Value>) -> Result<Vec<Item>, String> {
    let item = |(index, item): (usize, Value)| {
        let at = format!("{name}[{index}]");
        let Value::Object(mut fields) = item else { return Err(format!("{at} is not an object")) };
        let model = fields.get("model").and_then(Value::as_str).map(str::to_owned);
        let model = model.filter(|_| fields.get("fields").is_some_and(Value::is_object));
        let Some(model) = model else { return Ok(Item { at, model: None, fields: without_nulls(fields) }) };
        let pk = fields.remove("pk");
        let Some(Value::Object(mut inner)) = fields.remove("fields") else { unreachable!("it is an object") };
        if let Some(pk) = pk {
            inner.insert("pk".to_owned(), pk);
        }
        let model = model.rsplit('.').next().unwrap_or(&model).to_lowercase();
        Ok(Item { at, model: Some(model), fields: without_nulls(inner) })
    };
    items.into_iter().enumerate().map(item).collect()
}

/// A field that is null says nothing.
fn without_nulls(fields: Map<String, Value>) -> Map<String, Value> {
    fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

/// The objects of a list of a REST API, page by page.
async fn fetch(source: &str, server: &ServerArgs) -> CommandResult<Vec<Item>> {
    let odd = |why: &dyn std::fmt::Display| CommandError::usage(format!("{source}: {why}"));
    let first = Url::parse(source).map_err(|error| odd(&error))?;
    if !first.username().is_empty() || first.password().is_some() {
        let message = format!("the URL has a password in it; set {AUTHORIZATION} instead");
        return Err(CommandError::usage(message));
    }
    let builder = transport::builder(std::slice::from_ref(&first), None, server.ca_certs()?.as_deref());
    let client =
        builder.and_then(|builder| builder.build().map_err(|error| HttpError::Tls(root_cause(&error))));
    let client = client.map_err(|error| CommandError::broken(error.to_string()))?;
    let authorization = env::var(AUTHORIZATION).ok().filter(|value| !value.is_empty());
    let timeout = server.timeout()?;
    let mut seen = BTreeSet::new();
    let mut url = first.clone();
    let mut items = Vec::new();
    loop {
        if !seen.insert(url.to_string()) || seen.len() > PAGES_MAX {
            return Err(odd(&format!("page {} comes again, or there are more than {PAGES_MAX}", seen.len())));
        }
        let mut request = client.get(url.clone()).timeout(timeout).header("Accept", "application/json");
        if let Some(authorization) = &authorization {
            request = request.header("Authorization", authorization);
        }
        let answer = request.send().await.map_err(|error| away(&url, &error))?;
        let list = json_of(answer, &url).await?;
        let (found, next) = page(list).map_err(|why| odd(&why))?;
        let at = if seen.len() == 1 { first.path().to_owned() } else { format!("page {}", seen.len()) };
        let found = items_of(&at, found).map_err(|why| odd(&why))?;
        items.extend(found.into_iter().map(|item| placed(item, &first)));
        if items.len() > ITEMS_MAX {
            return Err(odd(&format!("the list has more than {ITEMS_MAX} objects")));
        }
        let Some(next) = next else { return Ok(items) };
        // Only the path and the query: behind a proxy a server often names itself by a host or scheme that cannot be
        // reached, and the header must not be sent to another one.
        let next = url.join(&next).map_err(|error| odd(&format!("its next page: {error}")))?;
        url.set_path(next.path());
        url.set_query(next.query());
    }
}

/// The JSON of a page.
async fn json_of(mut answer: Response, url: &Url) -> CommandResult<Value> {
    let odd = |why: String| CommandError::usage(format!("{url}: {why}"));
    let status = answer.status();
    if status.is_redirection() {
        let to = answer.headers().get("location").and_then(|to| to.to_str().ok()).unwrap_or("elsewhere");
        return Err(odd(format!("it redirects to {to}; give that URL")));
    }
    if !status.is_success() {
        let failure = odd(format!("the answer is {status}"));
        let is_refused = matches!(status.as_u16(), 401 | 403);
        let hint = format!("set {AUTHORIZATION}, as in `Token 1234`");
        return Err(if is_refused { failure.hint(hint) } else { failure });
    }
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| away(url, &error))? {
        body.extend_from_slice(&piece);
        if body.len() > BYTES_MAX {
            return Err(odd(format!("a page has more than {BYTES_MAX} bytes")));
        }
    }
    serde_json::from_slice(&body).map_err(|error| odd(format!("not JSON: {error}")))
}

fn away(url: &Url, error: &dyn std::error::Error) -> CommandError {
    CommandError::new(ErrorCode::Unavailable, format!("{url}: {}", root_cause(error)))
}

/// An object with the tenant and site of the list that it is from, as in `/tenants/T/sites/S/zones/`, unless it names
/// them itself.
fn placed(mut item: Item, list: &Url) -> Item {
    let parts: Vec<&str> = list.path_segments().map(Iterator::collect).unwrap_or_default();
    for (part, field) in [("tenants", "tenant_id"), ("sites", "site_id")] {
        let at = parts.windows(2).find(|pair| pair[0] == part).map(|pair| pair[1]);
        if let Some(name) = at.and_then(decoded).filter(|_| !item.fields.contains_key(field)) {
            item.fields.insert(field.to_owned(), Value::String(name));
        }
    }
    item
}

fn decoded(segment: &str) -> Option<String> {
    let plain = percent_encoding::percent_decode_str(segment).decode_utf8().ok()?;
    Some(plain.into_owned()).filter(|plain| !plain.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_pages_and_fixtures_are_read() {
        let read = |list: Value| page(list).and_then(|(items, _)| items_of("f", items));
        for list in [json!([{"a": 1}]), json!({"count": 1, "next": null, "results": [{"a": 1}]})] {
            assert_eq!(read(list).expect("a list")[0].fields["a"], json!(1));
        }
        let fixture = json!([{"model": "cameras.Camera", "pk": 7, "fields": {"site": 3, "note": null}}]);
        let items = read(fixture).expect("a fixture");
        assert_eq!(items[0].model.as_deref(), Some("camera"));
        assert_eq!(Value::Object(items[0].fields.clone()), json!({"pk": 7, "site": 3}));
        for odd in [json!(7), json!({"detail": "no"}), json!([7])] {
            assert!(read(odd.clone()).is_err(), "{odd}");
        }
    }

    #[test]
    fn cells_are_json_or_text_and_rows_are_named_by_their_line() {
        let text = "camera_uuid,site_id,min_score,zones,rtsp_url\n007,3,0.5,\"[{\"\"zone_id\"\": 1}]\",rtsp://a\ncam-2,,,,\n";
        let items = csv_items("c.csv", text).expect("rows");
        let expected = json!({"camera_uuid": "007", "site_id": "3", "min_score": 0.5, "zones": [{"zone_id": 1}],
            "rtsp_url": "rtsp://a"});
        assert_eq!(Value::Object(items[0].fields.clone()), expected);
        assert_eq!((items[1].at.as_str(), items[1].fields.len()), ("c.csv line 3", 1));
        assert!(csv_items("c.csv", "a,b\n1,2,3\n").expect_err("too long").contains("line: 2"));
    }

    #[test]
    fn the_path_of_a_list_places_what_is_in_it() {
        let url = Url::parse("http://cp/api/v1/tenants/acme/sites/Halle%20S%C3%BCd/zones/").expect("a URL");
        let item = Item { at: String::new(), model: None, fields: Map::new() };
        let placed = placed(item, &url);
        assert_eq!(Value::Object(placed.fields), json!({"tenant_id": "acme", "site_id": "Halle Süd"}));
    }
}
