//! The mailbox table: reports and requests for jobs. Every process writes it; only the owner of a partition reads and
//! deletes its entries, under its epoch.

use std::{collections::HashMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use solehold_sql::Error;
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use crate::model::{
    command::Command,
    task::{Report, ReportKind},
};
use crate::store::Store;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mail", rename_all = "snake_case")]
pub enum MailBody {
    /// A worker's report.
    Report { stage: String, attempt: u32, report: ReportKind },
    /// A command from another partition than the job's own: the topic had fewer partitions when the job was created.
    Command {
        command: Command,
        /// Its message. Missing in mail of an earlier version.
        #[serde(default)]
        origin: Option<Origin>,
    },
    /// A forwarded command that was rejected: it becomes a dead letter of the partition of its message.
    Returned { command: Command, origin: Origin, reason: String },
    /// An operator cancels a job.
    Cancel,
    /// An operator retries a job.
    Retry,
    /// An operator redrives a dead letter and the commands parked behind it.
    Redrive {
        position: i64,
        #[serde(default)]
        generation: i64,
    },
    /// An operator discards a dead letter.
    Discard {
        position: i64,
        #[serde(default)]
        generation: i64,
    },
}

/// The message of a forwarded command, so that it can become a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub partition: i32,
    pub generation: i64,
    pub position: i64,
    /// Distinguishes it from another message at that offset.
    pub digest: i64,
    pub payload: String,
}

/// One entry. Subject and name identify it: delivered twice, it counts once.
#[derive(Debug, Clone, PartialEq)]
pub struct Mail {
    /// The job; empty for mail about dead letters.
    pub subject: String,
    /// Identifies it among mail of the same subject.
    pub name: String,
    pub body: MailBody,
}

impl Mail {
    /// Mail for a job; `job` is empty for mail about dead letters.
    pub fn to_job(job: &str, body: MailBody) -> Self {
        let name = match &body {
            MailBody::Report { stage, attempt, report } => {
                let kind = match report {
                    ReportKind::Started => "started",
                    ReportKind::Progress { .. } => PROGRESS,
                    ReportKind::Succeeded { .. } => "succeeded",
                    ReportKind::Failed { .. } => "failed",
                };
                format!("{kind}/{stage}/{attempt}")
            }
            MailBody::Command { command, .. } => format!("command/{}/{}", command.kind.name(), command.id()),
            MailBody::Cancel => "cancel".to_owned(),
            MailBody::Retry => "retry".to_owned(),
            MailBody::Returned { origin, .. } => {
                format!("returned/{}/{}", origin.generation, origin.position)
            }
            MailBody::Redrive { position, generation: 0 } => format!("redrive/{position}"),
            MailBody::Redrive { position, generation } => format!("redrive/{position}/{generation}"),
            MailBody::Discard { position, generation: 0 } => format!("discard/{position}"),
            MailBody::Discard { position, generation } => format!("discard/{position}/{generation}"),
        };
        Self { subject: job.to_owned(), name, body }
    }

    pub fn report(report: Report) -> Self {
        let Report { id, kind } = report;
        Self::to_job(&id.job, MailBody::Report { stage: id.stage, attempt: id.attempt, report: kind })
    }
}

/// Entries of a mailbox, each with its arrival.
#[derive(Debug, Default)]
pub struct MailPage {
    pub mail: Vec<(i64, Mail)>,
    /// Entries that cannot be parsed, and why.
    pub unreadable: Vec<(i64, String)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    pub partitions: Vec<i32>,
    /// Mail that was dropped because its job does not exist: the job, and the name of the mail.
    pub without_job: Vec<(String, String)>,
}

/// Only the last report of progress matters.
const PROGRESS: &str = "progress";

