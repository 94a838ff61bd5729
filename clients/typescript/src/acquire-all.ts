/** Several acquires, all or none: one request if all are free; else one after the other, in one order for everyone. */

import { Acquire, PASSING, unlessLate } from "./acquire.js";
import { Backoff } from "./backoff.js";
import type { Doubts } from "./channel.js";
import * as check from "./check.js";
import { sleepUntil } from "./clock.js";
import { NoSession, Refused, type SoleholdError, Unavailable, Unknown } from "./errors.js";
import type { Guard } from "./guard.js";
import { ACQUIRED_TOGETHER_MAX, LEAVE_MS_MAX } from "./limits.js";
import type { Session } from "./session.js";
import type { JsonObject } from "./wire.js";

/** One of several resources that are acquired together. */
export interface Wanted {
  readonly kind: string;
  readonly key: string;
  /** How many holders may share it at once; an exclusive lease without it. */
  readonly slots?: number | undefined;
}

/** The guards of resources that were acquired together. `await using` releases all of them. */
export interface Guards extends ReadonlyArray<Guard> {
  [Symbol.asyncDispose](): Promise<void>;
}

/** @internal Checks each of them, and that each is there once. */
export function checkWanted(wanted: readonly Wanted[]): void {
  if (!Array.isArray(wanted)) {
    throw new TypeError(`wanted must be an array of kinds and keys, not ${check.kindOf(wanted)}`);
  }
  if (wanted.length < 1 || wanted.length > ACQUIRED_TOGETHER_MAX) {
    throw new RangeError(`${wanted.length} resources were given: give 1 to ${ACQUIRED_TOGETHER_MAX}`);
  }
  const names = new Set<string>();
  for (const each of wanted as readonly Wanted[]) {
    check.options(each, ["kind", "key", "slots"]);
    check.name("kind", each?.kind);
    check.name("key", each.key);
    check.slots("slots", each.slots);
    const name = JSON.stringify([each.kind, each.key]);
    if (names.has(name)) {
      throw new RangeError(`${each.kind}/${each.key} was given twice: it would wait for itself`);
    }
    names.add(name);
  }
}

/**
 * The attempts of several acquires that belong together. Each has a request id of its own, which stays the same whether
 * it is asked for with the others or by itself, so that a repeat finds what a lost answer was about.
 */
export class AcquireAll {
  private readonly items: readonly Acquire[];
  /** By the item. */
  private guards = new Map<Acquire, Guard>();
  private readonly backoff: Backoff;
  private readonly signal: AbortSignal | undefined;

  constructor(
    private readonly session: Session,
    wanted: readonly Wanted[],
    /** The tick until which the caller wants to wait for all of them; one that has passed asks once. */
    private readonly until: number,
    options: { readonly attributes?: JsonObject | undefined; readonly signal?: AbortSignal | undefined },
  ) {
    const { attributes, signal } = options;
    this.items = wanted.map(
      ({ kind, key, slots }) => new Acquire(session, { kind, key }, until, { attributes, slots, signal }),
    );
    this.backoff = new Backoff(session.backoff, session.client.random);
    this.signal = signal;
  }

  /**
   * Attempts until all are granted, the time is up, or the authority refuses for a reason that waiting does not change.
   * Then nothing is held.
   */
  async run(): Promise<Guards> {
    this.session.checkUnsettled(this.items.length);
    try {
      if (!(await this.together())) await this.oneByOne();
      return together(this.items.map((item) => this.guards.get(item) as Guard));
    } catch (error) {
      const isUndone = await this.undo();
      if (isUndone && error instanceof Unknown && !this.signal?.aborted) {
        throw new Unavailable(`${error.detail}; the requests were cancelled and hold nothing`, {
          cause: error,
        });
      }
      throw error;
    }
  }

  private timeLeftMs(): number {
    return Math.max(0, this.until - this.session.client.clock.now());
  }

