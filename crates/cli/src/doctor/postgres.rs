//! PostgreSQL: whether it keeps what it has confirmed, and whether the role may do what the store does.

use std::collections::BTreeMap;

use super::Finding;
use crate::config::Failover;

const CHECK: &str = "postgres";
const STORE: &str = "store";
const RIGHTS: &str = "permissions";
const VERSION: &str = "versions";

/// Older ones are no longer maintained.
const VERSION_LEAST: i32 = 140_000;

#[derive(Debug, Clone)]
pub struct PostgresFacts {
    /// Host and database, for people.
    pub place: String,
    /// As in 150004.
    pub version: i32,
    /// By name: the value, and where it comes from, as in `configuration file`, `database` or `user`.
    pub settings: BTreeMap<String, (String, String)>,
    /// Standbys that are attached.
    pub standbys: i64,
    pub is_standby: bool,
    /// Connections that others have open.
    pub connections: i64,
    /// The most that one server has open at a time.
    pub pool: i64,
    /// Rights that the role lacks, as in `UPDATE on solehold.leases`.
    pub lacks: Vec<String>,
    /// The version of the schema; none if there is no store yet.
    pub schema: Option<u32>,
    pub schema_known: u32,
    /// Why a server could not use the database, in the words of the store, such as a pooler in the way.
    pub refused: Option<String>,
    pub failover: Failover,
}

impl PostgresFacts {
    fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", |(value, _)| value)
    }

    fn number(&self, name: &str) -> i64 {
        self.setting(name).parse().unwrap_or_default()
    }

    /// As in `fsync = off (configuration file)`.
    fn shown(&self, name: &str) -> String {
        let (value, source) = self.settings.get(name).cloned().unwrap_or_default();
        format!("{name} = {value} ({source})")
    }
}

pub fn judge(facts: &PostgresFacts) -> Vec<Finding> {
    let mut findings = vec![refused(facts), schema(facts), version(facts), rights(facts)];
    findings.extend(durability(facts));
    findings.push(synchronous_commit(facts));
    findings.push(standbys(facts));
    findings.push(connections(facts));
    findings
}

fn refused(facts: &PostgresFacts) -> Finding {
    let place = &facts.place;
    if facts.is_standby {
        return Finding::problem(
            STORE,
            format!("{place} is a standby, which takes no writes"),
            "the server could not start",
            "name the primary, or all hosts: postgres://USER@HOST1,HOST2/DATABASE",
        );
    }
    match &facts.refused {
        None => Finding::ok(STORE, format!("{place} answers")),
        Some(error) => Finding::problem(
            STORE,
            error.clone(),
            "the server could not start",
            "do as the message says; a pooler must give each connection a session of its own (pool_mode = session)",
        ),
    }
}

fn schema(facts: &PostgresFacts) -> Finding {
    let known = facts.schema_known;
    match facts.schema {
        None => Finding::ok(STORE, "there is no store in the database yet; `serve` creates it"),
        Some(version) if version > known => Finding::problem(
            STORE,
            format!("the store has schema {version}, and this program knows {known}"),
            "a newer version has migrated it; this one refuses to open it",
            "use the newer version",
        ),
        Some(version) if version < known => Finding::warning(
            STORE,
            format!("the store has schema {version}, and this program writes {known}"),
            "the next `serve` of this version migrates it, and older versions cannot use it afterwards",
            "make a backup first, and upgrade all replicas",
        ),
        Some(version) => Finding::ok(STORE, format!("the store has schema {version}")),
    }
}

fn version(facts: &PostgresFacts) -> Finding {
    let seen = format!("PostgreSQL has version {}.{}", facts.version / 10_000, facts.version % 10_000);
    if facts.version < VERSION_LEAST {
        let why = "it is no longer maintained, and Solehold is not tested with it";
        return Finding::warning(VERSION, seen, why, "upgrade PostgreSQL to 15 or newer");
    }
    Finding::ok(VERSION, seen)
}

