/** What the tests of a feature share: a server, a client, and what is opened and closed with them. */

import assert from "node:assert/strict";
import type { TestContext } from "node:test";

import {
  Client,
  type ClientOptions,
  type Json,
  type Logger,
  NotFound,
  Session,
  type SessionOptions,
} from "../../src/index.js";
import { Solehold, type SoleholdOptions, waitFor } from "./server.js";

/** Collects what is logged. */
export class Log implements Logger {
  readonly lines: string[] = [];
  debug(message: string): void {
    this.lines.push(`DEBUG ${message}`);
  }
  info(message: string): void {
    this.lines.push(`INFO ${message}`);
  }
  warn(message: string): void {
    this.lines.push(`WARN ${message}`);
  }
  error(message: string): void {
    this.lines.push(`ERROR ${message}`);
  }
}

export interface Case {
  readonly server: Solehold;
  readonly client: Client;
  readonly log: Log;
  open(holder: string, options?: SessionOptions): Promise<Session>;
  /** The field of a resource, by the server's answer; undefined if it does not exist. */
  resource(
    kind: string,
    key: string,
  ): Promise<{ waiting: number; lease: { holder: string; token: number } | null } | undefined>;
  holder(kind: string, key: string): Promise<string | undefined>;
  untilWaiting(kind: string, key: string, count: number): Promise<void>;
}

/** A server and a client for one test. */
export async function begin(
  t: TestContext,
  client: ClientOptions = {},
  server: SoleholdOptions = {},
): Promise<Case> {
  const started = await Solehold.start(server);
  t.after(() => started.stop());
  return at(t, started, client);
}

/** The same with a server that is there. */
export function at(t: TestContext, server: Solehold, options: ClientOptions = {}): Case {
  const log = new Log();
  const client = new Client(server.url, { logger: log, ...options });
  const sessions: Session[] = [];
  t.after(async () => {
    await Promise.all(sessions.map((session) => session.close()));
    await client.close();
  });
  const resource: Case["resource"] = async (kind, key) => {
    try {
      const path = `/api/v1/resources/${encodeURIComponent(kind)}/${encodeURIComponent(key)}`;
      return (await client.request("GET", path)) as never;
    } catch (error) {
      if (error instanceof NotFound) return undefined;
      throw error;
    }
  };
  return {
    server,
    client,
    log,
    resource,
    async open(holder, sessionOptions = {}) {
      const session = await Session.open(client, holder, sessionOptions);
      sessions.push(session);
      return session;
    },
    async holder(kind, key) {
      return (await resource(kind, key))?.lease?.holder;
    },
    async untilWaiting(kind, key, count) {
      await waitFor(`${count} in line`, async () => (await resource(kind, key))?.waiting === count);
    },
  };
}

/** The error of a promise that must fail by this class. */
export async function thrown<E extends Error>(
  kind: abstract new (...args: never[]) => E,
  work: Promise<unknown>,
): Promise<E> {
  try {
    await work;
  } catch (error) {
    assert.ok(error instanceof kind, `expected ${kind.name}, got ${String(error)}`);
    return error;
  }
  throw new assert.AssertionError({ message: `expected ${kind.name}, and nothing was thrown` });
}

export function object(value: Json): Record<string, Json> {
  assert.ok(typeof value === "object" && value !== null && !Array.isArray(value));
  return value as Record<string, Json>;
}

/** Ends the heartbeats of a session, as if its network were gone. */
export function stopHeartbeats(session: Session): void {
  const inner = session as unknown as { channel: { transport: { send: unknown } } };
  inner.channel.transport.send = () => new Promise(() => {});
}

/** A race that says which was first, after both had some time. */
export async function isSettled(promise: Promise<unknown>, ms: number): Promise<boolean> {
  const late = Symbol();
  let timer: NodeJS.Timeout | undefined;
  const first = await Promise.race([
    promise.then(
      () => undefined,
      () => undefined,
    ),
    new Promise((resolve) => {
      timer = setTimeout(() => resolve(late), ms);
    }),
  ]);
  clearTimeout(timer);
  return first !== late;
}
