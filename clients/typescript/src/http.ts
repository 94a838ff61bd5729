/**
 * HTTP/1.1 by `node:http` and `node:https`: kept connections, TLS, bounds, and what a failure means for the outcome.
 *
 * A kept connection that turns out to be closed is replaced, once, by a new one: only for requests that may be
 * repeated. Others get a connection of their own from the start, so that no doubt arises.
 */

import * as http from "node:http";
import * as https from "node:https";
import type { Socket } from "node:net";
import type { ConnectionOptions, SecureContextOptions } from "node:tls";

import { onAbort, Scope, TimedOut, unlessAborted } from "./async.js";
import {
  CONNECT_MS_MAX,
  HEAD_BYTES_MAX,
  IDLE_CONNECTIONS_MAX,
  INTERIM_ANSWERS_MAX,
  RESPONSE_BYTES_MAX,
  SILENCE_MS_MAX,
  TIMER_MS_MAX,
} from "./limits.js";
import { told } from "./log.js";
import type { Server } from "./server.js";
import {
  AnswerLost,
  type HttpRequest,
  type HttpResponse,
  type HttpStream,
  NotSent,
  type Transport,
} from "./transport.js";

/** A certificate authority, a client certificate, and whatever else `node:tls` takes for a connection. */
export type TlsOptions = SecureContextOptions &
  Pick<ConnectionOptions, "servername" | "rejectUnauthorized" | "checkServerIdentity" | "ALPNProtocols">;

export interface HttpOptions {
  readonly headers?: Readonly<Record<string, string>>;
  readonly tls?: TlsOptions | undefined;
  readonly responseBytesMax?: number;
  readonly traceparent?: (() => string | undefined) | undefined;
}

/** A header as W3C Trace Context has it. */
const TRACEPARENT = /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/;

/** How far a request got. */
interface Flight {
  /** Whether anything of the request may have left. */
  left: boolean;
  /** Whether it went over a connection that was used before, and nothing of an answer came. */
  reused: boolean;
}

/** Agents of one kind for each scheme. */
interface Agents {
  readonly plain: http.Agent;
  readonly secure: https.Agent;
}

/** Connections to any number of servers, kept while they are useful. */
export class HttpTransport implements Transport {
  private readonly headers: Readonly<Record<string, string>>;
  private readonly responseBytesMax: number;
  private readonly traceparent: () => string | undefined;
  private readonly kept: Agents;
  private readonly fresh: Agents;
  private isClosed = false;

  constructor(options: HttpOptions = {}) {
    this.headers = options.headers ?? {};
    this.responseBytesMax = options.responseBytesMax ?? RESPONSE_BYTES_MAX;
    this.traceparent = options.traceparent ?? (() => undefined);
    const agents = (keepAlive: boolean): Agents => ({
      plain: new http.Agent({ keepAlive, maxFreeSockets: IDLE_CONNECTIONS_MAX }),
      secure: new https.Agent({ ...options.tls, keepAlive, maxFreeSockets: IDLE_CONNECTIONS_MAX }),
    });
    this.kept = agents(true);
    this.fresh = agents(false);
  }

  async send(server: Server, request: HttpRequest): Promise<HttpResponse> {
    return this.flight(server, request, async (signal, flight) => {
      const agents = request.repeatable ? this.kept : this.fresh;
      try {
        return await this.exchange(server, request, agents, flight, signal);
      } catch (error) {
        // The server had closed the connection while it was idle.
        if (!flight.reused || !request.repeatable || signal.aborted || this.isClosed) throw error;
        return this.exchange(server, request, this.fresh, flight, signal);
      }
    });
  }

  async stream(server: Server, request: HttpRequest): Promise<HttpStream> {
    return this.flight(server, request, async (signal, flight) => {
      const { sent, answer } = await this.begin(server, request, this.fresh, flight, signal);
      return new Streamed(server, sent, answer);
    });
  }

  close(): void {
    this.isClosed = true;
    for (const { plain, secure } of [this.kept, this.fresh]) {
      plain.destroy();
      secure.destroy();
    }
  }

