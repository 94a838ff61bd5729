// The watch: who owns what, then every change in order, over one connection that is made again when it is lost.
//
// A cursor says how far this page has come. After a lost connection the watch resumes from it, so that nothing is
// missed and nothing comes twice. If the server no longer keeps what came after it, the page begins again with a
// snapshot.

import { Problem, path, problemOf, withQuery } from "./api.js";

/** The server writes at least every 10 s; a connection that is silent for longer is dead. */
const SILENCE_MS = 25_000;
const PAUSE_MIN_MS = 200;
const PAUSE_MAX_MS = 3_000;
/** How many earlier events are read for the timeline when the page begins. */
const EARLIER_EVENTS = 500;

/** Splits a stream of server-sent events into frames. */
export class Decoder {
  text = "";

  push(piece) {
    this.text += piece;
    const blocks = this.text.split("\n\n");
    this.text = blocks.pop();
    return blocks.map(frameOf).filter((frame) => frame.data !== "");
  }
}

function frameOf(block) {
  const frame = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) frame.event = line.slice(6).trim();
    else if (line.startsWith("data:")) frame.data += line.slice(5).trimStart();
  }
  return frame;
}

/** An epoch and a revision: "1.42". */
const parsed = (cursor) => cursor.split(".").map(Number);

/** Whether a cursor comes after another; any comes after none. */
export function isAfter(cursor, other) {
  if (other === undefined) return true;
  const [epoch, revision] = parsed(cursor);
  const [otherEpoch, otherRevision] = parsed(other);
  return epoch !== otherEpoch ? epoch > otherEpoch : revision > otherRevision;
}

export class Watch {
  constructor(api, store) {
    this.api = api;
    this.store = store;
    this.cursor = undefined;
    this.earlierFrom = undefined;
    this.parts = [];
    this.pauseMs = PAUSE_MIN_MS;
    this.wake = () => {};
    addEventListener("online", () => this.wake());
    document.addEventListener("visibilitychange", () => document.hidden || this.wake());
  }

  /** Begins again with a snapshot: another key sees other things. */
  restart() {
    this.cursor = undefined;
    this.earlierFrom = undefined;
    this.pauseMs = PAUSE_MIN_MS;
    this.connection?.abort();
    this.wake();
  }

  async run() {
    for (;;) {
      let pauseMs = 0;
      try {
        await this.connect();
      } catch (error) {
        pauseMs = this.failed(error);
      }
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, pauseMs);
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /** What to do about a connection that ended: how long to wait before the next. */
  failed(error) {
    const status = error instanceof Problem ? error.status : 0;
    // Too old, or ahead of a store that was set back: only a snapshot helps. Earlier events may be gone on their own.
    if (status === 410 || (status === 400 && this.cursor !== undefined)) {
      if (this.earlierFrom === undefined) this.cursor = undefined;
      this.earlierFrom = undefined;
      return 0;
    }
    this.store.disconnected(error);
    if (status === 401 || status === 403) return 60_000;
    const pauseMs = this.pauseMs * (0.75 + Math.random() / 2);
    this.pauseMs = Math.min(this.pauseMs * 2, PAUSE_MAX_MS);
    return pauseMs;
  }

  async connect() {
    const connection = new AbortController();
    this.connection = connection;
    this.parts = [];
    const isSilent = () => connection.abort(new DOMException("the server is silent", "TimeoutError"));
    let silence = setTimeout(isSilent, SILENCE_MS);
    try {
      const url = withQuery(path("watch"), { from: this.earlierFrom ?? this.cursor });
      const response = await this.api.request("GET", url, {
        signal: connection.signal,
        accept: "text/event-stream",
      });
      if (!response.ok) throw await problemOf(response);
      const decoder = new Decoder();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done || this.connection !== connection) break;
        clearTimeout(silence);
        silence = setTimeout(isSilent, SILENCE_MS);
        for (const frame of decoder.push(value)) {
          if (!this.take(frame.event, JSON.parse(frame.data))) return;
        }
        this.pauseMs = PAUSE_MIN_MS;
      }
      throw new Problem(0, { detail: "the server closed the connection" });
    } finally {
      clearTimeout(silence);
      connection.abort();
    }
  }

  /** Takes a frame. False, if the watch has to connect again. */
  take(event, data) {
    switch (event) {
      case "snapshot":
        return this.takeSnapshot(data);
      case "event":
        this.takeEvent(data);
        return true;
      case "progress":
        if (isAfter(data.cursor, this.cursor)) this.cursor = data.cursor;
        this.earlierFrom = undefined;
        this.store.isCurrent(data.timestamp);
        return true;
      case "compacted":
        this.cursor = undefined;
        return false;
      default:
        return event !== "resync";
    }
  }

  takeSnapshot({ cursor, resources, more }) {
    this.parts.push(resources);
    if (more) return true;
    this.cursor = cursor;
    const isFirst = this.store.events.length === 0;
    this.store.replace(this.parts.flat());
    this.parts = [];
    const [epoch, revision] = parsed(cursor);
    if (!isFirst || revision === 0) return true;
    // Once more, from a little earlier: what is not news only goes into the timeline.
    this.earlierFrom = `${epoch}.${Math.max(0, revision - EARLIER_EVENTS)}`;
    return false;
  }

  takeEvent(event) {
    if (isAfter(event.cursor, this.cursor)) {
      this.cursor = event.cursor;
      this.earlierFrom = undefined;
      this.store.apply(event);
    } else if (this.earlierFrom !== undefined) {
      this.store.remember(event);
    }
  }
}
