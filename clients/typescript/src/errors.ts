/**
 * What went wrong, by what it means for the caller.
 *
 * A refusal is an outcome: nothing was granted, and it says who holds the resource. `Unknown` means that it is not
 * known whether it was done (rule 8). `Unavailable` means that nothing was done.
 */

/** What is wrong with one field of a request. */
export interface FieldError {
  readonly field: string;
  readonly message: string;
}

/** What a server said beside the text of its answer. */
export interface ProblemDetails {
  code?: string;
  status?: number | undefined;
  holder?: string | undefined;
  token?: number | undefined;
  retryAfterMs?: number | undefined;
  fields?: readonly FieldError[];
  requestId?: string | undefined;
  cause?: unknown;
}

/** Every error of this package, except for wrong arguments (`TypeError`, `RangeError`) and the reason of an abort. */
export class SoleholdError extends Error {
  /** What happened, to what, and what to do. */
  readonly detail: string;
  /** The server's code for it; empty if it did not come from a server. */
  readonly code: string;
  /** The HTTP status, if a server answered. */
  readonly status: number | undefined;
  /** The present holder of the resource, or the next one. */
  readonly holder: string | undefined;
  /** The token of the present or last grant. */
  readonly token: number | undefined;
  /** Milliseconds before which a repeat is of no use. */
  readonly retryAfterMs: number | undefined;
  /** Everything that is wrong with the request. */
  readonly fields: readonly FieldError[];
  /** The server's id of the request, as in its log. */
  readonly requestId: string | undefined;

  constructor(detail: string, about: ProblemDetails = {}) {
    super(
      about.code ? `${about.code}: ${detail}` : detail,
      about.cause === undefined ? {} : { cause: about.cause },
    );
    this.name = new.target.name;
    this.detail = detail;
    this.code = about.code ?? "";
    this.status = about.status;
    this.holder = about.holder;
    this.token = about.token;
    this.retryAfterMs = about.retryAfterMs;
    this.fields = about.fields ?? [];
    this.requestId = about.requestId;
  }
}

/** The request is wrong; `fields` says where. */
export class BadRequest extends SoleholdError {}

/** There was no key, or it is unknown, expired or revoked. */
export class Unauthorized extends SoleholdError {}

/** The key may not do this, or a quota is used up (`code` is then `quota_exceeded`). */
export class Forbidden extends SoleholdError {}

/** There is no such thing, or the key may not see it. */
export class NotFound extends SoleholdError {}

/** The authority refused: `code` is `held`, `held_back`, `lost`, `not_yours`, `request_spent`, ... */
export class Refused extends SoleholdError {}

/** The session is not known, closed or expired. */
export class NoSession extends Refused {}

/** The session is over because its holder has opened another one. */
export class Superseded extends NoSession {}

/** The events after the cursor of a watch are no longer kept: begin again without a cursor, with a snapshot. */
export class Compacted extends SoleholdError {}

/** No server could be reached, or it did nothing: safe to repeat. */
export class Unavailable extends SoleholdError {}

/** It is not known whether it was done. */
export class Unknown extends SoleholdError {}

/**
 * Why a lease or session was lost: `deadline` (no renewal came through in time), `failed` (one failed, under the policy
 * `immediate`), `refused` (the authority refused to renew), `ended` (another client ended this lease), `history` (the
 * store was set back to an older history), `released` or `closed` (by this process).
 */
export type LostReason = "deadline" | "failed" | "refused" | "ended" | "history" | "released" | "closed";

/** The lease is no longer held, or not known to be. It is also the reason with which a guard's signal aborts. */
export class Lost extends SoleholdError {
  readonly why: LostReason;

  constructor(why: LostReason, detail: string, about: ProblemDetails = {}) {
    super(detail, about);
    // The server's code is for programs here: the text has it already.
    this.message = detail;
    this.why = why;
  }

  /** The same loss as an error of its own, with the stack of the caller: several callers may learn of one loss. */
  again(cause?: unknown): Lost {
    return new Lost(this.why, this.detail, { code: this.code, cause: cause ?? this.cause });
  }
}

type Kind = new (detail: string, about?: ProblemDetails) => SoleholdError;

const BY_STATUS: Readonly<Record<number, Kind>> = {
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Refused,
  429: Unavailable,
};

const BY_CODE: ReadonlyMap<string, Kind> = new Map<string, Kind>([
  ["no_session", NoSession],
  ["session_superseded", Superseded],
  ["lost", Refused],
  ["compacted", Compacted],
  ["request_timeout", Unavailable],
  ["overloaded", Unavailable],
  ["unavailable", Unavailable],
]);

/** The problem document of an answer as an error. Any other body proves nothing. */
export function fromAnswer(server: string, status: number, body: Uint8Array): SoleholdError {
  const problem = problemOf(body);
  const code = problem["code"];
  if (typeof code !== "string" || code === "") {
    return new Unknown(`${server} answered ${status} without a problem document: is it a Solehold server?`, {
      status,
    });
  }
  const kind = BY_CODE.get(code) ?? BY_STATUS[status] ?? (status < 500 ? BadRequest : Unknown);
  const detail = text(problem["detail"]) ?? text(problem["title"]) ?? `${server} answered ${status}`;
  return new kind(detail, {
    code,
    status,
    holder: text(problem["holder"]),
    token: whole(problem["token"]),
    retryAfterMs: whole(problem["retry_after_ms"]),
    fields: fieldErrors(problem["errors"]),
    requestId: text(problem["request_id"]),
  });
}

function problemOf(body: Uint8Array): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
    return typeof value === "object" && value !== null && !Array.isArray(value) ? { ...value } : {};
  } catch {
    return {};
  }
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function whole(value: unknown): number | undefined {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

function fieldErrors(value: unknown): FieldError[] {
  const faults: unknown[] = Array.isArray(value) ? value : [];
  return faults.flatMap((fault) => {
    if (typeof fault !== "object" || fault === null) return [];
    const { field, message } = fault as Record<string, unknown>;
    return [{ field: text(field) ?? "", message: text(message) ?? "" }];
  });
}
