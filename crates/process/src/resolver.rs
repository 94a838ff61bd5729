//! Addresses of hosts by their names. Those that are known serve while the name server does not answer.
//!
//! A process that has found a server must not lose it because its name cannot be looked up for a while: name servers of
//! containers restart when one of them goes.

use std::{collections::HashMap, io, net::IpAddr, pin::Pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{net::lookup_host, sync::Semaphore, time::timeout};

/// A lookup that takes longer is not waited for, if addresses are known.
const PATIENCE: Duration = Duration::from_millis(500);
/// Names whose addresses are kept.
const NAMES_MAX: usize = 256;

type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Looks names up, and remembers what was found.
pub struct Resolver {
    lookup: Box<dyn Fn(String) -> Looking + Send + Sync>,
    hosts: Mutex<HashMap<String, Arc<Host>>>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Default for Resolver {
    /// Asks the system's resolver.
    fn default() -> Self {
        Self::new(|name| async move {
            // It wants a port, and looks only the name up.
            Ok(lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
        })
    }
}

struct Host {
    /// Taken by the one lookup that is under way: those that hang do not pile up.
    looking: Arc<Semaphore>,
    last: Mutex<LastLookup>,
}

#[derive(Default)]
struct LastLookup {
    known: Vec<IpAddr>,
    error: Option<String>,
    /// Whether it was logged that what is known is used.
    is_logged: bool,
}

impl Resolver {
    fn new<F>(lookup: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        Self { lookup: Box::new(move |name| Box::pin(lookup(name))), hosts: Mutex::default() }
    }

    /// The addresses of a host: what the name server says now or, if that fails or takes long, what it said last.
    pub async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let host = self.host(name);
        if let Ok(permit) = host.looking.clone().try_acquire_owned() {
            let looking = (self.lookup)(name.to_owned());
            let host = host.clone();
            tokio::spawn(async move {
                host.note(looking.await);
                drop(permit);
            });
        }
        let ended = async { drop(host.looking.acquire().await) };
        let is_known = !host.last.lock().known.is_empty();
        // Without any, the caller says how long to wait.
        let patience = if is_known { PATIENCE } else { Duration::MAX };
        let is_late = timeout(patience, ended).await.is_err();
        host.answer(name, is_late)
    }

    fn host(&self, name: &str) -> Arc<Host> {
        let mut hosts = self.hosts.lock();
        if hosts.len() >= NAMES_MAX && !hosts.contains_key(name) {
            hosts.clear();
        }
        let new = || Arc::new(Host { looking: Arc::new(Semaphore::new(1)), last: Mutex::default() });
        hosts.entry(name.to_owned()).or_insert_with(new).clone()
    }
}

impl Host {
    fn note(&self, found: io::Result<Vec<IpAddr>>) {
        let mut last = self.last.lock();
        match found {
            Ok(addresses) if !addresses.is_empty() => {
                *last = LastLookup { known: addresses, ..LastLookup::default() };
            }
            Ok(_) => last.error = Some("it has no address".to_owned()),
            Err(error) => last.error = Some(error.to_string()),
        }
    }

    fn answer(&self, name: &str, is_late: bool) -> io::Result<Vec<IpAddr>> {
        let mut last = self.last.lock();
        let why = if is_late { Some("no answer") } else { last.error.as_deref() };
        let Some(why) = why.map(str::to_owned) else { return Ok(last.known.clone()) };
        if last.known.is_empty() {
            return Err(io::Error::other(format!("cannot look up {name}: {why}")));
        }
        if !last.is_logged {
            last.is_logged = true;
            tracing::warn!(host = name, error = why, "cannot look up a host; using its last known addresses");
        }
        Ok(last.known.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// What the name server does.
    #[derive(Clone, Copy)]
    enum Server {
        Answers(u8),
        Fails,
        Hangs,
    }

    fn resolver(server: &Arc<Mutex<Server>>, asked: &Arc<AtomicUsize>) -> Resolver {
        let server = server.clone();
        let asked = asked.clone();
        Resolver::new(move |_| {
            let now = *server.lock();
            asked.fetch_add(1, Ordering::SeqCst);
            async move {
                match now {
                    Server::Answers(last) => Ok(vec![address(last)]),
                    Server::Fails => Err(io::Error::other("no such name")),
                    Server::Hangs => std::future::pending().await,
                }
            }
        })
    }

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_serve_while_the_name_server_is_away() {
        let server = Arc::new(Mutex::new(Server::Fails));
        let asked = Arc::new(AtomicUsize::new(0));
        let resolver = resolver(&server, &asked);
        let error = resolver.addresses("db").await.expect_err("nothing is known");
        assert_eq!(error.to_string(), "cannot look up db: no such name");

        *server.lock() = Server::Answers(1);
        assert_eq!(resolver.addresses("db").await.expect("answered"), [address(1)]);
        *server.lock() = Server::Fails;
        assert_eq!(resolver.addresses("db").await.expect("known"), [address(1)]);
        assert!(resolver.addresses("other").await.is_err(), "of another host nothing is known");
        // It is asked each time, so a host that moved is found.
        *server.lock() = Server::Answers(2);
        assert_eq!(resolver.addresses("db").await.expect("answered"), [address(2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_that_hang_do_not_pile_up() {
        let server = Arc::new(Mutex::new(Server::Answers(1)));
        let asked = Arc::new(AtomicUsize::new(0));
        let resolver = resolver(&server, &asked);
        assert!(resolver.addresses("db").await.is_ok());
        *server.lock() = Server::Hangs;
        for _ in 0..10 {
            assert_eq!(resolver.addresses("db").await.expect("known"), [address(1)]);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn the_system_is_asked() {
        let found = Resolver::default().addresses("localhost").await.expect("this machine");
        assert!(found.iter().all(IpAddr::is_loopback) && !found.is_empty(), "{found:?}");
    }
}
