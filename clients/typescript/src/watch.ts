/**
 * The watch: who owns what, then every change, in the one order of all changes (rule 18).
 *
 * `Follower` decides what is new, `Watch` drives: it connects, reads, and connects again from the last cursor.
 */

import { Scope } from "./async.js";
import { Backoff } from "./backoff.js";
import type { Channel } from "./channel.js";
import * as check from "./check.js";
import type { Client } from "./client.js";
import { sleepUntil } from "./clock.js";
import { Compacted, Unavailable, Unknown } from "./errors.js";
import { comparePositions } from "./holdings.js";
import { RESPONSE_BYTES_MAX } from "./limits.js";
import { Decoder, type Frame } from "./sse.js";
import { AnswerLost, type HttpStream } from "./transport.js";
import * as wire from "./wire.js";
import { type Event, type Json, type Ownership, position, type Snapshot } from "./wire.js";

/** What to watch. */
export interface WatchOptions {
  /** Continues after this cursor, of an earlier watch, instead of with a snapshot. */
  cursor?: string | undefined;
  /** Only resources of this kind. */
  kind?: string | undefined;
  /** Only leases of this holder. */
  holder?: string | undefined;
  /** Renewals, too, as events of the type `lease_renewed`. They have no place in the order of changes (rule 19). */
  renewals?: boolean;
  /** Ends the watch; the iteration then throws the reason of the abort. */
  signal?: AbortSignal | undefined;
}

/** The server ends the stream, since this reader fell behind: it continues from its cursor. */
export class Resync extends Error {}

/** What a reader has seen, and so what is new to it. Pure. */
export class Follower {
  private parts: Ownership[] = [];
  private bytes = 0;

  constructor(
    /** Everything up to here has been seen. */
    public cursor: string | undefined,
    private readonly snapshotBytesMax = RESPONSE_BYTES_MAX,
  ) {}

  /** A new connection: a snapshot that was not whole begins anew. */
  begin(): void {
    this.parts = [];
    this.bytes = 0;
  }

  /** What a frame says that is new. Frames of a kind that this reader does not know say nothing. */
  take(frame: Frame): Snapshot | Event | undefined {
    switch (frame.event) {
      case "event":
        return this.event(wire.event(read(frame)));
      case "snapshot":
        return this.snapshot(frame);
      case "progress": {
        const cursor = wire.cursorOf(read(frame));
        if (this.isNew(cursor)) this.cursor = cursor;
        return undefined;
      }
      case "compacted": {
        const floor = wire.cursorOf(read(frame), "floor");
        const kept = `the events after ${this.cursor} are no longer kept, only those after ${floor}`;
        throw new Compacted(`${kept}: begin without a cursor`, { code: "compacted" });
      }
      case "resync":
        throw new Resync();
      default:
        return undefined;
    }
  }

  private isNew(cursor: string): boolean {
    return this.cursor === undefined || comparePositions(position(cursor), position(this.cursor)) > 0;
  }

  private event(event: Event): Event | undefined {
    // A renewal has the cursor of the change before it, and is never repeated.
    if (event.eventType === "lease_renewed") return event;
    if (!this.isNew(event.cursor)) return undefined; // seen before the connection was lost
    this.cursor = event.cursor;
    return event;
  }

  private snapshot(frame: Frame): Snapshot | undefined {
    const { cursor, resources, more } = wire.snapshotPart(read(frame));
    this.bytes += frame.data.length;
    if (this.bytes > this.snapshotBytesMax) {
      throw new Unknown(
        `the snapshot is larger than ${this.snapshotBytesMax} bytes: watch one kind of resource`,
      );
    }
    for (const resource of resources) this.parts.push(resource);
    if (more) return undefined;
    this.cursor = cursor;
    const whole: Snapshot = { type: "snapshot", cursor, resources: this.parts };
    this.begin();
    return whole;
  }
}

/**
 * Snapshots and events, as they come: `for await (const seen of client.watch())`.
 *
 * It continues until it is closed, however often the connection is lost. It throws `Compacted` if the server no longer
 * has what came after its cursor, and what the server says if it refuses.
 */
export class Watch implements AsyncIterableIterator<Snapshot | Event> {
  private readonly query: Record<string, string | undefined>;
  private readonly follower: Follower;
  private readonly scope: Scope;
  private frames: Frame[] = [];
  private decoder = new Decoder();
  private stream: HttpStream | undefined;
  private isBegun = false;
  private isClosed = false;
  private reading: Promise<unknown> = Promise.resolve();

