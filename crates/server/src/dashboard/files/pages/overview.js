// Who owns what, and what happens to it.

import { h, panel, setText } from "../dom.js";
import { clock, number, resourceLink } from "../format.js";
import { OwnershipMap } from "../map.js";
import { STATES, stateOf } from "../store.js";
import { EventList, drawStrip, legend } from "../timeline.js";

const WORDS = { held: "held", moving: "being handed over", "held-back": "held back", free: "free" };
const STRIP_MINUTES = 10;

export function overview({ store }) {
  const counts = new Map(STATES.map((state) => [state, h("strong", {}, "0")]));
  const holders = h("strong", {}, "0");
  const summary = h(
    "ul",
    { class: "counts" },
    ...STATES.map((state) =>
      h("li", {}, h("span", { class: `mark ${state}` }), counts.get(state), ` ${WORDS[state]}`),
    ),
    h("li", {}, holders, " holders"),
  );

  const tip = h("div", { class: "tip", hidden: true, role: "status" });
  const map = new OwnershipMap(store, {
    onPick: (resource) => (location.hash = resourceLink(resource)),
    onHover: (resource, position, size) => showTip(tip, resource, position, size, store),
  });
  const hint = "Arrow keys walk over the resources, Enter opens one. The search finds them by name.";
  map.canvas.setAttribute("aria-describedby", "map-hint");
  const empty = h(
    "p",
    { class: "empty", hidden: true },
    "There are no resources yet. The quick start shows how to declare and lease the first one: ",
    h("code", {}, "solehold lease acquire job/nightly --holder me"),
  );
  const frame = h("div", { class: "map-frame" }, map.canvas, tip);

  const strip = h("canvas", { class: "strip" });
  const list = new EventList(80, "No events yet.");
  const element = h(
    "div",
    { class: "overview" },
    h("h1", { class: "hidden" }, "Overview"),
    panel(
      "Ownership",
      { class: "ownership" },
      summary,
      empty,
      frame,
      h("p", { id: "map-hint", class: "hint" }, hint),
    ),
    panel(`Timeline of the last ${STRIP_MINUTES} minutes`, { class: "timeline" }, legend(), strip, list.element),
  );

  const show = (change) => {
    if (change) map.follow(change);
    const found = { held: 0, moving: 0, "held-back": 0, free: 0 };
    const names = new Set();
    let all = 0;
    for (const resource of store.visible()) {
      found[stateOf(resource)] += 1;
      if (resource.holder !== null) names.add(resource.holder);
      all += 1;
    }
    for (const state of STATES) setText(counts.get(state), number(found[state]));
    setText(holders, number(names.size));
    empty.hidden = all > 0 || !store.isLoaded;
    map.canvas.setAttribute("aria-label", `Map of ${number(all)} resources of ${number(names.size)} holders`);
    if (!change || change.isReset || change.events.length > 0) {
      const options = { passes: (event) => store.isVisible(event), hasTenant: store.tenants.size > 1 };
      list.show(store.events, options);
      drawStrip(strip, store, STRIP_MINUTES);
    }
  };
  return {
    title: "Overview",
    element,
    opened() {
      map.start();
      map.setRunners(store.runners);
      show();
    },
    changed: show,
    runnersChanged: () => map.setRunners(store.runners),
    searched: (matches) => map.setMatches(matches),
    ticked: () => drawStrip(strip, store, STRIP_MINUTES),
    close: () => map.close(),
    map,
  };
}

function showTip(tip, resource, position, size, store) {
  tip.hidden = !resource || !position;
  if (tip.hidden) return;
  const state = stateOf(resource);
  const until = (resource.heldBackUntil ?? 0) - store.offsetMs;
  const words = {
    held: `held by ${resource.holder}, token ${resource.token}`,
    moving: `on its way from ${resource.holder} to ${resource.pending}, token ${resource.token}`,
    "held-back": `held back until ${clock(until)}, last token ${resource.token}`,
    free: resource.token ? `free, last token ${resource.token}` : "free, never held",
  };
  const tenant = store.tenants.size > 1 ? `${resource.tenant}: ` : "";
  tip.replaceChildren(h("strong", {}, `${tenant}${resource.kind}/${resource.key}`), h("br"), words[state]);
  const room = tip.parentElement.clientWidth - tip.offsetWidth - 4;
  tip.style.setProperty("left", `${Math.max(0, Math.min(position.x, room))}px`);
  tip.style.setProperty("top", `${position.y + size + 8}px`);
}
