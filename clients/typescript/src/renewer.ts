/**
 * When to renew a session, and when its holder must stop. Pure: ticks and randomness are arguments.
 *
 *     live --(a renewal is answered)--> live, with a later deadline
 *     live --(the authority refuses)--> lost
 *     live --(a renewal fails, `immediate`)--> lost
 *     live --(the deadline passes, and the grace if there is one)--> lost
 *
 * Lost is for good: an answer that comes after it changes nothing.
 *
 * A heartbeat without an answer is not abandoned: it may use all of the time that is left. After a while another one is
 * sent beside it, to another server if there is one. Each answer counts from when its own heartbeat was sent, so a
 * server that is slow costs no session.
 *
 * Only the answer to a heartbeat moves trust, and only a heartbeat postpones the next one: that answer alone comes with
 * the full set of leases. The renewal of a single lease says nothing about the others, one of which may have been
 * revoked since, so this machine never hears of one.
 */

import { Backoff, type Random } from "./backoff.js";
import * as check from "./check.js";
import { Lost } from "./errors.js";
import * as trust from "./trust.js";

/** Heartbeats are sent at a third of the ttl or a little earlier, so that those of a fleet spread. */
const INTERVAL_SHARE = 1 / 3;
const INTERVAL_JITTER = 0.2;
/** After this share of the ttl, or this time, another heartbeat is sent beside one that is not answered. */
const BESIDE_SHARE = INTERVAL_SHARE / 3;
const BESIDE_MS_MIN = 250;
/** The most heartbeats of a session that are under way at once. */
export const FLIGHTS_MAX = 8;
const RETRY_SHARE_FIRST = 1 / 200;
const RETRY_SHARE_MAX = 1 / 12;

/**
 * What to do while renewals fail. A refusal always stops at once.
 *
 * `Policy.IMMEDIATE` stops at the first renewal that fails. `Policy.DEADLINE` tries again until the local deadline,
 * then stops. `Policy.grace(ms)` continues for that long after the deadline while the authority is unreachable; it
 * needs a gate that refuses old tokens (rule 22).
 */
export class Policy {
  static readonly IMMEDIATE = new Policy("immediate", 0);
  static readonly DEADLINE = new Policy("deadline", 0);

  static grace(ms: number): Policy {
    check.milliseconds("the grace", ms, (given) => given > 0 && given < Infinity, "milliseconds above 0");
    return new Policy("grace", ms);
  }

  private constructor(
    readonly name: "immediate" | "deadline" | "grace",
    readonly graceMs: number,
  ) {}
}

/** What to do now. */
export type Action =
  | {
      /** Send a heartbeat now, and do not wait for it. */
      readonly do: "send";
      /** Tells it from others. */
      readonly flight: number;
      /** How long each server has. */
      readonly timeoutMs: number;
      /** How many others are under way: as many servers have been asked already. */
      readonly beside: number;
    }
  | {
      /** Nothing to do until this tick, or until something happens. */
      readonly do: "wait";
      readonly until: number;
    }
  | { readonly do: "stop"; readonly lost: Lost };

/** The time that an answer grants. */
export interface Granted {
  /** The tick before its request was sent. */
  readonly sent: number;
  readonly ttlLeftMs: number;
  readonly slackMs: number | undefined;
}

/** The trust window of one session. */
export class Renewer {
  /** When the heartbeats were sent that are under way, by their numbers. */
  private readonly flights = new Map<number, number>();
  private flightsSent = 0;
  private hasNews = false;
  private failure = "no renewal was answered";
  private next: number;
  private readonly retries: Backoff;
  private readonly besideAfterMs: number;
  /** The tick at which trust in the last answer ends. */
  deadline: number;
  /** Why it is lost, once it is. */
  lost: Lost | undefined;

  constructor(
    private readonly policy: Policy,
    private readonly ttlMs: number,
    granted: Granted,
    private readonly random: Random,
    /** How often heartbeats are sent, a little earlier to spread them. */
    private readonly intervalMs = ttlMs * INTERVAL_SHARE,
  ) {
    this.retries = new Backoff(
      { firstMs: ttlMs * RETRY_SHARE_FIRST, capMs: ttlMs * RETRY_SHARE_MAX },
      random,
    );
    this.besideAfterMs = Math.max(ttlMs * BESIDE_SHARE, BESIDE_MS_MIN);
    this.deadline = trust.deadline(granted.sent, granted.ttlLeftMs, ttlMs, granted.slackMs);
    this.next = this.after(granted.sent);
  }

