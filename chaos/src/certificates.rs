//! The certificates of servers, and the authority that signs them: both are replaced while everything runs.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// All servers are there.
const HOST: &str = "127.0.0.1";

/// The files that servers and clients read.
pub struct Certificates {
    folder: PathBuf,
    authority: Authority,
    /// What each server is to show, as DER.
    servers: Vec<Vec<u8>>,
}

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The files of one server.
pub struct ServerFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Certificates {
    /// An authority, and a certificate for each server.
    pub fn create(folder: &Path, servers: usize) -> Result<Self> {
        let servers = vec![Vec::new(); servers];
        let mut made = Self { folder: folder.to_owned(), authority: Authority::new()?, servers };
        made.trust([&made.authority])?;
        made.renew()?;
        Ok(made)
    }

    /// The file of the authorities that clients trust.
    pub fn trusted(&self) -> PathBuf {
        Self::trusted_in(&self.folder)
    }

    /// The same for the certificates of a folder.
    pub fn trusted_in(folder: &Path) -> PathBuf {
        folder.join("trusted.pem")
    }

    /// The files of a server.
    pub fn of(&self, server: usize) -> ServerFiles {
        let file = |ending: &str| self.folder.join(format!("server-{server}.{ending}"));
        ServerFiles { certificate: file("pem"), key: file("key") }
    }

    /// New certificates of the present authority for all servers, which take them up by themselves.
    pub fn renew(&mut self) -> Result<()> {
        for server in 0..self.servers.len() {
            let key = KeyPair::generate()?;
            let certificate =
                CertificateParams::new([HOST.to_owned()])?.signed_by(&key, &self.authority.issuer)?;
            let files = self.of(server);
            replace(&files.certificate, &certificate.pem())?;
            replace(&files.key, &key.serialize_pem())?;
            self.servers[server] = certificate.der().to_vec();
        }
        Ok(())
    }

    /// Another authority, which signs from now on. Clients that read the file trust the former one, too.
    pub fn add_authority(&mut self) -> Result<()> {
        let next = Authority::new()?;
        self.trust([&self.authority, &next])?;
        self.authority = next;
        Ok(())
    }

    /// The same, and clients are told nothing of it: the wrong order.
    pub fn add_authority_unheard(&mut self) -> Result<()> {
        self.authority = Authority::new()?;
        Ok(())
    }

    /// Clients that read the file trust the present authority alone.
    pub fn drop_former_authority(&self) -> Result<()> {
        self.trust([&self.authority])
    }

    fn trust<'a>(&self, authorities: impl IntoIterator<Item = &'a Authority>) -> Result<()> {
        let pem: String = authorities.into_iter().map(|authority| authority.pem.as_str()).collect();
        replace(&self.trusted(), &pem)
    }

    /// Whether the server at this address shows the certificate that it is to show.
    pub async fn is_shown(&self, server: usize, address: SocketAddr) -> bool {
        // What it is signed by does not matter here: it is compared.
        let client = reqwest::Client::builder().tls_info(true).danger_accept_invalid_certs(true).build();
        let Ok(client) = client else { return false };
        let Ok(answer) = client.get(format!("https://{address}/healthz")).send().await else { return false };
        let shown = answer.extensions().get::<reqwest::tls::TlsInfo>();
        shown.and_then(|shown| shown.peer_certificate()) == Some(&self.servers[server])
    }
}

impl Authority {
    fn new() -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Two authorities of one name would be confused with each other.
        let name = u64::from_le_bytes(rand::random());
        params.distinguished_name.push(DnType::CommonName, format!("authority {name:x}"));
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }
}

/// What a client prints for what it trusts.
pub fn fingerprint(pem: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    pem.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Whole or not at all, since others read the file at any time.
fn replace(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, text)?;
    fs::rename(&partial, path).with_context(|| format!("cannot replace {}", path.display()))
}
