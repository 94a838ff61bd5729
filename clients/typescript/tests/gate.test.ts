/** Gates against a real server. */

import assert from "node:assert/strict";
import { appendFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";

import { Client, Gate, silentLogger, Unavailable } from "../src/index.js";
import { begin, Log, object, thrown } from "./support/case.js";
import { temporary, waitFor } from "./support/server.js";

/** Waits until the gate says so by itself, without asking the store. */
async function says(gate: Gate, token: number, verdict: string): Promise<void> {
  await waitFor(`${verdict} for ${token}`, () => String(gate.judge("scene", "lobby", token)) === verdict);
}

describe("gates", { concurrency: true }, () => {
  test("a paused holder is refused", async (t) => {
    const { client, open } = await begin(t);
    await using gate = await Gate.open(client, { kinds: ["scene"] });
    const one = await open("one");
    const two = await open("two");
    const first = await one.acquire("scene", "lobby");
    assert.equal(String(await gate.decide("scene", "lobby", first.token, one.sessionId)), "admit");
    await first.release();
    const second = await two.acquire("scene", "lobby");
    await says(gate, first.token, `stale ${second.token}`);
    assert.ok((await gate.decide("scene", "lobby", second.token, two.sessionId)).isAdmitted);
    assert.equal(
      String(await gate.decide("scene", "lobby", second.token, one.sessionId)),
      `stale ${second.token}`,
    );
    const forged = await gate.decide("scene", "lobby", second.token + 1_000);
    assert.deepEqual([forged.why, forged.newest, forged.mayPass], ["never_given", second.token, false]);
    assert.equal((await gate.decide("scene", "nowhere", 1)).why, "no_such_resource");
    assert.ok(gate.lagMs !== undefined && gate.lagMs >= 0);
    assert.throws(() => gate.judge("camera", "lobby", 1), /this gate is for scene, not for "camera"/);
    assert.throws(() => gate.judge("scene", "lobby", 1.5), /token is 1.5/);
    await gate.close();
    await thrown(Unavailable, gate.decide("scene", "lobby", second.token));
  });

  test("what cannot be known any longer is not admitted, unless the gate fails open", async (t) => {
    const { client, open, server } = await begin(t);
    const options = { kinds: "scene", cacheTtlMs: 2_000, refreshWithinMs: 1_000 };
    await using closed = await Gate.open(client, options);
    await using opened = await Gate.open(client, { ...options, failOpen: true });
    const guard = await (await open("one", { ttlMs: 60_000 })).acquire("scene", "lobby");
    for (const gate of [closed, opened]) {
      await gate.ready();
      assert.ok((await gate.decide("scene", "lobby", guard.token)).isAdmitted);
    }
    server.program.send("SIGSTOP");
    t.after(() => server.program.send("SIGCONT"));
    await says(closed, guard.token, "undecidable expired");
    assert.equal((await closed.decide("scene", "lobby", guard.token)).why, "expired");
    await says(opened, guard.token, "admit");
    assert.ok((await opened.decide("scene", "lobby", guard.token + 1)).isAdmitted);
    assert.equal(String(opened.judge("scene", "lobby", guard.token)), `stale ${guard.token + 1}`);
    server.program.send("SIGCONT");
    await says(closed, guard.token, "admit");
  });

  test("a gate that restarts remembers, without a server", async (t) => {
    const { client, open } = await begin(t);
    const folder = temporary("gate");
    t.after(folder.remove);
    const memory = join(folder.path, "marks");
    const session = await open("one");
    const tokens: number[] = [];
    {
      await using gate = await Gate.open(client, { kinds: ["scene"], memory });
      for (let n = 0; n < 3; n++) {
        const guard = await session.acquire("scene", "lobby");
        assert.ok((await gate.decide("scene", "lobby", guard.token)).isAdmitted);
        tokens.push(guard.token);
        await guard.release();
      }
      await assert.rejects(
        Gate.open(client, { kinds: ["scene"], memory }),
        /give each gate a file of its own/,
      );
    }
    appendFileSync(memory, '{"mark":{"ten'); // a crash in the middle of a line
    const [, second, third] = tokens as [number, number, number];
    {
      await using nobody = new Client("127.0.0.1:1", { retryForMs: 0, logger: silentLogger });
      await using gate = await Gate.open(nobody, { kinds: ["scene"], memory });
      assert.equal(String(gate.judge("scene", "lobby", second)), `stale ${third}`);
      assert.equal((await gate.decide("scene", "lobby", third)).why, "unknown");
    }
    const odd = '{"mark":{"token":9,"session":null,"tenant":"default","kind":"scene","key":"a\u2028b"}}';
    writeFileSync(memory, `{"solehold_gate":1}\n${odd}\n`); // as the Rust client writes it
    {
      await using gate = await Gate.open(client, { kinds: ["scene"], memory });
      assert.equal(String(gate.judge("scene", "a\u2028b", 8)), "stale 9");
    }
    writeFileSync(memory, '{"solehold_gate":1}\nnonsense\n{"floor":1}\n');
    await assert.rejects(
      Gate.open(client, { kinds: ["scene"], memory }),
      /line 2 of the gate's memory .* cannot be read/,
    );
    writeFileSync(memory, "something else\n");
    await assert.rejects(Gate.open(client, { kinds: ["scene"], memory }), /line 1 of the gate's memory/);
  });

  test("a mark that cannot be saved admits nothing", async (t) => {
    const { client, open } = await begin(t);
    const folder = temporary("gate");
    t.after(folder.remove);
    await using gate = await Gate.open(client, {
      kinds: "scene",
      memory: join(folder.path, "marks"),
      refreshWithinMs: 300,
    });
    await gate.ready();
    const { memory } = gate as unknown as { memory: { save: (...args: unknown[]) => Promise<void> } };
    const save = memory.save.bind(memory);
    memory.save = () => Promise.reject(new Error("no space left"));
    const guard = await (await open("one")).acquire("scene", "lobby");
    assert.equal(String(await gate.decide("scene", "lobby", guard.token)), "undecidable unsaved");
    memory.save = save;
    await says(gate, guard.token, "admit");
  });

  test("one question serves all decisions that waited for it", async (t) => {
    const { client, open } = await begin(t);
    await using gate = await Gate.open(client, { kinds: "scene", strict: true });
    const guard = await (await open("one")).acquire("scene", "lobby");
    await says(gate, guard.token, "undecidable unconfirmed");
    const inner = gate as unknown as {
      refreshes: { newest: (key: unknown) => Promise<unknown>; underWay: Map<string, unknown> };
    };
    const newest = inner.refreshes.newest;
    let asked = 0;
    inner.refreshes.newest = (key) => {
      asked += 1;
      return newest(key);
    };
    const verdicts = await Promise.all(
      Array.from({ length: 50 }, () => gate.decide("scene", "lobby", guard.token)),
    );
    assert.deepEqual([...new Set(verdicts.map(String))], ["admit"]);
    assert.ok(asked <= 2, `${asked} questions`);
    const forged = await Promise.all(
      Array.from({ length: 50 }, () => gate.decide("scene", "lobby", guard.token + 1)),
    );
    assert.deepEqual([...new Set(forged.map(({ why }) => why))], ["never_given"]);
    assert.ok(asked <= 4, `${asked} questions`);
    assert.equal(inner.refreshes.underWay.size, 0, "nothing is kept of questions that were answered");
  });

  test("a gate whose key is refused does not fail open", async (t) => {
    const { client, open, server } = await begin(t);
    const session = await open("one");
    const guard = await session.acquire("scene", "lobby");
    await session.close();
    const made = object(await client.request("POST", "/api/v1/admin/keys", { name: "admin", role: "admin" }));
    for (const key of [undefined, "wrong"]) {
      const log = new Log();
      await using refused = new Client(server.url, { key, logger: log });
      await using gate = await Gate.open(refused, { kinds: "scene", failOpen: true, refreshWithinMs: 1_000 });
      await waitFor("the refusal", () => gate.denied !== undefined);
      for (const token of [guard.token, guard.token + 1_000]) {
        assert.equal(String(await gate.decide("scene", "lobby", token)), "undecidable denied");
      }
      assert.match(String(gate.denied), /unauthorized/);
      assert.equal(log.lines.filter((line) => line.startsWith("ERROR")).length, 1, log.lines.join("\n"));
    }
    await using admin = new Client(server.url, { key: String(made["key"]) });
    const only = [{ kind: "scene", key_prefix: "lob" }];
    const limited = object(
      await admin.request("POST", "/api/v1/admin/keys", { name: "gate", role: "reader", only }),
    );
    await using reader = new Client(server.url, { key: String(limited["key"]) });
    await using gate = await Gate.open(reader, { kinds: "scene", failOpen: true });
    await gate.ready();
    assert.equal(String(await gate.decide("scene", "cellar", 1)), "undecidable hidden");
    assert.equal((await gate.decide("scene", "lobby", guard.token + 1_000)).mayPass, false);
    assert.equal(gate.denied, undefined);
  });
});
