/** How long a holder may trust an answer (rule 4). Pure. */

import { CLOCK_ERROR_MS, MARGIN_MS_MIN, MARGIN_SHARE, MARGIN_SHARE_MAX, SLACK_MS_UNKNOWN } from "./limits.js";

/** What is taken off a ttl: 2 %, at least 100 ms, and the slack of the store's clock; at most half of the ttl. */
export function margin(ttlMs: number, slackMs: number | undefined): number {
  const own = Math.max(ttlMs * MARGIN_SHARE, MARGIN_MS_MIN);
  return Math.min(own + (slackMs ?? SLACK_MS_UNKNOWN), ttlMs * MARGIN_SHARE_MAX);
}

/**
 * The tick at which the work has stopped. It counts from before the request was sent, since the store granted the time
 * later, and makes up for the resolution of the clock.
 */
export function deadline(
  sent: number,
  ttlLeftMs: number,
  ttlMs: number,
  slackMs: number | undefined,
): number {
  return sent + ttlLeftMs - margin(ttlMs, slackMs) - CLOCK_ERROR_MS;
}
