/**
 * The gate: work that carries an old token is refused (rule 21).
 *
 * `judge` answers at once by what is known; `decide` asks the store where that settles it. What stays undecidable is
 * held back by a transport that can wait (`changed`), and refused by one that cannot. The watch brings every grant, so
 * the store is read only for a token that comes before its event, and while the watch is away.
 */

import { Notice, Scope, TimedOut, unlessAborted, within } from "./async.js";
import { Backoff } from "./backoff.js";
import type { Channel } from "./channel.js";
import * as check from "./check.js";
import { Client } from "./client.js";
import { pause } from "./clock.js";
import { Compacted, Forbidden, NotFound, SoleholdError, Unavailable, Unknown } from "./errors.js";
import {
  Fence,
  type MarkRecord,
  type ResourceKey,
  type StoreAnswer,
  type Verdict,
} from "./fence.js";
import { GATE_KINDS_MAX } from "./limits.js";
import { told } from "./log.js";
import { Memory } from "./memory.js";
import { Refreshes } from "./refresh.js";
import type { Watch } from "./watch.js";
import * as wire from "./wire.js";
import { type Event, position, type Snapshot } from "./wire.js";

/** How often the store is asked how far it is. */
const HEAD_MS = 1_000;
/** How long the store counts as away after it was not reached, besides the time that the next question may take. */
const AWAY_MS = 2_000;
/** How often a refusal of the gate is logged while it lasts. */
const LOG_MS = 60_000;
/** How long to wait before another attempt. */
const AGAIN = { firstMs: 100, capMs: 5_000 };

/** How a gate judges. Times are in milliseconds. */
export interface GateOptions {
  /** The kinds of resources that it judges. */
  kinds: string | readonly string[];
  /** The tenant of these resources; `default` by default. */
  tenant?: string;
  /** How old knowledge may be that admits; 30,000 by default. */
  cacheTtlMs?: number;
  /** Whether a token that is not below the newest known one is admitted while no server can be reached. */
  failOpen?: boolean;
  /** Whether the store is read before a new token is admitted, even if the watch has announced it. */
  strict?: boolean;
  /** A file in which marks are kept across restarts (on Linux). Each gate needs a file of its own. */
  memory?: string | undefined;
  /** The most marks that are kept in memory. */
  marksMax?: number;
  /** How long one question to the store may take; 5,000 by default. */
  refreshWithinMs?: number;
}

const OPTIONS = [
  "kinds",
  "tenant",
  "cacheTtlMs",
  "failOpen",
  "strict",
  "memory",
  "marksMax",
  "refreshWithinMs",
] as const;

interface GateConfig {
  readonly kinds: ReadonlySet<string>;
  readonly tenant: string;
  readonly withinMs: number;
}

/**
 * Refuses work that carries an old token: `await using gate = await Gate.open(client, { kinds: ["scene"] })`.
 *
 * It fails closed: what cannot be decided is not admitted, unless `failOpen` says so for the time while no server can
 * be reached. A server that refuses the gate's key is not away: see `denied`.
 */
export class Gate {
  private readonly channel: Channel;
  private readonly scope = new Scope();
  private readonly change = new Notice();
  private readonly toSave = new Notice();
  private readonly refreshes: Refreshes;
  private watch: Watch | undefined;
  private tasks: Promise<void>[] = [];
  private closing: Promise<void> | undefined;
  private denial: string | undefined;
  private logged: number | undefined;

  private constructor(
    private readonly client: Client,
    private readonly config: GateConfig,
    private readonly fence: Fence,
    private readonly memory: Memory | undefined,
  ) {
    this.channel = client.channel();
    this.refreshes = new Refreshes((key) => this.newest(key));
    this.tasks = [this.follow(), this.askForHeads(), ...(memory ? [this.keep(memory)] : [])].map((task) =>
      task.catch((error: unknown) => {
        if (!this.scope.signal.aborted) client.log.error(`a task of the gate has failed: ${told(error)}`);
      }),
    );
  }

