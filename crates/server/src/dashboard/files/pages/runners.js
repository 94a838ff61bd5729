// The runners: how much each may hold and holds, its version, and whether it gets work.

import { Rows, h, setText, table, td } from "../dom.js";
import { ago, count, number } from "../format.js";
import { Poll } from "../page.js";

export function runnersPage({ store, actions, loadRunners }, [chosen]) {
  const summary = h("p", { class: "hint" });
  const columns = [
    "Runner",
    "Status",
    { name: "Held", number: true },
    "Load",
    "Version",
    "Group",
    "Takes",
    "Heartbeat",
    "",
    "",
  ];
  const { box, body } = table("Runners", columns);
  const rows = new Rows(
    body,
    (one) => `${one.tenant_id}/${one.runner_id}`,
    (one) => row(one, actions, store),
    "No runner is registered.",
  );
  const poll = new Poll(2_000, loadRunners);
  const holders = table("Other holders", ["Holder", { name: "Held", number: true }, ""]);
  const otherRows = new Rows(holders.body, (one) => one.name, otherRow, "There are none.");
  const element = h(
    "div",
    { class: "runners" },
    h("header", { class: "title" }, h("h1", {}, "Runners"), summary),
    poll.element,
    h("section", { class: "panel" }, box),
    h(
      "section",
      { class: "panel narrow" },
      h("h2", {}, "Other holders"),
      h(
        "p",
        { class: "hint" },
        "They hold leases and are not registered as runners, so nothing is placed on them.",
      ),
      holders.box,
    ),
  );
  let isScrolled = false;

  function show() {
    const runners = store.runners.filter((one) => store.tenant === "" || one.tenant_id === store.tenant);
    rows.show(runners);
    const held = runners.reduce((sum, one) => sum + one.held, 0);
    const capacity = runners.reduce((sum, one) => sum + one.capacity, 0);
    setText(
      summary,
      `${count(runners.length, "runner")} hold ${number(held)} of at most ${number(capacity)} resources.`,
    );
    const registered = new Set(runners.map((one) => one.runner_id));
    const others = new Map();
    for (const { holder } of store.visible()) {
      if (holder !== null && !registered.has(holder)) others.set(holder, (others.get(holder) ?? 0) + 1);
    }
    otherRows.show(
      [...others]
        .map(([name, held]) => ({ name, held }))
        .sort((a, b) => b.held - a.held)
        .slice(0, 100),
    );
    const at = chosen && body.querySelector(`[data-runner="${CSS.escape(chosen)}"]`);
    if (at && !isScrolled) {
      isScrolled = true;
      at.classList.add("chosen");
      at.scrollIntoView({ block: "center" });
    }
  }

  return {
    title: "Runners",
    element,
    opened: show,
    changed: show,
    runnersChanged: show,
    ticked: show,
    close: () => poll.close(),
  };
}

function row(runner, actions, store) {
  let now = runner;
  const status = h("span", { class: "pill" });
  const meter = h("meter", { min: "0" });
  const load = h("span", { class: "number" });
  const cells = { held: td({ class: "number" }), version: td({}), group: td({}), takes: td({}), beat: td({}) };
  const toggle = h("button", {
    type: "button",
    onclick: () => actions.setStatus(now, now.status === "active" ? "draining" : "active"),
  });
  const element = h(
    "tr",
    { "data-runner": runner.runner_id },
    h("th", { scope: "row" }, runner.runner_id, h("small", {}, store.tenants.size > 1 ? runner.tenant_id : "")),
    td({}, status),
    cells.held,
    td({ class: "load" }, meter, load),
    cells.version,
    cells.group,
    cells.takes,
    cells.beat,
    td({}, h("a", { href: `#/holder/${encodeURIComponent(runner.runner_id)}` }, "Resources")),
    td({}, toggle),
  );
  return {
    element,
    update(one) {
      now = one;
      const isGone = !one.session_id;
      setText(status, isGone ? "gone" : one.status);
      status.className = `pill ${isGone ? "held-back" : one.status === "active" ? "held" : "moving"}`;
      setText(cells.held, number(one.held));
      meter.max = Math.max(one.capacity, 1);
      meter.high = one.capacity * 0.9;
      meter.value = Math.min(one.current_load, one.capacity);
      meter.title = `${one.current_load} of ${one.capacity}`;
      setText(load, `${number(one.current_load)} / ${number(one.capacity)}`);
      setText(cells.version, one.deployment_version ?? "–");
      setText(cells.group, one.deployment_group ?? "–");
      setText(cells.takes, one.kinds.length > 0 ? one.kinds.join(", ") : "every kind");
      setText(cells.beat, ago(one.last_heartbeat, store.now()));
      setText(toggle, one.status === "active" ? "Drain…" : "Make active…");
    },
  };
}

function otherRow({ name }) {
  const held = td({ class: "number" });
  const link = h("a", { href: `#/holder/${encodeURIComponent(name)}` }, "Resources");
  return {
    element: h("tr", {}, h("th", { scope: "row" }, name), held, td({}, link)),
    update: (one) => setText(held, number(one.held)),
  };
}
