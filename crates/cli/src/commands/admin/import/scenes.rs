//! Scenes, as the trackers' manager lists them.

use std::collections::BTreeMap;

use serde_json::json;
use solehold_api::{
    kind, paths,
    problem::ErrorCode,
    resources::{ResourceBody, ResourceList},
    scenes::PutScene,
};
use solehold_core::key::Name;

use super::{
    Selection,
    changes::{Change, Changes},
    fixture::text,
    refuse_faults,
    source::Item,
};
use crate::{
    client::Client,
    error::{CommandResult, Doing},
};

/// The names that the id of a scene has in lists, the first that is there.
const IDS: [&str; 3] = ["scene_id", "uid", "id"];

/// Checks all scenes, and compares them with those that are declared.
pub async fn changes(
    items: Vec<Item>,
    selection: &Selection,
    tenant: Option<&str>,
    client: &Client,
) -> CommandResult<Changes> {
    let scenes = scenes(&items, selection)?;
    let query = [("kind", Some(kind::SCENE.to_owned())), ("tenant", tenant.map(str::to_owned))];
    let found = client.list::<ResourceList>(&paths::resources(), &query, None).await;
    let found = found.doing("list the scenes")?.into_iter().filter(|found| found.declared);
    let declared: BTreeMap<String, ResourceBody> = found.map(|found| (found.key.clone(), found)).collect();
    let mut changes = Changes::default();
    for (id, scene) in &scenes {
        let before = declared.get(id);
        let put = keeping(scene.clone(), before);
        let is_same = before.is_some_and(|before| {
            before.site == put.site
                && before.attributes.get("name") == put.name.as_ref().map(|n| json!(n)).as_ref()
        });
        if is_same {
            changes.unchanged += 1;
            continue;
        }
        changes.all.push(Change {
            name: format!("scene/{id}"),
            is_new: before.is_none(),
            path: paths::scene(id),
            tenant: tenant.map(str::to_owned),
            body: json!(put),
        });
    }
    if selection.only.is_empty() && selection.site.is_none() {
        let missing = declared.keys().filter(|id| !scenes.contains_key(*id));
        changes.not_listed = missing.map(|id| format!("scene/{id}")).collect();
    }
    Ok(changes)
}

/// What a list does not say, a scene keeps.
fn keeping(scene: PutScene, before: Option<&ResourceBody>) -> PutScene {
    let Some(before) = before else { return scene };
    PutScene {
        site: scene.site.or_else(|| before.site.clone()),
        labels: before.labels.clone(),
        lock_delay_ms: before.lock_delay_ms,
        ..scene
    }
}

fn scenes(items: &[Item], selection: &Selection) -> CommandResult<BTreeMap<String, PutScene>> {
    let mut scenes = BTreeMap::new();
    let mut faults = Vec::new();
    for item in items {
        let at = &item.at;
        let of = |names: &[&str]| names.iter().find_map(|name| item.fields.get(*name).and_then(text));
        let Some(id) = of(&IDS) else {
            faults.push(format!("{at} has no {}", IDS.join(", ")));
            continue;
        };
        let scene = PutScene { name: of(&["name"]), site: of(&["site_id", "site"]), ..Default::default() };
        if let Err(error) = Name::new(id.as_str()) {
            faults.push(format!("{at}: the id {error}"));
        }
        let odd = scene.declaration().err().unwrap_or_default();
        faults.extend(odd.iter().map(|fault| format!("{at}: {fault}")));
        if scenes.insert(id.clone(), scene).is_some() {
            faults.push(format!("{at}: {id} was there before"));
        }
    }
    refuse_faults(ErrorCode::BadRequest, &faults)?;
    selection.refuse_unknown(scenes.keys().map(String::as_str))?;
    scenes.retain(|id, scene| selection.takes(id, scene.site.as_deref()));
    Ok(scenes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn read(list: Value, only: &[&str]) -> CommandResult<BTreeMap<String, PutScene>> {
        let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
        let item =
            |(at, value): (usize, &Value)| Item { at: format!("[{at}]"), model: None, fields: fields(value) };
        let items: Vec<Item> = list.as_array().expect("a list").iter().enumerate().map(item).collect();
        let only = only.iter().map(|only| (*only).to_owned()).collect();
        scenes(&items, &Selection { only, site: None })
    }

    #[test]
    fn scenes_have_one_of_three_ids_and_nothing_is_imported_if_one_has_none() {
        let good = json!([{"uid": "a", "name": "Hall"}, {"scene_id": "b", "id": 7}, {"id": 9}]);
        let ids: BTreeSet<String> = read(good.clone(), &[]).expect("good").into_keys().collect();
        assert_eq!(ids, ["a", "b", "9"].map(str::to_owned).into());
        assert_eq!(read(good.clone(), &["b"]).expect("one").len(), 1);
        assert!(read(good, &["c"]).is_err(), "mistyped");
        let odd = read(json!([{"name": "x"}, {"uid": "a"}, {"uid": "a"}, {"uid": ""}]), &[]);
        let why = odd.expect_err("odd").message;
        for part in ["[0] has no scene_id, uid, id", "[2]: a was there before", "[3]: the id is empty"] {
            assert!(why.contains(part), "{why}");
        }
    }
}
