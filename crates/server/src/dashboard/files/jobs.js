// Words for the jobs of an orchestrator.

import { Problem, wordsOf } from "./api.js";
import { clock } from "./format.js";

const CLASSES = { running: "held", queued: "moving", failed: "held-back" };

/** The colour of a state of a job or a stage. */
export const stateClass = (state) => CLASSES[state] ?? "free";

/** The path of a job's page. */
export const jobLink = (id) => `#/job/${encodeURIComponent(id)}`;

export const percent = (part) => `${Math.round(part * 100)} %`;

/** "organization_id=acme, match_id=7" */
export const labelWords = (labels = {}) =>
  Object.entries(labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(", ");

/** Says that what is shown is old, and why. */
export function oldWords(what, readAt, error) {
  const isOld = readAt !== undefined && !(error instanceof Problem && [401, 403, 404].includes(error.status));
  // Without the number of the request: it would be another text each time, and read out again.
  const words = error.code === "orchestrator_unavailable" ? `${capital(error.message)}.` : wordsOf(error);
  return isOld ? `Showing ${what} from ${clock(readAt)}. ${words}` : words;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
