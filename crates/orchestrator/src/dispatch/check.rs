//! Findings of `--check` about brokers and workers.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// As it should be, or unknown.
    Note,
    /// Jobs still end, but later or with more work than necessary.
    Warning,
    /// Jobs do not end.
    Problem,
}

/// One thing that was compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub weight: Weight,
    /// What was found, its consequence, and what to change.
    pub text: String,
}

impl Finding {
    pub(crate) fn note(text: impl Into<String>) -> Self {
        Self { weight: Weight::Note, text: text.into() }
    }

    pub(crate) fn warning(text: impl Into<String>) -> Self {
        Self { weight: Weight::Warning, text: text.into() }
    }

    pub(crate) fn problem(text: impl Into<String>) -> Self {
        Self { weight: Weight::Problem, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = match self.weight {
            Weight::Note => "note",
            Weight::Warning => "warning",
            Weight::Problem => "problem",
        };
        write!(f, "{weight}: {}", self.text)
    }
}
