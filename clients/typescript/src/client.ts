/** The servers, and what can be requested of them. */

import { randomBytes, randomInt, randomUUID } from "node:crypto";

import { Semaphore, unlessAborted } from "./async.js";
import { BACKOFF_DEFAULT, type BackoffConfig, checkedBackoff, type Random } from "./backoff.js";
import { Channel, type Answer, type Call, type Doubts, type Surroundings } from "./channel.js";
import * as check from "./check.js";
import { BootClock, type Clock } from "./clock.js";
import { BadRequest, NoSession, NotFound, Refused, Unavailable, Unknown } from "./errors.js";
import { History } from "./history.js";
import { HttpTransport, type TlsOptions } from "./http.js";
import {
  LEAVE_MS_MAX,
  REQUESTS_AT_ONCE_MAX,
  RESPONSE_BYTES_MAX,
  SERVERS_MAX,
  TIMER_MS_MAX,
  WAITERS_AT_ONCE_MAX,
} from "./limits.js";
import { type Logger, shielded, stderrLogger, told } from "./log.js";
import { Newsroom } from "./newsroom.js";
import { servers } from "./server.js";
import type { Transport } from "./transport.js";
import { Watch, type WatchOptions } from "./watch.js";
import * as wire from "./wire.js";
import type { Grant, Json, JsonObject, Node, SessionView, StateDocument } from "./wire.js";

/** How a client reaches its servers. Times are in milliseconds. */
export interface ClientOptions {
  /** The API key. It is sent to every server, and never logged. */
  key?: string | undefined;
  /** The tenant, for a key that may access several. */
  tenant?: string | undefined;
  /** A certificate authority (`ca`) or a client certificate (`cert` and `key`). */
  tls?: TlsOptions | undefined;
  /** How long one server has for one request; 5,000 by default. */
  timeoutMs?: number;
  /** How long a request is repeated while no server answers; 15,000 by default. */
  retryForMs?: number;
  /** The pauses between repeats. */
  backoff?: BackoffConfig;
  /** Where messages go; warnings and errors go to standard error by default. */
  logger?: Logger;
  /** The largest answer that is read, and the largest snapshot of a watch. */
  responseBytesMax?: number;
  /**
   * Returns the `traceparent` header (W3C Trace Context) of the span that a request belongs to, if there is one. With
   * OpenTelemetry it reads the active span.
   */
  traceparent?: () => string | undefined;
  /** Time, chance and network are arguments, so that all of it can be simulated. */
  clock?: Clock;
  random?: Random;
  transport?: () => Transport;
}

const OPTIONS = [
  "key",
  "tenant",
  "tls",
  "timeoutMs",
  "retryForMs",
  "backoff",
  "logger",
  "responseBytesMax",
  "traceparent",
  "clock",
  "random",
  "transport",
] as const;

/** Identifies a lease, and proves it. */
export interface Proof {
  readonly token: number;
  readonly leaseId: string;
  readonly sessionId: string;
}

/** @internal What an acquire says besides its resource. */
export interface AcquireBody {
  holder: string;
  session_id: string;
  request_id: string;
  slots: number | undefined;
  attributes: JsonObject | undefined;
}

/** Which resource a request is about. */
interface Target {
  readonly kind: string;
  readonly key: string;
}

interface AskOptions {
  readonly until?: number | undefined;
  readonly timeoutMs?: number | undefined;
  readonly doubts?: Doubts | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** A number from 0 to below 1 that nobody guesses: two processes never spread alike. */
const chance: Random = () => randomInt(2 ** 47) / 2 ** 47;

/**
 * Servers of one Solehold, any of which may answer: `HOST:PORT` for plain HTTP, or URLs; an array, or with commas
 * between. A request goes to the next server when one does not answer.
 */
export class Client {
  /** @internal */ readonly clock: Clock;
  /** @internal */ readonly random: Random;
  /** @internal */ readonly log: Logger;
  /** @internal */ readonly backoff: BackoffConfig;
  /** @internal */ readonly timeoutMs: number;
  /** @internal */ readonly retryForMs: number;
  /** @internal */ readonly responseBytesMax: number;
  /** @internal What the client remembers of the store's history, for all its sessions. */
  readonly history = new History();
  /** @internal Where sessions wait for news. */
  readonly newsroom: Newsroom;
  private readonly around: Surroundings;
  private readonly makeTransport: () => Transport;
  private readonly main: Channel;
  private readonly short = new Semaphore(REQUESTS_AT_ONCE_MAX);
  private readonly leaving = new Set<Promise<void>>();
  private waiters = 0;

