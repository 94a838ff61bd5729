/**
 * The one place that reads a clock.
 *
 * A tick is a number of milliseconds on a clock that never goes back and counts on while the machine sleeps. It has
 * nothing to do with the time of day, and ticks of two machines cannot be compared.
 */

import { openSync, readSync } from "node:fs";

import { onAbort } from "./async.js";
import { STEP_MS_MAX } from "./limits.js";

/** Reads the tick. An argument everywhere, so that time can be simulated. */
export interface Clock {
  /** The tick, in milliseconds. */
  now(): number;
}

/** The readings that a `BootClock` is made of, in milliseconds. An argument, so that sleep can be simulated. */
export interface Readings {
  /** Never goes back, and may stand still while the machine sleeps. */
  monotonic(): number;
  /** The time since the machine was started, sleep included; undefined where it cannot be read. */
  uptime(): number | undefined;
  /** The time of day, which an operator may set. */
  wall(): number;
}

// Taken when the module is loaded: a test framework that replaces the global ones must not stop this clock.
const { hrtime } = process;
const hrtimeNow = hrtime.bigint.bind(hrtime);
const wallNow = Date.now.bind(Date);

const UPTIME_BYTES_MAX = 64;
const uptimeText = Buffer.alloc(UPTIME_BYTES_MAX);
let uptimeFile: number | undefined;
let hasUptime = process.platform === "linux";

function readUptime(): number | undefined {
  if (!hasUptime) return undefined;
  try {
    uptimeFile ??= openSync("/proc/uptime", "r");
    // The kernel writes it anew for each read from the start: no need to open it again.
    const length = readSync(uptimeFile, uptimeText, 0, UPTIME_BYTES_MAX, 0);
    const seconds = Number.parseFloat(uptimeText.toString("latin1", 0, length));
    if (Number.isFinite(seconds)) return seconds * 1000;
  } catch {
    // No such file, as in some sandboxes.
  }
  hasUptime = false;
  return undefined;
}

const PROCESS_READINGS: Readings = {
  monotonic: () => Number(hrtimeNow()) / 1e6,
  uptime: readUptime,
  wall: wallNow,
};

/** How far the wall clock must fall behind before later growth counts as sleep again. Readings differ by less. */
const WALL_NOISE_MS = 20;

/**
 * Counts on while the machine sleeps, though Node's own clock (`CLOCK_MONOTONIC`) does not.
 *
 * On Linux, `/proc/uptime` includes the time of sleep: the tick is the monotonic clock plus the most that the uptime
 * was ever ahead of it. It is never more than 10 ms behind `CLOCK_BOOTTIME`, which every deadline makes up for. Where
 * that file cannot be read, as on macOS and Windows, the wall clock is compared instead: a jump of it forward counts as
 * time that has passed, whether the machine slept or the clock was set. A clock that is set forward may so cost a
 * lease; one that is set back changes nothing.
 */
export class BootClock implements Clock {
  private ahead: number | undefined;
  private slept = 0;
  private wallAhead: number | undefined;

  constructor(private readonly readings: Readings = PROCESS_READINGS) {}

  now(): number {
    const uptime = this.readings.uptime();
    const wall = uptime === undefined ? this.readings.wall() : 0;
    // Read last: a pause of the process between the two readings would otherwise count twice from then on.
    const monotonic = this.readings.monotonic();
    if (uptime !== undefined) {
      this.ahead = Math.max(this.ahead ?? -Infinity, uptime - monotonic);
      return monotonic + this.ahead + this.slept;
    }
    const wallAhead = wall - monotonic;
    this.wallAhead ??= wallAhead;
    if (wallAhead > this.wallAhead) {
      this.slept += wallAhead - this.wallAhead;
      this.wallAhead = wallAhead;
    } else if (wallAhead < this.wallAhead - WALL_NOISE_MS) {
      this.wallAhead = wallAhead;
    }
    return monotonic + (this.ahead ?? 0) + this.slept;
  }
}

/** Sleeps until the tick, in bounded steps: Node's own timers would oversleep on a suspended machine. */
export async function sleepUntil(clock: Clock, tick: number, signal?: AbortSignal): Promise<void> {
  for (;;) {
    signal?.throwIfAborted();
    const left = tick - clock.now();
    if (left <= 0) return;
    await pause(Math.min(left, STEP_MS_MAX), signal);
  }
}

/** A timer that an abort ends early, without an error. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    let forget = (): void => {};
    const done = (): void => {
      clearTimeout(timer);
      forget();
      resolve();
    };
    // Rounded up: Node cuts fractions off, and the wait would end before its time.
    const timer = setTimeout(done, Math.ceil(ms));
    if (signal) forget = onAbort(signal, done);
  });
}
