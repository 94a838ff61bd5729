/** What this client handles by itself, said once. It never contains a key. */

/**
 * Where messages go. WARN: a server does not answer, or a session or lease is lost. ERROR: a person must look. INFO:
 * sessions, elections, recoveries. DEBUG: leases, and every request.
 */
export interface Logger {
  debug(message: string): void;
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

const ignore = (): void => {};

/** The default: warnings and errors on standard error. */
export const stderrLogger: Logger = {
  debug: ignore,
  info: ignore,
  warn: (message) => void process.stderr.write(`solehold-client: WARN ${message}\n`),
  error: (message) => void process.stderr.write(`solehold-client: ERROR ${message}\n`),
};

/** Says nothing. */
export const silentLogger: Logger = { debug: ignore, info: ignore, warn: ignore, error: ignore };

/**
 * A logger of the program whose errors do not become this client's: a heartbeat must not fail because a disk is full.
 */
export function shielded(logger: Logger): Logger {
  const call = (level: keyof Logger) => {
    if (typeof logger?.[level] !== "function") {
      throw new TypeError(
        `logger must have the functions debug, info, warn and error, such as console: no ${level}`,
      );
    }
    return (message: string): void => {
      try {
        logger[level](message);
      } catch {
        // It has nowhere to go.
      }
    };
  };
  return { debug: call("debug"), info: call("info"), warn: call("warn"), error: call("error") };
}

/** An error in a few words. */
export function told(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error);
}
