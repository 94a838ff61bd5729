//! The way from agents to servers, on which each kind of request is late or loses its response on its own.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use solehold_testkit::{Fate, RequestProxy};

use crate::chance::Chance;

/// What a request is for, as far as its lateness matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Heartbeat,
    Acquire,
    Cancel,
    Release,
    HandOver,
    /// A request that waits for what changes for a session.
    News,
    Other,
}

impl Kind {
    fn of(first_line: &str) -> Self {
        let mut words = first_line.split(' ');
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        match method {
            "POST" if path.ends_with("/heartbeat") => Self::Heartbeat,
            "POST" if path.ends_with("/acquire") || path.ends_with("/lease") => Self::Acquire,
            "POST" if path.ends_with("/cancel") => Self::Cancel,
            "POST" if path.ends_with("/release") => Self::Release,
            "DELETE" if path.ends_with("/lease") => Self::Release,
            "POST" if path.ends_with("/sessions/news") => Self::News,
            _ if path.ends_with("/handover") => Self::HandOver,
            _ => Self::Other,
        }
    }
}

/// How bad it is at present.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// How late requests of these kinds are: at least half of it, and at most all of it.
    pub release: Duration,
    pub cancel: Duration,
    pub hand_over: Duration,
    pub acquire: Duration,
    pub heartbeat: Duration,
    /// When these are late, an agent learns of changes by its heartbeats alone.
    pub news: Duration,
    /// How many of a hundred acquires lose their response.
    pub lost_acquires: usize,
}

impl Weather {
    fn fate(&self, kind: Kind, chance: &mut Chance) -> Fate {
        let most = match kind {
            Kind::Heartbeat => self.heartbeat,
            Kind::Acquire => self.acquire,
            Kind::Cancel => self.cancel,
            Kind::Release => self.release,
            Kind::HandOver => self.hand_over,
            Kind::News => self.news,
            Kind::Other => Duration::ZERO,
        };
        let is_answer_lost = kind == Kind::Acquire && chance.percent(self.lost_acquires);
        Fate { delay: most / 2 + chance.up_to(most / 2), is_answer_lost }
    }
}

/// The proxies before the servers.
pub struct Network {
    weather: Arc<Mutex<Weather>>,
    releases: Arc<AtomicUsize>,
    proxies: Vec<RequestProxy>,
}

impl Network {
    pub async fn start(servers: &[SocketAddr], seed: u64) -> Result<Self> {
        let weather = Arc::new(Mutex::new(Weather::default()));
        let chance = Arc::new(Mutex::new(Chance(seed)));
        let releases = Arc::new(AtomicUsize::new(0));
        let mut proxies = Vec::new();
        for server in servers {
            let weather = weather.clone();
            let chance = chance.clone();
            let releases = releases.clone();
            let fate = move |first_line: &str| {
                let weather = *weather.lock().expect("no thread panics with it");
                let kind = Kind::of(first_line);
                if kind == Kind::Release {
                    releases.fetch_add(1, Ordering::SeqCst);
                }
                weather.fate(kind, &mut chance.lock().expect("no thread panics with it"))
            };
            proxies.push(RequestProxy::start(*server, fate).await?);
        }
        Ok(Self { weather, releases, proxies })
    }

    pub fn set(&self, weather: Weather) {
        *self.weather.lock().expect("no thread panics with it") = weather;
    }

    /// How many releases were sent so far.
    pub fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }

    pub fn urls(&self) -> Vec<String> {
        self.proxies.iter().map(RequestProxy::url).collect()
    }
}

#[test]
fn requests_are_told_apart() {
    for (line, kind) in [
        ("POST /api/v1/sessions/7/heartbeat HTTP/1.1", Kind::Heartbeat),
        ("POST /api/v1/leases/batch/acquire HTTP/1.1", Kind::Acquire),
        ("POST /api/v1/resources/job/a/lease?tenant=x HTTP/1.1", Kind::Acquire),
        ("POST /api/v1/resources/job/a/lease/cancel HTTP/1.1", Kind::Cancel),
        ("POST /api/v1/leases/batch/release HTTP/1.1", Kind::Release),
        ("DELETE /api/v1/resources/job/a/handover HTTP/1.1", Kind::HandOver),
        ("POST /api/v1/sessions/news HTTP/1.1", Kind::News),
        ("POST /api/v1/sessions HTTP/1.1", Kind::Other),
    ] {
        assert_eq!(Kind::of(line), kind, "{line}");
    }
}
