//! Configuration of a camera pipeline: cameras and zones, and versions, which are hashes of their content.
//!
//! A camera is a resource of kind `camera` whose attributes are its document; a zone of a site is one of kind `zone`.
//! What we do not know in a document is kept and given back, and what the pipeline's schema requires and a document
//! does not say is filled in: one document that its client cannot read makes it drop all cameras of the site.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use solehold_core::{
    key::Name,
    lease::{Declaration, Resource},
};

use crate::{
    document::{content_hash, read, to_document},
    field::{Checked, Faults, FieldError, join, name},
    limits::{COORDINATE_MAX, URL_BYTES_MAX},
    page::PageCursor,
    time::Timestamp,
};

/// The number that stands for the whole frame, and so for no zone.
const WHOLE_FRAME: &str = "0";
const ZONE_KIND_DEFAULT: &str = "include";

/// The id of a zone: a number or a name. It is returned as it was given.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ZoneId {
    Number(u64),
    Name(String),
}

impl ZoneId {
    /// The zone that a path means: `/zones/7` is number 7.
    pub fn from_path(text: &str) -> Self {
        let number = text.parse().ok().filter(|number: &u64| number.to_string() == text);
        number.map_or_else(|| Self::Name(text.to_owned()), Self::Number)
    }
}

impl std::fmt::Display for ZoneId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A part of a camera's picture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Zone {
    /// Its name or number, unique within its camera or site.
    pub zone_id: ZoneId,
    /// A name for people to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `include` or `exclude`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "include"))]
    pub kind: Option<String>,
    /// Decides which of two overlapping zones counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Its corners, three or more, each of two numbers.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<f64>>))]
    pub polygon: Vec<Vec<Number>>,
    /// The labels that count within the zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_labels: Option<Vec<String>>,
    /// Detections with a lower score are ignored; 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub min_score: Option<Number>,
    /// The only camera of the site that it applies to; all of them if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub camera_uuid: Option<String>,
    /// Any other fields.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

impl Zone {
    fn check(&self, at: &str, faults: &mut Faults) {
        let field = |field: &str| join(at, field);
        let id = self.zone_id.to_string();
        faults.name(&field("zone_id"), &id);
        let message = "is 0, which stands for the whole frame; the number of a zone is 1 or more";
        faults.check(id != WHOLE_FRAME, field("zone_id"), message);
        faults.maybe_name(&field("name"), self.name.as_deref());
        if let Some(kind) = &self.kind {
            let shown: String = kind.chars().take(64).collect();
            let known = ["include", "exclude"].contains(&kind.as_str());
            faults.check(known, field("kind"), format!("is {shown:?}; it must be include or exclude"));
        }
        let corners = self.polygon.len();
        faults.check(
            corners >= 3,
            field("polygon"),
            format!("has {corners} points; a polygon has 3 or more"),
        );
        for (index, point) in self.polygon.iter().enumerate() {
            let message = format!("has {} numbers; a point has 2", point.len());
            faults.check(point.len() == 2, field(&format!("polygon[{index}]")), message);
            for (axis, number) in point.iter().enumerate().take(2) {
                let is_near = number.as_f64().is_some_and(|number| number.abs() <= COORDINATE_MAX);
                let message = format!("is {number}; it must be {} to {COORDINATE_MAX}", -COORDINATE_MAX);
                faults.check(is_near, field(&format!("polygon[{index}][{axis}]")), message);
            }
        }
        check_labels(faults, &field("allow_labels"), self.allow_labels.as_deref());
        check_share(faults, &field("min_score"), self.min_score.as_ref());
        if let Some(camera) = &self.camera_uuid {
            faults.name(&field("camera_uuid"), camera);
        }
    }

    /// The key of the resource that a zone of this site is: `site/zone`, with slashes inside of either escaped.
    pub fn key(site: &str, zone_id: &ZoneId) -> Result<Name, FieldError> {
        let part = |text: &str| text.replace('%', "%25").replace('/', "%2F");
        name("zone_id", &format!("{}/{}", part(site), part(&zone_id.to_string())))
    }

