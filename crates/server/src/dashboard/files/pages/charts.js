// Takeovers, renewals and refusals over time.

import { drawBars } from "../charts.js";
import { wordsOf } from "../api.js";
import { h, panel, setText } from "../dom.js";
import { count, number, span } from "../format.js";
import { eventSeries, legend } from "../timeline.js";

const MINUTES = 30;
const SPAN = { spanMs: MINUTES * 60_000, count: 90 };
const MOVES = [
  ["takeover", "takeovers"],
  ["hand-over", "hand-overs"],
];
const OTHERS = [
  ["grant", "other grants"],
  ["release", "releases"],
  ["expiry", "expiries"],
  ["revocation", "revocations"],
];

export function chartsPage({ store, sampler }) {
  const chart = (title, note, parts) => {
    const canvas = h("canvas", { class: "chart" });
    const total = h("p", { class: "hint" }, note);
    return { canvas, total, panel: panel(title, {}, parts && legend(parts), canvas, total) };
  };
  const moves = chart("Takeovers and hand-overs", "", MOVES);
  const others = chart("Grants and ends of leases", "", OTHERS);
  const renewals = chart("Renewals");
  const refusals = chart("Refusals");
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const element = h(
    "div",
    { class: "charts" },
    h(
      "header",
      { class: "title" },
      h("h1", {}, "Charts"),
      h(
        "p",
        { class: "hint" },
        `The last ${MINUTES} minutes. Renewals and refusals are those of the server that answers ` +
          "this page, and counted since it was opened; Prometheus keeps them for longer.",
      ),
    ),
    problem,
    h("div", { class: "columns" }, moves.panel, others.panel, renewals.panel, refusals.panel),
  );

  function show() {
    const to = Date.now();
    const from = to - SPAN.spanMs;
    const options = { ...SPAN, to };
    const draw = (canvas, series) => drawBars(canvas, { series, from, to });
    const moved = eventSeries(store, options, MOVES);
    draw(moves.canvas, moved);
    const [taken, handed] = moved.map(({ values }) => values.reduce((a, b) => a + b, 0));
    setText(moves.total, `${count(taken, "takeover")} and ${count(handed, "hand-over")}${slowest(store, from)}.`);
    draw(others.canvas, eventSeries(store, options, OTHERS));
    setText(others.total, "Grants that took nothing from anyone, and how leases ended.");
    const grown = (name) => sampler.growth(name, options);
    draw(renewals.canvas, [{ name: "renewals", colour: "held", values: grown("renewals") }]);
    setText(renewals.total, rate(sampler, "renewals"));
    draw(refusals.canvas, [{ name: "refusals", colour: "held-back", values: grown("refused") }]);
    setText(refusals.total, refusalWords(sampler));
    problem.hidden = !sampler.problem;
    if (sampler.problem) setText(problem, `Renewals and refusals are not known. ${wordsOf(sampler.problem)}`);
  }
  return { title: "Charts", element, opened: show, changed: () => {}, ticked: show };
}

/** How long the slowest takeover took. */
function slowest(store, since) {
  const times = store.events
    .filter(
      (event) => event.previous?.kind === "takeover" && Date.parse(event.timestamp) - store.offsetMs >= since,
    )
    .map((event) => event.previous.after);
  return times.length === 0
    ? ""
    : `; the slowest takeover came ${span(Math.max(...times))} after the lease had ended`;
}

function rate({ samples }, name) {
  if (samples.length < 2) return "Not known yet.";
  const [first, last] = [samples.at(-Math.min(samples.length, 6)), samples.at(-1)];
  const perSecond = Math.max(0, ((last[name] - first[name]) / (last.at - first.at)) * 1000);
  return `${number(Math.round(perSecond * 10) / 10)} per second now.`;
}

/** The codes of the refusals since the server started, the most frequent first. */
function refusalWords({ samples }) {
  const last = samples.at(-1);
  if (!last) return "Not known yet.";
  const codes = [...last.refusals]
    .filter(([, value]) => value > 0)
    .sort((a, b) => b[1] - a[1])
    .slice(0, 4);
  if (codes.length === 0) return "This server has refused nothing since it started.";
  return `Since the server started: ${codes.map(([code, value]) => `${number(value)} ${code}`).join(", ")}.`;
}
