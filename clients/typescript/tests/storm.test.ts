/**
 * A storm: worker processes are paused, killed and block their own event loops, and the server is killed, while a
 * checker follows every effect. By the clock no worker acts after its deadline or after its successor began, and at a
 * sink that compares tokens none goes back. SOLEHOLD_STORM_MS=300000 lets it last longer.
 */

import assert from "node:assert/strict";
import { createServer, type Socket } from "node:net";
import { test } from "node:test";

import { node, type Program, Solehold, waitFor } from "./support/server.js";

const LASTS_MS = Number(process.env["SOLEHOLD_STORM_MS"] ?? 12_000);
const TTL_MS = 1_200;
const WORKERS = 4;
const KEYS = ["a", "b", "c"];
/** Readings of two processes may differ by the resolution of the clock. */
const CLOCKS_DIFFER_MS = 10;

interface Effect {
  key: string;
  token: number;
  /** The reading of the clock by which the worker was allowed to act. */
  judged: number;
  deadline: number;
  holder: string;
}

/** What the workers report, in the order in which it arrives. */
class Sink {
  readonly effects: Effect[] = [];
  readonly admitted = new Map<string, number[]>();
  readonly violations: string[] = [];
  refused = 0;
  blocked = 0;
  private readonly marks = new Map<string, number>();

  take(line: string, socket: Socket): void {
    const [key = "", token, judged, deadline, holder = ""] = line.split(" ");
    if (key === "blocked") {
      this.blocked += 1;
    } else if (key === "violation" || key === "failed") {
      this.violations.push(line);
    } else {
      this.admit(
        { key, token: Number(token), judged: Number(judged), deadline: Number(deadline), holder },
        socket,
      );
    }
  }

  /** The comparison and the effect are one step: a paused worker's late effect is refused. */
  private admit(effect: Effect, socket: Socket): void {
    this.effects.push(effect);
    if (effect.token < (this.marks.get(effect.key) ?? 0)) {
      this.refused += 1;
      socket.write(`${effect.key} ${effect.token}\n`);
      return;
    }
    this.marks.set(effect.key, effect.token);
    const tokens = this.admitted.get(effect.key) ?? [];
    this.admitted.set(effect.key, tokens);
    tokens.push(effect.token);
  }
}

/** Effects of which one began before the former holder had stopped, and effects after a deadline. */
function faults(effects: readonly Effect[]): string[] {
  const found: string[] = [];
  const tenures = new Map<string, Map<number, { first: number; last: number; holder: string }>>();
  for (const { key, token, judged, deadline, holder } of effects) {
    if (!(judged < deadline))
      found.push(`${holder} acted on ${key} ${judged - deadline} ms after its deadline`);
    const ofKey = tenures.get(key) ?? new Map<number, { first: number; last: number; holder: string }>();
    tenures.set(key, ofKey);
    const tenure = ofKey.get(token) ?? { first: judged, last: judged, holder };
    if (tenure.holder !== holder)
      found.push(`${key}: token ${token} was used by ${tenure.holder} and ${holder}`);
    tenure.first = Math.min(tenure.first, judged);
    tenure.last = Math.max(tenure.last, judged);
    ofKey.set(token, tenure);
  }
  for (const [key, ofKey] of tenures) {
    const inOrder = [...ofKey].sort(([one], [other]) => one - other);
    for (const [at, [token, { first, holder }]] of inOrder.entries()) {
      const former = inOrder[at - 1];
      if (former && former[1].last > first + CLOCKS_DIFFER_MS) {
        const ms = (former[1].last - first).toFixed(1);
        found.push(
          `${key}: ${former[1].holder} acted for ${ms} ms after ${holder} had begun under token ${token}`,
        );
      }
    }
  }
  return found;
}

test("the checker notices what must not happen", () => {
  const effect = { key: "a", token: 1, judged: 100, deadline: 200, holder: "x" };
  assert.deepEqual(faults([effect, { ...effect, token: 5, judged: 300, deadline: 900, holder: "y" }]), []);
  assert.match(String(faults([{ ...effect, judged: 201 }])), /x acted on a 1 ms after its deadline/);
  const early = { ...effect, token: 5, judged: 80, holder: "y" };
  assert.match(String(faults([early, effect])), /x acted for 20.0 ms after y had begun under token 5/);
  assert.match(String(faults([effect, { ...effect, holder: "y" }])), /token 1 was used by x and y/);
});

test("no worker acts after its deadline, and at the sink no token goes back", async (t) => {
  const sink = new Sink();
  const listener = createServer((socket) => {
    let rest = "";
    socket.on("error", () => {});
    socket.on("data", (piece) => {
      const lines = (rest + piece.toString("utf8")).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) sink.take(line, socket);
    });
  });
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  t.after(() => listener.close());
  const address = listener.address();
  assert.ok(typeof address === "object" && address);
  const server = await Solehold.start();
  t.after(() => server.stop());
  const worker = (number: number): Program =>
    node("storm-worker.js", server.url, `worker-${number}`, String(address.port), String(TTL_MS), ...KEYS);
  const workers = Array.from({ length: WORKERS }, (_, number) => worker(number));
  t.after(() => Promise.all(workers.map((one) => one.end())));

  /** Waits until each resource was worked on, from now on. */
  const areWorkedOn = async (): Promise<void> => {
    const from = sink.effects.length;
    await waitFor("all resources to be worked on", () => {
      const since = new Set(sink.effects.slice(from).map(({ key }) => key));
      return since.size === KEYS.length;
    });
  };
  const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

  await areWorkedOn();
  const faultsOf = { paused: 0, killed: 0, servers: 0 };
  const until = performance.now() + LASTS_MS;
  for (let round = 0; performance.now() < until; round++) {
    // One that is at work, so that a successor takes over from it.
    const number = Number(sink.effects.at(-1)?.holder.split("-")[1]);
    const struck = workers[number] as Program;
    if (round % 6 === 5) {
      faultsOf.servers += 1;
      await server.kill();
      await server.startAgain();
    } else if (round % 3 !== 2) {
      faultsOf.paused += 1;
      struck.send("SIGSTOP");
      // Past the end of its lease at the server.
      await pause(TTL_MS * (1.2 + Math.random() * 0.6));
      struck.send("SIGCONT");
    } else {
      faultsOf.killed += 1;
      await struck.end();
      workers[number] = worker(number);
    }
    await pause(50 + Math.random() * 200);
  }
  await areWorkedOn();
  await Promise.all(workers.map((one) => one.end()));
  const takeovers = new Set(sink.effects.map(({ key, token }) => `${key} ${token}`)).size - KEYS.length;
  const struck = `${faultsOf.paused} pauses, ${faultsOf.killed} kills, ${faultsOf.servers} of the server`;
  t.diagnostic(
    `${struck}: ${sink.effects.length} effects, ${takeovers} takeovers, ${sink.blocked} blocked loops, ` +
      `${sink.refused} late effects refused by the sink`,
  );
  assert.deepEqual(sink.violations, []);
  assert.deepEqual(faults(sink.effects), []);
  for (const [key, tokens] of sink.admitted) {
    assert.deepEqual(
      tokens,
      [...tokens].sort((a, b) => a - b),
      `the sink's order of ${key}`,
    );
  }
  assert.ok(takeovers > KEYS.length, "nothing has moved: the storm shows nothing");
});
