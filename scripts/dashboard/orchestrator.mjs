// A real orchestrator, with a broker and a database of its own: `crates/orchestrator/examples/orchestrator_world.rs`.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { TARGET } from "./server.mjs";

/** How long the orchestrator may take on a busy machine. */
const PATIENCE_MS = 120_000;

function program() {
  const built = ["debug", "release"]
    .map((profile) => join(TARGET, profile, "examples", "orchestrator_world"))
    .find((path) => existsSync(path));
  if (!built) throw new Error(`there is no examples/orchestrator_world in ${TARGET}: run \`make build\``);
  return built;
}

export class Orchestrator {
  static async start() {
    const own = new Orchestrator();
    own.process = spawn(program(), { stdio: ["pipe", "pipe", "inherit"] });
    own.lines = createInterface({ input: own.process.stdout })[Symbol.asyncIterator]();
    Object.assign(own, await own.answer());
    return own;
  }

  async answer() {
    const { value, done } = await this.lines.next();
    if (done) throw new Error("the orchestrator's world has ended");
    return JSON.parse(value);
  }

  request(what) {
    this.process.stdin.write(`${JSON.stringify(what)}\n`);
    return this.answer();
  }

  send(partition, key, command) {
    return this.request({ partition, key, command });
  }

  create(job_id, organization_id, key = `${organization_id}:${job_id}`) {
    const input = { video: `s3://videos/${job_id}.mp4`, frames_per_second: 25 };
    return this.send(0, key, { type: "CREATE", job_id, organization_id, input });
  }

  /** Ends the process of the orchestrator; its broker and database stay. */
  kill() {
    return this.request("kill");
  }

  /** Starts it again, at the same address. */
  resume() {
    return this.request("start");
  }

  async ask(method, path, body) {
    const headers = { Authorization: `Bearer ${this.key}` };
    const answer = await fetch(`${this.url}${path}`, { method, headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : undefined;
  }

  /** What a worker says of its task. */
  report(job, stage, attempt, what) {
    return this.ask("POST", "/reports", { job, stage, attempt, ...what });
  }

  /** Waits until a job is as it should be. */
  async jobWhen(job, is) {
    const until = Date.now() + PATIENCE_MS;
    for (;;) {
      const found = await this.ask("GET", `/jobs/${encodeURIComponent(job)}`).catch(() => undefined);
      if (found && is(found)) return found;
      if (Date.now() > until) throw new Error(`job ${job} is ${JSON.stringify(found)}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    // It ends what it has started.
    this.process.stdin.end();
    await ended;
  }
}