impl Store {
    /// Writes mail to the mailboxes of its jobs' partitions. Mail for unknown jobs is dropped: a job is committed
    /// before its tasks are sent.
    pub async fn deliver(&self, client: &Client, mail: Vec<Mail>) -> Result<Delivered, Error> {
        // One statement cannot write a row twice: the first entry counts, or the last report of progress.
        let mut distinct: HashMap<(String, String), MailBody> = HashMap::new();
        for Mail { subject, name, body } in mail {
            let is_progress = name.starts_with(PROGRESS);
            let entry = distinct.entry((subject, name));
            if is_progress {
                entry.insert_entry(body);
            } else {
                entry.or_insert(body);
            }
        }
        // Sorted, so that two deliveries, or a delivery and the owner, never deadlock.
        let mut mail: Vec<_> = distinct.into_iter().collect();
        mail.sort_by(|(a, _), (b, _)| a.cmp(b));
        let subjects: Vec<&str> = mail.iter().map(|((subject, _), _)| subject.as_str()).collect();
        let names: Vec<&str> = mail.iter().map(|((_, name), _)| name.as_str()).collect();
        let bodies = mail.iter().map(|(_, body)| document(body)).collect::<Result<Vec<Value>, Error>>()?;
        let insert = format!(
            "WITH given AS (SELECT * FROM unnest($1::text[], $2::text[], $3::json[]) AS given (subject, name, body)), \
             put AS (INSERT INTO {mailbox} AS kept (partition, subject, name, body) \
             SELECT jobs.partition, subject, name, body FROM given \
             JOIN {jobs} AS jobs ON jobs.job_id = given.subject ORDER BY jobs.partition, subject, name \
             ON CONFLICT (partition, subject, name) DO UPDATE SET body = EXCLUDED.body, arrival = EXCLUDED.arrival \
             WHERE kept.name LIKE '{PROGRESS}/%' RETURNING partition) \
             SELECT DISTINCT partition, NULL, NULL FROM put UNION ALL SELECT NULL, subject, name FROM given \
             WHERE NOT EXISTS (SELECT FROM {jobs} AS jobs WHERE jobs.job_id = given.subject)",
            mailbox = self.table("mailbox"),
            jobs = self.table("jobs")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&subjects, Type::TEXT_ARRAY), (&names, Type::TEXT_ARRAY), (&bodies, Type::JSON_ARRAY)];
        let rows = client.query_typed(&insert, &parameters).await?;
        let mut delivered = Delivered::default();
        for row in &rows {
            match row.get(0) {
                Some(partition) => delivered.partitions.push(partition),
                None => delivered.without_job.push((row.get(1), row.get(2))),
            }
        }
        Ok(delivered)
    }

    /// Writes mail to the mailbox of a partition.
    pub async fn deliver_to(&self, client: &Client, partition: i32, mail: &Mail) -> Result<(), Error> {
        let insert = format!(
            "INSERT INTO {} (partition, subject, name, body) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            self.table("mailbox")
        );
        let body = document(&mail.body)?;
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&partition, Type::INT4),
            (&mail.subject, Type::TEXT),
            (&mail.name, Type::TEXT),
            (&body, Type::JSON),
        ];
        client.execute_typed(&insert, &parameters).await?;
        Ok(())
    }

    /// The first entries of a partition's mailbox from this arrival on.
    pub async fn mailbox(
        &self,
        client: &Client,
        partition: i32,
        from: i64,
        limit: i64,
    ) -> Result<MailPage, Error> {
        let read = format!(
            "SELECT arrival, subject, name, body::text FROM {} WHERE partition = $1 AND arrival >= $2 \
             ORDER BY arrival LIMIT $3",
            self.table("mailbox")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&from, Type::INT8), (&limit, Type::INT8)];
        let rows = client.query_typed(&read, &parameters).await?;
        let mut mailbox = MailPage::default();
        for row in &rows {
            let arrival = row.try_get(0)?;
            match serde_json::from_str(row.try_get(3)?) {
                Ok(body) => {
                    let mail = Mail { subject: row.try_get(1)?, name: row.try_get(2)?, body };
                    mailbox.mail.push((arrival, mail));
                }
                Err(error) => mailbox.unreadable.push((arrival, format!("invalid content: {error}"))),
            }
        }
        Ok(mailbox)
    }

    /// Moves entries that cannot take effect to the table `unreadable_mail`, each with its reason; returns the subject,
    /// name and reason of each that was still there.
    pub async fn set_mail_aside(
        &self,
        client: &Client,
        partition: i32,
        entries: &[(i64, String)],
    ) -> Result<Vec<(String, String, String)>, Error> {
        let set_aside = format!(
            "WITH {locked}, taken AS (DELETE FROM {mailbox} WHERE {is_locked} RETURNING subject, name, body, arrival) \
             INSERT INTO {aside} (partition, subject, name, body, reason) SELECT $1, subject, name, body, reason \
             FROM taken JOIN unnest($2::bigint[], $3::text[]) AS bad (arrival, reason) USING (arrival) \
             RETURNING subject, name, reason",
            locked = self.locked_mail(),
            mailbox = self.table("mailbox"),
            is_locked = IS_LOCKED,
            aside = self.table("unreadable_mail")
        );
        let arrivals: Vec<i64> = entries.iter().map(|(arrival, _)| *arrival).collect();
        let reasons: Vec<&str> = entries.iter().map(|(_, reason)| reason.as_str()).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&arrivals, Type::INT8_ARRAY), (&reasons, Type::TEXT_ARRAY)];
        let rows = client.query_typed(&set_aside, &parameters).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect()
    }

    /// Deletes mail that was set aside longer ago than `older_than`.
    pub async fn prune_unreadable_mail(
        &self,
        client: &Client,
        partition: i32,
        older_than: Duration,
        limit: i64,
    ) -> Result<u64, Error> {
        let prune = format!(
            "DELETE FROM {0} WHERE number = ANY(ARRAY(SELECT number FROM {0} WHERE partition = $1 \
             AND at < statement_timestamp() - $2 * interval '1 second' ORDER BY at LIMIT $3))",
            self.table("unreadable_mail")
        );
        let age = older_than.as_secs_f64();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&age, Type::FLOAT8), (&limit, Type::INT8)];
        Ok(client.execute_typed(&prune, &parameters).await?)
    }

    /// Deletes entries that were applied. An entry that was overwritten meanwhile has another arrival, and stays.
    pub async fn delete_mail(&self, client: &Client, partition: i32, arrivals: &[i64]) -> Result<(), Error> {
        let delete =
            format!("WITH {} DELETE FROM {} WHERE {IS_LOCKED}", self.locked_mail(), self.table("mailbox"));
        client.execute_typed(&delete, &[(&partition, Type::INT4), (&arrivals, Type::INT8_ARRAY)]).await?;
        Ok(())
    }

    /// Locks the entries of partition $1 with the arrivals $2 in the order in which deliveries write them, so that an
    /// owner and a delivery never deadlock. The bounds on the arrival keep the index scan away from dead entries.
    fn locked_mail(&self) -> String {
        format!(
            "found AS MATERIALIZED (SELECT ctid FROM {mailbox} WHERE partition = $1 AND arrival = ANY($2) \
             AND arrival >= (SELECT min(of) FROM unnest($2::bigint[]) AS of) \
             AND arrival <= (SELECT max(of) FROM unnest($2::bigint[]) AS of) ORDER BY arrival), \
             locked AS MATERIALIZED (SELECT ctid FROM {mailbox} WHERE ctid = ANY(ARRAY(SELECT ctid FROM found)) \
             AND arrival = ANY($2) ORDER BY subject, name FOR UPDATE)",
            mailbox = self.table("mailbox")
        )
    }
}

const IS_LOCKED: &str = "ctid = ANY(ARRAY(SELECT ctid FROM locked))";

fn document(body: &MailBody) -> Result<Value, Error> {
    serde_json::to_value(body).map_err(|error| Error::Effect(error.to_string()))
}
