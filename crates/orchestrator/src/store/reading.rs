//! What an owner does with the mail of its partition: reports, requests, commands that were forwarded or came back, and
//! decisions on letters.

use solehold_sql::{Error, inbox::Mark};

use super::{
    LetterId, LetterState, Mail, MailBody, Origin,
    batch::{Arrival, Batch, Verdict},
};
use crate::{command::Command, job::Input, limits::REDRIVE_BATCH, task::bounded_reason as bounded};

impl Batch<'_> {
    /// Does what mail says. Returns whether it is done; a long line of parked commands takes several transactions.
    pub(crate) async fn read(&mut self, mail: &Mail) -> Result<bool, Error> {
        let home = self.home_of(&mail.subject);
        if let Some(home) = home.filter(|home| *home != self.partition()) {
            // The job was deleted, and made again by a command that came by another partition.
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
                return self.redrive(*generation, *position, Some(LetterState::Discarded)).await;
            }
        };
        // Reports of old attempts are taken, and change nothing: what is refused has no job.
        if self.apply(&mail.subject, &input).is_err() {
            self.tally.without_job.push((mail.subject.clone(), mail.name.clone()));
        }
        Ok(true)
    }

    /// Does what a command says that another partition's owner has forwarded. One that can have no effect goes back to
    /// the partition by which it came: there it becomes a letter under the offset of its message, and later commands of
    /// its key, which come by that partition, too, wait behind it.
    fn read_command(&mut self, mail: &Mail, command: &Command, origin: Option<&Origin>) {
        let Err(reason) = self.carry_out(command) else { return };
        match origin {
            Some(origin) => {
                let (command, reason) = (command.clone(), bounded(&reason));
                let back = MailBody::Returned { command, origin: origin.clone(), reason };
                self.mail.push((origin.partition, Mail::to_job("", back)));
            }
            // Of an earlier version, which did not say where it came from.
            None => {
                tracing::warn!(
                    job = mail.subject,
                    mail = mail.name,
                    reason,
                    "a forwarded command had no effect"
                );
                self.tally.without_job.push((mail.subject.clone(), mail.name.clone()));
            }
        }
    }

    /// Keeps a command that was forwarded and had no effect as a dead letter, without its mark: it may work later.
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
        self.keep(arrival, LetterState::Dead, reason).await
    }

    /// Applies a dead letter again, or drops it, and then what is parked behind it, until one is dead.
    async fn redrive(
        &mut self,
        generation: i64,
        position: i64,
        drop_as: Option<LetterState>,
    ) -> Result<bool, Error> {
        let partition = self.partition();
        let id = LetterId { partition, generation, position };
        let Some(letter) = self.store.letter(self.client, id).await? else {
            tracing::warn!(letter = %id, "a letter that is to be decided on is gone");
            return Ok(true);
        };
        let is_open = matches!(letter.state, LetterState::Dead | LetterState::Parked);
        if let Some(state) = drop_as.filter(|_| is_open) {
            self.store.settle_letter(self.client, &letter, state, &letter.reason, self.now_ms).await?;
        }
        if letter.state == LetterState::Parked {
            return Ok(true);
        }
        let open = self.store.open_letters(self.client, partition, &letter.key, REDRIVE_BATCH).await?;
        for letter in &open {
            let arrival = Arrival {
                position: letter.position,
                key: letter.key.clone(),
                payload: letter.payload.clone(),
                digest: letter.digest.unwrap_or_default(),
                generation: Some(letter.generation),
                command: self.mapping.parse(letter.payload.as_deref(), Some(letter.key.as_bytes())),
            };
            let verdict = self.judge(&[arrival]).await?.pop();
            let (state, reason) = match verdict {
                Some(Verdict::Dead(reason)) => (LetterState::Dead, bounded(&reason)),
                _ => (LetterState::Redriven, letter.reason.clone()),
            };
            self.store.settle_letter(self.client, letter, state, &reason, self.now_ms).await?;
            if state == LetterState::Dead {
                if letter.state == LetterState::Parked {
                    self.copy_letter(&letter.key, letter.id());
                }
                return Ok(true);
            }
        }
        Ok(i64::try_from(open.len()).unwrap_or(i64::MAX) < REDRIVE_BATCH)
    }
}
