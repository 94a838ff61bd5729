//! `solehold top`: one page of text without a terminal; on one, a live view that says when it is old.

mod common;

use anyhow::Result;
use common::{BINARY, ask, refused, seen, server, terminal::Terminal};
use solehold_testkit::{Solehold, TempDir, free_port};

async fn busy() -> Result<Solehold> {
    let server = server().start().await?;
    fill(&server).await?;
    Ok(server)
}

async fn fill(server: &Solehold) -> Result<()> {
    for line in [
        "resource put camera/lobby",
        "lease acquire camera/gate --holder runner-1 --ttl 5m",
        "lease acquire camera/yard --holder runner-2 --ttl 5m",
    ] {
        ask(server, line).await?.good()?;
    }
    Ok(())
}

#[tokio::test]
async fn without_a_terminal_it_is_a_page_of_text() -> Result<()> {
    let server = busy().await?;
    let page = seen(&server, "top").await?;
    let has = |line: &str| assert!(page.lines().any(|shown| shown.starts_with(line)), "{line:?} in\n{page}");
    has(&format!("{}: 3 resources, 2 held, cursor 1.", server.url()));
    has("RESOURCE HOLDER TOKEN EXPIRES LAST CHANGE");
    has("camera/gate runner-1 2 in TTL");
    has("camera/lobby nobody - -");
    has("Runners");
    let events: Vec<&str> = page.lines().filter(|line| line.contains("lease_acquired")).collect();
    assert_eq!(events.len(), 2, "{page}");
    assert!(events[0].contains("camera/yard"), "the newest first: {page}");
    let page = seen(&server, "top --filter yard --sort token").await?;
    assert!(page.contains("camera/yard") && !page.contains("camera/gate"), "{page}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_as_by_any_command() -> Result<()> {
    let server = busy().await?;
    server.terminate().await?;
    let (code, message, _) = refused(&server, "top").await?;
    assert_eq!(code, 5, "{message}");
    Ok(())
}

#[tokio::test]
async fn on_a_terminal_it_is_live_and_says_when_it_is_old() -> Result<()> {
    let folder = TempDir::new()?;
    let builder = server().data_dir(folder.path()).listen(([127, 0, 0, 1], free_port()?).into());
    let server = builder.start().await?;
    fill(&server).await?;
    let mut terminal = Terminal::start(&format!("{BINARY} top"), &[("SOLEHOLD_SERVER", server.url())])?;
    let says = |needle: &'static str| move |screen: &str| screen.contains(needle);
    terminal.shows("the resources", says("3 resources, 2 held")).await?;
    ask(&server, "lease acquire camera/lobby --holder runner-9 --ttl 5m").await?.good()?;
    terminal.shows("a change", says("runner-9")).await?;
    terminal.press("/yard\r").await?;
    terminal
        .shows("the filter", |screen| screen.contains("camera/yard") && !screen.contains("camera/gate"))
        .await?;
    terminal.press("\r").await?;
    terminal
        .shows("the story", |screen| screen.contains("held by") && screen.contains("lease_acquired"))
        .await?;
    terminal.press("\u{1b}").await?;
    terminal.shows("the list again", says("RESOURCE")).await?;
    terminal.press("\u{1b}").await?;
    terminal.shows("everything again", says("camera/gate")).await?;
    terminal.press("3").await?;
    terminal.shows("the events", says("resource_declared")).await?;
    server.terminate().await?;
    terminal.shows("that it is old", says("OLD: this is how it was")).await?;
    let server = builder.start().await?;
    terminal.shows("that it is not", |screen| !screen.contains("OLD: ")).await?;
    ask(&server, "lease acquire camera/late --holder runner-7 --ttl 5m").await?.good()?;
    terminal.shows("what came after", says("camera/late")).await?;
    terminal.press("q").await?;
    assert_eq!(terminal.ended().await?, Some(0));
    Ok(())
}
