/** A lock that ends with its process. Node cannot lock a file, so the lock is a name in the kernel. */

import { open } from "node:fs/promises";
import { createServer } from "node:net";

export interface FileLock {
  release(): Promise<void>;
}

/**
 * Locks a file against all processes of this machine, in the same network namespace, that lock it by this function;
 * undefined if another one has it. The file is created if it is not there.
 *
 * The name, of Linux's abstract sockets, contains the identity of the file, so two paths to one file are one lock. It
 * is free as soon as the process has ended, however it ends.
 */
export async function lockFile(path: string): Promise<FileLock | undefined> {
  if (process.platform !== "linux") {
    throw new Error(`${path} cannot be locked on ${process.platform}: a gate's memory needs Linux`);
  }
  const file = await open(path, "a");
  const { dev, ino } = await file.stat({ bigint: true }).finally(() => file.close());
  const server = createServer((connection) => connection.destroy());
  return new Promise((resolve, reject) => {
    server.once("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EADDRINUSE") resolve(undefined);
      else reject(error);
    });
    server.listen({ path: `\0solehold-gate-${dev}-${ino}` }, () => {
      // The lock alone does not keep the process alive.
      server.unref();
      resolve({ release: () => new Promise((released) => server.close(() => released())) });
    });
  });
}
