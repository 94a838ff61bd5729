// What the dashboard promises, each by a test in a real browser.

import { strict as assert } from "node:assert";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { contrastFaults } from "./contrast.mjs";
import { TARGET } from "./server.mjs";
import {
  go,
  isClean,
  isLive,
  makeScene,
  openDashboard,
  standInLine,
  startPage,
  startServer,
  startWithOrchestrator,
} from "./world.mjs";

const PAGES = {
  overview: ["#/", `document.querySelectorAll(".event").length > 5`],
  resource: [
    "#/resource/default/job/nightly",
    `document.querySelector(".countdown")?.textContent.startsWith("in ")`,
  ],
  quarantined: ["#/resource/default/camera/hall-9%2Fbroken", `document.body.innerText.includes("in quarantine")`],
  runners: ["#/runners", `document.querySelectorAll("[data-runner]").length === 5`],
  holder: ["#/holder/gpu-1", `document.querySelectorAll(".holder tbody tr").length > 5`],
  deployments: ["#/deployments", `document.querySelectorAll(".deployments tbody tr").length === 2`],
  jobs: ["#/jobs", `document.querySelectorAll(".jobs tbody tr").length > 2`],
  charts: ["#/charts", `document.querySelectorAll(".chart[aria-label]").length === 4`],
  servers: ["#/servers", `document.body.innerText.includes("Open watches")`],
  audit: ["#/audit", `document.querySelectorAll(".audit tbody tr").length > 3`],
};
const dialogText = `document.querySelector("dialog[open]")?.innerText ?? ""`;
const banner = `document.getElementById("banner")`;

export const TESTS = {
  "static files have a strict policy and need no key": headers,
  "a takeover is seen within a second": takeover,
  "a lease is revoked, after its consequence was named": revoke,
  "a key without the right is told so": wrongKey,
  "a page without a key asks for one": noKey,
  "a lost connection is shown, and resumed": restart,
  "20,000 resources are drawn without lag": many,
  "everything is reachable by keyboard": keyboard,
  "jobs of a real orchestrator are shown as they change": jobs,
  "no page is wider than a phone": phone,
  "each page is readable in light and dark": pictures,
};

async function headers(context) {
  const server = await startServer(context);
  await server.createKey("ops", "admin");
  for (const path of [
    "/",
    "/dashboard/main.js",
    "/dashboard/style.css",
    "/dashboard/icon.svg",
    "/dashboard/pages/overview.js",
  ]) {
    const answer = await fetch(server.url + path);
    assert.equal(answer.status, 200, path);
    const policy = answer.headers.get("content-security-policy");
    for (const part of [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "connect-src 'self'",
      "frame-ancestors 'none'",
    ]) {
      assert.ok(policy.includes(part), `${path}: ${part} in ${policy}`);
    }
    assert.ok(!policy.includes("unsafe"), policy);
    assert.equal(answer.headers.get("x-content-type-options"), "nosniff");
    assert.equal(answer.headers.get("referrer-policy"), "no-referrer");
    const tag = answer.headers.get("etag");
    const again = await fetch(server.url + path, { headers: { "If-None-Match": tag } });
    assert.equal(again.status, 304, `${path} with ${tag}`);
  }
  assert.equal((await fetch(`${server.url}/dashboard/no-such.js`)).status, 404);
  const html = await (await fetch(`${server.url}/`)).text();
  assert.ok(
    !/<script(?![^>]*src=)|\sstyle="|\son[a-z]+="|https?:/.test(html),
    "no inline code, nothing from elsewhere",
  );
}

async function takeover(context) {
  const server = await startServer(context);
  await server.declare("job", "nightly");
  await server.acquire("job", "nightly", "first", { ttl_seconds: 2 });
  const page = await startPage(context);
  await openDashboard(page, server);
  const next = standInLine(server, "job", "nightly", "second");
  const takeovers = `[...document.querySelectorAll('.event[data-class="takeover"]')]`;
  const row = `${takeovers}.find((one) => one.innerText.includes("second"))`;
  await page.waitFor(`${row} !== undefined`);
  const grant = await next;
  const { words, seen } = await page.evaluate(
    `({ words: ${row}.innerText, seen: seen.get(${row}.dataset.revision) })`,
  );
  assert.match(words, /job\/nightly taken over by second from first/);
  const tookMs = seen - Date.parse(grant.acquired_at);
  context.report(`the takeover was on the page ${tookMs} ms after it happened`);
  // A second is the promise; a machine that runs other tests too may be slow.
  assert.ok(tookMs < 10_000, `${tookMs} ms`);
  const block = await page.evaluate(`[...solehold.page.map.blocks.values()].find((one) => one.count > 0).name`);
  assert.equal(block, "second");
  isClean(page);
}

