/**
 * The gate's judgement (rule 21): whether work that carries a token may still take effect. Pure.
 *
 * A mark is the newest token of a resource that was admitted or learned of, and the session that it was granted to.
 * What is not known admits nothing. Marks are never lowered and never dropped by age: when there are too many, those
 * with the lowest tokens are dropped, and the floor is raised to the highest of them. Knowledge is as old as the
 * question that it answers.
 *
 * Each slot of a resource that is shared has a mark of its own, and the mark of the resource is as high as the highest
 * of them: every token fences the exclusive ones before it. A slot is fenced by the tokens of exclusive leases, which
 * are a part of what is known of the resource.
 */

/** Questions for the head of the store that the watch has not caught up with yet; beyond it the oldest are dropped. */
const PROOFS_MAX = 16;

/**
 * The kind and the key of a resource, and one of its slots, from 1 on; none for an exclusive lease. Tokens of different
 * slots do not fence each other, but those of a slot and of an exclusive lease do (rule 29).
 */
export interface ResourceKey {
  readonly kind: string;
  readonly key: string;
  readonly slot?: number | undefined;
}

/** The newest token that is known, and the session that it was granted to, if that is known. */
export interface Mark {
  readonly token: number;
  readonly session?: string | undefined;
}

/**
 * Why a verdict is undecidable. `denied`: the server refuses the gate's key; `hidden`: the key may not see the
 * resource; `no_such_resource` and `never_given` stay so, and the work is better refused.
 */
export type Doubt =
  | "unknown"
  | "forgotten"
  | "newer"
  | "expired"
  | "unconfirmed"
  | "unsaved"
  | "denied"
  | "hidden"
  | "no_such_resource"
  | "never_given";

/** What a gate says: `admit`, `stale` or `undecidable`. */
export class Verdict {
  constructor(
    readonly word: "admit" | "stale" | "undecidable",
    readonly why?: Doubt,
    /** The newest token that is known, where that is the reason. */
    readonly newest?: number,
  ) {}

  /** Whether the work may take effect. */
  get isAdmitted(): boolean {
    return this.word === "admit";
  }

  /** Whether waiting may settle it. If not, the work is better refused. */
  get mayPass(): boolean {
    return this.word === "undecidable" && this.why !== "no_such_resource" && this.why !== "never_given";
  }

  /** Whether a read of the store may settle it. */
  get needsARead(): boolean {
    return this.mayPass && this.why !== "unsaved" && this.why !== "denied";
  }

  toString(): string {
    return [this.word, this.why, this.newest].filter((part) => part !== undefined).join(" ");
  }
}

const ADMIT = new Verdict("admit");

function undecidable(why: Doubt, newest?: number): Verdict {
  return new Verdict("undecidable", why, newest);
}

/** How a gate judges. */
export interface Rules {
  /** How old knowledge may be that admits. */
  readonly cacheTtlMs: number;
  /** Whether a token that is not below the mark is admitted while the store is away. */
  readonly failOpen: boolean;
  /** Whether the store is read before a new token is admitted, even if the watch has announced it. */
  readonly strict: boolean;
  /** Whether a mark admits only when it has been saved. */
  readonly remembers: boolean;
  /** The most marks that are kept in memory. */
  readonly marksMax: number;
}

/** What a gate that remembers has to save. */
export type MarkRecord =
  | { readonly key: ResourceKey; readonly mark: Mark }
  | { readonly floor: number }
  | { readonly epoch: number };

interface Entry {
  readonly key: ResourceKey;
  readonly mark: Mark;
  /** The number of the record that saves it. */
  readonly record: number;
  /** The snapshot in which, or after which, the watch has named it. */
  readonly snapshot?: number | undefined;
  /** When the store was read for it, and in which epoch. */
  readonly read?: { readonly asked: number; readonly epoch: number } | undefined;
  readonly confirmed?: boolean;
  /** The epoch of the last history that is known to have given this token. */
  readonly history: number;
  /** Of a resource: the highest token that is known to be of an exclusive lease, which fences its slots. */
  readonly exclusive: number;
}

