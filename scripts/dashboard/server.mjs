// A server of its own for each test: the program that was built last, on a free port, with a data folder that is gone
// afterwards.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..", "..");
export const TARGET = process.env.CARGO_TARGET_DIR ?? join(ROOT, "target");

function program() {
  if (process.env.SOLEHOLD_BIN) return process.env.SOLEHOLD_BIN;
  const built = ["debug", "release"]
    .map((profile) => join(TARGET, profile, "solehold"))
    .find((path) => existsSync(path));
  if (!built) throw new Error(`there is no solehold in ${TARGET}: run \`cargo build\`, or set SOLEHOLD_BIN`);
  return built;
}

/** A port that is free now. A server that is started again has the same one. */
function freePort() {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.on("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

export class Server {
  /** `options(folder)` are further arguments of the server. */
  static async start(options = () => []) {
    const server = new Server();
    server.options = options;
    server.folder = mkdtempSync(join(tmpdir(), "solehold-dashboard-"));
    server.port = await freePort();
    server.url = `http://127.0.0.1:${server.port}`;
    await server.resume();
    return server;
  }

  /** Starts the process, over the data that is there. */
  async resume() {
    const file = join(this.folder, "solehold.yaml");
    // A slow machine must not let the leases of a test run out.
    writeFileSync(file, "ttl_max: 1h\n");
    const data = join(this.folder, "data");
    const options = ["serve", "--config", file, "--listen", `127.0.0.1:${this.port}`, "--data-dir", data];
    options.push(...this.options(this.folder));
    const child = spawn(program(), options, { stdio: ["ignore", "pipe", "pipe"] });
    this.process = child;
    let log = "";
    const keep = (piece) => (log = (log + piece).slice(-4_000));
    child.stderr.setEncoding("utf8").on("data", keep);
    await new Promise((resolve, reject) => {
      child.stdout.setEncoding("utf8").on("data", (piece) => {
        keep(piece);
        if (log.includes("solehold listening on")) resolve();
      });
      child.on("error", reject);
      child.on("exit", (code) => reject(new Error(`the server ended with ${code}:\n${log}`)));
    });
  }

  /** Ends the process without a word. */
  async kill() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    if (this.process.exitCode === null && this.process.signalCode === null) {
      this.process.kill("SIGKILL");
      await ended;
    }
  }

  async stop() {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Calls the API; throws what it refuses. */
  async ask(method, path, body, key = this.key) {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const answer = await fetch(`${this.url}/api/v1${path}`, {
      method,
      headers,
      body: body && JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : undefined;
  }

  /** Creates a key. From the first one on, every call needs one. */
  async createKey(name, role, tenant) {
    const { key } = await this.ask("POST", "/admin/keys", { name, role, tenant });
    if (role === "admin") this.key ??= key;
    return key;
  }

  declare(kind, key, body = {}) {
    return this.ask("PUT", `/resources/${kind}/${encodeURIComponent(key)}`, body);
  }

  acquire(kind, key, holder, more = {}) {
    return this.ask("POST", `/resources/${kind}/${encodeURIComponent(key)}/lease`, {
      holder,
      ttl_seconds: 3600,
      ...more,
    });
  }

  release(kind, key, token) {
    return this.ask("DELETE", `/resources/${kind}/${encodeURIComponent(key)}/lease`, { token });
  }

  register(runner_id, more = {}) {
    return this.ask("POST", "/runners/register", { runner_id, session_ttl_seconds: 3600, ...more });
  }

  /** Acquires many resources by one request; a request takes at most 1000. */
  async acquireMany(kind, keys, holder) {
    for (let at = 0; at < keys.length; at += 1000) {
      const items = keys.slice(at, at + 1000).map((key) => ({ kind, key, holder, ttl_seconds: 3600 }));
      const { results } = await this.ask("POST", "/leases/batch/acquire", { items });
      const refused = results.find((result) => result.status !== "granted");
      if (refused) throw new Error(`not granted: ${JSON.stringify(refused)}`);
    }
  }
}
