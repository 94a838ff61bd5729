/** Server-sent events: bytes, however they are cut, to frames. Pure. */

import { FRAME_BYTES_MAX } from "./limits.js";

/** One frame of a stream. */
export interface Frame {
  readonly event: string;
  readonly data: string;
}

const LF = 0x0a;
const CR = 0x0d;

/** Reads a stream that comes in pieces, with lines that end in any of the three ways. */
export class Decoder {
  private rest: Buffer[] = [];
  private restBytes = 0;
  private afterReturn = false;
  private event = "message";
  private data: string[] = [];
  private size = 0;

  /** Takes in a piece; returns the frames that it completes. One that is too large throws a `RangeError`. */
  push(piece: Uint8Array): Frame[] {
    const frames: Frame[] = [];
    let start = 0;
    for (let at = 0; at < piece.length; at++) {
      const byte = piece[at];
      const isSecondHalf = byte === LF && this.afterReturn;
      this.afterReturn = byte === CR;
      if (isSecondHalf) {
        start = at + 1;
      } else if (byte === LF || byte === CR) {
        this.endLine(piece.subarray(start, at), frames);
        start = at + 1;
      }
    }
    const rest = piece.subarray(start);
    if (rest.length > 0) {
      this.rest.push(Buffer.from(rest));
      this.restBytes += rest.length;
    }
    this.bound(this.size + this.restBytes);
    return frames;
  }

  private endLine(end: Uint8Array, frames: Frame[]): void {
    this.bound(this.size + this.restBytes + end.length);
    const line = Buffer.concat([...this.rest, end]);
    this.rest = [];
    this.restBytes = 0;
    this.size += line.length;
    if (line.length > 0) return this.take(line.toString("utf8"));
    if (this.data.length > 0) frames.push({ event: this.event, data: this.data.join("\n") });
    this.event = "message";
    this.data = [];
    this.size = 0;
  }

  private bound(size: number): void {
    if (size > FRAME_BYTES_MAX)
      throw new RangeError(`a frame of the stream has more than ${FRAME_BYTES_MAX} bytes`);
  }

  private take(line: string): void {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.event = value;
    else if (field === "data") this.data.push(value);
  }
}
