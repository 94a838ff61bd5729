/** A role that one of many has at a time, for jobs that exactly one of them must do. */

import * as check from "./check.js";
import type { Client } from "./client.js";
import { Lost } from "./errors.js";
import type { Guard } from "./guard.js";
import { KEPT_OPTIONS, type KeptOptions, KeptSession } from "./kept.js";
import { told } from "./log.js";
import type { Session } from "./session.js";

/** A role is a resource of this kind. */
const KIND = "role";

/** How a candidate stands for election. */
export interface ElectOptions extends KeptOptions {
  signal?: AbortSignal | undefined;
}

/**
 * Waits to be elected, leads, and stands again whenever it lost the role, until `lead` returns by itself; then the role
 * is released, and the result returned.
 *
 * `lead` gets the guard of its term, whose token fences what it does, and a signal that aborts when the role is lost.
 * With a client it stands in a session of its own, which is opened again after a loss. With a session it ends with
 * that.
 */
export async function elect<T>(
  owner: Client | Session,
  role: string,
  lead: (guard: Guard, signal: AbortSignal) => Promise<T> | T,
  options: ElectOptions = {},
): Promise<T> {
  check.name("role", role);
  check.func("lead", lead, "a function that takes the guard of its term");
  check.options(options, [...KEPT_OPTIONS, "signal"]);
  const { signal, ...rest } = options;
  check.signal(signal);
  const kept = new KeptSession(owner, rest);
  const { log } = kept.client;
  try {
    for (;;) {
      const guard = await stand(kept, role, signal);
      try {
        return await guard.run((ended) => lead(guard, ended), { signal });
      } catch (error) {
        // The loss of something else that the work holds is the work's own error.
        if (!(error instanceof Lost) || guard.isLive()) throw error;
        log.warn(
          `lost the role ${role} with token ${guard.token}; standing for election again: ${told(error)}`,
        );
      } finally {
        await guard[Symbol.asyncDispose]();
      }
    }
  } finally {
    await kept.close();
  }
}

/** Waits in line for the role. */
async function stand(kept: KeptSession, role: string, signal: AbortSignal | undefined): Promise<Guard> {
  const { log } = kept.client;
  for (;;) {
    const session = await kept.live(Infinity, signal);
    try {
      const guard = await session.acquire(KIND, role, { signal });
      log.info(`${session.holder} was elected ${role} with token ${guard.token}`);
      return guard;
    } catch (error) {
      if (!(error instanceof Lost) || !kept.opensAgain || signal?.aborted) throw error;
      log.info(`${session.holder} stands for election as ${role} again: ${told(error)}`);
    }
  }
}
