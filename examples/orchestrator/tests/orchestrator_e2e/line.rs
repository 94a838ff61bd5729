//! A line to the broker that can be cut for one process while the others go on.
//!
//! Clients of Kafka connect to the address that the broker gives them, so all of them come to the same place. Whose a
//! connection is, is told by the kernel.

use std::{collections::HashSet, fs, net::SocketAddr, path::Path};

use anyhow::Result;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// Forwards to the broker.
pub struct Line {
    cut: watch::Sender<HashSet<u32>>,
    _accepting: JoinSet<()>,
}

impl Line {
    pub async fn start(listener: TcpListener, target: SocketAddr) -> Result<Self> {
        let (cut, is_cut) = watch::channel(HashSet::new());
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, peer)) = listener.accept().await {
                connections.spawn(forward(client, peer, target, is_cut.clone()));
            }
        });
        Ok(Self { cut, _accepting: accepting })
    }

    /// Ends the connections of a process, and refuses new ones.
    pub fn cut(&self, pid: u32) {
        self.cut.send_modify(|cut| {
            cut.insert(pid);
        });
    }

    pub fn restore(&self) {
        self.cut.send_modify(HashSet::clear);
    }
}

async fn forward(
    mut client: TcpStream,
    peer: SocketAddr,
    target: SocketAddr,
    mut cut: watch::Receiver<HashSet<u32>>,
) {
    // The broker itself comes here, too: what nobody is known to own is only forwarded.
    let inode = inode(peer).unwrap_or_default();
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = cut.wait_for(|cut| cut.iter().any(|pid| owns(*pid, &inode))) => {}
    }
}

/// What the kernel calls the client's end of a connection. Java connects to IPv4 by sockets of IPv6.
fn inode(peer: SocketAddr) -> Option<String> {
    let port = format!(":{:04X}", peer.port());
    let find = |table: &str| {
        let table = fs::read_to_string(table).ok()?;
        let mut rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.get(1).is_some_and(|local| local.ends_with(&port)))?;
        row.get(9).map(|inode| format!("socket:[{inode}]"))
    };
    find("/proc/net/tcp").or_else(|| find("/proc/net/tcp6"))
}

fn owns(pid: u32, inode: &str) -> bool {
    let Ok(files) = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")) else { return false };
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| link.to_string_lossy() == inode))
}
