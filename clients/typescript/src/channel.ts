/** Connections to the servers: failover, and repeats of what is safe to repeat. */

import { Backoff, type BackoffConfig, type Random } from "./backoff.js";
import { type Clock, sleepUntil } from "./clock.js";
import { fromAnswer, SoleholdError, Unavailable, Unknown } from "./errors.js";
import { PROBLEM_BYTES_MAX } from "./limits.js";
import { type Logger, told } from "./log.js";
import type { Server } from "./server.js";
import { AnswerLost, type HttpRequest, type HttpStream, NotSent, type Transport } from "./transport.js";
import * as wire from "./wire.js";
import type { Json } from "./wire.js";

/** A request, for any server. */
export interface Call {
  readonly method: string;
  readonly path: string;
  readonly body?: object | undefined;
  /** Whether doing it twice is the same as doing it once: by request id, token, lease id or session id. */
  readonly repeatable?: boolean;
  /** The id of the session that it opens, by which any server recognises a repeat. */
  readonly opens?: string;
}

/** The answer to a call. */
export interface Answer {
  readonly value: Json;
  /** The tick before the attempt that was answered. */
  readonly sent: number;
}

/** Remembers, for the caller, that some attempt may have been carried out without an answer. */
export interface Doubts {
  any: boolean;
}

export interface CallOptions {
  /** How long each server has. */
  readonly timeoutMs: number;
  /** The tick of the last attempt. */
  readonly until: number;
  readonly doubts?: Doubts | undefined;
  /** Begins this many servers after the one that answered last. */
  readonly beside?: number;
  readonly signal?: AbortSignal | undefined;
}

/** What channels of one client share. */
export interface Surroundings {
  readonly servers: readonly Server[];
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
  readonly tenant: string | undefined;
  readonly backoff: BackoffConfig;
  /** The servers that did not answer last, as was said in the log. */
  readonly silent: Set<Server>;
}

/** Asks one server at a time, and stays with the one that answered. */
export class Channel {
  private current = 0;
  private readonly query: string;

  constructor(
    private readonly around: Surroundings,
    readonly transport: Transport,
  ) {
    this.query = around.tenant === undefined ? "" : `tenant=${wire.segment(around.tenant)}`;
  }

  close(): void {
    this.transport.close();
  }

  /**
   * Asks each server in turn, and after a pause again, for the last time at the tick `until`.
   *
   * Throws what the first definite answer says. Without one: `Unknown` if it may have been done, else `Unavailable`.
   */
  async call(call: Call, options: CallOptions): Promise<Answer> {
    const request = this.request(call, options);
    return this.ask(call, options, async (server) => {
      const sent = this.around.clock.now();
      const response = await this.transport.send(server, request);
      if (response.status >= 300) throw fromAnswer(String(server), response.status, response.body);
      return { value: response.body.length > 0 ? wire.decode(response.body) : null, sent };
    });
  }

  /** The same for an answer that is read while it is being written. */
  async stream(call: Call, options: CallOptions): Promise<HttpStream> {
    const request = this.request(call, options);
    return this.ask(call, options, async (server) => {
      const stream = await this.transport.stream(server, request);
      if (stream.status < 300) return stream;
      try {
        const body: Uint8Array[] = [];
        let size = 0;
        for (
          let piece = await stream.read(options.signal);
          piece;
          piece = await stream.read(options.signal)
        ) {
          body.push(piece);
          size += piece.length;
          if (size >= PROBLEM_BYTES_MAX) break;
        }
        throw fromAnswer(String(server), stream.status, Buffer.concat(body));
      } finally {
        stream.close();
      }
    });
  }

  private request(call: Call, options: CallOptions): HttpRequest {
    const join = this.query === "" ? "" : call.path.includes("?") ? "&" : "?";
    return {
      method: call.method,
      target: `${call.path}${join}${this.query}`,
      body: call.body === undefined ? undefined : wire.encode(call.body),
      timeoutMs: options.timeoutMs,
      repeatable: call.repeatable ?? true,
      opens: call.opens,
      signal: options.signal,
    };
  }

  private async ask<T>(call: Call, options: CallOptions, once: (server: Server) => Promise<T>): Promise<T> {
    const { servers, clock, random } = this.around;
    const { until, signal } = options;
    const doubts = options.doubts ?? { any: false };
    const backoff = new Backoff(this.around.backoff, random);
    let at = (this.current + (options.beside ?? 0)) % servers.length;
    let unknown: Unknown | undefined;
    for (let tried = 1; ; tried++) {
      signal?.throwIfAborted();
      const server = servers[at] as Server;
      let failed: SoleholdError;
      try {
        const answer = await this.once(call, server, once);
        this.answered(at);
        return answer;
      } catch (error) {
        if (error instanceof Unknown) {
          doubts.any = true;
          if (call.repeatable === false) throw error;
          failed = unknown = error;
        } else if (error instanceof Unavailable) {
          failed = error;
        } else {
          if (error instanceof SoleholdError) this.answered(at);
          throw error;
        }
      }
      const following = (at + 1) % servers.length;
      if (this.current === at) this.current = following;
      at = following;
      if (tried % servers.length !== 0) {
        this.failed(server, failed, `asking ${servers[at]} instead`);
        continue;
      }
      const now = clock.now();
      const leastMs = failed.retryAfterMs ?? 0;
      // Where the server asks for more time than there is, asking again is of no use.
      if (!(now < until) || now + leastMs > until) throw unknown ?? failed;
      const left = until === Infinity ? "" : ` for ${((until - now) / 1000).toPrecision(3)} s`;
      this.failed(server, failed, `asking again${left}`);
      await sleepUntil(clock, Math.min(until, now + backoff.delay(leastMs)), signal);
    }
  }

  private async once<T>(call: Call, server: Server, once: (server: Server) => Promise<T>): Promise<T> {
    const { clock, log } = this.around;
    const began = clock.now();
    let outcome = "given up";
    try {
      const answer = await once(server);
      outcome = "answered";
      return answer;
    } catch (error) {
      if (error instanceof NotSent) {
        outcome = "not sent";
        throw new Unavailable(error.message, { cause: error });
      }
      if (error instanceof AnswerLost) {
        outcome = "no answer";
        throw new Unknown(error.message, { cause: error });
      }
      if (error instanceof SoleholdError) outcome = error.code || error.detail;
      throw error;
    } finally {
      log.debug(
        `${call.method} ${server}${call.path}: ${outcome} after ${(clock.now() - began).toFixed(1)} ms`,
      );
    }
  }

  /** A failure that this handles. Said once, not for each of perhaps hundreds of calls. */
  private failed(server: Server, failed: SoleholdError, nextStep: string): void {
    if (this.around.silent.has(server)) return;
    this.around.silent.add(server);
    const text = told(failed);
    this.around.log.warn(`${text.includes(String(server)) ? text : `${server}: ${text}`}; ${nextStep}`);
  }

  private answered(at: number): void {
    this.current = at;
    const server = this.around.servers[at] as Server;
    if (this.around.silent.delete(server)) this.around.log.info(`server ${server} is answering again`);
  }
}
