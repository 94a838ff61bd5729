//! The specification of access for people to read: `docs/reference/access.md`.

use std::{collections::BTreeMap, fmt::Write};

use crate::support::world::Operation;

const INTRODUCTION: &str = "# Who may call what

<!-- Made from the code: make reference -->

The status that each caller gets from each operation, as a test calls all of them
(`crates/server/tests/access.rs`, after `crates/server/tests/support/access.txt`). The things that are called are those
of one tenant; `role` is what the operation requires of a key.

| caller | is |
|---|---|
| `none`, `revoked` | nobody with a key, or with one that was revoked |
| `reader`, `runner`, `admin` | keys of the tenant with these roles; `runner` holds nothing |
| `holder` | a runner's key, by which the leases and sessions of the tenant were taken |
| `limited` | a runner's key that is for other resources (`--only`) |
| `foreign` | an administrator of another tenant |
| `reader-all`, `admin-all` | keys for all tenants, which name the tenant |

- 401: the request has no valid key. 403: the key does not allow it. 404 to `foreign`: the answer is the same, word for
  word, for things that do not exist. A refusal changes nothing in the store.
- 200 to `limited` and `foreign` is an answer without the things of others: lists leave them out, and what `foreign`
  creates is in its own tenant.
- 400 and 409 are not about access: the caller may make the request, but it is wrong, or the resource is not in a state
  for it. A store that is in use takes no import. A batch has the status of its only item.
- While the store has no keys, everyone on the machine may do everything.
";

/// Renders a table for each surface.
pub fn render(
    operations: &[Operation],
    callers: &[&str],
    rows: &BTreeMap<String, impl AsRef<[u16]>>,
) -> String {
    let mut surfaces: BTreeMap<&str, String> = BTreeMap::new();
    for operation in operations {
        let label = operation.label();
        let Some(statuses) = rows.get(&label) else { continue };
        let role = operation.role.map_or("none".to_owned(), |role| format!("{role:?}").to_lowercase());
        let table = surfaces.entry(&operation.surface).or_default();
        write!(table, "| `{label}` | {role} |").expect("a string takes writes");
        statuses
            .as_ref()
            .iter()
            .for_each(|status| write!(table, " {status} |").expect("a string takes writes"));
        table.push('\n');
    }
    let head = format!(
        "| operation | role | {} |\n|---|---|{}\n",
        callers.join(" | "),
        "---|".repeat(callers.len())
    );
    let section =
        |(surface, table): (&str, String)| format!("\n## {}\n\n{head}{table}", capitalised(surface));
    let sections: String = surfaces.into_iter().map(section).collect();
    format!("{INTRODUCTION}{sections}")
}

fn capitalised(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}
