/** Keys, TLS and logs against a real server: what is secret stays so. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test, type TestContext } from "node:test";

import { Client, Session, Unauthorized, Unavailable } from "../src/index.js";
import { at, begin, Log, object, thrown } from "./support/case.js";
import { Solehold, temporary } from "./support/server.js";

interface Pair {
  cert: string;
  key: string;
}

/** A certificate and its key: signed by itself, or by another. */
function certificate(folder: string, name: string, more: readonly string[]): Pair {
  const cert = join(folder, `${name}.pem`);
  const key = join(folder, `${name}.key`);
  const options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  const files = ["-keyout", key, "-out", cert, "-subj", `/CN=${name}`];
  execFileSync("openssl", ["req", "-x509", ...options, ...files, ...more], { stdio: "pipe" });
  return { cert, key };
}

function folderOf(t: TestContext): string {
  const folder = temporary("tls");
  t.after(folder.remove);
  return folder.path;
}

describe("secured", () => {
  test("keys and TLS, also with a client certificate", async (t) => {
    const folder = folderOf(t);
    const own = certificate(folder, "server", ["-addext", "subjectAltName=IP:127.0.0.1"]);
    const clients = certificate(folder, "clients", []);
    const worker = certificate(folder, "worker-7", [
      ...["-CA", clients.cert, "-CAkey", clients.key],
      ...["-addext", "subjectAltName=DNS:worker-7", "-addext", "extendedKeyUsage=clientAuth"],
      // Without this, openssl makes an authority of it.
      ...["-extensions", "usr_cert"],
    ]);
    const args = ["--tls-cert", own.cert, "--tls-key", own.key, "--tls-client-ca", clients.cert];
    const server = await Solehold.start({ args });
    t.after(() => server.stop());
    const ca = readFileSync(own.cert);
    const { client, log } = at(t, server, { tls: { ca } });
    const body = { name: "admin", role: "admin", certificate: "worker-7" };
    const secret = String(object(await client.request("POST", "/api/v1/admin/keys", body))["key"]);
    await thrown(Unauthorized, client.request("GET", "/api/v1/leases"));

    await using keyed = new Client(server.url, { tls: { ca }, key: secret, logger: log });
    await using session = await Session.open(keyed, "secure");
    await (await session.acquire("scene", "hall")).release();
    assert.ok(log.lines.length > 5);
    assert.ok(!log.lines.join("\n").includes(secret), "a key is never logged");

    const tls = { ca, cert: readFileSync(worker.cert), key: readFileSync(worker.key) };
    await using certified = new Client(server.url, { tls, logger: log });
    assert.ok(await certified.request("GET", "/api/v1/leases"), "the certificate stands for the key");

    const told = async (url: string, options: object): Promise<string> => {
      await using wrong = new Client(url, { retryForMs: 0, logger: log, ...options });
      return (await thrown(Unavailable, wrong.request("GET", "/readyz"))).message;
    };
    assert.match(await told(server.url, {}), /is not trusted \(.*\): give `tls` a `ca` that signed it/);
    assert.match(await told(server.url.replace("https:", "http:"), {}), /this port speaks TLS; write https:/);
    const plain = await Solehold.start();
    t.after(() => plain.stop());
    assert.match(
      await told(plain.url.replace("http:", "https:"), {}),
      /this port speaks plain HTTP; write http:/,
    );
  });

  test("an error and a log never show a key, even a wrong one", async (t) => {
    const { client, server } = await begin(t);
    await client.request("POST", "/api/v1/admin/keys", { name: "admin", role: "admin" });
    const key = "shk_hunter2_0000";
    const log = new Log();
    await using wrong = new Client(server.url, { key, logger: log });
    const error = await thrown(Unauthorized, Session.open(wrong, "w"));
    const shown = [error.message, error.stack, String(wrong), JSON.stringify(error), ...log.lines].join("\n");
    assert.ok(!shown.includes("hunter2"), shown);
  });

  test("a server that does not answer is named once, and a logger that fails changes nothing", async (t) => {
    const { server, log, open } = await begin(t, { retryForMs: 400 });
    const session = await open("w", { ttlMs: 60_000 });
    await server.kill();
    for (let n = 0; n < 3; n++) await thrown(Unavailable, session.client.request("GET", "/api/v1/leases"));
    const warned = log.lines.filter((line) => line.startsWith("WARN"));
    assert.equal(warned.length, 1, warned.join("\n"));
    assert.match(
      String(warned),
      /^WARN no server at http:.* \(connection refused\); asking again for 0?\.?\d+ s$/,
    );
    const fail = (): never => {
      throw new Error("the disk is full");
    };
    await server.startAgain();
    await using loud = new Client(server.url, {
      logger: { debug: fail, info: fail, warn: fail, error: fail },
    });
    await using held = await Session.open(loud, "loud");
    assert.ok((await held.acquire("scene", "loud")).isLive());
  });
});
