//! Accepts reports and requests for jobs, whichever process owns their partitions: each goes to the mailbox table of
//! its job's partition, and the owner of that partition is notified.

use std::sync::Arc;

use async_trait::async_trait;
use prometheus_client::metrics::counter::Counter;
use solehold_sql::{Error, retry};

use crate::{
    dispatch::Reports,
    model::{
        limits,
        task::{Report, ReportKind},
    },
    notifier::Notifier,
    store::{Mail, Store},
};

/// The way in for reports and requests.
#[derive(Debug)]
pub struct Mailbox {
    pub store: Arc<Store>,
    pub notifier: Notifier,
    /// Counts mail whose job no longer exists.
    pub(crate) without_job: Counter,
}

impl Mailbox {
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, notifier: Notifier::default(), without_job: Counter::default() }
    }

    /// Writes mail to the mailboxes of its jobs, and notifies the owners.
    pub async fn deliver_mail(&self, mail: Vec<Mail>) -> Result<(), Error> {
        if mail.is_empty() {
            return Ok(());
        }
        let client = self.store.pool.get().await?;
        let delivered = retry::on_contention(|| self.store.deliver(&client, mail.clone())).await?;
        drop(client);
        self.notifier.mail(&delivered.partitions);
        self.count_without_job(&delivered.without_job);
        Ok(())
    }

    /// Delivers entries one by one if PostgreSQL rejects one of them, which is dropped.
    async fn deliver_batch(&self, mail: Vec<Mail>) -> Result<(), Error> {
        match self.deliver_mail(mail.clone()).await {
            Err(error) if is_invalid_value(&error) => {
                for entry in mail {
                    let job = entry.subject.clone();
                    let name = entry.name.clone();
                    match self.deliver_mail(vec![entry]).await {
                        Err(error) if is_invalid_value(&error) => {
                            tracing::error!(job, name, %error, "PostgreSQL rejected a report; report dropped");
                        }
                        delivered => delivered?,
                    }
                }
                Ok(())
            }
            delivered => delivered,
        }
    }

    /// Counts and logs mail whose job no longer exists: one line per batch.
    pub(crate) fn count_without_job(&self, mail: &[(String, String)]) {
        if let Some((job, name)) = mail.first() {
            self.without_job.inc_by(mail.len() as u64);
            tracing::warn!(count = mail.len(), job, mail = name, "mail dropped: its job no longer exists");
        }
    }
}

#[async_trait]
impl Reports for Mailbox {
    async fn deliver(&self, reports: Vec<Report>) -> Result<(), Error> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for report in reports.into_iter().filter(is_addressed) {
            let (report, excess) = report.bounded();
            if let Some(reason) = excess {
                tracing::warn!(task = %report.id, reason, "task result rejected; the attempt counts as failed");
            }
            let size = match &report.kind {
                ReportKind::Succeeded { result } => result.to_string().len(),
                _ => limits::REASON_BYTES_MAX,
            };
            let is_full = batch.len() >= limits::MAILBOX_BATCH.unsigned_abs() as usize;
            if is_full || bytes + size > limits::DELIVERY_BYTES_MAX {
                self.deliver_batch(std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
            bytes += size;
            batch.push(Mail::report(report));
        }
        self.deliver_batch(batch).await
    }
}

/// Whether a value or its size is at fault. A missing table or permission is not: an operator can restore those.
fn is_invalid_value(error: &Error) -> bool {
    error.code().is_some_and(|code| ["22", "54"].iter().any(|class| code.starts_with(class)))
}

/// Whether a report can be about a task. Others are dropped, so that they do not block the reports behind them.
fn is_addressed(report: &Report) -> bool {
    match report.fault() {
        Some(fault) => {
            tracing::warn!(fault, "task report dropped");
            false
        }
        None => true,
    }
}
