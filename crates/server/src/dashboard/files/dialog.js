// The dialog before an action, and the short notes after it.

import { wordsOf } from "./api.js";
import { fill, h } from "./dom.js";

const NOTE_MS = 8_000;

/** Says that something was done. */
export function note(text) {
  const element = h("p", { class: "toast" }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), NOTE_MS);
}

/**
 * Asks before an action. `consequences` are sentences; `fields` are elements with a `name` inside the form;
 * `run(values)` does it and returns what to say afterwards. A refusal is shown, and the dialog stays open.
 */
export function ask({ title, consequences = [], fields = [], confirm, isDangerous = false, run }) {
  const dialog = document.getElementById("dialog");
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const doIt = h("button", { type: "submit", class: isDangerous ? "danger" : "primary" }, confirm);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "dialog-title" }, title),
    ...consequences.map((text) => h("p", {}, text)),
    ...fields,
    problem,
    h("div", { class: "buttons" }, cancel, doIt),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    doIt.disabled = true;
    problem.hidden = true;
    try {
      const said = await run(Object.fromEntries(new FormData(form)));
      dialog.close();
      if (said) note(said);
    } catch (error) {
      problem.textContent = wordsOf(error);
      problem.hidden = false;
    } finally {
      doIt.disabled = false;
    }
  });
  fill(dialog, form);
  dialog.showModal();
  (form.querySelector("input, select") ?? cancel).focus();
}

/** A field with its label. */
export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint && h("small", {}, hint));
}

/** A box to tick, with the sentence that it stands for. */
export function tick(name, label, hint) {
  const box = h("input", { type: "checkbox", name, value: "yes" });
  return h("label", { class: "tick" }, box, h("span", {}, label, hint && h("small", {}, hint)));
}