  /** Opens a gate. It does not wait for a server: what is not known yet is undecidable. `ready()` waits. */
  static async open(client: Client, options: GateOptions): Promise<Gate> {
    check.instance("client", client, Client, "a Client");
    check.options(options, OPTIONS);
    const { kinds, tenant = "default", cacheTtlMs = 30_000, failOpen = false, strict = false } = options;
    const { memory, marksMax = 1_000_000, refreshWithinMs = 5_000 } = options;
    if (typeof kinds !== "string" && !Array.isArray(kinds)) {
      throw new TypeError(`kinds must be an array of kinds, such as ["scene"], not ${check.kindOf(kinds)}`);
    }
    const named = new Set([kinds].flat().map((kind) => check.name("a kind", kind)));
    if (named.size < 1 || named.size > GATE_KINDS_MAX) {
      throw new RangeError(`${named.size} kinds were given: give 1 to ${GATE_KINDS_MAX}`);
    }
    check.name("tenant", tenant);
    check.milliseconds("cacheTtlMs", cacheTtlMs, (ms) => ms > 0, "milliseconds above 0");
    check.aboveZero("refreshWithinMs", refreshWithinMs);
    check.boolean("failOpen", failOpen);
    check.boolean("strict", strict);
    if (!Number.isSafeInteger(marksMax) || marksMax < 1) {
      throw new RangeError(`marksMax is ${marksMax}: give a whole number above 0`);
    }
    if (memory !== undefined) check.string("memory", memory, "the path of a file");
    const fence = new Fence({ cacheTtlMs, failOpen, strict, remembers: memory !== undefined, marksMax });
    const file = memory === undefined ? undefined : await Memory.open(memory, tenant, fence);
    return new Gate(client, { kinds: named, tenant, withinMs: refreshWithinMs }, fence, file);
  }