  /** @internal Use `client.watch()`. */
  constructor(
    private readonly client: Client,
    private readonly channel: Channel,
    options: WatchOptions,
  ) {
    check.options(options, ["cursor", "kind", "holder", "renewals", "signal"]);
    const { cursor, kind, holder, renewals = false, signal } = options;
    if (cursor !== undefined) position(check.string("cursor", cursor, 'a string, such as "1.42"'));
    if (kind !== undefined) check.name("kind", kind);
    if (holder !== undefined) check.name("holder", holder);
    check.boolean("renewals", renewals);
    check.signal(signal);
    this.query = { kind, holder, renewals: renewals ? "true" : undefined };
    this.follower = new Follower(cursor, client.responseBytesMax);
    this.scope = new Scope(signal);
  }

  /** Give it to another watch to continue from here. Undefined before the first snapshot. */
  get cursor(): string | undefined {
    return this.follower.cursor;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next snapshot or event. Calls that are made at once are answered in order. */
  next(): Promise<IteratorResult<Snapshot | Event, undefined>> {
    const next = this.reading.then(() => this.step());
    this.reading = next.catch(() => {});
    return next;
  }

  /** Ends it, as `break` in a loop over it does. */
  async return(): Promise<IteratorResult<Snapshot | Event, undefined>> {
    await this.close();
    return { done: true, value: undefined };
  }

  /** Ends it. */
  async close(): Promise<void> {
    this.isClosed = true;
    this.scope.abort();
    this.scope.end();
    this.hangUp();
    await this.reading;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private async step(): Promise<IteratorResult<Snapshot | Event, undefined>> {
    try {
      while (!this.isClosed) {
        this.scope.signal.throwIfAborted();
        const frame = this.frames.shift();
        if (!frame) {
          await this.read();
          continue;
        }
        const seen = this.take(frame);
        if (seen) return { done: false, value: seen };
      }
    } catch (error) {
      // Part of what was under way may be lost, and comes again from the cursor.
      this.hangUp();
      if (!this.isClosed) throw error;
    }
    return { done: true, value: undefined };
  }

  private take(frame: Frame): Snapshot | Event | undefined {
    try {
      return this.follower.take(frame);
    } catch (error) {
      if (!(error instanceof Resync)) throw error;
      this.interrupted("this reader fell behind");
      return undefined;
    }
  }

  /** Reads one piece of the stream; connects before, if need be. */
  private async read(): Promise<void> {
    const stream = this.stream ?? (await this.connect());
    let piece: Uint8Array | undefined;
    try {
      piece = await stream.read(this.scope.signal);
    } catch (error) {
      if (!(error instanceof AnswerLost)) throw error;
      return this.interrupted(error.message);
    }
    if (!piece) return this.interrupted("the server ended it");
    try {
      this.frames = this.decoder.push(piece);
    } catch (error) {
      throw new Unknown(String(error), { cause: error });
    }
  }

  private interrupted(why: string): void {
    this.hangUp();
    if (this.isClosed) return;
    this.client.log.warn(`watch interrupted (${why}); reconnecting from ${this.cursor ?? "the start"}`);
  }

  /** The first time for as long as a request is repeated, and after that for as long as it takes. */
  private async connect(): Promise<HttpStream> {
    const { client } = this;
    const { signal } = this.scope;
    const given = Object.entries({ from: this.follower.cursor, ...this.query });
    const query = given.flatMap(([name, value]) =>
      value === undefined ? [] : `${name}=${encodeURIComponent(value)}`,
    );
    const path = wire.path("watch") + (query.length > 0 ? `?${query.join("&")}` : "");
    this.follower.begin();
    this.decoder = new Decoder();
    const backoff = new Backoff(client.backoff, client.random);
    for (;;) {
      try {
        const until = client.tickAfter(client.retryForMs);
        const stream = await this.channel.stream(
          { method: "GET", path },
          { timeoutMs: client.timeoutMs, until, signal },
        );
        if (this.isClosed) stream.close();
        if (this.isBegun) client.log.info(`watch reconnected; continuing from ${this.cursor ?? "the start"}`);
        this.isBegun = true;
        this.stream = stream;
        return stream;
      } catch (error) {
        if (!this.isBegun || !(error instanceof Unavailable || error instanceof Unknown)) throw error;
        await sleepUntil(client.clock, client.tickAfter(backoff.delay(error.retryAfterMs)), signal);
      }
    }
  }

  private hangUp(): void {
    this.frames = [];
    this.stream?.close();
    this.stream = undefined;
  }
}

function read(frame: Frame): Json {
  try {
    return JSON.parse(frame.data) as Json;
  } catch (error) {
    throw new Unknown(`a frame ${JSON.stringify(frame.event)} of the watch is not JSON`, { cause: error });
  }
}
