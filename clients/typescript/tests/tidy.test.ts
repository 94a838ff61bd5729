/** Style is an ordinary test, with the reason beside each rule. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { PACKAGE } from "./support/server.js";

const LINES_MAX = 600;
const CODE_CHARS_MAX = 110;
const PROSE_CHARS_MAX = 120;

interface Source {
  path: string;
  text: string;
}

function sources(...folders: string[]): Source[] {
  return folders.flatMap((folder) => {
    const names = readdirSync(join(PACKAGE, folder)).filter((name) => name.endsWith(".ts"));
    return names.map((name) => {
      const path = join(folder, name);
      return { path, text: readFileSync(join(PACKAGE, path), "utf8") };
    });
  });
}

test("files and lines are short: a file has one purpose, and a reader one evening", () => {
  const all = sources("src", "tests", "tests/support");
  assert.ok(all.length > 40, `${all.length} files`);
  for (const { path, text } of all) {
    const lines = text.split("\n");
    assert.ok(lines.length <= LINES_MAX, path);
    for (const [at, line] of lines.entries()) {
      const isProse = /^\s*(\/\/|\/\*|\*)/.test(line);
      assert.ok(line.length <= (isProse ? PROSE_CHARS_MAX : CODE_CHARS_MAX), `${path}:${at + 1}`);
    }
  }
});

test("clocks are read in one file, so that time can be simulated", () => {
  for (const { path, text } of sources("src")) {
    if (path !== "src/clock.ts") assert.doesNotMatch(text, /\bDate\b|performance\.|hrtime|new Date/, path);
  }
});

test("nothing but Node's own modules is imported", () => {
  for (const { path, text } of sources("src")) {
    for (const [, name] of text.matchAll(/(?:from|import)\s*\(?"([^"]+)"/g)) {
      assert.match(String(name), /^(node:|\.\/)/, path);
    }
  }
  const manifest = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8")) as Record<string, unknown>;
  assert.equal(manifest["dependencies"], undefined);
});

test("a module says what it is for", () => {
  for (const { path, text } of sources("src", "tests", "tests/support")) assert.match(text, /^\/\*\*/, path);
});
