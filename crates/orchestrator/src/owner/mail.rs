//! Reads the mailbox of a partition and applies it: reports of workers, requests of operators, and commands that other
//! partitions' owners forwarded.

use solehold_clock::BootTime;

use super::PartitionOwner;
use crate::{
    model::limits::MAILBOX_BATCH,
    orchestrator::{Next, StepError},
    store::{Floor, Mail, MailPage},
};

impl PartitionOwner<'_> {
    pub(super) async fn read_mail(&self, floor: &mut Floor) -> Result<Next, StepError> {
        let store = self.orchestrator.store();
        let partition = self.partition();
        let client = store.pool.get().await?;
        let read = floor.begin(BootTime::now());
        let page = store.mailbox(&client, partition, read.from, MAILBOX_BATCH).await?;
        let MailPage { mail, unreadable } = page;
        floor.answered(read, BootTime::now());
        drop(client);
        let arrivals = mail.iter().map(|(arrival, _)| *arrival);
        let Some(last) = arrivals.chain(unreadable.iter().map(|(arrival, _)| *arrival)).max() else {
            return Ok(Next::Idle);
        };
        let is_all = mail.len() + unreadable.len() < MAILBOX_BATCH.unsigned_abs() as usize;
        self.set_mail_aside(&unreadable).await?;
        let unfinished = match self.take_mail(&mail).await {
            // One entry that cannot take effect must not hold up the others.
            Err(StepError::Database(error)) if error.is_of_the_data() => {
                tracing::debug!(partition, %error, entries = mail.len(), "mail rejected; retrying one by one");
                let mut unfinished = None;
                for entry in &mail {
                    match self.take_mail(std::slice::from_ref(entry)).await {
                        Err(StepError::Database(error)) if error.is_of_the_data() => {
                            self.set_mail_aside(&[(entry.0, error.to_string())]).await?;
                        }
                        taken => unfinished = unfinished.or(taken?),
                    }
                }
                unfinished
            }
            taken => taken?,
        };
        let below = unfinished.unwrap_or(last.saturating_add(1));
        floor.took(below, is_all && unfinished.is_none(), BootTime::now());
        Ok(Next::Now)
    }

    /// Applies mail in one transaction. Returns the first entry that needs another transaction.
    async fn take_mail(&self, mail: &[(i64, Mail)]) -> Result<Option<i64>, StepError> {
        if mail.is_empty() {
            return Ok(None);
        }
        let store = self.orchestrator.store();
        let partition = self.partition();
        let mut unfinished = None;
        self.orchestrator
            .transact(self.tenure, async |batch, client| {
                batch.load(mail.iter().map(|(_, mail)| mail.subject.as_str())).await?;
                let mut done = Vec::with_capacity(mail.len());
                for (arrival, mail) in mail {
                    if batch.read(mail).await? {
                        done.push(*arrival);
                    } else {
                        unfinished = unfinished.or(Some(*arrival));
                    }
                }
                store.delete_mail(client, partition, &done).await
            })
            .await?;
        Ok(unfinished)
    }

    /// Moves entries that cannot take effect out of the mailbox, each with its reason.
    async fn set_mail_aside(&self, entries: &[(i64, String)]) -> Result<(), StepError> {
        if entries.is_empty() {
            return Ok(());
        }
        let store = self.orchestrator.store();
        let partition = self.partition();
        let mut aside = Vec::new();
        self.orchestrator
            .transact(self.tenure, async |_, client| {
                aside = store.set_mail_aside(client, partition, entries).await?;
                Ok(())
            })
            .await?;
        self.orchestrator.metrics.unreadable(aside.len());
        for (subject, name, reason) in &aside {
            let table = "unreadable_mail";
            tracing::error!(
                partition,
                job = subject,
                name,
                reason,
                table,
                "mail cannot take effect; set aside"
            );
        }
        Ok(())
    }
}
