/** What the answers say, as values. An incomplete answer counts as none: the outcome is then unknown. */

import * as check from "./check.js";
import { Unknown } from "./errors.js";
import type { Mark } from "./fence.js";
import type { LeaseIdentity, Position } from "./holdings.js";

/** Any JSON value. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };
/** An object of JSON. */
export type JsonObject = { readonly [name: string]: Json };

const BASE = "/api/v1";

/** The state document of a resource, as written under `token`. */
export interface StateDocument {
  readonly token: number;
  readonly sequence: number;
  readonly document: Json;
  readonly writtenAt: string;
}

/** A lease as an acquire or renewal got it. */
export interface Grant extends LeaseIdentity {
  readonly epoch: number | undefined;
  readonly revision: number;
  readonly state: StateDocument | undefined;
  /** For a grant that was waited for: it lapses unless it is renewed within this time (rule 15). */
  readonly confirmWithinMs: number | undefined;
  /** Which slot of a shared resource; undefined if the lease is exclusive (rule 29). */
  readonly slot: number | undefined;
  /** Of how many. */
  readonly slots: number | undefined;
}

/** A session, and everything attached to it as of `revision`. */
export interface SessionView {
  readonly sessionId: string;
  readonly ttlLeftMs: number;
  readonly fullTtlMs: number;
  readonly slackMs: number | undefined;
  readonly epoch: number | undefined;
  readonly revision: number;
  readonly sealedCursor: string | undefined;
  readonly leases: readonly LeaseIdentity[];
  /** The name of the set, for the next heartbeat; none while it may change as time passes, and from an older server. */
  readonly setCursor: string | undefined;
}

/** Who owns a resource, as of a snapshot. */
export interface Ownership {
  readonly tenant: string;
  readonly kind: string;
  readonly key: string;
  /** The token of the present grant, or of the last one: a gate admits none below it. */
  readonly token: number;
  /** Undefined if it is free. */
  readonly holder: string | undefined;
  readonly leaseId: string | undefined;
  readonly sessionId: string | undefined;
  /** Milliseconds until the lease expires, unless it is renewed. */
  readonly ttlLeftMs: number;
  /** Which of its slots this is, if it is shared. */
  readonly slot: number | undefined;
}

/** Who owns what, as of one moment. */
export interface Snapshot {
  readonly type: "snapshot";
  readonly cursor: string;
  readonly resources: readonly Ownership[];
}

/** One change of a resource or of the lease on it. */
export interface Event {
  readonly type: "event";
  /** `lease_acquired`, `lease_released`, `lease_expired`, `lease_revoked`, ... */
  readonly eventType: string;
  /** The point to continue from, after this change. */
  readonly cursor: string;
  readonly revision: number;
  /** When it was decided, by the store's clock. */
  readonly timestamp: string;
  readonly tenant: string;
  readonly kind: string;
  readonly key: string;
  readonly holder: string | undefined;
  readonly token: number | undefined;
  readonly leaseId: string | undefined;
  readonly sessionId: string | undefined;
  /** The id of the API key that requested it, if there was one. */
  readonly by: string | undefined;
  /** Which of its slots it is about, if it is shared. */
  readonly slot: number | undefined;
  /** What else is known, depending on `eventType`. */
  readonly details: JsonObject;
}

/** A live session among all that there are, as `GET /api/v1/nodes` lists it. */
export interface Node {
  /** The name of its holder. */
  readonly nodeId: string;
  readonly sessionId: string;
  readonly group: string | undefined;
  readonly weight: number;
  readonly leaseCount: number;
  readonly ttlLeftMs: number;
  /** What it last reported about itself. */
  readonly metrics: JsonObject;
}

/** A path below the base; names are escaped, so a slash within one is `%2F`. */
export function path(...names: string[]): string {
  return [BASE, ...names.map(segment)].join("/");
}

/** A name as one segment of a path. */
export function segment(name: string): string {
  const escaped = encodeURIComponent(check.name("a name in the path", name));
  return escaped.replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** A body. Fields that are undefined are left out; a value that is not JSON throws an error that names its field. */
export function encode(body: object): Buffer {
  for (const [field, value] of Object.entries(body)) {
    const fault = value === undefined ? undefined : notJson(value, []);
    if (fault !== undefined) throw new TypeError(`${field} cannot be sent as JSON: ${fault}`);
  }
  return Buffer.from(JSON.stringify(body));
}

const DEPTH_MAX = 512;

/** What about a value would be lost on the way: `JSON.stringify` leaves out or replaces what is not JSON. */
function notJson(value: unknown, above: readonly unknown[]): string | undefined {
  if (value === null || typeof value === "string" || typeof value === "boolean") return undefined;
  if (typeof value === "number") return Number.isFinite(value) ? undefined : `it has the number ${value}`;
  if (typeof value !== "object") return `it has ${check.kindOf(value)}`;
  if (above.includes(value)) return "it contains itself";
  if (above.length >= DEPTH_MAX) return `it is nested more than ${DEPTH_MAX} deep`;
  const inner = [...above, value];
  if (Array.isArray(value)) {
    for (const item of value as unknown[]) {
      const fault = notJson(item, inner);
      if (fault !== undefined) return fault;
    }
    return undefined;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) return `it has ${check.kindOf(value)}`;
  for (const item of Object.values(value)) {
    const fault = item === undefined ? undefined : notJson(item, inner);
    if (fault !== undefined) return fault;
  }
  return undefined;
}

/** What an answer says. */
export function decode(body: Uint8Array): Json {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body)) as Json;
  } catch (error) {
    throw new Unknown("the answer is not JSON", { cause: error });
  }
}

