//! The protocol between holder and keeper: one JSON document per line over a socket. A closed socket means that the
//! other side has ended.

use std::{
    ffi::OsString,
    io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The longest line: a command line of the longest sort, every byte of it written as a number.
const LINE_BYTES_MAX: usize = 16 << 20;

/// A message from the holder to the keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeeperOrder {
    /// Start the command; this comes first, and once.
    Start(Box<Start>),
    Renewed(LeaseTerm),
    Signal(i32),
    /// One of several leases is lost: everything must end by this time. A later bound, or none, replaces it.
    Bound(Option<u64>),
    #[serde(rename = "farewell")]
    ExitHook(ExitHook),
    /// The lease is lost: SIGTERM now, and SIGKILL at this time or the deadline.
    Stop(u64),
}

/// How long the command may run, and the variables that show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerm {
    /// When everything must have ended, in milliseconds of `CLOCK_BOOTTIME`.
    pub stop_at_ms: u64,
    /// Variables that change while the command runs: at first in its environment, and always in its file.
    pub variables: Vec<(String, String)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    pub command: Vec<OsString>,
    pub env: Vec<(String, String)>,
    pub env_remove: Vec<String>,
    /// A folder for the file of variables that change: created at the start, removed at the end.
    pub folder: OsString,
    /// The holder's folder that contains it, if there is one.
    pub shared_folder: Option<OsString>,
    pub lasting: LeaseTerm,
    /// How long before the deadline it gets SIGTERM.
    pub warn_ms: u64,
    /// The process group from which the command takes the terminal and to which it goes back.
    pub terminal_of: Option<i32>,
    /// A cgroup to create, and to remove at the end; skipped where that is not permitted.
    pub cgroup: Option<OsString>,
    /// Run if the holder dies.
    #[serde(rename = "farewell")]
    pub exit_hook: ExitHook,
}

/// What the keeper runs, as this binary, if the holder has died by the time that the command has ended: it releases
/// the holder's leases, so that the next holder does not have to wait for their ttl.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitHook {
    /// The arguments of each command, one after the other. Each may be done twice.
    pub commands: Vec<Vec<String>>,
    /// The servers. Each command is sent to all of them at the same time, so that one that hangs delays nothing.
    pub servers: Vec<String>,
    /// What is added to their environment; the key may be in it.
    pub env: Vec<(String, OsString)>,
}

/// A message from the keeper to the holder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The command runs, under this pid, which is also its process group.
    Started(i32),
    NotStarted(String),
    /// It was not started, because it would have to be ended at once.
    TooLate,
    Stopped(i32),
    /// No renewal came: it was asked to end before the deadline.
    Warned,
    Exited(u8),
    /// Nothing is left of it.
    Gone,
}

/// A document and the end of its line.
pub fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

/// Sends lines to a process that may not read them now. What does not fit goes out later, whole and in order.
#[derive(Debug)]
pub struct Outbox {
    /// It never blocks.
    socket: UnixStream,
    unsent: Vec<u8>,
}

impl Outbox {
    /// Sends over a socket that was set not to block.
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, unsent: Vec::new() }
    }

    /// Sends a document as soon as the other side reads. False if there is too much already that it has not read.
    pub fn send(&mut self, message: &impl Serialize) -> io::Result<bool> {
        let line = line(message)?;
        if self.unsent.len() + line.len() > LINE_BYTES_MAX {
            return Ok(false);
        }
        self.unsent.extend(line);
        self.flush();
        Ok(true)
    }

    /// Sends what fits now. That the other side has ended is seen where it is read from.
    pub fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// Reads what is there. False when the other side has ended.
    pub fn fill(&mut self, socket: &mut impl Read) -> io::Result<bool> {
        let mut buffer = [0; 64 << 10];
        loop {
            match socket.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Killed with something unread: as good as closed.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
            if self.bytes.len() > LINE_BYTES_MAX {
                return Err(io::Error::other(format!("a line of more than {LINE_BYTES_MAX} bytes")));
            }
        }
    }

    /// The next whole line.
    pub fn take<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        serde_json::from_slice(&line).map(Some).map_err(io::Error::other)
    }
}

