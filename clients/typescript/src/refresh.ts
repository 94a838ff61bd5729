/** Reading one resource from the store: one question per resource at a time, and not too many at once. */

import { Semaphore, unlessAborted } from "./async.js";
import { nameOf, type ResourceKey, type StoreAnswer } from "./fence.js";
import { REQUESTS_AT_ONCE_MAX } from "./limits.js";

/** Those that want to know of one resource, one after the other. */
interface Place {
  waiting: number;
  turn: Promise<unknown>;
  last: StoreAnswer | undefined;
}

/**
 * The questions that are under way. One serves all decisions that had come before it was sent; one that comes later
 * needs the next, since an answer is as old as its question.
 */
export class Refreshes {
  /** By resource. */
  readonly underWay = new Map<string, Place>();
  private readonly atOnce = new Semaphore(REQUESTS_AT_ONCE_MAX);

  constructor(private readonly newest: (key: ResourceKey) => Promise<StoreAnswer>) {}

  /** The store's answer to a question that was sent at the tick `arrived` or later. */
  async ask(key: ResourceKey, arrived: number, signal: AbortSignal): Promise<StoreAnswer> {
    const name = nameOf(key);
    const place = this.underWay.get(name) ?? { waiting: 0, turn: Promise.resolve(), last: undefined };
    this.underWay.set(name, place);
    place.waiting += 1;
    const mine = place.turn.then(() => this.answer(place, key, arrived, signal));
    place.turn = mine.catch(() => {});
    try {
      return await unlessAborted(mine, signal);
    } finally {
      place.waiting -= 1;
      if (place.waiting === 0) this.underWay.delete(name); // the last one takes the answer along
    }
  }

  private async answer(
    place: Place,
    key: ResourceKey,
    arrived: number,
    signal: AbortSignal,
  ): Promise<StoreAnswer> {
    if (place.last && place.last.asked >= arrived) return place.last;
    // A decision that has given up meanwhile leaves the question to the next.
    signal.throwIfAborted();
    place.last = await this.atOnce.run(() => this.newest(key), signal);
    return place.last;
  }
}