async function revoke(context) {
  const server = await startServer(context);
  await server.createKey("ops", "admin");
  await server.declare("job", "nightly");
  const grant = await server.acquire("job", "nightly", "worker-1");
  const page = await startPage(context);
  await openDashboard(page, server, "#/resource/default/job/nightly");
  await page.click("button", "Revoke…");
  const words = await page.waitFor(dialogText);
  assert.match(words, new RegExp(`worker-1 loses job/nightly now, with token ${grant.token}`));
  assert.match(words, /Nobody can acquire the resource until that deadline/);
  assert.equal(
    (await server.ask("GET", "/resources/job/nightly")).lease.holder,
    "worker-1",
    "nothing happens before it is confirmed",
  );
  await page.evaluate(`document.querySelector("dialog input[name=reason]").focus()`);
  await page.type("worker-1 was moved");
  await page.click("dialog button", "Revoke");
  await page.waitFor(
    `document.querySelector(".pill.held-back") !== null && document.body.innerText.includes("worker-1 was moved")`,
  );
  const now = await server.ask("GET", "/resources/job/nightly");
  assert.equal(now.lease, null);
  assert.ok(now.held_back_ms > 0);
  await go(page, "#/audit");
  await page.waitFor(`document.querySelector(".audit tbody")?.innerText.includes("revoked the lease on")`);
  const entry = await page.evaluate(`document.querySelector(".audit tbody tr").innerText`);
  for (const part of ["ops", "job/nightly", "worker-1 was moved"])
    assert.ok(entry.includes(part), `${part} in ${entry}`);
  isClean(page);
}

async function wrongKey(context) {
  const server = await startServer(context);
  await server.createKey("ops", "admin");
  const reader = await server.createKey("wall", "reader");
  await server.declare("job", "nightly");
  await server.acquire("job", "nightly", "worker-1");
  const page = await startPage(context);
  await openDashboard(page, server, "#/resource/default/job/nightly", reader);
  await page.click("button", "Revoke…");
  await page.click("dialog button", "Revoke");
  const words = await page.waitFor(`document.querySelector("dialog .problem:not([hidden])")?.textContent`);
  assert.match(words, /Your key does not allow this/);
  assert.equal((await server.ask("GET", "/resources/job/nightly")).lease.holder, "worker-1");
  await page.press("Escape");
  await go(page, "#/audit");
  await page.waitFor(
    `document.querySelector(".audit .problem:not([hidden])")?.textContent.includes("Your key does not allow this")`,
  );
  isClean(page);
}

async function noKey(context) {
  const server = await startServer(context);
  await server.createKey("ops", "admin");
  await server.declare("job", "nightly");
  const page = await startPage(context);
  await page.open(`${server.url}/`);
  await page.waitFor(`(${dialogText}).includes("API key")`);
  assert.match(await page.evaluate(`${banner}.textContent`), /needs a valid key/);
  await page.type(server.key);
  await page.press("Enter");
  await isLive(page);
  await page.waitFor(`document.querySelector(".counts").innerText.includes("1 free")`);
  const kept = await page.evaluate(`[sessionStorage.length, localStorage.length, document.cookie]`);
  assert.deepEqual(kept, [1, 0, ""]);
  isClean(page);
}

async function restart(context) {
  const server = await startServer(context);
  await server.declare("job", "nightly");
  await server.acquire("job", "nightly", "worker-1");
  const page = await startPage(context);
  await openDashboard(page, server);
  await page.waitFor(`document.querySelectorAll(".event").length === 2`);
  await server.kill();
  const words = await page.waitFor(`!${banner}.hidden && ${banner}.textContent`);
  assert.match(words, /^Showing data from \d\d:\d\d:\d\d; connection lost/);
  assert.match(
    await page.evaluate(`document.querySelector(".counts").innerText`),
    /1 held/,
    "what was known is still shown",
  );
  await server.resume();
  await page.waitFor(`${banner}.hidden`);
  await server.declare("job", "hourly");
  await server.acquire("job", "hourly", "worker-2");
  await page.waitFor(`document.querySelectorAll(".event").length === 4`);
  const revisions = await page.evaluate(
    `[...document.querySelectorAll(".event")].map((one) => Number(one.dataset.revision))`,
  );
  assert.deepEqual(
    revisions,
    [...new Set(revisions)].sort((a, b) => b - a),
    "in order, none twice",
  );
  isClean(page);
}

