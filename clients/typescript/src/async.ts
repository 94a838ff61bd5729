/** The few things about promises that the language does not have. */

/** A promise, and the two ways to settle it. */
export class Deferred<T> {
  readonly promise: Promise<T>;
  resolve!: (value: T | PromiseLike<T>) => void;
  reject!: (reason: unknown) => void;

  constructor() {
    this.promise = new Promise<T>((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

/** By signal, the listeners that share the one that the signal has. */
const listenersOf = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Calls the listener when the signal aborts, at once if it has; returns what removes it. However many acquires share a
 * signal, it has one listener of ours: Node warns of more than ten.
 */
export function onAbort(signal: AbortSignal, listener: () => void): () => void {
  if (signal.aborted) {
    listener();
    return () => {};
  }
  let listeners = listenersOf.get(signal);
  if (!listeners) {
    const all = new Set<() => void>();
    listeners = all;
    listenersOf.set(signal, all);
    signal.addEventListener("abort", () => all.forEach((each) => each()), { once: true });
  }
  // Of its own, since one function may be given twice.
  const entry = (): void => listener();
  listeners.add(entry);
  return () => listenersOf.get(signal)?.delete(entry);
}

/** An abort of several causes, which leaves no listener behind when the work is over. */
export class Scope {
  private readonly controller = new AbortController();
  private readonly links: (() => void)[] = [];

  constructor(...parents: (AbortSignal | undefined)[]) {
    for (const parent of parents) {
      if (parent) this.links.push(onAbort(parent, () => this.abort(parent.reason)));
    }
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  abort(reason?: unknown): void {
    this.controller.abort(reason);
  }

  /** The work is over: its parents forget it. */
  end(): void {
    for (const unlink of this.links.splice(0)) unlink();
  }
}

/** The time is up. */
export class TimedOut extends Error {
  constructor(ms: number) {
    super(`not within ${ms} ms`);
    this.name = "TimedOut";
  }
}

/** The result of the work, or `TimedOut`. The work is aborted then, and its end is waited for. */
export async function within<T>(
  ms: number,
  signal: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const scope = new Scope(signal);
  const timer = setTimeout(() => scope.abort(new TimedOut(ms)), Math.ceil(ms));
  try {
    return await work(scope.signal);
  } finally {
    clearTimeout(timer);
    scope.end();
  }
}

/** The result of a promise that an abort does not reach; the abort only ends the wait for it. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  promise.catch(() => {});
  signal.throwIfAborted();
  const aborted = new Deferred<never>();
  const forget = onAbort(signal, () => aborted.reject(signal.reason));
  try {
    return await Promise.race([promise, aborted.promise]);
  } finally {
    forget();
  }
}

/** So many at once; the others wait in order. */
export class Semaphore {
  private readonly waiting: Deferred<void>[] = [];

  constructor(private free: number) {}

  async run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    await this.enter(signal);
    try {
      return await work();
    } finally {
      this.leave();
    }
  }

  private async enter(signal: AbortSignal | undefined): Promise<void> {
    if (this.free > 0) {
      this.free -= 1;
      return;
    }
    const turn = new Deferred<void>();
    this.waiting.push(turn);
    try {
      await unlessAborted(turn.promise, signal);
    } catch (error) {
      const at = this.waiting.indexOf(turn);
      if (at >= 0) this.waiting.splice(at, 1);
      else this.leave(); // it got its turn in the same moment
      throw error;
    }
  }

  private leave(): void {
    const next = this.waiting.shift();
    if (next) next.resolve();
    else this.free += 1;
  }
}

/** Something to wait for that happens again and again. */
export class Notice {
  private next = new Deferred<void>();

  /** The next time that it happens, from this call on. */
  wait(): Promise<void> {
    return this.next.promise;
  }

  /** It happens now. */
  notify(): void {
    const now = this.next;
    this.next = new Deferred<void>();
    now.resolve();
  }
}
