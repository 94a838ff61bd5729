/** A lease that is held, as a value: while the guard is live, the work may continue. */

import * as check from "./check.js";
import { type Lost, SoleholdError, Unavailable, Unknown } from "./errors.js";
import { LEAVE_MS_MAX } from "./limits.js";
import { Loss } from "./loss.js";
import type { Session } from "./session.js";
import type { Grant, Json, StateDocument } from "./wire.js";

/** What a guard and its session share about one lease. */
export class Hold {
  readonly loss = new Loss();
  /** The last sequence number of a state write under this token. */
  sequence = 0;
  isLetGo = false;
  /**
   * Another token that the store gave the lease: this one is no longer valid, and no work is done under the new one.
   */
  reissued: number | undefined;

  constructor(
    readonly kind: string,
    readonly key: string,
    readonly grant: Grant,
  ) {}

  toString(): string {
    return `${this.kind}/${this.key} (token ${this.grant.token})`;
  }
}

/**
 * Holds one resource until it is released or lost: `await using guard = await session.acquire("scene", "hall")`.
 *
 * A guard is for stopping early. What makes a late write harmless is a gate that checks `token`. A guard that is
 * dropped without `release()` keeps its lease until its session is closed: work may still be running that only has its
 * signal.
 */
export class Guard {
  private lastState: StateDocument | undefined;
  private writing: Promise<unknown> = Promise.resolve();
  /** Whether the loss reached the guard's user, who has handled it, or passes it on. */
  private isTold = false;

  /** @internal */
  constructor(
    private readonly session: Session,
    private readonly hold: Hold,
  ) {
    const { state, token } = hold.grant;
    if (state?.token === token) hold.sequence = state.sequence;
    this.lastState = state;
  }

  get kind(): string {
    return this.hold.kind;
  }

  get key(): string {
    return this.hold.key;
  }

  /** The fencing token: larger at each change of owner. Send it along with everything that leaves the process. */
  get token(): number {
    return this.hold.grant.token;
  }

  /** The identity of the grant. */
  get leaseId(): string {
    return this.hold.grant.leaseId;
  }

  /** Which slot of a shared resource it holds, from 1 on: a gate judges the token by it. Undefined if exclusive. */
  get slot(): number | undefined {
    return this.hold.grant.slot;
  }

  /** Of how many slots it holds one. Undefined if it is exclusive. */
  get slots(): number | undefined {
    return this.hold.grant.slots;
  }

  /** The id of the session that the lease is attached to. */
  get sessionId(): string {
    return this.session.sessionId;
  }

  /** The tick of the client's clock (`client.now()`) at which trust ends, unless a heartbeat comes through before. */
  get deadline(): number {
    return this.session.deadline;
  }

  /** What the former holder left, or what this one wrote last. */
  get state(): StateDocument | undefined {
    return this.lastState;
  }

  /**
   * Aborts when the lease is lost or released, with `Lost` as its reason. Timers are late after a pause of the process:
   * call `check()` before each effect as well.
   */
  get signal(): AbortSignal {
    this.isTold = true;
    return this.hold.loss.signal;
  }

  /** Whether the work may continue, by the clock. Once false, it stays false. */
  isLive(): boolean {
    return this.judge() === undefined;
  }

  /** Whether the deadline has passed and the work continues by the policy `grace`. */
  isInGrace(): boolean {
    return this.isLive() && this.session.isInGrace();
  }

  /** The token, or throws `Lost`: call it right before an effect. It reads the clock, whatever timers did. */
  check(): number {
    const lost = this.judge();
    if (!lost) return this.token;
    this.isTold = true;
    throw lost.again();
  }

  /** Waits until it is lost or released, and returns why. */
  lost(): Promise<Lost> {
    return this.hold.loss.wait();
  }

  /**
   * The result of `work(signal)`. The signal aborts when the lease is lost, or when the `signal` of the options does;
   * `run` waits until the work has ended, and then throws `Lost` if the lease was lost meanwhile.
   */
  async run<T>(
    work: (signal: AbortSignal) => Promise<T> | T,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<T> {
    check.func("work", work, "a function that takes a signal");
    check.options(options, ["signal"]);
    check.signal(options.signal);
    try {
      return await this.hold.loss.interrupt(work, () => this.judge(), options.signal);
    } catch (error) {
      this.isTold ||= this.judge() !== undefined;
      throw error;
    }
  }

  /** Writes the state document: the next holder gets it. Writes that are begun at once are made in order. */
  writeState(document: Json, options: { signal?: AbortSignal | undefined } = {}): Promise<StateDocument> {
    const { signal } = options;
    const write = async (): Promise<StateDocument> => {
      check.options(options, ["signal"]);
      check.signal(signal);
      if (document === undefined) throw new TypeError("document cannot be sent as JSON: it is undefined");
      signal?.throwIfAborted();
      this.check();
      this.hold.sequence += 1;
      const { sequence } = this.hold;
      const { client, sessionId } = this.session;
      const proof = { token: this.token, leaseId: this.leaseId, sessionId };
      this.lastState = await client.writeState(this.hold, proof, sequence, document, signal);
      return this.lastState;
    };
    const written = this.writing.then(write);
    this.writing = written.catch(() => {});
    return written;
  }

  /**
   * Releases the lease, with a last state document if given; false if it was lost before, and then nothing has changed.
   *
   * If no server says what became of it (`Unknown`, `Unavailable`), or the signal aborts, it continues in the
   * background.
   */
  async release(state?: Json, options: { signal?: AbortSignal | undefined } = {}): Promise<boolean> {
    check.options(options, ["signal"]);
    check.signal(options.signal);
    return this.session.release(this.hold, state, undefined, options.signal);
  }

  /**
   * Releases it, and waits for that for two seconds at most. Throws `Lost` if the lease was lost meanwhile and nothing
   * told the block so: neither `check()`, nor `run()`, nor the signal.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    const lost = this.hold.isLetGo || this.isTold ? undefined : this.judge();
    try {
      await this.session.release(this.hold, undefined, LEAVE_MS_MAX, undefined);
    } catch (error) {
      // Without an answer the session continues to ask, and the ttl is the net.
      const isOpen = error instanceof Unavailable || error instanceof Unknown;
      if (!isOpen && !(lost && error instanceof SoleholdError)) throw error;
    }
    if (lost) throw lost.again();
  }

  toString(): string {
    return `Guard(${this.kind}/${this.key} token ${this.token} ${this.isLive() ? "live" : "lost"})`;
  }

  private judge(): Lost | undefined {
    return this.hold.loss.declared ?? this.session.judge();
  }
}
