//! What is wrong with a configuration is told with its file, its line, and what would be right.

mod common;

use anyhow::Result;
use common::{command, ran, run, write};
use solehold_testkit::TempDir;

#[tokio::test]
async fn a_bad_file_is_told_with_its_line() -> Result<()> {
    let folder = TempDir::new()?;
    let cases = [
        ("# a comment\nlissten: 127.0.0.1:7070\n", ":2: ", "listen"),
        ("listen: 127.0.0.1:7070\nlimits:\n  quotas:\n    resorces: 5\n", ":4: ", "resources"),
        ("node_id: a\nlisten: everywhere\n", ":2: ", "write IP:PORT, as in 127.0.0.1:7070"),
        ("limits:\n  request_timeout: soon\n", ":2: ", "as in 500ms, 30s, 5m"),
        ("limits:\n  connections_max: 0\n", ":2: ", "nonzero"),
        ("limits:\n  connections_max: many\n", ":2: ", "connections_max is not a whole number from 0 on"),
        ("engine: mysql://x/y\n", ":1: ", "postgres://USER@HOST/DATABASE"),
        ("log:\n  format: xml\n", ":2: ", "json"),
        ("node_id: \"rack 7\"\n", ":1: ", "without spaces"),
        ("listen: [127.0.0.1\n", ":1: ", "the [ is not closed"),
        ("node_id: a\nlimits: {quotas: {resources: 5}\nlisten: 127.0.0.1:1\n", ":2: ", "the { is not closed"),
        (
            "limits:\n  quotas: { # a {\n    resources: 5,\nlog: {level: info}\n",
            ":2: ",
            "the { is not closed",
        ),
        ("log: {level: info}\nnode_id: a[b\nlissten: x\n", ":3: ", "listen"),
        ("node_id: 'it\nlisten: 127.0.0.1:1\n", ":1: ", "the ' is not closed"),
        ("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", ":2: ", "listen"),
        ("- listen\n", ":1: ", "keys of its own"),
        ("limits: 5\n", ":1: ", "limits must have keys of its own below it"),
        ("engine: [postgres://u:hunter2@h/d]\n", ":1: ", "engine must be a string"),
        ("relays:\n  - name: a b\n    mqtt: {url: mqtt://h}\n", ":2: ", "letters, digits, dashes"),
        ("relays:\n  - name: a\n    rabbitmq:\n      urll: amqp://h\n", ":4: ", "url"),
        ("relays:\n  - name: a\n", ":2: ", "give it one of rabbitmq, mqtt and webhook"),
        ("relays:\n  - name: a\n    rabbitmq: {exchange: x}\n", ":2: ", "give it a url, or a url_file"),
        (
            "relays:\n  - name: a\n    rabbitmq: {url: \"http://u:hunter2@h\"}\n",
            ":2: ",
            "write amqp://HOST or amqps://HOST",
        ),
        (
            "relays:\n  - name: a\n    mqtt: {url: mqtt://h, topic: \"{camera}\"}\n",
            ":2: ",
            "{tenant}, {site}",
        ),
        ("relays:\n  - name: a\n    mqtt: {url: mqtt://h}\n    attempts: 0\n", ":4: ", "nonzero"),
        ("relays:\n  - name: a\n    mqtt: {url: mqtt://h}\n    when_refused: drop\n", ":4: ", "dead_letter"),
        (
            "data_dir: ./a\nengine: postgres://u@h/d\n",
            ": ",
            "data_dir and engine are both given: give one of them",
        ),
    ];
    for (text, line, words) in cases {
        let path = write(folder.path(), "solehold.yaml", text)?;
        let ran = run(["serve", "--check", "--config", &path]).await?;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{text}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{text}: {}", ran.stderr);
        assert!(ran.stderr.starts_with(&format!("error: {path}{line}")), "{text}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{text}: {}", ran.stderr);
        assert!(
            !ran.stderr.contains("hunter2") && !ran.stderr.contains(", column"),
            "{text}: {}",
            ran.stderr
        );
    }
    let short = write(folder.path(), "short", "hunter2\n")?;
    let hook = "webhook: {url: http://h, secret_file:";
    for (relays, words) in [
        (format!("[{{name: a, {hook} {short}}}}}]"), "has 7 bytes; it needs 32 or more".to_owned()),
        (format!("[{{name: a, {hook} /no/such}}}}]"), "relay a: cannot read /no/such".to_owned()),
        (
            "[{name: a, mqtt: {url: mqtt://h}}, {name: a, mqtt: {url: mqtt://h}}]".to_owned(),
            "relay a: there are two of this name".to_owned(),
        ),
    ] {
        let path = write(folder.path(), "solehold.yaml", &format!("relays: {relays}\n"))?;
        let ran = run(["serve", "--check", "--config", &path]).await?;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{relays}: {}", ran.stderr);
        assert!(ran.stderr.contains(&words) && !ran.stderr.contains("hunter2"), "{relays}: {}", ran.stderr);
    }
    let missing = run(["serve", "--config", "/no/such/file.yaml"]).await?;
    assert_eq!(missing.code, Some(2));
    assert!(
        missing.stderr.contains("cannot read the configuration file /no/such/file.yaml"),
        "{}",
        missing.stderr
    );
    Ok(())
}

#[tokio::test]
async fn a_whole_file_is_taken() -> Result<()> {
    let folder = TempDir::new()?;
    for text in ["", "# nothing\n\n", include_str!("../../../docs/solehold.yaml")] {
        let path = write(folder.path(), "solehold.yaml", text)?;
        let ran = run(["serve", "--check", "--config", &path]).await?;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{text}");
        assert!(
            ran.stdout.starts_with("the configuration is good: http://127.0.0.1:7070 ("),
            "{}",
            ran.stdout
        );
    }
    Ok(())
}

#[tokio::test]
async fn bad_variables_are_named() -> Result<()> {
    for (name, value, words) in [
        ("SOLEHOLD_LISTEN", "7070", "write IP:PORT"),
        ("SOLEHOLD_ENGINE", "x", "postgres://USER@HOST/DATABASE"),
        ("SOLEHOLD_LIMITS_SHUTDOWN_GRACE", "10", "as in 500ms, 30s, 5m"),
        ("SOLEHOLD_LIMITS_WATCHES_MAX", "-1", "invalid digit"),
        ("SOLEHOLD_LOG_FORMAT", "xml", "write text or json"),
        ("SOLEHOLD_EVENTS_KEEP_MAX", "0", "zero"),
    ] {
        let mut command = command(["serve", "--check"]);
        command.env(name, value);
        let ran = ran(command).await?;
        assert_eq!(ran.code, Some(2), "{name}: {}", ran.stderr);
        assert!(ran.stderr.starts_with(&format!("error: {name}: ")), "{}", ran.stderr);
        assert!(ran.stderr.contains(words) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    }
    let mut odd = command(["serve", "--check"]);
    odd.env("SOLEHOLD_LISTENN", "127.0.0.1:1").env("SOLEHOLD_QUUX", "1").env("SOLEHOLD_LISTEN", "");
    let odd = ran(odd).await?;
    assert_eq!(odd.code, Some(0), "{}", odd.stderr);
    assert_eq!(
        odd.stderr,
        "warning: SOLEHOLD_LISTENN is set, and nothing reads it; is SOLEHOLD_LISTEN meant?\n\
         warning: SOLEHOLD_QUUX is set, and nothing reads it\n"
    );
    Ok(())
}
