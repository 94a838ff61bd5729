/** The HTTP client against servers that do not behave. */

import assert from "node:assert/strict";
import { createServer, type Socket } from "node:net";
import { describe, test, type TestContext } from "node:test";

import {
  AnswerLost,
  BadRequest,
  Client,
  Compacted,
  Forbidden,
  HttpTransport,
  type HttpResponse,
  NoSession,
  NotSent,
  Refused,
  Server,
  silentLogger,
  Superseded,
  Unavailable,
  Unknown,
} from "../src/index.js";
import { fromAnswer } from "../src/errors.js";
import { HEAD_BYTES_MAX } from "../src/limits.js";
import { thrown } from "./support/case.js";
import { waitFor } from "./support/server.js";

interface Peer {
  server: Server;
  connections: number;
  /** The heads of the requests that came. */
  heads: string[];
}

/** A server that calls `answer` for each request that has come whole. */
async function serve(t: TestContext, answer: (socket: Socket, number: number) => void): Promise<Peer> {
  const peer: Peer = { server: Server.parse("127.0.0.1:1"), connections: 0, heads: [] };
  const sockets = new Set<Socket>();
  const listener = createServer((socket) => {
    peer.connections += 1;
    sockets.add(socket);
    let got = "";
    socket.on("error", () => {});
    socket.on("data", (piece) => {
      got += piece.toString("latin1");
      for (let end = got.indexOf("\r\n\r\n"); end >= 0; end = got.indexOf("\r\n\r\n")) {
        const head = got.slice(0, end);
        const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
        if (got.length < end + 4 + length) return;
        got = got.slice(end + 4 + length);
        peer.heads.push(head);
        answer(socket, peer.heads.length);
      }
    });
  });
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    listener.close();
  });
  const address = listener.address();
  assert.ok(typeof address === "object" && address);
  peer.server = Server.parse(`http://127.0.0.1:${address.port}/below`);
  return peer;
}