/** What the store answered about one resource. */
export interface StoreAnswer {
  /** Undefined if there is no such resource. */
  readonly mark: Mark | undefined;
  readonly epoch: number | undefined;
  /** The tick before the question was sent. */
  readonly asked: number;
  /** The gate's key may not see the resource. */
  readonly hidden?: boolean;
}

/** Names have no NUL. */
export function nameOf({ kind, key, slot }: ResourceKey): string {
  return slot === undefined ? `${kind}\0${key}` : `${kind}\0${key}\0${slot}`;
}

/** The resource that a slot is of. */
function wholeOf({ kind, key }: ResourceKey): ResourceKey {
  return { kind, key };
}

function later(one: number | undefined, other: number): number {
  return one === undefined ? other : Math.max(one, other);
}

/** The marks of a gate. The clock and the store's answers are arguments. */
export class Fence {
  /** Of a resource without a mark, tokens up to here need a read of the store. */
  floor = 0;
  /** The history that is followed (rule 23). */
  epoch = 0;
  /** Everything that was decided before this tick is known. */
  proven: number | undefined;
  /** The watch has sent everything up to this revision; undefined while a snapshot is under way. */
  seen: number | undefined;
  /** The store refused the gate, and has answered nothing since. */
  isDenied = false;
  // As high as the marks of former histories that were dropped. The present history does not know what they were.
  private formerFloor = 0;
  // The highest token of former histories that was of an exclusive lease, or was restored and may have been. The
  // present history may have lost that lease, so that its slots say nothing of it: those below are not admitted.
  private formerExclusive = 0;
  // The highest token that was restored. Whether it was of an exclusive lease is not saved.
  private restored = 0;
  private marks = new Map<string, Entry>();
  private snapshot = 0;
  private whole: number | undefined;
  private readonly heads: { readonly asked: number; readonly head: number }[] = [];
  private awayUntil: number | undefined;
  private recordCount = 0;
  private saved: number;
  private toSave: MarkRecord[] = [];

  constructor(readonly rules: Rules) {
    this.saved = rules.remembers ? 0 : Infinity;
  }

  /** The number of marks. */
  get size(): number {
    return this.marks.size;
  }

  /** Whether a snapshot is whole, and everything is saved. */
  get isReady(): boolean {
    return this.whole !== undefined && this.recordCount <= this.saved;
  }

  /**
   * The verdict. It raises the mark where that is part of it: a session is bound to its token when it is first shown,
   * an exclusive lease fences slots when its token is, and a gate that fails open takes a newer token for granted while
   * the store is away.
   */
  judge(key: ResourceKey, token: number, session: string | undefined, now: number): Verdict {
    const name = nameOf(key);
    const entry = this.marks.get(name);
    const newer = this.newer(key, entry, token, session);
    if (newer !== undefined) return new Verdict("stale", undefined, newer);
    const doubt = this.doubt(entry, token, now);
    if (doubt) {
      const yields = ["unknown", "newer", "expired", "unconfirmed"].includes(doubt.why ?? "");
      if (!(this.failsOpen(key, token, now) && yields)) {
        return this.isDenied && doubt.needsARead ? undecidable("denied") : doubt;
      }
    }
    const binds = entry?.mark.session === undefined && session !== undefined;
    const fencesSlots = key.slot !== undefined || (entry !== undefined && entry.exclusive >= token);
    if (entry?.mark.token !== token || binds || !fencesSlots) {
      this.raise(key, { token, session });
      this.raiseExclusive(key, token);
    }
    return this.entry(name).record <= this.saved ? ADMIT : undecidable("unsaved");
  }

  /** The newest token that fences this one; undefined if none is known. */
  private newer(
    key: ResourceKey,
    entry: Entry | undefined,
    token: number,
    session: string | undefined,
  ): number | undefined {
    let newest: number | undefined;
    if (entry) {
      const { mark } = entry;
      const isOther = token === mark.token && mark.session !== undefined && session !== undefined;
      if (token < mark.token || (isOther && mark.session !== session)) newest = mark.token;
    }
    if (key.slot === undefined) return newest;
    const exclusive = Math.max(this.marks.get(nameOf(wholeOf(key)))?.exclusive ?? 0, this.formerExclusive);
    return token < exclusive ? later(newest, exclusive) : newest;
  }

