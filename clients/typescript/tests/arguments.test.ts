/** Arguments that are wrong are named, in the words of the caller. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import {
  Client,
  elect,
  Gate,
  keepSession,
  Locks,
  Policy,
  Session,
  type SessionOptions,
} from "../src/index.js";
import { encode } from "../src/wire.js";
import { begin } from "./support/case.js";

const URL = "http://127.0.0.1:7070";

/** A value that TypeScript would refuse, as a program without types may give it. */
function wrong(value: unknown): never {
  return value as never;
}

async function refuses(message: RegExp, call: () => unknown): Promise<void> {
  await assert.rejects(
    async () => call(),
    (error: Error) => {
      assert.ok(error instanceof TypeError || error instanceof RangeError || error instanceof Error);
      assert.match(error.message, message);
      return true;
    },
  );
}

describe("arguments", () => {
  test("of a client", async () => {
    for (const given of [undefined, 7070, { url: URL }]) {
      await refuses(/^urls must be a URL, or an array of URLs, not /, () => new Client(wrong(given)));
    }
    await refuses(/^a server must be a string such as .*, not a number$/, () => new Client(wrong([7070])));
    await refuses(/^0 servers were given: give 1 to 64$/, () => new Client([]));
    await refuses(/^a server is empty: give HOST:PORT/, () => new Client("http://x,"));
    await refuses(
      /^timeoutMs must be a number of milliseconds, not a string/,
      () => new Client(URL, { timeoutMs: wrong("5") }),
    );
    await refuses(/^timeoutMs is 0: give milliseconds above 0$/, () => new Client(URL, { timeoutMs: 0 }));
    await refuses(/^retryForMs is NaN: give 0 or more/, () => new Client(URL, { retryForMs: NaN }));
    await refuses(
      /^key must be a string, not an object of Buffer$/,
      () => new Client(URL, { key: wrong(Buffer.from("x")) }),
    );
    await refuses(/^tenant must be a string, not a number$/, () => new Client(URL, { tenant: wrong(7) }));
    await refuses(/^tls must be an object, not a boolean$/, () => new Client(URL, { tls: wrong(true) }));
    await refuses(
      /^logger must have the functions debug, info/,
      () => new Client(URL, { logger: wrong({}) }),
    );
    await refuses(
      /^there is no option "timeout": the options are key, /,
      () => new Client(URL, wrong({ timeout: 5 })),
    );
    await refuses(/^a backoff from 0 to 1 ms/, () => new Client(URL, { backoff: { firstMs: 0, capMs: 1 } }));
    assert.equal(
      String(new Client(["a:1, https://b", "c:3/base/"])),
      "Client(http://a:1, https://b:443, http://c:3/base)",
    );
  });

  test("of a server, without its secrets", async () => {
    const odd = [
      "http://x:99999",
      "http://x?q=1",
      "http://x/\r\nX: y",
      "http://ü",
      "localhost",
      "x:port",
      "ftp://x",
    ];
    for (const url of [...odd, "http://", "http://[::1"]) {
      await refuses(/server .* give HOST:PORT or a URL, as in 127.0.0.1:7070/, () => new Client([url]));
    }
    for (const url of ["http://me:hunter2@x", "me:hunter2@x:7070", "http://me:hunter2@x:port"]) {
      await refuses(/^((?!hunter2).)*$/s, () => new Client(url));
    }
    await refuses(/^((?!secret).)*stray newline$/s, () => new Client(URL, { key: "secret\n" }));
    assert.equal(String(new Client("[::1]:7070/")), "Client(http://[::1]:7070)");
  });

  test("of a session", async () => {
    const client = new Client(URL);
    const open = (options: SessionOptions): Promise<Session> => Session.open(client, "w", options);
    await refuses(/^client must be a Client, not a string$/, () => Session.open(wrong(URL), "w"));
    await refuses(/^holder must be a string, not undefined$/, () => Session.open(client, wrong(undefined)));
    await refuses(/^holder is "", which has 0 bytes: a name has 1 to 255/, () => Session.open(client, ""));
    await refuses(/^ttlMs must be a number of milliseconds, not a string/, () =>
      open({ ttlMs: wrong("30") }),
    );
    await refuses(/^ttlMs is 30: give 1000 to 86400000 milliseconds$/, () => open({ ttlMs: 30 }));
    await refuses(/^ttlMs is NaN/, () => open({ ttlMs: NaN }));
    await refuses(/^policy must be a Policy, such as .*, not a string$/, () =>
      open({ policy: wrong("deadline") }),
    );
    await refuses(/^metrics must be a function.*, not an object/, () => open({ metrics: wrong({}) }));
    await refuses(/^signal must be an AbortSignal, not a boolean$/, () => open(wrong({ signal: true })));
    await refuses(/^there is no option "ttl"/, () => open(wrong({ ttl: 30 })));
    await refuses(/^the grace must be a number of milliseconds, not undefined/, () =>
      Policy.grace(wrong(undefined)),
    );
    for (const ms of [0, -1, NaN, Infinity]) await refuses(/^the grace is /, () => Policy.grace(ms));
  });

  test("of an acquire, a guard and what is built on them", async (t) => {
    const { client, open } = await begin(t);
    const session = await open("w");
    await refuses(/^kind must be a string, not a number$/, () => session.acquire(wrong(7), "hall"));
    await refuses(/^key is "xxx.*", which has 256 bytes/, () => session.acquire("scene", "x".repeat(256)));
    await refuses(/^key is "\.\."/, () => session.acquire("scene", ".."));
    await refuses(/^key is not text that can be sent/, () => session.acquire("scene", "\ud800"));
    await refuses(/^timeoutMs must be a number/, () =>
      session.acquire("scene", "x", { timeoutMs: wrong("10") }),
    );
    await refuses(/^timeoutMs is -1: give milliseconds, 0 to ask once/, () =>
      session.acquire("scene", "x", { timeoutMs: -1 }),
    );
    await refuses(/^attributes must be an object, not an array$/, () =>
      session.acquire("scene", "x", { attributes: wrong([]) }),
    );
    await refuses(/^there is no option "timeout"/, () =>
      session.acquire("scene", "x", wrong({ timeout: 1 })),
    );
    const guard = await session.acquire("scene", "hall");
    const circle: Record<string, unknown> = {};
    circle["self"] = circle;
    for (const [document, told] of [
      [new Map(), "an object of Map"],
      [[1, NaN], "the number NaN"],
      [10n, "a bigint"],
      [{ at: new Date() }, "an object of Date"],
      [circle, "contains itself"],
      [undefined, "undefined"],
    ] as const) {
      await refuses(new RegExp(`^document cannot be sent as JSON: .*${told}`), () =>
        guard.writeState(wrong(document)),
      );
    }
    assert.equal((await guard.writeState({ kept: undefined as never, n: 1 })).document !== null, true);
    await refuses(/^work must be a function that takes a signal, not an object of Promise$/, () =>
      guard.run(wrong(Promise.resolve())),
    );
    await refuses(/^owner must be a Client or a Session, not a string$/, () => new Locks(wrong(URL)));
    await refuses(/^name must be a string, not undefined$/, () =>
      new Locks(session).acquire(wrong(undefined)),
    );
    await refuses(/^role must be a string/, () => elect(session, wrong(undefined), () => 1));
    await refuses(/^lead must be a function that takes the guard/, () =>
      elect(session, "r", wrong(undefined)),
    );
    await refuses(/^client must be a Client, not a string$/, () => keepSession(wrong(URL), "w", () => 1));
    await refuses(/^work must be a function that takes the session/, () =>
      keepSession(client, "w", wrong(7)),
    );
    await refuses(/^onLost must be a function that takes the loss/, () =>
      keepSession(client, "w", () => 1, { onLost: wrong(7) }),
    );
    await refuses(/^the path "x y" must begin with \//, () => client.request("GET", "x y"));
  });

  test("of a watch and a gate", async () => {
    const client = new Client(URL);
    await refuses(/^cursor must be a string, such as "1.42", not a number$/, () =>
      client.watch({ cursor: wrong(1.42) }),
    );
    for (const cursor of ["", "7", "1.x", "1.-2", `1.${"9".repeat(20)}`]) {
      await refuses(/^cursor is .*: give one that a watch has returned/, () => client.watch({ cursor }));
    }
    await refuses(/^kind must be a string, not a number$/, () => client.watch({ kind: wrong(7) }));
    await refuses(/^0 kinds were given/, () => Gate.open(client, { kinds: [] }));
    await refuses(/^kinds must be an array of kinds, .* not undefined$/, () => Gate.open(client, wrong({})));
    await refuses(/^cacheTtlMs is 0: give milliseconds above 0$/, () =>
      Gate.open(client, { kinds: "scene", cacheTtlMs: 0 }),
    );
    await refuses(/^marksMax is 0: give a whole number/, () =>
      Gate.open(client, { kinds: "scene", marksMax: 0 }),
    );
    await refuses(/^there is no option "fail_open"/, () =>
      Gate.open(client, wrong({ kinds: "scene", fail_open: true })),
    );
  });
});

test("names in paths are escaped, and bodies are as they were given", () => {
  assert.equal(encode({ a: 1, b: undefined, c: null }).toString(), '{"a":1,"c":null}');
});
