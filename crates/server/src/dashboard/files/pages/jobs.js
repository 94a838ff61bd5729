// The work of orchestrators: the jobs of the one that this server was started with, and what this server itself sees,
// the partitions that orchestrators lease and resources of the kind `job`.

import { path } from "../api.js";
import { Rows, h, panel, setText, table, td } from "../dom.js";
import { count, moment, resourceLink, span } from "../format.js";
import { jobLink, labelWords, oldWords, percent, stateClass } from "../jobs.js";
import { Poll } from "../page.js";
import { stateOf } from "../store.js";

const KINDS = ["partition", "job"];
const SHOWN = 500;
const STATE_WORDS = { held: "held", moving: "being handed over", "held-back": "held back", free: "free" };

const JOB_STATES = ["running", "failed", "succeeded", "cancelled"];
const EVERY_MS = 2_000;
/** A server without an orchestrator may be started again with one. */
const SELDOM_MS = 30_000;
const PAGE = 100;
const JOBS_MAX = 1_000;

export function jobsPage({ api, store }, [given]) {
  const leases = leasesOfOrchestrators(store);
  const jobs = jobsOfOrchestrator(api, store, JOB_STATES.includes(given) ? given : "");
  const about = aboutOrchestrators();
  const whole = h("div", { class: "orchestrator", hidden: true }, jobs.jobs, jobs.letters);
  const poll = new Poll(
    EVERY_MS,
    async () => {
      const isKnown = await jobs.load();
      poll.everyMs = isKnown ? EVERY_MS : SELDOM_MS;
      whole.hidden = !isKnown;
      about.hidden = isKnown;
      whole.classList.remove("old");
    },
    (error) => {
      whole.classList.add("old");
      return oldWords("jobs", jobs.readAt, error);
    },
  );
  jobs.again = () => poll.now();
  const element = h(
    "div",
    { class: "jobs" },
    h("header", { class: "title" }, h("h1", {}, "Jobs")),
    poll.element,
    whole,
    leases.element,
    about,
  );
  return {
    title: "Jobs",
    element,
    opened: leases.show,
    changed: leases.show,
    ticked: jobs.tick,
    close: () => poll.close(),
  };
}

/** The jobs and dead letters of the orchestrator. `load()` says whether the server knows one. */
function jobsOfOrchestrator(api, store, given) {
  let limit = PAGE;
  let state = given;
  const own = { readAt: undefined };
  const { box, body } = table("Jobs of the orchestrator", [
    "Job",
    "State",
    "Done",
    { name: "Attempt", number: true },
    "Age",
    "Last error",
    "Labels",
    "Key",
    { name: "Partition", number: true },
    { name: "Epoch", number: true },
  ]);
  const rows = new Rows(
    body,
    (one) => one.job_id,
    (one) => jobRow(one, store),
    "There are no such jobs.",
  );
  const summary = h("p", { class: "hint", role: "status" });
  const options = ["", ...JOB_STATES].map((name) =>
    h("option", { value: name, selected: name === state }, name || "every state"),
  );
  const select = h("select", { name: "state", onchange: choose }, ...options);
  const moreButton = h("button", { type: "button", onclick: showMore }, "Show more jobs");
  const more = h("div", { class: "buttons start", hidden: true }, moreButton);
  const letters = table("Dead letters", ["Letter", "State", "Key", "Since", "Reason"]);
  const letterRows = new Rows(letters.body, (one) => one.letter, letterRow);
  const letterHint = h("p", { class: "hint" });

  own.jobs = panel(
    "Jobs of the orchestrator",
    {},
    h("div", { class: "filter" }, h("label", {}, "State ", select), summary),
    box,
    more,
  );
  own.letters = panel("Dead letters", { hidden: true }, letterHint, letters.box);

  function choose() {
    state = select.value;
    limit = PAGE;
    // The address names the filter, so that it survives a reload; the page stays as it is, with the focus in it.
    history.replaceState(null, "", state ? `#/jobs/${state}` : "#/jobs");
    own.again();
  }

  function showMore() {
    limit = Math.min(limit * 2, JOBS_MAX);
    own.again();
  }

  own.load = async () => {
    const asked = state;
    let found;
    try {
      found = await api.get(path("orchestrator", "jobs"), { state: asked, limit });
    } catch (error) {
      if (error.status === 404) return false;
      throw error;
    }
    const parked = await api.get(path("orchestrator", "letters"), { limit: PAGE });
    if (asked !== state) return true;
    own.readAt = Date.now();
    rows.show(found.jobs);
    more.hidden = found.next === null || limit >= JOBS_MAX;
    setText(summary, summaryWords(found, limit));
    own.letters.hidden = parked.letters.length === 0;
    letterRows.show(parked.letters);
    const first = parked.next === null ? "" : `The first ${PAGE}. `;
    setText(
      letterHint,
      `${first}Commands that could not take effect, and those of the same key that wait behind them. ` +
        "solehold job redrive LETTER applies one again, solehold job discard LETTER drops it.",
    );
    return true;
  };
  own.tick = () => rows.rows.forEach((row) => row.tick());
  return own;
}