    pub fn declaration(&self, site: &Name) -> Checked<Declaration> {
        let mut faults = Faults::default();
        self.check("", &mut faults);
        let attributes = faults.take(to_document("zone", self));
        let site = Some(site.clone());
        faults.finish(|| Some(Declaration { site, attributes: attributes?, ..Declaration::default() }))
    }

    pub fn of(resource: &Resource) -> Option<Self> {
        read(&resource.declared.as_ref()?.attributes)
    }

    /// The zone as it is answered: what it does not say of its name, kind and priority is filled in.
    #[must_use]
    pub fn filled_in(mut self) -> Self {
        self.name.get_or_insert_with(|| self.zone_id.to_string());
        self.kind.get_or_insert_with(|| ZONE_KIND_DEFAULT.to_owned());
        self.priority.get_or_insert(0);
        self
    }

    pub fn is_for(&self, camera_uuid: &str) -> bool {
        self.camera_uuid.as_ref().is_none_or(|uuid| uuid == camera_uuid)
    }
}

fn check_labels(faults: &mut Faults, field: &str, labels: Option<&[String]>) {
    for (index, label) in labels.unwrap_or_default().iter().enumerate() {
        faults.name(&format!("{field}[{index}]"), label);
    }
}

fn known_status(status: &Value) -> Option<CameraStatus> {
    serde_json::from_value(status.clone()).ok()
}

/// The status of a camera is one of the four that the pipeline knows.
pub(crate) fn check_status(faults: &mut Faults, field: &str, status: Option<&Value>) {
    if let Some(status) = status {
        let shown: String = status.to_string().chars().take(64).collect();
        let message = format!("is {shown}; it must be online, offline, error or maintenance");
        faults.check(known_status(status).is_some(), field, message);
    }
}

/// A score or share lies in 0..1.
fn check_share(faults: &mut Faults, field: &str, share: Option<&Number>) {
    if let Some(share) = share {
        let good = share.as_f64().is_some_and(|share| (0.0..=1.0).contains(&share));
        faults.check(good, field, format!("is {share}; it must be 0 to 1"));
    }
}

/// When a camera's picture is looked at.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MotionGating {
    /// Whether frames are analysed only after motion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The factor by which the picture is scaled down first; 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub downscale: Option<Number>,
    /// Motion of fewer pixels is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_area_px: Option<u64>,
    /// The number of frames that are still analysed after motion has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown_frames: Option<u64>,
    /// Any other fields.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// The status of a camera, as the pipeline reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum CameraStatus {
    Online,
    /// Also one that does not say.
    Offline,
    Error,
    Maintenance,
}

/// A camera's document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Camera {
    /// Unique within its tenant. May be left out where the path has it.
    #[serde(default)]
    pub camera_uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtsp_url: Option<String>,
    /// May be left out: the path or the key has it, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// May be left out where the path has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site_id: Option<String>,
    /// Its own zones. Answers also contain the zones of its site that apply to it.
    #[serde(default)]
    pub zones: Vec<Zone>,
    /// When its frames are analysed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub motion_gating: Option<MotionGating>,
    /// The labels that count outside of zones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_labels: Option<Vec<String>>,
    /// Detections with a lower score are ignored; 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub min_score: Option<Number>,
    /// How to decide whether a detection is within a zone, such as `center`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_test: Option<String>,
    /// How much two boxes must overlap; 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub iou_threshold: Option<Number>,
    /// How it is, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<CameraStatus>))]
    pub status: Option<Value>,
    /// Any other fields.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

