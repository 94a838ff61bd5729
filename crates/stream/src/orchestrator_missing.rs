//! In place of the orchestrator, where it was not built in.

use std::path::Path;

use crate::running::{BegunAnew, Flags, RunError};

const MISSING: &str = "this solehold was built without the orchestrator, since that builds librdkafka; build one with \
                       `cargo build --release --features kafka` (it needs a C compiler, make, pkg-config and libssl-dev)";

/// Says how to build it in.
pub async fn run(
    _config: &Path,
    _flags: Flags,
    _say: impl Fn(&str),
    _ending: impl Future<Output = ()>,
) -> Result<(), RunError> {
    Err(RunError::Usage(MISSING.to_owned()))
}

/// Says how to build it in.
pub async fn check(_config: &Path, _flags: Flags) -> Result<Vec<String>, RunError> {
    Err(RunError::Usage(MISSING.to_owned()))
}

/// Says how to build it in.
pub async fn begin_anew(_config: &Path, _flags: Flags, _force: bool) -> Result<BegunAnew, RunError> {
    Err(RunError::Usage(MISSING.to_owned()))
}