  /** Runs the attempts of a request within its time, and says what a failure means. */
  private async flight<T>(
    server: Server,
    request: HttpRequest,
    work: (signal: AbortSignal, flight: Flight) => Promise<T>,
  ): Promise<T> {
    if (this.isClosed) throw new NotSent("the client was closed");
    const flight: Flight = { left: false, reused: false };
    const scope = new Scope(request.signal);
    const ms = Math.min(Math.max(request.timeoutMs, 0), TIMER_MS_MAX);
    const timer = setTimeout(() => scope.abort(new TimedOut(ms)), Math.ceil(ms));
    try {
      scope.signal.throwIfAborted();
      return await work(scope.signal, flight);
    } catch (error) {
      request.signal?.throwIfAborted();
      throw failure(server, flight, scope.signal.aborted ? scope.signal.reason : error, request.timeoutMs);
    } finally {
      clearTimeout(timer);
      scope.end();
    }
  }

  private async exchange(
    server: Server,
    request: HttpRequest,
    agents: Agents,
    flight: Flight,
    signal: AbortSignal,
  ): Promise<HttpResponse> {
    const { sent, answer } = await this.begin(server, request, agents, flight, signal);
    const body = await readWhole(sent, answer, this.responseBytesMax, signal);
    return { status: answer.statusCode ?? 0, body };
  }

  /** Sends a request, and waits for the head of its answer. */
  private begin(
    server: Server,
    request: HttpRequest,
    agents: Agents,
    flight: Flight,
    signal: AbortSignal,
  ): Promise<{ sent: http.ClientRequest; answer: http.IncomingMessage }> {
    return new Promise((resolve, reject) => {
      flight.reused = false;
      const sent = (server.secure ? https : http).request(this.options(server, request, agents));
      const over = onAbort(signal, () => sent.destroy(asError(signal.reason)));
      sent.once("socket", (socket) => watchConnection(server, sent, socket, flight));
      let interim = 0;
      sent.on("information", () => {
        interim += 1;
        if (interim > INTERIM_ANSWERS_MAX)
          sent.destroy(new Error(`more than ${INTERIM_ANSWERS_MAX} interim answers`));
      });
      // Stays: an error that comes later is the answer's, and must not end the process.
      sent.on("error", (error) => {
        over();
        flight.reused = sent.reusedSocket && isClosing(error);
        reject(error);
      });
      sent.once("response", (answer) => {
        over();
        resolve({ sent, answer });
      });
      sent.end(request.body);
    });
  }

  private options(server: Server, request: HttpRequest, agents: Agents): https.RequestOptions {
    const headers: Record<string, string | number> = { ...this.headers };
    if (request.opens !== undefined) headers["idempotency-key"] = request.opens;
    const span = this.traceparent();
    if (span !== undefined && TRACEPARENT.test(span)) headers["traceparent"] = span;
    if (request.body) {
      headers["content-type"] = "application/json";
      headers["content-length"] = request.body.length;
    }
    return {
      agent: server.secure ? agents.secure : agents.plain,
      method: request.method,
      host: server.host,
      port: server.port,
      path: `${server.base}${request.target}`,
      headers,
      maxHeaderSize: HEAD_BYTES_MAX,
    };
  }
}

/** Notes when something of the request may leave, and bounds the time until then. */
function watchConnection(server: Server, sent: http.ClientRequest, socket: Socket, flight: Flight): void {
  if (sent.reusedSocket || !socket.connecting) {
    flight.left = true;
    return;
  }
  const late = new Error(`no connection within ${CONNECT_MS_MAX / 1000} s`);
  const timer = setTimeout(() => sent.destroy(late), CONNECT_MS_MAX);
  sent.once("close", () => clearTimeout(timer));
  socket.once(server.secure ? "secureConnect" : "connect", () => {
    clearTimeout(timer);
    flight.left = true;
  });
}

/** All of the body, if it is not too large. */
function readWhole(
  sent: http.ClientRequest,
  answer: http.IncomingMessage,
  bytesMax: number,
  signal: AbortSignal,
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = [];
    let size = 0;
    let forget = (): void => {};
    const end = (error?: Error): void => {
      forget();
      if (!error) return resolve(Buffer.concat(pieces, size));
      reject(error);
      sent.destroy();
    };
    const large = (): void => end(new Error(`the answer is larger than ${bytesMax} bytes`));
    answer.on("error", end);
    answer.on("close", () => end(answer.complete ? undefined : new Error("closed")));
    answer.on("data", (piece: Buffer) => {
      size += piece.length;
      if (size > bytesMax) large();
      else pieces.push(piece);
    });
    answer.on("end", () => end(answer.complete ? undefined : new Error("closed")));
    if (Number(answer.headers["content-length"] ?? 0) > bytesMax) large();
    else forget = onAbort(signal, () => end(asError(signal.reason)));
  });
}

