//! In place of the orchestrator, where it was not built in.

use std::{path::Path, time::Duration};

use crate::running::{BegunAnew, Drained, ExportedMarks, Flags, ImportedMarks, MarkOrders, RunError};

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

/// Says how to build it in.
pub async fn import_marks(
    _config: &Path,
    _flags: Flags,
    _orders: MarkOrders,
    _say: impl Fn(&str),
) -> Result<ImportedMarks, RunError> {
    Err(RunError::Usage(MISSING.to_owned()))
}

/// Says how to build it in.
pub async fn export_marks(
    _config: &Path,
    _flags: Flags,
    _orders: MarkOrders,
    _ttl: Duration,
    _say: impl Fn(&str),
) -> Result<ExportedMarks, RunError> {
    Err(RunError::Usage(MISSING.to_owned()))
}

/// Says how to build it in.
pub async fn drain(
    _config: &Path,
    _flags: Flags,
    _say: impl Fn(&str),
    _ending: impl Future<Output = ()>,
) -> Result<Drained, RunError> {
    Err(RunError::Usage(MISSING.to_owned()))
}
