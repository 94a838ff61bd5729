//! How a connection is made: where to, and with which bounds on its time.

use std::{borrow::Cow, fmt, net::IpAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use solehold_process::resolver::Resolver;
use tokio::{io, task::AbortHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls,
    config::{Host, TargetSessionAttrs},
    error::Severity,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::postgres::{
    connection::target::Target,
    fault::{Fault, words},
};
use crate::store::StoreError;

/// A server that cannot be reached is known not to be after this.
const CONNECT: Duration = Duration::from_secs(2);
/// A peer that acknowledges nothing for this long is gone.
const PEER_GONE: Duration = Duration::from_secs(3);
/// What is set on each connection, where the server knows the setting. Timeouts on the server's side free its locks
/// when this side has given up, or was paused in the middle: below `lock_timeout`, so that the other replicas wait for
/// that and do not fail; the rest pins the plans, which look rows up by key and nothing else, to what they are for
/// tables of any size.
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

/// A commit that is answered is on disk, and with a synchronous standby, whatever the configuration says now or after a
/// reload. One that also waits for standbys to show it is left alone.
const DURABLE: &str = "SELECT set_config('synchronous_commit', \
    CASE current_setting('synchronous_commit', true) WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false) \
    WHERE current_setting('synchronous_commit', true) IS NOT NULL";

/// Makes connections to one place, which may be any of several hosts.
pub(crate) struct Connector {
    /// One for each host, in the order given.
    hosts: Vec<Config>,
    tls: Option<MakeRustlsConnect>,
    resolver: Resolver,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("hosts", &self.hosts.iter().map(Config::get_hosts).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

pub(crate) struct NewConnection {
    pub(crate) client: Client,
    /// The last warning that the server sent.
    pub(crate) warning: Arc<Mutex<Option<String>>>,
    /// Ends the task that moves the bytes, and so the connection.
    pub(crate) task: AbortHandle,
}

impl Connector {
    /// Reads a connection string, as libpq has them. Errors never show it: there may be a password in it.
    pub(crate) fn new(url: &str) -> Result<Self, StoreError> {
        let Target { mut config, tls } = url.parse()?;
        if config.get_dbname().is_none_or(str::is_empty) {
            // PostgreSQL would take the one that is named like the user, such as `postgres`.
            return Err(StoreError::Unusable("the connection string names no database".to_owned()));
        }
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
        let hosts = (0..config.get_hosts().len().max(config.get_hostaddrs().len()).max(1))
            .map(|at| one_host(&config, at))
            .collect();
        Ok(Self { hosts, tls, resolver: Resolver::default() })
    }

    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Connects to one of the hosts and sets the session up.
    pub(crate) async fn connect(&self, host: usize) -> Result<NewConnection, Fault> {
        let connect = async {
            let config = self.located(&self.hosts[host]).await?;
            let connected = match &self.tls {
                Some(tls) => attend(config.connect(tls.clone()).await?),
                None => attend(config.connect(NoTls).await?),
            };
            set_up(&connected.client).await?;
            Ok(connected)
        };
        let slow = |_| Fault::Slow("connecting");
        tokio::time::timeout(CONNECT + Duration::from_millis(500), connect).await.map_err(slow)?
    }

    /// The configuration of a host with its addresses. The driver would look the name up itself, and fail while the
    /// name server is away.
    async fn located<'a>(&self, config: &'a Config) -> Result<Cow<'a, Config>, Fault> {
        let [Host::Tcp(name)] = config.get_hosts() else { return Ok(Cow::Borrowed(config)) };
        if !config.get_hostaddrs().is_empty() || name.parse::<IpAddr>().is_ok() {
            return Ok(Cow::Borrowed(config));
        }
        let away = |error: std::io::Error| StoreError::Unavailable(error.to_string());
        let mut addresses = self.resolver.addresses(name).await.map_err(away)?.into_iter();
        let mut config = config.clone();
        // A host with two addresses is two hosts of one name.
        addresses.next().into_iter().for_each(|first| _ = config.hostaddr(first));
        addresses.for_each(|other| _ = config.host(name).hostaddr(other));
        Ok(Cow::Owned(config))
    }
}

/// The configuration for one of several hosts: which of them to use is not for the driver to say alone.
fn one_host(all: &Config, at: usize) -> Config {
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

/// Moves the bytes of a connection in a task of its own, and keeps the warnings that come with them. A warning comes
/// before the answer that it belongs to, so it is there when the answer is.
fn attend<S, T>((client, mut connection): (Client, Connection<S, T>)) -> NewConnection
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
                    *kept.lock() = Some(notice.message().to_owned());
                }
                Ok(_) => {}
                // A request that waits for an answer fails on its own.
                Err(error) => {
                    tracing::debug!(error = %words(&error), "connection to PostgreSQL closed");
                    return;
                }
            }
        }
    });
    NewConnection { client, warning, task: task.abort_handle() }
}

#[cfg(test)]
mod tests {
    use super::*;

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
