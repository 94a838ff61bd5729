//! What a holder remembers of the store's history (rule 23). It outlives the holder's sessions.
//!
//! A store that was restored, or an old server that came back after a failover, answers from an older history: what it
//! says about leases has been overtaken, so nothing of it is taken up. The epoch tells the two apart. Where a restore
//! brought the epoch back as well, the sealed cursor does: the holder shows it with each heartbeat, and a store that is
//! behind it knows that it was set back.

/// An answer comes from an older history than one that was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store answered from an older history (epoch {told}, but epoch {seen} was seen before): \
     it was restored, or an old server came back after a failover"
)]
pub struct OlderHistory {
    pub seen: u64,
    pub told: u64,
}

/// The highest epoch that was seen, and the last cursor that the store sealed for this holder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    epoch: u64,
    sealed_cursor: Option<String>,
}

impl History {
    /// Judges an answer and gives its epoch. One that tells no epoch, as from an older server, counts as of the present
    /// one.
    pub fn follow(&mut self, told: Option<u64>) -> Result<u64, OlderHistory> {
        let told = told.unwrap_or(self.epoch);
        if told < self.epoch {
            return Err(OlderHistory { seen: self.epoch, told });
        }
        self.epoch = told;
        Ok(told)
    }

    /// What to show with the next heartbeat.
    pub fn sealed_cursor(&self) -> Option<&str> {
        self.sealed_cursor.as_deref()
    }

    /// Keeps the cursor of an answer. The store has been shown the one kept so far, so the new one is not behind it.
    pub fn keep(&mut self, sealed_cursor: Option<&str>) {
        if let Some(cursor) = sealed_cursor {
            self.sealed_cursor = Some(cursor.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_history_is_never_followed() {
        let mut history = History::default();
        assert_eq!(history.follow(None), Ok(0), "no epoch is known");
        assert_eq!(history.follow(Some(3)), Ok(3));
        assert_eq!(history.follow(None), Ok(3), "an answer without an epoch is of the present one");
        assert_eq!(history.follow(Some(2)), Err(OlderHistory { seen: 3, told: 2 }));
        assert_eq!(history.follow(Some(3)), Ok(3), "and nothing of the older one stayed");
        assert_eq!(history.follow(Some(4)), Ok(4));
    }

    #[test]
    fn a_cursor_is_kept_until_there_is_another() {
        let mut history = History::default();
        assert_eq!(history.sealed_cursor(), None);
        history.keep(Some("a"));
        history.keep(None);
        assert_eq!(history.sealed_cursor(), Some("a"));
        history.keep(Some("b"));
        assert_eq!(history.sealed_cursor(), Some("b"));
    }
}
