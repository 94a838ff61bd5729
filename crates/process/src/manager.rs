//! What a process reports to the service manager that started it, by the protocol of `sd_notify(3)`: lines of
//! `NAME=VALUE` in a datagram to the socket that `NOTIFY_SOCKET` names. Without that variable nothing is reported.

use std::{
    convert::Infallible,
    env,
    ffi::OsString,
    fmt::Display,
    future::pending,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    pin::pin,
    process,
    sync::Arc,
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval, timeout};

/// The variables of the protocol. They are for this process alone: its children must not inherit them, since they would
/// report in its name.
pub const VARIABLES: [&str; 3] = [NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC];
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_PID: &str = "WATCHDOG_PID";
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// How long a report may wait for a service manager that does not read.
const SEND_WITHIN: Duration = Duration::from_secs(1);
/// The longest status in characters; `systemctl status` shows one line of it.
const STATUS_CHARS_MAX: usize = 300;

/// The service manager that started this process, if one did. Clones report to the same one.
#[derive(Debug, Clone, Default)]
pub struct ServiceManager {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// Without a report for this long, it takes the process for hung.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment names. A variable that cannot be used is logged, and nothing is reported then.
    pub fn of_process() -> Self {
        Self::new(|name| env::var_os(name)).unwrap_or_else(|error| {
            tracing::warn!(error, "cannot report to the service manager");
            Self::default()
        })
    }

    fn new(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(name) = given(NOTIFY_SOCKET) else { return Ok(Self::default()) };
        let open = || -> io::Result<_> {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(SEND_WITHIN))?;
            Ok((socket, address(name.as_bytes())?))
        };
        let opened = open().map_err(|error| format!("{NOTIFY_SOCKET} is {name:?}: {error}"))?;
        let number = |name: &str| -> Result<Option<u64>, String> {
            let Some(text) = given(name) else { return Ok(None) };
            let parsed = text.to_str().and_then(|text| text.parse().ok());
            parsed.map(Some).ok_or_else(|| format!("{name} is {text:?}, which is not a whole number"))
        };
        let is_ours = number(WATCHDOG_PID)?.is_none_or(|pid| pid == u64::from(process::id()));
        let interval = number(WATCHDOG_USEC)?.filter(|usec| is_ours && *usec > 0);
        Ok(Self { socket: Some(Arc::new(opened)), watchdog: interval.map(Duration::from_micros) })
    }

    /// The process does its work from now on.
    pub fn ready(&self, status: &str) {
        self.report(&format!("READY=1\n{}", line(status)));
    }

    /// What it is doing, for people.
    pub fn status(&self, status: &str) {
        self.report(&line(status));
    }

    /// It was asked to end, and finishes what it has begun.
    pub fn stopping(&self, status: &str) {
        self.report(&format!("STOPPING=1\n{}", line(status)));
    }

    /// Reports that the process is alive, twice in the interval of the watchdog, for as long as `probe` succeeds. Where
    /// it does not return, nothing is reported, and the service manager restarts the process; where it fails, it is
    /// asked to do so at once. Poll this in the task that does the work, so that it stands still when that does.
    pub async fn keep_alive<E: Display>(&self, probe: impl AsyncFn() -> Result<(), E>) -> Infallible {
        let Some(limit) = self.watchdog else { return pending().await };
        let every = limit / 2;
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut probing = pin!(probe());
            let answer = match timeout(every, &mut probing).await {
                Ok(answer) => answer,
                Err(_) => {
                    tracing::error!(waited = ?every, "the process does not get on; its watchdog will end it");
                    probing.await
                }
            };
            match answer {
                Ok(()) => self.report("WATCHDOG=1"),
                Err(error) => {
                    tracing::error!(%error, "the process cannot go on; asking to be restarted");
                    self.report(&format!("WATCHDOG=trigger\n{}", line(&error.to_string())));
                }
            }
        }
    }

    fn report(&self, text: &str) {
        let Some((socket, address)) = self.socket.as_deref() else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), address) {
            tracing::warn!(%error, report = text, "cannot report to the service manager");
        }
    }
}

/// A probe for a process whose work is done in the task that polls [`ServiceManager::keep_alive`].
pub async fn turns() -> Result<(), Infallible> {
    Ok(())
}

/// `@` stands for the zero byte with which the name of an abstract socket begins.
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
        _ => Err(io::Error::other("it must be a path from the root, or begin with @")),
    }
}

