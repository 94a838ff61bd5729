/** The session that something works under: one that was given, or one of its own that is opened again after a loss. */

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

import { Backoff } from "./backoff.js";
import * as check from "./check.js";
import { Client } from "./client.js";
import { sleepUntil } from "./clock.js";
import { Lost, SoleholdError, Superseded, Unavailable, Unknown } from "./errors.js";
import { told } from "./log.js";
import { Session, type SessionConfig, sessionConfig, type SessionOptions } from "./session.js";

/** How a session of its own is kept; without `holder`, under a name made of host, process and chance. */
export interface KeptOptions extends SessionOptions {
  /** Only together with a client: a session has its holder already. */
  holder?: string | undefined;
}

/** @internal */
export const KEPT_OPTIONS = ["holder", "ttlMs", "policy", "heartbeatMs", "replace", "metrics", "backoff"];

/**
 * A session that was given, or with a client one of its own, opened when it is needed and again after a loss.
 *
 * A process whose holder has opened another session elsewhere opens none: two would end each other in turn (rule 13).
 */
export class KeptSession {
  readonly client: Client;
  private readonly isOwn: boolean;
  private session: Session | undefined;
  private config: SessionConfig | undefined;
  private opening: Promise<unknown> = Promise.resolve();

  constructor(owner: Client | Session, options: KeptOptions) {
    if (owner instanceof Session) {
      for (const [name, value] of Object.entries(options)) {
        if (value === undefined || !KEPT_OPTIONS.includes(name)) continue;
        throw new RangeError(
          `the session is ${owner.holder}'s already: give \`${name}\` only together with a client`,
        );
      }
      this.client = owner.client;
      this.session = owner;
      this.isOwn = false;
      return;
    }
    this.client = check.instance("owner", owner, Client, "a Client or a Session");
    this.isOwn = true;
    const { holder, ...rest } = options;
    const made = `${hostname().slice(0, 200)}-${process.pid}-${randomBytes(4).toString("hex")}`;
    this.config = sessionConfig(holder ?? made, rest);
  }

  /** Whether the session is opened by this, and again after a loss. */
  get opensAgain(): boolean {
    return this.isOwn;
  }

  /** The session, which is opened if it is its own; until the tick `until` while no server answers. */
  live(until: number, signal: AbortSignal | undefined): Promise<Session> {
    const next = this.opening.then(() => this.openIfNeeded(until, signal));
    this.opening = next.catch(() => {});
    return next;
  }

  private async openIfNeeded(until: number, signal: AbortSignal | undefined): Promise<Session> {
    signal?.throwIfAborted();
    const { session, config } = this;
    const lost = session?.judge();
    if (session && (!lost || !config)) return session;
    if (!config) throw new Error("a session of its own has a configuration");
    if (lost?.code === "session_superseded") throw lost.again();
    if (session) {
      this.client.log.info(`opening a new session for ${config.holder}: the previous one is over`);
      await session.close();
    }
    this.session = await this.open(config, session?.sessionId, until, signal);
    this.config = { ...config, replace: undefined }; // that was replaced now
    return this.session;
  }

  private async open(
    config: SessionConfig,
    follows: string | undefined,
    until: number,
    signal: AbortSignal | undefined,
  ): Promise<Session> {
    const { clock, log, random } = this.client;
    const backoff = new Backoff(config.backoff, random);
    for (;;) {
      try {
        return await Session.openAs(this.client, config, { until, follows, signal });
      } catch (error) {
        if (error instanceof Superseded) {
          const text = `another process has opened a session as ${config.holder}: ${error.detail}`;
          throw new Lost("refused", text, { code: error.code, cause: error });
        }
        const now = clock.now();
        const isAway = error instanceof Unavailable || error instanceof Unknown;
        if (!isAway || signal?.aborted || !(now < until)) throw error;
        log.debug(`cannot open a session for ${config.holder} yet; retrying: ${told(error)}`);
        await sleepUntil(clock, Math.min(until, now + backoff.delay(error.retryAfterMs)), signal);
      }
    }
  }

  /** Closes the session, if it is its own: everything attached to it is released. */
  async close(): Promise<void> {
    await this.opening;
    if (this.isOwn) await this.session?.close();
  }
}

/** How sessions are kept one after the other. */
export interface KeepOptions extends SessionOptions {
  /** Called with each loss, once the work of the lost session has ended. */
  onLost?: ((lost: Lost) => void) | undefined;
  signal?: AbortSignal | undefined;
}

/**
 * Opens a session and awaits `work(session, signal)`. Whenever the session is lost, as in an outage, it opens the next
 * one and calls `work` again, until `work` returns by itself; then the session is closed, and the result returned.
 *
 * When a session is lost, `signal` aborts; once `work` has ended, `onLost` is called with the loss. While no server
 * answers, opening is tried for as long as it takes. It ends with an error that `work` throws under a live session,
 * with the server's refusal to open one, and with `Lost` if another process has opened a session of the same holder.
 */
export async function keepSession<T>(
  client: Client,
  holder: string,
  work: (session: Session, signal: AbortSignal) => Promise<T> | T,
  options: KeepOptions = {},
): Promise<T> {
  check.instance("client", client, Client, "a Client");
  check.name("holder", holder);
  check.func("work", work, "a function that takes the session");
  const { onLost, signal, ...rest } = options;
  if (onLost !== undefined) check.func("onLost", onLost, "a function that takes the loss");
  check.signal(signal);
  const kept = new KeptSession(client, { ...rest, holder });
  try {
    for (;;) {
      const session = await kept.live(Infinity, signal);
      try {
        return await session.whileLive(async (ended) => work(session, ended), signal);
      } catch (error) {
        if (!(error instanceof Lost) || session.isLive()) throw error;
        const { cause } = error;
        if (cause !== undefined && !(cause instanceof SoleholdError)) {
          client.log.warn(`the work of ${holder} ended after its session was lost: ${told(cause)}`);
        }
        onLost?.(error);
      }
    }
  } finally {
    await kept.close();
  }
}
