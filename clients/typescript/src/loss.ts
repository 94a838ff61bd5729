/** The loss of a session, or of one lease of it. */

import { setMaxListeners } from "node:events";

import { Deferred, Scope } from "./async.js";
import type { Lost } from "./errors.js";

/** A loss: declared once, and never taken back. */
export class Loss {
  private readonly controller = new AbortController();
  private readonly waiting = new Deferred<Lost>();
  declared: Lost | undefined;

  constructor() {
    // A program may give it to any number of requests at once.
    setMaxListeners(0, this.controller.signal);
  }

  /** Aborts when it is declared, with the loss as its reason. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Declares it lost. The first reason stands. */
  declare(lost: Lost): void {
    if (this.declared) return;
    this.declared = lost;
    this.waiting.resolve(lost);
    this.controller.abort(lost);
  }

  /** Waits until it is lost. */
  wait(): Promise<Lost> {
    return this.waiting.promise;
  }

  /**
   * The result of the work. The signal that it is given aborts when this is declared, or when `outer` aborts. Once the
   * work has ended, throws `Lost` if the lease was lost meanwhile, by `judge`, which reads the clock.
   */
  async interrupt<T>(
    work: (signal: AbortSignal) => Promise<T> | T,
    judge: () => Lost | undefined,
    outer?: AbortSignal,
  ): Promise<T> {
    const before = judge();
    if (before) throw before.again();
    const scope = new Scope(this.signal, outer);
    let cause: unknown;
    try {
      scope.signal.throwIfAborted();
      const result = await work(scope.signal);
      if (!judge()) return result;
    } catch (error) {
      if (!judge()) throw error;
      cause = error;
    } finally {
      scope.end();
    }
    const lost = judge() as Lost;
    throw lost.again(cause === scope.signal.reason ? undefined : cause);
  }
}
