// What this page knows: every resource and its holder, the last events, the runners, and how old all of it is.
//
// The watch writes, pages read. Listeners are told once per frame what has changed, however much that was.

import { Problem } from "./api.js";

/** Events that are kept for the timeline and the charts. */
const EVENTS_MAX = 5_000;
/** Without a word of the store for this long, what is shown may be old. It speaks at least every 5 s. */
const STALE_MS = 15_000;

/** A slot of a shared resource is held by itself. */
export const idOf = ({ tenant, kind, key, slot }) => `${tenant}\n${kind}\n${key}${slot ? `\n${slot}` : ""}`;

/** The states of a resource, as the map colours them. */
export const STATES = ["held", "moving", "held-back", "free"];

export function stateOf(resource) {
  if (resource.holder !== null) return resource.pending === null ? "held" : "moving";
  return resource.heldBackUntil === null ? "free" : "held-back";
}

/** How a lease ended, in the words of a sentence about it. */
const ENDED = {
  lease_released: "was released",
  lease_expired: "expired",
  lease_revoked: "was revoked",
  lease_stolen: "expired",
};

export class Store {
  constructor() {
    this.listeners = new Set();
    this.runners = [];
    this.tenant = "";
    this.clear();
  }

  /** Forgets everything. */
  clear() {
    this.resources = new Map();
    this.heldBack = new Set();
    this.tenants = new Set();
    this.events = [];
    /** Who had a resource last, how its lease ended and when. */
    this.ends = new Map();
    this.connection = { state: "connecting", problem: undefined };
    /** When the store last spoke, by the clock of this machine. */
    this.currentAt = undefined;
    /** How far the store's clock is ahead of this machine's. */
    this.offsetMs = 0;
    this.isLoaded = false;
    this.changed({ isReset: true });
  }

  /** Calls `listener(change)` after changes: `{ isReset, resources: Set, events: [] }`. Returns how to stop it. */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed({ isReset = false, resource, event } = {}) {
    if (!this.change) {
      this.change = { isReset: false, resources: new Map(), events: [] };
      // Frames are not drawn for a tab in the background.
      if (document.hidden) setTimeout(() => this.tell(), 200);
      else requestAnimationFrame(() => this.tell());
    }
    this.change.isReset ||= isReset;
    if (resource) this.change.resources.set(resource.id, resource);
    if (event) this.change.events.push(event);
  }

  tell() {
    const { change } = this;
    this.change = undefined;
    for (const listener of [...this.listeners]) listener(change);
  }

  /** Resources of the chosen tenant, or of all. */
  *visible() {
    for (const resource of this.resources.values()) if (this.isVisible(resource)) yield resource;
  }

  isVisible({ tenant }) {
    return this.tenant === "" || tenant === this.tenant;
  }

  /** The tenant to ask about where the API takes only one. */
  get oneTenant() {
    if (this.tenant) return this.tenant;
    return this.tenants.size === 1 ? [...this.tenants][0] : undefined;
  }

  /** The time by the store's clock. */
  now() {
    return Date.now() + this.offsetMs;
  }

  /** Everything up to now has arrived. `storeTime` is the store's clock at this moment, where it is told. */
  isCurrent(storeTime) {
    this.currentAt = Date.now();
    if (storeTime) this.offsetMs = new Date(storeTime) - this.currentAt;
    if (this.connection.state !== "live") {
      this.connection = { state: "live", problem: undefined };
      this.changed();
    }
  }

  disconnected(error) {
    const isRefused = error instanceof Problem && (error.status === 401 || error.status === 403);
    this.connection = { state: isRefused ? "refused" : "lost", problem: error };
    this.changed();
  }

  /** Why what is shown may be old; undefined if it is not. */
  get staleness() {
    const { state } = this.connection;
    if (state === "refused") return "refused";
    if (state === "lost") return this.isLoaded ? "lost" : "unreachable";
    const isSilent = this.currentAt !== undefined && Date.now() - this.currentAt > STALE_MS;
    return isSilent ? "silent" : undefined;
  }

  /** A snapshot: who owns what, all of it. */
  replace(owned) {
    const before = this.resources;
    this.resources = new Map();
    this.tenants = new Set();
    this.heldBack.clear();
    // A resource that is shared is shown by its slots.
    const shared = new Set(owned.filter((one) => one.slot).map((one) => idOf({ ...one, slot: undefined })));
    for (const one of owned) {
      if (one.holder === null && shared.has(idOf(one))) continue;
      const resource = this.ensure(one);
      const known = before.get(resource.id);
      Object.assign(resource, {
        site: one.site,
        token: one.token,
        holder: one.holder,
        leaseId: one.lease_id,
        sessionId: one.session_id,
      });
      if (known?.token === one.token) {
        Object.assign(resource, {
          pending: known.pending,
          heldBackUntil: known.heldBackUntil,
          declared: known.declared,
        });
        if (resource.heldBackUntil !== null) this.heldBack.add(resource);
      }
    }
    this.isLoaded = true;
    this.isCurrent();
    this.changed({ isReset: true });
  }

