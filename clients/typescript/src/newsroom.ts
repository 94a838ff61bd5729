/**
 * Notifications: one request for all sessions of a client, which waits at a server until there is news of one.
 *
 * A notification proves nothing. It only makes a session send its heartbeat now rather than later, whose answer says
 * what has happened (rule 28). Where the servers cannot notify, or cannot be reached, heartbeats stay what they were.
 */

import { Deferred, Notice, Scope, TimedOut, unlessAborted, within } from "./async.js";
import { Backoff } from "./backoff.js";
import type { Answer, Channel } from "./channel.js";
import type { Client } from "./client.js";
import { pause, sleepUntil } from "./clock.js";
import { SoleholdError, Unavailable, Unknown } from "./errors.js";
import { NEWS_SESSIONS_MAX, WAIT_MS_MAX } from "./limits.js";
import { told } from "./log.js";
import * as wire from "./wire.js";

/** Sessions that come within this time go into one request. */
const GATHER_MS = 20;
/** How long the connection is kept while no session waits. */
const LINGER_MS = 5_000;
/** How long to wait after a request that was not answered. */
const AGAIN = { firstMs: 200, capMs: 10_000 };

interface Waiting {
  readonly revision: number;
  readonly word: Deferred<boolean>;
}

/** The sessions of one client that wait for news. */
export class Newsroom {
  private readonly waiting = new Map<string, Waiting>();
  private readonly changed = new Notice();
  private hasChanged = false;
  private readonly scope = new Scope();
  private asking: Promise<void> | undefined;
  private cursor: string | undefined;
  private canNotify = true;
  private readonly backoff: Backoff;

  constructor(private readonly client: Client) {
    this.backoff = new Backoff(AGAIN, client.random);
  }

  /**
   * Waits until something has happened to a session whose leases are known as of a revision. False if the servers
   * cannot notify.
   */
  async wait(sessionId: string, revision: number, signal: AbortSignal): Promise<boolean> {
    if (!this.canNotify) return false;
    const waiting: Waiting = { revision, word: new Deferred<boolean>() };
    this.waiting.set(sessionId, waiting);
    this.change();
    this.asking ??= this.ask();
    try {
      return await unlessAborted(waiting.word.promise, signal);
    } finally {
      if (this.waiting.get(sessionId) === waiting) {
        this.waiting.delete(sessionId);
        this.change();
      }
    }
  }

  /** Ends the request, if one is open. No session waits from now on. */
  async close(): Promise<void> {
    this.canNotify = false;
    this.scope.abort();
    await this.asking;
  }

  /** A session came or went: the request has to be made anew. */
  private change(): void {
    this.hasChanged = true;
    this.changed.notify();
  }

  /** Asks for all that wait, until no session has waited for a while. */
  private async ask(): Promise<void> {
    const channel = this.client.channel();
    try {
      while (await this.isNeeded()) await this.askOnce(channel);
    } catch (error) {
      if (error instanceof SoleholdError) {
        const text = "the server sends no notifications; changes are noticed at the next heartbeat";
        this.client.log.debug(`${text}: ${told(error)}`);
        this.canNotify = false;
      } else if (!this.scope.signal.aborted) {
        this.client.log.error(`waiting for lease changes has failed: ${told(error)}`);
        this.canNotify = false;
      }
    } finally {
      // Before anything is awaited: a session that comes from now on starts another one.
      this.asking = undefined;
      for (const { word } of this.waiting.values()) word.resolve(this.canNotify);
      this.waiting.clear();
      channel.close();
    }
  }

  /** Whether a session waits, now or soon: one that was notified comes back when its heartbeat was answered. */
  private async isNeeded(): Promise<boolean> {
    const { signal } = this.scope;
    await pause(GATHER_MS, signal);
    if (this.waiting.size === 0) {
      const next = this.changed.wait();
      await within(LINGER_MS, signal, (ended) => unlessAborted(next, ended)).catch((error: unknown) => {
        if (!(error instanceof TimedOut)) throw error;
      });
    }
    signal.throwIfAborted();
    this.hasChanged = false;
    return this.waiting.size > 0;
  }

  private async askOnce(channel: Channel): Promise<void> {
    try {
      const answer = await this.unlessChanged(channel);
      if (!answer) return;
      this.backoff.reset();
      this.notify(answer);
    } catch (error) {
      if (!(error instanceof Unavailable || error instanceof Unknown)) throw error;
      this.client.log.debug(`cannot wait for lease changes; retrying: ${told(error)}`);
      const delay = this.backoff.delay(error.retryAfterMs);
      await sleepUntil(this.client.clock, this.client.tickAfter(delay), this.scope.signal);
    }
  }

  /** The answer, or undefined if the request has to be made anew. */
  private async unlessChanged(channel: Channel): Promise<Answer | undefined> {
    const known = [...this.waiting].slice(0, NEWS_SESSIONS_MAX);
    const sessions = known.map(([sessionId, { revision }]) => ({ session_id: sessionId, revision }));
    const body = { sessions, from: this.cursor ?? null, wait_ms: WAIT_MS_MAX };
    const scope = new Scope(this.scope.signal);
    const options = {
      timeoutMs: WAIT_MS_MAX + this.client.timeoutMs,
      until: this.client.clock.now(),
      signal: scope.signal,
    };
    const asked = channel.call({ method: "POST", path: wire.path("sessions", "news"), body }, options);
    asked.catch(() => {});
    try {
      const changed = this.hasChanged ? Promise.resolve() : this.changed.wait();
      return await Promise.race([asked, changed.then(() => undefined)]);
    } finally {
      scope.abort();
      scope.end();
    }
  }

  private notify(answer: Answer): void {
    const { sessions, cursor } = wire.news(answer.value);
    this.cursor = cursor;
    for (const sessionId of sessions) {
      this.waiting.get(sessionId)?.word.resolve(true);
      this.waiting.delete(sessionId);
    }
  }
}
