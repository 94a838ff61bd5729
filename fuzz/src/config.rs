//! Files and strings that operators write.

use solehold_agent::config::AgentFile;
use solehold_client::ClusterConfig;
use solehold_engine::postgres::Target;
use solehold_orchestrator::config::OrchestratorFile;
use solehold_process::config;

/// The YAML of an agent, an orchestrator and a gateway.
pub fn yaml(bytes: &[u8]) {
    let Some(text) = super::text(bytes) else { return };
    let _ = config::parse::<AgentFile>(text);
    let _ = config::parse::<OrchestratorFile>(text);
    let _ = ClusterConfig::from_yaml(text);
}

/// Where a database is. An error never shows the password.
pub fn connection_string(bytes: &[u8]) {
    let Some(text) = super::text(bytes) else { return };
    // It names a file that is read.
    if text.to_lowercase().contains("sslrootcert") {
        return;
    }
    let _ = text.parse::<Target>();
}