fn rights(facts: &PostgresFacts) -> Finding {
    if facts.lacks.is_empty() {
        return Finding::ok(RIGHTS, "the role has all rights that the store needs");
    }
    Finding::problem(
        RIGHTS,
        format!("the role lacks {}", facts.lacks.join(", ")),
        "commands fail, or a failover goes unnoticed",
        "GRANT them to the role that --engine names",
    )
}

fn durability(facts: &PostgresFacts) -> Vec<Finding> {
    let off = |name: &str| facts.setting(name) == "off";
    let mut findings = Vec::new();
    if off("fsync") {
        let why = "a crash of the machine loses grants that were confirmed: two holders could have one lease";
        findings.push(Finding::problem(
            CHECK,
            facts.shown("fsync"),
            why,
            "set fsync = on and restart PostgreSQL",
        ));
    }
    if off("full_page_writes") {
        let why = "a crash of the machine can leave pages half written, and the database damaged";
        let remedy =
            "set full_page_writes = on and reload PostgreSQL, unless the file system cannot tear pages (ZFS)";
        findings.push(Finding::problem(CHECK, facts.shown("full_page_writes"), why, remedy));
    }
    if off("data_checksums") {
        let why = "a disk that returns wrong data goes unnoticed";
        let remedy = "stop PostgreSQL and run pg_checksums --enable";
        findings.push(Finding::warning(CHECK, facts.shown("data_checksums"), why, remedy));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "fsync, full_page_writes and data_checksums are on"));
    }
    findings
}

fn synchronous_commit(facts: &PostgresFacts) -> Finding {
    let seen = facts.shown("synchronous_commit");
    if ["on", "remote_apply"].contains(&facts.setting("synchronous_commit")) {
        return Finding::ok(CHECK, seen);
    }
    Finding::warning(
        CHECK,
        seen,
        "the store's own connections set it to on, so leases are safe; others that write with tokens here (SQL gates, \
         row claims) lose commits in a crash or a failover",
        "set synchronous_commit = on, for the server, this database and this role",
    )
}

fn standbys(facts: &PostgresFacts) -> Finding {
    let is_waited_for = !facts.setting("synchronous_standby_names").is_empty();
    let count = facts.standbys;
    let remedy =
        "set synchronous_standby_names, or configure `failover: lossy` and read docs/guides/backups.md";
    match (facts.failover, is_waited_for) {
        (Failover::Lossless, false) => Finding::problem(
            CHECK,
            "failover is configured as lossless, but synchronous_standby_names is empty",
            "a standby that takes over may lack confirmed grants, and nothing would be held back after it",
            remedy,
        ),
        (Failover::Lossy, false) if count > 0 => Finding::warning(
            CHECK,
            format!("{}, and synchronous_standby_names is empty", attached(count)),
            "a failover may lose commits; the server notices, and grants nothing for `ttl_max`",
            "set synchronous_standby_names and `failover: lossless` to go on at once; see docs/guides/backups.md",
        ),
        (_, true) if count == 0 => Finding::warning(
            CHECK,
            format!("{} and no standby is attached", facts.shown("synchronous_standby_names")),
            "commits wait for a standby that is not there",
            "start the standby, or empty synchronous_standby_names",
        ),
        (Failover::Lossless, true) => Finding::ok(CHECK, "commits wait for a synchronous standby"),
        (Failover::Lossy, true) => {
            Finding::ok(CHECK, "commits wait for a synchronous standby; `failover: lossless` is possible")
        }
        (Failover::Lossy, false) => Finding::ok(CHECK, "no standby is attached"),
    }
}

fn attached(count: i64) -> String {
    if count == 1 { "1 standby is attached".to_owned() } else { format!("{count} standbys are attached") }
}

