//! Every path, once: the template that a router takes, and the function that a caller fills in.
//!
//! Names are percent-encoded, so a slash inside a name is `%2F`. A trailing slash is allowed and not needed. (The names
//! `.` and `..` can be held, but URL parsers drop them from paths however they are written.)
//!
//! ```
//! use solehold_api::paths;
//!
//! assert_eq!(paths::SCENE_LEASE, "/api/v1/scenes/{id}/lease");
//! assert_eq!(paths::scene_lease("hall/7 süd"), "/api/v1/scenes/hall%2F7%20s%C3%BCd/lease");
//! ```

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All but the unreserved characters of RFC 3986.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where the surface begins.
pub const BASE: &str = "/api/v1";

/// A name as one segment of a path.
pub fn segment(name: &str) -> String {
    utf8_percent_encode(name, ESCAPED).to_string()
}

/// The template with its placeholders filled in, in order.
fn fill(template: &str, names: &[&str]) -> String {
    let mut names = names.iter();
    let segment = |part: &str| match part.strip_prefix('{') {
        Some(_) => names.next().map(|name| segment(name)).unwrap_or_default(),
        None => part.to_owned(),
    };
    template.split('/').map(segment).collect::<Vec<_>>().join("/")
}

macro_rules! paths {
    ($($(#[$doc:meta])* $template:ident $function:ident($($name:ident),*) $path:literal;)*) => {
        $(
            $(#[$doc])*
            pub const $template: &str = concat!("/api/v1", $path);

            $(#[$doc])*
            pub fn $function($($name: &str),*) -> String {
                fill($template, &[$($name),*])
            }
        )*

        /// All templates.
        pub const ALL: &[&str] = &[$($template),*];
    };
}

/// Whether the process is up.
pub const HEALTH: &str = "/healthz";
/// The same, where existing clients of a control plane look for it.
pub const HEALTH_CHECK: &str = "/health";
/// Whether it can serve.
pub const READY: &str = "/readyz";
/// Its metrics.
pub const METRICS: &str = "/metrics";

paths! {
    /// The OpenAPI document.
    OPENAPI openapi() "/openapi.json";

    /// All scenes.
    SCENES scenes() "/scenes";
    /// One scene.
    SCENE scene(id) "/scenes/{id}";
    /// The lease on a scene.
    SCENE_LEASE scene_lease(id) "/scenes/{id}/lease";
    /// Renewal of the lease on a scene.
    SCENE_LEASE_RENEW scene_lease_renew(id) "/scenes/{id}/lease/renew";

    /// All leases.
    LEASES leases() "/leases";
    /// Acquire of a camera.
    LEASE_ACQUIRE lease_acquire() "/leases/acquire";
    /// One lease.
    LEASE lease(lease_id) "/leases/{lease_id}";
    /// Its renewal.
    LEASE_RENEW lease_renew(lease_id) "/leases/{lease_id}/renew";
    /// Its release.
    LEASE_RELEASE lease_release(lease_id) "/leases/{lease_id}/release";
    /// Its heartbeat.
    LEASE_HEARTBEAT lease_heartbeat(lease_id) "/leases/{lease_id}/heartbeat";
    /// Its revocation.
    LEASE_REVOKE lease_revoke(lease_id) "/leases/{lease_id}/revoke";
    /// Its events.
    LEASE_HISTORY lease_history(lease_id) "/leases/{lease_id}/history";
    /// The leases of a runner.
    LEASES_OF_RUNNER leases_of_runner(runner_id) "/leases/runner/{runner_id}";
    /// The lease on a camera.
    LEASE_OF_CAMERA lease_of_camera(camera_uuid) "/leases/camera/{camera_uuid}";
    /// Many acquires at once.
    BATCH_ACQUIRE batch_acquire() "/leases/batch/acquire";
    /// Many renewals at once.
    BATCH_RENEW batch_renew() "/leases/batch/renew";
    /// Many releases at once.
    BATCH_RELEASE batch_release() "/leases/batch/release";

    /// All runners.
    RUNNERS runners() "/runners";
    /// Registration of a runner.
    RUNNER_REGISTER runner_register() "/runners/register";
    /// One runner.
    RUNNER runner(id) "/runners/{id}";
    /// Its heartbeat.
    RUNNER_HEARTBEAT runner_heartbeat(id) "/runners/{id}/heartbeat";
    /// Its leases and offers.
    RUNNER_ASSIGNMENTS runner_assignments(id) "/runners/{id}/assignments";
    /// Its desired status.
    RUNNER_STATUS runner_status(id) "/runners/{id}/status";

    /// All sessions.
    SESSIONS sessions() "/sessions";
    /// One session.
    SESSION session(id) "/sessions/{id}";
    /// Its heartbeat.
    SESSION_HEARTBEAT session_heartbeat(id) "/sessions/{id}/heartbeat";
    /// News of sessions.
    SESSION_NEWS session_news() "/sessions/news";
    /// The active sessions.
    NODES nodes() "/nodes";

    /// The cameras of a site.
    SITE_CAMERAS site_cameras(tenant, site) "/tenants/{tenant}/sites/{site}/cameras";
    /// One camera of a site.
    SITE_CAMERA site_camera(tenant, site, camera_uuid) "/tenants/{tenant}/sites/{site}/cameras/{camera_uuid}";
    /// The zones of a site.
    SITE_ZONES site_zones(tenant, site) "/tenants/{tenant}/sites/{site}/zones";
    /// One zone of a site.
    SITE_ZONE site_zone(tenant, site, zone_id) "/tenants/{tenant}/sites/{site}/zones/{zone_id}";
    /// The versions of a site's configuration.
    CONFIG_VERSION config_version(tenant, site) "/tenants/{tenant}/sites/{site}/config/version";
    /// The versions of all configuration.
    CONFIG_VERSION_OF_ALL config_version_of_all() "/config/version";
    /// All cameras.
    CAMERAS cameras() "/cameras";
    /// One camera.
    CAMERA camera(camera_uuid) "/cameras/{camera_uuid}";
    /// The free cameras.
    CAMERAS_AVAILABLE cameras_available() "/cameras/available";

    /// All resources.
    RESOURCES resources() "/resources";
    /// The resources of a kind.
    RESOURCES_OF_KIND resources_of_kind(kind) "/resources/{kind}";
    /// One resource.
    RESOURCE resource(kind, key) "/resources/{kind}/{key}";
    /// The lease on it.
    RESOURCE_LEASE resource_lease(kind, key) "/resources/{kind}/{key}/lease";
    /// Renewal of the lease on it.
    RESOURCE_LEASE_RENEW resource_lease_renew(kind, key) "/resources/{kind}/{key}/lease/renew";
    /// Cancelling of an acquire whose answer was lost.
    RESOURCE_LEASE_CANCEL resource_lease_cancel(kind, key) "/resources/{kind}/{key}/lease/cancel";
    /// Revocation of the lease on it.
    RESOURCE_LEASE_REVOKE resource_lease_revoke(kind, key) "/resources/{kind}/{key}/lease/revoke";
    /// Its hand-over to the next holder.
    RESOURCE_HANDOVER resource_handover(kind, key) "/resources/{kind}/{key}/handover";
    /// The document that goes to the next holder.
    RESOURCE_STATE resource_state(kind, key) "/resources/{kind}/{key}/state";
    /// Its events.
    RESOURCE_HISTORY resource_history(kind, key) "/resources/{kind}/{key}/history";
    /// Why it is where it is.
    RESOURCE_EXPLAIN resource_explain(kind, key) "/resources/{kind}/{key}/explain";
    /// Reports that a runner failed to work on it.
    RESOURCE_FAILURES resource_failures(kind, key) "/resources/{kind}/{key}/failures";
    /// Its quarantine.
    RESOURCE_QUARANTINE resource_quarantine(kind, key) "/resources/{kind}/{key}/quarantine";

    /// Placement settings.
    PLACEMENT placement() "/placement";
    /// The deployment groups.
    DEPLOYMENTS deployments() "/deployments";
    /// The shift between them.
    DEPLOYMENT_SHIFT deployment_shift() "/deployments/shift";

    /// All locks.
    LOCKS locks() "/locks";
    /// A lock: a resource of the kind `lock`, which need not be declared.
    LOCK lock(name) "/locks/{name}";
    /// Its renewal.
    LOCK_RENEW lock_renew(name) "/locks/{name}/renew";

    /// The live node that should serve a key.
    ROUTE route(kind, key) "/route/{kind}/{key}";

    /// The stream of changes.
    WATCH watch() "/watch";

    /// The API keys.
    KEYS keys() "/admin/keys";
    /// One API key.
    KEY key(id) "/admin/keys/{id}";
    /// Its rotation.
    KEY_ROTATE key_rotate(id) "/admin/keys/{id}/rotate";
    /// All tenants.
    TENANTS tenants() "/admin/tenants";
    /// One tenant.
    TENANT tenant(tenant) "/admin/tenants/{tenant}";
    /// Raises the next token above a number.
    RAISE_TOKEN raise_token() "/admin/raise-token";
    /// Says that the store was restored from a backup.
    RESTORED restored() "/admin/restored";
    /// Retires the store, because its data moves elsewhere.
    RETIRE retire() "/admin/retire";
    /// Everything, as JSON lines.
    EXPORT export() "/admin/export";
    /// Everything, from JSON lines.
    IMPORT import() "/admin/import";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_segment() {
        assert_eq!(segment("cam-1_a.b~c"), "cam-1_a.b~c");
        assert_eq!(segment("a/b?c#d%e f"), "a%2Fb%3Fc%23d%25e%20f");
        assert_eq!(segment("数🚦"), "%E6%95%B0%F0%9F%9A%A6");
        assert_eq!(segment("{id}"), "%7Bid%7D");
        assert_eq!(resource("job", "{key}/x"), "/api/v1/resources/job/%7Bkey%7D%2Fx");
        assert_eq!(site_zone("t", "s/1", "7"), "/api/v1/tenants/t/sites/s%2F1/zones/7");
        assert_eq!(resource("job", &"x".repeat(255)).len(), "/api/v1/resources/job/".len() + 255);
    }

    #[test]
    fn templates_are_unique_and_below_the_base() {
        let unique: std::collections::BTreeSet<_> = ALL.iter().collect();
        assert_eq!(unique.len(), ALL.len());
        assert!(ALL.iter().all(|path| path.starts_with(BASE) && !path.ends_with('/')));
    }
}
