/** Many gateways on one store: who may start beside whom, which of them serves a key, and who is there. */

import { Scope } from "./async.js";
import * as check from "./check.js";
import { Client } from "./client.js";
import { type CheckedConfig, checkedCluster, type ClusterConfig } from "./cluster-config.js";
import { Lost, NotFound, Refused, SoleholdError } from "./errors.js";
import type { Guard } from "./guard.js";
import { KeptSession } from "./kept.js";
import { told } from "./log.js";
import { Loss } from "./loss.js";
import type { Session } from "./session.js";
import * as wire from "./wire.js";
import type { JsonObject, Node } from "./wire.js";

/** The lock that only one gateway of a store has, where there may be only one. */
const GATEWAY_KIND = "gateway";
const GATEWAY_KEY = "alone";
/** The group that gateways announce, so that others recognise them among all sessions. */
const GROUP = "gateway";
/** The kind that keys are routed as by default. */
const ROUTE_KIND = "session";
/** A lock on a session, as that of the other clients. */
const LOCK_KIND = "lock";
/** A gateway that runs alone and dies is missed for this long. */
const ALONE_TTL_MS = 15_000;
/** How long a list of nodes is used before it is read again. */
const NODES_FRESH_MS = 1_000;

/** Another gateway runs already, and there may be only one. */
export class AnotherGateway extends SoleholdError {}

/** What a node says of itself when asked for its health. */
export interface ClusterHealth {
  readonly node_id: string;
  readonly cluster: boolean;
  readonly session_locks: boolean;
  readonly session_id: string;
  readonly is_live: boolean;
}

/**
 * A gateway among others, or alone.
 *
 * | `enabled` | `allow_multiple_gateways` | `session_locks.enabled` | alone | a second gateway |
 * |---|---|---|---|---|
 * | false | any | any | starts | is refused; the error names the other |
 * | true | false | false | starts, with a warning | is refused; the error names the other |
 * | true | true | false | starts, with a warning | starts, with a warning |
 * | true | any | true | starts | starts |
 */
export class Cluster {
  private readonly scope = new Scope();
  private readonly loss = new Loss();
  private seen: { readonly at: number; readonly nodes: readonly Node[] } | undefined;

  private constructor(
    private readonly client: Client,
    private readonly config: CheckedConfig,
    private readonly kept: KeptSession,
    private readonly reported: { metrics: JsonObject },
    private readonly alone: Guard | undefined,
    private session: Session,
    /** What about the configuration deserves a second look. */
    readonly warnings: readonly string[],
  ) {
    void alone?.lost().then((lost) => this.loss.declare(lost));
    void this.keep();
  }

  /** Starts as the section `cluster` of the gateway's configuration says. */
  static async start(client: Client, given: ClusterConfig = {}): Promise<Cluster> {
    check.instance("client", client, Client, "a Client");
    const config = checkedCluster(given);
    const { nodeId, sessionLocks } = config;
    const warnings = warningsOf(config);
    for (const warning of warnings) client.log.warn(`${nodeId}: ${warning}`);
    const isLocking = config.enabled && sessionLocks.enabled;
    const isAlone = mayBeOnlyOne(config);
    if (isAlone) await refuseBeside(client, config);
    const reported = { metrics: announced({}) };
    const kept = new KeptSession(client, {
      holder: nodeId,
      ttlMs: isLocking ? sessionLocks.ttlMs : ALONE_TTL_MS,
      heartbeatMs: isLocking ? sessionLocks.refreshMs : undefined,
      metrics: () => reported.metrics,
    });
    const session = await kept.live(client.tickAfter(client.retryForMs), undefined);
    let alone: Guard | undefined;
    try {
      alone = isAlone ? await takeGatewayLock(session, config) : undefined;
    } catch (error) {
      await kept.close();
      throw error;
    }
    client.log.info(`gateway ${nodeId} started: cluster ${config.enabled}, session locks ${isLocking}`);
    return new Cluster(client, config, kept, reported, alone, session, warnings);
  }

  /** The name of this node: for health snapshots and logs. */
  get nodeId(): string {
    return this.config.nodeId;
  }

  /**
   * Aborts when this gateway must stop: it may run only alone, and no longer knows that it does, or another node of the
   * same name was started. The reason is `Lost`.
   */
  get signal(): AbortSignal {
    return this.loss.signal;
  }

  /** Waits until this gateway must stop, and returns why. */
  lost(): Promise<Lost> {
    return this.loss.wait();
  }

