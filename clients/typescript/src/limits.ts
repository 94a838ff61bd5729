/** Every bound of this client, in one place and by name (rule 25). Times are in milliseconds. */

// What the server accepts.
export const NAME_BYTES_MAX = 255;
export const TTL_MS_MIN = 1_000;
export const TTL_MS_MAX = 24 * 60 * 60 * 1_000;
/** The longest that one request waits in line; to wait longer, the client repeats it under the same request id. */
export const WAIT_MS_MAX = 30_000;
/** The most sessions for whose news one request waits. */
export const NEWS_SESSIONS_MAX = 1_000;
/** The most holders at once that share one resource. */
export const SLOTS_MAX = 1_000;
/** The most resources that one request acquires together. */
export const ACQUIRED_TOGETHER_MAX = 100;
/** The most kinds of resources that one gate judges. */
export const GATE_KINDS_MAX = 32;
/** If the server has not ended a wait by then, the client ends it. */
export const WAIT_LEEWAY_MS = 1_000;
/** A watch is never silent for long: the server sends a comment every 10 s. */
export const SILENCE_MS_MAX = 30_000;
export const FRAME_BYTES_MAX = 4 * 1024 * 1024;

// The trust window (rule 4).
export const MARGIN_SHARE = 0.02;
export const MARGIN_MS_MIN = 100;
/** Taken off where the server does not say how far the store's clock may run ahead. */
export const SLACK_MS_UNKNOWN = 500;
export const MARGIN_SHARE_MAX = 0.5;
/** The resolution of `/proc/uptime`: what a reading of the clock may be wrong by after the machine has slept. */
export const CLOCK_ERROR_MS = 10;
/**
 * Node's timers stand still while the machine sleeps, so nothing waits for longer than this without reading the clock.
 */
export const STEP_MS_MAX = 100;

// Answers.
export const HEAD_BYTES_MAX = 64 * 1024;
export const RESPONSE_BYTES_MAX = 64 * 1024 * 1024;
export const INTERIM_ANSWERS_MAX = 8;
export const PROBLEM_BYTES_MAX = 64 * 1024;

// Connections of one client: short requests, and those that wait in line. Each has its own share, so that waiting for
// a lock never prevents its release. The number of idle connections is bounded as well.
export const REQUESTS_AT_ONCE_MAX = 64;
export const WAITERS_AT_ONCE_MAX = 512;
export const IDLE_CONNECTIONS_MAX = 16;
export const SERVERS_MAX = 64;
export const CONNECT_MS_MAX = 3_000;

/** Requests whose outcome a session still has to find out. */
export const UNSETTLED_MAX = 1_024;
/** How long an aborted acquire waits until its request id is spent, before that continues in the background. */
export const SPEND_MS_MAX = 1_000;
/**
 * How long `await using` waits for the release of a guard, before that continues in the background, and how long
 * closing a session waits for an answer, before its ttl does the rest.
 */
export const LEAVE_MS_MAX = 2_000;
/** The longest delay that one of Node's timers takes. A longer one would fire at once. */
export const TIMER_MS_MAX = 2 ** 31 - 1;
