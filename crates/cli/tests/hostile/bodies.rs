//! Heads and bodies that are too slow, too large, too deep or not text.

use anyhow::{Result, ensure};
use tokio::io::AsyncWriteExt;

use crate::{
    common::SOON,
    crowd, mib_for_crowd,
    wire::{connect, connect_all, pour, problem, rest, said_to, statuses},
    world::World,
};

const MIB: usize = 1024 * 1024;
/// The idle timeout of a server whose slow clients are to be seen to go.
const SHORT_IDLE: &str = "3s";

/// Slow loris: a byte of the head now and then, on many connections at once.
#[tokio::test]
async fn heads_that_arrive_byte_by_byte_are_given_up() -> Result<()> {
    let world = World::with_idle_timeout(SHORT_IDLE).await?;
    let mut slow = connect_all(world.address(), crowd()).await?;
    for stream in &mut slow {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ").await?;
    }
    world.is_served().await?;
    // Each renewal of the honest client is a moment for one more byte. The timeout is for the whole head: no byte
    // extends it.
    while !slow.is_empty() {
        world.is_served().await?;
        let mut open = Vec::with_capacity(slow.len());
        for mut stream in slow {
            let is_open =
                stream.write_all(b"x").await.is_ok() && stream.try_read(&mut [0; 64]).is_err_and(would_block);
            if is_open {
                open.push(stream);
            }
        }
        slow = open;
    }
    world.survives(&format!("{} heads, byte by byte", crowd()), mib_for_crowd(64)).await
}

fn would_block(error: std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() -> Result<()> {
    let world = World::new().await?;
    let large = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Large: {}", "x".repeat(4 * MIB));
    let many = "X-Many: x\r\n".repeat(100_000);
    let many = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(4 * MIB));
    for head in [large, many, long] {
        let answer = said_to(world.address(), head.as_bytes()).await?;
        // The connection may be reset before the refusal is read, since the rest of the head was not.
        ensure!(answer.is_empty() || statuses(&answer) == [431], "{answer}");
    }
    world.survives("heads of 4 MiB", 64).await
}

/// Heads that had no end and were not too large yet were kept, 400 KiB for each connection of a client without a key.
#[tokio::test]
async fn heads_that_have_no_end_are_kept_within_a_bound() -> Result<()> {
    let world = World::new().await?;
    let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Large: {}", "x".repeat(300 * 1024));
    let mut large = connect_all(world.address(), crowd()).await?;
    for stream in &mut large {
        // Refused before all is sent.
        let _ = stream.write_all(head.as_bytes()).await;
        rest(stream).await?;
    }
    world.survives(&format!("{} heads of 300 KiB without an end", crowd()), mib_for_crowd(32)).await
}

#[tokio::test]
async fn bodies_without_an_end_are_refused_by_the_bound() -> Result<()> {
    let world = World::new().await?;
    let path = "/api/v1/resources/job/huge";
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    let announced = format!("{head}Content-Length: {}\r\n\r\n", 1_u64 << 40);
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for (begin, piece) in
        [(announced, "x".repeat(0x10000)), (format!("{head}Transfer-Encoding: chunked\r\n\r\n"), chunk)]
    {
        let mut stream = connect(world.address()).await?;
        stream.write_all(begin.as_bytes()).await?;
        let (written, is_closed) = pour(&mut stream, piece.as_bytes(), 256 * MIB, SOON).await;
        ensure!(is_closed && written < 64 * MIB, "the server has read {written} bytes");
        world.is_served().await?;
    }
    // A client that stops sending reads which bound it was.
    let just_more = format!("{head}Content-Length: {}\r\n\r\n{}", MIB + 1, "x".repeat(MIB + 1));
    let refused = problem(&said_to(world.address(), just_more.as_bytes()).await?)?;
    ensure!(refused["code"] == "payload_too_large" && refused["limit"]["name"] == "body_bytes", "{refused}");
    world.survives("bodies without an end", 64).await
}

#[tokio::test]
async fn documents_that_are_nested_without_end_are_refused() -> Result<()> {
    let world = World::new().await?;
    for open in ["[", "{\"a\":"] {
        let body = format!("{{\"attributes\":{}", open.repeat(150_000));
        let text = format!(
            "PUT /api/v1/resources/job/deep HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let refused = problem(&said_to(world.address(), text.as_bytes()).await?)?;
        ensure!(refused["status"] == 400, "{refused}");
    }
    world.survives("documents that are nested 150,000 deep", 64).await
}

#[tokio::test]
async fn what_is_not_text_is_refused() -> Result<()> {
    let world = World::new().await?;
    let rest_of_head = " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let requests: [(Vec<u8>, &[u16]); 4] = [
        (
            [b"GET /api/v1/resources/\xff\xfe".as_slice(), rest_of_head.as_bytes(), b"\r\n"].concat(),
            &[400, 404],
        ),
        (format!("GET /api/v1/resources/job/%FF%FE{rest_of_head}\r\n").into_bytes(), &[400]),
        (format!("GET /api/v1/resources/job/a%00b{rest_of_head}\r\n").into_bytes(), &[400]),
        (
            [format!("GET /api/v1/resources{rest_of_head}").as_bytes(), b"X-API-Key: \xff\xfe\r\n\r\n"]
                .concat(),
            &[200],
        ),
    ];
    for (request, expected) in requests {
        let answer = said_to(world.address(), &request).await?;
        ensure!(
            matches!(statuses(&answer).as_slice(), [one] if expected.contains(one)),
            "{}: {answer}",
            String::from_utf8_lossy(&request)
        );
    }
    world.survives("paths and headers that are not text", 64).await
}

/// A client that closes its side counts as gone, as one must that waits in line: it is answered if the answer is there
/// already, and in any case it is not waited for.
#[tokio::test]
async fn connections_that_are_closed_on_one_side_are_not_waited_for() -> Result<()> {
    let world = World::new().await?;
    let head = "POST /api/v1/locks/half HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n";
    for (text, expected) in [
        ("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), vec![200]),
        (head.to_owned(), vec![]),
        (format!("{head}\r\n{{\"holder\""), vec![400]),
    ] {
        let mut stream = connect(world.address()).await?;
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        let answer = rest(&mut stream).await?;
        ensure!(answer.is_empty() || statuses(&answer) == expected, "{text}: {answer}");
    }
    world.survives("half-closed connections", 64).await
}
