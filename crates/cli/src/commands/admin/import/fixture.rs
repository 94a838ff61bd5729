//! The references of a Django fixture: a foreign key is the primary key of another object, whose own id is what
//! Solehold knows it by.

use std::collections::BTreeMap;

use serde_json::Value;

use super::source::Item;

/// The models that are referred to, and the fields by which their objects are known outside of Django.
const REFERENCES: [(&str, &str); 3] =
    [("camera", "camera_uuid"), ("site", "site_id"), ("tenant", "tenant_id")];

/// Replaces references by the ids of what they refer to; the primary key stands for an object that has no such id, or
/// is not in the fixture. Numbers as ids become text.
pub fn resolve(items: &mut [Item]) {
    let mut ids: BTreeMap<(String, String), String> = BTreeMap::new();
    for item in items.iter() {
        let Some(model) = &item.model else { continue };
        let Some((_, id)) = REFERENCES.iter().find(|(name, _)| name == model) else { continue };
        let pk = item.fields.get("pk").and_then(text);
        if let (Some(pk), Some(id)) = (pk, item.fields.get(*id).and_then(text)) {
            ids.insert((model.clone(), pk), id);
        }
    }
    for item in items {
        let pk = item.fields.remove("pk");
        if let (Some(model), Some(pk)) = (&item.model, pk) {
            let own = if model == "zone" { "zone_id".to_owned() } else { own_id(model) };
            let pk = if model == "zone" { pk } else { text(&pk).map_or(pk, Value::String) };
            item.fields.entry(own).or_insert(pk);
        }
        for (name, id) in REFERENCES {
            let reference = item.fields.get(name).and_then(text);
            if let Some(reference) = reference.filter(|_| item.model.is_some()) {
                item.fields.remove(name);
                let found = ids.get(&(name.to_owned(), reference.clone())).cloned().unwrap_or(reference);
                item.fields.entry(id).or_insert(Value::String(found));
            }
            if let Some(number) = item.fields.get(id).and_then(text) {
                item.fields.insert(id.to_owned(), Value::String(number));
            }
        }
    }
}

fn own_id(model: &str) -> String {
    let known = REFERENCES.iter().find(|(name, _)| *name == model).map(|(_, id)| (*id).to_owned());
    known.unwrap_or_else(|| format!("{model}_id"))
}

/// A text or a number, as text.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn item(model: &str, fields: Value) -> Item {
        let fields = fields.as_object().cloned().unwrap_or_else(Map::new);
        Item { at: String::new(), model: Some(model.to_owned()), fields }
    }

    #[test]
    fn references_become_the_ids_of_what_they_refer_to() {
        let mut items = [
            item("site", json!({"pk": 3, "site_id": "north"})),
            item("camera", json!({"pk": 7, "camera_uuid": "cam-007", "site": 3, "tenant": "acme"})),
            item("camera", json!({"pk": "cam-008", "site": 4})),
            item("zone", json!({"pk": 1, "camera": 7})),
        ];
        resolve(&mut items);
        let fields = |at: usize| Value::Object(items[at].fields.clone());
        assert_eq!(fields(1), json!({"camera_uuid": "cam-007", "site_id": "north", "tenant_id": "acme"}));
        assert_eq!(fields(2), json!({"camera_uuid": "cam-008", "site_id": "4"}));
        assert_eq!(fields(3), json!({"zone_id": 1, "camera_uuid": "cam-007"}));
    }
}