function whole(body: string, status = "200 OK"): string {
  return `HTTP/1.1 ${status}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}

/** A server that gives these answers, one per request, and then closes. */
function answers(t: TestContext, ...given: (string | Buffer)[]): Promise<Peer> {
  return serve(t, (socket, number) => {
    const text = given[number - 1] ?? "";
    socket.write(text);
    if (number >= given.length) socket.end();
  });
}

const REQUEST = {
  method: "POST",
  target: "/x",
  body: Buffer.from('{"a":1}'),
  timeoutMs: 5_000,
  repeatable: true,
};

async function send(t: TestContext, server: Server, responseBytesMax = 1 << 20): Promise<HttpResponse> {
  const transport = new HttpTransport({ headers: { authorization: "Bearer k" }, responseBytesMax });
  t.after(() => transport.close());
  return transport.send(server, REQUEST);
}

describe("answers", () => {
  test("a request has what it needs", async (t) => {
    const peer = await answers(t, whole("{}"));
    assert.equal(Buffer.from((await send(t, peer.server)).body).toString(), "{}");
    const [head = ""] = peer.heads;
    assert.match(head, /^POST \/below\/x HTTP\/1\.1\r\n/);
    assert.match(head, /authorization: Bearer k/i);
    assert.match(head, /content-length: 7/i);
  });

  test("a request says which span it belongs to", async (t) => {
    const span = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (const [given, sent] of [
      [span, span],
      [undefined, undefined],
      ["no span\r\nx-odd: 1", undefined],
    ]) {
      const peer = await answers(t, whole("{}"));
      const transport = new HttpTransport({ traceparent: () => given });
      t.after(() => transport.close());
      await transport.send(peer.server, REQUEST);
      assert.equal(/traceparent: (.*)/i.exec(peer.heads[0] ?? "")?.[1]?.trim(), sent);
    }
  });

  test("bodies of every length", async (t) => {
    const chunked =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n" +
      "0\r\nT: x\r\n\r\n";
    for (const [given, expected] of [
      [whole(""), ""],
      [whole("abc"), "abc"],
      [chunked, "abc0123456789"],
      [`HTTP/1.1 103 Early Hints\r\n\r\n${whole("late")}`, "late"],
      ["HTTP/1.0 200 OK\r\n\r\nuntil the end", "until the end"],
      ["HTTP/1.1 204 No Content\r\n\r\n", ""],
    ] as const) {
      const { body } = await send(t, (await answers(t, given)).server);
      assert.equal(Buffer.from(body).toString(), expected, given);
    }
  });

  test("broken answers leave the outcome unknown", async (t) => {
    const chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (const [given, told] of [
      ["", /closed before/],
      ["HTTP/1.1 200", /closed before/],
      [whole("abcdef").slice(0, -3), /closed before/],
      ["SMTP ready\r\n\r\n", /not HTTP/],
      ["HTTP/1.1 banana\r\n\r\n", /not HTTP/],
      ["HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", /not HTTP/],
      ["HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", /larger than 100/],
      [`${chunk}50\r\n${"x".repeat(80)}\r\n50\r\n${"x".repeat(80)}\r\n`, /larger than 100/],
      [`${chunk}xyz\r\n`, /not HTTP|closed before/],
      [`HTTP/1.1 200 OK\r\n\r\n${"x".repeat(200)}`, /larger than 100/],
      [`HTTP/1.1 200 OK\r\nX: ${"x".repeat(2 * HEAD_BYTES_MAX)}\r\n\r\n`, /head of the answer is larger/],
      ["HTTP/1.1 100 Continue\r\n\r\n".repeat(20), /interim|closed before/],
    ] as const) {
      const { server } = await answers(t, given);
      const error = await thrown(AnswerLost, send(t, server, 100));
      assert.match(error.message, told, given.slice(0, 80));
    }
  });

  test("without a connection nothing was sent", async (t) => {
    await thrown(NotSent, send(t, Server.parse("127.0.0.1:1")));
    await thrown(NotSent, send(t, Server.parse("http://no-such-host.invalid")));
  });

  test("silence is bounded, and an abort ends it", async (t) => {
    const { server } = await serve(t, () => {});
    const transport = new HttpTransport();
    t.after(() => transport.close());
    const error = await thrown(Error, transport.send(server, { ...REQUEST, timeoutMs: 50 }));
    assert.ok(
      error instanceof AnswerLost || error instanceof NotSent,
      "a busy machine may not even connect in that time",
    );
    assert.match(error.message, /no answer from .* within 0.0500 s/);
    const abort = new AbortController();
    const sending = transport.send(server, { ...REQUEST, signal: abort.signal });
    setImmediate(() => abort.abort(new RangeError("stop")));
    await thrown(RangeError, sending);
  });
});

describe("connections", () => {
  test("they are kept, and one that was closed meanwhile is replaced", async (t) => {
    const kept = await serve(t, (socket) => socket.write(whole("{}")));
    const transport = new HttpTransport();
    t.after(() => transport.close());
    for (let n = 0; n < 5; n++) await transport.send(kept.server, REQUEST);
    assert.equal(kept.connections, 1);
    // The second request over a connection is not answered.
    const used = new WeakSet<Socket>();
    const once = await serve(t, (socket) => {
      if (used.has(socket)) return socket.destroy();
      used.add(socket);
      return socket.write(whole("{}"));
    });
    for (let n = 0; n < 3; n++) assert.equal((await transport.send(once.server, REQUEST)).status, 200);
    const before = once.heads.length;
    assert.equal((await transport.send(once.server, { ...REQUEST, repeatable: false })).status, 200);
    assert.equal(once.heads.length, before + 1, "what may not be repeated gets a connection of its own");
  });

  test("one whose request was aborted is not used again", async (t) => {
    const waiting: Socket[] = [];
    const peer = await serve(t, (socket, number) => {
      if (number === 1) waiting.push(socket);
      else socket.write(whole(String(number)));
    });
    const transport = new HttpTransport();
    t.after(() => transport.close());
    const abort = new AbortController();
    const first = thrown(Error, transport.send(peer.server, { ...REQUEST, signal: abort.signal }));
    await waitFor("the request to come in", () => waiting.length === 1);
    abort.abort();
    await first;
    waiting[0]?.write(whole("1"));
    assert.equal(Buffer.from((await transport.send(peer.server, REQUEST)).body).toString(), "2");
    assert.equal(peer.connections, 2);
  });
});

describe("repeats", () => {
  test("only what is safe is sent twice", async (t) => {
    for (const [method, repeatable, count] of [
      ["POST", undefined, 1],
      ["POST", true, 2],
      ["GET", undefined, 2],
    ] as const) {
      const peer = await serve(t, (socket, number) => {
        if (number === 1) socket.destroy();
        else socket.write(whole('{"n": 2}'));
      });
      await using client = new Client(String(peer.server), { retryForMs: 5_000, logger: silentLogger });
      const asked = client.request(method, "/x", undefined, repeatable === undefined ? {} : { repeatable });
      if (count === 1) await thrown(Unknown, asked);
      else assert.deepEqual(await asked, { n: 2 });
      assert.equal(peer.heads.length, count);
    }
  });

  test("what was not done is requested of the next server", async (t) => {
    const problem = '{"code": "overloaded", "detail": "too much", "retry_after_ms": 10}';
    const busy = await answers(t, whole(problem, "503 Service Unavailable"));
    const idle = await answers(t, whole('{"n": 1}'));
    await using client = new Client([String(busy.server), String(idle.server)], { logger: silentLogger });
    assert.deepEqual(await client.request("POST", "/x"), { n: 1 });
  });

  test("a server that is none of ours proves nothing", async (t) => {
    const { server } = await answers(t, whole("<html>", "404 Not Found"), whole("not json"));
    await using client = new Client(String(server), { retryForMs: 0, logger: silentLogger });
    assert.match((await thrown(Unknown, client.request("GET", "/x"))).message, /without a problem document/);
    assert.match((await thrown(Unknown, client.request("GET", "/x"))).message, /not JSON/);
  });
});

describe("problems", () => {
  test("each has its class", () => {
    for (const [status, code, kind] of [
      [400, "invalid_field", BadRequest],
      [405, "method_not_allowed", BadRequest],
      [403, "quota_exceeded", Forbidden],
      [404, "no_session", NoSession],
      [404, "session_superseded", Superseded],
      [409, "held", Refused],
      [408, "request_timeout", Unavailable],
      [409, "lost", Refused],
      [410, "compacted", Compacted],
      [429, "too_many_requests", Unavailable],
      [500, "internal", Unknown],
      [503, "overloaded", Unavailable],
      [503, "unknown_outcome", Unknown],
    ] as const) {
      const error = fromAnswer("s", status, Buffer.from(`{"code": "${code}", "detail": "d"}`));
      assert.equal(error.constructor, kind, code);
      assert.deepEqual([error.message, error.status, error.name], [`${code}: d`, status, kind.name]);
    }
  });

  test("nonsense is no proof", () => {
    for (const body of ["", "[]", "{}", "null", '{"code": 5}', "[".repeat(100_000), "\xff"]) {
      assert.equal(fromAnswer("s", 409, Buffer.from(body, "latin1")).constructor, Unknown);
    }
    const odd = fromAnswer(
      "s",
      409,
      Buffer.from('{"code": "held", "token": 9007199254740993, "retry_after_ms": -1, "errors": 5}'),
    );
    assert.deepEqual([odd.token, odd.retryAfterMs, odd.fields], [undefined, undefined, []]);
  });
});
