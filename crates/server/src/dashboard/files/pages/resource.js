// One resource: its holder, token and deadline, who waits for it, what happened to it, and why it is where it is.

import { path, withQuery } from "../api.js";
import { Facts, Rows, fill, h, panel, setText, table, td } from "../dom.js";
import { ago, clock, countdown, count, moment, runnerLink, span } from "../format.js";
import { Poll } from "../page.js";
import { idOf } from "../store.js";
import { eventRow } from "../timeline.js";

const HISTORY = 50;

export function resourcePage({ api, store, actions }, [tenant, kind, key]) {
  const id = idOf({ tenant, kind, key });
  const at = (...rest) => withQuery(path("resources", kind, key, ...rest), { tenant });
  let seen;
  let explanation;
  let readAt = 0;

  const state = h("span", { class: "pill" }, "loading");
  const facts = new Facts(
    "Shared by",
    "Holder",
    "Token",
    "Deadline",
    "Held since",
    "Renewed",
    "Session",
    "Offered to",
    "Held back",
    "Last token",
    "Site",
    "Labels",
    "Declared",
  );
  const deadline = h("span", { class: "countdown", role: "timer" });
  const bar = h("progress", { max: "1", value: "0", "aria-hidden": "true" });
  const holderLink = h("a", {}, "");

  const buttons = {
    handOver: button("Hand over…", () => actions.handOver(seen, seen.lease, nextHolders(store, seen))),
    callOff: button("Call off the hand-over…", () => actions.callOff(seen, seen.pending)),
    revoke: button("Revoke…", () => actions.revoke(seen, seen.lease), "danger"),
    lift: button("Free it now…", () => actions.liftHoldBack(seen, seen.held_back_ms), "danger"),
    clear: button("Clear quarantine…", () => actions.clearQuarantine(seen, explanation)),
    quarantine: button("Quarantine…", () => actions.quarantine(seen)),
  };

  const line = table("Line of waiters", ["Place", "Waiter", "Waiting for", "Until"]);
  const waiters = new Rows(
    line.body,
    (waiter) => `${waiter.holder}${waiter.since}`,
    waiterRow,
    "Nobody waits for it.",
  );
  const more = h("p", { class: "hint", hidden: true });
  const history = h("ol", { class: "events" });
  const events = new Rows(
    history,
    (event) => event.cursor,
    (event) => ({ element: eventRow(event, { hasName: false }) }),
    "No events are kept.",
  );
  const stateText = h("pre", { tabindex: "0", "aria-label": "State document" }, "");
  const stateAbout = h("p", { class: "hint" }, "It has none: no holder has left anything for the next one.");
  const why = h("p", { class: "why" }, "");
  const whyFacts = new Facts(
    "Should be at",
    "Next step",
    "If its holder dies",
    "Failures",
    "Last failure",
    "Avoided",
    "Plan",
  );
  const attributes = h("pre", { tabindex: "0", "aria-label": "Attributes" }, "");
  const attributesPanel = panel("Attributes", {}, attributes);

  const poll = new Poll(2_000, async () => {
    const [found, told] = await Promise.all([
      api.get(at()).catch((error) => (error.status === 404 ? gone(error) : Promise.reject(error))),
      api
        .get(path("resources", kind, key, "history"), { tenant, newest_first: true, limit: HISTORY })
        .catch(() => ({ events: [] })),
    ]);
    readAt = performance.now();
    seen = found;
    explanation = found && (await api.get(at("explain")).catch(() => undefined));
    const document = found?.state ? await api.get(at("state")).catch(() => undefined) : undefined;
    showResource();
    relate(told.events);
    events.show(told.events);
    showState(document);
    showWhy();
  });

  const element = h(
    "div",
    { class: "resource" },
    h(
      "header",
      { class: "title" },
      h("h1", {}, h("span", { class: "muted" }, `${kind}/`), key),
      state,
      h("div", { class: "buttons" }, ...Object.values(buttons)),
    ),
    poll.element,
    h(
      "div",
      { class: "columns" },
      panel("Lease", {}, facts.element),
      panel("Why it is where it is", {}, why, whyFacts.element),
      panel("Line", {}, line.box, more),
      panel("State document", {}, stateAbout, stateText),
      attributesPanel,
    ),
    panel("History", {}, history),
  );

  function gone(error) {
    setText(state, "does not exist");
    state.className = "pill free";
    setText(why, error.message);
    return undefined;
  }

  /** How it stands, in words and as a colour. */
  function standing() {
    if (seen.shared?.length > 0) return ["shared", "held"];
    if (seen.lease) return seen.pending ? ["being handed over", "moving"] : ["held", "held"];
    return seen.held_back_ms > 0 ? ["held back", "held-back"] : ["free", "free"];
  }

  function showResource() {
    for (const one of Object.values(buttons)) one.hidden = true;
    if (!seen) {
      for (const name of facts.values.keys()) facts.set(name, undefined);
      waiters.show([]);
      attributesPanel.hidden = true;
      return;
    }
    const { lease, pending } = seen;
    const isQuarantined = explanation?.quarantined === true;
    const shared = seen.shared ?? [];
    const [words, looks] = standing();
    setText(state, isQuarantined ? `${words}, in quarantine` : words);
    state.className = `pill ${looks}`;
    const sharer = ({ holder, slot, slots, token }) => `${holder} (slot ${slot} of ${slots}, token ${token})`;
    facts.set("Shared by", shared.length > 0 ? shared.map(sharer).join(", ") : undefined);
    setText(holderLink, lease?.holder ?? "");
    holderLink.href = lease ? runnerLink(lease.holder) : "#/";
    facts.set("Holder", lease ? holderLink : undefined);
    facts.set("Token", lease?.token);
    facts.set("Deadline", lease ? deadlineElement : undefined);
    facts.set("Held since", lease && `${moment(lease.acquired_at)} (${ago(lease.acquired_at, store.now())})`);
    facts.set(
      "Renewed",
      lease?.renewed_at && `${moment(lease.renewed_at)} (${ago(lease.renewed_at, store.now())})`,
    );
    facts.set("Session", lease?.session_id ?? (lease && "one of its own"));
    facts.set("Offered to", pending && `${pending.holder}, until ${clock(pending.expires_at)}`);
    facts.set("Last token", lease ? undefined : seen.last_token || "never held");
    facts.set("Site", seen.site);
    facts.set(
      "Labels",
      Object.entries(seen.labels)
        .map(([name, value]) => `${name}=${value}`)
        .join(", "),
    );
    facts.set(
      "Declared",
      seen.declared ? moment(seen.created_at) : "no: it exists only while it is held or waited for",
    );
    buttons.handOver.hidden = !lease || Boolean(pending);
    buttons.callOff.hidden = !pending;
    buttons.revoke.hidden = !lease;
    buttons.lift.hidden = Boolean(lease) || seen.held_back_ms === 0;
    buttons.clear.hidden = !isQuarantined;
    buttons.quarantine.hidden = isQuarantined || !seen.declared;
    waiters.show((seen.waiters ?? []).map((waiter, index) => ({ ...waiter, place: index + 1, now: store.now() })));
    const rest = seen.waiting - (seen.waiters ?? []).length;
    more.hidden = rest <= 0;
    setText(more, `and ${count(rest, "more waiter")} behind them`);
    attributesPanel.hidden = Object.keys(seen.attributes).length === 0;
    setText(attributes, JSON.stringify(seen.attributes, null, 2));
    tick();
  }

  const deadlineElement = h("span", { class: "deadline" }, deadline, bar);

  /** Counts down from what was last read; a renewal moves it with the next reading. */
  function tick() {
    const passed = performance.now() - readAt;
    if (seen?.lease) {
      const left = seen.lease.ttl_ms - passed;
      const from = Date.parse(seen.lease.renewed_at ?? seen.lease.acquired_at);
      const whole = Math.max(1, Date.parse(seen.lease.expires_at) - from);
      setText(deadline, left > 0 ? `in ${countdown(left)}` : "has passed");
      bar.value = Math.max(0, Math.min(1, left / whole));
    }
    const heldBack = seen && !seen.lease ? seen.held_back_ms - passed : 0;
    facts.set("Held back", heldBack > 0 ? `for another ${countdown(heldBack)}` : undefined);
  }
  const countdownTimer = setInterval(tick, 100);

  function showState(document) {
    stateText.hidden = !document;
    if (!document) {
      setText(stateAbout, "It has none: no holder has left anything for the next one.");
      return;
    }
    setText(
      stateAbout,
      `Number ${document.sequence} under token ${document.token}, written at ${moment(document.written_at)}.`,
    );
    setText(stateText, JSON.stringify(document.document, null, 2));
  }

  function showWhy() {
    if (!explanation) {
      if (seen) setText(why, "There is no explanation for it.");
      return;
    }
    setText(why, sentence(explanation.detail));
    const { if_holder_dies: dies, last_failure: last } = explanation;
    whyFacts.set("Should be at", explanation.target);
    whyFacts.set("Next step", explanation.step === "nothing" ? undefined : explanation.step);
    whyFacts.set("If its holder dies", dies && sentence(dies.detail));
    whyFacts.set("Failures", explanation.failures || undefined);
    whyFacts.set(
      "Last failure",
      last && `${moment(last.at)} at ${last.runner_id}${last.reason ? `: ${last.reason}` : ""}`,
    );
    whyFacts.set(
      "Avoided",
      explanation.penalties.map((one) => `${one.runner_id} for ${span(one.for_ms)}`).join(", "),
    );
    whyFacts.set("Plan", `of revision ${explanation.plan_revision}`);
  }

  return {
    title: `${kind}/${key}`,
    element,
    changed(change) {
      if (change.isReset || change.resources.has(id)) poll.now();
    },
    close() {
      clearInterval(countdownTimer);
      poll.close();
      fill(element);
    },
  };
}

