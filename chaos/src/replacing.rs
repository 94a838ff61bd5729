//! What is replaced while everything runs, as `docs/operating.md` tells people to: certificates, the authority that
//! signs them, and the program of the servers.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use solehold_testkit::{Solehold, wait_for};

use crate::{
    broken::Broken,
    certificates::{Certificates, fingerprint},
    servers::TRUSTS,
    world::World,
};

/// Servers look at their files every few seconds.
const TAKEN_UP_WITHIN: Duration = Duration::from_secs(60);
/// How many resources are granted anew while servers of both versions run.
const GRANTS_BETWEEN: usize = 2;

impl World {
    /// New certificates for all servers, of the authority that clients trust.
    pub async fn replace_certificates(&mut self) -> Result<()> {
        self.certificates()?.renew()?;
        self.certificates_are_shown().await?;
        self.reconnect().await
    }

    /// Clients trust another authority, too; then the servers show certificates that it has signed.
    pub async fn add_authority(&mut self) -> Result<()> {
        if self.setup.broken == Some(Broken::Trust) {
            self.certificates()?.add_authority_unheard()?;
        } else {
            self.certificates()?.add_authority()?;
            self.authorities_are_trusted().await?;
        }
        self.replace_certificates().await
    }

    /// Clients no longer trust the former authority.
    pub async fn drop_authority(&mut self) -> Result<()> {
        self.certificates()?.drop_former_authority()?;
        self.authorities_are_trusted().await?;
        self.reconnect().await
    }

    /// One server after the other goes on as the older program, with which they were started.
    pub async fn go_back(&mut self) -> Result<()> {
        let older = self.setup.older.clone().context("an older program")?;
        self.replace_servers(&older).await
    }

    /// One server after the other goes on as the program of today.
    pub async fn upgrade(&mut self) -> Result<()> {
        self.replace_servers(&Solehold::binary()?).await
    }

    /// Both versions grant before the next server is replaced.
    async fn replace_servers(&mut self, program: &Path) -> Result<()> {
        for server in 0..self.servers.len() {
            self.servers[server].replace_by(program).await?;
            self.is_granted_anew(GRANTS_BETWEEN).await?;
        }
        Ok(())
    }

    async fn certificates_are_shown(&self) -> Result<()> {
        let certificates = self.certificates.as_ref().context("certificates")?;
        for (number, server) in self.servers.iter().enumerate() {
            let is_shown = || certificates.is_shown(number, server.address);
            wait_for("a server to show its new certificate", TAKEN_UP_WITHIN, is_shown).await?;
        }
        Ok(())
    }

    /// Waits until every client has read the file of authorities as it is now.
    async fn authorities_are_trusted(&self) -> Result<()> {
        self.watcher()?.reconfigure(&self.direct.config()?)?;
        let trusted = std::fs::read(self.certificates.as_ref().context("certificates")?.trusted())?;
        let line = format!("{TRUSTS}{}", fingerprint(&trusted));
        let clients = self.writers.iter().map(|writer| &writer.client).chain([&self.gate]);
        for client in clients {
            let program = client.process.program()?;
            let trusts = async || program.logs().lines().any(|printed| printed == line);
            wait_for("a client to trust the authorities", TAKEN_UP_WITHIN, trusts).await?;
        }
        Ok(())
    }

    /// Ends every connection to a server: those that follow see its certificate.
    async fn reconnect(&self) -> Result<()> {
        let clients = self.writers.iter().map(|writer| &writer.client).chain([&self.gate]);
        for link in clients.flat_map(|client| &client.servers) {
            link.cut().await;
            link.restore().await?;
        }
        Ok(())
    }

    fn certificates(&mut self) -> Result<&mut Certificates> {
        self.certificates.as_mut().context("the world has no certificates")
    }
}
