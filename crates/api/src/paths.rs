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
/// The dashboard, for people.
pub const DASHBOARD: &str = "/";
/// A file of the dashboard.
pub const DASHBOARD_FILE: &str = "/dashboard/{*file}";

paths! {
    OPENAPI openapi() "/openapi.json";

    SCENES scenes() "/scenes";
    SCENE scene(id) "/scenes/{id}";
    SCENE_LEASE scene_lease(id) "/scenes/{id}/lease";
    SCENE_LEASE_RENEW scene_lease_renew(id) "/scenes/{id}/lease/renew";

    LEASES leases() "/leases";
    LEASE_ACQUIRE lease_acquire() "/leases/acquire";
    LEASE lease(lease_id) "/leases/{lease_id}";
    LEASE_RENEW lease_renew(lease_id) "/leases/{lease_id}/renew";
    LEASE_RELEASE lease_release(lease_id) "/leases/{lease_id}/release";
    LEASE_HEARTBEAT lease_heartbeat(lease_id) "/leases/{lease_id}/heartbeat";
    LEASE_REVOKE lease_revoke(lease_id) "/leases/{lease_id}/revoke";
    LEASE_HISTORY lease_history(lease_id) "/leases/{lease_id}/history";
    LEASES_OF_RUNNER leases_of_runner(runner_id) "/leases/runner/{runner_id}";
    LEASE_OF_CAMERA lease_of_camera(camera_uuid) "/leases/camera/{camera_uuid}";
    BATCH_ACQUIRE batch_acquire() "/leases/batch/acquire";
    BATCH_RENEW batch_renew() "/leases/batch/renew";
    BATCH_RELEASE batch_release() "/leases/batch/release";

    RUNNERS runners() "/runners";
    RUNNER_REGISTER runner_register() "/runners/register";
    RUNNER runner(id) "/runners/{id}";
    RUNNER_HEARTBEAT runner_heartbeat(id) "/runners/{id}/heartbeat";
    /// Its leases and offers.
    RUNNER_ASSIGNMENTS runner_assignments(id) "/runners/{id}/assignments";
    RUNNER_STATUS runner_status(id) "/runners/{id}/status";

    SESSIONS sessions() "/sessions";
    SESSION session(id) "/sessions/{id}";
    SESSION_HEARTBEAT session_heartbeat(id) "/sessions/{id}/heartbeat";
    SESSION_NEWS session_news() "/sessions/news";
    NODES nodes() "/nodes";

    SITE_CAMERAS site_cameras(tenant, site) "/tenants/{tenant}/sites/{site}/cameras";
    SITE_CAMERA site_camera(tenant, site, camera_uuid) "/tenants/{tenant}/sites/{site}/cameras/{camera_uuid}";
    SITE_ZONES site_zones(tenant, site) "/tenants/{tenant}/sites/{site}/zones";
    SITE_ZONE site_zone(tenant, site, zone_id) "/tenants/{tenant}/sites/{site}/zones/{zone_id}";
    CONFIG_VERSION config_version(tenant, site) "/tenants/{tenant}/sites/{site}/config/version";
    CONFIG_VERSION_OF_ALL config_version_of_all() "/config/version";
    CAMERAS cameras() "/cameras";
    CAMERA camera(camera_uuid) "/cameras/{camera_uuid}";
    CAMERAS_AVAILABLE cameras_available() "/cameras/available";

    RESOURCES resources() "/resources";
    RESOURCES_OF_KIND resources_of_kind(kind) "/resources/{kind}";
    RESOURCE resource(kind, key) "/resources/{kind}/{key}";
    RESOURCE_LEASE resource_lease(kind, key) "/resources/{kind}/{key}/lease";
    RESOURCE_LEASE_RENEW resource_lease_renew(kind, key) "/resources/{kind}/{key}/lease/renew";
    /// Cancelling of an acquire whose answer was lost.
    RESOURCE_LEASE_CANCEL resource_lease_cancel(kind, key) "/resources/{kind}/{key}/lease/cancel";
    RESOURCE_LEASE_REVOKE resource_lease_revoke(kind, key) "/resources/{kind}/{key}/lease/revoke";
    RESOURCE_HANDOVER resource_handover(kind, key) "/resources/{kind}/{key}/handover";
    RESOURCE_STATE resource_state(kind, key) "/resources/{kind}/{key}/state";
    RESOURCE_HISTORY resource_history(kind, key) "/resources/{kind}/{key}/history";
    RESOURCE_EXPLAIN resource_explain(kind, key) "/resources/{kind}/{key}/explain";
    /// Reports that a runner failed to work on it.
    RESOURCE_FAILURES resource_failures(kind, key) "/resources/{kind}/{key}/failures";
    RESOURCE_QUARANTINE resource_quarantine(kind, key) "/resources/{kind}/{key}/quarantine";

    PLACEMENT placement() "/placement";
    DEPLOYMENTS deployments() "/deployments";
    DEPLOYMENT_SHIFT deployment_shift() "/deployments/shift";

    LOCKS locks() "/locks";
    /// A lock: a resource of the kind `lock`, which need not be declared.
    LOCK lock(name) "/locks/{name}";
    LOCK_RENEW lock_renew(name) "/locks/{name}/renew";

    /// The live node that should serve a key.
    ROUTE route(kind, key) "/route/{kind}/{key}";

    WATCH watch() "/watch";

    /// Jobs of the orchestrator that the server was told of.
    ORCHESTRATOR_JOBS orchestrator_jobs() "/orchestrator/jobs";
    ORCHESTRATOR_JOB orchestrator_job(id) "/orchestrator/jobs/{id}";
    ORCHESTRATOR_LETTERS orchestrator_letters() "/orchestrator/letters";

    KEYS keys() "/admin/keys";
    KEY key(id) "/admin/keys/{id}";
    KEY_ROTATE key_rotate(id) "/admin/keys/{id}/rotate";
    TENANTS tenants() "/admin/tenants";
    TENANT tenant(tenant) "/admin/tenants/{tenant}";
    /// What operators did.
    AUDIT audit() "/admin/audit";
    /// Raises the next token above a number.
    RAISE_TOKEN raise_token() "/admin/raise-token";
    /// Says that the store was restored from a backup.
    RESTORED restored() "/admin/restored";
    /// Retires the store, because its data moves elsewhere.
    RETIRE retire() "/admin/retire";
    EXPORT export() "/admin/export";
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
