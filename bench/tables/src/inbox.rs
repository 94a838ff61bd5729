//! Commands with an id, as HTTP requests bear them.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::json;
use solehold_sql::inbox::{CommandStatus, Inbox, Key, PayloadHash, Ticket};

use crate::Watch;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const LEASE: Duration = Duration::from_secs(60);

/// Commands of the last ten days, done; one in ten was given up.
const FILL: &str = "INSERT INTO commands (scope, command, id, payload_hash, epoch, until, done_at, result) \
    SELECT 'tenant-' || n % 100, 'create', 'command-' || n, sha256(n::text::bytea), n, \
    CASE WHEN n % 10 = 0 THEN at END, CASE WHEN n % 10 <> 0 THEN at END, '{}' \
    FROM (SELECT n, now() - n * (interval '10 days' / $1::bigint) AS at FROM generate_series(1, $1::bigint) AS n) AS given";

pub async fn run(watch: &mut Watch, rows: i64) -> Result<()> {
    let database = watch.server.database("inbox").await?;
    let inbox = Inbox::new("commands")?;
    database.quiet.batch_execute(&inbox.migration()).await?;
    database.quiet.execute(FILL, &[&rows]).await?;
    database.quiet.batch_execute("VACUUM ANALYZE commands").await?;
    let client = database.pool(true)?.get().await?;
    let client = &**client;
    let key = |id: &str| Key::new("tenant-1", "create", id);
    let payload = PayloadHash::of(b"payload");
    let begin = async |key: Key| -> Result<Ticket> {
        match inbox.begin(client, &key, payload, LEASE).await? {
            CommandStatus::Started(ticket) => Ok(ticket),
            other => bail!("a new command is {other:?}"),
        }
    };
    let ticket = watch.step("begin a command", begin(key("new")?)).await?;
    let again = async { Ok(inbox.begin(client, &key("command-101")?, payload, LEASE).await?) };
    watch.step("begin a command again", again).await?;
    let complete = async { Ok(inbox.complete(client, &ticket, &json!({})).await?) };
    ensure!(watch.step("complete a command", complete).await?.is_done(), "the ticket was lost");
    let ticket = begin(key("given up")?).await?;
    let give_up = async { Ok(inbox.abandon(client, &ticket).await?) };
    ensure!(watch.step("give a command up", give_up).await?.is_done(), "the ticket was lost");
    watch.step("clean commands: nothing", async { Ok(inbox.prune(client, DAY * 11, 500).await?) }).await?;
    watch.step("clean commands", async { Ok(inbox.prune(client, DAY * 9, 500).await?) }).await?;
    Ok(())
}
