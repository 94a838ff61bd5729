//! The thread that the lanes run on, and the connections that they wait for.
//!
//! On the host's own threads a lane, and the answer that it waits for, would stand in line behind every request that is being
//! served, several times for each batch; and all of those requests wait for the batch. A thread of its own is woken by the
//! operating system at once.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};

/// Where lanes and connections are to be spawned: one thread for the whole process, as long as it lives. Where it cannot be
/// had, on the host's threads.
pub(crate) fn lanes() -> Handle {
    static LANES: OnceLock<Option<Runtime>> = OnceLock::new();
    let lanes = LANES.get_or_init(|| {
        let lanes = Builder::new_multi_thread().worker_threads(1).thread_name("lanes").enable_all().build();
        lanes.inspect_err(|error| tracing::warn!(%error, "the lanes get no thread of their own")).ok()
    });
    lanes.as_ref().map_or_else(Handle::current, |lanes| lanes.handle().clone())
}
