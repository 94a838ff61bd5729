/**
 * What a client remembers of the store's history (rule 23). It outlives sessions. Pure.
 *
 * A store that was restored, or an old server that came back after a failover, answers from an older history: what it
 * says about leases has been overtaken, so nothing of it is used. The epoch tells the two apart. Where a restore
 * brought the epoch back as well, the sealed cursor does: heartbeats show it, and a store that is behind it knows that
 * it was set back.
 */

/** An answer comes from an older history than one that was seen before. */
export class OlderHistory extends Error {
  constructor(
    readonly seen: number,
    readonly answered: number,
  ) {
    super(
      `the store answered from an older history (epoch ${answered}, but epoch ${seen} was seen before): ` +
        "it was restored, or an old server came back after a failover",
    );
    this.name = "OlderHistory";
  }
}

/** The highest epoch that was seen, and the last cursor that the store sealed for this client. */
export class History {
  private epoch = 0;
  /** What to show with the next heartbeat. */
  sealedCursor: string | undefined;

  /**
   * Judges an answer and returns its epoch. One without an epoch, as from an older server, counts as the present one.
   */
  follow(answered: number | undefined): number {
    const epoch = answered ?? this.epoch;
    if (epoch < this.epoch) throw new OlderHistory(this.epoch, epoch);
    this.epoch = epoch;
    return epoch;
  }

  /** Keeps the cursor of an answer. The store has been shown the one kept so far, so the new one is not behind it. */
  keep(sealedCursor: string | undefined): void {
    this.sealedCursor = sealedCursor ?? this.sealedCursor;
  }
}
