//! `solehold gate explain`: how strong each form of a gate is, for someone who has to know at three in the morning.

use serde_json::json;

use crate::{error::CommandResult, global::GlobalArgs, output};

struct GateForm {
    name: &'static str,
    strength: &'static str,
    means: &'static str,
    gap: &'static str,
}

const FORMS: [GateForm; 8] = [
    GateForm {
        name: "PostgreSQL (by trigger, statement or column: solehold gate sql)",
        strength: "atomic",
        means: "The newest token is compared and raised in the transaction of the write. A write under an old token \
                never commits after one under a newer token.",
        gap: "By column, a deleted row takes its mark along. A database that is restored takes its marks back with \
              its rows.",
    },
    GateForm {
        name: "Redis (by a Lua script)",
        strength: "atomic, as long as the mark is there",
        means: "The script compares, raises and writes in one step.",
        gap: "A failover to a replica that lags, an eviction or a flush loses the mark, and the next token is admitted \
              whatever it is. Give the marks no expiry and use noeviction.",
    },
    GateForm {
        name: "object store (by conditional put)",
        strength: "atomic for one object",
        means: "The first line of the object carries the token; a put names the version that was read (If-Match) and fails if another \
                came first.",
        gap: "Two objects are two decisions. 409 is tried again from the read; 404 on If-Match means that the object \
              was deleted; after a timeout, 412 may be your own write: read before you believe it.",
    },
    GateForm {
        name: "files (mark and rename under a lock)",
        strength: "atomic on one machine",
        means: "The mark is compared and the file renamed into place under one lock.",
        gap: "Only among writers that use the wrapper. Over NFS it is only as good as its locks.",
    },
    GateForm {
        name: "library and tower layer (solehold_client::gate)",
        strength: "bounded by lag",
        means: "A token is refused as soon as the gate has learned of a newer one: usually milliseconds after the \
                grant, at the latest after --cache-ttl. With strict, each new token is checked in the store first.",
        gap: "Between the grant and the moment that the gate learns of it, the former holder still passes. Two \
              replicas of a service have two memories.",
    },
    GateForm {
        name: "HTTP proxy (solehold gate http)",
        strength: "bounded by lag",
        means: "The same in front of a service that cannot change. A newer token stays out until requests under older \
                ones have ended in the service: it has answered, or closed the connection. A service that hangs keeps \
                newer tokens out.",
        gap: "The gate sees the next hop only, and a gate that restarts does not know what runs in the service. With \
              --cut, an older request may take effect after a newer one.",
    },
    GateForm {
        name: "MQTT (solehold gate mqtt)",
        strength: "bounded by lag",
        means: "Messages are judged between the publishers' topics and the consumers'. What is undecidable is held \
                back, not dropped.",
        gap: "A consumer that subscribes to the publishers' topics directly is not protected: let the broker deny it.",
    },
    GateForm {
        name: "no gate: a guard or the clock alone",
        strength: "advisory",
        means: "The holder stops by itself before its deadline.",
        gap: "A process can be paused between looking at the clock and writing. Nothing refuses the write.",
    },
];

const LEFT_OVER: &str = "\
What no form protects by itself:
  stale reads  A former holder can still read, and act on what it read. Judge reads, too, where that matters.
  deletes      A delete needs the same check as a write, and the mark has to survive it.
  effects      What leaves the fenced place, such as an e-mail, a payment or a moved valve, cannot be called back.

If work is refused:
  stale        Another holder has the resource. Stop; do not retry. This is the gate doing its job.
  undecidable  The gate cannot tell now: it has not learned of the token yet, or no server can be reached. Retry.
               While no server can be reached, everything is undecidable after --cache-ttl. Bring the server back,
               or restart the gate with --fail-open if late writes are less harm than none.
  in flight    An older request has not ended in the service (solehold gate http). Retry; if it never ends, restart the
               service, which closes its connections.
  never given  The token is not from this store: check which server the holder and the gate use.
";

pub fn run(global: &GlobalArgs) -> CommandResult {
    if global.json {
        let form = |form: &GateForm| json!({ "form": form.name, "strength": form.strength, "means": form.means, "gap": form.gap });
        return output::json(&FORMS.iter().map(form).collect::<Vec<_>>());
    }
    let mut text = String::new();
    for form in &FORMS {
        text.push_str(&format!("{}: {}\n", form.name, form.strength.to_uppercase()));
        text.push_str(&wrapped(form.means));
        text.push_str(&wrapped(&format!("But: {}", form.gap)));
        text.push('\n');
    }
    output::print(&(text + LEFT_OVER))
}

/// A paragraph, indented, in lines that fit.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = String::new();
    let mut line = String::from(" ");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = String::from(" ");
        }
        line.push(' ');
        line.push_str(word);
    }
    lines + &line + "\n"
}