async function many(context) {
  const server = await startServer(context);
  const HOLDERS = 20;
  const holds = new Map();
  for (let at = 0; at < HOLDERS; at += 1) {
    const keys = Array.from(
      { length: 1000 },
      (_, number) => `${String(at).padStart(2, "0")}-${String(number).padStart(4, "0")}`,
    );
    holds.set(`runner-${String(at).padStart(2, "0")}`, keys);
  }
  for (const [holder, keys] of holds) await server.acquireMany("camera", keys, holder);
  const page = await startPage(context);
  const began = Date.now();
  await openDashboard(page, server);
  await page.waitFor(`document.querySelector(".counts").innerText.includes("20,000 held")`);
  context.report(`20,000 resources were on the map ${Date.now() - began} ms after the page was opened`);
  await page.waitFor(`solehold.page.map.frames.length > 0`);
  // Frames while 200 resources change hands and flash.
  await page.evaluate(`solehold.page.map.frames.length = 0;
    globalThis.gaps = []; let last = performance.now();
    const step = (now) => { gaps.push(now - last); last = now; requestAnimationFrame(step); };
    requestAnimationFrame(step);`);
  const first = holds.get("runner-00").slice(0, 200);
  const leases = await server.ask("GET", "/leases?holder=runner-00&limit=200");
  const items = leases.leases.map(({ kind, key, token }) => ({ kind, key, token }));
  await server.ask("POST", "/leases/batch/release", { items });
  await server.acquireMany("camera", first, "runner-01");
  await page.waitFor(`solehold.page.map.blocks.get("runner-01").count === 1200`);
  await page.waitFor(`solehold.page.map.flashes.size === 0 && solehold.page.map.frames.length > 20`);
  const { frames, gaps } = await page.evaluate(`({ frames: solehold.page.map.frames, gaps })`);
  const at = (list, part) => [...list].sort((a, b) => a - b)[Math.floor(list.length * part)];
  context.report(
    `drawing a frame took ${at(frames, 0.5).toFixed(1)} ms (median), ${at(frames, 0.95).toFixed(1)} ms (95 %)`,
  );
  context.report(
    `frames were ${at(gaps, 0.5).toFixed(1)} ms apart (median), ${at(gaps, 0.95).toFixed(1)} ms (95 %)`,
  );
  // Without a graphics card, and beside other tests: 60 frames per second are the aim, 5 the bound.
  assert.ok(at(frames, 0.5) < 100, `a frame takes ${at(frames, 0.5)} ms`);
  assert.ok(at(gaps, 0.5) < 200, `frames are ${at(gaps, 0.5)} ms apart`);
  await save(page, "overview-20000-light");
  await page.evaluate(`document.getElementById("search-text").focus()`);
  await page.type("07-0042");
  await page.waitFor(`document.getElementById("search-results").innerText.includes("1 found")`);
  await page.press("Enter");
  await page.waitFor(
    `location.hash.endsWith("/camera/07-0042") && document.querySelector("h1").innerText.includes("07-0042")`,
  );
  isClean(page);
}