  /**
   * Whether a token is admitted without the store. That of a slot must be known to this gate, or as new as the newest
   * of the resource: an exclusive lease may have come between.
   */
  private failsOpen(key: ResourceKey, token: number, now: number): boolean {
    if (!(this.rules.failOpen && this.isAway(now))) return false;
    const entry = this.marks.get(nameOf(key));
    const isKnown = entry?.mark.token === token && this.knownSince(entry) !== undefined;
    const newest = this.marks.get(nameOf(wholeOf(key)))?.mark.token ?? 0;
    return key.slot === undefined || isKnown || token >= newest;
  }

  private doubt(entry: Entry | undefined, token: number, now: number): Verdict | undefined {
    if (token === 0) return undecidable("never_given", entry ? entry.mark.token : 0);
    if (!entry) return undecidable(token <= this.floor ? "forgotten" : "unknown");
    if (token > entry.mark.token) return undecidable("newer", entry.mark.token);
    const since = this.knownSince(entry);
    if (since === undefined) return undecidable("unknown");
    // Written so that a clock that returns no number admits nothing.
    if (!(now - since <= this.rules.cacheTtlMs)) return undecidable("expired");
    return this.rules.strict && !entry.confirmed ? undecidable("unconfirmed") : undefined;
  }

  /** The latest tick at which the mark is known to have been the newest. */
  private knownSince(entry: Entry): number | undefined {
    const byRead = entry.read?.epoch === this.epoch ? entry.read.asked : undefined;
    const isWatched =
      this.whole !== undefined && entry.snapshot !== undefined && entry.snapshot >= this.whole;
    if (!isWatched || this.proven === undefined) return byRead;
    return later(byRead, this.proven);
  }

  /**
   * The verdict after the store was asked for this very work, when the work was here already: what it does not know
   * then, it never gave. Undefined if the answer is from an older history, which is not followed.
   */
  conclude(
    key: ResourceKey,
    token: number,
    session: string | undefined,
    answer: StoreAnswer,
    now: number,
  ): Verdict | undefined {
    if (!this.follow(answer.epoch ?? this.epoch)) return undefined;
    this.awayUntil = undefined;
    // That there is nothing is also answered for a tenant that the gate's key is not for.
    this.isDenied = this.isDenied && answer.mark === undefined && !answer.hidden;
    if (answer.mark) this.confirm(key, answer.mark, answer.asked);
    const verdict = this.judge(key, token, session, now);
    if (answer.hidden && verdict.word === "undecidable") return undecidable("hidden");
    if (verdict.why === "newer") return undecidable("never_given", verdict.newest);
    const isAbsent = ["unknown", "forgotten", "expired", "unconfirmed"].includes(verdict.why ?? "");
    return !answer.mark && isAbsent ? undecidable("no_such_resource") : verdict;
  }

  private confirm(key: ResourceKey, mark: Mark, asked: number): void {
    this.raise(key, mark);
    const name = nameOf(key);
    const entry = this.entry(name);
    if (entry.mark.token !== mark.token) return;
    const last = entry.read?.epoch === this.epoch ? entry.read.asked : undefined;
    const read = { asked: later(last, asked), epoch: this.epoch };
    this.marks.set(name, { ...entry, read, confirmed: true, history: this.epoch });
    this.slotIsPresent(key, mark.token);
  }

  /** The present history has given the token of a slot, which may be the newest of its resource. */
  private slotIsPresent(key: ResourceKey, token: number): void {
    if (key.slot === undefined) return;
    const name = nameOf(wholeOf(key));
    const whole = this.marks.get(name);
    if (whole?.mark.token === token) this.marks.set(name, { ...whole, history: this.epoch });
  }

