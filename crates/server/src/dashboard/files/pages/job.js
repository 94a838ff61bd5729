// One job of the orchestrator: its stages, what it works on, and commands of its key that could not take effect.

import { path } from "../api.js";
import { Facts, Rows, h, panel, setText, table, td } from "../dom.js";
import { moment, span } from "../format.js";
import { labelWords, oldWords, percent, stateClass } from "../jobs.js";
import { Poll } from "../page.js";
import { letterRow } from "./jobs.js";

const LETTERS_READ = 1_000;
/** More of a document is not shown: `solehold job get` has it. */
const DOCUMENT_CHARS_MAX = 20_000;

export function jobPage({ api, store }, [id]) {
  let job;
  let readAt;
  const state = h("span", { class: "pill" }, "loading");
  const facts = new Facts(
    "Done",
    "Last error",
    "Labels",
    "Key",
    "Partition",
    "Revision",
    "Created",
    "Age",
    "Finished",
    "Took",
  );
  const stages = table("Stages", [
    "Stage",
    "State",
    "Done",
    { name: "Attempt", number: true },
    { name: "Failures", number: true },
    "After",
    "Started",
    "Finished",
    "Deadline",
    "Last error",
  ]);
  const stageRows = new Rows(stages.body, (one) => one.stage, stageRow, "It has no stages.");
  const input = h("pre", { tabindex: "0", "aria-label": "Input" });
  const results = h("pre", { tabindex: "0", "aria-label": "Results" });
  const resultsPanel = panel("Results", { hidden: true }, results);
  const letters = table("Dead letters of its key", ["Letter", "State", "Key", "Since", "Reason"]);
  const letterRows = new Rows(letters.body, (one) => one.letter, letterRow);
  const lettersPanel = panel("Dead letters of its key", { hidden: true }, letters.box);
  const whole = h(
    "div",
    {},
    h(
      "div",
      { class: "columns" },
      panel("Job", {}, facts.element),
      panel("Input", {}, input),
    ),
    panel("Stages", {}, stages.box),
    lettersPanel,
    resultsPanel,
    panel(
      "Steering it",
      { class: "narrow" },
      h("pre", { tabindex: "0", "aria-label": "Commands" }, commands(id)),
      h("p", { class: "hint" }, "This page only reads. The owner of the job's partition does what is asked."),
    ),
  );

  const poll = new Poll(
    2_000,
    async () => {
      const [found, parked] = await Promise.all([
        api.get(path("orchestrator", "jobs", id)),
        api.get(path("orchestrator", "letters"), { limit: LETTERS_READ }),
      ]);
      job = found;
      readAt = Date.now();
      whole.classList.remove("old");
      show(parked.letters.filter((letter) => letter.key === job.key));
    },
    (error) => {
      if (error.status === 404) setText(state, "not found");
      whole.classList.add("old");
      return oldWords("the job as it was", readAt, error);
    },
  );

  function show(ofKey) {
    setText(state, job.state);
    state.className = `pill ${stateClass(job.state)}`;
    facts.set("Done", percent(job.progress));
    facts.set("Last error", job.reason);
    facts.set("Labels", labelWords(job.labels));
    facts.set("Key", job.key);
    facts.set("Partition", job.partition);
    facts.set("Revision", job.revision);
    facts.set("Created", moment(job.created_at));
    facts.set("Finished", moment(job.finished_at));
    tick();
    stageRows.show(job.stages);
    setText(input, documentText(job.input));
    const given = job.stages.filter(({ result }) => result !== null && result !== undefined);
    resultsPanel.hidden = given.length === 0;
    setText(results, documentText(Object.fromEntries(given.map(({ stage, result }) => [stage, result]))));
    lettersPanel.hidden = ofKey.length === 0;
    letterRows.show(ofKey);
  }

  function tick() {
    if (!job?.created_at) return;
    const began = Date.parse(job.created_at);
    facts.set("Age", job.finished_at ? undefined : span(store.now() - began));
    facts.set("Took", job.finished_at && span(Date.parse(job.finished_at) - began));
  }

  const element = h(
    "div",
    { class: "job" },
    h(
      "header",
      { class: "title" },
      h("h1", {}, h("span", { class: "muted" }, "Job "), id),
      state,
      h("a", { href: "#/jobs" }, "All jobs"),
    ),
    poll.element,
    whole,
  );
  return { title: id, element, changed: () => {}, ticked: tick, close: () => poll.close() };
}

function stageRow({ stage }) {
  const state = h("span", { class: "pill" });
  const bar = h("progress", { max: "1", "aria-hidden": "true" });
  const done = h("span", { class: "number" });
  const cells = {
    attempt: td({ class: "number" }),
    failures: td({ class: "number" }),
    after: td({}),
    started: td({ class: "time" }),
    finished: td({ class: "time" }),
    deadline: td({ class: "time" }),
    reason: td({ class: "words" }),
  };
  return {
    element: h(
      "tr",
      { "data-stage": stage },
      h("th", { scope: "row" }, stage),
      td({}, state),
      td({ class: "load" }, bar, done),
      ...Object.values(cells),
    ),
    update(one) {
      setText(state, one.state);
      state.className = `pill ${stateClass(one.state)}`;
      bar.value = one.progress;
      setText(done, percent(one.progress));
      setText(cells.attempt, String(one.attempt));
      setText(cells.failures, `${one.failures} of ${one.retries + 1}`);
      setText(cells.after, one.after.join(", ") || "–");
      setText(cells.started, moment(one.started_at) || "–");
      setText(cells.finished, moment(one.finished_at) || "–");
      setText(cells.deadline, moment(one.deadline) || "–");
      setText(cells.reason, one.reason ?? "–");
    },
  };
}

function documentText(document) {
  const text = JSON.stringify(document, null, 2);
  const rest = text.length - DOCUMENT_CHARS_MAX;
  return rest > 0 ? `${text.slice(0, DOCUMENT_CHARS_MAX)}\n… ${rest} more characters: solehold job get` : text;
}

function commands(id) {
  const word = /^[\w.:/@%+=-]+$/.test(id) ? id : `'${id.replaceAll("'", `'\\''`)}'`;
  return `solehold job cancel ${word}\nsolehold job retry ${word}`;
}