/** The answer to an acquire or a renewal. */
export function grant(value: Json): Grant {
  const fields = new Fields(value, "a grant");
  const written = fields.get("state");
  return {
    leaseId: fields.text("lease_id"),
    token: fields.whole("token"),
    epoch: fields.wholeOrNone("epoch"),
    revision: fields.whole("revision"),
    state: written === null ? undefined : state(written),
    confirmWithinMs: fields.wholeOrNone("confirm_within_ms"),
    slot: fields.wholeOrNone("slot"),
    slots: fields.wholeOrNone("slots"),
  };
}

/** The answer to an acquire of several, all or none: a grant for each. */
export function grants(value: Json, count: number): Grant[] {
  const what = "a list of grants";
  const results = list(new Fields(value, what).get("results"), what, "results");
  if (results.length !== count) throw new Unknown(`the answer is not ${what}: it has not ${count} results`);
  return results.map((result) => {
    const fields = new Fields(result, "a grant");
    if (fields.get("status") !== "granted")
      throw new Unknown(`the answer is not ${what}: not all of them were granted`);
    return grant(fields.get("lease"));
  });
}

/**
 * The answer to an opening, or to a heartbeat that named the set of `known`. Without a set it says that this is still
 * the set, and must name it as well: nothing else is taken for it.
 */
export function session(value: Json, known?: SessionView): SessionView {
  const fields = new Fields(value, "a session");
  const leases = fields.get("leases");
  const view: SessionView = {
    sessionId: fields.text("session_id"),
    ttlLeftMs: fields.whole("ttl_ms"),
    fullTtlMs: fields.whole("full_ttl_ms"),
    slackMs: fields.wholeOrNone("slack_ms"),
    epoch: fields.wholeOrNone("epoch"),
    revision: fields.whole("revision"),
    sealedCursor: fields.textOrNone("sealed_cursor"),
    leases: leases === null ? [] : list(leases, "a session", "leases").map(identity),
    setCursor: fields.textOrNone("set_cursor"),
  };
  if (leases !== null) return view;
  if (known === undefined || known.setCursor === undefined || !isSameSet(view, known)) {
    throw new Unknown(
      "the answer is not a session: `leases` is missing, and it is not about the set that was named",
    );
  }
  return { ...view, leases: known.leases };
}

function isSameSet(one: SessionView, other: SessionView): boolean {
  const ofSet = (view: SessionView): unknown[] => [view.sessionId, view.epoch, view.revision, view.setCursor];
  const others = ofSet(other);
  return ofSet(one).every((value, at) => value === others[at]);
}

function identity(value: Json): LeaseIdentity {
  const fields = new Fields(value, "a lease");
  return { leaseId: fields.text("lease_id"), token: fields.whole("token") };
}

/** The sessions that something has happened to, and the cursor to continue from. */
export function news(value: Json): { sessions: string[]; cursor: string | undefined } {
  const fields = new Fields(value, "news");
  const sessions = list(fields.get("sessions"), "news", "sessions");
  const names = sessions.filter((sessionId): sessionId is string => typeof sessionId === "string");
  return { sessions: names, cursor: fields.textOrNone("cursor") };
}

/** A state document. */
export function state(value: Json): StateDocument {
  const fields = new Fields(value, "a state");
  return {
    token: fields.whole("token"),
    sequence: fields.whole("sequence"),
    document: fields.get("document"),
    writtenAt: fields.text("written_at"),
  };
}

/** How a lease ended, from the answer about it; undefined while it is held. */
export function endedAs(value: Json): string | undefined {
  const fields = new Fields(value, "an answer about a lease");
  return fields.get("success") === true ? undefined : fields.text("status");
}

/** A cursor as a position, which can be compared. */
export function position(cursor: string): Position {
  const [, epoch, revision] = /^([0-9]+)\.([0-9]+)$/.exec(cursor) ?? [];
  const at = { epoch: Number(epoch), revision: Number(revision) };
  if (!Number.isSafeInteger(at.epoch) || !Number.isSafeInteger(at.revision)) {
    const shown = JSON.stringify(cursor.slice(0, 64));
    throw new RangeError(`cursor is ${shown}: give one that a watch has returned, such as "1.42"`);
  }
  return at;
}

/** The cursor of a frame. */
export function cursorOf(value: Json, name = "cursor"): string {
  const cursor = new Fields(value, "a frame of a watch").text(name);
  try {
    position(cursor);
  } catch (error) {
    throw new Unknown(`a frame of the watch has a wrong cursor: ${String(error)}`);
  }
  return cursor;
}

