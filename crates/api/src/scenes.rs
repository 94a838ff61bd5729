//! Scene leases, as trackers use them: the holder's name is the identity, `version` the fencing token.
//!
//! A name alone is the weaker promise of rule 6; a tracker that also sends the `version` that it was given gets the
//! full one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value, json};
use solehold_core::{
    command::{Claim, Target},
    lease::{Declaration, LeaseStatus, Resource},
    outcome::{Grant, LeaseView},
};
use uuid::Uuid;

use crate::{
    document::{to_document, to_fields, to_value},
    field::{Checked, Faults},
    limits::SCENE_TTL,
    page::PageCursor,
    terms::{AcquireFields, AcquireTerms, Proof},
    time::Timestamp,
};

/// Acquires, renews or releases the lease on a scene.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SceneLeaseRequest {
    /// The holder.
    pub holder_id: String,
    /// The token that the holder has: proof on renewal and release, without meaning on acquire.
    pub version: Option<u64>,
    /// Time to live in milliseconds; 30 s if not given.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub ttl_ms: Option<Number>,
    /// Time to live in seconds.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttl_seconds: Option<Number>,
    /// The client's name for this acquire: a repeat gets the same grant.
    pub request_id: Option<String>,
    /// The session to attach the lease to; one of its own if not given.
    pub session_id: Option<Uuid>,
}

impl SceneLeaseRequest {
    pub fn terms(&self) -> Checked<AcquireTerms> {
        let ask = AcquireFields {
            holder: ("holder_id", &self.holder_id),
            ttl_ms: self.ttl_ms.as_ref(),
            ttl_seconds: self.ttl_seconds.as_ref(),
            session_id: self.session_id,
            request_id: self.request_id.as_deref(),
            slots: None,
        };
        ask.checked(SCENE_TTL, Faults::default(), Some(Default::default()))
    }

    /// The claim for a renewal or release. Fields that these do not need are checked, too.
    pub fn claim(&self, target: Target) -> Checked<Claim> {
        self.terms()?;
        let token = self.version;
        let session_id = self.session_id;
        Proof { holder: ("holder_id", Some(&self.holder_id)), token, session_id }.claim(target)
    }

    pub fn renew_ttl_ms(&self) -> Checked<Option<u64>> {
        SCENE_TTL.given(self.ttl_ms.as_ref(), self.ttl_seconds.as_ref()).map_err(|fault| vec![fault])
    }
}

/// The lease on a scene, held or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SceneLease {
    pub scene_id: String,
    /// The holder; null if it is free.
    pub holder_id: Option<String>,
    /// The fencing token of the present grant, or of the last one; 0 before the first.
    pub version: u64,
    /// When the lease expires by the store's clock, unless it is renewed.
    pub expires_at: Option<Timestamp>,
    /// Milliseconds until it expires; 0 if it is free.
    pub ttl_ms: u64,
    pub lease_id: Option<Uuid>,
    /// The session that it is attached to, if not one of its own.
    pub session_id: Option<Uuid>,
    /// The state document of the former holder, when the lease is acquired or renewed.
    #[serde(default)]
    pub state: Option<Value>,
    /// Whether this grant was already given to the same request id.
    #[serde(default)]
    pub repeated: bool,
}

impl SceneLease {
    /// The lease on a scene; `lease` is the one on that resource, if there is one.
    pub fn of(resource: &Resource, lease: Option<&LeaseView>) -> Self {
        match live(lease) {
            Some(lease) => Self::held(lease),
            None => Self {
                scene_id: resource.key.key.to_string(),
                holder_id: None,
                version: resource.last_token.0,
                expires_at: None,
                ttl_ms: 0,
                lease_id: None,
                session_id: None,
                state: None,
                repeated: false,
            },
        }
    }

    /// The lease that an acquire or renewal returned.
    pub fn granted(grant: &Grant) -> Self {
        let state = grant.state.as_ref().map(|state| to_value(&state.document));
        Self { state, repeated: grant.repeated, ..Self::held(&grant.lease) }
    }

