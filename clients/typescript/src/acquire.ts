/** One acquire: waits in line until it is granted, and leaves nothing behind when it is not. */

import { Backoff } from "./backoff.js";
import type { Doubts } from "./channel.js";
import type { AcquireBody } from "./client.js";
import { pause, sleepUntil } from "./clock.js";
import { NoSession, NotFound, Refused, type SoleholdError, Unavailable, Unknown } from "./errors.js";
import type { Guard } from "./guard.js";
import { SPEND_MS_MAX, WAIT_LEEWAY_MS } from "./limits.js";
import { waitInLine } from "./line.js";
import type { Session } from "./session.js";
import type { Grant, JsonObject } from "./wire.js";

/** Refusals that may pass: the resource may become free. */
export const PASSING = ["held", "held_back", "already_pending", "request_spent", "lost"];

/** The attempts of one acquire, under one request id for as long as that can get anything. */
export class Acquire {
  requestId: string;
  /** Set when some attempt may have got the lease, or a place in line, without an answer. */
  readonly doubts: Doubts = { any: false };
  private readonly backoff: Backoff;
  private readonly attributes: JsonObject | undefined;
  private readonly slots: number | undefined;
  private readonly signal: AbortSignal | undefined;
  private readonly leewayMs: number;

  constructor(
    private readonly session: Session,
    readonly target: { readonly kind: string; readonly key: string },
    /** The tick until which the caller wants to wait; one that has passed asks once. */
    private readonly until: number,
    options: {
      readonly attributes?: JsonObject | undefined;
      readonly slots?: number | undefined;
      readonly signal?: AbortSignal | undefined;
    },
  ) {
    this.attributes = options.attributes;
    this.slots = options.slots;
    this.signal = options.signal;
    const { client } = session;
    this.requestId = client.requestId();
    this.backoff = new Backoff(session.backoff, client.random);
    // A caller that asks once gives the server its usual time; one that waits gives it little more than the wait.
    this.leewayMs = Math.min(client.timeoutMs, this.timeLeftMs() > 0 ? WAIT_LEEWAY_MS : Infinity);
  }

  /**
   * Attempts until it is granted, the time is up, or the authority refuses for a reason that waiting does not change.
   */
  async run(): Promise<Guard> {
    this.session.checkUnsettled(1);
    try {
      for (;;) {
        const tried = await this.tryOnce();
        if (tried.guard) return tried.guard;
        const left = this.timeLeftMs();
        if (left <= 0) throw tried.failed;
        // When the time is up the resource is requested once more: it may have become free.
        const { clock } = this.session.client;
        const awaited = clock.now() + Math.min(tried.delayMs, left);
        await this.session.whileLive((signal) => sleepUntil(clock, awaited, signal), this.signal);
      }
    } catch (error) {
      const isSpent = await this.spend();
      if (isSpent && error instanceof Unknown && !this.signal?.aborted) {
        throw new Unavailable(`${error.detail}; the request was cancelled and holds nothing`, {
          cause: error,
        });
      }
      throw error;
    }
  }

  /** A guard, or why there is none yet and how long to wait before the next attempt. */
  private async tryOnce(): Promise<
    { guard: Guard } | { guard?: undefined; failed: SoleholdError; delayMs: number }
  > {
    try {
      return { guard: this.session.granted(this.target, await this.attempt()) };
    } catch (error) {
      if (this.signal?.aborted) throw error;
      if (error instanceof Refused) return { failed: error, delayMs: this.afterRefusal(error) };
      if (!(error instanceof Unavailable || error instanceof Unknown)) throw error;
      this.doubts.any ||= error instanceof Unknown;
      return { failed: error, delayMs: this.backoff.delay(error.retryAfterMs) };
    }
  }

  private timeLeftMs(): number {
    return Math.max(0, this.until - this.session.client.clock.now());
  }

  private async attempt(): Promise<Grant> {
    let hasBegun = false;
    const work = (signal: AbortSignal): Promise<Grant> => {
      hasBegun = true;
      return this.askOrWait(signal);
    };
    try {
      return await this.session.whileLive(work, this.signal);
    } catch (error) {
      // Interrupted by an abort or a loss, perhaps in the moment of the grant.
      if (hasBegun && !(error instanceof Refused || error instanceof Unavailable)) this.doubts.any = true;
      throw error;
    }
  }

  private async askOrWait(signal: AbortSignal): Promise<Grant> {
    if (this.timeLeftMs() <= 0) return this.ask(0, signal);
    const { clock } = this.session.client;
    const ask = (waitMs: number, asked: AbortSignal): Promise<Grant> => this.ask(waitMs, asked);
    const grant = await this.session.client.asWaiter(() => {
      // Until it is granted or spent, the request may have a place in line.
      this.doubts.any = true;
      return waitInLine(ask, { clock, until: this.until, leewayMs: this.leewayMs, signal });
    });
    return grant.confirmWithinMs === undefined ? grant : this.confirm(grant, grant.confirmWithinMs, signal);
  }

  private ask(waitMs: number, signal: AbortSignal): Promise<Grant> {
    const { doubts, leewayMs: timeoutMs } = this;
    return this.session.client.acquire(this.target, this.body(), { waitMs, timeoutMs, doubts, signal });
  }

  /** What is asked for. */
  body(): AcquireBody {
    const { holder, sessionId } = this.session;
    const { requestId, attributes, slots } = this;
    return { holder, session_id: sessionId, request_id: requestId, attributes, slots };
  }

  /**
   * A grant that was waited for is trusted after a renewal (rule 15), for as long as heartbeats keep its session.
   */
  private async confirm(grant: Grant, withinMs: number, signal: AbortSignal): Promise<Grant> {
    const { client, sessionId } = this.session;
    const what = `${this.target.kind}/${this.target.key}`;
    let renewed: Grant;
    try {
      const until = client.clock.now() + withinMs;
      const proof = { token: grant.token, leaseId: grant.leaseId, sessionId };
      renewed = await client.renew(this.target, proof, { until, signal });
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
      const text = `the lease on ${what} lapsed before it was confirmed: ${error.detail}`;
      throw new Refused(text, { code: "lost", cause: error });
    }
    if (renewed.token !== grant.token) {
      throw new Refused(`${what} changed hands before it was confirmed`, {
        code: "lost",
        token: renewed.token,
      });
    }
    return grant;
  }

  /** How long to wait, if waiting may help; throws the refusal if not. */
  private afterRefusal(error: Refused): number {
    if (error instanceof NoSession) this.session.refused(error);
    if (!PASSING.includes(error.code)) throw error;
    if (error.code === "request_spent" || error.code === "lost") {
      // Continues under another request id: the old one is spent.
      this.requestId = this.session.client.requestId();
      this.doubts.any = false;
    }
    return this.backoff.delay();
  }

  /** Spends the request id if it may have got something. Returns whether it is known to hold nothing. */
  private spend(): Promise<boolean> {
    return unlessLate(this.spendAll(), SPEND_MS_MAX);
  }

  /** The same, for as long as it takes. */
  async spendAll(): Promise<boolean> {
    if (!this.doubts.any) return true;
    const { session, target, requestId } = this;
    const { client, holder } = session;
    return session.settle((signal) => client.cancel(target, holder, requestId, signal));
  }
}

/** Whether it is settled within a time; if not, it continues in the background. */
export async function unlessLate(settled: Promise<boolean>, withinMs: number): Promise<boolean> {
  const timer = new AbortController();
  const late = pause(withinMs, timer.signal).then(() => false);
  try {
    return await Promise.race([settled, late]);
  } finally {
    timer.abort();
  }
}
