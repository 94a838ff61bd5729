/**
 * A worker for the storm: works on whichever resources it gets, and reports each effect to the sink, with the reading
 * of the clock by which it was allowed. Now and then it blocks its own event loop past its deadline. Arguments: URLs,
 * holder, port of the sink, ttl in milliseconds, keys.
 */

import { connect } from "node:net";
import { createInterface } from "node:readline";

import {
  BootClock,
  Client,
  type Guard,
  keepSession,
  Lost,
  type Session,
  silentLogger,
} from "../src/index.js";

/** One step of the work. */
const STEP_MS = 5;
/** Of so many steps, one blocks the event loop. */
const BLOCKS_ONE_IN = 400;
/** Of so many steps, one releases the resource, so that others get it. */
const RELEASES_ONE_IN = 60;

const [urls, holder, port, ttl, ...keys] = process.argv.slice(2) as [
  string,
  string,
  string,
  string,
  ...string[],
];

/** Remembers its last reading, which is the one that a check judged by. */
class RecordingClock extends BootClock {
  last = 0;
  override now(): number {
    this.last = super.now();
    return this.last;
  }
}

const clock = new RecordingClock();
const sink = connect(Number(port), "127.0.0.1");
sink.on("error", () => process.exit(3));
const stale = new Set<string>();
createInterface({ input: sink }).on("line", (line) => stale.add(line));

const oneIn = (count: number): boolean => Math.random() < 1 / count;

async function work(guard: Guard, signal: AbortSignal): Promise<void> {
  while (!signal.aborted && !stale.has(`${guard.key} ${guard.token}`)) {
    const token = guard.check();
    sink.write(`${guard.key} ${token} ${clock.last} ${guard.deadline} ${holder}\n`);
    if (oneIn(RELEASES_ONE_IN)) return;
    if (oneIn(BLOCKS_ONE_IN)) block(guard);
    await new Promise((resolve) => setTimeout(resolve, STEP_MS));
  }
}

/** No timer and no answer is served meanwhile. The check must notice. */
function block(guard: Guard): void {
  const ms = Math.ceil(guard.deadline - clock.now()) + 20;
  if (ms > 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  try {
    guard.check();
    sink.write(`violation ${holder} passed a check after its event loop was blocked past the deadline\n`);
  } catch (error) {
    if (!(error instanceof Lost)) throw error;
    sink.write(`blocked ${holder}\n`);
  }
}

async function hold(session: Session, key: string, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const guard = await session.acquire("job", key, { signal });
    try {
      await guard.run((ended) => work(guard, ended));
    } finally {
      await guard.release().catch(() => false);
    }
  }
}

const client = new Client(urls, { clock, logger: silentLogger, timeoutMs: 500, retryForMs: 2_000 });
await keepSession(
  client,
  holder,
  async (session, signal) => {
    const holding = await Promise.allSettled(keys.map((key) => hold(session, key, signal)));
    const failed = holding.find((one) => one.status === "rejected" && !(one.reason instanceof Lost));
    if (failed?.status === "rejected" && !signal.aborted)
      sink.write(`failed ${holder} ${String(failed.reason)}\n`);
    // Only the loss of a single lease: another round.
    if (!signal.aborted) await Promise.all(keys.map((key) => hold(session, key, signal)));
  },
  { ttlMs: Number(ttl) },
);
