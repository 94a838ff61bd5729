/**
 * Waiting in line for a resource: first come, first served, across all processes (rule 15).
 *
 * The server waits, and answers when the resource is granted. One request waits for 30 s at most. Well before it ends
 * the next one is made under the same request id, which keeps the place. The former is left to run out: abandoned
 * before the next one has arrived, it would leave the line, and nobody can tell when that is.
 */

import { Notice, Scope } from "./async.js";
import type { Clock } from "./clock.js";
import { Unknown } from "./errors.js";
import { STEP_MS_MAX, WAIT_MS_MAX } from "./limits.js";
import type { Grant } from "./wire.js";

/** A place in line is requested again after this share of a wait. */
const ASK_AGAIN_SHARE = 2 / 3;

/** Requests a place in line, for some time. */
type Ask = (waitMs: number, signal: AbortSignal) => Promise<Grant>;

type Outcome = { readonly grant: Grant } | { readonly error: unknown };

/** The requests of one wait. */
class Line {
  private readonly calls = new Set<Scope>();
  private readonly outcomes: Outcome[] = [];
  private readonly ended = new Notice();

  constructor(
    private readonly ask: Ask,
    private readonly clock: Clock,
    private readonly signal: AbortSignal,
  ) {}

  begin(waitMs: number): void {
    const scope = new Scope(this.signal);
    this.calls.add(scope);
    const end = (outcome: Outcome): void => {
      this.calls.delete(scope);
      scope.end();
      this.outcomes.push(outcome);
      this.ended.notify();
    };
    this.ask(waitMs, scope.signal).then(
      (grant) => end({ grant }),
      (error: unknown) => end({ error }),
    );
  }

  /** The grant, if it comes before the tick. */
  async grantedBefore(tick: number): Promise<Grant | undefined> {
    for (;;) {
      const next = this.ended.wait();
      for (let outcome = this.outcomes.shift(); outcome; outcome = this.outcomes.shift()) {
        if ("grant" in outcome) return outcome.grant;
        // Whatever else a former request is answered, the later one has its place.
        if (this.calls.size === 0 && this.outcomes.length === 0) throw outcome.error;
      }
      const left = tick - this.clock.now();
      if (left <= 0) return undefined;
      let timer: NodeJS.Timeout | undefined;
      const step = new Promise<void>((resolve) => {
        timer = setTimeout(resolve, Math.ceil(Math.min(left, STEP_MS_MAX)));
      });
      await Promise.race([next, step]);
      clearTimeout(timer);
    }
  }

  /** Abandons the requests that are still under way. */
  end(): void {
    for (const call of this.calls) call.abort();
  }
}

/**
 * Waits until the tick `until`, by as many requests as it takes. If the server has not ended the wait by then, it ends
 * after `leewayMs` more.
 */
export async function waitInLine(
  ask: Ask,
  options: { clock: Clock; until: number; leewayMs: number; signal: AbortSignal; waitMsMax?: number },
): Promise<Grant> {
  const { clock, until, leewayMs, signal, waitMsMax = WAIT_MS_MAX } = options;
  const line = new Line(ask, clock, signal);
  try {
    for (;;) {
      const now = clock.now();
      const left = until - now;
      if (left + leewayMs <= 0) {
        throw new Unknown(`no server has answered within ${leewayMs} ms after the wait was over`);
      }
      const waitMs = Math.min(waitMsMax, left);
      if (waitMs > 0) line.begin(waitMs);
      const nextAt = left > waitMs ? now + waitMs * ASK_AGAIN_SHARE : until + leewayMs;
      const grant = await line.grantedBefore(nextAt);
      if (grant) return grant;
    }
  } finally {
    line.end();
  }
}
