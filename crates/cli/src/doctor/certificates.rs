//! The certificate that `serve` shows, and its key.

use std::path::PathBuf;

use solehold_process::tls::CertificateInfo;

use super::Finding;
use crate::human::duration_ms;

const CHECK: &str = "certificates";
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// Time enough to replace a certificate by hand.
const SOON_MS: u64 = 30 * DAY_MS;

#[derive(Debug, Clone)]
pub struct CertificateFacts {
    pub path: PathBuf,
    /// What it says, or why it cannot be read.
    pub info: Result<CertificateInfo, String>,
    /// Why certificate and key cannot be used together; none if they can.
    pub unusable: Option<String>,
    /// The names by which clients may reach the server; empty if none is known.
    pub hosts: Vec<String>,
    pub now_ms: u64,
}

pub fn judge(facts: &CertificateFacts) -> Vec<Finding> {
    let path = facts.path.display();
    let info = match &facts.info {
        Ok(info) => info,
        Err(error) => {
            return vec![Finding::problem(
                CHECK,
                format!("{path} cannot be read: {error}"),
                "the server could not start",
                "give a PEM file with the certificate first, and its chain after it",
            )];
        }
    };
    let mut findings = vec![validity(facts, info)];
    findings.extend(facts.unusable.as_ref().map(|error| {
        Finding::problem(
            CHECK,
            error.clone(),
            "the server could not start, or would keep the former certificate",
            "give the private key that the certificate was made for",
        )
    }));
    if !facts.hosts.is_empty() {
        findings.push(names(facts, info));
    }
    findings
}

fn validity(facts: &CertificateFacts, info: &CertificateInfo) -> Finding {
    let path = facts.path.display();
    let now = facts.now_ms;
    let why = "clients refuse to connect, and holders stop at their deadline";
    let remedy = "replace the files; a running server loads them by itself";
    if now >= info.not_after_ms {
        let ago = duration_ms(now - info.not_after_ms);
        return Finding::problem(CHECK, format!("{path} expired {ago} ago"), why, remedy);
    }
    if now < info.not_before_ms {
        let left = duration_ms(info.not_before_ms - now);
        let seen = format!("{path} is not valid yet, for another {left}");
        return Finding::problem(CHECK, seen, why, "wait, check this machine's clock, or replace the files");
    }
    let left = info.not_after_ms - now;
    let seen = format!("{path} is valid for another {}", duration_ms(left));
    if left < SOON_MS { Finding::warning(CHECK, seen, why, remedy) } else { Finding::ok(CHECK, seen) }
}

fn names(facts: &CertificateFacts, info: &CertificateInfo) -> Finding {
    let path = facts.path.display();
    let is_named = |host: &String| info.names.iter().any(|name| matches(name, host));
    let hosts = facts.hosts.join(", ");
    if let Some(host) = facts.hosts.iter().find(|host| is_named(host)) {
        return Finding::ok(CHECK, format!("{path} is for {host}"));
    }
    let names = if info.names.is_empty() { "no host".to_owned() } else { info.names.join(", ") };
    Finding::warning(
        CHECK,
        format!("{path} is for {names}, and not for {hosts}"),
        "clients that connect by a name that is not in it refuse the server",
        "connect by a name that is in it, or make one with the names that clients use",
    )
}

/// Whether a name in a certificate stands for a host: a star stands for one label.
fn matches(name: &str, host: &str) -> bool {
    let is_same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    match (name.strip_prefix("*."), host.split_once('.')) {
        (Some(rest), Some((_, domain))) => is_same(rest, domain),
        _ => is_same(name, host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        Severity,
        testing::{told, worst},
    };

    fn facts(now_ms: u64) -> CertificateFacts {
        let names = vec!["leases.example".to_owned(), "*.svc.example".to_owned(), "10.0.0.7".to_owned()];
        let info = CertificateInfo { not_before_ms: 100 * DAY_MS, not_after_ms: 465 * DAY_MS, names };
        CertificateFacts {
            path: "cert.pem".into(),
            info: Ok(info),
            unusable: None,
            hosts: vec!["leases.example".to_owned()],
            now_ms,
        }
    }

    #[test]
    fn a_certificate_is_judged_by_its_days() {
        for (day, severity, words) in [
            (99, Severity::Problem, "not valid yet, for another 1d"),
            (100, Severity::Ok, "valid for another 365d"),
            (436, Severity::Warning, "valid for another 29d"),
            (465, Severity::Problem, "expired 0ms ago"),
            (467, Severity::Problem, "expired 2d ago"),
        ] {
            let findings = judge(&facts(day * DAY_MS));
            assert_eq!(worst(&findings), severity, "day {day}");
            assert!(told(&findings, severity).contains(words), "{findings:?}");
        }
    }

    #[test]
    fn names_match_as_clients_match_them() {
        let with =
            |host: &str| judge(&CertificateFacts { hosts: vec![host.to_owned()], ..facts(200 * DAY_MS) });
        for good in ["leases.example", "LEASES.example", "a.svc.example", "10.0.0.7"] {
            assert_eq!(worst(&with(good)), Severity::Ok, "{good}");
        }
        for bad in ["other.example", "svc.example", "a.b.svc.example", "10.0.0.8"] {
            assert!(told(&with(bad), Severity::Warning).contains(bad), "{bad}");
        }
    }

    #[test]
    fn a_wrong_key_and_an_unreadable_file_are_problems() {
        let wrong =
            CertificateFacts { unusable: Some("the keys do not match".to_owned()), ..facts(200 * DAY_MS) };
        assert_eq!(worst(&judge(&wrong)), Severity::Problem);
        let odd = CertificateFacts { info: Err("not PEM".to_owned()), ..facts(200 * DAY_MS) };
        assert_eq!(worst(&judge(&odd)), Severity::Problem);
    }
}
