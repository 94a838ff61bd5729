/** Elections, and sessions that are opened again after a loss. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import {
  Client,
  elect,
  type Guard,
  keepSession,
  Lost,
  type Session,
  silentLogger,
  Unauthorized,
} from "../src/index.js";
import { begin, isSettled, stopHeartbeats, thrown } from "./support/case.js";
import { freePort, Solehold, waitFor } from "./support/server.js";

/** Leads until the signal aborts. */
class Office {
  readonly terms: Guard[] = [];
  leading = 0;
  most = 0;

  readonly lead = async (guard: Guard, signal: AbortSignal): Promise<void> => {
    this.leading += 1;
    this.most = Math.max(this.most, this.leading);
    this.terms.push(guard);
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    this.leading -= 1;
    throw signal.reason;
  };

  async term(number: number): Promise<Guard> {
    await waitFor(`term ${number}`, () => this.terms.length >= number);
    return this.terms[number - 1] as Guard;
  }
}

describe("elections", { concurrency: true }, () => {
  test("one leads and the next follows", async (t) => {
    const { client, open, untilWaiting } = await begin(t);
    const office = new Office();
    const stop = new AbortController();
    const sessions = [await open("one", { ttlMs: 2_000 }), await open("two", { ttlMs: 2_000 })];
    const { signal } = stop;
    const standing = sessions.map((session) =>
      thrown(RangeError, elect(session, "compactor", office.lead, { signal })),
    );
    const first = await office.term(1);
    await untilWaiting("role", "compactor", 1);
    await client.request("POST", "/api/v1/resources/role/compactor/lease/revoke", { token: first.token });
    const second = await office.term(2);
    assert.ok(second.token > first.token);
    assert.equal((await first.lost()).why, "ended");
    await untilWaiting("role", "compactor", 1); // the first stands again
    stop.abort(new RangeError("enough"));
    await Promise.all(standing);
    assert.deepEqual([office.most, office.leading], [1, 0]);
  });

  test("a leader that is done gives its result and makes room", async (t) => {
    const { open, holder } = await begin(t);
    const session = await open("one");
    assert.ok((await elect(session, "report", (guard) => guard.token * 2)) > 0);
    assert.equal(await holder("role", "report"), undefined);
    await thrown(
      RangeError,
      elect(session, "report", () => Promise.reject(new RangeError("its own"))),
    );
    assert.equal(await holder("role", "report"), undefined);
  });

  test("with a client it stands again in another session, and a superseded one does not fight", async (t) => {
    const { client, open } = await begin(t);
    const office = new Office();
    const standing = elect(client, "boss", office.lead, { holder: "twin", ttlMs: 2_000 });
    const ended = thrown(Lost, standing);
    const first = await office.term(1);
    await client.request("DELETE", `/api/v1/sessions/${first.sessionId}`);
    const second = await office.term(2);
    assert.notEqual(second.sessionId, first.sessionId);
    assert.ok(second.token > first.token);
    const twin = await open("twin");
    assert.equal((await ended).code, "session_superseded");
    assert.ok(twin.isLive());
  });
});

describe("keepSession", { concurrency: true }, () => {
  /** Holds a resource under each session until told to return. */
  class Holder {
    readonly sessions: Session[] = [];
    readonly guards: Guard[] = [];
    readonly losses: Lost[] = [];
    isDone = false;

    readonly work = async (session: Session, signal: AbortSignal): Promise<string> => {
      this.sessions.push(session);
      this.guards.push(await session.acquire("scene", "hall", { signal }));
      await waitFor("the end of the work", () => this.isDone || signal.aborted);
      signal.throwIfAborted();
      return "done";
    };

    readonly onLost = (lost: Lost): void => void this.losses.push(lost);
  }

  test("a session that is lost in an outage is followed by the next", async (t) => {
    const { client, server } = await begin(t, { retryForMs: 500 });
    const holder = new Holder();
    const keeping = keepSession(client, "keeper", holder.work, { ttlMs: 3_000, onLost: holder.onLost });
    await waitFor("the first guard", () => holder.guards.length === 1);
    await server.kill();
    await waitFor("the loss", () => holder.losses.length === 1);
    assert.equal(holder.losses[0]?.why, "deadline");
    await server.startAgain();
    await waitFor("the second guard", () => holder.guards.length === 2);
    assert.ok((holder.guards[1] as Guard).token > (holder.guards[0] as Guard).token);
    holder.isDone = true;
    assert.equal(await keeping, "done");
    assert.equal((await (holder.sessions[1] as Session).lost()).why, "closed");
    assert.equal(holder.losses.length, 1, "a session that is closed is not lost");
  });

  test("a server that is not there yet is waited for, until an abort", async (t) => {
    const port = await freePort();
    await using client = new Client(`127.0.0.1:${port}`, { retryForMs: 100, logger: silentLogger });
    const holder = new Holder();
    const stop = new AbortController();
    const keeping = keepSession(client, "early", holder.work, { signal: stop.signal });
    keeping.catch(() => {});
    assert.ok(!(await isSettled(keeping, 300)));
    const late = await Solehold.start({ port });
    t.after(() => late.stop());
    await waitFor("the guard", () => holder.guards.length === 1);
    stop.abort(new RangeError("enough"));
    await thrown(RangeError, keeping);
    await waitFor("the session to be closed", () => !(holder.sessions[0] as Session).isLive());
  });

  test("a process that comes back does not supersede its successor", async (t) => {
    const { client, open } = await begin(t);
    const holder = new Holder();
    const keeping = thrown(Lost, keepSession(client, "twin", holder.work, { ttlMs: 1_000 }));
    await waitFor("the first guard", () => holder.guards.length === 1);
    const former = holder.sessions[0] as Session;
    // It hears nothing of its successor until its own deadline has passed.
    stopHeartbeats(former);
    const successor = await open("twin");
    assert.equal((await keeping).code, "session_superseded");
    assert.ok(successor.isLive(), "it was not ended by the one that came back");
  });

  test("a refusal to open one, and an error of the work, end it", async (t) => {
    const { client, server } = await begin(t);
    await thrown(
      RangeError,
      keepSession(client, "w", () => Promise.reject(new RangeError("its own"))),
    );
    await client.request("POST", "/api/v1/admin/keys", { name: "admin", role: "admin" });
    await using stranger = new Client(server.url, { key: "wrong" });
    await thrown(
      Unauthorized,
      keepSession(stranger, "w", () => 1),
    );
  });
});