    fn held(view: &LeaseView) -> Self {
        Self {
            scene_id: view.key.key.to_string(),
            holder_id: Some(view.lease.holder.to_string()),
            version: view.lease.token.0,
            expires_at: Some(view.deadline.into()),
            ttl_ms: view.ttl_left_ms(),
            lease_id: Some(view.lease.id.0),
            session_id: view.lease.tenure.session().map(|id| id.0),
            state: None,
            repeated: false,
        }
    }
}

fn live(lease: Option<&LeaseView>) -> Option<&LeaseView> {
    lease.filter(|lease| lease.status == LeaseStatus::Active)
}

/// Declares a scene.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutScene {
    /// A name for people to read.
    pub name: Option<String>,
    pub site: Option<String>,
    /// Labels to select it by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Milliseconds for which it is held back after a lease has expired.
    #[serde(default)]
    pub lock_delay_ms: u64,
}

impl PutScene {
    pub fn declaration(&self) -> Checked<Declaration> {
        let mut faults = Faults::default();
        faults.maybe_name("name", self.name.as_deref());
        faults.labels("labels", &self.labels);
        let site = faults.maybe_name("site", self.site.as_deref());
        let about = self.name.as_ref().map_or_else(|| json!({}), |name| json!({ "name": name }));
        let attributes = faults.take(to_document("name", &about));
        let labels = self.labels.clone();
        let lock_delay_ms = self.lock_delay_ms;
        faults.finish(|| Some(Declaration { site: site?, labels, attributes: attributes?, lock_delay_ms }))
    }
}

/// A scene in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Scene {
    pub scene_id: String,
    /// The holder; null if it is free.
    pub holder_id: Option<String>,
    /// When the lease expires, unless it is renewed.
    pub expires_at: Option<Timestamp>,
    /// The fencing token of the present grant, or of the last one; 0 before the first.
    pub version: u64,
    /// A name for people to read.
    pub name: Option<String>,
    pub site: Option<String>,
}

impl Scene {
    /// A scene; `lease` is the one on that resource, if there is one.
    pub fn of(resource: &Resource, lease: Option<&LeaseView>) -> Self {
        let SceneLease { scene_id, holder_id, expires_at, version, .. } = SceneLease::of(resource, lease);
        let declared = resource.declared.as_ref();
        let name = declared.and_then(|d| to_fields(&d.attributes).remove("name"));
        let name = name.and_then(|name| name.as_str().map(str::to_owned));
        let site = declared.and_then(|d| d.site.as_ref()).map(ToString::to_string);
        Self { scene_id, holder_id, expires_at, version, name, site }
    }
}

/// The format of a list of scenes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SceneFormat {
    /// A bare array; where the next page begins is in the `Link` header.
    #[default]
    List,
    /// A [`ScenePage`].
    Page,
}

/// The query of the list of scenes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct SceneQuery {
    /// Only those that are held, or only those that are not.
    pub leased: Option<bool>,
    /// A bare array, or a page with a count.
    #[cfg_attr(feature = "openapi", param(inline))]
    pub format: Option<SceneFormat>,
    /// Where to begin: the `next` of the previous page.
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub cursor: Option<PageCursor>,
    /// The largest number of items to return.
    pub limit: Option<i64>,
    /// The tenant, for a key that is not limited to one.
    pub tenant: Option<String>,
}

/// A page of scenes as the trackers' manager gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScenePage {
    /// The number of scenes on all pages.
    pub count: u64,
    /// The path of the next page; null on the last.
    pub next: Option<String>,
    /// Always null: cursors only go forward.
    pub previous: Option<String>,
    pub results: Vec<Scene>,
}

#[cfg(test)]
mod tests {
    use solehold_core::{command::AskedTenure, lease::StateDocument, time::*};

