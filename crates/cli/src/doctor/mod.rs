//! What `solehold doctor` knows: facts are gathered first (`gather`), and each check is a pure judgement over them.
//!
//! ```text
//!   gather/host      files, disk, clock ──┐
//!   gather/postgres  settings, rights   ──┼──> facts ──> clock, store, files, certificates, versions, ttl, postgres
//!   gather/server    health, time       ──┘                 └──> findings: what was seen, why it matters, what to do
//! ```

pub mod certificates;
pub mod clock;
pub mod files;
pub mod folder;
pub mod gather;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod ttl;
pub mod versions;

use serde::Serialize;

/// How a check ended, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Ok,
    /// What would have to be known could not be found out.
    NotChecked,
    /// It works, and may hurt one day.
    Warning,
    /// It does not work, or can lose what was promised.
    Problem,
}

impl Severity {
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotChecked => "not checked",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What one check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub severity: Severity,
    /// What was seen.
    pub seen: String,
    /// Why it matters; nothing if all is well.
    pub why: Option<String>,
    /// What to do about it.
    #[serde(rename = "do")]
    pub remedy: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self { check, severity: Severity::Ok, seen: seen.into(), why: None, remedy: None }
    }

    pub fn warning(
        check: &'static str,
        seen: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::of(check, Severity::Warning, seen, why, remedy)
    }

    pub fn problem(
        check: &'static str,
        seen: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::of(check, Severity::Problem, seen, why, remedy)
    }

    pub fn not_checked(
        check: &'static str,
        seen: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::of(check, Severity::NotChecked, seen, why, remedy)
    }

    fn of(
        check: &'static str,
        severity: Severity,
        seen: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let seen = seen.into();
        Self { check, severity, seen, why: Some(why.into()), remedy: Some(remedy.into()) }
    }
}

/// All that was found out. What was not looked at is missing.
#[derive(Debug, Default)]
pub struct Facts {
    pub clock: clock::ClockFacts,
    pub folder: Option<folder::FolderFacts>,
    pub secrets: Vec<files::SecretFile>,
    pub certificate: Option<certificates::CertificateFacts>,
    pub versions: versions::VersionFacts,
    pub ttl: ttl::TtlFacts,
    #[cfg(feature = "postgres")]
    pub postgres: Option<postgres::PostgresFacts>,
    /// What gathering itself has found, such as a server that does not answer.
    pub gathered: Vec<Finding>,
}

/// Judges all facts.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = facts.gathered.clone();
    findings.extend(clock::judge(&facts.clock));
    findings.extend(facts.folder.iter().flat_map(folder::judge));
    #[cfg(feature = "postgres")]
    findings.extend(facts.postgres.iter().flat_map(postgres::judge));
    findings.extend(files::judge(&facts.secrets));
    findings.extend(facts.certificate.iter().flat_map(certificates::judge));
    findings.extend(versions::judge(&facts.versions));
    findings.extend(ttl::judge(&facts.ttl));
    findings
}

#[cfg(test)]
mod testing {
    use super::{Finding, Severity};

    /// The findings of a severity, as one text.
    pub fn told(findings: &[Finding], severity: Severity) -> String {
        let of = findings.iter().filter(|finding| finding.severity == severity);
        of.map(|finding| format!("{}: {}\n", finding.check, finding.seen)).collect()
    }

    /// The worst severity, and that everything that is not well says why and what to do.
    pub fn worst(findings: &[Finding]) -> Severity {
        for finding in findings {
            let is_ok = finding.severity == Severity::Ok;
            assert_eq!(finding.why.is_none() && finding.remedy.is_none(), is_ok, "{finding:?}");
        }
        findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }
}
