// The search at the top: resources by kind, key or site, and holders by name.

import { fill, h } from "./dom.js";
import { number, resourceLink } from "./format.js";

const SHOWN = 12;

export class Search {
  constructor(form, store, onMatches) {
    this.store = store;
    this.onMatches = onMatches;
    this.input = form.querySelector("input");
    this.results = form.querySelector("#search-results");
    this.input.addEventListener("input", () => this.find());
    this.input.addEventListener("focus", () => this.input.value && this.find());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.results.querySelector("a")?.click();
    });
    form.addEventListener("keydown", (event) => this.pressed(event));
    form.addEventListener("focusout", (event) => form.contains(event.relatedTarget) || this.hide());
    addEventListener("keydown", (event) => {
      const isTyping = event.target.closest?.("input, select, textarea, dialog");
      if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.input.focus();
    });
  }

  find() {
    const wanted = this.input.value.trim().toLowerCase();
    if (wanted === "") {
      this.hide();
      this.onMatches(undefined);
      return;
    }
    const words = wanted.split(/\s+/);
    const matches = new Map();
    const holders = new Map();
    for (const resource of this.store.visible()) {
      const text =
        `${resource.kind}/${resource.key} ${resource.holder ?? ""} ${resource.site ?? ""}`.toLowerCase();
      if (!words.every((word) => text.includes(word))) continue;
      matches.set(resource.id, resource);
      const { holder } = resource;
      if (holder !== null && holder.toLowerCase().includes(words[0]))
        holders.set(holder, (holders.get(holder) ?? 0) + 1);
    }
    this.onMatches(matches);
    this.show(matches, holders);
  }

  show(matches, holders) {
    const links = [...holders]
      .slice(0, 4)
      .map(([name, held]) =>
        h(
          "a",
          { href: `#/holder/${encodeURIComponent(name)}` },
          name,
          h("small", {}, `holder of ${number(held)}`),
        ),
      );
    for (const resource of matches.values()) {
      if (links.length === SHOWN) break;
      links.push(
        h(
          "a",
          { href: resourceLink(resource) },
          `${resource.kind}/${resource.key}`,
          h("small", {}, resource.holder === null ? "free" : `held by ${resource.holder}`),
        ),
      );
    }
    const summary = h("p", { class: "hint", role: "status" }, `${number(matches.size)} found`);
    fill(this.results, summary, ...links);
    this.results.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
  }

  /** Arrow keys walk through the results. */
  pressed(event) {
    if (event.key === "Escape") {
      this.input.value = "";
      this.find();
      this.input.focus();
      return;
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const links = [...this.results.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    (at < 0 ? this.input : links[Math.min(at, links.length - 1)])?.focus();
    event.preventDefault();
  }

  hide() {
    this.results.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
  }

  /** Another page was opened. */
  close() {
    this.hide();
    if (this.input.value !== "") {
      this.input.value = "";
      this.onMatches(undefined);
    }
  }
}
