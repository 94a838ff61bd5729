/** The address of a server. */

import * as check from "./check.js";

const RIGHT = "give HOST:PORT or a URL, as in 127.0.0.1:7070 or https://solehold.example:7070";

/** One server, from its URL. */
export class Server {
  private constructor(
    readonly secure: boolean,
    /** As a socket takes it: an address of IPv6 without brackets. */
    readonly host: string,
    readonly port: number,
    /** The path that stands before `/api/v1`. */
    readonly base: string,
  ) {}

  /** Parses `HOST:PORT`, for plain HTTP, or a URL, which may have a path that stands before `/api/v1`. */
  static parse(url: string): Server {
    if (url === "") throw new RangeError(`a server is empty: ${RIGHT}, with commas between several`);
    const wrong = (what: string): RangeError => new RangeError(`the server ${shown(url)} ${what}: ${RIGHT}`);
    if (/[^\x21-\x7e]/.test(url)) throw wrong("has characters that are not plain");
    const isBare = !url.includes("://");
    if (isBare && !/^[^/]*:[0-9]+(\/|$)/.test(url.slice(url.lastIndexOf("@") + 1)))
      throw wrong("has no port");
    let parts: URL;
    try {
      parts = new URL(isBare ? `http://${url}` : url);
    } catch {
      throw wrong("is not right");
    }
    if ((parts.protocol !== "http:" && parts.protocol !== "https:") || parts.hostname === "") {
      throw wrong("is not http or https with a host");
    }
    if (parts.username || parts.password || url.includes("@") || parts.search || parts.hash) {
      throw new RangeError(
        `the server ${shown(url)} has a user, query or fragment: ${RIGHT}; the key is given as \`key\``,
      );
    }
    const secure = parts.protocol === "https:";
    const host = parts.hostname.replace(/^\[|\]$/g, "");
    const port = parts.port === "" ? (secure ? 443 : 80) : Number(parts.port);
    return new Server(secure, host, port, parts.pathname.replace(/\/+$/, ""));
  }

  /** Host and port. */
  get authority(): string {
    return this.host.includes(":") ? `[${this.host}]:${this.port}` : `${this.host}:${this.port}`;
  }

  toString(): string {
    return `${this.secure ? "https" : "http"}://${this.authority}${this.base}`;
  }
}

/** A URL without what may be a password. */
function shown(url: string): string {
  const [scheme, rest] = url.includes("://") ? url.split(/(?<=:\/\/)(.*)/s) : ["", url];
  return JSON.stringify(`${scheme}${(rest ?? "").slice((rest ?? "").lastIndexOf("@") + 1)}`);
}

/** The servers of a list, each of which may be several with commas between, as in `SOLEHOLD_SERVER`. */
export function servers(urls: string | readonly string[]): Server[] {
  if (typeof urls !== "string" && !Array.isArray(urls)) {
    throw new TypeError(`urls must be a URL, or an array of URLs, not ${check.kindOf(urls)}`);
  }
  const lists: unknown[] = typeof urls === "string" ? [urls] : [...urls];
  const all = lists.flatMap((several) =>
    check.string("a server", several, 'a string such as "127.0.0.1:7070"').split(","),
  );
  return all.map((one) => Server.parse(one.trim()));
}
