/**
 * The file in which a gate keeps its marks across restarts, in the same format as those of the Rust and Python clients.
 *
 * One JSON object per line, appended and synced. A line that was cut off at the end by a crash was never relied on, and
 * is dropped; any other line that cannot be read is an error.
 */

import { type FileHandle, open, readFile, rename, unlink } from "node:fs/promises";
import { dirname } from "node:path";

import { lockFile, type FileLock } from "./file-lock.js";
import type { Fence, MarkRecord } from "./fence.js";

const TITLE = '{"solehold_gate":1}';
/** The file is replaced when it has more lines than this, and several per mark. */
const LINES_MIN = 10_000;

/** The file, locked for as long as the gate is there. One gate per file. */
export class Memory {
  private lines = 0;
  private file: FileHandle | undefined;

  private constructor(
    private readonly path: string,
    private readonly tenant: string,
    private readonly lock: FileLock,
  ) {}

  /** Locks the file and restores the marks that it has. */
  static async open(path: string, tenant: string, fence: Fence): Promise<Memory> {
    const lock = await lockFile(`${path}.lock`);
    if (!lock)
      throw new Error(
        `the gate's memory ${path} is in use by another gate: give each gate a file of its own`,
      );
    const memory = new Memory(path, tenant, lock);
    try {
      await memory.restore(fence);
      return memory;
    } catch (error) {
      await memory.close();
      throw error;
    }
  }

  /** Restores what the file says, and writes it anew. */
  private async restore(fence: Fence): Promise<void> {
    const text = await readFile(this.path, "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return "";
      throw error;
    });
    const lines = text.split("\n");
    const cutOff = lines.pop(); // what follows the last newline
    if (lines.length > 0 ? lines[0] !== TITLE : cutOff !== "" && !TITLE.startsWith(cutOff ?? ""))
      throw this.damaged(1);
    for (const [at, line] of lines.entries()) {
      if (at === 0) continue;
      const record = decode(line);
      if (record) fence.restore(record);
      else if (at < lines.length - 1 || cutOff !== "") throw this.damaged(at + 1);
    }
    await this.replace(fence.records());
  }

  private damaged(line: number): Error {
    const remedy = "restore the file, or remove it and lose the marks";
    return new Error(`line ${line} of the gate's memory ${this.path} cannot be read: ${remedy}`);
  }

  /** Whether the file has grown to several lines per mark, and is better replaced. */
  isLong(marks: number): boolean {
    return this.lines > Math.max(LINES_MIN, 4 * marks);
  }

  /** Saves records, or replaces the file by everything. */
  async save(records: readonly MarkRecord[], whole: readonly MarkRecord[] | undefined): Promise<void> {
    if (whole) return this.replace(whole);
    if (!this.file) throw new Error(`the gate's memory ${this.path} was closed`);
    await append(this.file, records.map((record) => this.encode(record)).join(""));
    this.lines += records.length;
  }

  private async replace(records: readonly MarkRecord[]): Promise<void> {
    const path = `${this.path}.new`;
    const file = await open(path, "w+");
    try {
      await append(file, `${TITLE}\n${records.map((record) => this.encode(record)).join("")}`);
      await rename(path, this.path);
      const folder = await open(dirname(this.path), "r");
      await folder.sync().finally(() => folder.close());
    } catch (error) {
      await file.close();
      await unlink(path).catch(() => {});
      throw error;
    }
    await this.file?.close();
    this.file = file;
    this.lines = records.length;
  }

  private encode(record: MarkRecord): string {
    if (!("mark" in record)) return `${JSON.stringify(record)}\n`;
    const { key, mark } = record;
    const line = {
      token: mark.token,
      session: mark.session ?? null,
      tenant: this.tenant,
      kind: key.kind,
      key: key.key,
      slot: key.slot,
    };
    return `${JSON.stringify({ mark: line })}\n`;
  }

  /** Lets another gate have the file. Nothing may be being saved. */
  async close(): Promise<void> {
    const { file } = this;
    this.file = undefined;
    await file?.close();
    await this.lock.release();
  }
}

/** Appends and syncs; a part that was written before a failure is taken off again. */
async function append(file: FileHandle, text: string): Promise<void> {
  const { size } = await file.stat();
  try {
    const bytes = Buffer.from(text);
    for (let at = 0; at < bytes.length;) {
      at += (await file.write(bytes, at, bytes.length - at, size + at)).bytesWritten;
    }
    await file.sync();
  } catch (error) {
    await file.truncate(size);
    throw error;
  }
}

/** What a line says; undefined if it cannot be read. */
function decode(line: string): MarkRecord | undefined {
  try {
    const value = JSON.parse(line) as Record<string, unknown>;
    if (typeof value["epoch"] === "number") return { epoch: whole(value["epoch"]) };
    if (typeof value["floor"] === "number") return { floor: whole(value["floor"]) };
    const { kind, key, slot, token, session } = value["mark"] as Record<string, unknown>;
    if (typeof kind !== "string" || typeof key !== "string") return undefined;
    const bound = typeof session === "string" ? session : undefined;
    const of = slot === undefined || slot === null ? undefined : whole(slot);
    return { key: { kind, key, slot: of }, mark: { token: whole(token), session: bound } };
  } catch {
    return undefined;
  }
}

function whole(value: unknown): number {
  if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0)
    throw new RangeError("not a whole number");
  return value;
}
