//! Cameras and zones, from the database or the REST API of a camera pipeline.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use solehold_api::{
    config::{Camera, Zone},
    document::to_fields,
    kind, paths,
    problem::ErrorCode,
    resources::{ResourceBody, ResourceList},
};
use solehold_core::{key::Name, lease::Declaration};

use super::{
    Selection,
    changes::{Change, Changes},
    fixture, refuse_faults,
    source::Item,
};
use crate::{
    client::Client,
    error::{CommandResult, Doing},
    output,
};

const DEFAULT_TENANT: &str = "default";

/// A document, the tenant and site that it belongs to, and where it was found.
#[derive(Debug)]
struct Found<T> {
    at: String,
    tenant: String,
    /// Whether the object names its tenant itself.
    is_of_tenant: bool,
    site: Option<String>,
    document: T,
}

#[derive(Debug, Default)]
struct Documents {
    cameras: Vec<Found<Camera>>,
    zones: Vec<Found<Zone>>,
    /// How many objects are neither, by model.
    others: BTreeMap<String, usize>,
}

/// Checks all cameras and zones, and compares them with those that are declared.
pub async fn changes(
    items: Vec<Item>,
    selection: &Selection,
    tenant: Option<&str>,
    client: &Client,
) -> CommandResult<Changes> {
    let documents = documents(items, selection, tenant)?;
    if !documents.others.is_empty() {
        let others: Vec<String> =
            documents.others.iter().map(|(model, count)| format!("{count} of {model}")).collect();
        output::note(format!("left out what is neither a camera nor a zone: {}", others.join(", ")));
    }
    let mut declared = BTreeMap::new();
    let mut tenants: Vec<&str> = documents.cameras.iter().map(|found| found.tenant.as_str()).collect();
    tenants.extend(documents.zones.iter().map(|found| found.tenant.as_str()));
    tenants.sort_unstable();
    tenants.dedup();
    for tenant in tenants {
        for kind in [kind::CAMERA, kind::ZONE] {
            let query = [("kind", Some(kind.to_owned())), ("tenant", Some(tenant.to_owned()))];
            let found = client.list::<ResourceList>(&paths::resources(), &query, None).await;
            let found = found.doing(format!("list the {kind}s of tenant {tenant}"))?;
            let found = found.into_iter().filter(|found| found.declared);
            declared.extend(found.map(|found| ((tenant.to_owned(), kind, found.key.clone()), found)));
        }
    }
    Ok(compare(documents, &declared))
}

type Declared = BTreeMap<(String, &'static str, String), ResourceBody>;

/// Zones come first: a camera that is new has its zones from the beginning.
fn compare(documents: Documents, declared: &Declared) -> Changes {
    let mut changes = Changes::default();
    let mut add = |kind: &'static str, key: String, tenant: &str, wanted: &Declaration, path, body| {
        let before = declared.get(&(tenant.to_owned(), kind, key.clone()));
        if before.is_some_and(|before| is_as(before, wanted)) {
            changes.unchanged += 1;
            return;
        }
        let name = format!("{kind}/{key}");
        let of = (kind == kind::CAMERA).then(|| tenant.to_owned());
        changes.all.push(Change { name, is_new: before.is_none(), path, tenant: of, body });
    };
    for Found { tenant, site, document: zone, .. } in &documents.zones {
        let site = site.as_deref().unwrap_or_default();
        let key = Zone::key(site, &zone.zone_id).ok().map(String::from);
        let wanted = Name::new(site).ok().and_then(|site| zone.declaration(&site).ok());
        if let (Some(key), Some(wanted)) = (key, wanted) {
            let path = paths::site_zone(tenant, site, &zone.zone_id.to_string());
            add(kind::ZONE, key, tenant, &wanted, path, json!(zone));
        }
    }
    for Found { tenant, document: camera, .. } in &documents.cameras {
        if let Ok(wanted) = camera.declaration() {
            let path = paths::camera(&camera.camera_uuid);
            add(kind::CAMERA, camera.camera_uuid.clone(), tenant, &wanted, path, json!(camera));
        }
    }
    changes
}

fn is_as(before: &ResourceBody, wanted: &Declaration) -> bool {
    before.site == wanted.site.as_ref().map(ToString::to_string)
        && before.attributes == to_fields(&wanted.attributes)
}