  constructor(urls: string | readonly string[], options: ClientOptions = {}) {
    const given = servers(urls);
    if (given.length < 1 || given.length > SERVERS_MAX) {
      throw new RangeError(`${given.length} servers were given: give 1 to ${SERVERS_MAX}`);
    }
    check.options(options, OPTIONS);
    const { key, tenant, tls, timeoutMs = 5_000, retryForMs = 15_000 } = options;
    this.timeoutMs = check.aboveZero("timeoutMs", timeoutMs);
    const isRight = (ms: number): boolean => ms >= 0 && ms <= TIMER_MS_MAX;
    this.retryForMs = check.milliseconds("retryForMs", retryForMs, isRight, "0 or more milliseconds");
    if (tenant !== undefined) check.name("tenant", tenant);
    check.fields("tls", tls);
    this.responseBytesMax = options.responseBytesMax ?? RESPONSE_BYTES_MAX;
    this.clock = options.clock ?? new BootClock();
    this.random = options.random ?? chance;
    this.log = shielded(options.logger ?? stderrLogger);
    this.backoff = checkedBackoff(options.backoff ?? BACKOFF_DEFAULT);
    const { clock, random, log, backoff } = this;
    this.around = { servers: given, clock, random, log, tenant, backoff, silent: new Set() };
    const headers = headersOf(key);
    const { traceparent } = options;
    if (traceparent !== undefined) check.func("traceparent", traceparent, "a function");
    const http = { headers, tls, responseBytesMax: this.responseBytesMax, traceparent };
    this.makeTransport = options.transport ?? (() => new HttpTransport(http));
    this.main = this.channel();
    this.newsroom = new Newsroom(this);
  }

  toString(): string {
    return `Client(${this.around.servers.join(", ")})`;
  }

  /** The tick of the client's clock now, in milliseconds, to compare with a guard's `deadline`. */
  now(): number {
    return this.clock.now();
  }

