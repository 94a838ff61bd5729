/** Which leases a session holds, from grants and lease sets that may arrive in any order (rule 9). Pure. */

/** A point in the store's history. */
export interface Position {
  readonly epoch: number;
  readonly revision: number;
}

/** The id of a lease and its token: under another token it is another grant. */
export interface LeaseIdentity {
  readonly leaseId: string;
  readonly token: number;
}

/** Negative if `a` is before `b`, 0 if they are the same. */
export function comparePositions(a: Position, b: Position): number {
  return a.epoch - b.epoch || a.revision - b.revision;
}

function nameOf({ leaseId, token }: LeaseIdentity): string {
  return `${leaseId} ${token}`;
}

/** Grants and sets both have a position. A set says nothing about a grant that is newer than itself. */
export class Holdings {
  private readonly held = new Map<string, { lease: LeaseIdentity; at: Position }>();
  private at: Position = { epoch: 0, revision: -1 };
  private set: ReadonlySet<string> = new Set();

  /** Takes in a grant; false if a newer set shows that it has ended since. */
  granted(lease: LeaseIdentity, at: Position): boolean {
    const name = nameOf(lease);
    if (comparePositions(at, this.at) <= 0 && !this.set.has(name)) return false;
    this.held.set(name, { lease, at });
    return true;
  }

  /** The holder released it. */
  letGo(lease: LeaseIdentity): void {
    this.held.delete(nameOf(lease));
  }

  /** Takes in a set, unless a newer one came before; returns the leases that have ended according to it. */
  take(at: Position, leases: readonly LeaseIdentity[]): LeaseIdentity[] {
    if (comparePositions(at, this.at) < 0) return [];
    this.at = at;
    this.set = new Set(leases.map(nameOf));
    const ended: LeaseIdentity[] = [];
    for (const [name, held] of this.held) {
      if (comparePositions(held.at, at) <= 0 && !this.set.has(name)) {
        ended.push(held.lease);
        this.held.delete(name);
      }
    }
    return ended;
  }
}
