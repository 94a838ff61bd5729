// The work of orchestrators, as far as this server sees it: the partitions that they lease, and resources of the kind
// `job`. The jobs themselves are in the orchestrator's own database, which it serves at an address of its own.

import { Rows, h, panel, setText, table, td } from "../dom.js";
import { count, resourceLink } from "../format.js";
import { stateOf } from "../store.js";

const KINDS = ["partition", "job"];
const SHOWN = 500;
const STATE_WORDS = { held: "held", moving: "being handed over", "held-back": "held back", free: "free" };

export function jobsPage({ store }) {
  const parts = KINDS.map((kind) => {
    const title = kind === "partition" ? "Partitions of orchestrators" : "Resources of the kind job";
    const { box, body } = table(title, [
      kind === "partition" ? "Partition" : "Job",
      "Holder",
      { name: "Token", number: true },
      "State",
    ]);
    const rows = new Rows(body, (one) => one.id, row, "There are none.");
    const summary = h("p", { class: "hint" });
    return { kind, rows, summary, panel: panel(title, {}, summary, box) };
  });
  const element = h(
    "div",
    { class: "jobs" },
    h("header", { class: "title" }, h("h1", {}, "Jobs")),
    h("div", { class: "columns" }, ...parts.map((part) => part.panel)),
    panel(
      "Jobs of an orchestrator, with their stages",
      { class: "narrow" },
      h(
        "p",
        {},
        "An orchestrator keeps its jobs in a database of its own, and this server cannot see them. It serves them " +
          "at its own address, 127.0.0.1:7073 by default, which the command line reads:",
      ),
      h(
        "pre",
        { tabindex: "0", "aria-label": "Commands" },
        "solehold job ls --state running\nsolehold job get JOB\nsolehold job letters",
      ),
      h(
        "p",
        { class: "hint" },
        "Where partitions are assigned by leases rather than by a consumer group, they are above: who " +
          "works on which of them.",
      ),
    ),
  );
  const show = () => {
    for (const { kind, rows, summary } of parts) {
      const found = [...store.visible()].filter((resource) => resource.kind === kind);
      const held = found.filter((resource) => resource.holder !== null).length;
      rows.show(found.slice(0, SHOWN));
      const rest = found.length > SHOWN ? `; the first ${SHOWN} are shown, the search finds the others` : "";
      setText(summary, found.length === 0 ? "" : `${count(held, "is", "are")} held of ${found.length}${rest}.`);
    }
  };
  return { title: "Jobs", element, opened: show, changed: show };
}

function row(resource) {
  const holder = td({});
  const token = td({ class: "number" });
  const state = h("span", { class: "pill" });
  return {
    element: h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: resourceLink(resource) }, resource.key)),
      holder,
      token,
      td({}, state),
    ),
    update(one) {
      setText(holder, one.holder ?? "nobody");
      setText(token, String(one.token));
      setText(state, STATE_WORDS[stateOf(one)]);
      state.className = `pill ${stateOf(one)}`;
    },
  };
}
