//! Versions: of this program, and of the servers that it reached.

use super::Finding;

const CHECK: &str = "versions";

#[derive(Debug, Default)]
pub struct VersionFacts {
    /// Of this program.
    pub this: String,
    pub servers: Vec<ServerVersion>,
}

#[derive(Debug, Clone)]
pub struct ServerVersion {
    pub url: String,
    pub node_id: String,
    pub version: String,
}

pub fn judge(facts: &VersionFacts) -> Vec<Finding> {
    let Some(first) = facts.servers.first() else { return Vec::new() };
    let this = &facts.this;
    if let Some(other) = facts.servers.iter().find(|server| server.version != first.version) {
        return vec![Finding::warning(
            CHECK,
            format!(
                "{} ({}) has version {}, and {} ({}) has {}",
                first.node_id, first.url, first.version, other.node_id, other.url, other.version
            ),
            "replicas of different versions are for the time of an upgrade only",
            "bring all replicas to the newer version, one after the other",
        )];
    }
    if first.version != *this {
        return vec![Finding::warning(
            CHECK,
            format!("the server has version {}, and this program {this}", first.version),
            "an older program may not know what a newer server answers, and the reverse",
            "use the `solehold` of the server's version",
        )];
    }
    let count = crate::human::count(facts.servers.len(), "server");
    vec![Finding::ok(CHECK, format!("this program and {count} have version {this}"))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        Severity,
        testing::{told, worst},
    };

    fn facts(versions: &[&str]) -> VersionFacts {
        let server = |(n, version): (usize, &&str)| ServerVersion {
            url: format!("http://s{n}"),
            node_id: format!("n{n}"),
            version: (*version).to_owned(),
        };
        VersionFacts { this: "1.2.0".to_owned(), servers: versions.iter().enumerate().map(server).collect() }
    }

    #[test]
    fn servers_are_compared_with_this_program_and_with_each_other() {
        assert!(judge(&facts(&[])).is_empty(), "no server was asked");
        assert_eq!(worst(&judge(&facts(&["1.2.0", "1.2.0"]))), Severity::Ok);
        assert!(
            told(&judge(&facts(&["1.1.0"])), Severity::Warning).contains("1.1.0, and this program 1.2.0")
        );
        let mixed = judge(&facts(&["1.2.0", "1.1.0"]));
        assert!(
            told(&mixed, Severity::Warning).contains("n0 (http://s0) has version 1.2.0, and n1"),
            "{mixed:?}"
        );
    }
}
