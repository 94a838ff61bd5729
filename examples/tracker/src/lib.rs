//! A scene tracker that runs in many instances.
//!
//! ```text
//!   settings -> fleet (a runner: the server says which scenes) -> scene, under its guard -> wire (MQTT, with the token)
//!                                                                   tracks: objects and their ids, kept as its state
//! ```
//!
//! A tracker holds scenes by one session. Each scene is a task that follows the objects in it and publishes where they
//! are, under the scene's guard: when the lease is lost the task is dropped. Every message bears the lease's token, so
//! that a gate can refuse what a paused tracker still sends. The tracks are the resource's state document, so the
//! next holder of the scene goes on with the same track ids.

pub mod broker;
pub mod fleet;
pub mod scene;
pub mod settings;
pub mod tracks;
pub mod wire;