  /** The tick at which the work stops if no renewal comes through. */
  get endsAt(): number {
    return this.deadline + this.policy.graceMs;
  }

  /** Whether the work may continue. Once false, it stays false. */
  isLive(now: number): boolean {
    return this.judge(now) === undefined;
  }

  /** What to do at this tick. */
  poll(now: number): Action {
    const lost = this.judge(now);
    if (lost) return { do: "stop", lost };
    const due = this.due();
    if (now < due) return { do: "wait", until: Math.min(due, this.endsAt) };
    const beside = this.flights.size;
    this.flightsSent += 1;
    this.flights.set(this.flightsSent, now);
    return { do: "send", flight: this.flightsSent, timeoutMs: this.timeoutMs(now, beside), beside };
  }

  /** When the next heartbeat is sent: at its time, or beside those that are not answered. */
  private due(): number {
    if (this.flights.size === 0) return this.next;
    // Where one failure is the end, nothing is sent beside a heartbeat.
    const most = this.policy.name === "immediate" ? 1 : FLIGHTS_MAX;
    return this.flights.size < most ? Math.max(...this.flights.values()) + this.besideAfterMs : Infinity;
  }

  private timeoutMs(now: number, beside: number): number {
    const left = this.endsAt - now;
    if (this.policy.name === "immediate") return Math.min(left, this.ttlMs * INTERVAL_SHARE);
    return beside === 0 ? left : Math.min(left, this.besideAfterMs * (FLIGHTS_MAX - 1));
  }

  /**
   * A heartbeat was answered. A deadline never moves earlier, and heartbeats that were sent before have no more to say.
   */
  answered(now: number, granted: Granted): void {
    for (const [flight, began] of this.flights) {
      if (began <= granted.sent) this.flights.delete(flight);
    }
    if (this.judge(now)) return;
    const { sent, ttlLeftMs, slackMs } = granted;
    this.deadline = Math.max(this.deadline, trust.deadline(sent, ttlLeftMs, this.ttlMs, slackMs));
    this.next = this.hasNews ? now : Math.max(this.next, this.after(sent));
    this.hasNews = false;
    this.retries.reset();
  }

  /**
   * Something has happened to the session: the next heartbeat is sent now. If one is on its way, which may have been
   * answered before it happened, another one follows it.
   */
  news(now: number): void {
    this.hasNews = this.flights.size > 0;
    this.next = Math.min(this.next, now);
  }

  /** A heartbeat had no answer, or none that decides anything. False if one that was sent later was answered. */
  failed(flight: number, now: number, detail: string, retryAfterMs = 0): boolean {
    if (!this.flights.delete(flight)) return false;
    this.failure = detail;
    if (this.policy.name === "immediate" && !this.judge(now)) {
      this.lost = new Lost("failed", `a renewal failed, and the policy is to stop at once: ${detail}`);
    }
    this.next = now + this.retries.delay(Math.min(retryAfterMs, this.ttlMs * RETRY_SHARE_MAX));
    return true;
  }

  /** The authority answered that the session is over. */
  refused(detail: string, code = ""): void {
    this.lost ??= new Lost("refused", `the authority refused to renew: ${detail}`, { code });
  }

  /** A heartbeat was answered from an older history: nothing of it is used. */
  setBack(detail: string): void {
    this.lost ??= new Lost("history", detail);
  }

  /** The holder closed the session. */
  closed(): void {
    this.lost ??= new Lost("closed", "the session was closed");
  }

  /** Why it is lost by this tick, if it is. */
  judge(now: number): Lost | undefined {
    // Written so that a clock that returns no number ends trust, too.
    if (!this.lost && !(now < this.endsAt)) {
      this.lost = new Lost("deadline", `the deadline passed without a renewal: ${this.failure}`);
    }
    return this.lost;
  }

  private after(sent: number): number {
    return sent + this.intervalMs * (1 - INTERVAL_JITTER * this.random());
  }
}