const button = (text, onclick, kind) => h("button", { type: "button", class: kind, hidden: true, onclick }, text);

function waiterRow() {
  const cells = [td({}), td({}), td({}), td({})];
  return {
    element: h("tr", {}, ...cells),
    update: ({ place, holder, since, until, now }) => {
      setText(cells[0], String(place));
      setText(cells[1], holder);
      setText(cells[2], span(Math.max(0, now - Date.parse(since))));
      setText(cells[3], clock(until));
    },
  };
}

/** Runners that could hold it, those with room first. */
function nextHolders(store, { tenant, lease }) {
  const able = store.runners.filter(
    (runner) => runner.tenant_id === tenant && runner.session_id && runner.status === "active",
  );
  const others = able.filter((runner) => runner.runner_id !== lease.holder);
  const room = (runner) => runner.capacity - runner.held;
  return others.sort((a, b) => room(b) - room(a)).map((runner) => runner.runner_id);
}

/** Says of grants in a history, newest first, whom they took the resource over from. */
function relate(events) {
  for (let at = 0; at < events.length; at += 1) {
    const event = events[at];
    const before = events[at + 1];
    if (event.event_type !== "lease_acquired" || !before?.holder || before.token === null) continue;
    if (before.holder === event.holder || !before.event_type.startsWith("lease_")) continue;
    const ended = { lease_expired: "expired", lease_stolen: "expired", lease_revoked: "was revoked" }[
      before.event_type
    ];
    const after = Date.parse(event.timestamp) - Date.parse(before.timestamp);
    const isOffered =
      events.slice(at + 2).find((one) => one.event_type === "lease_pending")?.lease_id === event.lease_id;
    if (ended) event.previous = { kind: "takeover", holder: before.holder, ended, after };
    else if (isOffered) event.previous = { kind: "hand-over", holder: before.holder };
  }
}

/** Ends with a full stop. A name at the beginning stays as it is. */
function sentence(text) {
  const trimmed = text.trim().replace(/^(its?|no|the)\b/, (word) => word.charAt(0).toUpperCase() + word.slice(1));
  return /[.!?]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}