/** A frame `event`. */
export function event(value: Json): Event {
  const fields = new Fields(value, "an event");
  const details = fields.get("details");
  return {
    type: "event",
    eventType: fields.text("event_type"),
    cursor: cursorOf(value),
    revision: fields.whole("revision"),
    timestamp: fields.text("timestamp"),
    tenant: fields.text("tenant"),
    kind: fields.text("kind"),
    key: fields.text("key"),
    holder: fields.textOrNone("holder"),
    token: fields.wholeOrNone("token"),
    leaseId: fields.textOrNone("lease_id"),
    sessionId: fields.textOrNone("session_id"),
    by: fields.textOrNone("by"),
    slot: fields.wholeOrNone("slot"),
    details: isObject(details) ? details : {},
  };
}

/** A frame `snapshot`: a part of who owns what, and whether another part follows. */
export function snapshotPart(value: Json): { cursor: string; resources: Ownership[]; more: boolean } {
  const fields = new Fields(value, "a snapshot");
  const resources = list(fields.get("resources"), "a snapshot", "resources");
  return { cursor: cursorOf(value), resources: resources.map(ownership), more: fields.get("more") === true };
}

/**
 * The newest token of a resource that was read, or of one of its slots, and the epoch of the answer. A slot without a
 * holder is not shown.
 */
export function newest(
  value: Json,
  slot?: number,
): { mark: Mark | undefined; epoch: number | undefined } {
  const fields = new Fields(value, "a resource");
  if (slot !== undefined) {
    const shared = fields.get("shared");
    const leases = shared === null ? [] : list(shared, "a resource", "shared");
    const held = leases.map((each) => new Fields(each, "a lease")).find((each) => each.get("slot") === slot);
    const mark = held && { token: held.whole("token"), session: held.textOrNone("session_id") };
    return { mark, epoch: fields.wholeOrNone("epoch") };
  }
  const lease = fields.get("lease");
  const holder = lease === null ? undefined : new Fields(lease, "a lease").textOrNone("session_id");
  return { mark: { token: fields.whole("last_token"), session: holder }, epoch: fields.wholeOrNone("epoch") };
}

/** A page of nodes, and where the next one begins. */
export function nodes(value: Json): { nodes: Node[]; next: string | undefined } {
  const fields = new Fields(value, "a list of nodes");
  const found = list(fields.get("nodes"), "a list of nodes", "nodes");
  return { nodes: found.map(node), next: fields.textOrNone("next") };
}

function node(value: Json): Node {
  const fields = new Fields(value, "a node");
  const metrics = fields.get("metrics");
  return {
    nodeId: fields.text("node_id"),
    sessionId: fields.text("session_id"),
    group: fields.textOrNone("group"),
    weight: fields.number("weight"),
    leaseCount: fields.whole("lease_count"),
    ttlLeftMs: fields.whole("ttl_ms"),
    metrics: isObject(metrics) ? metrics : {},
  };
}

/** The node that a key is routed to. */
export function routedTo(value: Json): string {
  return node(new Fields(value, "a route").get("node")).nodeId;
}

function ownership(value: Json): Ownership {
  const fields = new Fields(value, "who owns a resource");
  return {
    tenant: fields.text("tenant"),
    kind: fields.text("kind"),
    key: fields.text("key"),
    token: fields.whole("token"),
    holder: fields.textOrNone("holder"),
    leaseId: fields.textOrNone("lease_id"),
    sessionId: fields.textOrNone("session_id"),
    ttlLeftMs: fields.whole("ttl_ms"),
    slot: fields.wholeOrNone("slot"),
  };
}

function isObject(value: Json): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function list(value: Json, what: string, name: string): readonly Json[] {
  if (!Array.isArray(value)) throw new Unknown(`the answer is not ${what}: \`${name}\` is not a list`);
  return value as readonly Json[];
}

/** Reads an object, and names what is missing. */
class Fields {
  private readonly fields: JsonObject;

  constructor(
    value: Json,
    private readonly what: string,
  ) {
    if (!isObject(value)) throw new Unknown(`the answer is not ${what}: it is not an object`);
    this.fields = value;
  }

  /** The field, or null if it is missing. */
  get(name: string): Json {
    return Object.hasOwn(this.fields, name) ? (this.fields[name] ?? null) : null;
  }

  text(name: string): string {
    const value = this.get(name);
    return typeof value === "string" ? value : this.isNot(name, "a string");
  }

  /** Above 2^53 two numbers would be read as one, so such a number is none: the server gives none above it. */
  whole(name: string): number {
    const value = this.get(name);
    const isWhole = typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
    return isWhole ? value : this.isNot(name, "a whole number");
  }

  number(name: string): number {
    const value = this.get(name);
    return typeof value === "number" ? value : this.isNot(name, "a number");
  }

  textOrNone(name: string): string | undefined {
    return this.get(name) === null ? undefined : this.text(name);
  }

  wholeOrNone(name: string): number | undefined {
    return this.get(name) === null ? undefined : this.whole(name);
  }

  private isNot(name: string, right: string): never {
    throw new Unknown(`the answer is not ${this.what}: \`${name}\` is not ${right}`);
  }
}