/// The cameras and zones of a list; everything that is wrong with any of them, if something is.
fn documents(mut items: Vec<Item>, selection: &Selection, tenant: Option<&str>) -> CommandResult<Documents> {
    fixture::resolve(&mut items);
    let mut documents = Documents::default();
    let mut faults = Vec::new();
    for item in items {
        let is_zone = item.fields.contains_key("zone_id");
        match item.model.as_deref() {
            Some(model) if model != "camera" && model != "zone" => {
                *documents.others.entry(model.to_owned()).or_default() += 1;
            }
            None if !is_zone && !item.fields.contains_key("camera_uuid") => {
                faults.push(format!("{} has neither a camera_uuid nor a zone_id", item.at));
            }
            Some("zone") => read(item, selection, tenant, &mut documents.zones, &mut faults),
            None if is_zone => read(item, selection, tenant, &mut documents.zones, &mut faults),
            _ => read(item, selection, tenant, &mut documents.cameras, &mut faults),
        }
    }
    take_in(&mut documents);
    let keys = documents.cameras.iter().map(|found| found.document.camera_uuid.as_str());
    selection.refuse_unknown(keys)?;
    documents.cameras.retain(|camera| selection.takes(&camera.document.camera_uuid, camera.site.as_deref()));
    // A zone of a site is for all its cameras, so it is imported with any of them.
    let at_site = Selection { only: Vec::new(), site: selection.site.clone() };
    documents.zones.retain(|zone| at_site.takes("", zone.site.as_deref()));
    check(&mut documents, &mut faults);
    refuse_faults(ErrorCode::BadRequest, &faults)?;
    Ok(documents)
}

fn read<T: DeserializeOwned>(
    item: Item,
    selection: &Selection,
    tenant: Option<&str>,
    into: &mut Vec<Found<T>>,
    faults: &mut Vec<String>,
) {
    let Item { at, mut fields, .. } = item;
    let mut own = |field: &str| take_text(&mut fields, field);
    let given = own("tenant_id");
    let site = own("site_id").or_else(|| selection.site.clone());
    let is_of_tenant = given.is_some();
    let tenant = match (given, tenant) {
        (Some(given), Some(tenant)) if given != tenant => {
            faults.push(format!("{at} is of tenant {given}, not of --tenant {tenant}"));
            return;
        }
        (given, tenant) => given.or(tenant.map(str::to_owned)).unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
    };
    match serde_json::from_value(Value::Object(fields)) {
        Ok(document) => into.push(Found { at, tenant, is_of_tenant, site, document }),
        Err(error) => faults.push(format!("{at}: {error}")),
    }
}

fn take_text(fields: &mut Map<String, Value>, field: &str) -> Option<String> {
    let text = fields.remove(field).as_ref().and_then(fixture::text);
    text.filter(|text| !text.is_empty())
}

/// A zone that is of one of the cameras becomes that camera's own, unless the camera has it already: numbers of zones
/// are unique only within a camera.
fn take_in(documents: &mut Documents) {
    let mut by_uuid: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, camera) in documents.cameras.iter().enumerate() {
        by_uuid.entry(camera.document.camera_uuid.clone()).or_default().push(index);
    }
    for mut zone in std::mem::take(&mut documents.zones) {
        let named = zone.document.camera_uuid.as_ref().and_then(|uuid| by_uuid.get(uuid));
        let is_its = |index: &&usize| !zone.is_of_tenant || documents.cameras[**index].tenant == zone.tenant;
        let its: Vec<usize> = named.into_iter().flatten().filter(is_its).copied().collect();
        let [index] = its[..] else {
            documents.zones.push(zone);
            continue;
        };
        let camera = &mut documents.cameras[index].document;
        zone.document.camera_uuid = None;
        if !camera.zones.iter().any(|own| own.zone_id == zone.document.zone_id) {
            camera.zones.push(zone.document);
        }
    }
}