  /**
   * Locks a session while one of its messages is processed, in line, for `acquire_timeout`. Undefined where session
   * locks are not enabled: then this process is the only one, or is allowed not to care.
   */
  async lockSession(
    sessionId: string,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<Guard | undefined> {
    check.name("sessionId", sessionId);
    check.options(options, ["signal"]);
    if (!this.config.enabled || !this.config.sessionLocks.enabled) return undefined;
    const { signal } = options;
    const { clock } = this.client;
    const until = clock.now() + this.config.sessionLocks.acquireMs;
    const session = await this.kept.live(until, signal);
    return session.acquire(LOCK_KIND, sessionId, { timeoutMs: Math.max(0, until - clock.now()), signal });
  }

  /** What others see of this node. `weight` (1 by default) says how much is routed here, against the others. */
  setMetrics(metrics: JsonObject): void {
    check.fields("metrics", metrics);
    this.reported.metrics = announced(metrics);
  }

  /** All live gateways, this one among them, with what they last reported. About a second old at most. */
  async nodes(options: { signal?: AbortSignal | undefined } = {}): Promise<readonly Node[]> {
    const now = this.client.clock.now();
    if (this.seen && now - this.seen.at < NODES_FRESH_MS) return this.seen.nodes;
    const nodes = await gateways(this.client, options.signal);
    this.seen = { at: now, nodes };
    return nodes;
  }

  /**
   * The live node that should serve a key; undefined if there is none. All nodes get the same answer, a node that
   * leaves moves only its own keys, and one that joins takes only its share. The lock is what excludes.
   */
  async route(
    key: string,
    options: { kind?: string; signal?: AbortSignal | undefined } = {},
  ): Promise<string | undefined> {
    check.options(options, ["kind", "signal"]);
    const { kind = ROUTE_KIND, signal } = options;
    const path = `${wire.path("route", check.name("kind", kind), check.name("key", key))}?group=${GROUP}`;
    try {
      return wire.routedTo((await this.client.ask({ method: "GET", path }, { signal })).value);
    } catch (error) {
      if (error instanceof NotFound) return undefined;
      throw error;
    }
  }

  /** What this node says of itself when asked for its health. */
  health(): ClusterHealth {
    const { enabled, nodeId, sessionLocks } = this.config;
    return {
      node_id: nodeId,
      cluster: enabled,
      session_locks: enabled && sessionLocks.enabled,
      session_id: this.session.sessionId,
      is_live: this.session.isLive(),
    };
  }

  /** Leaves, when the work has stopped: another gateway may start at once. */
  async leave(): Promise<void> {
    this.scope.abort();
    await this.alone?.release().catch((error: unknown) => {
      this.client.log.debug(`cannot release the gateway lock; it expires after its ttl: ${told(error)}`);
      return false;
    });
    await this.kept.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.leave();
  }

  /** Keeps this node present: after an outage it opens its next session, also while no lock is requested. */
  private async keep(): Promise<void> {
    const { signal } = this.scope;
    try {
      while (!signal.aborted) {
        const lost = await this.session.lost();
        if (lost.why === "closed" && signal.aborted) return;
        this.session = await this.kept.live(Infinity, signal);
      }
    } catch (error) {
      if (signal.aborted) return;
      this.client.log.error(`gateway ${this.nodeId} must stop: ${told(error)}`);
      this.loss.declare(error instanceof Lost ? error : new Lost("refused", told(error), { cause: error }));
    }
  }
}

/** Whether another gateway must not run beside one of this configuration. */
function mayBeOnlyOne(config: CheckedConfig): boolean {
  return !config.enabled || (!config.sessionLocks.enabled && !config.allowMultipleGateways);
}

function warningsOf(config: CheckedConfig): string[] {
  const { enabled, allowMultipleGateways, sessionLocks } = config;
  if (enabled && !sessionLocks.enabled) {
    const beside = allowMultipleGateways ? "are allowed" : "are refused";
    const what = "nothing keeps two gateways from working on one session at once";
    return [`cluster.enabled without cluster.session_locks.enabled: ${what}, and others ${beside}`];
  }
  if (!enabled && (allowMultipleGateways || sessionLocks.enabled)) {
    const what = "cluster.allow_multiple_gateways and cluster.session_locks";
    return [`${what} have no effect without cluster.enabled`];
  }
  return [];
}

/** What a node reports, with what makes it known as a gateway. */
function announced(metrics: JsonObject): JsonObject {
  return { weight: 1, ...metrics, group: GROUP };
}

async function gateways(client: Client, signal?: AbortSignal): Promise<Node[]> {
  return (await client.nodes({ signal })).filter((node) => node.group === GROUP);
}

function another(other: string, retryAfterMs: number | undefined, config: CheckedConfig): AnotherGateway {
  const seconds = Math.ceil((retryAfterMs ?? 0) / 1_000);
  const when = retryAfterMs === undefined ? "" : ` (if it has died, it is forgotten in ${seconds} s)`;
  const remedy = config.enabled
    ? "nothing would keep the two from working on one session at once; set " +
      "cluster.session_locks.enabled on all of them, or cluster.allow_multiple_gateways if that is " +
      "as it should be"
    : "stop it, or set cluster.enabled and cluster.session_locks.enabled on all of them";
  const text = `gateway ${other} runs on this store already${when}: ${remedy}`;
  return new AnotherGateway(text, { holder: other, retryAfterMs });
}

/**
 * A gateway that must be the only one does not start beside any other, not even one that allows others. A former self
 * of the same name is no other: its session ends when this one's begins.
 */
async function refuseBeside(client: Client, config: CheckedConfig): Promise<void> {
  const other = (await gateways(client)).find((node) => node.nodeId !== config.nodeId);
  if (other) throw another(other.nodeId, other.ttlLeftMs, config);
}

/** The lock that only one gateway has. What a former self of the same name left of it is waited for. */
async function takeGatewayLock(session: Session, config: CheckedConfig): Promise<Guard> {
  try {
    return await session.tryAcquire(GATEWAY_KIND, GATEWAY_KEY);
  } catch (error) {
    if (!(error instanceof Refused) || error.code !== "held") throw error;
    if (error.holder !== undefined && error.holder !== session.holder) {
      throw another(error.holder, error.retryAfterMs, config);
    }
    return session.acquire(GATEWAY_KIND, GATEWAY_KEY, { timeoutMs: 2 * ALONE_TTL_MS });
  }
}
