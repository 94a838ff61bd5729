// Situations for the tests: a server with runners, leases, waiters and a little history.

import { writeFileSync } from "node:fs";
import { join } from "node:path";

import { Orchestrator } from "./orchestrator.mjs";
import { Server } from "./server.mjs";

const SEEN_EVENTS = `
  globalThis.seen = new Map();
  new MutationObserver(() => {
    for (const row of document.querySelectorAll(".timeline .event")) {
      if (!seen.has(row.dataset.revision)) seen.set(row.dataset.revision, Date.now());
    }
  }).observe(document, { childList: true, subtree: true });
`;

/** A server that is stopped when the test ends. */
export async function startServer({ later }) {
  const server = await Server.start();
  later(() => server.stop());
  return server;
}

/** A real orchestrator, and a server that was told of it. */
export async function startWithOrchestrator({ later }) {
  const orchestrator = await Orchestrator.start();
  later(() => orchestrator.stop());
  const server = await Server.start((folder) => {
    const file = join(folder, "orchestrator.key");
    writeFileSync(file, `${orchestrator.key}\n`);
    return ["--orchestrator", orchestrator.url, "--orchestrator-key-file", file];
  });
  later(() => server.stop());
  return { orchestrator, server };
}

/** A page that is closed when the test ends. */
export async function startPage({ browser, later }) {
  const page = await browser.page();
  later(() => page.close());
  return page;
}

/** Opens the dashboard, and waits until it is live. */
export async function openDashboard(page, server, hash = "#/", key = server.key) {
  await page.send("Page.addScriptToEvaluateOnNewDocument", { source: SEEN_EVENTS });
  if (key) {
    const source = `sessionStorage.setItem("solehold.key", ${JSON.stringify(key)})`;
    await page.send("Page.addScriptToEvaluateOnNewDocument", { source });
  }
  await page.open(`${server.url}/${hash}`);
  await isLive(page);
}

export const isLive = (page) => page.waitFor(`document.getElementById("connection")?.textContent === "live"`);

export const go = (page, hash) => page.evaluate(`location.hash = ${JSON.stringify(hash)}`);

/** Fails if the page threw, was refused something by its policy, or asked another host. */
export function isClean(page) {
  if (page.faults.length > 0) throw new Error(`faults in the page: ${page.faults.join("\n")}`);
  if (page.foreign.length > 0) throw new Error(`requests to other hosts: ${page.foreign.join(", ")}`);
}

/** Two deployment groups, 120 cameras, a lock with waiters, a resource in quarantine, a takeover, a hand-over. */
export async function makeScene(server) {
  const sessions = new Map();
  for (const [name, group, version] of [
    ["gpu-1", "blue", "1.4.2"],
    ["gpu-2", "blue", "1.4.2"],
    ["gpu-3", "blue", "1.4.2"],
    ["gpu-4", "green", "1.5.0"],
    ["gpu-5", "green", "1.5.0"],
  ]) {
    const about = { kinds: ["camera"], capacity: 48, host: "10.0.0.7", port: 8080 };
    const runner = await server.register(name, { ...about, deployment_group: group, deployment_version: version });
    sessions.set(name, runner.session_id);
  }
  const names = [...sessions.keys()];
  for (let at = 0; at < 120; at += 1) {
    const key = `hall-${Math.floor(at / 10)}/cam-${String(at).padStart(3, "0")}`;
    await server.declare("camera", key, {
      site: `hall-${Math.floor(at / 10)}`,
      labels: { tier: at % 3 ? "silver" : "gold" },
    });
    const name = names[at % 7];
    if (name)
      await server.acquire("camera", key, name, { session_id: sessions.get(name), ttl_seconds: undefined });
  }
  await server.declare("job", "nightly", {
    labels: { tier: "gold" },
    attributes: { cron: "0 3 * * *", owner: "reports" },
  });
  const grant = await server.acquire("job", "nightly", "worker-1");
  const state = { token: grant.token, sequence: 1, document: { done: 41, of: 120, last: "2026-11-17T23:58:12Z" } };
  await server.ask("PUT", "/resources/job/nightly/state", state);
  await server.declare("job", "hourly");
  await server.acquire("partition", "orders/commands/0", "orchestrator-1");
  await server.acquire("partition", "orders/commands/1", "orchestrator-2");
  await server.ask("POST", "/resources/camera/hall-0%2Fcam-000/handover", { to: "gpu-4", ttl_seconds: 3600 });
  await server.declare("camera", "hall-9/broken");
  await server.ask("PUT", "/resources/camera/hall-9%2Fbroken/quarantine", {
    reason: "its stream has no pictures",
  });
  await server.ask("PUT", "/runners/gpu-3/status", { status: "draining" });
  await server.ask("POST", "/deployments/shift", { to: "green", percent: 25 });
  const lost = await server.acquire("camera", "hall-0/cam-005", "gpu-9");
  await server.ask("POST", "/resources/camera/hall-0%2Fcam-005/lease/revoke", {
    token: lost.token,
    reason: "gpu-9 is on fire",
  });
  const taken = await server.acquire("camera", "hall-0/cam-006", "gpu-9");
  const body = { token: taken.token, fenced: true, reason: "gpu-9 was switched off" };
  await server.ask("POST", "/resources/camera/hall-0%2Fcam-006/lease/revoke", body);
  await server.acquire("camera", "hall-0/cam-006", "gpu-5", {
    session_id: sessions.get("gpu-5"),
    ttl_seconds: undefined,
  });
}

/** Waits in line for a resource; the answer comes when it is granted or the wait is over. */
export function standInLine(server, kind, key, holder) {
  return server.acquire(kind, key, holder, { wait_ms: 30_000 }).catch(() => undefined);
}
