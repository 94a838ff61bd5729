//! The v1 API of Solehold on the wire: the types of requests and responses, and nothing of how they are served.
//!
//! ```text
//!   bytes --body::parse--> request type --terms(), claim(), declaration()--> core's commands
//!   core's views --of()--> answer type --serde--> bytes
//! ```
//!
//! The modules follow the surface: [`scenes`], [`leases`], [`runners`] and [`config`] keep the shapes of the teams that
//! had them first and take unknown fields; [`sessions`], [`resources`], [`batch`] and [`admin`] are ours and refuse
//! them. [`watch`] is a stream of [`sse`] frames. Every error is a [`problem::Problem`] with one
//! [`problem::ErrorCode`]; all faults of a body are reported at once, as [`field::FieldError`]s.
//!
//! Names, ids and tokens are plain strings, UUIDs and numbers here, and become core's types on the way in.

#![allow(
    missing_docs,
    reason = "a field whose name says everything needs no comment; others have one, which OpenAPI shows"
)]

/// Reads and writes a type as the text that it parses from and displays as.
macro_rules! text_on_the_wire {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub mod admin;
pub mod batch;
pub mod body;
pub mod config;
pub mod cursor;
pub mod document;
pub mod field;
pub mod hand_over;
pub mod leases;
pub mod limits;
pub mod locks;
pub mod ops;
pub mod orchestrator;
pub mod page;
pub mod paths;
pub mod placement;
pub mod problem;
pub mod resources;
pub mod runners;
pub mod scenes;
#[cfg(feature = "openapi")]
mod schema;
pub mod sessions;
pub mod sse;
pub mod terms;
#[cfg(test)]
mod testing;
pub mod time;
pub mod watch;

/// The kinds of resource that have a surface of their own.
pub mod kind {
    /// A scene: `/scenes`.
    pub const SCENE: &str = "scene";
    /// A camera: `/cameras`, `/leases`.
    pub const CAMERA: &str = "camera";
    /// A zone of a site: `/tenants/{tenant}/sites/{site}/zones`.
    pub const ZONE: &str = "zone";
}
