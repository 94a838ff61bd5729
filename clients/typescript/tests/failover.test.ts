/** Two servers over one PostgreSQL: either may go. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Client, Locks, Session, silentLogger } from "../src/index.js";
import { Postgres, Solehold, waitFor } from "./support/server.js";

let postgres: Postgres;
before(async () => {
  postgres = await Postgres.start();
});
after(() => postgres?.stop());

test("sessions, waiters and watches survive the loss of a server", async (t) => {
  const args = ["--engine", postgres.url];
  const [first, second] = await Promise.all([Solehold.start({ args }), Solehold.start({ args })]);
  t.after(() => Promise.all([first.stop(), second.stop()]));
  await using both = new Client([first.url, second.url], { logger: silentLogger });
  await using one = new Client(second.url, { logger: silentLogger });
  await using survivor = await Session.open(both, "survivor", { ttlMs: 6_000 });
  await using other = await Session.open(one, "other");
  assert.ok(
    survivor.deadline - both.now() <= 6_000 - 120 - 500,
    "PostgreSQL's clock may run ahead unnoticed",
  );

  const watch = both.watch({ kind: "scene" });
  assert.equal((await watch.next()).value?.type, "snapshot");
  const guard = await survivor.acquire("scene", "hall");
  const lock = await new Locks(other).acquire("shared");
  const waiting = new Locks(survivor).acquire("shared");
  await waitFor("a waiter", async () => {
    const resource = (await one.request("GET", "/api/v1/resources/lock/shared")) as { waiting: number };
    return resource.waiting === 1;
  });

  const { deadline } = guard;
  await first.kill();
  await waitFor("two heartbeats at the second server", () => {
    assert.ok(guard.isLive());
    return guard.deadline > deadline + 3_000;
  });
  const token = guard.check();
  await guard.writeState({ kept: true });
  await lock.release();
  const heir = await waiting;
  assert.ok(heir.token > lock.token, "its place in line is kept at the other server");

  await guard.release();
  const again = await other.acquire("scene", "hall");
  assert.ok(again.token > token);
  assert.deepEqual(again.state?.document, { kept: true });
  const seen: string[] = [];
  for await (const event of watch) {
    assert.equal(event.type, "event");
    if (event.type === "event" && event.eventType === "lease_acquired")
      seen.push(`${event.holder} ${event.token}`);
    if (seen.length === 2) break;
  }
  assert.deepEqual(seen, [`survivor ${token}`, `other ${again.token}`], "no gaps and no duplicates");
});
