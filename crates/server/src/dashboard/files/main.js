// The frame around the pages: which page is open, the connection, the key, the search.

import { Actions } from "./actions.js";
import { Api, path, wordsOf } from "./api.js";
import { ask, field } from "./dialog.js";
import { fill, h, setText } from "./dom.js";
import { clock } from "./format.js";
import { Sampler } from "./metrics.js";
import { auditPage } from "./pages/audit.js";
import { chartsPage } from "./pages/charts.js";
import { deploymentsPage } from "./pages/deployments.js";
import { holderPage } from "./pages/holder.js";
import { jobPage } from "./pages/job.js";
import { jobsPage } from "./pages/jobs.js";
import { overview } from "./pages/overview.js";
import { resourcePage } from "./pages/resource.js";
import { runnersPage } from "./pages/runners.js";
import { serversPage } from "./pages/servers.js";
import { Search } from "./search.js";
import { Store } from "./store.js";
import { Watch } from "./watch.js";

const PAGES = {
  "": overview,
  runners: runnersPage,
  holder: holderPage,
  deployments: deploymentsPage,
  jobs: jobsPage,
  job: jobPage,
  charts: chartsPage,
  servers: serversPage,
  audit: auditPage,
  resource: resourcePage,
};
const NAV = [
  ["", "Overview"],
  ["runners", "Runners"],
  ["deployments", "Deployments"],
  ["jobs", "Jobs"],
  ["charts", "Charts"],
  ["servers", "Servers"],
  ["audit", "Audit trail"],
];
/** Pages that belong to another one in the list. */
const WITHIN = { holder: "runners", job: "jobs" };
const RUNNERS_EVERY_MS = 5_000;
/** A connection that comes back within this time was not worth a word. */
const BANNER_AFTER_MS = 400;

const api = new Api();
const store = new Store();
const watch = new Watch(api, store);
const sampler = new Sampler(api);
const app = { api, store, sampler, actions: new Actions(api, store), loadRunners };
const byId = (id) => document.getElementById(id);
let page;

/** Opens the page that the address names: #/resource/tenant/kind/key. */
function route() {
  if (!location.hash.startsWith("#/") && location.hash !== "") return;
  const [name, ...names] = location.hash.slice(2).split("/").map(decode);
  const open = PAGES[name] ?? overview;
  page?.close?.();
  page = open(app, names);
  app.page = page;
  fill(byId("main"), page.element);
  document.title = `${page.title} · Solehold`;
  page.opened?.();
  for (const link of byId("nav").querySelectorAll("a")) {
    const isHere = link.hash === `#/${WITHIN[name] ?? name}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  search.close();
  scrollTo(0, 0);
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function loadRunners() {
  store.runners = await api.all(path("runners"), "runners", { tenant: store.tenant });
  page?.runnersChanged?.();
}

/** What a snapshot leaves out: hand-overs under way, what is held back, and what nobody declared. */
async function describeAll() {
  let cursor;
  do {
    const versions = new Map([...store.resources.values()].map((resource) => [resource.id, resource.version]));
    const found = await api.get(path("resources"), { limit: 1000, cursor });
    for (const one of found.resources)
      store.describe(one, versions.get(`${one.tenant}\n${one.kind}\n${one.key}`) ?? 0);
    cursor = found.next ?? undefined;
  } while (cursor !== undefined);
}

/** Says plainly when what is shown is old. */
function showConnection() {
  const { staleness } = store;
  const at = store.currentAt ? clock(store.currentAt) : "";
  const words = {
    lost: `Showing data from ${at}; connection lost. Trying to reconnect…`,
    silent: `Showing data from ${at}; the server answers, but its store does not.`,
    unreachable: "The server cannot be reached. Trying again…",
    refused: store.connection.problem && wordsOf(store.connection.problem),
  }[staleness];
  staleSince = words ? (staleSince ?? Date.now()) : undefined;
  const isShown = words !== undefined && (staleness === "refused" || Date.now() - staleSince >= BANNER_AFTER_MS);
  const banner = byId("banner");
  banner.hidden = !isShown;
  document.body.classList.toggle("stale", isShown && store.isLoaded);
  if (words) setText(banner, words);
  const pill = byId("connection");
  const isLive = words === undefined && store.connection.state === "live";
  setText(pill, isLive ? "live" : staleness === "refused" ? "no access" : words ? "not live" : "connecting");
  pill.className = `pill ${isLive ? "held" : words ? "held-back" : "free"}`;
  if (staleness === "refused" && !wasAsked) askForKey();
}
let staleSince;
let wasAsked = false;

function askForKey() {
  wasAsked = true;
  const input = h("input", { name: "key", type: "password", autocomplete: "off", spellcheck: "false" });
  const isSet = api.key !== "";
  ask({
    title: "API key",
    consequences: [
      "The key says what this page may show and do: a reader's key shows everything, an admin's key also acts. It " +
        "is kept in this tab only, and forgotten when the tab is closed.",
    ],
    fields: [
      field(
        isSet ? "New key (empty: forget the key)" : "Key",
        input,
        "solehold admin key create --name me --role reader",
      ),
    ],
    confirm: "Use this key",
    run: ({ key }) => {
      api.key = key.trim();
      store.clear();
      watch.restart();
      loadRunners().catch(() => {});
      showKey();
    },
  });
}

function showKey() {
  // The id of a key is no secret: shk_<id>_<secret>.
  const id = api.key.split("_")[1]?.slice(0, 6);
  setText(byId("key"), api.key === "" ? "Key…" : `Key ${id ?? "set"}…`);
}

function showTenants() {
  const select = byId("tenant");
  const names = ["", ...[...store.tenants].sort()];
  select.hidden = names.length < 3 && store.tenant === "";
  if (select.options.length === names.length) return;
  fill(select, ...names.map((name) => h("option", { value: name }, name || "All tenants")));
  select.value = store.tenant;
}

byId("tenant").addEventListener("change", (event) => {
  store.tenant = event.target.value;
  loadRunners().catch(() => {});
  store.changed({ isReset: true });
});
byId("key").addEventListener("click", askForKey);
fill(byId("nav"), ...NAV.map(([name, words]) => h("a", { href: `#/${name}` }, words)));

const search = new Search(byId("search"), store, (matches) => page?.searched?.(matches));
let wasLoaded = false;
store.listen((change) => {
  page?.changed?.(change);
  if (change.isReset) {
    showTenants();
    if (store.isLoaded) describeAll().catch(() => {});
  }
  if (store.isLoaded && !wasLoaded) wasAsked = false;
  wasLoaded = store.isLoaded;
  showConnection();
});

setInterval(() => {
  store.tick();
  if (!document.hidden) page?.ticked?.();
}, 1_000);
setInterval(showConnection, 250);
setInterval(() => {
  const isWanted = !document.hidden && store.connection.state === "live";
  if (isWanted) loadRunners().catch(() => {});
}, RUNNERS_EVERY_MS);

addEventListener("hashchange", route);
showKey();
route();
loadRunners().catch(() => {});
sampler.start();
watch.run();
// For tests, and for the curious.
globalThis.solehold = app;
