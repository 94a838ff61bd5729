//! What others have to say to jobs. Anyone may write it; only the owner of a partition takes it, under its epoch.

use std::{collections::HashMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use solehold_sql::Error;
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use super::Store;
use crate::{Report, ReportKind, command::Command};

/// What is said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mail", rename_all = "snake_case")]
pub enum MailBody {
    /// A worker's report.
    Report {
        /// Of which stage.
        stage: String,
        /// Of which attempt.
        attempt: u32,
        /// What.
        report: ReportKind,
    },
    /// A command that came by another partition than the job's own, since the topic has more of them now.
    Command {
        /// The command.
        command: Command,
        /// The message that said so. Missing in what an earlier version forwarded.
        #[serde(default)]
        origin: Option<Origin>,
    },
    /// A command that was forwarded and can have no effect: it is a letter of the partition by which it came.
    Returned {
        /// The command.
        command: Command,
        /// The message that said so.
        origin: Origin,
        /// Why it has no effect.
        reason: String,
    },
    /// An operator cancels a job.
    Cancel,
    /// An operator retries a job.
    Retry,
    /// An operator applies a letter again, and then what is parked behind it.
    Redrive {
        /// The letter.
        position: i64,
        /// The generation of its topic.
        #[serde(default)]
        generation: i64,
    },
    /// An operator drops a letter.
    Discard {
        /// The letter.
        position: i64,
        /// The generation of its topic.
        #[serde(default)]
        generation: i64,
    },
}

/// The message of a command that was forwarded, so that it can become a letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The partition by which it came.
    pub partition: i32,
    /// The generation of its topic.
    pub generation: i64,
    /// Its offset.
    pub position: i64,
    /// What tells it from another message at that offset.
    pub digest: i64,
    /// What it says.
    pub payload: String,
}

/// One entry. What has the same subject and name is the same: delivered twice, it counts once.
#[derive(Debug, Clone, PartialEq)]
pub struct Mail {
    /// The job, or nothing for letters.
    pub subject: String,
    /// What tells it apart from others of its subject.
    pub name: String,
    /// What it says.
    pub body: MailBody,
}

impl Mail {
    /// To a job.
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

    /// A worker's report.
    pub fn report(report: Report) -> Self {
        let Report { id, kind } = report;
        Self::to_job(&id.job, MailBody::Report { stage: id.stage, attempt: id.attempt, report: kind })
    }
}

/// The first entries of a mailbox.
#[derive(Debug, Default)]
pub struct Mailbox {
    /// What can be read, with its arrival.
    pub mail: Vec<(i64, Mail)>,
    /// What cannot, and why: by arrival.
    pub unreadable: Vec<(i64, String)>,
}

/// What became of mail.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Partitions that have some of it.
    pub partitions: Vec<i32>,
    /// What was dropped since there is no such job: the job, and what the mail is.
    pub without_job: Vec<(String, String)>,
}

/// Of progress only the last matters.
const PROGRESS: &str = "progress";

impl Store {
    /// Puts mail into the boxes of its jobs' partitions. Mail to jobs that are not known is dropped: a job is committed
    /// before its tasks are sent.
    pub async fn deliver(&self, client: &Client, mail: Vec<Mail>) -> Result<Delivered, Error> {
        // One statement cannot write a row twice: the first one counts, but of progress the last.
        let mut distinct: HashMap<(String, String), MailBody> = HashMap::new();
        for Mail { subject, name, body } in mail {
            let is_progress = name.starts_with(PROGRESS);
            let entry = distinct.entry((subject, name));
            match is_progress {
                true => drop(entry.insert_entry(body)),
                false => drop(entry.or_insert(body)),
            }
        }
        // In one order, so that two deliveries, or one and the owner, never wait for each other.
        let mut mail: Vec<_> = distinct.into_iter().collect();
        mail.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut columns: (Vec<&str>, Vec<&str>, Vec<Value>) = Default::default();
        for ((subject, name), body) in &mail {
            columns.0.push(subject);
            columns.1.push(name);
            columns.2.push(document(body)?);
        }
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
            [(&columns.0, Type::TEXT_ARRAY), (&columns.1, Type::TEXT_ARRAY), (&columns.2, Type::JSON_ARRAY)];
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

    /// Puts mail about a letter into the box of its partition.
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

    /// The first entries of a partition's mailbox that have this arrival or a later one.
    pub async fn mailbox(
        &self,
        client: &Client,
        partition: i32,
        from: i64,
        limit: i64,
    ) -> Result<Mailbox, Error> {
        let read = format!(
            "SELECT arrival, subject, name, body::text FROM {} WHERE partition = $1 AND arrival >= $2 \
             ORDER BY arrival LIMIT $3",
            self.table("mailbox")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&from, Type::INT8), (&limit, Type::INT8)];
        let rows = client.query_typed(&read, &parameters).await?;
        let mut mailbox = Mailbox::default();
        for row in &rows {
            let arrival = row.try_get(0)?;
            match serde_json::from_str(row.try_get(3)?) {
                Ok(body) => {
                    let mail = Mail { subject: row.try_get(1)?, name: row.try_get(2)?, body };
                    mailbox.mail.push((arrival, mail));
                }
                Err(error) => mailbox.unreadable.push((arrival, format!("it cannot be read: {error}"))),
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

    /// Deletes entries that were taken. One that was written anew meanwhile has another arrival, and stays.
    pub async fn delete_mail(&self, client: &Client, partition: i32, arrivals: &[i64]) -> Result<(), Error> {
        let delete =
            format!("WITH {} DELETE FROM {} WHERE {IS_LOCKED}", self.locked_mail(), self.table("mailbox"));
        client.execute_typed(&delete, &[(&partition, Type::INT4), (&arrivals, Type::INT8_ARRAY)]).await?;
        Ok(())
    }

    /// The entries of partition $1 with the arrivals $2, locked in the order in which deliveries write them: an owner
    /// and a delivery that are after the same entries never wait for each other. The entries are found by their index
    /// first, between the bounds of the arrivals, so that dead entries elsewhere in the index are not gone over.
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

/// Whether a row is among those that were locked.
const IS_LOCKED: &str = "ctid = ANY(ARRAY(SELECT ctid FROM locked))";

fn document(body: &MailBody) -> Result<Value, Error> {
    serde_json::to_value(body).map_err(|error| Error::Effect(error.to_string()))
}
