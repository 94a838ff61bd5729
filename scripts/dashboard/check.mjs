// Runs the tests of the dashboard, one after the other, in one Chromium. Each has a page and servers of its own.

import { Browser } from "./browser.mjs";
import { TESTS } from "./tests.mjs";

/** For a machine that does much else, too. */
const TEST_MS_MAX = 900_000;

const wanted = process.argv.slice(2);
const chosen = Object.entries(TESTS).filter(
  ([name]) => wanted.length === 0 || wanted.some((part) => name.includes(part)),
);
if (chosen.length === 0) throw new Error(`no test is called so: ${Object.keys(TESTS).join(", ")}`);

const browser = new Browser();
const failed = [];
for (const [name, test] of chosen) {
  const ends = [];
  const began = Date.now();
  const context = { browser, later: (end) => ends.unshift(end), report: (text) => console.log(`    ${text}`) };
  let timer;
  const tooLate = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${TEST_MS_MAX} ms`)), TEST_MS_MAX);
  });
  try {
    await Promise.race([test(context), tooLate]);
    console.log(`ok      ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    failed.push(name);
    console.log(`FAILED  ${name} (${Date.now() - began} ms)\n${error.stack}`);
  }
  clearTimeout(timer);
  for (const end of ends) await end();
}
await browser.close();
console.log(failed.length === 0 ? `${chosen.length} tests passed` : `failed: ${failed.join(", ")}`);
process.exit(failed.length === 0 ? 0 : 1);