impl Camera {
    /// Fills in what the path says and the document does not; both must agree where both say it. The tenant is the
    /// caller's to check, since another one is 404.
    pub fn place(&mut self, camera_uuid: Option<&str>, tenant: &str, site: Option<&str>) -> Checked<()> {
        let mut faults = Faults::default();
        if let Some(uuid) = camera_uuid {
            if self.camera_uuid.is_empty() {
                self.camera_uuid = uuid.to_owned();
            }
            faults.check(self.camera_uuid == uuid, "camera_uuid", "is not the one in the path");
        }
        // A camera at no site is answered with an empty one.
        self.site_id.take_if(|site| site.is_empty());
        if let Some(site) = site {
            let given = self.site_id.get_or_insert_with(|| site.to_owned());
            faults.check(given == site, "site_id", "is not the one in the path");
        }
        self.tenant_id.get_or_insert_with(|| tenant.to_owned());
        faults.done()
    }

    fn check(&self, faults: &mut Faults) {
        faults.name("camera_uuid", &self.camera_uuid);
        faults.maybe_name("tenant_id", self.tenant_id.as_deref());
        faults.maybe_name("site_id", self.site_id.as_deref());
        faults.maybe_name("zone_test", self.zone_test.as_deref());
        faults.text("rtsp_url", self.rtsp_url.as_deref(), URL_BYTES_MAX);
        check_labels(faults, "allow_labels", self.allow_labels.as_deref());
        check_share(faults, "min_score", self.min_score.as_ref());
        check_share(faults, "iou_threshold", self.iou_threshold.as_ref());
        check_status(faults, "status", self.status.as_ref());
        let downscale = self.motion_gating.as_ref().and_then(|gating| gating.downscale.as_ref());
        check_share(faults, "motion_gating.downscale", downscale);
        let mut seen = BTreeSet::new();
        for (index, zone) in self.zones.iter().enumerate() {
            zone.check(&format!("zones[{index}]"), faults);
            let twice = !seen.insert(zone.zone_id.to_string());
            faults.check(!twice, format!("zones[{index}].zone_id"), "is that of another zone of this camera");
        }
    }

    /// The resource that it is declared as: its key is the camera's id, its attributes the document.
    pub fn declaration(&self) -> Checked<Declaration> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        let site = self.site_id.as_deref().and_then(|site| Name::new(site).ok());
        let attributes = faults.take(to_document("camera", self));
        faults.finish(|| Some(Declaration { site, attributes: attributes?, ..Declaration::default() }))
    }

    /// The camera that a resource is. One that was declared by another surface has its id and whereabouts.
    pub fn of(resource: &Resource) -> Self {
        let declared = resource.declared.as_ref();
        let mut camera: Self = declared.and_then(|d| read(&d.attributes)).unwrap_or_default();
        camera.camera_uuid = resource.key.key.to_string();
        camera.tenant_id = Some(resource.key.tenant.to_string());
        camera.site_id = declared.and_then(|d| d.site.as_ref()).map(ToString::to_string);
        camera
    }

    /// The zones that count for it: its own, then those of its site that name it or no camera; its own win.
    pub fn effective_zones(&self, of_site: &[Zone]) -> Vec<Zone> {
        let mut zones = self.zones.clone();
        let own: BTreeSet<String> = zones.iter().map(|zone| zone.zone_id.to_string()).collect();
        let others = of_site.iter().filter(|zone| zone.is_for(&self.camera_uuid));
        zones.extend(others.filter(|zone| !own.contains(&zone.zone_id.to_string())).cloned());
        zones
    }

    /// The status that it has; offline, if it does not say.
    pub fn status(&self) -> CameraStatus {
        self.status.as_ref().and_then(known_status).unwrap_or(CameraStatus::Offline)
    }

    /// The camera as it is answered: what the pipeline's schema requires and the document does not say is filled in,
    /// and what that schema refuses, which older versions took, is left out.
    #[must_use]
    pub fn filled_in(mut self) -> Self {
        self.rtsp_url.get_or_insert_default();
        self.site_id.get_or_insert_default();
        self.status.take_if(|status| known_status(status).is_none());
        self.zones.retain(|zone| zone.zone_id.to_string() != WHOLE_FRAME);
        self.zones = self.zones.into_iter().map(Zone::filled_in).collect();
        self
    }
}

