//! The PostgreSQL store by itself: batches are committed without HTTP or the engine's driver around it.

pub mod batches;
pub mod pinned;

use solehold_conformance::kit::commit;