  /** The watch tells of a lease on a resource, or on one of its slots. */
  granted(key: ResourceKey, mark: Mark): void {
    this.learn(key, mark);
    this.raiseExclusive(key, mark.token);
  }

  /** A token is of an exclusive lease, unless it is a slot's. */
  private raiseExclusive(key: ResourceKey, token: number): void {
    if (key.slot !== undefined) return;
    const name = nameOf(key);
    const entry = this.entry(name);
    if (entry.exclusive < token) this.marks.set(name, { ...entry, exclusive: token });
  }

  /** A snapshot names the newest token of a resource, which may be one of its slots', or of a slot. */
  learn(key: ResourceKey, mark: Mark): void {
    this.raise(key, mark);
    const name = nameOf(key);
    const entry = this.entry(name);
    // A store that has less than was admitted is not believed: the mark stays, and admits nothing by the watch.
    if (entry.mark.token === mark.token) {
      this.marks.set(name, { ...entry, snapshot: this.snapshot, history: this.epoch });
    }
    this.slotIsPresent(key, mark.token);
  }

  /** A resource was deleted: its mark stays, and admits nothing until there is news of it. */
  deleted(key: ResourceKey): void {
    const entry = this.marks.get(nameOf(key));
    if (entry) this.marks.set(nameOf(key), { ...entry, snapshot: undefined, read: undefined });
  }

  /** Takes over the epoch of an answer; false if it is from an older history (rule 23). */
  follow(epoch: number): boolean {
    if (epoch > this.epoch) {
      this.epoch = epoch;
      this.formerFloor = this.floor;
      const exclusives = [...this.marks.values()].map((entry) => entry.exclusive);
      const exclusive = exclusives.reduce((one, other) => Math.max(one, other), this.restored);
      this.formerExclusive = Math.max(this.formerExclusive, exclusive);
      this.whole = this.seen = this.proven = undefined;
      this.heads.length = 0;
      this.snapshot += 1;
      this.record({ epoch });
    }
    return epoch === this.epoch;
  }

  /** A snapshot begins. False if it is from an older history. */
  snapshotBegins(epoch: number): boolean {
    if (!this.follow(epoch)) return false;
    this.snapshot += 1;
    this.seen = undefined;
    this.isDenied = false;
    return true;
  }

  /** The snapshot, requested at a tick, is whole up to a revision. Resources that were not in it are unknown. */
  snapshotEnds(upTo: number, asked: number): void {
    this.whole = this.snapshot;
    this.proven = later(this.proven, asked);
    this.seenUpTo(upTo);
  }

  /** The watch has sent everything up to a revision of the present epoch. */
  seenUpTo(revision: number): void {
    this.seen = later(this.seen, revision);
    this.isDenied = false;
    this.prove();
  }

  /** What was decided before a question is known when the watch has sent everything up to the answer. */
  private prove(): void {
    for (
      let first = this.heads[0];
      first && this.seen !== undefined && first.head <= this.seen;
      first = this.heads[0]
    ) {
      this.heads.shift();
      this.proven = later(this.proven, first.asked);
    }
  }

  /**
   * The store was asked how far it is. As soon as the watch has sent everything up to there, everything that was
   * decided before the question is known. False if the answer is from an older history.
   */
  headWas(epoch: number, head: number, asked: number): boolean {
    if (!this.follow(epoch)) return false;
    // Whether it answers anything else is not known by this: how far it is, it tells everyone.
    this.awayUntil = undefined;
    if (this.heads.length === PROOFS_MAX) this.heads.shift();
    this.heads.push({ asked, head });
    this.prove();
    return true;
  }

  /** The store could not be reached, and need not be asked again before that tick. */
  storeIsAway(until: number): void {
    this.awayUntil = until;
  }

  /**
   * The store answered, and refuses the gate: its key is wrong, has expired or was revoked. It is not away, and the
   * gate admits nothing without it, even if it fails open.
   */
  storeDenies(): void {
    this.isDenied = true;
  }

  /** Whether the store was not reached just now, and had not refused the gate before. */
  isAway(now: number): boolean {
    return !this.isDenied && this.awayUntil !== undefined && now < this.awayUntil;
  }

