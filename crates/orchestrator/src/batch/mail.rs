//! Applies mail: reports, requests of operators, forwarded commands, and decisions on dead letters.

use solehold_sql::{Error, inbox::Mark};

use crate::model::{
    command::Command,
    job::{Input, Rejection},
    limits::REDRIVE_BATCH,
    task::bounded_reason as bounded,
};
use crate::{
    batch::{Arrival, Batch, Verdict},
    store::{DeadLetterId, DeadLetterState, Mail, MailBody, Origin},
};

impl Batch<'_> {
    /// Applies an entry. Returns whether it is done: many parked commands take several transactions.
    pub(crate) async fn read(&mut self, mail: &Mail) -> Result<bool, Error> {
        let home = self.home_of(&mail.subject);
        if let Some(home) = home.filter(|home| *home != self.partition()) {
            // The job was deleted, and created again by a command from another partition.
            self.mail.push((home, mail.clone()));
            return Ok(true);
        }
        let input = match &mail.body {
            MailBody::Report { stage, attempt, report } => {
                Input::Report { stage: stage.clone(), attempt: *attempt, kind: report.clone() }
            }
            MailBody::Command { command, origin } => {
                self.read_command(mail, command, origin.as_ref());
                return Ok(true);
            }
            MailBody::Returned { command, origin, reason } => {
                return self.take_back(command, origin, reason).await.map(|()| true);
            }
            MailBody::Cancel => Input::Cancel,
            MailBody::Retry => Input::Retry,
            MailBody::Redrive { position, generation } => {
                return self.redrive(*generation, *position, None).await;
            }
            MailBody::Discard { position, generation } => {
                return self.redrive(*generation, *position, Some(DeadLetterState::Discarded)).await;
            }
        };
        // A report of an old attempt is accepted and changes nothing, so a rejection means that there is no job.
        if self.apply(&mail.subject, &input).is_err() {
            self.tally.without_job.push((mail.subject.clone(), mail.name.clone()));
        }
        Ok(true)
    }

    /// Applies a command that another partition's owner has forwarded. A rejected command returns to the partition of
    /// its message. There it becomes a dead letter under its offset, and later commands of its key wait behind it.
    fn read_command(&mut self, mail: &Mail, command: &Command, origin: Option<&Origin>) {
        let Err(Rejection(reason)) = self.carry_out(command) else { return };
        match origin {
            Some(origin) => {
                let back = MailBody::Returned {
                    command: command.clone(),
                    origin: origin.clone(),
                    reason: bounded(&reason),
                };
                self.mail.push((origin.partition, Mail::to_job("", back)));
            }
            // Forwarded by an earlier version, which did not record the origin.
            None => {
                tracing::warn!(
                    job = mail.subject,
                    mail = mail.name,
                    reason,
                    "forwarded command rejected; dropped"
                );
                self.tally.without_job.push((mail.subject.clone(), mail.name.clone()));
            }
        }
    }

    /// Keeps a forwarded command that was rejected as a dead letter, and removes its mark: it may be redriven.
    async fn take_back(&mut self, command: &Command, origin: &Origin, reason: &str) -> Result<(), Error> {
        let payload = origin.payload.clone().into_bytes();
        let arrival = Arrival {
            position: origin.position,
            key: command.key.clone(),
            digest: origin.digest,
            generation: Some(origin.generation),
            payload: Some(payload),
            command: Ok(command.clone()),
        };
        let marks: Vec<Mark> = self.mark(&arrival).into_iter().collect();
        self.store.inbox.unmark(self.client, &marks).await?;
        self.tally.returned += 1;
        self.keep(arrival, DeadLetterState::Dead, reason).await
    }

    /// Applies a dead letter again, or discards it, and then the commands parked behind it, until one is rejected.
    async fn redrive(
        &mut self,
        generation: i64,
        position: i64,
        drop_as: Option<DeadLetterState>,
    ) -> Result<bool, Error> {
        let partition = self.partition();
        let id = DeadLetterId { partition, generation, position };
        let Some(letter) = self.store.dead_letter(self.client, id).await? else {
            tracing::warn!(letter = %id, "dead letter no longer exists; request to redrive or discard it dropped");
            return Ok(true);
        };
        let is_open = matches!(letter.state, DeadLetterState::Dead | DeadLetterState::Parked);
        if let Some(state) = drop_as.filter(|_| is_open) {
            self.store.settle_dead_letter(self.client, &letter, state, &letter.reason, self.now_ms).await?;
        }
        if letter.state == DeadLetterState::Parked {
            return Ok(true);
        }
        let open = self.store.open_dead_letters(self.client, partition, &letter.key, REDRIVE_BATCH).await?;
        for letter in &open {
            let arrival = Arrival {
                position: letter.id.position,
                key: letter.key.clone(),
                payload: letter.payload.clone(),
                digest: letter.digest.unwrap_or_default(),
                generation: Some(letter.id.generation),
                command: self
                    .rules
                    .mapping
                    .parse(letter.payload.as_deref(), Some(letter.key.as_bytes()))
                    .map_err(|error| error.to_string()),
            };
            let verdict = self.judge(&[arrival]).await?.pop();
            let (state, reason) = match verdict {
                Some(Verdict::Dead(reason) | Verdict::NoSuchJob(reason)) => {
                    (DeadLetterState::Dead, bounded(&reason))
                }
                _ => (DeadLetterState::Redriven, letter.reason.clone()),
            };
            self.store.settle_dead_letter(self.client, letter, state, &reason, self.now_ms).await?;
            if state == DeadLetterState::Dead {
                if letter.state == DeadLetterState::Parked {
                    self.copy_dead_letter(&letter.key, letter.id);
                }
                return Ok(true);
            }
        }
        Ok(i64::try_from(open.len()).unwrap_or(i64::MAX) < REDRIVE_BATCH)
    }
}
