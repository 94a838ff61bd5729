// Deployment groups: what each holds, and the shift of work between them.

import { path } from "../api.js";
import { Rows, h, panel, setText, table, td } from "../dom.js";
import { count, number } from "../format.js";
import { Poll } from "../page.js";

export function deploymentsPage({ api, store, actions }) {
  let list = { deployments: [], moves_left: 0, shift: null };
  const tenant = () => store.oneTenant;
  const columns = [
    "Group",
    "Versions",
    { name: "Runners", number: true },
    { name: "Active", number: true },
    "Held",
    "",
  ];
  const { box, body } = table("Deployment groups", columns);
  const open = (group, percent) => actions.shift(tenant(), group, percent, list.deployments);
  const rows = new Rows(
    body,
    (one) => one.deployment_group ?? "",
    (one) => row(one, open),
    "No runner names a deployment group.",
  );
  const about = h("p", { class: "why" });
  const bar = h("progress", { max: "100", value: "0", hidden: true });
  const back = h(
    "button",
    { type: "button", hidden: true, onclick: () => open(list.shift.to, 0) },
    "Take the shift back…",
  );
  const choose = h(
    "p",
    { class: "hint", hidden: true },
    "Choose a tenant at the top: each has deployment groups of its own.",
  );
  const poll = new Poll(2_000, async () => {
    choose.hidden = store.tenants.size < 2 || store.tenant !== "";
    list = await api.get(path("deployments"), { tenant: tenant() });
    show();
  });

  function show() {
    const { deployments, shift, moves_left: left } = list;
    const all = deployments.reduce((sum, one) => sum + one.held, 0);
    rows.show(deployments.map((one) => ({ ...one, all, isTarget: one.deployment_group === shift?.to })));
    back.hidden = !shift || shift.percent === 0;
    bar.hidden = !shift;
    const moves = left > 0 ? `${count(left, "move")} left to be made.` : "Nothing is left to be moved.";
    if (!shift) {
      setText(about, `No shift is under way: resources are placed on the runners of all groups. ${moves}`);
      return;
    }
    const share =
      all === 0 ? 0 : (100 * (deployments.find((one) => one.deployment_group === shift.to)?.held ?? 0)) / all;
    bar.value = share;
    const failures = shift.failures > 0 ? ` ${count(shift.failures, "failure")} since it began.` : "";
    const halted = shift.halted ? ` It is halted: ${shift.halted}.` : "";
    setText(
      about,
      `${shift.to} should hold ${shift.percent} % and holds ${share.toFixed(0)} %. ${moves}${failures}${halted}`,
    );
  }

  const element = h(
    "div",
    { class: "deployments" },
    h("header", { class: "title" }, h("h1", {}, "Deployments")),
    choose,
    poll.element,
    panel("Shift", { class: "narrow" }, about, bar, h("div", { class: "buttons start" }, back)),
    panel("Groups", {}, box),
  );
  return {
    title: "Deployments",
    element,
    changed: (change) => change.isReset && poll.now(),
    close: () => poll.close(),
  };
}

function row(deployment, open) {
  const group = deployment.deployment_group;
  const versions = td({});
  const runners = td({ class: "number" });
  const active = td({ class: "number" });
  const meter = h("meter", { min: "0" });
  const held = h("span", { class: "number" });
  const name = h("th", { scope: "row" }, group ?? "none");
  const buttons =
    group === null
      ? []
      : [
          h("button", { type: "button", onclick: () => open(group, 10) }, "Shift…"),
          h("button", { type: "button", onclick: () => open(group, 100) }, "Promote…"),
        ];
  return {
    element: h(
      "tr",
      {},
      name,
      versions,
      runners,
      active,
      td({ class: "load" }, meter, held),
      td({ class: "buttons" }, ...buttons),
    ),
    update(one) {
      name.classList.toggle("chosen", one.isTarget);
      setText(versions, one.versions.join(", ") || "–");
      setText(runners, number(one.runners));
      setText(active, number(one.active));
      meter.max = Math.max(1, one.all);
      meter.value = one.held;
      setText(held, `${number(one.held)} of ${number(one.all)}`);
    },
  };
}
