/**
 * One incarnation of a holder: a heartbeat on its own connection keeps everything attached to it.
 *
 * The renewer decides, this drives: it sends when told to, reports the outcome, and never waits for long without
 * reading the clock.
 */

import { Acquire } from "./acquire.js";
import { AcquireAll, checkWanted, type Guards, type Wanted } from "./acquire-all.js";
import { Notice, Scope, unlessAborted, within } from "./async.js";
import { Backoff, BACKOFF_DEFAULT, type BackoffConfig, checkedBackoff } from "./backoff.js";
import type { Channel } from "./channel.js";
import * as check from "./check.js";
import { Client } from "./client.js";
import { sleepUntil } from "./clock.js";
import { Lost, Refused, SoleholdError, Unavailable, Unknown } from "./errors.js";
import { Guard, Hold } from "./guard.js";
import { OlderHistory } from "./history.js";
import { comparePositions, Holdings } from "./holdings.js";
import { LEAVE_MS_MAX, STEP_MS_MAX, TTL_MS_MAX, TTL_MS_MIN, UNSETTLED_MAX } from "./limits.js";
import { told } from "./log.js";
import { Loss } from "./loss.js";
import { type Action, Policy, Renewer } from "./renewer.js";
import type { Grant, Json, JsonObject, SessionView } from "./wire.js";

/** How many leases one line of the log names. */
const SHOWN_MAX = 5;
/** How long the heartbeat that follows news may take, before the session waits for news again. */
const BEAT_MS_MAX = 1_000;

/** How a session is kept. */
export interface SessionOptions {
  /** How long a heartbeat keeps it, in milliseconds: 1,000 to 86,400,000; 30,000 by default. */
  ttlMs?: number;
  /** What to do while renewals fail; `Policy.DEADLINE` by default. */
  policy?: Policy;
  /** How often heartbeats are sent, in milliseconds: below half of the ttl; a third of it by default. */
  heartbeatMs?: number | undefined;
  /** A former session of this holder, to be closed at once. */
  replace?: string | undefined;
  /** What heartbeats report about the holder. */
  metrics?: (() => JsonObject) | undefined;
  /** The pauses between the attempts of an acquire. */
  backoff?: BackoffConfig;
}

const SESSION_OPTIONS = ["ttlMs", "policy", "heartbeatMs", "replace", "metrics", "backoff"] as const;

/** @internal The options of a session, with a name for its holder, checked. */
export interface SessionConfig {
  readonly holder: string;
  readonly ttlMs: number;
  readonly policy: Policy;
  readonly heartbeatMs: number | undefined;
  readonly replace: string | undefined;
  readonly metrics: (() => JsonObject) | undefined;
  readonly backoff: BackoffConfig;
}

/** @internal */
export function sessionConfig(
  holder: string,
  options: SessionOptions,
  others: readonly string[] = [],
): SessionConfig {
  check.name("holder", holder);
  check.options(options, [...SESSION_OPTIONS, ...others]);
  const { ttlMs = 30_000, policy = Policy.DEADLINE, heartbeatMs, replace, metrics } = options;
  const isRight = (ms: number): boolean => ms >= TTL_MS_MIN && ms <= TTL_MS_MAX;
  check.milliseconds("ttlMs", ttlMs, isRight, `${TTL_MS_MIN} to ${TTL_MS_MAX} milliseconds`);
  check.instance("policy", policy, Policy as never, "a Policy, such as Policy.DEADLINE");
  if (heartbeatMs !== undefined) {
    const isSoon = (ms: number): boolean => ms > 0 && ms * 2 < ttlMs;
    // A renewal that fails could not be repeated in time.
    check.milliseconds(
      "heartbeatMs",
      heartbeatMs,
      isSoon,
      `milliseconds above 0 and below half of the ttl, ${ttlMs}`,
    );
  }
  if (replace !== undefined) check.name("replace", replace);
  if (metrics !== undefined) check.func("metrics", metrics, "a function that returns an object");
  return {
    holder,
    ttlMs,
    policy,
    heartbeatMs,
    replace,
    metrics,
    backoff: checkedBackoff(options.backoff ?? BACKOFF_DEFAULT),
  };
}

