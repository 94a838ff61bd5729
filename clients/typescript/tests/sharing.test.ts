/** Shared holds, and several resources at once, all or none. */

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import {
  AnswerLost,
  Client,
  Gate,
  type Guard,
  Locks,
  Refused,
  Session,
  type Transport,
  Unavailable,
} from "../src/index.js";
import { at, thrown } from "./support/case.js";
import { Solehold, waitFor } from "./support/server.js";

const ROUNDS = 20;
/** A bound for a broken test on a busy machine, not a measure. */
const SOON = 100_000;

let server: Solehold;
before(async () => {
  server = await Solehold.start();
});
after(() => server.stop());

describe("shared holds", { concurrency: true }, () => {
  test("so many hold it at once, and the next waits", async (t) => {
    const { open, untilWaiting } = at(t, server);
    const session = await open("sharer");
    const locks = new Locks(session);
    const guards: Guard[] = [];
    for (let n = 0; n < 3; n++) guards.push(await locks.acquire("printers", { slots: 3 }));
    const [first, second, third] = guards as [Guard, Guard, Guard];
    assert.deepEqual(guards.map(({ slot, slots }) => [slot, slots]), [[1, 3], [2, 3], [3, 3]]);
    assert.equal(new Set(guards.map((guard) => guard.token)).size, 3);
    for (const slots of [3, undefined]) {
      assert.equal((await thrown(Refused, locks.tryAcquire("printers", { slots }))).code, "held");
    }
    const waiting = locks.acquire("printers", { slots: 3, timeoutMs: SOON });
    await untilWaiting("lock", "printers", 1);
    await second.release();
    const heir = await waiting;
    assert.equal(heir.slot, 2);
    assert.ok(heir.token > second.token && heir.isLive() && first.isLive() && third.isLive());
    for (const guard of [first, heir, third]) assert.ok(await guard.release());
    await using alone = await session.tryAcquire("lock", "printers");
    assert.deepEqual([alone.slot, alone.slots], [undefined, undefined]);
  });

  test("nobody overtakes one who waits for all of it", async (t) => {
    const { open, untilWaiting } = at(t, server);
    const session = await open("fair");
    const first = await session.acquire("scene", "fair", { slots: 3 });
    const order: string[] = [];
    const acquire = async (name: string, slots: number | undefined): Promise<void> => {
      await using guard = await session.acquire("scene", "fair", { slots, timeoutMs: SOON });
      order.push(`${name} ${guard.slot}`);
    };
    const alone = acquire("alone", undefined);
    await untilWaiting("scene", "fair", 1);
    const late = acquire("late", 3);
    await untilWaiting("scene", "fair", 2);
    await thrown(Refused, session.tryAcquire("scene", "fair", { slots: 3 }));
    await first.release();
    await Promise.all([alone, late]);
    assert.deepEqual(order, ["alone undefined", "late 1"]);
  });

  test("the slot of a holder that is gone goes to one who waits", async (t) => {
    const { client, open, untilWaiting } = at(t, server);
    const session = await open("heir");
    const kept = await session.acquire("scene", "gone", { slots: 2 });
    // Nobody renews this one, as after a kill.
    const body = { holder: "killed", ttl_ms: 2_000, slots: 2 };
    const path = "/api/v1/resources/scene/gone/lease";
    const killed = (await client.request("POST", path, body)) as { token: number; slot: number };
    assert.equal(killed.slot, 2);
    const waiting = session.acquire("scene", "gone", { slots: 2, timeoutMs: SOON });
    const heir = await waiting;
    assert.equal(heir.slot, 2);
    assert.ok(heir.token > killed.token && kept.isLive());
    await untilWaiting("scene", "gone", 0);
    await heir.release();
    await kept.release();
  });

  test("it has no state document", async (t) => {
    const { open } = at(t, server);
    await using guard = await (await open("stateless")).acquire("scene", "stateless", { slots: 2 });
    assert.equal((await thrown(Refused, guard.writeState({ frames: 1 }))).code, "conflict");
  });

  test("tokens of different slots do not fence each other", async (t) => {
    const { client, open } = at(t, server);
    const session = await open("gated");
    await using gate = await Gate.open(client, { kinds: "scene" });
    await gate.ready();
    const verdict = async ({ token, slot }: Guard): Promise<string> =>
      String(await gate.decide("scene", "gated", token, session.sessionId, { slot }));
    const one = await session.acquire("scene", "gated", { slots: 2 });
    const two = await session.acquire("scene", "gated", { slots: 2 });
    assert.deepEqual([await verdict(one), await verdict(two)], ["admit", "admit"]);
    await one.release();
    const heir = await session.acquire("scene", "gated", { slots: 2 });
    assert.equal(heir.slot, one.slot);
    assert.deepEqual([await verdict(heir), await verdict(two)], ["admit", "admit"]);
    assert.equal(await verdict(one), `stale ${heir.token}`);
    const other = await gate.decide("scene", "gated", heir.token, undefined, { slot: 7 });
    assert.deepEqual([other.word, other.mayPass], ["undecidable", false], "nobody has that slot");
    await heir.release();
    await two.release();
    await using alone = await session.acquire("scene", "gated", { timeoutMs: SOON });
    assert.equal(await verdict(alone), "admit");
    assert.throws(() => gate.judge("scene", "gated", 1, undefined, { slot: 0 }), /^RangeError: slot is 0/);
  });

  test("slots and exclusive holders fence each other", async (t) => {
    const { client, open } = at(t, server);
    const session = await open("alternating");
    await using gate = await Gate.open(client, { kinds: "scene" });
    await gate.ready();
    // The store is not read: what is known comes from the watch.
    const verdict = ({ token, slot }: Guard): string =>
      String(gate.judge("scene", "alternating", token, undefined, { slot }));
    const until = (guard: Guard, expected: string): Promise<void> =>
      waitFor(`${expected} of ${guard.token}`, () => verdict(guard) === expected);
    const sharer = await session.acquire("scene", "alternating", { slots: 2 });
    await until(sharer, "admit");
    await sharer.release();
    const alone = await session.acquire("scene", "alternating");
    await until(sharer, `stale ${alone.token}`);
    assert.equal(verdict(alone), "admit");
    await alone.release();
    await using heir = await session.acquire("scene", "alternating", { slots: 2 });
    await until(alone, `stale ${heir.token}`);
    assert.equal(verdict(heir), "admit");
  });

  test("a gate that restarts remembers slots", async (t) => {
    const { client, open } = at(t, server);
    const session = await open("remembered");
    const folder = await mkdtemp(join(tmpdir(), "solehold-marks-"));
    t.after(() => rm(folder, { recursive: true }));
    const memory = join(folder, "marks");
    // As a client without slots wrote it.
    const former = { token: 3, session: null, tenant: "default", kind: "scene", key: "former" };
    await writeFile(memory, `{"solehold_gate":1}\n{"epoch":1}\n${JSON.stringify({ mark: former })}\n`);
    await using guard = await session.acquire("scene", "remembered", { slots: 2 });
    const gate = await Gate.open(client, { kinds: "scene", memory, strict: true });
    const verdict = await gate.decide("scene", "remembered", guard.token, undefined, { slot: 1 });
    assert.equal(String(verdict), "admit");
    await gate.close();
    assert.match(await readFile(memory, "utf8"), /"key":"remembered","slot":1/);
    await using again = await Gate.open(client, { kinds: "scene", memory });
    const before = again.judge("scene", "remembered", guard.token - 1, undefined, { slot: 1 });
    assert.equal(String(before), `stale ${guard.token}`);
    assert.equal(String(again.judge("scene", "former", 2)), "stale 3");
  });
});

