// What one holder holds.

import { Rows, h, setText, table, td } from "../dom.js";
import { count, resourceLink } from "../format.js";
import { stateOf } from "../store.js";
import { EventList } from "../timeline.js";

const SHOWN = 500;

export function holderPage({ store }, [name]) {
  const summary = h("p", { class: "hint" });
  const { box, body } = table(`Resources of ${name}`, ["Resource", { name: "Token", number: true }, "State"]);
  const rows = new Rows(body, (one) => one.id, row, "It holds nothing.");
  const list = new EventList(60, "No events of it yet.");
  const element = h(
    "div",
    { class: "holder" },
    h("header", { class: "title" }, h("h1", {}, h("span", { class: "muted" }, "Holder "), name), summary),
    h(
      "div",
      { class: "columns" },
      h("section", { class: "panel" }, h("h2", {}, "Resources"), box),
      h("section", { class: "panel" }, h("h2", {}, "Timeline"), list.element),
    ),
  );
  const show = () => {
    const held = [...store.visible()].filter((resource) => resource.holder === name);
    rows.show(held.slice(0, SHOWN));
    const rest = held.length > SHOWN ? `; the first ${SHOWN} of them are shown` : "";
    setText(summary, `Holds ${count(held.length, "resource")}${rest}.`);
    list.show(store.events, { passes: (event) => event.holder === name && store.isVisible(event) });
  };
  return { title: name, element, opened: show, changed: show };
}

function row(resource) {
  const token = td({ class: "number" });
  const state = h("span", { class: "pill" });
  const link = h("a", { href: resourceLink(resource) }, `${resource.kind}/${resource.key}`);
  return {
    element: h("tr", {}, h("th", { scope: "row" }, link), token, td({}, state)),
    update(one) {
      setText(token, String(one.token));
      setText(state, one.pending ? `to ${one.pending}` : "held");
      state.className = `pill ${stateOf(one)}`;
    },
  };
}