async function keyboard(context) {
  const server = await startServer(context);
  await server.declare("job", "nightly");
  await server.acquire("job", "nightly", "worker-1");
  const page = await startPage(context);
  await openDashboard(page, server);
  const focused = `document.activeElement.innerText || document.activeElement.id`;
  const ring = `getComputedStyle(document.activeElement).outlineStyle`;
  const tabTo = async (words) => {
    for (let presses = 0; presses < 60; presses += 1) {
      await page.press("Tab");
      if ((await page.evaluate(focused)).includes(words)) {
        assert.equal(await page.evaluate(ring), "solid", `${words} has a ring`);
        return;
      }
    }
    throw new Error(`Tab does not reach ${words}`);
  };
  await page.press("Tab");
  assert.equal(await page.evaluate(focused), "Skip to the page");
  for (const words of [
    "Overview",
    "Runners",
    "Deployments",
    "Jobs",
    "Charts",
    "Servers",
    "Audit trail",
    "search-text",
    "Key",
  ])
    await tabTo(words);
  await page.press("Tab");
  assert.equal(await page.evaluate(`document.activeElement.className`), "map");
  await page.press("ArrowRight");
  await page.waitFor(`document.querySelector(".tip").innerText.includes("job/nightly")`);
  await page.press("Enter");
  await page.waitFor(`document.querySelector(".countdown")?.textContent.startsWith("in ")`);
  await go(page, "#/runners");
  await page.waitFor(`document.querySelector(".runners") !== null`);
  await page.evaluate(`document.activeElement.blur()`);
  await page.press("/");
  assert.equal(await page.evaluate(`document.activeElement.id`), "search-text");
  await page.type("night");
  await page.waitFor(`document.getElementById("search-results").innerText.includes("job/nightly")`);
  await page.press("ArrowDown");
  await page.press("Enter");
  await page.waitFor(`document.querySelector(".countdown")?.textContent.startsWith("in ")`);
  await tabTo("Revoke…");
  await page.press("Enter");
  await page.waitFor(`document.querySelector("dialog[open]") !== null`);
  assert.equal(await page.evaluate(`document.activeElement.name`), "reason");
  await page.press("Escape");
  await page.waitFor(`document.querySelector("dialog[open]") === null`);
  assert.equal(await page.evaluate(focused), "Revoke…", "the focus is where it was");
  isClean(page);
}

async function jobs(context) {
  const { orchestrator, server } = await startWithOrchestrator(context);
  await server.createKey("ops", "admin");
  const reader = await server.createKey("wall", "reader");
  const ofTenant = await server.createKey("acme", "reader", "acme");
  await server.acquire("partition", "jobs.commands/0", "pod-1");
  const page = await startPage(context);
  await openDashboard(page, server, "#/jobs", reader);
  await page.waitFor(`document.querySelector(".orchestrator")?.innerText.includes("There are no such jobs")`);

  await orchestrator.create("video-17", "acme");
  const row = (job) => `document.querySelector('[data-job="${job}"]')`;
  await page.waitFor(`${row("video-17")}?.querySelector(".pill").textContent === "running"`);
  const words = await page.evaluate(`${row("video-17")}.innerText`);
  for (const part of ["0 %", "organization_id=acme", "acme:video-17"]) assert.ok(words.includes(part), words);
  await orchestrator.report("video-17", "decode", 1, { kind: "succeeded", result: { frames: 1200 } });
  await page.waitFor(`${row("video-17")}.innerText.includes("33 %")`);
  await orchestrator.create("video-18", "globex");
  await orchestrator.jobWhen("video-18", (job) => job.state === "running");
  for (const attempt of [1, 2]) {
    await orchestrator.jobWhen("video-18", (job) => job.stages[0].attempt === attempt);
    await orchestrator.report("video-18", "decode", attempt, { kind: "failed", reason: "no GPU is free" });
  }
  await page.waitFor(`${row("video-18")}?.querySelector(".pill").textContent === "failed"`);
  assert.match(await page.evaluate(`${row("video-18")}.innerText`), /stage decode: no GPU is free/);

  // A command that cannot take effect.
  await orchestrator.send(1, "acme:video-9", { type: "CANCEL", job_id: "video-9", organization_id: "acme" });
  await page.waitFor(`document.querySelector(".orchestrator").innerText.includes("there is no such job")`);

  // By keyboard: the filter, and then the job.
  await page.evaluate(`document.querySelector("select[name=state]").focus()`);
  await page.press("ArrowDown");
  await page.waitFor(`${row("video-18")} === null && ${row("video-17")} !== null`);
  assert.equal(await page.evaluate(`location.hash`), "#/jobs/running");
  assert.equal(await page.evaluate(`document.activeElement.name`), "state", "the focus is where it was");
  for (let presses = 0; presses < 10; presses += 1) {
    if ((await page.evaluate(`document.activeElement.innerText`)) === "video-17") break;
    await page.press("Tab");
  }
  await page.press("Enter");
  const stage = (name) => `document.querySelector('[data-stage="${name}"]')`;
  await page.waitFor(`${stage("decode")}?.innerText.includes("succeeded")`);
  assert.match(await page.evaluate(`document.querySelector(".job").innerText`), /s3:\/\/videos\/video-17.mp4/);
  await orchestrator.jobWhen("video-17", (job) => job.stages[1].state === "queued");
  await orchestrator.report("video-17", "detect", 1, { kind: "progress", fraction: 0.4 });
  await page.waitFor(`${stage("detect")}.innerText.includes("40 %")`);

  for (const scheme of ["light", "dark"]) {
    await page.scheme(scheme);
    for (const [name, hash, ready] of [
      ["orchestrator-jobs", "#/jobs", `${row("video-18")} !== null`],
      ["orchestrator-job", "#/job/video-17", `${stage("report")} !== null`],
      ["orchestrator-job-failed", "#/job/video-18", `${stage("report")} !== null`],
    ]) {
      await go(page, hash);
      await page.waitFor(ready);
      await save(page, `${name}-${scheme}`);
      assert.deepEqual(await page.evaluate(contrastFaults), [], `${name}, ${scheme}`);
      if (scheme === "dark") continue;
      await page.size(360, 740);
      await save(page, `phone-${name}-light`);
      const width = await page.evaluate(`document.documentElement.scrollWidth`);
      assert.ok(width <= 360, `${name} is ${width} wide`);
      await page.size(1400, 900);
    }
  }
  await page.scheme("light");

  // The orchestrator goes, and comes back.
  await go(page, "#/jobs");
  await page.waitFor(`${row("video-18")} !== null`);
  await orchestrator.kill();
  const problem = `document.querySelector(".jobs > .problem:not([hidden])")?.textContent`;
  const old = await page.waitFor(problem);
  assert.match(old, /^Showing jobs from \d\d:\d\d:\d\d. Cannot ask the orchestrator: no server at http/);
  assert.equal(await page.evaluate(`${row("video-17")} !== null`), true, "what was known is still shown");
  await save(page, "orchestrator-away-light");
  assert.deepEqual(await page.evaluate(contrastFaults), []);
  await orchestrator.resume();
  await page.waitFor(`${problem} === undefined`);
  await orchestrator.ask("POST", "/jobs/video-17/cancel");
  await page.waitFor(`${row("video-17")}.querySelector(".pill").textContent === "cancelled"`);
  isClean(page);

  // Jobs belong to no tenant, so a key of one does not see them.
  const other = await startPage(context);
  await openDashboard(other, server, "#/jobs", ofTenant);
  const refused = await other.waitFor(problem);
  assert.match(refused, /Your key does not allow this: .*limited to tenant acme/);
  assert.ok(!(await other.text()).includes("video-17"));
  isClean(other);
}

