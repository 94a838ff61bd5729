//! How servers are named, found and trusted, and what is said when one is not.

mod common;

use anyhow::{Context, Result};
use common::{Ran, SOON, command, ran, run, server, write};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use solehold_testkit::{Postgres, Solehold, TempDir};
use tokio::io::{AsyncBufReadExt, BufReader};

/// A port at which nothing listens.
const NOBODY: &str = "127.0.0.1:1";

/// Where a server is, without its scheme.
fn address(server: &Solehold) -> Result<&str> {
    Ok(server.url().split_once("://").context("a scheme")?.1)
}

/// Runs with these servers in the variable.
async fn exported(servers: &str, args: &[&str]) -> Result<Ran> {
    let mut command = command(args);
    command.env("SOLEHOLD_SERVER", servers);
    ran(command).await
}

#[tokio::test]
async fn servers_are_written_alike_everywhere() -> Result<()> {
    let server = server().start().await?;
    let bare = address(&server)?;
    let list = format!("{NOBODY}, {}/", server.url());
    for servers in [bare, server.url(), &list] {
        let before = run(["--server", servers, "lease", "ls"]).await?;
        assert_eq!((before.code, before.stderr.as_str()), (Some(0), "no leases are held\n"));
        run(["lease", "--server", servers, "ls"]).await?.good()?;
        run(["lease", "ls", "--server", servers]).await?.good()?;
        let commands: [&[&str]; 6] = [
            &["resource", "ls"],
            &["runner", "ls"],
            &["watch", "--limit", "0"],
            &["admin", "key", "ls"],
            &["run", "--lease", "job/a", "--", "true"],
            &["lock", "a", "--", "true"],
        ];
        for args in commands {
            exported(servers, args).await?.good().with_context(|| format!("{servers} {args:?}"))?;
        }
    }
    // What one of them answers is the answer, whatever became of the others.
    exported(&list, &["lease", "acquire", "job/held", "--holder", "w1", "--ttl", "5m"]).await?.good()?;
    let held = exported(&list, &["lease", "acquire", "job/held", "--holder", "w2"]).await?;
    assert_eq!(held.code, Some(3), "{}", held.stderr);
    assert!(held.stderr.starts_with("error: cannot acquire job/held: held by w1"), "{}", held.stderr);
    for (odd, words) in [
        ("127.0.0.1", "has no port: write HOST:PORT or a URL"),
        ("http://a:1,", "a server is empty"),
        ("ftp://a:1", "is neither http:// nor https://"),
    ] {
        for (args, code) in [(["lease", "ls"].as_slice(), 2), (&["lock", "a", "--", "true"], 102)] {
            let refused = exported(odd, args).await?;
            assert_eq!(refused.code, Some(code), "{odd}: {}", refused.stderr);
            assert!(
                refused.stderr.starts_with("error: --server: ") && refused.stderr.contains(words),
                "{}",
                refused.stderr
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_command_that_asks_no_server_refuses_to_be_given_one() -> Result<()> {
    for args in [["serve", "--check", "--server", "a:1"], ["--server", "a:1", "serve", "--check"]] {
        let refused = run(args).await?;
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("`serve` sends none"), "{}", refused.stderr);
    }
    exported("a:1", &["serve", "--check"]).await?.good()?;
    Ok(())
}

#[tokio::test]
async fn the_next_server_is_asked_when_one_is_gone() -> Result<()> {
    let database = Postgres::shared().await?.create_database("connections").await?;
    let first = server().engine(&database).start().await?;
    let second = server().engine(&database).start().await?;
    let servers = format!("{},{}", address(&first)?, address(&second)?);
    let mut watch = command(["watch", "--json"]);
    let mut watch = watch.env("SOLEHOLD_SERVER", &servers).spawn()?;
    let mut seen = BufReader::new(watch.stdout.take().context("stdout")?).lines();
    let mut said = BufReader::new(watch.stderr.take().context("stderr")?).lines();
    exported(&servers, &["lease", "acquire", "job/a", "--ttl", "5m"]).await?.good()?;
    // A watch that begins late begins behind that: take one more until it is seen.
    let mut event = None;
    for number in 0.. {
        let soon = std::time::Duration::from_millis(200);
        if let Ok(line) = tokio::time::timeout(soon, seen.next_line()).await {
            event = line?;
            break;
        }
        anyhow::ensure!(number < 300, "no event");
        exported(&servers, &["resource", "put", &format!("job/{number}")]).await?.good()?;
    }
    assert!(event.is_some());
    first.kill9().await?;
    exported(&servers, &["lease", "acquire", "job/b", "--ttl", "5m"]).await?.good()?;
    let ls = exported(&servers, &["lease", "ls"]).await?.good()?;
    assert!(ls.contains("job/a") && ls.contains("job/b"), "{ls}");
    // On a busy machine the watch sees more of the resources that were put first.
    loop {
        let line =
            tokio::time::timeout(SOON, seen.next_line()).await.context("the watch does not go on")??;
        let event: serde_json::Value = serde_json::from_str(&line.context("the watch has ended")?)?;
        if event["key"] == "b" {
            break;
        }
    }
    let reconnecting = said.next_line().await?.context("a word")?;
    assert!(reconnecting.contains("reconnecting from"), "{reconnecting}");
    watch.kill().await?;
    Ok(())
}

/// A certificate as `openssl req -x509` makes it, which names no host, and a server that shows it.
async fn homemade(folder: &TempDir) -> Result<(Solehold, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "localhost");
    let cert = write(folder.path(), "cert.pem", &params.self_signed(&key)?.pem())?;
    let key = write(folder.path(), "key.pem", &key.serialize_pem())?;
    let server = server().arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key).start().await?;
    Ok((server, cert))
}

#[tokio::test]
async fn a_certificate_that_is_given_is_trusted_as_it_is() -> Result<()> {
    let folder = TempDir::new()?;
    let (tls, cert) = homemade(&folder).await?;
    let other = TempDir::new()?;
    let (_other, other_cert) = homemade(&other).await?;
    for (args, not_run) in [(["lease", "ls"].as_slice(), 0), (&["lock", "a", "--", "true"], 100)] {
        let with = |cert: &str| {
            ["--ca-cert", cert].iter().chain(args).map(|arg| (*arg).to_owned()).collect::<Vec<_>>()
        };
        let trusting = with(&cert);
        exported(tls.url(), &trusting.iter().map(String::as_str).collect::<Vec<_>>()).await?.good()?;
        let wrong = with(&other_cert);
        let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
        for args in [args, &wrong] {
            let stranger = exported(tls.url(), args).await?;
            assert_eq!(stranger.code, Some(not_run + 5), "{}", stranger.stderr);
            assert!(
                stranger.stderr.contains("is not trusted: it is signed by itself; --ca-cert"),
                "{}",
                stranger.stderr
            );
            assert!(!stranger.stderr.contains("no server"), "{}", stranger.stderr);
            assert_eq!(stranger.stderr.lines().count(), 1, "{}", stranger.stderr);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_port_that_speaks_something_else_is_told() -> Result<()> {
    let folder = TempDir::new()?;
    let (tls, _) = homemade(&folder).await?;
    let plain = server().start().await?;
    let tls = address(&tls)?;
    let plain = address(&plain)?;
    for (servers, words) in [
        (format!("https://{plain}"), format!("this port speaks plain HTTP; write http://{plain}")),
        (tls.to_owned(), format!("this port speaks TLS; write https://{tls}")),
        (NOBODY.to_owned(), format!("no server at http://{NOBODY} (")),
    ] {
        let commands: [(&[&str], i32); 4] = [
            (&["lease", "ls"], 5),
            (&["lease", "acquire", "job/a"], 5),
            (&["watch"], 5),
            (&["lock", "a", "--", "true"], 105),
        ];
        for (args, code) in commands {
            let told = exported(&servers, args).await?;
            assert_eq!(told.code, Some(code), "{servers} {args:?}: {}", told.stderr);
            assert!(told.stderr.contains(&words), "{servers} {args:?}: {}", told.stderr);
            assert_eq!(told.stderr.contains("no server"), servers == NOBODY, "{}", told.stderr);
        }
    }
    Ok(())
}

#[tokio::test]
async fn no_time_to_answer_is_refused() -> Result<()> {
    for args in
        [["lease", "ls", "--timeout", "0s"].as_slice(), &["lock", "a", "--timeout", "0s", "--", "true"]]
    {
        let refused = run(args).await?;
        assert!(
            refused.stderr.contains("error: --timeout 0s: the timeout must be greater than zero"),
            "{}",
            refused.stderr
        );
    }
    Ok(())
}
