//! How the processes of a world reach the servers.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use solehold_client::{Http, HttpConfig};
use tokio::time::interval;

use crate::certificates::fingerprint;

/// What a client prints before the fingerprint of what it trusts from now on.
pub const TRUSTS: &str = "trusts ";
/// How often the file of authorities is read again.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The servers, and whom to trust.
#[derive(Debug, Clone, Args)]
pub struct ServersOptions {
    #[arg(long, value_delimiter = ',')]
    pub servers: Vec<String>,
    /// The file of the authorities whose certificates are trusted; it is read again when it changes
    #[arg(long)]
    pub ca_cert: Option<PathBuf>,
}

impl ServersOptions {
    /// A client of the servers. It goes on to read the file of authorities for as long as the process runs.
    pub fn connect(&self) -> Result<Arc<Http>> {
        let config = self.config()?;
        let http = Arc::new(Http::new(config.clone())?);
        if let Some(pem) = config.ca_certs {
            println!("{TRUSTS}{}", fingerprint(&pem));
            tokio::spawn(follow(self.clone(), http.clone(), pem));
        }
        Ok(http)
    }

    /// As the client has it, with what is in the file of authorities now.
    pub fn config(&self) -> Result<HttpConfig> {
        let read = |path: &PathBuf| fs::read(path).with_context(|| format!("{}", path.display()));
        let ca_certs = self.ca_cert.as_ref().map(read).transpose()?;
        Ok(HttpConfig { ca_certs, ..HttpConfig::new(&self.servers) })
    }
}

async fn follow(options: ServersOptions, http: Arc<Http>, mut trusted: Vec<u8>) {
    let mut look = interval(LOOK_EVERY);
    loop {
        look.tick().await;
        let Ok(config) = options.config() else { continue };
        let Some(pem) = config.ca_certs.clone().filter(|pem| *pem != trusted) else { continue };
        if http.reconfigure(&config).is_ok() {
            println!("{TRUSTS}{}", fingerprint(&pem));
            trusted = pem;
        }
    }
}