/** How long to wait, and what ends the wait. */
export interface AcquireOptions {
  /** How long to wait in line, in milliseconds; 0 asks once; without it, for as long as it takes. */
  timeoutMs?: number | undefined;
  /** What the lease says about itself. */
  attributes?: JsonObject | undefined;
  /** Shares the resource: up to this many holders have it at once. Without it the lease is exclusive. */
  slots?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** How long to wait for all resources together, and what ends the wait. */
export type AcquireAllOptions = Omit<AcquireOptions, "slots">;

/** @internal */
export function checkAcquire(options: AcquireOptions, known: readonly string[] = ["slots"]): void {
  check.options(options, ["timeoutMs", "attributes", "signal", ...known]);
  check.slots("slots", options.slots);
  check.timeout(options.timeoutMs);
  check.fields("attributes", options.attributes);
  check.signal(options.signal);
}

/** An open session. `await using` closes it, which releases everything attached to it. */
export class Session {
  /** Its identity. */
  readonly sessionId: string;
  /** @internal */ readonly backoff: BackoffConfig;
  private readonly renewer: Renewer;
  private readonly holdings = new Holdings();
  private readonly holds = new Map<string, Hold>();
  private readonly loss = new Loss();
  private readonly channel: Channel;
  /** Ends everything that this session does by itself. */
  private readonly scope = new Scope();
  private readonly heard = new Notice();
  private settling = 0;
  private closing: Promise<void> | undefined;
  private failingSince: number | undefined;
  /** The newest answer, with the set of leases that the next heartbeat names. */
  private known: SessionView;
  private wakeUp: (() => void) | undefined;
  private isAwake = false;

  private constructor(
    /** @internal */ readonly client: Client,
    private readonly config: SessionConfig,
    sent: number,
    view: SessionView,
  ) {
    this.sessionId = view.sessionId;
    this.backoff = config.backoff;
    this.known = view;
    const granted = { sent, ttlLeftMs: view.ttlLeftMs, slackMs: view.slackMs };
    this.renewer = new Renewer(config.policy, view.fullTtlMs, granted, client.random, config.heartbeatMs);
    this.channel = client.channel();
    void this.drive();
    void this.listen();
  }

  /**
   * Opens a session: `await using session = await Session.open(client, "tracker-1")`. Give each process a holder name
   * of its own: a second session of a holder ends the first.
   *
   * While no server answers it is tried for the client's `retryForMs`. A session that is lost stays lost; `keepSession`
   * opens the next one.
   */
  static async open(
    client: Client,
    holder: string,
    options: SessionOptions & { signal?: AbortSignal | undefined } = {},
  ): Promise<Session> {
    check.instance("client", client, Client, "a Client");
    check.signal(options.signal);
    const config = sessionConfig(holder, options, ["signal"]);
    return Session.openAs(client, config, { signal: options.signal });
  }

  /** @internal */
  static async openAs(
    client: Client,
    config: SessionConfig,
    options: { until?: number; follows?: string | undefined; signal?: AbortSignal | undefined },
  ): Promise<Session> {
    const { holder, ttlMs, replace } = config;
    const { follows, until, signal } = options;
    const opening = { holder, ttlMs, replace, follows, metrics: config.metrics?.() };
    const { sent, view } = await client.openSession(opening, { until, signal });
    const session = new Session(client, config, sent, view);
    const lost = session.judge();
    if (lost) {
      await session.close();
      throw new Unavailable(`the session was over before its opening was answered: ${lost.detail}`);
    }
    client.log.info(`opened session ${session.sessionId} of ${holder} with a ttl of ${view.fullTtlMs} ms`);
    return session;
  }

  /** The name of its holder. */
  get holder(): string {
    return this.config.holder;
  }

  /** The tick of the client's clock (`client.now()`) at which trust ends, unless a heartbeat comes through before. */
  get deadline(): number {
    return this.renewer.deadline;
  }

  /** Aborts when the session is lost or closed, with `Lost` as its reason. */
  get signal(): AbortSignal {
    return this.loss.signal;
  }

  /** Whether work under it may continue, by the clock. Once false, it stays false. */
  isLive(): boolean {
    return this.judge() === undefined;
  }

  /** Whether the deadline has passed and work continues by the policy `grace`. */
  isInGrace(): boolean {
    return this.isLive() && this.client.clock.now() >= this.deadline;
  }

  /** How many requests have an outcome that is still unknown. */
  unsettled(): number {
    return this.settling;
  }

  /** Refuses to send so many more requests while too many have an outcome that is still unknown. */
  checkUnsettled(asked: number): void {
    if (this.settling + asked <= UNSETTLED_MAX) return;
    const text = `${this.settling} requests of this session have no known outcome`;
    throw new Unavailable(`${text}: no new one is sent until some of these are settled`);
  }

