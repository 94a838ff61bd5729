// Times, numbers and names in words.

const HOURS = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const DAYS = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
const NUMBERS = new Intl.NumberFormat();

/** A time of day: 07:03:12. */
export const clock = (time) => HOURS.format(new Date(time));

/** A time of day, with its date if that is not today. */
export function moment(time) {
  if (!time) return "";
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? HOURS.format(date) : `${DAYS.format(date)}, ${HOURS.format(date)}`;
}

export const number = (value) => NUMBERS.format(value);

/** "1 resource", "24 resources". */
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

/** A length of time, in the two largest units: 850 ms, 12 s, 3 min 5 s, 2 h 4 min, 3 d 1 h. */
export function span(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const units = [
    ["d", 86_400],
    ["h", 3_600],
    ["min", 60],
    ["s", 1],
  ];
  let seconds = Math.round(ms / 1000);
  const parts = [];
  for (const [unit, size] of units) {
    if (seconds >= size) parts.push(`${Math.floor(seconds / size)} ${unit}`);
    seconds %= size;
  }
  return parts.slice(0, 2).join(" ");
}

/** Seconds of a countdown: 12.3 s. */
export const countdown = (ms) => (ms > 60_000 ? span(ms) : `${(Math.max(0, ms) / 1000).toFixed(1)} s`);

/** How long ago: "3 s ago". */
export function ago(time, now = Date.now()) {
  const ms = now - new Date(time);
  return ms < 1000 ? "just now" : `${span(ms)} ago`;
}

/** The path of a resource's page. */
export const resourceLink = ({ tenant, kind, key }) =>
  `#/resource/${[tenant, kind, key].map(encodeURIComponent).join("/")}`;

/** The path of the page of runners, at one of them. */
export const runnerLink = (name) => `#/runners/${encodeURIComponent(name)}`;

/** What an event says, in a few words. `previous` is who had the resource before, if another had. */
export function eventWords(event) {
  const { details = {} } = event;
  const because = details.reason ? `: ${details.reason}` : "";
  const until = details.held_back_until ? `, held back until ${clock(details.held_back_until)}` : "";
  switch (event.event_type) {
    case "lease_acquired":
      return acquiredWords(event);
    case "lease_pending":
      return `is offered to ${event.holder}`;
    case "lease_released":
      return event.token === null
        ? `offer to ${event.holder} was called off${because}`
        : `released by ${event.holder}${until}${because}`;
    case "lease_expired":
      return event.token === null
        ? `offer to ${event.holder} lapsed`
        : `lease of ${event.holder} expired${until}${because}`;
    case "lease_revoked":
      return `revoked from ${event.holder}${until}${because}`;
    case "lease_stolen":
      return `expired lease of ${event.holder} was taken over${because}`;
    case "hold_back_lifted":
      return `is no longer held back${because}`;
    case "state_changed":
      return `state document ${details.sequence ?? ""} was written`;
    case "resource_declared":
      return "was declared";
    case "resource_deleted":
      return "was deleted";
    case "config_changed":
      return "configuration has changed";
    default:
      return event.event_type.replaceAll("_", " ");
  }
}

function acquiredWords({ holder, previous }) {
  if (!previous) return `acquired by ${holder}`;
  const after = previous.after === undefined ? "" : `, ${span(previous.after)} after it ${previous.ended}`;
  if (previous.kind === "takeover") return `taken over by ${holder} from ${previous.holder}${after}`;
  return `handed over to ${holder} from ${previous.holder}`;
}
