// The timeline: the last events, newest first, and how many there were over time.

import { buckets, drawBars } from "./charts.js";
import { Rows, h } from "./dom.js";
import { clock, eventWords, resourceLink } from "./format.js";
import { classOf } from "./store.js";

/** The classes of events that are counted, with their words. */
export const CLASSES = [
  ["grant", "grants"],
  ["takeover", "takeovers"],
  ["hand-over", "hand-overs"],
  ["release", "releases"],
  ["expiry", "expiries"],
  ["revocation", "revocations"],
];

/** A line about an event. On the page of its resource it names the token instead of the resource. */
export function eventRow(event, { hasTenant = false, hasName = true } = {}) {
  const kind = classOf(event);
  const slot = event.slot ? ` (slot ${event.slot})` : "";
  const name = `${hasTenant ? `${event.tenant}: ` : ""}${event.kind}/${event.key}${slot}`;
  const notes = [
    event.slot && `slot ${event.slot}`,
    event.token && `token ${event.token}`,
    event.by && `by key ${event.by}`,
  ].filter(Boolean);
  const words = hasName
    ? [h("a", { href: resourceLink(event) }, name), ` ${eventWords(event)}`]
    : [eventWords(event), " ", h("small", {}, notes.join(", "))];
  return h(
    "li",
    { class: "event", "data-class": kind, "data-revision": event.revision, title: notes.join(", ") },
    h("time", { datetime: event.timestamp }, clock(event.timestamp)),
    h("span", { class: `mark ${kind}`, "aria-hidden": "true" }),
    h("span", { class: "event-words" }, ...words),
  );
}

/** The last events as a list that follows the store. */
export class EventList {
  constructor(most, whenEmpty) {
    this.most = most;
    this.element = h("ol", { class: "events" });
    const key = (event) => `${event.cursor}`;
    this.rows = new Rows(
      this.element,
      key,
      (event) => ({ element: eventRow(event, { hasTenant: this.hasTenant }) }),
      whenEmpty,
    );
  }

  /** Shows the newest of `events`, which come in order. */
  show(events, { passes = () => true, hasTenant = false } = {}) {
    this.hasTenant = hasTenant;
    const shown = [];
    for (let at = events.length - 1; at >= 0 && shown.length < this.most; at -= 1) {
      if (passes(events[at])) shown.push(events[at]);
    }
    this.rows.show(shown);
  }
}

/** Counts of events by class in the time that ends now. */
export function eventSeries(store, options, classes = CLASSES) {
  const times = new Map(classes.map(([name]) => [name, []]));
  const since = options.to - options.spanMs;
  for (let at = store.events.length - 1; at >= 0; at -= 1) {
    const event = store.events[at];
    const time = Date.parse(event.timestamp) - store.offsetMs;
    if (time < since) break;
    if (store.isVisible(event)) times.get(classOf(event))?.push(time);
  }
  return classes.map(([colour, name]) => ({ name, colour, values: buckets(times.get(colour), options) }));
}

/** A strip of bars: the events of the last minutes. */
export function drawStrip(canvas, store, minutes) {
  const spanMs = minutes * 60_000;
  const to = Date.now();
  const count = Math.max(20, Math.min(120, Math.floor(canvas.clientWidth / 6)));
  drawBars(canvas, { series: eventSeries(store, { to, spanMs, count }), from: to - spanMs, to });
}

export const legend = (classes = CLASSES) =>
  h(
    "ul",
    { class: "legend" },
    ...classes.map(([name, words]) => h("li", {}, h("span", { class: `mark ${name}` }), words)),
  );