  /** Asks for all of them in one step; false if one is in the way and there is time to wait for it. */
  private async together(): Promise<boolean> {
    const { clock } = this.session.client;
    for (;;) {
      let failed: SoleholdError;
      let delayMs: number;
      try {
        await this.attempt();
        return true;
      } catch (error) {
        if (this.signal?.aborted) throw error;
        if (error instanceof Refused) {
          if (error instanceof NoSession) this.session.refused(error);
          if (!PASSING.includes(error.code)) throw error;
          if (error.code === "request_spent" || error.code === "lost") await this.beginAgain();
          else if (this.timeLeftMs() > 0) return false;
          delayMs = this.backoff.delay();
        } else if (error instanceof Unavailable || error instanceof Unknown) {
          delayMs = this.backoff.delay(error.retryAfterMs);
        } else {
          throw error;
        }
        failed = error;
      }
      const left = this.timeLeftMs();
      if (left <= 0) throw failed;
      const awaited = clock.now() + Math.min(delayMs, left);
      await this.session.whileLive((signal) => sleepUntil(clock, awaited, signal), this.signal);
    }
  }

  /** Asks once, and makes guards of what was granted. */
  private async attempt(): Promise<void> {
    const { client } = this.session;
    const doubts: Doubts = { any: false };
    let hasBegun = false;
    const asked = this.items.map((item) => ({ ...item.target, ...item.body() }));
    try {
      const grants = await this.session.whileLive((signal) => {
        hasBegun = true;
        return client.acquireTogether(asked, { doubts, signal });
      }, this.signal);
      doubts.any = true; // until they are guards, a failure gives them back
      for (const [at, item] of this.items.entries()) {
        const grant = grants[at];
        if (grant) this.guards.set(item, this.session.granted(item.target, grant));
      }
    } catch (error) {
      // Interrupted by an abort or a loss, perhaps in the moment of the grant.
      if (hasBegun && !(error instanceof Refused || error instanceof Unavailable)) doubts.any = true;
      throw error;
    } finally {
      for (const item of this.items) item.doubts.any ||= doubts.any;
    }
  }

  /**
   * One of the request ids got a lease that has ended: the others may have theirs still. They are given back, in the
   * background if that takes long, and it continues under other request ids.
   */
  private async beginAgain(): Promise<void> {
    await this.undo();
    for (const item of this.items) {
      item.requestId = this.session.client.requestId();
      item.doubts.any = false;
    }
  }

  /** Waits for one after the other. All clients do so in the same order, so none waits for one that waits for it. */
  private async oneByOne(): Promise<void> {
    const inOrder = [...this.items].sort(
      (one, other) =>
        compareBytes(one.target.kind, other.target.kind) || compareBytes(one.target.key, other.target.key),
    );
    for (const item of inOrder) this.guards.set(item, await item.run());
  }

  /**
   * Releases what was got, and spends the request ids that may have got something. Returns whether nothing is known to
   * be held.
   */
  private undo(): Promise<boolean> {
    const { guards } = this;
    this.guards = new Map();
    const settled = this.items.map((item) => {
      const guard = guards.get(item);
      return guard ? this.session.settle((signal) => guard.release(undefined, { signal })) : item.spendAll();
    });
    return unlessLate(
      Promise.all(settled).then((all) => all.every(Boolean)),
      LEAVE_MS_MAX,
    );
  }
}

/** In the order of the bytes, as in all other clients: that of the language is another. */
function compareBytes(one: string, other: string): number {
  return Buffer.compare(Buffer.from(one), Buffer.from(other));
}

function together(guards: Guard[]): Guards {
  const release = async (): Promise<void> => {
    const ends = await Promise.allSettled(guards.map((guard) => guard[Symbol.asyncDispose]()));
    const failed = ends.find((end) => end.status === "rejected");
    if (failed) throw failed.reason;
  };
  return Object.assign(guards, { [Symbol.asyncDispose]: release });
}
