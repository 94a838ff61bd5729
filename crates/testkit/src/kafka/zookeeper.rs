//! As much of ZooKeeper's protocol as it takes to make topics for a broker that is older than requests for that.

use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::wire::{Reader, Wire, Writer};

const SESSION_MS: i32 = 10_000;
const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const CLOSE: i32 = -11;
const OK: i32 = 0;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
const ALL_RIGHTS: i32 = 31;
const PERSISTENT: i32 = 0;

/// A session, which is closed at the end.
#[derive(Debug)]
pub(super) struct ZooKeeper(Wire);

impl ZooKeeper {
    pub(super) fn connect(to: SocketAddr) -> Result<Self> {
        let mut wire = Wire::connect(to)?;
        let protocol = 0;
        let last_seen = 0;
        let no_session = 0;
        let ask =
            Writer::default().i32(protocol).i64(last_seen).i32(SESSION_MS).i64(no_session).long(&[0; 16]);
        let mut answer = wire.ask(ask)?;
        let _protocol = answer.i32()?;
        let timeout = answer.i32()?;
        anyhow::ensure!(timeout > 0, "ZooKeeper opened no session");
        Ok(Self(wire))
    }

    /// Makes a node; one that is there is left as it is, and that is told.
    pub(super) fn create(&mut self, path: &str, data: &str) -> Result<bool> {
        let acls = 1;
        let anyone = ("world", "anyone");
        let ask = Self::request(CREATE).long(path.as_bytes()).long(data.as_bytes());
        let ask = ask.i32(acls).i32(ALL_RIGHTS).long(anyone.0.as_bytes()).long(anyone.1.as_bytes());
        match Self::code(&mut self.0.ask(ask.i32(PERSISTENT))?)? {
            OK => Ok(true),
            NODE_EXISTS => Ok(false),
            code => bail!("ZooKeeper does not make {path}: error {code}"),
        }
    }

    pub(super) fn exists(&mut self, path: &str) -> Result<bool> {
        let without_watch = 0;
        let ask = Self::request(EXISTS).long(path.as_bytes()).byte(without_watch);
        match Self::code(&mut self.0.ask(ask)?)? {
            OK => Ok(true),
            NO_NODE => Ok(false),
            code => bail!("ZooKeeper does not look for {path}: error {code}"),
        }
    }

    fn request(operation: i32) -> Writer {
        let only_one = 1;
        Writer::default().i32(only_one).i32(operation)
    }

    fn code(answer: &mut Reader) -> Result<i32> {
        let _id = answer.i32()?;
        let _transaction = answer.i64()?;
        answer.i32()
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        let _ = self.0.ask(Self::request(CLOSE));
    }
}
