/** Real servers, private: a free loopback port, a temporary folder, ended by pid. */

import { type ChildProcess, spawn } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** The root of the repository, from the script that starts the tests: they are compiled to another folder. */
export const ROOT = process.env["SOLEHOLD_ROOT"] ?? process.cwd();
export const PACKAGE = join(ROOT, "clients/typescript");
/** The folder of this compiled test run. */
export const BUILT = process.env["SOLEHOLD_BUILT"] ?? "";
const START_MS_MAX = 60_000;
const LINES_MAX = 200_000;
const LISTENING = "solehold listening on ";

/** The program under test: `SOLEHOLD_BIN`, else what cargo built last for tests, else for release. */
export function binary(): string {
  const given = process.env["SOLEHOLD_BIN"];
  if (given) return given;
  const target = process.env["CARGO_TARGET_DIR"] ?? join(ROOT, "target");
  const built = ["debug", "release"].map((profile) => join(target, profile, "solehold")).find(existsSync);
  if (!built) throw new Error(`there is no solehold in ${target}: run \`cargo build\`, or set SOLEHOLD_BIN`);
  return built;
}

/** Waits until it is so. The time is a bound for a broken test, not a measure. */
export async function waitFor(
  what: string,
  condition: () => boolean | Promise<boolean>,
  ms = START_MS_MAX,
): Promise<void> {
  const until = performance.now() + ms;
  while (!(await condition())) {
    if (performance.now() > until) throw new Error(`not within ${ms} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** A port that was free just now. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const address = probe.address();
      const port = typeof address === "object" && address ? address.port : 0;
      probe.close(() => resolve(port));
    });
  });
}

/** A temporary folder, and what removes it. */
export function temporary(name: string): { path: string; remove: () => void } {
  const path = mkdtempSync(join(tmpdir(), `solehold-typescript-${name}-`));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

/** A program with its output, and the signals that tests send it. */
export class Program {
  readonly lines: string[] = [];
  private readonly child: ChildProcess;
  private readonly ended: Promise<number>;
  private hasEnded = false;

  constructor(
    command: readonly string[],
    options: { env?: Record<string, string>; uid?: number; gid?: number } = {},
  ) {
    const ours = Object.entries(process.env).filter(([name]) => !name.startsWith("SOLEHOLD_"));
    const { uid, gid } = options;
    // A server does not outlive a test run that was killed.
    const whole = ["setpriv", "--pdeathsig", "KILL", "--", ...command];
    this.child = spawn(whole[0] as string, whole.slice(1), {
      stdio: ["ignore", "pipe", "pipe"],
      env: { ...Object.fromEntries(ours), ...options.env },
      ...(uid === undefined ? {} : { uid }),
      ...(gid === undefined ? {} : { gid }),
    });
    let rest = "";
    const read = (piece: Buffer): void => {
      const lines = (rest + piece.toString("utf8")).split("\n");
      rest = lines.pop() ?? "";
      if (this.lines.length + lines.length > LINES_MAX) throw new Error(`${command.join(" ")} says too much`);
      this.lines.push(...lines);
    };
    this.child.stdout?.on("data", read);
    this.child.stderr?.on("data", read);
    this.ended = new Promise((resolve) => {
      this.child.once("error", (error) => {
        this.lines.push(String(error));
        this.hasEnded = true;
        resolve(-1);
      });
      this.child.once("close", (code) => {
        this.hasEnded = true;
        resolve(code ?? -1);
      });
    });
  }

  get isRunning(): boolean {
    return !this.hasEnded;
  }

  /** The rest of the first line that begins so. */
  async line(prefix: string): Promise<string> {
    const found = (): string | undefined => this.lines.find((line) => line.startsWith(prefix));
    await waitFor(`a line that begins with ${JSON.stringify(prefix)}`, () => {
      if (this.hasEnded && found() === undefined) {
        throw new Error(`${this.child.spawnargs.join(" ")} ended:\n${this.lines.slice(-30).join("\n")}`);
      }
      return found() !== undefined;
    });
    return (found() as string).slice(prefix.length);
  }

  send(signal: NodeJS.Signals): void {
    this.child.kill(signal);
  }

  /** The code that it ends with; -1 for a signal. */
  async wait(): Promise<number> {
    await waitFor(`the end of ${this.child.spawnargs.join(" ")}`, () => this.hasEnded);
    return this.ended;
  }

  /** Ends it and waits until it has ended. */
  async end(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    if (!this.hasEnded) {
      this.send("SIGCONT");
      this.send(signal);
    }
    await this.wait();
  }
}

export interface SoleholdOptions {
  port?: number;
  args?: readonly string[];
}

/** A running `solehold serve`. */
export class Solehold {
  private constructor(
    public program: Program,
    readonly url: string,
    readonly dataDir: string,
    private readonly args: readonly string[],
    private readonly remove: () => void,
  ) {}

  static async start(options: SoleholdOptions = {}): Promise<Solehold> {
    const { port = 0, args = [] } = options;
    const folder = temporary("server");
    const dataDir = join(folder.path, "data");
    const store = args.includes("--engine") ? [] : ["--data-dir", dataDir];
    const all = [...store, ...args];
    try {
      const { program, url } = await serve(port, all);
      return new Solehold(program, url, dataDir, all, folder.remove);
    } catch (error) {
      folder.remove();
      throw error;
    }
  }

  get port(): number {
    return Number(new URL(this.url).port);
  }

  /** SIGKILL; the data stays. */
  kill(): Promise<void> {
    return this.program.end();
  }

  /** After a kill, at the same address and with the same data. */
  async startAgain(): Promise<void> {
    this.program = (await serve(this.port, this.args)).program;
  }

  /** SIGKILL, and the data goes. */
  async stop(): Promise<void> {
    await this.kill();
    this.remove();
  }
}

async function serve(port: number, args: readonly string[]): Promise<{ program: Program; url: string }> {
  const program = new Program([binary(), "serve", "--listen", `127.0.0.1:${port}`, ...args]);
  try {
    return { program, url: (await program.line(LISTENING)).split(" ")[0] as string };
  } catch (error) {
    await program.end();
    throw error;
  }
}

/** A private PostgreSQL, durable as the server wants it. */
export class Postgres {
  private constructor(
    readonly url: string,
    private readonly program: Program,
    private readonly remove: () => void,
  ) {}

  static async start(): Promise<Postgres> {
    const versions = readdirSync("/usr/lib/postgresql").sort((a, b) => Number(b) - Number(a));
    const programs = join("/usr/lib/postgresql", versions[0] as string, "bin");
    const folder = temporary("postgres");
    const user = process.geteuid?.() === 0 ? userOf("postgres", "nobody") : {};
    if (user.uid !== undefined) chownSync(folder.path, user.uid, user.gid ?? 0);
    const data = join(folder.path, "data");
    const options = ["-U", "postgres", "-A", "trust", "-N", "--locale=C.UTF-8"];
    const made = new Program([join(programs, "initdb"), "-D", data, ...options], user);
    if ((await made.wait()) !== 0) throw new Error(`initdb failed:\n${made.lines.join("\n")}`);
    const port = await freePort();
    const settings = [
      "listen_addresses=127.0.0.1",
      "unix_socket_directories=",
      "dynamic_shared_memory_type=mmap",
    ].flatMap((setting) => ["-c", setting]);
    const program = new Program(
      [join(programs, "postgres"), "-D", data, "-p", String(port), ...settings],
      user,
    );
    const postgres = new Postgres(`postgres://postgres@127.0.0.1:${port}/postgres`, program, folder.remove);
    const status = join(data, "postmaster.pid");
    await waitFor("PostgreSQL to be ready", () => {
      if (!program.isRunning) throw new Error(`PostgreSQL has ended:\n${program.lines.join("\n")}`);
      return existsSync(status) && readFileSync(status, "utf8").split("\n")[7]?.trim() === "ready";
    });
    return postgres;
  }

  async stop(): Promise<void> {
    await this.program.end("SIGINT");
    this.remove();
  }
}

/** PostgreSQL refuses to run as root. */
function userOf(...names: string[]): { uid?: number; gid?: number } {
  const users = readFileSync("/etc/passwd", "utf8").split("\n");
  for (const name of names) {
    const fields = users.find((user) => user.startsWith(`${name}:`))?.split(":");
    if (fields) return { uid: Number(fields[2]), gid: Number(fields[3]) };
  }
  return {};
}

/** A compiled program of the tests, in a process of its own. */
export function node(script: string, ...args: string[]): Program {
  return new Program([process.execPath, join(BUILT, "tests", script), ...args]);
}