/// Checks each document as the server will, and that no two have the same key.
fn check(documents: &mut Documents, faults: &mut Vec<String>) {
    let mut seen: BTreeMap<(String, &str, String), String> = BTreeMap::new();
    let mut twice = |tenant: &str, kind: &'static str, key: String, at: &str| {
        let first = seen.insert((tenant.to_owned(), kind, key.clone()), at.to_owned());
        first.map(|first| format!("{at}: {kind} {key} is at {first}, too"))
    };
    for found in &mut documents.cameras {
        let Found { at, tenant, site, document: camera, .. } = found;
        let uuid = camera.camera_uuid.clone();
        let placed = camera.place(Some(&uuid), tenant, site.as_deref());
        let odd = placed.and_then(|()| camera.declaration().map(drop)).err().unwrap_or_default();
        faults.extend(odd.iter().map(|fault| format!("{at}: {fault}")));
        faults.extend(Name::new(tenant.as_str()).err().map(|error| format!("{at}: tenant_id {error}")));
        faults.extend(twice(tenant, kind::CAMERA, uuid, at));
    }
    for Found { at, tenant, site, document: zone, .. } in &documents.zones {
        let Some(site) = site else {
            faults.push(format!("{at}: the zone has no site_id, and no camera of this import; give --site"));
            continue;
        };
        match Name::new(site.as_str()) {
            Ok(site) => {
                let odd = zone.declaration(&site).err().unwrap_or_default();
                faults.extend(odd.iter().map(|fault| format!("{at}: {fault}")));
            }
            Err(error) => faults.push(format!("{at}: site_id {error}")),
        }
        match Zone::key(site, &zone.zone_id) {
            Ok(key) => faults.extend(twice(tenant, kind::ZONE, key.into(), at)),
            Err(fault) => faults.push(format!("{at}: {fault}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_list(list: Value, selection: &Selection) -> CommandResult<Documents> {
        let item = |(index, value): (usize, &Value)| {
            let mut fields = value.as_object().cloned().unwrap_or_default();
            let model = fields.remove("model").and_then(|model| model.as_str().map(str::to_owned));
            Item { at: format!("[{index}]"), model, fields }
        };
        let items = list.as_array().expect("a list").iter().enumerate().map(item).collect();
        documents(items, selection, None)
    }

    fn square() -> Value {
        json!([[0, 0], [1, 0], [1, 1]])
    }

    #[test]
    fn zones_go_to_their_camera_or_their_site() {
        let list = json!([
            {"camera_uuid": "cam-1", "site_id": "north", "tenant_id": "acme", "fps": 5},
            {"zone_id": 1, "polygon": square(), "camera_uuid": "cam-1"},
            {"zone_id": 2, "polygon": square(), "site_id": "north", "tenant_id": "acme"},
        ]);
        let found = read_list(list, &Selection::default()).expect("good");
        assert_eq!(found.cameras[0].document.zones.len(), 1);
        assert_eq!((found.zones.len(), found.zones[0].site.as_deref()), (1, Some("north")));
        let changes = compare(found, &BTreeMap::new());
        let names: Vec<&str> = changes.all.iter().map(|change| change.name.as_str()).collect();
        assert_eq!(names, ["zone/north/2", "camera/cam-1"]);
        let expected = json!({"camera_uuid": "cam-1", "tenant_id": "acme", "site_id": "north", "fps": 5,
            "zones": [{"zone_id": 1, "polygon": square()}]});
        assert_eq!(changes.all[1].body, expected);
    }

    #[test]
    fn all_that_is_wrong_is_named_and_nothing_is_imported() {
        let list = json!([
            {"camera_uuid": "cam-1", "min_score": 2},
            {"camera_uuid": "cam-2", "zones": 7},
            {"rtsp_url": "rtsp://x"},
            {"zone_id": 3, "polygon": square()},
            {"camera_uuid": "cam-1"},
        ]);
        let why = read_list(list, &Selection::default()).expect_err("odd").message;
        for part in [
            "nothing was imported",
            "[0]: min_score is 2; it must be 0 to 1",
            "[1]: invalid type",
            "[2] has neither a camera_uuid nor a zone_id",
            "[3]: the zone has no site_id",
            "[4]: camera cam-1 is at [0], too",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn a_selection_takes_cameras_by_key_and_site() {
        let list = || {
            json!([{"camera_uuid": "a", "site_id": "n"}, {"camera_uuid": "b", "site_id": "s"},
            {"model": "user", "pk": 1}])
        };
        let selected = |only: &[&str], site: Option<&str>| {
            let only = only.iter().map(|only| (*only).to_owned()).collect();
            let found = read_list(list(), &Selection { only, site: site.map(str::to_owned) })?;
            CommandResult::Ok(found.cameras.into_iter().map(|c| c.document.camera_uuid).collect::<Vec<_>>())
        };
        assert_eq!(selected(&[], Some("s")).expect("one"), ["b"]);
        assert_eq!(selected(&["a"], None).expect("one"), ["a"]);
        assert!(selected(&["c"], None).is_err());
    }
}
