//! A load of acquire and release cycles over HTTP, the same for ours and for the hand-written SQL.
//!
//! Each connection has its own scenes and cycles through them: acquire, release, next. So nothing is refused, and what
//! is measured is the cost of a cycle. The client is as thin as it can be, since it shares the machine with the
//! servers.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// Scenes that each connection goes round.
pub const SCENES_A_CONNECTION: usize = 4;
/// Where our scenes are.
pub const SCENES: &str = "/api/v1/scenes";
/// Where those of the hand-written SQL are, behind the same HTTP layer.
pub const HAND_WRITTEN_SCENES: &str = "/api/v1/hand-written/scenes";
/// Largest answer that the client reads.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The result of a load.
#[derive(Debug)]
pub struct Measurement {
    /// Cycles that were completed.
    pub cycles: u64,
    /// How long it took.
    pub took: Duration,
    /// What this process spent on it, client and server.
    pub cpu: Duration,
    /// How long each request took, in microseconds.
    pub latency_us: Histogram<u64>,
}

impl Measurement {
    /// Cycles per second.
    pub fn rate(&self) -> f64 {
        self.cycles as f64 / self.took.as_secs_f64()
    }
}

/// Up to a minute, in microseconds.
pub fn latencies() -> Result<Histogram<u64>> {
    Histogram::new_with_max(60_000_000, 3).context("a histogram")
}

/// What this process has spent so far.
pub fn cpu() -> Result<Duration> {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.try_into().context("the time that this process has spent")
}

/// The name of a connection's scene.
pub fn scene(connection: usize, index: usize) -> String {
    format!("bench-{connection}-{index}")
}

/// Runs cycles over `connections` connections for `duration`; `scenes` is the path that they are under.
pub async fn cycles(
    server: SocketAddr,
    scenes: &'static str,
    connections: usize,
    duration: Duration,
) -> Result<Measurement> {
    let mut clients = JoinSet::new();
    let began = Instant::now();
    let spent = cpu()?;
    let until = began + duration;
    for connection in 0..connections {
        clients.spawn(client(server, scenes, connection, until));
    }
    let mut measured =
        Measurement { cycles: 0, took: Duration::ZERO, cpu: Duration::ZERO, latency_us: latencies()? };
    while let Some(done) = clients.join_next().await {
        let (cycles, latency) = done.context("a client ended badly")??;
        measured.cycles += cycles;
        measured.latency_us.add(latency).context("histograms of one shape")?;
    }
    measured.took = began.elapsed();
    measured.cpu = cpu()?.saturating_sub(spent);
    Ok(measured)
}

async fn client(
    server: SocketAddr,
    scenes: &str,
    connection: usize,
    until: Instant,
) -> Result<(u64, Histogram<u64>)> {
    let mut wire = Wire::open(server).await?;
    let holder = format!(r#"{{"holder_id": "bench-{connection}"}}"#);
    let requests: Vec<_> = (0..SCENES_A_CONNECTION)
        .map(|index| {
            let path = format!("{scenes}/{}/lease", scene(connection, index));
            (request("POST", &path, &holder), request("DELETE", &path, &holder))
        })
        .collect();
    let mut cycles = 0;
    let mut latency = latencies()?;
    for (acquire, release) in requests.iter().cycle() {
        for (request, expected) in [(acquire, 201), (release, 204)] {
            let sent = Instant::now();
            let status = wire.ask(request).await?;
            latency.saturating_record(sent.elapsed().as_micros() as u64);
            if status != expected {
                bail!("the server answered {status} where {expected} was due: {}", wire.text());
            }
        }
        cycles += 1;
        if Instant::now() >= until {
            break;
        }
    }
    Ok((cycles, latency))
}

/// A request with its head and body.
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// One keep-alive connection that sends a request and reads its answer.
pub struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Wire {
    /// Connects.
    pub async fn open(server: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(server).await.context("connecting to the server")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; ANSWER_BYTES_MAX], filled: 0 })
    }

    /// Sends a request and reads the whole answer; returns its status.
    pub async fn ask(&mut self, request: &[u8]) -> Result<u16> {
        self.stream.write_all(request).await.context("sending a request")?;
        self.filled = 0;
        loop {
            let read =
                self.stream.read(&mut self.buffer[self.filled..]).await.context("reading an answer")?;
            if read == 0 {
                bail!("the server closed the connection in the middle of an answer");
            }
            self.filled += read;
            if let Some(status) = whole(&self.buffer[..self.filled])? {
                return Ok(status);
            }
            if self.filled == self.buffer.len() {
                bail!("an answer has more than {ANSWER_BYTES_MAX} bytes");
            }
        }
    }

    /// The body of the last answer.
    pub fn body(&self) -> &[u8] {
        let answer = &self.buffer[..self.filled];
        end_of_head(answer).map_or(&[], |end| &answer[end + 4..])
    }

    /// The last answer as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.buffer[..self.filled]).into_owned()
    }
}

fn end_of_head(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|w| w == b"\r\n\r\n")
}

/// The status of an answer, if all of it is there.
fn whole(answer: &[u8]) -> Result<Option<u16>> {
    let Some(end) = end_of_head(answer) else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end]).context("the head of an answer")?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).context("a status line")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let is_whole = answer.len() >= end + 4 + length.unwrap_or(0);
    Ok(is_whole.then_some(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_body_is_there() {
        let answer = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}";
        for cut in 0..answer.len() {
            assert_eq!(whole(&answer[..cut]).expect("a good answer"), None);
        }
        assert_eq!(whole(answer).expect("a good answer"), Some(201));
        assert_eq!(whole(b"HTTP/1.1 204 No Content\r\n\r\n").expect("a good answer"), Some(204));
        assert!(whole(b"nonsense\r\n\r\n").is_err());
    }
}