async function phone(context) {
  const server = await startServer(context);
  await makeScene(server);
  const page = await startPage(context);
  await page.size(360, 740);
  await openDashboard(page, server);
  for (const [name, [hash, ready]] of Object.entries(PAGES)) {
    await go(page, hash);
    await page.waitFor(ready);
    const { width, wide } = await page.evaluate(`({
      width: document.documentElement.scrollWidth,
      wide: [...document.querySelectorAll("body *")]
        .filter((one) => one.getBoundingClientRect().right > 361 && !one.closest(".scroll, nav, pre"))
        .slice(0, 5).map((one) => one.outerHTML.slice(0, 100)),
    })`);
    assert.ok(width <= 360, `${name} is ${width} wide: ${wide.join("\n")}`);
    await save(page, `phone-${name}-light`);
  }
  isClean(page);
}

async function pictures(context) {
  const server = await startServer(context);
  await makeScene(server);
  const line = [2, 3, 4].map((number) => standInLine(server, "job", "nightly", `worker-${number}`));
  const page = await startPage(context);
  await openDashboard(page, server);
  for (const scheme of ["light", "dark"]) {
    await page.scheme(scheme);
    for (const [name, [hash, ready]] of Object.entries(PAGES)) {
      await go(page, hash);
      await page.waitFor(ready);
      await save(page, `${name}-${scheme}`);
      assert.deepEqual(await page.evaluate(contrastFaults), [], `${name}, ${scheme}`);
    }
    await go(page, PAGES.resource[0]);
    await page.click("button", "Revoke…");
    await page.waitFor(dialogText);
    await save(page, `dialog-${scheme}`);
    assert.deepEqual(await page.evaluate(contrastFaults), [], `dialog, ${scheme}`);
    await page.press("Escape");
  }
  isClean(page);
  await server.kill();
  await go(page, "#/");
  await page.waitFor(`!${banner}.hidden`);
  await save(page, "lost-dark");
  await Promise.all(line);
}

/** Keeps a picture of the page as it is, after it was drawn. */
async function save(page, name) {
  const folder = join(TARGET, "dashboard-screenshots");
  mkdirSync(folder, { recursive: true });
  await page.evaluate(`new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))`);
  writeFileSync(join(folder, `${name}.png`), await page.screenshot());
}
