//! HTTP/2: many streams opened and reset at once (CVE-2023-44487), and heads that go on and on (CVE-2024-27316).

use anyhow::{Result, ensure};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    crowd,
    wire::{connect, rest},
    world::World,
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Frame types and flags (RFC 9113, section 6).
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The error code by which a client cancels a stream.
const CANCEL: u32 = 8;
/// `GET http://a/` by the static table of HPACK (RFC 7541, appendix A).
const GET: &[u8] = b"\x82\x86\x84\x41\x01a";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The number of client stream `index`: those of clients are odd.
fn stream_id(index: usize) -> u32 {
    u32::try_from(index).expect("few streams") * 2 + 1
}

async fn opened(world: &World) -> Result<TcpStream> {
    let mut stream = connect(world.address()).await?;
    stream.write_all(PREFACE).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, b"")).await?;
    Ok(stream)
}

#[tokio::test]
async fn streams_that_are_opened_and_reset_end_the_connection() -> Result<()> {
    let world = World::new().await?;
    let mut stream = opened(&world).await?;
    let mut frames = Vec::new();
    for index in 0..crowd() * 10 {
        frames.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream_id(index), GET));
        frames.extend(frame(RST_STREAM, 0, stream_id(index), &CANCEL.to_be_bytes()));
    }
    // Refused before all is sent, as it should be.
    let _ = stream.write_all(&frames).await;
    world.is_served().await?;
    // The server closes it: a connection of HTTP/2 that has done nothing wrong stays open.
    rest(&mut stream).await?;
    world.survives(&format!("{} HTTP/2 streams that are opened and reset", crowd() * 10), 256).await
}

#[tokio::test]
async fn a_head_that_is_continued_without_end_ends_the_connection() -> Result<()> {
    let world = World::new().await?;
    let mut stream = opened(&world).await?;
    stream.write_all(&frame(HEADERS, 0, 1, GET)).await?;
    // A header of its own in each frame, which is not to be remembered.
    let field = [b"\x00\x01x\x7f\x81\x7e".as_slice(), &[b'y'; 254]].concat();
    let more = frame(CONTINUATION, 0, 1, &field);
    let mut is_closed = false;
    for _ in 0..crowd() * 20 {
        is_closed = is_closed || stream.write_all(&more).await.is_err();
    }
    ensure!(is_closed || !rest(&mut stream).await?.is_empty(), "the server takes a head without end");
    world.survives("an HTTP/2 head without end", 64).await
}
