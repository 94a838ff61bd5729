/** What a client needs of the network. An argument, so that the network can be simulated. */

import type { Server } from "./server.js";

/** The request did not leave: nothing was done. */
export class NotSent extends Error {
  override name = "NotSent";
}

/** The request left, and no complete answer came: it is unknown whether it was done. */
export class AnswerLost extends Error {
  override name = "AnswerLost";
}

/** A request to a server. */
export interface HttpRequest {
  readonly method: string;
  /** Path and query, escaped, below the server's base. */
  readonly target: string;
  readonly body: Uint8Array | undefined;
  /** After this time the answer counts as lost. */
  readonly timeoutMs: number;
  /** Whether doing it twice is the same as doing it once. */
  readonly repeatable: boolean;
  /** The id of the session that it opens. */
  readonly opens?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** The answer of a server. */
export interface HttpResponse {
  readonly status: number;
  readonly body: Uint8Array;
}

/** An answer whose body is read while it is being written. */
export interface HttpStream {
  readonly status: number;
  /** The next piece of the body, undefined at its end. Throws `AnswerLost`. */
  read(signal?: AbortSignal): Promise<Uint8Array | undefined>;
  /** Closes its connection. */
  close(): void;
}

/** Sends requests to servers. */
export interface Transport {
  /** Sends a request and reads the answer. Throws `NotSent` or `AnswerLost`, or the reason of an abort. */
  send(server: Server, request: HttpRequest): Promise<HttpResponse>;
  /** Sends a request and reads the head of the answer. Throws the same. */
  stream(server: Server, request: HttpRequest): Promise<HttpStream>;
  /** Closes its connections. */
  close(): void;
}
