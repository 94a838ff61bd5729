/** Many gateways on one store. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { AnotherGateway, Client, Cluster, type ClusterConfig, Refused, silentLogger } from "../src/index.js";
import { checkedCluster, duration } from "../src/cluster-config.js";
import { begin, type Case, thrown } from "./support/case.js";
import { waitFor } from "./support/server.js";

const LOCKING = {
  enabled: true,
  session_locks: { enabled: true, ttl: "3s", refresh_interval: "1s", acquire_timeout: "10s" },
};

async function start(
  t: { after: (f: () => Promise<void>) => void },
  { client }: Case,
  config: ClusterConfig,
): Promise<Cluster> {
  const cluster = await Cluster.start(client, config);
  t.after(() => cluster.leave());
  return cluster;
}

describe("clusters", { concurrency: true }, () => {
  test("which nodes may run together is as the guide says", async (t) => {
    const flags = [false, true];
    const all = flags.flatMap((enabled) =>
      flags.flatMap((allow) => flags.map((locks) => ({ enabled, allow, locks }))),
    );
    const given = await begin(t);
    for (const { enabled, allow, locks } of all) {
      const name = JSON.stringify({ enabled, allow, locks });
      const config = { enabled, allow_multiple_gateways: allow, session_locks: { enabled: locks } };
      const first = await Cluster.start(given.client, { ...config, node_id: "first" });
      const isWarned = enabled ? !locks : allow || locks;
      assert.equal(first.warnings.length, isWarned ? 1 : 0, name);
      const second = Cluster.start(given.client, { ...config, node_id: "second" });
      if (enabled && (allow || locks)) {
        await (await second).leave();
      } else {
        const error = await thrown(AnotherGateway, second);
        assert.match(error.message, /^gateway first runs on this store already \(if it has died/, name);
        assert.equal(error.holder, "first");
      }
      await first.leave();
    }
    const alone = await Cluster.start(given.client, {});
    await given.client.request("POST", "/api/v1/resources/gateway/alone/lease/revoke", { fenced: true });
    assert.equal((await alone.lost()).why, "ended");
    assert.ok(alone.signal.aborted);
    await alone.leave();
  });

  test("a session is locked by one node at a time, in line", async (t) => {
    const given = await begin(t);
    const one = await start(t, given, { ...LOCKING, node_id: "one" });
    const two = await start(t, given, { ...LOCKING, node_id: "two" });
    const guard = await one.lockSession("chat-7");
    assert.ok(guard);
    const waiting = two.lockSession("chat-7");
    await given.untilWaiting("lock", "chat-7", 1);
    const first = guard.deadline;
    await waitFor("heartbeats at the interval given", () => guard.deadline > first + 1_500);
    await guard.release();
    const next = await waiting;
    assert.ok(next && next.token > guard.token);
    const hasty = await start(t, given, {
      enabled: true,
      node_id: "hasty",
      session_locks: { ...LOCKING.session_locks, acquire_timeout: "200ms" },
    });
    assert.equal((await thrown(Refused, hasty.lockSession("chat-7"))).holder, "two");
    assert.deepEqual(Object.keys(one.health()), [
      "node_id",
      "cluster",
      "session_locks",
      "session_id",
      "is_live",
    ]);
    assert.equal(
      await (await start(t, given, { enabled: true, allow_multiple_gateways: true })).lockSession("x"),
      undefined,
    );
  });

  test("keys are routed to live nodes, and a node that leaves moves only its own", async (t) => {
    const given = await begin(t);
    const nodes = [];
    for (const node_id of ["a", "b", "c"]) nodes.push(await start(t, given, { ...LOCKING, node_id }));
    const [a, , c] = nodes as [Cluster, Cluster, Cluster];
    a.setMetrics({ load: 3 });
    assert.deepEqual((await a.nodes()).map(({ nodeId }) => nodeId).sort(), ["a", "b", "c"]);
    const keys = Array.from({ length: 60 }, (_, n) => `chat-${n}`);
    const homes = await Promise.all(keys.map((key) => a.route(key)));
    assert.deepEqual(
      await Promise.all(keys.map((key) => c.route(key))),
      homes,
      "all nodes give the same answer",
    );
    assert.deepEqual([...new Set(homes)].sort(), ["a", "b", "c"]);
    await waitFor("the metrics", async () => {
      return (await given.client.nodes()).some(
        ({ nodeId, metrics }) => nodeId === "a" && metrics["load"] === 3,
      );
    });
    await c.leave();
    const after = await Promise.all(keys.map((key) => a.route(key)));
    for (const [at, home] of after.entries()) assert.ok(home === homes[at] || homes[at] === "c");
  });

  test("a node that lost its session comes back, and one that was replaced must stop", async (t) => {
    const given = await begin(t);
    const node = await start(t, given, { ...LOCKING, node_id: "twin" });
    const { session_id } = node.health();
    await given.client.request("DELETE", `/api/v1/sessions/${session_id}`);
    await waitFor("another session", () => node.health().session_id !== session_id && node.health().is_live);
    const lock = await node.lockSession("chat-1");
    assert.ok(lock?.isLive());
    await using other = new Client(given.server.url, { logger: silentLogger });
    await using twin = await Cluster.start(other, { ...LOCKING, node_id: "twin" });
    assert.equal((await node.lost()).code, "session_superseded");
    assert.ok(twin.health().is_live);
  });
});

test("a wrong section is named by its keys", () => {
  const refuses = (config: unknown, told: RegExp): void =>
    assert.throws(() => checkedCluster(config as ClusterConfig), told);
  refuses({ node: "a" }, /^RangeError: cluster has no key "node": its keys are enabled, node_id/);
  refuses({ session_locks: { tll: "2m" } }, /cluster.session_locks has no key "tll"/);
  refuses({ enabled: "maybe" }, /cluster.enabled must be true or false, not a string/);
  refuses({ node_id: "" }, /cluster.node_id is ""/);
  refuses(
    { session_locks: { ttl: 30 } },
    /cluster.session_locks.ttl must be a duration, as in 200ms, 30s, 2m, not a number/,
  );
  refuses({ session_locks: { ttl: "soon" } }, /write one as in 200ms, 30s, 2m/);
  refuses({ session_locks: { ttl: "10ms" } }, /it must be 1s to 24h/);
  refuses({ session_locks: { ttl: "1m", refresh_interval: "30s" } }, /not below half of the ttl/);
  refuses({ session_locks: { acquire_timeout: "0s" } }, /acquire_timeout is 0/);
  assert.deepEqual(
    [duration("x", "200ms"), duration("x", "2m"), duration("x", "1h 30s")],
    [200, 120_000, 3_630_000],
  );
  assert.notEqual(checkedCluster({}).nodeId, checkedCluster({}).nodeId, "a node has a name of its own");
  assert.equal(
    checkedCluster({ session_locks: { ttl: "1m", refresh_interval: "29s" } }).sessionLocks.refreshMs,
    29_000,
  );
});