  /** Takes over what was saved before a restart, in the same order. */
  restore(record: MarkRecord): void {
    if ("epoch" in record) {
      this.follow(record.epoch);
      // The same epoch again: marks of former histories were dropped.
      this.formerFloor = this.floor;
    } else if ("floor" in record) {
      this.floor = Math.max(this.floor, record.floor);
    } else {
      this.restored = Math.max(this.restored, record.mark.token);
      const name = nameOf(record.key);
      const old = this.marks.get(name);
      if (!old || raised(old.mark, record.mark)) {
        const { key, mark } = record;
        this.marks.set(name, { key, mark, record: 0, history: this.epoch, exclusive: 0 });
      }
    }
  }

  /** What has to be saved, and the number to give to `savedUpTo` when it is. */
  unsaved(): { records: MarkRecord[]; number: number } {
    const records = this.toSave;
    this.toSave = [];
    return { records, number: this.recordCount };
  }

  /** Records up to this number are saved. */
  savedUpTo(number: number): void {
    this.saved = Math.max(this.saved, number);
  }

  /** Everything that a gate that restarts must know, in order. */
  records(): MarkRecord[] {
    const former: MarkRecord[] = [{ floor: this.formerFloor }];
    const present: MarkRecord[] = [{ epoch: this.epoch }, { floor: this.floor }];
    for (const entry of this.marks.values()) {
      (this.isFormer(entry) ? former : present).push({ key: entry.key, mark: entry.mark });
    }
    return [...former, ...present];
  }

  private entry(name: string): Entry {
    const entry = this.marks.get(name);
    if (!entry) throw new Error("a mark that was raised is there");
    return entry;
  }

  /** Raises a mark, with a slot's that of its resource; never lowers one. */
  private raise(key: ResourceKey, to: Mark): void {
    if (key.slot !== undefined) this.raiseOne(wholeOf(key), { token: to.token });
    this.raiseOne(key, to);
  }

  private raiseOne(key: ResourceKey, to: Mark): void {
    const name = nameOf(key);
    const old = this.marks.get(name);
    if (!old) {
      // What a former history had, and was dropped, may have been above what this one has.
      const mark = to.token < this.formerFloor ? { token: this.formerFloor } : to;
      if (this.marks.size >= this.rules.marksMax) this.compact();
      this.marks.set(name, { key, mark, record: this.record({ key, mark }), history: 0, exclusive: 0 });
      return;
    }
    const mark = raised(old.mark, to);
    if (!mark) return;
    const record = this.record({ key, mark });
    // What was known of the former token says nothing of this one.
    const kept = old.mark.token === mark.token ? old : { key, history: 0, exclusive: old.exclusive };
    this.marks.set(name, { ...kept, mark, record });
  }

  private record(record: MarkRecord): number {
    if (!this.rules.remembers) return 0;
    this.toSave.push(record);
    this.recordCount += 1;
    return this.recordCount;
  }

  /** Drops the marks with the lowest tokens, an eighth of them. */
  private compact(): void {
    const tokens = [...this.marks.values()].map((entry) => entry.mark.token).sort((a, b) => a - b);
    this.floor = Math.max(this.floor, tokens[Math.floor(tokens.length / 8)] ?? 0);
    let former = 0;
    for (const [name, entry] of this.marks) {
      if (entry.mark.token > this.floor) continue;
      if (this.isFormer(entry)) former = Math.max(former, entry.mark.token);
      this.marks.delete(name);
    }
    this.record({ floor: this.floor });
    if (former > this.formerFloor) {
      this.formerFloor = former;
      this.record({ epoch: this.epoch });
    }
  }

  /** Whether the present history is not known to have given this token. */
  private isFormer(entry: Entry): boolean {
    return entry.history < this.epoch;
  }
}

/** A mark after another was seen; undefined if it stays as it is. */
function raised(mark: Mark, by: Mark): Mark | undefined {
  const binds = by.token === mark.token && mark.session === undefined && by.session !== undefined;
  return by.token > mark.token || binds ? by : undefined;
}
