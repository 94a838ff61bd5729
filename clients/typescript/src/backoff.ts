/** Delays between attempts. Pure: randomness is an argument. */

/** A number from 0 to below 1. */
export type Random = () => number;

/** Delays double from `firstMs` to `capMs`. */
export interface BackoffConfig {
  readonly firstMs: number;
  readonly capMs: number;
}

export const BACKOFF_DEFAULT: BackoffConfig = { firstMs: 50, capMs: 2_000 };

export function checkedBackoff(config: BackoffConfig): BackoffConfig {
  const { firstMs, capMs } = config;
  const isRight = typeof firstMs === "number" && typeof capMs === "number" && 0 < firstMs && firstMs <= capMs;
  if (!isRight || capMs === Infinity) {
    throw new RangeError(`a backoff from ${firstMs} to ${capMs} ms makes no sense: 0 < firstMs <= capMs`);
  }
  return { firstMs, capMs };
}

/**
 * The delays of one series of attempts. Each is half fixed and half random, so that many clients do not come back at
 * the same time.
 */
export class Backoff {
  private next: number;

  constructor(
    private readonly config: BackoffConfig,
    private readonly random: Random,
  ) {
    this.next = config.firstMs;
  }

  /** Begins anew, after a success. */
  reset(): void {
    this.next = this.config.firstMs;
  }

  /** The next delay in milliseconds; `leastMs` is what the authority asked for. */
  delay(leastMs = 0): number {
    const whole = this.next;
    this.next = Math.min(this.config.capMs, whole * 2);
    return Math.max(leastMs, whole * (0.5 + this.random() / 2));
  }
}
