//! One connection of a worker's. Reading and writing have tasks of their own: a worker that does not read delays
//! nothing but itself.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinHandle,
};

use super::protocol::{self, FromWorker, Lines, MessageError, ToWorker};

const UNREAD_MAX: usize = 256;
/// Messages of the worker's that wait to be taken up; then its writes block.
pub const HEARD_MAX: usize = 64;

/// The number of a connection, and a message that it received.
pub type Heard = (u64, Result<FromWorker, MessageError>);

/// A connection. It ends with this value.
#[derive(Debug)]
pub struct Link {
    /// Its number: what comes over an earlier connection is not taken for this one's.
    pub number: u64,
    unread: mpsc::Sender<Vec<u8>>,
    tasks: [JoinHandle<()>; 2],
}

impl Link {
    /// Takes a connection up; what comes over it is sent to `heard`.
    pub fn new(number: u64, stream: UnixStream, heard: mpsc::Sender<Heard>) -> Self {
        let (reading, writing) = stream.into_split();
        let (unread, lines) = mpsc::channel(UNREAD_MAX);
        let tasks = [tokio::spawn(read(number, reading, heard)), tokio::spawn(write(writing, lines))];
        Self { number, unread, tasks }
    }

    /// Sends a message to the worker; false if too many earlier ones are unread.
    pub fn tell(&self, message: &ToWorker) -> bool {
        self.unread.try_send(protocol::line(message)).is_ok()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn read(number: u64, mut from: OwnedReadHalf, heard: mpsc::Sender<Heard>) {
    let mut lines = Lines::default();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        lines.push(&piece[..count]);
        while let Some(line) = lines.next() {
            let message = line.and_then(|line| protocol::read(&line));
            if heard.send((number, message)).await.is_err() {
                return;
            }
        }
    }
}

async fn write(mut to: OwnedWriteHalf, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if to.write_all(&line).await.is_err() {
            break;
        }
    }
}
