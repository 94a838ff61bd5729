/**
 * Solehold's client for Node: leases with fencing tokens.
 *
 * Words and rules are those of Solehold: a `Session` is one incarnation of a holder, a `Guard` is one lease that it
 * holds, a token grows at each change of owner. Times are in milliseconds.
 */

export type { Guards, Wanted } from "./acquire-all.js";
export type { BackoffConfig } from "./backoff.js";
export { Client, type ClientOptions } from "./client.js";
export { BootClock, type Clock } from "./clock.js";
export { AnotherGateway, Cluster, type ClusterHealth } from "./cluster.js";
export type { ClusterConfig, SessionLocksConfig } from "./cluster-config.js";
export { elect, type ElectOptions } from "./elect.js";
export {
  BadRequest,
  Compacted,
  type FieldError,
  Forbidden,
  Lost,
  type LostReason,
  NoSession,
  NotFound,
  type ProblemDetails,
  Refused,
  SoleholdError,
  Superseded,
  Unauthorized,
  Unavailable,
  Unknown,
} from "./errors.js";
export { type Doubt, type Mark, Verdict } from "./fence.js";
export { Gate, type GateOptions } from "./gate.js";
export { Guard } from "./guard.js";
export { HttpTransport, type HttpOptions, type TlsOptions } from "./http.js";
export { keepSession, type KeepOptions, type KeptOptions } from "./kept.js";
export { Locks } from "./locks.js";
export { type Logger, silentLogger, stderrLogger } from "./log.js";
export { Policy } from "./renewer.js";
export { Server } from "./server.js";
export { type AcquireAllOptions, type AcquireOptions, Session, type SessionOptions } from "./session.js";
export {
  AnswerLost,
  type HttpRequest,
  type HttpResponse,
  type HttpStream,
  NotSent,
  type Transport,
} from "./transport.js";
export { Watch, type WatchOptions } from "./watch.js";
export type { Event, Json, JsonObject, Node, Ownership, Snapshot, StateDocument } from "./wire.js";
