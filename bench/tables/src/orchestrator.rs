//! The orchestrator's tables: what its owners do by themselves, what a batch costs, what operators read.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use deadpool_postgres::Pool;
use serde_json::json;
use solehold_kafka::{Done, Handler, Message};
use solehold_orchestrator::{
    Mailbox, Orchestrator, Parts,
    dispatch::{Dispatch, DispatchError, Finding, Reports},
    model::{
        command::Mapping,
        job::JobState,
        limits::{CLEANING_BATCH, MAILBOX_BATCH, OUTBOX_BATCH, PAGE_DEFAULT, SWEEP_BATCH},
        pipeline::{DispatchKind, Pipeline, StagePlan},
        task::{Report, ReportKind, Task, TaskId},
    },
    publish::{Outgoing, Publish},
    store::{DeadLetterId, Mail, MailBody, Prepared, Store},
};
use solehold_sql::partitions::{Partition, Raised, Standing, Tenure};
use solehold_testkit::wait_for;
use tokio::sync::watch;
use tokio_postgres::Client;

use crate::{Watch, server::processor_time};

const PARTITIONS: i32 = 12;
const GROUP: &str = "orchestrators";
const TOPIC: &str = "jobs.commands";
const PATIENCE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Nothing that is filled in is older than these.
const INBOX_RETENTION: Duration = DAY.saturating_mul(7);
const JOB_RETENTION: Duration = DAY.saturating_mul(30);
/// How many cleanings are measured together.
const CLEANINGS: u32 = 20;

/// One job in five runs and has mail and tasks that wait. The others ended in the last 28 days, and their marks are of
/// the last 6. Letters were decided on, but one in four of the last partition is open, each of its own key, and one in
/// four of the partition before that is parked behind the others, all of one key.
const FILL: [&str; 8] = [
    "UPDATE orchestrator.partitions SET next_sequence = $1::bigint + 1000",
    "INSERT INTO orchestrator.jobs (job_id, partition, key, labels, input, pipeline, state, revision, \
     created_ms, finished_ms) \
     SELECT 'job-' || n, n % 12, 'org:m-' || n, '{}', '{\"video\": 1}', (SELECT digest FROM orchestrator.pipelines), \
     CASE WHEN n % 5 = 0 THEN 'running' ELSE 'succeeded' END, 3, now_ms - age_ms, \
     CASE WHEN n % 5 <> 0 THEN now_ms - age_ms END FROM rows_of_days($1::bigint, 28)",
    "INSERT INTO orchestrator.stages (job_id, place, stage, partition, state, attempt, failures, progress, result, \
     queued_ms, deadline_ms) \
     SELECT 'job-' || n, 0, 'decode', n % 12, CASE WHEN n % 5 = 0 THEN 'queued' ELSE 'succeeded' END, 1, 0, 0, '{}', \
     now_ms - age_ms, CASE WHEN n % 5 = 0 THEN now_ms + 86400000 END FROM rows_of_days($1::bigint, 28)",
    "INSERT INTO orchestrator.inbox (scope, command, id, payload_hash, epoch, done_at, position) \
     SELECT n % 12, 'CREATE', 'job-' || n, sha256(n::text::bytea), n, now() - age_ms * interval '1 millisecond', n \
     FROM rows_of_days($1::bigint, 6)",
    "INSERT INTO orchestrator.letters (partition, position, key, payload, state, reason, at_ms, resolved_ms) \
     SELECT n % 12, n, CASE WHEN is_open AND n % 12 = 10 THEN 'org:parked' ELSE 'org:m-' || n END, '{}', \
     CASE WHEN is_open THEN 'dead' ELSE 'discarded' END, 'it was refused', now_ms - age_ms, \
     CASE WHEN NOT is_open THEN now_ms - age_ms END \
     FROM (SELECT *, n % 12 >= 10 AND n / 12 % 4 = 0 AS is_open FROM rows_of_days($1::bigint, 6)) AS given",
    "INSERT INTO orchestrator.mailbox (partition, subject, name, body) \
     SELECT n % 12, 'job-' || n / 60 * 60 + n % 12, 'progress/' || n, '{\"mail\": \"cancel\"}' FROM rows_of_days($1::bigint, 1)",
    "INSERT INTO orchestrator.outbox (partition, channel, sequence, job_id, kind, stage, attempt) \
     SELECT n % 12, CASE WHEN n % 2 = 0 THEN 'celery' ELSE 'events' END, n, 'job-' || n, 'send', 'decode', 1 \
     FROM rows_of_days($1::bigint, 1)",
    "INSERT INTO orchestrator.unreadable_mail (partition, subject, name, body, reason, at) \
     SELECT n % 12, 'job-' || n, 'started/decode/1', '{}', 'it cannot be read', now() - age_ms * interval '1 millisecond' \
     FROM rows_of_days($1::bigint, 28)",
];
/// Rows with a number, the later ones older.
const ROWS_OF_DAYS: &str = "CREATE FUNCTION rows_of_days(count bigint, days bigint, \
    OUT n bigint, OUT age_ms bigint, OUT now_ms bigint) RETURNS SETOF record LANGUAGE sql AS $$ \
    SELECT n, n * days * 86400000 / count, (extract(epoch FROM now()) * 1000)::bigint \
    FROM generate_series(1, count) AS n $$";