/// Versions of a configuration: the same content, the same version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigVersion {
    /// A hash of the cameras, without their zones.
    pub config_version: String,
    /// A hash of the zones, those of the cameras and those of the site.
    pub zone_version: String,
}

impl ConfigVersion {
    /// The versions of some cameras and the zones of their site, whatever the order of both.
    ///
    /// ```
    /// use solehold_api::config::{Camera, ConfigVersion};
    ///
    /// let camera = |id: &str| Camera { camera_uuid: id.into(), ..Camera::default() };
    /// let one = ConfigVersion::of(&[camera("cam-1"), camera("cam-2")], &[]);
    /// assert_eq!(one, ConfigVersion::of(&[camera("cam-2"), camera("cam-1")], &[]));
    /// assert_ne!(one.config_version, ConfigVersion::of(&[camera("cam-1")], &[]).config_version);
    /// ```
    pub fn of(cameras: &[Camera], of_site: &[Zone]) -> Self {
        let mut cameras: Vec<&Camera> = cameras.iter().collect();
        cameras.sort_by(|a, b| a.camera_uuid.cmp(&b.camera_uuid));
        let mut of_site: Vec<&Zone> = of_site.iter().collect();
        of_site.sort_by_key(|zone| zone.zone_id.to_string());
        let bare = cameras.iter().map(|camera| Camera { zones: Vec::new(), ..(*camera).clone() });
        let own = cameras.iter().map(|camera| (camera.camera_uuid.as_str(), camera.zones.iter().collect()));
        let zones = own.chain([("", of_site)]);
        Self { config_version: content_hash(bare), zone_version: content_hash(zones) }
    }
}

impl ConfigVersion {
    /// The versions of several sites, each with its tenant and name, whatever their order.
    pub fn of_sites(sites: &BTreeMap<(String, String), Self>) -> Self {
        let hash =
            |of: fn(&Self) -> &str| content_hash(sites.iter().map(|(site, version)| (site, of(version))));
        Self { config_version: hash(|v| &v.config_version), zone_version: hash(|v| &v.zone_version) }
    }
}

/// The versions of a configuration, and when it last changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatedConfigVersion {
    #[serde(flatten)]
    pub version: ConfigVersion,
    /// When a camera or zone was last created, changed or deleted; 1970 if there never was one.
    pub last_updated: Timestamp,
}

/// Something was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Deleted {
    /// Always true.
    pub success: bool,
}

/// A page of free cameras.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AvailableCameras {
    /// Their ids.
    pub cameras: Vec<String>,
    /// Their documents, in the same order.
    pub items: Vec<Camera>,
    /// Where the next page begins; null on the last.
    #[serde(default)]
    pub next: Option<PageCursor>,
}

/// A page of cameras.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CameraList {
    pub cameras: Vec<Camera>,
    /// Where the next page begins; null on the last.
    #[serde(default)]
    pub next: Option<PageCursor>,
}

/// A page of zones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ZoneList {
    pub zones: Vec<Zone>,
    /// Where the next page begins; null on the last.
    #[serde(default)]
    pub next: Option<PageCursor>,
}

/// The query of a list of cameras. A page may have fewer items than `limit`; the last has no `next`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct CameraQuery {
    /// Only at this site.
    pub site_id: Option<String>,
    /// Only with this status; one that does not say is `offline`.
    #[cfg_attr(feature = "openapi", param(inline))]
    pub status: Option<CameraStatus>,
    /// Where to begin: the `next` of the previous page.
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub cursor: Option<PageCursor>,
    /// The largest number of items to return.
    pub limit: Option<i64>,
    /// The tenant, for a key that is not limited to one.
    pub tenant: Option<String>,
}

#[cfg(test)]
mod tests;
