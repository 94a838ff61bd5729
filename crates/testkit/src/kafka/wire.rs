//! Requests and answers as both ZooKeeper and Kafka write them: a length, then numbers and texts, big end first.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// No answer here is larger.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn i16(mut self, value: i16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn i32(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn i64(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// With a length of four bytes, as ZooKeeper has it.
    pub(super) fn long(self, bytes: &[u8]) -> Self {
        self.i32(bytes.len() as i32).raw(bytes)
    }

    /// With a length of two bytes, as Kafka has it.
    pub(super) fn short(self, text: &str) -> Self {
        self.i16(text.len() as i16).raw(text.as_bytes())
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

/// An answer, read from its beginning.
#[derive(Debug)]
pub(super) struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    pub(super) fn i16(&mut self) -> Result<i16> {
        self.take().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64> {
        self.take().map(i64::from_be_bytes)
    }

    pub(super) fn skip_short(&mut self) -> Result<()> {
        self.at += self.i16()?.max(0) as usize;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let end = self.at + N;
        let bytes = self.bytes.get(self.at..end).context("the answer is too short")?;
        self.at = end;
        Ok(bytes.try_into()?)
    }
}

/// A connection that has one request under way at a time.
#[derive(Debug)]
pub(super) struct Wire(TcpStream);

impl Wire {
    pub(super) fn connect(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&to, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    pub(super) fn ask(&mut self, request: Writer) -> Result<Reader> {
        let framed = Writer::default().long(&request.0);
        self.0.write_all(&framed.0)?;
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let length = i32::from_be_bytes(length);
        let Some(length) = usize::try_from(length).ok().filter(|length| *length <= ANSWER_BYTES_MAX) else {
            bail!("an answer of {length} bytes");
        };
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok(Reader { bytes, at: 0 })
    }
}
