//! Connections on which anything can be written.

use std::{io::ErrorKind, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::common::SOON;

/// The receive buffer of a client that does not read, in bytes: as small as the kernel allows.
const SMALL_BUFFER: u32 = 4_096;

pub async fn connect(address: &str) -> Result<TcpStream> {
    Ok(TcpStream::connect(address).await?)
}

pub async fn connect_all(address: &str, count: usize) -> Result<Vec<TcpStream>> {
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        all.push(connect(address).await.with_context(|| format!("connection {number}"))?);
    }
    Ok(all)
}

/// A connection whose client takes in next to nothing.
pub async fn connect_narrow(address: &str) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(SMALL_BUFFER)?;
    Ok(socket.connect(address.parse()?).await?)
}

/// The answers to one piece of text, until the server closes the connection.
pub async fn said_to(address: &str, text: &[u8]) -> Result<String> {
    let mut stream = connect(address).await?;
    // A server that has refused need not read the rest.
    let _ = stream.write_all(text).await;
    rest(&mut stream).await
}

/// Whatever the server still sends until it closes the connection.
pub async fn rest(stream: &mut TcpStream) -> Result<String> {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await;
    match read.context("the server does not close the connection")? {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => bail!(error),
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The statuses of all answers in a text.
pub fn statuses(answers: &str) -> Vec<u16> {
    let lines = answers.split("HTTP/1.1 ").skip(1);
    lines.filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
}

/// The problem document that a text of one answer ends with.
pub fn problem(answer: &str) -> Result<Value> {
    let (_, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no body: {answer}"))?;
    serde_json::from_str(body).with_context(|| format!("no problem: {answer}"))
}

/// Writes as much as the server takes within `limit` bytes; how much that was, and whether it closed the connection.
pub async fn pour(stream: &mut TcpStream, piece: &[u8], limit: usize, patience: Duration) -> (usize, bool) {
    let mut written = 0;
    while written < limit {
        match tokio::time::timeout(patience, stream.write(piece)).await {
            Ok(Ok(count)) => written += count,
            Ok(Err(_)) => return (written, true),
            Err(_) => return (written, false),
        }
    }
    (written, false)
}