  /** What a snapshot does not say of a resource, from a list that was asked for when `version` was its version. */
  describe(listed, version) {
    const resource = this.resources.get(idOf(listed));
    if (!resource || resource.version > version) return;
    const isAsBefore = resource.declared === listed.declared && !listed.pending && !listed.held_back_ms;
    resource.declared = listed.declared;
    resource.pending = listed.pending?.holder ?? null;
    this.holdBack(resource, listed.held_back_ms > 0 ? this.now() + listed.held_back_ms : null);
    if (!isAsBefore) this.changed({ resource });
  }

  /** The resource of a key, which is made if it is new. */
  ensure({ tenant, kind, key, slot }) {
    const id = idOf({ tenant, kind, key, slot });
    let resource = this.resources.get(id);
    if (!resource) {
      resource = {
        id,
        tenant,
        kind,
        key,
        slot,
        site: null,
        token: 0,
        holder: null,
        leaseId: null,
        sessionId: null,
        pending: null,
        heldBackUntil: null,
        declared: slot ? false : undefined,
        version: 0,
      };
      this.resources.set(id, resource);
      this.tenants.add(tenant);
    }
    return resource;
  }

  holdBack(resource, until) {
    resource.heldBackUntil = until;
    if (until === null) this.heldBack.delete(resource);
    else this.heldBack.add(resource);
  }

  /** Removes a resource that nobody declared and nobody holds: it exists only while someone does. */
  settle(resource) {
    const isGone = resource.declared === false && resource.holder === null && resource.heldBackUntil === null;
    if (isGone) this.resources.delete(resource.id);
  }

  /** Ends what has run out by time. Called every second. */
  tick() {
    const now = this.now();
    for (const resource of [...this.heldBack]) {
      if (resource.heldBackUntil > now) continue;
      this.holdBack(resource, null);
      this.settle(resource);
      this.changed({ resource });
    }
  }

  /** An event: what has changed. */
  apply(event) {
    this.isCurrent();
    const isNew = !this.resources.has(idOf(event));
    const resource = this.ensure(event);
    resource.version += 1;
    if (isNew) resource.declared = event.event_type === "resource_declared";
    if (event.slot) this.resources.delete(idOf({ ...event, slot: undefined }));
    this.update(resource, event);
    this.settle(resource);
    this.remember(event, true);
    this.changed({ resource });
  }

  update(resource, event) {
    const { event_type: type, details } = event;
    const isOfPending = event.token === null;
    switch (type) {
      case "resource_declared":
        Object.assign(resource, { declared: true, site: details.site ?? null });
        break;
      case "resource_deleted":
        resource.declared = false;
        break;
      case "lease_pending":
        resource.pending = event.holder;
        break;
      case "lease_acquired":
        Object.assign(resource, { holder: event.holder, token: event.token, leaseId: event.lease_id });
        Object.assign(resource, { sessionId: event.session_id, pending: null });
        this.holdBack(resource, null);
        break;
      case "lease_released":
      case "lease_expired":
      case "lease_revoked":
      case "lease_stolen":
        if (isOfPending) {
          resource.pending = null;
        } else if (event.token >= resource.token) {
          Object.assign(resource, { holder: null, leaseId: null, sessionId: null });
          this.holdBack(resource, details.held_back_until ? Date.parse(details.held_back_until) : null);
        }
        break;
      case "hold_back_lifted":
        this.holdBack(resource, null);
        break;
    }
  }

  /** Keeps an event for the timeline, with what this page knows about what came before it. */
  remember(event, isNews = false) {
    const last = this.events.at(-1);
    if (last && event.revision <= last.revision && event.cursor.split(".")[0] === last.cursor.split(".")[0])
      return;
    this.relate(event);
    this.events.push(event);
    if (this.events.length > EVENTS_MAX * 1.2) this.events = this.events.slice(-EVENTS_MAX);
    this.changed({ event: { event, isNews } });
  }

  /** Finds out whether a grant is a takeover or a hand-over. */
  relate(event) {
    const id = idOf(event);
    const { event_type: type } = event;
    const end = this.ends.get(id);
    if (type === "lease_pending") {
      this.ends.set(id, { ...end, offeredTo: event.holder });
    } else if (ENDED[type] && event.token !== null) {
      this.ends.set(id, {
        holder: event.holder,
        type,
        at: Date.parse(event.timestamp),
        offeredTo: end?.offeredTo,
      });
    } else if (type === "lease_acquired") {
      if (end?.holder && end.holder !== event.holder) {
        const isOffered = end.offeredTo === event.holder && end.type === "lease_released";
        const isTakeover = end.type !== "lease_released";
        const kind = isTakeover ? "takeover" : isOffered ? "hand-over" : undefined;
        const after = Date.parse(event.timestamp) - end.at;
        if (kind) event.previous = { kind, holder: end.holder, ended: ENDED[end.type], after };
      }
      this.ends.delete(id);
    }
  }
}

/** The class of an event: how it is coloured and counted. */
export function classOf(event) {
  switch (event.event_type) {
    case "lease_acquired":
      return event.previous?.kind ?? "grant";
    case "lease_expired":
    case "lease_stolen":
      return event.token === null ? "other" : "expiry";
    case "lease_revoked":
      return "revocation";
    case "lease_released":
      return event.token === null ? "other" : "release";
    default:
      return "other";
  }
}
