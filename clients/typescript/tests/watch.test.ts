/** The watch: from a real server across restarts, and its pure parts. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { BadRequest, Compacted, type Event, type Snapshot, Unknown, type Watch } from "../src/index.js";
import { FRAME_BYTES_MAX } from "../src/limits.js";
import { Decoder } from "../src/sse.js";
import { Follower, Resync } from "../src/watch.js";
import { begin, thrown } from "./support/case.js";
import { waitFor } from "./support/server.js";

async function nextEvent(watch: Watch): Promise<Event> {
  const { value } = await watch.next();
  assert.ok(value?.type === "event", JSON.stringify(value));
  return value;
}

async function snapshot(watch: Watch): Promise<Snapshot> {
  const { value } = await watch.next();
  assert.ok(value?.type === "snapshot", JSON.stringify(value));
  return value;
}

describe("watching", () => {
  test("who owns what, then every change", async (t) => {
    const { client, open } = await begin(t);
    const session = await open("owner");
    const guard = await session.acquire("scene", "hall");
    await using watch = client.watch();
    const seen = await snapshot(watch);
    const [owned] = seen.resources;
    assert.ok(owned && seen.resources.length === 1);
    assert.deepEqual(
      [owned.kind, owned.key, owned.holder, owned.token],
      ["scene", "hall", "owner", guard.token],
    );
    assert.deepEqual([owned.leaseId, owned.sessionId], [guard.leaseId, session.sessionId]);
    assert.ok(owned.ttlLeftMs > 0 && owned.ttlLeftMs <= 30_000);
    assert.equal(watch.cursor, seen.cursor);
    const other = await session.acquire("scene", "yard");
    await other.release();
    const acquired = await nextEvent(watch);
    const released = await nextEvent(watch);
    for (const [event, eventType] of [
      [acquired, "lease_acquired"],
      [released, "lease_released"],
    ] as const) {
      assert.deepEqual(
        [event.eventType, event.key, event.token, event.holder],
        [eventType, "yard", other.token, "owner"],
      );
    }
    assert.equal(watch.cursor, released.cursor);
    assert.ok(released.revision > acquired.revision);
  });

  test("it resumes by cursor across restarts with no gaps and no duplicates", async (t) => {
    const { client, open, server } = await begin(t, { retryForMs: 60_000 });
    const tokens: number[] = [];
    const seen: number[] = [];
    const take = async (watch: Watch, count: number): Promise<void> => {
      while (seen.length < count) {
        const event = await nextEvent(watch);
        if (event.eventType === "lease_acquired") seen.push(event.token as number);
      }
    };
    const watch = client.watch({ kind: "scene" });
    await snapshot(watch);
    for (let round = 0; round < 2; round++) {
      const session = await open("worker");
      for (let n = 0; n < 5; n++) {
        const guard = await session.acquire("scene", "hall");
        tokens.push(guard.token);
        await guard.release();
      }
      await (await session.acquire("camera", "not-watched")).release();
      await take(watch, tokens.length - 2); // the rest is under way when the server goes
      await server.kill();
      await server.startAgain();
    }
    const { cursor } = watch;
    await watch.close();
    assert.deepEqual(await watch.next(), { done: true, value: undefined });
    // Another watch continues where the first one stood.
    await using next = client.watch({ kind: "scene", cursor });
    await take(next, tokens.length);
    assert.deepEqual(seen, tokens);
  });

  test("renewals are sent to watchers that ask for them", async (t) => {
    const { client, open } = await begin(t);
    await using watch = client.watch({ renewals: true, holder: "beating" });
    await snapshot(watch);
    const session = await open("beating", { ttlMs: 2_000 });
    const guard = await session.acquire("scene", "hall");
    const acquired = await nextEvent(watch);
    const renewed = await nextEvent(watch);
    assert.deepEqual([acquired.eventType, renewed.eventType], ["lease_acquired", "lease_renewed"]);
    assert.deepEqual([renewed.token, watch.cursor], [guard.token, acquired.cursor]);
  });

  test("an abort ends it, also while it waits, and so does a break", async (t) => {
    const { client } = await begin(t);
    const abort = new AbortController();
    const watch = client.watch({ signal: abort.signal });
    await snapshot(watch);
    const next = watch.next();
    abort.abort(new RangeError("enough"));
    assert.equal((await thrown(RangeError, next)).message, "enough");
    for await (const seen of client.watch()) {
      assert.equal(seen.type, "snapshot");
      break;
    }
    await thrown(BadRequest, client.watch({ cursor: "1.99999" }).next());
    const { fresh } = (
      client as unknown as { main: { transport: { fresh: { plain: { sockets: object } } } } }
    ).main.transport;
    await waitFor("no connection to be left", () => Object.keys(fresh.plain.sockets).length === 0);
  });
});

describe("a follower", () => {
  const ownership = { tenant: "default", kind: "scene", key: "a", token: 3, ttl_ms: 5 };
  const frame = (event: string, data: unknown): { event: string; data: string } => ({
    event,
    data: JSON.stringify(data),
  });
  const change = (cursor: string, revision: number): unknown => ({
    event_type: "lease_acquired",
    cursor,
    revision,
    timestamp: "t",
    tenant: "default",
    kind: "scene",
    key: "a",
  });

  test("joins the parts of a snapshot, and begins anew after a lost connection", () => {
    const follower = new Follower(undefined);
    assert.equal(
      follower.take(frame("snapshot", { cursor: "1.4", resources: [ownership], more: true })),
      undefined,
    );
    assert.equal(follower.cursor, undefined, "it is not whole");
    follower.begin();
    follower.take(frame("snapshot", { cursor: "1.5", resources: [ownership], more: true }));
    const whole = follower.take(frame("snapshot", { cursor: "1.5", resources: [ownership], more: false }));
    assert.ok(whole?.type === "snapshot" && whole.resources.length === 2);
    assert.equal(follower.cursor, "1.5");
    const small = new Follower(undefined, 10);
    assert.throws(
      () => small.take(frame("snapshot", { cursor: "1.5", resources: [ownership], more: false })),
      Unknown,
    );
  });

  test("skips what was seen, and follows epochs", () => {
    const follower = new Follower("1.9");
    assert.equal(follower.take(frame("event", change("1.9", 9))), undefined);
    assert.equal(follower.take(frame("event", change("1.10", 10)))?.cursor, "1.10", "by number, not by text");
    assert.equal(follower.take(frame("event", change("2.3", 3)))?.cursor, "2.3");
    follower.take(frame("progress", { cursor: "2.7" }));
    follower.take(frame("progress", { cursor: "2.5" }));
    assert.equal(follower.cursor, "2.7");
    assert.equal(follower.take(frame("something_newer", {})), undefined);
  });

  test("says what ends it", () => {
    const follower = new Follower("1.2");
    assert.throws(() => follower.take(frame("compacted", { floor: "1.50" })), Compacted);
    assert.throws(() => follower.take(frame("resync", { cursor: "1.2", reason: "slow" })), Resync);
    for (const data of ["{", "[]", '{"cursor": "x"}', '{"cursor": "1.5"}']) {
      assert.throws(() => follower.take({ event: "event", data }), Unknown, data);
    }
    const tooLarge = change("1.5", 2 ** 53) as object;
    assert.throws(
      () => follower.take(frame("event", tooLarge)),
      /not a whole number/,
      "two tokens would be read as one",
    );
  });
});

describe("the decoder", () => {
  test("gives the same frames however the bytes are cut", () => {
    const text =
      ": hello\n\nevent: note\r\nid: 1.7\r\ndata: two\r\ndata: línes\r\n\r\n" +
      "data:bare\r\revent: empty\n\ndata\n\n";
    const bytes = Buffer.from(text);
    const expected = [
      { event: "note", data: "two\nlínes" },
      { event: "message", data: "bare" },
      { event: "message", data: "" },
    ];
    for (let size = 1; size <= bytes.length; size++) {
      const decoder = new Decoder();
      const frames = [];
      for (let start = 0; start < bytes.length; start += size)
        frames.push(...decoder.push(bytes.subarray(start, start + size)));
      assert.deepEqual(frames, expected, `in pieces of ${size}`);
    }
  });

  test("a frame that is too large is refused", () => {
    const decoder = new Decoder();
    const piece = Buffer.alloc(1024 * 1024, "x");
    assert.throws(() => {
      for (let size = 0; size <= FRAME_BYTES_MAX; size += piece.length) decoder.push(piece);
    }, /more than 4194304 bytes/);
  });
});