/// A status in one line.
fn line(status: &str) -> String {
    let status = status.chars().map(|c| if c.is_control() { ' ' } else { c }).take(STATUS_CHARS_MAX);
    format!("STATUS={}", status.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// A service manager with an abstract socket, and what is reported to it.
    fn manager(name: &str, watchdog: Duration) -> (ServiceManager, UnixDatagram) {
        let name = format!("solehold-manager-{name}-{}", process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("a socket");
        socket.set_read_timeout(Some(SOON)).expect("a timeout");
        let variables = |variable: &str| match variable {
            NOTIFY_SOCKET => Some(format!("@{name}").into()),
            WATCHDOG_PID => Some(process::id().to_string().into()),
            WATCHDOG_USEC => Some(watchdog.as_micros().to_string().into()),
            _ => None,
        };
        (ServiceManager::new(variables).expect("good variables"), socket)
    }

    fn next(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1_024];
        let length = socket.recv(&mut buffer).expect("a report");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// How many reports of one kind there are, and no others.
    fn count(socket: &UnixDatagram, expected: &str) -> usize {
        socket.set_nonblocking(true).expect("nonblocking");
        let mut buffer = [0; 1_024];
        let reports = std::iter::from_fn(|| {
            let length = socket.recv(&mut buffer).ok()?;
            assert_eq!(String::from_utf8_lossy(&buffer[..length]), expected);
            Some(())
        });
        reports.count()
    }

    #[test]
    fn reports_are_lines() {
        let (manager, socket) = manager("lines", SOON);
        manager.status("waiting\nfor it");
        manager.ready("listening");
        manager.stopping("draining");
        assert_eq!(next(&socket), "STATUS=waiting for it");
        assert_eq!(next(&socket), "READY=1\nSTATUS=listening");
        assert_eq!(next(&socket), "STOPPING=1\nSTATUS=draining");
        assert_eq!(line(&"x".repeat(1_000)).len(), "STATUS=".len() + STATUS_CHARS_MAX);
    }

    #[test]
    fn odd_variables_are_refused_and_those_of_others_ignored() {
        let with = |pairs: &[(&str, &str)]| {
            let found = |name: &str| pairs.iter().find(|(known, _)| *known == name);
            ServiceManager::new(|name| found(name).map(|(_, value)| (*value).into()))
        };
        let none = with(&[(WATCHDOG_USEC, "1000000")]).expect("no socket");
        assert!(none.socket.is_none() && none.watchdog.is_none());
        none.ready("nobody hears this");
        for (name, value) in [
            (NOTIFY_SOCKET, "relative"),
            (WATCHDOG_USEC, "soon"),
            (WATCHDOG_PID, "me"),
            (WATCHDOG_USEC, "-1"),
        ] {
            let error = with(&[(NOTIFY_SOCKET, "/x"), (name, value)].into_iter().rev().collect::<Vec<_>>())
                .expect_err(value);
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
        let socket = (NOTIFY_SOCKET, "/x");
        let others = with(&[socket, (WATCHDOG_PID, "1"), (WATCHDOG_USEC, "1000000")]).expect("good");
        assert_eq!(others.watchdog, None, "the watchdog of another process");
        assert_eq!(with(&[socket, (WATCHDOG_USEC, "0")]).expect("good").watchdog, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_gets_on_reports_twice_in_the_interval() {
        let limit = Duration::from_secs(10);
        let (manager, socket) = manager("alive", limit);
        // At once, and then every five seconds.
        assert!(timeout(limit * 4 - limit / 4, manager.keep_alive(turns)).await.is_err());
        assert_eq!(count(&socket, "WATCHDOG=1"), 8);
        let manager = ServiceManager { watchdog: None, ..manager };
        assert!(timeout(limit * 4, manager.keep_alive(turns)).await.is_err());
        assert_eq!(count(&socket, ""), 0, "without a watchdog");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_reported_while_the_probe_stands_still() {
        let limit = Duration::from_secs(10);
        let (manager, socket) = manager("stuck", limit);
        let probes = AtomicU32::new(0);
        let probe = async || match probes.fetch_add(1, Ordering::Relaxed) {
            0..3 => Ok::<(), Infallible>(()),
            // Longer than it is waited for, and then it gets on again.
            3 => {
                let _ = timeout(limit * 10, pending::<()>()).await;
                Ok(())
            }
            _ => pending().await,
        };
        assert!(timeout(limit * 9, manager.keep_alive(&probe)).await.is_err());
        assert_eq!(count(&socket, "WATCHDOG=1"), 3);
        probes.store(3, Ordering::Relaxed);
        assert!(timeout(limit * 30, manager.keep_alive(&probe)).await.is_err());
        assert_eq!(count(&socket, "WATCHDOG=1"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_fails_asks_for_a_restart() {
        let limit = Duration::from_secs(10);
        let (manager, socket) = manager("failing", limit);
        let failed = async || Err("a lane has died");
        assert!(timeout(limit / 4, manager.keep_alive(failed)).await.is_err());
        assert_eq!(count(&socket, "WATCHDOG=trigger\nSTATUS=a lane has died"), 1);
    }
}
