//! What an import of documents changes, shown and written.

use serde_json::{Value, json};

use crate::{
    client::{Client, Method},
    error::{CommandResult, Doing},
    global::GlobalArgs,
    human::count,
    output,
    progress::Progress,
};

/// Changes that are shown one by one.
const SHOWN: usize = 20;

/// A document that is not declared as it should be.
#[derive(Debug)]
pub struct Change {
    /// As in `camera/cam-1`.
    pub name: String,
    pub is_new: bool,
    pub path: String,
    pub tenant: Option<String>,
    pub body: Value,
}

/// All documents of an import, checked, and compared with what is declared.
#[derive(Debug, Default)]
pub struct Changes {
    /// In the order in which they are written.
    pub all: Vec<Change>,
    pub unchanged: usize,
    /// What is declared and was not in the list. It stays.
    pub not_listed: Vec<String>,
}

impl Changes {
    /// Writes what differs, unless it is only to be shown.
    pub async fn apply(self, dry_run: bool, client: &Client, global: &GlobalArgs) -> CommandResult {
        let total = self.all.len();
        let mut progress = Progress::new("declared", Some(total as u64), global);
        for (done, change) in self.all.iter().enumerate() {
            if dry_run {
                break;
            }
            let query = [("tenant", change.tenant.clone())];
            let written = client.call::<Value>(Method::PUT, &change.path, &query, Some(&change.body)).await;
            let written = written.map_err(|failure| match done {
                0 => failure,
                _ => failure.hint(format!("{done} of {total} were written; run it again for the others")),
            });
            written.doing(format!("declare {}", change.name))?;
            progress.add(1, 1);
        }
        drop(progress);
        self.show(dry_run, global)
    }

    fn show(&self, dry_run: bool, global: &GlobalArgs) -> CommandResult {
        let names = |is_new: bool| -> Vec<&str> {
            let of = self.all.iter().filter(|change| change.is_new == is_new);
            of.map(|change| change.name.as_str()).collect()
        };
        let created = names(true);
        let changed = names(false);
        let report = json!({"dry_run": dry_run, "created": created, "changed": changed,
            "unchanged": self.unchanged, "not_listed": self.not_listed});
        output::show(global, &report, || {
            let verbs = if dry_run { ["would create", "would change"] } else { ["created", "changed"] };
            let mut text = String::new();
            for change in self.all.iter().take(SHOWN) {
                text += &format!("{} {}\n", verbs[usize::from(!change.is_new)], change.name);
            }
            if self.all.len() > SHOWN {
                text += &format!("... and {} more\n", self.all.len() - SHOWN);
            }
            let created = created.len();
            let changed = changed.len();
            let summary = if dry_run { "would be created" } else { "created" };
            text += &format!("{created} {summary}, {changed} changed, {} unchanged\n", self.unchanged);
            if !self.not_listed.is_empty() {
                let shown = self.not_listed.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
                let resources = count(self.not_listed.len(), "resource");
                text += &format!("{resources} declared but not in the list, and kept: {shown}\n");
            }
            text
        })
    }
}
