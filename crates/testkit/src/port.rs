//! Ports that no other test gets.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::cache;

/// Below the range from which Linux takes ports for outgoing connections, so that the port of a stopped
/// server is still free when it starts again.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A loopback port, kept from other test processes by a file lock as long as this value lives.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _lock: File,
}

impl Port {
    /// Reserves a port on which no process listens.
    pub(crate) fn reserve() -> Result<Self> {
        let locks = cache::folder()?.join("ports");
        std::fs::create_dir_all(&locks).with_context(|| format!("cannot make {}", locks.display()))?;
        let start = RandomState::new().build_hasher().finish() % u64::from(COUNT);
        for step in 0..COUNT {
            let number = FIRST + (start as u16 + step) % COUNT;
            let lock = File::create(locks.join(number.to_string()))?;
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        bail!("no free port from {FIRST} to {}", FIRST + COUNT - 1)
    }
}

/// A free loopback port, which no other caller on this machine is given while this process lives.
pub fn free_port() -> Result<u16> {
    static TAKEN: Mutex<Vec<Port>> = Mutex::new(Vec::new());
    let port = Port::reserve()?;
    let number = port.number;
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(port);
    Ok(number)
}
