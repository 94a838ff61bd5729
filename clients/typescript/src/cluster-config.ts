/** The section `cluster` of a gateway's configuration, with the keys that it has in YAML. */

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

import * as check from "./check.js";
import { TTL_MS_MAX, TTL_MS_MIN } from "./limits.js";

/** The section as it is written. All of it is optional, and a gateway without it runs alone. */
export interface ClusterConfig {
  /** Whether there may be other gateways on the same store. */
  enabled?: boolean | undefined;
  /** The name of this node; the host's name and a random suffix by default. */
  node_id?: string | undefined;
  /** Whether there may be others even where nothing keeps them from working on one session at once. */
  allow_multiple_gateways?: boolean | undefined;
  session_locks?: SessionLocksConfig | undefined;
}

/** Times are text, as in `200ms`, `30s`, `2m`. */
export interface SessionLocksConfig {
  /** Whether a session is locked while one of its messages is processed. */
  enabled?: boolean | undefined;
  /** How long the locks of a node that stopped renewing keep others out. */
  ttl?: string | undefined;
  /** How often all locks of a node are renewed, by one heartbeat. */
  refresh_interval?: string | undefined;
  /** How long a message waits for its session. */
  acquire_timeout?: string | undefined;
  /** How often to retry where there is no line to wait in. A Solehold server has one, so it is only checked here. */
  poll_interval?: string | undefined;
}

/** @internal The section, checked, with its defaults. */
export interface CheckedConfig {
  readonly enabled: boolean;
  readonly nodeId: string;
  readonly allowMultipleGateways: boolean;
  readonly sessionLocks: {
    readonly enabled: boolean;
    readonly ttlMs: number;
    readonly refreshMs: number;
    readonly acquireMs: number;
  };
}

const UNITS: ReadonlyMap<string, number> = new Map([
  ["ms", 1],
  ["s", 1_000],
  ["sec", 1_000],
  ["m", 60_000],
  ["min", 60_000],
  ["h", 3_600_000],
]);

/** @internal A duration in milliseconds, from text such as `1m 30s`. */
export function duration(name: string, text: unknown): number {
  const given = check.string(name, text, "a duration, as in 200ms, 30s, 2m");
  const parts = [...given.matchAll(/\s*([0-9]+)\s*([a-z]+)\s*/gy)];
  const read = parts.map(([, number, unit = ""]) => Number(number) * (UNITS.get(unit) ?? NaN));
  const isWhole = parts.map(([part]) => part).join("") === given && parts.length > 0;
  const ms = read.reduce((sum, part) => sum + part, 0);
  if (!isWhole || !Number.isFinite(ms)) {
    throw new RangeError(
      `${name} is ${JSON.stringify(given)}, not a duration: write one as in 200ms, 30s, 2m`,
    );
  }
  return ms;
}

/** An object with no keys but these. */
function section(name: string, value: unknown, keys: readonly string[]): Record<string, unknown> {
  if (value === undefined || value === null) return {};
  check.fields(name, value);
  for (const key of Object.keys(value as object)) {
    if (!keys.includes(key))
      throw new RangeError(`${name} has no key ${JSON.stringify(key)}: its keys are ${keys.join(", ")}`);
  }
  return value as Record<string, unknown>;
}

function flag(name: string, value: unknown): boolean {
  return value === undefined ? false : check.boolean(name, value);
}

/** @internal Checks the section, and names what is wrong by its keys. */
export function checkedCluster(given: ClusterConfig): CheckedConfig {
  const names = ["enabled", "node_id", "allow_multiple_gateways", "session_locks"];
  const cluster = section("cluster", given, names);
  const lockNames = ["enabled", "ttl", "refresh_interval", "acquire_timeout", "poll_interval"];
  const locks = section("cluster.session_locks", cluster["session_locks"], lockNames);
  const time = (key: string, usual: string): number =>
    duration(`cluster.session_locks.${key}`, locks[key] ?? usual);
  const ttlMs = time("ttl", "2m");
  const refreshMs = time("refresh_interval", "30s");
  const acquireMs = time("acquire_timeout", "10s");
  const pollMs = time("poll_interval", "200ms");
  if (ttlMs < TTL_MS_MIN || ttlMs > TTL_MS_MAX) {
    throw new RangeError(`cluster.session_locks.ttl is ${String(locks["ttl"])}; it must be 1s to 24h`);
  }
  if (refreshMs * 2 >= ttlMs) {
    throw new RangeError(
      `cluster.session_locks.refresh_interval is ${refreshMs} ms, which is not below half of the ttl, ` +
        `${ttlMs} ms: a renewal that fails could not be repeated in time`,
    );
  }
  for (const [key, ms] of Object.entries({
    refresh_interval: refreshMs,
    acquire_timeout: acquireMs,
    poll_interval: pollMs,
  })) {
    if (ms === 0) throw new RangeError(`cluster.session_locks.${key} is 0; it must be longer`);
  }
  const nodeId =
    cluster["node_id"] ?? `${hostname().slice(0, 64) || "node"}-${randomBytes(3).toString("hex")}`;
  return {
    enabled: flag("cluster.enabled", cluster["enabled"]),
    nodeId: check.name("cluster.node_id", nodeId),
    allowMultipleGateways: flag("cluster.allow_multiple_gateways", cluster["allow_multiple_gateways"]),
    sessionLocks: {
      enabled: flag("cluster.session_locks.enabled", locks["enabled"]),
      ttlMs,
      refreshMs,
      acquireMs,
    },
  };
}
