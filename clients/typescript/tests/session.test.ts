/** Sessions, guards and acquires against a real server with the embedded store. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { Lost, Policy, Refused, Session, Unavailable } from "../src/index.js";
import { at, isSettled, stopHeartbeats, thrown } from "./support/case.js";
import { Solehold, waitFor } from "./support/server.js";

let server: Solehold;
before(async () => {
  server = await Solehold.start();
});
after(() => server.stop());

describe("guards", () => {
  test("a resource is held and released", async (t) => {
    const { client, open, holder } = at(t, server);
    const session = await open("a");
    const guard = await session.acquire("scene", "süd/7");
    assert.ok(guard.isLive());
    assert.equal(guard.check(), guard.token);
    assert.ok(guard.deadline > client.now());
    assert.equal(await holder("scene", "süd/7"), "a");
    assert.equal(await guard.release(), true);
    assert.ok(!guard.isLive());
    assert.equal((await guard.lost()).why, "released");
    assert.ok(guard.signal.aborted && guard.signal.reason instanceof Lost);
    assert.equal(await holder("scene", "süd/7"), undefined);
    assert.throws(() => guard.check(), Lost);
    assert.equal(await guard.release(), false, "once");
  });

  test("a block that ends releases its guard", async (t) => {
    const { open, holder } = at(t, server);
    const session = await open("b");
    {
      await using guard = await session.acquire("scene", "block");
      assert.equal(await holder("scene", "block"), "b");
      assert.ok(guard.isLive());
    }
    assert.equal(await holder("scene", "block"), undefined);
    const fail = async (): Promise<void> => {
      await using _guard = await session.acquire("scene", "block");
      throw new RangeError("of the body");
    };
    await thrown(RangeError, fail());
    assert.equal(await holder("scene", "block"), undefined);
  });

  test("a refusal names the holder", async (t) => {
    const { open } = at(t, server);
    const one = await open("one");
    const other = await open("other");
    const guard = await one.acquire("scene", "refused");
    const error = await thrown(Refused, other.tryAcquire("scene", "refused"));
    assert.deepEqual(
      [error.code, error.holder, error.token, error.status],
      ["held", "one", guard.token, 409],
    );
    assert.ok(error.retryAfterMs !== undefined && error.retryAfterMs > 0 && error.retryAfterMs <= 30_000);
  });

  test("a release hands over to a waiter, with the state", async (t) => {
    const { client, open, untilWaiting } = at(t, server);
    const one = await open("one");
    const other = await open("other");
    const guard = await one.acquire("scene", "handed");
    const waiting = other.acquire("scene", "handed");
    await untilWaiting("scene", "handed", 1);
    assert.equal(await guard.release({ tracks: [1, 2] }), true);
    const heir = await waiting;
    assert.ok(heir.token > guard.token);
    assert.deepEqual([heir.state?.document, heir.state?.token], [{ tracks: [1, 2] }, guard.token]);
    assert.deepEqual(await client.readState("scene", "handed"), heir.state);
  });

  test("state is written in order and goes to the next holder", async (t) => {
    const { client, open } = at(t, server);
    const one = await open("one");
    const other = await open("other");
    const guard = await one.acquire("scene", "state");
    assert.equal(guard.state, undefined);
    const written = await Promise.all([0, 1, 2, 3, 4].map((n) => guard.writeState({ n })));
    assert.deepEqual(
      written.map((state) => state.sequence),
      [1, 2, 3, 4, 5],
    );
    assert.deepEqual(guard.state, written.at(-1));
    await guard.writeState(null);
    await guard.release();
    const heir = await other.acquire("scene", "state");
    assert.deepEqual([heir.state?.document, heir.state?.sequence], [null, 6]);
    assert.equal((await heir.writeState("mine")).sequence, 1, "each token counts by itself");
    await thrown(Lost, guard.writeState("late"));
    assert.deepEqual(await client.readState("scene", "state"), heir.state);
  });

  test("a release after a loss changes nothing", async (t) => {
    const { client, open, holder } = at(t, server);
    const one = await open("one", { ttlMs: 2_000 });
    const other = await open("other");
    const guard = await one.acquire("scene", "late");
    stopHeartbeats(one);
    const heir = await other.acquire("scene", "late", { timeoutMs: 60_000 });
    assert.ok(!guard.isLive(), "it was dead before another got it");
    assert.ok(heir.token > guard.token);
    assert.equal(await guard.release({ from: "the grave" }), false);
    assert.equal(await holder("scene", "late"), "other");
    assert.equal(await client.readState("scene", "late"), undefined);
  });

  test("a block that outlived its lease learns of it", async (t) => {
    const { open } = at(t, server);
    const session = await open("outlived", { ttlMs: 2_000 });
    const outlive = async (): Promise<void> => {
      await using guard = await session.acquire("scene", "outlived");
      stopHeartbeats(session);
      await guard.lost();
    };
    assert.equal((await thrown(Lost, outlive())).why, "deadline");
  });

  test("a loss that the block was told is not thrown again", async (t) => {
    const { open } = at(t, server);
    const session = await open("told", { ttlMs: 2_000 });
    const whys: string[] = [];
    {
      await using byRun = await session.acquire("scene", "by-run");
      await using byCheck = await session.acquire("scene", "by-check");
      await using bySignal = await session.acquire("scene", "by-signal");
      stopHeartbeats(session);
      const { signal } = bySignal;
      const forever = (ended: AbortSignal): Promise<void> =>
        new Promise((resolve) => ended.addEventListener("abort", () => resolve()));
      whys.push((await thrown(Lost, byRun.run(forever))).why);
      assert.throws(() => byCheck.check(), { why: "deadline" });
      assert.ok(signal.aborted);
      whys.push((signal.reason as Lost).why);
    }
    assert.deepEqual(whys, ["deadline", "deadline"]);
  });

  test("run gives the result or the error of the work, and waits for its end after a loss", async (t) => {
    const { client, open } = at(t, server);
    const session = await open("runner", { ttlMs: 3_000 });
    const guard = await session.acquire("scene", "run");
    assert.equal(await guard.run(async () => "done"), "done");
    await thrown(
      RangeError,
      guard.run(() => Promise.reject(new RangeError("its own"))),
    );
    const steps: string[] = [];
    const running = guard.run(async (signal) => {
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      steps.push((signal.reason as Lost).why);
      await new Promise((resolve) => setTimeout(resolve, 5));
      steps.push("cleaned up");
    });
    await client.request("POST", "/api/v1/resources/scene/run/lease/revoke", { token: guard.token });
    assert.equal((await thrown(Lost, running)).why, "ended");
    assert.deepEqual(steps, ["ended", "cleaned up"]);
    assert.ok(session.isLive(), "only this lease was lost");
    await thrown(
      Lost,
      guard.run(() => steps.push("never")),
    );
    assert.equal(steps.length, 2);
  });

  test("an abort of run reaches the work", async (t) => {
    const { open } = at(t, server);
    const guard = await (await open("aborter")).acquire("scene", "aborted");
    const abort = new AbortController();
    const work = (signal: AbortSignal): Promise<void> =>
      new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error)));
    const running = guard.run(work, { signal: abort.signal });
    abort.abort(new RangeError("enough"));
    assert.equal((await thrown(RangeError, running)).message, "enough");
    assert.ok(guard.isLive());
  });

  test("a process whose event loop was blocked past the deadline finds its guard dead at once", async (t) => {
    const { client, open } = at(t, server);
    const session = await open("blocked", { ttlMs: 1_000 });
    const guard = await session.acquire("scene", "blocked");
    const { signal } = guard;
    const cell = new Int32Array(new SharedArrayBuffer(4));
    // No timer runs and no answer is read meanwhile.
    Atomics.wait(cell, 0, 0, Math.ceil(guard.deadline - client.now()) + 50);
    assert.ok(!signal.aborted, "no timer has noticed");
    assert.throws(() => guard.check(), { name: "Lost", why: "deadline" });
    assert.ok(signal.aborted, "the check has told everyone");
    await new Promise((resolve) => setImmediate(resolve));
    assert.ok(!guard.isLive(), "and no answer that was under way revives it");
    assert.equal((await session.lost()).why, "deadline");
  });
});

describe("sessions", () => {
  test("heartbeats keep it past its ttl", async (t) => {
    const { open } = at(t, server);
    const session = await open("beating", { ttlMs: 2_000 });
    const guard = await session.acquire("scene", "beating");
    const first = guard.deadline;
    await waitFor("three heartbeats", () => guard.deadline > first + 1_500);
    const other = await open("other");
    assert.equal((await thrown(Refused, other.tryAcquire("scene", "beating"))).token, guard.token);
    assert.ok(guard.isLive());
  });

  test("closing releases everything", async (t) => {
    const { open, holder } = at(t, server);
    const session = await open("closing");
    const keys = [0, 1, 2].map((n) => `closing-${n}`);
    const guards = await Promise.all(keys.map((key) => session.acquire("scene", key)));
    await session.close();
    assert.deepEqual(
      await Promise.all(guards.map(async (guard) => (await guard.lost()).why)),
      Array(3).fill("closed"),
    );
    assert.deepEqual(await Promise.all(keys.map((key) => holder("scene", key))), Array(3).fill(undefined));
    await thrown(Lost, session.acquire("scene", "closing-1"));
    await session.close();
  });

  test("another session of the holder ends it", async (t) => {
    const { open } = at(t, server);
    const former = await open("twin", { ttlMs: 3_000 });
    const guard = await former.acquire("scene", "twin");
    const latter = await open("twin", { ttlMs: 3_000 });
    const lost = await guard.lost();
    assert.deepEqual([lost.why, lost.code], ["refused", "session_superseded"]);
    const heir = await latter.acquire("scene", "twin", { timeoutMs: 30_000 });
    assert.ok(heir.token > guard.token);
  });

  test("a former session can be replaced at once", async (t) => {
    const { open } = at(t, server);
    const former = await open("phoenix", { ttlMs: 300_000 });
    await former.acquire("scene", "phoenix");
    stopHeartbeats(former);
    const latter = await open("phoenix", { replace: former.sessionId });
    const error = await thrown(Refused, latter.tryAcquire("scene", "phoenix"));
    assert.equal(error.code, "held_back", "until its old deadline: nobody knows that it stopped");
  });

  test("metrics are shown among the nodes", async (t) => {
    const { client, open } = at(t, server);
    await open("metered", { metrics: () => ({ load: 7, weight: 2, group: "g" }) });
    const node = (await client.nodes()).find(({ nodeId }) => nodeId === "metered");
    assert.deepEqual([node?.metrics["load"], node?.weight, node?.group], [7, 2, "g"]);
  });

  test("immediate stops at the first failure, and grace continues past the deadline", async (t) => {
    const { open, log } = at(t, server);
    const hasty = await open("hasty", { ttlMs: 6_000, policy: Policy.IMMEDIATE });
    const inner = hasty as unknown as { channel: { transport: { send: unknown } } };
    inner.channel.transport.send = () => Promise.reject(new Error("a broken transport"));
    const patient = await open("patient", { ttlMs: 3_000, policy: Policy.grace(600_000) });
    const guard = await patient.acquire("scene", "graced");
    stopHeartbeats(patient);
    assert.equal((await hasty.lost()).why, "failed");
    await waitFor("the grace", () => {
      assert.ok(guard.isLive());
      return guard.isInGrace();
    });
    assert.ok(
      log.lines.some((line) => line.startsWith("WARN session of hasty lost")),
      log.lines.join("\n"),
    );
  });

  test("an opening that is aborted leaves no session", async (t) => {
    const { client } = at(t, server);
    const abort = new AbortController();
    const opening = Session.open(client, "never", { signal: abort.signal });
    setTimeout(() => abort.abort(new RangeError("stop")), 1);
    await opening.then(
      (session) => session.close(),
      (error: unknown) => assert.ok(error instanceof RangeError),
    );
    await waitFor("no session", async () => !(await client.nodes()).some(({ nodeId }) => nodeId === "never"));
  });

  test("a session over a server that is gone is closed without waiting for it", async (t) => {
    const own = await Solehold.start();
    t.after(() => own.stop());
    const { open, log } = at(t, own, { retryForMs: 60_000 });
    const session = await open("leaver");
    await own.kill();
    await session.close();
    assert.ok(
      log.lines.some((line) => line.includes("it ends when its ttl is over")),
      log.lines.join("\n"),
    );
    const opening = Session.open(session.client, "late", { signal: AbortSignal.timeout(50) });
    assert.ok(await isSettled(opening, 5_000));
    assert.equal((await thrown(DOMException, opening)).name, "TimeoutError");
  });

  test("no server at all is Unavailable", async (t) => {
    const own = await Solehold.start();
    await own.stop();
    const { client } = at(t, own, { retryForMs: 0 });
    const error = await thrown(Unavailable, Session.open(client, "w"));
    assert.match(error.message, /^no server at http:.* \(connection refused\)$/);
  });
});