function summaryWords({ jobs, next }, limit) {
  if (next === null) return `${count(jobs.length, "job")}.`;
  const rest = limit >= JOBS_MAX ? "; solehold job ls lists all" : "";
  return `The first ${count(jobs.length, "job")}, in the order of their ids${rest}.`;
}

function jobRow({ job_id }, store) {
  let now;
  const state = h("span", { class: "pill" });
  const bar = h("progress", { max: "1", "aria-hidden": "true" });
  const done = h("span", { class: "number" });
  const number = () => td({ class: "number" });
  const cells = {
    attempts: number(),
    age: td({ class: "time" }),
    reason: td({ class: "words" }),
    labels: td({}),
    key: td({}),
    partition: number(),
    epoch: number(),
  };
  const row = {
    element: h(
      "tr",
      { "data-job": job_id },
      h("th", { scope: "row" }, h("a", { href: jobLink(job_id) }, job_id)),
      td({}, state),
      td({ class: "load" }, bar, done),
      ...Object.values(cells),
    ),
    update(one) {
      now = one;
      setText(state, one.state);
      state.className = `pill ${stateClass(one.state)}`;
      bar.value = one.progress;
      setText(done, percent(one.progress));
      setText(cells.attempts, one.attempts === undefined ? "–" : String(one.attempts));
      setText(cells.reason, one.reason ?? "–");
      setText(cells.labels, labelWords(one.labels) || "–");
      setText(cells.key, one.key);
      setText(cells.partition, String(one.partition));
      setText(cells.epoch, one.epoch === undefined ? "–" : String(one.epoch));
      row.tick();
    },
    tick: () => setText(cells.age, now.created_at ? span(store.now() - Date.parse(now.created_at)) : "–"),
  };
  return row;
}

export function letterRow({ letter }) {
  const state = h("span", { class: "pill" });
  const cells = { key: td({}), since: td({ class: "time" }), reason: td({ class: "words" }) };
  return {
    element: h("tr", {}, h("th", { scope: "row" }, letter), td({}, state), ...Object.values(cells)),
    update(one) {
      setText(state, one.state);
      state.className = `pill ${one.state === "dead" ? "held-back" : "free"}`;
      setText(cells.key, one.key);
      setText(cells.since, moment(one.since) || "–");
      setText(cells.reason, one.reason);
    },
  };
}

/** What this server sees of orchestrators by itself. */
function leasesOfOrchestrators(store) {
  const parts = KINDS.map((kind) => {
    const title = kind === "partition" ? "Partitions of orchestrators" : "Resources of the kind job";
    const { box, body } = table(title, [
      kind === "partition" ? "Partition" : "Job",
      "Holder",
      { name: "Token", number: true },
      "State",
    ]);
    const rows = new Rows(body, (one) => one.id, leaseRow, "There are none.");
    const summary = h("p", { class: "hint" });
    return { kind, rows, summary, panel: panel(title, {}, summary, box) };
  });
  const show = () => {
    for (const { kind, rows, summary } of parts) {
      const found = [...store.visible()].filter((resource) => resource.kind === kind);
      const held = found.filter((resource) => resource.holder !== null).length;
      rows.show(found.slice(0, SHOWN));
      const rest = found.length > SHOWN ? `; the first ${SHOWN} are shown, the search finds the others` : "";
      setText(summary, found.length === 0 ? "" : `${count(held, "is", "are")} held of ${found.length}${rest}.`);
    }
  };
  return { element: h("div", { class: "columns" }, ...parts.map((part) => part.panel)), show };
}

/** What to do for jobs to be shown here. */
function aboutOrchestrators() {
  return panel(
    "Jobs of an orchestrator, with their stages",
    { class: "narrow", hidden: true },
    h(
      "p",
      {},
      "An orchestrator keeps its jobs in a database of its own. This server was started without one: " +
        "solehold serve --orchestrator URL shows its jobs here. It serves them at its own address, 127.0.0.1:7073 " +
        "by default, which the command line reads, too:",
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
  );
}

function leaseRow(resource) {
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