  /** Ends the watch, and lets another gate have the file, when what is being saved is saved. */
  close(): Promise<void> {
    this.closing ??= this.client.leave(this.leave());
    return this.closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private async leave(): Promise<void> {
    this.scope.abort();
    this.hasChanged();
    this.channel.close();
    await Promise.all(this.tasks);
    await this.memory?.close();
  }

  /**
   * Everything is known that was decided longer ago than this, in milliseconds; undefined before the first snapshot.
   */
  get lagMs(): number | undefined {
    return this.fence.proven === undefined ? undefined : this.client.clock.now() - this.fence.proven;
  }

  /**
   * What the server said when it refused the gate, such as for its key; undefined if it does not refuse it. Until that
   * is mended nothing is admitted that needs the server, even if the gate fails open.
   */
  get denied(): string | undefined {
    return this.fence.isDenied ? this.denial : undefined;
  }

  /**
   * Judges by what is known, at once. `session` is the id of the session that the work shows, if it shows one. Work
   * under a shared hold is judged by its `slot`.
   */
  judge(
    kind: string,
    key: string,
    token: number,
    session?: string,
    options: { slot?: number | undefined } = {},
  ): Verdict {
    check.options(options, ["slot"]);
    return this.judgeOf({ kind, key, slot: options.slot }, token, session);
  }

  private judgeOf(of: ResourceKey, token: number, session: string | undefined): Verdict {
    const { kind, key, slot } = of;
    check.slots("slot", slot);
    check.name("kind", kind);
    check.name("key", key);
    check.token(token);
    if (session !== undefined) check.string("session", session);
    if (this.closing) throw new Unavailable("the gate was closed, and admits nothing");
    // Another kind is not watched: what is not known would be looked up, and never forgotten when it is deleted.
    if (!this.config.kinds.has(kind)) {
      throw new RangeError(
        `this gate is for ${[...this.config.kinds].join(", ")}, not for ${JSON.stringify(kind)}`,
      );
    }
    const verdict = this.fence.judge(of, token, session, this.client.clock.now());
    // Not to those that wait for a change: one that judges again for each would never let go of the event loop.
    if (verdict.why === "unsaved") this.toSave.notify();
    return verdict;
  }

  /** Judges, and asks the store where that settles it: one question serves all decisions that waited for it. */
  async decide(
    kind: string,
    key: string,
    token: number,
    session?: string,
    options: { slot?: number | undefined; signal?: AbortSignal | undefined } = {},
  ): Promise<Verdict> {
    check.options(options, ["slot", "signal"]);
    check.signal(options.signal);
    const of = { kind, key, slot: options.slot };
    const arrived = this.client.clock.now();
    let verdict = this.judgeOf(of, token, session);
    if (verdict.needsARead && !this.fence.isAway(arrived)) {
      verdict = await this.read(of, token, session, arrived, options.signal);
    }
    if (verdict.why === "unsaved") {
      await this.until(() => this.judgeOf(of, token, session).why !== "unsaved", options.signal);
      verdict = this.judgeOf(of, token, session);
    }
    return verdict;
  }

  private async read(
    key: ResourceKey,
    token: number,
    session: string | undefined,
    arrived: number,
    outer: AbortSignal | undefined,
  ): Promise<Verdict> {
    let answer: StoreAnswer;
    const scope = new Scope(this.scope.signal, outer);
    try {
      answer = await within(this.config.withinMs, scope.signal, (signal) =>
        this.refreshes.ask(key, arrived, signal),
      );
    } catch (error) {
      outer?.throwIfAborted();
      if (!(error instanceof SoleholdError || error instanceof TimedOut || this.scope.signal.aborted))
        throw error;
      this.failed(error);
      return this.judgeOf(key, token, session);
    } finally {
      scope.end();
    }
    return this.conclude(key, token, session, answer, outer);
  }

  /** Something to wait for: the next change of what is known. Call it before `judge`, so that nothing is missed. */
  changed(): Promise<void> {
    return this.change.wait();
  }

  /** Waits until the first snapshot is whole and saved. */
  async ready(options: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    check.options(options, ["signal"]);
    const scope = new Scope(this.scope.signal, options.signal);
    try {
      for (let change = this.changed(); !this.fence.isReady; change = this.changed()) {
        await unlessAborted(change, scope.signal);
      }
    } finally {
      scope.end();
    }
  }

  /** The verdict by what the store answered. */
  private async conclude(
    key: ResourceKey,
    token: number,
    session: string | undefined,
    answer: StoreAnswer,
    signal: AbortSignal | undefined,
  ): Promise<Verdict> {
    const { fence } = this;
    const { asked } = answer;
    if (!answer.mark && !answer.hidden && fence.seen !== undefined) {
      // The store knows an undeclared resource, and a slot, only while it is held. The watch knows it longer.
      const isProven = await this.until(() => fence.proven !== undefined && fence.proven >= asked, signal);
      if (!isProven) return this.judgeOf(key, token, session);
    }
    const verdict = fence.conclude(key, token, session, answer, this.client.clock.now());
    this.hasChanged();
    return verdict ?? this.judgeOf(key, token, session);
  }

  private async newest({ kind, key, slot }: ResourceKey): Promise<StoreAnswer> {
    const asked = this.client.clock.now();
    const path = wire.path("resources", kind, key);
    const options = { timeoutMs: this.config.withinMs, until: asked, signal: this.scope.signal };
    try {
      const answer = await this.channel.call({ method: "GET", path }, options);
      return { ...wire.newest(answer.value, slot), asked: answer.sent };
    } catch (error) {
      const missing = { mark: undefined, epoch: undefined, asked };
      if (error instanceof NotFound) return missing;
      if (error instanceof Forbidden) return { ...missing, hidden: true };
      throw error;
    }
  }

  /** Waits for something that changes only with what is known, but not for ever. Returns whether it holds. */
  private async until(holds: () => boolean, outer: AbortSignal | undefined): Promise<boolean> {
    const scope = new Scope(this.scope.signal, outer);
    const wait = async (signal: AbortSignal): Promise<void> => {
      for (let change = this.changed(); !holds(); change = this.changed())
        await unlessAborted(change, signal);
    };
    try {
      await within(this.config.withinMs, scope.signal, wait);
    } catch (error) {
      outer?.throwIfAborted();
      if (!(error instanceof TimedOut || this.scope.signal.aborted)) throw error;
    } finally {
      scope.end();
    }
    return holds();
  }

  private hasChanged(): void {
    this.change.notify();
    this.toSave.notify();
  }

  /** The store refuses the gate, or was not reached. */
  private failed(error: unknown): void {
    const { client, fence } = this;
    const now = client.clock.now();
    if (!isDenial(error)) {
      client.log.debug(`the gate cannot reach the store: ${told(error)}`);
      fence.storeIsAway(now + AWAY_MS + this.config.withinMs);
      return;
    }
    this.denial = told(error);
    fence.storeDenies();
    if (this.logged !== undefined && now - this.logged < LOG_MS) return;
    this.logged = now;
    const text = "the server refuses the gate; check its API key; refusing tokens that it cannot judge";
    client.log.error(`${text}: ${told(error)}`);
  }

  /** Watches, however often the connection is lost. */
  private async follow(): Promise<void> {
    const { client, config } = this;
    const { signal } = this.scope;
    const backoff = new Backoff(AGAIN, client.random);
    const [kind] = config.kinds.size === 1 ? config.kinds : [];
    while (!signal.aborted) {
      const asked = client.clock.now();
      const watch = client.watch({ kind, signal });
      try {
        for await (const seen of watch) {
          backoff.reset();
          if (!this.take(watch, seen, asked)) break;
        }
      } catch (error) {
        if (error instanceof Compacted) continue;
        if (!(error instanceof SoleholdError)) throw error;
        client.log.debug(`gate watch interrupted; reconnecting: ${told(error)}`);
        if (isDenial(error)) this.failed(error);
      } finally {
        this.watch = undefined;
        await watch.close();
      }
      await pause(backoff.delay(), signal);
    }
  }

  /** Takes in what the watch sends; false if it is from another history than was begun. */
  private take(watch: Watch, seen: Snapshot | Event, asked: number): boolean {
    const { fence } = this;
    const { epoch, revision } = position(seen.cursor);
    if (seen.type === "snapshot") {
      if (!fence.snapshotBegins(epoch)) return false;
      for (const { tenant, kind, key, slot, token, sessionId } of seen.resources) {
        if (this.isOurs(tenant, kind)) fence.learn({ kind, key, slot }, { token, session: sessionId });
      }
      fence.snapshotEnds(revision, asked);
      this.watch = watch;
    } else {
      if (epoch !== fence.epoch || fence.seen === undefined) return false;
      const { tenant, kind, key, slot, token, sessionId } = seen;
      if (seen.eventType === "resource_deleted") {
        if (tenant === this.config.tenant) fence.deleted({ kind, key, slot });
      } else if (token !== undefined && this.isOurs(tenant, kind)) {
        fence.granted({ kind, key, slot }, { token, session: sessionId });
      }
      fence.seenUpTo(revision);
    }
    this.hasChanged();
    return true;
  }

  private isOurs(tenant: string, kind: string): boolean {
    return tenant === this.config.tenant && this.config.kinds.has(kind);
  }

  /** When the watch has sent everything up to where the store was, everything before the question is known. */
  private async askForHeads(): Promise<void> {
    const { client, fence } = this;
    const { signal } = this.scope;
    while (!signal.aborted) {
      const now = client.clock.now();
      try {
        const options = { timeoutMs: this.config.withinMs, until: now, signal };
        const answer = await this.channel.call({ method: "GET", path: "/readyz" }, options);
        const head = position(wire.cursorOf(answer.value));
        if (!fence.headWas(head.epoch, head.revision, answer.sent)) {
          client.log.warn("gate ignores the store: it answers from an older history");
          fence.storeIsAway(now + AWAY_MS + this.config.withinMs);
        }
        // Marks of progress move the cursor without an event.
        if (this.watch?.cursor !== undefined) {
          const at = position(this.watch.cursor);
          if (at.epoch === fence.epoch && fence.seen !== undefined) fence.seenUpTo(at.revision);
        }
      } catch (error) {
        if (!(error instanceof SoleholdError)) throw error;
        this.failed(error);
      }
      this.hasChanged();
      await pause(HEAD_MS, signal);
    }
  }

  /** Saves what there is to save. */
  private async keep(memory: Memory): Promise<void> {
    const { client, fence } = this;
    const { signal } = this.scope;
    const backoff = new Backoff(AGAIN, client.random);
    let waiting: MarkRecord[] = [];
    for (;;) {
      const more = this.toSave.wait();
      const { records, number } = fence.unsaved();
      for (const record of records) waiting.push(record);
      if (waiting.length === 0) {
        if (signal.aborted) return;
        await more;
        continue;
      }
      const whole = memory.isLong(fence.size) ? fence.records() : undefined;
      try {
        await memory.save(waiting, whole);
      } catch (error) {
        client.log.error(`cannot save the gate's marks; refusing new tokens until it works: ${told(error)}`);
        if (signal.aborted) return;
        await pause(backoff.delay(), signal);
        continue;
      }
      backoff.reset();
      waiting = [];
      fence.savedUpTo(number);
      this.change.notify();
    }
  }
}

/** Whether a server, or something in front of it, answered and refuses the gate. */
function isDenial(error: unknown): boolean {
  if (!(error instanceof SoleholdError)) return false;
  return (
    !(error instanceof Unavailable || error instanceof Unknown) ||
    error.status === 401 ||
    error.status === 403
  );
}