/// Workers and topics that take everything.
struct Everything;

#[async_trait]
impl Dispatch for Everything {
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>> {
        tasks.iter().map(|_| Ok(())).collect()
    }

    async fn revoke(&self, _task: &TaskId) {}

    async fn reports(&self, _to: &dyn Reports) -> DispatchError {
        std::future::pending().await
    }

    async fn check(&self, _stages: &[StagePlan]) -> Result<Vec<Finding>, DispatchError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Publish for Everything {
    async fn publish(&self, _topic: &str, messages: &[Outgoing]) -> Vec<Result<(), DispatchError>> {
        messages.iter().map(|_| Ok(())).collect()
    }

    fn has_headers(&self) -> bool {
        true
    }
}

fn jobs(pool: Pool) -> Result<Orchestrator> {
    let stage = StagePlan {
        name: "decode".to_owned(),
        after: Vec::new(),
        task: "video.decode".to_owned(),
        dispatch: DispatchKind::Celery,
        queue: None,
        queue_timeout: DAY,
        run_timeout: DAY,
        retries: 2,
        args: None,
        kwargs: None,
    };
    Ok(Orchestrator::new(Parts {
        mailbox: Arc::new(Mailbox::new(Arc::new(Store::new(pool, "orchestrator")?))),
        commands: Arc::new(Mapping::default()),
        pipeline: Arc::new(Pipeline::new(vec![stage]).map_err(|error| anyhow::anyhow!("{error:?}"))?),
        dispatchers: vec![(DispatchKind::Celery, Arc::new(Everything))],
        publisher: Arc::new(Everything),
        events_topic: Some("events".to_owned()),
        dead_letter_topic: Some("letters".to_owned()),
        inbox_retention: INBOX_RETENTION,
        job_retention: JOB_RETENTION,
    }))
}

fn message(partition: i32, offset: i64, job: &str) -> Message {
    let of = format!("m-{job}");
    let payload = json!({"job_id": job, "type": "CREATE", "input": {"video": job}});
    Message {
        topic: TOPIC.into(),
        partition,
        offset,
        key: Some(format!("org:{of}").into_bytes().into()),
        payload: Some(payload.to_string().into_bytes().into()),
        headers: Vec::new(),
        timestamp_ms: None,
    }
}

/// Takes a partition, as a new owner.
async fn tenure(store: &Store, number: i32) -> Result<Tenure> {
    let partition = Partition { group: GROUP.to_owned(), topic: TOPIC.to_owned(), number };
    let client = store.pool.get().await?;
    let row = store.partitions.look(&**client, &partition).await?;
    match store.partitions.raise_from(&**client, &partition, row.epoch, "bench", 0).await? {
        Raised::Ours(tenure) => Ok(tenure),
        Raised::Overtaken(row) => bail!("another owner came between: {row:?}"),
    }
}

/// Commits messages as a consumer does.
async fn commit(jobs: &Orchestrator, tenure: &Tenure, messages: &[Message]) -> Result<()> {
    let mut done = Vec::new();
    for message in messages {
        done.push(Done { message: message.clone(), effect: jobs.work(message).await });
    }
    let mut client = jobs.store().pool.get().await?;
    let tx = client.transaction().await?;
    let next = messages.iter().map(|message| message.offset + 1).max().unwrap_or_default();
    let standing = jobs.store().partitions.advance(&*tx, tenure, next, None).await?;
    ensure!(standing == Standing::Ours, "the partition has another owner");
    let tally = jobs.commit(&tx, tenure, &done).await?;
    tx.commit().await?;
    jobs.committed(tenure, tally);
    Ok(())
}

pub async fn run(watch: &mut Watch, rows: i64) -> Result<()> {
    let database = watch.server.database("orchestrator").await?;
    let jobs = jobs(database.pool(true)?)?;
    let store = jobs.store().clone();
    ensure!(
        store.prepare(GROUP, TOPIC).await? == Prepared::Ready,
        "the schema belongs to another orchestrator"
    );
    let mut tenures = Vec::new();
    for number in 0..PARTITIONS {
        let tenure = tenure(&store, number).await?;
        commit(&jobs, &tenure, &[message(number, rows + 1, &format!("first-{number}"))]).await?;
        tenures.push(tenure);
    }
    database.quiet.batch_execute("DELETE FROM orchestrator.outbox").await?;
    database.quiet.batch_execute(ROWS_OF_DAYS).await?;
    for fill in FILL {
        database.quiet.execute(fill, &[&rows]).await?;
    }
    database.quiet.batch_execute("VACUUM ANALYZE").await?;
    owners(watch, &jobs, &tenures[0], rows).await?;
    operators(watch, &store).await?;
    watch.findings.cleaning = cleaning(&Store::new(database.pool(false)?, "orchestrator")?, rows).await?;
    for partition in 0..PARTITIONS {
        let client = store.pool.get().await?;
        let nothing = clean(&store, &client, partition, rows, (INBOX_RETENTION, JOB_RETENTION));
        ensure!(watch.step("clean: nothing to delete", nothing).await? == 0, "something was deleted");
    }
    let client = store.pool.get().await?;
    let some = clean(&store, &client, 0, rows, (DAY * 5, DAY * 27));
    ensure!(watch.step("clean", some).await? > 0, "nothing was deleted");
    drop(client);
    // What waits to be sent is not what this is about: owners would send it first.
    database.quiet.batch_execute("TRUNCATE orchestrator.mailbox, orchestrator.outbox").await?;
    attend(watch, &jobs, &tenures, &database.quiet).await
}

/// What the owner of a partition reads and writes.
async fn owners(watch: &mut Watch, jobs: &Orchestrator, tenure: &Tenure, rows: i64) -> Result<()> {
    let store = jobs.store();
    let batch = |first: i64| -> Vec<Message> {
        // One in ten has come before and said something else, and becomes a letter.
        let job = |n: i64| if n % 10 == 0 { format!("job-{}", n / 10 * 12) } else { format!("new-{n}") };
        (first..first + 500).map(|n| message(0, rows + n, &job(n))).collect()
    };
    watch.step_for("commit 500 commands", 500, commit(jobs, tenure, &batch(1_000))).await?;
    watch.step_for("commit 500 commands again", 500, commit(jobs, tenure, &batch(1_000))).await?;
    let report = |n: i64| {
        let id = TaskId { job: format!("job-{}", n * 5), stage: "decode".to_owned(), attempt: 1 };
        Report { id, kind: ReportKind::Started }
    };
    let reports = (1..=500).map(report).collect();
    watch.step_for("deliver 500 reports", 500, async { Ok(jobs.mailbox().deliver(reports).await?) }).await?;
    let client = store.pool.get().await?;
    let partition = tenure.partition.number;
    watch
        .step("read the mailbox", async { Ok(store.mailbox(&client, partition, 0, MAILBOX_BATCH).await?) })
        .await?;
    for channel in ["celery", "events", "letters"] {
        let read = async { Ok(store.outbox(&client, partition, channel, 0..i64::MAX, OUTBOX_BATCH).await?) };
        watch.step("read the outbox", read).await?;
    }
    watch.step("sweep", async { Ok(store.overdue(&client, partition, SWEEP_BATCH).await?) }).await?;
    Ok(())
}

/// The lists that people look at, and what the orchestrator looks at when it starts.
async fn operators(watch: &mut Watch, store: &Store) -> Result<()> {
    let client = store.pool.get().await?;
    let sql = &**client;
    let limit = PAGE_DEFAULT;
    for (state, after) in [(None, ""), (Some(JobState::Succeeded), "job-5"), (Some(JobState::Failed), "")] {
        watch.step("list jobs", async { Ok(store.list_jobs(state, after, limit).await?) }).await?;
    }
    watch.step("show a job", async { Ok(store.job("job-77").await?) }).await?;
    let letters = async { Ok(store.list_dead_letters(&client, None, limit, true).await?) };
    watch.step("list letters", letters).await?;
    let id = DeadLetterId { partition: 11, generation: 0, position: 47 };
    watch.step("show a letter", async { Ok(store.dead_letter(&client, id).await?) }).await?;
    for (partition, key) in [(11, "org:m-59"), (10, "org:parked")] {
        let open = async { Ok(store.open_dead_letters(&client, partition, key, limit).await?) };
        ensure!(!watch.step("letters of a key", open).await?.is_empty(), "{key} has no letters");
    }
    let discard = Mail::to_job("", MailBody::Discard { position: 59, generation: 0 });
    watch.step("discard a letter", async { Ok(store.deliver_to(&client, 11, &discard).await?) }).await?;
    let inbox = &store.inbox;
    let from_the_start = ("", "", "");
    watch.step("list marks", async { Ok(inbox.list_marks(sql, None, from_the_start, limit).await?) }).await?;
    let of_one = async { Ok(inbox.list_marks(sql, Some("job-77"), from_the_start, limit).await?) };
    watch.step("list marks of a job", of_one).await?;
    watch.step("clear marks of a job", async { Ok(inbox.clear_marks(sql, "job-77", None).await?) }).await?;
    watch.step("check channels at the start", async { Ok(store.channels().await?) }).await?;
    Ok(())
}

/// What an owner does each five seconds.
async fn clean(
    store: &Store,
    client: &Client,
    partition: i32,
    below: i64,
    (inbox, jobs): (Duration, Duration),
) -> Result<u64> {
    let scope = partition.to_string();
    let mut deleted = store.inbox.prune_below(client, &scope, below, inbox, CLEANING_BATCH).await?;
    deleted += store.prune_unreadable_mail(client, partition, jobs, CLEANING_BATCH).await?;
    deleted += store.prune_dead_letters(client, partition, below, inbox, CLEANING_BATCH).await?;
    let old = store.old_jobs(client, partition, jobs, CLEANING_BATCH).await?;
    if !old.is_empty() {
        deleted += store.delete_jobs(client, partition, jobs, &old).await?;
    }
    deleted += store.delete_pipelines(client, CLEANING_BATCH).await?;
    Ok(deleted)
}

/// How long PostgreSQL works at it to look at all partitions and find nothing to delete.
async fn cleaning(store: &Store, below: i64) -> Result<Duration> {
    let client = store.pool.get().await?;
    let before = processor_time(&client).await?;
    for _ in 0..CLEANINGS {
        for partition in 0..PARTITIONS {
            clean(store, &client, partition, below, (INBOX_RETENTION, JOB_RETENTION)).await?;
        }
    }
    Ok((processor_time(&client).await? - before) / CLEANINGS)
}

/// Owners attend to all partitions, until reports have been read and what followed from them was sent.
async fn attend(watch: &mut Watch, jobs: &Orchestrator, tenures: &[Tenure], quiet: &Client) -> Result<()> {
    let (leave, leaving) = watch::channel(false);
    let report = |n: i64| {
        let id = TaskId { job: format!("job-{}", n * 5), stage: "decode".to_owned(), attempt: 1 };
        Report { id, kind: ReportKind::Succeeded { result: json!({}) } }
    };
    let reports = (1_000..1_500).map(report).collect();
    watch.step_for("deliver 500 reports", 500, async { Ok(jobs.mailbox().deliver(reports).await?) }).await?;
    let work = async {
        let attend = |tenure: &Tenure| {
            let jobs = jobs.clone();
            let tenure = tenure.clone();
            let leaving = leaving.clone();
            tokio::spawn(async move { jobs.attend(tenure, leaving).await })
        };
        let attending: Vec<_> = tenures.iter().map(attend).collect();
        let done = async || {
            let left = "SELECT count(*) FROM orchestrator.jobs WHERE job_id = ANY($1) AND state = 'running'";
            let ids: Vec<String> = (1_000..1_500).map(|n| format!("job-{}", n * 5)).collect();
            quiet.query_one(left, &[&ids]).await.is_ok_and(|row| row.get::<_, i64>(0) == 0)
        };
        wait_for("reports to be read", PATIENCE, done).await?;
        let sent = async || {
            let left = "SELECT EXISTS (SELECT FROM orchestrator.outbox)";
            quiet.query_one(left, &[]).await.is_ok_and(|row| !row.get::<_, bool>(0))
        };
        wait_for("events to be sent", PATIENCE, sent).await?;
        leave.send_replace(true);
        for attendance in attending {
            attendance.await?;
        }
        Ok(())
    };
    watch.step("attend to all partitions", work).await
}
