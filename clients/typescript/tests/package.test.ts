/** The package: packed, installed into an empty folder, type-checked and used there, with the README's example. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { PACKAGE, Solehold, temporary } from "./support/server.js";

const run = promisify(execFile);
const MODULES = process.env["SOLEHOLD_MODULES"] ?? join(PACKAGE, "node_modules");
const TSC = join(MODULES, "typescript/lib/tsc.js");
const manifest = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8")) as { version: string };
const readme = readFileSync(join(PACKAGE, "README.md"), "utf8");

/** What a consumer must not be able to do: everything internal is left out of the types. */
const STRICT = `
import { Client, Lost, type Verdict } from "solehold-client";
const client: Client = new Client("127.0.0.1:7070");
// @ts-expect-error internal
client.channel();
// @ts-expect-error there is no such option
new Client("127.0.0.1:7070", { timeout: 5 });
const { why }: { why: "deadline" | "failed" | "refused" | "ended" | "history" | "released" | "closed" } =
  new Lost("ended", "x");
export const used: [string, Verdict | undefined] = [why, undefined];
`;

test("it is packed, installed, type-checked and used as the README says", async (t) => {
  const folder = temporary("package");
  t.after(folder.remove);
  const source = join(folder.path, "source");
  // Of a copy, since a build leaves its traces beside the source.
  cpSync(PACKAGE, source, { recursive: true, filter: (path) => !/\/(node_modules|dist)$/.test(path) });
  symlinkSync(MODULES, join(source, "node_modules"));
  await run("npm", ["pack", "--loglevel", "error", "--pack-destination", folder.path], { cwd: source });
  const archive = `solehold-client-${manifest.version}.tgz`;
  assert.ok(readdirSync(folder.path).includes(archive));
  assert.ok(readme.includes(`npm install ${archive}\n`), "the README names it");

  const consumer = join(folder.path, "consumer");
  mkdirSync(consumer);
  writeFileSync(join(consumer, "package.json"), '{"type": "module", "private": true}');
  const install = [
    "install",
    "--offline",
    "--no-audit",
    "--no-fund",
    "--loglevel",
    "error",
    join("..", archive),
  ];
  await run("npm", install, { cwd: consumer });
  const installed = join(consumer, "node_modules/solehold-client");
  assert.deepEqual(
    readdirSync(join(consumer, "node_modules")).filter((name) => !name.startsWith(".")),
    ["solehold-client"],
  );
  assert.deepEqual(readdirSync(installed).sort(), ["README.md", "dist", "package.json"], "and nothing else");
  const modules = readdirSync(join(PACKAGE, "src")).map((name) => name.replace(/\.ts$/, ""));
  const built = modules.flatMap((name) => [`${name}.d.ts`, `${name}.js`]);
  assert.deepEqual(readdirSync(join(installed, "dist")).sort(), built.sort());

  const [example, ...others] = [...readme.matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code as string);
  assert.ok(example !== undefined && others.length === 0, "the README has one example");
  writeFileSync(join(consumer, "example.ts"), example);
  writeFileSync(join(consumer, "strict.ts"), STRICT);
  const options = ["--strict", "--target", "es2022", "--module", "nodenext", "--exactOptionalPropertyTypes"];
  const roots = ["--typeRoots", join(MODULES, "@types"), "--types", "node"];
  // The libraries are checked, too: a declaration that needs what is not installed would fail here.
  const checked = run(process.execPath, [TSC, ...options, ...roots, "example.ts", "strict.ts"], {
    cwd: consumer,
  });
  await checked.catch((error: { stdout?: string }) => assert.fail(String(error.stdout)));

  const server = await Solehold.start();
  t.after(() => server.stop());
  for (const frames of [
    ["1", "2", "3"],
    ["4", "5", "6"],
  ]) {
    const env = { ...process.env, SOLEHOLD_SERVER: server.url };
    const { stdout, stderr } = await run(process.execPath, ["example.js"], {
      cwd: consumer,
      env,
      timeout: 60_000,
    });
    assert.equal(stderr, "");
    assert.deepEqual(
      [...stdout.matchAll(/frame (\d) with token \d+\n/g)].map(([, frame]) => frame),
      frames,
      stdout,
    );
    assert.ok(stdout.endsWith("tracked\nthe lock is ours: true\n"), stdout);
  }
});