  /** Waits until it is lost or closed, and returns why. */
  lost(): Promise<Lost> {
    return this.loss.wait();
  }

  /**
   * Acquires a resource, and waits in line while another holder has it: for `timeoutMs`, forever without it, not at all
   * if it is 0.
   *
   * When the time is up it throws the last refusal, which names the holder. However it ends without a guard, by
   * timeout, error or abort, the line is left and nothing is held.
   */
  async acquire(kind: string, key: string, options: AcquireOptions = {}): Promise<Guard> {
    check.name("kind", kind);
    check.name("key", key);
    checkAcquire(options);
    const { timeoutMs, signal } = options;
    signal?.throwIfAborted();
    return new Acquire(this, { kind, key }, this.client.tickAfter(timeoutMs), options).run();
  }

  /** Acquires a free resource, or throws `Refused` with its holder. */
  tryAcquire(kind: string, key: string, options: Omit<AcquireOptions, "timeoutMs"> = {}): Promise<Guard> {
    return this.acquire(kind, key, { ...options, timeoutMs: 0 });
  }

  /**
   * Acquires all of the resources or none, up to 100 and each once, and gives their guards in the same order: `await
   * using guards = await session.acquireAll([{ kind: "scene", key: "hall" }, { kind: "gpu", key: "0", slots: 4 }])`.
   *
   * If all are free, one request does it. If not, it waits for one after the other, in an order that is the same for
   * all clients, so that two that want the same resources never wait for each other: for `timeoutMs` in all. However it
   * ends without guards, nothing is held.
   */
  async acquireAll(wanted: readonly Wanted[], options: AcquireAllOptions = {}): Promise<Guards> {
    checkWanted(wanted);
    checkAcquire(options, []);
    options.signal?.throwIfAborted();
    return new AcquireAll(this, wanted, this.client.tickAfter(options.timeoutMs), options).run();
  }

