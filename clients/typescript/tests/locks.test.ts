/** Locks: first come, first served, and nothing is left behind by an acquire that ends without a guard. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import {
  AnswerLost,
  type Guard,
  Lost,
  Locks,
  NotFound,
  Refused,
  type Transport,
  Unavailable,
} from "../src/index.js";
import { waitInLine } from "../src/line.js";
import type { Grant } from "../src/wire.js";
import { at, type Case, thrown } from "./support/case.js";
import { Solehold, waitFor } from "./support/server.js";

const WAITERS = 200;

let server: Solehold;
before(async () => {
  server = await Solehold.start();
});
after(() => server.stop());

describe("locks", { concurrency: true }, () => {
  test("many waiters get the lock in order, one at a time", async (t) => {
    const { open, untilWaiting } = at(t, server);
    const locks = new Locks(await open("many"));
    const first = await locks.acquire("many");
    const order: number[] = [];
    const tokens: number[] = [];
    let held = 0;
    const work = async (number: number): Promise<void> => {
      const guard = await locks.acquire("many");
      held += 1;
      assert.equal(held, 1, "one at a time");
      order.push(number);
      tokens.push(guard.check());
      await new Promise((resolve) => setImmediate(resolve));
      held -= 1;
      await guard.release();
    };
    const waiters: Promise<void>[] = [];
    for (let number = 0; number < WAITERS; number++) {
      waiters.push(work(number));
      // The order of arrival is the server's, so each is in line before the next.
      if (number < 10 || number === WAITERS - 1) await untilWaiting("lock", "many", number + 1);
    }
    await first.release();
    await Promise.all(waiters);
    assert.equal(new Set(order).size, WAITERS);
    assert.deepEqual(
      tokens,
      [...tokens].sort((a, b) => a - b),
    );
    assert.deepEqual(order.slice(0, 10), [...Array(10).keys()]);
    assert.ok((tokens[0] as number) > first.token);
  });

  test("a lock that was waited for is confirmed", async (t) => {
    const { open, untilWaiting } = at(t, server);
    const locks = new Locks(await open("confirming"));
    const first = await locks.acquire("confirmed");
    const waiting = locks.acquire("confirmed");
    await untilWaiting("lock", "confirmed", 1);
    await first.release();
    const guard = await waiting;
    // Unconfirmed, it would have lapsed after two seconds.
    const error = await thrown(Refused, locks.acquire("confirmed", { timeoutMs: 3_000 }));
    assert.equal(error.token, guard.token);
    assert.ok(guard.isLive());
  });

  test("one that is not confirmed in time is waited for again", async (t) => {
    const { client, open, resource, untilWaiting } = at(t, server);
    const locks = new Locks(await open("lapsing"));
    const first = await locks.acquire("lapsed");
    const renew = client.renew.bind(client);
    let lapsed = 0;
    client.renew = async (target, proof, options) => {
      if (lapsed === 0) {
        lapsed = proof.token;
        await waitFor(
          "the grant to lapse",
          async () => (await resource("lock", "lapsed"))?.lease?.token !== proof.token,
        );
      }
      return renew(target, proof, options);
    };
    const waiting = locks.acquire("lapsed");
    await untilWaiting("lock", "lapsed", 1);
    await first.release();
    const guard = await waiting;
    assert.ok(lapsed > first.token && guard.token > lapsed);
    assert.ok(guard.isLive());
  });

  test("when the time is up the line is left", async (t) => {
    const { open, resource } = at(t, server);
    const session = await open("short");
    const locks = new Locks(session);
    const guard = await locks.acquire("short");
    const error = await thrown(Refused, locks.acquire("short", { timeoutMs: 300 }));
    assert.deepEqual([error.code, error.holder, error.token], ["held", "short", guard.token]);
    assert.equal((await resource("lock", "short"))?.waiting, 0);
    await thrown(Refused, locks.tryAcquire("short"));
  });

  test("an abort leaves the line, and the others keep their places", async (t) => {
    const { open, untilWaiting } = at(t, server);
    const session = await open("aborting");
    const locks = new Locks(session);
    const first = await locks.acquire("aborted");
    const abort = new AbortController();
    const leaver = locks.acquire("aborted", { signal: abort.signal });
    await untilWaiting("lock", "aborted", 1);
    const stayer = locks.acquire("aborted");
    await untilWaiting("lock", "aborted", 2);
    abort.abort(new RangeError("changed my mind"));
    assert.equal((await thrown(RangeError, leaver)).message, "changed my mind");
    await untilWaiting("lock", "aborted", 1);
    await first.release();
    assert.ok((await stayer).isLive());
    await waitFor("everything to be settled", () => session.unsettled() === 0);
    await thrown(RangeError, locks.acquire("aborted", { signal: abort.signal }));
  });

  test("however early or late an abort comes, nothing stays held", async (t) => {
    const { open, holder, resource } = at(t, server);
    const session = await open("anytime");
    let got = 0;
    for (let round = 0; round < 60; round++) {
      const abort = new AbortController();
      const acquiring = session.acquire("scene", "anytime", { signal: abort.signal, timeoutMs: 5_000 });
      const stop = (): void => abort.abort(new RangeError("stop"));
      if (round % 3 === 0) stop();
      else if (round % 3 === 1) setImmediate(stop);
      else setTimeout(stop, round / 15);
      const guard: Guard | undefined = await acquiring.catch((error: unknown) => {
        assert.ok(error instanceof RangeError, String(error));
        return undefined;
      });
      if (guard) {
        got += 1;
        assert.equal(await guard.release(), true);
      }
      await waitFor("the outcome", () => session.unsettled() === 0);
      assert.equal(await holder("scene", "anytime"), undefined, `round ${round}`);
      assert.equal((await resource("scene", "anytime"))?.waiting ?? 0, 0);
    }
    t.diagnostic(`${got} of 60 were granted before their abort`);
  });

  test("answers that are lost leave nothing behind", async (t) => {
    const { client, open, holder } = at(t, server);
    const session = await open("lossy");
    const { transport } = (client as unknown as { main: { transport: Transport } }).main;
    const send = transport.send.bind(transport);
    const isLost = { acquires: true, cancels: 2 };
    transport.send = async (server, request) => {
      const answer = await send(server, request);
      const isAcquire = request.target.endsWith("/lease") && isLost.acquires;
      const isCancel = request.target.endsWith("/cancel") && isLost.cancels-- > 0;
      if (isAcquire || isCancel) throw new AnswerLost("this test loses an answer");
      return answer;
    };
    const error = await thrown(Unavailable, session.tryAcquire("scene", "lossy"));
    assert.match(error.message, /the request was cancelled and holds nothing/);
    assert.equal(await holder("scene", "lossy"), undefined);
    isLost.acquires = false;
    const guard = await session.acquire("scene", "lossy", { timeoutMs: 0 });
    assert.ok(guard.isLive(), "it was not held by the attempt whose answer was lost");
  });

  test("waiting ends with the session", async (t) => {
    const { open, untilWaiting } = at(t, server);
    const holder = new Locks(await open("holder-of-ended"));
    await holder.acquire("ended");
    const session = await open("leaver");
    const waiting = new Locks(session).acquire("ended");
    await untilWaiting("lock", "ended", 1);
    const ended = thrown(Lost, waiting);
    await session.close();
    assert.equal((await ended).why, "closed");
    await untilWaiting("lock", "ended", 0);
  });

  test("locks over a client open a session of their own, and another after a loss", async (t) => {
    const { client } = at(t, server);
    await using one = new Locks(client, { ttlMs: 5_000 });
    await using other = new Locks(client, { ttlMs: 5_000, holder: "named" });
    const guard = await one.acquire("own");
    assert.notEqual((await thrown(Refused, other.tryAcquire("own"))).holder, "named");
    await one.close();
    assert.equal((await guard.lost()).why, "closed");
    const heir = await other.tryAcquire("own");
    assert.ok(heir.token > guard.token);
    await heir.release();
    assert.ok((await one.acquire("own")).isLive());
    const session = await at(t, server).open("has-a-holder");
    assert.throws(() => new Locks(session, { holder: "another" }), /the session is has-a-holder's already/);
  });

  test("a waiter survives a restart of the server", async (t) => {
    const own = await Solehold.start();
    t.after(() => own.stop());
    const { open, untilWaiting }: Case = at(t, own, { retryForMs: 30_000 });
    const locks = new Locks(await open("survivor", { ttlMs: 20_000 }));
    const guard = await locks.acquire("restarted");
    const waiting = locks.acquire("restarted");
    await untilWaiting("lock", "restarted", 1);
    await own.kill();
    await own.startAgain();
    await guard.release();
    assert.ok((await waiting).token > guard.token);
  });
});

describe("a wait that is longer than one request", () => {
  const clock = { now: () => performance.now() };
  const grant: Grant = {
    leaseId: "l",
    token: 7,
    epoch: 1,
    revision: 7,
    state: undefined,
    confirmWithinMs: undefined,
    slot: undefined,
    slots: undefined,
  };

  test("is requested again before the first request ends, and the first is not abandoned", async () => {
    const asked: { waitMs: number; signal: AbortSignal }[] = [];
    const ask = (waitMs: number, signal: AbortSignal): Promise<Grant> => {
      asked.push({ waitMs, signal });
      const isThird = asked.length === 3;
      if (isThird)
        assert.ok(!asked[1]?.signal.aborted, "the former request has its place until this one has");
      return isThird ? Promise.resolve(grant) : new Promise(() => {});
    };
    const { signal } = new AbortController();
    const got = await waitInLine(ask, { clock, until: Infinity, leewayMs: 100, signal, waitMsMax: 30 });
    assert.equal(got, grant);
    assert.deepEqual(
      asked.map(({ waitMs }) => waitMs),
      [30, 30, 30],
    );
    assert.ok(asked[0]?.signal.aborted && asked[1]?.signal.aborted, "when it is over they are abandoned");
  });

  test("ends by what the last request was answered", async () => {
    const { signal } = new AbortController();
    let count = 0;
    const ask = async (): Promise<Grant> => {
      count += 1;
      throw new NotFound(`answer ${count}`);
    };
    const waited = waitInLine(ask, { clock, until: clock.now() + 5_000, leewayMs: 100, signal });
    assert.equal((await thrown(NotFound, waited)).detail, "answer 1");
  });
});