/** A stream on a connection of its own, which ends with it. */
class Streamed implements HttpStream {
  readonly status: number;
  private readonly pieces: AsyncIterator<Buffer>;

  constructor(
    private readonly server: Server,
    private readonly sent: http.ClientRequest,
    answer: http.IncomingMessage,
  ) {
    this.status = answer.statusCode ?? 0;
    this.pieces = answer[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  }

  async read(signal?: AbortSignal): Promise<Uint8Array | undefined> {
    const scope = new Scope(signal);
    const timer = setTimeout(() => scope.abort(new TimedOut(SILENCE_MS_MAX)), SILENCE_MS_MAX);
    try {
      const next = await unlessAborted(this.pieces.next(), scope.signal);
      return next.done ? undefined : next.value;
    } catch (error) {
      signal?.throwIfAborted();
      throw failure(this.server, { left: true, reused: false }, error, SILENCE_MS_MAX);
    } finally {
      clearTimeout(timer);
      scope.end();
    }
  }

  close(): void {
    this.sent.destroy();
  }
}

function asError(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error("aborted");
}

function codeOf(error: unknown): string {
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  return code ?? "";
}

/** Whether the connection has ended, before anything of an answer came. */
function isClosing(error: Error): boolean {
  return ["ECONNRESET", "EPIPE", "ECONNABORTED"].includes(codeOf(error));
}

/** Says what a failure means for the outcome, which server it was, and what would be right. */
function failure(server: Server, flight: Flight, error: unknown, ms: number): NotSent | AnswerLost {
  if (error instanceof TimedOut) {
    const text = `no answer from ${server} within ${(ms / 1000).toPrecision(3)} s`;
    return flight.left ? new AnswerLost(text) : new NotSent(text);
  }
  const misunderstood = notUnderstood(server, error);
  if (misunderstood !== undefined) return new NotSent(misunderstood, { cause: error });
  if (flight.left) return new AnswerLost(lost(server, error), { cause: error });
  const reason = codeOf(error) === "ECONNREFUSED" ? "connection refused" : told(error);
  return new NotSent(`no server at ${server} (${reason})`, { cause: error });
}

const NOT_TLS = /wrong.version.number|packet.length.too.long|record.layer.failure|http.request/i;
const NOT_TRUSTED = /CERT|SELF_SIGNED|UNABLE_TO_VERIFY|UNABLE_TO_GET_ISSUER|ALTNAME/;
const REJECTED_CERTIFICATE = /^ERR_SSL_.*ALERT_.*(CERTIFICATE|UNKNOWN_CA)/;

/** What is wrong about a connection that both ends have not agreed on: nothing was done by it. */
function notUnderstood(server: Server, error: unknown): string | undefined {
  const code = codeOf(error);
  const packet = (error as { rawPacket?: Buffer } | undefined)?.rawPacket;
  // An alert, as TLS says that it did not understand.
  if (packet?.[0] === 0x15 && packet[1] === 0x03) {
    return `${server}: this port speaks TLS; write https://${server.authority}`;
  }
  if (!server.secure) return undefined;
  // Node 20 has the kind in the text alone, later versions in the code.
  if (NOT_TLS.test(code) || (code === "EPROTO" && NOT_TLS.test(told(error)))) {
    return `${server}: this port speaks plain HTTP; write http://${server.authority}`;
  }
  if (REJECTED_CERTIFICATE.test(code)) {
    return `${server} rejects the client certificate (${code}): give \`tls\` another \`cert\` and \`key\``;
  }
  if (NOT_TRUSTED.test(code)) {
    return `the certificate of ${server} is not trusted (${code}): give \`tls\` a \`ca\` that signed it`;
  }
  return undefined;
}

function lost(server: Server, error: unknown): string {
  const code = codeOf(error);
  if (code === "HPE_HEADER_OVERFLOW")
    return `${server}: the head of the answer is larger than ${HEAD_BYTES_MAX} bytes`;
  if (code.startsWith("HPE_"))
    return `${server}: the answer is not HTTP/1.1 (${code}): is it a Solehold server?`;
  const isClosed = error instanceof Error && (error.message === "closed" || error.message === "aborted");
  if (isClosed || ["ECONNRESET", "EPIPE", "ERR_STREAM_PREMATURE_CLOSE"].includes(code)) {
    return `the connection to ${server} was closed before the answer was whole`;
  }
  return `${server}: ${told(error)}`;
}