fn connections(facts: &PostgresFacts) -> Finding {
    let reserved = facts.number("superuser_reserved_connections") + facts.number("reserved_connections");
    let most = facts.number("max_connections") - reserved;
    let PostgresFacts { pool, connections, .. } = facts;
    let seen = format!(
        "PostgreSQL takes {most} connections, of which {connections} are in use; one server needs {pool}"
    );
    let why = "a server that gets no connection grants and renews nothing";
    if most < *pool {
        return Finding::problem(CHECK, seen, why, "raise max_connections");
    }
    if most - connections < *pool {
        let remedy = "raise max_connections, or close connections of other programs";
        return Finding::warning(CHECK, seen, why, remedy);
    }
    Finding::ok(CHECK, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        Severity,
        testing::{told, worst},
    };

    fn good() -> PostgresFacts {
        let settings = [
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("data_checksums", "on"),
            ("synchronous_commit", "on"),
            ("synchronous_standby_names", ""),
            ("max_connections", "100"),
            ("superuser_reserved_connections", "3"),
        ];
        let setting =
            |(name, value): (&str, &str)| (name.to_owned(), (value.to_owned(), "default".to_owned()));
        PostgresFacts {
            place: "PostgreSQL at db:5432, database solehold".to_owned(),
            version: 150_004,
            settings: settings.into_iter().map(setting).collect(),
            standbys: 0,
            is_standby: false,
            connections: 20,
            pool: 14,
            lacks: Vec::new(),
            schema: Some(10),
            schema_known: 10,
            refused: None,
            failover: Failover::Lossy,
        }
    }

    fn with(change: impl FnOnce(&mut PostgresFacts)) -> Vec<Finding> {
        let mut facts = good();
        change(&mut facts);
        judge(&facts)
    }

    fn set(name: &str, value: &str) -> Vec<Finding> {
        with(|facts| _ = facts.settings.insert(name.to_owned(), (value.to_owned(), "user".to_owned())))
    }

    #[test]
    fn settings_that_lose_commits_are_told_with_where_they_are_set() {
        assert_eq!(worst(&judge(&good())), Severity::Ok);
        assert!(told(&set("fsync", "off"), Severity::Problem).contains("fsync = off (user)"));
        assert!(told(&set("full_page_writes", "off"), Severity::Problem).contains("full_page_writes"));
        assert!(told(&set("data_checksums", "off"), Severity::Warning).contains("data_checksums"));
        for lax in ["off", "local", "remote_write"] {
            assert!(told(&set("synchronous_commit", lax), Severity::Warning).contains("(user)"), "{lax}");
        }
        assert_eq!(worst(&set("synchronous_commit", "remote_apply")), Severity::Ok);
    }

    #[test]
    fn standbys_are_judged_by_what_a_failover_may_lose() {
        let attached = with(|facts| facts.standbys = 2);
        assert!(told(&attached, Severity::Warning).contains("2 standbys are attached"), "{attached:?}");
        let lossless = with(|facts| facts.failover = Failover::Lossless);
        assert!(told(&lossless, Severity::Problem).contains("configured as lossless"), "{lossless:?}");
        assert!(told(&set("synchronous_standby_names", "one"), Severity::Warning).contains("no standby"));
        let waited_for = with(|facts| {
            (facts.standbys, facts.failover) = (1, Failover::Lossless);
            facts.settings.insert("synchronous_standby_names".to_owned(), ("*".to_owned(), String::new()));
        });
        assert_eq!(worst(&waited_for), Severity::Ok);
        assert!(told(&with(|facts| facts.is_standby = true), Severity::Problem).contains("standby"));
    }

    #[test]
    fn rights_versions_connections_and_poolers_are_judged() {
        assert!(
            told(
                &with(|facts| facts.lacks = vec!["UPDATE on solehold.leases".to_owned()]),
                Severity::Problem
            )
            .contains("lacks UPDATE on solehold.leases")
        );
        assert_eq!(worst(&with(|facts| facts.version = 120_001)), Severity::Warning);
        assert_eq!(worst(&with(|facts| facts.schema = Some(11))), Severity::Problem);
        assert_eq!(worst(&with(|facts| facts.schema = Some(9))), Severity::Warning);
        assert_eq!(worst(&with(|facts| facts.schema = None)), Severity::Ok);
        assert!(told(&set("max_connections", "12"), Severity::Problem).contains("takes 9 connections"));
        assert_eq!(worst(&with(|facts| facts.connections = 90)), Severity::Warning);
        let pooler = with(|facts| facts.refused = Some("there is a pooler".to_owned()));
        assert!(told(&pooler, Severity::Problem).contains("there is a pooler"));
    }
}