  /**
   * Closes it: all its guards are lost, and everything attached to it is released. It waits for an answer for two
   * seconds at most; what is not closed by then runs out with its ttl.
   */
  close(): Promise<void> {
    if (!this.closing) {
      const lost = this.judge();
      this.renewer.closed();
      this.declare();
      this.scope.abort(this.renewer.lost);
      this.closing = this.client.leave(this.leave(lost));
    }
    return this.closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  toString(): string {
    return `Session(${this.sessionId} of ${this.holder} ${this.isLive() ? "live" : "lost"})`;
  }

  private async leave(lost: Lost | undefined): Promise<void> {
    const { client, holder } = this;
    try {
      if (!lost || ["deadline", "failed", "closed"].includes(lost.why)) {
        const until = Math.min(client.clock.now() + LEAVE_MS_MAX, this.renewer.endsAt);
        await client.closeSession(this.sessionId, { until, timeoutMs: LEAVE_MS_MAX });
        client.log.info(`closed session ${this.sessionId} of ${holder}`);
      }
    } catch (error) {
      if (error instanceof Unavailable || error instanceof Unknown) {
        const text = `cannot close the session of ${holder}; it ends when its ttl is over: ${told(error)}`;
        client.log[lost ? "debug" : "warn"](text);
      } else {
        client.log.debug(`the session of ${holder} had ended before it was closed: ${told(error)}`);
      }
    } finally {
      this.channel.close();
    }
  }

  // The driver.

  private async drive(): Promise<void> {
    try {
      for (;;) {
        const action = this.renewer.poll(this.client.clock.now());
        if (action.do === "stop") break;
        if (action.do === "send") void this.heartbeat(action);
        else await this.nap(action.until);
      }
    } catch (error) {
      this.client.log.error(`the session of ${this.holder} is given up: ${told(error)}`);
    } finally {
      // Without a driver the deadline would go unnoticed, so its end is the end of the session.
      this.renewer.closed();
      this.declare();
      this.scope.abort(this.renewer.lost);
      this.channel.close();
    }
  }

  /** Sends a heartbeat at once when there is news of the session, instead of at its time. */
  private async listen(): Promise<void> {
    const { signal } = this.scope;
    try {
      while (await this.client.newsroom.wait(this.sessionId, this.known.revision, signal)) {
        const heard = this.heard.wait();
        this.renewer.news(this.client.clock.now());
        this.wake();
        await within(BEAT_MS_MAX, signal, (ended) => unlessAborted(heard, ended)).catch(() => {});
      }
    } catch {
      // The session is over.
    }
  }

  private async heartbeat(action: Extract<Action, { do: "send" }>): Promise<void> {
    const { timeoutMs, beside } = action;
    try {
      const metrics = this.config.metrics?.();
      const { signal } = this.scope;
      const { sent, view } = await this.client.heartbeat(this.channel, this.known, {
        timeoutMs,
        beside,
        metrics,
        signal,
      });
      this.answered(sent, view);
    } catch (error) {
      if (this.scope.signal.aborted) return;
      const isRefused =
        error instanceof SoleholdError && !(error instanceof Unavailable || error instanceof Unknown);
      if (isRefused) {
        this.renewer.refused(told(error), error.code);
      } else {
        // Of the holder's own metrics, or of a transport, as well: no renewal either way.
        const retryAfterMs = error instanceof SoleholdError ? error.retryAfterMs : undefined;
        this.failed(action.flight, told(error), retryAfterMs);
      }
    } finally {
      this.wake();
    }
  }

  private failed(flight: number, detail: string, retryAfterMs: number | undefined): void {
    const now = this.client.clock.now();
    const counts = this.renewer.failed(flight, now, detail, retryAfterMs);
    if (!counts || this.failingSince !== undefined || !this.renewer.isLive(now)) return;
    this.failingSince = now;
    const left = ((this.renewer.endsAt - now) / 1000).toFixed(1);
    const text = `the session of ${this.holder} was not renewed (${detail})`;
    this.client.log.warn(`${text}: unless a server answers, it is lost in ${left} s`);
  }

  private answered(sent: number, view: SessionView): void {
    const { client, renewer } = this;
    let epoch: number;
    try {
      epoch = client.history.follow(view.epoch);
    } catch (error) {
      if (!(error instanceof OlderHistory)) throw error;
      return renewer.setBack(error.message);
    }
    client.history.keep(view.sealedCursor);
    const at = { epoch, revision: view.revision };
    if (comparePositions(at, { epoch: this.known.epoch ?? 0, revision: this.known.revision }) >= 0)
      this.known = view;
    this.heard.notify();
    // What has ended is declared before the others are trusted for longer.
    for (const { leaseId } of this.holdings.take(at, view.leases)) this.ended(leaseId, view);
    const now = client.clock.now();
    renewer.answered(now, { sent, ttlLeftMs: view.ttlLeftMs, slackMs: view.slackMs });
    if (this.failingSince !== undefined && renewer.isLive(now)) {
      client.log.info(
        `renewed the session of ${this.holder} again after ${Math.round(now - this.failingSince)} ms`,
      );
      this.failingSince = undefined;
    }
  }

  private ended(leaseId: string, view: SessionView): void {
    const hold = this.holds.get(leaseId);
    if (!hold) return;
    this.holds.delete(leaseId);
    hold.reissued = view.leases.find((lease) => lease.leaseId === leaseId)?.token;
    this.client.log.warn(`${this.holder} lost ${hold}: another client ended its lease`);
    hold.loss.declare(new Lost("ended", `the lease on ${hold.kind}/${hold.key} was ended by another client`));
  }

  /** Waits until the tick or until something happens, and never for long. */
  private nap(until: number): Promise<void> {
    return new Promise((resolve) => {
      const left = Math.max(0, until - this.client.clock.now());
      const timer = setTimeout(() => this.wakeUp?.(), Math.ceil(Math.min(left, STEP_MS_MAX)));
      this.wakeUp = () => {
        clearTimeout(timer);
        this.wakeUp = undefined;
        this.isAwake = false;
        resolve();
      };
      if (this.isAwake) this.wakeUp();
    });
  }

  private wake(): void {
    this.isAwake = true;
    this.wakeUp?.();
  }

  /** @internal Why it is lost, by the clock. A loss that no timer has noticed yet is declared here. */
  judge(): Lost | undefined {
    const lost = this.renewer.judge(this.client.clock.now());
    if (lost && !this.loss.declared) {
      this.declare();
      this.wake();
    }
    return lost;
  }

  private declare(): void {
    const { lost } = this.renewer;
    if (!lost) return;
    if (!this.loss.declared && lost.why !== "closed") {
      this.client.log.warn(
        `session of ${this.holder} lost with ${shown([...this.holds.values()])}: ${told(lost)}`,
      );
    }
    const held = [...this.holds.values()];
    this.holds.clear();
    this.loss.declare(lost);
    for (const hold of held) hold.loss.declare(lost);
  }

  /** @internal Another request was answered that the session is over. */
  refused(error: SoleholdError): void {
    this.renewer.refused(told(error), error.code);
    this.declare();
    this.wake();
  }

  // What guards and acquires need of it.

  /** @internal */
  whileLive<T>(work: (signal: AbortSignal) => Promise<T>, outer?: AbortSignal): Promise<T> {
    return this.loss.interrupt(work, () => this.judge(), outer);
  }

  /** @internal */
  granted({ kind, key }: { readonly kind: string; readonly key: string }, grant: Grant): Guard {
    const lost = this.judge();
    if (lost) throw lost.again();
    let epoch: number;
    try {
      epoch = this.client.history.follow(grant.epoch);
    } catch (error) {
      throw new Unknown(told(error), { cause: error }); // what it got is spent
    }
    if (!this.holdings.granted(grant, { epoch, revision: grant.revision })) {
      const text = `the lease on ${kind}/${key} was ended before its grant arrived`;
      throw new Refused(text, { code: "lost", token: grant.token });
    }
    const hold = new Hold(kind, key, grant);
    this.holds.set(grant.leaseId, hold);
    this.client.log.debug(`${this.holder} acquired ${hold}`);
    return new Guard(this, hold);
  }

  /** @internal */
  async release(
    hold: Hold,
    state: Json | undefined,
    withinMs: number | undefined,
    signal: AbortSignal | undefined,
  ): Promise<boolean> {
    if (hold.isLetGo) return false;
    const lost = hold.loss.declared ?? this.judge();
    hold.isLetGo = true;
    this.holds.delete(hold.grant.leaseId);
    this.holdings.letGo(hold.grant);
    hold.loss.declare(new Lost("released", `${hold.kind}/${hold.key} was released`));
    if (hold.reissued !== undefined) {
      // No work is done under the new token, and the session would keep the lease for as long as it lives.
      void this.settle((settling) => this.sendRelease(hold, undefined, undefined, settling));
      return false;
    }
    if (lost && lost.why !== "deadline" && lost.why !== "failed") return false;
    try {
      const released = await this.sendRelease(hold, state, withinMs, signal);
      this.client.log.debug(`${this.holder} released ${hold}`);
      return released;
    } catch (error) {
      const isOpen = error instanceof Unavailable || error instanceof Unknown || signal?.aborted;
      if (isOpen) {
        // It would stay held for as long as the session lives.
        if (this.isLive())
          this.client.log.warn(`${this.holder} cannot release ${hold} yet; retrying: ${told(error)}`);
        void this.settle((settling) => this.sendRelease(hold, state, undefined, settling));
      }
      throw error;
    }
  }

  private sendRelease(
    hold: Hold,
    state: Json | undefined,
    withinMs: number | undefined,
    signal: AbortSignal | undefined,
  ): Promise<boolean> {
    const { client, sessionId } = this;
    const proof = { token: hold.reissued ?? hold.grant.token, leaseId: hold.grant.leaseId, sessionId };
    const last = state === undefined ? undefined : { sequence: hold.sequence + 1, document: state };
    const until = Math.min(client.tickAfter(withinMs ?? client.retryForMs), this.renewer.endsAt);
    return client.release(hold, proof, last, { until, timeoutMs: withinMs, signal });
  }

  /** @internal Finds out the outcome of something in the background. Returns whether it is known. */
  async settle(work: (signal: AbortSignal) => Promise<unknown>): Promise<boolean> {
    const { clock, random } = this.client;
    const { signal } = this.scope;
    const backoff = new Backoff(this.backoff, random);
    this.settling += 1;
    try {
      // What is attached to a session that is not renewed runs out by itself.
      while (this.isLive()) {
        try {
          await work(signal);
          return true;
        } catch (error) {
          if (signal.aborted) return false;
          const isOpen = error instanceof Unavailable || error instanceof Unknown;
          if (!isOpen) return error instanceof SoleholdError; // a definite answer
          await sleepUntil(clock, clock.now() + backoff.delay(), signal);
        }
      }
    } catch {
      // The session is over.
    } finally {
      this.settling -= 1;
    }
    return false;
  }
}

/** What is held, for people; not more than fits into a line. */
function shown(holds: readonly Hold[]): string {
  const named = holds.slice(0, SHOWN_MAX).map(String);
  if (holds.length > SHOWN_MAX) named.push(`${holds.length - SHOWN_MAX} more`);
  return named.join(", ") || "nothing that it held";
}
