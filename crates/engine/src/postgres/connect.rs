//! How a connection is made: where to, by which TLS, and with which bounds on its time.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::{io, task::AbortHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config, NoTls,
    config::{SslMode, TargetSessionAttrs},
    error::Severity,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::{Fault, words};
use crate::store::StoreError;

/// A server that cannot be reached is known not to be after this.
const CONNECT: Duration = Duration::from_secs(2);
/// A peer that acknowledges nothing for so long is gone.
const PEER_GONE: Duration = Duration::from_secs(3);
/// Where systems keep the certificates that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What this side asks of each of its connections, where the server knows the setting. Timeouts on the server's side free
/// its locks when this side has given up, or was paused in the middle: below `lock_timeout`, so that the other replicas wait
/// for that and do not fail; the rest pins the plans, which look rows up by key and nothing else, to what they
/// are for tables of any size.
const SETTINGS: [(&str, &str); 9] = [
    ("statement_timeout", "2500ms"),
    ("lock_timeout", "2000ms"),
    ("idle_in_transaction_session_timeout", "1500ms"),
    ("client_connection_check_interval", "1000ms"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("jit", "off"),
    ("client_min_messages", "warning"),
    ("timezone", "UTC"),
];

/// A commit that is answered is on disk, and with a synchronous standby, whatever the configuration says now or after a reload.
/// One that also waits for standbys to show it is left alone.
const DURABLE: &str = "SELECT set_config('synchronous_commit', \
    CASE current_setting('synchronous_commit', true) WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false) \
    WHERE current_setting('synchronous_commit', true) IS NOT NULL";

/// Makes connections to one place, which may be any of several hosts.
pub(super) struct Connector {
    /// One for each host, in the order given.
    hosts: Vec<Config>,
    tls: Option<MakeRustlsConnect>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("hosts", &self.hosts.iter().map(Config::get_hosts).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// A connection just made.
pub(super) struct Connected {
    pub(super) client: Client,
    /// The last warning that the server sent.
    pub(super) warning: Arc<Mutex<Option<String>>>,
    /// Ends the task that moves the bytes, and so the connection.
    pub(super) task: AbortHandle,
}

impl Connector {
    /// Reads a connection string, as libpq has them. Errors never show it: there may be a password in it.
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        let (url, tls) = TlsOptions::split_off(url);
        let mut config: Config = url.parse().map_err(|e| {
            StoreError::Unusable(format!("the connection string is not usable: {}", words(&e)))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("solehold");
        }
        if config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        config.tcp_user_timeout(PEER_GONE);
        config.keepalives_idle(PEER_GONE);
        config.keepalives_interval(Duration::from_secs(1));
        config.keepalives_retries(3);
        if tls.verify.is_some() {
            config.ssl_mode(SslMode::Require);
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(MakeRustlsConnect::new(tls.client()?)),
        };
        let hosts = (0..config.get_hosts().len().max(config.get_hostaddrs().len()).max(1))
            .map(|at| one_host(&config, at))
            .collect();
        Ok(Self { hosts, tls })
    }

    /// How many hosts there are.
    pub(super) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Connects to one of the hosts and sets the session up.
    pub(super) async fn connect(&self, host: usize) -> Result<Connected, Fault> {
        let config = &self.hosts[host];
        let connect = async {
            let connected = match &self.tls {
                Some(tls) => {
                    let (client, connection) = config.connect(tls.clone()).await?;
                    attend(client, connection)
                }
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    attend(client, connection)
                }
            };
            set_up(&connected.client).await?;
            Ok(connected)
        };
        let slow = |_| Fault::Slow("connecting");
        tokio::time::timeout(CONNECT + Duration::from_millis(500), connect).await.map_err(slow)?
    }
}

/// The configuration for one of several hosts: which of them to use is not for the driver to say alone.
fn one_host(all: &Config, at: usize) -> Config {
    use tokio_postgres::config::Host;
    let mut one = Config::new();
    match all.get_hosts().get(at) {
        Some(Host::Tcp(host)) => _ = one.host(host),
        Some(Host::Unix(path)) => _ = one.host_path(path),
        None => {}
    }
    if let Some(address) = all.get_hostaddrs().get(at) {
        one.hostaddr(*address);
    }
    if let Some(port) = all.get_ports().get(at).or(all.get_ports().first()) {
        one.port(*port);
    }
    macro_rules! copy {
        ($($name:ident by $get:ident),+ $(,)?) => {
            $(if let Some(value) = all.$get() { one.$name(value.to_owned()); })+
        };
    }
    copy!(
        user by get_user,
        password by get_password,
        dbname by get_dbname,
        options by get_options,
        application_name by get_application_name,
        connect_timeout by get_connect_timeout,
        tcp_user_timeout by get_tcp_user_timeout,
        keepalives_interval by get_keepalives_interval,
        keepalives_retries by get_keepalives_retries,
    );
    one.keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .target_session_attrs(all.get_target_session_attrs())
        .channel_binding(all.get_channel_binding());
    one
}

async fn set_up(client: &Client) -> Result<(), Fault> {
    let values: Vec<_> = SETTINGS.iter().map(|(name, value)| format!("('{name}', '{value}')")).collect();
    let sql = format!(
        "SELECT set_config(v.name, v.value, false) FROM (VALUES {}) AS v(name, value) JOIN pg_settings p ON p.name = v.name",
        values.join(", ")
    );
    Ok(client.batch_execute(&format!("{sql}; {DURABLE}")).await?)
}

/// Moves the bytes of a connection in a task of its own, and keeps the warnings that come with them. A warning comes before
/// the answer that it belongs to, so whoever has the answer finds the warning.
fn attend<S, T>(client: Client, mut connection: tokio_postgres::Connection<S, T>) -> Connected
where
    S: io::AsyncRead + io::AsyncWrite + Unpin + Send + 'static,
    T: io::AsyncRead + io::AsyncWrite + Unpin + Send + 'static,
{
    let warning = Arc::new(Mutex::new(None));
    let kept = warning.clone();
    let task = tokio::spawn(async move {
        let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(message) = messages.next().await {
            match message {
                Ok(AsyncMessage::Notice(notice)) if notice.parsed_severity() == Some(Severity::Warning) => {
                    *kept.lock().unwrap_or_else(|e| e.into_inner()) = Some(notice.message().to_owned());
                }
                Ok(_) => {}
                // Whoever waits for an answer is told by the answer's failure.
                Err(error) => {
                    tracing::debug!(error = %words(&error), "a connection to PostgreSQL ended");
                    return;
                }
            }
        }
    });
    Connected { client, warning, task: task.abort_handle() }
}

/// The part of a connection string that tokio-postgres does not know.
#[derive(Debug, Default)]
struct TlsOptions {
    /// `verify-ca` or `verify-full`: the certificate must be trusted, and for the latter be that of the host.
    verify: Option<bool>,
    roots: Option<String>,
}

impl TlsOptions {
    /// Takes `sslmode=verify-*` and `sslrootcert` out of a connection string.
    fn split_off(url: &str) -> (String, Self) {
        let mut options = Self::default();
        let mut keep = |pair: &str| {
            let Some((name, value)) = pair.split_once('=') else { return true };
            let value = value.trim_matches('\'');
            match (name.trim(), value) {
                ("sslmode", "verify-full") => options.verify = Some(true),
                ("sslmode", "verify-ca") => options.verify = Some(false),
                ("sslrootcert", path) => options.roots = Some(path.replace("%2F", "/").replace("%2f", "/")),
                _ => return true,
            }
            false
        };
        let rest = match url.split_once("://") {
            Some(_) => match url.split_once('?') {
                Some((place, query)) => {
                    let kept: Vec<_> = query.split('&').filter(|pair| keep(pair)).collect();
                    if kept.is_empty() { place.to_owned() } else { format!("{place}?{}", kept.join("&")) }
                }
                None => url.to_owned(),
            },
            None => url.split(' ').filter(|pair| keep(pair)).collect::<Vec<_>>().join(" "),
        };
        (rest, options)
    }

    fn client(self) -> Result<ClientConfig, StoreError> {
        let unusable = |what: String| StoreError::Unusable(what);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| unusable(format!("TLS cannot be set up: {e}")))?;
        if self.verify.is_none() && self.roots.is_none() {
            // As libpq: `prefer` and `require` encrypt, and check nothing.
            let unchecked = Arc::new(Unchecked { provider, roots: None });
            return Ok(builder.dangerous().with_custom_certificate_verifier(unchecked).with_no_client_auth());
        }
        let roots = self.read_roots().map_err(unusable)?;
        if self.verify == Some(true) {
            return Ok(builder.with_root_certificates(roots).with_no_client_auth());
        }
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|e| unusable(format!("TLS cannot be set up: {e}")))?;
        let trusted = Arc::new(Unchecked { provider, roots: Some(verifier) });
        Ok(builder.dangerous().with_custom_certificate_verifier(trusted).with_no_client_auth())
    }

    fn read_roots(&self) -> Result<RootCertStore, String> {
        let named = self
            .roots
            .clone()
            .filter(|path| path != "system")
            .or_else(|| std::env::var("SSL_CERT_FILE").ok());
        let found =
            || SYSTEM_ROOTS.iter().find(|path| std::path::Path::new(path).exists()).map(|p| (*p).to_owned());
        let path =
            named.or_else(found).ok_or("no certificates to trust were found: give sslrootcert=FILE")?;
        let mut roots = RootCertStore::empty();
        let unreadable = |e: &dyn fmt::Display| format!("sslrootcert {path} cannot be read: {e}");
        for certificate in CertificateDer::pem_file_iter(&path).map_err(|e| unreadable(&e))? {
            roots.add_parsable_certificates([certificate.map_err(|e| unreadable(&e))?]);
        }
        if roots.is_empty() { Err(format!("sslrootcert {path} holds no certificate")) } else { Ok(roots) }
    }
}

/// Does not ask whether the certificate is that of the host, nor, without roots, whether anyone trusts it.
#[derive(Debug)]
struct Unchecked {
    provider: Arc<CryptoProvider>,
    roots: Option<Arc<rustls::client::WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_options_are_taken_out_of_either_form() {
        let url = "postgres://u:p@h/db?sslmode=verify-full&connect_timeout=1&sslrootcert=%2Fetc%2Fca.pem";
        let (rest, options) = TlsOptions::split_off(url);
        assert_eq!(rest, "postgres://u:p@h/db?connect_timeout=1");
        assert_eq!((options.verify, options.roots.as_deref()), (Some(true), Some("/etc/ca.pem")));
        let (rest, options) = TlsOptions::split_off("host=h sslmode=verify-ca dbname=d");
        assert_eq!(rest, "host=h dbname=d");
        assert_eq!(options.verify, Some(false));
    }

    #[test]
    fn a_bad_string_does_not_show_its_password() {
        for url in
            ["postgres://u:hunter2@h:port/db", "postgres://u:hunter2@h/db?nonsense=1", "host=h hunter2"]
        {
            let error = Connector::new(url).expect_err("not usable").to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