    use super::*;
    use crate::{
        body,
        testing::{document, key, lease_view, name, resource, round_trip, session_id},
    };

    fn request(json: &str) -> SceneLeaseRequest {
        body::parse(json.as_bytes()).expect(json)
    }

    #[test]
    fn the_bodies_of_trackers_are_taken() {
        let asked = request(r#"{"holder_id": "tracker-0", "color": "red"}"#).terms().expect("good");
        assert_eq!(asked.holder, name("tracker-0"));
        assert_eq!(asked.tenure, AskedTenure::Own { ttl_ms: 30_000 });
        let full = request(&format!(
            r#"{{"holder_id": "t", "ttl_ms": 2000, "request_id": "r", "session_id": "{}", "version": 42}}"#,
            session_id()
        ));
        round_trip(&full);
        let asked = full.terms().expect("good");
        assert_eq!((asked.tenure, asked.request), (AskedTenure::Session(session_id()), Some(name("r"))));
        let claim = full.claim(Target::Resource(key("s"))).expect("good");
        assert_eq!((claim.token, claim.session), (Some(Token(42)), Some(session_id())));
        assert_eq!(claim.holder, Some(name("t")));
        assert_eq!(full.renew_ttl_ms(), Ok(Some(2_000)));
    }

    #[test]
    fn all_faults_are_reported() {
        let odd = request(r#"{"holder_id": "", "ttl_seconds": -1, "request_id": "a\u0000"}"#);
        let fields: Vec<_> = odd.terms().expect_err("odd").into_iter().map(|f| f.field).collect();
        assert_eq!(fields, ["holder_id", "request_id", "ttl_seconds"]);
        assert!(odd.claim(Target::Resource(key("s"))).is_err());
        let put =
            PutScene { name: Some(String::new()), site: Some("x".repeat(10_000)), ..PutScene::default() };
        let fields: Vec<_> = put.declaration().expect_err("odd").into_iter().map(|f| f.field).collect();
        assert_eq!(fields, ["name", "site"]);
    }

    #[test]
    fn a_lease_is_shown_held_or_not() {
        let view = lease_view(key("hall"), "{}");
        let scene = resource(&view, r#"{"name": "Hall"}"#);
        let held = SceneLease::of(&scene, Some(&view));
        assert_eq!((held.holder_id.as_deref(), held.version, held.ttl_ms), (Some("worker"), 42, 29_000));
        round_trip(&held);
        let expired = LeaseView { status: LeaseStatus::Expired, ..view.clone() };
        for lease in [None, Some(&expired)] {
            let free = SceneLease::of(&scene, lease);
            assert_eq!((free.holder_id, free.version, free.expires_at), (None, 42, None));
        }
        let item = Scene::of(&scene, None);
        assert_eq!((item.name.as_deref(), item.site.as_deref()), (Some("Hall"), Some("site-1")));
        assert_eq!(Scene::of(&scene, Some(&view)).holder_id.as_deref(), Some("worker"));
        round_trip(&ScenePage { count: 1, next: None, previous: None, results: vec![item] });

        let state = StateDocument {
            document: document(r#"{"tracks": [1]}"#),
            sequence: 3,
            token: Token(41),
            written_at: StoreTime(900),
        };
        let grant = Grant { lease: view, state: Some(state), revision: Revision(50), repeated: true };
        let granted = SceneLease::granted(&grant);
        assert_eq!((granted.state.clone(), granted.repeated), (Some(json!({"tracks": [1]})), true));
        round_trip(&granted);
    }

    #[test]
    fn a_scene_is_declared() {
        let put: PutScene =
            body::parse(r#"{"name": "Halle Süd", "site": "s", "use_tracker": true}"#.as_bytes())
                .expect("good");
        let declared = put.declaration().expect("good");
        assert_eq!(declared.attributes.as_str(), r#"{"name":"Halle Süd"}"#);
        assert_eq!(PutScene::default().declaration(), Ok(Declaration::default()));
    }
}
