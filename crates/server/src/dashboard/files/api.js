// Requests to the server that this page came from, with the key that the user typed.

const KEY = "solehold.key";
const TIMEOUT_MS = 15_000;

/** What the server refused, or that it did not answer (status 0). */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail ?? document.title ?? `status ${status}`);
    this.status = status;
    this.code = document.code;
    this.requestId = document.request_id;
  }

  /** What to tell the user. */
  get words() {
    if (this.status === 0) return "The server cannot be reached.";
    if (this.status === 401) return `The server needs a valid key: ${this.message}.`;
    if (this.status === 403) return `Your key does not allow this: ${this.message}.`;
    return `${this.message}${this.requestId ? ` (request ${this.requestId})` : ""}`;
  }
}

/** The words for anything that was thrown. */
export const wordsOf = (error) => (error instanceof Problem ? error.words : `This page failed: ${error.message}`);

/** The path of an API call, relative to this page; names become segments: path("resources", kind, key). */
export const path = (...names) => `api/v1/${names.map(encodeURIComponent).join("/")}`;

export class Api {
  /** The servers that have answered, and when: behind a load balancer there may be several. */
  servers = new Map();

  /** The key lasts as long as the tab. */
  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  set key(key) {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  }

  /** Answers with the response, whatever its status. */
  async request(method, url, { body, signal, accept = "application/json" } = {}) {
    const headers = { Accept: accept };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const options = { method, headers, signal, cache: "no-store", redirect: "error", credentials: "omit" };
    if (body !== undefined) options.body = JSON.stringify(body);
    try {
      const response = await fetch(url, options);
      const server = response.headers.get("x-solehold-node");
      if (server) this.servers.set(server, Date.now());
      return response;
    } catch (error) {
      if (signal?.aborted && signal.reason?.name !== "TimeoutError") throw error;
      throw new Problem(0, { detail: "the server cannot be reached" });
    }
  }

  async call(method, url, body) {
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    const response = await this.request(method, url, { body, signal });
    const text = await response.text();
    const isJson = (response.headers.get("content-type") ?? "").includes("json");
    const document = isJson && text ? JSON.parse(text) : {};
    if (!response.ok) throw new Problem(response.status, document);
    return isJson ? document : text;
  }

  get(url, query = {}) {
    return this.call("GET", withQuery(url, query));
  }

  /** All items of a list that comes in pages, up to `most` of them. */
  async all(url, items, query = {}, most = 10_000) {
    const found = [];
    let cursor;
    do {
      const page = await this.get(url, { limit: 1000, ...query, cursor });
      found.push(...page[items]);
      cursor = page.next ?? undefined;
    } while (cursor !== undefined && found.length < most);
    return found;
  }
}

export function withQuery(url, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return given.length === 0 ? url : `${url}?${new URLSearchParams(given)}`;
}

/** The problem in an answer whose status says that there is one. */
export async function problemOf(response) {
  const text = await response.text().catch(() => "");
  let document = {};
  try {
    document = JSON.parse(text);
  } catch {
    // A proxy may answer with a page of its own.
  }
  return new Problem(response.status, document);
}
