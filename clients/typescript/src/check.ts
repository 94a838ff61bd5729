/** Checks arguments, and names the one that is wrong. A value that may be a secret is not shown. */

import { NAME_BYTES_MAX, SLOTS_MAX, TIMER_MS_MAX } from "./limits.js";

/** What a value is, for people. */
export function kindOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "an array";
  if (typeof value === "object") return `an object of ${value.constructor?.name ?? "no class"}`;
  return value === undefined ? "undefined" : `a ${typeof value}`;
}

function wrong(argument: string, right: string, value: unknown): TypeError {
  return new TypeError(`${argument} must be ${right}, not ${kindOf(value)}`);
}

/** A value of a class; `right` says which, for people. */
export function instance<T>(
  argument: string,
  value: unknown,
  of: abstract new (...args: never[]) => T,
  right: string,
): T {
  if (!(value instanceof of)) throw wrong(argument, right, value);
  return value;
}

export function string(argument: string, value: unknown, right = "a string"): string {
  if (typeof value !== "string") throw wrong(argument, right, value);
  return value;
}

export function boolean(argument: string, value: unknown): boolean {
  if (typeof value !== "boolean") throw wrong(argument, "true or false", value);
  return value;
}

export function func(argument: string, value: unknown, right: string): void {
  if (typeof value !== "function") throw wrong(argument, right, value);
}

/** An object with fields, or nothing. */
export function fields(argument: string, value: unknown): void {
  if (value === undefined) return;
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw wrong(argument, "an object", value);
}

/** The options of a call. One that does not exist is an error, since a typing mistake would be ignored silently. */
export function options(value: unknown, known: readonly string[]): void {
  fields("options", value);
  for (const name of Object.keys(value ?? {})) {
    if (!known.includes(name)) {
      throw new TypeError(`there is no option ${JSON.stringify(name)}: the options are ${known.join(", ")}`);
    }
  }
}

export function signal(value: unknown): void {
  if (value !== undefined) instance("signal", value, AbortSignal, "an AbortSignal");
}

/** A name of something, as the server accepts it. */
export function name(argument: string, value: unknown): string {
  const given = string(argument, value);
  if (hasLoneSurrogate(given))
    throw new RangeError(`${argument} is not text that can be sent: it is cut in a character`);
  const size = Buffer.byteLength(given);
  if (size < 1 || size > NAME_BYTES_MAX || given === "." || given === "..") {
    const shown = JSON.stringify(size <= NAME_BYTES_MAX ? given : `${given.slice(0, 32)}...`);
    const bounds = `a name has 1 to ${NAME_BYTES_MAX} bytes, and is not "." or ".."`;
    throw new RangeError(`${argument} is ${shown}, which has ${size} bytes: ${bounds}`);
  }
  return given;
}

function hasLoneSurrogate(given: string): boolean {
  // `isWellFormed` is newer than Node 20's types.
  return /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.test(given);
}

/** A number of milliseconds; `right` says which are right, for people. */
export function milliseconds(
  argument: string,
  value: unknown,
  isRight: (ms: number) => boolean,
  right: string,
): number {
  if (typeof value !== "number") {
    throw new TypeError(`${argument} must be a number of milliseconds, not ${kindOf(value)}: give ${right}`);
  }
  if (!isRight(value)) throw new RangeError(`${argument} is ${value}: give ${right}`);
  return value;
}

export function aboveZero(argument: string, value: unknown): number {
  return milliseconds(argument, value, (ms) => ms > 0 && ms <= TIMER_MS_MAX, "milliseconds above 0");
}

/** How long an acquire may wait. */
export function timeout(value: unknown): void {
  if (value === undefined) return;
  const right = "milliseconds, 0 to ask once, or leave it out to wait for as long as it takes";
  milliseconds("timeoutMs", value, (ms) => ms >= 0, right);
}

/** A fencing token. */
export function token(value: unknown): number {
  if (typeof value !== "number") throw wrong("token", "a whole number", value);
  if (!Number.isSafeInteger(value) || value < 0)
    throw new RangeError(`token is ${value}: give a whole number`);
  return value;
}

/** How many holders may share a resource, or one of their slots; undefined for an exclusive lease. */
export function slots(argument: "slot" | "slots", value: unknown): void {
  if (value === undefined) return;
  if (typeof value !== "number") throw wrong(argument, "a whole number", value);
  if (!Number.isSafeInteger(value) || value < 1 || value > SLOTS_MAX)
    throw new RangeError(
      `${argument} is ${value}: give 1 to ${SLOTS_MAX}, or leave it out for an exclusive lease`,
    );
}
