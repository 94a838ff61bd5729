// What operators did, newest first.

import { path } from "../api.js";
import { Rows, h, setText, table, td } from "../dom.js";
import { moment } from "../format.js";
import { Poll } from "../page.js";

const ACTIONS = {
  runner_status: "set the status of",
  remove_runner: "removed",
  revoke_lease: "revoked the lease on",
  hand_over: "handed over",
  call_off_hand_over: "called off the hand-over of",
  shift: "shifted work to",
  placement: "changed the settings of",
  quarantine: "put into quarantine",
  clear_quarantine: "cleared from quarantine",
  delete_resource: "deleted",
  create_key: "created",
  rotate_key: "rotated",
  revoke_key: "revoked",
  expire_key: "set when it expires:",
  tenant_quotas: "set the quotas of",
  raise_token: "raised the token of",
  restored: "declared a restore of",
  retire: "retired",
  import: "imported into",
};

export function auditPage({ api, store }) {
  const { box, body } = table("Audit trail", ["Time", "Who", "Did", "To", "Details"]);
  const rows = new Rows(body, (entry) => entry.id, row, "Nobody has changed anything yet.");
  let older = [];
  let next;
  const poll = new Poll(3_000, async () => {
    const page = await api.get(path("admin", "audit"), { limit: 100, tenant: store.tenant });
    if (older.length === 0) next = page.next;
    const known = new Set(page.entries.map((entry) => entry.id));
    older = older.filter((entry) => !known.has(entry.id));
    show(page.entries);
  });
  let newest = [];
  const olderButton = h("button", { type: "button", onclick: loadMore }, "Show older entries");
  const more = h("div", { class: "buttons start", hidden: true }, olderButton);

  function show(entries) {
    newest = entries;
    rows.show([...newest, ...older]);
    more.hidden = !next;
  }

  async function loadMore() {
    const page = await api.get(path("admin", "audit"), { limit: 100, cursor: next, tenant: store.tenant });
    older = [...older, ...page.entries];
    next = page.next;
    show(newest);
  }

  const element = h(
    "div",
    { class: "audit" },
    h(
      "header",
      { class: "title" },
      h("h1", {}, "Audit trail"),
      h(
        "p",
        { class: "hint" },
        "What people and programs with an admin's key did to runners, leases, placement and keys.",
      ),
    ),
    poll.element,
    h("section", { class: "panel" }, box, more),
  );
  return { title: "Audit trail", element, changed: () => {}, close: () => poll.close() };
}

function row(entry) {
  const details = Object.entries(entry.details ?? {}).map(([name, value]) => `${name}: ${words(value)}`);
  const who = h(
    "th",
    { scope: "row" },
    entry.actor,
    entry.tenant && entry.tenant !== "default" && h("small", {}, entry.tenant),
  );
  return {
    element: h(
      "tr",
      {},
      td({ class: "time" }, h("time", { datetime: entry.at }, moment(entry.at))),
      who,
      td({}, ACTIONS[entry.action] ?? entry.action.replaceAll("_", " ")),
      td({}, entry.target),
      td({}, details.join(", ")),
    ),
  };
}

const words = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
