/** Named locks: first come, first served, across all processes. */

import { Acquire } from "./acquire.js";
import { AcquireAll, checkWanted, type Guards } from "./acquire-all.js";
import * as check from "./check.js";
import type { Client } from "./client.js";
import type { Guard } from "./guard.js";
import { KEPT_OPTIONS, type KeptOptions, KeptSession } from "./kept.js";
import { type AcquireAllOptions, type AcquireOptions, checkAcquire, type Session } from "./session.js";

/** A lock is a resource of this kind. Locks are not declared. */
const KIND = "lock";

/** Locks that are attached to a session: the one given, or with a client one of its own, opened again after a loss. */
export class Locks {
  private readonly kept: KeptSession;

  constructor(owner: Client | Session, options: KeptOptions = {}) {
    check.options(options, KEPT_OPTIONS);
    this.kept = new KeptSession(owner, options);
  }

  /**
   * Waits in line for a lock: for `timeoutMs`, forever without it, not at all if it is 0.
   *
   * When the time is up it throws the last refusal. However it ends without a guard, the line is left and nothing is
   * held.
   */
  async acquire(name: string, options: AcquireOptions = {}): Promise<Guard> {
    check.name("name", name);
    checkAcquire(options);
    const until = this.kept.client.tickAfter(options.timeoutMs);
    const session = await this.live(until, options.signal);
    return new Acquire(session, { kind: KIND, key: name }, until, options).run();
  }

  /** Acquires all of the locks or none, as `session.acquireAll` does: each is a name, or a name with its slots. */
  async acquireAll(
    names: readonly (string | { readonly name: string; readonly slots?: number | undefined })[],
    options: AcquireAllOptions = {},
  ): Promise<Guards> {
    if (!Array.isArray(names)) throw new TypeError(`names must be an array, not ${check.kindOf(names)}`);
    const wanted = names.map((each: (typeof names)[number]) => {
      if (typeof each === "string") return { kind: KIND, key: each };
      check.options(each, ["name", "slots"]);
      return { kind: KIND, key: each.name, slots: each.slots };
    });
    checkWanted(wanted);
    checkAcquire(options, []);
    const until = this.kept.client.tickAfter(options.timeoutMs);
    return new AcquireAll(await this.live(until, options.signal), wanted, until, options).run();
  }

  private live(until: number, signal: AbortSignal | undefined): Promise<Session> {
    const { client } = this.kept;
    return this.kept.live(Math.min(until, client.tickAfter(client.retryForMs)), signal);
  }

  /** Takes a free lock, or throws `Refused` with its holder. */
  tryAcquire(name: string, options: Omit<AcquireOptions, "timeoutMs"> = {}): Promise<Guard> {
    return this.acquire(name, { ...options, timeoutMs: 0 });
  }

  /** Closes the session, if it is its own: its locks are released. */
  close(): Promise<void> {
    return this.kept.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
