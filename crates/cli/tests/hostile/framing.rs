//! Requests that two readers would take apart differently: what a proxy and the server must never disagree about.

use anyhow::{Result, ensure};

use crate::{
    wire::{said_to, statuses},
    world::World,
};

/// What is smuggled must not become a request of its own: none of these is answered twice.
#[tokio::test]
async fn a_request_with_two_lengths_is_one_request_or_none() -> Result<()> {
    let world = World::new().await?;
    let smuggled = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let head = "POST /api/v1/locks/a HTTP/1.1\r\nHost: localhost\r\n";
    let length = format!("Content-Length: {}\r\n", smuggled.len() + 5);
    let chunked = "Transfer-Encoding: chunked\r\n";
    let end = format!("\r\n0\r\n\r\n{smuggled}");
    for request in [
        format!("{head}{length}{chunked}{end}"),
        format!("{head}{chunked}{length}{end}"),
        format!("{head}{length}Transfer-Encoding: xchunked\r\n{end}"),
        format!("{head}{length}Transfer-Encoding: chunked, identity\r\n{end}"),
        format!("{head}{length}Content-Length: 5\r\n{end}"),
        format!("{head}Content-Length: +5\r\n{end}"),
        format!("{head}Content-Length: 5, 6\r\n{end}"),
        format!("{head}Transfer-Encoding : chunked\r\n{end}"),
        format!("{head}{chunked}\r\n0x5\r\nabcde\r\n0\r\n\r\n{smuggled}"),
        format!("{head}{chunked}\r\n5;\nabcde\r\n0\r\n\r\n{smuggled}"),
        format!("{head}{chunked}\r\nfffffffffffffffff\r\n{smuggled}"),
        format!("{head} X-Folded: a\r\n{length}{end}"),
    ] {
        let answers = said_to(world.address(), request.as_bytes()).await?;
        let all = statuses(&answers);
        ensure!(all.len() <= 1 && !all.contains(&200), "{request:?} is answered {all:?}: {answers}");
        world.is_served().await?;
    }
    world.survives("requests with two lengths", 64).await
}