  /** Closes the connections. Close sessions before; those that are being closed are waited for. */
  async close(): Promise<void> {
    while (this.leaving.size > 0) await Promise.all(this.leaving);
    await this.newsroom.close();
    this.main.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal Waits, before the client is closed, for something that is being closed. */
  leave(work: Promise<void>): Promise<void> {
    const closing = work.catch((error: unknown) => this.log.debug(`closing has failed: ${told(error)}`));
    const done = closing.finally(() => this.leaving.delete(done));
    this.leaving.add(done);
    return done;
  }

  /** @internal Another channel to the servers, with connections of its own. */
  channel(): Channel {
    return new Channel(this.around, this.makeTransport());
  }

  /** @internal The tick that is this far ahead; the end of time, if no time is given. */
  tickAfter(ms: number | undefined): number {
    return ms === undefined ? Infinity : this.clock.now() + ms;
  }

  /** @internal A new name for a request. */
  requestId(): string {
    return randomBytes(16).toString("hex");
  }

  /**
   * Sends any request, such as `request("PUT", "/api/v1/resources/job/a", {})`.
   *
   * Without an answer, a GET is repeated; anything else only if `repeatable` says that twice is the same as once.
   */
  async request(
    method: string,
    path: string,
    body?: JsonObject,
    options: { repeatable?: boolean; signal?: AbortSignal | undefined } = {},
  ): Promise<Json> {
    check.string("method", method);
    check.string("path", path);
    check.fields("body", body);
    check.options(options, ["repeatable", "signal"]);
    check.signal(options.signal);
    if (!/^\/[\x21-\x7e]*$/.test(path)) {
      throw new RangeError(
        `the path ${JSON.stringify(path)} must begin with / and have its special characters escaped`,
      );
    }
    const repeatable = options.repeatable ?? method === "GET";
    return (await this.ask({ method, path, body, repeatable }, { signal: options.signal })).value;
  }

  /**
   * Who owns what, then every change, in order: `for await (const seen of client.watch())`.
   *
   * Without a cursor it begins with one `Snapshot`; then come `Event`s. With the cursor of an earlier watch it
   * continues after it. A connection that is lost is made again: no gaps and no duplicates.
   */
  watch(options: WatchOptions = {}): Watch {
    return new Watch(this, this.main, options);
  }

  /** The live sessions, with what their holders report about themselves. */
  async nodes(options: { signal?: AbortSignal | undefined } = {}): Promise<Node[]> {
    check.options(options, ["signal"]);
    const found: Node[] = [];
    let next: string | undefined;
    do {
      const query = next === undefined ? "" : `?cursor=${encodeURIComponent(next)}`;
      const page = wire.nodes(
        (await this.ask({ method: "GET", path: wire.path("nodes") + query }, options)).value,
      );
      found.push(...page.nodes);
      next = page.next;
    } while (next !== undefined);
    return found;
  }

  /** The state document of a resource, if one was written. */
  async readState(
    kind: string,
    key: string,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<StateDocument | undefined> {
    check.options(options, ["signal"]);
    const path = wire.path("resources", check.name("kind", kind), check.name("key", key), "state");
    const value = await unlessMissing(this.ask({ method: "GET", path }, options));
    return value && wire.state(value.value);
  }

  // What sessions, guards and acquires need.

  /**
   * @internal Opens a session. A repeat finds the session that a lost answer was about, by its id. A client that
   * remembers the store's history shows it before anything is acquired: a store that was set back learns of it first.
   */
  async openSession(
    opening: {
      holder: string;
      ttlMs: number;
      replace?: string | undefined;
      follows?: string | undefined;
      metrics?: JsonObject | undefined;
    },
    options: AskOptions,
  ): Promise<{ sent: number; view: SessionView }> {
    const { holder, ttlMs, replace, follows, metrics } = opening;
    const body = { holder, ttl_ms: Math.round(ttlMs), replace, follows, metrics };
    const sessionId = randomUUID();
    const call: Call = { method: "POST", path: wire.path("sessions"), body, opens: sessionId };
    let answer: Answer;
    try {
      answer = await this.ask(call, options);
    } catch (error) {
      // It may have been opened all the same, and nobody would renew or close it.
      if (options.signal?.aborted) void this.leave(this.abandonSession(sessionId));
      throw error;
    }
    let view = wire.session(answer.value);
    if (this.history.sealedCursor !== undefined) {
      answer = await this.ask(this.heartbeatCall(view.sessionId, metrics), { signal: options.signal });
      view = wire.session(answer.value);
    }
    try {
      this.history.follow(view.epoch);
    } catch (error) {
      throw new Unavailable(told(error), { cause: error });
    }
    this.history.keep(view.sealedCursor);
    return { sent: answer.sent, view };
  }

  /**
   * @internal Renews a session: asks each server once, over the session's own connections.
   *
   * `known` is the newest answer with a set: the server does not send that again while it is the same. The view that is
   * returned has it either way.
   */
  async heartbeat(
    channel: Channel,
    known: SessionView,
    options: { timeoutMs: number; beside: number; metrics: JsonObject | undefined; signal: AbortSignal },
  ): Promise<{ sent: number; view: SessionView }> {
    const { timeoutMs, beside, metrics, signal } = options;
    const ask = (knownSet: string | undefined): Promise<Answer> =>
      channel.call(this.heartbeatCall(known.sessionId, metrics, knownSet), {
        timeoutMs,
        beside,
        signal,
        until: this.clock.now(),
      });
    let answer: Answer;
    try {
      answer = await ask(known.setCursor);
    } catch (error) {
      const isOld = error instanceof BadRequest && error.fields.some((fault) => fault.field === "known_set");
      if (known.setCursor === undefined || !isOld) throw error;
      // An older server than the one that named the set, as while servers are replaced one by one.
      answer = await ask(undefined);
    }
    return { sent: answer.sent, view: wire.session(answer.value, known) };
  }

  private heartbeatCall(sessionId: string, metrics?: JsonObject, knownSet?: string): Call {
    const body = { metrics, sealed_cursor: this.history.sealedCursor, known_set: knownSet };
    return { method: "PUT", path: wire.path("sessions", sessionId, "heartbeat"), body };
  }

  /** @internal Closes it: everything attached to it is released. */
  async closeSession(sessionId: string, options: AskOptions): Promise<void> {
    await this.ask({ method: "DELETE", path: wire.path("sessions", sessionId) }, options);
  }

  private async abandonSession(sessionId: string): Promise<void> {
    await this.closeSession(sessionId, { until: this.clock.now(), timeoutMs: LEAVE_MS_MAX });
  }

  /**
   * @internal Asks for a resource, and waits in line for it; a repeat under the same request id keeps its place.
   * Without a wait, each server is asked once.
   */
  async acquire(
    { kind, key }: Target,
    body: AcquireBody,
    options: { waitMs: number; timeoutMs: number; doubts: Doubts; signal: AbortSignal },
  ): Promise<Grant> {
    const { waitMs, timeoutMs, doubts, signal } = options;
    const path = wire.path("resources", kind, key, "lease");
    const now = this.clock.now();
    if (waitMs <= 0) {
      const asked = { until: now, timeoutMs, doubts, signal };
      return wire.grant((await this.ask({ method: "POST", path, body }, asked)).value);
    }
    const call: Call = { method: "POST", path, body: { ...body, wait_ms: Math.ceil(waitMs) } };
    // Repeated for no longer than the wait itself: the caller comes back for as long as it wants.
    const until = now + Math.min(waitMs, this.retryForMs);
    return wire.grant(
      (await this.main.call(call, { timeoutMs: waitMs + this.timeoutMs, until, doubts, signal })).value,
    );
  }

  /**
   * @internal Asks for all of the resources or none, without waiting; each server is asked once. A repeat under the
   * same request ids finds what a lost answer was about.
   */
  async acquireTogether(
    items: readonly (Target & AcquireBody)[],
    options: { doubts: Doubts; signal: AbortSignal },
  ): Promise<Grant[]> {
    const path = wire.path("leases", "batch", "acquire");
    const call: Call = { method: "POST", path, body: { items, all_or_none: true } };
    return wire.grants((await this.ask(call, { ...options, until: this.clock.now() })).value, items.length);
  }

  /** @internal Does it in one of the slots for requests that wait in line, or throws `Unavailable`. */
  async asWaiter<T>(work: () => Promise<T>): Promise<T> {
    if (this.waiters >= WAITERS_AT_ONCE_MAX) {
      throw new Unavailable(
        `${WAITERS_AT_ONCE_MAX} acquires of this client wait in line already: try again later`,
      );
    }
    this.waiters += 1;
    try {
      return await work();
    } finally {
      this.waiters -= 1;
    }
  }

  /** @internal Renews a lease, and with it its session. */
  async renew({ kind, key }: Target, proof: Proof, options: AskOptions): Promise<Grant> {
    const path = wire.path("resources", kind, key, "lease", "renew");
    return wire.grant((await this.ask({ method: "POST", path, body: proofOf(proof) }, options)).value);
  }

  /** @internal Spends a request id: it gets nothing from now on, and what it got is released. */
  async cancel({ kind, key }: Target, holder: string, requestId: string, signal: AbortSignal): Promise<void> {
    const body = { holder, request_id: requestId };
    await this.ask(
      { method: "POST", path: wire.path("resources", kind, key, "lease", "cancel"), body },
      { signal },
    );
  }

  /**
   * @internal Releases a lease, with a last document if given. False if it was lost before: nothing has changed. Where
   * answers were lost and later events hide what happened, it is `Unknown`.
   */
  async release(
    { kind, key }: Target,
    proof: Proof,
    state: { sequence: number; document: Json } | undefined,
    options: AskOptions,
  ): Promise<boolean> {
    const doubts: Doubts = { any: false };
    const path = wire.path("resources", kind, key, "lease");
    try {
      await this.ask({ method: "DELETE", path, body: { ...proofOf(proof), state } }, { ...options, doubts });
      return true;
    } catch (error) {
      const isLost = error instanceof Refused && (error.code === "lost" || error.code === "not_yours");
      if (!isLost && !(error instanceof NoSession) && !(error instanceof NotFound)) throw error;
    }
    if (!doubts.any) return false;
    // A repeat finds the lease gone, by our own first attempt or not: how it ended is kept, and so is the last
    // document.
    if (state === undefined) return (await this.endedAs(proof.leaseId, options)) === "released";
    const there = await this.readState(kind, key, { signal: options.signal });
    const order = there && (there.token - proof.token || there.sequence - state.sequence);
    if (order === undefined || order > 0) {
      throw new Unknown(
        `${kind}/${key} may have been released with its last document: it has been overwritten since`,
      );
    }
    return order === 0;
  }

  /** @internal Writes the state document under a live lease. */
  async writeState(
    { kind, key }: Target,
    proof: Proof,
    sequence: number,
    document: Json,
    signal: AbortSignal | undefined,
  ): Promise<StateDocument> {
    const path = wire.path("resources", kind, key, "state");
    const doubts: Doubts = { any: false };
    try {
      const body = { ...proofOf(proof), sequence, document };
      return wire.state((await this.ask({ method: "PUT", path, body }, { doubts, signal })).value);
    } catch (error) {
      if (!(doubts.any && error instanceof Refused && error.code === "stale_sequence")) throw error;
      const written = await this.readState(kind, key, { signal });
      if (written?.token !== proof.token || written.sequence !== sequence) throw error;
      return written; // by an attempt whose answer was lost
    }
  }

  private async endedAs(leaseId: string, { signal }: AskOptions): Promise<string | undefined> {
    const value = await unlessMissing(
      this.ask({ method: "GET", path: wire.path("leases", leaseId) }, { signal }),
    );
    return value && wire.endedAs(value.value);
  }

  /** @internal Sends one of the short requests; a `timeoutMs` given here can only shorten that of the client. */
  async ask(call: Call, options: AskOptions): Promise<Answer> {
    const { doubts, signal } = options;
    const until = options.until ?? this.clock.now() + this.retryForMs;
    const timeoutMs = Math.min(this.timeoutMs, options.timeoutMs ?? Infinity);
    const work = (): Promise<Answer> => this.main.call(call, { timeoutMs, until, doubts, signal });
    return unlessAborted(this.short.run(work, signal), signal);
  }
}

async function unlessMissing<T>(asked: Promise<T>): Promise<T | undefined> {
  try {
    return await asked;
  } catch (error) {
    if (error instanceof NotFound) return undefined;
    throw error;
  }
}

function proofOf({ token, leaseId, sessionId }: Proof): {
  token: number;
  lease_id: string;
  session_id: string;
} {
  return { token, lease_id: leaseId, session_id: sessionId };
}

function headersOf(key: string | undefined): Record<string, string> {
  const headers: Record<string, string> = {
    accept: "application/json",
    "user-agent": "solehold-client-typescript",
  };
  if (key !== undefined) {
    check.string("key", key);
    if (!/^[\x21-\x7e]+$/.test(key)) {
      throw new RangeError("the key is empty or has characters that no key has: check for a stray newline");
    }
    headers["authorization"] = `Bearer ${key}`;
  }
  return headers;
}
