//! A worker's output, drained into the log under its name, so that it never blocks on a full pipe.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest line that is logged whole; a longer one is cut into several.
const LINE_BYTES_MAX: usize = 8 << 10;

pub async fn drain(mut from: impl AsyncRead + Unpin, worker: String, stream: &'static str) {
    let mut lines = Cutter::default();
    let mut piece = [0; 4096];
    loop {
        match from.read(&mut piece).await {
            Ok(0) => break,
            Ok(count) => lines.push(&piece[..count], |line| log(&worker, stream, line)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    lines.finish(|line| log(&worker, stream, line));
}

fn log(worker: &str, stream: &'static str, line: &str) {
    tracing::info!(target: "worker", worker, stream, "{line}");
}

/// Cuts bytes into lines of bounded length.
#[derive(Debug, Default)]
struct Cutter(Vec<u8>);

impl Cutter {
    fn push(&mut self, bytes: &[u8], mut tell: impl FnMut(&str)) {
        for byte in bytes {
            if *byte == b'\n' || self.0.len() >= LINE_BYTES_MAX {
                self.finish(&mut tell);
            }
            if *byte != b'\n' {
                self.0.push(*byte);
            }
        }
    }

    fn finish(&mut self, mut tell: impl FnMut(&str)) {
        let line = std::mem::take(&mut self.0);
        let text = String::from_utf8_lossy(&line);
        if !text.trim_end().is_empty() {
            tell(text.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_none_is_lost() {
        let mut cutter = Cutter::default();
        let mut told = Vec::<String>::new();
        cutter.push(b"one\ntwo\r\n\nthr", |line| told.push(line.to_owned()));
        cutter.push(b"ee\n\xff", |line| told.push(line.to_owned()));
        cutter.finish(|line| told.push(line.to_owned()));
        assert_eq!(told, ["one", "two", "three", "\u{fffd}"]);
        told.clear();
        cutter.push(&vec![b'x'; LINE_BYTES_MAX * 2 + 5], |line| told.push(line.to_owned()));
        cutter.finish(|line| told.push(line.to_owned()));
        assert_eq!(told.iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES_MAX, LINE_BYTES_MAX, 5]);
    }
}
