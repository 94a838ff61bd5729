//! What one statement read, and for how many rows, from the plan that PostgreSQL wrote down while it ran.

use anyhow::{Context, Result};
use serde_json::Value;

/// A statement may read this many times as many rows, or pages, as it returns, changes or is asked for by key.
pub const FACTOR_MAX: f64 = 100.0;

/// A statement that ran.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Its text.
    pub sql: String,
    /// How long it took, in milliseconds, without planning.
    pub ms: f64,
    /// How many rows its caller asked for by their keys, if it did.
    pub asked: f64,
    /// Whether PostgreSQL expected so much work that it compiled the plan (JIT), which can take seconds.
    pub is_compiled: bool,
    /// Its plan, as `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)` shows it.
    pub plan: Value,
}

impl Ran {
    /// Reads an entry of the log: a duration, then the plan.
    pub fn parse(ms: &str, plan: &str) -> Result<Self> {
        let ms = ms.trim().parse().with_context(|| format!("a duration in {ms:?}"))?;
        let mut plan: Value = serde_json::from_str(plan).with_context(|| format!("a plan in {plan}"))?;
        let sql = plan["Query Text"].as_str().unwrap_or_default().to_owned();
        let is_compiled = plan["JIT"].is_object();
        Ok(Self { sql, ms, asked: 0.0, is_compiled, plan: plan["Plan"].take() })
    }

    /// The verb and the first table that it names, such as `DELETE letters`.
    pub fn title(&self) -> String {
        let verb = self.sql.split_whitespace().next().unwrap_or_default();
        let nodes = nodes(&self.plan);
        let changed = nodes.iter().find_map(|node| node["Operation"].as_str());
        let table = nodes.iter().find_map(|node| node["Relation Name"].as_str());
        format!("{} {}", changed.unwrap_or(verb).to_uppercase(), table.unwrap_or("no table"))
    }

    /// The rows that it returned.
    pub fn returned(&self) -> f64 {
        rows(&self.plan, "Actual Rows")
    }

    /// The rows that it wrote or deleted.
    pub fn changed(&self) -> f64 {
        let from = |node: &Value| {
            children(node).filter(is_outer).map(|child| rows(child, "Actual Rows")).sum::<f64>()
        };
        self.sum(|node| if node["Node Type"] == "ModifyTable" { from(node) } else { 0.0 })
    }

    /// The rows of tables that it looked at, also those that it then dropped.
    pub fn read(&self) -> f64 {
        let looked_at = ["Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck"];
        let is_scan = |node: &Value| node["Relation Name"].is_string() && node["Node Type"] != "ModifyTable";
        self.sum(|node| if is_scan(node) { looked_at.map(|what| rows(node, what)).iter().sum() } else { 0.0 })
    }

    /// The pages that it looked at.
    pub fn buffers(&self) -> f64 {
        let kinds = ["Shared Hit Blocks", "Shared Read Blocks", "Temp Read Blocks", "Temp Written Blocks"];
        kinds.iter().filter_map(|kind| self.plan[*kind].as_f64()).sum()
    }

    /// How many rows or pages it read for each row that it was about.
    pub fn factor(&self) -> f64 {
        let about = self.returned().max(self.changed()).max(self.asked).max(1.0);
        self.read().max(self.buffers()) / about
    }

    /// Whether it read more than it should have.
    pub fn is_excessive(&self) -> bool {
        self.factor() > FACTOR_MAX
    }

    /// How it found its rows, such as `Index Scan jobs_finished, Seq Scan letters`.
    pub fn path(&self) -> String {
        let scan = |node: &Value| {
            let kind = node["Node Type"]
                .as_str()
                .filter(|kind| kind.ends_with("Scan") && *kind != "Bitmap Heap Scan")?;
            Some(format!("{kind} {}", node["Index Name"].as_str().or(node["Relation Name"].as_str())?))
        };
        let mut path: Vec<String> = nodes(&self.plan).into_iter().filter_map(scan).collect();
        path.extend(self.is_compiled.then(|| "compiled first".to_owned()));
        path.dedup();
        path.join(", ")
    }

    fn sum(&self, of: impl Fn(&Value) -> f64) -> f64 {
        nodes(&self.plan).into_iter().map(of).sum()
    }
}

fn nodes(node: &Value) -> Vec<&Value> {
    let mut all = vec![node];
    children(node).for_each(|child| all.extend(nodes(child)));
    all
}

fn children(node: &Value) -> impl Iterator<Item = &Value> {
    node["Plans"].as_array().into_iter().flatten()
}

fn is_outer(node: &&Value) -> bool {
    node["Parent Relationship"] == "Outer"
}

/// A count of a node, over all times that it ran: a plan has the average.
fn rows(node: &Value, what: &str) -> f64 {
    node[what].as_f64().unwrap_or_default() * node["Actual Loops"].as_f64().unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(plan: &str) -> Ran {
        let entry = format!(r#"{{"Query Text": "SELECT 1", "Plan": {plan}}}"#);
        Ran::parse("0.5", &entry).expect("a plan")
    }

    #[test]
    fn rows_that_a_filter_drops_are_read() {
        let scan = r#"{"Node Type": "Index Scan", "Index Name": "jobs_finished", "Relation Name": "jobs",
            "Actual Rows": 2, "Actual Loops": 1, "Rows Removed by Filter": 199, "Shared Hit Blocks": 9}"#;
        let ran = ran(scan);
        assert_eq!((ran.returned(), ran.read(), ran.buffers()), (2.0, 201.0, 9.0));
        assert!(ran.is_excessive(), "100.5 rows for each that it returns");
        assert!(!Ran { asked: 3.0, ..ran.clone() }.is_excessive());
        assert_eq!(ran.path(), "Index Scan jobs_finished");
    }

    #[test]
    fn pages_count_where_no_row_is_seen() {
        let scan = r#"{"Node Type": "Index Only Scan", "Relation Name": "jobs", "Index Name": "jobs_pkey",
            "Actual Rows": 0, "Actual Loops": 1, "Shared Hit Blocks": 60, "Shared Read Blocks": 41}"#;
        assert!(ran(scan).is_excessive());
    }

    #[test]
    fn a_change_is_about_the_rows_that_it_changes() {
        let delete = r#"{"Node Type": "ModifyTable", "Operation": "Delete", "Relation Name": "letters", "Actual Rows": 0,
            "Actual Loops": 1, "Shared Hit Blocks": 900, "Plans": [{"Node Type": "Index Scan", "Relation Name": "letters",
            "Parent Relationship": "Outer", "Actual Rows": 5, "Actual Loops": 2}]}"#;
        let ran = ran(delete);
        assert_eq!((ran.changed(), ran.read(), ran.title().as_str()), (10.0, 10.0, "DELETE letters"));
        assert!(!ran.is_excessive());
    }
}