describe("several at once", { concurrency: true }, () => {
  const assertFree = async (session: Session, ...names: string[]): Promise<void> => {
    for (const name of names) await (await session.tryAcquire("lock", name)).release();
  };

  test("all are acquired, in the order of the caller", async (t) => {
    const { open } = at(t, server);
    const session = await open("caller");
    {
      const wanted = [{ kind: "lock", key: "z" }, { kind: "lock", key: "a", slots: 2 }];
      await using guards = await session.acquireAll(wanted, { timeoutMs: 0 });
      assert.deepEqual(guards.map(({ key, slot }) => [key, slot]), [["z", undefined], ["a", 1]]);
      assert.ok(guards.every((guard) => guard.isLive()));
    }
    await assertFree(session, "z", "a");
  });

  test("a refusal takes nothing", async (t) => {
    const { open } = at(t, server);
    const session = await open("refused");
    const locks = new Locks(session);
    const held = await locks.acquire("held");
    for (const timeoutMs of [0, 300]) {
      const refused = await thrown(Refused, locks.acquireAll(["before", "held", "under"], { timeoutMs }));
      assert.deepEqual([refused.code, refused.token], ["held", held.token]);
      await assertFree(session, "before", "under");
    }
  });

  test("it waits for what is held, and an abort leaves nothing held", async (t) => {
    const { open, untilWaiting } = at(t, server);
    const session = await open("patient");
    const locks = new Locks(session);
    const held = await locks.acquireAll(["first", "second"]);
    const names = ["third", { name: "second", slots: 2 }, "first"];
    const aborts = new AbortController();
    const aborted = locks.acquireAll(names, { signal: aborts.signal });
    await untilWaiting("lock", "first", 1);
    aborts.abort();
    await assert.rejects(aborted);
    await untilWaiting("lock", "first", 0);
    await assertFree(session, "third");
    const waiting = locks.acquireAll(names, { timeoutMs: SOON });
    await untilWaiting("lock", "first", 1);
    await held[Symbol.asyncDispose]();
    await using guards = await waiting;
    const order = guards.map(({ key, slot }) => `${key} ${slot}`);
    assert.deepEqual(order, ["third undefined", "second 1", "first undefined"]);
  });

  test("two that want the same never wait for each other", async () => {
    let inside = 0;
    const work = async (holder: string, names: string[]): Promise<void> => {
      await using client = new Client(server.url);
      await using session = await Session.open(client, holder);
      const locks = new Locks(session);
      for (let round = 0; round < ROUNDS; round++) {
        await using guards = await locks.acquireAll(names, { timeoutMs: SOON });
        inside += 1;
        assert.deepEqual([inside, guards.length], [1, 2]);
        await new Promise((resolve) => setImmediate(resolve));
        inside -= 1;
      }
    };
    await Promise.all([work("forwards", ["left", "right"]), work("backwards", ["right", "left"])]);
  });

  test("a repeat finds what a lost answer was about, and what is given up is not held", async (t) => {
    const { client, open } = at(t, server);
    const session = await open("lossy");
    const { transport } = (client as unknown as { main: { transport: Transport } }).main;
    const send = transport.send.bind(transport);
    const attempts: string[] = [];
    let losses = 0;
    transport.send = async (to, request) => {
      const answer = await send(to, request);
      if (request.target.endsWith("/leases/batch/acquire")) {
        const { items } = JSON.parse(String(request.body)) as { items: { request_id: string }[] };
        attempts.push(items.map((item) => item.request_id).join());
        losses -= 1;
        if (losses >= 0) throw new AnswerLost("this test loses an answer");
      }
      return answer;
    };
    const locks = new Locks(session);
    losses = 1;
    const guards = await locks.acquireAll(["lost-1", "lost-2"], { timeoutMs: SOON });
    assert.deepEqual(attempts, [attempts[0], attempts[0]]);
    assert.ok(guards.every((guard) => guard.isLive()));
    await guards[Symbol.asyncDispose]();
    losses = 1;
    const error = await thrown(Unavailable, locks.acquireAll(["lost-1", "lost-2"], { timeoutMs: 0 }));
    assert.match(error.message, /were cancelled and hold nothing/);
    await waitFor("nothing unsettled", async () => session.unsettled() === 0);
    await assertFree(session, "lost-1", "lost-2");
  });

  test("what is given is checked", async (t) => {
    const { open } = at(t, server);
    const session = await open("checked");
    const locks = new Locks(session);
    await assert.rejects(session.acquireAll([]), /^RangeError: 0 resources were given/);
    await assert.rejects(locks.acquireAll(Array(101).fill("a")), /^RangeError: 101 resources were given/);
    await assert.rejects(locks.acquireAll(["a", { name: "a", slots: 2 }]), /was given twice/);
    await assert.rejects(locks.acquireAll("ab" as never), /^TypeError: names must be an array/);
    const acquire = (slots: unknown): Promise<Guard> => locks.acquire("a", { slots: slots as never });
    await assert.rejects(acquire(0), /^RangeError: slots is 0: give 1 to 1000/);
    await assert.rejects(acquire(true), /^TypeError: slots must be a whole number/);
  });
});
