// The server that answers this page, and the store that all servers share.

import { Problem, path, wordsOf } from "../api.js";
import { Facts, Rows, h, panel, setText, table, td } from "../dom.js";
import { ago, count, moment, number, span } from "../format.js";
import { sum } from "../metrics.js";
import { Poll } from "../page.js";

const ENGINES = {
  memory: "memory: gone when the server stops",
  embedded: "embedded: a log in its data folder, for one server",
  postgres: "postgres: shared by any number of servers",
};

export function serversPage({ api, store, sampler }) {
  const server = new Facts(
    "Name",
    "Version",
    "Up for",
    "Connections",
    "Open watches",
    "Requests",
    "Slowest sweep",
  );
  const ready = h("span", { class: "pill" }, "…");
  const stored = new Facts(
    "Engine",
    "Says",
    "Position",
    "Store's clock",
    "Leases",
    "Resources",
    "Sessions",
    "In line",
    "Time per batch",
    "Configuration",
  );
  const relays = table("Relays", [
    "Relay",
    { name: "Sent", number: true },
    { name: "Behind", number: true },
    "Delay",
    { name: "Dead letters", number: true },
  ]);
  const relayRows = new Rows(relays.body, (one) => one.name, relayRow, "This server has no relays.");
  const met = table("Servers that answered this page", ["Server", "Answered"]);
  const metRows = new Rows(met.body, (one) => one.name, metRow);
  const metricsProblem = h("p", { class: "problem", role: "alert", hidden: true });

  const poll = new Poll(2_000, async () => {
    const [health, readiness, version] = await Promise.all([
      api.get("health"),
      api
        .get("readyz")
        .catch((error) =>
          error instanceof Problem && error.status === 503
            ? { ready: false, reason: error.message }
            : Promise.reject(error),
        ),
      api.get(path("config", "version"), { tenant: store.tenant }).catch(() => undefined),
    ]);
    server.set("Name", health.node_id);
    server.set("Version", health.version);
    server.set("Up for", span(health.uptime_seconds * 1000));
    stored.set("Engine", ENGINES[health.engine] ?? health.engine);
    setText(ready, readiness.ready ? (readiness.barred_ms ? "grants nothing yet" : "ready") : "not ready");
    ready.className = `pill ${readiness.ready && !readiness.barred_ms ? "held" : "held-back"}`;
    const barred = readiness.barred_ms ? ` (for another ${span(readiness.barred_ms)})` : "";
    stored.set("Says", readiness.reason && `${readiness.reason}${barred}`);
    stored.set(
      "Position",
      readiness.cursor &&
        `epoch ${readiness.cursor.split(".")[0]}, revision ${number(Number(readiness.cursor.split(".")[1]))}`,
    );
    stored.set("Store's clock", readiness.store_time && clockWords(readiness.store_time));
    stored.set(
      "Configuration",
      version && `cameras ${short(version.config_version)}, zones ${short(version.zone_version)}`,
    );
    metRows.show([...api.servers].map(([name, at]) => ({ name, at })));
    showMetrics();
  });

  function showMetrics() {
    metricsProblem.hidden = !sampler.problem;
    if (sampler.problem) setText(metricsProblem, `The metrics cannot be read. ${wordsOf(sampler.problem)}`);
    const metrics = sampler.latest;
    if (!metrics) return;
    const gauge = (name) => number(sum(metrics, `solehold_${name}`));
    server.set("Connections", gauge("connections"));
    server.set("Open watches", gauge("watchers"));
    server.set("Requests", `${gauge("http_requests_total")} since it started`);
    server.set("Slowest sweep", `${span(1000 * sum(metrics, "solehold_sweeper_lag_seconds"))} late`);
    stored.set("Leases", gauge("live_leases"));
    stored.set("Resources", gauge("resources"));
    stored.set("Sessions", gauge("sessions"));
    stored.set("In line", count(sum(metrics, "solehold_waiters"), "waiter"));
    const batches = sum(metrics, "solehold_store_seconds_count");
    stored.set(
      "Time per batch",
      batches
        ? `${((1000 * sum(metrics, "solehold_store_seconds_sum")) / batches).toFixed(1)} ms on average`
        : undefined,
    );
    relayRows.show(relaysOf(metrics));
  }

  const element = h(
    "div",
    { class: "servers" },
    h("header", { class: "title" }, h("h1", {}, "Servers and store"), ready),
    poll.element,
    metricsProblem,
    h(
      "div",
      { class: "columns" },
      panel("This server", {}, server.element),
      panel("Store", {}, stored.element),
      panel(
        "Servers that answered this page",
        {},
        met.box,
        h(
          "p",
          { class: "hint" },
          "Servers do not know each other. Behind a load balancer, those that have answered are here.",
        ),
      ),
      panel("Relays", {}, relays.box),
    ),
  );
  return { title: "Servers", element, changed: () => {}, ticked: showMetrics, close: () => poll.close() };
}

const short = (version) => version.slice(0, 12) || "none";

/** The store's time, and how far this machine's clock is from it. */
function clockWords(time) {
  const apart = Date.parse(time) - Date.now();
  const off =
    Math.abs(apart) < 1500 ? "" : `; this machine is ${span(Math.abs(apart))} ${apart > 0 ? "behind" : "ahead"}`;
  return `${moment(time)}${off}`;
}

function relaysOf(metrics) {
  const of = (name, relay) => sum(metrics, `solehold_relay_${name}`, (labels) => labels.relay === relay);
  const names = new Set((metrics.get("solehold_relay_sent_total") ?? []).map(({ labels }) => labels.relay));
  return [...names].map((name) => ({
    name,
    sent: of("sent_total", name),
    behind: of("lag_events", name),
    delay: of("lag_seconds", name),
    dead: of("dead_lettered_total", name),
  }));
}

function relayRow({ name }) {
  const cells = [td({ class: "number" }), td({ class: "number" }), td({}), td({ class: "number" })];
  return {
    element: h("tr", {}, h("th", { scope: "row" }, name), ...cells),
    update: ({ sent, behind, delay, dead }) => {
      [number(sent), number(behind), span(delay * 1000), number(dead)].forEach((text, at) =>
        setText(cells[at], text),
      );
    },
  };
}

function metRow({ name }) {
  const at = td({});
  return { element: h("tr", {}, h("th", { scope: "row" }, name), at), update: (one) => setText(at, ago(one.at)) };
}