/// What is there of a socket of tokio's.
pub struct Available<'a>(pub &'a tokio::net::UnixStream);

impl Read for Available<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

/// Sends open files: what the command reads, since the keeper's own stdin is this socket, and what else it inherits.
pub fn send_files(socket: &UnixStream, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    message.push(SendAncillaryMessage::ScmRights(files));
    sendmsg(socket.as_fd(), &[IoSlice::new(b"\n")], &mut message, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub fn receive_files(socket: &UnixStream) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
    let files = message.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let mut files = files.flatten();
    let first = files.next().ok_or_else(|| io::Error::other("the holder sent no file"))?;
    Ok((first, files.next()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn any_command_line_goes_over() {
        let odd = OsString::from_vec(b"\xff\n\x01 \"".to_vec());
        let start = Start {
            command: vec!["true".into(), odd.clone(), OsString::new()],
            env: vec![("SOLEHOLD_HOLDER".to_owned(), "Müller 🚦\n".to_owned())],
            env_remove: Vec::new(),
            folder: odd.clone(),
            shared_folder: None,
            lasting: LeaseTerm { stop_at_ms: u64::MAX, variables: Vec::new() },
            warn_ms: 0,
            terminal_of: None,
            cgroup: None,
            exit_hook: ExitHook {
                commands: vec![vec!["session".into()]],
                servers: vec!["127.0.0.1:7070".into()],
                env: vec![("A".into(), "b".into())],
            },
        };
        let mut inbox = Inbox::default();
        let mut bytes = line(&KeeperOrder::Start(Box::new(start))).expect("a line");
        bytes.extend(line(&KeeperOrder::Signal(15)).expect("a line"));
        for chunk in bytes.chunks(7) {
            inbox.bytes.extend_from_slice(chunk);
        }
        let first = inbox.take::<KeeperOrder>().expect("good").expect("whole");
        let KeeperOrder::Start(start) = first else { panic!("{first:?}") };
        assert_eq!(start.command[1], odd);
        assert!(matches!(inbox.take::<KeeperOrder>(), Ok(Some(KeeperOrder::Signal(15)))));
        assert!(matches!(inbox.take::<KeeperOrder>(), Ok(None)));
    }

    #[test]
    fn orders_arrive_whole_also_when_they_are_read_late() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        for socket in [&ours, &theirs] {
            socket.set_nonblocking(true).expect("a socket");
        }
        let mut outbox = Outbox::new(ours);
        let mut inbox = Inbox::default();
        let exit_hook =
            |n: u64| ExitHook { commands: vec![vec![n.to_string().repeat(1_000)]], ..ExitHook::default() };
        for n in 0..1_000 {
            assert!(outbox.send(&KeeperOrder::ExitHook(exit_hook(n))).expect("a line"), "{n}");
        }
        assert!(!outbox.unsent.is_empty(), "more than the socket takes");
        let mut read = 0;
        while read < 1_000 {
            assert!(inbox.fill(&mut theirs).expect("open"));
            while let Some(order) = inbox.take::<KeeperOrder>().expect("whole lines") {
                assert!(matches!(order, KeeperOrder::ExitHook(told) if told == exit_hook(read)), "{read}");
                read += 1;
            }
            outbox.flush();
        }
    }

    #[test]
    fn files_go_over_and_the_end_is_seen() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let file = std::fs::File::open("/dev/null").expect("a file");
        send_files(&ours, &[file.as_fd()]).expect("sent");
        assert!(receive_files(&theirs).expect("received").1.is_none());
        send_files(&ours, &[file.as_fd(), theirs.as_fd()]).expect("sent");
        assert!(receive_files(&theirs).expect("received").1.is_some());
        drop(ours);
        assert!(!Inbox::default().fill(&mut theirs).expect("no error"));
    }
}
